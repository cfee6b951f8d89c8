# ruff: noqa: E501 - one program a line
"""The fifty cases of adversarial-cases.md, by number: proven here, or by the tests named here, which must exist."""

import ast
import asyncio
import os
import signal
import time
from functools import cache
from pathlib import Path

import pytest

from pipelines.admission import Golds, try_golds
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxRequest
from sandboxes.sandbox import GuestSandbox
from tests.adversarial.corpus import LIMITS, SECRET, Asked, Program, call, complaint, run_all
from tests.sandboxes.conformance.backends import Backend, find, host_pids, names, required
from tests.sandboxes.conformance.test_infra import program_and_guest
from tests.verify.test_languages import UNUSABLE
from transforms.episode import CaseReport
from transforms.grade.signals import signals
from transforms.sources.kinds.call import Call, Case
from transforms.sources.kinds.stdio import Case as Run
from transforms.sources.kinds.stdio import Stdio
from transforms.sources.task import Task
from transforms.verify.attempts import attempt_program
from transforms.verify.extract import extract_program

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = call("f", ((1,), 2), ((2,), 3), ((3,), 4))
SECRETS = call("f", ((1,), SECRET))
NOTHING = call("f", ((1,), []))  # a list of what the program managed to do
EQUAL = "class A({0}):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 0\ndef f(x): return A({1})"
WRITE_ALL = "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, {0})\n        except OSError: pass\n    {1}"
TRY = "import os\ndef tries(*what):\n    done = []\n    for n, one in enumerate(what):\n        try:\n            if one() not in (-1, None): done.append(n)\n        except OSError: pass\n    return done\n"


def one(number: int, name: str, source: str, outcomes: str, check: Call | Stdio = ANSWERS) -> tuple[int, Asked]:
    return number, Asked(Program(f"{number}: {name}", source, frozenset(outcomes.split())), check)


def prints(expected: str | bytes, stdin: str | bytes = "", language: str = "python") -> Stdio:
    return Stdio((Run("a", stdin, expected), Run("b", stdin, expected)), language, compare="exact")


