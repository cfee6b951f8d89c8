"""Tables of older schema versions, brought up to date by declared steps.

A step goes from one version to the next and is one commit, which also records the new version: a table is never half
migrated, and whoever is interrupted migrates again. No step changes or removes what rows already say.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from transforms.lake.errors import StorageFailed
from transforms.lake.schemas import SCHEMA_VERSION, TABLES
from transforms.lake.table import SCHEMA_APP_ID, Lake


@dataclass(frozen=True, slots=True)
class Migrated:
    """A table that was, or is to be, brought from one schema version to another."""

    table: str
    before: int
    after: int
    steps: tuple[str, ...]
    """What each step does, in words."""


def _add_columns(table: str, delta: DeltaTable, commit: CommitProperties) -> None:
    known = pa.schema(delta.schema().to_arrow())
    grown = [
        _as_known(field, known.field(field.name)) if field.name in known.names else field for field in TABLES[table]
    ]
    # Unlike `add_columns`, a merge with no rows adds fields within structs, too.
    rows = pa.schema(grown).empty_table()
    write_deltalake(delta, rows, mode="append", schema_mode="merge", commit_properties=commit)


def _as_known(field: pa.Field, known: pa.Field) -> pa.Field:
    """A field, at any depth described as the table describes it: a merge refuses another description."""
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_as_known(kind.value_field, known.type.value_field))
    elif pa.types.is_struct(kind):
        old = {child.name: child for child in known.type}
        kind = pa.struct([_as_known(child, old[child.name]) if child.name in old else child for child in kind])
    return field.with_type(kind).with_metadata(known.metadata)


MIGRATIONS: dict[int, tuple[str, Callable[[str, DeltaTable, CommitProperties], None]]] = {
    1: ("adds the columns and fields that came since; older rows hold null there", _add_columns),
}
"""By the version it starts from: what a step does, in words and in code."""


def migrate(lake: Lake, *, dry_run: bool) -> list[Migrated]:
    """Bring every table that is there up to date; says which were not. Safe with rivals who do the same.

    Raises TableTooNew, StorageFailed.
    """
    done = []
    for table in TABLES:
        found = lake.open_any(table)
        if found is None or found[1] == SCHEMA_VERSION:
            continue
        before = found[1]
        if not dry_run:
            _upgrade(lake, table)
        steps = tuple(MIGRATIONS[version][0] for version in range(before, SCHEMA_VERSION))
        done.append(Migrated(table, before, SCHEMA_VERSION, steps))
    return done


def _upgrade(lake: Lake, table: str) -> None:
    while (found := lake.open_any(table)) is not None and found[1] < SCHEMA_VERSION:
        delta, version = found
        commit = CommitProperties(app_transactions=[Transaction(SCHEMA_APP_ID, version + 1)], max_commit_retries=0)
        try:
            MIGRATIONS[version][1](table, delta, commit)
        except OSError as error:
            raise StorageFailed(table, lake.path(table), error) from error
        except DeltaError:
            now = lake.open_any(table)
            if now is None or now[1] == version:
                raise  # so it was not a rival who was quicker
        lake.sync_log(table, after=delta.version() - 1)
