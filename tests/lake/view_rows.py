"""A seeded lake for the tests of the views: two runs of three cycles, with every kind of mishap."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from tests.builders import START, a_test, trajectory_row
from transforms.lake.sql import query
from transforms.lake.storage import Place
from transforms.lake.table import Lake

Rows = list[dict[str, Any]]
Expected = dict[tuple[Any, ...], dict[str, Any]]

PLACE = ("run_id", "cycle", "purpose")

# (outcome, outcome_class)
ENDS = (
    ("passed", "policy"), ("passed", "policy"), ("failed_tests", "policy"), ("failed_tests", "policy"),
    ("syntax_error", "policy"), ("truncated", "policy"), ("tampered", "policy"), ("policy_violation", "policy"),
    ("sandbox_lost", "infra"), ("grader_error", "grader"),
)  # fmt: skip
MESSAGES = (
    None,
    "",
    "NameError: name 'foo' is not defined",
    "NameError: name 'bar' is not defined",
    "got 3",
    "got -4.5e3",
)


def digest(text: str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def episode(
    dice: random.Random,
    run: str,
    cycle: int,
    purpose: str,
    task: str,
    sample: int,
    *,
    end: tuple[str, str] | None = None,
) -> Rows:
    """The attempts of one episode: an infra failure before the last one now and then."""
    outcome, outcome_class = end or dice.choice(ENDS)
    name = f"{run}/{cycle}/{purpose}/{task}/{sample}"
    program = dice.choice([None, f"def {task}(): pass", f"def {task}(): return {dice.randrange(2)}"])
    answer = dice.choice([None, f"{program}"])
    reward = {"passed": 1.0}.get(outcome, dice.choice([0.0, 0.25])) if outcome_class == "policy" else None
    last = trajectory_row(
        trajectory_id=f"{name}/2", episode_id=name, group_id=f"{run}/{cycle}/{purpose}/{task}", run_id=run, cycle=cycle,
        purpose=purpose, sample=sample, attempt=2, final=True, task_id=task, task_hash=digest(task),
        policy_version=max(0, cycle - 1) if purpose == "train" else cycle, outcome=outcome, outcome_class=outcome_class,
        reward=reward, program=program, completion_hash=None if answer is None else digest(answer),
        prompt_tokens=dice.choice([None, 40]), completion_tokens=dice.choice([None, dice.randrange(1, 100)]),
        finish_reason=dice.choice([None, "stop", "length"]), sandbox=dice.choice([None, "bubblewrap", "docker"]),
        host=dice.choice([None, "one", "two"]),
        signals=dice.choice([None, [], ["reads_tests"], ["process_exit", "reads_tests"]]),
        impossible=True if task == "canary" else dice.choice([None, False]),
        reward_components=None if reward is None else dice.choice([
            None, [], [{"name": "all_passed", "value": reward}, {"name": "latency", "value": dice.random()}],
            [{"name": "all_passed", "value": reward}, {"name": "coverage", "value": None}],
        ]),
        quarantine_reasons=dice.choice([[], [], [], ["late", "too_long"][: dice.randrange(3)]]),
        tests=dice.choice([
            None, [], [{**a_test("a", outcome=outcome), "message": dice.choice(MESSAGES)} for _ in range(2)],
        ]),
        compiler_message=dice.choice([None, "a.c:3:1: error: \u2018x\u2019 undeclared"]),
        failure=f"worker {dice.randrange(9)} is gone: /run/sb-{dice.randrange(9)}" if reward is None else None,
    )  # fmt: skip
    if dice.random() < 0.8:
        return [{**last, "attempt": 1}]
    first = {
        **last, "trajectory_id": f"{name}/1", "attempt": 1, "final": False, "outcome": "sandbox_lost",
        "outcome_class": "infra", "reward": None, "reward_components": None,
        "completion_tokens": dice.choice([None, 7]),
    }  # fmt: skip
    return [first, last]


def trajectories(dice: random.Random) -> Rows:
    """Groups of 1 to 9 episodes of six tasks and a canary; one task never has a scored answer."""
    rows: Rows = []
    for run in ("r", "s"):
        for cycle in range(3):
            for purpose in ("eval_sampled",) if cycle == 0 else ("train", "eval_sampled"):
                for task in ("add", "sum", "sort", "regex", "parse", "dead", "canary"):
                    end = ("sandbox_lost", "infra") if task == "dead" else None
                    for sample in range(dice.randrange(1, 10)):
                        rows += episode(dice, run, cycle, purpose, task, sample, end=end)
    return rows


def task_rows() -> Rows:
    """The tasks of `trajectories`, but for `parse`, which the table does not know."""
    kinds = {"add": ("call", "python"), "sum": ("call", "python"), "sort": ("stdio", "cpp"), "regex": ("math", None)}
    return [
        {
            "task_hash": digest(task), "task_id": task, "source": "builtin", "split": "train", "kind": kind,
            "language": language, "prompt": "?", "visible_cases": 1, "hidden_cases": 1, "unsupported": None,
            "gold_outcome": None, "record": "{}", "added_at": START,
        }
        for task, (kind, language) in {**kinds, "dead": ("call", "python"), "canary": ("call", "python")}.items()
    ]  # fmt: skip


def policy_rows(dice: random.Random, rows: Rows) -> Rows:
    """Three versions a run; a cycle's steps use its training rows, one twice, and one row that is not in the lake."""
    made: Rows = []
    for run in ("r", "s"):
        for version in range(3):
            own = [
                row["trajectory_id"]
                for row in rows
                if (row["run_id"], row["cycle"], row["purpose"]) == (run, version, "train")
            ]
            used = [*dice.sample(own, 12), own[0], f"{run}/{version}/gone"] if version else []
            made.append({
                "run_id": run, "policy_version": version, "parent_version": version - 1 if version else None,
                "checkpoint": f"policies/{run}/{version}", "weights_hash": digest(f"{run}{version}"),
                "batch_hash": None, "trajectories_version": None, "spec_hash": "h",
                "optimizer_steps": [
                    {
                        "optimizer_step": 2 * version - 1 + step, "loss": 0.5, "grad_norm": 1.0,
                        "clip_fraction": dice.random(), "sampler_kl": dice.choice([None, dice.random()]),
                        "effective_share": dice.random(),
                        "largest_logprob_difference": dice.choice([None, dice.random()]),
                        "tokens": 100 + step, "seconds": 1.0,
                    }
                    for step in range(2 if version else 0)
                ],
                "consumed": [
                    {
                        "trajectory_id": one, "optimizer_step": 2 * version - dice.randrange(2),
                        "advantage": dice.random(), "tokens": dice.randrange(50),
                    }
                    for one in used
                ],
                "created_at": START,
            })  # fmt: skip
    return made


