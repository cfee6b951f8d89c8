"""Sandboxes of real worker processes, over Unix sockets and loopback."""

import asyncio
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from sandboxes.limits import MIB, Limits
from sandboxes.protocol import (
    Command,
    File,
    FilesRefused,
    ProvisionFailed,
    SandboxLost,
    SandboxRequest,
    Snapshot,
)
from sandboxes.remote.client import Remote, RemoteSandbox, fleet_of
from tests.sandboxes.conformance.backends import host_pids
from tests.sandboxes.worker_processes import TOKEN, Network, WorkerProcess, remote, until, worker

REQUEST = SandboxRequest(limits=Limits(wall_time_s=10, memory_mib=64))
FRAMES = """
import os, sys, time
def send(b): os.write(3, len(b).to_bytes(4, 'big') + b)
"""


@pytest.fixture(scope="module", params=["unix", "tcp"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[WorkerProcess]:
    with worker(tmp_path_factory.mktemp("worker"), tcp=request.param == "tcp") as process:
        yield process
        assert process.groups() == []


def using(host: WorkerProcess, job: Callable[[RemoteSandbox], Awaitable[None]], silence_s: float = 10.0) -> None:
    async def go() -> None:
        async with await remote(host, silence_s).create(REQUEST) as sandbox:
            await job(sandbox)

    asyncio.run(go())


def python(source: str, **command: object) -> Command:
    return Command(("python3", "-c", FRAMES + source), **command)  # ty: ignore[invalid-argument-type]


def sleep(mark: str) -> Command:
    return Command(("sh", "-c", f"sleep {mark}; true"))


def test_every_verb_works_over_the_connection(host: WorkerProcess):
    async def job(sandbox: RemoteSandbox) -> None:
        content = os.urandom(1_000_000)
        await sandbox.put({"a/b": File(content, 0o755), "c": File(b"")})
        assert await sandbox.get(["a", "c", "none"], max_bytes=MIB) == {"a/b": File(content, 0o755), "c": File(b"")}
        result = await sandbox.exec(Command(("sh", "-c", "cat; echo $A >&2; exit 3"), stdin=b"in", env={"A": "e"}))
        assert (result.exit_code, result.signal, result.breach) == (3, None, None)
        assert (result.stdout, result.stderr) == (b"in", b"e\n")
        async with await sandbox.start(
            python("send(b'one'); send(b'two'); os.read(3, 7) and os._exit(5)", channel=True)
        ) as process:
            assert await process.receive(timeout_s=5, max_bytes=9) == b"one"
            assert await process.receive(timeout_s=5, max_bytes=9) == b"two"
            assert await process.receive(timeout_s=0.05, max_bytes=9) is None
            await process.send(b"end")
            assert (await process.wait()).exit_code == 5
        snapshot = await sandbox.snapshot()
        usage = await sandbox.destroy()
        assert await sandbox.destroy() == usage
        assert usage.stdout.startswith(b"in")
        assert usage.cpu_s > 0
        async with await remote(host).create(SandboxRequest(snapshot=snapshot, files={"f": b"job"})) as second:
            assert await second.get(["a/b"], max_bytes=MIB) == {"a/b": File(content, 0o755)}
            assert (await second.exec(Command(("cat", f"{second.job}/f")))).stdout == b"job"

    using(host, job)


def test_breaches_and_kills_are_results(host: WorkerProcess):
    async def job(sandbox: RemoteSandbox) -> None:
        assert (await sandbox.exec(Command(("sleep", "9"), wall_time_s=0.2))).breach == "time_limit"
        async with await sandbox.start(Command(("sleep", "9"))) as process:
            result = await process.kill()
            assert (result.signal, result.breach) == (signal.SIGKILL, None)
        assert (await sandbox.exec(python("x = bytearray(10**9)"))).breach == "memory_limit"

    using(host, job)


def test_errors_have_the_type_they_have_here(host: WorkerProcess):
    async def job(sandbox: RemoteSandbox) -> None:
        with pytest.raises(FilesRefused, match=r"\.\./x"):
            await sandbox.put({"../x": File(b"")})
        await sandbox.exec(Command(("ln", "-s", "/etc/passwd", "link")))
        with pytest.raises(FilesRefused, match="no regular file"):
            await sandbox.get(["link"], max_bytes=MIB)
        with pytest.raises(ProvisionFailed, match=f"headrace sandbox build.*{host.address}"):
            await remote(host).create(SandboxRequest(image="nowhere"))
        with pytest.raises(ValueError, match="argv"):
            await sandbox.exec(Command(5))  # ty: ignore[invalid-argument-type]
        with pytest.raises(ProvisionFailed, match=r"the snapshot is damaged.*is ba7816bf"):  # SHA-256 of abc
            await remote(host).create(SandboxRequest(snapshot=Snapshot("../../etc", b"abc")))
        await sandbox.destroy()
        with pytest.raises(SandboxLost, match="no such sandbox"):
            await sandbox.exec(Command(("true",)))

    using(host, job)


def test_many_sandboxes_share_a_connection_and_keep_apart(tmp_path: Path):
    network = Network()

    async def one(provider: Remote, i: int) -> bytes:
        async with await provider.create(REQUEST) as sandbox:
            await sandbox.put({"n": File(b"%d" % i)})
            return (await sandbox.exec(Command(("cat", "n")))).stdout

    async def go(process: WorkerProcess) -> None:
        async with network.before(process) as provider:
            assert await asyncio.gather(*(one(provider, i) for i in range(20))) == [b"%d" % i for i in range(20)]

    with worker(tmp_path) as process:
        asyncio.run(go(process))
        threads = [threading.Thread(target=using, args=(process, lambda sandbox: sandbox.put({}))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert network.connections == 1


def test_only_those_who_know_the_token_get_in(tmp_path: Path):
    with worker(tmp_path, tcp=True) as process:
        for token in ("", TOKEN[:-1], TOKEN + "x"):
            with pytest.raises(ProvisionFailed, match=f"{process.address}.*a wrong token"):
                asyncio.run(Remote(process.address, token=token).create(REQUEST))
        assert asyncio.run(Remote(process.address, token=TOKEN).capacity()).cpus == len(os.sched_getaffinity(0))
    refused = subprocess.run(
        [sys.executable, "-m", "sandboxes.remote.worker", "--listen", "127.0.0.1:0"], capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--token-file" in refused.stderr


def test_a_client_does_not_take_a_stranger_for_its_worker():
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from sandboxes.remote.wire import VERSION, encode

        for message in (encode({"version": VERSION, "nonce": "0"}), encode({"proof": "", "capacity": {}})):
            writer.write(len(message).to_bytes(4) + b"." + bytes(4) + message)
        await writer.drain()
        await reader.read()
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(impostor, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ProvisionFailed, match="a wrong token"):
                await Remote(f"127.0.0.1:{port}", token=TOKEN).create(REQUEST)

    asyncio.run(go())


def test_the_unix_socket_is_ours_alone_and_leaves_with_the_worker(tmp_path: Path):
    path = tmp_path / "w.sock"
    with worker(tmp_path) as process:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        second = subprocess.run(
            [sys.executable, "-m", "sandboxes.remote.worker", "--listen", process.address],
            capture_output=True,
            text=True,
        )
        assert second.returncode == 2
        assert "already in use" in second.stderr
        process.end(signal.SIGKILL)
    assert path.exists()
    with worker(tmp_path) as process:  # in the place of the dead one
        assert process.end(signal.SIGTERM) == 0
    assert not path.exists()


def test_a_remote_travels_without_showing_its_token():
    provider = Remote("10.0.0.5:7070", token="s3cret")
    assert pickle.loads(pickle.dumps(provider)) == provider
    assert "s3cret" not in repr(provider)
    for address, silence_s in (("nowhere", 1.0), ("h:1", 0.0)):
        with pytest.raises(ValueError, match=r"nowhere|silence_s"):
            Remote(address, silence_s=silence_s)


def test_no_worker_is_a_failure_with_the_address(tmp_path: Path):
    for address in (f"unix:{tmp_path}/none.sock", "127.0.0.1:1"):
        with pytest.raises(ProvisionFailed, match=address):
            asyncio.run(Remote(address).create(REQUEST))
        with pytest.raises(ProvisionFailed, match=address):
            asyncio.run(fleet_of([Remote(address)], backend="bubblewrap"))


def test_a_worker_of_another_backend_is_refused(tmp_path: Path):
    """Rows say which back-end a program ran in."""
    with worker(tmp_path) as process, pytest.raises(ProvisionFailed, match="runs bubblewrap"):
        asyncio.run(fleet_of([remote(process)], backend="gvisor"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_falls_silent_is_lost_and_never_a_result(tmp_path: Path, number: int):
    async def go(process: WorkerProcess, mark: str) -> None:
        sandbox = await remote(process, 0.5).create(REQUEST)
        running = [asyncio.ensure_future(sandbox.exec(sleep(mark))) for _ in range(3)]
        await until(lambda: len(host_pids(mark)) == 6)
        process.send_signal(number)
        begun = time.monotonic()
        for task in running:
            with pytest.raises(SandboxLost, match=f"{process.address}: (closed|the connection broke|silent for 0.5 s)"):
                await task
        assert time.monotonic() - begun < 1.5
        for verb in (sandbox.destroy, sandbox.destroy, sandbox.snapshot):
            with pytest.raises(SandboxLost, match=process.address):
                await verb()
        process.end(signal.SIGKILL)
        await until(lambda: not host_pids(mark))
        with pytest.raises(ProvisionFailed, match=process.address):
            await remote(process, 0.5).create(REQUEST)
        with worker(tmp_path) as again:  # at the same address: the next `create` connects anew
            async with await remote(again, 0.5).create(REQUEST) as second:
                assert (await second.exec(Command(("echo", "x")))).stdout == b"x\n"

    with worker(tmp_path) as process:
        asyncio.run(go(process, f"31415.{os.getpid()}{number}"))


def test_what_a_client_made_goes_when_the_client_goes(host: WorkerProcess):
    mark = f"27182.{os.getpid()}"
    source = f"""
import asyncio
from sandboxes.remote.client import Remote
from sandboxes.protocol import *
async def go():
    provider = Remote({host.address!r}, token={remote(host).token!r})
    boxes = [await provider.create(SandboxRequest()) for _ in range(3)]
    await asyncio.gather(*(box.exec(Command(("sh", "-c", "sleep {mark}; true"))) for box in boxes))
asyncio.run(go())
"""
    client = subprocess.Popen([sys.executable, "-c", source])

    def sleeping() -> list[int]:
        return [pid for pid in host_pids(mark) if pid != client.pid]

    async def go() -> None:
        await until(lambda: len(sleeping()) == 6)
        client.kill()
        assert await until(lambda: not sleeping() and not host.groups()) < 1

    asyncio.run(go())
    client.wait()


def test_a_client_whose_loop_stands_still_is_not_taken_for_dead(host: WorkerProcess):
    async def job(sandbox: RemoteSandbox) -> None:
        time.sleep(1.0)  # on purpose: neither side may give up
        assert (await sandbox.exec(Command(("echo", "x")))).stdout == b"x\n"

    using(host, job, silence_s=0.4)
