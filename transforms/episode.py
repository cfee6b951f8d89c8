"""One episode on its way through the stages: asked, answered, executed.

    Group -> Rollout (n of them) -> Execution -> trajectory row

Each record holds the one before it, so nothing is copied and nothing can disagree. The row is the last form: see
`transforms/lake/schemas.py`.
"""

import time
from dataclasses import dataclass
from typing import Literal

from sandboxes.protocol import Usage
from transforms.grade.outcomes import Outcome
from transforms.rollout.policy import Completion, Sampling
from transforms.sources.task import Task, Tier

Purpose = Literal["train", "eval_greedy", "eval_sampled"]


@dataclass(frozen=True, slots=True)
class Group:
    """n episodes of one task, asked of one policy version."""

    run_id: str
    cycle: int
    """0 is the evaluation before training; training cycles count from 1."""
    chunk: int
    """Number of the chunk in the run that this group belongs to."""
    purpose: Purpose
    policy_version: int
    task: Task
    n: int
    sampling: Sampling
    seed: int

    @property
    def group_id(self) -> str:
        """Names the group in its run; advantages are taken within it."""
        return f"{self.run_id}/{self.cycle}/{self.purpose}/{self.task.task_id}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode has no result that counts, with the evidence."""

    outcome: Outcome
    message: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode answered, or not answered because the engine failed."""

    group: Group
    sample: int
    """0 .. n-1 within the group."""
    messages: tuple[dict[str, str], ...]
    """The chat as sent, without the answer."""
    started_us: int
    """UTC microseconds when the request left."""
    ended_us: int
    completion: Completion | None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if (self.completion is None) == (self.failure is None):
            raise ValueError(f"{self.group.group_id}#{self.sample}: a rollout has a completion or a failure, not both")

    @property
    def episode_id(self) -> str:
        """Names the episode; stays the same over its attempts."""
        return f"{self.group.group_id}/{self.sample}"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case of a task came to."""

    name: str
    tier: Tier
    outcome: Outcome
    """`passed`, `failed_tests` (wrong value), `runtime_error`, `syntax_error` or a limit."""
    message: str
    """For people: what went wrong, bounded in length. Holds no expected value of a hidden case."""
    duration_s: float
    """Seconds on the host's clock."""


@dataclass(frozen=True, slots=True)
class CaseReport:
    """All cases of one program in one sandbox."""

    results: tuple[CaseResult, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt at running an episode's program. Attempts count from 1; the last one is final."""

    rollout: Rollout
    attempt: int
    final: bool
    sandbox: str
    """Name of the back-end."""
    program: str | None
    """The source taken from the completion; None when there is none."""
    started_us: int
    ended_us: int
    report: CaseReport | None
    failure: Failure | None = None


def now_us() -> int:
    """The clock of every row: UTC microseconds."""
    return time.time_ns() // 1000