def check_rows(dice: random.Random) -> Rows:
    """Two row-level expectations over three chunks, two batch-level ones judged once or twice."""
    made: Rows = []
    for run in ("r", "s"):
        for cycle in range(1, 4):
            for name, level in (
                ("unique", "row"),
                ("finite", "row"),
                ("infra_rate", "batch"),
                ("episodes_present", "batch"),
            ):
                for number in range(3 if level == "row" else dice.randrange(1, 3)):
                    rows = dice.choice([0, 10, 20])
                    observed = dice.choice([None, 0.5, 0.25]) if level == "batch" else float(dice.randrange(rows + 1))
                    made.append({
                        "run_id": run, "cycle": cycle, "chunk": number if level == "row" else None, "suite": level,
                        "expectation": name, "column": None, "level": level, "success": dice.random() < 0.8,
                        "observed": observed, "limit": None if name == "finite" else 0.5, "rows": rows, "detail": None,
                        "checked_at": START + timedelta(seconds=number),
                        "suite_version": 1, "severity": "stop" if level == "batch" else None,
                    })  # fmt: skip
    return made


def event_rows(dice: random.Random) -> Rows:
    """Stages of some cycles, in up to two sessions; `train` of cycle 2 never ended."""
    made: Rows = []
    for run in ("r", "s"):
        for stage in ("setup", "engine", "evaluate", "rollout", "quality", "train"):
            for cycle in (0,) if stage in ("setup", "engine") else (0, 2) if stage == "evaluate" else (1,):
                for session in range(dice.randrange(1, 3)):
                    made.append({
                        "run_id": run, "session": f"{session}", "cycle": cycle, "event": "stage", "stage": stage,
                        "seconds": dice.choice([0.0, dice.random()]), "detail": None, "at": START,
                    })  # fmt: skip
        made.append({**made[-1], "event": "finished", "stage": None, "seconds": None})
    return made


def run_rows() -> Rows:
    """Run `r`; of `s` the table does not know."""
    return [{
        "run_id": "r", "name": "r", "spec_hash": "h", "spec": "", "tasks_hash": "h", "code_version": "1",
        "versions": "{}", "host": "build-7", "started_at": START,
    }]  # fmt: skip


def write_lake(lake: Lake, seed: int) -> dict[str, Rows]:
    """Write a world of rows and give them back by table."""
    dice = random.Random(seed)
    rows = trajectories(dice)
    tables = {
        "trajectories": rows, "tasks": task_rows(), "policies": policy_rows(dice, rows), "checks": check_rows(dice),
        "events": event_rows(dice), "runs": run_rows(),
    }  # fmt: skip
    for table, written in tables.items():
        lake.append(table, written, app_id="test", version=0)
    return tables


def grouped(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], Rows]:
    """Rows by the values of some keys."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def asked(home: Place, view: str, keys: Iterable[str]) -> Expected:
    """All rows of a view by their key, which must be unique, without the key."""
    names = list(keys)
    rows = query(home, f"SELECT * FROM {view}").to_pylist()
    found = {tuple(row[name] for name in names): {k: v for k, v in row.items() if k not in names} for row in rows}
    assert len(found) == len(rows)
    return found


def same(found: Expected, expected: Expected) -> None:
    """Equal keys and columns; numbers equal but for rounding."""
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key].keys() == row.keys()
        for name, value in row.items():
            wanted = pytest.approx(value, rel=1e-9, abs=1e-11) if isinstance(value, float) else value
            assert found[key][name] == wanted, (key, name)
