"""Several hosts behind one provider: requests wait their turn, run where there is room, and leave sick hosts alone."""

import asyncio
import contextlib
import functools
import itertools
import random
import threading
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace

from sandboxes.protocol import (
    Command,
    File,
    ImageMissing,
    Process,
    Result,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxProvider,
    SandboxRequest,
    Snapshot,
    Usage,
)
from sandboxes.scheduling.scheduler import Scheduler
from sandboxes.scheduling.tickets import Capacity, Lease, Rules, Ticket

_DEAD_HOST_PATIENCE_S = 5.0  # for the clean-up of a sandbox whose host is dead, which can only work by luck
_LONGEST_PAUSE_S = 5.0


class Fleet:
    """A provider over hosts. All calls belong to one event loop, those of `join` before the first `create` aside.

    `create` waits at the door while its owner has `Rules.queue_limit` requests waiting, then in the queue, and raises
    DeadlineExceeded where its deadline cannot be kept any more. A host that fails to create is followed by another,
    after a jittered pause, up to `attempts` in all.

    Unpickled in a process that has it, it is the same fleet; elsewhere, one with the same hosts and nothing running:
    hosts cannot be shared by the fleets of two processes, unless each is given a part of their capacity.
    """

    def __init__(
        self,
        hosts: Mapping[str, tuple[SandboxProvider, Capacity]],
        *,
        name: str = "fleet",
        rules: Rules | None = None,
        attempts: int = 3,
        pause_s: float = 0.2,
    ) -> None:
        if attempts < 1 or pause_s < 0:
            raise ValueError(f"attempts must be at least 1 and pause_s not negative, not {attempts} and {pause_s}")
        self.name = name
        """What rows say of where a program ran: the back-end, where all hosts have the same."""
        self._rules = rules or Rules()
        self._attempts = attempts
        self._pause_s = pause_s
        self._rng = random.Random()
        self._scheduler = Scheduler(self._rules, self._rng)
        self._hosts: dict[str, _Host] = {}
        self._turns: dict[int, asyncio.Future[tuple[Lease, _Host]]] = {}
        self._doors: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._ids = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        for name, (provider, capacity) in hosts.items():
            self.join(name, provider, capacity)
        self._key = uuid.uuid4().hex
        _fleets[self._key] = self

    def join(self, name: str, provider: SandboxProvider, capacity: Capacity) -> None:
        """Add a host. Raises ValueError if it is present, draining included."""
        self._scheduler.join(name, capacity)
        self._hosts[name] = _Host(name, provider, capacity)
        self._advance()

    def drain(self, name: str) -> None:
        """Place nothing more on a host; it leaves with its last sandbox. Raises KeyError if it is not present."""
        self._scheduler.drain(name)
        self._advance()

    def die(self, name: str, *, evidence: str) -> None:
        """Take a host away at once: what runs there raises SandboxLost. Raises KeyError if it is not present."""
        self._scheduler.die(name, asyncio.get_running_loop().time())
        self._hosts.pop(name).die(evidence)
        self._advance()

    async def create(self, request: SandboxRequest) -> "FleetSandbox":
        """Make a sandbox on one of the hosts when it is this request's turn.

        Raises ProvisionFailed if no host is large enough or as many as `attempts` failed, DeadlineExceeded; a host's
        other SandboxError if that was the last attempt's. The evidence names each host that was tried.
        """
        asked_at, tried, seen = asyncio.get_running_loop().time(), request.demand.avoid, []
        while True:
            lease = None
            try:
                lease, host = await self._turn(request, asked_at, tried)
                async with host.alive():
                    sandbox = await host.provider.create(request)
                return FleetSandbox(sandbox, host, functools.partial(self._finish, lease))
            except SandboxError as error:
                seen.append(error.evidence)
                if lease is None:
                    raise type(error)(error.message, evidence="; ".join(seen)) from error
                self._finish(lease, ok=None if isinstance(error, ImageMissing) else False)
                if len(seen) == self._attempts or isinstance(error, ImageMissing):
                    raise type(error)(error.message, evidence="; ".join(seen)) from error
                tried |= {lease.host}
            except BaseException:
                if lease is not None:
                    self._finish(lease, ok=None)
                raise
            pause = min(_LONGEST_PAUSE_S, self._pause_s * 2 ** (len(seen) - 1))
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    def __reduce__(self) -> tuple[object, ...]:
        hosts = {host.name: (host.provider, host.capacity) for host in self._hosts.values()}
        return _unpickled, (self._key, self.name, hosts, self._rules, self._attempts, self._pause_s)

    async def _turn(self, request: SandboxRequest, asked_at: float, avoid: frozenset[str]) -> tuple[Lease, "_Host"]:
        loop, demand, limits = asyncio.get_running_loop(), request.demand, request.limits
        ticket = Ticket(
            next(self._ids),
            request.owner,
            Capacity(demand.cpus, limits.memory_mib, limits.disk_mib, demand.gpus),
            asked_at,
            demand.expected_s,
            demand.deadline_s,
            demand.priority,
            avoid,
        )
        self._scheduler.check(ticket, loop.time())
        door = self._doors.setdefault(request.owner, asyncio.Semaphore(self._rules.queue_limit))
        try:
            async with asyncio.timeout_at(None if demand.deadline_s is None else ticket.latest_start()):
                await door.acquire()
        except TimeoutError:
            raise ticket.late(loop.time()) from None
        turn: asyncio.Future[tuple[Lease, _Host]] = loop.create_future()
        try:
            self._scheduler.submit(ticket, loop.time())
            self._turns[ticket.id] = turn
            self._advance()
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._finish(turn.result()[0], ok=None)
            self._scheduler.cancel(ticket.id, loop.time())
            self._turns.pop(ticket.id, None)
            self._advance()
            raise
        finally:
            door.release()

    def _finish(self, lease: Lease, *, ok: bool | None) -> None:
        self._scheduler.finish(lease, asyncio.get_running_loop().time(), ok=ok)
        self._advance()

    def _advance(self) -> None:
        """Let the scheduler place and refuse, tell those who wait, and set the alarm for what only time brings."""
        self._hosts = {name: host for name, host in self._hosts.items() if name in self._scheduler.hosts}
        if not self._turns:
            return
        loop = asyncio.get_running_loop()
        leases, refusals = self._scheduler.tick(loop.time())
        for lease in leases:
            turn = self._turns.pop(lease.ticket.id)
            if turn.cancelled():  # by its caller, which has not run since
                loop.call_soon(functools.partial(self._finish, lease, ok=None))
            else:
                turn.set_result((lease, self._hosts[lease.host]))
        for refusal in refusals:
            turn = self._turns.pop(refusal.ticket.id)
            if not turn.cancelled():
                turn.set_exception(refusal.error)
        if self._alarm is not None:
            self._alarm.cancel()
        wake_at = self._scheduler.wake_at()
        # A timer may fire a little early; a deadline has passed only after its moment.
        self._alarm = None if wake_at is None else loop.call_at(wake_at + 0.001, self._advance)


