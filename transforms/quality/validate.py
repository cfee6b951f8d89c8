"""Hold every row against the expectation suite. Nothing is dropped: a row that breaks something carries its reasons."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
import pandas as pd
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from transforms.lake.schemas import TRAJECTORIES
from transforms.quality.rules import Row
from transforms.quality.suite import MAX_DETAIL, Finding, frame_of, load_suite, run_suite, version_of

ROW_SUITE = "trajectories"
"""Name of the row-level suite."""

Cases = Mapping[str, Sequence[str]]
"""Names of the cases of each task, by the hash of its content."""

BATCH_ROWS = 1_000
"""Rows validated at once: Great Expectations takes about as long for one row as for a thousand."""


class Validate(beam.PTransform):
    """Fill in the quarantine reasons of each row, and say how each expectation fared.

    In:   rows of the trajectories table, in any order.
    Out:  `rows`: every row, once, with `quarantine_reasons` naming what it breaks;
          `checks`: rows of the checks table, one per expectation and batch.
    Cost: some 0.1 seconds per batch of up to 1,000 rows of one bundle, which are held in memory. The batch is also
          what `trajectory_id` is unique in. Safe to retry. Fails with SuiteError if an expectation cannot run.
    """

    def __init__(self, *, run_id: str, cycle: int, chunk: int, cases: Cases) -> None:
        super().__init__()
        self.cases = cases
        self.run_id = run_id
        self.cycle = cycle
        self.chunk = chunk

    def expand(self, rows: beam.PCollection[dict[str, Any]]) -> Any:
        """Build the stage; the result has the collections `rows` and `checks`."""
        validate = _ValidateFn(self.run_id, self.cycle, self.chunk, self.cases)
        return rows | "Batches" >> beam.ParDo(validate).with_outputs("checks", main="rows")


class _ValidateFn(beam.DoFn):
    def __init__(self, run_id: str, cycle: int, chunk: int, cases: Cases) -> None:
        self.place = (run_id, cycle, chunk)
        self.cases = cases

    def start_bundle(self) -> None:
        self.batch: list[dict[str, Any]] = []

    def process(self, element: dict[str, Any]) -> Iterator[Any]:
        self.batch.append(element)
        if len(self.batch) >= BATCH_ROWS:
            yield from self.finish_bundle()

    def finish_bundle(self) -> Iterator[Any]:
        rows, checks = validate_rows(self.batch, *self.place, self.cases)
        self.batch = []
        for row in rows:
            yield _in_global_window(row)
        for check in checks:
            yield beam.pvalue.TaggedOutput("checks", _in_global_window(check))


def _in_global_window(value: dict[str, Any]) -> WindowedValue:
    return WindowedValue(value, GlobalWindow().max_timestamp(), (GlobalWindow(),))


def validate_rows(
    rows: Sequence[Row], run_id: str, cycle: int, chunk: int, cases: Cases
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Copies of the rows with `quarantine_reasons` set anew, and one row of the checks table per expectation.

    Reasons are expectation names, in the suite's order. Tests are held against `cases`, where their task is in it.
    Raises SuiteError if an expectation cannot run.
    """
    if not rows:
        return [], []
    reasons: list[list[str]] = [[] for _ in rows]
    checks = []
    frame = frame_of(rows, TRAJECTORIES.names)
    frame["task_cases"] = pd.Series([cases.get(row["task_hash"]) for row in rows], dtype=object)
    for finding in run_suite(load_suite(ROW_SUITE), frame):
        for position in finding.broken:
            reasons[position].append(finding.name)
        checks.append(_check(finding, rows, run_id, cycle, chunk))
    return [{**row, "quarantine_reasons": names} for row, names in zip(rows, reasons, strict=True)], checks


def _check(finding: Finding, rows: Sequence[Row], run_id: str, cycle: int, chunk: int) -> dict[str, Any]:
    shown = zip(finding.broken, finding.values, strict=False)  # values are the first few only
    detail = "; ".join(f"{rows[position]['trajectory_id']}: {value}" for position, value in shown)
    return {
        "run_id": run_id,
        "cycle": cycle,
        "chunk": chunk,
        "suite": ROW_SUITE,
        "expectation": finding.name,
        "column": finding.column,
        "level": "row",
        "success": finding.success,
        "observed": finding.observed,
        "limit": 0.0,
        "rows": len(rows),
        "detail": detail[:MAX_DETAIL] or None,
        "checked_at": datetime.now(UTC),
        "suite_version": version_of(load_suite(ROW_SUITE)),
        "severity": None,
    }
