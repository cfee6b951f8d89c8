"""The components of a reward: numbers in 0 .. 1 about one attempt, by name.

A component is absent where the task, or its kind, gives nothing to work it out from: no case of a tier, no gold to
compare with, no measure the rubric weighs. It is 0, never absent, where the program is the reason.
"""

from collections.abc import Sequence

from transforms.episode import CaseResult, Measured
from transforms.grade.outcomes import Outcome
from transforms.sources.task import AnyCase, Task, Tier

TIERS: dict[str, Tier] = {
    "visible_share": "visible",
    "hidden_share": "hidden",
    "integration_share": "integration",
}
"""Shares of tests, by the tier they are taken over."""

TIMED = ("latency", "memory", "deviation")
"""Measures that compare a program with the task's gold."""

MEASURES = ("coverage", *TIMED, "memory_growth")
"""Components that take runs of their own, after every case has passed."""

UNEARNED = frozenset({Outcome.TAMPERED, Outcome.POLICY_VIOLATION})
"""Outcomes of a program that earns no share, whatever its cases say."""


def components_of(
    task: Task, outcome: Outcome, results: Sequence[CaseResult], measured: Measured | None, *, growth_bytes: float
) -> dict[str, float]:
    """The components of an attempt that a task gives.

    `growth_bytes` is the memory a call may leave behind: see `RubricSpec.growth_bytes`.
    """
    passed = {result.name for result in results if result.outcome is Outcome.PASSED and outcome not in UNEARNED}
    unseen = [case for case in task.cases if case.tier != "visible"] or task.cases
    found = {"all_passed": float(outcome is Outcome.PASSED), "test_share": _share(unseen, passed)}
    for name, tier in TIERS.items():
        if cases := [case for case in task.cases if case.tier == tier]:
            found[name] = _share(cases, passed)
    for milestone in sorted({case.milestone for case in task.cases if case.milestone is not None}):
        cases = [case for case in task.cases if case.milestone == milestone]
        found[f"milestone:{milestone}"] = _share(cases, passed)
    if task.check.language is not None:
        broken = any(result.outcome is Outcome.SYNTAX_ERROR for result in results)
        found["syntax_valid"] = float(bool(results) and not broken)
    return found | (_measures(measured, growth_bytes) if measured is not None else {})


def _share(cases: Sequence[AnyCase], passed: set[str]) -> float:
    return sum(case.name in passed for case in cases) / len(cases)


def _measures(measured: Measured, growth_bytes: float) -> dict[str, float]:
    """What the numbers beside the gold's come to.

    latency       min(1, gold / program): 1 for the gold's time or less, 1/3 for three times as long
    memory        min(1, gold / program), of the sandboxes' peaks
    deviation     2 ** -|log2(program / gold)|: 1 at the gold's time, 1/2 at half of it and at twice of it. A ratio of
                  times is compared on a logarithm's scale, where half and double are equally far (Fleming and Wallace,
                  "How not to lie with statistics", CACM 29:3, 1986)
    memory_growth min(1, bound / growth of a call)
    """
    found = {}
    time, gold_time = measured.latency_s, measured.reference_latency_s
    if time and gold_time:
        found["latency"] = min(1.0, gold_time / time)
        found["deviation"] = min(time, gold_time) / max(time, gold_time)
    if measured.peak_memory_bytes and measured.reference_peak_memory_bytes:
        found["memory"] = min(1.0, measured.reference_peak_memory_bytes / measured.peak_memory_bytes)
    if measured.memory_growth_bytes is not None:
        growth = measured.memory_growth_bytes
        found["memory_growth"] = 1.0 if growth <= growth_bytes else growth_bytes / growth
    if measured.coverage is not None:
        found["coverage"] = measured.coverage
    return found | dict.fromkeys(measured.failed, 0.0)
