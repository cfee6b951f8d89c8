"""kill -9 at any moment, then the same command again: the run ends as if nothing had happened.

The engine is the repeatable one (transformers, seeded), so a killed and resumed run must end with the very rows, ledger
and weights of one that was never interrupted. As each runs in a folder of its own, this also shows that the same spec
gives the same training batches.
"""

import random
import signal
from pathlib import Path

import pytest

from tests.pipelines.conftest import EPISODES, Driver
from transforms.lake.sql import query

Contents = dict[str, list[dict[str, object]]]
Whole = tuple[Contents, list[str]]
EVERYTHING = {
    "trajectories": "SELECT episode_id, attempt, final, turns, outcome, reward, quarantine_reasons, "
    "image, image_digest FROM trajectories ORDER BY 1, 2",
    "policies": "SELECT policy_version, weights_hash, batch_hash, optimizer_steps[1]['loss'] AS loss, consumed "
    "FROM policies ORDER BY 1",
    "checks": "SELECT cycle, chunk, suite, expectation, success, observed FROM checks "
    "ORDER BY cycle, chunk, suite, expectation",
    "tasks": "SELECT task_id, task_hash, gold_outcome FROM tasks ORDER BY 1",
    "runs": "SELECT run_id, spec_hash, tasks_hash FROM runs",
    "images": "SELECT name, digest, builder, languages FROM images",
}
"""What must not depend on interruptions: all but times, sessions and measurements."""

STAGE_BOUNDARIES = [
    "commit images", "admit", "commit runs", "resolve_base_model", "run_chunk", "commit trajectories", "commit checks",
    "check_cycle", "cut_batch", "train", "_on_step", "save", "commit policies", "prune",
]  # fmt: skip


def contents(home: Path) -> Contents:
    return {name: query(home, sql).to_pylist() for name, sql in EVERYTHING.items()}


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that nothing interrupted, and the boundaries it passed."""
    home = tmp_path_factory.mktemp("crash") / "whole"
    driver.finish(home)
    return contents(home), driver.boundaries(home)


def test_an_uninterrupted_run_is_what_the_plan_says(whole: Whole):
    found, _ = whole
    assert len(found["trajectories"]) == EPISODES
    assert [row["policy_version"] for row in found["policies"]] == [0, 1, 2]
    assert len({row["weights_hash"] for row in found["policies"]}) == 3
    assert {row["reward"] for row in found["trajectories"]} == {0.0, 1.0}
    assert all(row["quarantine_reasons"] == [] for row in found["trajectories"])
    (image,) = found["images"]
    used = {(row["image"], row["image_digest"]) for row in found["trajectories"]}
    assert used == {("host", image["digest"]), (None, None)}  # an answer without a program ran nowhere


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("where", STAGE_BOUNDARIES)
@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_at_a_stage_boundary(where: str, side: str, driver: Driver, whole: Whole, tmp_path: Path):
    reference, names = whole
    # The last time it is passed, so that there is as much as can be to lose or to repeat.
    number = max(i for i, name in enumerate(names, start=1) if name == f"{side} {where}")
    assert driver.run(tmp_path / "home", at=number) == -signal.SIGKILL
    driver.finish(tmp_path / "home")
    assert contents(tmp_path / "home") == reference


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_moments_again_and_again(driver: Driver, whole: Whole, tmp_path: Path):
    reference, names = whole
    dice = random.Random(20261130)
    for round_number in range(3):
        home = tmp_path / f"random-{round_number}"
        for _ in range(3):
            driver.run(home, at=dice.randrange(1, len(names)))
        driver.run(home, kill_after_s=dice.uniform(0.2, 3))
        driver.finish(home)
        assert contents(home) == reference


def test_a_resumed_run_outlives_the_checkpoint_it_resumed_from(driver: Driver, tmp_path: Path):
    changed = {
        "cycles": "{count: 4, group_size: 4, groups_per_chunk: 3}",
        "training": "{dtype: float32, lr: 1e-3, groups_per_step: 2, keep_checkpoints: 1}",
    }
    for name in ("whole", "home"):
        driver.write_spec(tmp_path / name, **changed)
    driver.finish(tmp_path / "whole")
    number = driver.boundaries(tmp_path / "whole").index("after prune") + 1
    assert driver.run(tmp_path / "home", at=number) == -signal.SIGKILL
    driver.finish(tmp_path / "home")
    assert contents(tmp_path / "home") == contents(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "home").glob("policies/*/*")] == ["policy-00004"]
