"""Talking to sandboxes of plain processes, and seeing what the host has of them."""

import ast
import asyncio
import contextlib
import os
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandboxes.backends.confined import Confined
from sandboxes.backends.confined_host import can_change_users
from sandboxes.host.seccomp import filter_program
from sandboxes.inside.confine import abi
from sandboxes.limits import Limits
from sandboxes.protocol import Command, Result, Sandbox, SandboxLost, SandboxRequest

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(wall_time_s=8, cpu_time_s=8, memory_mib=256, processes=24, disk_mib=4, inodes=200, file_mib=3)
CAPS = b'print(*[line.split()[1] for line in open("/proc/self/status") if line[:6] in ("CapInh", "CapPrm", "CapEff")])'
Check = Callable[[Sandbox], Awaitable[object]]

needs_landlock = pytest.mark.skipif(
    abi() < 6 or filter_program() is None, reason="needs Landlock 6 and a machine whose system calls are known"
)
needs_root = pytest.mark.skipif(not can_change_users(), reason="tests the users that only root can give out")


async def python(sandbox: Sandbox, source: str, *arguments: object) -> Result:
    return await sandbox.exec(Command(("python3", "-c", textwrap.dedent(source), *map(str, arguments))))


async def ask(sandbox: Sandbox, source: str, *arguments: object) -> object:
    """Run Python; what it left in `answer`."""
    result = await python(sandbox, textwrap.dedent(source) + "\nprint(ascii(answer))", *arguments)
    assert result.exit_code == 0, result
    return ast.literal_eval(result.stdout.decode())


def inside(check: Check, *, cgroups: bool = True, **request: object) -> object:
    """Let a check talk to a sandbox, which is destroyed at the end."""

    async def go() -> object:
        made = SandboxRequest(**{"limits": LIMITS, "files": {"caps.py": CAPS}, **request})  # ty: ignore
        sandbox = await Confined(cgroups=cgroups).create(made)
        try:
            return await check(sandbox)
        finally:
            with contextlib.suppress(SandboxLost):
                await sandbox.destroy()

    return asyncio.run(go())


def processes(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def gone(what: Callable[[], object], *, seconds: float = 2.0) -> bool:
    deadline = time.monotonic() + seconds
    while what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not what()
