"""What the gate knows of a run beyond one cycle's rows, and how far that cycle is from what was before."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from transforms.lake.sql import literal, query
from transforms.lake.storage import Place
from transforms.quality.rules import Row


@dataclass(frozen=True, slots=True)
class Past:
    """What the lake holds beside a cycle's rows."""

    group_rewards: tuple[float, ...] = ()
    """Mean reward of each group of the run's earlier cycles, 0 .. 1."""
    mean_tokens: float | None = None
    """Mean completion of the run's earlier cycles in tokens; None without one."""
    evaluated: frozenset[str] = frozenset()
    """Hashes of tasks that ask, word for word, what the run's evaluation asks."""
    repeated: frozenset[str] = frozenset()
    """Trajectory ids that the run's rows have more than once."""


@dataclass(frozen=True, slots=True)
class Total:
    """A measure of a whole cycle, and what stands behind it."""

    value: float
    detail: str | None


def past_of(home: Place, run_id: str, cycle: int) -> Past:
    """Read it from the tables. Raises QueryError, TableTooNew, TableTooOld, StoreFailed."""
    run = literal(run_id)
    before = f"FROM trajectories WHERE run_id = {run} AND cycle < {cycle} AND purpose = 'train' AND final"
    rewards = query(
        home,
        f"SELECT avg(reward) AS mean {before} AND reward IS NOT NULL AND cardinality(quarantine_reasons) = 0 "
        "GROUP BY cycle, group_id",
    )
    tokens = query(home, f"SELECT avg(completion_tokens) AS mean {before}").to_pylist()
    evaluated = query(
        home,
        "SELECT DISTINCT t.task_hash FROM tasks AS t JOIN tasks AS e ON e.prompt = t.prompt JOIN trajectories AS r "
        f"ON r.task_hash = e.task_hash WHERE r.run_id = {run} AND r.purpose <> 'train'",
    )
    repeated = query(
        home, f"SELECT trajectory_id FROM trajectories WHERE run_id = {run} GROUP BY trajectory_id HAVING count(*) > 1"
    )
    return Past(
        tuple(rewards["mean"].to_pylist()),
        tokens[0]["mean"] if tokens else None,
        frozenset(evaluated["task_hash"].to_pylist()),
        frozenset(repeated["trajectory_id"].to_pylist()),
    )


def reward_drift(rows: Sequence[Row], past: Past) -> Total:
    """Difference of the mean reward from that before, in standard errors; 0 where either side has under two groups.

    The units are the means of groups, since members of a group share a task.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["reward"] is not None and not row["quarantine_reasons"]:
            groups[row["group_id"]].append(row["reward"])
    now, before = [statistics.fmean(rewards) for rewards in groups.values()], past.group_rewards
    if min(len(now), len(before)) < 2:
        return Total(0.0, None)
    means = statistics.fmean(now), statistics.fmean(before)
    error = math.sqrt(statistics.variance(now) / len(now) + statistics.variance(before) / len(before))
    # Rewards that never vary have no error; the smallest that can be told keeps the value finite.
    drift = abs(means[0] - means[1]) / max(error, 1e-6)
    return Total(drift, f"mean {means[0]:.4g} of {len(now)} groups, before {means[1]:.4g} of {len(before)}")


def length_drift(rows: Sequence[Row], past: Past) -> Total:
    """How many times longer or shorter the mean completion is than before; 1 where there is nothing to compare."""
    lengths = [row["completion_tokens"] for row in rows if row["completion_tokens"]]
    if not lengths or not past.mean_tokens:
        return Total(1.0, None)
    mean = statistics.fmean(lengths)
    ratio = max(mean / past.mean_tokens, past.mean_tokens / mean)
    return Total(ratio, f"mean {mean:.4g} tokens, before {past.mean_tokens:.4g}")
