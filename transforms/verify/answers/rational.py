"""Expressions as data, and the exact value of those that are rational by plain arithmetic and perfect roots."""

import math
from dataclasses import dataclass
from fractions import Fraction

from transforms.verify.answers.tokens import Unreadable

MAX_BITS = 1 << 16
"""Bits a numerator or denominator may take: beyond, a number is refused, not worked out."""

_MAX_FACTORIAL = 4_000
_MAX_ROOT_BITS = 2_048  # of a number whose root is looked for by bisection


@dataclass(frozen=True, slots=True)
class Node:
    """An expression: `op` of `args`; a number or a name is a `value` without args."""

    op: str
    args: "tuple[Node, ...]" = ()
    value: Fraction | str | None = None


def symbols_of(node: Node) -> set[str]:
    """Names of the free symbols."""
    return {str(node.value)} if node.op == "symbol" else {name for part in node.args for name in symbols_of(part)}


def rational(node: Node) -> Fraction | None:
    """The exact value of an expression that is rational by plain arithmetic and perfect roots; None for any other.

    Raises Unreadable where there is no value (a division by zero) or it takes more than `MAX_BITS`.
    """
    if node.op == "number":
        return node.value if isinstance(node.value, Fraction) else None
    values = [rational(part) for part in node.args]
    parts = [value for value in values if value is not None]
    if node.op not in _ARITHMETIC or len(parts) < len(values):
        return None
    try:
        result = _ARITHMETIC[node.op](*parts)
    except ZeroDivisionError:
        raise Unreadable("a division by zero") from None
    if result is not None and max(result.numerator.bit_length(), result.denominator.bit_length()) > MAX_BITS:
        raise Unreadable("a number too large to work out")
    return result


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if abs(exponent) * bits > MAX_BITS:
        raise Unreadable("a power too large to work out")
    if base == 0 and exponent <= 0:
        raise Unreadable("zero to a power that is not positive")
    if exponent.denominator == 1:
        # What is left over the bound is 0, 1 or -1 to some power.
        return base**exponent.numerator if bits or base.denominator > 1 else base ** (exponent.numerator % 2)
    root = _root(Fraction(exponent.denominator), base) if base >= 0 else None
    return None if root is None else _power(root, Fraction(exponent.numerator))


def _root(degree: Fraction, value: Fraction) -> Fraction | None:
    if degree.denominator != 1 or degree < 1:
        return None
    n = int(degree)
    if value < 0:
        positive = _root(degree, -value) if n % 2 else None
        return None if positive is None else -positive
    above, below = _whole_root(value.numerator, n), _whole_root(value.denominator, n)
    return None if above is None or below is None else Fraction(above, below)


def _whole_root(value: int, n: int) -> int | None:
    if value.bit_length() > _MAX_ROOT_BITS:
        return None
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**n <= value:
            low = middle
        else:
            high = middle - 1
    return low if low**n == value else None


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or value < 0:
        raise Unreadable("the factorial of what is no whole number")
    if value > _MAX_FACTORIAL:
        raise Unreadable("a factorial too large to work out")
    return Fraction(math.factorial(value.numerator))


def _binomial(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= _MAX_FACTORIAL:
        raise Unreadable("a binomial outside 0 <= k <= n <= 4000")
    return Fraction(math.comb(n.numerator, k.numerator))


_ARITHMETIC = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "abs": abs,
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "max": max,
    "min": min,
}
