"""What a scheduler is asked for and what it answers with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxes.protocol import DeadlineExceeded, SandboxError
from sandboxes.scheduling.breaker import BreakerRules

Vector = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a host has, or a request needs."""

    cpus: float
    """Cores; counted in thousandths."""
    memory_mib: int
    disk_mib: int
    gpus: int = 0

    def __post_init__(self) -> None:
        if not all(0 <= amount < math.inf for amount in (self.cpus, self.memory_mib, self.disk_mib, self.gpus)):
            raise ValueError(f"amounts must be finite and not negative: {self}")

    def vector(self) -> Vector:
        """In whole units, so that sums are exact: thousandths of a core, MiB, MiB, slots."""
        return round(self.cpus * 1000), self.memory_mib, self.disk_mib, self.gpus


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request as the scheduler sees it."""

    id: int
    """Unique for the scheduler's life, growing in the order of submission."""
    owner: str
    needs: Capacity
    asked_at: float
    """When it was first asked for, in seconds on the caller's clock; a retry keeps it, and its place."""
    expected_s: float = 10.0
    deadline_s: float | None = None
    """Seconds from `asked_at`."""
    priority: int = 0
    avoid: frozenset[str] = frozenset()
    """Hosts not to be placed on while another that could ever take it is well, even if busy now."""

    def __post_init__(self) -> None:
        if not 0 <= self.expected_s < math.inf or (self.deadline_s is not None and not math.isfinite(self.deadline_s)):
            raise ValueError(f"times must be finite, and the expected one not negative: {self}")

    def latest_start(self) -> float:
        """The last moment at which it can start and still end, as expected, by its deadline."""
        return math.inf if self.deadline_s is None else self.asked_at + (self.deadline_s - self.expected_s)

    def late(self, now: float) -> DeadlineExceeded:
        """The error for a start that did not come in time."""
        left = self.asked_at + (self.deadline_s or 0.0) - now
        why = "its deadline passed in the queue" if left <= 0 else "it cannot end by its deadline any more"
        return DeadlineExceeded(
            why,
            evidence=f"asked for {now - self.asked_at:.1f} s ago, deadline {self.deadline_s:g} s: {left:.1f} s left, "
            f"{self.expected_s:g} s expected",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A right to part of a host, from `began` until `Scheduler.finish`."""

    ticket: Ticket
    host: str
    began: float
    share: float
    """The dominant share of all hosts."""
    charge: float
    """What its owner's use grew by."""
    probe: bool
    """Whether it tries out a host that was sick."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that ended in the queue, and why."""

    ticket: Ticket
    error: SandboxError


class QueueFull(Exception):
    """The owner has `Rules.queue_limit` requests waiting: hold the next one back."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How hosts are shared."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Owner -> its part of the hosts in relation to the others'; 1 where not named."""
    queue_limit: int = 1000
    """Requests that one owner may have waiting."""
    priority_s: float = 60.0
    """Seconds of waiting that one level of priority is worth."""
    patience_s: float = 30.0
    """Seconds for which an owner's first request may be passed over."""
    breaker: BreakerRules = field(default_factory=BreakerRules)

    def __post_init__(self) -> None:
        if not all(0 < weight < math.inf for weight in self.weights.values()):
            raise ValueError(f"weights must be positive: {dict(self.weights)}")
        if self.queue_limit < 1 or self.priority_s < 0 or self.patience_s < 0:
            raise ValueError(f"no scheduler can follow {self}")
