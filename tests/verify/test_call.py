# ruff: noqa: E501 - one program a line
import asyncio
import dataclasses
import subprocess
import sys
import time

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import HostOutOfMemory, ProvisionFailed, SandboxError, SandboxRequest, Warm
from sandboxes.sandbox import GuestSandbox
from transforms.episode import CaseReport
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=3, memory_mib=128, processes=24, output_kib=64, file_mib=8)


def task(*cases: Case, entry_point: str = "f", prefix: str = "") -> Task:
    return Task("t", "write f", Call(entry_point, cases, prefix=prefix))


def plus_one(count: int = 3) -> Task:
    return task(*(Case(f"case {i}", (i,), i + 1) for i in range(count)))


def grade(
    program: str, asked: Task | None = None, limits: Limits = LIMITS, sandbox: Bubblewrap | None = None
) -> CaseReport:
    return asyncio.run(run_check(sandbox or Bubblewrap(), asked or plus_one(), program, SandboxRequest(limits=limits)))


def outcomes(report: CaseReport) -> list[str]:
    return [str(result.outcome) for result in report.results]


HONEST = {
    "plain": "def f(x): return x + 1",
    "prints": "def f(x):\n    print('debug', x, '\\udcff'.encode('utf-8', 'replace'))\n    return x + 1",
    "demo under main": "def f(x): return x + 1\nif __name__ == '__main__':\n    print(f(int(input())))",
    "future import": "from __future__ import annotations\ndef f(x: int) -> int: return x + 1",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    v: int\ndef f(x): return P(x).v + 1",
    "pickles itself": "import pickle\nclass P:\n    v = 1\ndef f(x): return x + pickle.loads(pickle.dumps(P())).v",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\ndef f(x):\n    with T(4) as t: return sum(t.map(int, [x, 1]))",
    "thread left": "import threading, time\ndef f(x):\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    return x + 1",
    "daemon left": "import os, time\ndef f(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(60)\n        os._exit(0)\n    return x + 1",
    "child process": "import subprocess\ndef f(x): return x + int(subprocess.run(['echo', '1'], capture_output=True).stdout)",
    "process pool": "import multiprocessing as m\ndef f(x):\n    with m.get_context('fork').Pool(2) as p: return sum(p.map(int, [x, 1]))",
    "temp file": "import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as t:\n        t.write(b'1'); t.seek(0)\n        return x + int(t.read())",
    "unreadable temp folder": "import os\ndef f(x):\n    os.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w').close(); os.chmod('/tmp/a/b', 0)\n    return x + 1",
    "recursion": "import sys\nsys.setrecursionlimit(10000)\ndef g(n): return 0 if n == 0 else 1 + g(n - 1)\ndef f(x): return x + g(3000) // 3000",
    "unicode": "def f(größe): return größe + 1  # 🎈",
    "BOM-less CRLF": "def f(x):\r\n\treturn x + 1\r\n",
    "catches everything": "def f(x):\n    try: raise SystemExit\n    except BaseException: return x + 1",
    "global state": "seen = []\ndef f(x):\n    seen.append(x)\n    return x + len(seen)",
    "closes fds": "import os\ndef f(x):\n    os.closerange(0, 3)\n    return x + 1",
    "own exit handler": "import atexit, os\natexit.register(os._exit, 3)\ndef f(x): return x + 1",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_pass(name: str):
    report = grade(HONEST[name])
    assert outcomes(report) == ["passed"] * 3, report


def test_every_plain_type_comes_back_and_arguments_may_be_changed():
    kinds = [
        None,
        True,
        2**200,
        -0.5,
        float("inf"),
        1j,
        "\ud800",
        b"\xff",
        [1, (2, {3})],
        {"a": {None: frozenset({1})}},
    ]
    cases = [Case(f"case {i}", ([kind],), kind, {"extra": kind}) for i, kind in enumerate(kinds)]
    nan = Case("nan", ([float("nan")],), float("nan"), {"extra": 0})
    program = "def f(box, *, extra): return box.pop()"
    assert outcomes(grade(program, task(*cases, nan))) == ["passed"] * 11


@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [
        ("def f(x): return x + 2", "failed_tests", "wrong value"),
        ("def f(x): return float(x + 1)", "failed_tests", "wrong type: returned float"),
        ("def f(x): return str(x + 1)", "failed_tests", "wrong type: returned str"),
        ("def f(x): return None", "failed_tests", "wrong type: returned NoneType"),
        ("def f(x): yield x + 1", "failed_tests", "wrong type: UnsupportedType: generator is not plain data"),
        ("def f(x) return x", "syntax_error", "SyntaxError: expected ':' (<solution>, line 1)"),
        ("print 'python 2'", "syntax_error", "SyntaxError: Missing parentheses in call to 'print'"),
        ("x = 1\0", "syntax_error", "source code string cannot contain null bytes"),
        ("(" * 10_000, "syntax_error", "SyntaxError: too many nested parentheses"),
        ("x = '\ud800'", "syntax_error", "surrogates not allowed"),
        ("def g(x): return x", "runtime_error", "NameError: the program defines no 'f'"),
        ("f = 3", "runtime_error", "TypeError: 'int' object is not callable"),
        ("def f(): return 1", "runtime_error", "TypeError: f() takes 0 positional arguments but 1 was given"),
        ("def f(x): return 1 // 0", "runtime_error", "ZeroDivisionError: integer division or modulo by zero"),
        ("import numpy_of_nobody", "runtime_error", "ModuleNotFoundError: No module named 'numpy_of_nobody'"),
        ("def f(x): return f(x)", "runtime_error", "RecursionError: maximum recursion depth exceeded"),
        ("def f(x): raise ValueError('x' * 10**6)", "runtime_error", "ValueError: xxx"),
        ("class E(Exception):\n    def __str__(s): raise KeyError\ndef f(x): raise E", "runtime_error", "E"),
        ("import ctypes\ndef f(x): ctypes.string_at(0)", "runtime_error", "the process ended by signal 11"),
    ],
)
def test_what_is_wrong_is_told(program: str, outcome: str, message: str):
    report = grade(program)
    assert outcomes(report) == [outcome] * 3, report
    assert message in report.results[0].message
    assert len(report.results[0].message) <= 300


