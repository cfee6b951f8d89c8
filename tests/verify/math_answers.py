"""Answers put through the real verifier of the kind `math`."""

import asyncio

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.sources.kinds.math import Math
from transforms.sources.task import Task
from transforms.verify.attempts import attempt_program

REQUEST = SandboxRequest(limits=Limits(wall_time_s=20, cpu_time_s=10))


async def verdict(check: Math, answer: str, request: SandboxRequest = REQUEST) -> str:
    """The outcome of one answer, at the boundary that episodes meet."""
    task = Task("t", "how much?", check)
    (attempt,) = await attempt_program(Bubblewrap(), task, answer, request, attempts=1)
    if attempt.report is None:
        assert attempt.failure is not None
        return str(attempt.failure.outcome)
    (result,) = attempt.report.results
    return str(result.outcome)


def verdicts(pairs: list[tuple[str, str]], *, at_once: int = 4) -> dict[tuple[str, str], str]:
    """The outcome of each pair of an expected and a given answer."""

    async def go() -> dict[tuple[str, str], str]:
        turns = asyncio.Semaphore(at_once)

        async def one(pair: tuple[str, str]) -> str:
            async with turns:
                return await verdict(Math(pair[0]), pair[1])

        return dict(zip(pairs, await asyncio.gather(*map(one, pairs)), strict=True))

    return asyncio.run(go())