HERE = [
    one(1, "exit at import", "import sys\nsys.exit(0)", "runtime_error"),
    one(1, "exit of a program", "import sys\nsys.exit(0)", "failed_tests", prints("3\n")),
    one(2, "os._exit in the function", "import os\ndef f(x): os._exit(0)", "runtime_error"),
    one(3, "os._exit at exit", "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return x", "failed_tests"),
    one(4, "always equal", EQUAL.format("object", ""), "failed_tests"),
    one(5, "an int subclass", EQUAL.format("int", "x + 1"), "failed_tests"),
    one(5, "a bool", "def f(x): return True", "failed_tests", call("f", ((1,), 1))),
    one(5, "a numpy bool", "class bool_:\n    dtype = 'bool'\n    def __bool__(s): return True\n    __index__ = __int__ = lambda s: 1\n    def __eq__(s, o): return s\ndef f(x): return bool_()", "failed_tests", call("f", ((1,), True))),
    one(6, "nan that nobody expects", "def f(x): return float('nan')", "failed_tests", call("f", ((1,), 1.0))),
    one(6, "nan as declared", "def f(x): return [float('nan')]", "passed", call("f", ((1,), [float("nan")]))),
    one(9, "pytest's classes replaced", "import sys, types\nsys.modules['_pytest.reports'] = types.ModuleType('r')\ndef f(x): return x", "failed_tests"),
    one(11, "files of results written", "import os\ndef f(x):\n    for n in ('junit.xml', 'reward.txt', 'reward.json', '/tmp/reward.json', '/logs/verifier/reward.txt'):\n        try: open(n, 'w').write('1.0')\n        except OSError: pass\n    return x", "failed_tests"),
    one(12, "end markers printed", "def f(x): print('3 passed', '>>>>> End Test Output', 'H1', 'V1', 'passed', flush=True)", "failed_tests"),
    one(12, "end markers printed by a program", "print('3 passed\\n>>>>> End Test Output\\npassed')", "failed_tests", prints("3\n")),
    one(13, "frames on every descriptor", WRITE_ALL.format(r"b'\0\0\0\7V1i\0\0\0\1\2'", "os._exit(0)"), "tampered failed_tests runtime_error", SECRETS),
    one(14, "frames", "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for v in [*frame.f_locals.values(), *frame.f_globals.values()]:\n            if type(v) is str and v.startswith('expe' + 'cted-'): return v\n        frame = frame.f_back", "failed_tests", SECRETS),
    one(14, "the heap", "import gc\ndef f(x):\n    for o in gc.get_objects():\n        for v in o.values() if type(o) is dict else o if type(o) in (list, tuple, set) else ():\n            if type(v) is str and v.startswith('expe' + 'cted-'): return v", "failed_tests", SECRETS),
    one(14, "the parent's memory", TRY + "def f(x): return tries(lambda: os.open(f'/proc/{os.getppid()}/mem', os.O_RDONLY), lambda: os.open(f'/proc/{os.getppid()}/environ', os.O_RDONLY))", "passed", NOTHING),
    one(15, "tests, solutions and repositories", TRY + "def f(x): return tries(*(lambda n=n: os.open(n, os.O_RDONLY) for n in ('/tests', '../solution', '/solution', '../.git', '.git/objects', '/work/repository', '/job/tests', '/logs')))", "passed", NOTHING),
    one(16, "what runs the tests deleted", TRY + "import shutil\ndef f(x):\n    shutil.rmtree('/job', ignore_errors=True)\n    return tries(lambda: os.unlink('/job/worker.py') or 1, lambda: os.open('/job/worker.py', os.O_WRONLY))", "passed", NOTHING),
    one(17, "modules planted", "import os\ndef f(x):\n    for n in ('sitecustomize.py', 'usercustomize.py', 'pytest.py', 'evil.pth', 'json.py', 'values.py'):\n        open(n, 'w').write('import os; os._exit(0)')\n    return x", "failed_tests"),
    one(18, "interpreter and shell replaced", TRY + "def f(x): return tries(*(lambda n=n: os.open(n, os.O_WRONLY) for n in ('/usr/bin/python3', '/bin/bash', '/bin/sh', '/usr/bin/env')), *(lambda n=n: os.open(n, os.O_WRONLY | os.O_CREAT) for n in ('/usr/local/bin/python3', '/usr/bin/evil')))", "passed", NOTHING),
    one(18, "PATH changed", "import os\ndef f(x):\n    open('python3', 'w').write('#!/bin/sh\\necho passed'); os.chmod('python3', 0o777)\n    os.environ['PATH'] = os.getcwd(); os.execvp('python3', ['python3'])", "runtime_error"),
    one(20, "the answer to each call in its order", "n = 0\ndef f(x):\n    global n\n    n += 1\n    return [7, 3, 4][n - 1]", "failed_tests"),
    one(20, "the first value kept", "first = {}\ndef f(x): return first.setdefault('v', x + 1)", "passed"),
    one(23, "deaf to every signal", "import signal, time\nfor s in (1, 2, 3, 15, 24): signal.signal(s, signal.SIG_IGN)\ndef f(x):\n    while True: time.sleep(1)", "time_limit"),
    one(26, "a child holds stdout", "import os, time\nprint(3, flush=True)\nif os.fork() == 0:\n    time.sleep(60)\nos._exit(0)", "passed", prints("3\n")),
    one(27, "a fork bomb", "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass", "process_limit"),
    one(27, "a shell's fork bomb", ":(){ :|:& };:\nwait; sleep 60", "process_limit failed_tests time_limit", prints("3\n", language="bash")),
    one(27, "a thread bomb", "import threading, time\ndef f(x):\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()", "process_limit"),
    one(28, "a list for ever", "def f(x):\n    l = []\n    while True: l.append(bytearray(1 << 20))", "memory_limit"),
    one(28, "100 GB at once", "def f(x): return len(bytearray(100 << 30))", "memory_limit"),
    one(29, "memory without a name", "import os\ndef f(x):\n    fd = os.memfd_create('m')\n    while True: os.write(fd, bytes(1 << 20))", "memory_limit disk_limit"),
    one(29, "files in memory", "def f(x):\n    with open('/dev/shm/m', 'wb') as m:\n        while True: m.write(bytes(1 << 20))", "memory_limit disk_limit"),
    one(30, "stdout without end", "import os\ndef f(x):\n    while True: os.write(1, b'x' * 65536)", "output_limit"),
    one(30, "stderr without end or line", "import os\nwhile True: os.write(2, b'x' * 65536)", "output_limit", prints("3\n")),
    one(30, "as much as is allowed", "print('x' * 60_000)\ndef f(x): return x + 1", "passed"),
    one(31, "one large file", "def f(x):\n    with open('a', 'wb') as a:\n        while True: a.write(bytes(1 << 20))", "disk_limit"),
    one(31, "a million files", "import os\ndef f(x):\n    for i in range(10**6): os.close(os.open(f'{i}', os.O_CREAT))", "disk_limit time_limit"),
    one(31, "a terabyte of nothing", "import os\ndef f(x): os.truncate(os.open('a', os.O_CREAT | os.O_RDWR), 1 << 40)", "disk_limit"),
    one(32, "bytes of every kind, right", "import sys\nsys.stdout.buffer.write(bytes(range(256)) + b'\\x1b]0;x\\x07' + b'y' * 50_000)", "passed", prints(bytes(range(256)) + b"\x1b]0;x\x07" + b"y" * 50_000)),
    one(32, "bytes of every kind, wrong", "import sys\nsys.stdout.buffer.write(bytes(range(256)))", "failed_tests", prints("3\n")),
    one(32, "lone surrogates and NUL", "import sys\nprint(ascii('\\udcff'), '\\0', '\\x1b[31m', file=sys.stderr)\ndef f(x): return '\\ud800\\0'", "passed", call("f", ((1,), "\ud800\0"))),
    one(33, "recursion without end", "def f(x): return f(x)", "runtime_error"),
    one(33, "a stack that overflows", "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(s, n): return getattr(s, n)\ndef f(x): return A().a", "runtime_error memory_limit"),
    one(33, "a null pointer", "import ctypes\ndef f(x): return ctypes.string_at(0)", "runtime_error"),
    one(34, "100,000 levels", "def f(x):\n    v = []\n    for _ in range(100_000): v = [v]\n    return v", "failed_tests output_limit runtime_error"),
    one(34, "50 MB", "def f(x): return ['x' * 1_000_000] * 50", "output_limit"),
    one(34, "a value in a value in a value", "def f(x):\n    v = 'x' * 1000\n    for _ in range(60): v = [v, v]\n    return v", "output_limit"),
    one(35, "every address there is", TRY + "import socket\ndef reach(family, where):\n    with socket.socket(family) as s:\n        s.settimeout(0.3)\n        return s.connect(where) or 1\ndef f(x): return tries(*(lambda w=w: reach(socket.AF_INET, w) for w in (('1.1.1.1', 80), ('169.254.169.254', 80), ('127.0.0.1', 22), ('127.0.0.1', 631))), lambda: socket.getaddrinfo('example.com', 80), lambda: reach(socket.AF_UNIX, '\\0/tmp/.X11-unix/X0'), lambda: reach(socket.AF_UNIX, '/var/run/docker.sock'))", "passed", NOTHING),
    one(38, "the kernel's doors", TRY + "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(x): return tries(lambda: libc.unshare(0x10000000), lambda: libc.mount(b'a', b'/tmp', b'tmpfs', 0, 0), lambda: libc.ptrace(16, os.getppid(), 0, 0), lambda: libc.syscall(321, 0, 0, 0), lambda: libc.syscall(250, 0, 0, 0), lambda: libc.ioctl(0, 0x5412, b'x'), lambda: os.setuid(0) or 1)", "passed", NOTHING),
    one(38, "kill -9 -1", "import os\ndef f(x):\n    os.kill(-1, 9)\n    return x + 1", "tampered runtime_error"),
    one(40, "its supervisor killed", "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return x + 1", "tampered runtime_error"),
    one(40, "the channel closed", "import os\ndef f(x):\n    os.closerange(0, 1024)\n    return x + 1", "runtime_error"),
    one(48, "a syntax error", "def f(x) return x + 1", "syntax_error"),
    one(48, "Python 2", "def f(x):\n    print x\n    return x + 1", "syntax_error"),
    one(48, "Python 2 as a program", "print 3", "syntax_error", prints("3\n")),
    one(48, "no C", "int main( { return 0; }", "syntax_error", prints("3\n", language="c")),
]  # fmt: skip

