"""Where confined sandboxes live on the host: a folder each, and as root two users each.

The users are numbers that own nothing else. A number is taken by locking a file that only root can open, so no program
can take one, and it is free again when its owner dies, however that happens.
"""

import contextlib
import errno
import fcntl
import functools
import io
import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from sandboxes.host.folders import remove
from sandboxes.host.owner import alive, identity
from sandboxes.limits import MIB, Limits
from sandboxes.protocol import ProvisionFailed

_SANDBOXES = 256  # of all processes on this machine at once, as root
_FIRST_USER = 64200
_NEEDED = (0, 1, 3, 5, 6, 7)  # CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID
_SHARE = 20  # a look at the disk is followed by this many times as long without one
_serial = itertools.count()
_held: weakref.WeakSet[io.FileIO] = weakref.WeakSet()

# Kills whatever runs as these users, all at once: no fork is fast enough.
_KILL_USERS = """
import os, sys
for user in map(int, sys.argv[1:]):
    if os.fork() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if user and os.getresuid() == (user, user, user):
            os.kill(-1, 9)
        os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Users:
    """Two users of one sandbox: of its guest, and of its programs."""

    keeper: int
    program: int
    hold: io.FileIO

    def kill(self) -> subprocess.Popen[bytes]:
        """Start to kill every process of theirs."""
        return subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-S", "-c", _KILL_USERS, str(self.program), str(self.keeper)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )

    def running(self) -> list[int]:
        """Their processes."""
        theirs = {str(self.keeper), str(self.program)}
        found = []
        for pid in _pids():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                state, users = (status.split(f"\n{name}:\t", 1)[1].split("\n", 1)[0] for name in ("State", "Uid"))
                if state[0] != "Z" and theirs & set(users.split()):
                    found.append(pid)
        return found


def can_change_users() -> bool:
    """Whether this process is root with the rights that users of their own need."""
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return os.geteuid() == 0 and all(int(held.split()[1], 16) >> number & 1 for number in _NEEDED)


@functools.cache
def counts_processes() -> bool:
    """Whether the kernel bounds the processes of this user: not those of the machine's root, whatever it may do."""
    # Not here: the limit would hold for our other threads.
    source = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); os.fork()"
    program = [os.path.realpath(sys.executable), "-I", "-S", "-c", source]
    return b"BlockingIOError" in subprocess.run(program, capture_output=True, check=False, cwd="/").stderr


def take_users() -> Users | None:
    """Two users that nobody else has now; None where users cannot be changed. Raises ProvisionFailed."""
    if not can_change_users():
        return None
    base_folder()
    for slot in range(_SANDBOXES):
        if (users := _hold(_first_user() + 2 * slot)) is not None:
            return users
    raise ProvisionFailed("no user is free for a sandbox", evidence=f"{_SANDBOXES} sandboxes are open here")


def make_folder(users: Users | None, limits: Limits) -> Path:
    """Make a sandbox's folder with its job, work and tmp. Raises ProvisionFailed, OSError."""
    base = base_folder()
    room = os.statvfs(base)
    if room.f_bavail * room.f_frsize < limits.disk_mib * MIB:
        raise ProvisionFailed(
            f"{base} has no room for a sandbox of {limits.disk_mib} MiB: free some, or set TMPDIR",
            evidence=f"{room.f_bavail * room.f_frsize} bytes free",
        )
    folder = base / f"{identity()}-{next(_serial)}"
    for path, mode in ((folder, 0o750), (folder / "job", 0o755), (folder / "work", 0o755), (folder / "tmp", 0o1777)):
        path.mkdir()
        if users is not None:
            os.chown(path, users.program if path.name == "work" else users.keeper, users.program)
        path.chmod(mode)
    return folder


def folders_place() -> Path:
    """Where this user's sandboxes have their folders."""
    return Path(tempfile.gettempdir()) / f"headrace-confined-{os.geteuid()}"


