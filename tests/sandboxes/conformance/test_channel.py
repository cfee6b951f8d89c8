"""Descriptor 3: frames of bytes, both ways, beside stdout and stderr."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sandboxes.limits import MIB, Limits
from sandboxes.protocol import Command, Process, Sandbox
from tests.sandboxes.conformance.backends import LIMITS, PYTHON, Backend, host_pids, parent, python

FRAMES = """
import os, sys, time
def send(b):
    view = memoryview(len(b).to_bytes(4, "big") + b)
    while view: view = view[os.write(3, view):]
def take(n):
    b = b""
    while len(b) < n:
        piece = os.read(3, n - len(b))
        if not piece: sys.exit("closed")
        b += piece
    return b
def receive(): return take(int.from_bytes(take(4), "big"))
"""


@contextlib.asynccontextmanager
async def talk(backend: Backend, source: str, limits: Limits = LIMITS) -> AsyncGenerator[Process]:
    async with (
        backend.open(limits) as sandbox,
        await sandbox.start(Command((*PYTHON, FRAMES + source), channel=True)) as process,
    ):
        yield process


async def test_frames_go_both_ways_whole_and_in_order(backend: Backend):
    frames = [b"", b"a", bytes(range(256)), os.urandom(MIB), b"last"]
    async with talk(backend, "for _ in range(5): send(receive()[::-1])") as process:
        for frame in frames:
            await process.send(frame)
        for frame in frames:
            assert await process.receive(timeout_s=10, max_bytes=MIB) == frame[::-1]
        result = await process.wait()
        assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")


async def test_a_frame_past_its_bound_ends_the_talk(backend: Backend):
    for between in ("", "time.sleep(0.2); "):  # in one piece, and in two
        async with talk(backend, f"send(b'12345'); {between}send(b'1234')") as process:
            assert await process.receive(timeout_s=10, max_bytes=4) is None
            await asyncio.sleep(0.4 if between else 0)
            assert await process.receive(timeout_s=10, max_bytes=99) is None
    async with talk(backend, "os.write(3, b'\\xff' * 100)") as process:
        assert await process.receive(timeout_s=10, max_bytes=MIB) is None


async def test_half_a_frame_is_none(backend: Backend):
    for half in ("b'\\0\\0'", "b'\\0\\0\\0\\5abc'"):
        async with talk(backend, f"os.write(3, {half})") as process:
            assert await process.receive(timeout_s=10, max_bytes=9) is None
            assert (await process.wait()).exit_code == 0


async def test_silence_is_none_on_time_and_no_end(backend: Backend):
    async with talk(backend, "receive(); send(b'here')") as process:
        began = time.monotonic()
        assert await process.receive(timeout_s=0.3, max_bytes=9) is None
        assert 0.3 <= time.monotonic() - began < 1.5
        await process.send(b"?")
        assert await process.receive(timeout_s=10, max_bytes=9) == b"here"


async def test_a_program_that_closes_its_end_lives_on(backend: Backend):
    async with talk(backend, "os.close(3); time.sleep(0.2); os.write(1, b'still'); os._exit(7)") as process:
        assert await process.receive(timeout_s=10, max_bytes=9) is None
        await process.send(b"nobody listens")
        result = await process.wait()
        assert (result.exit_code, result.breach, result.stdout) == (7, None, b"still")
        await process.send(b"nobody is there")


async def test_a_program_that_ends_without_a_frame_is_told_at_once(backend: Backend):
    began = time.monotonic()
    async with talk(backend, "os._exit(0)") as process:
        assert await process.receive(timeout_s=9, max_bytes=9) is None
        assert (await process.wait()).exit_code == 0
    assert time.monotonic() - began < 4


async def test_what_it_prints_is_no_frame(backend: Backend):
    async with talk(
        backend, "os.write(1, b'\\0\\0\\0\\4lies'); os.write(2, b'\\0\\0\\0\\4lies'); send(b'true')"
    ) as process:
        assert await process.receive(timeout_s=10, max_bytes=9) == b"true"
        assert await process.receive(timeout_s=10, max_bytes=9) is None
        result = await process.wait()
        assert result.stdout == result.stderr == b"\0\0\0\4lies"


async def test_without_a_channel_there_is_no_descriptor_3(backend: Backend):
    result = await backend.run("import os; os.write(3, b'x')")
    assert (result.exit_code, b"Bad file descriptor" in result.stderr) == (1, True)


async def test_each_send_starts_time_and_output_afresh(backend: Backend):
    limits = LIMITS.model_copy(update={"wall_time_s": 1.2, "output_kib": 1})
    source = "while True: last = receive(); time.sleep(0.35); os.write(1, b'x' * 700); last and sys.exit(); send(b'y')"
    async with talk(backend, source, limits) as process:
        for _ in range(4):
            await process.send(b"")
            assert await process.receive(timeout_s=5, max_bytes=9) == b"y"
        await process.send(b"last")
        result = await process.wait()
        assert (result.exit_code, result.breach, result.stdout) == (0, None, b"x" * 1024)


async def test_each_send_starts_cpu_time_afresh(backend: Backend):
    """Eight times 0.3 s where 0.7 s are allowed each time: more together than any whole second above that."""
    source = """