class _Host:
    """One host's provider, and whether the host lives."""

    def __init__(self, name: str, provider: SandboxProvider, capacity: Capacity) -> None:
        self.name = name
        self.provider = provider
        self.capacity = capacity
        self.death: str | None = None
        self._scopes: set[asyncio.Timeout] = set()

    def die(self, evidence: str) -> None:
        """Interrupt all that runs in `alive`."""
        self.death = evidence
        for scope in self._scopes:
            scope.reschedule(0.0)

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncGenerator[None]:
        """For work that needs the host: SandboxLost if it is dead or dies meanwhile; other errors get its name."""
        if self.death is not None:
            raise self.lost()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise self.lost() from None
        except SandboxError as error:
            named = type(error)(error.message, evidence=f"host {self.name}: {error.evidence}")
            named.host = self.name
            raise named from error

    def lost(self) -> SandboxLost:
        lost = SandboxLost(f"host {self.name} died", evidence=f"host {self.name}: {self.death}")
        lost.host = self.name
        return lost


class FleetSandbox:
    """A sandbox on one of a fleet's hosts. What it raises as SandboxError has the host's name in its evidence."""

    def __init__(self, sandbox: Sandbox, host: _Host, finish: Callable[..., None]) -> None:
        self.id = sandbox.id
        self.job = sandbox.job
        self.work = sandbox.work
        self.host = host.name
        """Where it runs, for `Demand.avoid`."""
        self._sandbox = sandbox
        self._place = host
        self._finish = finish
        self._failed = False
        self._end: asyncio.Task[Usage] | None = None

    async def put(self, files: Mapping[str, File]) -> None:
        """See `Sandbox.put`."""
        async with self.watched():
            await self._sandbox.put(files)

    async def get(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, File]:
        """See `Sandbox.get`."""
        async with self.watched():
            return await self._sandbox.get(paths, max_bytes=max_bytes)

    async def exec(self, command: Command) -> Result:
        """See `Sandbox.exec`."""
        async with self.watched():
            return await self._sandbox.exec(command)

    async def start(self, command: Command) -> Process:
        """See `Sandbox.start`."""
        async with self.watched():
            return _FleetProcess(await self._sandbox.start(command), self)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        async with self.watched():
            return await self._sandbox.snapshot()

    async def destroy(self) -> Usage:
        """See `Sandbox.destroy`. Gives the host's room back, and tells the breaker how the host did."""
        if self._end is None:
            self._end = asyncio.ensure_future(self._destroy())
            # Nobody may be left to hear an error once the caller is cancelled.
            self._end.add_done_callback(lambda end: end.cancelled() or end.exception())
        return await asyncio.shield(self._end)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """For each use of the host: remembers whether it failed."""
        try:
            async with self._place.alive():
                yield
        except SandboxError:
            self._failed = True
            raise

    async def _destroy(self) -> Usage:
        ok = None
        try:
            if self._place.death is not None:
                with contextlib.suppress(SandboxError, TimeoutError):
                    async with asyncio.timeout(_DEAD_HOST_PATIENCE_S):
                        await self._sandbox.destroy()
            async with self.watched():
                usage = replace(await self._sandbox.destroy(), host=self.host)
            ok = not self._failed
            return usage
        except SandboxError:
            ok = False
            raise
        finally:
            self._finish(ok=ok)

    async def __aenter__(self) -> "FleetSandbox":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.destroy()


