"""What is special about sandboxes of plain processes; the conformance suite asks the rest.

Checks of what holds without root run in a process of such a user, all in one, with an interpreter it can reach.
"""

import ast
import asyncio
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pydantic
import pytest

from sandboxes.backends import confined
from sandboxes.backends.confined_host import DiskWatch, base_folder, can_change_users
from sandboxes.backends.confined_view import interpreter
from sandboxes.inside.confine import abi
from sandboxes.limits import MIB
from sandboxes.protocol import Command, Sandbox, SandboxLost
from sandboxes.sandbox import GuestSandbox
from tests.sandboxes.plain import LIMITS, ROOT, Check, ask, gone, inside, needs_landlock, processes, python

OTHER = 64123  # a user that owns nothing
CHECKS: dict[str, Check] = {}
pytestmark = needs_landlock


def asked(check: Check) -> Callable[[], list[object]]:
    """Make of a check a question: what this user's sandboxes answer, and those of a user without root."""
    name = getattr(check, "__name__", "")
    CHECKS[name] = check
    return lambda: [inside(check), without_root()[name]]


@functools.cache
def without_root() -> dict[str, object]:
    """The answers to all checks in a process of a user that is not root."""
    program, _ = interpreter(base_folder())
    source = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (1500, 1500))  # were a bomb not bounded, it would be here
from tests.sandboxes.backends.test_confined import *
print({name: inside(check) for name, check in CHECKS.items()})
"""
    user = OTHER if os.geteuid() == 0 else None
    ended = subprocess.run(
        [program, "-B", "-c", source],
        env={"PYTHONPATH": f"{ROOT}:{Path(pydantic.__file__).parents[1]}", "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ast.literal_eval(ended.stdout.splitlines()[-1])


@asked
async def what_can_be_read(sandbox: Sandbox) -> object:
    source = """
    import os, ssl, sqlite3, sys
    def attempt(action, *arguments):
        try: action(*arguments); return "done"
        except (OSError, ImportError) as error: return type(error).__name__
    files = [*sys.argv[1:], "/etc/passwd", f"/proc/{os.getppid()}/cmdline"]  # files that are there
    folders = ["/", "/proc", "/root", os.path.dirname(os.path.dirname(os.getcwd()))]
    answer = {attempt(open, path) for path in files} | {attempt(os.listdir, path) for path in folders}
    answer = (sorted(answer), attempt(__import__, "pydantic"), attempt(open, os.__file__))
    """
    packages = [path for path in Path("/usr/lib/python3").glob("dist-packages/*") if path.is_file()][:1]
    return await ask(sandbox, source, pydantic.__file__, __file__, confined.__file__, *packages)


def test_the_system_can_be_read_and_nothing_else():
    """Programs run in this interpreter, whose packages are not there."""
    assert what_can_be_read() == [(["PermissionError"], "ModuleNotFoundError", "done")] * 2


def test_the_copy_of_the_interpreter_has_no_packages_and_stands_alone(tmp_path: Path):
    program, prefix = interpreter(tmp_path)
    source = "import ssl, sqlite3, sys; print(sys.prefix); import pydantic"
    ended = subprocess.run([program, "-c", source], env={}, cwd="/", capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == prefix, ended.stderr
    assert "No module named 'pydantic'" in ended.stderr
    assert prefix == "/usr" or [path.name for path in tmp_path.iterdir()] == [Path(prefix).name]
    assert interpreter(tmp_path) == (program, prefix)


@asked
async def capabilities_of_a_fork(sandbox: Sandbox) -> object:
    result = await sandbox.exec(Command(("caps.py",), warm=True))
    return result.stdout.decode().split()


def test_a_warm_program_keeps_nothing_of_what_its_guest_holds():
    """It is no new program, so nothing but the guest itself takes the capabilities away."""
    assert capabilities_of_a_fork() == [["0" * 16] * 3] * 2


@asked
async def what_can_be_written(sandbox: Sandbox) -> object:
    source = """
    import os, sys
    def attempt(path):
        try: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)); return "done"
        except OSError as error: return type(error).__name__
    tmp = os.environ["TMPDIR"]
    answer = [attempt(path) for path in ("here", f"{tmp}/here", "/dev/null")]
    answer += [attempt(path) for path in (sys.argv[1], "../here", "/tmp/here", "/dev/shm/here", f"{tmp}/../../here")]
    """
    return await ask(sandbox, source, f"{sandbox.job}/here")


def test_programs_write_to_their_own_folders_only():
    assert what_can_be_written() == [["done"] * 3 + ["PermissionError"] * 5] * 2


class Screen:
    """Hears a command: see `sandboxes.link.Listener`."""

    def __init__(self) -> None:
        self.said, self.ended = b"", asyncio.Event()

    def on_output(self, name: int, chunk: bytes) -> None:
        self.said += chunk

    def on_end(self, status: int | None, full: bool, error: str | None) -> None:
        self.ended.set()

    def on_lost(self) -> None:
        self.ended.set()


@asked
async def pseudo_terminals(sandbox: Sandbox) -> object:
    source = """
    import os
    def attempt(path):
        try: os.close(os.open(path, os.O_RDWR | os.O_NOCTTY)); return "done"
        except OSError as error: return type(error).__name__
    answer = [attempt("/dev/ptmx"), attempt("/dev/pts/ptmx")]
    """
    assert isinstance(sandbox, GuestSandbox)
    screen = Screen()
    sandbox.attach(Command(("sh", "-c", "test -t 0 && test -t 1 && echo a terminal")), screen, terminal=True)
    await asyncio.wait_for(screen.ended.wait(), 5)
    return await ask(sandbox, source), screen.said


def test_programs_cannot_take_the_host_s_pseudo_terminals():
    """They are counted for all of the host. A shell's own is opened for it."""
    assert pseudo_terminals() == [(["PermissionError"] * 2, b"a terminal\r\n")] * 2


