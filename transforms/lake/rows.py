"""Rows as plain dicts, or as Arrow batches -> one Arrow table that really has the schema.

Arrow alone is too kind: it drops unknown keys, fills in missing ones, cuts 1.5 to 1 and makes a list of letters from a
string. So the Python values are checked first. Batches have their types already; what Arrow does not hold them to
(nulls, UTF-8) is checked without making Python objects.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from transforms.lake.errors import SchemaMismatch
from transforms.lake.schemas import TABLES

_NULL = "null in a field that may not be null"
_UNKNOWN = "unknown; the schemas are in docs/tables.md"


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a Python value must be, worked out once a table: looking into Arrow types for each value is slow."""

    name: str
    nullable: bool
    accepts: tuple[type, ...]
    fields: "Mapping[str, _Shape] | None" = None
    element: "_Shape | None" = None

    def misfit(self, value: object, path: str) -> tuple[str, str] | None:
        """The first (path, problem) of a value; None if it fits."""
        if value is None:
            return None if self.nullable else (path, _NULL)
        if not isinstance(value, self.accepts) or (isinstance(value, bool) and bool not in self.accepts):
            return path, f"expected {self.name}, got {type(value).__name__} {repr(value)[:60]}"
        if isinstance(value, datetime) and value.tzinfo is None:
            return path, f"expected {self.name}, got a datetime without a time zone"
        if self.fields is not None and isinstance(value, dict):
            return self._misfit_in_fields(value, path)
        if self.element is not None and isinstance(value, list | tuple):
            return self._misfit_in_elements(value, path)
        return None

    def _misfit_in_fields(self, value: dict[str, object], path: str) -> tuple[str, str] | None:
        fields = self.fields or {}
        prefix = f"{path}." if path else ""
        if value.keys() != fields.keys():
            unknown = [str(name) for name in value if name not in fields]
            if unknown:
                return prefix + unknown[0], _UNKNOWN
            missing = [name for name in fields if name not in value]
            return prefix + missing[0], "missing; give null where there is no value"
        for name, shape in fields.items():
            if found := shape.misfit(value[name], prefix + name):
                return found
        return None

    def _misfit_in_elements(self, value: Sequence[object], path: str) -> tuple[str, str] | None:
        shape = self.element
        if shape is None or (shape.fields is None and set(map(type, value)) <= set(shape.accepts)):
            return None
        for place, element in enumerate(value):
            if found := shape.misfit(element, f"{path}[{place}]"):
                return found
        return None


_ACCEPTS: tuple[tuple[pa.DataType, tuple[type, ...]], ...] = (
    (pa.bool_(), (bool,)),
    (pa.int32(), (int,)),
    (pa.int64(), (int,)),
    (pa.float32(), (float, int)),
    (pa.float64(), (float, int)),
    (pa.string(), (str,)),
    (pa.timestamp("us", tz="UTC"), (datetime, int)),
)


def _shape(kind: pa.DataType, nullable: bool) -> _Shape:
    if pa.types.is_struct(kind):
        fields = {child.name: _shape(child.type, child.nullable) for child in kind}
        return _Shape("an object", nullable, (dict,), fields=fields)
    if pa.types.is_list(kind):
        element = _shape(kind.value_type, kind.value_field.nullable)
        return _Shape("a list", nullable, (list, tuple), element=element)
    return _Shape(str(kind), nullable, dict(_ACCEPTS)[kind])


@functools.cache
def _row_shape(table: str) -> _Shape:
    return _shape(pa.struct(list(TABLES[table])), nullable=False)


def to_arrow(table: str, rows: Sequence[dict[str, object]]) -> pa.Table:
    """Check rows against the table's schema and convert them, in order.

    A key too many or too few (at any depth), a null where none may be and a value of another type are refused; a
    timestamp is a datetime with a time zone or an integer of UTC microseconds. Raises SchemaMismatch.
    """
    schema = TABLES[table]
    shape = _row_shape(table)
    for number, row in enumerate(rows):
        if found := shape.misfit(row, ""):
            raise SchemaMismatch(table, number, *found)
    return pa.Table.from_arrays([_column(table, field, rows) for field in schema], schema=schema)


def _column(table: str, field: pa.Field, rows: Sequence[dict[str, object]]) -> pa.Array:
    try:
        return pa.array([row[field.name] for row in rows], type=field.type)
    except (pa.ArrowException, UnicodeError, OverflowError):
        # The type is right and the value still does not fit (an integer too large, half a surrogate pair): find it.
        for number, row in enumerate(rows):
            try:
                pa.array([row[field.name]], type=field.type)
            except (pa.ArrowException, UnicodeError, OverflowError) as error:
                raise SchemaMismatch(table, number, field.name, str(error)[:200]) from error
        raise


def from_batches(table: str, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Check Arrow batches against the table's schema and put them together, in order, without a copy.

    Columns, their order, types and nullability must be exactly the schema's, metadata may differ. A null where none may
    be and text that is not UTF-8 are refused. Raises SchemaMismatch; its row counts over all batches.
    """
    schema = TABLES[table]
    before = 0
    for batch in batches:
        if not batch.schema.equals(schema):
            raise SchemaMismatch(table, before, *_difference(batch.schema, schema))
        for field, column in zip(schema, batch.columns, strict=True):
            # Only top-level fields are required: see tests/lake/test_schemas.py.
            if not field.nullable and column.null_count:
                row = pc.call_function("index", [column.is_null()], pc.IndexOptions(pa.scalar(value=True))).as_py()
                raise SchemaMismatch(table, before + row, field.name, _NULL)
            if not _is_utf8(column):
                row = next(row for row in range(len(column)) if not _is_utf8(column.slice(row, 1)))
                raise SchemaMismatch(table, before + row, field.name, "text that is not UTF-8")
        before += batch.num_rows
    return pa.Table.from_batches(batches, schema=schema)


def _difference(given: pa.Schema, wanted: pa.Schema) -> tuple[str, str]:
    """The first (field, problem) of a schema that is not the one wanted."""
    for name in given.names:
        if name not in wanted.names:
            return name, _UNKNOWN
    for name in wanted.names:
        if given.names.count(name) != 1:
            return name, "missing, or there twice"
    wrong = next(place for place, field in enumerate(wanted) if not field.equals(given.field(place)))
    return wanted.names[wrong], f"expected {wanted.field(wrong)}, got {given.field(wrong)}"


def _is_utf8(column: pa.Array) -> bool:
    """Whether all text in a column, at any depth, is UTF-8."""
    if pa.types.is_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    # Flattened, since Arrow validates all elements behind a slice, and so those of a sliced batch again and again.
    if pa.types.is_list(column.type):
        return _is_utf8(column.flatten())
    return not pa.types.is_struct(column.type) or all(_is_utf8(child) for child in column.flatten())
