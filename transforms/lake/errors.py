"""What can go wrong with the lake. Each message says where, what, and the way out."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from transforms.lake.schemas import SCHEMA_VERSION

if TYPE_CHECKING:
    from transforms.lake.storage import Place


class LakeError(Exception):
    """Anything wrong with the lake."""


class SchemaMismatch(LakeError):
    """A row does not fit its table. `row` counts from 0 in the rows given; `field` is a path like `steps[0].kind`."""

    def __init__(self, table: str, row: int, field: str, problem: str) -> None:
        super().__init__(f"table {table}, row {row}, field {field}: {problem}")
        self.table = table
        self.row = row
        self.field = field


class StorageFailed(LakeError):
    """The disk is full, broken or read-only. The table is unchanged."""

    def __init__(self, table: str, folder: Path, error: OSError) -> None:
        code = error.errno
        if code is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
            code = int(found[1])
        reason = os.strerror(code) if code is not None else str(error)
        super().__init__(
            f"table {table}: cannot write in {folder}: {reason}; nothing was committed: free space or mend the disk, "
            "then run again"
        )
        self.table = table


class TableTooNew(LakeError):
    """The table was written by a newer Headrace, which may mean something else by it: neither read nor written."""

    def __init__(self, table: str, folder: "Place", version: int) -> None:
        super().__init__(
            f"table {table} in {folder} has schema version {version}, this Headrace knows up to {SCHEMA_VERSION}; "
            "upgrade Headrace, or choose another home folder"
        )


class TableTooOld(LakeError):
    """The table was written by an older Headrace: it must be migrated first."""

    def __init__(self, table: str, folder: "Place", version: int) -> None:
        home = folder.parent.parent
        super().__init__(
            f"table {table} in {folder} has schema version {version}, this Headrace writes {SCHEMA_VERSION}; "
            f"no other Headrace may be at work on it: then `headrace migrate --home {home}` brings it up to date"
        )


class CommitConflict(LakeError):
    """Other writers kept winning; nothing was committed and the same commit may be tried again."""


class QueryError(LakeError):
    """A query that is not a query, names what is not there, or fails while it runs."""
