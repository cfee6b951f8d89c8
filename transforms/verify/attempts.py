"""Try to run a program against its task's check until the host does not fail. Imports no Beam."""

import asyncio
import random
from dataclasses import dataclass, replace

from sandboxes.protocol import ImageMissing, SandboxError, SandboxProvider, SandboxRequest
from transforms.episode import CaseReport, Failure, now_us
from transforms.grade.outcomes import Outcome
from transforms.sources.task import Task, TaskBroken
from transforms.verify.compile import ToolchainMissing
from transforms.verify.math import VerifierDisagreement
from transforms.verify.measure import measure
from transforms.verify.run import run_check


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a program: a report or a failure. Numbers count from 1; the last try of a program is final."""

    number: int
    final: bool
    started_us: int
    """UTC microseconds."""
    ended_us: int
    report: CaseReport | None
    failure: Failure | None


async def attempt_program(
    sandbox: SandboxProvider, task: Task, program: str, request: SandboxRequest, *, attempts: int,
    measures: frozenset[str] = frozenset(),
) -> list[Attempt]:  # fmt: skip
    """At most so many tries, each in fresh sandboxes, while the host fails; the last of them is final. Never raises.

    A program that passes every case is then measured for the components in `measures`: see `RubricSpec.measures`.
    """
    made: list[Attempt] = []
    while not made or not made[-1].final:
        number, started = len(made) + 1, now_us()
        report, failure, again = await _once(sandbox, task, program, request, measures)
        final = number == attempts or not again
        made.append(Attempt(number, final, started, now_us(), report, failure))
        if not final:
            request = _avoiding(request, failure)
            # Jittered back-off: what failed one sandbox (memory, processes of the host) needs time to pass.
            await asyncio.sleep(min(5.0, 0.2 * 2**number) * random.uniform(0.5, 1.5))
    return made


async def _once(
    sandbox: SandboxProvider, task: Task, program: str, request: SandboxRequest, measures: frozenset[str]
) -> tuple[CaseReport | None, Failure | None, bool]:
    """A report or a failure, and whether another try may fare better."""
    try:
        report = await run_check(sandbox, task, program, request)
        if measures and all(result.outcome is Outcome.PASSED for result in report.results):
            report = replace(report, measured=await measure(sandbox, task, program, report, request, measures))
        return report, None, False
    except SandboxError as error:
        again = not isinstance(error, ImageMissing | ToolchainMissing)
        return None, Failure(Outcome(error.outcome), str(error), error.evidence, error.host), again
    except VerifierDisagreement as error:
        return None, Failure(error.outcome, str(error), error.evidence), False
    except TaskBroken as error:
        return None, Failure(Outcome.GRADER_ERROR, str(error), repr(error)), False
    except Exception as error:  # noqa: BLE001 - the boundary of a verification: a defect of the grader, kept as a row
        return None, Failure(Outcome.GRADER_ERROR, f"unexpected {type(error).__name__}: {error}", repr(error)), False


def _avoiding(request: SandboxRequest, failure: Failure | None) -> SandboxRequest:
    """The same request, for another host where there is one."""
    if failure is None or failure.host is None:
        return request
    return replace(request, demand=replace(request.demand, avoid=request.demand.avoid | {failure.host}))
