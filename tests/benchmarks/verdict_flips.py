"""Whether the verdict on a program ever changes: the same programs, graded again and again while the machine is busy.

    .venv/bin/python -m tests.benchmarks.verdict_flips [--count N] [--workers N] [--hogs N]

Solutions of HumanEval, mutants of them, and programs that break limits or crash, in turn, in Bubblewrap sandboxes,
beside processes that only burn CPU. The outcomes of all cases are compared with those of the program's first run.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Generator
from contextlib import contextmanager

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.sources.test_humaneval_mutants import drawn
from transforms.sources.humaneval import load_humaneval
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

REQUEST = SandboxRequest(limits=Limits(wall_time_s=20, cpu_time_s=1.0, memory_mib=128, output_kib=64))
SMALL = Task("small", "p", Call("f", tuple(Case(str(i), (i,), i + 1) for i in range(3))))
BAD = (
    "def f(x): return x + 2",
    "def f(x): return float(x + 1)",
    "def f(x) return x",
    "def f(x): raise ValueError(x)",
    "import os\ndef f(x): os._exit(0)",
    "import ctypes\ndef f(x): ctypes.string_at(0)",
    "def f(x):\n    l = []\n    while True: l.append('x' * 10**6)",
    "def f(x):\n    while True: print('x' * 1000)",
    "import os\nos.kill(os.getppid(), 9)\ndef f(x): return x + 1",
    "import os, time\ndef f(x):\n    if os.fork() == 0: time.sleep(60)\n    return x + 1",
)


def programs() -> list[tuple[Task, str]]:
    """What is graded, the quick ones first."""
    golds = [(task, task.gold or "") for task in load_humaneval() if len(task.cases) < 12]
    return [*((SMALL, program) for program in BAD), *golds, *drawn(100)]


async def flips(
    chosen: list[tuple[Task, str]], count: int, *, workers: int, seconds: float = float("inf")
) -> tuple[int, list[str]]:
    """Grade so many times, or for so long; returns how many verdicts there were, and those that differ."""
    sandbox, slots = Bubblewrap(), asyncio.Semaphore(workers)
    first: dict[int, list[str]] = {}
    differ: list[str] = []
    until, graded = time.monotonic() + seconds, 0

    async def grade(number: int) -> None:
        nonlocal graded
        task, program = chosen[number]
        async with slots:
            if time.monotonic() > until:
                return
            report = await run_check(sandbox, task, program, REQUEST)
        verdict = [str(result.outcome) for result in report.results]
        graded += 1
        if verdict != first.setdefault(number, verdict):
            differ.append(f"{task.task_id}: {first[number]} then {verdict}: {program!r}")

    await asyncio.gather(*(grade(turn % len(chosen)) for turn in range(count)))
    return graded, differ


@contextmanager
def busy(hogs: int) -> Generator[None]:
    """Processes that burn CPU meanwhile."""
    context = multiprocessing.get_context("spawn")
    burning = [context.Process(target=burn, daemon=True) for _ in range(hogs)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.join()


def burn() -> None:
    """Burn CPU."""
    while True:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--hogs", type=int, default=4)
    given = parser.parse_args()
    with busy(given.hogs):
        number, found = asyncio.run(flips(programs(), given.count, workers=given.workers))
    print(*found, f"{len(found)} of {number} verdicts differ", sep="\n")
