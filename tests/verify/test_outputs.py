import time

import pytest

from transforms.sources.kinds.stdio import Compare, Tolerance
from transforms.verify.outputs import first_difference, same


@pytest.mark.parametrize(
    ("compare", "got", "expected", "right"),
    [
        ("exact", b"a\n", b"a\n", True),
        ("exact", b"a", b"a\n", False),
        ("exact", b"a\r\n", b"a\n", False),
        ("trimmed", b"a", b"a\n", True),
        ("trimmed", b"a \t\r\nb\n\n \n", b"a\nb", True),
        ("trimmed", b"", b"\n", True),
        ("trimmed", b"a\n", b"      a\n", True),
        ("trimmed", b"\na", b"a", True),
        ("trimmed", b"a\n b", b"a\nb", False),
        ("trimmed", b"a\n\nb", b"a\nb", False),
        ("trimmed", b"a  b", b"a b", False),
        ("trimmed", b"A", b"a", False),
        ("trimmed", b"a\0", b"a", False),
        ("trimmed", b"\xff\xfe", b"\xff\xfe\n", True),
        ("trimmed", "a\u00a0".encode(), b"a", False),  # white space is ASCII's
        ("tokens", b"  1\n\n2\t3", b"1 2 3\n", True),
        ("tokens", b"12 3", b"1 23", False),
        ("tokens", b"1 2", b"1 2 3", False),
        ("tokens", b"1 2 3", b"1 2", False),
        ("tokens", b"1.0", b"1", False),
        ("tokens", b"", b" \n", True),
    ],
)
def test_text(compare: Compare, got: bytes, expected: bytes, right: bool):
    assert same(got, expected, compare) is right


@pytest.mark.parametrize(
    ("got", "expected", "absolute", "relative", "right"),
    [
        (b"1.0", b"1", 0.5, 0, True),
        (b"1.5", b"1", 0.5, 0, True),
        (b"1.5000001", b"1", 0.5, 0, False),
        (b".5", b"0.50", 0.001, 0, True),
        (b"1e3", b"1000", 0.001, 0, True),
        (b"+1.", b"1", 0.001, 0, True),
        (b"-0.0", b"0", 0.001, 0, True),
        # Relative to the expected number: 0.1 of 100 is 10, and of 89 it would be 8.9.
        (b"90", b"100", 0, 0.1, True),
        (b"89", b"100", 0, 0.1, False),
        (b"110", b"100", 0, 0.1, True),
        (b"111", b"100", 0, 0.1, False),
        (b"-90", b"100", 0, 0.1, False),
        (b"90", b"-100", 0, 0.1, False),
        # The larger of both counts: max(1, 0.01 * 1000) = 10 and max(1, 0.01 * 10) = 1.
        (b"1010", b"1000", 1, 0.01, True),
        (b"1011", b"1000", 1, 0.01, False),
        (b"11", b"10", 1, 0.01, True),
        (b"11.5", b"10", 1, 0.01, False),
        # More digits than a float has.
        (b"100000000000000000000000001", b"100000000000000000000000000", 0.5, 0, False),
        (b"100000000000000000000000000.4", b"100000000000000000000000000", 0.5, 0, True),
        (b"0.0000001", b"0.0000004", 0, 0.1, False),
        (b"1e99999", b"2e99999", 0, 0.1, False),
        (b"1e-99999", b"0", 0.1, 0, True),
        # Words are compared as words, and count.
        (b"x 1.01", b"x 1", 0.1, 0, True),
        (b"y 1", b"x 1", 0.1, 0, False),
        (b"1 2", b"1", 0.1, 0, False),
        (b"x", b"1", 9, 9, False),
        (b"1", b"x", 9, 9, False),
        # What is no decimal number.
        (b"0x10", b"16", 1, 0, False),
        (b"1_0", b"10", 1, 0, False),
        (b"1,0", b"1", 1, 0, False),
        (b"1e999999", b"2e999999", 9, 9, False),
        ("\u0661".encode(), b"1", 1, 0, False),  # an Arabic digit
        # The declared rule for nan and inf.
        (b"nan", b"NaN", 1, 0, True),
        (b"-nan", b"nan", 1, 0, True),
        (b"nan", b"1", 1e300, 0, False),
        (b"1", b"nan", 1e300, 0, False),
        (b"Infinity", b"inf", 1, 0, True),
        (b"-inf", b"-Infinity", 1, 0, True),
        (b"inf", b"-inf", 1, 1, False),
        (b"inf", b"1e300", 1, 1e300, False),
        (b"1e300", b"inf", 1, 1, False),
    ],
)
def test_numbers(got: bytes, expected: bytes, absolute: float, relative: float, right: bool):
    assert same(got, expected, "numbers", Tolerance(absolute, relative)) is right


def test_without_a_tolerance_numbers_must_be_equal():
    assert same(b"1.50", b"1.5", "numbers")
    assert not same(b"1.50000000000000000001", b"1.5", "numbers")


def test_a_checker_is_no_comparison():
    with pytest.raises(ValueError, match="checker is not a comparison"):
        same(b"", b"", "checker")


@pytest.mark.parametrize(
    "output",
    [b"1" * 1_000_000, b"1" * 1_000_000 + b"x", b"1." * 500_000, b" " * 1_000_000, b"\n" * 1_000_000, b"1e" * 500_000,
     b"a \n" * 300_000, b"1e99999 " * 100_000, (b"9" * 300 + b" ") * 3000],
)  # fmt: skip
def test_a_hostile_output_takes_linear_time(output: bytes):
    began = time.process_time()
    for compare in ("exact", "trimmed", "tokens", "numbers"):
        same(output, output[:-2] + b"2 ", compare, Tolerance(0.1, 0.1))
    first_difference(output, output + b"x")
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (b"a\nb\n", b"a\nc\n", "line 2 is 'b' instead of 'c'"),
        (b"a", b"a\nb", "1 line(s) instead of 2"),
        (b"a\n", b"a", "white space differs"),
        (b"\xff", b"\x00", r"line 1 is '\\xff' instead of '\x00'"),
        (b"x" * 1000, b"y", f"line 1 is '{'x' * 76}... instead of 'y'"),
    ],
)
def test_the_first_difference_is_told(got: bytes, expected: bytes, words: str):
    assert first_difference(got, expected) == words
