"""A few tasks and programs, and `headrace grade` run on them as its users run it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