@asked
async def attack_on_the_guest(sandbox: Sandbox) -> object:
    source = """
    import os, signal
    answer = []
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        for target in (os.getppid(), -os.getppid(), -1):
            try: os.kill(target, number); answer.append("done")
            except OSError as error: answer.append(type(error).__name__)
    try: open(f"/proc/{os.getppid()}/mem", "rb"); answer.append("done")
    except OSError as error: answer.append(type(error).__name__)
    """
    return await ask(sandbox, source), (await python(sandbox, "print('still here')")).stdout


def test_programs_cannot_end_or_enter_their_guest():
    assert attack_on_the_guest() == [(["PermissionError"] * 10, b"still here\n")] * 2


@asked
async def signals_between_commands(sandbox: Sandbox) -> object:
    async with await sandbox.start(Command(("sh", "-c", "echo $$ >pid; exec sleep 30"))) as process:
        await asyncio.sleep(0.2)
        killer = await sandbox.exec(Command(("sh", "-c", "kill $(cat pid)")))
        return killer.exit_code, (await process.kill()).signal


def test_one_command_can_end_another_where_the_guest_has_a_user_of_its_own():
    """Without, nothing but a wall around each command protects the guest."""
    walled = (1, signal.SIGKILL)
    assert signals_between_commands() == [(0, signal.SIGTERM) if can_change_users() else walled, walled]


@asked
async def sockets_that_can_be_made(sandbox: Sandbox) -> object:
    source = """
    import socket
    answer = []
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        try: socket.socket(family).close(); answer.append(family.name)
        except OSError: pass
    socket.socketpair()
    """
    return await ask(sandbox, source)


def test_unix_sockets_are_for_programs_that_are_not_this_user():
    """Else they lead to its session, its agents, its terminals; before Landlock 9 nothing else closes that way."""
    as_we_are = ["AF_UNIX"] if can_change_users() or abi() >= 9 else []
    assert sockets_that_can_be_made() == [as_we_are, ["AF_UNIX"] if abi() >= 9 else []]


