"""Each fault put into a healthy lake is found, by name, and nothing else is."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import trajectory_row
from tests.lake.view_rows import START
from transforms.lake.check import Problem, check
from transforms.lake.table import Lake

TASK: dict[str, object] = {
    "task_hash": "h1", "task_id": "t", "source": "builtin", "split": "train", "kind": "call", "language": "python",
    "prompt": "?", "visible_cases": 1, "hidden_cases": 1, "unsupported": None, "gold_outcome": None, "record": "{}",
    "added_at": START,
}  # fmt: skip
RUN: dict[str, object] = {
    "run_id": "r", "name": "r", "spec_hash": "s", "spec": "name: r", "tasks_hash": "x", "code_version": "0",
    "versions": "{}", "host": "here", "started_at": START,
}  # fmt: skip


def policy(version: int, consumed: list[str]) -> dict[str, object]:
    return {
        "run_id": "r", "policy_version": version, "parent_version": None, "checkpoint": "c", "weights_hash": "w",
        "batch_hash": None, "trajectories_version": None, "spec_hash": "s", "optimizer_steps": [], "created_at": START,
        "consumed": [{"trajectory_id": name, "optimizer_step": 1, "advantage": 1.0, "tokens": 1} for name in consumed],
    }  # fmt: skip


def row(name: str, chunk: int, **changed: object) -> dict[str, object]:
    same = {"episode_id": name, "run_id": "r", "cycle": 1, "task_hash": "h1", "purpose": "train", "final": True}
    return trajectory_row(trajectory_id=name, chunk=chunk, **{**same, **changed})


def checked(chunk: int) -> dict[str, object]:
    return {
        "run_id": "r", "cycle": 1, "chunk": chunk, "suite": "s", "expectation": "e", "column": None, "level": "row",
        "success": True, "observed": 0.0, "limit": 0.0, "rows": 2, "detail": None, "checked_at": START,
        "suite_version": 1, "severity": None,
    }  # fmt: skip


@pytest.fixture
def healthy(lake: Lake) -> Lake:
    lake.append("tasks", [TASK], app_id="tasks", version=1)
    lake.append("runs", [RUN], app_id="r/run", version=1)
    for chunk in (1, 2):
        lake.append("trajectories", [row(f"{chunk}-{i}", chunk) for i in (1, 2)], app_id="r", version=chunk)
        lake.append("checks", [checked(chunk)], app_id="r/checks", version=chunk)
    lake.append("policies", [policy(0, [])], app_id="r", version=0)
    lake.append("policies", [policy(1, ["1-1", "2-2"])], app_id="r", version=1)
    assert found(lake) == []
    return lake


def found(lake: Lake) -> list[Problem]:
    return check(lake, quick=False, progress=str)


def broken(lake: Lake) -> list[tuple[str, str]]:
    return [(problem.table, problem.invariant) for problem in found(lake)]


def newest(lake: Lake, table: str = "trajectories") -> Path:
    return max((lake.path(table) / "_delta_log").glob("*.json"))


def data_files(lake: Lake) -> list[Path]:
    return sorted(lake.path("trajectories").rglob("*.parquet"))


def test_a_missing_file(healthy: Lake):
    gone = data_files(healthy)[0]
    gone.unlink()
    (problem,) = found(healthy)
    assert (problem.invariant, problem.where) == ("every file is there", gone.name)
    assert problem.recovery.startswith("2 rows are lost")


def test_a_file_cut_short_and_one_damaged_inside(healthy: Lake):
    first, second = data_files(healthy)
    first.write_bytes(first.read_bytes()[:-50])
    content = bytearray(second.read_bytes())
    content[40:80] = bytes(40)
    second.write_bytes(content)
    assert {problem.invariant for problem in found(healthy)} == {"every file has its size", "every file can be read"}
    assert [problem.invariant for problem in check(healthy, quick=True, progress=str)] == ["every file has its size"]


def test_another_file_in_the_place_of_one(healthy: Lake):
    log = newest(healthy)
    text = log.read_text()
    recorded = next(action["add"] for action in map(json.loads, text.splitlines()) if "add" in action)
    file = healthy.path("trajectories") / recorded["path"]
    held = pq.read_table(file, partitioning=None).slice(0, 1)
    pq.write_table(held, file)
    log.write_text(text.replace(f'"size":{recorded["size"]}', f'"size":{file.stat().st_size}'))
    assert ("trajectories", "every file has its rows") in broken(healthy)


def test_statistics_that_would_hide_rows(healthy: Lake):
    log = newest(healthy)
    lines = log.read_text().splitlines()
    for place, line in enumerate(lines):
        action = json.loads(line)
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats["maxValues"]["trajectory_id"] = "1"
            stats["nullCount"]["reward"] = 1
            action["add"]["stats"] = json.dumps(stats)
            lines[place] = json.dumps(action)
    log.write_text("\n".join(lines) + "\n")
    (problem,) = found(healthy)
    assert problem.invariant == "statistics are true, else readers skip rows"
    assert "trajectory_id has '2-2', above '1'" in problem.where
    assert "reward has 0 nulls, not 1" in problem.where


def test_a_torn_commit_and_a_gap(healthy: Lake):
    newest(healthy).write_text('{"add": {"path"')
    (problem,) = found(healthy)
    assert (problem.table, problem.invariant) == ("trajectories", "each commit is readable")
    assert "move 00000000000000000002.json away" in problem.recovery
    newest(healthy).unlink()  # as told: the rest is whole again, but for what was lost
    assert {invariant for _, invariant in broken(healthy)} == {"every file belongs to a version"}


def test_a_gap_in_the_log(healthy: Lake):
    (healthy.path("checks") / "_delta_log" / f"{1:020d}.json").unlink()
    assert ("checks", "the log has no gap") in broken(healthy)


def test_a_stray_file(healthy: Lake):
    (file,) = healthy.write_files("trajectories", [row("stray", 3)])
    (problem,) = found(healthy)
    assert (problem.invariant, problem.where) == ("every file belongs to a version", file.path)


ROWS: dict[str, tuple[Callable[[Lake], object], tuple[str, str]]] = {
    "a doubled trajectory": (
        lambda lake: lake.append("trajectories", [row("1-1", 2, final=False)], app_id="x", version=1),
        ("trajectories", "trajectory ids are unique"),
    ),
    "a reward of a failure of ours": (
        lambda lake: lake.append("trajectories", [row("n", 2, outcome_class="infra")], app_id="x", version=1),
        ("trajectories", "the reward is null unless the outcome is the policy's"),
    ),
    "a reward of two": (
        lambda lake: lake.append("trajectories", [row("n", 2, reward=2.0)], app_id="x", version=1),
        ("trajectories", "rewards are finite, in 0 .. 1"),
    ),
    "a reward that is no number": (
        lambda lake: lake.append("trajectories", [row("n", 2, reward=float("nan"))], app_id="x", version=1),
        ("trajectories", "rewards are finite, in 0 .. 1"),
    ),
    "an episode without an end": (
        lambda lake: lake.append("trajectories", [row("n", 2, final=False)], app_id="x", version=1),
        ("trajectories", "an episode has one final attempt"),
    ),
    "a chunk that is missing": (
        lambda lake: [
            lake.append("trajectories", [row("n", 4)], app_id="x", version=1),
            lake.append("checks", [checked(4)], app_id="x", version=1),
        ],
        ("trajectories", "chunks follow each other"),
    ),
    "a chunk that was not checked": (
        lambda lake: lake.append("trajectories", [row("n", 3)], app_id="x", version=1),
        ("checks", "every chunk was checked"),
    ),
    "a task that nobody knows": (
        lambda lake: lake.append("trajectories", [row("n", 2, task_hash="?")], app_id="x", version=1),
        ("trajectories", "their tasks are stored"),
    ),
    "a task twice": (
        lambda lake: lake.append("tasks", [TASK], app_id="x", version=1),
        ("tasks", "task hashes are unique"),
    ),
    "a policy twice": (
        lambda lake: [lake.append("policies", [policy(n, [])], app_id=f"x{n}", version=1) for n in (1,)],
        ("policies", "a run has each policy version once"),
    ),
    "evidence that is gone": (
        lambda lake: lake.append("policies", [policy(2, ["gone"])], app_id="x", version=1),
        ("policies", "what trained a policy exists"),
    ),
}


@pytest.mark.parametrize("fault", ROWS)
def test_rows_that_break_an_invariant(healthy: Lake, fault: str):
    spoil, named = ROWS[fault]
    spoil(healthy)
    assert named in broken(healthy)
