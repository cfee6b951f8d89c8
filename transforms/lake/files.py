"""Arrow table -> Parquet files on disk, with the statistics that Delta keeps in its log.

Readers skip files by these statistics, so each bound must hold for every value of the file, however it was shortened.
"""

import contextlib
import functools
import json
import math
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from transforms.lake.errors import SchemaMismatch, StorageFailed
from transforms.lake.storage import ObjectStore, Place, StoreFailed

_BOUND_CHARS = 32
_LAST_CHAR = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class FileAction:
    """A Parquet file that is in its place and not in the table until it is committed."""

    path: str
    """Relative to the table's folder."""
    size: int
    """Bytes."""
    partition_values: Mapping[str, str]
    modified_ms: int
    """UTC milliseconds."""
    stats: str
    """Delta's per-file statistics, as JSON."""
    rows: int


def write_partitions(folder: Place, table: str, data: pa.Table, partition_by: Sequence[str]) -> list[FileAction]:
    """Write one Parquet file a partition under `folder`, flushed to disk or uploaded whole.

    Raises SchemaMismatch for a partition value that Delta cannot keep; StorageFailed with no file left behind, or
    StoreFailed with no file that can be removed.
    """
    written: list[FileAction] = []
    try:
        for values, part in _partitions(table, data, partition_by):
            written.append(_write(folder, values, part))
    except BaseException as error:
        remove_files(folder, written)
        if isinstance(error, OSError):
            where = folder if isinstance(folder, Path) else Path(tempfile.gettempdir())
            raise StorageFailed(table, where, error) from error
        raise
    return written


def _partitions(table: str, data: pa.Table, by: Sequence[str]) -> Iterable[tuple[dict[str, str], pa.Table]]:
    """Split into ({column: value as text}, rows without these columns); the order of rows is kept."""
    if not by:
        yield {}, data
        return
    rest = data.drop_columns(list(by))
    found = data.select(list(by)).group_by(list(by), use_threads=False).aggregate([]).to_pylist()
    for values in found:
        for name, value in values.items():
            if value == "":  # in Delta's log the empty string means null
                row = pc.call_function("index", [data.column(name)], pc.IndexOptions(pa.scalar("")))
                problem = "empty, but the table is split by it: it must have a value"
                raise SchemaMismatch(table, row.as_py(), name, problem)
        same = [pc.call_function("equal", [data.column(name), value]) for name, value in values.items()]
        both = functools.partial(pc.call_function, "and")
        part = rest if len(found) == 1 else rest.filter(functools.reduce(lambda a, b: both([a, b]), same))
        yield {name: str(value) for name, value in values.items()}, part


def _write(folder: Place, values: Mapping[str, str], data: pa.Table) -> FileAction:
    # Readers take the values from the log. A folder name is for people, and only safe where it needs no escapes.
    readable = all(re.fullmatch(r"[\w.-]{1,100}", value, re.ASCII) for value in values.values())
    parts = [f"{name}={value}" for name, value in values.items()] if readable else []
    relative = "/".join([*parts, f"part-{uuid.uuid4().hex}.zstd.parquet"])
    size = _upload(folder, relative, data) if isinstance(folder, ObjectStore) else _store(folder, relative, data)
    return FileAction(relative, size, values, int(time.time() * 1000), statistics(data), data.num_rows)


def _store(folder: Path, relative: str, data: pa.Table) -> int:
    """Write a file and flush it, with its folders; gives its size in bytes."""
    path = folder / relative
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _to_parquet(data, path)
        sync(path)
        for level in range(relative.count("/") + 1):
            sync(path.parents[level])
        return path.stat().st_size
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _upload(folder: ObjectStore, relative: str, data: pa.Table) -> int:
    """Make a file here and upload it: so nobody sees half of one; gives its size in bytes."""
    with tempfile.TemporaryFile() as file:
        _to_parquet(data, file)
        size = file.tell()
        file.seek(0)
        folder.put(relative, file)
        return size


def _to_parquet(data: pa.Table, to: Path | IO[bytes]) -> None:
    # Dictionaries cost a sixth of the time and, under zstd, make wide rows larger: little in them repeats.
    pq.write_table(data, to, compression="zstd", write_statistics=_bounded(data), use_dictionary=False)


def sync(path: Path) -> None:
    """Flush a file or the entries of a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_files(folder: Place, files: Iterable[FileAction]) -> None:
    """Remove files that no commit holds; one that cannot be removed is left to Delta's vacuum."""
    for file in files:
        with contextlib.suppress(OSError, StoreFailed):
            if isinstance(folder, ObjectStore):
                folder.remove(file.path)
            else:
                (folder / file.path).unlink()


def statistics(data: pa.Table) -> str:
    """Delta's statistics of one file, as JSON: rows, and for each flat column nulls and bounds."""
    lowest: dict[str, object] = {}
    highest: dict[str, object] = {}
    nulls: dict[str, int] = {}
    bounded = _bounded(data)
    for field, column in zip(data.schema, data.columns, strict=True):
        if pa.types.is_nested(field.type):
            continue
        nulls[field.name] = column.null_count
        if field.name not in bounded or pa.types.is_boolean(field.type) or column.null_count == len(column):
            continue
        extremes = pc.call_function("min_max", [column]).as_py()
        low, high = _lower(extremes["min"]), _upper(extremes["max"])
        if low is not None:
            lowest[field.name] = low
        if high is not None:
            highest[field.name] = high
    record = {"numRecords": data.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    # Not ASCII: delta-rs 1.6.6 misreads U+10FFFF, the end of our upper bounds, when it is written as an escape.
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def _bounded(data: pa.Table) -> list[str]:
    """The flat columns that may have bounds, in the log and in the file.

    One with a NaN may not: engines order NaN above every number, while Arrow and Parquet leave it out of their bounds,
    and a reader would skip rows that match.
    """
    return [
        field.name
        for field, column in zip(data.schema, data.columns, strict=True)
        if not pa.types.is_nested(field.type) and not (pa.types.is_floating(field.type) and _has_nan(column))
    ]


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pc.call_function("any", [pc.call_function("is_nan", [column])]).as_py() is True


def _lower(value: object) -> object:
    """A JSON value at or below this one; None where there is none."""
    match value:
        case str():
            return value[:_BOUND_CHARS]
        case float():
            return _number(-0.0 if value == 0 else value)
        case datetime():
            return _instant(value)
    return value


def _upper(value: object) -> object:
    """A JSON value at or above this one; None where there is none."""
    match value:
        case str():
            end = _BOUND_CHARS
            while value[end : end + 1] == _LAST_CHAR:  # else the character put at the end would not be above the rest
                end += 1
            return value if len(value) <= end else value[:end] + _LAST_CHAR
        case float():
            return _number(0.0 if value == 0 else value)
        case datetime():
            return _instant(value)
    return value


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no infinity


def _instant(value: datetime) -> str:
    """All six digits: cut to milliseconds, the upper bound would lie below the value."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
