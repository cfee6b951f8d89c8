"""Grade any set of programs without a policy: many at once, their rows in the order of the programs.

At most `parallel` programs are in the works; behind a slow one, so many finished rows wait for their turn. What is held
does not grow with the number of programs.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pipelines.grade_input import Submission, sha256_of
from pipelines.grade_output import Results
from pipelines.grade_progress import Tally
from sandboxes.backends.choose import request_of
from sandboxes.limits import SandboxSpec
from sandboxes.pool import Pool
from sandboxes.protocol import SandboxProvider
from transforms.episode import CaseResult
from transforms.grade.judge import GRADER_VERSION, Ran, judge
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.grade.rubric import RubricSpec
from transforms.grade.signals import signals
from transforms.sources.task import Task
from transforms.verify.attempts import Attempt, attempt_program

_WAITING = 64
"""Finished rows that may wait for an earlier one, for each program in the works."""

_STREAK = 20
"""Rows in a row, of several tasks, that we failed to judge: then no later one can be expected to fare better."""


class GradingBroken(Exception):
    """One program after another could not be judged, through no fault of theirs."""


class Grading:
    """What grades: where programs run, and how what they did is scored."""

    def __init__(
        self, tasks: Mapping[str, Task], sandbox: SandboxProvider, spec: SandboxSpec, rubric: RubricSpec
    ) -> None:
        self.tasks = tasks
        self.sandbox, self.spec, self.rubric = sandbox, spec, rubric
        self._request = request_of(spec, owner="grade")
        self._hashes = {task_id: task.content_hash for task_id, task in tasks.items()}
        self._settings = {
            "grader_version": GRADER_VERSION,
            "sandbox": sandbox.name,
            "image": spec.image,
            "limits": spec.limits.model_dump(mode="json"),
            "rubric": rubric.model_dump(mode="json", exclude_defaults=True) | rubric.weights,
        }

    def identity(self, submission: Submission) -> dict[str, Any]:
        """What a row says of its subject and of how it was graded: a row that differs in it is of something else."""
        return {
            "task_id": submission.task.task_id,
            "line": submission.line,
            **({} if submission.id is None else {"id": submission.id}),
            "task_hash": self._hashes[submission.task.task_id],
            "program_sha256": sha256_of(submission.program()),
            **self._settings,
        }

    async def row(self, submission: Submission) -> dict[str, Any]:
        """Run and judge one program: its row, whatever happens."""
        task, program = submission.task, submission.program()
        tries: list[Attempt] = []
        if program is not None and task.unsupported is None:
            tries = await attempt_program(
                self.sandbox, task, program, self._request, attempts=self.spec.attempts, measures=self.rubric.measures
            )
        report, failure = (tries[-1].report, tries[-1].failure) if tries else (None, None)
        verdict = judge(f"line {submission.line}", task, Ran(program, report, failure), self.rubric)
        usage = report.usage if report else None
        identity = self.identity(submission)
        first = {name: identity.pop(name) for name in ("task_id", "line", "id") if name in identity}
        return {
            **first,
            "outcome": str(verdict.outcome),
            "outcome_class": str(verdict.outcome.outcome_class),
            "reward": verdict.reward,
            "components": verdict.components,
            "tests": [_test(result) for result in (report.results if report else ())],
            "compiler_message": report.compiler_message if report else None,
            "measured": asdict(report.measured) if report and report.measured else None,
            "signals": None if program is None else signals(program, task),
            "failure": verdict.failure,
            "evidence": verdict.evidence,
            "wall_s": usage.wall_s if usage else None,
            "cpu_s": usage.cpu_s if usage else None,
            "peak_memory_bytes": usage.peak_memory_bytes if usage else None,
            "limits_enforced_by": usage.limits_enforced_by if usage else None,
            "integrity": task.check.integrity if report else None,
            "attempts": len(tries),
            **identity,
        }


def check_all(
    submissions: Iterator[Submission], rows: Iterator[dict[str, Any]], grading: Grading, results: Results, tally: Tally
) -> int:
    """Read every submission once, before any is graded, and count those rows that are there already.

    Gives the number of submissions. Raises ProgramsError, or ResultsError for rows of something else.
    """
    total, going = 0, True
    for total, submission in enumerate(submissions, 1):
        if going and (row := next(rows, None)) is not None:
            results.compare(total, row, grading.identity(submission))
            tally.add(row)
        else:
            going = False
    if going and next(rows, None) is not None:
        raise results.foreign(total + 1, f"is one too many: there are only {total} programs")
    return total


async def grade_all(submissions: Iterator[Submission], grading: Grading, results: Results, tally: Tally) -> None:
    """Grade what is given and append a row for each, in their order.

    The rows in the file are whole at all times. Cancelled, it closes every sandbox first. Raises ResultsFull,
    ProgramsError, GradingBroken.
    """
    rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(_WAITING * grading.spec.parallel)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_start(submissions, grading, rows, group))
            group.create_task(_write(rows, results, tally, tasks=len(grading.tasks)))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        if isinstance(grading.sandbox, Pool):
            await grading.sandbox.close()


async def _start(
    submissions: Iterator[Submission], grading: Grading, rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | None],
    group: asyncio.TaskGroup,
) -> None:  # fmt: skip
    slots = asyncio.Semaphore(grading.spec.parallel)
    while True:
        await slots.acquire()
        submission = next(submissions, None)
        if submission is None:
            break
        task = group.create_task(grading.row(submission))
        task.add_done_callback(lambda _: slots.release())
        await rows.put(task)
    await rows.put(None)


async def _write(
    rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | None], results: Results, tally: Tally, *, tasks: int
) -> None:
    streak: list[dict[str, Any]] = []
    judged_end = results.end
    while (graded := await rows.get()) is not None:
        row = await graded
        results.append(json.dumps(row, allow_nan=False))
        tally.add(row)
        if row["outcome_class"] == OutcomeClass.INFRA or row["outcome"] == Outcome.GRADER_ERROR:
            streak.append(row)
        else:
            streak, judged_end = [], results.end
        if len(streak) >= _STREAK and len({each["task_id"] for each in streak}) >= min(3, tasks):
            results.cut(judged_end)
            raise GradingBroken(
                f"{len(streak)} programs in a row could not be judged, the last of them for "
                f"{row['outcome']}: {row['failure']}\n\nhint: `headrace doctor` tries the sandbox on this machine; the "
                f"rows before them are kept, and the same command goes on after those"
            )


def _test(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "tier": result.tier,
        "milestone": result.milestone,
        "outcome": str(result.outcome),
        "message": result.message,
        "got": result.got,
        "expected_type": result.expected_type,
        "location": result.location,
        "duration_s": result.duration_s,
    }
