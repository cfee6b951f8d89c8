import math
from pathlib import Path
from typing import Any

import pytest

from tests.builders import START, trajectory_row
from transforms.lake.table import Lake
from transforms.quality.config import QualitySpec
from transforms.quality.gate import QualityStop, raise_on_breach, warnings_of
from transforms.quality.suite import frame_of, load_suite, run_suite
from transforms.quality.table_rules import TABLE_RULES
from transforms.quality.tables import check_tables

SHA = "a" * 64
STEP: dict[str, Any] = {
    "optimizer_step": 1, "loss": 0.5, "grad_norm": 1.0, "clip_fraction": 0.0, "sampler_kl": 0.0, "effective_share": 1.0,
    "largest_logprob_difference": 0.0, "tokens": 8, "seconds": 0.1,
}  # fmt: skip
USED: dict[str, Any] = {"trajectory_id": "t", "optimizer_step": 1, "advantage": 1.0, "tokens": 4}
ROWS: dict[str, dict[str, Any]] = {
    "policies": {
        "run_id": "run-1", "policy_version": 1, "parent_version": 0, "checkpoint": "p", "weights_hash": SHA,
        "batch_hash": SHA, "trajectories_version": 1, "spec_hash": SHA, "optimizer_steps": [STEP], "consumed": [USED],
        "created_at": START,
    },
    "checks": {
        "run_id": "run-1", "cycle": 2, "chunk": 1, "suite": "trajectories", "expectation": "x", "column": None,
        "level": "row", "success": True, "observed": 0.0, "limit": 0.0, "rows": 3, "detail": None, "checked_at": START,
        "suite_version": 1, "severity": None,
    },
    "runs": {
        "run_id": "run-1", "name": "n", "spec_hash": SHA, "spec": "name: n", "tasks_hash": SHA, "code_version": "1",
        "versions": "{}", "host": "here", "started_at": START,
    },
    "events": {
        "run_id": "run-1", "session": "s", "cycle": None, "event": "started", "stage": None, "seconds": None,
        "detail": "{}", "at": START,
    },
    "images": {
        "name": "host", "digest": trajectory_row()["image_digest"], "definition_digest": None, "languages": None,
        "packages": None, "builder": "host", "architecture": "x86_64", "built_at": None, "first_used_at": START,
    },
    "tasks": {
        "task_hash": trajectory_row()["task_hash"], "task_id": "add", "source": "s", "split": "train", "kind": "call",
        "language": "python", "prompt": "p", "visible_cases": 1, "hidden_cases": 1, "unsupported": None,
        "gold_outcome": "passed", "record": "{}", "added_at": START,
    },
    "optimizer_steps": STEP,
}  # fmt: skip

# Of each table, a row that breaks this expectation and nothing else; two rows where they break it together.
BREAKS: list[tuple[str, str, dict[str, Any]]] = [
    ("policies", "policies_filled", {"checkpoint": None}),
    ("policies", "policy_version_from_zero", {"policy_version": -1, "parent_version": -2}),
    ("policies", "weights_hash_is_sha256", {"weights_hash": "A" * 64}),
    ("policies", "policy_descends", {"parent_version": None}),
    ("policies", "policy_descends", {"batch_hash": None}),
    ("policies", "steps_in_order", {"optimizer_steps": [STEP, {**STEP, "optimizer_step": 3}]}),
    ("policies", "consumed_belongs", {"consumed": [{**USED, "optimizer_step": 2}]}),
    ("policies", "consumed_belongs", {"consumed": [{**USED, "advantage": math.nan}]}),
    ("policies", "consumed_belongs", {"consumed": [{**USED, "tokens": 0}]}),
    ("optimizer_steps", "optimizer_step_from_one", {"optimizer_step": 0}),
    ("optimizer_steps", "clip_fraction_is_share", {"clip_fraction": 1.01}),
    ("optimizer_steps", "step_has_tokens", {"tokens": 0}),
    ("optimizer_steps", "step_took_time", {"seconds": -0.1}),
    ("optimizer_steps", "step_finite", {"loss": math.nan}),
    ("optimizer_steps", "step_finite", {"grad_norm": None}),
    ("optimizer_steps", "step_finite", {"sampler_kl": math.inf}),
    ("checks", "checks_filled", {"suite": None}),
    ("checks", "check_level_known", {"level": "table"}),
    ("checks", "check_rows_from_zero", {"rows": -1}),
    ("checks", "check_limited", {"limit": None}),
    ("checks", "check_limited", {"observed": None}),
    ("runs", "runs_filled", {"host": None}),
    ("runs", "tasks_hash_is_sha256", {"tasks_hash": "abc"}),
    ("runs", "run_versions_readable", {"versions": "{"}),
    ("events", "events_filled", {"session": None}),
    ("events", "event_seconds_from_zero", {"seconds": -1.0}),
    ("events", "event_detail_readable", {"detail": "no json"}),
    ("images", "images_filled", {"architecture": None}),
    ("images", "builder_known", {"builder": "magic"}),
    ("tasks", "tasks_filled", {"prompt": None}),
    ("tasks", "task_hash_is_sha256", {"task_hash": "short"}),
    ("tasks", "split_known", {"split": "eval"}),
    ("tasks", "hidden_cases_from_zero", {"hidden_cases": -1}),
    ("tasks", "task_record_readable", {"record": "{"}),
]
TWINS = {
    "policies": "policy_version_unique", "optimizer_steps": "optimizer_step_unique", "runs": "run_unique",
    "tasks": "task_hash_unique",
}  # fmt: skip


