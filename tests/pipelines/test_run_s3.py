"""A whole run whose tables are in a real S3-compatible store: its rows there, its weights and pages here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.s3_here import KEY, SECRET, S3Server
from tests.pipelines.conftest import EPISODES, Driver
from transforms.lake.sql import query
from transforms.lake.storage import ObjectStore

HOME = "s3://lake/runs/a"


@pytest.mark.slow
def test_a_run_commits_to_a_store_and_a_second_one_finds_it_done(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "s3" / "lake").mkdir(parents=True)
    server = S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HEADRACE_WORK", str(tmp_path / "work"))
    with server:
        driver.write_spec(tmp_path / "run")
        # The installed command: in a `python -c`, pyspark takes itself for a doctest and ends the process.
        run = [
            str(Path(sys.executable).with_name("headrace")),
            "run",
            str(tmp_path / "run.yaml"),
            "--plain",
            "--home",
            HOME,
        ]
        root = Path(__file__).parents[2]
        first = subprocess.run(run, cwd=root, capture_output=True, text=True, env=os.environ)
        assert first.returncode == 0, first.stderr[-3000:]
        again = subprocess.run(run, cwd=root, capture_output=True, text=True, env=os.environ)
        assert (again.returncode, again.stderr.count("was finished before")) == (0, 1), again.stderr[-3000:]

        home = ObjectStore(HOME)
        assert query(home, "SELECT count(*) AS n FROM trajectories WHERE final").to_pylist() == [{"n": EPISODES}]
        versions = query(home, "SELECT policy_version, checkpoint FROM policies ORDER BY 1").to_pylist()
        assert [row["policy_version"] for row in versions] == [0, 1, 2]
        work = tmp_path / "work" / "s3" / "lake" / "runs" / "a"
        assert (work / versions[2]["checkpoint"] / "model.safetensors").is_file()
        assert len(list(work.glob("reports/*/summary.html"))) == 1
        assert not (work / "tables").exists()
        stored = {path.relative_to(server.folder / "lake/runs/a").parts[0] for path in server.folder.rglob("*.json")}
        assert stored == {"tables"}
        everything = [path for folder in (work, server.folder) for path in folder.rglob("*") if path.is_file()]
        for path in everything:
            if path.suffix != ".safetensors":
                assert not any(each.encode() in path.read_bytes() for each in (KEY, SECRET)), path
        for done in (first, again):
            assert not any(each in done.stdout + done.stderr for each in (KEY, SECRET))
