"""Before a run asks anything: its tasks are read, their gold solutions tried, and both kept as rows of `tasks`."""

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path

from pipelines.spec import RunSpec
from sandboxes.backends.choose import request_of
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.episode import now_us
from transforms.grade.outcomes import Outcome
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.sources.builtin import load_tasks
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import Task
from transforms.verify.measure import gold_problem
from transforms.verify.run import run_check

GOLD_RUNS = 3
"""Times that a gold must pass: a case that is right only sometimes would make noise of every reward."""


class TaskInvalid(Exception):
    """A task's gold solution does not pass the task's own cases."""


@dataclass(frozen=True, slots=True)
class RunTasks:
    """The tasks of a run."""

    train: list[Task]
    heldout: list[Task]

    @property
    def tasks_hash(self) -> str:
        """SHA-256 over the content hashes of all tasks, in hex: the same tasks, the same hash."""
        hashes = sorted(task.content_hash for task in (*self.train, *self.heldout))
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def read_run_tasks(spec: RunSpec, base: Path) -> RunTasks:
    """Read both sets. Raises TaskFileError, or TaskInvalid when a set holds none of its split."""
    train = [task for task in load_tasks(spec.tasks.train, base) if task.split == "train"]
    if not train:
        raise TaskInvalid(f"tasks.train: {spec.tasks.train} holds no task with split `train`")
    heldout: list[Task] = []
    if spec.tasks.heldout is not None:
        heldout = [task for task in load_tasks(spec.tasks.heldout, base) if task.split == "heldout"]
        if not heldout:
            raise TaskInvalid(f"tasks.heldout: {spec.tasks.heldout} holds no task with split `heldout`")
    both = {task.task_id for task in train} & {task.task_id for task in heldout}
    if both:
        raise TaskInvalid(f"tasks: {', '.join(sorted(both))} would be both trained on and held out")
    return RunTasks(train, heldout)


def admit(tasks: RunTasks, *, lake: Lake, sandbox: SandboxProvider, spec: SandboxSpec) -> None:
    """Run the gold of every task not seen before and store the tasks. Raises TaskInvalid naming each that fails."""
    known = {row["task_hash"] for row in query(lake.home, "SELECT task_hash FROM tasks").to_pylist()}
    fresh = list({t.content_hash: t for t in (*tasks.train, *tasks.heldout) if t.content_hash not in known}.values())
    from transforms.async_map import run_async  # imports Beam, which those who only check tasks need not wait for

    failures = run_async(gold_failures(fresh, sandbox, spec))
    if failures:
        listed = "\n".join(f"  {task_id}: {why}" for task_id, why in failures.items())
        raise TaskInvalid(f"{len(failures)} gold solution(s) fail their own task:\n{listed}")
    batch = hashlib.sha256("".join(t.content_hash for t in fresh).encode()).hexdigest()
    lake.append("tasks", [_row(task) for task in fresh], app_id=f"tasks/{batch}", version=1)


async def gold_failures(tasks: list[Task], sandbox: SandboxProvider, spec: SandboxSpec) -> dict[str, str]:
    """Task id -> why its gold solution does not pass, for those that do not. Raises SandboxError."""
    slots = asyncio.Semaphore(spec.parallel)

    async def check(task: Task) -> tuple[str, str] | None:
        if task.gold is None or task.unsupported is not None:
            return None
        request = request_of(spec, owner="admission")
        async with slots:
            failed = await _failed_case(sandbox, task, task.gold, request)
            if task.impossible:
                return None if failed else (task.task_id, "it is declared impossible, and its gold passes every case")
            problem = failed or await gold_problem(sandbox, task, request)
        return (task.task_id, problem) if problem else None

    return dict(found for found in await asyncio.gather(*map(check, tasks)) if found)


async def _failed_case(sandbox: SandboxProvider, task: Task, gold: str, request: SandboxRequest) -> str | None:
    """The first case that a gold does not pass, in any of its runs, and what it wants."""
    for run in range(1, GOLD_RUNS + 1):
        report = await run_check(sandbox, task, gold, request)
        for case, result in zip(task.cases, report.results, strict=True):
            if result.outcome is not Outcome.PASSED:
                sometimes = f"passes only sometimes (failed in run {run} of {GOLD_RUNS}): " if run > 1 else ""
                wanted = KINDS[task.check.kind].describe(task.check, case)
                return f"{sometimes}{case.name} {result.outcome}: {result.message}; {wanted[:300]}"
    return None


def _row(task: Task) -> dict[str, object]:
    visible = sum(case.tier == "visible" for case in task.cases)
    return {
        "task_hash": task.content_hash,
        "task_id": task.task_id,
        "source": task.source,
        "split": task.split,
        "kind": task.check.kind,
        "language": task.check.language,
        "prompt": task.prompt,
        "visible_cases": visible,
        "hidden_cases": len(task.cases) - visible,
        "unsupported": task.unsupported,
        "gold_outcome": str(Outcome.PASSED) if _gold_passes(task) else None,
        "record": task.record,
        "added_at": now_us(),
    }


def _gold_passes(task: Task) -> bool:
    return task.gold is not None and task.unsupported is None and not task.impossible
