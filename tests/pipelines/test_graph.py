"""The whole graph of a chunk, where the engine fails it."""

import socket
from pathlib import Path

import pytest

from pipelines.graph import run_chunk
from pipelines.plan import make_plan
from pipelines.spec import RunSpec
from sandboxes.backends.bubblewrap import Bubblewrap
from transforms.grade.grade import ImageUsed
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.rollout.policy import EngineError, EngineLost
from transforms.rollout.transformers_engine import TransformersEngine
from transforms.rollout.vllm_engine import VllmEngine
from transforms.sources.builtin import load_tasks

IMAGE = ImageUsed("host", "0f" * 32)


def run(engine: object, home: Path) -> Lake:
    """Run the first training chunk of two tasks, two answers each."""
    spec = RunSpec.model_validate({"name": "graph", "cycles": {"count": 1, "group_size": 2}})
    train = [task for task in load_tasks("builtin:quickstart", Path()) if task.split == "train"][:2]
    lake = Lake(home)
    lake.ensure_tables()
    chunk = make_plan(spec, "r", train, []).chunks[0]
    run_chunk(
        chunk, run_id="r", spec=spec, engine=engine, sandbox=Bubblewrap(), image=IMAGE, lake=lake,  # ty: ignore[invalid-argument-type]
    )  # fmt: skip
    return lake


def test_a_dead_engine_fails_the_chunk_and_nothing_is_committed(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: every connection is refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        engine = VllmEngine(
            url=url,
            model="policy-0",
            policy_version=0,
            seeds=False,
            max_model_len=64,
            timeout_s=5,
            log=tmp_path / "engine.log",
        )
        with pytest.raises(EngineLost, match=f"no connection to vLLM at {url} in 3 tries"):
            run(engine, tmp_path)
    assert Lake(tmp_path).committed_version("trajectories", "r") is None
    assert query(tmp_path, "SELECT * FROM trajectories").num_rows == 0


def test_a_request_that_fails_is_a_row_of_each_episode_without_a_reward(tmp_path: Path):
    engine = TransformersEngine(tmp_path / "no-model", 0, "float32", 64)
    with pytest.raises(EngineError):
        engine.load()
    run(engine, tmp_path)
    rows = query(
        tmp_path, "SELECT outcome, outcome_class, reward, final, evidence, failure FROM trajectories"
    ).to_pylist()
    assert len(rows) == 4
    assert {(row["outcome"], row["outcome_class"], row["reward"], row["final"]) for row in rows} == {
        ("engine_failed", "infra", None, True)
    }
    assert all(row["evidence"] and "cannot be loaded" in row["failure"] for row in rows)
