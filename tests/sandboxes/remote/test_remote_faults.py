"""Workers behind slow and broken networks, calls given up at any moment, messages too large, and draining."""

import asyncio
import contextlib
import os
import random
import signal
import struct
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

import sandboxes.remote.client
from sandboxes.limits import MIB, Limits
from sandboxes.protocol import Command, File, ProvisionFailed, SandboxError, SandboxLost, SandboxRequest
from sandboxes.remote.client import Remote, RemoteProcess
from sandboxes.remote.wire import decode
from tests.sandboxes.conformance.backends import host_pids
from tests.sandboxes.worker_processes import Network, WorkerProcess, remote, until, worker

REQUEST = SandboxRequest(limits=Limits(wall_time_s=10, memory_mib=64))
SEND = "import os, sys, time\ndef send(b): os.write(3, len(b).to_bytes(4, 'big') + b)\n"
ENDS_SLOWLY = """
import asyncio
from sandboxes.process import GuestProcess
end_programs = GuestProcess._end_programs
async def slowly(self):
    await asyncio.sleep(0.03)
    await end_programs(self)
GuestProcess._end_programs = slowly
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Generator[WorkerProcess]:
    with worker(tmp_path_factory.mktemp("worker")) as process:
        yield process
        assert process.groups() == []


def channel(source: str) -> Command:
    return Command(("python3", "-c", SEND + source), channel=True)


def through(network: Network, host: WorkerProcess, job: Callable[[Remote], Awaitable[None]]) -> None:
    async def go() -> None:
        async with network.before(host) as provider:
            await job(provider)

    asyncio.run(go())


def test_a_slow_network_makes_no_deadline_shorter(host: WorkerProcess):
    async def job(provider: Remote) -> None:
        async with await provider.create(REQUEST) as sandbox:
            async with await sandbox.start(
                channel("send(b'up'); os.read(3, 4); send(b'here'); time.sleep(9)")
            ) as process:
                assert await process.receive(timeout_s=9, max_bytes=99) == b"up"
                await process.send(b"")
                begun = time.monotonic()
                assert await process.receive(timeout_s=0.35, max_bytes=99) == b"here"  # 0.2 s there, 0.2 s back
                assert time.monotonic() - begun > 0.4
                assert await process.receive(timeout_s=0.15, max_bytes=99) is None
            result = await sandbox.exec(Command(("sleep", "0.1"), wall_time_s=0.35))
            assert (result.breach, result.exit_code) == (None, 0)
            assert 0.1 <= result.wall_s < 0.35

    through(Network(delay_s=0.2), host, job)


def test_a_large_message_holds_up_nobody_and_is_no_silence(host: WorkerProcess):
    async def job(provider: Remote) -> None:
        async with await provider.create(REQUEST) as one, await provider.create(REQUEST) as other:
            content, begun = os.urandom(2 * MIB), time.monotonic()
            large = asyncio.ensure_future(one.put({"f": File(content)}))
            await asyncio.sleep(0.05)
            assert (await other.exec(Command(("echo", "x")))).stdout == b"x\n"
            assert not large.done()
            await large
            assert time.monotonic() - begun > 1.0  # longer than silence_s, 0.6
            assert (await one.get(["f"], max_bytes=4 * MIB))["f"].content == content

    through(Network(rate=1.8 * MIB), host, job)


def test_a_connection_that_carries_nothing_any_more_is_lost_on_both_sides(host: WorkerProcess):
    mark = f"14142.{os.getpid()}"
    network = Network()

    async def job(provider: Remote) -> None:
        sandbox = await provider.create(REQUEST)
        running = asyncio.ensure_future(sandbox.exec(Command(("sh", "-c", f"sleep {mark}; true"))))
        await until(lambda: len(host_pids(mark)) == 2)
        network.cut = True
        with pytest.raises(SandboxLost, match=f"{provider.address}: silent for 0.6 s"):
            await running
        await until(lambda: not host_pids(mark) and not host.groups(), within_s=0.6 * 6 + 1)

    through(network, host, job)


def test_creates_given_up_at_any_moment_leave_nothing(host: WorkerProcess):
    rng = random.Random(11)

    async def one(provider: Remote, takes_s: float) -> bool:
        making = asyncio.ensure_future(provider.create(REQUEST))
        await asyncio.sleep(rng.uniform(0, 1.5 * takes_s))
        making.cancel()
        try:
            await (await making).destroy()
        except asyncio.CancelledError:
            return True
        return False

    async def job(provider: Remote) -> None:
        begun = time.monotonic()
        await (await provider.create(REQUEST)).destroy()
        takes_s = (time.monotonic() - begun) / 2
        in_turn = [await one(provider, takes_s) for _ in range(25)]
        at_once = await asyncio.gather(*(one(provider, 4 * takes_s) for _ in range(25)))
        assert 10 < sum(in_turn) + sum(at_once) < 50
        await until(lambda: not host.groups())  # while the connection stands

    through(Network(delay_s=0.02), host, job)


def test_commands_given_up_end_and_do_not_end_the_next(tmp_path: Path):
    mark = f"17320.{os.getpid()}"
    rng = random.Random(12)

    async def job(provider: Remote) -> None:
        async with await provider.create(REQUEST) as sandbox:
            for verb in [sandbox.exec, sandbox.start] * 8:
                running = asyncio.ensure_future(verb(Command(("sh", "-c", f"sleep {mark}; true"))))
                await asyncio.sleep(rng.uniform(0, 0.06))
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    process = await running
                    assert isinstance(process, RemoteProcess)  # no `exec` ends by itself
                    await process.__aexit__(None, None, None)
                result = await sandbox.exec(Command(("sh", "-c", "sleep 0.06; echo x")))
                assert (result.stdout, result.signal) == (b"x\n", None)
                assert host_pids(mark) == []

    with worker(tmp_path, before=ENDS_SLOWLY) as process:
        through(Network(delay_s=0.02), process, job)


def test_a_receive_given_up_loses_no_frame(host: WorkerProcess):
    rng = random.Random(13)
    source = "for i in range(150): send(b'%d' % i); time.sleep(0.002 * (i % 3))"

    async def go() -> None:
        got, given_up = [], 0
        async with await remote(host).create(REQUEST) as sandbox, await sandbox.start(channel(source)) as process:
            while len(got) < 150:
                try:
                    async with asyncio.timeout(rng.uniform(0, 0.004)):
                        got.append(await process.receive(timeout_s=5, max_bytes=99))
                except TimeoutError:
                    given_up += 1
        assert got == [b"%d" % i for i in range(150)]
        assert given_up > 20

    asyncio.run(go())


def test_messages_past_the_bound_are_refused_by_name_and_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def go(process: WorkerProcess) -> None:
        async with await remote(process).create(REQUEST) as sandbox:
            with pytest.raises(SandboxError, match=r"exec takes 2\d{5} bytes, a message at most 100000"):
                await sandbox.exec(Command(("true",), stdin=bytes(200_000)))
            with pytest.raises(ProvisionFailed, match=r"create takes .* at most 100000"):
                await remote(process).create(SandboxRequest(files={"f": bytes(200_000)}))
            await sandbox.exec(Command(("sh", "-c", "head -c 100000 /dev/zero >f")))
            with pytest.raises(SandboxError, match=r"the answer to get takes 1\d{5} bytes.* at most 90000") as lost:
                await sandbox.get(["f"], max_bytes=MIB)
            assert type(lost.value) is SandboxError
            assert (await sandbox.exec(Command(("echo", "x")))).stdout == b"x\n"

    monkeypatch.setattr(sandboxes.remote.client, "LARGEST", 100_000)
    with worker(tmp_path, before="import sandboxes.remote.serving as w; w.LARGEST = 90_000") as process:
        asyncio.run(go(process))


def test_a_client_that_breaks_the_rules_is_shut_out_and_others_stay(tmp_path: Path):
    def part(kind: bytes, number: int, body: bytes = b"") -> bytes:
        return struct.pack(">IBI", len(body), kind[0], number) + body

    rude = {
        "a part of 1000000000 bytes": struct.pack(">IBI", 10**9, ord("+"), 0),
        "a message of more than 4096 bytes": part(b"+", 0, bytes(3000)) * 2,
        "a call before the token was shown": part(b".", 7, b"{}"),
        "a part of the kind 'q'": part(b"q", 0),
        "a broken message": part(b".", 0, b"\0\0\0\1"),
        "version None, not 1": part(b".", 0, b"\0\0\0\2\0\0\0\0{}"),
    }

    async def go(process: WorkerProcess) -> None:
        async with await remote(process).create(REQUEST) as sandbox:
            for why, said in rude.items():
                reader, writer = await asyncio.open_unix_connection(process.address.removeprefix("unix:"))
                size, _, _ = struct.unpack(">IBI", await reader.readexactly(9))
                assert len(str(decode(await reader.readexactly(size))["nonce"])) == 32
                writer.write(said)
                async with asyncio.timeout(5):
                    assert why in (await reader.read()).decode(errors="replace")
                writer.close()
            assert (await sandbox.exec(Command(("echo", "x")))).stdout == b"x\n"
            with pytest.raises(SandboxLost, match="a message of more than 300000 bytes"):
                await sandbox.put({"f": File(bytes(400_000))})
            with pytest.raises(SandboxLost, match="a message of more than 300000 bytes"):
                await sandbox.destroy()

    with (
        contextlib.suppress(SandboxLost),
        worker(tmp_path, before="import sandboxes.remote.wire as w; w.LARGEST = 300_000") as w,
    ):
        asyncio.run(go(w))


def test_a_draining_worker_makes_nothing_new_and_ends_with_its_last_sandbox(tmp_path: Path):
    async def go(process: WorkerProcess) -> None:
        provider = remote(process)
        async with await provider.create(REQUEST) as sandbox:
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            with pytest.raises(ProvisionFailed, match=r"it was told to end.*unix:"):
                await provider.create(REQUEST)
            assert (await sandbox.exec(Command(("echo", "x")))).stdout == b"x\n"
            assert process.process.poll() is None
            assert (await sandbox.destroy()).stdout == b"x\n"
        await until(lambda: process.process.poll() == 0)
        assert process.groups() == []

    with worker(tmp_path) as process:
        asyncio.run(go(process))


def test_the_grace_of_a_draining_worker_ends(tmp_path: Path):
    async def go(process: WorkerProcess) -> None:
        sandbox = await remote(process).create(REQUEST)
        running = asyncio.ensure_future(sandbox.exec(Command(("sleep", "9"))))
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(SandboxLost, match="told to end, and its grace of 1 s is over"):
            await running
        await until(lambda: process.process.poll() == 0)
        assert process.groups() == []

    with worker(tmp_path, "--grace", "1") as process:
        asyncio.run(go(process))
