# ruff: noqa: E501 - one program a line
"""Every plain type as a returned value, and sources that are odd but right."""

from tests.adversarial.corpus import generated

DEEP = "[" * 100 + "]" * 100

# What is returned, as source, and what must come back: worked out here, not there.
RETURNED: dict[str, tuple[str, object]] = {
    "None": ("print('x')", None),
    "a bool": ("1 == 1.0", True),
    "zero": ("0", 0),
    "minus one": ("-1", -1),
    "an int of 5,000 digits": ("10 ** 5000", 10**5000),
    "a negative int of 5,000 digits": ("-(10 ** 5000)", -(10**5000)),
    "an int at a byte's edge": ("[127, 128, 255, 256, -128, -129]", [127, 128, 255, 256, -128, -129]),
    "a float": ("0.1 + 0.2", 0.30000000000000004),
    "nan": ("float('nan')", float("nan")),
    "a negative nan": ("-float('nan')", float("nan")),
    "infinities": ("(float('inf'), -float('inf'))", (float("inf"), -float("inf"))),
    "minus zero": ("-0.0", 0.0),
    "the smallest float": ("5e-324", 5e-324),
    "a complex": ("(1 + 2j) * 1j", -2 + 1j),
    "a complex nan": ("complex('nan+infj')", complex(float("nan"), float("inf"))),
    "an empty str": ("''", ""),
    "a lone surrogate": ("'\\ud800' + 'a'", "\ud800a"),
    "letters of every length": ("'a\\u00e9\\u20ac\\U0001f388\\0'", "a\u00e9\u20ac\U0001f388\0"),
    "bytes": ("bytes(range(256))", bytes(range(256))),
    "empty bytes": ("b''", b""),
    "empty containers": ("([], (), {}, set(), frozenset())", ([], (), {}, set(), frozenset())),
    "a nested set": ("{frozenset({1, (2, None)}), ()}", {frozenset({1, (2, None)}), ()}),
    "odd keys": ("{None: 0, (1, 'a'): 1, 2: 3, b'k': 4, 1.5: 5, frozenset(): 6, True: 7}", {None: 0, (1, "a"): 1, 2: 3, b"k": 4, 1.5: 5, frozenset(): 6, True: 7}),
    "a dict in another order": ("{'b': 1, 'a': 2}", {"a": 2, "b": 1}),
    "a dict with nan for a key": ("{float('nan'): 1}", {float("nan"): 1}),
    "one list twice": ("(lambda v: [v, v])([1])", [[1], [1]]),
    "a hundred levels": (DEEP, eval(DEEP)),
    "a generator made a list": ("list(i for i in range(3))", [0, 1, 2]),
    "a dict of a Counter": ("dict(__import__('collections').Counter('aab'))", {"a": 2, "b": 1}),
    "a tuple of a named tuple": ("tuple(__import__('collections').namedtuple('P', 'a b')(1, 2))", (1, 2)),
    "the value of an enum": ("__import__('enum').Enum('E', {'a': 3}).a.value", 3),
    "an int of a Fraction": ("int(__import__('fractions').Fraction(6, 2))", 3),
    "a str just under the bound": ("'x' * (64 * 1024 - 5)", "x" * (64 * 1024 - 5)),
    "many small values": ("list(range(9000))", list(range(9000))),
    "a joined str of many": ("','.join(map(str, range(5000)))", ",".join(map(str, range(5000)))),
    "the same hash three times": ("{0, 2**61 - 1, 2**62 - 2}", {0, 2**61 - 1, 2**62 - 2}),
    "a sorted set": ("sorted({'b', 'a'})", ["a", "b"]),
    "zip made a list of tuples": ("list(zip('ab', [1, 2]))", [("a", 1), ("b", 2)]),
}  # fmt: skip

_PLAIN = "def f(x):\n\treturn x + 1\n"

ODD_SOURCES = generated(
    "passed",
    {
        "line ends of DOS": _PLAIN.replace("\n", "\r\n"),
        "line ends of old Macs": "def f(x):\r\treturn x + 1\r",
        "line ends of all kinds": "import math\r\nimport os\rdef f(x):\n\treturn x + 1",
        "form feeds between functions": "import os\n\f\n" + _PLAIN,
        "no line end at the end": "def f(x): return x + 1",
        "blank lines before and after": "\n" * 500 + _PLAIN + "\n \t\n" * 500,
        "a comment of a megabyte": "#" + "x" * 1_000_000 + "\n" + _PLAIN,
        "a text of a megabyte": "s = '''" + "x\n" * 500_000 + "'''\n" + _PLAIN,
        "20,000 lines": "x = [1, 2]\n" * 20_000 + _PLAIN,
        "a table of 20,000 numbers": f"t = {list(range(20_000))}\n" + _PLAIN,
        "a shebang and a cookie": "#!/usr/bin/env python3\n# -*- coding: latin-1 -*-\n" + _PLAIN,
        "90 levels of indentation": "".join(" " * i + "if 1:\n" for i in range(90))
        + " " * 90
        + "def f(x): return x + 1",
        "150 nested parentheses": "def f(x): return " + "(" * 150 + "x + 1" + ")" * 150,
        "a text of every letter": f"s = {''.join(map(chr, range(0x20, 0xD800)))!r}\n" + _PLAIN,
        "one line of a megabyte": "x = 1" + "; x = 1" * 60_000 + "\n" + _PLAIN,
        "spaces that are not ASCII in a text": "s = '\u00a0\u200b\u2028'\n" + _PLAIN,
    },
)
