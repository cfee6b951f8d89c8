"""Before a run asks anything: its tasks are read, their gold solutions tried, and both kept as rows of `tasks`."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.spec import RunSpec
from sandboxes.backends.choose import request_of
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxError, SandboxProvider
from transforms.episode import CaseReport, now_us
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.sources.builtin import load_tasks
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import Task
from transforms.verify.attempts import attempt_program
from transforms.verify.measure import gold_problem

GOLD_RUNS = 3
"""Times that a gold must pass: a case that is right only sometimes would make noise of every reward."""


_MOST_LISTED = 20
"""Tasks that an error names."""


class TaskInvalid(Exception):
    """A task's gold solution does not pass the task's own cases."""


class GoldNotTried(Exception):
    """A task's gold solution could not be run here, through no fault of the task."""


@dataclass(slots=True)
class Golds:
    """What came of trying gold solutions, as far as it has gone."""

    tried: int = 0
    """Tasks done with, whatever came of it."""
    failing: dict[str, str] = field(default_factory=dict)
    """Task id -> why its gold does not do, or what else is wrong with the task."""
    untried: dict[str, str] = field(default_factory=dict)
    """Task id -> why its gold could not be run, which says nothing about the task."""


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
    """Run the gold of every task not seen before and store the tasks.

    Raises TaskInvalid naming each that fails; GoldNotTried where none fails, naming each that could not be run.
    """
    known = {row["task_hash"] for row in query(lake.home, "SELECT task_hash FROM tasks").to_pylist()}
    fresh = list({t.content_hash: t for t in (*tasks.train, *tasks.heldout) if t.content_hash not in known}.values())
    from transforms.async_map import run_async  # imports Beam, which those who only check tasks need not wait for

    golds = Golds()
    run_async(try_golds(fresh, sandbox, spec, golds))
    if golds.failing:
        raise TaskInvalid(f"{len(golds.failing):,} gold solution(s) fail their own task:{_listed(golds.failing)}")
    if golds.untried:
        raise GoldNotTried(f"{len(golds.untried):,} gold solution(s) could not be tried:{_listed(golds.untried)}")
    batch = hashlib.sha256("".join(t.content_hash for t in fresh).encode()).hexdigest()
    lake.append("tasks", [_row(task) for task in fresh], app_id=f"tasks/{batch}", version=1)


async def try_golds(tasks: list[Task], sandbox: SandboxProvider, spec: SandboxSpec, golds: Golds) -> None:
    """Run every gold against its own task and put into `golds` what came of it, task by task.

    A task at fault, or one that cannot be run here, keeps no other from it. Cancelled, it closes every sandbox.
    """
    slots = asyncio.Semaphore(spec.parallel)

    async def tried(task: Task, gold: str) -> None:
        async with slots:
            await _try(task, gold, sandbox, spec, golds)
        golds.tried += 1

    await asyncio.gather(*(tried(task, gold) for task in tasks if (gold := gold_of(task)) is not None))


def gold_of(task: Task) -> str | None:
    """The gold that is tried: None where there is none, or the task cannot be graded."""
    return None if task.unsupported is not None else task.gold


async def _try(task: Task, gold: str, sandbox: SandboxProvider, spec: SandboxSpec, golds: Golds) -> None:
    request = request_of(spec, owner="admission")
    problem = None
    for run in range(1, GOLD_RUNS + 1):
        last = (await attempt_program(sandbox, task, gold, request, attempts=spec.attempts))[-1]
        if last.failure is not None:
            told = last.failure.outcome is Outcome.VERIFIER_DISAGREEMENT  # by the evidence alone
            why = f"{last.failure.message}: {last.failure.evidence}" if told else last.failure.message
            at_fault = last.failure.outcome.outcome_class is not OutcomeClass.INFRA
            (golds.failing if at_fault else golds.untried)[task.task_id] = _line(why)
            return
        if last.report is not None and (problem := _failed_case(task, last.report, run)):
            break
    if task.impossible:
        problem = None if problem else "it is declared impossible, and its gold passes every case"
    elif problem is None:
        try:
            problem = await gold_problem(sandbox, task, request)
        except SandboxError as error:
            golds.untried[task.task_id] = _line(str(error))
    if problem is not None:
        golds.failing[task.task_id] = _line(problem)


def _failed_case(task: Task, report: CaseReport, run: int) -> str | None:
    """The first case that a gold does not pass in its run of that number, and what the case wants."""
    for case, result in zip(task.cases, report.results, strict=True):
        if result.outcome is not Outcome.PASSED:
            sometimes = f"passes only sometimes (failed in run {run} of {GOLD_RUNS}): " if run > 1 else ""
            wanted = KINDS[task.check.kind].describe(task.check, case)
            return f"{sometimes}{case.name} {result.outcome}: {result.message}; {wanted[:300]}"
    return None


def _line(why: str) -> str:
    """One line, without control characters: what a program printed must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in why).strip()


def _listed(reasons: dict[str, str]) -> str:
    lines = [f"\n  {task_id}: {why}" for task_id, why in reasons.items()]
    more = len(lines) - _MOST_LISTED
    return "".join(lines[:_MOST_LISTED]) + (
        f"\n  and {more:,} more; `headrace tasks check` lists all" if more > 0 else ""
    )


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
    return gold_of(task) is not None and not task.impossible
