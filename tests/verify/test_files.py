# ruff: noqa: E501 - one program a line
import asyncio
import time

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport
from transforms.sources.kinds.files import Artifact, Case, Files
from transforms.sources.kinds.trees import Item
from transforms.sources.task import Task
from transforms.verify.documents import Differs, compare_json, compare_table, compare_text
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=3, memory_mib=128, processes=24, output_kib=64, file_mib=4, disk_mib=8)


def grade(program: str, check: Files, limits: Limits = LIMITS) -> CaseReport:
    return asyncio.run(run_check(Bubblewrap(), Task("t", "p", check), program, SandboxRequest(limits=limits)))


def verdict(program: str, check: Files, limits: Limits = LIMITS) -> tuple[str, str]:
    (result,) = grade(program, check, limits).results
    return str(result.outcome), result.message


def leaves(*expected: Artifact, language: str = "python", **case: object) -> Files:
    return Files((Case("c", expected, **case),), language)  # ty: ignore[invalid-argument-type]


NINE = leaves(Artifact("out", "text", "9"))
RIGHT = "open('out', 'w').write('9')\n"


@pytest.mark.parametrize(
    "program",
    [
        RIGHT,
        "open('out', 'w').write('9  \\r\\n\\n \\n')",
        "import os\nopen(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'out'), 'w').write('9')",
        "import os\nopen('t', 'w').write('9'); os.rename('t', 'out')",
        "import os\nopen('a', 'w').write('9'); os.link('a', 'out')",
        "import os\nos.mkfifo('undeclared'); os.symlink('/', 'l'); os.mkdir('d', 0)\n" + RIGHT,
        "import socket\nsocket.socket(socket.AF_UNIX).bind('s')\n" + RIGHT,
        "import os\n" + RIGHT + "os.chmod('out', 0); os.chmod('.', 0)",
        "import os\n" + RIGHT + "os.remove('main.py')",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', \"open('out', 'w').write('9')\"])",
        "import threading\nthreading.Thread(target=lambda: open('out', 'w').write('9')).start()",
        "import atexit\natexit.register(lambda: open('out', 'w').write('9'))",
        "print('debug')\n" + RIGHT + "raise SystemExit",
    ],
)
def test_programs_that_leave_the_file_pass(program: str):
    assert verdict(program, NINE) == ("passed", "")


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        time.sleep({wait})
        open('out', 'w').write('{late}')
        while True: time.sleep(1)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [
        ("pass", "failed_tests", "out is missing"),
        ("open('out', 'w').write('8')", "failed_tests", "out: line 1 is wrong"),
        ("open('out', 'w').write('9\\n9')", "failed_tests", "out has too many lines"),
        ("open('out', 'w')", "failed_tests", "out has not enough lines: 0"),
        ("open('out', 'wb').write(b'9\\xff')", "failed_tests", "out is not UTF-8: byte 2"),
        ("import os\nos.mkdir('out')", "failed_tests", "out is a folder"),
        ("import os\nos.symlink('/etc/passwd', 'out')", "policy_violation", "out is no regular file"),
        ("import os\nopen('t', 'w').write('9'); os.symlink('t', 'out')", "policy_violation", "out is no regular file"),
        ("import os\nos.mkfifo('out')", "policy_violation", "out is no regular file"),
        ("import socket\nsocket.socket(socket.AF_UNIX).bind('out')", "failed_tests", "out is missing"),
        (RIGHT + "raise SystemExit(3)", "runtime_error", "exit code 3"),
        (RIGHT + "1 / 0", "runtime_error", "ZeroDivisionError"),
        (RIGHT + "import os\nos.kill(os.getpid(), 11)", "runtime_error", "ended by signal 11"),
        (RIGHT + "x =", "syntax_error", "SyntaxError"),
        (RIGHT + "while True: pass", "time_limit", "time_limit broken"),
        (RIGHT + "import time\ntime.sleep(60)", "time_limit", "time_limit broken"),
        (RIGHT + "while True: print('y' * 1000)", "output_limit", "output_limit broken"),
        (RIGHT + "open('big', 'wb').truncate(1 << 40)", "disk_limit", "disk_limit broken"),
        (RIGHT + "while True: open(str(id(object())) + str(__import__('time').time_ns()), 'wb').write(bytes(1 << 20))", "disk_limit", ""),
        (RIGHT + "for i in range(200): open(str(i), 'wb').truncate(4 << 20)", "policy_violation", "the workspace could not be read"),
        (DAEMON.format(wait=0.5, late=9), "failed_tests", "out is missing"),
    ],
)  # fmt: skip
def test_others_do_not_and_it_is_said_why(program: str, outcome: str, message: str):
    began = time.monotonic()
    came, why = verdict(program, NINE)
    assert came == outcome
    assert message in why
    assert time.monotonic() - began < 8


WATCHER = """
import os, pathlib
open('a', 'wb').write(bytes(3 << 20)); open('b', 'wb').write(bytes(3 << 20))  # read first, which takes a while
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        while True:
            for pid in os.listdir('/proc'):
                try:
                    if pid.isdigit() and 'tar' in open(f'/proc/{pid}/comm').read(): open('out', 'w').write('8')
                except OSError: pass
    os._exit(0)
"""


@pytest.mark.parametrize("daemon", [DAEMON.format(wait=0.3, late=8), WATCHER], ids=["waits", "watches for the reader"])
def test_a_daemon_that_stays_changes_nothing_any_more(daemon: str):
    assert verdict(RIGHT + daemon, NINE) == ("passed", "")


def test_a_link_on_the_way_to_a_file_is_refused():
    check = leaves(Artifact("out/passwd", "text", "x"), language="bash")
    assert verdict("ln -s /etc out", check) == ("policy_violation", "out is a link")
    assert verdict("mkdir out; echo x >out/passwd", check) == ("passed", "")


