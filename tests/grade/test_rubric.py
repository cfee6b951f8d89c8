import math

import pytest
from pydantic import ValidationError

from transforms.episode import CaseResult
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import RubricSpec, outcome_of, reward_of


def results(*outcomes: str) -> tuple[CaseResult, ...]:
    return tuple(CaseResult(f"case-{i}", "hidden", Outcome(o), "", 0.01) for i, o in enumerate(outcomes))


def test_the_first_case_that_did_not_pass_names_the_outcome():
    assert outcome_of(results("passed", "passed")) is Outcome.PASSED
    assert outcome_of(results("passed", "time_limit", "failed_tests")) is Outcome.TIME_LIMIT
    assert outcome_of(results("failed_tests", "time_limit")) is Outcome.FAILED_TESTS


def test_a_case_of_cheating_names_the_outcome_wherever_it_stands():
    mixed = results("failed_tests", "passed", "tampered", "time_limit")
    assert outcome_of(mixed) is Outcome.TAMPERED
    assert outcome_of(results("passed", "time_limit", "policy_violation", "tampered")) is Outcome.POLICY_VIOLATION


def test_a_case_that_could_not_be_decided_leaves_nothing_to_score_unless_there_was_cheating():
    assert outcome_of(results("failed_tests", "verifier_disagreement")) is Outcome.VERIFIER_DISAGREEMENT
    assert outcome_of(results("verifier_disagreement", "tampered")) is Outcome.TAMPERED


def test_no_result_is_no_pass():
    with pytest.raises(ValueError, match="no case has a result"):
        outcome_of(())


def test_by_default_only_a_full_pass_earns():
    assert reward_of(RubricSpec(), {"all_passed": 1.0, "test_share": 1.0}) == 1.0
    assert reward_of(RubricSpec(), {"all_passed": 0.0, "test_share": 0.9}) == 0.0


def test_shares_earn_their_weight_of_a_wrong_program():
    rubric = RubricSpec(
        all_passed=0.4, test_share=0.1, visible_share=0.1, hidden_share=0.1, integration_share=0.1,
        milestones={"parse": 0.1, "print": 0.1},
    )  # fmt: skip
    shares = {
        "all_passed": 0.0, "test_share": 0.5, "visible_share": 1.0, "hidden_share": 0.25, "integration_share": 0.75,
        "milestone:parse": 1.0, "milestone:print": 0.0, "milestone:of no weight": 1.0,
    }  # fmt: skip
    # 0.1 * (0.5 + 1 + 0.25 + 0.75 + 1 + 0)
    assert reward_of(rubric, shares) == pytest.approx(0.35)


GATED = ("syntax_valid", "coverage", "latency", "memory", "deviation", "memory_growth")


@pytest.mark.parametrize("name", GATED)
def test_correctness_gates_what_is_not_correctness(name: str):
    rubric = RubricSpec.model_validate({"all_passed": 0.75, name: 0.25})
    assert reward_of(rubric, {"all_passed": 0.0, name: 1.0}) == 0.0
    assert reward_of(rubric, {"all_passed": 1.0, name: 1.0}) == 1.0
    assert reward_of(rubric, {"all_passed": 1.0, name: 0.5}) == 0.875
    assert reward_of(rubric, {"all_passed": 1.0, name: 0.0}) == 0.75


def test_an_absent_component_leaves_its_weight_to_all_passed():
    rubric = RubricSpec(all_passed=0.5, latency=0.25, integration_share=0.15, milestones={"parse": 0.1})
    assert reward_of(rubric, {"all_passed": 1.0}) == pytest.approx(1.0)
    assert reward_of(rubric, {"all_passed": 0.0}) == 0.0


def test_an_impossible_task_pays_no_part():
    rubric = RubricSpec(all_passed=0.5, test_share=0.3, milestones={"parse": 0.2})
    near = {"all_passed": 0.0, "test_share": 0.9, "milestone:parse": 1.0}
    assert reward_of(rubric, near) > 0.4
    assert reward_of(rubric, near, impossible=True) == 0.0
    assert reward_of(rubric, {name: 1.0 for name in near}, impossible=True) == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1])
def test_a_component_out_of_range_is_refused_whatever_its_weight(value: float):
    with pytest.raises(ValueError, match=r"outside 0 \.\. 1: \{'latency'"):
        reward_of(RubricSpec(), {"all_passed": 1.0, "latency": value})


def test_weights_that_sum_to_a_hair_over_one_do_not_push_the_reward_out_of_range():
    rubric = RubricSpec(all_passed=0.5, test_share=0.5000000001)
    assert reward_of(rubric, {"all_passed": 1.0, "test_share": 1.0}) == 1.0


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"all_passed": 0.5, "test_share": 0.4}, "the weights all_passed and test_share must sum to 1, not 0.9"),
        ({"milestones": {"parse": 0.5}}, "the weights all_passed and milestone:parse must sum to 1, not 1.5"),
        ({"all_passed": 0.0}, "the weights all_passed must sum to 1, not 0"),
        ({"all_passed": 0.5, "latency": 0.2, "memory": 0.2}, "weights all_passed, latency and memory must"),
    ],
)
def test_weights_must_sum_to_one(weights: dict, says: str):
    with pytest.raises(ValidationError, match=says):
        RubricSpec(**weights)


def test_a_milestones_weight_has_a_range_too():
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        RubricSpec(all_passed=0.0, milestones={"a": 1.5, "b": -0.5})


def test_only_what_is_weighed_is_measured():
    assert RubricSpec(test_share=0.5, all_passed=0.5).measures == frozenset()
    assert RubricSpec(all_passed=0.5, coverage=0.25, deviation=0.25).measures == {"coverage", "deviation"}
