"""Forty seeded scenarios of crashes, half files, full disks, clocks set back, rivals, doubled deliveries and damage.

The long command, of a thousand: `python -m tests.benchmarks.lake_faults`.
"""

import pytest

from tests.faults.kit import processes, scenario


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_row_is_lost_doubled_or_half_visible():
    context = processes()
    names = [scenario(seed, context) for seed in range(40)]
    told = " ".join(names)
    for kind in ("crash", "half a file", "disk full", "clock back", "delivered twice", "2 writer(s)", "half of"):
        assert kind in told
