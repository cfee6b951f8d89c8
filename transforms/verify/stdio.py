"""The kind `stdio`: what a program prints against what it must print. Expected outputs stay in this process.

The program is compiled once; each case runs in a fresh sandbox, so nothing it leaves behind reaches the next.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandboxes.limits import Limits
from sandboxes.protocol import Result, SandboxProvider, SandboxRequest, Usage
from transforms.episode import CaseReport, CaseResult, together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.stdio import Case, Stdio
from transforms.sources.languages import LANGUAGES, Language
from transforms.verify.calls import Answer, Arguments, CheckerFailed, Function, call_function
from transforms.verify.compile import Compiled, compile_program, require_toolchain, run_command, run_request
from transforms.verify.outputs import first_difference, same

CHECKER_LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=512, output_kib=64)
"""What one call of a task's checker may use."""

_STRIKES = 2  # cases that break the same limit before the rest is not run any more
_TAIL = 4096  # bytes at the end of stderr that are looked at
# Where no control group counts, a limit shows in what a runtime complains of. It comes from the program, which gains
# nothing by forging it: it has failed already, and none of these is paid.
_COMPLAINTS = (
    (Outcome.PROCESS_LIMIT, rb"can't start new thread|unable to create native thread|Resource temporarily unavailable"),
    (Outcome.MEMORY_LIMIT, rb"MemoryError|bad_alloc|OutOfMemoryError|heap out of memory|Cannot allocate memory"),
    (Outcome.MEMORY_LIMIT, rb"runtime: out of memory|memory allocation of \d+ bytes failed"),
    (Outcome.DISK_LIMIT, rb"No space left on device|File too large|Disk quota exceeded"),
)
_TRACEBACK_LINE = re.compile(r'File "[^"\n]*/main\.py", line (\d+)(?:, in (\w+))?')
_SYNTAX_LINE = re.compile(r"\(main\.py, line (\d+)\)$")


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run of the program ended."""

    outcome: Outcome | None
    """None where it ended well, and what it printed is to be compared."""
    message: str = ""
    stdout: bytes = b""
    duration_s: float = 0.0
    location: str | None = None


async def run_stdio(sandbox: SandboxProvider, check: Stdio, program: str, request: SandboxRequest) -> CaseReport:
    """Run every case of a check against a program.

    Raises SandboxError when the host failed (ToolchainMissing: the image has no such language), CheckerFailed when the
    task's checker is broken.
    """
    language = LANGUAGES[check.language]
    compiled = await compile_program(sandbox, language, program, request)
    if compiled.refusal is not None:
        await require_toolchain(sandbox, language, request)
        why = compiled.refusal
        results = tuple(CaseResult.of(case, why.outcome, why.message, location=why.location) for case in check.cases)
        assert compiled.usage is not None
        return CaseReport(results, compiled.usage, compiled.message)
    endings, usages = await _run_cases(sandbox, language, check.cases, compiled, request)
    if any(ending.outcome is not None for ending in endings):
        await require_toolchain(sandbox, language, request)
    printed = {case: ending.stdout for case, ending in zip(check.cases, endings, strict=True) if ending.outcome is None}
    verdicts = await verdicts_of(sandbox, check, printed, request)
    results = tuple(
        _result(case, ending, verdicts.get(case)) for case, ending in zip(check.cases, endings, strict=True)
    )
    usage = together(usages, output_bytes=request.limits.output_kib * 1024)
    return CaseReport(results, usage, compiled.message)


async def _run_cases(
    sandbox: SandboxProvider, language: Language, cases: Sequence[Case], compiled: Compiled, request: SandboxRequest
) -> tuple[list[Ending], list[Usage]]:
    """Run the program once a case, in fresh sandboxes, until a limit was broken too often.

    Returns an ending a case, and what each sandbox used, the compiler's before the others.
    """
    asked = run_request(language, compiled, request)
    endings: list[Ending] = []
    usages = [] if compiled.usage is None else [compiled.usage]
    for case in cases:
        broken = Counter(ending.outcome for ending in endings if str(ending.outcome).endswith("_limit"))
        spent = next((outcome for outcome, times in broken.items() if times >= _STRIKES), None)
        if spent is not None:
            endings.append(Ending(spent, f"not run: the limit was broken {_STRIKES} times before"))
            continue
        ending, usage = await run_case(sandbox, language, case, asked)
        usages.append(usage)
        if ending.outcome is Outcome.SYNTAX_ERROR:
            return [ending] * len(cases), usages
        endings.append(ending)
    return endings, usages


async def run_case(
    sandbox: SandboxProvider, language: Language, case: Case, asked: SandboxRequest
) -> tuple[Ending, Usage]:
    """Run a compiled program on one case in a fresh sandbox. Raises SandboxError when the host failed."""
    # What must be printed comes on top of what may be printed, or no honest program could.
    room = asked.limits.output_kib + len(case.expected) // 1024
    async with await sandbox.create(asked) as box:
        command = run_command(language, box, asked.limits, case.argv)
        command = replace(command, stdin=_encoded(case.stdin), output_kib=room)
        refused = None
        async with await box.start(command) as process:
            if command.channel:
                refused = await process.receive(timeout_s=asked.limits.wall_time_s, max_bytes=1 << 16)
            result = await process.wait()
        usage = await box.destroy()
    ending = _ending(result)
    if refused is not None:
        message = refused.decode(errors="replace")
        line = _SYNTAX_LINE.search(message)
        ending = Ending(Outcome.SYNTAX_ERROR, message, location=f"line {line[1]}" if line else None)
    return ending, usage


def _ending(result: Result) -> Ending:
    stderr = result.stderr[-_TAIL:]
    if result.breach is not None:
        return Ending(Outcome(result.breach), f"{result.breach} broken", result.stdout, result.wall_s)
    if result.exit_code == 0:
        return Ending(None, "", result.stdout, result.wall_s)
    text = stderr.decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    how = f"ended by signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    outcome = next((limit for limit, words in _COMPLAINTS if re.search(words, stderr)), Outcome.RUNTIME_ERROR)
    location = _traceback_line(text)
    message = f"{how}: {lines[-1]}" if lines else how
    return Ending(outcome, message, result.stdout, result.wall_s, location)


def _traceback_line(text: str) -> str | None:
    """Where a Python traceback says that it went wrong."""
    found = [*_TRACEBACK_LINE.finditer(text)]
    if not found:
        return None
    return f"line {found[-1][1]} in {found[-1][2]}" if found[-1][2] else f"line {found[-1][1]}"


async def verdicts_of(
    sandbox: SandboxProvider, check: Stdio, printed: dict[Case, bytes], request: SandboxRequest
) -> dict[Case, tuple[Outcome, str]]:
    """Whether what was printed is right, case by case."""
    if check.compare == "checker":
        return await _checked(sandbox, check, printed, request)
    verdicts = {}
    for case, stdout in printed.items():
        expected = _encoded(case.expected)
        if same(stdout, expected, check.compare, check.tolerance):
            verdicts[case] = Outcome.PASSED, ""
        else:
            shown = f": {first_difference(stdout, expected)}" if case.tier == "visible" else ""
            verdicts[case] = Outcome.FAILED_TESTS, f"wrong output{shown}"
    return verdicts


async def _checked(
    sandbox: SandboxProvider, check: Stdio, printed: dict[Case, bytes], request: SandboxRequest
) -> dict[Case, tuple[Outcome, str]]:
    """What the task's checker says, in a sandbox of its own.

    Where it gives no verdict, it is asked about what is expected in that case, or in the first one that names it: if
    that is right, the checker works, and the output it could not take is wrong. Raises CheckerFailed otherwise.
    """
    answers = await _ask(sandbox, check, printed, request)
    named = [case for case in check.cases if case.expected]
    unclear = [case for case in printed if answers[case].outcome is not None or type(answers[case].value) is not bool]
    control_of = {case: case if case.expected or not named else named[0] for case in unclear}
    controls = await _ask(sandbox, check, {case: _encoded(case.expected) for case in control_of.values()}, request)
    for case in unclear:
        if controls[control_of[case]].value is not True:
            said = answers[case]
            why = said.message or f"it returned a value of type {type(said.value).__name__}, not a bool"
            raise CheckerFailed(f"the checker gave no verdict on case {case.name!r}: {why}")
    return {
        case: (Outcome.PASSED, "")
        if answers[case].value is True
        else (Outcome.FAILED_TESTS, "the checker refused the output")
        for case in printed
    }


async def _ask(
    sandbox: SandboxProvider, check: Stdio, outputs: dict[Case, bytes], request: SandboxRequest
) -> dict[Case, Answer]:
    if not outputs:
        return {}
    calls = [Arguments((_text(case.stdin), _text(stdout), _text(case.expected))) for case, stdout in outputs.items()]
    function = Function(check.checker or "", "check")
    answers, _ = await call_function(sandbox, function, calls, replace(request, limits=CHECKER_LIMITS, snapshot=None))
    return dict(zip(outputs, answers, strict=True))


def _result(case: Case, ending: Ending, verdict: tuple[Outcome, str] | None) -> CaseResult:
    outcome, message = verdict if ending.outcome is None and verdict is not None else (ending.outcome, ending.message)
    assert outcome is not None
    wrong = outcome is Outcome.FAILED_TESTS
    return CaseResult.of(
        case,
        outcome,
        message,
        ending.duration_s,
        got=_text(ending.stdout) if wrong else None,
        expected_type="text" if wrong else None,
        location=ending.location,
    )


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _text(output: str | bytes) -> str:
    return output if isinstance(output, str) else output.decode("utf-8", "surrogateescape")