@asked
async def breaches_of_the_disk(sandbox: Sandbox) -> object:
    many = "for n in range(300): open(f'{n}', 'w').close()"
    large = "for n in range(3): open(f'{n}', 'wb').write(bytes(2 << 20))\n__import__('time').sleep(5)"
    links = """
        import os
        open("one", "wb").write(bytes(2 << 20))
        for n in range(20): os.link("one", f"{n}")
        with open("holes", "wb") as file: file.truncate(3 << 20)
    """
    deep = "import os\nfor n in range(120): os.mkdir('d' * 40); os.chdir('d' * 40)\nopen('hidden', 'w').close()"
    answers = []
    for source in (many, "print(1)", large, "print(1)", links, deep):
        answers.append((await python(sandbox, source)).breach)
        await sandbox.exec(Command(("sh", "-c", "rm -rf * $TMPDIR/*")))
    return answers


def test_folders_that_hold_too_much_are_the_disk_limit():
    """Further names of one file and holes take no room; and a depth where a path ends is no place to hide in."""
    expected = ["disk_limit", None, "disk_limit", None, None, "disk_limit"]
    assert breaches_of_the_disk() == [expected] * 2


def test_what_stays_too_large_is_told_once(tmp_path: Path):
    (tmp_path / "work").mkdir()
    watch = DiskWatch(tmp_path, LIMITS)
    seen = []
    for size in (0, 5 * MIB, 5 * MIB, 6 * MIB, 5 * MIB, 0, 5 * MIB):
        (tmp_path / "work" / "f").write_bytes(bytes(size))
        time.sleep(0.05)  # a look may be left out soon after another
        seen.append(watch.hits())
    assert seen == [0, 1, 1, 2, 2, 2, 3]


@asked
async def a_folder_that_resists(sandbox: Sandbox) -> object:
    source = """
    import os
    os.makedirs("closed/below"); open("closed/below/file", "w").close()
    os.chmod("closed/below", 0); os.chmod("closed", 0)
    os.chdir(os.environ["TMPDIR"])
    for n in range(120): os.mkdir("d" * 40); os.chdir("d" * 40)
    """
    await python(sandbox, source)
    await sandbox.destroy()
    return os.path.exists(os.path.dirname(sandbox.work))


def test_folders_are_removed_however_programs_left_them():
    assert a_folder_that_resists() == [False, False]


@asked
async def a_bomb(sandbox: Sandbox) -> object:
    source = """
    import os, signal
    for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            if os.fork() == 0: os.setsid()
        except OSError: pass
    """
    mark = f"bomb-{time.monotonic_ns()}"
    result = await python(sandbox, source, mark)
    await sandbox.destroy()
    return result.breach, gone(lambda: processes(mark))


@pytest.mark.parametrize("cgroups", [True, False])
def test_a_bomb_leaves_no_process(cgroups: bool):
    assert inside(CHECKS["a_bomb"], cgroups=cgroups) == ("process_limit", True)


def test_a_bomb_without_root_leaves_no_process():
    assert without_root()["a_bomb"] == ("process_limit", True)


@asked
async def a_guest_that_the_host_ends(sandbox: Sandbox) -> object:
    mark = f"3{time.monotonic_ns()}"
    said = []
    async with await sandbox.start(Command(("sh", "-c", f"sleep {mark} & sleep {mark}"))) as process:
        while len(below := processes(mark)) < 3:
            await asyncio.sleep(0.01)
        guest = int(Path(f"/proc/{min(below)}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(guest, signal.SIGKILL)
        for end in (process.wait, sandbox.destroy):
            try:
                await end()
            except SandboxLost as lost:
                said.append(lost.evidence)
    return said, gone(lambda: processes(mark)), os.path.exists(sandbox.work)


def test_a_guest_that_the_host_ends_is_no_result_and_leaves_nothing():
    expected = ["its guest ended with -9"] * 2, True, False
    check = "a_guest_that_the_host_ends"
    assert [inside(CHECKS[check], cgroups=False), without_root()[check]] == [expected] * 2
