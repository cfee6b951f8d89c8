from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest

from tests.builders import START, trajectory_row
from transforms.lake.errors import SchemaMismatch
from transforms.lake.rows import to_arrow

STEP = trajectory_row()["steps"][0]  # ty: ignore[not-subscriptable]
TURN = trajectory_row()["turns"][0]  # ty: ignore[not-subscriptable]

UNKNOWN = "unknown; the schemas are in docs/tables.md"
NULL = "null in a field that may not be null"


def without(row: dict[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != key}


MISFITS = {
    "unknown": ({**trajectory_row(), "rewrad": 1.0}, "rewrad", UNKNOWN),
    "missing": (without(trajectory_row(), "reward"), "reward", "missing; give null where there is no value"),
    "null": (trajectory_row(task_id=None), "task_id", NULL),
    "null list": (trajectory_row(quarantine_reasons=None), "quarantine_reasons", NULL),
    "text for number": (trajectory_row(reward="1.0"), "reward", "expected double, got str '1.0'"),
    "number for text": (trajectory_row(task_id=7), "task_id", "expected string, got int 7"),
    "bytes for text": (trajectory_row(task_id=b"add"), "task_id", "expected string, got bytes b'add'"),
    "fraction for integer": (trajectory_row(sample=1.5), "sample", "expected int32, got float 1.5"),
    "bool for number": (trajectory_row(reward=True), "reward", "expected double, got bool True"),
    "number for bool": (trajectory_row(final=1), "final", "expected bool, got int 1"),
    "text for list": (trajectory_row(quarantine_reasons="abc"), "quarantine_reasons", "expected a list, got str 'abc'"),
    "number in list": (
        trajectory_row(quarantine_reasons=["a", 1]), "quarantine_reasons[1]", "expected string, got int 1",
    ),
    "too large": (
        trajectory_row(sample=2**31), "sample", "Value 2147483648 too large to fit in C integer type",
    ),
    "half a character": (
        trajectory_row(program="\ud83d"), "program",
        "'utf-8' codec can't encode character '\\ud83d' in position 0: surrogates not allowed",
    ),
    "time without zone": (
        trajectory_row(started_at=datetime(2026, 1, 1)), "started_at",
        "expected timestamp[us, tz=UTC], got a datetime without a time zone",
    ),
    "nested unknown": (
        trajectory_row(steps=[STEP, {**STEP, "rewrad": 1}]), "steps[1].rewrad",
        UNKNOWN,
    ),
    "nested missing": (
        trajectory_row(steps=[without(STEP, "kind")]), "steps[0].kind", "missing; give null where there is no value",
    ),
    "nested type": (
        trajectory_row(steps=[{**STEP, "wall_s": "x"}]), "steps[0].wall_s", "expected double, got str 'x'",
    ),
    "not an object": (trajectory_row(steps=[("kind", "x")]), "steps[0]", "expected an object, got tuple ('kind', 'x')"),
    "token ids": (
        trajectory_row(turns=[{**TURN, "token_ids": [1, 2.5]}]), "turns[0].token_ids[1]",
        "expected int32, got float 2.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("row", "field", "problem"), MISFITS.values(), ids=MISFITS)
def test_a_row_that_does_not_fit_is_refused(row: dict[str, object], field: str, problem: str):
    with pytest.raises(SchemaMismatch) as caught:
        to_arrow("trajectories", [trajectory_row(), trajectory_row(), row])
    assert str(caught.value) == f"table trajectories, row 2, field {field}: {problem}"
    assert (caught.value.table, caught.value.row, caught.value.field) == ("trajectories", 2, field)


def test_what_fits_becomes_the_same_value():
    class Outcome(StrEnum):
        PASSED = "passed"

    in_paris = START.astimezone(timezone(timedelta(hours=1)))
    micros = int(START.replace(microsecond=0).timestamp()) * 1_000_000 + START.microsecond
    rows = [
        trajectory_row(outcome=Outcome.PASSED, reward=1, quarantine_reasons=("a", "b")),
        trajectory_row(started_at=in_paris, turns=None, steps=[]),
        trajectory_row(started_at=micros, quarantine_reasons=["", "é\0\U0010ffff"]),
    ]
    first, second, third = to_arrow("trajectories", rows).to_pylist()
    assert (first["outcome"], first["reward"], first["quarantine_reasons"]) == ("passed", 1.0, ["a", "b"])
    assert (second["started_at"], second["turns"], second["steps"]) == (START, None, [])
    assert third["started_at"] == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert third["quarantine_reasons"] == ["", "é\0\U0010ffff"]
