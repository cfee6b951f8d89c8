"""From what the tests said to one outcome and one reward."""

import math
from dataclasses import dataclass

from pydantic import Field, model_validator

from sandboxes.declared import Declared
from transforms.episode import CaseResult
from transforms.grade.outcomes import Outcome

_UNEARNED = frozenset({Outcome.TAMPERED, Outcome.POLICY_VIOLATION})


class RubricSpec(Declared):
    """Weights of the reward's components. The reward is their weighted sum, in 0 .. 1."""

    all_passed: float = Field(1.0, ge=0, le=1)
    """Weight of 1.0 when every case passed."""

    test_share: float = Field(0.0, ge=0, le=1)
    """Weight of the share of hidden cases passed. Above 0 a wrong program earns part of the reward."""

    @model_validator(mode="after")
    def _sums_to_one(self) -> "RubricSpec":
        if not math.isclose(self.all_passed + self.test_share, 1.0):
            raise ValueError(
                f"the weights all_passed and test_share must sum to 1, not {self.all_passed + self.test_share}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward in 0 .. 1 and the components it was made of, by name."""

    reward: float
    components: dict[str, float]


def outcome_of(results: tuple[CaseResult, ...]) -> Outcome:
    """The outcome of an attempt whose cases ran: that of the first case that did not pass, else `passed`.

    A case in which the program tampered or broke the rules comes before all others, wherever it stands.
    Raises ValueError without any result: a pass needs positive evidence.
    """
    if not results:
        raise ValueError("no case has a result, so nothing says that the program passed or failed")
    failed = [result.outcome for result in results if result.outcome is not Outcome.PASSED]
    cheated = [outcome for outcome in failed if outcome in _UNEARNED]
    return (cheated or failed or [Outcome.PASSED])[0]


def score(rubric: RubricSpec, outcome: Outcome, results: tuple[CaseResult, ...]) -> Scored:
    """Score an attempt whose outcome is the policy's. Raises ValueError for any other outcome.

    `test_share` is taken over the hidden cases, or over all of them for a task that has none; a program that tampered
    or broke the rules earns no share, whatever its cases say.
    """
    if not outcome.scored:
        raise ValueError(f"{outcome} carries no reward")
    counted = [result for result in results if result.tier == "hidden"] or results
    passed = sum(result.outcome is Outcome.PASSED for result in counted)
    share = passed / len(counted) if counted and outcome not in _UNEARNED else 0.0
    components = {"all_passed": float(outcome is Outcome.PASSED), "test_share": share}
    total = rubric.all_passed * components["all_passed"] + rubric.test_share * share
    if total > 1.0 and math.isclose(total, 1.0):
        # Weights sum to 1 within rounding only; NaN and real excess pass through, for the grader to refuse.
        total = 1.0
    return Scored(total, components)
