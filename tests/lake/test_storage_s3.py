"""Tables in a real S3-compatible store: rivals, exactly-once commits, and failures that say what to do, no secrets."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import trajectory_row
from tests.lake.s3_here import KEY, SECRET, S3Server
from transforms.lake import storage
from transforms.lake.errors import QueryError
from transforms.lake.schemas import TABLES
from transforms.lake.sql import query
from transforms.lake.storage import BucketMissing, ObjectStore, StoreFailed, StoreRefused, StoreUnreachable
from transforms.lake.table import Lake

ROOT = Path(__file__).parents[2]
IDS = "SELECT trajectory_id FROM trajectories ORDER BY 1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    (tmp_path / "s3" / "lake").mkdir(parents=True)
    made = S3Server(tmp_path / "s3")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    with made:
        yield made


@pytest.fixture
def lake(server: S3Server) -> Lake:
    return Lake(ObjectStore("s3://lake/team/a"))


def ids_in(lake: Lake) -> list[str]:
    return query(lake.home, IDS).column(0).to_pylist()


def test_rows_are_committed_once_and_read_back_from_where_they_should_be(lake: Lake, server: S3Server):
    lake.ensure_tables()
    rows = [trajectory_row(trajectory_id=f"{i}", cycle=i % 2) for i in range(6)]
    assert lake.append("trajectories", rows, app_id="r", version=1).rows == 6
    assert lake.append("trajectories", rows, app_id="r", version=1).committed is False
    assert lake.committed_version("trajectories", "r") == 1
    assert ids_in(lake) == ["0", "1", "2", "3", "4", "5"]
    assert query(lake.home, "SELECT count(*) AS n FROM tests WHERE trajectory_id = '3'").to_pylist() == [{"n": 2}]
    # As the server's own disk has it.
    folder = server.folder / "lake" / "team" / "a" / "tables"
    assert sorted(path.name for path in folder.iterdir()) == sorted(TABLES)
    assert len(list(folder.glob("trajectories/run_id=run-1/cycle=*/*.parquet"))) == 2
    assert len(list((folder / "trajectories" / "_delta_log").glob("*.json"))) == 2


def test_a_file_of_many_parts_arrives_whole(lake: Lake):
    noise = os.urandom(6 << 20).hex()  # 6 MiB after compression: more than one part of an upload
    lake.append("trajectories", [trajectory_row(program=noise)], app_id="r", version=1)
    assert query(lake.home, "SELECT program FROM trajectories").column(0).to_pylist() == [noise]


RIVAL = """
import sys, time
from pathlib import Path
from tests.builders import trajectory_row
from transforms.lake.storage import ObjectStore
from transforms.lake.table import Lake
name, go = sys.argv[1], Path(sys.argv[2])
Path(f"{go}.{name}").touch()
while not go.exists():
    time.sleep(0.001)
lake = Lake(ObjectStore("s3://lake/team/a"))
for version in range(10):
    rows = [trajectory_row(trajectory_id=f"{name}/{version}/{i}") for i in range(2)]
    for again in range(2):  # a retry of each commit adds nothing
        lake.append("trajectories", rows, app_id=name, version=version)
