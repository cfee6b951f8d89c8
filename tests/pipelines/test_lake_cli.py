"""`headrace lake` and `headrace migrate` as a user types them, on what a real run wrote."""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.conftest import EPISODES, Driver
from transforms.lake.sql import query

OLD = Path(__file__).parents[1] / "lake" / "tables-v1"


@pytest.fixture(scope="module")
def ran(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a run is finished; tests leave it whole."""
    home = tmp_path_factory.mktemp("ran") / "home"
    driver.finish(home)
    return home


def test_a_run_that_is_set_back_goes_on_from_there(driver: Driver, headrace: Callable, tmp_path: Path):
    home = tmp_path / "home"
    driver.finish(home)
    policies = json.loads(headrace("lake", "history", "policies", "--json", "--home", str(home)).stdout)
    assert [commit["rows_added"] for commit in policies] == [0, 1, 1, 1]
    assert headrace("lake", "compact", "--home", str(home)).returncode == 0
    after_first_cycle = policies[2]["at"]
    asked = headrace("lake", "restore", "--at", after_first_cycle, "--dry-run", "--home", str(home))
    assert (asked.returncode, "policies: back to version 2" in asked.stderr) == (0, True)
    assert query(home, "SELECT max(policy_version) AS n FROM policies").to_pylist() == [{"n": 2}]
    done = headrace("lake", "restore", "--at", after_first_cycle, "--yes", "--home", str(home))
    assert done.returncode == 0, done.stderr
    assert query(home, "SELECT max(policy_version) AS n FROM policies").to_pylist() == [{"n": 1}]
    checked = headrace("lake", "check", "--home", str(home))
    assert (checked.returncode, checked.stdout) == (0, "all is well\n")
    driver.finish(home)
    assert query(home, "SELECT max(policy_version) AS n FROM policies").to_pylist() == [{"n": 2}]
    assert query(home, "SELECT count(*) AS n FROM trajectories").to_pylist() == [{"n": EPISODES}]
    assert headrace("lake", "check", "--home", str(home)).stdout == "all is well\n"


def test_check_says_what_is_wrong_and_fails(ran: Path, headrace: Callable, tmp_path: Path):
    home = tmp_path / "home"
    shutil.copytree(ran, home)
    gone = sorted((home / "tables" / "checks").glob("*.parquet"))[0]
    gone.unlink()
    done = headrace("lake", "check", "--home", str(home))
    assert done.returncode == 1
    assert f"checks: broken: every file is there\n  where: {gone.name}" in done.stdout
    told = json.loads(headrace("lake", "check", "--json", "--home", str(home)).stdout)
    assert [(each["table"], each["where"]) for each in told] == [("checks", gone.name)]


def test_vacuum_keeps_as_many_days_as_a_run_declares(ran: Path, headrace: Callable):
    told = headrace("lake", "vacuum", "events", "--dry-run", "--home", str(ran))
    assert (told.returncode, told.stdout) == (
        0, "events: would remove 0 files, 0.0 MiB, that 7 days of history do not need\n",
    )  # fmt: skip
    assert "that 30 days" in headrace("lake", "vacuum", "--keep-days", "30", "--home", str(ran)).stdout
    assert headrace("lake", "vacuum", "--keep-days", "0", "--home", str(ran)).returncode == 2


def test_history_and_checkpoint_are_for_people_too(ran: Path, headrace: Callable):
    lines = headrace("lake", "history", "policies", "--home", str(ran)).stdout.splitlines()
    assert lines[0].split()[:3] == ["version", "at", "operation"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2", "3"]
    assert (
        headrace("lake", "checkpoint", "policies", "--home", str(ran)).stdout == "policies: checkpoint of version 3\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lake", "history", "polcies"], "did you mean `policies`?"),
        (["lake", "restore"], "restore what?"),
        (["lake", "restore", "policies"], "restore what?"),
        (["lake", "restore", "policies", "1", "--at", "2026-01-01T00:00:00Z"], "restore what?"),
        (["lake", "restore", "--at", "yesterday"], "no time; one looks like"),
        (["lake", "restore", "--at", "2026-01-01T00:00:00"], "a time in which zone?"),
    ],
)
def test_mistakes_are_answered_with_the_way_out(ran: Path, headrace: Callable, arguments: list[str], said: str):
    done = headrace(*arguments, "--home", str(ran))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_version_that_is_not_there_is_a_failure(ran: Path, headrace: Callable):
    done = headrace("lake", "restore", "policies", "99", "--yes", "--home", str(ran))
    assert (done.returncode, "versions 0 to" in done.stderr) == (1, True)


def test_nobody_is_set_back_while_a_run_works(ran: Path, headrace: Callable):
    lock = next((ran / "locks").glob("*.lock"))
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for command in (["lake", "restore", "policies", "1", "--yes"], ["migrate"]):
            done = headrace(*command, "--home", str(ran))
            assert (done.returncode, "stop it first" in done.stderr) == (2, True)


def test_old_tables_are_migrated(headrace: Callable, tmp_path: Path):
    shutil.copytree(OLD, tmp_path / "home" / "tables")
    home = str(tmp_path / "home")
    refused = headrace("sql", "SELECT count(*) FROM trajectories", "--home", home)
    assert (refused.returncode, "`headrace migrate --home" in refused.stderr) == (1, True)
    told = headrace("migrate", "--dry-run", "--home", home)
    assert "trajectories: would go from schema version 1 to" in told.stdout
    assert headrace("migrate", "--home", home).returncode == 0
    assert headrace("migrate", "--home", home).stdout == "every table is up to date\n"
    assert (
        headrace("sql", "SELECT count(*) AS n FROM trajectories", "--format", "csv", "--home", home).stdout == "n\n36\n"
    )
    assert headrace("lake", "check", "--home", home).stdout == "all is well\n"
