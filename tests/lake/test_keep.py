"""A chunk from answers to rows: what programs left and printed can be fetched by the rows' digests, in every home."""

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.graph import run_chunk
from pipelines.plan import make_plan
from pipelines.spec import RunSpec
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.lake.s3_here import KEY, SECRET, S3Server
from transforms.grade.grade import ImageUsed
from transforms.lake.blobs import read
from transforms.lake.sql import query
from transforms.lake.storage import ObjectStore, Place, StoreUnreachable
from transforms.lake.table import Lake
from transforms.rollout.policy import Completion, Sampling
from transforms.sources.builtin import load_tasks
from transforms.verify.run import run_check

ROOT = Path(__file__).parents[2]
TASKS = [
    {
        "task_id": "report", "kind": "files", "language": "python", "prompt": "Write report.txt and data/a.",
        "cases": [{"expected": [{"path": "report.txt", "text": "right"}]}],
    },
    {
        "task_id": "lines", "kind": "stdio", "language": "python", "prompt": "Print 1.",
        "cases": [{"stdin": "", "expected": "1"}],
    },
]  # fmt: skip
LINES = b"".join(b"line %d\n" % number for number in range(3000))
LEAVES = """import os
os.mkdir("data")
open("data/a", "w").write("A")
open("report.txt", "w").write("wrong")
"""
PRINTS = """import sys
for number in range(3000):
    print("line", number)
print("told", file=sys.stderr)
"""
ANSWERS = {"Write report.txt and data/a.": LEAVES, "Print 1.": PRINTS}


@dataclass(frozen=True)
class Scripted:
    """Answers each prompt as a policy would that knows one program for it."""

    name: str = "scripted"

    async def sample(
        self, messages: list[dict[str, str]], *, n: int, sampling: Sampling, seed: int
    ) -> list[Completion]:
        text = f"```python\n{ANSWERS[messages[-1]['content']]}```"
        return [Completion((1,), (2,), (-0.5,), text, "stop", False)] * n


@pytest.fixture(params=["folder", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "folder":
        yield tmp_path / "home"
        return
    (tmp_path / "s3" / "lake").mkdir(parents=True)
    server = S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with server:
        yield ObjectStore("s3://lake/a")


def run(home: Place, folder: Path) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    spec = RunSpec.model_validate({"name": "keep", "cycles": {"count": 1, "group_size": 2}})
    lake = Lake(home)
    lake.ensure_tables()
    chunk = make_plan(spec, "r", load_tasks("tasks.jsonl", folder), []).chunks[0]
    image = ImageUsed("host", "0f" * 32)
    run_chunk(chunk, run_id="r", spec=spec, engine=Scripted(), sandbox=Bubblewrap(), image=image, lake=lake)


def test_a_rows_digests_lead_to_what_was_left_and_printed(home: Place, tmp_path: Path):
    run(home, tmp_path)
    sql = "SELECT task_id, workspace_digest AS left, output_digest AS said FROM steps WHERE kind = 'execute'"
    rows = query(home, sql).to_pylist()
    assert sorted(row["task_id"] for row in rows) == ["lines", "lines", "report", "report"]
    left = {row["left"] for row in rows if row["task_id"] == "report"}
    said = {row["said"] for row in rows if row["task_id"] == "lines"}
    assert (len(left), len(said)) == (1, 1)  # two equal programs, one file
    assert {row["left"] for row in rows if row["task_id"] == "lines"} == {None}
    output = b"".join(read(home, said.pop()))
    assert output == b"== stdout\n" + LINES + b"== stderr\ntold\n"
    assert len(output) > 20_000  # far more than any column holds

    # The same by the command line, and as another program reads the archive.
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "files", "get", left.pop()]
    done = subprocess.run([*command, "--home", str(home)], cwd=ROOT, capture_output=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = {name.removeprefix("./"): archive.extractfile(name) for name in archive.getnames()}
    assert {name: file.read() for name, file in found.items() if file is not None and name != "main.py"} == {
        "data/a": b"A",
        "report.txt": b"wrong",
    }
    if isinstance(home, ObjectStore):
        for path in [path for path in (tmp_path / "s3").rglob("*") if path.is_file()]:
            assert not any(each.encode() in path.read_bytes() for each in (KEY, SECRET)), path


def test_a_store_that_is_gone_fails_the_chunk_and_the_next_try_commits_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "s3" / "lake").mkdir(parents=True)
    server = S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with server:
        home = ObjectStore("s3://lake/a")
        Lake(home).ensure_tables()
        ensure = Lake.ensure_tables
        monkeypatch.setattr(
            Lake, "ensure_tables", lambda self: server.stop()
        )  # it stops between the start and the commit
        with pytest.raises(StoreUnreachable, match="run the same command again"):
            run(home, tmp_path)
        server.start()
        monkeypatch.setattr(Lake, "ensure_tables", ensure)
        assert query(home, "SELECT * FROM trajectories").num_rows == 0
        run(home, tmp_path)
        run(home, tmp_path)
        assert query(home, "SELECT count(*) AS n FROM trajectories").to_pylist() == [{"n": 4}]


def test_the_workspace_is_that_of_the_first_case_that_failed(tmp_path: Path):
    task = {
        **TASKS[0],
        "cases": [{"argv": [each], "expected": [{"path": "f", "text": "good"}]} for each in ("good", "bad", "worse")],
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    (loaded,) = load_tasks("tasks.jsonl", tmp_path)
    limits = Limits(wall_time_s=5, cpu_time_s=5, memory_mib=128, processes=24, output_kib=64, file_mib=4, disk_mib=8)
    program = "import sys\nopen('f', 'w').write(sys.argv[1])\n"
    report = asyncio.run(run_check(Bubblewrap(), loaded, program, SandboxRequest(limits=limits)))
    assert report.workspace is not None
    with tarfile.open(fileobj=io.BytesIO(report.workspace.archive)) as archive:
        file = archive.extractfile("./f")
        assert file is not None
        assert file.read() == b"bad"
