"""Real worker processes, and what stands between them and a client."""

import asyncio
import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

from sandboxes.host.cgroup import find_hierarchy
from sandboxes.remote.client import Remote

TOKEN = "a-token-of-the-tests"


class WorkerProcess:
    """One `python -m sandboxes.remote.worker`; `before` is Python to run in it first."""

    def __init__(self, listen: str, *options: str, before: str = "") -> None:
        start = (
            ["-c", f"{before}\nfrom sandboxes.remote.worker import main\nmain()"]
            if before
            else ["-m", "sandboxes.remote.worker"]
        )
        self.process = subprocess.Popen(
            [sys.executable, *start, "--listen", listen, *options], stdout=subprocess.PIPE, stderr=sys.stderr, text=True
        )
        self.address = listen

    def ready(self) -> str:
        """Wait until it serves; its address."""
        assert self.process.stdout is not None
        word, _, self.address = self.process.stdout.readline().strip().partition(" ")
        assert word == "ready", word
        return self.address

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def groups(self) -> list[Path]:
        """The control groups that it made and that are still there."""
        found = find_hierarchy()
        folders = [path for base in (found.bases.values() if found else ()) for path in base.iterdir()]
        return [path for path in folders if path.name.split("-")[1:2] == [str(self.process.pid)]]


@contextlib.contextmanager
def worker(folder: Path, *options: str, tcp: bool = False, before: str = "") -> Generator[WorkerProcess]:
    """A worker on a socket in the folder, or on loopback with a token."""
    (folder / "token").write_text(TOKEN + "\n")
    listen, token = ("127.0.0.1:0", ("--token-file", str(folder / "token"))) if tcp else (f"unix:{folder}/w.sock", ())
    process = WorkerProcess(listen, *token, *options, before=before)
    try:
        process.ready()
        yield process
    finally:
        if process.process.poll() is None:
            process.send_signal(signal.SIGCONT)
        process.end(signal.SIGKILL)


@functools.cache
def lasting_worker() -> WorkerProcess:
    """A worker for as long as this process lives."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(worker(Path(stack.enter_context(tempfile.TemporaryDirectory()))))


def remote(process: WorkerProcess, silence_s: float = 10.0) -> Remote:
    return Remote(process.address, token="" if process.address.startswith("unix:") else TOKEN, silence_s=silence_s)


async def until(holds: Callable[[], bool], within_s: float = 3.0) -> float:
    """Wait for it; how long it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < within_s, "it does not come about"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


class Network:
    """A slow network: each byte is `delay_s` on its way, at most `rate` bytes a second come through."""

    def __init__(self, delay_s: float = 0.0, rate: float = 1e9) -> None:
        self.delay_s, self.rate = delay_s, rate
        self.cut = False
        """Whether nothing gets through any more, without a word to either side."""
        self.connections = 0

    @contextlib.asynccontextmanager
    async def before(self, process: WorkerProcess) -> AsyncGenerator[Remote]:
        """A way to a worker on a Unix socket through this network."""
        path = process.address.removeprefix("unix:")
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            for one, other in ((reader, far_writer), (far_reader, writer)):
                tasks.add(asyncio.ensure_future(self._carry(one, other)))

        server = await asyncio.start_unix_server(accept, path + ".slow", limit=4096)
        yield Remote(f"unix:{path}.slow", silence_s=0.6)
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.unlink(path + ".slow")

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

        async def deliver() -> None:
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(due - loop.time())
                if not self.cut:
                    writer.write(data)
                    await writer.drain()
                if not data:
                    writer.close()

        delivering = asyncio.ensure_future(deliver())
        try:
            data = b"?"
            while data:
                data = await reader.read(4096)
                await on_the_way.put((loop.time() + self.delay_s, data))
                await asyncio.sleep(len(data) / self.rate)
            await delivering
        finally:
            delivering.cancel()
