"""Tables as they were: by version, by time, and what is not there any more."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.builders import trajectory_row
from tests.lake.view_rows import task_rows
from transforms.lake.errors import QueryError
from transforms.lake.sql import query
from transforms.lake.table import Lake

IDS = "SELECT trajectory_id FROM trajectories ORDER BY 1"
JOIN = "SELECT count(*) FROM trajectories AS t JOIN tasks AS k ON k.task_hash = t.task_hash"


@pytest.fixture
def grown(lake: Lake) -> Lake:
    """Trajectories t1, t2, t3, each from the version of its number; version 0 is empty."""
    for number in (1, 2, 3):
        time.sleep(0.005)  # so that no two versions are of the same millisecond
        lake.append("trajectories", [trajectory_row(trajectory_id=f"t{number}")], app_id="r", version=number)
    return lake


def commits(lake: Lake) -> list[int]:
    """When each version was committed, in UTC milliseconds, straight from the log."""
    files = sorted((lake.path("trajectories") / "_delta_log").glob("*.json"))
    actions = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [next(action["commitInfo"]["timestamp"] for action in each if "commitInfo" in action) for each in actions]


def ids(lake: Lake, moment: int | datetime) -> list[str]:
    return query(lake.home, IDS, at={None: moment}).column("trajectory_id").to_pylist()


def utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_a_version_holds_what_was_committed_up_to_it(grown: Lake):
    assert [ids(grown, version) for version in range(4)] == [[], ["t1"], ["t1", "t2"], ["t1", "t2", "t3"]]
    assert query(grown.home, IDS, at={"trajectories": 1}).num_rows == 1
    # Below a view, and below a view of a view.
    assert query(grown.home, "SELECT * FROM tests", at={"trajectories": 2}).num_rows == 2 * 2
    assert query(grown.home, "SELECT * FROM error_clusters", at={None: 2}).num_rows == 0
    # A view's comment says that it "runs the same in Spark": that is not the table `runs`.
    assert query(grown.home, "SELECT episodes FROM learning_curve", at={None: 2}).to_pylist() == [{"episodes": 2}]
    assert query(grown.home, IDS).num_rows == 3


def test_a_time_finds_the_newest_version_up_to_it(grown: Lake):
    at = commits(grown)
    assert len(at) == 4
    for version in range(4):
        assert len(ids(grown, utc(at[version]))) == version
        if version:
            assert len(ids(grown, utc(at[version] - 1))) == version - 1
    assert len(ids(grown, datetime.now(UTC))) == 3


def test_a_clock_that_was_set_back_does_not_reorder_versions(grown: Lake):
    at = commits(grown)
    file = grown.path("trajectories") / "_delta_log" / f"{2:020d}.json"
    file.write_text(file.read_text().replace(str(at[2]), str(at[2] - 3_600_000)))
    # Version 2 says an hour before version 1: it counts as made when version 1 was.
    assert len(ids(grown, utc(at[1] - 1))) == 0
    assert len(ids(grown, utc(at[1]))) == 2


def test_what_was_never_there_is_said(grown: Lake):
    first = utc(commits(grown)[0])
    day_before, to_come = first - timedelta(days=1), datetime.now(UTC) + timedelta(hours=1)
    mistakes: list[tuple[dict[str | None, int | datetime], str]] = [
        ({None: 4}, "table trajectories has no version 4: the newest is 3"),
        (
            {None: day_before},
            f"table trajectories has no version of {day_before.isoformat()} or before: "
            f"the first, 0, is of {first.isoformat(timespec='milliseconds')}",
        ),
        ({None: to_come}, f"{to_come.isoformat()} is still to come; without a time, the newest rows are read"),
        ({"tasks": 1}, "table tasks is not read by this query\n\nhint: there are trajectories"),
        ({"trajectory": 1}, "table trajectory is not read by this query\n\nhint: did you mean `trajectories`?"),
    ]
    for at, message in mistakes:
        with pytest.raises(QueryError) as caught:
            query(grown.home, IDS, at=at)
        assert str(caught.value) == message
    with pytest.raises(QueryError, match=r"^table x is not read by this query$"):
        query(grown.home, "SELECT 1", at={"x": 1})
    with pytest.raises(QueryError, match=r"^table runs does not exist, so it has no versions$"):
        query(grown.home, "SELECT * FROM runs", at={None: 0})


def test_a_version_without_a_name_is_of_one_table(grown: Lake):
    tasks = [row for row in task_rows() if row["task_id"] == "add"]
    grown.append("tasks", tasks, app_id="r", version=1)
    with pytest.raises(QueryError) as caught:
        query(grown.home, JOIN, at={None: 1})
    assert str(caught.value) == (
        "version 1 of which table? This query reads trajectories, tasks\n\n"
        "hint: name it, as in --at trajectories=1; a time is good for all of them"
    )

    def rows(at: dict[str | None, int | datetime]) -> int:
        return query(grown.home, JOIN, at=at).column(0)[0].as_py()

    assert rows({}) == 3
    assert rows({"trajectories": 2}) == 2
    assert rows({"trajectories": 2, "tasks": 0}) == 0
    assert rows({"trajectories": 2, None: 1}) == 2
    assert rows({None: datetime.now(UTC)}) == 3


def test_a_vacuumed_version_is_explained(grown: Lake):
    delta = grown.open("trajectories")
    assert delta is not None
    delta.optimize.compact()
    delta.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(QueryError) as caught:
        ids(grown, 2)
    gone, _, hint = str(caught.value).partition(" is gone, and what was asked needs it\n\nhint: ")
    assert Path(gone).is_relative_to(grown.path("trajectories"))
    assert hint == "an old version can be read until a vacuum removes its files; that of a newer one may be there"
    assert ids(grown, 4) == ids(grown, datetime.now(UTC)) == ["t1", "t2", "t3"]


def test_a_version_whose_log_was_cleaned_up_is_explained(grown: Lake):
    delta = grown.open("trajectories")
    assert delta is not None
    delta.create_checkpoint()
    grown.append("trajectories", [trajectory_row(trajectory_id="t4")], app_id="r", version=4)
    log = grown.path("trajectories") / "_delta_log"
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    gone = "version 1 of table trajectories cannot be read any more: its log was cleaned up behind it"
    with pytest.raises(QueryError) as caught:
        ids(grown, 1)
    assert str(caught.value) == f"{gone}\n\nhint: the newest version is 4"
    with pytest.raises(QueryError, match="the oldest that is left, 3, is of "):
        ids(grown, datetime(2020, 1, 1, tzinfo=UTC))
    assert ids(grown, 3) == ["t1", "t2", "t3"]
