"""The suites of the smaller tables, held before a cycle trains: what a run has written of itself must be sound."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from transforms.lake.schemas import TABLES
from transforms.lake.sql import literal, query
from transforms.lake.storage import Place
from transforms.quality.config import QualitySpec
from transforms.quality.queries import QUERIES, table_query
from transforms.quality.rules import Row
from transforms.quality.suite import MAX_DETAIL, frame_of, load_suite, run_suite, version_of


def check_tables(home: Place, spec: QualitySpec, run_id: str, cycle: int) -> list[dict[str, Any]]:
    """Hold each smaller table's rows of a run against its suite; rows of the checks table, one per expectation.

    A table without rows is not looked at. Raises SuiteError, QueryError, TableTooNew, TableTooOld, StoreFailed.
    """
    found: dict[str, list[dict[str, Any]]] = {
        table: query(home, table_query(table, literal(run_id), cycle)).to_pylist() for table in QUERIES
    }
    # A step is a row of its own here: Great Expectations looks at columns.
    found["optimizer_steps"] = [step for policy in found["policies"] for step in policy["optimizer_steps"] or []]
    return [check for suite, rows in found.items() if rows for check in _checks(suite, rows, spec, run_id, cycle)]


def _checks(suite: str, rows: Sequence[Row], spec: QualitySpec, run_id: str, cycle: int) -> list[dict[str, Any]]:
    loaded, checked_at = load_suite(suite), datetime.now(UTC)
    columns = TABLES[suite].names if suite in TABLES else list(rows[0])
    return [
        {
            "run_id": run_id,
            "cycle": cycle,
            "chunk": None,
            "suite": suite,
            "expectation": finding.name,
            "column": finding.column,
            "level": "batch",
            "success": finding.success,
            "observed": finding.observed,
            "limit": 0.0,
            "rows": len(rows),
            "detail": "; ".join(f"row {n}: {told}" for n, told in zip(finding.broken, finding.values, strict=False))[
                :MAX_DETAIL
            ]
            or None,
            "checked_at": checked_at,
            "suite_version": version_of(loaded),
            "severity": spec.level(finding.name),
        }
        for finding in run_suite(loaded, frame_of(rows, columns))
    ]
