"""What is left behind: nothing, however a sandbox ends."""

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandboxes.host.cgroup import find_hierarchy
from sandboxes.protocol import Command, SandboxError
from tests.sandboxes.conformance.backends import LIMITS, PYTHON, Backend, host_pids, sh, text

STUBBORN = """
import os, signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.closerange(0, 9); time.sleep(600)
        time.sleep(600)
os.write(1, b"up")
time.sleep(600)
"""


def groups() -> set[str]:
    hierarchy = find_hierarchy()
    bases = hierarchy.bases.values() if hierarchy else ()
    return {str(path) for base in bases for path in base.iterdir() if f"-{os.getpid()}-" in path.name}


def mounts() -> int:
    return Path("/proc/self/mountinfo").read_text().count("headrace")


def children() -> set[str]:
    """Processes of ours, however far below: zygotes stay, sandboxes go."""
    found, waiting = set(), [str(os.getpid())]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                below = (task / "children").read_text().split()
                found |= set(below)
                waiting += below
    return found


def state() -> dict[str, Any]:
    return {"groups": groups(), "mounts": mounts(), "fds": len(os.listdir("/proc/self/fd")), "children": children()}


async def settled(before: dict[str, Any], mark: str) -> None:
    """Wait until there is no more of anything than before; fails with what there is."""
    for _ in range(300):
        now = state()
        # Fewer descriptors: a thread still had to close some when they were counted.
        now["fds"] = max(now["fds"], before["fds"])
        if now == before and not host_pids(mark):
            return
        await asyncio.sleep(0.01)
    assert now == before
    assert host_pids(mark) == []


def fresh_mark() -> str:
    return f"stubborn-{os.getpid()}-{time.monotonic_ns()}"


async def warmed_up(backend: Backend) -> dict[str, Any]:
    """The state with whatever the process keeps for further sandboxes."""
    async with backend.open() as sandbox:
        await sh(sandbox, "true")
    await asyncio.sleep(0.05)
    return state()


async def test_destroying_leaves_nothing(backend: Backend):
    before, mark = await warmed_up(backend), fresh_mark()
    for _ in range(3):
        async with backend.open(files={"f": b"x"}) as sandbox:
            async with await sandbox.start(Command((*PYTHON, STUBBORN, mark), channel=True)):
                await asyncio.sleep(0.1)
            await sh(sandbox, "sleep 600 & echo x >f")
        await settled(before, mark)


async def test_destroying_with_everything_running_leaves_nothing(backend: Backend):
    before, mark = await warmed_up(backend), fresh_mark()
    async with backend.open() as sandbox:
        process = await sandbox.start(Command((*PYTHON, STUBBORN, mark), stdin=bytes(5_000_000), channel=True))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        usage = await sandbox.destroy()
        assert time.monotonic() - began < 2
        assert usage.breach is None
        del process
    await settled(before, mark)


async def test_destroying_twice_gives_the_same_answer(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "echo out; echo err >&2")
        first, second = await asyncio.gather(sandbox.destroy(), sandbox.destroy())
        assert first is second or first == second
        assert (first.stdout, first.stderr) == (b"out\n", b"err\n")
    assert await sandbox.destroy() == first


async def test_what_several_commands_printed_is_kept_in_order_up_to_the_limit(backend: Backend):
    async with backend.open(LIMITS.model_copy(update={"output_kib": 1})) as sandbox:
        for n in range(4):
            await sh(sandbox, f"yes {n} | head -c 400")
    usage = await sandbox.destroy()
    assert usage.stdout == (b"0\n" * 200 + b"1\n" * 200 + b"2\n" * 200)[:1024]


async def test_cancelling_anywhere_leaves_nothing(backend: Backend):
    before, mark = await warmed_up(backend), fresh_mark()

    async def one() -> None:
        async with backend.open(files={"f": b"x"}) as sandbox:
            await sandbox.put({})
            async with await sandbox.start(Command((*PYTHON, STUBBORN, mark), channel=True)) as process:
                await process.receive(timeout_s=0.15, max_bytes=2)
            await sandbox.snapshot()
            await sh(sandbox, "sleep 60")

    for delay in (0, 0.001, 0.003, 0.006, 0.01, 0.015, 0.03, 0.1, 0.19, 0.25, 0.4):
        task = asyncio.ensure_future(one())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, while it closes
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await settled(before, mark)


async def test_a_destroy_once_begun_ends_although_its_caller_is_cancelled(backend: Backend):
    before, mark = await warmed_up(backend), fresh_mark()
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(backend.open())
        await sh(sandbox, f"sleep 600 {mark} & true")
        task = asyncio.ensure_future(sandbox.destroy())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(before, mark)


def test_the_end_of_the_event_loop_leaves_nothing(backend: Backend):
    mark = fresh_mark()

    async def go() -> dict[str, Any]:
        before = await warmed_up(backend)
        background = [asyncio.ensure_future(one()) for _ in range(2)]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(30):
            while not (backend.guest_kernel or host_pids(mark)):
                await asyncio.sleep(0.05)
        del background  # still running: asyncio.run cancels them
        return before

    async def one() -> None:
        async with backend.open() as sandbox:
            await sandbox.exec(Command((*PYTHON, STUBBORN, mark)))

    before = asyncio.run(go())
    before["fds"] = len(os.listdir("/proc/self/fd"))  # without those of the loop itself
    asyncio.run(settled_without_fds(before, mark))


async def settled_without_fds(before: dict[str, Any], mark: str) -> None:
    before["fds"] = len(os.listdir("/proc/self/fd"))
    await settled(before, mark)


async def test_a_destroyed_sandbox_serves_no_more(backend: Backend):
    async with backend.open() as sandbox:
        pass
    with pytest.raises(SandboxError):
        await asyncio.wait_for(sandbox.exec(Command(("true",))), 5)


async def test_an_exec_in_flight_ends_when_the_sandbox_is_destroyed(backend: Backend):
    async with backend.open() as sandbox:
        running = asyncio.ensure_future(sandbox.exec(Command(("sleep", "30"))))
        await asyncio.sleep(0.1)
        await sandbox.destroy()
        await asyncio.wait([running], timeout=3)
        assert running.done()
        with contextlib.suppress(SandboxError):
            assert running.result().signal == 9


async def test_sixteen_at_once_are_sixteen(backend: Backend):
    async def one(n: int) -> tuple[str, str]:
        async with backend.open() as sandbox:
            await sh(sandbox, f"echo {n} >f; sleep 0.05")
            return sandbox.id, await text(sandbox, "cat f")

    found = await asyncio.gather(*map(one, range(16)))
    assert [content for _, content in found] == [f"{n}\n" for n in range(16)]
    assert len({name for name, _ in found}) == 16


def test_kill_9_of_our_process_ends_its_sandboxes(backend: Backend):
    mark = fresh_mark()
    script = f"""
import asyncio, pickle, sys
from sandboxes.protocol import Command, SandboxRequest
async def main():
    provider = pickle.loads({pickle.dumps(backend.provider)!r})
    sandbox = await provider.create(SandboxRequest(image={backend.image!r}))
    running = asyncio.ensure_future(sandbox.exec(Command({(*PYTHON, STUBBORN, mark)!r})))
    print("up", flush=True)
    await asyncio.wait([running])
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"up\n"
        deadline = time.monotonic() + 5
        while not backend.guest_kernel and len(host_pids(mark)) < 5:  # ours, and those inside
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ours.kill()
        ours.wait()
    deadline = time.monotonic() + 2
    while host_pids(mark):
        assert time.monotonic() < deadline, host_pids(mark)
        time.sleep(0.01)
