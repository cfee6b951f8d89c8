"""What a program that passed every case costs, beside its task's gold: time, memory, memory kept, lines run.

Program and gold take turns on inputs that no case has, so that a busy machine slows both, and the program must be right
where the gold is. Both carry the start of a process, some 15 ms of CPU time and 5 MiB: below about 50 ms a ratio says
little. What is looked at inside a process (`inside.py`) is for functions in Python.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from sandboxes.limits import Limits
from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.episode import CaseReport, Measured
from transforms.grade.components import TIMED
from transforms.sources.kinds.call import Call
from transforms.sources.task import Task, TaskBroken
from transforms.verify import values
from transforms.verify.call import are_right
from transforms.verify.calls import Answer, Arguments, Function, call_function
from transforms.verify.timed import Run, Timer, is_right, timer_of

_INSIDE = Function((Path(__file__).parent / "inside/probes.py").read_text(), "", Path(values.__file__).read_text())
_SLOWER = 10  # times the limits that a run with every line traced may take
_REPEAT_S = 2.0  # seconds that the longer of the two runs for memory growth is meant to take ...
_FEWEST, _MOST = 8, 250  # ... within these numbers of calls for the shorter
_SAMPLE = 8  # cases whose arguments these calls have, in turn


class GoldBroken(TaskBroken):
    """The gold gives no answer to one of its task's performance inputs: a fault of the task."""


async def measure(
    sandbox: SandboxProvider, task: Task, program: str, report: CaseReport, request: SandboxRequest,
    wanted: frozenset[str],
) -> Measured | None:  # fmt: skip
    """Measure a program, of which every case passed, for the components `wanted`; None where nothing can be.

    Raises SandboxError when the host failed, GoldBroken.
    """
    check, found = task.check, Measured()
    if wanted & set(TIMED) and task.gold is not None and task.performance:
        found = await _beside_gold(sandbox, task, task.gold, program, request)
    if isinstance(check, Call) and check.language == "python":
        if "memory_growth" in wanted:
            found = await _growth(sandbox, check, program, report, request, found)
        if "coverage" in wanted:
            found = replace(found, coverage=await _coverage(sandbox, check, program, request))
    return None if found == Measured() else found


async def gold_problem(sandbox: SandboxProvider, task: Task, request: SandboxRequest) -> str | None:
    """Why the gold gives no answer to a performance input of its task; None when it answers them all.

    Raises SandboxError when the host failed.
    """
    timer = await timer_of(sandbox, task.check, task.gold, request) if task.gold and task.performance else None
    if timer is None:
        return None
    for number, given in enumerate(task.performance, 1):
        run = await timer(given)
        if run.outcome is not None:
            return f"performance input {number}: {run.outcome}: {run.message}"
    return None


