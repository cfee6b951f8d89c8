"""Many coroutines in flight inside one Beam stage."""

import asyncio
import collections
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The one event loop of this process, in a thread of its own, shared by all its stages."""
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, daemon=True, name="headrace-async").start()
        return _loop


class AsyncDoFn(beam.DoFn):
    """Calls an asynchronous function on each element and emits each item of the list it returns.

    In:   any element.
    Out:  the items, in the order in which the calls finish.
    Cost: at most `concurrency` calls in flight in a worker process; `process` blocks only when that many are, and
          `finish_bundle` waits for the rest. The function turns its own failures into items: an exception that leaves
          it fails the bundle. Follow it with another asynchronous stage or a barrier, never with slow synchronous
          work, which would hold up the emission.
    """

    def __init__(self, function: Callable[[Any], Awaitable[list[Any]]], concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self.function = function
        self.concurrency = concurrency

    def start_bundle(self) -> None:
        """Begin with nothing in flight."""
        self._changed = threading.Condition()
        self._in_flight: set[Future[list[Any]]] = set()
        self._done: collections.deque[tuple[Future[list[Any]], Any, Any]] = collections.deque()

    def process(self, element: Any, timestamp=beam.DoFn.TimestampParam, window=beam.DoFn.WindowParam) -> Iterator[Any]:
        """Start a call; emit what has finished meanwhile."""
        while len(self._in_flight) >= self.concurrency:
            yield from self._emit(wait=True)
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(self.function(element)), _event_loop())
        with self._changed:
            self._in_flight.add(future)
        future.add_done_callback(lambda done: self._finished(done, timestamp, window))
        yield from self._emit(wait=False)

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the rest."""
        while self._in_flight or self._done:
            yield from self._emit(wait=True)

    def _finished(self, future: "Future[list[Any]]", timestamp: Any, window: Any) -> None:
        with self._changed:
            self._in_flight.discard(future)
            self._done.append((future, timestamp, window))
            self._changed.notify_all()

    def _emit(self, *, wait: bool) -> Iterator[Any]:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._done or not self._in_flight)
            ready = list(self._done)
            self._done.clear()
        for future, timestamp, window in ready:
            try:
                items = future.result()
            except BaseException:
                for running in list(self._in_flight):
                    running.cancel()
                raise
            for item in items:
                yield WindowedValue(item, timestamp, (window,))


async def _as_coroutine(awaitable: Awaitable[list[Any]]) -> list[Any]:
    return await awaitable
