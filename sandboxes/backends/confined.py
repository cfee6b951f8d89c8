"""Sandboxes from confined plain processes, for hosts that are locked-down containers: no namespaces, no mounts.

Each sandbox is a folder on the host's disk and a guest, a child of ours, that confines itself and everything below it:
Landlock names the files that can be read and written, a filter refuses system calls, no privilege can be gained, limits
come from a control group where one can be made and else from rlimits and a watcher. As root (with the usual rights of a
container's root) each sandbox has two users of its own, one for its guest and one for its programs. Without root all
share the user's own, and Landlock alone stands between them. Programs end with the guest, and the guest with us.

What this does not stop, besides flaws of the kernel and side channels:
- Seeing that a path or a process exists, and its `stat`; the machine's name, load and other traits.
- The disk limits are watched, not enforced: ten times a second folders are counted, less often when they hold much.
  Files deleted but open, and what is written and removed between two looks, are not seen. The disk is the host's: where
  it is full for everybody, programs fail.
- With a network allowlist: connecting past the proxy to the same port number of any machine. The number is a random
  one of the host's loopback, where other users of the machine can use the proxy too.
- Before Landlock 9 (Linux 7.1), as root: connecting to Unix sockets of the host that are open to everybody.
- Without control groups: memory and processes are watched too, and bounded for each process by rlimits.
- Without root: changing mode and times of any file of the user's, so that it is closed to the user (the content stays);
  a fork bomb makes a few hundred processes until it is seen, and where the user starts as many elsewhere meanwhile,
  programs cannot fork; files in folders that a program closed are not counted; if the host kills the guest, a program
  that works outside its folders can outlive it.
- Without root and before Landlock 6 (Linux 6.12): killing or stopping the guest and the user's other processes.

What programs lack here that other back-ends give them: a loopback network; POSIX shared memory and semaphores, which
Python's multiprocessing needs (/dev/shm); pseudo terminals, which are counted for the whole host, but for the one that
a shell is given; a /tmp of that name; of /proc all but a few files, and the own folder of a command's first process;
the listing of folders that hold more than may be read, such as / and /usr. Without root also Unix sockets, and signals
from one command to another.
"""

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import psutil

from sandboxes.backends.confined_host import (
    DiskWatch,
    Users,
    base_folder,
    can_change_users,
    counts_processes,
    inhabitants,
    make_folder,
    take_users,
)
from sandboxes.backends.confined_view import guest_may, interpreter, program_may
from sandboxes.host.cgroup import Cgroup, Counters, find_hierarchy
from sandboxes.host.folders import remove
from sandboxes.host.procfs import ProcessTree
from sandboxes.host.seccomp import filter_program
from sandboxes.host.threads import threads
from sandboxes.inside.confine import abi
from sandboxes.limits import MIB
from sandboxes.link import Link
from sandboxes.network.proxy import Proxy
from sandboxes.protocol import ImageMissing, ProvisionFailed, SandboxError, SandboxRequest
from sandboxes.sandbox import GuestSandbox, Inside

_MAKERS = 8  # sandboxes made at once
_ORDERLY_S = 2.0  # how long a guest may take to end everything by itself
_BURIAL_S = 10.0  # longest a killed sandbox may take to be gone; a process in uninterruptible sleep takes longer
_ELSEWHERE = 256  # tasks that a user who is not root may start elsewhere while a sandbox lives
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LINUX = {1: "5.13", 3: "6.2", 4: "6.7"}  # since which it has that version of Landlock
_GUEST = Path(__file__).parents[1] / "inside" / "confined_guest.py"


class Confined:
    """Sandboxes on this machine. Picklable; holds no state of its own."""

    name = "subprocess"

    def __init__(self, *, cgroups: bool = True) -> None:
        self.cgroups = cgroups
        """Whether control groups are used where they can be made; False always takes rlimits."""

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        """See `SandboxProvider.create`."""
        # A thread of its own: a cancelled caller must not leave a half-made sandbox.
        making = threads("confined", _MAKERS).submit(_make, request, cgroups=self.cgroups)
        try:
            cell, near, inside = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            threads("confined", _MAKERS).submit(_abandon, making)  # the event loop may end before it is made
            raise
        link = Link(Proxy(request.network) if request.network.allow else None)
        sandbox = GuestSandbox(cell.name, request, inside, link, cell)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=near)
            await sandbox.furnish(warm=True, snapshot=True)
        except BaseException:
            near.close()
            with contextlib.suppress(SandboxError):
                await sandbox.destroy()
            raise
        return sandbox


