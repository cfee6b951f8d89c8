"""One episode on its way through the stages: asked, answered, executed.

    Group -> Rollout (n of them) -> Execution -> trajectory row

Each record holds the one before it, so nothing is copied and nothing can disagree. The row is the last form: see
`transforms/lake/schemas.py`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sandboxes.protocol import Snapshot, Usage
from transforms.grade.outcomes import Outcome
from transforms.rollout.policy import Completion, Sampling
from transforms.sources.task import AnyCase, Task, Tier

MESSAGE_CHARS = 300
"""Characters that a case's message, and what a program gave, may take."""

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
    host: str | None = None
    """Which of several sandbox hosts it was."""


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
    """`passed`, `failed_tests` (wrong value), `runtime_error`, `syntax_error`, a limit, or a broken rule."""
    message: str
    """For people: what went wrong, bounded in length. Holds no expected value of a case that is not visible."""
    duration_s: float
    """Seconds on the host's clock."""
    milestone: str | None = None
    got: str | None = None
    """What the program gave instead, as text, bounded in length; None where it gave nothing."""
    expected_type: str | None = None
    """Type of what was expected where the value was wrong: `int`, `text`, `rows`."""
    location: str | None = None
    """Where in the program it went wrong, such as `line 12 in add`; None where nobody can tell."""

    @staticmethod
    def of(
        case: AnyCase, outcome: Outcome, message: str = "", duration_s: float = 0.0, *, got: str | None = None,
        expected_type: str | None = None, location: str | None = None,
    ) -> "CaseResult":  # fmt: skip
        """The result of a case; `message` and `got` are cut to their bound and made storable."""
        text, shown = _bounded(message) or "", _bounded(got)
        return CaseResult(
            case.name, case.tier, outcome, text, duration_s, case.milestone, shown, expected_type, location
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program that passed every case cost, measured from outside it, beside the task's gold.

    None where the task or its kind gives nothing to measure. `transforms.grade.components` makes components of it.
    """

    latency_s: float | None = None
    """Seconds of CPU time on the performance input on which it stands to the gold's at the median ratio."""
    reference_latency_s: float | None = None
    """The gold's on the same input, in turn with the program's."""
    peak_memory_bytes: int | None = None
    """Median over all performance inputs of the most memory the sandbox of a run held."""
    reference_peak_memory_bytes: int | None = None
    memory_growth_bytes: float | None = None
    """By how much a further call in one process raises that peak."""
    coverage: float | None = None
    """Share of the program's executable lines that the cases ran, 0 .. 1, as told from inside its own process."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Component -> why there is no number for it, where the program is to blame: it earns nothing for it."""


@dataclass(frozen=True, slots=True)
class CaseReport:
    """All cases of one program."""

    results: tuple[CaseResult, ...]
    usage: Usage
    """Of all sandboxes the program ran in together: see `together`."""
    compiler_message: str | None = None
    """What the compiler said, bounded in length; None where nothing was compiled."""
    measured: Measured | None = None
    """Only where a rubric weighs it and every case passed."""
    workspace: Snapshot | None = None
    """The files that the program left, or the repository as the submission made it; None for kinds that leave none."""


def together(usages: Sequence[Usage], *, output_bytes: int) -> Usage:
    """One record for all the sandboxes a program used, at least one: sums and peaks, and the first breach."""
    return replace(
        usages[-1],
        breach=next((usage.breach for usage in usages if usage.breach is not None), None),
        wall_s=sum(usage.wall_s for usage in usages),
        cpu_s=sum(usage.cpu_s for usage in usages),
        peak_memory_bytes=max(usage.peak_memory_bytes for usage in usages),
        stdout=b"".join(usage.stdout for usage in usages)[:output_bytes],
        stderr=b"".join(usage.stderr for usage in usages)[:output_bytes],
        connections=tuple(attempt for usage in usages for attempt in usage.connections),
    )


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
    workspace_digest: str | None = None
    """SHA-256 of the archive of the workspace, in hex, once it is a file beside the tables."""
    output_digest: str | None = None
    """SHA-256 of what the processes printed, likewise."""


def now_us() -> int:
    """The clock of every row: UTC microseconds."""
    return time.time_ns() // 1000


def _bounded(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()[:MESSAGE_CHARS]
