"""Run each episode's program against its task's cases, in a sandbox."""

import asyncio
import random

import apache_beam as beam

from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxError, SandboxProvider
from transforms.async_map import AsyncDoFn
from transforms.episode import CaseReport, Execution, Failure, Rollout, now_us
from transforms.grade.outcomes import Outcome
from transforms.tally import TALLY
from transforms.verify.call import run_call
from transforms.verify.extract import extract_program


class Verify(beam.PTransform):
    """Execute each rollout's program; try again in a fresh sandbox when the host failed.

    In:   Rollout, in any order.
    Out:  Execution, one per attempt; exactly one of an episode's is final.
    Cost: one fresh sandbox per attempt, `spec.parallel` open at once in each worker process.
    """

    def __init__(self, sandbox: SandboxProvider, spec: SandboxSpec) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.spec = spec

    def expand(self, rollouts: beam.PCollection[Rollout]) -> beam.PCollection[Execution]:
        """Build the stage."""
        sandbox, spec = self.sandbox, self.spec

        async def run(rollout: Rollout) -> list[Execution]:
            return await verify(sandbox, spec, rollout)

        return rollouts | "Run" >> beam.ParDo(AsyncDoFn(run, spec.parallel)).with_output_types(Execution)


async def verify(sandbox: SandboxProvider, spec: SandboxSpec, rollout: Rollout) -> list[Execution]:
    """All attempts at one rollout, the last of them final. Never raises."""
    program = extract_program(rollout.completion.text) if rollout.completion else None
    attempts: list[Execution] = []
    while not attempts or not attempts[-1].final:
        number, started = len(attempts) + 1, now_us()
        report, failure = None, rollout.failure
        if program is not None:
            report, failure = await _attempt(sandbox, spec, rollout, program)
        final = report is not None or program is None or number == spec.attempts or not _retryable(failure)
        attempts.append(Execution(rollout, number, final, sandbox.name, program, started, now_us(), report, failure))
        if not final:
            # Jittered back-off: what failed one sandbox (memory, processes of the host) needs time to pass.
            await asyncio.sleep(min(5.0, 0.2 * 2**number) * random.uniform(0.5, 1.5))
    TALLY.add(graded=1)
    return attempts


async def _attempt(
    sandbox: SandboxProvider, spec: SandboxSpec, rollout: Rollout, program: str
) -> tuple[CaseReport | None, Failure | None]:
    try:
        return await run_call(sandbox, rollout.group.task, program, spec.limits), None
    except SandboxError as error:
        return None, Failure(Outcome(error.outcome), str(error), error.evidence)
    except Exception as error:  # noqa: BLE001 - the boundary of a verification: a defect of the grader, kept as a row
        return None, Failure(Outcome.GRADER_ERROR, f"unexpected {type(error).__name__}: {error}", repr(error))


def _retryable(failure: Failure | None) -> bool:
    return failure is not None and failure.outcome.outcome_class == "infra"
