"""A shell in a sandbox, used through a real pseudo-terminal as a person would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real_terminal import ROOT, Terminal

DRIVER = """
import asyncio, sys
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import Command, SandboxRequest
from sandboxes.terminal import run_attached

async def main():
    async with await Bubblewrap().create(SandboxRequest(limits=Limits(output_kib=1, wall_time_s=1))) as sandbox:
        status = await run_attached(sandbox, Command(tuple(sys.argv[1:]), env={"PS1": "$PWD> "}))
        if status is None:
            await sandbox.destroy()
        return status

try:
    sys.exit(asyncio.run(main()))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as opened:
        yield lambda *argv: opened.enter_context(Terminal(sys.executable, "-c", DRIVER, *(argv or ("/bin/sh", "-i"))))


def test_a_shell_on_a_terminal_works_as_at_home(terminal: Callable[..., Terminal]):
    screen = terminal()
    screen.expect("/work> ")
    assert screen.is_raw()
    screen.type("tty; stty size\r")
    screen.expect(r"/dev/pts/\d+\r\n24 80\r\n/work> ")
    screen.resize(50, 132)
    screen.type("stty size\r")
    screen.expect("50 132\r\n/work> ")
    started = time.monotonic()
    screen.type("sleep 60\r")
    time.sleep(0.3)
    screen.type("\x03")  # Ctrl-C is for the program in there
    screen.expect(r"\^C[\r\n]+/work> ")
    screen.type("echo $?\r")
    screen.expect("130\r\n")
    assert time.monotonic() - started < 20
    # More than the sandbox's output limit of 1 KiB, and longer than its wall time of 1 s.
    screen.type("head -c 100000 /dev/zero | tr '\\0' x | fold -w 1000; sleep 1; echo; echo d''one\r")
    screen.expect("one\r\n")  # the echo of it
    assert screen.expect("done").count("x") == 100_000
    screen.type("exit 9\r")
    assert screen.end() == 9
    assert screen.is_as_before()


def test_the_end_of_input_ends_the_shell(terminal: Callable[..., Terminal]):
    screen = terminal()
    screen.expect("/work> ")
    screen.type("\x04")
    assert screen.end() == 0
    assert screen.is_as_before()


def test_a_signal_from_outside_ends_it_and_the_terminal_is_as_before(terminal: Callable[..., Terminal]):
    screen = terminal()
    screen.expect("/work> ")
    assert screen.is_raw()
    screen.child.send_signal(signal.SIGTERM)
    assert screen.end() == 128 + signal.SIGTERM
    assert screen.is_as_before()


def test_a_sandbox_that_the_host_kills_is_an_error_and_the_terminal_is_as_before(terminal: Callable[..., Terminal]):
    screen = terminal("/bin/sh", "-c", "echo here; exec sleep 12345.25")
    screen.expect("here")
    deadline = time.monotonic() + 10
    while not (programs := [path for path in Path("/proc").glob("[0-9]*") if _is_sleep(path)]):
        assert time.monotonic() < deadline
    status = (programs[0] / "status").read_text().splitlines()
    guest = next(line.split()[1] for line in status if line.startswith("PPid:"))
    os.kill(int(guest), signal.SIGKILL)
    screen.expect("SandboxLost: .*not by our hand")
    assert screen.end() == 1
    assert screen.is_as_before()


def _is_sleep(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes() == b"sleep\x0012345.25\x00"
    except OSError:
        return False


def piped(script: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", DRIVER, "/bin/sh", "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60, **options)  # ty: ignore


def test_with_pipes_the_streams_stay_apart_and_whole():
    data = os.urandom(1_000_000)
    done = piped("cat; echo oops >&2; exit 3", input=data)
    assert (done.returncode, done.stderr) == (3, b"oops\n")
    assert done.stdout == data


def test_stdin_may_be_a_file(tmp_path: Path):
    (tmp_path / "script").write_bytes(b"from a file")
    with open(tmp_path / "script", "rb") as stdin:
        assert piped("cat", stdin=stdin).stdout == b"from a file"
    assert piped("cat; kill -9 $$", stdin=subprocess.DEVNULL).returncode == 128 + signal.SIGKILL


def test_a_reader_that_leaves_ends_it():
    command = [sys.executable, "-c", DRIVER, "/bin/sh", "-c", "while echo y; do :; done"]
    with subprocess.Popen(command, cwd=ROOT, stdin=-3, stdout=-1, stderr=-1) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.read(2) == b"y\n"
        child.stdout.close()
        assert b"BrokenPipeError" in child.stderr.read()
        assert child.wait(timeout=20) == 1
