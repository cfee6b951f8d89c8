"""What goes wrong on a real machine: one clear message, the right exit status, and a run that goes on afterwards."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import CommitProperties, Transaction

from tests.pipelines.conftest import EPISODES, SPEC, TASKS, Driver, task
from transforms.lake.schemas import SCHEMA_VERSION
from transforms.lake.sql import query
from transforms.lake.table import SCHEMA_APP_ID, Lake


def count(home: Path, table: str) -> int:
    return query(home, f"SELECT count(*) AS n FROM {table}").to_pylist()[0]["n"]


def test_a_gold_that_fails_is_named_with_its_case_and_nothing_is_stored(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    broken = [*TASKS[1:], task("same", "train", "x+1", [(3, 3), (-2, -2)])]
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, broken)))
    driver.write_spec(home, tasks="{train: bad.jsonl, heldout: bad.jsonl}")
    assert driver.run(home) == 2
    assert (
        "error: 1 gold solution(s) fail their own task:\n  same: case-1 failed_tests: wrong value; f(3) must return 3\n"
        in driver.output
    )
    assert (count(home, "tasks"), count(home, "runs")) == (0, 0)


def test_a_model_folder_that_is_none_says_what_it_lacks(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    (tmp_path / "empty").mkdir()
    driver.write_spec(home, policy="{model: empty}")
    assert driver.run(home) == 2
    assert f"error: policy.model: {tmp_path}/empty lacks config.json, tokenizer.json, *.safetensors;" in driver.output


def test_a_task_file_that_is_missing_is_the_users_mistake(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    driver.write_spec(home, tasks="{train: nowhere.jsonl}")
    assert driver.run(home) == 2
    assert "nowhere.jsonl" in driver.output
    assert not home.exists()


def test_a_table_of_a_newer_version_is_refused(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    lake = Lake(home)
    lake.ensure_tables()
    newer = CommitProperties(app_transactions=[Transaction(SCHEMA_APP_ID, SCHEMA_VERSION + 1)])
    lake.open_or_create("policies").alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 30 days"}, commit_properties=newer
    )
    assert driver.run(home) == 1
    assert f"has schema version {SCHEMA_VERSION + 1}, this Headrace knows up to {SCHEMA_VERSION}" in driver.output
    assert count(home, "runs") == 0


def test_the_gate_stops_the_run_and_a_new_limit_lets_it_go_on(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    driver.write_spec(home, quality="{max_truncation_rate: 0.25, max_duplicate_rate: 1.0}")
    assert driver.run(home) == 3
    assert re.search(r"truncation_rate: (0\.9\d*|1), limit 0\.25 \(quality\.max_truncation_rate\)", driver.output)
    before = {row["trajectory_id"] for row in query(home, "SELECT trajectory_id FROM trajectories").to_pylist()}
    assert count(home, "policies") == 1, "nothing was trained"
    driver.write_spec(home)
    driver.finish(home)
    after = {row["trajectory_id"] for row in query(home, "SELECT trajectory_id FROM trajectories").to_pylist()}
    assert before < after
    assert len(after) == EPISODES
    assert count(home, "runs") == 1
    verdicts = query(
        home, "SELECT success, \"limit\" FROM checks WHERE cycle = 1 AND expectation = 'truncation_rate' ORDER BY 2"
    ).to_pylist()
    assert verdicts == [{"success": False, "limit": 0.25}, {"success": True, "limit": 1.0}]


def test_a_stopped_run_goes_on_when_the_breach_is_declared_a_warning(driver: Driver, tmp_path: Path):
    home, limits = tmp_path / "home", "max_truncation_rate: 0.25, max_duplicate_rate: 1.0"
    driver.write_spec(home, quality=f"{{{limits}}}")
    assert driver.run(home) == 3
    asked = query(home, "SELECT trajectory_id, ended_at FROM trajectories WHERE cycle = 1").to_pylist()
    driver.write_spec(home, quality=f"{{{limits}, levels: {{truncation_rate: warn}}}}")
    assert driver.run(home) == 0
    assert "WARNING: truncation_rate: " in driver.output
    sql = "SELECT trajectory_id, ended_at FROM trajectories WHERE cycle = 1 AND purpose = 'train'"
    again = query(home, sql).to_pylist()
    assert sorted(map(str, again)) == sorted(map(str, asked)), "no rollout of the stopped cycle was done again"
    verdicts = query(
        home,
        "SELECT success, severity FROM checks WHERE cycle = 1 AND expectation = 'truncation_rate' ORDER BY checked_at",
    ).to_pylist()
    assert verdicts == [{"success": False, "severity": "stop"}, {"success": False, "severity": "warn"}]


@pytest.mark.parametrize(
    ("by", "where"),
    [
        (signal.SIGINT, "before write_batches trajectories"),  # inside Beam
        (signal.SIGTERM, "after commit checks"),
        (signal.SIGINT, "before save"),
    ],
)
def test_an_interrupted_run_says_so_and_goes_on(by: signal.Signals, where: str, driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    driver.finish(tmp_path / "whole")
    number = driver.boundaries(tmp_path / "whole").index(where) + 1
    assert driver.run(home, at=number, by=by) == 130
    assert "interrupted: the same command goes on from the last commit" in driver.output
    assert "Traceback" not in driver.output
    driver.finish(home)
    assert count(home, "trajectories") == EPISODES
    events = [row["event"] for row in query(home, "SELECT event FROM events ORDER BY at").to_pylist()]
    assert "interrupted" in events
    assert events[-1] == "finished"


def test_weights_that_changed_under_a_run_are_refused(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    driver.finish(tmp_path / "whole")
    number = driver.boundaries(tmp_path / "whole").index("after prune") + 1
    assert driver.run(home, at=number) == -signal.SIGKILL
    [weights] = home.glob("policies/*/policy-00001/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert driver.run(home) == 2
    assert "are not those of policy 1 of run crash-" in driver.output


def test_a_finished_run_is_not_run_again_and_new_starts_another(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    driver.finish(home)
    driver.finish(home)
    assert "was finished before; --new starts another" in driver.output
    assert count(home, "trajectories") == EPISODES
    driver.finish(home, "--new")
    assert count(home, "trajectories") == 2 * EPISODES
    runs = query(home, "SELECT run_id FROM runs ORDER BY started_at").to_pylist()
    assert runs[1]["run_id"] == runs[0]["run_id"] + "-2"
    hashes = query(home, "SELECT policy_version, count(DISTINCT batch_hash) AS n FROM policies GROUP BY 1").to_pylist()
    assert all(row["n"] <= 1 for row in hashes), "the same spec gives the same training batches, byte for byte"


def test_changed_tasks_do_not_slip_into_a_run_that_began_with_others(driver: Driver, tmp_path: Path):
    home = tmp_path / "home"
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    driver.write_spec(home, tasks="{train: own.jsonl, heldout: own.jsonl}")
    driver.finish(home)
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, [*TASKS[1:], task("half", "train", "x", [(1, 1)])])))
    assert driver.run(home) == 2
    assert "the tasks have changed since run crash-" in driver.output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is full after 600 KiB, and can be made larger."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_run_with_one_message_and_room_lets_it_go_on(driver: Driver, small_disk: Path):
    home = small_disk / "home"
    spec = small_disk.parent / "home.yaml"
    spec.write_text(SPEC.format(material=driver.material))
    (small_disk / "home.yaml").symlink_to(spec)
    for end in (".out", ".names"):
        (small_disk / f"home{end}").symlink_to(small_disk.parent / f"home{end}")
        (small_disk.parent / f"home{end}").touch()
    assert driver.run(home) == 1
    assert "No space left on device" in driver.output
    assert "Traceback" not in driver.output
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    driver.finish(home)
    assert count(home, "trajectories") == EPISODES
    rows = query(home, "SELECT episode_id FROM trajectories").to_pylist()
    assert len({row["episode_id"] for row in rows}) == EPISODES
