"""The kind `sql`: SQL is run in a fresh SQLite database, and the rows it gives are compared."""

import math
from dataclasses import dataclass
from typing import ClassVar

from transforms.sources.kinds.tolerance import Tolerance, tolerance, tolerance_field
from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, value_fields
from transforms.sources.task import Integrity, Tier

Cell = int | float | str | bytes | None
"""A value of SQLite; booleans are the integers 0 and 1."""
Row = tuple[Cell, ...]

FIELDS = {
    "setup": "SQL script that makes the tables and their rows: a string",
    "probe": "SQL run after the submission, whose rows are compared instead of the submission's own: a string",
    "changes": "tables of the setup whose rows a submission may change: a list of strings",
    "redefines": "what of the setup a submission may define anew, index or give triggers: a list of strings",
    "ordered": "whether the order of the rows counts: true or false",
    "columns": "names the result's columns must have, in their order: a list of strings",
    "tolerance": 'how far a float may be off, such as {"relative": 1e-6}: an object',
    "cases": "databases and the rows expected of them: a list of objects",
}
CASE_FIELDS = HEAD_FIELDS | {
    "setup": "SQL script run after the task's own setup: a string",
    "probe": "SQL that replaces the task's probe for this case: a string",
    "expected": "the rows: a list of lists of numbers, strings and nulls",
    "expected_py": "the rows: a Python literal in a string, for bytes and inf",
}
_INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Case:
    """One database and the rows it must give."""

    name: str
    expected: tuple[Row, ...]
    setup: str = ""
    """Run after the check's own setup."""
    probe: str = ""
    """Replaces the check's probe."""
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class Sql:
    """Write SQL for SQLite; each case runs it in a fresh database and compares rows."""

    kind: ClassVar[str] = "sql"
    integrity: ClassVar[Integrity] = "split"
    language: ClassVar[str] = "sql"

    cases: tuple[Case, ...]
    setup: str = ""
    probe: str = ""
    """Run on a copy of the main database after the submission; empty where the submission's own rows are compared."""
    changes: tuple[str, ...] = ()
    """Tables of the setup whose rows may change. Empty: all of them where there is a probe, none where there is not."""
    redefines: tuple[str, ...] = ()
    """Tables, views, indexes and triggers of the setup that may be defined anew; tables that may get more of these."""
    ordered: bool = False
    columns: tuple[str, ...] = ()
    """Names the result's columns must have, letter case aside; empty where names do not count."""
    tolerance: Tolerance | None = None
    """For floats alone; None: they are equal or not."""


def read(record: Record) -> Sql:
    """Read the kind's fields of a task. Raises TaskFileError."""
    check = Sql(
        cases=record.cases(CASE_FIELDS, _case),
        setup=record.text("setup") or "",
        probe=record.text("probe") or "",
        changes=record.texts("changes"),
        redefines=record.texts("redefines"),
        ordered=record.flag("ordered"),
        columns=record.texts("columns"),
        tolerance=tolerance(record),
    )
    for case in check.cases:
        if check.columns and case.expected and len(case.expected[0]) != len(check.columns):
            problem = f"case {case.name!r}: its rows have {len(case.expected[0])} columns, `columns` has another number"
            raise record.error(problem, "give each row of `expected` one value for each name in `columns`")
    return check


def write(check: Sql) -> dict[str, object]:
    """The kind's fields of a task's record."""
    optional = {
        "setup": check.setup,
        "probe": check.probe,
        "changes": list(check.changes),
        "redefines": list(check.redefines),
        "ordered": check.ordered,
        "columns": list(check.columns),
    }
    cases = [
        head_fields(case)
        | {name: text for name, text in (("setup", case.setup), ("probe", case.probe)) if text}
        | value_fields("expected", [list(row) for row in case.expected])
        for case in check.cases
    ]
    return (
        {name: value for name, value in optional.items() if value} | tolerance_field(check.tolerance) | {"cases": cases}
    )


def describe(check: Sql, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    what = "the probe" if case.probe or check.probe else "the submission"
    order = "in this order" if check.ordered else "in any order"
    return f"{what} must give {[list(row) for row in case.expected]!r} {order}"


def _case(record: Record, head: CaseHead) -> Case:
    rows = record.value("expected", required=True)
    name = "expected" if "expected" in record.data else "expected_py"
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise record.must_be(name, "a list of rows, each a list of values")
    if len({len(row) for row in rows}) > 1 or any(not row for row in rows):
        raise record.error(f"the rows of `{name}` are not of one length", "give each row one value for each column")
    for value in (value for row in rows for value in row):
        if not _storable(value):
            hint = "integers of 64 bits, floats (nan is NULL: null), strings, null and bytes; true is 1, false is 0"
            raise record.error(f"`{name}` holds {value!r}, which is no value of SQLite", hint)
    return Case(
        head.name,
        tuple(map(tuple, rows)),
        record.text("setup") or "",
        record.text("probe") or "",
        head.tier,
        head.milestone,
    )


def _storable(value: object) -> bool:
    if type(value) is float:
        return not math.isnan(value)
    if type(value) is int:
        return value in _INTEGERS
    return value is None or type(value) in (str, bytes)
