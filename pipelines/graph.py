"""The dataflow of one chunk: groups in, committed trajectories and checks out."""

import logging

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.plan import Chunk
from pipelines.spec import RunSpec
from sandboxes.protocol import SandboxProvider
from transforms.grade.grade import Grade, GraderBroken, ImageUsed
from transforms.lake.errors import LakeError
from transforms.lake.keep import KeepFiles
from transforms.lake.sink import WriteToDelta
from transforms.lake.table import Lake
from transforms.quality.suite import SuiteError
from transforms.quality.validate import Validate
from transforms.rollout.policy import EngineLost, PolicyEngine
from transforms.rollout.rollout import RolloutGroups
from transforms.verify.verify import Verify

# Beam logs an error and its traceback before it raises it; whoever catches it says it once.
logging.getLogger("apache_beam").setLevel(logging.CRITICAL)


def run_chunk(
    chunk: Chunk, *, run_id: str, spec: RunSpec, engine: PolicyEngine, sandbox: SandboxProvider, image: ImageUsed,
    lake: Lake,
) -> None:  # fmt: skip
    """Run one chunk to its commit. Calling it again after a crash commits nothing twice.

    The runner is pinned: Beam's default one tries to download another runner at every start. Raises LakeError,
    SuiteError, EngineLost and GraderBroken as its stages do, and RuntimeError for what no stage foresaw.
    """
    in_flight = max(1, spec.engine.concurrent // max(group.n for group in chunk.groups))
    try:
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
            validated = (
                pipeline
                | "Groups" >> beam.Create(chunk.groups)
                | "Rollout" >> RolloutGroups(engine, concurrency=in_flight)
                | "Verify" >> Verify(sandbox, spec.sandbox, owner=run_id, measures=spec.rubric.measures)
                | "Keep" >> KeepFiles(lake.home)
                | "Grade" >> Grade(spec.rubric, engine.name, image)
                | "Validate" >> Validate(run_id=run_id, cycle=chunk.cycle, chunk=chunk.number, cases=chunk.cases)
            )
            validated.rows | "Trajectories" >> WriteToDelta(lake, "trajectories", app_id=run_id, version=chunk.number)
            validated.checks | "Checks" >> WriteToDelta(lake, "checks", app_id=checks_app(run_id), version=chunk.number)
    except RuntimeError as error:
        # Beam wraps what a stage raises; in one process the original is still behind it.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, LakeError | SuiteError | EngineLost | GraderBroken):
            cause = cause.__cause__ or cause.__context__
        raise (cause or error) from None


def checks_app(run_id: str) -> str:
    """The application id under which a run's row-level checks are committed, a version a chunk."""
    return f"{run_id}/checks"