@pytest.mark.parametrize("cgroups", [True, False])
@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("def f(x):\n    while True: pass", "time_limit"),
        ("import time\ndef f(x): time.sleep(1e6)", "time_limit"),
        ("import signal, time\nfor s in (1, 2, 3, 15, 24): signal.signal(s, signal.SIG_IGN)\ndef f(x):\n    while 1: time.sleep(1)", "time_limit"),
        ("def f(x):\n    l = []\n    while True: l.append('x' * 10**6)", "memory_limit"),
        ("def f(x): return len([0] * 10**12)", "memory_limit"),
        ("import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass", "process_limit"),
        ("import threading, time\ndef f(x):\n    for _ in range(99): threading.Thread(target=time.sleep, args=(9,)).start()", "process_limit"),
        ("def f(x):\n    while True: print('x' * 1000)", "output_limit"),
        ("import os\ndef f(x):\n    while True: os.write(2, b'x' * 4096)", "output_limit"),
        ("def f(x): return 'x' * 5_000_000", "output_limit"),
        ("def f(x):\n    v = [0]\n    for _ in range(60): v = [v, v]\n    return v", "output_limit"),
        ("def f(x): return open('/tmp/a', 'wb').write(bytes(20 << 20))", "disk_limit"),
        ("def f(x): return [open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(20)]", "disk_limit"),
    ],
    ids=["loop", "sleep", "deaf", "list", "huge list", "fork bomb", "threads", "stdout", "stderr", "big value", "web value", "big file", "many files"],
)  # fmt: skip
def test_limits_are_enforced_and_named_and_cost_a_bounded_time(program: str, outcome: str, cgroups: bool):
    sandbox = Bubblewrap(cgroups=cgroups)
    began = time.monotonic()
    limits = LIMITS.model_copy(update={"wall_time_s": 1.5})
    report = grade(program, plus_one(20), limits, sandbox)
    assert outcomes(report) == [outcome] * 20, report
    assert "not run" in report.results[2].message
    assert time.monotonic() - began < 12
    assert len(report.usage.stdout) + len(report.usage.stderr) <= 2 * 64 * 1024


def test_only_the_case_that_breaks_a_limit_pays_for_it():
    program = "def f(x):\n    while x == 1: pass\n    return x + 1"
    report = grade(program, plus_one(4), LIMITS.model_copy(update={"wall_time_s": 1.0}))
    assert outcomes(report) == ["passed", "time_limit", "passed", "passed"]
    assert report.results[1].duration_s == pytest.approx(1.0, abs=0.8)
    assert report.results[0].duration_s < 1.0


def test_equal_cases_each_get_their_own_result():
    same = Case("same", (1,), 2)
    assert [result.name for result in grade("def f(x): return x + 1", task(same, same)).results] == ["same", "same"]


