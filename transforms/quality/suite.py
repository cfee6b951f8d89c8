"""The expectation suites, loaded from their files, and how any suite is run through Great Expectations.

Importing this module costs about three seconds, all of it Great Expectations.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import great_expectations as gx
import pandas as pd
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)

import transforms.quality.expectations  # noqa: F401 - registers the type that the files name
from transforms.quality.config import SUITES
from transforms.quality.rules import Row

MAX_DETAIL = 2_000
"""Characters a check's detail may take."""

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


@cache
def load_suite(name: str) -> gx.ExpectationSuite:
    """The suite that the file `suites/<name>.json` declares; its `meta` says its version."""
    declared = json.loads((SUITES / f"{name}.json").read_text(encoding="utf-8"))
    return gx.ExpectationSuite(**declared)


def version_of(suite: gx.ExpectationSuite) -> int:
    """The version that the suite's file declares."""
    meta: Any = suite.meta
    return meta["version"]


def frame_of(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """The rows as Great Expectations reads them: Python values as they are, so that null is None and never NaN."""
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in columns})


def run_suite(
    suite: gx.ExpectationSuite, frame: pd.DataFrame, parameters: dict[str, float] | None = None
) -> list[Finding]:
    """Validate a frame; one finding per expectation, in the suite's order.

    `parameters` are the values of the file's `$PARAMETER`s. Raises SuiteError if an expectation cannot run.
    """
    with _gx_lock:
        batch = _batch_definition().get_batch({"dataframe": frame})
        validated: Any = batch.validate(
            suite, result_format={"result_format": "COMPLETE"}, expectation_parameters=parameters
        )
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
