"""From what running one program came to, to its verdict: outcome, reward and components. Imports no Beam."""

import traceback
from collections import Counter
from dataclasses import dataclass, field

from transforms.episode import CaseReport, CaseResult, Failure
from transforms.grade.components import components_of
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.grade.rubric import RubricSpec, outcome_of, reward_of
from transforms.sources.task import Task

GRADER_VERSION = "3"
"""Version of the rules in this package; raise it when the same execution would be graded differently."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one attempt ended. `reward` is a finite number in 0 .. 1 if the policy caused the end, else None."""

    subject: str
    """What was judged, such as `trajectory t-1`: for messages."""
    outcome: Outcome
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    """What failed; None when the outcome is the policy's."""
    evidence: str | None = None

    def __post_init__(self) -> None:
        fits = self.reward is not None and 0.0 <= self.reward <= 1.0  # NaN compares false
        if not (fits if self.outcome.scored else self.reward is None):
            raise ValueError(f"{self.subject}: {self.outcome} cannot carry the reward {self.reward!r}")


@dataclass(frozen=True, slots=True)
class Ran:
    """What running a submission came to: a report or a failure, or neither where nothing was submitted."""

    program: str | None
    report: CaseReport | None
    failure: Failure | None
    cut: bool = False
    """Whether what was to hold the program was cut at a limit."""


def judge(subject: str, task: Task, ran: Ran, rubric: RubricSpec) -> Verdict:
    """The verdict. Never raises: a fault of the grader is the outcome `grader_error`."""
    try:
        return _judged(subject, task, ran, rubric)
    except Exception as error:  # noqa: BLE001 - the boundary of grading: its own fault becomes a row, never a zero
        why = f"{type(error).__name__}: {error}"
        return Verdict(subject, Outcome.GRADER_ERROR, failure=why, evidence=traceback.format_exc())


def _judged(subject: str, task: Task, ran: Ran, rubric: RubricSpec) -> Verdict:
    if ran.failure is not None:
        return Verdict(subject, ran.failure.outcome, failure=ran.failure.message, evidence=ran.failure.evidence)
    if task.unsupported is not None:
        return Verdict(subject, Outcome.TASK_INVALID, failure="the task cannot be graded", evidence=task.unsupported)
    results: tuple[CaseResult, ...] = ()
    if ran.program is None:
        outcome = Outcome.TRUNCATED if ran.cut else Outcome.NO_SUBMISSION
    else:
        results = _complete_results(subject, task, ran.report)
        outcome = outcome_of(results)
        if outcome.outcome_class is OutcomeClass.GRADER:
            undecided = next(result for result in results if result.outcome is outcome)
            return Verdict(subject, outcome, failure=f"{undecided.name}: {undecided.message or outcome}")
    measured = ran.report.measured if ran.report else None
    components = components_of(task, outcome, results, measured, growth_bytes=rubric.growth_bytes)
    return Verdict(subject, outcome, reward_of(rubric, components, impossible=task.impossible), components)


def _complete_results(subject: str, task: Task, report: CaseReport | None) -> tuple[CaseResult, ...]:
    """The results, once each case of the task has exactly one: an absent result is no pass."""
    if report is None:
        raise ValueError(f"{subject}: its program has neither a report nor a failure")
    expected = Counter(case.name for case in task.cases)
    found = Counter(result.name for result in report.results)
    if expected != found:
        raise ValueError(
            f"{subject}: results do not match the task's cases "
            f"(missing {sorted((expected - found).elements())}, unexpected {sorted((found - expected).elements())})"
        )
    return report.results
