"""A process tree watched through /proc: the counters where no control group can be had.

Sampled, so a short peak can slip through; rlimits inside the sandbox bound each process meanwhile.
"""

import contextlib
import functools
import os
from pathlib import Path

from sandboxes.host.cgroup import Counters
from sandboxes.limits import MIB, Limits

_TICKS_PER_S = 100  # USER_HZ, fixed in the kernel's interface on every architecture Python runs on


class ProcessTree:
    """The descendants of one process. Each `counters()` takes a sample and remembers the worst seen."""

    def __init__(self, root_pid: int, limits: Limits) -> None:
        self._root = root_pid
        self._memory_limit = limits.memory_mib * MIB
        self._process_limit = limits.processes
        self._cpu_s = 0.0
        self._peak = 0
        self._memory_hits = 0
        self._process_hits = 0

    def counters(self) -> Counters:
        """Sample the tree. A sum of resident memory or of threads past its limit counts as a hit."""
        cpu, memory, threads = 0.0, 0, 0
        memfds: dict[int, int] = {}
        waiting = [self._root]
        while waiting and threads <= self._process_limit:  # more would only take longer to see
            pid = waiting.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                memfds |= _memfds(pid)
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += [int(child) for child in (task / "children").read_text().split()]
            except OSError:  # it ended while we looked
                continue
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            memory += _resident_bytes(pid, fields)
            threads += int(fields.get("Threads", "0"))
            cpu += sum(int(ticks) for ticks in stat[11:15]) / _TICKS_PER_S
        memory += sum(memfds.values())
        self._cpu_s, self._peak = max(self._cpu_s, cpu), max(self._peak, memory)
        self._memory_hits += memory > self._memory_limit
        self._process_hits += threads > self._process_limit
        return Counters(
            cpu_s=self._cpu_s,
            peak_memory_bytes=self._peak,
            oom_kills=self._memory_hits,
            memory_limit_hits=self._memory_hits,
            process_limit_hits=self._process_hits,
            oom_kills_anywhere=_oom_kills(),
        )


def _oom_kills() -> int:
    """Processes killed for memory in our own control group, whose programs these are; on the whole host if unseen."""
    file = own_events()
    for line in file.read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


@functools.cache
def own_events() -> Path:
    """The file that counts kills for memory in the group this process is in: it may be read where none can be made."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        for _, controllers, group in own:
            if kind == "cgroup" and controllers == "memory" and "memory" in options.split(","):
                name = "memory.oom_control"
            elif kind == "cgroup2" and not controllers:
                name = "memory.events.local"
            else:
                continue
            file = Path(fields[4], os.path.relpath(group, fields[3]), name)
            if ".." not in file.parts and "oom_kill " in _text(file):
                return file
    return Path("/proc/vmstat")


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _resident_bytes(pid: int, status: dict[str, str]) -> int:
    """Memory of a process: its share of pages held together with others, where we may look; else all it maps."""
    names = {"Pss_Anon", "Pss_Shmem"}
    try:
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return sum(int(line[1]) for line in lines if line[0].rstrip(":") in names) * 1024
    except OSError:
        return sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def _memfds(pid: int) -> dict[int, int]:
    """Bytes of the memory files a process holds open, by inode: no process need map them."""
    found = {}
    with contextlib.suppress(OSError):  # it ended, or (without root) hides itself, as our own worker does
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith("/memfd:"):
                status = os.stat(link)
                found[status.st_ino] = status.st_blocks * 512
    return found