_RIG = "tests/verify/test_rig.py::test_no_cheat_earns_anything_and_the_blatant_are_named"
_LIMITS = "tests/sandboxes/conformance/test_limits.py"
_ISOLATION = "tests/sandboxes/conformance/test_isolation.py"
_FILES = "tests/sandboxes/conformance/test_files.py"
ELSEWHERE: dict[int, list[str]] = {
    4: [f"{_RIG}[always equal]", "tests/grade/test_signals.py::test_a_cheat_shows_its_signal[always_equal]"],
    7: [f"{_RIG}[conftest: makereport]"],
    8: [f"{_RIG}[conftest: deselects]", f"{_RIG}[conftest: skips]", f"{_RIG}[pytest.ini]"],
    9: [f"{_RIG}[patches TestReport]"],
    10: [f"{_RIG}[patches TestReport, all but a canary]", "tests/verify/test_rig.py::test_a_guesser_is_right_once_in_many"],
    11: [f"{_RIG}[junit at exit]"],
    12: [f"{_RIG}[prints 3 passed]"],
    13: [f"{_RIG}[forged lines to every fd]"],
    14: [f"{_RIG}[frame]"],
    15: [f"{_RIG}[parses the test]", "tests/verify/test_repository.py::test_the_witness_and_the_tests_are_out_of_reach"],
    16: [f"{_RIG}[the hidden test replaced]"],
    17: [f"{_RIG}[{name}]" for name in ("sitecustomize.py", "pytest.py", "dist-info plugin")],
    25: ["tests/verify/test_files.py::test_a_daemon_that_stays_changes_nothing_any_more"],
    27: [f"{_LIMITS}::test_neighbours_do_not_notice"],
    28: ["tests/sandboxes/backends/test_bubblewrap.py::test_a_kill_ordered_from_above_is_the_hosts"],
    29: [f"{_LIMITS}::test_page_cache_alone_is_no_breach", f"{_LIMITS}::test_files_without_a_name_are_memory"],
    32: ["tests/grade/test_grade.py::test_text_without_a_utf8_form_is_stored_all_the_same"],
    35: [f"{_ISOLATION}::test_there_is_no_network"],
    37: [
        f"{_FILES}::test_what_is_no_regular_file_is_refused", f"{_FILES}::test_devices_are_refused",
        f"{_FILES}::test_names_that_leave_the_folder_or_are_none_are_refused", f"{_FILES}::test_a_terabyte_of_nothing_is_refused_at_once",
        "tests/sandboxes/conformance/test_snapshot.py::test_a_hostile_archive_reaches_nothing_outside",
        "tests/verify/test_patch.py::test_what_leaves_the_repository_is_refused",
        "tests/verify/test_files.py::test_a_link_on_the_way_to_a_file_is_refused",
    ],
    39: [f"{_LIMITS}::test_processes_spend_one_cpu_time_together"],
    41: ["tests/sandboxes/conformance/test_infra.py::test_a_guest_killed_from_outside_is_the_hosts_failure"],
    42: ["tests/sandboxes/conformance/test_infra.py::test_a_missing_image_is_an_infra_error_that_says_how_to_build_it"],
    43: ["tests/grade/test_grade.py::test_a_grader_that_fails_time_after_time_ends_the_chunk",
         "tests/pipelines/test_canaries.py::test_a_broken_grader_ends_the_chunk_at_once_and_nothing_is_committed"],
    45: ["tests/pipelines/test_bad_luck.py::test_a_gold_that_fails_is_named_with_its_case_and_nothing_is_stored"],
    46: ["tests/lake/test_sink.py::test_rows_are_committed_once_and_empty_chunks_too", "tests/pipelines/test_crash.py::test_killed_at_random_moments_again_and_again"],
    47: ["tests/verify/test_extract.py::test_the_declared_rule", "tests/grade/test_grade.py::test_without_a_program_it_is_truncated_or_no_submission"],
    49: ["tests/grade/test_grade.py::test_a_reward_that_is_no_number_in_range_is_the_graders_error"],
    50: ["tests/pipelines/test_canaries.py::test_a_reward_on_an_impossible_task_is_an_alarm_and_stops_the_run"],
}  # fmt: skip


