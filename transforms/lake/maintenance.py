"""Care of a table's files and log, safe beside running writers: history, compaction, vacuum, checkpoints, restore."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from transforms.lake.errors import CommitConflict, LakeError, StorageFailed
from transforms.lake.files import FileAction, remove_files, write_partitions
from transforms.lake.schemas import PARTITIONED_BY, TABLES
from transforms.lake.table import SCHEMA_APP_ID, Lake

LEAST_KEPT = timedelta(days=1)
"""Younger files may be those of a writer that has not committed yet: they are never removed."""

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table, from its log."""

    version: int
    at: datetime
    operation: str
    """What made it: `write`, `compaction`, `restore of version 3`, or as Delta names it."""
    by: str
    """The application transactions in it: `run-1 version 3`."""
    rows_added: int
    files_added: int
    files_removed: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """What rewriting small files into large ones came to."""

    files_before: int
    files_after: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A file that no kept version needs, relative to the table's folder."""

    path: str
    size: int
    """Bytes."""


def history(lake: Lake, table: str) -> list[Commit]:
    """Every version that is still in the log, oldest first. Raises LakeError for a table that is not there."""
    delta = _there(lake, table)
    operations = {entry["version"]: entry for entry in delta.history()}
    return [_commit(lake.path(table), number, operations[number]) for number in sorted(operations)]


def compact(lake: Lake, table: str, *, target_bytes: int = 128 * 2**20) -> Compaction:
    """Rewrite files smaller than half the target into ones of about the target, partition by partition.

    Rows, versions and application transactions stay; a rival who appends or compacts meanwhile loses nothing. Files are
    written by our own writer: delta-rs cuts the bounds of times to milliseconds, and readers would skip rows. Raises
    CommitConflict, StorageFailed.
    """
    before = files_of(_there(lake, table))
    for paths in _bins(before, target_bytes):
        data = pa.concat_tables(_read(lake.path(table), table, before[path]) for path in paths)
        made = write_partitions(lake.path(table), table, data, PARTITIONED_BY.get(table, []))
        try:
            kept = _replace(lake, table, paths, made)
        except BaseException:
            remove_files(lake.path(table), made)
            raise
        if not kept:
            remove_files(lake.path(table), made)
    return Compaction(len(before), len(files_of(_there(lake, table))))


def _bins(files: dict[str, dict], target_bytes: int) -> list[list[str]]:
    """Small files of one partition that go into one file together, at least two each."""
    bins: list[list[str]] = []
    small = {path: row for path, row in files.items() if row["size_bytes"] < target_bytes // 2}
    for _, group in itertools.groupby(
        sorted(small, key=lambda path: _key(small[path])), lambda path: _key(small[path])
    ):
        size = target_bytes  # so that the first one opens a bin
        for path in group:
            size += small[path]["size_bytes"]
            if size > target_bytes:
                bins.append([])
                size = small[path]["size_bytes"]
            bins[-1].append(path)
    return [paths for paths in bins if len(paths) > 1]


def _key(row: dict) -> str:
    return json.dumps(_partition(row), sort_keys=True)


def _read(folder: Path, table: str, row: dict) -> pa.Table:
    """A file with all columns of today, those of its partition included; null where it is older than a column."""
    held = pq.ParquetFile(folder / row["path"]).read()
    split = row.get("partition") or {}
    columns = [
        held.column(field.name).cast(field.type)
        if field.name in held.column_names
        else pa.repeat(pa.scalar(split.get(field.name), field.type), held.num_rows)
        for field in TABLES[table]
    ]
    return pa.table(columns, schema=TABLES[table])


def _replace(lake: Lake, table: str, paths: Sequence[str], made: Sequence[FileAction]) -> bool:
    """Put files in the place of others that hold the same rows; False if somebody else replaced those meanwhile."""
    for _ in range(_TRIES):
        delta = _there(lake, table)
        present = files_of(delta)
        if not set(paths) <= set(present):
            return False
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path, False, _now_ms(), present[path]["size_bytes"], _partition(present[path]))
            for path in paths
        ]
        actions += [
            AddAction(file.path, file.size, dict(file.partition_values), file.modified_ms, False, file.stats)
            for file in made
        ]
        if _committed(lake, table, delta, actions, "compaction", []):
            return True
    raise CommitConflict(f"table {table}: compaction lost {_TRIES} races against other writers; try it again")


def _committed(
    lake: Lake, table: str, delta: DeltaTable, actions: list[AddAction | RemoveAction], what: str,
    transactions: Sequence[Transaction],
) -> bool:  # fmt: skip
    """Commit on top of exactly this version; False if a rival was quicker. Raises StorageFailed."""
    try:
        delta.create_write_transaction(
            actions,
            "append",
            delta.schema(),
            partition_by=PARTITIONED_BY.get(table, []),
            commit_properties=CommitProperties(
                app_transactions=list(transactions), custom_metadata={"headrace": what}, max_commit_retries=0
            ),
        )
    except CommitFailedError:
        return False
    except OSError as error:
        raise StorageFailed(table, lake.path(table), error) from error
    lake.sync_log(table, after=delta.version())
    return True


