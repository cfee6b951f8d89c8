# ruff: noqa: E501 - one case a line
"""The declared rules of comparison, checkers, and what is told of a failure."""

import asyncio

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport, CaseResult
from transforms.sources.kinds.call import Call, Case, Tolerance
from transforms.sources.task import Task
from transforms.verify.call_rules import Rule, matches
from transforms.verify.calls import CheckerFailed
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=3, memory_mib=128, processes=24, output_kib=64, file_mib=8)
NAN, INF = float("nan"), float("inf")


def grade(program: str, check: Call) -> CaseReport:
    return asyncio.run(run_check(Bubblewrap(), Task("t", "p", check), program, SandboxRequest(limits=LIMITS)))


def near(absolute: float = 0.0, relative: float = 0.0) -> Rule:
    return Rule(tolerance=Tolerance(absolute, relative))


@pytest.mark.parametrize(
    ("returned", "expected", "rule", "right"),
    [
        # absolute: |1.25 - 1.0| = 0.25
        (1.25, 1.0, near(0.25), True), (1.25, 1.0, near(0.2), False), (0.75, 1.0, near(0.25), True), (-1.0, 1.0, near(0.25), False),
        # relative, of the expected: 10% of 200 is 20; of 180 it would be 18
        (180.0, 200.0, near(0, 0.1), True), (179.0, 200.0, near(0, 0.1), False), (200.0, 180.0, near(0, 0.1), False),
        (-180.0, -200.0, near(0, 0.1), True), (0.001, 0.0, near(0, 0.1), False), (0.001, 0.0, near(0.01, 0.1), True),
        # the larger of both
        (201.0, 200.0, near(1.0, 0.001), True), (200.15, 200.0, near(0.1, 0.001), True), (202.0, 200.0, near(1.0, 0.001), False),
        # an int where a float is expected, never the other way, and no bool
        (1, 1.0, near(1e-9), True), (2, 1.0, near(1e-9), False), (1.0, 1, near(1e-9), False), (1, 1, near(1e-9), True), (2, 1, near(5), False),
        (True, 1.0, near(1e-9), False), ("1.0", 1.0, near(1e-9), False), (10**400, 1e308, near(1e308), False), (None, 1.0, near(1), False),
        (2**53 + 1, 2.0**53, near(2), True),
        # nan is nan, an infinity is itself
        (NAN, NAN, near(1), True), (1.0, NAN, near(INF), False), (NAN, 1.0, near(1e300), False), (INF, INF, near(1), True),
        (-INF, INF, near(INF, INF), False), (1e308, INF, near(1e308), False), (INF, 1e308, near(1e308, 1.0), False),
        # at any depth; members of sets and keys exactly
        ([1.01, (2.0, {"a": [3.01]})], [1.0, (2.0, {"a": [3.0]})], near(0.02), True), ([1.0, (2.0, {"a": [3.1]})], [1.0, (2.0, {"a": [3.0]})], near(0.02), False),
        ([1.0], [1.0, 2.0], near(9), False), ([1.0, 2.0], [1.0], near(9), False), ((1.0,), [1.0], near(9), False), ({"a": 1.0}, {"a": 1.0, "b": 2.0}, near(9), False),
        ({1.001}, {1.0}, near(0.1), False), ({1.0}, {1.0}, near(0.1), True), ({1.001: 1}, {1.0: 1}, near(0.1), False), ({True: 1.0}, {1: 1.0}, near(9), False),
        (1.01 + 2j, 1 + 2.01j, near(0.02), True), (1.01 + 2j, 1 + 2.1j, near(0.02), False), (1.0, 1 + 0j, near(9), False), ("a", "a", near(9), True), ([True], [1], near(9), False),
        # sequences
        ((1, 2), [1, 2], Rule(), False), ((1, 2), [1, 2], Rule(tuples_as_lists=True), True), ([1, (2,)], ([1, [2]]), Rule(tuples_as_lists=True), True),
        ({"a": (1,)}, {"a": [1]}, Rule(tuples_as_lists=True), True), ((1, 3), [1, 2], Rule(tuples_as_lists=True), False), ({1, 2}, [1, 2], Rule(tuples_as_lists=True), False),
        ("12", ["1", "2"], Rule(tuples_as_lists=True), False), ((True,), [1], Rule(tuples_as_lists=True), False), ({(1, 2): 3}, {(1, 2): 3}, Rule(tuples_as_lists=True), True),
        ({(1, 2)}, {(1, 2)}, Rule(tuples_as_lists=True), True), ((1.01,), [1.0], Rule(Tolerance(0.1), tuples_as_lists=True), True),
        # one number type
        (1.0, 1, Rule(one_number_type=True), True), (1, 1.0, Rule(one_number_type=True), True), (1.5, 1, Rule(one_number_type=True), False), (True, 1, Rule(one_number_type=True), False),
        (NAN, NAN, Rule(one_number_type=True), True), ({1.0: [2.0]}, {1: [2]}, Rule(one_number_type=True), True), (2.0**60, 2**60, Rule(one_number_type=True), True), (2.0**60, 2**60 + 1, Rule(one_number_type=True), False),
    ],
)  # fmt: skip
def test_a_rule_says_what_may_differ(returned: object, expected: object, rule: Rule, right: bool):
    assert matches(returned, expected, rule) is right


