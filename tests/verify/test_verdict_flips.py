import asyncio

import pytest

from tests.benchmarks.verdict_flips import busy, flips, programs


@pytest.mark.slow
def test_no_verdict_changes_while_the_machine_is_busy():
    """`tests/benchmarks/verdict_flips.py` does the same 10,000 times."""
    chosen = programs()[:20]
    with busy(2):
        graded, differ = asyncio.run(flips(chosen, 2000, workers=3, seconds=30))
    assert differ == []
    assert graded > 3 * len(chosen)
