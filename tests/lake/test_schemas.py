from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.builders import trajectory_row
from transforms.lake.schemas import PARTITIONED_BY, TABLES


def every_field(fields: pa.Schema | pa.StructType, prefix: str) -> Iterator[tuple[str, pa.Field]]:
    for field in fields:
        yield f"{prefix}.{field.name}", field
        inner = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_struct(inner):
            yield from every_field(inner, f"{prefix}.{field.name}")


FIELDS = [found for table, schema in TABLES.items() for found in every_field(schema, table)]

WITHOUT_UNIT = {
    # names, places and ratios without a unit: temperatures, seeds, norms, token ids, and values of any unit
    "trajectories.temperature", "trajectories.seed", "policies.optimizer_steps.grad_norm",
    "policies.consumed.advantage", "trajectories.turns.prompt_token_ids", "trajectories.turns.token_ids",
    "checks.observed", "checks.limit",
}  # fmt: skip


def test_there_are_fields_to_check():
    assert len(FIELDS) > 100


@pytest.mark.parametrize(("path", "field"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_says_what_it_holds(path: str, field: pa.Field):
    metadata = field.metadata or {}
    assert metadata.get(b"description", b"").strip(), f"{path} has no description"
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    measured = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
    if measured and path not in WITHOUT_UNIT:
        assert metadata.get(b"unit", b"").strip(), f"{path} has no unit"


def test_exceptions_from_units_are_fields_without_one():
    units = {path: (field.metadata or {}).get(b"unit") for path, field in FIELDS}
    assert {path for path in WITHOUT_UNIT if units.get(path) != b""} == set()


def test_times_are_utc_microseconds():
    times = [field.type for _, field in FIELDS if pa.types.is_timestamp(field.type)]
    assert set(times) == {pa.timestamp("us", tz="UTC")}


def test_partitions_are_columns_that_always_have_a_value():
    for table, columns in PARTITIONED_BY.items():
        assert [TABLES[table].field(column).nullable for column in columns] == [False] * len(columns)


def test_the_builder_knows_the_schema():
    assert list(trajectory_row()) == TABLES["trajectories"].names
    with pytest.raises(KeyError, match="not a field of trajectories: rewrad"):
        trajectory_row(rewrad=1.0)
