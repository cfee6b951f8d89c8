"""A rate with its interval."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean of n numbers in 0 .. 1, and the interval that holds the true mean with 95 % confidence (Wilson's).

    Made for pass rates. For rewards between 0 and 1 it is conservative: none vary more than those that are 0 or 1.
    Answers to one task resemble each other, which the interval leaves out.
    """

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, total: float, n: int) -> "Rate | None":
        """From a sum over n numbers; None when n is 0."""
        if n == 0:
            return None
        z = 1.959963984540054
        mean = total / n
        centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(max(0.0, mean * (1 - mean) / n + z * z / (4 * n * n)))
        return cls(mean, max(0.0, centre - half), min(1.0, centre + half), n)

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"
