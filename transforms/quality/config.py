"""What a cycle's rows must satisfy before they may train a policy, as declared in a run."""

import json
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from sandboxes.declared import Declared

Level = Literal["warn", "stop"]

SUITES = Path(__file__).parent / "suites"
"""The suites: one file each in the format of Great Expectations, which loads them."""


@cache
def default_levels() -> dict[str, Level]:
    """What a breach of each batch-level expectation does where the run says nothing, as the suites' files say."""
    metas = [
        expectation["meta"]
        for path in sorted(SUITES.glob("*.json"))
        for expectation in json.loads(path.read_text(encoding="utf-8"))["expectations"]
    ]
    return {meta["name"]: meta["level"] for meta in metas if "level" in meta}


class QualitySpec(Declared):
    """Limits over one cycle's training rows. A breach stops the run before the optimizer, with exit code 3, or warns:
    see `levels`."""

    levels: dict[str, Level] = Field(default_factory=dict)
    """What a breach does, by expectation: `stop` the run before the optimizer, or `warn` and go on. For example
    `{reward_drift: stop, truncation_rate: warn}`. Without an entry the two drifts warn and everything else stops."""

    max_infra_rate: float = Field(0.1, ge=0, le=1)
    """Share of episodes whose last attempt ended as `infra`."""

    max_grader_error_rate: float = Field(0.0, ge=0, le=1)
    """Share of episodes whose last attempt ended as `grader`."""

    max_quarantine_rate: float = Field(0.02, ge=0, le=1)
    """Share of rows that broke a row-level expectation."""

    max_duplicate_rate: float = Field(0.9, ge=0, le=1)
    """Share of completions that repeat another one of their group, every copy counted: a policy that has collapsed."""

    max_truncation_rate: float = Field(0.9, ge=0, le=1)
    """Share of completions cut at the token limit."""

    max_impossible_rewarded_rate: float = Field(0.0, ge=0, le=1)
    """Share of the attempts at impossible tasks that earned anything: each found a hole in the grader."""

    max_signal_rate: float = Field(1.0, ge=0, le=1)
    """Share of programs whose source shows a signal of a known cheat. Signals are hints: they stop nothing by
    default."""

    max_no_signal_rate: float = Field(1.0, ge=0, le=1)
    """Share of episodes in groups whose members all earned the same. It stops nothing by default: a policy that solves
    every task, or none, is no defect of the data."""

    max_missing_group_rate: float = Field(0.1, ge=0, le=1)
    """Share of the planned groups of which no member has a reward that may be trained on."""

    max_train_eval_overlap_rate: float = Field(0.0, ge=0, le=1)
    """Share of training rows whose task asks what a task of the run's evaluation asks, word for word."""

    max_reward_drift: float = Field(5.0, gt=0)
    """Standard errors by which the mean reward may differ from that of the run's earlier cycles, up or down. Groups
    are the units: members of a group share a task. 0 is measured where either side has fewer than two groups."""

    max_length_drift: float = Field(3.0, ge=1)
    """Times by which the mean completion may be longer or shorter, in tokens, than in the run's earlier cycles."""

    @field_validator("levels")
    @classmethod
    def _known(cls, levels: dict[str, Level]) -> dict[str, Level]:
        if unknown := sorted(set(levels) - set(default_levels())):
            raise ValueError(f"no expectation is called {', '.join(unknown)}; there are {', '.join(default_levels())}")
        return levels

    def level(self, expectation: str) -> Level:
        """What a breach of a batch-level expectation does."""
        return self.levels.get(expectation, default_levels()[expectation])
