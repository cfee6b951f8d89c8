"""Where a sandbox has no control group of its own: whose was a kill for memory?"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.host import procfs
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.limits import Limits
from sandboxes.protocol import Command, HostOutOfMemory, Result, SandboxRequest
from tests.sandboxes.conformance.backends import host_pids

SMALL = Limits(memory_mib=64)


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or find_hierarchy() is None or procfs.own_events() == Path("/proc/vmstat"),
    reason="needs root, groups that can be made, and a counter of our own group that can be read",
)


def killed_while(meanwhile: Callable[[], Awaitable[None]]) -> Result:
    """End of a program without a group of its own that something kills after `meanwhile`."""
    return asyncio.run(_killed_while(meanwhile))


async def _killed_while(meanwhile: Callable[[], Awaitable[None]]) -> Result:
    async with await Bubblewrap(cgroups=False).create(SandboxRequest(image="host", limits=SMALL)) as sandbox:
        mark = f"9{os.getpid()}.5"
        async with await sandbox.start(Command(("sleep", mark))) as process:
            await asyncio.sleep(0.1)
            await meanwhile()
            for pid in host_pids(f"sleep\0{mark}"):
                os.kill(pid, signal.SIGKILL)
            return await process.wait()


def test_a_neighbour_killed_for_memory_in_its_own_group_says_nothing_of_ours():
    before = kills_of_the_host()

    async def a_hog_dies():
        async with await Bubblewrap(cgroups=True).create(SandboxRequest(image="host", limits=SMALL)) as sandbox:
            hog = await sandbox.exec(Command(("python3", "-c", "x = b'x' * 10**9")))
        assert hog.breach == "memory_limit"

    result = killed_while(a_hog_dies)
    assert (result.signal, result.breach) == (9, None)
    assert kills_of_the_host() > before


def kills_of_the_host() -> int:
    return int(Path("/proc/vmstat").read_text().split("oom_kill ")[1].split()[0])


def test_a_kill_for_memory_in_the_group_we_share_is_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The counter is a file of ours here: to have the kernel kill in our own group would end the tests."""
    counter = tmp_path / "memory.oom_control"
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    monkeypatch.setattr(procfs, "own_events", lambda: counter)

    async def the_host_kills():
        counter.write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 4\n")

    with pytest.raises(HostOutOfMemory) as raised:
        killed_while(the_host_kills)
    assert "1 killed" in raised.value.evidence
