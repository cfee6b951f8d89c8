"""One task: what the policy is asked, and how its program is checked."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["visible", "hidden"]
Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the entry point and the value it must return. Visible cases may be shown to the policy."""

    name: str
    args: tuple[object, ...]
    expected: object
    kwargs: dict[str, object] = field(default_factory=dict)
    tier: Tier = "hidden"


@dataclass(frozen=True, slots=True)
class Task:
    """A `call` task: write a function; each case calls it in a fresh process and compares what it returns."""

    task_id: str
    prompt: str
    """What the policy is asked, as one user message."""
    entry_point: str
    cases: tuple[Case, ...]
    gold: str | None = None
    """Source of a solution that passes every case."""
    split: Split = "train"
    source: str = "jsonl"
    prefix: str = ""
    """Source put before the submission (imports, helpers the prompt promises)."""
    unsupported: str | None = None
    """Why this task is kept but cannot be graded; None when it can."""
    record: str = field(default="", compare=False)
    """The canonical JSON of the task in our format: what is hashed and stored."""

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical record, in hex."""
        return hashlib.sha256(self.record.encode()).hexdigest()


def canonical(record: dict[str, object]) -> str:
    """The one JSON text of a record: sorted keys, no spaces, so that equal tasks have equal hashes."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
