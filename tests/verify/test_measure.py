import asyncio
import time
from dataclasses import replace

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxLost, SandboxRequest
from sandboxes.sandbox import GuestSandbox
from transforms.episode import Measured
from transforms.grade.components import components_of
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Call, Case, Tolerance
from transforms.sources.kinds.stdio import Case as StdioCase
from transforms.sources.kinds.stdio import Stdio
from transforms.sources.task import Task
from transforms.verify import values
from transforms.verify.attempts import Attempt, attempt_program
from transforms.verify.measure import _MOST

EVERY = frozenset({"coverage", "latency", "memory", "deviation", "memory_growth"})
LIMITS = Limits(wall_time_s=5, cpu_time_s=5)
LOOP = "    s = 0\n    for i in range(n): s += i * i % 7\n"
GOLD = f"def f(n):\n{LOOP}    return s\n"
SUMS = [sum(i * i % 7 for i in range(n)) for n in range(6)]
TASK = Task(
    "t", "p", Call("f", tuple(Case(f"case {n}", (n,), SUMS[n]) for n in range(6))), gold=GOLD,
    performance=tuple((1_200_000 + n,) for n in range(5)),
)  # fmt: skip


def attempt(
    program: str, wanted: frozenset[str] = EVERY, task: Task = TASK, sandbox: Bubblewrap | None = None
) -> Attempt:
    request = SandboxRequest(limits=LIMITS)
    tries = attempt_program(sandbox or Bubblewrap(), task, program, request, attempts=1, measures=wanted)
    return asyncio.run(tries)[-1]


def measured(program: str, wanted: frozenset[str] = EVERY, task: Task = TASK) -> Measured:
    made = attempt(program, wanted, task)
    assert made.report, made.failure
    assert made.report.measured, made.report
    return made.report.measured


def components(program: str, wanted: frozenset[str] = EVERY) -> dict[str, float]:
    report = attempt(program, wanted).report
    assert report
    return components_of(TASK, Outcome.PASSED, report.results, report.measured, growth_bytes=65_536)


TIME = frozenset({"latency"})
A_THIRD = pytest.approx(1 / 3, abs=0.14)  # other work on this machine comes and goes


def test_the_gold_measures_as_itself():
    found = components(GOLD)
    assert found["latency"] > 0.7
    assert found["deviation"] > 0.7
    assert found["memory"] > 0.9
    assert found["memory_growth"] == found["coverage"] == 1.0


def test_three_times_the_work_is_a_third():
    thrice = f"def f(n):\n{LOOP * 3}    return s\n"
    found = components(thrice, TIME)
    assert found["latency"] == A_THIRD
    assert found["deviation"] == pytest.approx(found["latency"])


def test_faster_than_the_gold_is_full_latency_and_little_nearness():
    closed = "P = [0, 1, 5, 7, 9, 13, 14]\ndef f(n): return n // 7 * 14 + P[n % 7]\n"
    # squares mod 7 are 0 1 4 2 2 4 1: sums 0, 0 1 5 7 9 13 14, so P of n is the sum of the first n of them
    closed = closed.replace("P = [0, 1, 5, 7, 9, 13, 14]", "P = [0, 0, 1, 5, 7, 9, 13]")
    found = components(closed, TIME)
    assert found["latency"] == 1.0
    assert found["deviation"] < 0.2