while seconds := float(receive()):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
    send(b"y")
"""
    async with talk(backend, source, LIMITS.model_copy(update={"cpu_time_s": 0.7})) as process:
        for _ in range(8):
            await process.send(b"0.3")
            assert await process.receive(timeout_s=9, max_bytes=9) == b"y"
        await process.send(b"9")
        assert await process.receive(timeout_s=9, max_bytes=9) is None
        result = await process.wait()
        assert result.breach == "time_limit"
        assert result.cpu_s < 5  # not all the nine seconds


async def test_a_program_that_reads_no_frame_holds_the_sender_no_longer_than_its_time(backend: Backend):
    limits = LIMITS.model_copy(update={"wall_time_s": 0.5})
    async with talk(backend, "time.sleep(60)", limits) as process:
        began = time.monotonic()
        await process.send(bytes(8 * MIB))
        assert await process.receive(timeout_s=0.1, max_bytes=9) is None
        assert (await process.wait()).breach == "time_limit"
        assert time.monotonic() - began < 3


async def test_a_flood_of_frames_that_nobody_reads_does_not_fill_the_host(backend: Backend):
    source = "while True: send(bytes(1 << 20))"
    before = resident_bytes()
    async with talk(backend, source) as process:
        await asyncio.sleep(0.6)
        assert resident_bytes() - before < 64 * MIB
        assert await process.receive(timeout_s=1, max_bytes=MIB) in (bytes(MIB), None)
        await process.kill()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_a_child_may_keep_the_channel(backend: Backend):
    """The frame comes from whoever holds the descriptor; the end of the command ends the talk."""
    async with talk(backend, "if os.fork() == 0: time.sleep(0.2); send(b'child'); os._exit(0)\nos.wait()") as process:
        assert await process.receive(timeout_s=10, max_bytes=9) == b"child"
    async with backend.open() as sandbox:
        assert (await python(sandbox, "pass")).exit_code == 0


async def test_what_was_sent_before_an_end_with_a_full_disk_comes_first(backend: Backend):
    source = """
for n in range(3): send(b"%d" % n)
os.write(3, b"\\0\\0\\0\\5half")
try: open("full", "wb").write(bytes(6 << 20))
except OSError: pass
"""
    async with talk(backend, source, LIMITS.model_copy(update={"disk_mib": 4})) as process:
        await asyncio.sleep(0.5)  # all of it comes at once
        frames = [await process.receive(timeout_s=5, max_bytes=9) for _ in range(5)]
        assert frames == [b"0", b"1", b"2", None, None]
        assert (await process.wait()).breach == "disk_limit"


async def sent_past_its_time(sandbox: Sandbox) -> tuple[Process, int]:
    """A program that sent a frame when its CPU time was used up, which nobody has looked at; and its host pid."""
    mark = f"9{time.monotonic_ns() % 10**6:06d}"
    source = f"""
while time.process_time() < 0.5: pass
send(b"answer")
os.execvp("sleep", ["sleep", "{mark}"])
"""
    process = await sandbox.start(Command((*PYTHON, FRAMES + source), channel=True, cpu_time_s=0.3))
    while not (found := host_pids(f"sleep\0{mark}")):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)  # the frame comes
    return process, found[0]


async def test_what_was_sent_before_the_end_comes_though_a_limit_is_found_broken_first(backend: Backend):
    """The guest cannot tell of the end before we have looked at the limits."""
    if backend.guest_kernel:
        pytest.skip("the host cannot tell one program of this kernel from another")
    async with backend.open() as sandbox:
        process, pid = await sent_past_its_time(sandbox)
        guest = parent(pid)
        os.kill(guest, signal.SIGSTOP)
        os.kill(pid, signal.SIGTERM)
        receiving = asyncio.ensure_future(process.receive(timeout_s=9, max_bytes=9))
        await asyncio.sleep(0.5)
        os.kill(guest, signal.SIGCONT)
        assert await receiving == b"answer"
        assert await process.receive(timeout_s=9, max_bytes=9) is None
        result = await process.wait()
        assert (result.signal, result.breach) == (15, "time_limit")


async def test_what_a_program_sent_that_a_broken_limit_ended_is_not_delivered(backend: Backend):
    """Else a worker's word that its child was killed would come before the limit that killed it."""
    if backend.guest_kernel:
        pytest.skip("the host cannot tell one program of this kernel from another")
    async with backend.open() as sandbox:
        process, _ = await sent_past_its_time(sandbox)
        assert [await process.receive(timeout_s=9, max_bytes=9) for _ in range(2)] == [None, None]
        result = await process.wait()
        assert (result.signal, result.breach) == (9, "time_limit")
