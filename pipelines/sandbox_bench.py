"""How long a sandbox takes from being asked for until Python in it speaks, and how long to its end."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandboxes.backends.choose import backend_of
from sandboxes.limits import SandboxSpec
from sandboxes.pool import Maker, Pool
from sandboxes.protocol import Command, SandboxError, SandboxLost, SandboxRequest

_HELLO = b"import os\nos.write(3, (2).to_bytes(4, 'big') + b'hi')\n"
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One row of the table. All times are milliseconds on the wall clock."""

    backend: str
    how: str
    """`first` of this process, `cold` (made when asked for) or `pooled` (made before)."""
    n: int
    at_once: int
    start_p50_ms: float
    """From asking for a sandbox to the first frame of a Python program in it."""
    start_p99_ms: float
    end_p50_ms: float
    """From then until the sandbox is destroyed and every trace of it gone."""
    end_p99_ms: float
    ready: float | None
    """Part of the requests that found a sandbox ready; None without a pool."""


async def measure(spec: SandboxSpec, *, n: int, at_once: int, say: Callable[[str], None]) -> list[Timing]:
    """Time one back-end: the first of all, then `n` cold and `n` pooled ones, so many at once. Raises SandboxError."""
    provider = backend_of(spec)
    request = SandboxRequest(image=spec.image, files={"hello.py": _HELLO}, owner="bench")
    timings = [_timing(spec.backend, "first", 1, [await _once(provider, request)], None)]
    say(f"{spec.backend}: the first one spoke after {timings[0].start_p50_ms:.0f} ms; {n} cold, {n} pooled")
    cold = []
    for count in _rounds(n, at_once):
        cold += await asyncio.gather(*(_once(provider, request) for _ in range(count)))
    timings.append(_timing(spec.backend, "cold", at_once, cold, None))
    pool, pooled = Pool(provider, most=at_once), []
    try:
        for count in _rounds(n, at_once):
            await pool.fill(request, count)
            pooled += await asyncio.gather(*(_once(pool, request) for _ in range(count)))
    finally:
        await pool.close()
    timings.append(_timing(spec.backend, "pooled", at_once, pooled, pool.report.hits / n))
    return timings


async def _once(source: Maker, request: SandboxRequest) -> tuple[float, float]:
    """Seconds to the first frame, and to the end from there. Raises SandboxError."""
    began = time.perf_counter()
    async with await source.create(request) as sandbox:
        process = await sandbox.start(Command(("hello.py",), warm=True, channel=True))
        frame = await process.receive(timeout_s=_ANSWER_S, max_bytes=16)
        spoke = time.perf_counter()
        if frame != b"hi":
            result = await process.wait()
            said = result.stderr.decode(errors="replace").strip()[-300:]
            raise SandboxLost("the program did not speak", evidence=said or str(result))
        await sandbox.destroy()
    return spoke - began, time.perf_counter() - spoke


def _rounds(n: int, at_once: int) -> list[int]:
    return [at_once] * (n // at_once) + ([n % at_once] if n % at_once else [])


def _timing(backend: str, how: str, at_once: int, seconds: list[tuple[float, float]], ready: float | None) -> Timing:
    starts, ends = ([1000 * pair[index] for pair in seconds] for index in (0, 1))
    return Timing(
        backend, how, len(seconds), at_once, _rank(starts, 0.5), _rank(starts, 0.99), _rank(ends, 0.5),
        _rank(ends, 0.99), ready,
    )  # fmt: skip


def _rank(values: list[float], part: float) -> float:
    """The smallest value that so great a part of all does not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def why_not(error: SandboxError) -> str:
    """Why a back-end does not work here, in one line."""
    return " ".join(str(error).split())[:300]