def test_a_case_overrides_its_task():
    check = Call(
        "f",
        (
            Case("task's", (1.0,), 1.1),
            Case("own", (1.0,), 1.1, tolerance=Tolerance(0.01)),
            Case("any", ((1,),), [1]),
            Case("strict", ((1,),), [1], sequences="strict"),
        ),
        tolerance=Tolerance(0.2),
        sequences="any",
    )
    assert [str(r.outcome) for r in grade("def f(x): return x", check).results] == ["passed", "failed_tests"] * 2


CHECKED = Call(
    "f", (Case("a", (6,)), Case("b", (35,))),
    checker="def check(args, kwargs, returned):\n    a, b = returned\n    return a * b == args[0] and 1 < a < args[0]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("program", "outcomes"),
    [
        ("def f(n): return next((d, n // d) for d in range(2, n) if n % d == 0)", ["passed", "passed"]),
        ("def f(n): return [3, 2] if n == 6 else [7, 5]", ["passed", "passed"]),
        ("def f(n): return (2, 3)", ["passed", "failed_tests"]),
        ("def f(n): return (1, n)", ["failed_tests", "failed_tests"]),
        ("def f(n): raise ValueError", ["runtime_error", "runtime_error"]),
    ],
)
def test_a_checker_judges_what_has_many_right_answers(program: str, outcomes: list[str]):
    assert [str(result.outcome) for result in grade(program, CHECKED).results] == outcomes


def test_a_checker_may_be_given_the_expected_value():
    source = "def check(args, kwargs, returned, expected):\n    return sorted(returned) == expected and not kwargs"
    check = Call("f", (Case("a", ([3, 1],), [1, 3]),), checker=source)
    assert grade("def f(xs): return xs", check).results[0].outcome == "passed"
    assert grade("def f(xs): return xs[:1]", check).results[0].outcome == "failed_tests"


@pytest.mark.parametrize(
    ("checker", "why"),
    [
        ("def check(args, kwargs, returned): return 1", "a value of type int, not a bool"),
        ("def check(args, kwargs, returned): pass", "a value of type NoneType, not a bool"),
        ("def check(args, kwargs, returned): raise KeyError('x')", "KeyError: 'x'"),
        ("import os\ndef check(args, kwargs, returned): os._exit(0)", "exit code 0"),
        ("import nowhere\ndef check(args, kwargs, returned): return True", "No module named 'nowhere'"),
        ("def check(args, kwargs, returned):\n    while True: pass", "no answer within 3 s"),
    ],
)
def test_a_checker_without_a_verdict_is_the_graders_fault(checker: str, why: str):
    for expected in (None, 7):  # not even of a value that is known to be right
        with pytest.raises(CheckerFailed, match="the checker gave no verdict on case 'a'") as caught:
            grade("def f(): return 7", Call("f", (Case("a", (), expected),), checker=checker))
        assert why in str(caught.value)


def test_one_known_value_proves_the_checker_for_every_case():
    source = "def check(args, kwargs, returned): return returned > args[0]"
    check = Call("f", (Case("a", (1,)), Case("b", (2,), 3)), checker=source)
    results = grade("def f(x): return 'nonsense' if x == 1 else 9", check).results
    assert [str(result.outcome) for result in results] == ["failed_tests", "passed"]