def test_inputs_arguments_and_standard_input_reach_the_program():
    check = leaves(
        Artifact("out", "bytes", b"\0\xff in bye 755\n"),
        language="bash",
        files={"a/in": Item(b"in"), "bin": Item(b"\0\xff", 0o755), "l": Item(link="a/in")},
        stdin="bye",
        argv=("a b", "out"),
    )
    script = '[ "$1" = "a b" ] && { cat bin; echo " $(cat l) $(cat) $(stat -c %a bin)"; } >"$2"'
    assert verdict(script, check) == ("passed", "")


def test_each_case_has_a_workspace_of_its_own():
    check = Files(tuple(Case(str(n), (Artifact("seen", "text", "1"),)) for n in range(3)), "bash")
    report = grade("echo x >>/tmp/all; wc -l </tmp/all >seen", check)
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3


def test_a_limit_broken_twice_ends_the_matter():
    check = Files(tuple(Case(str(n), (Artifact("out", "text", ""),)) for n in range(9)), "bash")
    report = grade("sleep 60", check, LIMITS.model_copy(update={"wall_time_s": 0.3}))
    assert {str(result.outcome) for result in report.results} == {"time_limit"}
    assert [result.message.startswith("not run") for result in report.results] == [False] * 2 + [True] * 7


def test_absence_and_exit_codes_and_modes():
    gone = leaves(
        Artifact("a", "absent"),
        Artifact("b", "text", "b", mode=0o4640),
        language="bash",
        files={"a": Item(b"a"), "b": Item(b"b")},
    )
    assert verdict("rm a; chmod 4640 b", gone) == ("passed", "")
    assert verdict("chmod 4640 b", gone) == ("failed_tests", "a is there")
    assert verdict("rm a; ln -s nowhere a; chmod 4640 b", gone) == ("failed_tests", "a is there")
    assert verdict("rm a; mkdir a; chmod 4640 b", gone) == ("failed_tests", "a is there")
    assert verdict("rm a; chmod 640 b", gone) == ("failed_tests", "b has another mode")
    three, some = (leaves(Artifact("a", "absent"), language="bash", exit_code=code) for code in (3, None))
    assert verdict("exit 3", three) == ("passed", "")
    assert verdict("exit 0", three) == ("failed_tests", "exit code 0")
    assert verdict("exit 4", three)[0] == "runtime_error"
    assert verdict("exit 4", some) == ("passed", "")
    assert verdict("kill -9 $$", some)[0] == "runtime_error"


@pytest.mark.parametrize(
    ("document", "expected", "differs"),
    [
        ('{"b": [1, null], "a": 1.0}', {"a": 1, "b": [1.0, None]}, None),
        ('\ufeff{"a":\n1e0}', {"a": 1}, None),
        ("1", True, "another value"),
        ("true", 1, "another value"),
        ("false", 0, "another value"),
        ("null", 0, "another value"),
        ('"1"', 1, "another value"),
        ("[1, 2]", [2, 1], "another value"),
        ("[1]", [1, 1], "another value"),
        ('{"a": 1, "b": 2}', {"a": 1}, "another value"),
        ("0.30000000000000004", 0.3, "another value"),
        ("1e999", 1, "another value"),
        ("NaN", None, "not JSON: NaN is not JSON"),
        ("[Infinity]", [1], "not JSON: Infinity is not JSON"),
        ('{"a": 1, "a": 2}', {"a": 2}, "stands twice"),
        ("{'a': 1}", {"a": 1}, "not JSON"),
        ("", None, "not JSON"),
        ("[" * 200_000, [], "not JSON"),
        ("9" * 10_000, 9, "not JSON"),
        ("[" + "1," * 3_000_000 + "1]", [1], "holds more than"),
    ],
)
def test_json_is_compared_by_value(document: str, expected: object, differs: str | None):
    if differs is None:
        compare_json("f", document.encode(), expected)
    else:
        with pytest.raises(Differs, match=differs):
            compare_json("f", document.encode(), expected)


@pytest.mark.parametrize(
    ("table", "ordered", "differs"),
    [
        ('a,1\nb,"x, y"\n', True, None),
        ('"a","1"\r\n\r\nb,"x, y"', True, None),
        ('b,"x, y"\na,1\n', False, None),
        ('b,"x, y"\na,1\n', True, "row 1 is wrong"),
        ("a,1\n", True, "not enough rows: 1"),
        ('a,1\na,1\nb,"x, y"\n', False, "a row that must not be there"),
        ('a,1.0\nb,"x, y"\n', True, "row 1 is wrong"),
        ('a, 1\nb,"x, y"\n', True, "row 1 is wrong"),
        ("a,1\nb," + "y" * 200_000, True, "not CSV"),
    ],
)
def test_tables_are_compared_by_cells(table: str, ordered: bool, differs: str | None):
    expected = (("a", "1"), ("b", "x, y"))
    if differs is None:
        compare_table("f", table.encode(), expected, ordered=ordered)
    else:
        with pytest.raises(Differs, match=differs):
            compare_table("f", table.encode(), expected, ordered=ordered)


def test_texts_are_compared_without_white_space_at_ends():
    compare_text("f", b"  a \r\nb\t\n\n", "  a\nb")
    for other in (b"a\nb", b"  a\n\nb", b"  a", b"  a\nb\nc", b""):
        with pytest.raises(Differs):
            compare_text("f", other, "  a\nb")


def test_a_message_says_what_came_and_nothing_of_what_was_expected():
    (result,) = grade("open('out', 'w').write('came')", leaves(Artifact("out", "text", "secret"))).results
    assert (result.got, result.expected_type) == ("came", "text")
    assert "secret" not in result.message
