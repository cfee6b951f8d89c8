"""Many coroutines in flight inside one Beam stage."""

import asyncio
import collections
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

Result = TypeVar("Result")

CANCEL_TIMEOUT_S = 10.0
"""Seconds that a cancelled call may take to end; a sandbox is closed in a few."""

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


def run_async(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on the event loop that the stages use.

    Interrupted, it is cancelled, and has ended (or been given `CANCEL_TIMEOUT_S`) when the interruption goes on.
    """
    ended = threading.Event()

    async def run() -> Result:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(run(), _event_loop())
    try:
        return future.result()
    except BaseException:  # Ctrl-C comes here too
        future.cancel()
        ended.wait(CANCEL_TIMEOUT_S)
        raise


class AsyncDoFn(beam.DoFn):
    """Calls an asynchronous function on each element and emits each item of the list it returns.

    In:   any element.
    Out:  the items, in the order in which the calls finish.
    Cost: at most `concurrency` calls in flight in a worker process; `process` blocks only when that many are, and
          `finish_bundle` waits for the rest. The function turns its own failures into items: an exception that leaves
          it fails the bundle. When a bundle fails or is interrupted, by whichever stage, the calls in flight are
          cancelled, and have ended before the pipeline raises. Follow it with another asynchronous stage or a barrier,
          never with slow synchronous work, which would hold up the emission.
    """

    def __init__(self, function: Callable[[Any], Awaitable[list[Any]]], concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self.function = function
        self.concurrency = concurrency

    def setup(self) -> None:
        """Begin with nothing in flight."""
        self._changed = threading.Condition()
        self._in_flight = 0
        self._done: collections.deque[tuple[asyncio.Task[list[Any]], Any, Any]] = collections.deque()
        self._tasks: set[asyncio.Task[list[Any]]] = set()  # of the event loop's thread alone

    def process(self, element: Any, timestamp=beam.DoFn.TimestampParam, window=beam.DoFn.WindowParam) -> Iterator[Any]:
        """Start a call; emit what has finished meanwhile."""
        while self._in_flight >= self.concurrency:
            yield from self._emit(wait=True)
        with self._changed:
            self._in_flight += 1
        _event_loop().call_soon_threadsafe(self._begin, element, timestamp, window)
        yield from self._emit(wait=False)

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the rest."""
        while self._in_flight or self._done:
            yield from self._emit(wait=True)

    def teardown(self) -> None:
        """End what a failed bundle left in flight: a failure of one stage reaches the others only here."""
        self._cancel()

    def _begin(self, element: Any, timestamp: Any, window: Any) -> None:
        task = asyncio.ensure_future(_call(self.function, element))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, timestamp, window))

    def _finished(self, task: "asyncio.Task[list[Any]]", timestamp: Any, window: Any) -> None:
        self._tasks.discard(task)
        _ = task.cancelled() or task.exception()  # seen: one failure is raised, asyncio would log each of the others
        with self._changed:
            self._in_flight -= 1
            self._done.append((task, timestamp, window))
            self._changed.notify_all()

    def _emit(self, *, wait: bool) -> Iterator[Any]:
        try:
            with self._changed:
                if wait:
                    self._changed.wait_for(lambda: self._done or not self._in_flight)
                ready = list(self._done)
                self._done.clear()
            results = [(task.result(), timestamp, window) for task, timestamp, window in ready]
        except BaseException:  # Ctrl-C comes here too
            self._cancel()
            raise
        for items, timestamp, window in results:
            for item in items:
                yield WindowedValue(item, timestamp, (window,))

    def _cancel(self) -> None:
        """Cancel the calls in flight, and wait until they have ended: what they hold open is closed then."""
        if self._in_flight:
            _event_loop().call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, CANCEL_TIMEOUT_S)


async def _call(function: Callable[[Any], Awaitable[list[Any]]], element: Any) -> list[Any]:
    return await function(element)
