import asyncio
import gc
import signal
import threading
import time

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from transforms.async_map import AsyncDoFn, run_async

LOCK = threading.Lock()
RUNNING = {"now": 0, "most": 0}


async def slow_double(x: int) -> list[int]:
    with LOCK:
        RUNNING["now"] += 1
        RUNNING["most"] = max(RUNNING["most"], RUNNING["now"])
    await asyncio.sleep(0.02)
    with LOCK:
        RUNNING["now"] -= 1
    return [x, 2 * x]


async def fails_at_three(x: int) -> list[int]:
    await asyncio.sleep(0.001)
    if x == 3:
        raise ValueError("three")
    return [x]


def test_every_item_comes_out_once_and_no_more_calls_run_than_allowed():
    RUNNING.update(now=0, most=0)
    with beam.Pipeline(runner="FnApiRunner") as p:
        out = p | beam.Create(range(40)) | beam.ParDo(AsyncDoFn(slow_double, 8))
        assert_that(out, equal_to([v for x in range(40) for v in (x, 2 * x)]))
    assert 2 <= RUNNING["most"] <= 8
    assert RUNNING["now"] == 0


def test_two_asynchronous_stages_in_a_row_lose_nothing():
    with beam.Pipeline(runner="FnApiRunner") as p:
        out = p | beam.Create(range(20)) | "a" >> beam.ParDo(AsyncDoFn(slow_double, 16))
        out = out | "b" >> beam.ParDo(AsyncDoFn(slow_double, 2))
        assert_that(out, equal_to([w for x in range(20) for v in (x, 2 * x) for w in (v, 2 * v)]))


def test_an_exception_that_leaves_the_function_fails_the_pipeline_with_its_cause():
    with pytest.raises(Exception, match="three"), beam.Pipeline(runner="FnApiRunner") as p:
        _ = p | beam.Create(range(10)) | beam.ParDo(AsyncDoFn(fails_at_three, 4))


STARTED: list[int] = []
ENDED: list[int] = []


async def never_ends(x: int) -> list[int]:
    STARTED.append(x)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)  # as long as a sandbox may take to close
        ENDED.append(x)
    return [x]


async def fails_after_the_others(x: int) -> list[int]:
    while x == 3 and len(STARTED) < 3:
        await asyncio.sleep(0.01)
    if x == 3:
        raise ValueError("three")
    return [x]


async def three_fails_the_rest_never_end(x: int) -> list[int]:
    return await (fails_after_the_others if x == 3 else never_ends)(x)


@pytest.mark.parametrize(
    ("first", "second"), [(fails_after_the_others, never_ends), (three_fails_the_rest_never_end, slow_double)]
)
def test_when_a_call_fails_those_of_its_stage_and_of_others_are_cancelled_and_have_ended(first, second):
    STARTED.clear()
    ENDED.clear()
    begun = time.monotonic()
    stages = "a" >> beam.ParDo(AsyncDoFn(first, 4)) | "b" >> beam.ParDo(AsyncDoFn(second, 8))
    with pytest.raises(Exception, match="three"), beam.Pipeline(runner="FnApiRunner") as p:
        _ = p | beam.Create(range(4)) | stages
    assert sorted(ENDED) == [0, 1, 2]
    assert time.monotonic() - begun < 20


async def all_fail(x: int) -> list[int]:
    await asyncio.sleep(0.05)
    raise ValueError("each")


def test_failures_behind_the_first_are_not_logged_one_by_one(caplog: pytest.LogCaptureFixture):
    def bundle() -> None:
        stage = AsyncDoFn(all_fail, 10)
        stage.setup()
        for x in range(10):
            assert list(stage.process(x, 0, None)) == []
        list(stage.finish_bundle())

    with pytest.raises(ValueError, match="each"):
        bundle()
    gc.collect()  # asyncio logs an exception that nobody saw when its task goes
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_concurrency_below_one_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        AsyncDoFn(slow_double, 0)


def test_what_run_async_is_interrupted_in_has_ended_when_it_raises():
    """Ctrl-C while gold solutions are checked: their sandboxes are closed before the command goes on to end."""
    told: list[str] = []

    async def slow() -> None:
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)  # closing takes its time
            told.append("closed")

    with pytest.raises(KeyboardInterrupt):
        run_async(slow())
    assert told == ["closed"]


def test_run_async_gives_the_result_or_the_error():
    async def double(x: int) -> int:
        return 2 * x if x else 1 // x

    assert run_async(double(21)) == 42
    with pytest.raises(ZeroDivisionError):
        run_async(double(0))
