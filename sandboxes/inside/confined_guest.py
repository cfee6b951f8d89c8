"""The program of a confined sandbox: confines itself, and is the guest.

It starts as an ordinary child of the host's process, which hands it a JSON object on stdin. It enters its control
groups, takes its own user (as root) and confines itself before it serves; each program is confined once more, tighter,
as the last step before it starts. When the host is gone it ends every program, then itself. Stand-alone: standard
library only; `guest.py` and `confine.py` lie beside it.
"""

import base64
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import confine  # noqa: E402 # ty: ignore[import-not-found] - beside this file, where the interpreter does not look
import guest  # noqa: E402 # ty: ignore[import-not-found]

del sys.path[0]

SET_PDEATHSIG, SET_KEEPCAPS, CAPBSET_DROP = 1, 8, 24
KILL, SETGID, SETUID = 5, 6, 7  # capabilities the guest keeps where programs have a user of their own
libc = ctypes.CDLL(None, use_errno=True)


def set_capabilities(*numbers):
    """Hold these and no others, inheritable by none."""
    mask = sum(1 << number for number in numbers)
    header = struct.pack("=Ii", 0x20080522, 0)
    if libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def low(fd):
    """Move a descriptor to a low number: a program's process closes those below 1024 only."""
    moved = os.dup(fd)
    os.close(fd)
    return moved


def become(user):
    """Change to a user and the group of that number, for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def clear(user):
    """Kill every process of a user: what an owner that died left to the next one."""
    pid = os.fork()
    if pid == 0:
        try:
            become(user)
            if user and os.getresuid() == (user, user, user):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def strip(config):
    """Confine a program: runs in its process, as the last of our code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_capabilities()
    confine.confine(
        **config["program_may"],
        connect_ports=config["ports"],
        seccomp=base64.b64decode(config["seccomp"]),
        scoped=config["users"] is None,  # else signals would not pass from one command to the next
    )


def bound_processes(more):
    """Let our user have this many tasks more than the kernel counts for it now: what is not seen here included."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = 16
    while True:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, most))
        try:
            pid = os.fork()
        except BlockingIOError:  # refused before anything was made: a step costs little
            limit += 16
            continue
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        limit += more
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        return


def settle(config):
    """Take our user, and confine ourselves; whether our signals reach our own programs only."""
    os.umask(0o022)
    if config["users"] is None:
        set_capabilities()
        if config["processes"]:
            bound_processes(config["processes"])
    else:
        for user in config["users"]:
            clear(user)
        for number in range(64):
            libc.prctl(CAPBSET_DROP, number, 0, 0, 0)  # fails past the last one, or without the right to
        guest.prctl(SET_KEEPCAPS, 1)
        become(config["users"][0])
        set_capabilities(KILL, SETGID, SETUID)
    guest.prctl(guest.PR_SET_DUMPABLE, 0)
    guest.prctl(SET_PDEATHSIG, signal.SIGTERM)  # only after the change of users, which clears it
    if os.getppid() != config["parent"]:
        os._exit(0)
    held = confine.confine(**config["guest_may"], connect_ports=config["ports"], seccomp=None)
    try:
        os.kill(config["parent"], 0)
    except PermissionError:
        return held["signals"]
    return False


class Guest(guest.Guest):
    """Kills all at once where our signals reach our own programs only."""

    scoped = False

    def everyone(self):
        """Whom to kill."""
        return [-1] if self.scoped else super().everyone()

    def end(self):
        """Kill whatever runs below us, and exit: with 0, which tells the host that nobody is left."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self.everyone():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.jobs.clear()  # nobody is there to hear of their ends
        self.on_K(None, b"")
        os._exit(0)


def main():
    """Settle, serve the host, and leave nothing alive."""
    config = json.load(sys.stdin)
    link = low(config["link"])
    listener = None if config["listener"] is None else socket.socket(fileno=low(config["listener"]))
    served = Guest(link, link, strip=lambda: strip(config), listener=listener)
    served.config = {"subreaper": True}
    try:
        for fd in config["entrances"]:
            os.write(fd, b"0")
            os.close(fd)
        served.scoped = settle(config)
        guest.prctl(guest.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # our parent died, or wants us dead
        served.serve()
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001 - told to the host, who may be gone
        text = f"{type(error).__name__}: {error}".encode()
        try:
            os.write(link, guest.HEADER.pack(len(text) + 5, ord("!"), 0) + text)
        except OSError:
            pass
    served.end()


main()
