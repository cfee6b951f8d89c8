# ruff: noqa: E501 - one test a line
import ast
import time

import pytest

from transforms.sources.asserts import CannotCompile, compile_asserts, fold
from transforms.sources.kinds.call import Case, Tolerance


def compiled(test: str) -> tuple[Case, ...]:
    return compile_asserts(ast.parse(test).body, "f")


@pytest.mark.parametrize(
    ("test", "args", "kwargs", "expected"),
    [
        ("assert f(1, [2, -3]) == (4,)", (1, [2, -3]), {}, (4,)),
        ("assert f(1) == 2, 'said ' + str(f(1))", (1,), {}, 2),
        ("assert 2 == f(1)", (1,), {}, 2),
        ("assert f(x=1, y={'a': {2}}) == None", (), {"x": 1, "y": {"a": {2}}}, None),
        ("assert f(0) is True", (0,), {}, True),
        ("assert f(0) is None", (0,), {}, None),
        ("assert f(0)", (0,), {}, True),
        ("assert not f(0)", (0,), {}, False),
        ("assert (f('a' * 3 + 'b') == 10 ** 2 - 7 // 2 % 2 + -1)", ("aaab",), {}, 98),
        ("assert f([1, (2,)] * 2) == 1 / 4", ([1, (2,), 1, (2,)],), {}, 0.25),
        ("assert f() == b'x'", (), {}, b"x"),
    ],
)
def test_an_assert_becomes_a_case(test, args, kwargs, expected):
    [case] = compiled(test)
    assert case == Case(name="case-1", args=args, expected=expected, kwargs=kwargs, tier="hidden")
    assert type(case.expected) is type(expected)


@pytest.mark.parametrize(
    ("test", "case"),
    [
        ("assert abs(f(1.5) - 0.5) < 1e-6", Case("case-1", (1.5,), 0.5, tolerance=Tolerance(absolute=1e-6))),
        ("assert abs(6.0/5.0 - f(x=2)) <= 1e-3", Case("case-1", (), 1.2, {"x": 2}, tolerance=Tolerance(absolute=1e-3))),
        ("assert abs(f(1) - 2) < 1", Case("case-1", (1,), 2.0, tolerance=Tolerance(absolute=1.0))),
        ("assert tuple(f([3, 1])) == tuple([1, 3])", Case("case-1", ([3, 1],), [1, 3], sequences="any")),
        ("assert (1, [2]) == tuple(f(1))", Case("case-1", (1,), (1, [2]), sequences="any")),
    ],
)
def test_an_assert_may_say_how_to_compare(test, case):
    [found] = compiled(test)
    assert (found, type(found.expected)) == (case, type(case.expected))


