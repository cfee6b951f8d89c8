import time
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.decorators import TypeCheckError

from tests.builders import trajectory_row
from transforms.lake.schemas import CHECKS
from transforms.quality.suite import _batch_definition, load_suite
from transforms.quality.validate import BATCH_ROWS, ROW_SUITE, Validate, validate_rows

EXPECTATIONS = len(load_suite(ROW_SUITE).expectations)


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [trajectory_row(trajectory_id=f"t-{number}", **changes) for number in range(count)]


def test_each_row_comes_back_with_its_reasons_and_the_input_is_left_alone():
    given = [*rows(2), trajectory_row(trajectory_id="bad", reward=2.0, sample=-1, quarantine_reasons=["stale"])]
    validated, _ = validate_rows(given, "run-1", 1, 3, {})
    assert [row["trajectory_id"] for row in validated] == ["t-0", "t-1", "bad"]
    assert [row["quarantine_reasons"] for row in validated] == [[], [], ["sample_from_zero", "reward_in_range"]]
    assert {**validated[2], "quarantine_reasons": ["stale"]} == given[2]


def test_there_is_one_check_per_expectation_and_it_says_what_broke_it():
    _, checks = validate_rows([*rows(2), trajectory_row(trajectory_id="bad", reward=2.0)], "run-1", 1, 3, {})
    assert len(checks) == EXPECTATIONS
    assert pa.Table.from_pylist(checks, schema=CHECKS).num_rows == EXPECTATIONS
    assert all(set(check) == set(CHECKS.names) for check in checks)
    [broken] = [check for check in checks if not check["success"]]
    broken.pop("checked_at")
    assert broken == {
        "run_id": "run-1", "cycle": 1, "chunk": 3, "suite": "trajectories", "expectation": "reward_in_range",
        "column": "reward", "level": "row", "success": False, "observed": 1.0, "limit": 0.0, "rows": 3,
        "detail": "bad: reward 2.0", "suite_version": 1, "severity": None,
    }  # fmt: skip
    assert {(check["observed"], check["detail"]) for check in checks if check["success"]} == {(0.0, None)}


def test_every_broken_row_has_its_reason_although_details_are_bounded():
    checks: list[dict[str, Any]]
    validated, checks = validate_rows(rows(500, reward=2.0), "run-1", 1, 3, {})  # Great Expectations shows 200 values
    assert [row["quarantine_reasons"] for row in validated] == [["reward_in_range"]] * 500
    assert max(len(check["detail"] or "") for check in checks) == 2_000
    assert max(check["observed"] for check in checks) == 500.0


def test_no_rows_give_no_checks():
    assert validate_rows([], "run-1", 1, 3, {}) == ([], [])


def test_the_stage_keeps_every_row_and_checks_each_batch():
    given = [*rows(BATCH_ROWS + 1), trajectory_row(trajectory_id="bad", reward=2.0)]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        out = pipeline | beam.Create(given) | Validate(run_id="run-1", cycle=1, chunk=3, cases={})
        ids = out.rows | "Ids" >> beam.Map(lambda row: row["trajectory_id"])
        bad = out.rows | beam.Filter(lambda row: row["quarantine_reasons"]) | beam.Map(lambda row: row["trajectory_id"])
        sizes = out.checks | beam.Map(lambda check: check["rows"]) | beam.combiners.Count.PerElement()
        assert_that(ids, equal_to([row["trajectory_id"] for row in given]), label="every row once")
        assert_that(bad, equal_to(["bad"]), label="reasons")
        assert_that(sizes, equal_to([(BATCH_ROWS, EXPECTATIONS), (2, EXPECTATIONS)]), label="a check per batch")


def test_an_empty_stage_gives_nothing():
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        out = pipeline | beam.Create([]) | Validate(run_id="run-1", cycle=1, chunk=3, cases={})
        assert_that(out.rows, equal_to([]), label="rows")
        assert_that(out.checks, equal_to([]), label="checks")


def test_an_expectation_that_cannot_run_fails_the_pipeline():
    with (
        pytest.raises(Exception, match="rule reward_in_range cannot read trajectory t-0"),
        beam.Pipeline(runner="FnApiRunner") as pipeline,
    ):
        pipeline | beam.Create(rows(1, reward="high")) | Validate(run_id="run-1", cycle=1, chunk=3, cases={})


def test_beam_refuses_the_stage_after_one_that_gives_something_else():
    pipeline = beam.Pipeline(runner="FnApiRunner")
    numbers = pipeline | beam.Create([1]) | beam.Map(str).with_output_types(str)
    with pytest.raises(TypeCheckError, match="Validate"):
        numbers | Validate(run_id="run-1", cycle=1, chunk=3, cases={})


def test_it_makes_no_noise(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, recwarn):
    _batch_definition.cache_clear()  # the making of the context is what used to talk
    validate_rows(rows(3, reward=2.0), "run-1", 1, 3, {})
    out, err = capfd.readouterr()
    assert (out, err, caplog.messages, list(recwarn)) == ("", "", [], [])


def test_a_chunk_is_validated_in_a_fraction_of_a_second():
    chunk = rows(128)
    validate_rows(chunk, "run-1", 1, 3, {})
    started = time.process_time()
    validate_rows(chunk, "run-1", 1, 3, {})
    assert time.process_time() - started < 0.5  # 0.11 measured; a context or a suite made anew each time would show
