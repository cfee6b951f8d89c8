"""Advantages: what each completion of a group earned beyond its siblings."""

import statistics
from collections.abc import Sequence

STD_TOLERANCE = 1e-6
"""Rewards whose standard deviation is not above this are equal but for rounding: they say nothing about which
completion is better."""
EPSILON = 1e-6
"""Added to the deviation before the division, as verl, SkyRL and NeMo-RL do."""


def group_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """GRPO: each reward less the group's mean, over the group's unbiased standard deviation (in float64).

    A reward of None (nobody's merit: infra, grader or task at fault) is outside the mean and the deviation, and gets
    None. With fewer than two rewards, or with all of them equal, the group gives no signal: None for every member.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return [None] * len(rewards)
    mean, std = statistics.fmean(scored), statistics.stdev(scored)
    if std <= STD_TOLERANCE:
        return [None] * len(rewards)
    return [None if reward is None else (reward - mean) / (std + EPSILON) for reward in rewards]
