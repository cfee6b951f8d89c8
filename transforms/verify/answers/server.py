"""A process that compares answers, each in a child of its own that the kernel kills when its time is up.

It has the algebra libraries loaded, which takes over a second, and forks a child for each pair. A child has limits on
wall time, CPU time and memory, opens no file for writing, and where the kernel can hold it (Landlock, seccomp) reaches
no network, no other process and no file but Python's own. Texts are never evaluated as code. See `client` for the
protocol. The process ends when the socket to its maker closes, or its maker is gone.
"""

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sandboxes.host.seccomp import filter_program
from sandboxes.inside.confine import confine
from transforms.verify.answers.answer import Answer, read_answer
from transforms.verify.answers.numeric import Numeric
from transforms.verify.answers.same import After, Tolerance, same_answer
from transforms.verify.answers.symbolic import Symbolic
from transforms.verify.answers.tokens import Unreadable

_MIB = 1024 * 1024
_LOOK_S = 1.0  # seconds between looks at whether the maker is still there
_FILES = 32
_SET_PDEATHSIG = 1  # linux/prctl.h
_USUAL = (
    (r"\frac{\sqrt{3}}{2}\pi", r"0.5\pi\cdot\sqrt3"),
    (r"\sin 2x", r"2\sin x\cos(x)"),
    (r"x^2-1", "(x-1)(x+1)"),
    ("y=2x+1", "2x-y+1=0"),
    (r"\ln|x|+e^{-x}", r"\log_2 x"),
)


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    connection: socket.socket


def main(control: socket.socket, maker: int) -> None:
    """Serve until the other end of `control` closes, or `maker` is our parent no more.

    Each message brings one connection, with one request on it.
    """
    _warm()
    children: dict[int, _Child] = {}  # by descriptor of the process
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        try:
            while os.getppid() == maker:
                for key, _ in ready.select(_LOOK_S):
                    if key.fd == control.fileno():
                        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
                        if not message:
                            return
                        connection = socket.socket(fileno=descriptors[0])
                        pid = os.fork()
                        if pid == 0:
                            _serve(connection)
                        handle = os.pidfd_open(pid)
                        children[handle] = _Child(pid, connection)
                        ready.register(handle, selectors.EVENT_READ)
                    else:
                        ready.unregister(key.fd)
                        _reap(children.pop(key.fd))
                        os.close(key.fd)
        finally:
            for child in children.values():
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def _warm() -> None:
    """Have the parser's tables and the caches of algebra filled, so that each child finds them filled."""
    for left, right in _USUAL:
        same_answer(read_answer(left), read_answer(right), After(Numeric()))
        same_answer(read_answer(left), read_answer(right), After(Symbolic()))
    gc.freeze()  # so that no child walks through what they all share


def _reap(child: _Child) -> None:
    """Say how a child ended and what it used."""
    _, status, usage = os.wait4(child.pid, 0)
    ended = {
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }
    try:
        _say(child.connection, {"ended": ended})
        # Closing alone would not end it: later children have inherited it.
        child.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # nobody waits for it any more
    child.connection.close()


def _serve(connection: socket.socket) -> None:
    """In the child: read one request, answer step by step, and end."""
    try:
        with connection.makefile("rb") as stream:
            request = json.loads(stream.readline())
        try:
            _limit(request)
        except OSError as error:
            _say(connection, {"host": repr(error)})
            return
        _compare(request, connection)
    except Exception as error:  # noqa: BLE001 - the boundary of a comparison, to the end of its process
        _say(connection, {"note": _described(error)})
    finally:
        os._exit(0)


def _limit(request: dict[str, Any]) -> None:
    """Hold this process; what the kernel does on SIGALRM and SIGXCPU is to end it, whatever it is at."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    cpu = int(request["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_AS, (held + request["memory_mib"] * _MIB,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    signal.setitimer(signal.ITIMER_REAL, request["wall_s"])
    read = [path for path in (*sys.path, sys.base_prefix, "/proc/self") if path]
    confine(read=read, write=[], connect_ports=[], seccomp=filter_program(sockets="local", unix=False))


def _compare(request: dict[str, Any], connection: socket.socket) -> None:
    """Ask the verifiers one after the other; what one says is sent before the next begins."""
    percent = request["percent"]
    shares = request["tolerance"]
    tolerance = Tolerance(*(Fraction(share) for share in shares)) if shares else None
    expected, found = read_answer(request["expected"], percent=percent), read_answer(request["found"], percent=percent)
    numeric = Numeric(tolerance)
    try:
        _say(connection, {"numeric": same_answer(expected, found, After(numeric, tolerance))})
    except Unreadable as error:
        side = "expected" if _has_no_value(expected, numeric) else "found"
        _say(connection, {"unreadable": side, "note": str(error)})
        return
    if tolerance is not None:
        return
    try:
        _say(connection, {"symbolic": same_answer(expected, found, After(Symbolic()))})
    except Exception as error:  # noqa: BLE001 - libraries on untrusted text: whatever they raise, they have no verdict
        _say(connection, {"note": f"math-verify: {_described(error)}"})


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:300]


def _has_no_value(answer: Answer, numeric: Numeric) -> bool:
    try:
        same_answer(answer, answer, numeric)
    except Unreadable:
        return True
    return False


def _say(connection: socket.socket, line: dict[str, Any]) -> None:
    connection.sendall(json.dumps(line).encode() + b"\n")
