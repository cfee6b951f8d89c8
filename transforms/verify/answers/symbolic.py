"""The second verifier: latex2sympy reads, math-verify proves, and where it cannot, sympy's values decide.

Only expressions that our own grammar has read whole come here, as plain LaTeX with exact fractions; neither the search
for an answer in a text nor the normalization of these libraries is used, for both drop what they do not know. Numbers
are compared to more digits than any number let through needs, not to math-verify's six, and both ways round. Relations
are not given to math-verify: it solves them, and takes any two without a solution for the same.
"""

import logging
import random
from collections.abc import Iterator

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify
from sympy import Basic, Expr, Float, I, Rational, sign

from transforms.verify.answers.answer import Expression, Relation
from transforms.verify.answers.same import scaled

DIGITS = 350
"""Decimal digits numbers are compared to."""

_ZERO = Float(10, DIGITS) ** -300  # of values that are 1, or of the larger one
_POINTS = 12
_ENOUGH = 3  # points at which both sides must have a value
_SCALES = (1, 3, 10)


class Symbolic:
    """Decides by algebra, and by values where it finds no proof."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)  # it warns that we set the time limits, and prints texts

    def equal(self, left: Expression, right: Expression) -> bool:
        """Whether two expressions are equal. Raises whatever its libraries raise."""
        a, b = _parsed(left.latex), _parsed(right.latex)
        if all(
            verify(
                gold, found, float_rounding=DIGITS, numeric_precision=DIGITS, timeout_seconds=None, raise_on_error=True
            )
            for gold, found in ((a, b), (b, a))
        ):
            return True
        known = list(_values(a, b))
        real = [pair for pair in known if all(value.is_real for value in pair)]
        compared = real if len(real) >= _ENOUGH else known
        return len(compared) >= _ENOUGH and all(_same(one, other) for one, other in compared)

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """Whether one relation is the other times a number, as `scaled` allows."""
        first, second = (_parsed(side.left.latex) - _parsed(side.right.latex) for side in (left, right))
        if first.free_symbols != second.free_symbols:
            return False
        known = list(_values(first, second))
        if len(known) < _ENOUGH or any(_same(value, Float(0)) for pair in known for value in pair):
            return False
        ratios = [one / other for one, other in known]
        direction = (1 if ratios[0] > 0 else -1) if ratios[0].is_real else 0
        return all(_same(ratio, ratios[0]) for ratio in ratios) and scaled(left, right, direction)


def _parsed(latex: str) -> Expr:
    parsed = latex2sympy(
        latex,
        is_real=True,
        convert_degrees=True,
        normalization_config=None,  # it drops what it does not know
        conversion_config=ConversionConfig(lowercase_symbols=False),
    )
    units = {symbol: I for symbol in parsed.free_symbols if symbol.name == "i"}
    parsed = parsed.subs(units) if units else parsed
    if r"\sqrt [" not in latex:
        return parsed
    return parsed.replace(  # the root of an odd degree is real, by rule
        lambda part: part.is_Pow and part.exp.is_Rational and part.exp.p == 1 and part.exp.q % 2 and part.base.is_real,
        lambda part: sign(part.base) * abs(part.base) ** part.exp,
    )


def _values(a: Expr, b: Expr) -> Iterator[tuple[Expr, Expr]]:
    """The values of two expressions at drawn points, where both have one; without symbols, the same a few times."""
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    draw = random.Random(0)
    for number in range(_POINTS if names else _ENOUGH):
        signs = (1,) if number % 2 else (1, -1)
        scale = _SCALES[number % len(_SCALES)]
        point: dict[Basic, Basic | float] = {
            name: Rational(draw.choice(signs) * draw.randint(10**8, 10**9) * scale, 10**9) for name in names
        }
        pair = a.evalf(DIGITS, subs=point), b.evalf(DIGITS, subs=point)
        if all(value.is_number and value.is_finite for value in pair):
            yield pair


def _same(a: Expr, b: Expr) -> bool:
    difference, size = (a - b).evalf(DIGITS), max(Float(1), abs(a), abs(b))
    return bool(abs(difference) < _ZERO * size)