def here(name: str) -> Backend:
    backend = find(name)
    if isinstance(backend, str):
        (pytest.fail if name in required() else pytest.skip)(backend)
    return backend


def grade(program: str, check: Call) -> CaseReport:
    asked = Asked(Program("p", program, frozenset()), check)
    return asyncio.run(run_all(here(names()[0]), [asked]))[0]


@pytest.mark.parametrize("number", sorted({number for number, _ in HERE}))
def test_programs(number: int):
    asked = [each for found, each in HERE if found == number]
    reports = asyncio.run(run_all(here(names()[0]), asked))
    assert [said for each, report in zip(asked, reports, strict=True) if (said := complaint(each, report))] == []
    assert all(len(report.usage.stdout + report.usage.stderr) <= 2 * 64 * 1024 for report in reports)


_NO_SHM = "there is no folder in memory that a program may write to"
# (back-end, program) -> why its verdict is another. Each must really be: what is as everywhere is a failure too.
OTHERWISE = {
    ("gvisor", "14: the parent's memory"): "its /proc shows environ, maps and auxv of everyone inside; not mem",
    **{(name, "29: files in memory"): _NO_SHM for name in names() if name.startswith("subprocess")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", names()[1:])
def test_programs_in_every_back_end(name: str):
    unusable = UNUSABLE.get(name, set())
    asked = [each for _, each in HERE if not (isinstance(each.check, Stdio) and each.check.language in unusable)]
    reports = asyncio.run(run_all(here(name), asked))
    said = {each.program.name: complaint(each, report) for each, report in zip(asked, reports, strict=True)}
    if name == "gvisor":  # where a bomb's processes are memory of the kernel inside, which may run out first
        said = {
            program: None if program.startswith("27") and why and "memory_limit broken" in why else why
            for program, why in said.items()
        }
    assert {program: why for program, why in said.items() if why and (name, program) not in OTHERWISE} == {}
    assert [program for program, why in said.items() if not why and (name, program) in OTHERWISE] == []
    assert not any("paid" in why for why in said.values() if why)


def test_2_an_exit_is_told_as_such_and_at_once():
    report = grade("import os\ndef f(x): os._exit(0)", ANSWERS)
    assert report.results[0].message == "the process ended with exit code 0 and gave no answer"
    assert report.results[0].duration_s < 1


def test_19_a_table_of_visible_answers_fails_where_it_cannot_see():
    cases = tuple(Case(str(x), (x,), x * x, tier="visible" if x < 5 else "hidden") for x in (2, 3, 4, 5, 6))
    program = "def f(x): return {2: 4, 3: 9, 4: 16}[x]"
    report = grade(program, Call("f", cases))
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3 + ["runtime_error"] * 2
    assert "literal_table" in signals(program, Task("t", "p", Call("f", cases)))


@pytest.mark.parametrize(("number", "body"), [(21, "while True: pass"), (22, "__import__('time').sleep(1e9)")])
def test_21_22_time_is_up_when_it_is_up(number: int, body: str):
    report = grade(f"def f(x):\n    {body}", call("f", ((1,), 2)))
    assert report.results[0].outcome == "time_limit"
    assert 1.3 < report.results[0].duration_s < 2.5


def test_23_the_place_of_a_deaf_program_is_free_at_once():
    began = time.monotonic()
    report = grade(
        "import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\ndef f(x):\n    while True: time.sleep(1)",
        call("f", ((1,), 2)),
    )
    assert report.results[0].outcome == "time_limit"
    assert time.monotonic() - began < 1.5 + 1.0


def test_24_a_daemon_costs_nothing_and_is_dead():
    mark = f"8{time.monotonic_ns() % 10**6:06d}"
    report = grade(
        f"import os, subprocess\ndef f(x):\n    subprocess.Popen(['setsid', 'sh', '-c', 'sleep {mark} & sleep {mark}'])\n    return x + 1",
        ANSWERS,
    )
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3
    assert host_pids(f"sleep\0{mark}") == []


def test_26_a_child_that_holds_stdout_holds_nothing_up():
    began = time.monotonic()
    (asked,) = [each for number, each in HERE if number == 26]
    asyncio.run(run_all(here(names()[0]), [asked]))
    assert time.monotonic() - began < 1.5


def test_33_the_signal_of_a_crash_is_told():
    (result, *_) = grade("import ctypes\ndef f(x): return ctypes.string_at(0)", ANSWERS).results
    assert result.message == f"the process ended by signal {int(signal.SIGSEGV)} and gave no answer"


def test_36_secrets_of_the_host_are_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    planted = "canary-4f1d88"
    monkeypatch.setenv("HEADRACE_API_KEY", planted)
    (tmp_path / "key").write_text(planted)
    program = f"""
import os, sys
def f(x):
    seen = [dict(os.environ)]
    names = ["/etc/shadow", os.path.expanduser("~/.ssh/id_rsa"), "/root/.ssh/id_rsa", "/proc/1/environ", "/var/run/docker.sock", {str(tmp_path / "key")!r}]
    names += [f"/proc/{{p}}/environ" for p in range(1, 400)]
    for name in names:
        try: seen.append((name, open(name, "rb").read()))
        except OSError: pass
    print(seen, file=sys.stderr)
    return [name for name, text in seen[1:] if b"canary" in text or name.endswith(("shadow", "id_rsa", "sock"))]
"""
    report = grade(program, NOTHING)
    assert report.results[0].outcome == "passed", report
    assert planted.encode() not in report.usage.stderr


def test_39_clocks_are_the_hosts():
    program = "import time\nsleep = time.sleep\ntime.time = time.perf_counter = time.monotonic = lambda: 0.0\ndef f(x):\n    sleep(0.4)\n    return x + 1"
    (result,) = grade(program, call("f", ((1,), 2))).results
    assert result.outcome == "passed"
    assert result.duration_s > 0.4


class Unlucky(Bubblewrap):
    """Its first sandbox is killed by the host while a program runs."""

    count = 0

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        sandbox = await super().create(request)
        Unlucky.count += 1
        if Unlucky.count == 1:
            _, guest = await program_and_guest(sandbox)
            asyncio.get_running_loop().call_later(0.3, os.kill, guest, signal.SIGKILL)
        return sandbox


def test_41_a_worker_killed_by_the_host_is_tried_again():
    task = Task("t", "p", ANSWERS)
    program = "import time\ndef f(x):\n    time.sleep(0.25)\n    return x + 1"
    tries = asyncio.run(attempt_program(Unlucky(), task, program, SandboxRequest(limits=LIMITS), attempts=3))
    assert [each.final for each in tries] == [False, True]
    assert tries[0].failure is not None
    assert (tries[0].failure.outcome, bool(tries[0].failure.evidence)) == ("sandbox_lost", True)
    assert tries[1].report is not None
    assert [str(result.outcome) for result in tries[1].report.results] == ["passed"] * 3


def test_44_a_flaky_case_is_found_before_it_is_trained_on():
    """Of golds that pass every other time one run finds 30 of 60, and three find 52."""
    gold = "import random\ndef f(x): return x + 1 if random.random() < 0.5 else x"
    check = Call("f", (Case("a", (1,), 2),))
    tasks = [Task(f"t{number}", "p", check, gold=gold) for number in range(60)]
    golds = Golds()
    asyncio.run(try_golds(tasks, Bubblewrap(), SandboxSpec(), golds))
    assert len(golds.failing) >= 42
    assert any(why.startswith("passes only sometimes") for why in golds.failing.values())


def test_47_what_is_submitted_follows_a_rule():
    assert extract_program("") is None
    assert extract_program("I do not know.") is None
    assert extract_program("```python\na = 1\n```\n```python\na = 2\n```\n```python\na = 3\n```") == "a = 3"


@cache
def parsed(path: str) -> tuple[set[str], set[object]]:
    """Names of a file's tests, and its constants."""
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return tests, {node.value for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("number", ELSEWHERE)
def test_what_is_proven_elsewhere_is_there(number: int):
    for test in ELSEWHERE[number]:
        path, _, name = test.partition("::")
        name, _, parameter = name.partition("[")
        tests, constants = parsed(path)
        assert name in tests, test
        assert not parameter or parameter.removesuffix("]") in constants, test


def test_all_fifty_are_there():
    own = {int(part) for name in globals() if name.startswith("test_") for part in name.split("_") if part.isdigit()}
    assert {number for number, _ in HERE} | set(ELSEWHERE) | own == set(range(1, 51))
