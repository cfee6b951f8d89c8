"""Properties: one rational number in many notations is one number, and another is another."""

import random
from fractions import Fraction

import pytest

from transforms.verify.answers.answer import read_answer
from transforms.verify.answers.expression import read_expression
from transforms.verify.answers.rational import MAX_BITS, rational
from transforms.verify.answers.same import Arithmetic, same_answer
from transforms.verify.answers.tokens import MAX_CHARS, Unreadable, tokens_of

DRAWS = 400


def written(value: Fraction, draw: random.Random) -> str:
    """The value in a notation drawn from those that fit it."""
    sign, size = ("-", -value) if value < 0 else ("", value)
    above, below = size.numerator, size.denominator
    times = draw.randint(1, 9)
    forms = [
        f"{sign}{above}/{below}",
        rf"{sign}\frac{{{above}}}{{{below}}}",
        rf"\frac{{{sign}{above * times}}}{{{below * times}}}",
        rf"$ {sign}\dfrac {{{above}}} {{{below}}} $",
        rf"\left( {sign}{above} \right) \div {below}",
        rf"\text{{{sign}{above}/{below}}}",
        rf"{sign}\frac{{{above * 100}}}{{{below}}}\%",
        rf"{above}\cdot {sign or '+'}{below}^{{-1}}",
        rf"x = {sign}{above}/{below}",
        f"−{above}/{below}" if sign else f"+{above}/{below}",  # noqa: RUF001 - a Unicode minus
        rf"{sign}\frac{{{above}}}{{{below}}}\text{{ cm}}",
    ]
    if above > below > 1:
        forms.append(rf"{sign}{above // below}\frac{{{above % below}}}{{{below}}}")
        forms.append(f"{sign}{above // below} {above % below}/{below}")
    if below == 1:
        forms += [f"{sign}{above:,}", f"{sign}{above}.", f"{sign}{above}.00", f"{sign}{above}e0"]
        forms.append(f"{sign}{above:,}".replace(",", "{,}"))
        forms.append(f"{sign}{above:,}".replace(",", r"\,"))
    if 10**6 % below == 0:
        digits = f"{above * (10**6 // below):07d}"
        forms.append(f"{sign}{digits[:-6]}.{digits[-6:]}")
        forms.append(rf"{sign}{digits} \times 10^{{-6}}")
        forms.append(f"{sign}{digits}e-6")
    return draw.choice(forms)


def drawn(draw: random.Random) -> Fraction:
    below = draw.choice([1, 1, 2, 3, 4, 5, 7, 8, 10, 25, 64, 100, 999, draw.randint(1, 10**9)])
    return Fraction(draw.randint(-(10 ** draw.randint(1, 12)), 10 ** draw.randint(1, 12)), below)


def same(left: str, right: str) -> bool:
    return same_answer(read_answer(left), read_answer(right), Arithmetic())


def test_one_number_in_two_notations_is_one_answer():
    draw = random.Random(5)
    for _ in range(DRAWS):
        value = drawn(draw)
        left, right = written(value, draw), written(value, draw)
        assert same(left, right), (value, left, right)
        assert same(right, left), (value, left, right)


def test_a_number_a_little_off_is_another_answer():
    draw = random.Random(6)
    for _ in range(DRAWS):
        value = drawn(draw)
        other = value + draw.choice([-1, 1]) * Fraction(1, draw.choice([1, 2, 10, 10**6, 10**30]))
        left, right = written(value, draw), written(other, draw)
        assert not same(left, right), (value, other, left, right)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", "2469/2"), ("0.58333", "58333/100000"), (r"0.1\overline{6}", "1/6"),
        (r"1.\overline{142857}", "8/7"),
        ("2516_8", "1358"), ("101_{2}", "5"), ("2^{3^2}", "512"), ("-2^2", "-4"), ("(-2)^2", "4"), ("2^-3", "1/8"),
        ("6/2(1+2)", "9"), ("1/2/4", "1/8"), ("2-3-4", "-5"), ("3!!", "720"), (r"\sqrt{\frac{49}{9}}", "7/3"),
        (r"\sqrt[3]{-27}", "-3"), ("16^{3/4}", "8"), ("4^{-1/2}", "1/2"), (r"\lceil -1.5 \rceil", "-1"), ("|2-5|", "3"),
        (r"\binom{6}{3}", "20"), (r"\min(3, -1, 2)", "-1"), (r"3\frac{1}{2}\%", "7/200"), ("1:4", "1/4"),
    ],
)  # fmt: skip
def test_exact_values_worked_out_by_hand(text: str, value: str):
    assert rational(read_expression(tokens_of(text))) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    ["1/0", "0^0", "0^{-1}", "(-1)!", "0.5!", r"\binom{2}{3}", "9_8", "7_{16}", "2^{70000}", f"1e{MAX_CHARS + 1}",
     "1" * (MAX_CHARS + 1), "1.2.3", "1 2", "3x2", "5!^2!", "--- 5", "||5||", "3/4%", r"\sqrt12", "", " ", "$$", "()"],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(text: str):
    with pytest.raises(Unreadable):
        read_answer(text)


def test_the_bound_on_numbers_holds_for_every_operation():
    for text in ("2^{65000}*2^{65000}", "1/3^{40000}+1/2^{60000}", "4000!*4000!", "(10^{19000})^{2}"):
        with pytest.raises(Unreadable, match="too large"):
            read_answer(text)
    assert read_answer("2^{65000}/2^{64999}") != read_answer("2")
    assert same("2^{65000}/2^{64999}", "2")
    assert 65000 < MAX_BITS
