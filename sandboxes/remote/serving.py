"""The worker's side of the connections: whose sandbox is whose, and what is left when a call or a client goes away."""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from dataclasses import dataclass, field

from sandboxes.protocol import (
    Command,
    File,
    Process,
    ProvisionFailed,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxProvider,
    SandboxRequest,
)
from sandboxes.remote.wire import (
    DOOR_S,
    LARGEST,
    VERSION,
    BrokenMessage,
    Stream,
    check_proof,
    decode,
    describe,
    encode,
    proof,
    read,
)
from sandboxes.scheduling.tickets import Capacity

_DRAINED_EVERY_S = 0.05  # how often a draining worker looks whether it is done
_PATIENCE = 6  # times as long as a client waits for our sign of life do we wait for its: its loop may be busy
_TO_THE_END = ("kill", "leave", "destroy")  # calls that go on when their caller is gone


@dataclass(frozen=True, slots=True)
class Listening:
    """What a worker was started with."""

    address: str
    token: str
    provider: SandboxProvider
    capacity: Capacity


@dataclass(slots=True)
class _Held:
    """A sandbox of a client."""

    sandbox: Sandbox
    processes: dict[int, Process] = field(default_factory=dict)
    undoing: set[asyncio.Task[None]] = field(default_factory=set)
    """Calls that were given up and still end: what they kill must not be what comes next."""


class Worker:
    """All connections of this process."""

    def __init__(self, listening: Listening) -> None:
        self.listening = listening
        self.draining = False
        self.clients: set[Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run in the background; the worker does not end before."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, grace_s: float) -> None:
        """Make nothing new; return when all sandboxes are gone, at the latest a moment after `grace_s`."""
        self.draining = True
        end = asyncio.get_running_loop().time() + grace_s
        while any(client.busy for client in self.clients) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_DRAINED_EVERY_S)
        for client in list(self.clients):
            client.close(f"the worker was told to end, and its grace of {grace_s:g} s is over")
            client.end_all()
        while self._tasks:
            await asyncio.wait(self._tasks)


