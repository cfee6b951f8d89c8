"""Whether what a program printed is what it should print. Works on bytes, so that no output can be an error.

`exact`     every byte
`trimmed`   white space at the end of lines and around the whole does not count: public test sets pad their outputs on
            either side
`tokens`    what white space divides must be the same, in the same order
`numbers`   as `tokens`, but two decimal numbers may differ by the larger of `absolute` and `relative` times the size
            of the expected one; nan is nan whatever its sign, inf (or infinity) is inf of the same sign, in any case

White space is ASCII's. Hexadecimal numbers, digit groups and exponents of more than 5 digits are no numbers but text.
"""

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from transforms.sources.kinds.stdio import Compare, Tolerance

# No two ways to match one text, which would take a hostile one's length squared.
_NUMBER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?")
_NAN = re.compile(rb"[+-]?nan", re.IGNORECASE)
_INFINITY = re.compile(rb"([+-]?)inf(?:inity)?", re.IGNORECASE)
_DIGITS = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_SHOWN = 80  # characters of a line in a message


def same(got: bytes, expected: bytes, compare: Compare, tolerance: Tolerance | None = None) -> bool:
    """Whether an output is right. Raises ValueError for `checker`, which is no comparison."""
    match compare:
        case "exact":
            return got == expected
        case "trimmed":
            return _lines(got) == _lines(expected)
        case "tokens":
            return got.split() == expected.split()
        case "numbers":
            left, right, near = got.split(), expected.split(), tolerance or Tolerance()
            return len(left) == len(right) and all(_same_number(*pair, near) for pair in zip(left, right, strict=True))
    raise ValueError(f"{compare} is not a comparison")


def first_difference(got: bytes, expected: bytes) -> str:
    """The first line that differs, for people who may see both."""
    left, right = _lines(got), _lines(expected)
    for number, (mine, wanted) in enumerate(zip(left, right, strict=False), 1):
        if mine != wanted:
            return f"line {number} is {_shown(mine)} instead of {_shown(wanted)}"
    if len(left) != len(right):
        return f"{len(left)} line(s) instead of {len(right)}"
    return "white space differs"


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.strip().split(b"\n")]


def _same_number(got: bytes, expected: bytes, tolerance: Tolerance) -> bool:
    if got == expected:
        return True
    if _NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected):
        mine, wanted = Decimal(got.decode()), Decimal(expected.decode())
        relative = _DIGITS.multiply(Decimal(tolerance.relative), _DIGITS.abs(wanted))
        off = _DIGITS.abs(_DIGITS.subtract(mine, wanted))
        return off <= max(Decimal(tolerance.absolute), relative)
    if _NAN.fullmatch(got) and _NAN.fullmatch(expected):
        return True
    left, right = _INFINITY.fullmatch(got), _INFINITY.fullmatch(expected)
    return left is not None and right is not None and (left[1] == b"-") == (right[1] == b"-")


def _shown(line: bytes) -> str:
    text = repr(line.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
