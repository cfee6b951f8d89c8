"""What programs left and printed -> files beside the tables, so that a row's digests can be followed."""

import asyncio
from dataclasses import replace

import apache_beam as beam

from transforms.async_map import AsyncDoFn
from transforms.episode import Execution
from transforms.grade.outcomes import Outcome
from transforms.lake import blobs
from transforms.lake.storage import Place

_AT_ONCE = 8


class KeepFiles(beam.PTransform):
    """Keep each attempt's workspace, and what its processes printed where a case failed, as files of the home.

    In:   Execution, one per attempt, in any order.
    Out:  the same Executions, with the digests of what was kept, and without the workspace's archive.
    Cost: at most two files an attempt, none for most that pass; eight attempts at once in each worker process. Safe to
          retry, as equal content is one file. Raises LakeError, which fails the bundle.
    """

    def __init__(self, home: Place) -> None:
        super().__init__()
        self.home = home

    def expand(self, executions: beam.PCollection[Execution]) -> beam.PCollection[Execution]:
        """Build the stage."""
        home = self.home

        async def run(execution: Execution) -> list[Execution]:
            return [await asyncio.to_thread(kept, home, execution)]

        return executions | "Keep" >> beam.ParDo(AsyncDoFn(run, _AT_ONCE)).with_output_types(Execution)


def kept(home: Place, execution: Execution) -> Execution:
    """The execution with digests for what of it is a file now. Raises LakeError."""
    report = execution.report
    if report is None:
        return execution
    archive, printed = report.workspace, b""
    if any(result.outcome is not Outcome.PASSED for result in report.results):
        streams = {"stdout": report.usage.stdout, "stderr": report.usage.stderr}
        printed = b"".join(f"== {name}\n".encode() + said for name, said in streams.items() if said)
    return replace(
        execution,
        report=replace(report, workspace=None),
        workspace_digest=None if archive is None else blobs.keep(home, archive.archive),
        output_digest=blobs.keep(home, printed) if printed else None,
    )
