from typing import Any

import pytest

from transforms.episode import CaseResult, Measured
from transforms.grade.components import components_of
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task, Tier

CASES: tuple[tuple[str, Tier, str | None], ...] = (
    ("v1", "visible", None), ("v2", "visible", "parse"), ("h1", "hidden", "parse"), ("h2", "hidden", "parse"),
    ("h3", "hidden", "print"), ("i1", "integration", None), ("i2", "integration", None),
)  # fmt: skip


def task(*cases: tuple[str, Tier, str | None]) -> Task:
    made = tuple(Case(name, (), 0, tier=tier, milestone=milestone) for name, tier, milestone in cases)
    return Task("t", "p", Call("f", made))


def found(of: Task, passed: str, outcome: str = "failed_tests", measured: Measured | None = None) -> dict[str, float]:
    names = passed.split()
    results = [
        CaseResult(c.name, c.tier, Outcome.PASSED if c.name in names else Outcome(outcome), "", 0.1, c.milestone)
        for c in of.cases
    ]
    return components_of(of, Outcome(outcome), results, measured, growth_bytes=1000)


def test_shares_by_tier_and_by_milestone():
    assert found(task(*CASES), "v1 h1 h3 i1 i2") == pytest.approx(
        {
            "all_passed": 0.0,
            "test_share": 4 / 5,  # h1 h3 i1 i2 of what is not visible
            "visible_share": 1 / 2,
            "hidden_share": 2 / 3,
            "integration_share": 1.0,
            "milestone:parse": 1 / 3,  # h1 of v2 h1 h2
            "milestone:print": 1.0,
            "syntax_valid": 1.0,
        }
    )


def test_what_a_task_does_not_have_is_absent():
    only = task(("a", "visible", None), ("b", "visible", None))
    assert found(only, "a") == {"all_passed": 0.0, "test_share": 0.5, "visible_share": 0.5, "syntax_valid": 1.0}
    assert found(only, "a b", "passed")["all_passed"] == 1.0


@pytest.mark.parametrize("outcome", ["tampered", "policy_violation"])
def test_cheating_earns_no_share(outcome: str):
    shares = found(task(*CASES), "v1 v2 h1 h2 h3 i1", outcome)
    assert {value for name, value in shares.items() if name != "syntax_valid"} == {0.0}


def test_source_that_does_not_parse_is_not_valid():
    assert found(task(*CASES), "", "syntax_error")["syntax_valid"] == 0.0


def test_nothing_submitted_is_nought_of_every_share():
    shares = components_of(task(*CASES), Outcome.NO_SUBMISSION, (), None, growth_bytes=1)
    assert set(shares.values()) == {0.0}
    assert {"hidden_share", "milestone:parse", "syntax_valid"} <= set(shares)


def measured(**numbers: Any) -> dict[str, float]:
    names = ("coverage", "latency", "memory", "deviation", "memory_growth")
    return {k: v for k, v in found(task(*CASES), "", "passed", Measured(**numbers)).items() if k in names}


def test_time_and_memory_beside_the_golds():
    times = {"latency_s": 0.3, "reference_latency_s": 0.1}
    assert measured(**times) == pytest.approx({"latency": 1 / 3, "deviation": 1 / 3})
    faster = {"latency_s": 0.05, "reference_latency_s": 0.1}
    assert measured(**faster) == pytest.approx({"latency": 1.0, "deviation": 0.5})
    assert measured(peak_memory_bytes=400, reference_peak_memory_bytes=100) == {"memory": 0.25}
    assert measured(peak_memory_bytes=50, reference_peak_memory_bytes=100) == {"memory": 1.0}
    assert measured(peak_memory_bytes=0, reference_peak_memory_bytes=0) == {}  # a back-end that cannot tell


def test_memory_kept_by_a_call():
    # the bound is 1000 bytes
    assert measured(memory_growth_bytes=0.0) == measured(memory_growth_bytes=1000.0) == {"memory_growth": 1.0}
    assert measured(memory_growth_bytes=4000.0) == {"memory_growth": 0.25}


def test_what_the_program_is_to_blame_for_is_nought():
    assert measured(coverage=0.5, failed={"latency": "wrong value", "memory_growth": "memory_limit"}) == {
        "coverage": 0.5, "latency": 0.0, "memory_growth": 0.0,
    }  # fmt: skip
