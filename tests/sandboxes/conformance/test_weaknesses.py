"""The table of known weaknesses names checks that there are; that they fail is what their marks say."""

import re
from pathlib import Path

from tests.sandboxes.conformance.weaknesses import WEAKNESSES


def test_every_weakness_is_of_a_check_that_there_is():
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    checks = {name for source in sources for name in re.findall(r"def (test_\w+)\(backend: ", source)}
    assert len(checks) >= 60
    assert {check.partition("[")[0] for _, check in WEAKNESSES} <= checks
    assert all(WEAKNESSES.values())
