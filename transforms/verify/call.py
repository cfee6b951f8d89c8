"""The trusted half of the `call` verifier: sends inputs one at a time, compares what comes back.

Expected values stay here. What the program breaks inside its own sandbox is its own fault; only a SandboxError, which
carries evidence from the host, says otherwise, and passes through to the caller.
"""

import functools
import importlib.util
import marshal
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from sandboxes.limits import Limits
from sandboxes.protocol import ProvisionFailed, SandboxProvider, Session, Usage
from transforms.episode import CaseReport, CaseResult
from transforms.grade.outcomes import Outcome
from transforms.sources.task import Case, Task
from transforms.verify import values

STARTUP_S = 30.0
"""Seconds the worker may take to say hello, before any code of the candidate's is in the sandbox."""

_STRIKES = 2  # cases that break the same limit before the rest is not run any more
_MESSAGE_CHARS = 300
_FRAME_SLACK = 8192  # bytes a frame may have beyond the encoded value
_LIMITS = {
    Outcome.TIME_LIMIT,
    Outcome.MEMORY_LIMIT,
    Outcome.OUTPUT_LIMIT,
    Outcome.PROCESS_LIMIT,
    Outcome.DISK_LIMIT,
}


async def run_call(sandbox: SandboxProvider, task: Task, program: str, limits: Limits) -> CaseReport:
    """Run every case of a task against a program, in as few sandboxes as the program leaves intact.

    Raises SandboxError when the host failed, ValueCodecError when an input of the task is not plain data.
    """
    run = _Run(sandbox, task, program, limits)
    while run.waiting:
        if (spent := run.spent()) is not None:
            run.settle(spent, f"not run: the limit was broken {_STRIKES} times before")
        else:
            await run.one_sandbox()
    return CaseReport(tuple(run.results), _together(run.usages, limits))


class _Run:
    """One program on its way through the cases of a task."""

    def __init__(self, sandbox: SandboxProvider, task: Task, program: str, limits: Limits) -> None:
        if not task.cases:
            raise ValueError(f"task {task.task_id} has no cases, so it proves nothing about a program")
        self.sandbox = sandbox
        self.limits = limits
        self.value_bytes = limits.output_kib * 1024
        self.program = values.encode((task.prefix, program, task.entry_point, self.value_bytes))
        self.waiting = list(task.cases)
        self.results: list[CaseResult] = []
        self.usages: list[Usage] = []

    def spent(self) -> Outcome | None:
        """The limit that was broken too often, if one was."""
        counted = Counter(result.outcome for result in self.results if result.outcome in _LIMITS)
        return next((outcome for outcome, times in counted.items() if times >= _STRIKES), None)

    def add(self, case: Case, outcome: Outcome, message: str, duration_s: float) -> None:
        self.waiting.remove(case)
        text = message.encode("utf-8", "backslashreplace").decode()[:_MESSAGE_CHARS]
        self.results.append(CaseResult(case.name, case.tier, outcome, text, duration_s))

    def settle(self, outcome: Outcome, message: str) -> None:
        """Give every case that still waits the same outcome."""
        for case in list(self.waiting):
            self.add(case, outcome, message, 0.0)

    async def one_sandbox(self) -> None:
        """Run waiting cases in one sandbox, until it is spent or none is left."""
        async with await self.sandbox.open(_argv(), files=_files(), limits=self.limits) as session:
            await _expect_hello(session)
            reply, seconds = await self.ask(session, self.program)
            if reply is None:
                usage = await session.close()
                self.settle(*self.why_gone(usage, seconds))
            elif reply[:1] == b"S":
                self.settle(Outcome.SYNTAX_ERROR, _text_of(reply[2:]))
            else:
                await self.cases(session)
            self.usages.append(await session.close())

    async def cases(self, session: Session) -> None:
        for case in list(self.waiting):
            reply, seconds = await self.ask(session, values.encode((case.args, case.kwargs)))
            if reply is None:
                self.add(case, *self.why_gone(await session.close(), seconds), seconds)
                return
            self.add(case, *_judge(case, reply), seconds)
            as_new = reply[1:2] == b"1"
            if not as_new or self.spent() is not None:
                return

    async def ask(self, session: Session, frame: bytes) -> tuple[bytes | None, float]:
        """Send a frame and wait for the reply; also the seconds that took."""
        began = time.monotonic()
        await session.send(frame)
        left = max(0.0, self.limits.wall_time_s - (time.monotonic() - began))
        reply = await session.receive(timeout_s=left, max_bytes=self.value_bytes + _FRAME_SLACK)
        return reply, time.monotonic() - began

    def why_gone(self, usage: Usage, seconds: float) -> tuple[Outcome, str]:
        """Why the worker gave no reply, told from what the host counted."""
        if usage.breach is not None:
            return Outcome(usage.breach), f"{usage.breach} broken ({usage.limits_enforced_by})"
        if seconds >= self.limits.wall_time_s:
            return Outcome.TIME_LIMIT, f"no answer within {self.limits.wall_time_s:g} s"
        return Outcome.TAMPERED, "the program ended or silenced the process that runs its cases"