class Client(Stream):
    """One connection: calls in, answers out."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._nonce = os.urandom(16).hex()
        self._inside = False
        self._held: dict[int, _Held] = {}
        self._calls: dict[int, tuple[str, int, asyncio.Task[object]]] = {}
        """By number: the verb, the sandbox's number, the work."""
        self._door: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether it has sandboxes, or calls that are not answered."""
        return bool(self._held or self._calls)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        super().connection_made(transport)
        self._worker.clients.add(self)
        late = f"the token was not shown within {DOOR_S:g} s"
        self._door = asyncio.get_running_loop().call_later(DOOR_S, self.abort, late)
        self.say(0, encode({"version": VERSION, "nonce": self._nonce}))

    def on_message(self, number: int, message: bytes) -> None:
        """A client's introduction, then calls."""
        told = decode(message)
        if not self._inside:
            self._let_in(told)
        elif number == 0 or number in self._calls or number in self._held:
            raise BrokenMessage(f"a second call {number}")
        else:
            verb, sandbox = str(told.get("verb")), read(int, told.get("sandbox", 0))
            work = asyncio.ensure_future(self._work(number, verb, sandbox, told))
            self._calls[number] = verb, sandbox, work
            self._worker.spawn(self._answer(number, verb, work))

    def on_cancel(self, number: int) -> None:
        """Stop a call, and undo what it made."""
        verb, sandbox, work = self._calls.get(number, ("", 0, None))
        if verb in _TO_THE_END:
            return
        if work is not None:
            work.cancel()
        held = self._held.get(sandbox) or next((held for held in self._held.values() if number in held.processes), None)
        undoing = self._worker.spawn(self._undo(number, held, work))
        if held is not None:
            held.undoing.add(undoing)
            undoing.add_done_callback(held.undoing.discard)

    def on_gone(self) -> None:
        """The client is gone: so is all that was made for it."""
        if self._door is not None:
            self._door.cancel()
        self._worker.clients.discard(self)
        self.end_all()

    def end_all(self) -> None:
        """Stop every call and destroy every sandbox."""
        for verb, _, work in self._calls.values():
            if verb not in _TO_THE_END:
                work.cancel()
        for number in list(self._held):
            self._worker.spawn(self._bury(number))

    def _let_in(self, told: dict[str, object]) -> None:
        """Check the client's proof and show ours. Raises BrokenMessage."""
        listening, nonce = self._worker.listening, str(told.get("nonce"))
        if told.get("version") != VERSION:
            raise BrokenMessage(f"version {told.get('version')}, not {VERSION}")
        check_proof(told.get("proof"), proof(listening.token, "client", self._nonce, nonce))
        silence_s = read(float, told.get("silence_s"))
        if not 0.1 <= silence_s <= 3600:
            raise BrokenMessage(f"a silence of {silence_s} s")
        shown = proof(listening.token, "worker", self._nonce, nonce)
        self.say(0, encode({"proof": shown, "capacity": listening.capacity, "backend": listening.provider.name}))
        self._inside = True
        if self._door is not None:
            self._door.cancel()
        self.open_the_door(silence_s, patience=_PATIENCE)

    async def _answer(self, number: int, verb: str, work: asyncio.Task[object]) -> None:
        told: dict[str, object]
        try:
            told = {"value": await work}
        except asyncio.CancelledError:
            told = {"value": {}}  # nobody listens any more but a `receive`, which heard nothing
        except Exception as error:  # noqa: BLE001 - the client's boundary: what a call raises is its answer
            told = {"error": describe(error, ProvisionFailed if verb == "create" else SandboxLost)}
        finally:
            del self._calls[number]
        message = encode(told)
        if len(message) > LARGEST:
            evidence = f"the answer to {verb} takes {len(message)} bytes, a message at most {LARGEST}"
            error = SandboxError("too much for one message from the worker", evidence=evidence)
            message = encode({"error": describe(error, SandboxLost)})
        await self.send(number, message)

    async def _undo(self, number: int, held: _Held | None, work: asyncio.Task[object] | None) -> None:
        if work is not None:
            await asyncio.wait([work])
        await self._bury(number)
        process = held.processes.pop(number, None) if held else None
        if process is not None:
            with contextlib.suppress(SandboxError):
                await process.__aexit__(None, None, None)

    async def _bury(self, number: int) -> None:
        """Destroy a sandbox that nobody wants any more; nothing if there is none."""
        held = self._held.pop(number, None)
        if held is not None:
            with contextlib.suppress(SandboxError):
                await held.sandbox.destroy()

    async def _work(self, number: int, verb: str, sandbox: int, told: dict[str, object]) -> object:
        """Do what a call asks for. Raises what the verb raises, BrokenMessage for what is no call."""
        if verb == "create":
            return await self._create(number, read(SandboxRequest, told.get("request")))
        held = self._held.get(sandbox)
        if held is None:
            raise SandboxLost("there is no such sandbox", evidence=f"none of number {sandbox} on this connection")
        if verb == "destroy":
            try:
                return await held.sandbox.destroy()
            finally:
                self._held.pop(sandbox, None)
        while held.undoing:
            await asyncio.wait(held.undoing)
        match verb:
            case "put":
                return await held.sandbox.put(read(dict[str, File], told.get("files")))
            case "get":
                max_bytes = read(int, told.get("max_bytes"))
                return await held.sandbox.get(read(list[str], told.get("paths")), max_bytes=max_bytes)
            case "exec":
                return await held.sandbox.exec(read(Command, told.get("command")))
            case "start":
                held.processes[number] = await held.sandbox.start(read(Command, told.get("command")))
                return None
            case "snapshot":
                return await held.sandbox.snapshot()
        process = held.processes.get(read(int, told.get("process")))
        if process is None:
            raise BrokenMessage(f"no process for {verb!r}")
        return await _talk(process, verb, told)

    async def _create(self, number: int, request: SandboxRequest) -> dict[str, str]:
        if self._worker.draining:
            raise ProvisionFailed("the worker makes no more sandboxes", evidence="it was told to end")
        sandbox = await self._worker.listening.provider.create(request)
        self._held[number] = _Held(sandbox)
        if self.gone:
            await self._bury(number)
        return {"id": sandbox.id, "job": sandbox.job, "work": sandbox.work}


async def _talk(process: Process, verb: str, told: dict[str, object]) -> object:
    """The verbs of a process."""
    match verb:
        case "send":
            return await process.send(read(bytes, told.get("frame")))
        case "receive":
            timeout_s, max_bytes = read(float, told.get("timeout_s")), read(int, told.get("max_bytes"))
            frame = await process.receive(timeout_s=timeout_s, max_bytes=max_bytes)
            return {} if frame is None else {"frame": frame}
        case "wait":
            return await process.wait()
        case "kill":
            return await process.kill()
        case "leave":
            return await process.__aexit__(None, None, None)
    raise BrokenMessage(f"there is no {verb!r}")
