"""Hosts of sandboxes that exist only in memory: they fail on demand and count what is left on them."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from sandboxes.protocol import Command, File, Process, Result, SandboxError, SandboxRequest, Snapshot, Usage

COMMAND = Command(("true",))
RESULT = Result(0, None, None, 0.1, 0.1, b"", b"")
USAGE = Usage(None, 1.0, 1.0, 1, b"", b"", "rlimits")


class Memory:
    """A host of sandboxes that are only counted. `create_s` and `exec_s` are how long it takes."""

    name = "memory"

    def __init__(self) -> None:
        self.create_s = 0.0
        self.exec_s = 0.0
        self.destroy_s = 0.0
        self.fail: SandboxError | None = None
        self.fail_exec: SandboxError | None = None
        self.asked = self.made = self.most = self.destroyed = 0
        self.open: set[str] = set()

    async def create(self, request: SandboxRequest) -> "MemorySandbox":
        self.asked += 1
        await asyncio.sleep(self.create_s)
        if self.fail is not None:
            raise self.fail
        return MemorySandbox(self)


class MemorySandbox:
    job, work = "/job", "/work"
    serial = itertools.count()

    def __init__(self, host: Memory) -> None:
        self.id = f"s{next(self.serial)}"
        self.on = host
        host.made += 1
        host.open.add(self.id)
        host.most = max(host.most, len(host.open))

    async def put(self, files: Mapping[str, File]) -> None: ...

    async def get(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, File]:
        return {}

    async def exec(self, command: Command) -> Result:
        await asyncio.sleep(self.on.exec_s)
        if self.on.fail_exec is not None:
            raise self.on.fail_exec
        return RESULT

    async def start(self, command: Command) -> Process:
        return MemoryProcess(self)

    async def snapshot(self) -> Snapshot:
        return Snapshot("", b"")

    async def destroy(self) -> Usage:
        self.on.open.discard(self.id)
        self.on.destroyed += 1
        await asyncio.sleep(self.on.destroy_s)
        return USAGE

    async def __aenter__(self) -> "MemorySandbox":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.destroy()


class MemoryProcess:
    def __init__(self, sandbox: MemorySandbox) -> None:
        self.sandbox = sandbox

    async def send(self, frame: bytes) -> None: ...

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        await asyncio.sleep(timeout_s)
        return None

    async def wait(self) -> Result:
        return await self.sandbox.exec(COMMAND)

    async def kill(self) -> Result:
        return RESULT

    async def __aenter__(self) -> "MemoryProcess":
        return self

    async def __aexit__(self, *exc: object) -> None: ...
