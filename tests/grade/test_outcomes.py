from transforms.grade.outcomes import Outcome

# The outcome contract as the design states it, typed out again on purpose.
CONTRACT = {
    "policy": {
        "passed", "failed_tests", "syntax_error", "runtime_error", "time_limit", "memory_limit",
        "output_limit", "process_limit", "disk_limit", "policy_violation", "tampered", "no_submission", "truncated",
    },
    "infra": {
        "provision_failed", "sandbox_lost", "host_out_of_memory", "engine_failed", "deadline_exceeded",
        "storage_failed",
    },
    "grader": {"grader_error", "verifier_disagreement"},
    "task": {"task_invalid"},
}  # fmt: skip


def test_every_outcome_has_the_class_of_the_contract():
    found = {}
    for outcome in Outcome:
        found.setdefault(str(outcome.outcome_class), set()).add(str(outcome))
    assert found == CONTRACT


def test_the_thirteen_policy_outcomes_and_no_other_are_scored():
    scored = {str(outcome) for outcome in Outcome if outcome.scored}
    assert scored == CONTRACT["policy"]
    assert len(scored) == 13
