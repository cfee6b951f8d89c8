"""One run of a program on one performance input, kind by kind: what it came to, how long it took, what it held.

A run has a fresh process in a fresh sandbox. Its time is the CPU time of all in that sandbox, as its control group
counts it: what else the machine does hardly shows in it (wall time beside it spreads four times as wide), and neither
does waiting. So it holds the start of a process, and of the interpreter for `stdio`; compilation is not in it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from sandboxes.protocol import SandboxProvider, SandboxRequest, Usage
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds import call, stdio
from transforms.sources.languages import LANGUAGES
from transforms.sources.task import Check
from transforms.verify.call import are_right
from transforms.verify.calls import Answer, Arguments, Function, call_function
from transforms.verify.compile import compile_program, run_request
from transforms.verify.stdio import run_case, verdicts_of


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    outcome: Outcome | None
    """None where it gave `output`; else why it gave none."""
    message: str
    output: Any
    seconds: float
    """Of CPU time; on the host's clock, from the input's departure to the answer's arrival, where no group counts."""
    peak_memory_bytes: int


Timer = Callable[[Any], Awaitable[Run]]
"""Runs a program on an input. Raises SandboxError when the host failed."""


async def timer_of(sandbox: SandboxProvider, check: Check, program: str, request: SandboxRequest) -> Timer | None:
    """A program made ready to be timed; None for a kind whose programs are not. Raises SandboxError."""
    if isinstance(check, call.Call):
        return _call_timer(sandbox, check, program, request)
    if isinstance(check, stdio.Stdio):
        return await _stdio_timer(sandbox, check, program, request)
    return None


async def is_right(
    sandbox: SandboxProvider, check: Check, given: Any, run: Run, gold: Run, request: SandboxRequest
) -> bool:
    """Whether a program's output on an input is right where the gold's is, by the rules of its check."""
    if isinstance(check, call.Call):
        one = replace(check, cases=(call.Case("input", given, gold.output),))
        (right,) = await are_right(sandbox, one, [Answer(None, run.output)], request)
        return right
    assert isinstance(check, stdio.Stdio)
    case = stdio.Case("input", given, gold.output)
    verdicts = await verdicts_of(sandbox, check, {case: run.output}, request)
    return verdicts[case][0] is Outcome.PASSED


def _seconds(usage: Usage, wall_s: float) -> float:
    return wall_s if usage.limits_enforced_by == "rlimits" else usage.cpu_s


def _call_timer(sandbox: SandboxProvider, check: call.Call, program: str, request: SandboxRequest) -> Timer:
    function = Function(program, check.entry_point, check.prefix, check.language)
    asked = request
    if check.language != "python":
        asked = replace(request, limits=LANGUAGES[check.language].stretched(request.limits))

    async def run(args: Any) -> Run:
        (answer,), usage = await call_function(sandbox, function, [Arguments(args)], asked)
        return Run(
            answer.outcome, answer.message, answer.value, _seconds(usage, answer.duration_s), usage.peak_memory_bytes
        )

    return run


async def _stdio_timer(
    sandbox: SandboxProvider, check: stdio.Stdio, program: str, request: SandboxRequest
) -> Timer | None:
    language = LANGUAGES[check.language]
    compiled = await compile_program(sandbox, language, program, request)
    if compiled.refusal is not None:
        refused = Run(compiled.refusal.outcome, compiled.refusal.message, b"", 0.0, 0)

        async def refuse(stdin: Any) -> Run:
            return refused

        return refuse
    asked = run_request(language, compiled, request)

    async def run(stdin: Any) -> Run:
        ending, usage = await run_case(sandbox, language, stdio.Case("input", stdin, ""), asked)
        return Run(
            ending.outcome, ending.message, ending.stdout, _seconds(usage, ending.duration_s), usage.peak_memory_bytes
        )

    return run
