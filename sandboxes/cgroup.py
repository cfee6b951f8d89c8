"""Control groups by direct file writes: limits the kernel enforces, and counters that tell which limit was hit.

Version 1 groups lie in `<mount>/headrace` of the memory, pids and cpuacct hierarchies; version 2 groups in `headrace`
below the nearest ancestor of our own group that hands out the memory and pids controllers and that we may write to.
Where neither can be written (no root, nothing delegated) `Cgroup.create` returns None and the caller falls back to
rlimits. A group's name carries the pid namespace, pid and start time of its owner, so that the groups of a dead owner
can be told from a live one's and are removed at the first use in the next process.
"""

import functools
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from sandboxes.limits import MIB, Limits

_HUGE_PAGE = 2 * MIB  # the largest single charge: a full group may stay this much below its limit
_V1_CONTROLLERS = ("memory", "pids", "cpuacct")
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counted for one sandbox since it began."""

    cpu_s: float
    peak_memory_bytes: int
    oom_kills: int
    """Processes killed for memory inside, whoever's limit was full."""
    memory_limit_hits: int
    """Times the sandbox's own memory limit was in the way: 0 means that a kill was ordered from above."""
    process_limit_hits: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made: the folder for each controller (v1) or the one folder (v2, key "unified")."""

    version: int
    bases: dict[str, Path]


class Cgroup:
    """One group with limits. Made before the sandbox starts, removed after it ended."""

    def __init__(self, version: int, paths: dict[str, Path]) -> None:
        self.version = version
        self.paths = paths

    @classmethod
    def create(cls, limits: Limits, hierarchy: Hierarchy | None = None) -> "Cgroup | None":
        """Make a group that enforces `limits`; None where this process cannot make one."""
        found = hierarchy or find_hierarchy()
        if found is None:
            return None
        name = f"{_owner()}-{next(_serial)}"
        group = cls(found.version, {key: base / name for key, base in found.bases.items()})
        memory = str(limits.memory_mib * MIB)
        try:
            for path in set(group.paths.values()):
                path.mkdir()
            if found.version == 1:
                _write(group.paths["memory"] / "memory.limit_in_bytes", memory)
                swap = group.paths["memory"] / "memory.memsw.limit_in_bytes"
                if swap.exists():  # memory and swap together: no swap for the group
                    _write(swap, memory)
                _write(group.paths["pids"] / "pids.max", str(limits.processes))
            else:
                path = group.paths["unified"]
                _write(path / "memory.max", memory)
                if (path / "memory.swap.max").exists():
                    _write(path / "memory.swap.max", "0")
                _write(path / "pids.max", str(limits.processes))
        except OSError:
            group.destroy(patience_s=0)
            raise
        return group

    @property
    def entrances(self) -> list[str]:
        """Files into which a process of one thread writes 0 to enter the group."""
        # v1 `tasks` moves the writer without the lock over all processes that `cgroup.procs` takes (0.3 ms, not 20-90).
        file = "tasks" if self.version == 1 else "cgroup.procs"
        return [str(path / file) for path in sorted(set(self.paths.values()))]

    def counters(self) -> Counters:
        """Read the kernel's counters. Page cache counts in the peak, never as a hit together with a kill."""
        if self.version == 1:
            memory, pids = self.paths["memory"], self.paths["pids"]
            peak = _number(memory / "memory.max_usage_in_bytes")
            # Linux 6.18 leaves failcnt at 0 where older kernels count; the high-water mark tells on both.
            full = peak > _number(memory / "memory.limit_in_bytes") - _HUGE_PAGE
            return Counters(
                cpu_s=_number(self.paths["cpuacct"] / "cpuacct.usage") / 1e9,
                peak_memory_bytes=peak,
                oom_kills=_keyed(memory / "memory.oom_control").get("oom_kill", 0),
                memory_limit_hits=max(_number(memory / "memory.failcnt"), int(full)),
                process_limit_hits=_keyed(pids / "pids.events").get("max", 0),
            )
        path = self.paths["unified"]
        events = _keyed(path / "memory.events")
        mark = path / "memory.peak"  # since Linux 5.19
        return Counters(
            cpu_s=_keyed(path / "cpu.stat").get("usage_usec", 0) / 1e6,
            peak_memory_bytes=_number(mark if mark.exists() else path / "memory.current"),
            oom_kills=events.get("oom_kill", 0),
            memory_limit_hits=events.get("oom", 0),
            process_limit_hits=_keyed(path / "pids.events").get("max", 0),
        )

    def destroy(self, *, patience_s: float = 5.0) -> bool:
        """Kill what is left inside and remove the group; False if the kernel still holds it after `patience_s`."""
        deadline = time.monotonic() + patience_s
        while True:
            left = [path for path in self.paths.values() if not _remove(path)]
            if not left:
                return True
            if time.monotonic() > deadline:
                return False  # a process in uninterruptible sleep; the next process's sweep tries again
            for path in left:
                _kill_members(path)
            time.sleep(0.001)


@functools.cache
def find_hierarchy() -> Hierarchy | None:
    """Find where this process may make groups, and remove there what dead owners left. None if nowhere."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = _find_v1(mounts) or _find_v2(mounts)
    if found is not None:
        sweep(found)
    return found


def sweep(hierarchy: Hierarchy) -> int:
    """Remove the groups whose owner in our pid namespace is dead; returns how many folders went."""
    removed = 0
    for base in hierarchy.bases.values():
        for path in base.iterdir():
            namespace, pid, start, *_ = [*path.name.split("-"), "", "", ""]
            if not path.is_dir() or namespace != _pid_namespace() or _start_time(pid) == start:
                continue
            removed += Cgroup(hierarchy.version, {"left": path}).destroy(patience_s=0.5)
    return removed


def _find_v1(mounts: list[list[str]]) -> Hierarchy | None:
    points: dict[str, Path] = {}
    for mount in mounts:
        kind, _, options = mount[mount.index("-") + 1 :][:3]
        if kind == "cgroup":
            points |= {name: Path(mount[4]) for name in _V1_CONTROLLERS if name in options.split(",")}
    if len(points) < len(_V1_CONTROLLERS):
        return None
    bases = {name: point / "headrace" for name, point in points.items()}
    return Hierarchy(1, bases) if all(_usable(base) for base in bases.values()) else None


def _find_v2(mounts: list[list[str]]) -> Hierarchy | None:
    points = [Path(mount[4]) for mount in mounts if mount[mount.index("-") + 1] == "cgroup2"]
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    if not points or not own:
        return None
    here = points[0] / own[0].lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(points[0]):
            return None
        control = folder / "cgroup.subtree_control"
        if not control.exists() or not {"memory", "pids"} <= set(control.read_text().split()):
            continue
        base = folder / "headrace"
        if not _usable(base):
            continue
        try:
            _write(base / "cgroup.subtree_control", "+memory +pids")
        except OSError:
            continue
        return Hierarchy(2, {"unified": base})
    return None


def _usable(base: Path) -> bool:
    try:
        base.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(base, os.W_OK | os.X_OK)


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _number(path: Path) -> int:
    return int(path.read_text())


def _keyed(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


def _remove(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill_members(path: Path) -> None:
    try:
        members = (path / "cgroup.procs").read_text().split()
    except OSError:
        return
    for pid in members:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _owner() -> str:
    return f"{_pid_namespace()}-{os.getpid()}-{_start_time(str(os.getpid()))}"


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start_time(pid: str) -> str | None:
    """Clock ticks between boot and the start of a process, as text; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rsplit(")", 1)[1].split()[19]
