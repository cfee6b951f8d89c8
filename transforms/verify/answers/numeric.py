"""The first verifier: our own reading of both expressions, worked out to a thousand digits.

Without symbols the values are compared; with symbols, the values at points drawn from both texts, where both are real.
Two different expressions of a thousand characters that agree to 600 digits would need terms smaller than any that is
let through: a part of an expression outside 1e-300 .. 1e300 is refused.
"""

import hashlib
import random
from collections.abc import Callable, Iterator

from mpmath import mp, mpc, mpf

from transforms.verify.answers.answer import Expression, Relation
from transforms.verify.answers.rational import Node, symbols_of
from transforms.verify.answers.same import Tolerance, infinite, scaled
from transforms.verify.answers.tokens import Unreadable

DIGITS = 1000
"""Decimal digits everything is worked out to."""

_ZERO_BELOW = 600  # digits: what is smaller than 1e-600 is rounding, as everything else is larger than 1e-300
_LARGEST = 300  # digits
_POINTS = 24
_ENOUGH = 3  # points at which both sides must have a value
_SCALES = (1, 1, 1, 3, 10, 100, 10**4, 10**8)


class _NoValue(Exception):
    """No value here: undefined, or out of range."""


class Numeric:
    """Decides by values."""

    def __init__(self, tolerance: Tolerance | None = None) -> None:
        self.tolerance = tolerance
        mp.dps = DIGITS

    def equal(self, left: Expression, right: Expression) -> bool:
        """Whether two expressions have the same values. Raises Unreadable where one has none."""
        if infinite(left.node) or infinite(right.node):
            return left.node == right.node
        names = symbols_of(left.node) | symbols_of(right.node)
        if not names:
            a, b = _constant(left.node), _constant(right.node)
            return _zero(a - b) or self._near(a, b)
        pairs = [(_at(left.node, point), _at(right.node, point)) for point in _points(names, left, right)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        real = [(a, b) for a, b in known if _zero(a.imag) and _zero(b.imag)]
        compared = real if len(real) >= _ENOUGH else known
        return len(compared) >= _ENOUGH and all(_zero(a - b) for a, b in compared)

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """Whether one relation is the other times a number, as `scaled` allows."""
        first, second = (
            Node("+", (relation.left.node, Node("neg", (relation.right.node,)))) for relation in (left, right)
        )
        names = symbols_of(first) | symbols_of(second)
        if not names or symbols_of(first) != symbols_of(second):
            return False
        values = [(_at(first, point), _at(second, point)) for point in _points(names, left, right)]
        known = [(a, b) for a, b in values if a is not None and b is not None]
        if len(known) < _ENOUGH or any(_zero(a) or _zero(b) for a, b in known):
            return False
        ratios = [a / b for a, b in known]
        sign = (-1 if ratios[0].real < 0 else 1) if _zero(ratios[0].imag) else 0
        return all(_zero(ratio - ratios[0]) for ratio in ratios) and scaled(left, right, sign)

    def _near(self, expected: mpc, found: mpc) -> bool:
        if self.tolerance is None or not _zero(expected.imag) or not _zero(found.imag):
            return False
        absolute, relative = (
            mpf(share.numerator) / share.denominator for share in (self.tolerance.absolute, self.tolerance.relative)
        )
        return abs(found - expected) <= max(absolute, relative * abs(expected))


def _points(names: set[str], left: Expression | Relation, right: Expression | Relation) -> Iterator[dict[str, mpf]]:
    """The same points whichever side comes first, and others for other texts."""
    seed = hashlib.sha256("\0".join(sorted((left.latex, right.latex))).encode()).digest()
    draw = random.Random(seed)
    for number in range(_POINTS):
        scale = _SCALES[number % len(_SCALES)]
        signs = (1,) if number % 2 else (1, -1)
        yield {name: mpf(draw.choice(signs) * draw.randint(10**8, 10**9) * scale) / 10**9 for name in sorted(names)}


def _constant(node: Node) -> mpc:
    try:
        return _value(node, {})
    except _NoValue as error:
        raise Unreadable(str(error)) from None


def _at(node: Node, point: dict[str, mpf]) -> mpc | None:
    try:
        return _value(node, point)
    except _NoValue:
        return None


def _zero(value: mpc) -> bool:
    return abs(value) < mpf(10) ** -_ZERO_BELOW


def _value(node: Node, point: dict[str, mpf]) -> mpc:
    parts = [_value(part, point) for part in node.args]
    try:
        value = mpc(_leaf(node, point) if not parts else _OPERATIONS[node.op](*parts))
    except (ZeroDivisionError, ValueError, OverflowError):
        raise _NoValue(f"{node.op} has no value here") from None
    size = abs(value)
    if not mp.isfinite(size) or size > mpf(10) ** _LARGEST:
        raise _NoValue("a value too large to compare")
    if size < mpf(10) ** -_ZERO_BELOW:
        return mpc(0)
    if size < mpf(10) ** -_LARGEST:
        raise _NoValue("a value too small to compare")
    return value


def _leaf(node: Node, point: dict[str, mpf]) -> mpc:
    if node.op == "number" and node.value is not None and not isinstance(node.value, str):
        return mpf(node.value.numerator) / node.value.denominator
    if node.op == "symbol":
        return point[str(node.value)]
    constants = {"pi": mp.pi, "e": mp.e, "i": mpc(0, 1)}
    if node.op not in constants:
        raise _NoValue("infinity is no number")
    return +constants[node.op]


def _real(value: mpc) -> mpf:
    if not _zero(value.imag):
        raise ValueError
    return value.real


def _bounded(function: Callable[[mpc], mpc]) -> Callable[[mpc], mpc]:
    """An exponential, not begun where its value could not be let through anyway."""

    def of(value: mpc) -> mpc:
        if abs(value) > _LARGEST * 3:
            raise OverflowError
        return function(value)

    return of


def _power(base: mpc, exponent: mpc) -> mpc:
    if _zero(base):
        if _real(exponent) <= 0:
            raise ZeroDivisionError
        return mpc(0)
    if abs(exponent * mp.log(base)) > _LARGEST * 3:
        raise OverflowError
    return mp.power(base, exponent)


def _root(degree: mpc, value: mpc) -> mpc:
    n = _real(degree)
    if not mp.isint(n) or not 1 <= n <= DIGITS:
        raise ValueError
    if _zero(value.imag) and value.real < 0 and int(n) % 2:
        return -_power(-value, 1 / n)
    return _power(value, 1 / mpc(n))


def _factorial(value: mpc) -> mpc:
    if abs(value) > DIGITS:
        raise OverflowError
    return mp.gamma(value + 1)


def _binomial(n: mpc, k: mpc) -> mpc:
    return _factorial(n) / (_factorial(k) * _factorial(n - k))


_OPERATIONS: dict[str, Callable[..., mpc]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "abs": abs,
    "degree": lambda a: a * mp.pi / 180,
    "floor": lambda a: mp.floor(_real(a)),
    "ceil": lambda a: mp.ceil(_real(a)),
    "max": lambda a, b: max(_real(a), _real(b)),
    "min": lambda a, b: min(_real(a), _real(b)),
    "exp": _bounded(mp.exp),
    "ln": mp.log,
    "sin": _bounded(mp.sin), "cos": _bounded(mp.cos), "tan": _bounded(mp.tan),
    "cot": _bounded(mp.cot), "sec": _bounded(mp.sec), "csc": _bounded(mp.csc),
    "sinh": _bounded(mp.sinh), "cosh": _bounded(mp.cosh), "tanh": _bounded(mp.tanh),
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan,
}  # fmt: skip
