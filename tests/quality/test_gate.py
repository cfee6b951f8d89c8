import re
from typing import Any

import pyarrow as pa
import pytest

from tests.builders import START, trajectory_row
from transforms.lake.schemas import CHECKS
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.quality.config import QualitySpec
from transforms.quality.gate import QualityStop, check_cycle, raise_on_breach, warnings_of
from transforms.quality.past import Past, past_of

INFRA: dict[str, Any] = {
    "outcome": "engine_failed", "outcome_class": "infra", "reward": None, "reward_components": [], "failure": "gone",
    "evidence": "refused", "turns": [], "tests": [], "completion_hash": None, "finish_reason": None,
}  # fmt: skip
GRADER: dict[str, Any] = {"outcome": "grader_error", "outcome_class": "grader", "reward": None, "failure": "a defect"}
QUARANTINED: dict[str, Any] = {"quarantine_reasons": ["logprobs_valid"]}
CUT: dict[str, Any] = {"finish_reason": "length"}
TWIN: dict[str, Any] = {"completion_hash": "the same"}


def cycle(*changes: dict[str, Any], of: int = 20) -> list[dict[str, Any]]:
    """`of` episodes in groups of ten, all well but for the changes of the first ones."""
    made = []
    for number in range(of):
        group = f"run-1/1/train/task-{number // 10}"
        basic = {
            "trajectory_id": f"{group}/{number % 10}/a1",
            "episode_id": f"{group}/{number % 10}",
            "group_id": group,
            "sample": number % 10,
            "completion_hash": f"hash-{number}",
            "reward": float(number % 2),
        }
        made.append(trajectory_row(**{**basic, **(changes[number] if number < len(changes) else {})}))
    return made


