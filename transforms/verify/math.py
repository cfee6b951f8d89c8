"""The kind `math`: a final answer against the expected one. See `answers` for how both are read and compared.

No sandbox: nothing of the policy's is executed. Rational values are compared exactly, here. Anything else is decided by
two verifiers in a process of their own, which must agree: one that says equal while the other does not is a
VerifierDisagreement, and no verdict.
"""

import signal
import time

from sandboxes.protocol import Breach, HostOutOfMemory, SandboxProvider, SandboxRequest, Usage
from transforms.episode import CaseReport, CaseResult
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.math import Case, Math
from transforms.sources.task import TaskBroken
from transforms.verify.answers.answer import read_answer
from transforms.verify.answers.client import Question, Reply, compare
from transforms.verify.answers.same import Arithmetic, Undecided, same_answer
from transforms.verify.answers.tokens import Unreadable

_WRONG = Outcome.FAILED_TESTS, "wrong value"
_ENDINGS: dict[int, tuple[Breach, str]] = {
    signal.SIGALRM: ("time_limit", "the comparison took too long"),
    signal.SIGXCPU: ("time_limit", "the comparison took too much CPU time"),
}


class ExpectedUnreadable(TaskBroken):
    """The task's own answer has no value, so nothing can be compared with it."""


class VerifierDisagreement(Exception):
    """One verifier takes the answer for right, and the other does not. `evidence` is both answers and verdicts."""

    outcome = Outcome.VERIFIER_DISAGREEMENT

    def __init__(self, message: str, evidence: str) -> None:
        super().__init__(message)
        self.evidence = evidence


async def run_math(sandbox: SandboxProvider, check: Math, program: str, request: SandboxRequest) -> CaseReport:
    """Compare an answer, as `answers.final` takes it out of a completion. The request's limits bound the comparison.

    Raises VerifierDisagreement, ExpectedUnreadable, and SandboxError when the host failed.
    """
    began, cpu_began = time.monotonic(), time.thread_time()
    (case,) = check.cases
    try:
        expected = read_answer(check.answer, percent=check.percent)
    except Unreadable as error:
        raise ExpectedUnreadable(f"the task's answer cannot be read: {error}") from error
    reply = None
    try:
        found = read_answer(program, percent=check.percent)
        same = same_answer(expected, found, Arithmetic(check.tolerance))
        outcome, message = (Outcome.PASSED, "") if same else _WRONG
    except Unreadable as error:
        outcome, message = Outcome.FAILED_TESTS, f"the answer cannot be read: {error}"
    except Undecided:
        reply = await compare(_question(check, program, request))
        outcome, message = _verdict(check, program, reply)
    wall_s = time.monotonic() - began
    cpu_s = reply.cpu_s if reply else time.thread_time() - cpu_began
    return CaseReport((_result(case, outcome, message, wall_s, program),), _usage(wall_s, cpu_s, reply))


def _question(check: Math, program: str, request: SandboxRequest) -> Question:
    limits, tolerance = request.limits, check.tolerance
    shares = (str(tolerance.absolute), str(tolerance.relative)) if tolerance else None
    return Question(
        check.answer, program, check.percent, shares, limits.wall_time_s, limits.cpu_time_s, limits.memory_mib
    )


def _verdict(check: Math, program: str, reply: Reply) -> tuple[Outcome, str]:
    if reply.signal == signal.SIGKILL:
        # Its own limits end it by other signals, or as a MemoryError.
        raise HostOutOfMemory("a comparison was killed", evidence="SIGKILL, which nobody here sends")
    if reply.unreadable == "expected":
        raise ExpectedUnreadable(f"the task's answer has no value: {reply.note}")
    if reply.numeric is None:
        why = _ENDINGS[reply.signal][1] if reply.signal in _ENDINGS else reply.note or "the comparison broke"
        return Outcome.FAILED_TESTS, f"the answer cannot be worked out: {why}"
    if reply.numeric and (reply.symbolic or check.tolerance is not None):
        return Outcome.PASSED, ""
    if reply.numeric or reply.symbolic:
        said = {True: "equal", False: "different", None: f"no verdict ({reply.note or f'signal {reply.signal}'})"}
        raise VerifierDisagreement(
            "two verifiers disagree about the answer",
            f"answer {program!r}, expected {check.answer!r}: values say {said[reply.numeric]}, "
            f"math-verify says {said[reply.symbolic]}",
        )
    return _WRONG


def _result(case: Case, outcome: Outcome, message: str, wall_s: float, program: str) -> CaseResult:
    wrong = outcome is not Outcome.PASSED
    return CaseResult.of(
        case, outcome, message, wall_s, got=program if wrong else None, expected_type="answer" if wrong else None
    )


def _usage(wall_s: float, cpu_s: float, reply: Reply | None) -> Usage:
    """Of the comparing process; of this thread, without its memory, where arithmetic was enough."""
    return Usage(
        breach=_ENDINGS[reply.signal][0] if reply and reply.signal in _ENDINGS else None,
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_memory_bytes=reply.peak_bytes if reply else 0,
        stdout=b"",
        stderr=b"",
        limits_enforced_by="rlimits",
    )
