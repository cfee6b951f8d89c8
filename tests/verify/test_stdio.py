# ruff: noqa: E501 - one program a line
"""The kind `stdio` in Python: what programs may do, what they are told, what a checker may say."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import Command, Result, SandboxRequest
from transforms.episode import MESSAGE_CHARS, CaseReport
from transforms.sources.kinds.stdio import Case, Stdio
from transforms.sources.languages import LANGUAGES
from transforms.sources.task import Task
from transforms.verify.calls import CheckerFailed
from transforms.verify.compile import Compiled, run_command, run_request
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=4, cpu_time_s=2, memory_mib=192, processes=24, output_kib=64, file_mib=4, disk_mib=8)
SUM = "print(sum(map(int, input().split())))"


def grade(program: str, *cases: Case, **check: Any) -> CaseReport:
    kind = Stdio(cases or (Case("a", "1 2\n", "3\n"), Case("b", "3 4\n", "7\n")), **check)
    return asyncio.run(run_check(Bubblewrap(), Task("t", "add", kind), program, SandboxRequest(limits=LIMITS)))


def outcomes(report: CaseReport) -> list[str]:
    return [str(result.outcome) for result in report.results]


# Each must end as under a `python3` of its own: the same output and the same exit status.
AS_COLD = {
    "streams": "import sys\nfor n in 'stdin', 'stdout', 'stderr':\n    s = getattr(sys, n); print(n, s.encoding, s.errors, s.line_buffering, s.name, s.mode, s.fileno(), s.isatty(), s.seekable(), s is getattr(sys, f'__{n}__'), s)",
    "globals": "import sys\nprint(sorted(globals()), __name__, __file__, sys.argv, sys.path[0], __annotations__, __doc__, __package__, __spec__)",
    "modules": "import sys\nprint([name for name in ('guest', 'guest_streams', 'launch', 'site_packages') if name in sys.modules], type(exit), type(help))",
    "input to the end": "while True:\n    try: print(input('? '))\n    except EOFError as end: print(end); break",
    "stdin loop": "import sys\nfor line in sys.stdin: print(repr(line))",
    "stdin read": "import sys\nprint(repr(sys.stdin.read()))",
    "stdin buffer": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])",
    "text and bytes": "import sys\nprint('a'); sys.stdout.flush(); sys.stdout.buffer.write(b'b\\n'); print('c')",
    "open(0), open(1) never closed": "out = open(1, 'w')\nout.write(open(0).read())",
    "os.read": "import os\nprint(os.read(0, 100)); os.write(1, b'first')",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(line.strip(), fileinput.lineno())",
    "own stdout": "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='latin-1')\nprint('\\xe9')",
    "exit": "print(1); exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit with a text": "import sys; sys.exit('bad')",
    "exit of 40 bits": "import sys; sys.exit(2**40 + 5)",
    "os._exit": "import os; print(1); os._exit(0)",
    "exit handlers": "import atexit, sys\natexit.register(print, 'bye'); atexit.register(sys.stdout.write, 'first')\nsys.exit(0)",
    "exit handler that fails": "import atexit\natexit.register(lambda: 1 / 0); print('x')",
    "thread goes on": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print('main')",
    "daemon thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(9), print('no')), daemon=True).start(); print('main')",
    "destructors": "class A:\n    def __del__(self): print('gone')\na = A(); b = A(); b.x = b\nprint('end')",
    "fork": "import os\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')",
    "process pool": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.Pool(2) as p: print(p.map(f, range(5)))",
    "spawned pool": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, range(5)))",
    "executors": "from concurrent.futures import *\nif __name__ == '__main__':\n    for kind in ThreadPoolExecutor, ProcessPoolExecutor:\n        with kind(2) as e: print(list(e.map(abs, range(3))))",
    "asyncio": "import asyncio\nasync def m(): await asyncio.sleep(0.01); print('a')\nasyncio.run(m())",
    "child reads stdin": "import subprocess; subprocess.run(['cat'])",
    "itself again": "import os, sys\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'x'])\nprint(sys.argv[1:], input())",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**6)\ndef g(n): return 0 if n == 0 else 1 + g(n - 1)\nprint(g(50000))",
    "recursion in a thread": "import sys, threading\nsys.setrecursionlimit(10**6); threading.stack_size(64 << 20)\ndef g(n): return 0 if n == 0 else 1 + g(n - 1)\nt = threading.Thread(target=lambda: print(g(30000))); t.start(); t.join()",
    "recursion at the limit": "def g(n): return 0 if n == 0 else 1 + g(n - 1)\nprint(g(996))",
    "order of a set": "print({'a', 'b', 'c', 'dd'}, hash('abc'))",
    "dataclass, pickle": "from dataclasses import dataclass\nimport pickle\n@dataclass(order=True)\nclass P:\n    x: int\nprint(pickle.loads(pickle.dumps(P(1))) < P(2))",
    "own source": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "main is here": "import __main__\nprint(__main__.__dict__ is globals())",
    "raises": "def f(x): return 1 / x\nprint('before')\nf(0)",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "group": "raise ExceptionGroup('a', [ValueError(1), TypeError(2)])",
    "killed": "import os\nprint('x', flush=True); os.kill(os.getpid(), 9)",
    "aborts": "import os; os.abort()",
    "lone surrogate": "print('\\ud800')",
    "closed stdout": "import os\nprint('x'); os.close(1)",
}  # fmt: skip


@pytest.mark.parametrize("group", range(4))
def test_a_program_runs_as_under_an_interpreter_of_its_own(group: int):
    python, stdin = LANGUAGES["python"], b"3\n1 2 3\nno line break at the end"

    async def run(source: str, *, cold: bool) -> tuple[int | None, int | None, bytes]:
        asked = run_request(python, Compiled({"main.py": source.encode()}), SandboxRequest(limits=LIMITS))
        async with await Bubblewrap().create(asked) as box:
            command = Command(("python3", f"{box.job}/main.py")) if cold else run_command(python, box, asked.limits)
            result: Result = await box.exec(replace(command, stdin=stdin))
            return result.exit_code, result.signal, result.stdout

    async def go() -> dict[str, tuple[object, object]]:
        both = {
            name: (await run(source, cold=False), await run(source, cold=True))
            for name, source in list(AS_COLD.items())[group::4]
        }
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    assert asyncio.run(go()) == {}


@pytest.mark.parametrize(
    ("program", "outcome", "words"),
    [
        (SUM, "passed", ""),
        ("print(3)", "failed_tests", "wrong output"),
        ("import time\ntime.sleep(60)", "time_limit", ""),
        ("", "failed_tests", "wrong output"),
        ("print(eval(input().replace(' ', '+')))\nraise ValueError('x')", "runtime_error", "exit code 1: ValueError: x"),
        ("import os\nprint(3, flush=True)\nos._exit(9)", "runtime_error", "exit code 9"),
        ("import ctypes\nctypes.string_at(0)", "runtime_error", "ended by signal 11"),
        ("print 3", "syntax_error", "SyntaxError: Missing parentheses"),
        ("if True:\nprint(3)", "syntax_error", "IndentationError: "),
        ("x = '\ud800'", "syntax_error", "SyntaxError: "),
        ("x = 1\0", "syntax_error", "source code string cannot contain null bytes"),
        ("(" * 500 + ")" * 500, "syntax_error", "SyntaxError: too many nested parentheses"),
        ("raise SyntaxError('made up')", "runtime_error", "exit code 1: SyntaxError: made up"),
        ("import os\ntry: os.write(3, b'\\0\\0\\0\\1x')\nexcept OSError: print(3)", "failed_tests", "wrong output"),
        ("while True: input", "time_limit", ""),
        ("x = [bytearray(1 << 20) for _ in range(1000)]", "memory_limit", ""),
        ("while True: print('y' * 1000)", "output_limit", ""),
        ("import sys\nwhile True: sys.stderr.write('y' * 1000)", "output_limit", ""),
        ("open('big', 'wb').write(bytes(6 << 20))", "disk_limit", ""),
        ("import os\nwhile True:\n    if os.fork() == 0: os.pause() if hasattr(os, 'pause') else __import__('time').sleep(60)", "process_limit", ""),
    ],
)  # fmt: skip
def test_what_a_program_comes_to(program: str, outcome: str, words: str):
    report = grade(program, Case("a", "1 4", "5"))
    assert outcomes(report) == [outcome]
    assert words in report.results[0].message
    assert report.usage.limits_enforced_by.startswith("cgroup")


def test_what_the_compiler_used_counts():
    source = "#include <bits/stdc++.h>\nint main() { long a, s = 0; while (std::cin >> a) s += a; std::cout << s; }"
    kind = Stdio((Case("a", "1 2\n", "3\n"),), "cpp")
    report = asyncio.run(run_check(Bubblewrap(), Task("t", "add", kind), source, SandboxRequest(limits=LIMITS)))
    assert outcomes(report) == ["passed"]
    # By hand: `g++` on all headers takes 0.5 s of CPU or more and over 100 MB; the program, milliseconds and 4 MB.
    assert report.results[0].duration_s < 0.2 < report.usage.cpu_s
    assert report.usage.wall_s > 0.2
    assert report.usage.peak_memory_bytes > 60 << 20


def test_where_it_went_wrong_is_told():
    (first, second) = grade("def f(x):\n    return 1 // (x - 1)\nprint(f(int(input()[0])))").results
    assert (first.location, first.message) == (
        "line 2 in f",
        "exit code 1: ZeroDivisionError: integer division or modulo by zero",
    )
    assert (second.location, second.got, second.expected_type) == (None, "0\n", "text")
    assert grade("x = 1\nx = = 2").results[0].location == "line 2"


def test_a_limit_broken_twice_is_not_broken_a_third_time():
    report = grade("while True: print('y' * 1000)", *(Case(str(number), "", "") for number in range(4)))
    assert outcomes(report) == ["output_limit"] * 4
    assert [result.message.startswith("not run") for result in report.results] == [False, False, True, True]


def test_nothing_travels_from_one_case_to_the_next():
    program = (
        "import os\nprint(sum(len(os.listdir(d)) for d in ('.', os.environ['TMPDIR'], '/dev/shm')))\n"
        + "\n".join(
            f"open({place}, 'w').close()"
            for place in ("'here'", "os.environ['TMPDIR'] + '/there'", "'/dev/shm/shared'")
        )
    )
    assert outcomes(grade(program, *(Case(str(number), "", "0") for number in range(3)))) == ["passed"] * 3


def test_a_child_that_holds_stdout_delays_nothing_and_adds_nothing():
    program = "import os, time\nprint(3, flush=True)\nif os.fork() == 0:\n    os.setsid(); time.sleep(0.5); print(4, flush=True); time.sleep(60)"
    began = time.monotonic()
    assert outcomes(grade(program, Case("a", "", "3"))) == ["passed"]
    assert time.monotonic() - began < LIMITS.wall_time_s


def test_bytes_go_in_and_out_as_they_are():
    everything = bytes(range(256)) * 4
    echo = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert outcomes(grade(echo, Case("a", everything, everything), compare="exact")) == ["passed"]
    (result,) = grade(echo, Case("a", everything, "x")).results
    assert str(result.outcome) == "failed_tests"
    assert result.got is not None
    assert len(result.got) == MESSAGE_CHARS
    result.got.encode()  # storable


def test_a_megabyte_goes_in_and_what_is_expected_may_come_out():
    text = "12345 " * 200_000
    assert outcomes(grade("print(input())", Case("a", text, text))) == ["passed"]
    assert outcomes(grade("print(input() * 2)", Case("a", text, text))) == ["output_limit"]


def test_arguments_reach_the_program():
    case = Case("a", "", "['-c', 'a b', '', 'ü']", argv=("-c", "a b", "", "ü"))
    assert outcomes(grade("import sys\nprint(sys.argv[1:])", case)) == ["passed"]


def test_only_visible_cases_say_what_was_expected():
    cases = [Case(tier, "", "one\nsecret", tier=tier) for tier in ("visible", "hidden", "integration")]
    visible, *others = grade("print('one\\ntwo')", *cases).results
    assert visible.message == "wrong output: line 2 is 'two' instead of 'secret'"
    assert [(other.message, other.got) for other in others] == [("wrong output", "one\ntwo\n")] * 2


CHECKER = "def check(stdin, stdout, expected):\n    a, b = map(int, stdout.split())\n    return a * b == int(stdin)"


@pytest.mark.parametrize(
    ("program", "checker", "outcome"),
    [
        ("print(2, 3)", CHECKER, "passed"),
        ("print(1, 6)", CHECKER, "passed"),
        ("print(2, 4)", CHECKER, "failed_tests"),
        ("print('x')", CHECKER, "failed_tests"),  # it raises, but not on what is expected
        ("print('x' * 60000)", CHECKER, "failed_tests"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", "def check(stdin, stdout, expected): return stdout == '\\udcff' or stdout == expected", "passed"),
        ("1 / 0", CHECKER, "runtime_error"),
    ],
)  # fmt: skip
def test_a_checker_judges(program: str, checker: str, outcome: str):
    report = grade(program, Case("a", "6", "2 3"), compare="checker", checker=checker)
    assert outcomes(report) == [outcome]


def test_an_output_that_a_checker_loops_on_is_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transforms.verify.stdio.CHECKER_LIMITS", LIMITS)
    checker = "def check(stdin, stdout, expected):\n    while stdout == 'loop\\n': pass\n    return True"
    assert outcomes(grade("print('loop')", Case("a", "", ""), compare="checker", checker=checker)) == ["failed_tests"]


@pytest.mark.parametrize(
    "checker",
    [
        "def check(stdin, stdout, expected): return 1",
        "def check(stdin, stdout, expected): return None",
        "def check(stdin, stdout, expected): raise ValueError",
        "def check(stdin, stdout, expected): import os; os._exit(0)",
        "def check(stdin, stdout): return True",
        "def check(stdin, stdout, expected): return object()",
    ],
)
def test_a_broken_checker_is_no_fault_of_the_program(checker: str):
    with pytest.raises(CheckerFailed, match="checker"):
        grade("print(2, 3)", Case("a", "6", "2 3"), compare="checker", checker=checker)


def test_a_checker_meets_no_file_or_process_of_the_program():
    program = "import os\nopen('mark', 'w').close(); open('/dev/shm/mark', 'w').close()\nif os.fork() == 0: __import__('time').sleep(60)\nprint(1)"
    checker = "import os\ndef check(stdin, stdout, expected):\n    return not os.listdir('.') and not os.listdir('/dev/shm') and len([p for p in os.listdir('/proc') if p.isdigit()]) < 6"
    assert outcomes(grade(program, Case("a", "", ""), compare="checker", checker=checker)) == ["passed"]
