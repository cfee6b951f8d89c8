import contextlib
import json
import os
import pickle
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction

from tests.builders import trajectory_row
from transforms.lake.errors import LakeError, StorageFailed, TableTooNew
from transforms.lake.schemas import SCHEMA_VERSION, TABLES
from transforms.lake.sql import query
from transforms.lake.table import SCHEMA_APP_ID, CommitResult, Lake

Start = Callable[..., subprocess.Popen[str]]
Log = Callable[[str], list[dict[str, dict]]]


def rows_in(lake: Lake) -> int:
    return query(lake.home, "SELECT count(*) AS n FROM trajectories").to_pylist()[0]["n"]


def ids_in(lake: Lake) -> list[str]:
    return sorted(query(lake.home, "SELECT trajectory_id FROM trajectories").column(0).to_pylist())


def parquet_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def commits(log: Log) -> Counter[tuple[str, int]]:
    """How often each (application id, version) stands in the log."""
    return Counter((txn["txn"]["appId"], txn["txn"]["version"]) for txn in log("trajectories") if "txn" in txn)


def test_tables_are_created_once_with_schema_and_version(lake: Lake, log: Log):
    lake.ensure_tables()
    lake.ensure_tables()
    assert sorted(path.name for path in (lake.work / "tables").iterdir()) == sorted(TABLES)
    assert log("trajectories")[-1] == {"txn": {"appId": "headrace.schema", "version": SCHEMA_VERSION}}
    for name, schema in TABLES.items():
        table = DeltaTable(str(lake.path(name)))
        assert table.version() == 0
        assert json.loads(table.schema().to_json()) == json.loads(Schema.from_arrow(schema).to_json())
    assert DeltaTable(str(lake.path("trajectories"))).metadata().partition_columns == ["run_id", "cycle"]


def test_a_lake_travels_to_workers(lake: Lake):
    assert pickle.loads(pickle.dumps(lake)) == lake


def test_versions_of_an_application_rise(lake: Lake, log: Log):
    assert lake.committed_version("trajectories", "r") is None
    first = lake.append("trajectories", [trajectory_row(trajectory_id="0")], app_id="r", version=0)
    assert first == CommitResult("trajectories", version=1, committed=True, rows=1, files=1)
    assert lake.committed_version("trajectories", "r") == 0
    for version in (0, 3, 2, 3):  # again; a jump; below the highest; again
        lake.append("trajectories", [trajectory_row(trajectory_id=f"{version}")], app_id="r", version=version)
    again = lake.append("trajectories", [trajectory_row(trajectory_id="x")], app_id="r", version=3)
    assert again == CommitResult("trajectories", version=2, committed=False, rows=0, files=0)
    lake.append("trajectories", [trajectory_row(trajectory_id="other")], app_id="another", version=0)
    assert ids_in(lake) == ["0", "3", "other"]
    assert commits(log) == {(SCHEMA_APP_ID, SCHEMA_VERSION): 1, ("r", 0): 1, ("r", 3): 1, ("another", 0): 1}
    assert len(parquet_in(lake.path("trajectories"))) == 3


def test_a_chunk_without_rows_is_marked_as_done(lake: Lake, log: Log):
    result = lake.append("trajectories", [], app_id="r", version=4)
    assert result == CommitResult("trajectories", version=1, committed=True, rows=0, files=0)
    assert lake.committed_version("trajectories", "r") == 4
    assert [action for action in log("trajectories") if "add" in action] == []


def test_transactions_and_schema_version_survive_a_checkpoint(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=7)
    DeltaTable(str(lake.path("trajectories"))).create_checkpoint()
    for path in (lake.path("trajectories") / "_delta_log").glob("*.json"):
        path.unlink()
    table = lake.open("trajectories")
    assert table is not None
    assert table.transaction_version(SCHEMA_APP_ID) == SCHEMA_VERSION
    assert lake.committed_version("trajectories", "r") == 7
    assert lake.append("trajectories", [trajectory_row()], app_id="r", version=7).committed is False
    assert rows_in(lake) == 1


