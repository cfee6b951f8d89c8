"""What a cycle's rows must satisfy before they may train a policy, as declared in a run."""

from pydantic import Field

from sandboxes.declared import Declared


class QualitySpec(Declared):
    """Limits over one cycle's training rows. A breach stops the run before the optimizer, with exit code 3."""

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