def checks(
    rows: list[dict[str, Any]], *, episodes: int = 20, past: Past | None = None, **limits: Any
) -> dict[str, dict[str, Any]]:
    groups = {f"run-1/1/train/task-{number}": 10 for number in range(episodes // 10)}
    spec = QualitySpec(**limits)
    found: list[dict[str, Any]] = check_cycle(rows, spec, "run-1", 1, groups=groups, past=past or Past())
    return {check["expectation"]: check for check in found}


def broken(rows: list[dict[str, Any]], **limits: Any) -> list[str]:
    return [name for name, check in checks(rows, episodes=20, **limits).items() if not check["success"]]


def test_a_sound_cycle_passes_and_every_value_is_reported():
    found = checks(cycle())
    assert {name: (check["observed"], check["limit"]) for name, check in found.items()} == {
        "episodes_present": (20.0, 20.0),
        "infra_rate": (0.0, 0.1),
        "grader_error_rate": (0.0, 0.0),
        "quarantine_rate": (0.0, 0.02),
        "duplicate_rate": (0.0, 0.9),
        "truncation_rate": (0.0, 0.9),
        "repeated_episode_rate": (0.0, 0.0),
        "impossible_rewarded_rate": (0.0, 0.0),
        "signal_rate": (0.0, 1.0),
        "no_signal_rate": (0.0, 1.0),
        "missing_group_rate": (0.0, 0.1),
        "repeated_trajectory_rate": (0.0, 0.0),
        "train_eval_overlap_rate": (0.0, 0.0),
        "reward_drift": (0.0, 5.0),
        "length_drift": (1.0, 3.0),
    }
    assert {(c["success"], c["level"], c["suite"], c["rows"], c["chunk"]) for c in found.values()} == {
        (True, "batch", "cycle", 20, None)
    }
    assert pa.Table.from_pylist(list(found.values()), schema=CHECKS).num_rows == 15
    raise_on_breach(list(found.values()))


@pytest.mark.parametrize(
    ("name", "setting", "change"),
    [
        ("infra_rate", "max_infra_rate", INFRA),
        ("grader_error_rate", "max_grader_error_rate", GRADER),
        ("quarantine_rate", "max_quarantine_rate", QUARANTINED),
        ("duplicate_rate", "max_duplicate_rate", TWIN),
        ("truncation_rate", "max_truncation_rate", CUT),
        ("signal_rate", "max_signal_rate", {"signals": ["ctypes", "process_exit"]}),
    ],
)
def test_a_rate_may_reach_its_limit_and_not_pass_it(name: str, setting: str, change: dict[str, Any]):
    wide = {"max_infra_rate": 1, "max_grader_error_rate": 1, "max_quarantine_rate": 1, "max_duplicate_rate": 1}
    rows = cycle(change, change, change)  # 3 of 20
    assert checks(rows)[name]["observed"] == pytest.approx(0.15)
    # GRADER and QUARANTINED rows have completions, INFRA rows none; whatever else moves is within the wide limits.
    assert broken(rows, **{**wide, setting: 0.1499}) == [name]
    assert broken(rows, **{**wide, setting: 0.15}) == []
    assert broken(rows, **{**wide, setting: 0.1501}) == []


def test_rates_of_completions_leave_out_episodes_without_one():
    found = checks(cycle(INFRA, INFRA, INFRA, INFRA, {**CUT, **TWIN}, {**CUT, **TWIN}))
    assert found["infra_rate"]["observed"] == 0.2
    assert found["truncation_rate"]["observed"] == found["duplicate_rate"]["observed"] == 0.125  # 2 of 16


def test_a_cycle_without_any_completion_has_only_infra_failures_and_missing_groups():
    assert broken(cycle(*[INFRA] * 20)) == ["infra_rate", "missing_group_rate"]


def test_a_duplicate_repeats_a_completion_of_its_own_group():
    apart = [{} for _ in range(20)]
    apart[0] = apart[10] = TWIN  # one in each group
    assert checks(cycle(*apart))["duplicate_rate"]["observed"] == 0.0
    assert checks(cycle(*[TWIN] * 20))["duplicate_rate"]["observed"] == 1.0


def test_one_reward_on_an_impossible_task_stops_the_cycle():
    paid, unpaid = {"impossible": True, "reward": 0.25}, {"impossible": True, "reward": 0.0}
    assert broken(cycle(*[unpaid] * 20)) == []
    assert broken(cycle(paid, unpaid, unpaid, unpaid)) == ["impossible_rewarded_rate"]
    # a rate of the attempts at such tasks, which are few: 1 of 4
    assert checks(cycle(paid, unpaid, unpaid, unpaid))["impossible_rewarded_rate"]["observed"] == 0.25
    assert broken(cycle(paid, unpaid), max_impossible_rewarded_rate=0.5) == []
    lost = {**INFRA, "impossible": True}
    assert broken(cycle(lost, {"impossible": None})) == []  # rows of an older Headrace do not say


def test_the_rate_of_signals_is_one_of_programs():
    none = {"program": None, "signals": None}
    found = checks(cycle({"signals": ["atexit"]}, {"signals": None}, *[none] * 10))
    assert found["signal_rate"]["observed"] == 0.1  # 1 of 10
    assert checks(cycle(*[none] * 20))["signal_rate"]["observed"] == 0.0


def test_missing_and_repeated_episodes_break_the_cycle():
    rows = cycle()
    assert broken(rows[:-1]) == ["episodes_present"]
    assert broken(rows[:10]) == ["episodes_present", "missing_group_rate"]
    assert broken([*rows, rows[0]]) == ["repeated_episode_rate", "repeated_trajectory_rate"]
    assert broken([*rows, {**rows[0], "trajectory_id": "a2"}]) == ["repeated_episode_rate"]
    assert "episodes_present" in broken([])


def test_only_final_training_rows_count():
    rows = cycle()
    other = [
        trajectory_row(**{**INFRA, "trajectory_id": "first try", "final": False}),
        trajectory_row(**{**GRADER, "trajectory_id": "evaluation", "purpose": "eval_greedy"}),
    ]
    assert broken([*rows, *other]) == []
    assert checks([*rows, *other])["infra_rate"]["rows"] == 20


def test_groups_without_signal_are_reported_and_stop_nothing():
    flat: list[dict[str, Any]] = [{"reward": 1.0}] * 10  # the first group of two
    found = checks(cycle(*flat))
    assert (found["no_signal_rate"]["observed"], found["no_signal_rate"]["success"]) == (0.5, True)
    assert broken(cycle(*[{"reward": 0.0}] * 20)) == []
    # A quarantined reward is none: without the one member that differs the group has no signal.
    flat[0] = {"reward": 0.0, **QUARANTINED}
    assert checks(cycle(*flat))["no_signal_rate"]["observed"] == 0.5


def test_the_stop_names_each_breach_and_how_to_look_at_it():
    rows = cycle(INFRA, INFRA, INFRA, GRADER)
    with pytest.raises(QualityStop) as stop:
        raise_on_breach(list(checks(rows).values()))
    assert str(stop.value).splitlines() == [
        "the quality gate stopped cycle 1 of run run-1: its rows broke 2 expectation(s) and train nothing",
        "  infra_rate: 0.15, limit 0.1 (quality.max_infra_rate)",
        "    most often: gone",
        "    headrace sql \"SELECT trajectory_id, outcome, failure, evidence FROM trajectories WHERE run_id = 'run-1' "
        "AND cycle = 1 AND purpose = 'train' AND final AND outcome_class = 'infra'\"",
        "  grader_error_rate: 0.05, limit 0 (quality.max_grader_error_rate)",
        "    most often: a defect",
        "    headrace sql \"SELECT trajectory_id, outcome, failure, evidence FROM trajectories WHERE run_id = 'run-1' "
        "AND cycle = 1 AND purpose = 'train' AND final AND outcome_class = 'grader'\"",
    ]


def test_a_cycle_without_rows_stops_with_nothing_to_measure():
    with pytest.raises(QualityStop, match="infra_rate: nothing to measure"):
        raise_on_breach(list(checks([]).values()))


def test_row_level_breaches_stop_nothing():
    raise_on_breach([{"level": "row", "success": False, "expectation": "reward_in_range", "severity": None}])


def test_every_query_of_the_stop_runs_and_shows_the_rows(tmp_path):
    canary = {"impossible": True, "reward": 1.0, "signals": ["ctypes"]}
    rows = cycle(INFRA, INFRA, GRADER, QUARANTINED, {**TWIN, **CUT}, {**TWIN, **CUT}, canary, of=10)
    rows = [*rows, {**rows[9], "trajectory_id": "again"}]
    Lake(tmp_path).append("trajectories", rows, app_id="run-1", version=1)
    none: dict[str, Any] = {
        "max_infra_rate": 0,
        "max_quarantine_rate": 0,
        "max_duplicate_rate": 0,
        "max_truncation_rate": 0,
    }
    found = list(checks(rows, episodes=30, **none).values())
    forced = [{**check, "success": False, "severity": "stop"} for check in found]
    with pytest.raises(QualityStop) as stop:
        raise_on_breach(forced)
    queries = re.findall(r'headrace sql "(.*)"', str(stop.value))
    shown = {check["expectation"]: query(tmp_path, sql).to_pylist() for check, sql in zip(found, queries, strict=True)}
    ids = {name: sorted(row.get("trajectory_id", "")[-4:] for row in rows) for name, rows in shown.items()}
    assert ids["infra_rate"] == ["0/a1", "1/a1"]
    assert ids["grader_error_rate"] == ["2/a1"]
    assert ids["quarantine_rate"] == ["3/a1"]
    assert ids["truncation_rate"] == ["4/a1", "5/a1"]
    assert ids["impossible_rewarded_rate"] == ids["signal_rate"] == ["6/a1"]
    group = "run-1/1/train/task-0"
    assert {row["completion_hash"]: row["copies"] for row in shown["duplicate_rate"]} == {"the same": 2, "hash-9": 2}
    assert shown["repeated_episode_rate"] == [{"episode_id": f"{group}/9", "copies": 2}]
    assert shown["episodes_present"] == [{"group_id": group, "episodes": 10}]
    assert [row["group_id"] for row in shown["no_signal_rate"]] == [group]
    assert [row["trajectory_id"][-4:] for row in shown["repeated_trajectory_rate"]] == []
    assert shown["missing_group_rate"] == [{"group_id": group, "rewards": 8, "quarantined": 1}]
    assert shown["train_eval_overlap_rate"] == []
    assert [row["cycle"] for row in shown["reward_drift"]] == [row["cycle"] for row in shown["length_drift"]] == [1]


def test_reward_drift_is_in_standard_errors_of_groups():
    # Groups of this cycle: 0.5 and 0.5, no variance. Before: 0, 0.2, 0.4, mean 0.2, sample variance 0.04.
    past = Past(group_rewards=(0.0, 0.2, 0.4))
    drift = checks(cycle(), past=past)["reward_drift"]
    assert drift["observed"] == pytest.approx(0.3 / (0.04 / 3) ** 0.5)  # 2.598
    assert drift["detail"] == "mean 0.5 of 2 groups, before 0.2 of 3"
    assert (drift["success"], drift["severity"]) == (True, "warn")
    assert broken(cycle(), past=past, max_reward_drift=2.59) == ["reward_drift"]
    assert broken(cycle(), past=past, max_reward_drift=2.6) == []
    assert checks(cycle(), past=Past(group_rewards=(0.9,)))["reward_drift"]["observed"] == 0.0  # too little to compare


@pytest.mark.parametrize(("before", "ratio"), [(4.0, 1.0), (1.0, 4.0), (16.0, 4.0), (None, 1.0)])
def test_length_drift_is_a_ratio_both_ways(before: float | None, ratio: float):
    assert checks(cycle(), past=Past(mean_tokens=before))["length_drift"]["observed"] == ratio  # every row has 4 tokens
    wanted = ["length_drift"] if ratio > 3 else []
    assert broken(cycle(), past=Past(mean_tokens=before)) == wanted


def test_a_warning_is_told_and_stops_nothing_unless_the_run_says_so():
    past = Past(mean_tokens=1.0)
    found = list(checks(cycle(), past=past).values())
    raise_on_breach(found)
    [warning] = warnings_of(found)
    assert warning.splitlines()[0] == "WARNING: length_drift: 4, limit 3 (quality.max_length_drift)"
    assert "headrace sql" in warning
    strict = list(checks(cycle(), past=past, levels={"length_drift": "stop"}).values())
    assert warnings_of(strict) == []
    with pytest.raises(QualityStop, match="length_drift: 4, limit 3"):
        raise_on_breach(strict)
    lax = list(checks(cycle(GRADER), levels={"grader_error_rate": "warn"}).values())
    raise_on_breach(lax)
    assert len(warnings_of(lax)) == 1


def test_a_level_of_no_expectation_is_refused_and_names_those_there_are():
    with pytest.raises(ValueError, match=r"no expectation is called reward_drfit; there are .*reward_drift"):
        QualitySpec(levels={"reward_drfit": "stop"})


def test_a_group_without_a_reward_to_train_on_is_missing():
    lost = cycle(*[INFRA] * 5, *[QUARANTINED] * 5)
    found = checks(lost)["missing_group_rate"]
    assert (found["observed"], found["detail"]) == (0.5, "1 of 2: run-1/1/train/task-0")


def test_an_id_that_the_run_has_twice_counts_although_this_cycle_has_it_once():
    rows = cycle()
    past = Past(repeated=frozenset({rows[3]["trajectory_id"], "of another cycle"}))
    found = checks(rows, past=past)["repeated_trajectory_rate"]
    assert (found["observed"], found["success"]) == (0.05, False)  # 1 of 20
    assert found["detail"] == f"1 of 20: {rows[3]['trajectory_id']}"


def test_the_past_is_read_from_the_tables(tmp_path):
    lake = Lake(tmp_path)
    rows = [
        {**row, "cycle": number, "trajectory_id": f"{number}/{row['trajectory_id']}", "completion_tokens": 10 * number}
        for number in (1, 2)
        for row in cycle({"reward": None}, {"quarantine_reasons": ["x"]}, of=20)
    ]
    asked = [{**rows[0], "trajectory_id": f"e{n}", "purpose": "eval_greedy", "task_hash": "held"} for n in (0, 0)]
    lake.append("trajectories", [*rows, *asked], app_id="run-1", version=1)
    task = {"task_id": "t", "source": "s", "split": "train", "kind": "call", "language": None, "gold_outcome": None,
            "visible_cases": 1, "hidden_cases": 1, "unsupported": None, "record": "{}", "added_at": START}  # fmt: skip
    prompts = {"held": "add", "copied": "add", "other": "multiply"}
    lake.append("tasks", [{**task, "task_hash": h, "prompt": p} for h, p in prompts.items()], app_id="tasks", version=1)
    past = past_of(tmp_path, "run-1", 2)
    # Cycle 1 alone. Rewards alternate 0 and 1; group 0 lost one 0 and one quarantined 1: four of each are left.
    assert sorted(past.group_rewards) == [0.5, 0.5]
    assert past.mean_tokens == 10.0
    assert past.evaluated == {"held", "copied"}
    assert past.repeated == {"e0"}
    assert past_of(tmp_path, "run-1", 1).group_rewards == ()
    leak = cycle({"task_hash": "copied"})
    assert checks(leak, past=past)["train_eval_overlap_rate"]["observed"] == 0.05  # 1 of 20
    assert broken(leak, past=past) == ["train_eval_overlap_rate"]
