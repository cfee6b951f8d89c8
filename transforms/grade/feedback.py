"""What a policy may be told of its program before it tries again: text cut from the results.

It never holds an input, an expected value, a name or a message of a case that is not visible: a program can put what
it was given into an exception, so of those cases only the kind of outcome is told, and that only where one case is
asked for. Visible cases run in processes of their own and never meet the others' inputs; where tests share a process
(`shared_process`) even their messages stay out.
"""

from typing import Literal

from transforms.episode import CaseReport, CaseResult
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import AnyCase, Task

Granularity = Literal["none", "first_failure", "visible_failures", "compiler_message"]

MAX_FEEDBACK = 2_000
"""Characters that feedback may take."""


def feedback(task: Task, report: CaseReport, granularity: Granularity) -> str:
    """Feedback on a program, of at most `MAX_FEEDBACK` characters; empty where there is none to give.

    none              nothing
    first_failure     the first case that did not pass: of a hidden one, its kind of outcome only
    visible_failures  every visible case that did not pass
    compiler_message  what the compiler or the parser said of the source
    """
    pairs = [(case, got) for case, got in zip(task.cases, report.results, strict=True) if got.outcome != Outcome.PASSED]
    if granularity == "none" or not pairs:
        return ""
    said = _of_the_source(task, report)
    if said or granularity == "compiler_message":
        return _cut(said)
    if granularity == "first_failure":
        return _cut(_told(task, *pairs[0]))
    return _cut("\n".join(_told(task, *pair) for pair in pairs if pair[0].tier == "visible"))


def _of_the_source(task: Task, report: CaseReport) -> str:
    """What was said of the program's source; empty where it could be run.

    Of a case that is not visible not even this is told: its process can imitate a parser that quotes what it was given.
    """
    if not all(result.outcome is Outcome.SYNTAX_ERROR for result in report.results):
        return ""
    seen = (got.message for case, got in zip(task.cases, report.results, strict=True) if case.tier == "visible")
    return report.compiler_message or next(seen, str(Outcome.SYNTAX_ERROR))


def _told(task: Task, case: AnyCase, result: CaseResult) -> str:
    if case.tier != "visible":
        return f"a hidden test did not pass: {result.outcome}"
    if task.check.integrity == "shared_process":
        return f"{case.name}: {result.outcome}"
    got = f", got {result.got}" if result.got is not None else ""
    place = f" at {result.location}" if result.location else ""
    message = f": {result.message}" if result.message else ""
    wanted = KINDS[task.check.kind].describe(task.check, case)
    return f"{case.name}: {wanted[:500]}; {result.outcome}{place}{message}{got}"


def _cut(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= MAX_FEEDBACK else clean[: MAX_FEEDBACK - 1] + "…"
