"""Where a declared rule decides, both verifiers follow it: no answer here is without a verdict."""

import pytest

from tests.verify.math_answers import verdicts
from transforms.verify.answers.answer import Answer, Expression, Relation, read_answer
from transforms.verify.answers.symbolic import Symbolic

# One equation is the other times a number other than 0, which stands behind it; an inequality, times its sign.
SAME_EQUATIONS = [
    (r"y = 2x + 1", r"2x - y + 1 = 0"),  # -1
    (r"y=2x+1", r"4x-2y+2=0"),  # -2
    (r"2x+3y=6", r"\frac{x}{3}+\frac{y}{2}=1"),  # 1/6
    (r"y=\frac12x+3", r"x-2y=-6"),  # -2
    (r"x^2-5x+6=0", r"2x^2-10x+12=0"),  # 2
    (r"x^2-5x+6=0", r"(x-2)(x-3)=0"),  # 1
    (r"\frac{x^2}{4}+\frac{y^2}{9}=1", r"9x^2+4y^2=36"),  # 36
    (r"(x-1)^2+(y-2)^2=9", r"x^2+y^2-2x-4y=4"),  # 1: 1 + 4 - 9 = -4
    (r"y=\sqrt3x", r"3x-\sqrt3y=0"),  # minus root 3
    (r"x\sqrt2+y\sqrt2=2", r"x+y=\sqrt2"),  # 1 over root 2
    (r"y=\frac\pi2x", r"2y=\pi x"),  # 2
    (r"y=0.5x", r"x-2y=0"),  # -2
    (r"A=\pi r^2", r"2A-2\pi r^2=0"),  # 2
    (r"y=e^-x", r"e^{-x}-y=0"),  # -1
    (r"x+y+z=1", r"2x+2y+2z=2"),  # 2
    (r"2x+y>3", r"4x+2y>6"),  # 2
    (r"2x+y\ge3", r"-4x-2y\le-6"),  # -2, turned
    (r"y<2x+1", r"6x-3y+3>0"),  # -3, turned
    (r"2x+y\ne3", r"4x+2y\ne6"),  # 2
]  # fmt: skip
OTHER_EQUATIONS = [
    (r"2x+3y=6", r"2x+3y=6.0000001"), (r"2x+3y=6", r"4x+6y=6"), (r"2x+3y=6", r"2x+3y+6=0"),
    (r"y=\frac13x", r"y=0.333x"), (r"A=\pi r^2", r"A=3.14r^2"), (r"y=\sqrt2x", r"y=1.41421356x"),
    (r"xy=1", r"y=\frac1x"),  # times x, which is no number
    (r"\frac{y}{x}=2", r"y=2x"),  # the same; and only one has the origin
    (r"(x-2)^2=0", r"x-2=0"), (r"xy=0", r"y=0"), (r"x^2=y^2", r"x=y"), (r"|x|=y", r"x^2=y^2"), (r"y^2=x", r"y=\sqrt x"),
    (r"x^2+1=0", r"x^2+2=0"), (r"e^x=0", r"e^{2x}=0"),  # both without a solution, and still two equations
    (r"x=x", r"2x=2x"), (r"0=0", r"1=1"), (r"x-x=0", r"y-y=0"),  # 0 times anything is 0
    (r"2x+y>3", r"-4x-2y>-6"), (r"2x+y>3", r"4x+2y\ge6"), (r"2x+y>3", r"4x+2y<6"), (r"ix+y>1", r"x-iy>-i"),
]  # fmt: skip
# Asked for a number, `2x = 6` is the question, not the answer.
UNSOLVED = [
    (r"x=3", r"2x=6"), (r"x=3", r"x-3=0"), (r"x = 3", r"2x+5=11"), (r"3", r"2x=6"), (r"x=\frac13", r"3x=1"),
    (r"x=\sqrt2", r"x\sqrt2=2"), (r"x>3", r"2x>6"), (r"x=1,x=2", r"(x-1)(x-2)=0"),
]  # fmt: skip
SOLVED = [(r"x = 3", r"3"), (r"3", r"x = 3"), (r"2x=6", r"x=3"), (r"x-3=0", r"3=x"), (r"x=\frac62", r"3")]
# A decimal is what it says: by how much it is off stands behind it.
A_HAIR_OFF = [
    (r"\pi", r"3.14"),  # 1.6e-3
    (r"\pi", r"3.14159265358979323846"),  # 2.6e-21
    (r"\frac13", r"0.333"),  # 3.3e-4
    (r"2", r"2.0000001"),  # 1e-7
    (r"2", r"1.9999999999999999"),  # 1e-16
    (r"\sqrt2", r"1.41421356237309504880"),  # 1.7e-21
    (r"\frac23", r"0.6667"),  # 3.3e-5
    (r"e^2", r"7.389"),  # 5.6e-5
    (r"\ln2", r"0.693"),  # 1.5e-4
    (r"\frac x3", r"0.3333x"), (r"\pi r^2", r"3.14r^2"), (r"\sqrt[3]x", r"x^{0.333}"), (r"2^x", r"2.0000001^x"),
]  # fmt: skip
EXACT_DECIMALS = [
    (r"\frac18", r"0.125"), (r"2", r"2.0000000"), (r"1.5\pi", r"\frac{3\pi}2"), (r"\sqrt x", r"x^{0.5}"),
    (r"\sqrt2x^{2.0}", r"x^2\sqrt2"), (r"\frac x3", r"0.\overline{3}x"), (r"\frac{\sqrt2}{2}", r"0.5\sqrt2"),
]  # fmt: skip
# Equal wherever both are real. The last seven are written with arguments without braces.
SAME_VALUES = [
    (r"\sqrt{x^2+2x+1}", r"|x+1|"), (r"\ln(x^2)", r"2\ln|x|"), (r"\log_4 x^2", r"\log_2|x|"),
    (r"\frac{x+|x|}2", r"\max(x,0)"), (r"\ln\frac{x}{y}", r"\ln x-\ln y"), (r"\log_3x+\log_3y", r"\log_3(xy)"),
    (r"\sqrt{12x^3}", r"2x\sqrt{3x}"), (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", r"1"),  # cubes of 1/2 +- root 5 / 2
    (r"x^{-1}", r"\frac1x"), (r"\cot x", r"\tan(\frac\pi2-x)"), (r"e^-x", r"\frac1{e^x}"), (r"x^\frac12", r"\sqrt(x)"),
    (r"\frac{\sqrt2}2", r"2^-\frac12"), (r"2^x^2", r"(2^x)^x"), (r"\lg x", r"\log_{10}x"),
]  # fmt: skip
OTHER_VALUES = [
    (r"\sqrt[3]{x^3}", r"|x|"), (r"\sqrt{x^2}", r"x"), (r"2^x^2", r"(2^x)^2"), (r"x_1^2", r"x_1"), (r"e^-x", r"-e^x"),
    (r"\lfloor x\rfloor", r"x"), (r"\sin x", r"x"), (r"\frac\pi2x", r"\frac{\pi}{2x}"),
]  # fmt: skip


def wrong(pairs: list[tuple[str, str]], right: str) -> dict[tuple[str, str], str]:
    return {pair: outcome for pair, outcome in verdicts(pairs).items() if outcome != right}


@pytest.mark.parametrize("pairs", [SAME_EQUATIONS, EXACT_DECIMALS, SAME_VALUES])
def test_what_is_the_same_by_rule_passes_either_way(pairs: list[tuple[str, str]]):
    assert wrong([*pairs, *((found, expected) for expected, found in pairs)], "passed") == {}


@pytest.mark.parametrize("pairs", [OTHER_EQUATIONS, A_HAIR_OFF, OTHER_VALUES])
def test_what_is_another_by_rule_fails_either_way(pairs: list[tuple[str, str]]):
    assert wrong([*pairs, *((found, expected) for expected, found in pairs)], "failed_tests") == {}


def test_an_equation_is_no_answer_where_a_number_is_expected():
    assert wrong(UNSOLVED, "failed_tests") == {}
    assert wrong(SOLVED, "passed") == {}


def test_the_second_verifier_follows_the_rules_by_itself():
    judge = Symbolic()

    def said(pair: tuple[str, str]) -> bool:
        left, right = map(plain, pair)
        if isinstance(left, Relation) and isinstance(right, Relation):
            return judge.equivalent(left, right)
        assert isinstance(left, Expression)
        assert isinstance(right, Expression)
        return judge.equal(left, right)

    for pair in (*SAME_EQUATIONS, *EXACT_DECIMALS, *SAME_VALUES):
        assert said(pair), pair
    for pair in (*OTHER_EQUATIONS[:19], *A_HAIR_OFF, *OTHER_VALUES):
        assert not said(pair), pair


def plain(text: str) -> Expression | Relation:
    """An answer as a relation or an expression."""
    answer: Answer = read_answer(text)
    relation = getattr(answer.value, "relation", None)
    made = relation or answer.value
    assert isinstance(made, Expression | Relation)
    return made