def test_a_table_of_a_newer_version_is_refused(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    newer = SCHEMA_VERSION + 1
    table = DeltaTable(str(lake.path("trajectories")))
    properties = CommitProperties(app_transactions=[Transaction(SCHEMA_APP_ID, newer)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    message = (
        f"table trajectories in {lake.path('trajectories')} has schema version {newer}, this Headrace knows up to "
        f"{SCHEMA_VERSION}; upgrade Headrace, or choose another home folder"
    )
    for attempt in (
        lambda: lake.open("trajectories"),
        lake.ensure_tables,
        lambda: lake.append("trajectories", [trajectory_row()], app_id="r", version=1),
        lambda: lake.commit("trajectories", [], app_id="r", version=1),
        lambda: query(lake.home, "SELECT 1 FROM learning_curve"),
    ):
        with pytest.raises(TableTooNew) as caught:
            attempt()
        assert str(caught.value) == message
    assert DeltaTable(str(lake.path("trajectories"))).version() == 2
    lake.open("runs")  # the other tables are still fine


def test_a_foreign_delta_table_is_refused(lake: Lake):
    DeltaTable.create(str(lake.path("runs")), DeltaTable.create(str(lake.home / "x"), TABLES["runs"]).schema())
    with pytest.raises(LakeError) as caught:
        lake.append("runs", [], app_id="r", version=0)
    assert str(caught.value) == (
        f"{lake.path('runs')} is a Delta table that Headrace did not create (it records no schema version); "
        "move it away, or choose another home folder"
    )


CRASH = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.builders import trajectory_row
from transforms.lake.table import Lake
home, where = Path(sys.argv[1]), sys.argv[2]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
commit, write = DeltaTable.create_write_transaction, pq.write_table

def dying_commit(*args, **kwargs):
    if where == "before commit": die()
    commit(*args, **kwargs)
    if where == "after commit": die()

def dying_write(data, path, **kwargs):
    write(data, path, **kwargs)
    if where == "while writing":
        os.truncate(path, os.path.getsize(path) // 2)
        die()

DeltaTable.create_write_transaction, pq.write_table = dying_commit, dying_write
rows = [trajectory_row(trajectory_id=f"{i}", cycle=i % 2) for i in range(6)]
print(Lake(home).append("trajectories", rows, app_id="r", version=1).committed)
"""


@pytest.mark.parametrize(
    ("where", "rows_after_crash", "committed_by_retry"),
    [("while writing", 0, True), ("before commit", 0, True), ("after commit", 6, False)],
)
def test_a_killed_writer_and_its_retry_commit_once(
    lake: Lake, python: Start, log: Log, where: str, rows_after_crash: int, committed_by_retry: bool
):
    lake.ensure_tables()
    child = python(CRASH, str(lake.home), where)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL, errors
    assert rows_in(lake) == rows_after_crash
    assert lake.committed_version("trajectories", "r") == (1 if rows_after_crash else None)

    retry = python(CRASH, str(lake.home), "nowhere")
    output, errors = retry.communicate(timeout=60)
    assert (retry.returncode, output) == (0, f"{committed_by_retry}\n"), errors
    assert ids_in(lake) == ["0", "1", "2", "3", "4", "5"]
    assert commits(log)["r", 1] == 1


RIVAL = """
import sys, time
from pathlib import Path
from tests.builders import trajectory_row
from transforms.lake.table import Lake
home, app_id, name, go = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
Path(f"{go}.{name}").touch()
while not go.exists():
    time.sleep(0.001)
won = 0
for version in range(8):
    rows = [trajectory_row(trajectory_id=f"{app_id}/{version}/{i}") for i in range(2)]
    lake = Lake(home)
    # not append, which would look first and so hardly ever race
    won += lake.commit("trajectories", lake.write_files("trajectories", rows), app_id=app_id, version=version).committed
print(won)
"""


def race(lake: Lake, python: Start, app_ids: list[str]) -> list[int]:
    """Let children write at the same moment, to tables that do not exist yet; how many commits each of them won."""
    go = lake.work / "go"
    children = [python(RIVAL, str(lake.home), app_id, str(i), str(go)) for i, app_id in enumerate(app_ids)]
    waited_until = time.monotonic() + 60
    while len(list(lake.work.glob("go.*"))) < len(children) and time.monotonic() < waited_until:
        time.sleep(0.01)
    go.touch()
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * len(children), outputs
    return [int(output) for output, _ in outputs]


def test_rivals_with_one_application_id_commit_each_version_once(lake: Lake, python: Start, log: Log):
    won = race(lake, python, ["r", "r", "r"])
    assert sum(won) == 8
    assert commits(log) == {(SCHEMA_APP_ID, SCHEMA_VERSION): 1} | {("r", version): 1 for version in range(8)}
    assert ids_in(lake) == sorted(f"r/{version}/{i}" for version in range(8) for i in range(2))


def test_rivals_with_their_own_application_ids_all_commit(lake: Lake, python: Start, log: Log):
    assert race(lake, python, ["a", "b", "c"]) == [8, 8, 8]
    assert ids_in(lake) == sorted(f"{app}/{version}/{i}" for app in "abc" for version in range(8) for i in range(2))


CREATOR = """
import sys, time
from pathlib import Path
from transforms.lake.table import Lake
home = Path(sys.argv[1])
(home / f"ready.{sys.argv[2]}").touch()
while len(list(home.glob("ready.*"))) < 3:
    time.sleep(0.001)
start = time.time() // 1 + 1
for number in range(40):  # in step with the others
    time.sleep(max(0.0, start + number * 0.06 - time.time()))
    Lake(home / f"{number}").open_or_create("runs")
"""


def test_rivals_create_a_table_once(lake: Lake, python: Start):
    children = [python(CREATOR, str(lake.home), str(number)) for number in range(3)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    logs = {number: list((Lake(lake.home / f"{number}").path("runs") / "_delta_log").iterdir()) for number in range(40)}
    assert {number: len(files) for number, files in logs.items()} == dict.fromkeys(range(40), 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_table_as_it_was(small_disk: Path):
    lake = Lake(small_disk)
    lake.append("trajectories", [trajectory_row(trajectory_id="kept")], app_id="r", version=0)
    before = parquet_in(small_disk)
    message = (
        f"table trajectories: cannot write in {lake.path('trajectories')}: No space left on device; "
        "nothing was committed: free space or mend the disk, then run again"
    )
    # the first partition still fits, so it must be removed too
    rows = [trajectory_row(cycle=1), trajectory_row(cycle=2, program=os.urandom(2_000_000).hex())]
    with pytest.raises(StorageFailed) as caught:
        lake.append("trajectories", rows, app_id="r", version=1)
    assert str(caught.value) == message
    assert parquet_in(small_disk) == before
    assert (ids_in(lake), lake.committed_version("trajectories", "r")) == (["kept"], 0)

    files = lake.write_files("trajectories", [trajectory_row(trajectory_id="late")])
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"x" * 4096)
    with pytest.raises(StorageFailed) as caught:
        lake.commit("trajectories", files, app_id="r", version=1)
    assert str(caught.value) == message
    with pytest.raises(StorageFailed, match="table tasks: cannot write"):
        lake.ensure_tables()
    assert (ids_in(lake), lake.committed_version("trajectories", "r")) == (["kept"], 0)

    filler.unlink()
    assert lake.commit("trajectories", files, app_id="r", version=1).rows == 1
    assert ids_in(lake) == ["kept", "late"]
    lake.ensure_tables()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.builders import trajectory_row
from transforms.lake.errors import StorageFailed
from transforms.lake.table import Lake
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lake = Lake(Path(sys.argv[1]))
files = lake.write_files("trajectories", [trajectory_row()])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for attempt in (
    lambda: lake.append("trajectories", [trajectory_row()], app_id="r", version=0),
    lambda: lake.commit("trajectories", files, app_id="r", version=0),
):
    try:
        attempt()
    except StorageFailed as error:
        print(error)
"""


def test_a_file_size_limit_is_a_storage_failure(lake: Lake, python: Start):
    lake.ensure_tables()
    child = python(LIMITED, str(lake.home))
    output, errors = child.communicate(timeout=60)
    line = (
        f"table trajectories: cannot write in {lake.path('trajectories')}: File too large; "
        "nothing was committed: free space or mend the disk, then run again\n"
    )
    assert (child.returncode, output) == (0, line * 2), errors
    assert len(parquet_in(lake.path("trajectories"))) == 1  # that of write_files, before the limit
    assert rows_in(lake) == 0


def test_append_removes_its_files_when_the_commit_cannot_be_stored(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    lake.ensure_tables()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError("Generic LocalFileSystem error: No space left on device (os error 28)")  # as delta-rs words it

    monkeypatch.setattr(DeltaTable, "create_write_transaction", full)
    with pytest.raises(StorageFailed, match="No space left on device; nothing was committed"):
        lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    assert parquet_in(lake.path("trajectories")) == set()