def vacuum(lake: Lake, table: str, keep: timedelta, *, dry_run: bool) -> list[Removed]:
    """Remove files that no version younger than `keep` refers to, those of dead attempts among them; says which.

    Versions older than `keep` cannot be read any more. Raises LakeError for less than `LEAST_KEPT`.
    """
    if keep < LEAST_KEPT:
        raise LakeError(
            f"table {table}: files younger than {LEAST_KEPT.days} day may be those of a writer that has not committed "
            f"yet; keep at least that"
        )
    delta = _there(lake, table)
    hours = round(keep.total_seconds() / 3600)
    folder = lake.path(table)
    found = delta.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
    removed = [Removed(path, (folder / path).stat().st_size) for path in sorted(found) if (folder / path).exists()]
    if not dry_run and removed:
        delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
    return removed


def checkpoint(lake: Lake, table: str) -> int:
    """Write the log so far into one file, so that readers need not replay it; the version it holds."""
    delta = _there(lake, table)
    delta.create_checkpoint()
    return delta.version()


def restore(lake: Lake, table: str, version: int) -> int:
    """Make the rows those of an older version again, by a new one, whose number is returned.

    One commit takes the files back and sets back every application transaction that came after, so that whoever
    made these commits (a run's driver) sees that they are undone. delta-rs' own restore leaves them, and a run would
    take its lost chunks for done. Raises LakeError where the version is not in the log or its files are gone,
    CommitConflict.
    """
    for _ in range(_TRIES):
        now = _there(lake, table)
        if not 0 <= version <= now.version():
            raise LakeError(f"table {table} has versions 0 to {now.version()}, not {version}")
        if version == now.version():
            return version
        then = DeltaTable(str(lake.path(table)), version=version)
        actions = _difference(lake.path(table), now, then)
        undone = _set_back(lake.path(table), now, then)
        if _committed(lake, table, now, actions, f"restore of version {version}", undone):
            return now.version() + 1
    raise CommitConflict(f"table {table}: restore lost {_TRIES} races against other writers; stop them, and try again")


def read_log(folder: Path, version: int) -> list[dict[str, dict]]:
    """The actions of one commit; none where its file was cleaned up behind a checkpoint. Raises LakeError if torn."""
    path = folder / "_delta_log" / f"{version:020d}.json"
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise LakeError(f"{path} is damaged: {error}") from error


def files_of(delta: DeltaTable) -> dict[str, dict]:
    """The files of a version by path, each with size, time, statistics and partition values as the log holds them."""
    return {row["path"]: row for row in pa.table(delta.get_add_actions()).to_pylist()}


def _there(lake: Lake, table: str) -> DeltaTable:
    delta = lake.open(table)
    if delta is None:
        raise LakeError(f"there is no table {table} in {lake.home}; --home or HEADRACE_HOME names the folder of a run")
    return delta


def _commit(folder: Path, version: int, entry: dict) -> Commit:
    actions = read_log(folder, version)
    adds = [action["add"] for action in actions if "add" in action]
    stats = [json.loads(add["stats"]) for add in adds if add.get("stats") and add.get("dataChange")]
    names = [f"{action['txn']['appId']} version {action['txn']['version']}" for action in actions if "txn" in action]
    return Commit(
        version=version,
        at=datetime.fromtimestamp(entry["timestamp"] / 1000, UTC),
        operation=entry.get("headrace") or entry.get("operation", "").lower(),
        by=", ".join(names),
        rows_added=sum(stat["numRecords"] for stat in stats),
        files_added=len(adds),
        files_removed=sum("remove" in action for action in actions),
    )


def _difference(folder: Path, now: DeltaTable, then: DeltaTable) -> list[AddAction | RemoveAction]:
    """Actions that turn the files of one version into those of another. Raises LakeError for files that are gone."""
    present, wanted = files_of(now), files_of(then)
    back = {path: row for path, row in wanted.items() if path not in present}
    gone = [path for path in back if not (folder / path).exists()]
    if gone:
        raise LakeError(
            f"version {then.version()} of {folder.name} needs {len(gone)} file(s) that a vacuum removed, "
            f"first {gone[0]}; restore a younger version"
        )
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(path, True, _now_ms(), row["size_bytes"], _partition(row))
        for path, row in present.items()
        if path not in wanted
    ]
    stats = _recorded_statistics(folder, back, then.version()) if back else {}
    return actions + [
        AddAction(path, row["size_bytes"], _partition(row), row["modification_time"], True, stats[path])
        for path, row in back.items()
    ]


def _now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


def _partition(row: dict) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in (row.get("partition") or {}).items()}


def _recorded_statistics(folder: Path, wanted: dict[str, dict], version: int) -> dict[str, str]:
    """The statistics of files as their commits wrote them. Raises LakeError where the log was cleaned up."""
    found: dict[str, str] = {}
    for number in range(version, -1, -1):
        for action in read_log(folder, number):
            if "add" in action and action["add"]["path"] in wanted:
                found.setdefault(action["add"]["path"], action["add"]["stats"])
        if len(found) == len(wanted):
            return found
    raise LakeError(f"version {version} of {folder.name} cannot be restored: its log was cleaned up")


def _set_back(folder: Path, now: DeltaTable, then: DeltaTable) -> Sequence[Transaction]:
    """What the application transactions after a version must say again; -1 for those that were not there."""
    later = {
        action["txn"]["appId"]
        for number in range(then.version() + 1, now.version() + 1)
        for action in read_log(folder, number)
        if "txn" in action and action["txn"]["appId"] != SCHEMA_APP_ID  # rows go back, the schema stays
    }
    before = {name: then.transaction_version(name) for name in sorted(later)}
    return [Transaction(name, -1 if was is None else was) for name, was in before.items()]
