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

from sandboxes.host.owner import alive, identity
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
    processes_refused_above: int = 0
    """Times a process was refused although the sandbox's own limit was not reached: a limit above it was."""
    oom_kills_anywhere: int = 0
    """Processes killed for memory in the group of whoever started the sandbox, where it has none of its own; else 0."""
    disk_limit_hits: int = 0
    """Times the writable folders held too much, where they are not bounded by a file system of their own."""


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
        name = f"{identity()}-{next(_serial)}"
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
                sockets = group.paths["memory"] / "memory.kmem.tcp.limit_in_bytes"
                if sockets.exists():  # memory of sockets, counted on its own: what they hold unread can be gigabytes
                    _write(sockets, memory)
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

    def counters(self, *, brief: bool = False) -> Counters:
        """Read the kernel's counters. Page cache counts in the peak, never as a hit together with a kill.

        Brief: memory is read only after a kill, its peak and hits are 0 before; for those who look often.
        """
        own, above = _refusals(self.paths["pids" if self.version == 1 else "unified"])
        if self.version == 1:
            memory, peak, hits = self.paths["memory"], 0, 0
            kills = _keyed(f"{memory}/memory.oom_control").get("oom_kill", 0)
            if kills or not brief:
                peak = _number(memory / "memory.max_usage_in_bytes")
                # Linux 6.18 leaves failcnt at 0 where older kernels count; the high-water mark tells on both.
                full = peak > _number(memory / "memory.limit_in_bytes") - _HUGE_PAGE
                swap = memory / "memory.memsw.failcnt"  # the limit on both together may be the one that is hit
                hits = max(_number(memory / "memory.failcnt"), int(full), _number(swap) if swap.exists() else 0)
            return Counters(
                cpu_s=_number(f"{self.paths['cpuacct']}/cpuacct.usage") / 1e9,
                peak_memory_bytes=peak,
                oom_kills=kills,
                memory_limit_hits=hits,
                process_limit_hits=own,
                processes_refused_above=above,
            )
        path = self.paths["unified"]
        events = _keyed(path / "memory.events")
        mark = path / "memory.peak"  # since Linux 5.19
        return Counters(
            cpu_s=_keyed(path / "cpu.stat").get("usage_usec", 0) / 1e6,
            peak_memory_bytes=_number(mark if mark.exists() else path / "memory.current"),
            oom_kills=events.get("oom_kill", 0),
            memory_limit_hits=events.get("oom", 0),
            process_limit_hits=own,
            processes_refused_above=above,
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
    found = look_for_hierarchy()
    if found is not None:
        sweep(found)
    return found


def look_for_hierarchy() -> Hierarchy | None:
    """Find where this process may make groups; None if nowhere. Removes nothing."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return _find_v1(mounts) or _find_v2(mounts)


def left_behind(hierarchy: Hierarchy) -> list[Path]:
    """The groups whose owner in our pid namespace is dead."""
    return [
        path for base in hierarchy.bases.values() for path in base.iterdir() if path.is_dir() and not alive(path.name)
    ]


def sweep(hierarchy: Hierarchy) -> int:
    """Remove the groups whose owner in our pid namespace is dead; returns how many folders went."""
    return sum(Cgroup(hierarchy.version, {"left": path}).destroy(patience_s=0.5) for path in left_behind(hierarchy))


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


def _read(path: Path | str) -> bytes:
    fd = os.open(path, os.O_RDONLY)  # not Path.read_text, which takes five times as long
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _number(path: Path | str) -> int:
    return int(_read(path))


def _keyed(path: Path | str) -> dict[str, int]:
    words = _read(path).decode().split()
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}


def _refusals(folder: Path) -> tuple[int, int]:
    """Times a process was refused: because this group was full, because one above it was."""
    refused = _keyed(f"{folder}/pids.events").get("max", 0)
    if not refused:
        return 0, 0
    peak = folder / "pids.peak"  # since Linux 6.6; before, a refusal is taken for the group's own
    if peak.exists() and _number(peak) < _number(folder / "pids.max"):
        return 0, refused
    return refused, 0


def _remove(path: Path) -> bool:
    """Remove a group, and any below it."""
    try:
        for below in path.iterdir():
            if below.is_dir():
                _remove(below)
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
    for pid in set(members) - {"0"}:  # 0 stands for one of another pid namespace, and to kill it means our own group
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