"""


def test_four_rivals_commit_every_row_exactly_once(lake: Lake, server: S3Server, tmp_path: Path):
    command = [sys.executable, "-c", RIVAL]
    children = [
        subprocess.Popen([*command, name, str(tmp_path / "go")], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for name in "abcd"
    ]
    waited_until = time.monotonic() + 60
    while len(list(tmp_path.glob("go.*"))) < 4 and time.monotonic() < waited_until:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    said = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], said
    assert ids_in(lake) == sorted(f"{name}/{version}/{i}" for name in "abcd" for version in range(10) for i in range(2))
    logs = (server.folder / "lake/team/a/tables/trajectories/_delta_log").glob("*.json")
    assert len(list(logs)) == 1 + 40  # its creation, once, and each commit


FAULTS: dict[str, tuple[dict[str, str | None], str, type[StoreFailed], str]] = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "other"}, "lake", StoreRefused, "does not take the credentials"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "AKIAOTHER"}, "lake", StoreRefused, "set AWS_ACCESS_KEY_ID and AWS_SECRET"),
    "no bucket": ({}, "no-such-bucket", BucketMissing, "there is no no-such-bucket; create it, or correct --home"),
    "no server": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "lake", StoreUnreachable, "does not answer, or fails"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_way_to_the_store_says_what_is_wrong_and_what_to_do(
    lake: Lake, fault: str, monkeypatch: pytest.MonkeyPatch
):
    lake.ensure_tables()
    files = lake.write_files("trajectories", [trajectory_row()])
    opened = lake.open_or_create("trajectories")
    environment, bucket, kind, text = FAULTS[fault]
    for name, value in environment.items():
        monkeypatch.setenv(name, value or "")
    broken = Lake(ObjectStore(f"s3://{bucket}/team/a"))
    store = broken.home
    assert isinstance(store, ObjectStore)
    ways: dict[str, Callable[[], object]] = {
        "create": broken.ensure_tables,
        "query": lambda: query(store, "SELECT 1 FROM runs"),
        "write": lambda: broken.write_files("trajectories", [trajectory_row()]),
        "commit": lambda: broken.commit("trajectories", files, app_id="r", version=1),
        "append": lambda: broken.append("trajectories", [trajectory_row()], app_id="r", version=1),
        "list": lambda: list(store.list()),
        "read": lambda: store.open("files/a").read(),
    }
    for way, go in ways.items():
        with pytest.raises(kind) as caught:
            go()
        assert text in str(caught.value), way
        assert str(caught.value).startswith(f"s3://{bucket}/team/a"), way
        assert caught.value.__cause__ is None  # that would hold what the server said, and with it the key
        assert not any(each in str(caught.value) for each in (KEY, SECRET, "AKIAOTHER", "Signature")), way
    monkeypatch.undo()
    assert opened.version() == 0


def test_a_server_that_stops_midway_loses_and_doubles_nothing(lake: Lake, server: S3Server):
    lake.append("trajectories", [trajectory_row(trajectory_id="a")], app_id="r", version=1)
    files = lake.write_files("trajectories", [trajectory_row(trajectory_id="b")])
    server.stop()
    with pytest.raises(StoreUnreachable, match="run the same command again: it goes on from the last commit"):
        lake.commit("trajectories", files, app_id="r", version=2)
    server.start()
    assert ids_in(lake) == ["a"]
    assert lake.commit("trajectories", files, app_id="r", version=2).rows == 1
    assert lake.commit("trajectories", files, app_id="r", version=2).committed is False
    assert ids_in(lake) == ["a", "b"]


def test_a_store_that_fails_under_a_query_is_no_mistake_in_the_query(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=1)
    opened = lake.open_or_create("trajectories")
    monkeypatch.setattr(Lake, "open", lambda self, table: opened)  # so that the rows fail, not the log
    assert isinstance(lake.home, ObjectStore)
    for path in query(lake.home, "SELECT 1 FROM trajectories") and opened.file_uris():
        lake.home.remove(path.removeprefix("s3://lake/team/a/"))
    with pytest.raises(QueryError, match=r"part-\w+.zstd.parquet is gone, and what was asked needs it"):
        query(lake.home, IDS)


def test_a_store_without_an_answer_is_given_up_in_time(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage, "_PATIENCE_S", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(StoreUnreachable):
        lake.ensure_tables()
    assert time.monotonic() - started < 20


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from pipelines.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )


def test_the_command_line_reads_a_store_and_never_tells_a_secret(lake: Lake, server: S3Server, tmp_path: Path):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=1)
    work = {"HEADRACE_WORK": str(tmp_path / "work")}
    asked = ["sql", "SELECT task_id, reward FROM trajectories", "--format", "json", "--home", "s3://lake/team/a"]
    done = headrace(*asked, **work)
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"task_id": "add", "reward": 1.0}]), done.stderr
    empty = headrace(*asked[:-1], "s3://lake/team/b", **work)
    assert (empty.returncode, empty.stderr.splitlines()[0]) == (2, "error: s3://lake/team/b holds no tables")
    refused = headrace(*asked, AWS_SECRET_ACCESS_KEY="other-secret-5", **work)
    missing = headrace(*asked[:-1], "s3://nowhere/a", **work)
    server.stop()
    gone = headrace(*asked, RUST_LOG="debug", **work)
    server.start()
    assert [each.returncode for each in (refused, missing, gone)] == [1, 1, 1]
    assert [each.stderr.count("\n") for each in (refused, missing, gone)] == [1, 1, 1]
    # Nothing that was said, logged or stored holds the key or a secret; the server's own log is not ours.
    for each in (done, empty, refused, missing, gone):
        assert not any(secret in each.stdout + each.stderr for secret in (KEY, SECRET, "other-secret-5"))
    for path in [path for folder in (tmp_path / "work", server.folder) for path in folder.rglob("*")]:
        if path.is_file():
            assert not any(secret.encode() in path.read_bytes() for secret in (KEY, SECRET)), path
