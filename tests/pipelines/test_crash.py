"""kill -9 at any moment, then the same command again: the run ends as if nothing had happened.

The engine is the repeatable one (transformers, seeded), so a killed and resumed run must end with the very rows, ledger
and weights of one that was never interrupted.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny_model import make_tiny_model
from transforms.lake.sql import query
from transforms.sources.jsonl import read_tasks

SPEC = """
name: crash
engine: {{kind: transformers, dtype: float32, max_model_len: 64}}
policy: {{model: {material}/model}}
tasks: {{train: {material}/tasks.jsonl, heldout: {material}/tasks.jsonl}}
sampling: {{max_tokens: 1, stop: []}}
quality: {{max_truncation_rate: 1.0, max_duplicate_rate: 1.0}}
training: {{dtype: float32, lr: 1e-3, groups_per_step: 2}}
cycles: {{count: 2, group_size: 4, groups_per_chunk: 2}}
evaluation: {{samples: 2}}
paths: {{home: {home}}}
"""
EPISODES = 2 * 2 * (2 + 1) + 2 * 3 * 4
"""Before and after: 2 held-out tasks, 2 sampled and 1 greedy answer; 2 cycles of 3 tasks and 4 answers."""
EVERYTHING = {
    "trajectories": "SELECT episode_id, attempt, final, turns, outcome, reward, quarantine_reasons "
    "FROM trajectories ORDER BY 1, 2",
    "policies": "SELECT policy_version, weights_hash, batch_hash, consumed FROM policies ORDER BY 1",
    "checks": "SELECT cycle, chunk, suite, expectation, success, observed FROM checks "
    "ORDER BY cycle, chunk, suite, expectation",
    "tasks": "SELECT task_id, task_hash, gold_outcome FROM tasks ORDER BY 1",
    "runs": "SELECT run_id, spec_hash, tasks_hash FROM runs",
}  # fmt: skip
"""What must not depend on interruptions: all but times, sessions and measurements."""


def program(body: str) -> str:
    """One token that is a whole answer (the tokenizer splits on spaces, so it holds none)."""
    return f"```python\ndef\tf(x):\n\treturn\t{body}\n```"


@dataclass
class Driver:
    """The crash server: runs the driver in a fresh process each time."""

    server: subprocess.Popen[str]
    material: Path

    def run(self, home: Path, *, die_at: int | None = None, after_s: float | None = None) -> int:
        spec = home.with_suffix(".yaml")
        spec.write_text(SPEC.format(material=self.material, home=home))
        command = {
            "spec": str(spec), "die_at": die_at, "after_s": after_s, "log": str(home.with_suffix(".log")),
            "names": str(home.with_suffix(".names")),
        }  # fmt: skip
        home.with_suffix(".names").write_text("")
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(command) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())["code"]

    def finish(self, home: Path) -> None:
        assert self.run(home) == 0, home.with_suffix(".log").read_text()[-3000:]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    material = tmp_path_factory.mktemp("material")
    make_tiny_model(material / "model", [program(body) for body in ("x", "-x", "x+1", "x*2", "0", "x*x", "y")])
    tasks = [
        {
            "task_id": name, "prompt": f"w{name}", "entry_point": "f", "split": split,
            "gold": f"def f(x):\n return {body}",
            "cases": [{"args": [x], "expected": value} for x, value in cases],
        }
        for name, split, body, cases in (
            ("same", "train", "x", [(3, 3), (-2, -2)]),
            ("double", "train", "x*2", [(3, 6), (-2, -4)]),
            ("even", "train", "x*x*0", [(3, 0), (7, 0)]),
            ("negate", "heldout", "-x", [(3, -3), (0, 0)]),
            ("square", "heldout", "x*x", [(3, 9), (5, 25)]),
        )
    ]  # fmt: skip
    (material / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    assert len(read_tasks(material / "tasks.jsonl")) == 5
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crash_server.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    yield Driver(server, material)
    assert server.stdin
    server.stdin.close()
    server.wait(timeout=30)


@pytest.fixture(scope="module")
def reference(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """A run that nothing interrupted."""
    home = tmp_path_factory.mktemp("crash") / "whole"
    driver.finish(home)
    whole = contents(home)
    whole["boundaries"] = [{"name": name} for name in home.with_suffix(".names").read_text().splitlines()]
    return whole


def contents(home: Path) -> dict[str, list[dict[str, object]]]:
    return {name: query(home, sql).to_pylist() for name, sql in EVERYTHING.items()}


def test_an_uninterrupted_run_is_what_the_plan_says(reference: dict[str, list[dict[str, object]]]):
    assert len(reference["trajectories"]) == EPISODES
    assert [row["policy_version"] for row in reference["policies"]] == [0, 1, 2]
    assert len({row["weights_hash"] for row in reference["policies"]}) == 3
    rewards = {row["reward"] for row in reference["trajectories"]}
    assert rewards == {0.0, 1.0}
    assert all(row["quarantine_reasons"] == [] for row in reference["trajectories"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_every_boundary_of_a_cycle(driver: Driver, reference: dict, tmp_path: Path):
    names = [boundary["name"] for boundary in reference["boundaries"]]
    # From the first checkpoint of the run to the end of the next: every kind of boundary, each once at least.
    first = names.index("before cut_batch")
    last = names.index("before cut_batch", first + 1)
    chosen = [*range(1, 8), *range(first, last + 1), len(names)]
    for number in chosen:
        home = tmp_path / f"at-{number}"
        assert driver.run(home, die_at=number) == -9, names[number - 1]
        driver.finish(home)
        assert contents(home) == {k: v for k, v in reference.items() if k != "boundaries"}, names[number - 1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_moments_again_and_again(driver: Driver, reference: dict, tmp_path: Path):
    dice = random.Random(20261130)
    for round_number in range(4):
        home = tmp_path / f"random-{round_number}"
        kills = sum(driver.run(home, after_s=dice.uniform(0.5, 6)) == -9 for _ in range(3))
        driver.finish(home)
        assert contents(home) == {k: v for k, v in reference.items() if k != "boundaries"}, f"after {kills} kills"
