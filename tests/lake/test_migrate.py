"""Tables as the first version wrote them (`tables-v1`, a run of the tiny policy) are refused, migrated and read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import trajectory_row
from transforms.lake.check import check
from transforms.lake.errors import TableTooOld
from transforms.lake.migrate import MIGRATIONS, migrate
from transforms.lake.schemas import SCHEMA_VERSION, TABLES
from transforms.lake.sql import query, views
from transforms.lake.table import Lake

OLD = Path(__file__).with_name("tables-v1")
MIGRATE = """
import sys
from pathlib import Path
from transforms.lake.migrate import migrate
from transforms.lake.table import Lake
migrate(Lake(Path(sys.argv[1])), dry_run=False)
"""


@pytest.fixture
def old(lake: Lake) -> Lake:
    shutil.copytree(OLD, lake.work / "tables")
    return lake


def test_an_old_table_is_refused_with_the_way_out(old: Lake):
    for attempt in (
        old.ensure_tables,
        lambda: query(old.home, "SELECT 1 FROM trajectories"),
        lambda: old.append("trajectories", [trajectory_row()], app_id="x", version=1),
        lambda: check(old, quick=True, progress=str),
    ):
        with pytest.raises(TableTooOld, match=rf"schema version 1, .*headrace migrate --home {old.home}`"):
            attempt()


def test_every_row_is_as_it_was_and_every_view_works(old: Lake):
    kept = "trajectory_id, reward, outcome, messages, turns, started_at"
    dry = migrate(old, dry_run=True)
    assert [each.table for each in dry] == [table for table in TABLES if (OLD / table).exists()]
    assert migrate(old, dry_run=False) == dry
    assert migrate(old, dry_run=False) == []
    rows = query(old.home, f"SELECT {kept} FROM trajectories ORDER BY 1").to_pylist()
    assert len(rows) == 36  # as many as the plan of that run asked for
    assert len({row["trajectory_id"] for row in rows}) == 36
    assert all((row["reward"] == 1.0) == (row["outcome"] == "passed") for row in rows)
    assert (
        query(old.home, "SELECT host, signals FROM trajectories").to_pylist() == [{"host": None, "signals": None}] * 36
    )
    for view in views():
        query(old.home, f"SELECT * FROM {view}")
    assert check(old, quick=False, progress=str) == []


def test_new_fields_of_old_records_are_read_by_name(old: Lake):
    """A migrated record has its new fields last, ours in the middle: values must not change places."""
    migrate(old, dry_run=False)
    [last] = query(old.home, "SELECT * FROM policies ORDER BY policy_version DESC LIMIT 1").to_pylist()
    step = dict(
        optimizer_step=7, loss=1.0, grad_norm=2.0, clip_fraction=3.0, sampler_kl=4.0, effective_share=5.0,
        largest_logprob_difference=6.0, tokens=8, seconds=9.0,
    )  # fmt: skip
    old.append("policies", [{**last, "policy_version": 3, "optimizer_steps": [step]}], app_id="x", version=1)
    [read] = query(old.home, "SELECT optimizer_steps FROM policies WHERE policy_version = 3").to_pylist()
    assert read["optimizer_steps"] == [step]
    found = query(old.home, "SELECT k3, effective_share, tokens FROM logprob_mismatch WHERE policy_version = 3")
    assert found.to_pylist() == [{"k3": 4.0, "effective_share": 5.0, "tokens": 8}]


def test_rivals_migrate_once(old: Lake, python: Callable):
    rivals = [python(MIGRATE, str(old.home)) for _ in range(3)]
    for rival in rivals:
        assert rival.wait() == 0, rival.communicate()[1]
    assert migrate(old, dry_run=False) == []
    assert check(old, quick=False, progress=str) == []


def test_there_is_a_step_from_every_version():
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))
