"""A circuit breaker: a host that keeps failing gets no work until a single probe on it succeeds."""

import collections
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a host counts as sick, and for how long it is left alone."""

    failures: int = 3
    """Failures in a row that open the breaker."""
    window: int = 20
    """Latest results looked at for the failure rate."""
    rate: float = 0.5
    """Part of `window` that opens the breaker when it failed."""
    pause_s: float = 5.0
    """Seconds until the first probe, jittered by half; twice as long after each probe that fails."""
    longest_pause_s: float = 300.0

    def __post_init__(self) -> None:
        if (
            self.failures < 1
            or self.window < 1
            or not 0 < self.rate <= 1
            or not 0 < self.pause_s <= self.longest_pause_s
        ):
            raise ValueError(f"no breaker can follow {self}")


class Breaker:
    """The state of one host. Pure: the time in seconds comes from the caller."""

    def __init__(self, rules: BreakerRules, rng: random.Random) -> None:
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self.probe_at = 0.0
        """When an open breaker lets a probe through, in seconds on the caller's clock."""
        self._rules = rules
        self._rng = rng
        self._pauses = 0
        self._in_a_row = 0
        self._recent: collections.deque[bool] = collections.deque(maxlen=rules.window)

    def record(self, now: float, *, ok: bool, probe: bool) -> None:
        """Take the result of one piece of work. Of what ends while the breaker is not closed, only the probe counts."""
        if self.state == "closed":
            self._recent.append(ok)
            self._in_a_row = 0 if ok else self._in_a_row + 1
            too_many = self._recent.count(False) >= self._rules.rate * self._rules.window
            if not ok and (too_many or self._in_a_row >= self._rules.failures):
                self._open(now)
        elif self.state == "half-open" and probe:
            if ok:
                self.state, self._pauses, self._in_a_row = "closed", 0, 0
                self._recent.clear()
            else:
                self._open(now)

    def let_probe(self, now: float) -> bool:
        """Become half-open if the pause is over; whether it did."""
        over = self.state == "open" and now >= self.probe_at
        if over:
            self.state = "half-open"
        return over

    def _open(self, now: float) -> None:
        # Jittered, so that hosts that fell ill together are not all probed at the same moment.
        pause = min(self._rules.longest_pause_s, self._rules.pause_s * 2 ** min(self._pauses, 60))
        self.state, self.probe_at = "open", now + pause * self._rng.uniform(0.5, 1.5)
        self._pauses += 1