async def _beside_gold(
    sandbox: SandboxProvider, task: Task, gold: str, program: str, request: SandboxRequest
) -> Measured:
    """Time and memory of program and gold on every performance input.

    The times are those of one input, on which their ratio is the median: two runs one after the other share what the
    machine did then, two medians over all runs do not.
    """
    ours, golds = [await timer_of(sandbox, task.check, source, request) for source in (program, gold)]
    if ours is None or golds is None:
        return Measured()
    programs: list[Run] = []
    references: list[Run] = []
    for number, given in enumerate(task.performance, 1):
        run, reference = await _in_turn(ours, golds, given, gold_first=number % 2 == 0)
        if reference.outcome is not None:
            raise GoldBroken(f"task {task.task_id}: gold on performance input {number}: {reference.outcome}")
        if run.outcome is not None or not await is_right(sandbox, task.check, given, run, reference, request):
            why = f"{run.outcome or 'wrong answer'} on performance input {number}"
            return Measured(failed=dict.fromkeys(TIMED, why))
        programs.append(run)
        references.append(reference)
    pairs = sorted(zip(programs, references, strict=True), key=lambda pair: pair[0].seconds / pair[1].seconds)
    typical, beside = pairs[(len(pairs) - 1) // 2]
    return Measured(
        latency_s=typical.seconds,
        reference_latency_s=beside.seconds,
        peak_memory_bytes=_median_peak(programs),
        reference_peak_memory_bytes=_median_peak(references),
    )


async def _in_turn(program: Timer, gold: Timer, given: object, *, gold_first: bool) -> tuple[Run, Run]:
    if gold_first:
        reference = await gold(given)
        return await program(given), reference
    run = await program(given)
    return run, await gold(given)


def _median_peak(runs: Sequence[Run]) -> int:
    return int(statistics.median(run.peak_memory_bytes for run in runs))


async def _growth(
    sandbox: SandboxProvider, check: Call, program: str, report: CaseReport, request: SandboxRequest, found: Measured
) -> Measured:
    """Add by how much a further call raises the peak: k calls in one process, then 4 k in another sandbox.

    Nothing for a program that is not right all the while: one that had stopped working would keep no memory either.
    """
    sample = check.cases[:_SAMPLE]
    calls = [values.encode((case.args, case.kwargs)) for case in sample]
    call_s = statistics.median(result.duration_s for result in report.results)
    few = min(_MOST, max(_FEWEST, int(_REPEAT_S / 4 / call_s)))
    peaks = []
    for times in (few, 4 * few):
        limits = _stretched(request.limits, seconds=4 * times * call_s)
        limits = limits.model_copy(update={"output_kib": limits.output_kib + len(calls) * request.limits.output_kib})
        arguments = Arguments((check.prefix, program, check.entry_point, calls, times))
        (answer,), usage = await call_function(
            sandbox, replace(_INSIDE, entry_point="called"), [arguments], replace(request, limits=limits)
        )
        if answer.outcome is not None:
            why = f"{answer.outcome} within {times} calls in one process: {answer.message}"
            return replace(found, failed={**found.failed, "memory_growth": why})
        if not await _right_throughout(sandbox, replace(check, cases=sample), answer.value, request):
            why = f"wrong answer within {times} calls in one process"
            return replace(found, failed={**found.failed, "memory_growth": why})
        peaks.append(usage.peak_memory_bytes)
    return replace(found, memory_growth_bytes=max(0.0, (peaks[1] - peaks[0]) / (3 * few)))


async def _right_throughout(sandbox: SandboxProvider, check: Call, told: object, request: SandboxRequest) -> bool:
    """Whether every answer to repeated calls is right, as an untrusted process tells them: a list a case."""
    if not isinstance(told, list) or len(told) != len(check.cases):
        return False
    cases, answers = [], []
    for case, given in zip(check.cases, told, strict=True):
        if not isinstance(given, list) or not given or not all(isinstance(each, bytes) for each in given):
            return False
        try:
            answers += [Answer(None, values.decode(each)) for each in given]
        except values.ValueCodecError:
            return False
        cases += [case] * len(given)
    return all(await are_right(sandbox, replace(check, cases=tuple(cases)), answers, request))


async def _coverage(sandbox: SandboxProvider, check: Call, program: str, request: SandboxRequest) -> float:
    """Share of the executable lines that the cases run.

    Which lines there are is told by a process in which the program does not run; which of them ran, by its own.
    """
    cases = [None, *(values.encode((case.args, case.kwargs)) for case in check.cases)]
    calls = [Arguments((check.prefix, program, check.entry_point, case)) for case in cases]
    limits = _stretched(request.limits, seconds=_SLOWER * request.limits.cpu_time_s)
    (every, *answers), _ = await call_function(
        sandbox, replace(_INSIDE, entry_point="lines_run"), calls, replace(request, limits=limits)
    )
    lines = _numbers(every)
    return len(lines & set(chain.from_iterable(map(_numbers, answers)))) / len(lines) if lines else 1.0


def _stretched(limits: Limits, *, seconds: float) -> Limits:
    """Limits with so much more time, and room for what is ours in the process and in its answer."""
    return limits.model_copy(
        update={
            "wall_time_s": min(3600.0, limits.wall_time_s + seconds),
            "cpu_time_s": min(3600.0, limits.cpu_time_s + seconds),
            "memory_mib": limits.memory_mib + 32,
            "output_kib": max(limits.output_kib, 4096),
        }
    )


def _numbers(answer: Answer) -> set[int]:
    """The line numbers in an answer, which comes from an untrusted process."""
    lines = answer.value if isinstance(answer.value, list) else []
    return {line for line in lines if type(line) is int}
