"""The row-level expectation suite, and how any suite is run through Great Expectations.

Importing this module costs about three seconds, all of it Great Expectations.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.expectations.expectation import Expectation

from transforms.episode import Purpose
from transforms.grade.outcomes import Outcome
from transforms.quality.rules import RULES, Row

ROW_SUITE = "trajectory"
"""Name of the row-level suite."""

_FLAT_COLUMNS = ("trajectory_id", "purpose", "sample", "attempt", "outcome", "outcome_class")
_gx_lock = threading.Lock()  # Great Expectations keeps its context in a global of the process


class SuiteError(RuntimeError):
    """An expectation could not be evaluated. That is a defect of the suite or of the rows' shape, never a pass."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one expectation found in one batch."""

    name: str
    column: str | None
    success: bool
    observed: float | None
    """The measured aggregate, or the number of rows that broke it; None when there was nothing to measure."""
    broken: tuple[int, ...] = ()
    """Positions of all rows that broke it; empty for aggregates."""
    values: tuple[object, ...] = ()
    """What was found in the first of them: Great Expectations hands back 200 at most."""


def about(name: str, column: str | None) -> dict[str, object]:
    """The meta data of an expectation: its name in reasons and checks, and the table's column it is about."""
    return {"name": name, "column": column}


@cache
def row_suite() -> gx.ExpectationSuite:
    """What each trajectory row must satisfy: flat columns by built-in expectations, the rest by `RULES`.

    A rule's column of the frame holds what is wrong with the row, and must be null.
    """
    flat: list[Expectation] = [
        gxe.ExpectColumnValuesToBeUnique(column="trajectory_id", meta=about("trajectory_id_unique", "trajectory_id")),
        gxe.ExpectColumnPairValuesToBeInSet(
            column_A="outcome",
            column_B="outcome_class",
            value_pairs_set=[(str(outcome), str(outcome.outcome_class)) for outcome in Outcome],
            meta=about("outcome_in_contract", "outcome"),
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="purpose", value_set=list(get_args(Purpose)), meta=about("purpose_known", "purpose")
        ),
        gxe.ExpectColumnValuesToBeBetween(column="attempt", min_value=1, meta=about("attempt_from_one", "attempt")),
        gxe.ExpectColumnValuesToBeBetween(column="sample", min_value=0, meta=about("sample_from_zero", "sample")),
    ]
    ruled = [
        gxe.ExpectColumnValuesToBeNull(column=name, meta=about(name, column)) for name, (column, _) in RULES.items()
    ]
    return gx.ExpectationSuite(name=ROW_SUITE, expectations=[*flat, *ruled])


def row_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One line per row: the flat columns as they are, and for each rule what it says is wrong, or None.

    Raises SuiteError when a rule cannot read a row.
    """
    columns: dict[str, list[object]] = {name: [row[name] for row in rows] for name in _FLAT_COLUMNS}
    for name, (_, rule) in RULES.items():
        told = columns[name] = []
        for row in rows:
            try:
                told.append(rule(row))
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                raise SuiteError(
                    f"rule {name} cannot read trajectory {row['trajectory_id']}: {type(error).__name__}: {error}"
                ) from error
    return pd.DataFrame(columns, dtype=object)


def run_suite(suite: gx.ExpectationSuite, frame: pd.DataFrame) -> list[Finding]:
    """Validate a frame; one finding per expectation, in the suite's order. Raises SuiteError if one cannot run."""
    with _gx_lock:
        batch = _batch_definition().get_batch({"dataframe": frame})
        validated: Any = batch.validate(suite, result_format={"result_format": "COMPLETE"})
    found = {result.expectation_config.meta["name"]: result for result in validated.results}
    expectations: list[Any] = suite.expectations
    return [_finding(expectation.meta["name"], found) for expectation in expectations]


def _finding(name: str, found: dict[str, Any]) -> Finding:
    if name not in found:
        raise SuiteError(f"expectation {name} has no result")
    result = found[name]
    if not result.success and not result.result:
        causes = [str(info["exception_message"]) for info in result.exception_info.values() if isinstance(info, dict)]
        raise SuiteError(f"expectation {name} could not run: {'; '.join(causes) or result.exception_info}")
    column, success, details = result.expectation_config.meta["column"], bool(result.success), result.result
    if "observed_value" in details:
        value = details["observed_value"]
        return Finding(name, column, success, None if value is None else float(value))
    broken = tuple(map(int, details["unexpected_index_list"]))
    if len(broken) != details["unexpected_count"]:
        raise SuiteError(f"expectation {name} counts {details['unexpected_count']} rows and names {len(broken)}")
    return Finding(name, column, success, float(len(broken)), broken, tuple(details["unexpected_list"]))


@cache
def _batch_definition() -> BatchDefinition:
    """The one in-memory context of this process, and in it the batch that a frame is handed to."""
    settings = DataContextConfig(
        # Defaults that, unlike the context's own, make no temporary folder for a documentation site.
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False),
    )
    context = gx.get_context(mode="ephemeral", project_config=settings)
    asset = context.data_sources.add_pandas("headrace").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("all")