def broken(suite: str, *rows: dict[str, Any]) -> list[str]:
    found = run_suite(load_suite(suite), frame_of(rows, list(ROWS[suite])))
    return [finding.name for finding in found if not finding.success]


@pytest.mark.parametrize(("suite", "name", "change"), BREAKS, ids=[f"{n}-{b[1]}" for n, b in enumerate(BREAKS)])
def test_a_row_with_one_fault_breaks_that_expectation(suite: str, name: str, change: dict[str, Any]):
    assert broken(suite, {**ROWS[suite], **change}) == [name]


@pytest.mark.parametrize("suite", ROWS)
def test_a_sound_row_breaks_nothing_and_its_twin_what_is_unique(suite: str):
    assert broken(suite, ROWS[suite]) == []
    assert broken(suite, ROWS[suite], ROWS[suite]) == ([TWINS[suite]] if suite in TWINS else [])


def test_every_expectation_has_a_row_that_breaks_it():
    expectations: list[Any] = [each for suite in ROWS for each in load_suite(suite).expectations]
    names = {each.meta["name"] for each in expectations}
    assert {name for _, name, _ in BREAKS} | set(TWINS.values()) == names
    assert set(TABLE_RULES) == {each.rule for each in expectations if hasattr(each, "rule")}


def a_lake(home: Path, **changes: dict[str, Any]) -> None:
    lake = Lake(home)
    lake.append("trajectories", [trajectory_row(cycle=2)], app_id="run-1", version=1)
    base = {**ROWS["policies"], "policy_version": 0, "parent_version": None, "batch_hash": None, "consumed": [],
            "optimizer_steps": []}  # fmt: skip
    for table, row in ROWS.items():
        if table != "optimizer_steps":
            rows = [{**row, **changes.get(table, {})}, *([base] if table == "policies" else [])]
            lake.append(table, rows, app_id="run-1", version=1)


def test_a_sound_lake_passes_and_each_table_was_looked_at(tmp_path: Path):
    a_lake(tmp_path)
    checks = check_tables(tmp_path, QualitySpec(), "run-1", 2)
    assert all(check["success"] for check in checks)
    assert {check["suite"]: check["rows"] for check in checks} == {
        "policies": 2, "checks": 1, "runs": 1, "events": 1, "images": 1, "tasks": 1, "optimizer_steps": 1
    }  # fmt: skip
    Lake(tmp_path).append("checks", checks, app_id="gate", version=1)


def test_a_breach_stops_the_run_with_the_query_unless_it_is_to_warn(tmp_path: Path):
    a_lake(tmp_path, policies={"optimizer_steps": [{**STEP, "loss": math.nan}]})
    checks = check_tables(tmp_path, QualitySpec(), "run-1", 2)
    with pytest.raises(QualityStop) as stop:
        raise_on_breach(checks)
    assert str(stop.value).splitlines()[1:] == [
        "  step_finite: 1, limit 0",
        "    row 0: loss nan",
        "    headrace sql \"SELECT * FROM policies WHERE run_id = 'run-1' ORDER BY policy_version\"",
    ]
    lax = check_tables(tmp_path, QualitySpec(levels={"step_finite": "warn"}), "run-1", 2)
    raise_on_breach(lax)
    assert warnings_of(lax)[0].startswith("WARNING: step_finite: 1, limit 0")
