"""Each view against plain Python over the same rows; pass@k and the error clusters have files of their own."""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.builders import trajectory_row
from tests.lake.conftest import ROOT
from tests.lake.view_rows import PLACE, Expected, Rows, asked, grouped, same, write_lake
from transforms.lake.sql import query, views
from transforms.lake.table import Lake


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, dict[str, Rows]]:
    lake = Lake(tmp_path_factory.mktemp("views"))
    return lake, write_lake(lake, seed=12)


def share(rows: Rows, holds: Callable[[dict[str, Any]], bool]) -> float:
    return sum(holds(row) for row in rows) / len(rows)


def deviation(values: list[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def scored(rows: Iterable[dict[str, Any]]) -> Rows:
    return [row for row in rows if row["final"] and row["reward"] is not None and not row["quarantine_reasons"]]


def test_reward_components(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    flat = [
        {**row, **component}
        for row in scored(tables["trajectories"])
        for component in row["reward_components"] or []
        if component["value"] is not None
    ]
    keys = (*PLACE, "policy_version", "name")
    expected: Expected = {}
    for key, rows in grouped(flat, *keys).items():
        values = [row["value"] for row in rows]
        expected[key] = {
            "scored": len(rows), "mean": statistics.fmean(values), "deviation": deviation(values), "least": min(values),
            "largest": max(values), "share_at_zero": values.count(0.0) / len(values),
            "share_at_one": values.count(1.0) / len(values),
        }  # fmt: skip
    assert {key[-1] for key in expected} == {"all_passed", "latency"}
    same(asked(lake.home, "reward_components", keys), expected)


def test_outcome_mix(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    final = [row for row in tables["trajectories"] if row["final"]]
    keys = (*PLACE, "policy_version", "outcome_class", "outcome")
    everywhere = Counter(tuple(row[key] for key in keys[:4]) for row in final)
    expected: Expected = {
        key: {"episodes": len(rows), "share": len(rows) / everywhere[key[:4]]}
        for key, rows in grouped(final, *keys).items()
    }
    same(asked(lake.home, "outcome_mix", keys), expected)


def test_infra_rate(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    hosts = {row["run_id"]: row["host"] for row in tables["runs"]}
    rows = [{**row, "host": row["host"] or hosts.get(row["run_id"])} for row in tables["trajectories"]]
    keys = ("run_id", "cycle", "host", "sandbox", "engine")
    expected: Expected = {
        key: {
            "attempts": len(group), "infra": sum(row["outcome_class"] == "infra" for row in group),
            "infra_rate": share(group, lambda row: row["outcome_class"] == "infra"),
            "lost": sum(row["outcome_class"] == "infra" and row["final"] for row in group),
        }
        for key, group in grouped(rows, *keys).items()
    }  # fmt: skip
    assert any(row["infra"] > row["lost"] for row in expected.values())
    same(asked(lake.home, "infra_rate", keys), expected)


def test_flaky_tasks(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    judged = [row for row in tables["trajectories"] if row["outcome_class"] == "policy" and row["program"] is not None]
    expected: Expected = {}
    for key, rows in grouped(judged, "task_id", "task_hash").items():
        programs = [
            group
            for group in grouped(rows, "program", "grader_version", "sandbox", "image_digest").values()
            if len(group) > 1
        ]  # fmt: skip
        flips = [group for group in programs if 0 < sum(row["outcome"] == "passed" for row in group) < len(group)]
        flaky = sum(len({row["outcome"] for row in group}) > 1 for group in programs)
        if flaky:
            told = [row for group in flips for row in group]
            expected[key] = {
                "repeated": len(programs), "flaky": flaky, "flips": len(flips),
                "passed_in": min((row["trajectory_id"] for row in told if row["outcome"] == "passed"), default=None),
                "failed_in": min((row["trajectory_id"] for row in told if row["outcome"] != "passed"), default=None),
            }  # fmt: skip
    assert expected
    same(asked(lake.home, "flaky_tasks", ("task_id", "task_hash")), expected)


def test_a_program_that_always_ends_alike_is_not_flaky(lake: Lake):
    rows = [
        trajectory_row(trajectory_id=f"{i}", program=f"{i % 2}", outcome=end, reward=float(end == "passed"))
        for i, end in enumerate(["passed", "failed_tests", "passed", "failed_tests"])
    ]
    other_grader = trajectory_row(trajectory_id="4", program="0", outcome="time_limit", reward=0.0, grader_version="2")
    lost = trajectory_row(trajectory_id="5", program="0", outcome="sandbox_lost", outcome_class="infra", reward=None)
    lake.append("trajectories", [*rows, other_grader, lost], app_id="r", version=0)
    assert query(lake.home, "SELECT * FROM flaky_tasks").num_rows == 0
    again = trajectory_row(trajectory_id="6", program="1", outcome="time_limit", reward=0.0)
    lake.append("trajectories", [again], app_id="r", version=1)
    (row,) = query(lake.home, "SELECT repeated, flaky, flips, passed_in FROM flaky_tasks").to_pylist()
    assert row == {"repeated": 2, "flaky": 1, "flips": 0, "passed_in": None}


def test_task_difficulty(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    rows = [row for row in tables["trajectories"] if row["final"] and not row["impossible"]]
    keys = (*PLACE, "policy_version", "task_id", "task_hash")
    expected: Expected = {}
    for key, group in grouped(rows, *keys).items():
        counted = scored(group)
        rewards = [row["reward"] for row in counted]
        passed = sum(row["outcome"] == "passed" for row in counted)
        verdict = {0: "too_hard", len(counted): "too_easy"}.get(passed, "mixed") if counted else "unscored"
        expected[key] = {
            "episodes": len(group), "scored": len(counted), "passed": passed,
            "pass_rate": passed / len(counted) if counted else None, "lowest_reward": min(rewards, default=None),
            "mean_reward": statistics.fmean(rewards) if rewards else None, "highest_reward": max(rewards, default=None),
            "signal": len(set(rewards)) > 1, "verdict": verdict,
        }  # fmt: skip
    assert {row["verdict"] for row in expected.values()} == {"too_easy", "too_hard", "mixed", "unscored"}
    same(asked(lake.home, "task_difficulty", keys), expected)


def test_stage_costs(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    parts: Rows = [{**row, "given": None, "used": None} for row in tables["events"] if row["event"] == "stage"]
    parts += [
        {
            "run_id": row["run_id"], "cycle": row["cycle"], "seconds": None, "given": row["prompt_tokens"],
            "stage": "rollout" if row["purpose"] == "train" else "evaluate", "used": row["completion_tokens"],
        }
        for row in tables["trajectories"] if row["attempt"] == 1
    ]  # fmt: skip
    parts += [
        {
            "run_id": row["run_id"], "cycle": row["policy_version"], "stage": "train", "seconds": None, "given": None,
            "used": used["tokens"],
        }
        for row in tables["policies"] for used in row["consumed"]
    ]  # fmt: skip
    expected: Expected = {}
    for key, rows in grouped(parts, "run_id", "cycle", "stage").items():
        sums = {
            name: sum(values) if (values := [row[name] for row in rows if row[name] is not None]) else None
            for name in ("seconds", "given", "used")
        }
        rate = sums["used"] / sums["seconds"] if sums["seconds"] and sums["used"] is not None else None
        expected[key] = {
            "seconds": sums["seconds"], "prompt_tokens": sums["given"], "tokens": sums["used"],
            "tokens_per_second": rate,
        }  # fmt: skip
    assert any(row["seconds"] is None for row in expected.values())
    same(asked(lake.home, "stage_costs", ("run_id", "cycle", "stage")), expected)


def test_length_drift(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    rows = [row for row in tables["trajectories"] if row["final"] and row["completion_tokens"] is not None]
    expected: Expected = {}
    for key, group in sorted(grouped(rows, *PLACE).items()):
        lengths = [row["completion_tokens"] for row in group]
        cut = sum(row["finish_reason"] == "length" for row in group)
        run, cycle, purpose = key
        before = expected.get((run, cycle - 1, purpose))
        mean, rate = statistics.fmean(lengths), cut / len(group)
        expected[key] = {
            "answers": len(group), "mean_tokens": mean, "median_tokens": float(statistics.median(lengths)),
            "deviation": deviation(lengths), "longest": max(lengths), "truncated": cut, "truncation_rate": rate,
            "length_change": mean / before["mean_tokens"] - 1 if before else None,
            "truncation_change": rate - before["truncation_rate"] if before else None,
        }  # fmt: skip
    same(asked(lake.home, "length_drift", PLACE), expected)


def test_logprob_mismatch(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    expected: Expected = {}
    for policy in tables["policies"]:
        measured = [step["sampler_kl"] for step in policy["optimizer_steps"] if step["sampler_kl"] is not None]
        for place, step in enumerate(policy["optimizer_steps"], start=1):
            expected[policy["run_id"], policy["policy_version"], step["optimizer_step"]] = {
                "step_of_cycle": place, "k3": step["sampler_kl"], "worst": max(measured, default=None),
                "effective_share": step["effective_share"], "largest_difference": step["largest_logprob_difference"],
                "clip_fraction": step["clip_fraction"], "tokens": step["tokens"],
            }  # fmt: skip
    assert len(expected) == 8
    same(asked(lake.home, "logprob_mismatch", ("run_id", "policy_version", "optimizer_step")), expected)


def test_duplicate_completions(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    rows = [row for row in tables["trajectories"] if row["final"] and row["completion_hash"] is not None]
    answers = Counter(row["group_id"] for row in rows)
    keys = (*PLACE, "policy_version", "task_id", "group_id", "completion_hash")
    expected: Expected = {
        key: {
            "copies": len(group), "answers": answers[key[-2]], "share": len(group) / answers[key[-2]],
            "passed": sum(row["outcome"] == "passed" for row in group),
            "rewards": len({row["reward"] for row in group} - {None}),
            "example": min(row["trajectory_id"] for row in group),
        }
        for key, group in grouped(rows, *keys).items() if len(group) > 1
    }  # fmt: skip
    assert expected
    same(asked(lake.home, "duplicate_completions", keys), expected)


def used_by_checkpoint(tables: dict[str, Rows]) -> Rows:
    """Each consumed trajectory once for each checkpoint that it shaped."""
    rows = {row["trajectory_id"]: row for row in tables["trajectories"]}
    known = ("task_id", "task_hash", "cycle", "outcome", "reward")
    by_version = {(row["run_id"], row["policy_version"]): row for row in tables["policies"]}
    found: Rows = []
    for policy in tables["policies"]:
        ancestor = policy
        while ancestor:  # along the chain of parents, which the view takes for granted
            for used in ancestor["consumed"]:
                row = rows.get(used["trajectory_id"], dict.fromkeys(known))
                found.append({
                    **{name: policy[name] for name in ("run_id", "policy_version", "checkpoint", "weights_hash")},
                    "trained_version": ancestor["policy_version"], **used, **{name: row[name] for name in known},
                })  # fmt: skip
            ancestor = by_version.get((policy["run_id"], ancestor["parent_version"]))
    return found


def test_checkpoint_trajectories(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world

    def in_order(rows: Rows) -> Rows:
        return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])

    expected = used_by_checkpoint(tables)
    assert any(row["task_id"] is None for row in expected)
    assert in_order(query(lake.home, "SELECT * FROM checkpoint_trajectories").to_pylist()) == in_order(expected)


def test_task_checkpoints(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    keys = ("task_id", "task_hash", "run_id", "policy_version", "checkpoint", "weights_hash")
    known = [row for row in used_by_checkpoint(tables) if row["task_id"] is not None]
    expected: Expected = {
        key: {
            "first_version": min(row["trained_version"] for row in group),
            "own_trajectories": len({row["trajectory_id"] for row in group if row["trained_version"] == key[3]}),
            "trajectories": len({row["trajectory_id"] for row in group}),
            "tokens": sum(row["tokens"] for row in group),
        }
        for key, group in grouped(known, *keys).items()
    }  # fmt: skip
    assert {key[3] for key in expected} == {1, 2}
    same(asked(lake.home, "task_checkpoints", keys), expected)


def test_hack_signals(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    final = [row for row in tables["trajectories"] if row["final"]]
    signs: Rows = [{**row, "kind": "source", "name": name} for row in final for name in row["signals"] or []]
    for row in final:
        if row["impossible"] and (row["reward"] or 0) > 0:
            signs.append({**row, "kind": "canary", "name": "impossible_rewarded"})
        if row["outcome"] in ("tampered", "policy_violation"):
            signs.append({**row, "kind": "outcome", "name": row["outcome"]})
    everywhere = Counter(tuple(row[key] for key in PLACE) for row in final)
    keys = (*PLACE, "kind", "name")
    expected: Expected = {
        key: {
            "trajectories": len(group), "share": len(group) / everywhere[key[:3]],
            "passed": sum(row["outcome"] == "passed" for row in group), "tasks": len({row["task_id"] for row in group}),
            "example": min(row["trajectory_id"] for row in group),
        }
        for key, group in grouped(signs, *keys).items()
    }  # fmt: skip
    assert {key[3] for key in expected} == {"source", "canary", "outcome"}
    same(asked(lake.home, "hack_signals", keys), expected)


def test_quarantine_by_reason(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    rows = tables["trajectories"]
    attempts = Counter(tuple(row[key] for key in PLACE) for row in rows)
    flat = [{**row, "reason": reason} for row in rows for reason in row["quarantine_reasons"]]
    expected: Expected = {
        key: {
            "quarantined": len(group), "share": len(group) / attempts[key[:3]],
            "tasks": len({row["task_id"] for row in group}), "example": min(row["trajectory_id"] for row in group),
        }
        for key, group in grouped(flat, *PLACE, "reason").items()
    }  # fmt: skip
    same(asked(lake.home, "quarantine_by_reason", (*PLACE, "reason")), expected)


def test_checks_over_time(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    keys = ("run_id", "cycle", "suite", "expectation", "level")
    expected: Expected = {}
    for key, group in sorted(grouped(tables["checks"], *keys).items()):
        counted = group if key[4] == "row" else [max(group, key=lambda row: row["checked_at"])]
        checked = sum(row["rows"] for row in counted)
        observed = counted[0]["observed"]
        if key[4] == "row":
            observed = sum(row["observed"] for row in counted) / checked if checked else None
        before = expected.get((key[0], key[1] - 1, *key[2:]), {"observed": None})["observed"]
        expected[key] = {
            "observed": observed, "allowed": counted[0]["limit"], "held": all(row["success"] for row in counted),
            "checked": checked, "last_checked_at": max(row["checked_at"] for row in counted),
            "change": None if observed is None or before is None else observed - before,
        }  # fmt: skip
    assert any(row["change"] is not None for row in expected.values())
    same(asked(lake.home, "checks_over_time", keys), expected)


@pytest.mark.parametrize("view", views())
def test_a_view_of_empty_tables_is_empty_and_one_of_lost_rows_holds_no_reward(lake: Lake, view: str):
    lake.ensure_tables()
    assert query(lake.home, f"SELECT * FROM {view}").num_rows == 0
    lost = trajectory_row(
        outcome="sandbox_lost", outcome_class="infra", reward=None, reward_components=None, tests=None, steps=None,
        signals=None, impossible=None, program=None, completion_hash=None, completion_tokens=None, sandbox=None,
        failure="gone",
    )  # fmt: skip
    lake.append("trajectories", [lost], app_id="r", version=0)
    rows = query(lake.home, f"SELECT * FROM {view}").to_pylist()
    shown = {"error_clusters", "infra_rate", "learning_curve", "outcome_mix", "stage_costs", "task_difficulty"}
    assert len(rows) == (view in shown or view.startswith("pass_at_k"))
    rates = ("pass_rate", "mean_reward", "pass_at_k", "pass_hat_k", "tokens_per_second", "tokens")
    assert [row[name] for row in rows for name in rates if name in row] == [None] * sum(
        name in row for row in rows for name in rates
    )


def test_the_page_has_an_example_for_every_view(world: tuple[Lake, dict[str, Rows]]):
    lake, _ = world
    page = (ROOT / "docs" / "views.md").read_text()
    examples = dict(re.findall(r"^\| .* \| `(\w+)` \| `(SELECT .*)` \|$", page, flags=re.MULTILINE))
    assert examples.keys() == views().keys()
    for view, example in examples.items():
        assert f" FROM {view}" in example
        assert query(lake.home, example).num_rows > 0, view
    (command,) = re.findall(r'^headrace sql "(.*)"$', page, flags=re.MULTILINE)
    assert query(lake.home, command).num_rows > 0