@pytest.mark.parametrize(
    "value", ["None", "'x'", "10 ** 6000", "{}", "float('nan')", "[[]] * 9", "b'\\xff'", "'\\ud800'"]
)
def test_no_returned_value_makes_a_working_checker_the_graders_fault(value: str):
    source = "import math\ndef check(args, kwargs, returned): return math.fabs(math.pow(returned, 2.0) - 2) < 1e-6"
    check = Call("f", (Case("a", (), 1.4142135623),), checker=source)
    [result] = grade(f"def f(): return {value}", check).results
    assert result.outcome == "failed_tests"
    assert grade("def f(): return -2 ** 0.5", check).results[0].outcome == "passed"


def test_the_checker_is_where_no_program_was_and_sees_only_data():
    """The program leaves what it can; a checker that finds any of it, or an object of the program's, would not pass."""
    program = """
import builtins, os, threading, time
builtins.left = True
open('left', 'w').close()
open('/tmp/left', 'w').close()
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
class Yes(list):
    def __eq__(self, other): return True
def f(): return [1]
"""
    checker = """
import builtins, os
def check(args, kwargs, returned):
    others = [p for p in os.listdir('/proc') if p.isdigit() and b'sleep' in open(f'/proc/{p}/cmdline', 'rb').read()]
    return type(returned) is list and not hasattr(builtins, 'left') and os.listdir('.') == os.listdir('/tmp') == others
"""
    assert grade(program, Call("f", (Case("a", ()),), checker=checker)).results[0].outcome == "passed"


def told(program: str, expected: object = 5) -> CaseResult:
    [result] = grade(program, Call("f", (Case("c", (4,), expected),))).results
    return result


@pytest.mark.parametrize(
    ("program", "got", "expected_type", "location"),
    [
        ("def f(x): return x + 2", "6", "int", None),
        ("def f(x): return {'a': [x, None]}", "{'a': [4, None]}", "int", None),
        ("def f(x): return '\\ud800'", "'\\ud800'", "int", None),
        ("def f(x): return 'y' * 9999", "'" + "y" * 299, "int", None),
        ("def f(x): return [10 ** 5000]", "a list with a huge integer", "int", None),
        ("def f(x): return object()", None, "int", None),
        ("def f(x): return x + 1", None, None, None),
        ("\n\ndef f(x):\n    return g(x)\ndef g(x):\n    return x / 0\n", None, None, "line 6 in g"),
        ("import json\ndef f(x):\n    return json.loads('{')", None, None, "line 3 in f"),
        ("def f(x): return f(x)", None, None, "line 1 in f"),
        ("x = 1\nraise ValueError", None, None, "line 2 in <module>"),
        ("def f(x): pass\ndef g(x) return", None, None, "line 2"),
        ("def g(x): return x", None, None, None),
        ("class E(Exception):\n    def __str__(self): return 'x'\ndef f(x):\n    raise E from None", None, None, "line 4 in E".replace("E", "f")),
        ("class E(Exception):\n    @property\n    def __traceback__(self): 1 / 0\ndef f(x):\n    raise E", None, None, "line 5 in f"),
        ("exec(compile('def f(x): raise KeyError', '<solution>', 'exec').replace(co_firstlineno=1))", None, None, "line 1 in f"),
        ("def f(x): raise KeyError\nf.__code__ = f.__code__.replace(co_name='a\\nb')", None, None, None),
        ("def f(x): raise KeyError\nf.__code__ = f.__code__.replace(co_name='n' * 500)", None, None, "line 1 in " + "n" * 80),
    ],
)  # fmt: skip
def test_what_went_wrong_is_in_columns_of_its_own(
    program: str, got: str | None, expected_type: str | None, location: str | None
):
    result = told(program)
    assert (result.got, result.expected_type, result.location) == (got, expected_type, location), result


def test_no_column_holds_the_expected_value():
    secret = "the-hidden-answer-4711"
    for program in (
        "def f(x): return 'other'",
        "def f(x): return 1",
        "def f(x): raise KeyError(x)",
        "def f(x): return iter([])",
        "def f(x) x",
    ):
        assert secret not in repr(told(program, secret))
    check = Call(
        "f", (Case("a", (1,), secret),), checker="def check(a, k, r, e):\n    assert r == e, e\n    return True"
    )
    assert secret not in repr(grade("def f(x): return 1", check).results)
