"""A writer of commits that one fault befalls: runs in a process of its own, which the fault may kill."""

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.builders import trajectory_row
from transforms.lake import files, table
from transforms.lake.errors import StorageFailed
from transforms.lake.table import Lake

ROWS = 4
"""Rows of a commit, in two partitions."""
DONE, FULL = 0, 7
"""Exit codes: all commits made; the disk was full."""


@dataclass(frozen=True, slots=True)
class Work:
    """Commits 1 to `commits` under one application id."""

    home: Path
    app_id: str
    commits: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a writer, at its `at`-th event: see `KINDS`."""

    kind: str
    at: int


def row_id(app_id: str, version: int, number: int) -> str:
    """Names row `number` of a commit."""
    return f"{app_id}/{version}/{number}"


def rows(app_id: str, version: int) -> list[dict[str, object]]:
    """The rows of one commit."""
    return [
        trajectory_row(trajectory_id=row_id(app_id, version, number), cycle=number % 2, chunk=version)
        for number in range(ROWS)
    ]


def write(work: Work, fault: Fault | None) -> None:
    """Make the commits that are not there yet. Does not return: exits with DONE or FULL, or is killed."""
    if fault is not None:
        _arm(fault)
    lake = Lake(work.home)
    twice = fault is not None and fault.kind == "delivered twice"
    try:
        for version in range(1, work.commits + 1):
            for _ in range(2 if twice else 1):
                lake.append("trajectories", rows(work.app_id, version), app_id=work.app_id, version=version)
    except StorageFailed:
        os._exit(FULL)
    os._exit(DONE)


def _arm(fault: Fault) -> None:
    """Have the fault strike at the given event: each write of a file, commit and flush has one before and one after."""
    passed = 0

    def event(path: Path | None = None) -> None:
        nonlocal passed
        passed += 1
        if passed == fault.at:
            _strike(fault.kind, path)

    def around(place: Any, name: str, told: Callable[[tuple[Any, ...], Any], Path | None]) -> None:
        real = getattr(place, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            event()
            result = real(*given, **named)
            event(told(given, result))
            return result

        setattr(place, name, wrapped)

    around(files, "_write", lambda given, made: given[0] / made.path)
    around(table, "write_partitions", lambda given, made: given[0] / made[0].path)
    around(DeltaTable, "create_write_transaction", lambda given, made: None)
    around(Lake, "sync_log", lambda given, made: None)


def _strike(kind: str, path: Path | None) -> None:
    match kind:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "half a file":  # a power cut: the file is there, its end is not
            if path is not None:
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        case "disk full":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        case "clock back":
            real = time.time
            time.time = lambda: real() - 3600  # ty: ignore[invalid-assignment]
        case "slow":
            time.sleep(0.2)
        case "delivered twice":
            pass


KINDS = ("crash", "half a file", "disk full", "clock back", "slow", "delivered twice")
"""Faults of one writer. `disk full` lets it write 1,000 bytes a file from then on, the log's too."""
