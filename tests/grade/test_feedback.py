# ruff: noqa: E501 - one program a line
"""What a policy is told holds nothing of a hidden case. Every program here is really run."""

import asyncio
import random
from dataclasses import replace
from typing import get_args

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport, CaseResult
from transforms.grade.feedback import MAX_FEEDBACK, Granularity, feedback
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Call, Case
from transforms.sources.kinds.stdio import Case as StdioCase
from transforms.sources.kinds.stdio import Stdio
from transforms.sources.task import Task, Tier
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=3, output_kib=64)


def ran(task: Task, program: str) -> CaseReport:
    return asyncio.run(run_check(Bubblewrap(), task, program, SandboxRequest(limits=LIMITS)))


class Secrets:
    """Hidden texts, none of which may be told."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.made: list[str] = []

    def __call__(self) -> str:
        self.made.append(f"secret{self.dice.randrange(10**12)}")
        return self.made[-1]


def call_task(secret: Secrets) -> Task:
    shown = Case("shown", ("open", 1), "open-answer", tier="visible")
    tiers: tuple[Tier, ...] = ("hidden", "integration")
    hidden = [Case(secret(), (secret(), n), secret(), tier=tier) for n, tier in enumerate(tiers)]
    return Task("t", "p", Call("f", (hidden[0], shown, hidden[1])))


CALLS = {
    "returns its input": "def f(x, n): return x",
    "raises its input": "def f(x, n): raise ValueError(x)",
    "raises a class of that name": "def f(x, n): raise type(x, (Exception,), {})",
    "prints its input": "import sys\ndef f(x, n):\n    print(x); print(x, file=sys.stderr)\n    return 1",
    "exits with it": "import sys\ndef f(x, n): sys.exit(x)",
    "a function of that name raises": "def f(x, n):\n    space = {}\n    exec(f'def {x}(): raise KeyError', space)\n    space[x]()",
    "a file of that name raises": "def f(x, n): exec(compile('raise KeyError', x, 'exec'))",
    "a syntax error of it": "def f(x, n): exec(x + ' (')",
    "a type of that name": "def f(x, n): return type(x, (), {})()",
    "keeps it for later": "import os\ndef f(x, n):\n    for folder in ('/tmp', '.', os.environ['HOME'], '/dev/shm'):\n        try: open(folder + '/kept', 'a+').write(x)\n        except OSError: pass\n    found = []\n    for folder in ('/tmp', '.', os.environ['HOME'], '/dev/shm'):\n        try: found.append(open(folder + '/kept').read())\n        except OSError: pass\n    raise ValueError(str(found))",
    "asks for more time than it has": "def f(x, n):\n    while True: pass",
    "does not parse": "def f(x, n) return x",
    "forges a syntax error": """
import os, struct
def text(t): return b"s" + struct.pack(">I", len(t)) + t
def f(x, n):
    body = b"S" + b"t" + struct.pack(">I", 3) + text(b"SyntaxError") + text(x.encode()) + text(b"line 1")
    for fd in range(3, 64):
        try: os.write(fd, struct.pack(">I", len(body)) + body)
        except OSError: pass
    os._exit(0)