CLOCKS = {
    "patched": "import time\nfor name in dir(time):\n"
    "    if name.endswith(('time', 'counter', 'monotonic', 'ns')):\n"
    "        setattr(time, name, lambda *_: 0)\n",
    "sleeps on another thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n",
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_program_that_lies_about_time_is_timed_by_the_host(name: str):
    found = components(f"{CLOCKS[name]}def f(n):\n{LOOP * 3}    return s\n", TIME)
    assert found["latency"] == A_THIRD


def test_work_put_off_is_no_answer_and_work_before_the_call_is_timed():
    lazy = f"class Later(int):\n    pass\ndef f(n):\n    return Later(n)\n{GOLD.replace('def f', 'def g')}"
    report = attempt(lazy).report
    assert report
    assert report.measured is None  # not even correct: what comes back is plain data
    early = f"def g(n):\n{LOOP}    return s\ng(1_200_000)\ng(1_200_000)\ndef f(n):\n{LOOP}    return s\n"
    assert components(early, TIME)["latency"] == A_THIRD


def test_a_fast_program_that_knows_the_cases_only_earns_no_measure():
    table = f"T = {dict(enumerate(SUMS))}\ndef f(n): return T.get(n, 7)\n"
    report = attempt(table, TIME).report
    assert report
    assert [result.outcome for result in report.results] == [Outcome.PASSED] * 6
    assert report.measured
    assert report.measured.failed["latency"] == "wrong answer on performance input 1"
    found = components(table, TIME)
    assert (found["latency"], found["memory"], found["deviation"]) == (0.0, 0.0, 0.0)


def test_a_program_that_breaks_on_a_fresh_input_earns_no_measure():
    found = measured("def f(n):\n    while n > 9: pass\n" + GOLD.split("\n", 1)[1], TIME)
    assert found.failed["latency"].startswith("time_limit on performance input 1")


def test_a_wrong_program_is_not_measured():
    report = attempt("def f(n): return 0").report
    assert report
    assert report.measured is None


def test_memory_beside_the_golds():
    found = measured(f"def f(n):\n    held = bytearray(60_000_000)\n{LOOP}    return s\n", frozenset({"memory"}))
    assert found.peak_memory_bytes
    assert found.reference_peak_memory_bytes
    assert 55_000_000 < found.peak_memory_bytes - found.reference_peak_memory_bytes < 70_000_000


GROWTH = frozenset({"memory_growth"})


def test_memory_that_a_call_leaves_behind():
    kept = measured(f"kept = []\ndef f(n):\n    kept.append(b'x' * 200_000)\n{LOOP}    return s\n", GROWTH)
    assert kept.memory_growth_bytes == pytest.approx(200_000, rel=0.05)
    freed = measured(f"def f(n):\n    b'x' * 200_000\n{LOOP}    return s\n", GROWTH)
    assert freed.memory_growth_bytes is not None
    assert freed.memory_growth_bytes < 16_384


def test_a_program_that_cannot_be_called_again_earns_nothing_for_growth():
    once = "import os\ncalls = []\ndef f(n):\n    calls.append(n)\n    if len(calls) > 20: os._exit(0)\n"
    once += f"{LOOP}    return s\n"
    assert measured(once, GROWTH).failed["memory_growth"].startswith("runtime_error within")
    leak = f"kept = []\ndef f(n):\n    kept.append(b'x' * 20_000_000)\n{LOOP}    return s\n"
    assert measured(leak, GROWTH).failed["memory_growth"].startswith("memory_limit within")
    assert components(leak, GROWTH)["memory_growth"] == 0.0


STOPS = f"calls = []\ndef f(n):\n    calls.append(n)\n    if len(calls) > 6: return AFTER\n{LOOP}    return s\n"
# Right before it and after it.
SLIPS = f"calls = []\ndef f(n):\n    calls.append(n)\n    if len(calls) == 9: return -1\n{LOOP}    return s\n"


@pytest.mark.parametrize("program", [STOPS.replace("AFTER", after) for after in ("0", "None", "float(n)")] + [SLIPS])
def test_a_program_that_stops_working_after_some_calls_earns_nothing_for_growth(program: str):
    found = measured(program, GROWTH)
    assert found.failed["memory_growth"].startswith("wrong answer within ")
    assert found.memory_growth_bytes is None
    assert components(program, GROWTH)["memory_growth"] == 0.0


def test_repeated_calls_are_right_by_the_rules_of_the_check():
    near = Task("t", "p", Call("f", (Case("a", (3,), 1 / 3),), tolerance=Tolerance(absolute=1e-6)))
    drifts = "calls = []\ndef f(x):\n    calls.append(x)\n    return 1 / x + len(calls) * STEP\n"
    # A call adds at most 250 * 4 steps: 1e-7 in one, 1e-3 in the other.
    assert measured(drifts.replace("STEP", "1e-10"), GROWTH, near).failed == {}
    assert measured(drifts.replace("STEP", "1e-7"), GROWTH, near).failed["memory_growth"].startswith("wrong answer")
    checker = "def check(args, kwargs, returned): return returned in range(args[0])"
    any_of = Task("t", "p", Call("f", (Case("a", (1000,)),), checker=checker))
    draws = "import random\ndef f(n): return random.randrange(n + MORE)\n"
    found = measured(draws.replace("MORE", "0"), GROWTH, any_of)
    assert found.failed == {}
    assert found.memory_growth_bytes is not None
    assert found.memory_growth_bytes < 16_384
    late = "calls = []\ndef f(n):\n    calls.append(n)\n    return len(calls) if len(calls) < 7 else n\n"
    assert measured(late, GROWTH, any_of).failed["memory_growth"].startswith("wrong answer")


@pytest.mark.parametrize(
    ("program", "share"),
    [
        (GOLD, 1.0),
        # 5 of the 7 lines: two are of a branch that no case takes
        (f"def f(n):\n    if n > 10:\n        a = 1\n        return a\n{LOOP}    return s\n", 5 / 7),
        # a function nobody calls: its `def` runs, its one line does not; 5 of 6
        (f"def spare():\n    return 1\n{GOLD}", 5 / 6),
        ("def f(n):\n    return sum(i * i % 7\n        for i in range(n))\n", 1.0),
        ("from functools import cache\n@cache\ndef f(n):\n    return n and f(n - 1) + (n - 1) ** 2 % 7\n", 1.0),
        # lines of threads count, and what a call raises undoes nothing
        (f"import threading\nout = []\ndef g(n):\n{LOOP}    out.append(s)\n"
         "def f(n):\n    t = threading.Thread(target=g, args=(n,))\n    t.start()\n    t.join()\n"
         "    return out[-1]\n", 1.0),
    ],
)  # fmt: skip
def test_coverage_is_the_share_of_lines_that_the_cases_run(program: str, share: float):
    assert measured(program, frozenset({"coverage"})).coverage == pytest.approx(share)


def test_a_program_that_breaks_the_trace_covers_less_and_never_more():
    silent = "import sys\nsys.settrace(None)\n" + GOLD
    assert measured(silent, frozenset({"coverage"})).coverage == pytest.approx(2 / 6)  # its own first two lines
    exits = f"import os, sys\nif sys.gettrace(): os._exit(0)\n{GOLD}"
    assert measured(exits, frozenset({"coverage"})).coverage == 0.0
    forged = "import sys, types\ndef f(n):\n    frame = sys._getframe(1)\n    while frame:\n"
    forged += "        hit = frame.f_locals.get('hit')\n        if isinstance(hit, set): hit.update(range(999))\n"
    forged += f"        frame = frame.f_back\n{LOOP}    return s\n    return 1\n"
    assert measured(forged, frozenset({"coverage"})).coverage == 1.0  # as its description says


def test_arguments_of_any_nesting_travel_to_the_measures():
    deep: object = 1
    for _ in range(values.MAX_DEPTH - 2):
        deep = [deep]
    nested = Task("t", "p", Call("f", (Case("a", (deep,), 1),)))
    found = measured("def f(x): return 1", EVERY, nested)
    assert (found.coverage, found.failed, found.latency_s) == (1.0, {}, None)
    assert found.memory_growth_bytes is not None


def test_calls_for_growth_leave_arguments_as_they_were():
    popping = Task("t", "p", Call("f", (Case("a", ([1, 2],), 2),)))
    assert measured("def f(x): return x.pop()", GROWTH, popping).failed == {}
    assert _MOST > 2


def test_a_gold_that_gives_no_answer_is_the_graders_fault_and_no_zero():
    made = attempt(GOLD, TIME, replace(TASK, gold="def f(n): return 1 // (n < 9)"))
    assert made.report is None
    assert made.failure
    assert made.failure.outcome is Outcome.GRADER_ERROR
    assert "gold on performance input 1: runtime_error" in made.failure.message


LINE = "for i in range(n): s += i * i % 7\n"
PRINTS = f"n = int(input())\ns = 0\n{LINE}print(s)\n"


@pytest.mark.parametrize(
    ("program", "latency"),
    [
        (PRINTS, pytest.approx(0.85, abs=0.25)),
        (PRINTS.replace(LINE, 3 * LINE).replace("print(s)", "print(s // 3)"), A_THIRD),
        ("print({0: 0, 5: 9}.get(int(input()), 1))", 0.0),  # knows the cases only
    ],
)  # fmt: skip
def test_programs_that_print_are_measured_too(program: str, latency: float):
    cases = (StdioCase("a", "0\n", "0\n"), StdioCase("b", "5\n", "9\n"))  # 0 + 1 + 4 + 2 + 2
    asked = Task("t", "p", Stdio(cases), gold=PRINTS, performance=("1500000\n", "1500001\n", "1500002\n"))
    made = attempt(program, EVERY, asked).report
    assert made
    found = components_of(asked, Outcome.PASSED, made.results, made.measured, growth_bytes=1)
    assert found["latency"] == latency
    assert "coverage" not in found  # of functions only


def test_a_case_is_right_by_the_rules_of_its_check():
    near = Task(
        "t", "p", Call("f", (Case("a", (3,), 1 / 3),), tolerance=Tolerance(absolute=1e-6)),
        gold="def f(x): return 1 / x", performance=((7,), (11,)),
    )  # fmt: skip
    assert measured("def f(x): return 1 / x + 1e-7", TIME, near).failed == {}
    assert measured("def f(x): return 1 / x + (x > 3)", TIME, near).failed["latency"].startswith("wrong answer")
    checker = "def check(args, kwargs, returned): return returned ** 2 == args[0]"
    roots = Task(
        "t", "p", Call("f", (Case("a", (4,)),), checker=checker), gold="def f(x): return int(x ** 0.5)",
        performance=((9,), (16,)),
    )  # fmt: skip
    assert measured("def f(x): return -int(x ** 0.5)", TIME, roots).failed == {}
    assert measured("def f(x): return 2", TIME, roots).failed["latency"].startswith("wrong answer")


class LosesTheThird(Bubblewrap):
    """A host that goes away after the verdict, while the program is being measured."""

    made = 0

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        self.made += 1
        if self.made == 3:
            raise SandboxLost("the host went away", evidence="no route to it")
        return await super().create(request)


def test_a_host_that_fails_under_a_measure_is_no_zero():
    made = attempt(GOLD, TIME, sandbox=LosesTheThird())
    assert made.report is None
    assert made.failure
    assert made.failure.outcome is Outcome.SANDBOX_LOST


def test_what_a_measure_costs():
    began = time.monotonic()
    attempt("def f(n): return [0, 0, 1, 5, 7, 9][n]", frozenset({"coverage"}))
    assert time.monotonic() - began < 5
