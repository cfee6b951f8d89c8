"""Whose a sandbox is: a name for the process that owns it, by which anyone on the machine can tell that it is dead."""

import functools
import os
from pathlib import Path


def identity() -> str:
    """This process among all, dead ones included: its pid namespace, pid and start time, with a dash between."""
    return _identity(os.getpid())


def alive(owner: str) -> bool:
    """Whether the process of that identity lives; `owner` may go on after it.

    Of a process of another pid namespace nobody here can tell: it counts as alive, and so does a name of another form.
    """
    namespace, pid, start, *_ = [*owner.split("-"), "", "", ""]
    return namespace != _pid_namespace() or _start_time(pid) == start


def pid_of(owner: str) -> int | None:
    """The pid in an identity, as its own pid namespace counts; None for a name of another form."""
    parts = owner.split("-")
    return int(parts[1]) if len(parts) >= 3 and parts[1].isdigit() else None


@functools.cache
def _identity(pid: int) -> str:  # by pid, as a fork is another process
    return f"{_pid_namespace()}-{pid}-{_start_time(str(pid))}"


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start_time(pid: str) -> str | None:
    """Clock ticks between boot and the start of a process, as text; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rsplit(")", 1)[1].split()[19]
