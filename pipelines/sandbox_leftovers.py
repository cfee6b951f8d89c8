"""What sandboxes there are on this machine, and what dead processes left of theirs."""

import fcntl
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.backends import confined_host
from sandboxes.backends.confined_host import bury, folders_place
from sandboxes.host import registry
from sandboxes.host.cgroup import Cgroup, left_behind, look_for_hierarchy
from sandboxes.host.owner import pid_of
from sandboxes.images.catalog import cache_folder, images_folder
from sandboxes.protocol import ProvisionFailed

if TYPE_CHECKING:
    from docker import DockerClient

SNAPSHOT_KEPT_S = 24 * 3600.0
"""Seconds after its last use that an unpacked snapshot is kept."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One sandbox, as `headrace sandbox list` shows it."""

    id: str
    backend: str
    image: str
    owner: str
    age_s: float | None
    """Seconds since it was made."""
    pid: int | None
    """Process that made it."""
    state: str
    """`live`, or `left behind` by a dead process."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that a dead process left."""

    kind: str
    name: str
    remove: Callable[[], object]
    """Raises OSError, or an engine's own errors, which are OSErrors too."""


def seen_sandboxes() -> list[Seen]:
    """Every sandbox of this user, and every container of ours that an engine has; oldest first."""
    records, now = registry.live(), time.time()
    seen = [
        Seen(
            id=record.id,
            backend=record.backend,
            image=record.image,
            owner=record.owner,
            age_s=max(0.0, now - record.created),
            pid=pid_of(record.process),
            state="left behind" if record.left_behind else "live",
        )
        for record in records
    ]
    known = {record.id for record in records}
    client = engine_client()
    if client is not None:
        from sandboxes.backends.container_engine import list_containers

        seen += [
            Seen(
                id=each.name,
                backend="container",
                image=each.image,
                owner=each.owner,
                age_s=max(0.0, now - each.created),
                pid=pid_of(each.process),
                state="left behind" if each.orphan else "live",
            )
            for each in list_containers(client)
            if each.name not in known
        ]
    return sorted(seen, key=lambda each: -(each.age_s or 0.0))


def find_leftovers() -> list[Leftover]:
    """Everything that can be removed, because whoever used it is dead or has not used it for a day."""
    return [*_records(), *_groups(), *_containers(), *_folders(), *_builds(), *_snapshots()]


def engine_client() -> "DockerClient | None":
    """A client of the Docker engine, which has removed nothing yet; None where no engine answers."""
    from sandboxes.backends.container_engine import reach

    try:
        return reach(None)
    except ProvisionFailed:
        return None


def _records() -> list[Leftover]:
    return [Leftover("record", path.name, path.unlink) for path in registry.sweep(dry_run=True)]


def _groups() -> list[Leftover]:
    hierarchy = look_for_hierarchy()
    if hierarchy is None:
        return []

    def remover(path: Path) -> Callable[[], object]:
        def remove() -> None:
            if not Cgroup(hierarchy.version, {"left": path}).destroy(patience_s=2.0):
                raise OSError("the kernel still holds it: a process inside cannot be killed now")

        return remove

    return [Leftover("control group", str(path), remover(path)) for path in left_behind(hierarchy)]


def _containers() -> list[Leftover]:
    client = engine_client()
    if client is None:
        return []
    from sandboxes.backends.container_engine import list_containers, remove_container

    return [
        Leftover("container", each.name, lambda name=each.id: remove_container(client, name))
        for each in list_containers(client)
        if each.orphan
    ]


def _folders() -> list[Leftover]:
    def remover(folder: Path) -> Callable[[], object]:
        def remove() -> None:
            if not bury(folder):
                raise OSError("something in it cannot be removed")

        return remove

    return [Leftover("folder", str(folder), remover(folder)) for folder in confined_host.left_behind(folders_place())]


def _builds() -> list[Leftover]:
    building = images_folder() / ".building"
    with _no_build() as idle:
        return [Leftover("half-built image", str(building), lambda: _remove_build(building))] if idle else []


def _remove_build(folder: Path) -> None:
    with _no_build() as idle:
        if idle:
            shutil.rmtree(folder)


@contextmanager
def _no_build() -> Generator[bool]:
    """Whether a build was left half done, that is, none goes on; none begins meanwhile."""
    if not (images_folder() / ".building").exists():
        yield False
        return
    with open(images_folder() / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _snapshots() -> list[Leftover]:
    """Unpacked snapshots that were not used for a day, and those that a dead process had begun to unpack."""
    found = []
    with suppress(FileNotFoundError):
        for folder in (cache_folder() / "snapshots").iterdir():
            _, *begun_by = folder.name.split(".")
            idle_s = time.time() - folder.stat().st_mtime
            if idle_s > SNAPSHOT_KEPT_S or (begun_by and not Path(f"/proc/{begun_by[0]}").exists()):
                kind = "half-unpacked snapshot" if begun_by else "unused snapshot"
                found.append(Leftover(kind, str(folder), lambda path=folder: shutil.rmtree(path)))
    return found
