"""Sandboxes made before they are asked for, each handed out once.

A shelf holds sandboxes of one shape: image, limits, network, snapshot and what is warm. How many is worked out from the
demand: Little's law says that arrivals per second times the seconds it takes to make one are on their way at any time,
and that many stand ready, with a margin for bursts. A shelf nobody asks for is emptied. Nothing comes back: a sandbox
in which untrusted code may have run is destroyed by whoever took it.
"""

import asyncio
import contextlib
import math
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from sandboxes.protocol import Demand, SandboxError, SandboxRequest
from sandboxes.sandbox import GuestSandbox

_MARGIN = 2.0  # how many times the expected demand stands ready: arrivals come in bursts
_WINDOW_S = 10.0  # arrivals of the last so many seconds tell the rate
_IDLE_S = 60.0  # a shelf nobody asked for so long is emptied


class Maker(Protocol):
    """A provider whose sandboxes can be handed to a request after they were made."""

    name: str

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        """See `SandboxProvider.create`."""
        ...


@dataclass(slots=True)
class PoolReport:
    """How well the pool served."""

    hits: int = 0
    """Requests that found a sandbox ready."""
    misses: int = 0
    """Requests that had to wait for one to be made."""
    wait_s: float = 0.0
    """Seconds all requests waited, together."""
    longest_s: float = 0.0
    discarded: int = 0
    """Sandboxes that were made and never handed out: dead, or no longer asked for."""


@dataclass(slots=True)
class _Shelf:
    """Ready sandboxes of one shape, and what is known of the demand for them."""

    request: SandboxRequest
    ready: deque[GuestSandbox] = field(default_factory=deque)
    arrivals: deque[float] = field(default_factory=deque)
    making: set[asyncio.Task[None]] = field(default_factory=set)
    make_s: float = 0.0
    """Seconds it takes to make one, a moving average."""


class Pool:
    """A provider in front of another, for one event loop; `close` it there.

    Unpickled in the process that has it, it is the same pool: the stages of a pipeline share one. Elsewhere a new one.
    """

    def __init__(self, provider: Maker, *, most: int, least: int = 0) -> None:
        if not 0 <= least <= most:
            raise ValueError(f"a pool keeps between least={least} and most={most} sandboxes: 0 <= least <= most")
        self.name = provider.name
        self.report = PoolReport()
        self._provider, self._most, self._least = provider, most, least
        self._shelves: dict[object, _Shelf] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._key = uuid.uuid4().hex
        _pools[self._key] = self

    def __reduce__(self) -> tuple[Callable[..., "Pool"], tuple[str, Maker, int, int]]:
        return _unpickled, (self._key, self._provider, self._most, self._least)

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        """Hand out a ready sandbox of the request's shape, or make one. Raises ProvisionFailed."""
        began = time.monotonic()
        shelf = self._shelf(request)
        shelf.arrivals.append(began)
        sandbox = self._take(shelf)
        self._refill(shelf)
        if sandbox is not None:
            self.report.hits += 1
            sandbox.hand_over(request)
        else:
            self.report.misses += 1
            sandbox = await self._provider.create(request)
            self._learn(shelf, time.monotonic() - began)
        waited = time.monotonic() - began
        self.report.wait_s += waited
        self.report.longest_s = max(self.report.longest_s, waited)
        return sandbox

    async def fill(self, request: SandboxRequest, count: int) -> None:
        """Make so many of a request's shape, at most the pool's bound, and wait for them. Raises ProvisionFailed."""
        shelf = self._shelf(request)
        missing = min(count, self._most) - len(shelf.ready)
        made = await asyncio.gather(*(self._make(shelf) for _ in range(missing)), return_exceptions=True)
        for failure in made:
            if isinstance(failure, BaseException):
                raise failure

    async def close(self) -> None:
        """Destroy what stands ready."""
        if self._keeper is not None:
            self._keeper.cancel()
        for shelf in self._shelves.values():
            for task in shelf.making:
                task.cancel()
            await asyncio.gather(*shelf.making, return_exceptions=True)
            await self._empty(shelf)
        self._shelves.clear()
        self._keeper = None

    def ready(self, request: SandboxRequest) -> int:
        """How many of a request's shape stand ready."""
        return len(self._shelf(request).ready)

    def target(self, request: SandboxRequest) -> int:
        """How many should stand ready, as far as the demand is known."""
        return self._target(self._shelf(request))

    def _shelf(self, request: SandboxRequest) -> _Shelf:
        digest = request.snapshot.digest if request.snapshot else None
        shape = request.image, request.limits, request.network, digest, request.warm
        if shape not in self._shelves:
            self._shelves[shape] = _Shelf(replace(request, files={}, owner="pool", demand=Demand()))
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self._keep())
        return self._shelves[shape]

    def _target(self, shelf: _Shelf) -> int:
        now = time.monotonic()
        while shelf.arrivals and shelf.arrivals[0] < now - _IDLE_S:
            shelf.arrivals.popleft()
        recent = [arrival for arrival in shelf.arrivals if arrival > now - _WINDOW_S]
        rate = len(recent) / max(1.0, now - recent[0]) if recent else 0.0
        wanted = max(int(bool(shelf.arrivals)), math.ceil(_MARGIN * rate * shelf.make_s))
        return max(self._least, min(self._most, wanted))

    def _take(self, shelf: _Shelf) -> GuestSandbox | None:
        while shelf.ready:
            sandbox = shelf.ready.popleft()
            if sandbox.alive:
                return sandbox
            self._discard(sandbox)
        return None

    def _refill(self, shelf: _Shelf) -> None:
        for _ in range(self._target(shelf) - len(shelf.ready) - len(shelf.making)):
            task = asyncio.ensure_future(self._make_more(shelf))
            shelf.making.add(task)
            task.add_done_callback(shelf.making.discard)

    async def _make_more(self, shelf: _Shelf) -> None:
        # Whoever asks next makes one for itself and hears why it fails; the keeper tries again.
        with contextlib.suppress(SandboxError):
            await self._make(shelf)

    async def _make(self, shelf: _Shelf) -> None:
        began = time.monotonic()
        sandbox = await self._provider.create(shelf.request)
        self._learn(shelf, time.monotonic() - began)
        shelf.ready.append(sandbox)

    def _learn(self, shelf: _Shelf, seconds: float) -> None:
        shelf.make_s = seconds if shelf.make_s == 0.0 else 0.8 * shelf.make_s + 0.2 * seconds

    async def _keep(self) -> None:
        """Follow the demand: refill what runs low, empty what nobody asks for."""
        while True:
            await asyncio.sleep(1.0)
            for shelf in list(self._shelves.values()):
                self._refill(shelf)
                while len(shelf.ready) > max(self._target(shelf), self._least):
                    if shelf.arrivals and shelf.arrivals[-1] > time.monotonic() - _WINDOW_S:
                        break  # the demand falls, but is still there
                    self._discard(shelf.ready.pop())

    async def _empty(self, shelf: _Shelf) -> None:
        while shelf.ready:
            with contextlib.suppress(SandboxError):
                await shelf.ready.popleft().destroy()

    def _discard(self, sandbox: GuestSandbox) -> None:
        self.report.discarded += 1
        task = asyncio.ensure_future(sandbox.destroy())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


_pools: "weakref.WeakValueDictionary[str, Pool]" = weakref.WeakValueDictionary()


def _unpickled(key: str, provider: Maker, most: int, least: int) -> Pool:
    return _pools.get(key) or Pool(provider, most=most, least=least)
