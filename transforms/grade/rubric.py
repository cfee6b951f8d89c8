"""From what the tests said to one outcome and one reward."""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from sandboxes.declared import Declared
from transforms.episode import CaseResult
from transforms.grade.components import MEASURES, TIERS, UNEARNED
from transforms.grade.outcomes import Outcome

Weight = Annotated[float, Field(ge=0, le=1)]


class RubricSpec(Declared):
    """Weights of the reward's components, which sum to 1. The reward is their weighted sum, in 0 .. 1.

    Correctness gates the rest: `syntax_valid` and the measures count for a program that passed every case, and for no
    other. A component that a task does not have leaves its weight to `all_passed`.
    """

    all_passed: Weight = 1.0
    """Weight of 1.0 when every case passed."""

    test_share: Weight = 0.0
    """Weight of the share of cases passed that the policy cannot see (of all cases, for a task that has none such).
    Above 0 a wrong program earns part of the reward; so it does with the next four."""

    visible_share: Weight = 0.0
    """Weight of the share of visible cases passed."""

    hidden_share: Weight = 0.0
    """Weight of the share of hidden cases passed."""

    integration_share: Weight = 0.0
    """Weight of the share of integration cases passed."""

    milestones: dict[str, Weight] = Field({})
    """Weight, by the milestone's name, of the share of its cases passed."""

    syntax_valid: Weight = 0.0
    """Weight of source that could be parsed or compiled."""

    coverage: Weight = 0.0
    """Weight of the share of the program's lines that the cases ran (Python). It is told from inside the program's own
    process: a program that is right already can forge it."""

    latency: Weight = 0.0
    """Weight of gold time / program time, at most 1, over the task's `performance` inputs. It and the next two cost a
    run of each, per input."""

    memory: Weight = 0.0
    """Weight of gold peak / program peak of the sandbox's memory, at most 1, over the same inputs."""

    deviation: Weight = 0.0
    """Weight of nearness to the gold's time: 1 at that time, 1/2 at half of it and at twice of it."""

    memory_growth: Weight = 0.0
    """Weight of memory that stays level when the function is called again and again in one process (Python)."""

    growth_bytes: float = Field(65_536.0, gt=0)
    """Bytes that a further call may leave behind before `memory_growth` falls below 1; at twice as many it is 1/2. What
    is measured of a program that keeps nothing stays within 24 KiB."""

    @property
    def weights(self) -> dict[str, float]:
        """Weight by the component's name, of those that have one."""
        named = {name: getattr(self, name) for name in (*_PARTIAL, "syntax_valid", *MEASURES)}
        parts = {f"milestone:{name}": weight for name, weight in self.milestones.items()}
        return {name: weight for name, weight in (named | parts).items() if weight != 0}

    @property
    def measures(self) -> frozenset[str]:
        """The components to measure in runs of their own."""
        return frozenset(self.weights) & frozenset(MEASURES)

    @model_validator(mode="after")
    def _sums_to_one(self) -> "RubricSpec":
        total = math.fsum(self.weights.values())
        if not math.isclose(total, 1.0):
            *others, last = self.weights or ("all_passed",)
            names = f"{', '.join(others)} and {last}" if others else last
            raise ValueError(f"the weights {names} must sum to 1, not {total:.10g}")
        return self


_PARTIAL = ("all_passed", "test_share", *TIERS)


def outcome_of(results: tuple[CaseResult, ...]) -> Outcome:
    """The outcome of an attempt whose cases ran: that of the first case that did not pass, else `passed`.

    A case in which the program tampered or broke the rules comes before all others, wherever it stands; then one that
    the grader could not decide. Raises ValueError without any result: a pass needs positive evidence.
    """
    if not results:
        raise ValueError("no case has a result, so nothing says that the program passed or failed")
    failed = [result.outcome for result in results if result.outcome is not Outcome.PASSED]
    cheated = [outcome for outcome in failed if outcome in UNEARNED]
    undecided = [outcome for outcome in failed if not outcome.scored]
    return (cheated or undecided or failed or [Outcome.PASSED])[0]


def reward_of(rubric: RubricSpec, components: Mapping[str, float], *, impossible: bool = False) -> float:
    """The reward that components come to, `all_passed` among them.

    An `impossible` task pays no part: what it pays at all, only a program that passed everything can have, which is an
    alarm. Raises ValueError for a component that is not a finite number in 0 .. 1.
    """
    wrong = {name: value for name, value in components.items() if not 0.0 <= value <= 1.0}  # NaN compares false
    if wrong:
        raise ValueError(f"reward components outside 0 .. 1: {wrong}")
    passed = components["all_passed"]
    total = 0.0
    for name, weight in rubric.weights.items():
        counts_alone = (name in _PARTIAL or name.startswith("milestone:")) and not impossible
        total += weight * components.get(name, passed) * (1.0 if counts_alone else passed)
    # Weights sum to 1 within rounding only; real excess passes through, for the grader to refuse.
    return 1.0 if total > 1.0 and math.isclose(total, 1.0) else total