def base_folder() -> Path:
    """The folder of this user's sandboxes. Raises ProvisionFailed when it is somebody else's."""
    base = folders_place()
    _make_ours(base, 0o711)
    closed = [folder for folder in base.parents if can_change_users() and not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise ProvisionFailed(
            f"the users of sandboxes cannot reach {base}: set TMPDIR to a folder open to all",
            evidence=f"{closed[0]} has mode {closed[0].stat().st_mode:o}",
        )
    _sweep_once(base, os.getpid())
    return base


def sweep(base: Path) -> int:
    """Remove what dead owners left: processes and folders. Returns how many folders went."""
    return sum(bury(folder) for folder in left_behind(base))


def left_behind(base: Path) -> list[Path]:
    """The folders of sandboxes whose owner is dead."""
    folders = base.iterdir() if base.is_dir() else ()
    return [folder for folder in folders if not folder.name.startswith("python-") and not alive(folder.name)]


def bury(folder: Path) -> bool:
    """Kill what a dead owner's sandbox left, and remove its folder; False if something stayed."""
    with contextlib.suppress(OSError):
        keeper = folder.stat().st_uid
        users = _hold(keeper) if can_change_users() and 0 <= keeper - _first_user() < 2 * _SANDBOXES else None
        if users is not None:  # else it is ours, or somebody has that user now and killed what was left
            if users.running():
                users.kill().wait()
            users.hold.close()
    for pid in inhabitants(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return remove(folder)


def inhabitants(folder: Path) -> list[int]:
    """Processes that are in a folder: work there, or hold a file of it open."""
    inside, found = f"{folder}/", []
    for pid in _pids():
        with contextlib.suppress(OSError):
            links = [f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))]
            if any(os.readlink(link).startswith(inside) for link in links):
                found.append(pid)
    return found


class DiskWatch:
    """How often the writable folders of a sandbox were seen to grow past a limit. Sampled: a short peak slips through.

    What only stays too large is no hit, so that it can be cleared.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folders = [str(folder / "work"), str(folder / "tmp")]
        self._limits = limits.disk_mib * MIB, limits.inodes
        self._used = 0, 0
        self._next = 0.0
        self._hits = 0

    def hits(self) -> int:
        """Look, unless the last look took long and is not long ago."""
        if time.monotonic() >= self._next:
            begun = time.thread_time()  # not the clock: while we wait for a processor programs go on
            used = self._measure()
            self._hits += any(
                now > max(limit, before) for now, before, limit in zip(used, self._used, self._limits, strict=True)
            )
            self._used = used
            self._next = time.monotonic() + _SHARE * (time.thread_time() - begun)
        return self._hits

    def _measure(self) -> tuple[int, int]:
        """Bytes and inodes. Stops at ten times the limit."""
        size, inodes, seen = 0, 0, set()
        waiting = list(self._folders)
        while waiting and inodes <= 10 * self._limits[1]:
            folder = waiting.pop()
            try:
                names = os.listdir(folder)
            except OSError:  # it went, or is closed to us
                continue
            inodes += len(names)
            for path in (f"{folder}/{name}" for name in names):
                try:
                    status = os.lstat(path)
                except OSError as error:
                    if error.errno == errno.ENAMETOOLONG:  # deeper than a path can name: a place to hide in
                        return sys.maxsize, sys.maxsize
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                elif status.st_nlink == 1 or status.st_ino not in seen:
                    seen.add(status.st_ino)
                    size += status.st_blocks * 512
        return size, inodes


def _make_ours(folder: Path, mode: int) -> None:
    """Make a folder that nobody else can change, unless it is there. Raises ProvisionFailed when it is another's."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        folder.chmod(mode)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ProvisionFailed(
            f"{folder} is not a folder of ours alone: remove it, or set TMPDIR",
            evidence=f"mode {status.st_mode:o}, user {status.st_uid}",
        )


def _hold(keeper: int) -> Users | None:
    """Take a pair of users; None if somebody has it. Raises ProvisionFailed, OSError."""
    # The same place for every owner, whatever its TMPDIR, where there is one that nobody tidies up.
    locks = Path("/run/headrace-users") if os.access("/run", os.W_OK) else folders_place() / "users"
    _make_ours(locks, 0o700)
    hold = io.FileIO(str(locks / str(keeper)), "a")
    _held.add(hold)
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hold.close()
        return None
    return Users(keeper, keeper + 1, hold)


@functools.cache
def _first_user() -> int:
    """Processes are counted by user over all containers of a kernel: each takes numbers of its own where all exist."""
    known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    container = os.stat("/proc/self/ns/pid").st_ino & 0xFFFF
    return (1 << 30) + container * 2 * _SANDBOXES if known >= (1 << 32) - 1 else _FIRST_USER


def _let_go_of_all() -> None:
    for hold in _held:
        hold.close()


os.register_at_fork(after_in_child=_let_go_of_all)  # a lock lasts until every copy of its descriptor is closed


@functools.cache
def _sweep_once(base: Path, pid: int) -> None:  # by pid, as a fork is another process
    shutil.rmtree(base / f"{identity()}-python", ignore_errors=True)
    sweep(base)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
