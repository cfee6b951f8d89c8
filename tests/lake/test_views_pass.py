"""pass@k and pass^k with their intervals, against counting subsets, scipy, root finding and simulation."""

import itertools
import random
import statistics
from collections import defaultdict
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binomtest, norm

from tests.builders import trajectory_row
from tests.lake.view_rows import Rows, asked, digest, same, write_lake
from transforms.lake.sql import query
from transforms.lake.table import Lake

KEY = ("run_id", "cycle", "purpose", "policy_version")
KS = (1, 2, 4, 8)
Z = float(norm.ppf(0.975))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, dict[str, Rows]]:
    lake = Lake(tmp_path_factory.mktemp("pass"))
    return lake, write_lake(lake, seed=11)


def counted(rows: Rows) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """(episodes, scored, passed) by KEY and task."""
    groups = defaultdict(list)
    for row in rows:
        if row["final"] and not row["impossible"]:
            groups[(*(row[key] for key in KEY), row["task_id"], row["task_hash"])].append(row)
    found = {}
    for key, group in groups.items():
        scored = [row for row in group if row["reward"] is not None and not row["quarantine_reasons"]]
        found[key] = len(group), len(scored), sum(row["outcome"] == "passed" for row in scored)
    return found


def wilson(passed: int, scored: int) -> tuple[float, float]:
    found = binomtest(passed, scored).proportion_ci(0.95, "wilson")
    return found.low, found.high


def score_interval(mean: float, tasks: int) -> tuple[float, float]:
    """Means mu with |mean - mu| <= z sqrt(mu (1 - mu) / tasks), by root finding."""

    def excess(mu: float) -> float:
        return (mean - mu) ** 2 - Z**2 * mu * (1 - mu) / tasks

    return (
        0.0 if mean == 0 else float(brentq(excess, 0, min(mean, 1 - 1e-9), xtol=1e-14)),
        1.0 if mean == 1 else float(brentq(excess, max(mean, 1e-9), 1, xtol=1e-14)),
    )


def expected_by_task(rows: Rows) -> dict[tuple[Any, ...], dict[str, Any]]:
    expected = {}
    for key, (episodes, n, c) in counted(rows).items():
        for k in KS:
            if k > n and k > 1:
                continue
            row: dict[str, Any] = dict.fromkeys(("pass_at_k", "pass_at_k_low", "pass_at_k_high"))
            row |= dict.fromkeys(("pass_hat_k", "pass_hat_k_low", "pass_hat_k_high"))
            if n:
                low, high = wilson(c, n)
                some, every = 1 - Fraction(comb(n - c, k), comb(n, k)), Fraction(comb(c, k), comb(n, k))
                row = {
                    "pass_at_k": float(some),
                    "pass_at_k_low": min(float(some), 1 - (1 - low) ** k),
                    "pass_at_k_high": max(float(some), 1 - (1 - high) ** k),
                    "pass_hat_k": float(every),
                    "pass_hat_k_low": min(float(every), low**k),
                    "pass_hat_k_high": max(float(every), high**k),
                }
            expected[(*key, k)] = {"episodes": episodes, "scored": n, "passed": c, **row}
    return expected


def test_by_task(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    expected = expected_by_task(tables["trajectories"])
    assert {row["scored"] for row in expected.values()} >= {0, 1, 2, 4}
    assert len(expected) > 60
    same(asked(lake.home, "pass_at_k_by_task", [*KEY, "task_id", "task_hash", "k"]), expected)


def every_count(lake: Lake) -> None:
    """Tasks with every (scored, passed) up to 10 answers."""
    rows = [
        trajectory_row(
            trajectory_id=f"{n}/{c}/{i}", task_id=f"{n}/{c}", task_hash=digest(f"{n}/{c}"),
            outcome="passed" if i < c else "failed_tests", reward=float(i < c),
        )
        for n in range(1, 11) for c in range(n + 1) for i in range(n)
    ]  # fmt: skip
    lake.append("trajectories", rows, app_id="r", version=0)


def test_the_estimate_is_the_share_of_subsets_and_lies_in_its_interval(lake: Lake):
    every_count(lake)
    found = query(lake.home, "SELECT * FROM pass_at_k_by_task").to_pylist()
    assert len(found) == sum(n + 1 for n in range(1, 11) for k in KS if k <= n)
    for row in found:
        n, c, k = row["scored"], row["passed"], row["k"]
        drawn = [sum(one) for one in itertools.combinations([1] * c + [0] * (n - c), k)]
        assert row["pass_at_k"] == pytest.approx(statistics.fmean(passed > 0 for passed in drawn), abs=1e-12)
        assert row["pass_hat_k"] == pytest.approx(statistics.fmean(passed == k for passed in drawn), abs=1e-12)
        for name in ("pass_at_k", "pass_hat_k"):
            assert 0 <= row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] <= 1


