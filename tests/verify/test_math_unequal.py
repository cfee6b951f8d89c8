"""Answers that do not mean the same, or are no answer; where both can be read, either may be the expected one."""

from tests.verify.math_answers import verdicts
from transforms.verify.answers.answer import read_answer
from transforms.verify.answers.tokens import Unreadable

UNEQUAL = [
    (r"1/2", r"1/3"), (r"0.333", r"1/3"), (r"0.3333333333333333", r"1/3"), (r"0.0000001", r"0.0000004"),
    (r"1/2^{99}", r"1/2^{98}"), (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"), (r"4", r"4\sqrt{2}"), (r"4", r"4\sqrt(2)"),
    (r"101", r"1=2=3=4=101"), (r"101", r"100=101"), (r"5", r"The answer is not 5"), (r"12", r"5, 12"),
    (r"50", r"50\%"), (r"10", r"10\%"), (r"10\%", r"10"), (r"0.5", r"0,5"), (r"(1,2)", r"(2,1)"),
    (r"(1,2)", r"[1,2]"), (r"[1,2)", r"(1,2]"), (r"\{1,2\}", r"(1,2)"), (r"1,2", r"1,2,3"), (r"1,1,2", r"1,2"),
    (r"5", r"-5"), (r"5", r"5.0000001"), (r"1,234", r"1234.1"), (r"1,000", r"1"), (r"1.5e3", r"1.5"),
    (r"\frac{2}{3}", r"\frac{3}{2}"), (r"2\frac{1}{3}", r"\frac{2}{3}"), (r"\sqrt{2}", r"1.41421356"),
    (r"\sqrt{2}", r"1.4142135623730950488"), (r"\sqrt{2}", r"-\sqrt{2}"), (r"\sqrt{2}", r"\sqrt{3}"),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"), (r"\pi", r"3.14"), (r"\pi", r"\frac{22}{7}"), (r"\pi", r"\pi + 10^{-60}"),
    (r"\pi", r"\pi + 10^{-280}"), (r"\pi", r"\pi + 10^{-2000}"), (r"2\pi", r"\pi^2"), (r"\sin 1", r"\sin 1^\circ"),
    (r"\sin 2x", r"2\sin x"), (r"\cos x", r"\sin x"), (r"\sin^2 x", r"\sin x^2"),
    (r"\sin^{-1} x", r"\frac{1}{\sin x}"), (r"\ln 2", r"\log 2"), (r"\ln(x+y)", r"\ln x+\ln y"),
    (r"\log_2 3", r"\log_3 2"), (r"e", r"2.718281828"), (r"e^2", r"e^3"), (r"x+1", r"x-1"), (r"x+1", r"y+1"),
    (r"X", r"x"), (r"x^2", r"2x"), (r"(x+1)^2", r"x^2+1"), (r"\frac{1}{x+1}", r"\frac{1}{x}+1"),
    (r"2^{x+1}", r"2^x+1"), (r"x_1", r"x_2"), (r"|x|", r"x"), (r"n!", r"n"), (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\emptyset", r"\{0\}"), (r"\emptyset", r"0"), (r"(1,2,3)", r"(1,2)"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"), (r"[0,1]", r"0<x<1"),
    (r"x>2", r"x\ge 2"), (r"x>2", r"y>2"), (r"x>2", r"x<2"), (r"(1,\infty)", r"(-\infty,1)"),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty,1)"), (r"x=5", r"y=5"), (r"x=5", r"x=6"), (r"y=2x+1", r"y=2x-1"),
    (r"3x-1y+13=0", r"3x+4y+14=0"), (r"2x+y>3", r"2x+y<3"), (r"2x+y>3", r"2x+y\ge 3"), (r"x^2+y^2=4", r"x^2+y^2=2"),
    (r"2+3i", r"2-3i"), (r"i", r"1"), (r"90^\circ", r"45^\circ"), (r"90", r"\frac{\pi}{2}"),
    (r"\frac{\pi}{2}", r"90"), (r"5\text{ cm}", r"5\text{ m}"), (r"60\text{ km}", r"60\text{ km/h}"),
    (r"\text{Monday}", r"\text{Tuesday}"), (r"A", r"B"), (r"A", r"(A)(B)"), (r"A", r"A, B, C, D"),
    (r"\infty", r"-\infty"), (r"\infty", r"10^{300}"), (r"5", r"NaN"), (r"5", r"Infinity"), (r"5", r"\text{not } 5"),
    (r"5", r"5 \text{ is wrong}"), (r"5", r"\neg 5"), (r"5", r"5 \text{ or } 6"), (r"5", r"\pm 5"),
    (r"5", r"4\text{--}6"), (r"5", r"[4,6]"), (r"5", r"x > 4"), (r"5", r"\{5, 6\}"), (r"5", r"{}"),
    (r"5", r"\boxed{5}"), (r"5", r"5 5"), (r"5", r"\ldots 5"), (r"5", r"\approx 5"), (r"5", r"x"),
    (r"5", r"\frac{5}{0}"), (r"5", r"5 + \frac{0}{0}"), (r"5", r"9**9**9**9"), (r"5", r"10^(10^10)"),
    (r"5", r"99999999999!"), (r"5", r"1e999999"), (r"5", r"__import__('os').system('id')"),
    (r"5", r"\input{/etc/passwd}"), (r"5", r"5; DROP TABLE"), (r"101_2", r"101"), (r"1,234", r"1, 234"),
    (r"0", r"10^{-1000}"), (r"\frac12", r"\frac{1}{2}x"),
]  # fmt: skip


def test_other_answers_fail():
    assert {pair: outcome for pair, outcome in verdicts(UNEQUAL).items() if outcome != "failed_tests"} == {}


def test_other_answers_fail_the_other_way_round():
    turned = [(found, expected) for expected, found in UNEQUAL if readable(found)]
    assert len(turned) > 80
    # What is too small to be worked out is no expected answer either.
    others = {pair: outcome for pair, outcome in verdicts(turned).items() if outcome != "failed_tests"}
    assert others == {(r"\pi + 10^{-2000}", r"\pi"): "grader_error"}


def readable(text: str) -> bool:
    try:
        read_answer(text)
    except Unreadable:
        return False
    return True
