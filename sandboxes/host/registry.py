"""Who has which sandbox open on this machine: one small file each, written at its start and removed at its end.

The files of one user lie in `$XDG_RUNTIME_DIR/headrace/live`, else in `headrace-<uid>/live` of the folder for temporary
files. A file's name carries its owner's identity, so that what a dead process left can be told from what a live one
uses. It is a list for people and for sweeps: nothing depends on it, and where it cannot be written there is none.
"""

import functools
import json
import os
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxes.host.owner import alive, identity


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox."""

    id: str
    backend: str
    image: str
    owner: str
    """Who asked for it: `SandboxRequest.owner`."""
    process: str
    """Identity of the process that made it: see `sandboxes.host.owner`."""
    created: float
    """Seconds since 1970."""

    @property
    def left_behind(self) -> bool:
        """Whether that process is dead."""
        return not alive(self.process)


def folder() -> Path:
    """Where this user's records are."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "headrace" if runtime else Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}"
    return own / "live"


def enter(sandbox: str, *, backend: str, image: str, owner: str) -> Path | None:
    """Write the record of a sandbox of this process; its path, or None where that cannot be done. Takes 0.05 ms.

    The first call of a process removes the records that dead processes left.
    """
    _sweep_once(os.getpid())
    process = identity()
    record = Record(sandbox, backend, image, owner[:500], process, time.time())
    path = folder() / f"{process}.{sandbox.replace('/', '_')}.json"
    try:
        if not _is_ours(path.parent):
            return None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(asdict(record)).encode())
        finally:
            os.close(fd)
    except OSError:  # a full disk or a read-only one is no reason to have no sandbox
        return None
    return path


def leave(path: Path | None) -> None:
    """Remove a record."""
    if path is not None:
        with suppress(OSError):
            path.unlink()


def live() -> list[Record]:
    """The records of this user, oldest first; those whose process is dead too."""
    records = [record for path in folder().glob("*.json") if (record := _read(path)) is not None]
    return sorted(records, key=lambda record: record.created)


def sweep(*, dry_run: bool = False) -> list[Path]:
    """Remove the records whose process is dead, or with `dry_run` only find them; returns their paths."""
    dead = [path for path in folder().glob("*.json") if not alive(path.name.partition(".")[0])]
    for path in dead if not dry_run else ():
        leave(path)
    return dead


@functools.cache
def _sweep_once(_pid: int) -> None:  # by pid, as a fork is another process
    sweep()


def _read(path: Path) -> Record | None:
    """What a file says; None for one that is gone, is just being written, or was cut by a kill."""
    try:
        return Record(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _is_ours(place: Path) -> bool:
    """Whether the folder belongs to us alone; it is made if it is missing. Raises OSError."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        for each in (place.parent, place):
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
        found = place.lstat()
    # In a folder that everybody can write to, somebody else may have been quicker.
    outer = place.parent.lstat()
    return all(stat.S_ISDIR(each.st_mode) and each.st_uid == os.geteuid() for each in (found, outer))
