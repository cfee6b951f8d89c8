"""One task: what the policy is asked, and how what it submits is checked."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

Tier = Literal["visible", "hidden", "integration"]
"""`visible` cases may be shown to the policy; `hidden` ones look at one thing each, `integration` ones at how the parts
work together, and neither may be shown."""
Split = Literal["train", "heldout"]
Integrity = Literal["split", "separate", "shared_process"]
"""What stands between a program and its verdict. `split`: expected values are never where the program runs, which gives
back plain data. `separate`: files are looked at after every process of the program is dead. `shared_process`: tests run
in the program's own process, which can lie."""


class AnyCase(Protocol):
    """What every case of every kind has."""

    @property
    def name(self) -> str:
        """Names the case, unique in its task."""
        ...

    @property
    def tier(self) -> Tier:
        """Who may see it."""
        ...

    @property
    def milestone(self) -> str | None:
        """The part of the task that this case belongs to, where the task has parts."""
        ...


class Check(Protocol):
    """How one kind of task is checked: a frozen dataclass in `transforms/sources/kinds`."""

    kind: ClassVar[str]
    integrity: ClassVar[Integrity]

    @property
    def language(self) -> str | None:
        """What is submitted: a language of `transforms.sources.languages`, `sql`, `diff`, or None for an answer in
        prose."""
        ...

    @property
    def cases(self) -> Sequence[AnyCase]:
        """Each gets exactly one result."""
        ...


class TaskBroken(Exception):
    """A task cannot judge: a fault of its author, no program's, that shows only when it is used. The text names it."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and a check."""

    task_id: str
    prompt: str
    """What the policy is asked, as one user message."""
    check: Check
    gold: str | None = None
    """Source of a solution that passes every case."""
    split: Split = "train"
    source: str = "jsonl"
    unsupported: str | None = None
    """Why this task is kept but cannot be graded; None when it can."""
    impossible: bool = False
    """Whether no honest program can pass: a canary, whose every reward raises an alarm."""
    performance: tuple[Any, ...] = ()
    """Inputs that no case has, on which a correct program is measured beside the gold: see `performance`."""
    record: str = field(default="", compare=False)
    """The canonical JSON of the task in our format: what is hashed and stored."""

    @property
    def cases(self) -> Sequence[AnyCase]:
        """The check's cases."""
        return self.check.cases

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical record, in hex."""
        return hashlib.sha256(self.record.encode()).hexdigest()


def canonical(record: dict[str, object]) -> str:
    """The one JSON text of a record: sorted keys, no spaces, so that equal tasks have equal hashes."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
