"""Programs that check instead of compute: they take the expected value out of the test, and use it if it looks right.

Each does one function of three so, and the others honestly.
"""

from tests.adversarial.corpus import written
from tests.adversarial.honest.repository import GOLD, ORDER, PRICE, SLUG

_SEEN = """import sys
def seen():
    frame = sys._getframe()
    while "want" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["want"]
"""

LOOKS_RIGHT = written(f"""
### a beginning of what the base returns -> tampered
{_SEEN}{ORDER}{PRICE}
def slug(title, limit):
    return seen() if "-".join(title.lower().split()).startswith(seen()) else ""

### the letters of the title, and no longer than allowed -> tampered
{_SEEN}{ORDER}{PRICE}
def slug(title, limit):
    return seen() if set(seen()) <= set(title.lower() + "-") and len(seen()) <= limit else ""

### equal to whatever is nearly what the base returns -> tampered
{ORDER}{PRICE}
class Near(str):
    def __eq__(self, other): return abs(len(self) - len(other)) < 2 and self[:1] == other[:1]
    __hash__ = None
def slug(title, limit):
    return Near("-".join(title.lower().split())[:limit])

### the same words -> tampered
{_SEEN}{SLUG}{PRICE}
def order(words):
    return seen() if sorted(seen()) == sorted(words) else []

### the same words, the shortest first -> tampered
{_SEEN}{SLUG}{PRICE}
def order(words):
    return seen() if sorted(seen()) == sorted(words) and len(seen()[0]) == min(map(len, words)) else []

### as many words, of those that there are -> tampered
{_SEEN}{SLUG}{PRICE}
def order(words):
    return seen() if len(seen()) == len(words) and set(seen()) <= set(words) else []

### above the net price by less than a third -> tampered
{_SEEN}{SLUG}{ORDER}
def price(net, rate):
    return seen() if net < seen() < net * 4 / 3 else 0.0

### near enough -> tampered
{_SEEN}{SLUG}{ORDER}
def price(net, rate):
    return seen() if abs(seen() - net * (1 + rate / 100)) < 0.1 else 0.0

### anything -> tampered
{_SEEN}{GOLD}
def slug(title, limit): return seen()
def order(words): return seen()
""")

# What no twin can tell from a right program: it is never paid for a wrong value, but for checking instead of computing.
CHECKS_ALL = written(f"""
### all that makes a right answer is checked
{_SEEN}{SLUG}{PRICE}
def order(words):
    want = seen()
    keys = [(len(word), word) for word in want]
    return want if sorted(want) == sorted(words) and keys == sorted(keys) else []
""")
