import subprocess
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from tests.builders import trajectory_row
from transforms.lake.sink import WriteToDelta
from transforms.lake.sql import query
from transforms.lake.table import CommitResult, Lake

RUNNERS = {
    "in process": ["--runner=FnApiRunner"],
    "portable": ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"],
}


def write(lake: Lake, rows: list[dict[str, object]], version: int, expected: CommitResult, runner: str) -> None:
    with beam.Pipeline(options=PipelineOptions(RUNNERS[runner])) as pipeline:
        results = (
            pipeline
            | beam.Create(rows).with_output_types(dict[str, object])
            | WriteToDelta(lake, "trajectories", app_id="r", version=version, rows_per_file=4)
        )
        assert_that(results, equal_to([expected]))


@pytest.mark.parametrize("runner", RUNNERS)
def test_rows_are_committed_once_and_empty_chunks_too(
    lake: Lake, log: Callable[[str], list[dict[str, dict]]], runner: str
):
    rows = [trajectory_row(trajectory_id=f"{i:02}", cycle=i % 2) for i in range(9)]
    with beam.Pipeline(options=PipelineOptions(RUNNERS[runner])) as pipeline:
        _ = (
            pipeline
            | beam.Create(rows).with_output_types(dict[str, object])
            | WriteToDelta(lake, "trajectories", app_id="r", version=0, rows_per_file=4)
        )
    again = [trajectory_row(trajectory_id="again")]
    write(lake, again, 0, CommitResult("trajectories", 1, committed=False, rows=0, files=0), runner)
    write(lake, [], 1, CommitResult("trajectories", 2, committed=True, rows=0, files=0), runner)
    write(lake, [], 1, CommitResult("trajectories", 2, committed=False, rows=0, files=0), runner)
    ids = query(lake.home, "SELECT trajectory_id FROM trajectories ORDER BY 1").column(0).to_pylist()
    assert ids == [f"{i:02}" for i in range(9)]
    txns = [action["txn"] for action in log("trajectories") if "txn" in action and action["txn"]["appId"] == "r"]
    assert txns == [{"appId": "r", "version": 0}, {"appId": "r", "version": 1}]


def test_a_row_that_does_not_fit_fails_the_chunk_and_commits_nothing(lake: Lake):
    rows = [trajectory_row(), trajectory_row(reward="high")]
    with (
        pytest.raises(Exception, match="table trajectories, row 1, field reward: expected double, got str 'high'"),
        beam.Pipeline(options=PipelineOptions(RUNNERS["in process"])) as pipeline,
    ):
        _ = (
            pipeline
            | beam.Create(rows).with_output_types(dict[str, object])
            | WriteToDelta(lake, "trajectories", app_id="r", version=0)
        )
    assert lake.committed_version("trajectories", "r") is None


def test_the_rest_of_the_lake_does_without_beam(python: Callable[..., subprocess.Popen[str]]):
    child = python("import sys, transforms.lake.table, transforms.lake.sql; print('apache_beam' in sys.modules)")
    output, errors = child.communicate(timeout=60)
    assert output == "False\n", errors


def test_the_stage_is_typed():
    expand = WriteToDelta.expand.__annotations__
    assert expand == {
        "rows": beam.PCollection[dict[str, object] | pa.RecordBatch],
        "return": beam.PCollection[CommitResult],
    }
    assert WriteToDelta(Lake(Path()), "runs", app_id="r", version=0).get_type_hints().has_simple_output_type()
