"""Ask the comparing process (`server`) about two answers. One such process for each of ours, started when first needed.

Over the control socket goes one descriptor a question: of a socket pair on which one line of JSON goes there, and lines
come back: what each verifier says, as soon as it does, and how the child ended. No thread and no lock is held while one
waits, so it is safe from any event loop, and many may ask at once.
"""

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes.protocol import SandboxLost

STARTUP_S = 60.0
"""Seconds beyond a question's own limit that its answer may take, the start of the process included."""

_ROOT = Path(__file__).resolve().parents[3]
_START = (
    "import socket, sys; sys.path.insert(0, sys.argv[1]); "
    "from transforms.verify.answers.server import main; main(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))"
)
_MAX_REPLY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """Two answers as text, how to read them, and what comparing them may take."""

    expected: str
    found: str
    percent: bool
    tolerance: tuple[str, str] | None
    """Absolute and relative, as decimal fractions."""
    wall_s: float
    cpu_s: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What the verifiers said, and how the process that ran them ended."""

    numeric: bool | None
    symbolic: bool | None
    """None where a verifier has no verdict."""
    unreadable: str | None
    """`expected` or `found`: the side that has no value."""
    note: str
    """Why there is no verdict, for people."""
    signal: int
    """The signal that ended the process; 0 where it ended by itself."""
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Server:
    maker: int
    """Process that started it: after a fork, the child has one of its own."""
    process: subprocess.Popen[bytes]
    control: socket.socket


_server: _Server | None = None
_starting = threading.Lock()


async def compare(question: Question) -> Reply:
    """Ask one question. Raises SandboxLost when the comparing process is gone."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            server = _running()
            try:
                socket.send_fds(server.control, [b"q"], [theirs.fileno()])
            except OSError as error:
                raise SandboxLost("the process that compares answers is gone", evidence=repr(error)) from error
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STARTUP_S + question.wall_s):
                await loop.sock_sendall(ours, json.dumps(_fields(question)).encode() + b"\n")
                received = b""
                while chunk := await loop.sock_recv(ours, _MAX_REPLY):
                    received += chunk
        except (OSError, TimeoutError) as error:
            raise SandboxLost("the process that compares answers gave no answer", evidence=repr(error)) from error
    lines: dict[str, Any] = {}
    for line in received.splitlines():
        lines |= json.loads(line)
    if "host" in lines:
        raise SandboxLost("a process that compares answers could not be confined", evidence=lines["host"])
    if "ended" not in lines:
        raise SandboxLost("the process that compares answers died", evidence=f"it sent {received[-200:]!r}")
    return Reply(
        lines.get("numeric"), lines.get("symbolic"), lines.get("unreadable"), lines.get("note", ""), **lines["ended"]
    )


def _fields(question: Question) -> dict[str, object]:
    return {name: getattr(question, name) for name in Question.__dataclass_fields__}


def _running() -> _Server:
    global _server
    with _starting:
        if _server is None or _server.maker != os.getpid() or _server.process.poll() is not None:
            _server = _start()
        return _server


def _start() -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, str(_ROOT), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return _Server(os.getpid(), process, ours)


@atexit.register
def _stop() -> None:
    """End our process with us; should we die without this, it sees its socket close."""
    if _server is not None and _server.maker == os.getpid():
        _server.control.close()
        _server.process.kill()
        _server.process.wait()
