"""The Delta tables of a home folder: creating, opening, and commits that happen exactly once.

The version of our schemas is kept as a Delta application transaction (`SCHEMA_APP_ID`), because that is written in the
commit that creates the table and survives checkpoints; delta-rs refuses properties it does not know.
"""

import functools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from transforms.lake.errors import CommitConflict, LakeError, StorageFailed, TableTooNew, TableTooOld
from transforms.lake.files import FileAction, remove_files, sync, write_partitions
from transforms.lake.rows import from_batches, to_arrow
from transforms.lake.schemas import PARTITIONED_BY, SCHEMA_VERSION, TABLES
from transforms.lake.storage import ObjectStore, Place, StoreFailed, delta_options, said_plainly

SCHEMA_APP_ID = "headrace.schema"
"""Application id whose transaction version is the table's schema version."""

_TRIES = 30


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit came to."""

    table: str
    version: int
    """A version of the table that holds the commit (and maybe later ones)."""
    committed: bool
    """False where the same (application id, version) had been committed before: then nothing was added."""
    rows: int
    """Rows added by this call."""
    files: int
    """Files added by this call."""


@dataclass(frozen=True)
class Lake:
    """The tables under `home/tables`. Picklable: it travels to the workers and holds no handles.

    What touches the tables of an object store may raise StoreFailed.
    """

    home: Place

    @property
    def work(self) -> Path:
        """Folder of this machine for weights, logs, locks and reports; for tables in a folder, the same one."""
        return self.home if isinstance(self.home, Path) else self.home.work

    def place(self, table: str) -> Place:
        """Where a table is."""
        return self.home / "tables" / table

    def path(self, table: str) -> Path:
        """Folder of a table. Raises LakeError for one in an object store."""
        place = self.place(table)
        if isinstance(place, ObjectStore):
            raise LakeError(f"this looks after folders of this machine only, and {self.home} is an object store")
        return place

    def open(self, table: str) -> DeltaTable | None:
        """The table; None if it does not exist. Raises TableTooNew, TableTooOld."""
        found = self.open_any(table)
        if found is None:
            return None
        delta, written_by = found
        if written_by < SCHEMA_VERSION:
            raise TableTooOld(table, self.place(table), written_by)
        return delta

    def open_any(self, table: str) -> tuple[DeltaTable, int] | None:
        """The table and its schema version, which may be an older one. Raises TableTooNew."""
        try:
            with said_plainly(self.home):
                delta = DeltaTable(str(self.place(table)), storage_options=delta_options(self.home))
        except TableNotFoundError:
            return None
        written_by = delta.transaction_version(SCHEMA_APP_ID)
        if written_by is None:
            raise LakeError(
                f"{self.place(table)} is a Delta table that Headrace did not create (it records no schema version); "
                "move it away, or choose another home folder"
            )
        if written_by > SCHEMA_VERSION:
            raise TableTooNew(table, self.place(table), written_by)
        return delta, written_by

    def ensure_tables(self) -> None:
        """Create every missing table and check the rest. Safe with rivals.

        Raises TableTooNew, TableTooOld, StorageFailed.
        """
        for table in TABLES:
            self.open_or_create(table)

    def open_or_create(self, table: str) -> DeltaTable:
        """The table, created if it is missing. Safe with rivals. Raises TableTooNew, TableTooOld, StorageFailed."""
        delta = self.open(table)
        if delta is not None:
            return delta
        place = self.place(table)
        try:
            if isinstance(place, Path):
                place.mkdir(parents=True, exist_ok=True)
            with said_plainly(place):
                create_table_with_add_actions(
                    str(place),
                    _delta_schema(table),
                    [],
                    mode="error",
                    partition_by=PARTITIONED_BY.get(table, []),
                    name=table,
                    storage_options=delta_options(place),
                    # No retries: on one, delta-rs would commit the creation a second time, on top of the rival's.
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(SCHEMA_APP_ID, SCHEMA_VERSION)], max_commit_retries=0
                    ),
                )
        except OSError as error:
            raise StorageFailed(table, self.path(table), error) from error
        except (DeltaError, StoreFailed):
            if self.open(table) is None:  # so it was not a rival who was quicker
                raise
        self.sync_log(table, after=-1)
        delta = self.open(table)
        if delta is None:
            raise LakeError(f"table {table} vanished from {place} just after it was created")
        return delta

    def write_files(self, table: str, rows: Sequence[dict[str, object]]) -> list[FileAction]:
        """Write rows as Parquet files, one a partition, on disk but not yet in the table; no rows, no files.

        Raises SchemaMismatch for a row that does not fit, StorageFailed (with nothing left behind) for a disk that
        is full or broken.
        """
        if not rows:
            return []
        return write_partitions(self.place(table), table, to_arrow(table, rows), PARTITIONED_BY.get(table, []))

    def write_batches(self, table: str, batches: Sequence[pa.RecordBatch]) -> list[FileAction]:
        """Write Arrow batches of exactly the table's schema as one file a partition. Raises as write_files does."""
        data = from_batches(table, batches)
        if data.num_rows == 0:
            return []
        return write_partitions(self.place(table), table, data, PARTITIONED_BY.get(table, []))

    def committed_version(self, table: str, app_id: str) -> int | None:
        """Highest version committed under an application id; None if there is none."""
        delta = self.open(table)
        return None if delta is None else delta.transaction_version(app_id)

    def commit(self, table: str, files: Sequence[FileAction], *, app_id: str, version: int) -> CommitResult:
        """Add files to the table exactly once per (application id, version), under retries, crashes and rivals.

        Versions of one application id must rise: a version at or below the highest one committed counts as done.
        Files of a commit that counted as done, or failed, stay on disk, as they may be the committed ones or be tried
        again; Delta's vacuum removes what no version refers to. Raises CommitConflict, StorageFailed, TableTooNew.
        """
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, dict(file.partition_values), file.modified_ms, True, file.stats)
            for file in files
        ]
        properties = CommitProperties(app_transactions=[Transaction(app_id, version)], max_commit_retries=15)
        for attempt in range(_TRIES):
            delta = self.open_or_create(table)
            # delta-rs only records the transaction and accepts a repeated one from a fresh snapshot. Looking first
            # stops a retry; a rival who commits after we looked makes the commit fail, and we look again.
            done = delta.transaction_version(app_id)
            if done is not None and done >= version:
                return CommitResult(table, delta.version(), committed=False, rows=0, files=0)
            try:
                with said_plainly(self.home):
                    delta.create_write_transaction(
                        actions,
                        "append",
                        _delta_schema(table),
                        partition_by=PARTITIONED_BY.get(table, []),
                        commit_properties=properties,
                    )
            except CommitFailedError:
                time.sleep(random.uniform(0, 0.02 * (attempt + 1)))
                continue
            except OSError as error:
                raise StorageFailed(table, self.path(table), error) from error
            self.sync_log(table, after=delta.version())
            with said_plainly(self.home):
                delta.update_incremental()
            return CommitResult(
                table, delta.version(), committed=True, rows=sum(file.rows for file in files), files=len(files)
            )
        raise CommitConflict(
            f"table {table}: {app_id} version {version} lost {_TRIES} races against other writers; try it again"
        )

    def append(self, table: str, rows: Sequence[dict[str, object]], *, app_id: str, version: int) -> CommitResult:
        """Write rows and commit them, exactly once per (application id, version). Raises as its two halves do."""
        done = self.committed_version(table, app_id)
        files = self.write_files(table, rows) if done is None or done < version else []
        try:
            return self.commit(table, files, app_id=app_id, version=version)
        except (StorageFailed, StoreFailed):
            done = self.committed_version(table, app_id)
            if done is None or done < version:  # really not committed, and nobody else knows of these files
                remove_files(self.place(table), files)
            raise

    def sync_log(self, table: str, *, after: int) -> None:
        """Flush the log to disk, from the version after `after`; delta-rs leaves that to the operating system.

        Raises StorageFailed; what was committed may then be lost with the machine, not with the process.
        """
        if isinstance(self.home, ObjectStore):
            return  # which answers when it holds what it was given
        log = self.path(table) / "_delta_log"
        number = after + 1
        try:
            while (log / f"{number:020d}.json").exists():
                sync(log / f"{number:020d}.json")
                number += 1
            sync(log)
        except OSError as error:
            raise StorageFailed(table, log, error) from error


@functools.cache
def _delta_schema(table: str) -> Schema:
    return Schema.from_arrow(TABLES[table])
