import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.cgroup import find_hierarchy
from tests.sandboxes.conftest import LIMITS, PYTHON, SEND


def sandboxed_processes(mark: str) -> list[int]:
    """Live processes, of any owner, whose command line holds the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def leftovers(mark: str, owner: int) -> tuple[int, int]:
    """Live processes of the mark, and control groups that belong to a process."""
    hierarchy = find_hierarchy()
    groups = [path.name for base in (hierarchy.bases.values() if hierarchy else ()) for path in base.iterdir()]
    return len(sandboxed_processes(mark)), sum(f"-{owner}-" in name for name in groups)


def eventually_none(mark: str, owner: int) -> tuple[int, int]:
    for _ in range(300):
        if (left := leftovers(mark, owner)) == (0, 0):
            break
        time.sleep(0.01)
    return left


STUBBORN = (
    SEND
    + """
import signal, time
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.close(1); os.close(2); os.close(3); time.sleep(600)
        time.sleep(600)
send(b'up')
time.sleep(600)
"""
)


def test_cancelling_anywhere_leaves_nothing(sandbox: Bubblewrap):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"

    async def one() -> None:
        async with await sandbox.open([*PYTHON, "-c", STUBBORN, mark], files={"f": b"x"}, limits=LIMITS) as session:
            await session.receive(timeout_s=10, max_bytes=2)
            await session.receive(timeout_s=60, max_bytes=2)

    async def go() -> int:
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
        before = len(os.listdir("/proc/self/fd"))
        for delay in (0, 0.001, 0.01, 0.03, 0.1, 0.4):
            task = asyncio.ensure_future(one())
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # once more, while it closes
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for _ in range(300):
            if len(os.listdir("/proc/self/fd")) <= before:
                break
            await asyncio.sleep(0.01)
        return len(os.listdir("/proc/self/fd")) - before

    asyncio.run(asyncio.sleep(0))
    assert asyncio.run(go()) <= 0
    assert eventually_none(mark, os.getpid()) == (0, 0)


def test_the_end_of_the_event_loop_leaves_nothing(sandbox: Bubblewrap):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"

    async def go() -> None:
        async def one() -> None:
            async with await sandbox.open([*PYTHON, "-c", STUBBORN, mark], files={}, limits=LIMITS) as session:
                await session.receive(timeout_s=10, max_bytes=2)
                await session.receive(timeout_s=60, max_bytes=2)

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0.3)
        assert leftovers(mark, os.getpid())[0] > 0
        del task  # still running: asyncio.run cancels it and waits for its threads

    asyncio.run(go())
    assert eventually_none(mark, os.getpid()) == (0, 0)


@pytest.mark.parametrize("cgroups", [True, False])
def test_kill_9_of_our_process_ends_the_sandbox(cgroups: bool):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"
    script = f"""
import asyncio
from sandboxes.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
async def main():
    session = await Bubblewrap(cgroups={cgroups}).open({[*PYTHON, "-c", STUBBORN, mark]!r}, files={{}}, limits=Limits())
    print(await session.receive(timeout_s=20, max_bytes=2), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"x": mark},
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"b'up'\n"
        assert len(sandboxed_processes(mark)) > 3
        ours.kill()
        ours.wait()
    for _ in range(300):
        if not sandboxed_processes(mark):
            break
        time.sleep(0.01)
    assert sandboxed_processes(mark) == []
