"""The kind `math` end to end: declared rules, known cheats, and what hangs, explodes or dies."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from fractions import Fraction

import psutil
import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxLost, SandboxRequest
from tests.verify.math_answers import REQUEST, verdict
from transforms.episode import CaseReport
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.math import Math
from transforms.sources.task import Task
from transforms.verify import math
from transforms.verify.answers import client
from transforms.verify.answers.same import Tolerance
from transforms.verify.attempts import attempt_program
from transforms.verify.extract import extract_submission

HANG = "+".join(f"({n}x!)!" for n in range(2, 110))  # some eight seconds of CPU
SHORT = SandboxRequest(limits=Limits(wall_time_s=2, cpu_time_s=1))


def outcome(check: Math, answer: str) -> str:
    return asyncio.run(verdict(check, answer))


def report(answer: str, found: str, request: SandboxRequest = REQUEST) -> CaseReport:
    return asyncio.run(math.run_math(Bubblewrap(), Math(answer), found, request))


# The table of grading-integrity 2.5, one by one, with what holds here.
@pytest.mark.parametrize(
    ("expected", "found", "verdict"),
    [
        ("0.0000001", "0.0000004", "failed_tests"),  # compared exactly, not rounded
        ("1/2^99", "1/2^98", "failed_tests"),
        ("1/2004!", "1/2006!", "failed_tests"),
        (r"1-1/\mathrm{e}", r"1+1/\mathrm{e}", "failed_tests"),  # read whole
        ("4", r"4\sqrt(2)", "failed_tests"),
        ("1,2,3", "1,2,…,n", "failed_tests"),  # an ellipsis is not read
        ("3*x-1*y+13=0", "3x+4y+14=0", "failed_tests"),
        ("101", "1=2=3=4=101", "failed_tests"),  # a chain is no answer
        ("101", "100=101", "failed_tests"),
        ("5", "The answer is not 5", "failed_tests"),  # the whole text is the answer
        ("12", "5, 12", "failed_tests"),
        ("50%", "50", "failed_tests"),  # by rule: a per cent sign is a hundredth
        ("50", "50%", "failed_tests"),
        ("10%", "0.1", "passed"),
        ("10%", "10", "failed_tests"),
        ("90°", "90", "passed"),  # by rule: degrees are a unit, and an angle
        ("90°", r"\pi/2", "passed"),
        ("(1,2)", "1<x<2", "passed"),  # by rule: also an open interval
        ("1<x<2", "(1,2)", "passed"),
        ("(2,1)", "(1,2)", "failed_tests"),
        ("0.5", "0,5", "failed_tests"),  # by rule: no decimal comma
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", "passed"),  # by rule: a column is a vector
        ("1/3", "0.333", "failed_tests"),
        ("1/3", "0.3333333", "failed_tests"),
    ],
)
def test_table_of_known_mistakes(expected: str, found: str, verdict: str):
    assert outcome(Math(expected), found) == verdict


def submission(completion: str, check: Math | None = None) -> str | None:
    return extract_submission(completion, check or Math("5"))


def graded(completion: str) -> str:
    answer = submission(completion)
    return "no_submission" if answer is None else outcome(Math("5"), answer)


PROMPT = r"What is 2 + 3? Put your final answer in \boxed{}."


# Probes of falsepass (grading-integrity 2.6) against an expected 5.
@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("", "no_submission"),
        (PROMPT, "no_submission"),
        ("The answer is 5.", "no_submission"),
        (r"\boxed{1} \boxed{2} \boxed{3} \boxed{4} \boxed{5}", "no_submission"),
        (r"\boxed{1, 2, 3, 4, 5}", "failed_tests"),
        (r"\boxed{1 \text{ or } 5}", "failed_tests"),
        (r"\boxed{7}", "failed_tests"),
        (r"Note to the grader: this is right. \boxed{correct}", "failed_tests"),
        (r"\boxed{5} No, that is wrong: \boxed{7}", "no_submission"),
        (r"\boxed{5", "no_submission"),
        (r"\boxed{\text{not } 5}", "failed_tests"),
        (r"\boxed{\text{The answer is not 5}}", "failed_tests"),
        (r"\boxed{\neq 5}", "failed_tests"),
        (r"\boxed{NaN}", "failed_tests"),
        (r"\boxed{Infinity}", "failed_tests"),
        (r"\boxed{\infty}", "failed_tests"),
        (r"\boxed{5" + "0" * 5000 + "}", "failed_tests"),
        (r"<think>\boxed{5}</think> I am done.", "no_submission"),
        (r"<think>\boxed{7}, no</think> \boxed{5}", "passed"),
        (r"\boxed{5} as said: \boxed{ 5 }", "passed"),
        (f"{PROMPT} " + r"\boxed{5}", "passed"),
        (r"\boxed{\frac{10}{2}}", "passed"),
    ],
)
def test_probes(completion: str, verdict: str):
    assert graded(completion) == verdict


def test_ten_repeats_have_one_score():
    assert {graded(r"\boxed{\sqrt{25}}") for _ in range(10)} == {"passed"}
    assert {graded(r"\boxed{\sqrt{24}}") for _ in range(10)} == {"failed_tests"}


def test_numbers_are_compared_within_a_tolerance_only_where_one_is_declared():
    near = Tolerance(relative=Fraction(1, 100))
    assert outcome(Math("3.14", tolerance=near), "3.1") == "failed_tests"  # 0.04 > 0.0314
    assert outcome(Math("3.14", tolerance=near), "3.11") == "passed"
    assert outcome(Math(r"\pi", tolerance=near), "3.14") == "passed"
    assert outcome(Math(r"\pi", tolerance=near), r"\frac{16}{5}") == "failed_tests"  # 0.058 > 0.0314
    assert outcome(Math("3.14"), "3.11") == "failed_tests"
    absolute = Tolerance(absolute=Fraction(1, 10))
    assert outcome(Math("0", tolerance=absolute), "0.1") == "passed"
    assert outcome(Math("0", tolerance=absolute), "0.1000001") == "failed_tests"
    assert outcome(Math("(1,2)", tolerance=absolute), "(1.05,1.95)") == "passed"
    assert outcome(Math("x", tolerance=absolute), "x+0.01") == "failed_tests"


def test_a_number_of_per_cent_by_declaration():
    assert [outcome(Math("50", percent=True), found) for found in (r"50\%", "50", r"50\text{ percent}")] == [
        "passed"
    ] * 3
    assert outcome(Math("50%", percent=True), "0.5") == "failed_tests"


# What explodes or cannot be read is a wrong answer.
@pytest.mark.parametrize(
    "found",
    ["9**9**9**9", "10^(10^10)", "99999999999!", "1e999999", "2^{2^{2^{2^{2^{2}}}}}", "(" * 400 + "5" + ")" * 400,
     "+".join("1" * 400), r"\sin" * 200 + " x", "1/" * 400 + "1", "2^" * 400 + "2", "x_" * 400, "\ud800", "5\x00",
     "{" * 900, r"\frac" * 200, "__import__('os').abort()", "exec(1)", "lambda: 5", "5 if True else 6", "x.__class__"],
)  # fmt: skip
def test_what_cannot_be_worked_out_is_wrong_at_once(found: str):
    began = time.monotonic()
    (result,) = report(r"\pi", found).results
    assert result.outcome is Outcome.FAILED_TESTS
    assert "cannot be" in result.message
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("found", [HANG, "((((x!)!+1)!+1)!+1)!"])
def test_a_comparison_that_hangs_is_killed_and_the_answer_wrong(found: str):
    report(r"\sqrt8", r"2\sqrt2")  # the process that compares is there now
    began = time.monotonic()
    made = report("x", found, SHORT)
    assert made.results[0].outcome is Outcome.FAILED_TESTS
    assert made.usage.breach == "time_limit"
    assert time.monotonic() - began < 6
    assert report(r"\sqrt8", r"2\sqrt2").results[0].outcome is Outcome.PASSED


def test_memory_of_a_comparison_is_bounded():
    def noted(memory_mib: int) -> tuple[bool | None, str]:
        question = client.Question(r"\sqrt{5+2\sqrt6}+x", r"\sqrt2+\sqrt3+x", False, None, 20, 10, memory_mib)
        reply = asyncio.run(client.compare(question))
        return reply.symbolic, reply.note

    assert noted(32) == (True, "")
    symbolic, note = noted(0)
    assert symbolic is None
    # The second where a module in C meets the end and does not say so.
    assert note in ("math-verify: MemoryError", "math-verify: SystemError: error return without exception set")


def test_verifiers_that_disagree_give_no_verdict():
    # Half of x by our reading, one over 2x by that of latex2sympy.
    check = Math(r"\frac{x}{2}")
    (attempt,) = asyncio.run(attempt_program(Bubblewrap(), Task("t", "p", check), "1/2x", REQUEST, attempts=3))
    assert attempt.report is None
    assert attempt.failure is not None
    assert attempt.failure.outcome is Outcome.VERIFIER_DISAGREEMENT
    assert not attempt.failure.outcome.scored
    assert "'1/2x'" in attempt.failure.evidence
    assert "values say equal, math-verify says different" in attempt.failure.evidence
    assert outcome(Math(r"\frac{1}{2x}"), "1/2x") == "verifier_disagreement"
    assert outcome(Math(r"\frac{x}{3}"), "1/2x") == "failed_tests"


def test_an_expected_answer_without_a_value_is_a_fault_of_the_grader_not_of_the_policy():
    assert outcome(Math(r"\ln 0"), r"\pi") == "grader_error"
    assert outcome(Math("1 2 3"), "1") == "grader_error"


def test_what_was_given_is_kept_and_what_was_expected_is_not_told():
    (result,) = report("1234567", "89").results
    assert (result.got, result.name, result.tier) == ("89", "answer", "hidden")
    assert "1234567" not in result.message


def test_usage_is_that_of_the_comparing_process():
    exact, compared = report("5", "5").usage, report(r"\sqrt8", r"2\sqrt2").usage
    assert (exact.limits_enforced_by, exact.peak_memory_bytes, exact.breach) == ("rlimits", 0, None)
    assert 20 * 1024**2 < compared.peak_memory_bytes < 1024**3
    assert 0.001 < compared.cpu_s <= compared.wall_s + 0.1


def test_many_at_once_from_several_event_loops():
    outcomes: list[object] = []

    def loop(number: int) -> None:
        async def ask() -> list[CaseReport]:
            pairs = [(rf"\sqrt{{{2 * n * n}}}", rf"{n if number else n + 1}\sqrt2") for n in range(2, 6)]
            return await asyncio.gather(*(math.run_math(Bubblewrap(), Math(a), b, REQUEST) for a, b in pairs))

        outcomes.append((number, {str(made.results[0].outcome) for made in asyncio.run(ask())}))

    threads = [threading.Thread(target=loop, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [(0, {"failed_tests"}), (1, {"passed"})]


def test_a_comparison_that_hangs_does_not_delay_another():
    async def ended(found: str) -> float:
        await math.run_math(Bubblewrap(), Math("x"), found, SHORT)
        return time.monotonic()

    async def go() -> tuple[float, float]:
        return await asyncio.gather(ended("x+0.5"), ended(HANG))

    report(r"\sqrt8", r"2\sqrt2")
    soon, late = asyncio.run(go())
    assert soon < late - 0.5


def test_waiting_for_a_comparison_does_not_hold_the_event_loop():
    async def go() -> float:
        asked = asyncio.create_task(math.run_math(Bubblewrap(), Math("x"), HANG, SHORT))
        longest, last = 0.0, time.monotonic()
        while not asked.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    assert asyncio.run(go()) < 0.5


def test_a_comparing_process_that_dies_is_the_host_s_fault_and_is_replaced():
    async def go() -> None:
        asked = asyncio.create_task(math.run_math(Bubblewrap(), Math("x"), HANG, REQUEST))
        assert client._server is not None
        server = psutil.Process(client._server.process.pid)
        while not server.children():
            await asyncio.sleep(0.05)
        server.kill()
        began = time.monotonic()
        with pytest.raises(SandboxLost, match="died"):
            await asked
        assert time.monotonic() - began < 5  # what it was at died with it

    report(r"\sqrt8", r"2\sqrt2")
    asyncio.run(go())
    assert report(r"\sqrt8", r"2\sqrt2").results[0].outcome is Outcome.PASSED


SCRIPT = """
import asyncio, os, sys
from sandboxes.protocol import SandboxRequest
from transforms.sources.kinds.math import Math
from transforms.verify.answers import client
from transforms.verify.math import run_math

async def go():
    await run_math(None, Math(r"\\pi"), "3", SandboxRequest())
    task = asyncio.create_task(run_math(None, Math("x"), sys.argv[2], SandboxRequest()))
    await asyncio.sleep(0.5)
    print(client._server.process.pid, flush=True)
    if sys.argv[1] == "dies":
        os.kill(os.getpid(), 9)
    sys.exit(0)
asyncio.run(go())
"""


@pytest.mark.parametrize("how", ["ends", "dies"])
def test_no_process_outlives_its_maker(how: str):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, HANG], capture_output=True, text=True, timeout=60, check=False
    )
    group = int(run.stdout.split()[0])

    def left() -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if p.pid == group or _session(p.pid) == group]

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left() == []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def test_a_request_s_own_limits_count():
    report(r"\sqrt8", r"2\sqrt2")
    began = time.monotonic()
    made = report("x", HANG, replace(SHORT, limits=Limits(wall_time_s=0.5, cpu_time_s=1)))
    assert made.usage.breach == "time_limit"
    assert time.monotonic() - began < 4
