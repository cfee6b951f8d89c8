"""What the stages have done so far in this process, counted where it happens and read by whoever reports progress.

A stage refers to `TALLY` by its name in this module, so a pickled stage finds the same counters when it is unpickled in
this process. Runners that put their workers in other processes count there, and progress here stays at zero.
"""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Counts:
    """Running totals since the process started."""

    episodes: int = 0
    """Episodes answered by the engine, or given up."""
    tokens: int = 0
    """Tokens sampled."""
    graded: int = 0
    """Episodes with a final verdict."""
    scored: int = 0
    """Of those, episodes with a reward."""
    reward_sum: float = 0.0
    """Sum of their rewards."""
    steps: int = 0
    """Optimizer steps."""

    def since(self, earlier: "Counts") -> "Counts":
        """What was added after `earlier` was read."""
        return Counts(
            self.episodes - earlier.episodes,
            self.tokens - earlier.tokens,
            self.graded - earlier.graded,
            self.scored - earlier.scored,
            self.reward_sum - earlier.reward_sum,
            self.steps - earlier.steps,
        )


class Tally:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def add(
        self,
        *,
        episodes: int = 0,
        tokens: int = 0,
        graded: int = 0,
        scored: int = 0,
        reward_sum: float = 0.0,
        steps: int = 0,
    ) -> None:
        """Add to the totals."""
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                episodes=now.episodes + episodes,
                tokens=now.tokens + tokens,
                graded=now.graded + graded,
                scored=now.scored + scored,
                reward_sum=now.reward_sum + reward_sum,
                steps=now.steps + steps,
            )

    def snapshot(self) -> Counts:
        """The totals now."""
        return self._counts


TALLY = Tally()
"""The one tally of this process."""