def test_a_large_program_that_compiles_within_the_limits_is_run():
    program = "x = " + "(1, " * 60 + "1" + ")" * 60 + "\n" + "y = ((2 ** 64) ** 64)\n" * 3000 + "def f(x): return x + 1"
    assert outcomes(grade(program)) == ["passed"] * 3


LONG = "x = [" + "f(1), " * 400_000 + "]\n"  # one expression, as constant folding has bounds of its own


@pytest.mark.parametrize(
    ("program", "limits", "outcome"),
    [
        (LONG, {"wall_time_s": 0.2, "memory_mib": 1024}, "time_limit"),
        (LONG, {"cpu_time_s": 0.2, "memory_mib": 1024}, "time_limit"),
        (LONG, {"wall_time_s": 30, "cpu_time_s": 30, "memory_mib": 64}, "memory_limit"),
        ("x = " + "-" * 200_000 + "1", {}, "syntax_error"),
        ("x = 1" + " + 1" * 200_000, {}, "syntax_error"),
        ("x = a" + ".a" * 200_000, {}, "syntax_error"),
    ],
    ids=["wall time", "cpu time", "memory", "deep to parse", "deep to fold", "deep to compile"],
)
def test_a_program_that_cannot_be_compiled_within_the_limits_is_to_blame(
    program: str, limits: dict[str, float], outcome: str
):
    began = time.monotonic()
    report = grade(program + "\ndef f(x): return x + 1", plus_one(20), LIMITS.model_copy(update=limits))
    assert outcomes(report) == [outcome] * 20, report
    assert time.monotonic() - began < 12


def test_sandboxes_agree_on_hashes_and_on_the_order_of_sets():
    """What CPython says outside, started afresh with the hash seed 0, which the documentation promises to be stable."""
    expression = "(hash('a'), list({f'{i}' for i in range(50)}), list({b'x', None, 'y', 'z', frozenset({'a', 'b'})}))"
    told = subprocess.run(
        [sys.executable, "-c", f"print({expression})"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    asked = task(Case("c", (), eval(told.stdout)))
    for _ in range(2):
        assert outcomes(grade(f"def f(): return {expression}", asked)) == ["passed"]


def test_the_prefix_stands_before_the_program():
    asked = task(Case("c", (2,), 3.0), prefix="import math\nONE = 1")
    assert outcomes(
        grade("from __future__ import annotations\ndef f(x): return math.floor(x) + float(ONE)", asked)
    ) == ["passed"]


def test_messages_hold_no_expected_value():
    secret = "the-hidden-answer-4711"
    asked = task(Case("c", (1,), secret))
    for program in (
        "def f(x): return 'other'",
        "def f(x): return 1",
        "def f(x): raise KeyError(x)",
        "def f(x): return iter([])",
    ):
        report = grade(program, asked)
        assert secret not in repr(report)


def test_usage_covers_all_sandboxes_of_a_program():
    report = grade("def f(x):\n    while x < 2: print('x' * 100000)\n    return x + 1", plus_one(2))
    assert outcomes(report) == ["output_limit"] * 2
    assert report.usage.breach == "output_limit"
    assert report.usage.cpu_s > 0 or report.usage.limits_enforced_by == "rlimits"  # there in steps of 10 ms
    assert report.usage.wall_s > 0.002


def test_a_task_without_cases_is_refused():
    with pytest.raises(ValueError, match="no cases"):
        grade("def f(x): return 1", task())


class Failing(Bubblewrap):
    """Sandboxes whose host fails: real ones, with the failure put in."""

    def __init__(self, error: SandboxError | None = None, worker: bytes = b"") -> None:
        super().__init__()
        self.error = error
        self.worker = worker

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        if self.error is not None:
            raise self.error
        return await super().create(dataclasses.replace(request, warm=Warm(files=(("worker.py", self.worker),))))


def test_a_host_failure_passes_through():
    with pytest.raises(HostOutOfMemory):
        grade("def f(x): return 1", sandbox=Failing(HostOutOfMemory("full", evidence="1 killed")))


@pytest.mark.parametrize(
    "worker", [b"", b"raise SystemExit('no')", b"import nowhere", b"import os; os.kill(os.getpid(), 9)"]
)
def test_a_worker_that_does_not_start_is_provision_failed(worker: bytes):
    with pytest.raises(ProvisionFailed):
        grade("def f(x): return x + 1", sandbox=Failing(worker=worker))


def test_results_are_plain_records():
    report = grade("def f(x): return x + 1")
    assert dataclasses.asdict(report)["results"][0]["name"] == "case 0"
