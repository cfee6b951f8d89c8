"""Impossible tasks in a run, golds that cannot be measured, and a grader that breaks."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.admission import Golds, try_golds
from pipelines.explain import EXIT_CODES
from pipelines.graph import run_chunk
from pipelines.plan import make_plan
from pipelines.spec import RunSpec
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import SandboxSpec
from tests.pipelines.conftest import TASKS, Driver
from transforms.grade.grade import STREAK, GraderBroken, ImageUsed
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.rollout.policy import Completion, Sampling
from transforms.sources.builtin import load_tasks
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify import attempts


def canary(cases: list[dict[str, object]]) -> dict[str, object]:
    """A task that says it is impossible; `double` asks the same, so answers that fit come by."""
    return {"task_id": "canary", "prompt": "wdouble", "entry_point": "f", "impossible": True, "cases": cases}


def run_with(made: dict[str, object], driver: Driver, folder: Path) -> int:
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, [made, *TASKS])))
    driver.write_spec(
        folder / "home", tasks="{train: tasks.jsonl, heldout: tasks.jsonl}",
        cycles="{count: 1, group_size: 16, groups_per_chunk: 4}",
    )  # fmt: skip
    return driver.run(folder / "home")


def events(home: Path) -> list[dict[str, object]]:
    return query(home, "SELECT * FROM events WHERE event = 'impossible_rewarded'").to_pylist()


def test_a_reward_on_an_impossible_task_is_an_alarm_and_stops_the_run(driver: Driver, tmp_path: Path):
    # Not impossible at all, as where a grader has a hole: some of 16 answers drawn from seven return 0.
    hole = canary([{"args": [3], "expected": 0}])
    assert run_with(hole, driver, tmp_path) == 3
    home = tmp_path / "home"
    assert "impossible_rewarded_rate" in driver.output
    assert "quality.max_impossible_rewarded_rate" in driver.output
    assert "ALARM" in driver.output
    paid = query(
        home, "SELECT trajectory_id FROM trajectories WHERE task_id = 'canary' AND reward > 0 ORDER BY 1"
    ).to_pylist()
    assert paid
    (event,) = events(home)
    assert (event["stage"], event["cycle"]) == ("rollout", 1)
    assert json.loads(str(event["detail"])) == {
        "count": len(paid), "trajectory_ids": [row["trajectory_id"] for row in paid],
    }  # fmt: skip
    assert driver.run(home) == 3
    assert len(events(home)) == 1  # told once, however often the run is tried


def test_an_impossible_task_nobody_solves_is_no_alarm(driver: Driver, tmp_path: Path):
    conflicting = canary([{"args": [3], "expected": 0}, {"name": "again", "args": [3], "expected": 1}])
    assert run_with(conflicting, driver, tmp_path) == 0
    home = tmp_path / "home"
    assert events(home) == []
    rows = query(home, "SELECT impossible, max(reward) AS best FROM trajectories GROUP BY impossible").to_pylist()
    assert {row["impossible"]: row["best"] for row in rows} == {True: 0.0, False: 1.0}


PLUS_ONE = Task("plus one", "p", Call("f", (Case("a", (1,), 2),)), gold="def f(x): return x + 1")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"impossible": True}, "it is declared impossible, and its gold passes every case"),
        ({"impossible": True, "gold": None}, None),
        ({"impossible": True, "gold": "def f(x): return x"}, None),
        ({"performance": ((5,), (6,))}, None),
        ({"performance": ((5,), ("6",))}, "performance input 2: runtime_error: TypeError"),
    ],
)
def test_what_admission_says_of_a_gold(changed: dict, says: str | None):
    asked = replace(PLUS_ONE, **changed)
    golds = Golds()
    asyncio.run(try_golds([asked], Bubblewrap(), SandboxSpec(), golds))
    assert golds.failing.get("plus one", "")[: len(says or "")] == (says or "")
    assert bool(golds.failing) == (says is not None)
    assert golds.untried == {}


class Canned:
    """An engine with one answer."""

    name = "canned"

    async def sample(
        self, messages: list[dict[str, str]], *, n: int, sampling: Sampling, seed: int
    ) -> list[Completion]:
        return [Completion((1,), (2,), (-1.0,), "```python\nx = 1\n```", "stop", True)] * n


def test_a_broken_grader_ends_the_chunk_at_once_and_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    async def broken(*args: object) -> None:
        asked.append(args)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(attempts, "run_check", broken)
    spec = RunSpec.model_validate({"name": "graph", "cycles": {"count": 1, "group_size": STREAK}})
    train = [task for task in load_tasks("builtin:quickstart", Path()) if task.split == "train"][:8]
    lake = Lake(tmp_path)
    lake.ensure_tables()
    with pytest.raises(GraderBroken, match=r"failed \d+ times in a row.*ZeroDivisionError: a defect") as caught:
        run_chunk(
            make_plan(spec, "r", train, []).chunks[0], run_id="r", spec=spec, engine=Canned(), sandbox=Bubblewrap(),
            image=ImageUsed("host", "0f" * 32), lake=lake,
        )  # fmt: skip
    assert "while running" not in str(caught.value)  # nothing of Beam's
    assert STREAK < len(asked) < 4 * STREAK  # of 8 groups of as many
    assert lake.committed_version("trajectories", "r") is None
    assert EXIT_CODES["transforms.grade.grade.GraderBroken"] == 3
