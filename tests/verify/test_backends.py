# ruff: noqa: E501 - one program a line
"""One task gives one result in each back-end that runs here."""

import asyncio
from pathlib import Path

import pytest

from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.sandboxes.conformance.backends import Backend, find, names, required
from transforms.sources.builtin import load_tasks
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=2, memory_mib=192, processes=24, output_kib=64, file_mib=4, disk_mib=8)
TASK = Task("t", "write f", Call("f", tuple(Case(f"case {i}", (i,), i + 1) for i in range(3))))
PROGRAMS = {
    "plain": ("def f(x): return x + 1", ["passed"] * 3),
    "child process": ("import subprocess\ndef f(x): return x + int(subprocess.run(['echo', '1'], capture_output=True).stdout)", ["passed"] * 3),
    "temp file": ("import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as t:\n        t.write(b'1'); t.seek(0)\n        return x + int(t.read())", ["passed"] * 3),
    "daemon left": ("import os, time\ndef f(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(60)\n        os._exit(0)\n    return x + 1", ["passed"] * 3),
    "state in files": ("import os\ndef f(x):\n    n = len(os.listdir('.'))\n    open(f'seen{x}', 'w').close()\n    return x + 1 if n == 0 else n", ["passed"] * 3),
    "state in times": ("import os\ndef f(x):\n    if os.stat('.').st_mtime == 5: return 0\n    os.utime('.', (5, 5))\n    return x + 1", ["passed"] * 3),
    "state in modes": ("import os\ndef f(x):\n    if os.stat('.').st_mode & 1 == 0: return 0\n    os.chmod('.', 0o700)\n    return x + 1", ["passed"] * 3),
    "state in limits": ("import os, resource\ndef f(x):\n    try: resource.prlimit(os.getppid(), resource.RLIMIT_MSGQUEUE, (x, x))\n    except PermissionError: return x + 1", ["passed"] * 3),
    "state in priorities": ("import os\ndef f(x):\n    try: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)\n    except PermissionError: return x + 1", ["passed"] * 3),
    "wrong": ("def f(x): return x + 2", ["failed_tests"] * 3),
    "wrong type": ("def f(x): return float(x + 1)", ["failed_tests"] * 3),
    "raises": ("def f(x): return 1 // (x - 1)", ["failed_tests", "runtime_error", "failed_tests"]),
    "syntax": ("def f(x) return x", ["syntax_error"] * 3),
    "exits at once": ("import os\ndef f(x): os._exit(0)", ["runtime_error"] * 3),
    "crash": ("import ctypes\ndef f(x): return ctypes.string_at(0)", ["runtime_error"] * 3),
    "loop": ("def f(x):\n    while x == 1: pass\n    return x + 1", ["passed", "time_limit", "passed"]),
    "flood": ("def f(x):\n    while x == 1: print('y' * 1000)\n    return x + 1", ["passed", "output_limit", "passed"]),
    "hog": ("def f(x):\n    l = []\n    while x == 1: l.append(bytearray(1 << 20))\n    return x + 1", ["passed", "memory_limit", "passed"]),
    "big file": ("def f(x):\n    if x == 1: open('big', 'wb').write(bytes(6 << 20))\n    return x + 1", ["passed", "disk_limit", "passed"]),
}  # fmt: skip


@pytest.fixture(params=names())
def backend(request: pytest.FixtureRequest) -> Backend:
    found = find(request.param)
    if isinstance(found, str):
        (pytest.fail if request.param in required() else pytest.skip)(found)
    return found


def test_programs_get_the_same_outcomes(backend: Backend):
    async def go() -> dict[str, list[str]]:
        request = SandboxRequest(image=backend.image, limits=LIMITS)
        return {
            name: [
                str(result.outcome) for result in (await run_check(backend.provider, TASK, program, request)).results
            ]
            for name, (program, _) in PROGRAMS.items()
        }

    assert asyncio.run(go()) == {name: outcomes for name, (_, outcomes) in PROGRAMS.items()}


def test_the_golds_of_the_quickstart_pass(backend: Backend):
    tasks = load_tasks("builtin:quickstart", Path())[::4]

    async def go() -> list[list[str]]:
        request = SandboxRequest(image=backend.image)
        reports = [await run_check(backend.provider, task, task.gold or "", request) for task in tasks]
        return [[str(result.outcome) for result in report.results] for report in reports]

    assert asyncio.run(go()) == [["passed"] * len(task.cases) for task in tasks]
