"""Grade any set of programs without a policy: many at once, their rows in the order of the programs.

At most `parallel` programs are in the works; behind a slow one, so many finished rows wait for their turn. What is held
does not grow with the number of programs.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipelines.grade_input import Submission, sha256_of
from pipelines.grade_output import Results, unjudged
from pipelines.grade_progress import Tally
from sandboxes.backends.choose import request_of
from sandboxes.limits import SandboxSpec
from sandboxes.pool import Pool
from sandboxes.protocol import Command, ProvisionFailed, SandboxProvider
from transforms.episode import CaseResult
from transforms.grade.judge import GRADER_VERSION, Ran, judge
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.grade.rubric import RubricSpec
from transforms.grade.signals import signals
from transforms.sources.task import Task
from transforms.verify.attempts import Attempt, attempt_program
from transforms.verify.compile import WARM

_WAITING = 64
"""Finished rows that may wait for an earlier one, for each program in the works."""

_STREAK = 20
"""Rows in a row, of several tasks, that we failed to judge: then no later one can be expected to fare better."""


_PROBE_S = 60.0
"""Seconds, of wall clock and CPU, for one trivial command: a busy machine is slow, not broken."""


class GradingBroken(Exception):
    """One program after another could not be judged, through no fault of theirs."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is."""

    programs: int
    rows: int
    """Rows that are in the file already."""


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

    async def probe(self) -> None:
        """Run one trivial command in a sandbox such as programs get.

        Raises ProvisionFailed or another SandboxError when this machine cannot, so that no row need say it.
        """
        command = Command(("true",), wall_time_s=_PROBE_S, cpu_time_s=_PROBE_S)
        async with await self.sandbox.create(replace(self._request, warm=WARM)) as box:
            result = await box.exec(command)
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()[-300:]
            evidence = f"exit {result.exit_code}, signal {result.signal}, {result.breach}; {said}"
            raise ProvisionFailed(f"a sandbox of image {self.spec.image} cannot run `true`", evidence=evidence)

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
            "host": usage.host if usage else failure.host if failure else None,
            "integrity": task.check.integrity if report else None,
            "attempts": len(tries),
            **identity,
        }


def check_all(
    submissions: Iterator[Submission], rows: Iterator[dict[str, Any]], grading: Grading, results: Results, tally: Tally,
    *, retry: bool,
) -> Extent:  # fmt: skip
    """Read every submission once, before any is graded, and count those rows that are there and stay.

    With `retry` those without a verdict do not stay. Raises ProgramsError, or ResultsError for rows of something else.
    """
    total = there = 0
    for total, submission in enumerate(submissions, 1):
        if there == total - 1 and (row := next(rows, None)) is not None:
            there = total
            results.compare(total, row, grading.identity(submission))
            if not (retry and unjudged(row)):
                tally.add(row)
    if there == total and next(rows, None) is not None:
        raise results.foreign(total + 1, f"is one too many: there are only {total} programs")
    return Extent(total, there)


async def grade_all(
    work: Iterator[Submission | dict[str, Any]], grading: Grading, results: Results, tally: Tally, *, force: bool
) -> None:
    """Append a row for each of `work`, in their order: for a submission what it is graded, else the row itself.

    Rows that are there stay, but with `force`. The rows in the file are whole at all times. Cancelled, it closes every
    sandbox first. Raises SandboxError, before it changes the file, when this machine cannot run programs; ResultsFull,
    ProgramsError, GradingBroken.
    """
    rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | dict[str, Any] | None]
    rows = asyncio.Queue(_WAITING * grading.spec.parallel)
    try:
        await grading.probe()
        if force:
            results.cut(0)
        async with asyncio.TaskGroup() as group:
            group.create_task(_start(work, grading, rows, group))
            group.create_task(_write(rows, results, tally, tasks=len(grading.tasks)))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        if isinstance(grading.sandbox, Pool):
            await grading.sandbox.close()


async def _start(
    work: Iterator[Submission | dict[str, Any]], grading: Grading,
    rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | dict[str, Any] | None], group: asyncio.TaskGroup,
) -> None:  # fmt: skip
    slots = asyncio.Semaphore(grading.spec.parallel)
    for item in work:
        if isinstance(item, dict):
            await rows.put(item)
            continue
        await slots.acquire()
        task = group.create_task(grading.row(item))
        task.add_done_callback(lambda _: slots.release())
        await rows.put(task)
    await rows.put(None)


async def _write(
    rows: asyncio.Queue[asyncio.Task[dict[str, Any]] | dict[str, Any] | None], results: Results, tally: Tally, *,
    tasks: int,
) -> None:  # fmt: skip
    streak: list[dict[str, Any]] = []
    judged_end = results.end
    while (graded := await rows.get()) is not None:
        if isinstance(graded, dict):  # counted when it was read, and it says nothing about the machine as it is now
            results.append(json.dumps(graded))
            continue
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
