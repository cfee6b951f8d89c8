"""The second verifier: math-verify on what latex2sympy reads, with guards.

Only expressions that our own grammar has read whole come here, as plain LaTeX with exact fractions; neither the search
for an answer in a text nor the normalization of these libraries is used, for both drop what they do not know. Numbers
are compared to more digits than any number let through needs, not to math-verify's six, and both ways round.
"""

import logging

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify
from sympy import Basic, I
from sympy.matrices import MatrixBase

from transforms.verify.answers.answer import Expression, Relation

DIGITS = 350
"""Decimal digits numbers are compared to."""


class Symbolic:
    """Decides by algebra."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)  # it warns that we set the time limits, and prints texts

    def equal(self, left: Expression, right: Expression) -> bool:
        """Whether math-verify takes two expressions for equal. Raises whatever its libraries raise."""
        return _verified(left.latex, right.latex)

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """The same for two relations."""
        return _verified(left.latex, right.latex)


def _verified(left: str, right: str) -> bool:
    a, b = _parsed(left), _parsed(right)
    return all(
        verify(gold, found, float_rounding=DIGITS, numeric_precision=DIGITS, timeout_seconds=None, raise_on_error=True)
        for gold, found in ((a, b), (b, a))
    )


def _parsed(latex: str) -> Basic | MatrixBase:
    parsed = latex2sympy(
        latex,
        is_real=True,
        convert_degrees=True,
        normalization_config=None,  # it drops what it does not know
        conversion_config=ConversionConfig(lowercase_symbols=False),
    )
    units = {symbol: I for symbol in parsed.free_symbols if symbol.name == "i"}
    return parsed.subs(units) if units else parsed
