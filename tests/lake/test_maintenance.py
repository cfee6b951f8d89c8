"""Compaction, vacuum, checkpoint and restore lose no row, beside real rivals, and leave a run's bookkeeping true."""

import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.builders import trajectory_row
from transforms.lake.check import check
from transforms.lake.errors import LakeError
from transforms.lake.maintenance import checkpoint, compact, history, restore, vacuum
from transforms.lake.sql import query
from transforms.lake.table import Lake

APPEND = """
import sys
from pathlib import Path
from tests.builders import trajectory_row
from transforms.lake.table import Lake
lake, name = Lake(Path(sys.argv[1])), sys.argv[2]
for version in range(1, 21):
    lake.append("trajectories", [trajectory_row(trajectory_id=f"{name}-{version}")], app_id=name, version=version)
"""
WEEK = timedelta(days=7)


def fill(lake: Lake, commits: int, **values: object) -> None:
    for version in range(1, commits + 1):
        rows = [trajectory_row(trajectory_id=f"{version}-{i}", cycle=i, chunk=version, **values) for i in (1, 2)]
        lake.append("trajectories", rows, app_id="run", version=version)


def ids(lake: Lake) -> list[str]:
    return query(lake.home, "SELECT trajectory_id FROM trajectories ORDER BY 1").column(0).to_pylist()


def expected(commits: int) -> list[str]:
    return sorted(f"{version}-{i}" for version in range(1, commits + 1) for i in (1, 2))


def opened(lake: Lake) -> DeltaTable:
    table = lake.open("trajectories")
    assert table is not None
    return table


def files(lake: Lake) -> list[Path]:
    return sorted(lake.path("trajectories").rglob("*.parquet"))


def test_compaction_keeps_rows_transactions_and_old_versions(lake: Lake):
    fill(lake, 5)
    before = query(lake.home, "SELECT * FROM trajectories ORDER BY trajectory_id").to_pylist()
    done = compact(lake, "trajectories")
    assert (done.files_before, done.files_after) == (10, 2)  # one a partition
    assert query(lake.home, "SELECT * FROM trajectories ORDER BY trajectory_id").to_pylist() == before
    assert lake.committed_version("trajectories", "run") == 5
    assert query(lake.home, "SELECT count(*) AS n FROM trajectories", at={None: 3}).to_pylist() == [{"n": 6}]
    assert compact(lake, "trajectories").files_after == 2  # and again: nothing to do
    assert [commit.operation for commit in history(lake, "trajectories")][-2:] == ["compaction", "compaction"]


def test_compaction_keeps_what_readers_skip_by_true(lake: Lake):
    """Bounds of times to the microsecond, and none where a value is no number: delta-rs' own files break both."""
    at = datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)
    for version, cpu_s in enumerate((1.0, math.nan, 3.0), 1):
        row = trajectory_row(trajectory_id=str(version), ended_at=at, cpu_s=cpu_s)
        lake.append("trajectories", [row], app_id="run", version=version)
    compact(lake, "trajectories")
    late = "SELECT trajectory_id FROM trajectories WHERE ended_at > TIMESTAMP '2026-01-02T03:04:05.123400Z'"
    assert query(lake.home, late).num_rows == 3
    assert query(lake.home, "SELECT trajectory_id FROM trajectories WHERE cpu_s > 2").num_rows == 2  # NaN is above all
    assert [each for each in check(lake, quick=False, progress=str) if "statistics" in each.invariant] == []


def test_files_that_are_large_already_are_left(lake: Lake):
    fill(lake, 3)
    assert compact(lake, "trajectories", target_bytes=1000).files_after == 6