class _FleetProcess:
    """A process on a host of the fleet."""

    def __init__(self, process: Process, sandbox: FleetSandbox) -> None:
        self._process = process
        self._sandbox = sandbox

    async def send(self, frame: bytes) -> None:
        async with self._sandbox.watched():
            await self._process.send(frame)

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        async with self._sandbox.watched():
            return await self._process.receive(timeout_s=timeout_s, max_bytes=max_bytes)

    async def wait(self) -> Result:
        async with self._sandbox.watched():
            return await self._process.wait()

    async def kill(self) -> Result:
        async with self._sandbox.watched():
            return await self._process.kill()

    async def __aenter__(self) -> "_FleetProcess":
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with self._sandbox.watched():
            await self._process.__aexit__(*exc)


_fleets: weakref.WeakValueDictionary[str, Fleet] = weakref.WeakValueDictionary()
_fleets_lock = threading.Lock()


def _unpickled(
    key: str,
    name: str,
    hosts: Mapping[str, tuple[SandboxProvider, Capacity]],
    rules: Rules,
    attempts: int,
    pause_s: float,
) -> Fleet:
    """The fleet of this process: the stages of a pipeline, each unpickled apart, must not place on hosts twice."""
    with _fleets_lock:
        fleet = _fleets.get(key)
        if fleet is None:
            fleet = Fleet(hosts, name=name, rules=rules, attempts=attempts, pause_s=pause_s)
            fleet._key = key
            _fleets[key] = fleet
        return fleet
