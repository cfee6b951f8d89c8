"""Running Python in a bubblewrap sandbox, with control groups and without."""

import asyncio
import os
import sys

import pytest

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.cgroup import find_hierarchy
from sandboxes.limits import MIB, Limits
from sandboxes.protocol import Usage

PYTHON = [os.path.realpath(sys.executable), "-I", "-S", "-E"]
LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=128, processes=24, output_kib=64, file_mib=8)
SEND = "import os\ndef send(b): os.write(3, len(b).to_bytes(4, 'big') + b)\n"

needs_cgroups = pytest.mark.skipif(find_hierarchy() is None, reason="no writable control groups on this machine")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="tests what root's sandboxes keep closed")


@pytest.fixture(params=["cgroups", "rlimits"])
def sandbox(request: pytest.FixtureRequest) -> Bubblewrap:
    if request.param == "cgroups" and find_hierarchy() is None:
        pytest.skip("no writable control groups on this machine")
    return Bubblewrap(cgroups=request.param == "cgroups")


def run(
    source: str, sandbox: Bubblewrap | None = None, *, limits: Limits = LIMITS, timeout_s: float = 10.0
) -> tuple[bytes | None, Usage]:
    """Run Python source in a sandbox; its first frame, and what it used."""

    async def go() -> tuple[bytes | None, Usage]:
        files = {"main.py": (SEND + source).encode()}
        async with await (sandbox or Bubblewrap()).open(
            [*PYTHON, "/job/main.py"], files=files, limits=limits
        ) as session:
            frame = await session.receive(timeout_s=timeout_s, max_bytes=MIB)
            return frame, await session.close()

    return asyncio.run(go())


def ask(expression: str, sandbox: Bubblewrap | None = None) -> object:
    """Evaluate an expression inside; an exception comes back as its type's name."""
    source = f"try: r = eval({expression!r})\nexcept BaseException as e: r = type(e).__name__\nsend(repr(r).encode())"
    frame, usage = run(source, sandbox)
    assert frame is not None, usage
    return eval(frame.decode())
