# ruff: noqa: RUF001 - the signs that people paste
"""Answers that mean the same, worked out by hand or true by a declared rule; either may be the expected one."""

from tests.verify.math_answers import verdicts

EQUAL = [
    (r"2\,x", "2x"), (r"5\ \text{ cm}", "5"), (r"\left\{1,\;2\right\}", r"\{1,2\}"), (r"a\!b", "ab"),
    (r"1/2", r"0.5"), (r"\frac{3}{6}", r"\frac12"), (r"-\frac{1}{2}", r"\frac{-1}{2}"), (r"\frac{1}{-2}", r"-0.5"),
    (r"\dfrac{7}{3}", r"7/3"), (r"2\frac{1}{3}", r"7/3"), (r"1 3/4", r"1.75"), (r"-1\frac{1}{2}", r"-1.5"),
    (r"1,234,567", r"1234567"), (r"1{,}000", r"1000"), (r"12\,345", r"12345"), (r"1.50", r"3/2"),
    (r".25", r"\frac14"), (r"5.", r"5"), (r"0.\overline{3}", r"1/3"), (r"0.1\overline{6}", r"\frac{1}{6}"),
    (r"6.02e23", r"6.02 \times 10^{23}"), (r"1.5 \cdot 10^{-3}", r"0.0015"), (r"2^{10}", r"1024"), (r"5!", r"120"),
    (r"\binom{5}{2}", r"10"), (r"−3", r"-3"), (r"½", r"0.5"), (r"25\%", r"\frac14"), (r"12.5\%", r"1/8"),
    (r"\$5", r"5"), (r"\$1,000", r"1000"), (r"5\text{ cm}", r"5"),
    (r"5 \text{ cm}^2", r"5 \text{ square centimeters}"), (r"60 \text{ km/h}", r"60 km per hour"), (r"$x$", r"x"),
    (r"\(\frac12\)", r"0.5"), (r"\left(\frac{1}{2}\right)", r"0.5"), (r"\text{7}", r"7"), (r"\mathbf{7}", r"7"),
    (r"1011_2", r"11"), (r"\sqrt{4}", r"2"), (r"\sqrt[3]{27}", r"3"), (r"8^{2/3}", r"4"),
    (r"\lfloor 3.7 \rfloor", r"3"), (r"|-5|", r"5"), (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), (r"\sqrt{50}-\sqrt{18}", r"2\sqrt2"),
    (r"\frac{1}{2-\sqrt{3}}", r"2+\sqrt{3}"), (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"), (r"2^{1/2}", r"\sqrt{2}"), (r"\frac{\sqrt{6}}{\sqrt{2}}", r"\sqrt3"),
    (r"sqrt(2)/2", r"\frac{\sqrt2}{2}"), (r"\frac{\pi}{2}", r"0.5\pi"), (r"2\pi", r"\pi \cdot 2"),
    (r"π/4", r"\frac{\pi}{4}"), (r"100\pi", r"100 π"), (r"\sin 30^\circ", r"\frac12"),
    (r"\cos\frac{\pi}{6}", r"\frac{\sqrt{3}}{2}"), (r"\tan 45°", r"1"), (r"\sin(2x)", r"2\sin x\cos x"),
    (r"\cos^2 x", r"1-\sin^2 x"), (r"\sec x", r"1/\cos x"), (r"\arctan 1", r"\frac{\pi}{4}"),
    (r"\sin^{-1} 1", r"\pi/2"), (r"\ln 8", r"3\ln 2"), (r"\log_2 8", r"3"), (r"\log 1000", r"3"), (r"\ln e^5", r"5"),
    (r"\log_3 5", r"\frac{\ln 5}{\ln 3}"), (r"e^{\ln 7}", r"7"), (r"e^2 \cdot e^3", r"e^5"), (r"\exp(2)", r"e^2"),
    (r"x^2-1", r"(x-1)(x+1)"), (r"(a+b)^2", r"a^2+2ab+b^2"), (r"\frac{x^2-4}{x-2}", r"x+2"), (r"2x+3", r"3+2x"),
    (r"2(x+1)", r"2x+2"), (r"x y", r"yx"), (r"3x_1+x_2", r"x_{2}+3x_{1}"), (r"\frac{x}{3}", r"\frac13 x"),
    (r"n(n+1)/2", r"\frac{n^2+n}{2}"), (r"\{1,2,3\}", r"\{3,2,1\}"), (r"\{1,1,2\}", r"\{1,2\}"), (r"1, 2", r"2, 1"),
    (r"1 \text{ and } 2", r"1, 2"), (r"1,2,3", r"\{1,2,3\}"), (r"x=1 \text{ or } x=-1", r"\pm 1"),
    (r"\pm\sqrt{2}", r"\sqrt{2}, -\sqrt{2}"), (r"1\pm i", r"1+i, 1-i"), (r"\emptyset", r"\{\}"),
    (r"(1,2)", r"\left( 1, 2 \right)"), (r"(0.5, -1)", r"\left(\frac12,-1\right)"), (r"(x,y)=(1,2)", r"(1,2)"),
    (r"x=1, y=2", r"(1,2)"), (r"\langle 1,2,3 \rangle", r"(1,2,3)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}"),
    (r"[0,1]", r"0 \le x \le 1"), (r"(1,2)", r"1<x<2"), (r"[1,\infty)", r"x \ge 1"), (r"(-\infty,3)", r"x<3"),
    (r"3 > x", r"x < 3"), (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1"),
    (r"(1,\infty) \cup (-\infty,-1)", r"(-\infty,-1)\cup(1,\infty)"), (r"(-\infty,2)\cup(2,\infty)", r"x \ne 2"),
    (r"x \in [1,2)", r"[1,2)"), (r"(-\infty,\infty)", r"\mathbb{R}"), (r"x=5", r"5"), (r"5=x", r"x=5"),
    (r"f(x)=2x", r"2x"), (r"y=2x+1", r"2x-y+1=0"), (r"y = 2x+1", r"2x+1"), (r"x^2+y^2=4", r"2x^2+2y^2=8"),
    (r"3x-y+13=0", r"y=3x+13"), (r"2x+y>3", r"3-2x-y<0"), (r"2+3i", r"3i+2"), (r"\frac{1}{i}", r"-i"),
    (r"i^2", r"-1"), (r"\sqrt{-4}", r"2i"), (r"e^{i\pi}", r"-1"), (r"(1+i)^2", r"2i"), (r"90^\circ", r"90"),
    (r"90^\circ", r"\frac{\pi}{2}"), (r"45 \text{ degrees}", r"45^{\circ}"), (r"\text{Monday}", r"monday"),
    (r"\text{(B)}", r"B"), (r"\textbf{B}", r"B"), (r"\text{no solution}", r"No solution"), (r"\infty", r"+\infty"),
    (r"-\infty", r"-infinity"), (r"2:4", r"1:2"), (r"x!", r"x\cdot(x-1)!"), (r"|x|", r"\sqrt{x^2}"),
    (r"\max(2,3)", r"3"), (r"\frac{2}{3}\text{ hours}", r"2/3"), (r"\frac{22}{7}\%", r"\frac{22}{700}"),
]  # fmt: skip


def test_equal_answers_pass():
    assert {pair: outcome for pair, outcome in verdicts(EQUAL).items() if outcome != "passed"} == {}


def test_equal_answers_pass_the_other_way_round():
    turned = [(found, expected) for expected, found in EQUAL]
    assert {pair: outcome for pair, outcome in verdicts(turned).items() if outcome != "passed"} == {}
