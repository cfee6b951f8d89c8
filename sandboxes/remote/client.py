"""Sandboxes on another machine, or in another process of this one: the client of `sandboxes.remote.worker`.

All sandboxes of one event loop on one worker share one connection. The worker keeps the time: a `receive` waits its
`timeout_s` there, counted from when the worker hears of it, and limits are enforced there, so a slow network makes
nothing late but the answer. What the connection costs is an infra error: a worker that dies, cuts the connection or is
silent for `silence_s` gives ProvisionFailed or SandboxLost with its address in the evidence, never a result. When the
connection is gone the worker destroys what was made over it.

The connection proves to both sides that they know the token, and is not encrypted: between machines it belongs in a
private network or a tunnel.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TypeVar

from sandboxes.protocol import (
    Command,
    File,
    ProvisionFailed,
    Result,
    SandboxError,
    SandboxLost,
    SandboxRequest,
    Snapshot,
    Usage,
)
from sandboxes.remote.wire import (
    DOOR_S,
    LARGEST,
    VERSION,
    BrokenMessage,
    Stream,
    check_proof,
    decode,
    encode,
    error_of,
    parse_address,
    proof,
    read,
)
from sandboxes.scheduling.fleet import Fleet
from sandboxes.scheduling.tickets import Capacity, Rules

T = TypeVar("T")


@dataclass(unsafe_hash=True)  # frozen would not do as a SandboxProvider, whose `name` may be set
class Remote:
    """The sandboxes of one worker. Picklable: it holds an address; the connections belong to the process."""

    address: str
    """What the worker prints: unix:PATH or HOST:PORT."""
    token: str = field(default="", repr=False)
    """What the worker's token file holds; empty if it has none."""
    silence_s: float = 10.0
    """Seconds without a sign of life after which the worker is taken for dead; it waits six times as long for ours."""

    name = "remote"

    def __post_init__(self) -> None:
        parse_address(self.address)
        if not 0.1 <= self.silence_s <= 3600:
            raise ValueError(f"silence_s must be from 0.1 to 3600 seconds, not {self.silence_s}")

    async def create(self, request: SandboxRequest) -> "RemoteSandbox":
        """See `SandboxProvider.create`."""
        connection = await self._connection()
        number = connection.number()
        made = await connection.call(dict[str, str], "create", number, {"request": request})
        return RemoteSandbox(connection, number, made)

    async def capacity(self) -> Capacity:
        """What the worker's machine has in all. Raises ProvisionFailed."""
        return (await self._connection()).capacity

    async def backend(self) -> str:
        """Name of the back-end the worker was started with. Raises ProvisionFailed."""
        return (await self._connection()).backend

    async def _connection(self) -> "_Connection":
        """This loop's connection to the worker; a new one if it is gone."""
        loop = asyncio.get_running_loop()
        for key in [key for key in list(_connections) if key[0].is_closed()]:  # other threads have loops too
            _connections.pop(key, None)
        task = _connections.get((loop, self))
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().gone)):
            task = _connections[loop, self] = asyncio.ensure_future(self._connect())
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may be gone
        return await asyncio.shield(task)  # others wait for it too

    async def _connect(self) -> "_Connection":
        loop, where = asyncio.get_running_loop(), parse_address(self.address)
        connection = _Connection(self)
        try:
            async with asyncio.timeout(DOOR_S):
                if isinstance(where, str):
                    await loop.create_unix_connection(lambda: connection, where)
                else:
                    await loop.create_connection(lambda: connection, *where)
                await asyncio.shield(connection.at_the_door)
        except TimeoutError:
            connection.abort(f"no answer within {DOOR_S:g} s")
        except OSError as error:
            connection.abort(str(error))
        except BaseException:
            connection.abort("our caller gave up")
            raise
        if connection.why:
            raise ProvisionFailed("no connection to the worker", evidence=f"{self.address}: {connection.why}")
        return connection


_connections: dict[tuple[asyncio.AbstractEventLoop, Remote], "asyncio.Task[_Connection]"] = {}


async def fleet_of(remotes: Sequence[Remote], *, backend: str, rules: Rules | None = None) -> Fleet:
    """A fleet of workers that run a back-end, each with what its machine has.

    Raises ProvisionFailed if one does not answer, or runs another back-end.
    """
    for remote in remotes:
        if (theirs := await remote.backend()) != backend:
            raise ProvisionFailed(f"a worker does not run {backend}", evidence=f"{remote.address} runs {theirs}")
    capacities = await asyncio.gather(*(remote.capacity() for remote in remotes))
    hosts = {remote.address: (remote, capacity) for remote, capacity in zip(remotes, capacities, strict=True)}
    return Fleet(hosts, name=backend, rules=rules)