def test_rivals_who_append_while_it_compacts_lose_nothing(lake: Lake, python: Callable):
    fill(lake, 3)
    rivals = [python(APPEND, str(lake.home), name) for name in ("a", "b")]
    while any(rival.poll() is None for rival in rivals):
        compact(lake, "trajectories")
    for rival in rivals:
        assert rival.returncode == 0, rival.communicate()[1]
    compact(lake, "trajectories")
    theirs = [f"{name}-{version}" for name in ("a", "b") for version in range(1, 21)]
    assert ids(lake) == sorted(expected(3) + theirs)
    assert [lake.committed_version("trajectories", name) for name in ("run", "a", "b")] == [3, 20, 20]


def test_vacuum_removes_old_files_of_dead_attempts_and_no_others(lake: Lake):
    fill(lake, 3)
    table = lake.path("trajectories")
    (dead,) = lake.write_files("trajectories", [trajectory_row(trajectory_id="dead")])
    (alive,) = lake.write_files("trajectories", [trajectory_row(trajectory_id="alive")])
    long_ago = time.time() - 8 * 86_400
    os.utime(table / dead.path, (long_ago, long_ago))
    compact(lake, "trajectories")  # what it replaced is young
    before = files(lake)
    would = vacuum(lake, "trajectories", WEEK, dry_run=True)
    assert ([each.path for each in would], files(lake)) == ([dead.path], before)
    assert vacuum(lake, "trajectories", WEEK, dry_run=False) == would
    assert files(lake) == [path for path in before if path != table / dead.path]
    lake.commit("trajectories", [alive], app_id="slow", version=1)  # its writer was only slow
    assert ids(lake) == sorted([*expected(3), "alive"])
    assert query(lake.home, "SELECT count(*) AS n FROM trajectories", at={None: 2}).to_pylist() == [{"n": 4}]


def test_vacuum_keeps_a_day_at_least(lake: Lake):
    fill(lake, 1)
    with pytest.raises(LakeError, match="a writer that has not committed"):
        vacuum(lake, "trajectories", timedelta(hours=1), dry_run=True)


def test_restoring_undoes_commits_and_their_transactions(lake: Lake):
    fill(lake, 4)
    lake.append("trajectories", [trajectory_row(trajectory_id="other")], app_id="later", version=9)
    compact(lake, "trajectories")
    assert restore(lake, "trajectories", 2) == opened(lake).version()
    assert ids(lake) == expected(2)
    assert [lake.committed_version("trajectories", name) for name in ("run", "later")] == [2, -1]
    fill(lake, 4)  # as the run does that goes on: what is undone is made again, the rest is not doubled
    again = lake.append("trajectories", [trajectory_row(trajectory_id="other")], app_id="later", version=0)
    assert again.committed
    assert ids(lake) == sorted([*expected(4), "other"])
    restore(lake, "trajectories", 5)  # a restore can be undone
    assert ids(lake) == sorted([*expected(4), "other"])


def test_what_cannot_be_restored_is_said(lake: Lake):
    fill(lake, 2)
    with pytest.raises(LakeError, match="has versions 0 to 2, not 7"):
        restore(lake, "trajectories", 7)
    with pytest.raises(LakeError, match="there is no table tasks"):
        restore(lake, "tasks", 0)
    compact(lake, "trajectories")
    new = set(opened(lake).file_uris())
    for path in files(lake):
        if str(path) not in new:
            path.unlink()  # as a vacuum does
    with pytest.raises(LakeError, match="that a vacuum removed"):
        restore(lake, "trajectories", 2)


def test_a_checkpoint_and_a_history_tell_the_same(lake: Lake):
    fill(lake, 3)
    assert checkpoint(lake, "trajectories") == 3
    commits = history(lake, "trajectories")
    assert [(c.version, c.rows_added, c.files_added, c.files_removed) for c in commits] == [
        (0, 0, 0, 0), (1, 2, 2, 0), (2, 2, 2, 0), (3, 2, 2, 0),
    ]  # fmt: skip
    assert commits[3].by == "run version 3"
    assert commits[0].at <= commits[3].at <= datetime.now(UTC)