async def _expect_hello(session: Session) -> None:
    """Wait for the worker to start. No code of the candidate's has run yet, so a failure is the host's."""
    if await session.receive(timeout_s=STARTUP_S, max_bytes=64) == b"H1":
        return
    usage = await session.close()
    evidence = usage.stderr.decode(errors="replace").strip()[-500:]
    evidence = (
        evidence or f"exit {usage.exit_code}, signal {usage.signal}, breach {usage.breach} after {usage.wall_s:.1f} s"
    )
    raise ProvisionFailed("the worker did not start in its sandbox", evidence=evidence)


def _judge(case: Case, reply: bytes) -> tuple[Outcome, str]:
    """Outcome and message of one case. The reply comes from an untrusted process and may hold anything."""
    tag, body = reply[:1], reply[2:]
    try:
        if tag == b"V":
            value = values.decode(body)
            if type(value) is not type(case.expected):
                return Outcome.FAILED_TESTS, f"wrong type: returned {type(value).__name__}"
            if not values.equal(value, case.expected):
                return Outcome.FAILED_TESTS, "wrong value"
            return Outcome.PASSED, ""
        if tag == b"X":
            return _judge_death(*_pair(body))
        text = _text_of(body)
    except (values.ValueCodecError, TypeError) as error:
        return Outcome.TAMPERED, f"a forged reply: {error}"
    match tag:
        case b"E":
            return Outcome.RUNTIME_ERROR, text
        case b"U":
            return Outcome.FAILED_TESTS, f"wrong type: {text}"
        case b"L":
            return Outcome.OUTPUT_LIMIT, "the returned value is too large"
        case b"M":
            return Outcome.MEMORY_LIMIT, text
        case b"D":
            return Outcome.DISK_LIMIT, text
        case b"P":
            return Outcome.PROCESS_LIMIT, text
    return Outcome.TAMPERED, "a forged reply: unknown kind"


def _judge_death(by_signal: object, number: object) -> tuple[Outcome, str]:
    """A case whose process ended without an answer."""
    if by_signal is True and number == signal.SIGXCPU:
        return Outcome.TIME_LIMIT, "cpu time used up"
    if by_signal is True and number == signal.SIGXFSZ:
        return Outcome.DISK_LIMIT, "a file grew past the limit"
    how = f"by signal {number}" if by_signal is True else f"with exit code {number}"
    return Outcome.RUNTIME_ERROR, f"the process ended {how} and gave no answer"


def _pair(body: bytes) -> tuple[object, object]:
    pair = values.decode(body)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("not a pair")
    return pair[0], pair[1]


def _text_of(body: bytes) -> str:
    """`Type: message` of an exception as the worker reported it."""
    name, message = _pair(body)
    if not isinstance(name, str) or not isinstance(message, str):
        raise TypeError("not a pair of texts")
    return f"{name}: {message}" if message else name


def _together(usages: list[Usage], limits: Limits) -> Usage:
    """One record for all the sandboxes a program used: sums and peaks, the first breach, the last end."""
    return replace(
        usages[-1],
        breach=next((usage.breach for usage in usages if usage.breach is not None), None),
        wall_s=sum(usage.wall_s for usage in usages),
        cpu_s=sum(usage.cpu_s for usage in usages),
        peak_memory_bytes=max(usage.peak_memory_bytes for usage in usages),
        stdout=b"".join(usage.stdout for usage in usages)[: limits.output_kib * 1024],
        stderr=b"".join(usage.stderr for usage in usages)[: limits.output_kib * 1024],
    )


def _argv() -> list[str]:
    # Not -I or -E: they ignore PYTHONHASHSEED, and then the order of a set differs from sandbox to sandbox.
    return [os.path.realpath(sys.executable), "-P", "-s", "-S", "-X", "frozen_modules=on", "/job/worker.pyc"]


@functools.cache
def _files() -> dict[str, bytes]:
    """The worker, compiled once here instead of in each sandbox."""
    return dict(_compiled(Path(__file__).with_name(name)) for name in ("worker.py", "values.py"))


def _compiled(source: Path) -> tuple[str, bytes]:
    code = compile(source.read_text(), source.name, "exec", dont_inherit=True)
    return source.with_suffix(".pyc").name, importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