class _Connection(Stream):
    """One connection to a worker: calls out, answers in."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote = remote
        self._nonce = os.urandom(16).hex()
        self._theirs: str | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, object]]] = {}
        self.at_the_door: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the worker let us in, or the connection is gone."""
        self.capacity = Capacity(0, 0, 0)
        self.backend = ""

    def number(self) -> int:
        """A number for a new call, and for what it makes."""
        return next(self._numbers)

    async def call(self, kind: type[T], verb: str, number: int, arguments: Mapping[str, object]) -> T:
        """Have the worker do it, and read its answer.

        Raises what the verb raises there, ProvisionFailed for `create` and SandboxLost for others if the worker is
        lost. Cancelled, it has the worker undo what the call was making.
        """
        address, lost = self._remote.address, ProvisionFailed if verb == "create" else SandboxLost
        message = encode({"verb": verb, **arguments})
        if len(message) > LARGEST:
            raise (ProvisionFailed if verb == "create" else SandboxError)(
                "too much for one message to the worker",
                evidence=f"{verb} takes {len(message)} bytes, a message at most {LARGEST} ({address})",
            )
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            if self.gone:
                answer.set_result({})
            await self.send(number, message)
            told = await answer
        except asyncio.CancelledError:
            self.cancel(number)
            raise
        finally:
            del self._answers[number]
        if "error" in told:
            raise error_of(told["error"], address)
        if "value" not in told:
            raise lost("the connection to the worker is lost", evidence=f"{address}: {self.why}")
        try:
            return read(kind, told["value"])
        except BrokenMessage as error:
            raise lost("the worker's answer cannot be read", evidence=f"{address}: {error}") from error

    def on_message(self, number: int, message: bytes) -> None:
        """The worker's greeting, its welcome, then answers."""
        told = decode(message)
        token = self._remote.token
        if number:
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result(told)
        elif self._theirs is None:
            if told.get("version") != VERSION:
                raise BrokenMessage(f"version {told.get('version')}, not {VERSION}")
            self._theirs = str(told.get("nonce"))
            shown = proof(token, "client", self._theirs, self._nonce)
            hello = {"version": VERSION, "nonce": self._nonce, "proof": shown, "silence_s": self._remote.silence_s}
            self.say(0, encode(hello))
        elif not self.at_the_door.done():
            check_proof(told.get("proof"), proof(token, "worker", self._theirs, self._nonce))
            self.capacity = read(Capacity, told.get("capacity"))
            self.backend = read(str, told.get("backend"))
            self.open_the_door(self._remote.silence_s)
            self.at_the_door.set_result(None)

    def on_cancel(self, number: int) -> None:
        """No worker gives up calls."""
        raise BrokenMessage("a call given up that is ours")

    def on_gone(self) -> None:
        """Tell everyone who waits."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result({})
        if not self.at_the_door.done():
            self.at_the_door.set_result(None)


class RemoteSandbox:
    """See `sandboxes.protocol.Sandbox`."""

    def __init__(self, connection: _Connection, number: int, made: Mapping[str, str]) -> None:
        self.id, self.job, self.work = made["id"], made["job"], made["work"]
        self._connection = connection
        self._number = number
        self._ending: asyncio.Task[Usage] | None = None

    async def put(self, files: Mapping[str, File]) -> None:
        """See `Sandbox.put`."""
        await self._call(NoneType, "put", files=files)

    async def get(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, File]:
        """See `Sandbox.get`."""
        return await self._call(dict[str, File], "get", paths=paths, max_bytes=max_bytes)

    async def exec(self, command: Command) -> Result:
        """See `Sandbox.exec`."""
        return await self._call(Result, "exec", command=command)

    async def start(self, command: Command) -> "RemoteProcess":
        """See `Sandbox.start`."""
        number = self._connection.number()
        await self._connection.call(NoneType, "start", number, {"sandbox": self._number, "command": command})
        return RemoteProcess(self._connection, self._number, number)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        return await self._call(Snapshot, "snapshot")

    async def destroy(self) -> Usage:
        """See `Sandbox.destroy`."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._call(Usage, "destroy"))
            self._ending.add_done_callback(lambda end: end.cancelled() or end.exception())  # its caller may be gone
        return await asyncio.shield(self._ending)

    async def __aenter__(self) -> "RemoteSandbox":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.destroy()

    async def _call(self, kind: type[T], verb: str, **arguments: object) -> T:
        number = self._connection.number()
        return await self._connection.call(kind, verb, number, {"sandbox": self._number, **arguments})


class RemoteProcess:
    """See `sandboxes.protocol.Process`."""

    def __init__(self, connection: _Connection, sandbox: int, number: int) -> None:
        self._connection = connection
        self._process = {"sandbox": sandbox, "process": number}
        self._given_up: asyncio.Task[dict[str, bytes]] | None = None

    async def send(self, frame: bytes) -> None:
        """See `Process.send`."""
        await self._call(NoneType, "send", frame=frame)

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        """See `Process.receive`."""
        if self._given_up is not None:  # its frame may have been on the way when its caller was cancelled
            heard = await asyncio.shield(self._given_up)
            self._given_up = None
            if "frame" in heard:
                return heard["frame"]
        number = self._connection.number()
        bounds = {"timeout_s": timeout_s, "max_bytes": max_bytes}
        call = self._connection.call(dict[str, bytes], "receive", number, {**self._process, **bounds})
        asking = asyncio.ensure_future(call)
        try:
            return (await asyncio.shield(asking)).get("frame")
        except asyncio.CancelledError:
            self._given_up = asking
            asking.add_done_callback(lambda asking: asking.cancelled() or asking.exception())
            self._connection.cancel(number)
            raise

    async def wait(self) -> Result:
        """See `Process.wait`."""
        return await self._call(Result, "wait")

    async def kill(self) -> Result:
        """See `Process.kill`."""
        return await self._call(Result, "kill")

    async def __aenter__(self) -> "RemoteProcess":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._call(NoneType, "leave")

    async def _call(self, kind: type[T], verb: str, **arguments: object) -> T:
        number = self._connection.number()
        return await self._connection.call(kind, verb, number, {**self._process, **arguments})