@pytest.mark.parametrize("by_domain", [False, True])
def test_over_tasks(world: tuple[Lake, dict[str, Rows]], by_domain: bool):
    lake, tables = world
    domains = {row["task_hash"]: (row["source"], row["kind"], row["language"]) for row in tables["tasks"]}
    groups = defaultdict(list)
    names = defaultdict(set)
    for (*key, _, task_hash, k), row in expected_by_task(tables["trajectories"]).items():
        place = (*key, *(domains.get(task_hash, (None, None, None)) if by_domain else ()))
        names[place].add(task_hash)
        groups[(*place, k)].append(row)
    expected = {}
    for place, rows in groups.items():
        estimates = {name: [r[name] for r in rows if r[name] is not None] for name in ("pass_at_k", "pass_hat_k")}
        tasks = len(estimates["pass_at_k"])
        row: dict[str, Any] = {"tasks": tasks, "tasks_asked": len(names[place[:-1]])}
        for name, values in estimates.items():
            mean = statistics.fmean(values) if values else None
            low, high = score_interval(mean, tasks) if mean is not None else (None, None)
            row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        expected[place] = row
    view, keys = ("pass_at_k_by_domain", ("source", "kind", "language")) if by_domain else ("pass_at_k", ())
    assert any(row["tasks"] < row["tasks_asked"] for row in expected.values())
    same(asked(lake.home, view, [*KEY, *keys, "k"]), expected)


def test_all_infra_is_no_number_and_no_zero(lake: Lake):
    lost = {"outcome": "sandbox_lost", "outcome_class": "infra", "reward": None}
    rows = [trajectory_row(trajectory_id=f"{i}", sample=i, **lost) for i in range(8)]
    lake.append("trajectories", rows, app_id="r", version=0)
    for view, counts in {
        "pass_at_k_by_task": {"episodes": 8, "scored": 0, "passed": 0},
        "pass_at_k": {"tasks": 0, "tasks_asked": 1},
        "pass_at_k_by_domain": {"tasks": 0, "tasks_asked": 1},
    }.items():
        (row,) = query(lake.home, f"SELECT * FROM {view}").to_pylist()
        assert {name: row[name] for name in counts} == counts
        assert (row["k"], [row[name] for name in row if name.startswith("pass_")]) == (1, [None] * 6)


def test_one_passed_answer(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    (row,) = query(lake.home, "SELECT * FROM pass_at_k").to_pylist()
    # Wilson at 1 of 1: 1 / (1 + z^2) = 1 / 4.841459 .. 1
    assert (row["k"], row["pass_at_k"], row["pass_at_k_high"]) == (1, 1.0, 1.0)
    assert row["pass_at_k_low"] == pytest.approx(0.206549, abs=1e-6)


def test_intervals_over_tasks_hold_their_level(lake: Lake):
    """500 evaluations of 8 new tasks, 4 answers each, of hard tasks: 95 % intervals must hold the true mean in 95 %.

    The normal interval over tasks, the control, does not.
    """
    dice = np.random.default_rng(5)
    spread = (0.2, 1.2)
    rates = dice.beta(*spread, size=(500, 8))
    passed = dice.random((500, 8, 4)) < rates[..., None]
    rows = [
        trajectory_row(
            trajectory_id=f"{e}/{t}/{i}", policy_version=e, task_id=f"{t}", task_hash=f"{t}", tests=[], steps=[],
            turns=[], messages=[], reward=float(passed[e, t, i]),
            outcome="passed" if passed[e, t, i] else "failed_tests",
        )
        for e, t, i in itertools.product(range(500), range(8), range(4))
    ]  # fmt: skip
    lake.append("trajectories", rows, app_id="r", version=0)
    found = query(lake.home, "SELECT * FROM pass_at_k ORDER BY k, policy_version").to_pylist()
    for k in (1, 2, 4):
        truth = float(beta(*spread).expect(lambda p, k=k: 1 - (1 - p) ** k))
        held = [row["pass_at_k_low"] <= truth <= row["pass_at_k_high"] for row in found if row["k"] == k]
        assert len(held) == 500
        assert statistics.fmean(held) >= 0.93  # 0.95 less two standard errors of 500 draws
    means = passed.mean(axis=2)
    half = Z * means.std(axis=1, ddof=1) / np.sqrt(8)
    truth = float(beta(*spread).mean())
    assert np.mean(np.abs(means.mean(axis=1) - truth) <= half) < 0.88


def test_a_task_with_other_content_is_another_task(lake: Lake):
    dice = random.Random(3)
    rows = [
        trajectory_row(trajectory_id=f"{i}", task_hash=digest(f"{i % 2}"), reward=1.0, sample=dice.randrange(9))
        for i in range(6)
    ]
    lake.append("trajectories", rows, app_id="r", version=0)
    found = query(lake.home, "SELECT k, scored FROM pass_at_k_by_task ORDER BY k").to_pylist()
    assert found == [{"k": 1, "scored": 3}] * 2 + [{"k": 2, "scored": 3}] * 2
