import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.host.cgroup import Cgroup, Counters, Hierarchy, find_hierarchy, sweep
from sandboxes.limits import Limits

LIMITS = Limits(memory_mib=128)
PYTHON = [os.path.realpath(sys.executable), "-I", "-S", "-E"]


@pytest.fixture
def hierarchy() -> Hierarchy:
    found = find_hierarchy()
    if found is None:
        pytest.skip("no writable control groups on this machine")
    return found


def test_a_group_is_made_with_its_limits_and_goes_again(hierarchy: Hierarchy):
    group = Cgroup.create(Limits(memory_mib=64, processes=5))
    assert group is not None
    if group.version == 1:
        assert (group.paths["memory"] / "memory.limit_in_bytes").read_text() == "67108864\n"  # 64 * 1024 * 1024
        assert (group.paths["pids"] / "pids.max").read_text() == "5\n"
    else:
        assert (group.paths["unified"] / "memory.max").read_text() == "67108864\n"
        assert (group.paths["unified"] / "pids.max").read_text() == "5\n"
    enter = "".join(f"echo 0 > {path};" for path in group.entrances)
    inside = subprocess.Popen(["/bin/sh", "-c", enter + "echo in; exec sleep 60"], stdout=subprocess.PIPE)
    assert inside.stdout is not None
    assert inside.stdout.readline() == b"in\n"
    inside.stdout.close()
    assert group.destroy()  # kills what is inside
    assert inside.wait() == -9
    assert not any(path.exists() for path in group.paths.values())


@pytest.fixture
def nested(hierarchy: Hierarchy) -> Iterator[Hierarchy]:
    """A hierarchy of our own inside the shared one, where no other process sweeps."""
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    inner = Hierarchy(hierarchy.version, {key: base / name for key, base in hierarchy.bases.items()})
    for base in inner.bases.values():
        base.mkdir()
        if inner.version == 2:
            (base / "cgroup.subtree_control").write_text("+memory +pids")
    yield inner
    for base in inner.bases.values():
        base.rmdir()


def test_groups_of_a_dead_owner_are_swept_and_those_of_a_live_one_are_not(nested: Hierarchy):
    script = (
        "from pathlib import PosixPath; from sandboxes.host.cgroup import Cgroup, Hierarchy; "
        f"from sandboxes.limits import Limits; Cgroup.create(Limits(), {nested!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])
    mine = Cgroup.create(LIMITS, nested)
    assert mine is not None
    assert sweep(nested) == len(nested.bases)
    assert sweep(nested) == 0
    assert all(path.exists() for path in mine.paths.values())
    assert mine.destroy()


def test_v2_counters_are_read_from_their_files(tmp_path: Path):
    """Written by hand in the kernel's documented format: no machine here has cgroup v2."""
    for name, text in {
        "memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n",
        "memory.peak": "134217728\n",
        "pids.events": "max 4\n",
        "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
    }.items():
        (tmp_path / name).write_text(text)
    counters = Cgroup(2, {"unified": tmp_path}).counters()
    assert counters == Counters(
        cpu_s=1.5, peak_memory_bytes=134217728, oom_kills=1, memory_limit_hits=2, process_limit_hits=4
    )
