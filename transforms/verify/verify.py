"""Run each episode's program against its task's cases, in a sandbox."""

import apache_beam as beam

from sandboxes.backends.choose import request_of
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.async_map import AsyncDoFn
from transforms.episode import Execution, Rollout, now_us
from transforms.tally import TALLY
from transforms.verify.attempts import attempt_program
from transforms.verify.extract import extract_submission


class Verify(beam.PTransform):
    """Execute each rollout's program; try again in a fresh sandbox when the host failed.

    In:   Rollout, in any order.
    Out:  Execution, one per attempt; exactly one of an episode's is final.
    Cost: one fresh sandbox per attempt, `spec.parallel` open at once in each worker process. Each of `measures` (see
          `RubricSpec.measures`) takes more of them, for a program that passed every case.
    """

    def __init__(
        self, sandbox: SandboxProvider, spec: SandboxSpec, *, owner: str, measures: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.measures = measures
        self.sandbox = sandbox
        self.spec = spec
        self.request = request_of(spec, owner=owner)

    def expand(self, rollouts: beam.PCollection[Rollout]) -> beam.PCollection[Execution]:
        """Build the stage."""
        sandbox, spec, request, measures = self.sandbox, self.spec, self.request, self.measures

        async def run(rollout: Rollout) -> list[Execution]:
            return await verify(sandbox, request, rollout, attempts=spec.attempts, measures=measures)

        return rollouts | "Run" >> beam.ParDo(AsyncDoFn(run, spec.parallel)).with_output_types(Execution)


async def verify(
    sandbox: SandboxProvider, request: SandboxRequest, rollout: Rollout, *, attempts: int,
    measures: frozenset[str] = frozenset(),
) -> list[Execution]:  # fmt: skip
    """At most so many attempts at one rollout, the last of them final. Never raises."""
    check = rollout.group.task.check
    program = extract_submission(rollout.completion.text, check) if rollout.completion else None
    if program is None:
        now = now_us()
        made = [Execution(rollout, 1, True, sandbox.name, None, now, now, None, rollout.failure)]
    else:
        tries = await attempt_program(
            sandbox, rollout.group.task, program, request, attempts=attempts, measures=measures
        )
        made = [
            Execution(
                rollout, each.number, each.final, sandbox.name, program, each.started_us, each.ended_us, each.report,
                each.failure,
            )
            for each in tries
        ]  # fmt: skip
    TALLY.add(graded=1)
    return made