""",
}


@pytest.mark.parametrize("name", CALLS)
def test_no_text_of_a_hidden_call_is_told(name: str):
    secret = Secrets(len(name))
    task = call_task(secret)
    report = ran(task, CALLS[name])
    assert any(result.outcome is not Outcome.PASSED for result in report.results)
    for granularity in get_args(Granularity):
        told = feedback(task, report, granularity)
        assert len(told) <= MAX_FEEDBACK
        assert [text for text in secret.made if text in told] == [], (granularity, told)


PRINTED = {
    "echoes": "print(input())",
    "raises what it read": "raise ValueError(input())",
    "exits with what it read": "import sys\nsys.exit(input())",
    "forges a refusal": "import os\nx = input()\nfor fd in range(3, 64):\n    try: os.write(fd, len(x).to_bytes(4, 'big') + x.encode())\n    except OSError: pass",
    "keeps it for later": "x = input()\nopen('/tmp/kept', 'a').write(x)\nraise ValueError(open('/tmp/kept').read())",
}


@pytest.mark.parametrize("name", PRINTED)
def test_no_text_of_a_hidden_input_is_told(name: str):
    secret = Secrets(len(name))
    hidden = [StdioCase(secret(), secret(), secret()) for _ in range(2)]
    task = Task("t", "p", Stdio((hidden[0], StdioCase("shown", "open", "answer", tier="visible"), hidden[1])))
    report = ran(task, PRINTED[name])
    for granularity in get_args(Granularity):
        told = feedback(task, report, granularity)
        assert [text for text in secret.made if text in told] == [], (granularity, told)


def test_the_secrets_are_where_feedback_could_take_them_from():
    secret = Secrets(1)
    report = ran(call_task(secret), CALLS["raises its input"])
    assert secret.made[1] in report.results[0].message  # as people may see it


def test_a_visible_failure_is_told_whole():
    task = call_task(Secrets(2))
    report = ran(task, "def f(x, n):\n    return x.upper()")
    (line,) = feedback(task, report, "visible_failures").splitlines()
    assert line.startswith("shown: f('open', 1) must return 'open-answer'; failed_tests")
    assert "'OPEN'" in line
    raising = ran(task, "def f(x, n):\n    return x.nothing")
    told = feedback(task, raising, "visible_failures")
    assert "runtime_error at line 2 in f: AttributeError: 'str' object has no attribute 'nothing'" in told


def test_the_first_failure_is_a_kind_of_outcome_where_it_is_hidden():
    task = call_task(Secrets(3))
    assert (
        feedback(task, ran(task, "def f(x, n): return 1"), "first_failure")
        == "a hidden test did not pass: failed_tests"
    )
    first_is_shown = replace(task, check=replace(task.check, cases=task.check.cases[1:]))  # ty: ignore[invalid-argument-type]
    assert feedback(first_is_shown, ran(first_is_shown, "def f(x, n): return 1"), "first_failure").startswith("shown: ")


def test_what_the_source_lacks_is_told_at_every_granularity_but_none():
    task = call_task(Secrets(4))
    report = ran(task, "def f(x, n) return x")
    said = {name: feedback(task, report, name) for name in get_args(Granularity)}
    assert said.pop("none") == ""
    assert len(set(said.values())) == 1
    assert said["compiler_message"].startswith("SyntaxError: expected ':'")
    wrong = ran(task, "def f(x, n): return x")
    assert feedback(task, wrong, "compiler_message") == ""


def test_what_a_compiler_warns_of_is_told_with_the_failure_it_belongs_to():
    case = StdioCase("shown", "", "1", tier="visible")
    task = Task("t", "p", Stdio((case,), language="c"))
    result = CaseResult.of(case, Outcome.SYNTAX_ERROR, "line 1: expected ';'")
    usage = ran(call_task(Secrets(5)), "def f(x, n): return 1").usage
    assert (
        feedback(task, CaseReport((result,), usage, "main.c:1: error: expected ';'"), "first_failure")
        == "main.c:1: error: expected ';'"
    )


def test_a_program_that_passes_is_told_nothing():
    task = Task("t", "p", Call("f", (Case("a", (1,), 1, tier="visible"),)))
    report = ran(task, "def f(x): return x")
    assert {feedback(task, report, name) for name in get_args(Granularity)} == {""}


def test_feedback_is_bounded_and_can_be_stored():
    cases = tuple(Case(f"case {n}", ("x" * 3000,), n, tier="visible") for n in range(9))
    task = Task("t", "p", Call("f", cases))
    told = feedback(task, ran(task, "def f(x): raise ValueError('\\ud800' + x)"), "visible_failures")
    assert len(told) == MAX_FEEDBACK
    told.encode()


class SharedProcess(Call):
    """A check whose tests run in the program's own process."""

    integrity = "shared_process"


def test_where_tests_share_a_process_not_even_a_visible_message_is_told():
    case = Case("shown", (1,), 2, tier="visible")
    task = Task("t", "p", SharedProcess("f", (case,)))
    result = CaseResult.of(case, Outcome.RUNTIME_ERROR, "hidden input 17", got="17", location="line 17")
    usage = ran(call_task(Secrets(6)), "def f(x, n): return 1").usage
    for granularity in get_args(Granularity):
        assert "17" not in feedback(task, CaseReport((result,), usage), granularity)