def weaknesses(*, cgroups: bool = True) -> list[str]:
    """What this back-end cannot hold on this machine, a sentence each, and how to get it where there is a way."""
    version, own_users = abi(), can_change_users()
    grouped = cgroups and find_hierarchy() is not None
    known = [
        (True, "disk limits are watched, not enforced"),
        (True, "programs see that other processes and files exist, though not what is in them"),
        (True, "no /dev/shm: programs have no POSIX shared memory and semaphores"),
        (version < 1, "cannot run: the kernel has no Landlock (Linux 5.13, `lsm=landlock`)"),
        (1 <= version < 3 and not own_users, "cannot run without root before Landlock 3 (Linux 6.2)"),
        (filter_program() is None, "cannot run: the system calls of this machine's architecture are not known"),
        (1 <= version < 4, "no network allowlist before Landlock 4 (Linux 6.7)"),
        (version >= 4, "with a network allowlist, programs can connect to one random port number of any machine"),
        (not grouped, "memory and processes are watched, not enforced: no control group can be made"),
        (not own_users, "programs run as this user: they can change the mode of its files"),
        (not own_users and not grouped, f"a fork bomb makes {_ELSEWHERE} processes before it is ended"),
        (not own_users and version < 6, "programs can kill this user's processes before Landlock 6 (Linux 6.12)"),
        (own_users and version < 9, "programs can connect to Unix sockets that are open to all before Landlock 9"),
        (not own_users and version < 9, "programs have no Unix sockets before Landlock 9 (Linux 7.1)"),
    ]
    return [sentence for holds, sentence in known if holds]


def _check(request: SandboxRequest, *, cgroups: bool) -> None:
    """Raises ProvisionFailed where a sandbox would not be one."""
    version = abi()
    if request.image != "host":
        raise ImageMissing(
            "plain processes have no images: use `host`, or a back-end that runs those of `headrace sandbox build`",
            evidence=f"asked for {request.image!r}",
        )
    needed = 4 if request.network.allow else 1 if can_change_users() else 3  # 3: else it could empty the user's files
    if version < needed:
        raise ProvisionFailed(
            f"the kernel's Landlock is too old: version {needed} is needed, of Linux {_LINUX[needed]} or newer",
            evidence=f"version {version}; 0 is none",
        )
    if filter_program() is None:
        raise ProvisionFailed(
            "no filter of system calls for this architecture: use another back-end", evidence=os.uname().machine
        )
    if not (can_change_users() or (cgroups and find_hierarchy()) or counts_processes()):
        raise ProvisionFailed(
            "nothing here bounds the processes of a program: run as a user who is not root, or as a root with the "
            "capabilities CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID",
            evidence="this user's processes are not counted, and no control group can be made",
        )


def _make(request: SandboxRequest, *, cgroups: bool) -> tuple["_Cell", socket.socket, Inside]:
    """Start a guest in a folder of its own. Runs in a thread. Raises ProvisionFailed."""
    _check(request, cgroups=cgroups)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as given:
        try:
            users = take_users()
            if users is not None:
                undo.callback(users.hold.close)
            python, prefix = interpreter(base_folder())
            folder = make_folder(users, request.limits)
            undo.callback(remove, folder)
            group = Cgroup.create(request.limits) if cgroups else None
            if group is not None:
                undo.callback(group.destroy)
            near, far = socket.socketpair()
            undo.callback(near.close)
            given.enter_context(far)
            listener = given.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            ports = [listener.getsockname()[1]] if request.network.allow else []
            entrances = [os.open(path, os.O_WRONLY) for path in (group.entrances if group else ())]
            for fd in entrances:
                given.callback(os.close, fd)
            config = {
                "link": far.fileno(),
                "listener": listener.fileno() if ports else None,
                "entrances": entrances,
                "parent": os.getpid(),
                "users": None if users is None else (users.keeper, users.program),
                "ports": ports,
                "processes": None if users or group else request.limits.processes + _ELSEWHERE,
                "guest_may": guest_may(folder, prefix),
                "program_may": program_may(folder, prefix, terminals=users is not None),
                "seccomp": base64.b64encode(_filter(users, ports) or b"").decode(),
            }
            complaints = os.memfd_create("stderr", os.MFD_CLOEXEC)
            undo.callback(os.close, complaints)
            passed = [far.fileno(), *entrances, *([listener.fileno()] if ports else [])]
            # A guest dies with the thread that started it: one that lives as long as this process.
            process = threads("confined-start", 1).submit(_start, python, config, passed, complaints).result()
            undo.callback(process.wait)
            undo.callback(process.kill)
            meter = group or ProcessTree(process.pid, request.limits)
            cell = _Cell(folder, users, process, complaints, meter, DiskWatch(folder, request.limits))
        except OSError as error:
            raise ProvisionFailed("cannot start a confined process", evidence=str(error)) from error
        undo.pop_all()
    rlimits = {}
    if group is None:
        # Without root the kernel counts the user's other processes too: the guest finds a bound.
        rlimits = {"AS": request.limits.memory_mib * MIB} | ({"NPROC": request.limits.processes} if users else {})
    inside = Inside(
        backend=Confined.name,
        job=str(folder / "job"),
        work=str(folder / "work"),
        tmp=str(folder / "tmp"),
        path=_PATH if prefix == "/usr" else f"{prefix}/bin:{_PATH}",
        uid=None if users is None else users.program,
        subreaper=True,
        shared_disk=True,
        proxy_port=ports[0] if ports else 0,
        rlimits=rlimits,
    )
    return cell, near, inside


