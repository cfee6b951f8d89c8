"""A few tasks and programs, and `headrace grade` run on them as its users run it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sandboxes.backends.walls import find_bwrap

HEADRACE = str(Path(sys.executable).with_name("headrace"))
TASKS = [
    {
        "task_id": name,
        "prompt": f"Write {name}(x).",
        "entry_point": name,
        "cases": [
            {"name": "seen", "args": [3], "expected": of_3, "tier": "visible"},
            {"name": "unseen", "args": [-4], "expected": of_minus_4},
        ],
    }
    for name, of_3, of_minus_4 in (("inc", 4, -3), ("double", 6, -8), ("negate", -3, 4))
]
RIGHT = {
    "inc": "def inc(x):\n    return x + 1\n",
    "double": "def double(x):\n    return x * 2\n",
    "negate": "def negate(x):\n    return -x\n",
}


SLEEPY = "import time\ndef inc(x):\n    time.sleep(0.4)\n    return x + 1\n"


def fill(folder: Path) -> Path:
    """Twelve programs of three tasks, one of them wrong, lines 3 and 4 slow."""
    write_lines(folder / "T.jsonl", TASKS)
    names = [name for name in RIGHT for _ in range(4)]
    programs = [{"task_id": name, "program": RIGHT[name] + f"# {number}\n"} for number, name in enumerate(names)]
    for slow in (2, 3):
        programs[slow]["program"] = SLEEPY + f"# {slow}\n"
    programs[7]["program"] = "def double(x):\n    return x\n"
    write_lines(folder / "P.jsonl", programs)
    return folder


def wait_for(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for text in lists for child in text.split()]
    return [each for child in children for each in (child, *descendants(child))]


def breakable(folder: Path) -> dict[str, str]:
    """An environment whose bubblewrap starts nothing more from when the folder has a file `down`."""
    script = folder / "bin" / "bwrap"
    script.parent.mkdir()
    broken = f'if [ -e {folder}/down ] && [ "$1" != --version ]; then echo "no room left, pid $$" >&2; exit 1; fi'
    script.write_text(f'#!/bin/sh\n{broken}\nexec {find_bwrap()} "$@"\n')
    script.chmod(0o755)
    return {"PATH": f"{script.parent}:{os.environ['PATH']}"}


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what differs from one run to the next."""
    tests = [{name: value for name, value in test.items() if name != "duration_s"} for test in row["tests"]]
    return {n: v for n, v in row.items() if n not in ("wall_s", "cpu_s", "peak_memory_bytes")} | {"tests": tests}


def command(*options: str, tasks: str = "T.jsonl") -> list[str]:
    return [HEADRACE, "grade", "--tasks", tasks, "--programs", "P.jsonl", "--out", "R.jsonl", *options]


def grade(
    folder: Path, *options: str, tasks: str = "T.jsonl", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Grade `P.jsonl` of a folder into its `R.jsonl`."""
    return subprocess.run(
        command(*options, tasks=tasks), cwd=folder, env={**os.environ, "COLUMNS": "120", **(env or {})},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
