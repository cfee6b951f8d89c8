import pytest
from pydantic import ValidationError

from transforms.episode import CaseResult
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import RubricSpec, outcome_of, score
from transforms.sources.task import Tier


def results(*outcomes: str, tier: Tier = "hidden") -> tuple[CaseResult, ...]:
    return tuple(CaseResult(f"case-{i}", tier, Outcome(o), "", 0.01) for i, o in enumerate(outcomes))


def test_the_first_case_that_did_not_pass_names_the_outcome():
    assert outcome_of(results("passed", "passed")) is Outcome.PASSED
    assert outcome_of(results("passed", "time_limit", "failed_tests")) is Outcome.TIME_LIMIT
    assert outcome_of(results("failed_tests", "time_limit")) is Outcome.FAILED_TESTS


def test_a_case_of_cheating_names_the_outcome_wherever_it_stands():
    mixed = results("failed_tests", "passed", "tampered", "time_limit")
    assert outcome_of(mixed) is Outcome.TAMPERED
    assert outcome_of(results("passed", "time_limit", "policy_violation", "tampered")) is Outcome.POLICY_VIOLATION
    assert score(RubricSpec(all_passed=0.5, test_share=0.5), outcome_of(mixed), mixed).reward == 0.0


def test_no_result_is_no_pass():
    with pytest.raises(ValueError, match="no case has a result"):
        outcome_of(())


def test_by_default_only_a_full_pass_earns():
    assert score(RubricSpec(), Outcome.PASSED, results("passed", "passed")).reward == 1.0
    wrong = score(RubricSpec(), Outcome.FAILED_TESTS, results("passed", "failed_tests"))
    assert wrong.reward == 0.0
    assert wrong.components == {"all_passed": 0.0, "test_share": 0.5}


def test_a_share_of_hidden_cases_earns_its_weight():
    rubric = RubricSpec(all_passed=0.6, test_share=0.4)
    mixed = results("passed", "passed", "failed_tests", "failed_tests") + results("passed", tier="visible")
    # 2 of 4 hidden cases; the visible one does not count: 0.6 * 0 + 0.4 * 0.5
    assert score(rubric, Outcome.FAILED_TESTS, mixed).reward == pytest.approx(0.2)
    assert score(rubric, Outcome.NO_SUBMISSION, ()).reward == 0.0


def test_a_task_without_hidden_cases_is_scored_by_its_visible_ones():
    visible = results("passed", "passed", tier="visible")
    assert score(RubricSpec(all_passed=0.5, test_share=0.5), Outcome.PASSED, visible).reward == 1.0


@pytest.mark.parametrize("outcome", [Outcome.TAMPERED, Outcome.POLICY_VIOLATION])
def test_cheating_earns_no_share(outcome: Outcome):
    scored = score(RubricSpec(all_passed=0.5, test_share=0.5), outcome, results("passed", "passed"))
    assert scored.reward == 0.0


def test_weights_that_sum_to_a_hair_over_one_do_not_push_the_reward_out_of_range():
    rubric = RubricSpec(all_passed=0.5, test_share=0.5000000001)
    assert score(rubric, Outcome.PASSED, results("passed")).reward == 1.0


def test_what_is_not_the_policys_fault_is_not_scored():
    for outcome in (Outcome.SANDBOX_LOST, Outcome.GRADER_ERROR, Outcome.TASK_INVALID):
        with pytest.raises(ValueError, match=f"{outcome} carries no reward"):
            score(RubricSpec(), outcome, ())


def test_weights_must_sum_to_one():
    with pytest.raises(ValidationError, match="must sum to 1"):
        RubricSpec(all_passed=0.5, test_share=0.4)
