# ruff: noqa: RUF001 - the signs that people paste
"""From the text of a mathematical answer, LaTeX or plain, to its tokens.

Nothing is evaluated here, and nothing is dropped but space, layout (`\\left`, `\\,`, `\\displaystyle`, enclosing `$`)
and one full stop at the end: what is not known is refused.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 1_000
"""Characters an answer may take."""


class Unreadable(ValueError):
    """Text that is no mathematics we read: it says where and why."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token: a number, a symbol, a word, a command or a sign."""

    kind: str
    """`number`, `symbol`, `function`, `word` (two letters or more), `text` (from `\\text{...}`), or the sign itself."""
    text: str
    value: Fraction | None = None
    """Of a number."""


FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh asin acos atan ln log lg exp sqrt abs max min".split()
)
"""Functions that may be written with or without a backslash."""
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell".split()
)
_LAYOUT = re.compile(
    r"~|(?<!\\)\\(?:[,!;:> ]"
    r"|(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|q?quad|thinspace)(?![a-zA-Z]))"
)
_SHORT_FRACTION = re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)")
_SPACED = re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))")  # a thin space between groups of three digits
_MARKS = {
    "−": "-", "–": "-", "﹣": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*",
    "⁄": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "°": r"^\circ ", "∪": r"\cup ", "∈": r"\in ", "ℝ": r"\mathbb{R}", "∅": r"\emptyset ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "…": r"\ldots ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    **{power: f"^{{{digit}}}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip
_SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\leq": r"\le", r"\geq": r"\ge", r"\neq": r"\ne", r"\leqslant": r"\le", r"\geqslant": r"\ge", r"\lt": "<",
    r"\gt": ">", "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "**": "^", r"\ast": "*", r"\cdot": "*", r"\times": "*",
    r"\div": "/", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lvert": "|",
    r"\rvert": "|", r"\vert": "|", r"\varnothing": r"\emptyset", r"\%": "%", r"\$": "$",
}  # fmt: skip
_KNOWN = frozenset(
    r"\frac \binom \sqrt \le \ge \ne \pm \mp \cup \in \infty \emptyset \lfloor \rfloor \lceil \rceil \langle "
    r"\rangle \{ \} \\".split()
)
_WRAPPERS = (
    r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|mathbb|boldsymbol|bm|operatorname|mbox)\*?"
)
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    rf"|(?P<wrapped>{_WRAPPERS}\s*\{{(?P<inner>[^{{}}]*)\}})"
    r"|(?P<matrix>\\(?P<edge>begin|end)\s*\{(?:[pbB]?matrix|array)\}(?:\{[clr|]*\})?)"
    r"|(?P<degree>\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\}))"
    r"|(?P<number>(?:(?P<repeated>\d*\.\d*)\\overline\s*\{(?P<period>\d+)\})"
    r"|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<command>\\(?:[a-zA-Z]+|[{}%$\\]))"
    r"|(?P<letters>[a-zA-Z]+)"
    r"|(?P<sign>\*\*|<=|>=|!=|[-+*/^_!()\[\]{}|,;=<>:%$&])"
)
_THOUSANDS = re.compile(r"(?<![\d.,}])([1-9]\d{0,2})((?:(?:,|\{,\})\d{3})+)(?![\d]|,\d|\{,\})")


def tokens_of(text: str) -> list[Token]:
    """Cut a whole answer into tokens. Takes time linear in its length. Raises Unreadable."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"an answer of more than {MAX_CHARS} characters")
    text = "".join(_MARKS.get(char, char) for char in text).strip()
    text = _undelimited(text.removesuffix(".").strip())
    text = _ungrouped(_SPACED.sub("", text))
    return _cut(_LAYOUT.sub(" ", _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)))


def _undelimited(text: str) -> str:
    """Without the dollar signs or brackets that say: here is mathematics."""
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(opening) : -len(closing)]
        whole = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
        if whole and not text.endswith("\\" + closing) and opening not in inner:
            return inner.strip().removesuffix(".").strip()
    return text


def _ungrouped(text: str) -> str:
    """Without commas between groups of three digits, outside of brackets: within them a comma parts elements."""
    depth = 0
    out: list[str] = []
    for part in re.split(r"([()\[\]]|\\[{}]|\\[lr]angle)", text):
        if part in ("(", "[", r"\{", r"\langle"):
            depth += 1
        elif part in (")", "]", r"\}", r"\rangle"):
            depth -= 1
        elif depth <= 0:
            part = _THOUSANDS.sub(lambda found: found[1] + re.sub(r"[,{}]", "", found[2]), part)
        out.append(part)
    return "".join(out)


def _cut(text: str) -> list[Token]:
    out: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Unreadable(f"unknown sign {text[at]!r} at character {at + 1}")
        at = found.end()
        if found["wrapped"]:
            out += _wrapped(found["inner"], found["wrapped"])
        elif found["matrix"]:
            out.append(Token(found["edge"], found["matrix"]))
        elif found["degree"]:
            out.append(Token("degree", r"^{\circ}"))
        elif found["number"]:
            out.append(_number(found))
        elif found["letters"]:
            out += _letters(found["letters"])
        elif not found["space"]:
            out.append(_command(found["command"] or found["sign"]))
    return out


def _wrapped(inner: str, whole: str) -> list[Token]:
    """What stands in `\\text{...}` and its like: words stay together, mathematics is read as such."""
    words = re.sub(r"\\ |~", " ", inner).strip()
    if whole.startswith(r"\mathbb"):
        if words != "R":
            raise Unreadable(f"the set {whole} is not one we know")
        return [Token(r"\R", r"\mathbb{R}")]
    if words == "percent":
        return [Token("%", "%")]
    if words in FUNCTIONS:
        return [Token("function", words)]
    if re.search(r"\b(?:or|and)\b", words):
        return _cut(words)
    if not words or re.fullmatch(r"[A-Za-z][A-Za-z.'/ -]*", words):
        return [Token("text", words)] if words else []
    return _cut(words)


def _letters(run: str) -> list[Token]:
    if run in FUNCTIONS:
        return [Token("function", run)]
    if run == "percent":
        return [Token("%", "%")]
    if run in ("pi", "infty") or run.lower() in ("infinity", "inf"):
        return [Token("symbol", "pi") if run == "pi" else Token(r"\infty", r"\infty")]
    return [Token("symbol" if len(run) == 1 else "word", run)]


def _command(text: str) -> Token:
    text = _SAME.get(text, text)
    name = text[1:] if text.startswith("\\") else text
    if name in FUNCTIONS and name != "sqrt":
        return Token("function", name)
    if name in _GREEK or name == "pi":
        return Token("symbol", name)
    if name in ("degree", "circ"):
        return Token("degree", r"^{\circ}")
    if text.startswith("\\") and text not in _KNOWN:
        raise Unreadable(f"the command {text} is not one we know")
    return Token(text, text)


def _number(found: re.Match[str]) -> Token:
    text = found["number"]
    if found["period"]:
        whole, _, decimals = found["repeated"].partition(".")
        period = Fraction(int(found["period"]), 10 ** len(decimals) * (10 ** len(found["period"]) - 1))
        return Token("number", text, Fraction(int((whole or "0") + decimals), 10 ** len(decimals)) + period)
    digits, _, exponent = text.lower().partition("e")
    if abs(int(exponent or "0")) > MAX_CHARS:
        raise Unreadable(f"the exponent of {text} is too large")
    return Token("number", text, Fraction(digits.rstrip(".") or "0") * Fraction(10) ** int(exponent or "0"))