def _filter(users: Users | None, ports: list[int]) -> bytes | None:
    # Before Landlock 9 a Unix socket leads to whatever of this user's listens: a session bus, an agent, a terminal.
    return filter_program(sockets="tcp" if ports else "local", unix=users is not None or abi() >= 9)


def _start(python: str, config: Mapping[str, object], passed: list[int], complaints: int) -> subprocess.Popen[bytes]:
    """Start the guest. Raises OSError."""
    with open(os.memfd_create("config", os.MFD_CLOEXEC), "w+") as given:
        json.dump(config, given)
        given.seek(0)
        # Not -I or -E: they ignore PYTHONHASHSEED, and then the order of a set differs from sandbox to sandbox.
        return subprocess.Popen(
            [python, "-P", "-s", "-S", "-X", "frozen_modules=on", str(_GUEST)],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=passed,
            env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "TZ": "UTC"},
            cwd="/",
            start_new_session=True,  # Ctrl-C at our terminal is for us
        )


class _Cell:
    """What the host holds of one sandbox: see `sandboxes.sandbox.Enclosure`."""

    def __init__(
        self,
        folder: Path,
        users: Users | None,
        process: subprocess.Popen[bytes],
        complaints: int,
        meter: Cgroup | ProcessTree,
        disk: DiskWatch,
    ) -> None:
        self.name = folder.name
        self.limits_enforced_by = f"cgroup-v{meter.version}" if isinstance(meter, Cgroup) else "rlimits"
        self._folder, self._users, self._process, self._complaints = folder, users, process, complaints
        self._meter, self._disk = meter, disk
        self._pidfd = os.pidfd_open(process.pid)
        self._killer: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._lock = threading.Lock()  # a descriptor must not be closed while another thread uses its number
        self._seen: str | None = None
        """What there was to see at the burial, after which the descriptors are closed."""

    def counters(self) -> Counters:
        return dataclasses.replace(self._meter.counters(), disk_limit_hits=self._disk.hits())

    def kill(self) -> None:
        """Have the guest end everything; called once more, do it ourselves."""
        if not self._asked:
            self._asked = True
            self._signal(signal.SIGTERM)
        elif self._seen is not None:
            pass
        elif self._users is None:
            for pid in {*self._below(), *inhabitants(self._folder)} - {self._process.pid}:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        elif self._killer is None or self._killer.poll() is not None:
            self._killer = self._users.kill()

    def evidence(self) -> str | None:
        if self._users is None and abi() < 6:  # programs can kill it
            return None
        with self._lock:
            return self._seen or self._state()

    def bury(self) -> Counters:
        deadline = time.monotonic() + _BURIAL_S
        self._ends(_ORDERLY_S)
        while (left := self._left()) and time.monotonic() < deadline:
            self.kill()
            if self._users is None and not self._below():
                self._signal(signal.SIGKILL)
            time.sleep(0.01)
        if self._killer is not None:
            self._killer.wait()
        counted = self.counters()
        if isinstance(self._meter, Cgroup):
            self._meter.destroy()
        with self._lock:
            self._seen = self._state()
            os.close(self._pidfd)
            os.close(self._complaints)
        if not left:  # else the next process's sweep tries again
            remove(self._folder)
            if self._users is not None:
                self._users.hold.close()
        return counted

    def _ends(self, seconds: float) -> bool:
        ends = select.poll()
        ends.register(self._pidfd, select.POLLIN)
        return bool(ends.poll(seconds * 1000))

    def _below(self) -> list[int]:
        """The guest's descendants, while its number is its own."""
        if self._process.poll() is not None:
            return []
        try:
            return [process.pid for process in psutil.Process(self._process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _state(self) -> str:
        said = os.pread(self._complaints, 4096, 0).decode(errors="replace").strip()[-500:]
        ended = self._ends(0.1)  # its link closes a little before its end
        code = self._process.wait() if ended else None
        return f"its guest {f'ended with {code}' if ended else 'runs'}{': ' + said if said else ''}"

    def _left(self) -> bool:
        """Whether something of it may be alive. A guest that ended well left nothing."""
        code = self._process.poll()
        if code == 0:
            return False
        return code is None or bool(inhabitants(self._folder) if self._users is None else self._users.running())

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._seen is None:
                signal.pidfd_send_signal(self._pidfd, number)


def _abandon(making: Future[tuple[_Cell, socket.socket, Inside]]) -> None:
    """End what was made for a caller who is gone."""
    if not making.cancelled() and making.exception() is None:
        cell, near, _ = making.result()
        near.close()
        cell.kill()
        cell.bury()
