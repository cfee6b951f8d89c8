"""The kind `sql`: the rows that SQL gives against the rows it must give. Expected rows stay in this process."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.episode import CaseReport, CaseResult, together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.sql import Case, Cell, Row, Sql
from transforms.sources.kinds.tolerance import Tolerance
from transforms.sources.task import TaskBroken
from transforms.verify.calls import Answer, Arguments, Function, call_function

_RUNNER = Function((Path(__file__).parent / "inside/sql_runner.py").read_text(encoding="utf-8"), "run")
_MOST_PAIRED = 100  # rows alike but for their floats, up to which pairs are looked for: at most the cube in steps
_CELLS = (int, float, str, bytes, type(None))


async def run_sql(sandbox: SandboxProvider, check: Sql, program: str, request: SandboxRequest) -> CaseReport:
    """Run every case of a check against a submission, each in a database of its own.

    Raises SandboxError when the host failed, TaskBroken when the SQL of the task's own setup does not run.
    """
    max_bytes = request.limits.output_kib * 1024
    calls = [_arguments(check, case, program, max_bytes) for case in check.cases]
    answers, usage = await call_function(sandbox, _RUNNER, calls, request)
    for case, answer in zip(check.cases, answers, strict=True):
        if isinstance(answer.value, tuple) and answer.value[:1] == ("setup_failed",):
            # Asked again with no submission near it: no submission can turn its own end into a fault of the task.
            alone = _arguments(check, case, "", max_bytes)
            (again,), more = await call_function(sandbox, _RUNNER, [alone], request)
            if again.value == answer.value:
                raise TaskBroken(f"case {case.name!r}: `setup` fails: {answer.value[1]}")
            usage = together([usage, more], output_bytes=max_bytes)
    results = (_judged(check, case, answer) for case, answer in zip(check.cases, answers, strict=True))
    return CaseReport(tuple(results), usage)


def _arguments(check: Sql, case: Case, program: str, max_bytes: int) -> Arguments:
    probe = case.probe or check.probe
    changes = None if probe and not check.changes else list(check.changes)
    setups = [check.setup, case.setup]
    return Arguments((setups, program, probe, check.ordered, changes, list(check.redefines), max_bytes))


def _judged(check: Sql, case: Case, answer: Answer) -> CaseResult:
    outcome, message, got = answer.outcome, answer.message, None
    if outcome is None:
        match answer.value:
            case ("rows", [*names], [*rows]) if all(map(_is_row, rows)):
                outcome, message, got = _compared(check, case, names, rows)
            case ("no_rows",):
                outcome, message = Outcome.FAILED_TESTS, "no statement gives rows"
            case ("too_large",):
                outcome, message = Outcome.OUTPUT_LIMIT, "the rows are too large"
            case ("by_chance",):
                outcome, message = Outcome.FAILED_TESTS, "nothing asks for the order that the rows came in"
            case ("disturbed", str(name), str(what)):
                outcome, message = Outcome.FAILED_TESTS, f"{name!r} {what}"
            case ("probe_failed", str(why)):
                outcome, message = Outcome.FAILED_TESTS, f"the database cannot be asked: {why}"
            case (("syntax_error" | "runtime_error" | "disk_limit") as tag, str(why)):
                outcome, message = Outcome(tag), why
            case _:
                outcome, message = Outcome.TAMPERED, "a forged reply: not what the runner gives"
    expected_type = "rows" if outcome is Outcome.FAILED_TESTS else None
    return CaseResult.of(case, outcome, message, answer.duration_s, got=got, expected_type=expected_type)


def _is_row(row: object) -> bool:
    return isinstance(row, tuple) and all(type(cell) in _CELLS for cell in row)


def _compared(check: Sql, case: Case, names: Sequence[object], rows: Sequence[Any]) -> tuple[Outcome, str, str | None]:
    """The outcome, why, and the row that is wrong."""
    if check.columns and [str(name).lower() for name in names] != [name.lower() for name in check.columns]:
        return Outcome.FAILED_TESTS, "wrong column names", ", ".join(map(str, names))
    if case.expected and len(names) != len(case.expected[0]):
        return Outcome.FAILED_TESTS, f"wrong number of columns: {len(names)}", None
    if check.ordered:
        for number, (row, wanted) in enumerate(zip(rows, case.expected, strict=False), 1):
            if not _same(row, wanted, check.tolerance):
                return Outcome.FAILED_TESTS, f"row {number} is wrong", repr(row)
        surplus = rows[len(case.expected) :]
    else:
        surplus = _unmatched(rows, case.expected, check.tolerance)
    if surplus:
        return Outcome.FAILED_TESTS, "a row that must not be there, or not so often", repr(surplus[0])
    if len(rows) < len(case.expected):
        return Outcome.FAILED_TESTS, f"rows are missing: {len(rows)} came", None
    return Outcome.PASSED, "", None


def _unmatched(rows: Sequence[Row], expected: Sequence[Row], tolerance: Tolerance | None) -> Sequence[Row]:
    """Rows that match no expected one, each of which matches once."""
    groups: dict[object, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for row in rows:
        groups[_exact(row, tolerance)][0].append(row)
    for row in expected:
        groups[_exact(row, tolerance)][1].append(row)
    if tolerance is None:  # the rows of a group are all the same
        return [row for came, wanted in groups.values() for row in came[len(wanted) :]]
    return [row for came, wanted in groups.values() for row in _unpaired(came, wanted, tolerance)]


def _exact(row: Row, tolerance: Tolerance | None) -> tuple[tuple[type, Cell], ...]:
    """What of a row must be the same in another one: floats only where there is no tolerance."""
    return tuple((type(cell), None if tolerance is not None and type(cell) is float else cell) for cell in row)


def _unpaired(came: list[Row], wanted: list[Row], tolerance: Tolerance) -> list[Row]:
    """Rows left over when as many as possible are paired with one that is within the tolerance.

    All rows are alike but for their floats. Sorted, they pair in turn, unless a float that differs within the tolerance
    changes their order: then the pairs are found by augmenting paths (Kuhn 1955), among few rows.
    """
    came, wanted = sorted(came, key=_floats), sorted(wanted, key=_floats)
    apart = [row for row, other in zip(came, wanted, strict=False) if not _same(row, other, tolerance)]
    if not apart or max(len(came), len(wanted)) > _MOST_PAIRED:
        return apart or came[len(wanted) :]
    partner: dict[int, int] = {}

    def pair(number: int, tried: set[int]) -> bool:
        for place, other in enumerate(wanted):
            if place not in tried and _same(came[number], other, tolerance):
                tried.add(place)
                if place not in partner or pair(partner[place], tried):
                    partner[place] = number
                    return True
        return False

    return [row for number, row in enumerate(came) if not pair(number, set())]


def _floats(row: Row) -> list[float]:
    return [cell for cell in row if isinstance(cell, float)]


def _same(row: Row, wanted: Row, tolerance: Tolerance | None) -> bool:
    """Whether two rows hold the same values of the same types, floats within the tolerance."""
    return len(row) == len(wanted) and all(
        type(cell) is type(other) and (cell == other or _near(cell, other, tolerance))
        for cell, other in zip(row, wanted, strict=True)
    )


def _near(cell: Cell, wanted: Cell, tolerance: Tolerance | None) -> bool:
    if tolerance is None or not (isinstance(cell, float) and isinstance(wanted, float)):
        return False
    return math.isfinite(wanted) and tolerance.within(cell, wanted)
