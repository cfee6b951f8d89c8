"""The kind `call`: what a function returns against what it must return. Expected values stay in this process.

A task with a checker has its values judged by that, in a sandbox of its own, in which no submission ever ran.
"""

from dataclasses import replace

from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.episode import MESSAGE_CHARS, CaseReport, CaseResult
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Call, Case, checker_takes_expected
from transforms.sources.languages import LANGUAGES
from transforms.verify import values
from transforms.verify.call_rules import matches, normal, rule_of
from transforms.verify.calls import Answer, Arguments, CheckerFailed, Function, call_function
from transforms.verify.compile import require_toolchain


async def run_call(sandbox: SandboxProvider, check: Call, program: str, request: SandboxRequest) -> CaseReport:
    """Run every case of a check against a program.

    Raises SandboxError when the host failed, ToolchainMissing where the image lacks the language, ValueCodecError when
    an input of the task is not plain data, CheckerFailed for a checker without a verdict.
    """
    asked = request
    if check.language != "python":  # whose workers talk to us, so that one that does not start is told
        language = LANGUAGES[check.language]
        await require_toolchain(sandbox, language, request)
        asked = replace(request, limits=language.stretched(request.limits))
    function = Function(program, check.entry_point, check.prefix, check.language)
    calls = [Arguments(case.args, case.kwargs) for case in check.cases]
    answers, usage = await call_function(sandbox, function, calls, asked)
    right = await are_right(sandbox, check, answers, request)
    judged = zip(check.cases, answers, right, strict=True)
    return CaseReport(tuple(_result(check, case, answer, good) for case, answer, good in judged), usage)


async def are_right(
    sandbox: SandboxProvider, check: Call, answers: list[Answer], request: SandboxRequest
) -> list[bool]:
    """Whether each answer is right for its case. Raises as `run_call` does."""
    if check.checker is not None:
        return await _checked(sandbox, check, check.checker, answers, request)
    return [
        answer.outcome is None and matches(answer.value, case.expected, rule_of(check, case))
        for case, answer in zip(check.cases, answers, strict=True)
    ]


def _result(check: Call, case: Case, answer: Answer, right: bool) -> CaseResult:
    rule = rule_of(check, case)
    expected = None if check.checker is not None else type(normal(case.expected, rule)).__name__
    if answer.outcome is not None:
        kind = expected if answer.outcome is Outcome.FAILED_TESTS else None
        location = answer.location
        return CaseResult.of(
            case, answer.outcome, answer.message, answer.duration_s, expected_type=kind, location=location
        )
    if right:
        return CaseResult.of(case, Outcome.PASSED, duration_s=answer.duration_s)
    value = normal(answer.value, rule)
    kind = type(value).__name__
    message = "wrong value" if expected in (None, kind) else f"wrong type: returned {kind}"
    got = _shown(value)
    return CaseResult.of(case, Outcome.FAILED_TESTS, message, answer.duration_s, got=got, expected_type=expected)


def _shown(value: object) -> str:
    try:
        return repr(value)[:MESSAGE_CHARS]
    except ValueError:  # `repr` writes no integer of more than 4300 digits
        return f"a {type(value).__name__} with a huge integer"


async def _checked(
    sandbox: SandboxProvider, check: Call, source: str, answers: list[Answer], request: SandboxRequest
) -> list[bool]:
    """Whether the checker takes each answer for right.

    Where it gives no verdict, it is asked about the `expected` of that case, or of the first one that names any: if
    that is right, the checker works, and the value it could not take is wrong. So no policy can return a value that
    makes its verdict a grader's error.
    """
    checker = Function(source, "check")
    with_expected = checker_takes_expected(source)

    async def ask(values_of: dict[int, object]) -> dict[int, Answer]:
        questions = []
        for number, value in values_of.items():
            case = check.cases[number]
            questions.append(Arguments((case.args, case.kwargs, value, *([case.expected] if with_expected else []))))
        said = (await call_function(sandbox, checker, questions, request))[0] if questions else []
        return dict(zip(values_of, said, strict=True))

    given = {number: answer.value for number, answer in enumerate(answers) if answer.outcome is None}
    said = await ask({number: value for number, value in given.items() if _can_be_asked(value)})
    unclear = [number for number, verdict in said.items() if not _is_verdict(verdict)]
    named = [number for number, case in enumerate(check.cases) if case.expected is not None]
    control_of = {number: number if number in named else named[0] for number in unclear if named}
    controls = await ask({number: check.cases[number].expected for number in control_of.values()})
    for number in unclear:
        if number not in control_of or controls[control_of[number]].value is not True:
            verdict = said[number]
            why = verdict.message or f"it returned a value of type {type(verdict.value).__name__}, not a bool"
            raise CheckerFailed(f"the checker gave no verdict on case {check.cases[number].name!r}: {why}")
    return [number in said and said[number].value is True for number in range(len(answers))]


def _can_be_asked(value: object) -> bool:
    """Whether a value still fits where it is one of a question's arguments: nested almost too deep, it does not."""
    try:
        values.encode(((value,),))
    except values.ValueCodecError:
        return False
    return True


def _is_verdict(answer: Answer) -> bool:
    return answer.outcome is None and type(answer.value) is bool
