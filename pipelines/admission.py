"""Before a run asks anything: its tasks are read, their gold solutions tried, and both kept as rows of `tasks`."""

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pipelines.spec import RunSpec
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxProvider
from transforms.episode import now_us
from transforms.grade.outcomes import Outcome
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.sources.builtin import load_tasks
from transforms.sources.task import Task
from transforms.verify.call import run_call


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
    failures = asyncio.run(gold_failures(fresh, sandbox, spec))
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
        async with slots:
            report = await run_call(sandbox, task, task.gold, spec.limits)
        for case, result in zip(task.cases, report.results, strict=True):
            if result.outcome is not Outcome.PASSED:
                call = ", ".join([*map(repr, case.args), *(f"{name}={value!r}" for name, value in case.kwargs.items())])
                wanted = f"{task.entry_point}({call}) must return {case.expected!r}"
                return task.task_id, f"{case.name} {result.outcome}: {result.message}; {wanted[:300]}"
        return None

    return dict(found for found in await asyncio.gather(*map(check, tasks)) if found)


def _row(task: Task) -> dict[str, object]:
    visible = sum(case.tier == "visible" for case in task.cases)
    return {
        "task_hash": task.content_hash,
        "task_id": task.task_id,
        "source": task.source,
        "split": task.split,
        "kind": json.loads(task.record).get("kind", "call"),
        "prompt": task.prompt,
        "entry_point": task.entry_point,
        "visible_cases": visible,
        "hidden_cases": len(task.cases) - visible,
        "unsupported": task.unsupported,
        "gold_outcome": str(Outcome.PASSED) if task.gold is not None and task.unsupported is None else None,
        "record": task.record,
        "added_at": now_us(),
    }