def test_statements_that_say_nothing_are_skipped_and_cases_are_numbered():
    cases = compiled("'doc'\nprint\nassert True, 'ok'\nassert f(1) == 1\npass\nassert f(2) == 2")
    assert [(case.name, case.args, case.expected) for case in cases] == [("case-1", (1,), 1), ("case-2", (2,), 2)]


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert abs(f(1.5)) < 1e-6", "line 1 of the test: 'abs(f(1.5)) < 1e-06': is not of the form `abs(f(...) - number) < number`"),
        ("assert abs(f(1) - f(2)) < 1e-6", "line 1 of the test: 'abs(f(1) - f(2)) < 1e-06': f(2) is not a literal"),
        ("assert abs(f(1) - 'a') < 1e-6", "line 1 of the test: \"abs(f(1) - 'a') < 1e-06\": is not of the form `abs(f(...) - number) < number`"),
        ("assert abs(f(1) - 2) < 0", "line 1 of the test: 'abs(f(1) - 2) < 0': is not of the form `abs(f(...) - number) < number`"),
        ("assert abs(f(1) - 2) > 1", "line 1 of the test: 'abs(f(1) - 2) > 1': is not of the form `f(...) == value`"),
        ("assert f(1) == 1\nfor x in range(3):\n    assert f(x) == x",
         "line 2 of the test: 'for x in range(3):' would have to be executed"),
        ("x = 3\nassert f(x) == 3", "line 1 of the test: 'x = 3' would have to be executed"),
        ("print('hi')", "line 1 of the test: \"print('hi')\" would have to be executed"),
        ("assert f(x) == 3", "line 1 of the test: 'f(x) == 3': x is not a literal"),
        ("assert f(f(1)) == 3", "line 1 of the test: 'f(f(1)) == 3': f(1) is not a literal"),
        ("assert f(*[1]) == 3", "line 1 of the test: 'f(*[1]) == 3': *[1] is not a literal"),
        ("assert f(**{'a': 1}) == 3", "line 1 of the test: \"f(**{'a': 1}) == 3\": `**` in a call is not a literal"),
        ("assert f(1) == {**{}}", "line 1 of the test: 'f(1) == {**{}}': `**` in a dict is not a literal"),
        ("assert f(1) == {[]: 1}", "line 1 of the test: 'f(1) == {[]: 1}': unhashable type: 'list'"),
        ("assert f(1) == 1 / 0", "line 1 of the test: 'f(1) == 1 / 0': 1 / 0: division by zero"),
        ("assert f(1) == (-1) ** 0.5", "line 1 of the test: 'f(1) == (-1) ** 0.5': (-1) ** 0.5 is complex"),
        ("assert f(1) < 2", "line 1 of the test: 'f(1) < 2': is not of the form `f(...) == value`"),
        ("assert f(1) != 2", "line 1 of the test: 'f(1) != 2': is not of the form `f(...) == value`"),
        ("assert f(1) is 2", "line 1 of the test: 'f(1) is 2': is not of the form `f(...) == value`"),
        ("assert 1 == f(1) == 1", "line 1 of the test: '1 == f(1) == 1': is not of the form `f(...) == value`"),
        ("assert tuple(f(1)) == [1]", "line 1 of the test: 'tuple(f(1)) == [1]': is not of the form `f(...) == value`"),
        ("assert tuple(f(1)) == tuple(g(1))", "line 1 of the test: 'tuple(f(1)) == tuple(g(1))': g(1) is not a literal"),
        ("assert list(f(1)) == [1]", "line 1 of the test: 'list(f(1)) == [1]': is not of the form `f(...) == value`"),
        ("assert g(1) == 1", "line 1 of the test: 'g(1) == 1': is not of the form `f(...) == value`"),
        ("assert False", "line 1 of the test: 'False': is not of the form `f(...) == value`"),
        ("assert True", "no assert calls `f`"),
        ("", "no assert calls `f`"),
    ],
)  # fmt: skip
def test_what_is_more_than_data_is_refused_with_its_reason(test, reason):
    with pytest.raises(CannotCompile) as caught:
        compiled(test)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("10 ** 10 ** 10", "an integer of more than 4096 bits"),
        ("2 ** 4000 * 2 ** 4000", "an integer of more than 4096 bits"),
        ("'a' * 10 ** 12", "a value of more than 100000 items"),
        ("[[0] * 90000] * 90000", "a value of more than 100000 items"),
        ("10 ** 9 * ('abc', 1)", "a value of more than 100000 items"),
        ("'%1000000000d' % 1", "string formatting is not a literal"),
        ("__import__('os').getpid()", "__import__('os').getpid() is not a literal"),
        ("[x for x in (1,)]", "[x for x in (1,)] is not a literal"),
        ("2.0 ** 5000", "2.0 ** 5000: (34, 'Numerical result out of range')"),
    ],
)
def test_an_expression_cannot_run_code_or_fill_the_memory(expression, reason):
    started = time.monotonic()
    with pytest.raises(CannotCompile) as caught:
        fold(ast.parse(expression, mode="eval").body)
    assert str(caught.value) == reason
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "expression",
    ["[1]*3", "-1", "10**2", "'a'*3", "(1, 'b', [2.5, None, {'k': {True, 3}}])", "~5 - +2", "not 0", "3*19*3", "7 % -3",
     "2**-1", "(1,)+(2,)", "'' * -4", "0 ** 0", "{1: 2, 1: 3}", "b'ab' * 2", "-0.0"],
)  # fmt: skip
def test_folding_agrees_with_python(expression):
    value, python = fold(ast.parse(expression, mode="eval").body), eval(expression)
    assert (type(value), repr(value)) == (type(python), repr(python))
