"""Call a function of an untrusted program: the trusted half, which sends inputs one at a time and takes answers.

It knows no expected value. What the program breaks inside its own sandbox is its own fault; only a SandboxError, which
carries evidence from the host, says otherwise, and passes through to the caller.
"""

import marshal
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandboxes.protocol import Command, Process, ProvisionFailed, Result, SandboxProvider, SandboxRequest, Usage, Warm
from transforms.episode import together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Language
from transforms.sources.task import TaskBroken
from transforms.verify import values

STARTUP_S = 30.0
"""Seconds the worker may take to say hello, before any code of the candidate's is in the sandbox."""

_STRIKES = 2  # cases that break the same limit before the rest is not run any more
_FRAME_SLACK = 8192  # bytes a frame may have beyond the encoded value
_INSIDE = Path(__file__).parent / "inside"
_WORKER = (Path(values.__file__), _INSIDE / "streams.py", _INSIDE / "worker.py")
# What programs import most, so that it is there before they ask: measured, most of a program's first case. The worker
# imports what is rarer, and a burden for each fork, when a program names it.
_USUAL = (
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "operator", "re", "string", "typing",
)  # fmt: skip
_NODE_RUNNER = "node_runner.js"
_NODE_HEAP = 0.75  # of the sandbox's memory, for objects: past it node gives up by itself
_LOCATION = re.compile(r"line [0-9]{1,9}( in [^\x00-\x1f\x7f]{1,80})?")
WARM = Warm(
    imports=("values", "streams", *_USUAL),
    files=tuple((path.name, path.read_bytes()) for path in _WORKER),
)
"""What an interpreter has ready for this verifier."""

_TOLD = {
    b"E": Outcome.RUNTIME_ERROR,
    b"S": Outcome.SYNTAX_ERROR,
    b"U": Outcome.FAILED_TESTS,
    b"L": Outcome.OUTPUT_LIMIT,
    b"M": Outcome.MEMORY_LIMIT,
    b"D": Outcome.DISK_LIMIT,
    b"P": Outcome.PROCESS_LIMIT,
}
"""What an exception that the worker tells of comes to."""

_LIMITS = {
    Outcome.TIME_LIMIT,
    Outcome.MEMORY_LIMIT,
    Outcome.OUTPUT_LIMIT,
    Outcome.PROCESS_LIMIT,
    Outcome.DISK_LIMIT,
}


@dataclass(frozen=True, slots=True)
class Function:
    """What is called."""

    program: str
    """Source of the submission."""
    entry_point: str
    """Name of the function in it."""
    prefix: str = ""
    """Trusted source put before it."""
    language: Language = "python"


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call. Its values are plain data: see `values`."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call came to: a value, or why there is none."""

    outcome: Outcome | None
    """None where the call returned `value`; else why it did not."""
    value: object = None
    message: str = ""
    """Why there is no value, for people."""
    duration_s: float = 0.0
    """Seconds on the host's clock."""
    location: str | None = None
    """Where in the program an exception was raised, such as `line 3 in add`, as far as the program tells the truth."""


class CheckerFailed(TaskBroken):
    """A task's checker cannot judge: it raised, gave no bool or broke a limit. The task's fault, no program's."""


async def call_function(
    sandbox: SandboxProvider, function: Function, calls: Sequence[Arguments], request: SandboxRequest
) -> tuple[list[Answer], Usage]:
    """Call a function once per entry of `calls`, each in a fresh process, in as few sandboxes as it leaves intact.

    Returns an answer a call, in their order, and what the sandboxes used together. `request` says what sandboxes; what
    they need to have warm is added here. Raises SandboxError when the host failed, ValueCodecError when an input is not
    plain data.
    """
    run = _Run(sandbox, function, calls, _furnished(request, function.language))
    while run.waiting:
        if (spent := run.spent()) is not None:
            run.settle(Answer(spent, message=f"not run: the limit was broken {_STRIKES} times before"))
        else:
            await run.one_sandbox()
    return [run.answers[number] for number in range(len(calls))], together(run.usages, output_bytes=run.value_bytes)


def _furnished(request: SandboxRequest, language: Language) -> SandboxRequest:
    """The request with what the worker needs."""
    if language == "python":
        return replace(request, warm=WARM)
    runner = (_INSIDE / _NODE_RUNNER).read_bytes()
    return replace(request, warm=WARM, files={**request.files, _NODE_RUNNER: runner})


class _Run:
    """One program on its way through the calls."""

    def __init__(
        self, sandbox: SandboxProvider, function: Function, calls: Sequence[Arguments], request: SandboxRequest
    ) -> None:
        if not calls:
            raise ValueError("without a call nothing is learned about a program")
        self.sandbox = sandbox
        self.request = request
        self.function = function
        self.limits = request.limits
        self.value_bytes = self.limits.output_kib * 1024
        heap_mib = int(self.limits.memory_mib * _NODE_HEAP)
        what = (function.language, function.prefix, function.program, function.entry_point)
        self.program = values.encode((*what, self.value_bytes, heap_mib))
        self.calls = calls
        self.waiting = list(range(len(calls)))
        self.answers: dict[int, Answer] = {}
        self.usages: list[Usage] = []

    def spent(self) -> Outcome | None:
        """The limit that was broken too often, if one was."""
        counted = Counter(answer.outcome for answer in self.answers.values() if answer.outcome in _LIMITS)
        return next((outcome for outcome, times in counted.items() if times >= _STRIKES), None)

    def add(self, number: int, answer: Answer, duration_s: float) -> None:
        self.waiting.remove(number)
        self.answers[number] = replace(answer, duration_s=duration_s)

    def settle(self, answer: Answer) -> None:
        """Give every call that still waits the same answer."""
        for number in list(self.waiting):
            self.add(number, answer, 0.0)

    async def one_sandbox(self) -> None:
        """Make waiting calls in one sandbox, until it is spent or none is left."""
        async with await self.sandbox.create(self.request) as sandbox:
            worker = await sandbox.start(Command(("worker.py",), warm=True, channel=True))
            await _expect_hello(worker)
            reply, seconds = await self.ask(worker, self.program)
            if reply is None:
                self.settle(self.why_gone(await worker.kill(), seconds))
            elif reply[:1] == b"S":
                self.settle(_answer(reply, self.function.language))
            else:
                await self.make_calls(worker)
            # What it printed is kept when it ends; a limit broken after the last answer is no call's.
            await worker.kill()
            self.usages.append(await sandbox.destroy())

    async def make_calls(self, worker: Process) -> None:
        for number in list(self.waiting):
            call = self.calls[number]
            reply, seconds = await self.ask(worker, self.frame(call))
            if reply is None:
                self.add(number, self.why_gone(await worker.kill(), seconds), seconds)
                return
            answer = _answer(reply, self.function.language)
            if answer.outcome is Outcome.SYNTAX_ERROR and self.function.language == "python":
                # The worker told at once whether it can be compiled. JavaScript is told anew by each process: what one
                # says may quote its input, and is no other's answer.
                answer = Answer(Outcome.TAMPERED, message="a forged reply: a syntax error of a program that compiled")
            self.add(number, answer, seconds)
            as_new = reply[1:2] == b"1"
            if not as_new or self.spent() is not None:
                return

    def frame(self, call: Arguments) -> bytes:
        """The arguments as the worker reads them. Raises ValueCodecError for what is not plain data."""
        given: Any = (call.args, dict(call.kwargs))
        encoded = values.encode(given)
        # Python has a reader in C, which touches fewer pages of a fork, and what comes from us it can trust.
        return marshal.dumps(given, 2) if self.function.language == "python" else encoded

    async def ask(self, worker: Process, frame: bytes) -> tuple[bytes | None, float]:
        """Send a frame and wait for the reply; also the seconds that took."""
        began = time.monotonic()
        await worker.send(frame)
        left = max(0.0, self.limits.wall_time_s - (time.monotonic() - began))
        reply = await worker.receive(timeout_s=left, max_bytes=self.value_bytes + _FRAME_SLACK)
        return reply, time.monotonic() - began

    def why_gone(self, result: Result, seconds: float) -> Answer:
        """Why the worker gave no reply, told from what the host counted."""
        if result.breach is not None:
            return Answer(Outcome(result.breach), message=f"{result.breach} broken")
        if seconds >= self.limits.wall_time_s:
            return Answer(Outcome.TIME_LIMIT, message=f"no answer within {self.limits.wall_time_s:g} s")
        return Answer(Outcome.TAMPERED, message="the program ended or silenced the process that runs its cases")


async def _expect_hello(worker: Process) -> None:
    """Wait for the worker to start. No code of the candidate's has run yet, so a failure is the host's."""
    if await worker.receive(timeout_s=STARTUP_S, max_bytes=64) == b"H1":
        return
    result = await worker.kill()
    evidence = result.stderr.decode(errors="replace").strip()[-500:]
    evidence = (
        evidence
        or f"exit {result.exit_code}, signal {result.signal}, breach {result.breach} after {result.wall_s:.1f} s"
    )
    raise ProvisionFailed("the worker did not start in its sandbox", evidence=evidence)


def _answer(reply: bytes, language: Language) -> Answer:
    """What a reply says. It comes from an untrusted process and may hold anything."""
    tag, body = reply[:1], reply[2:]
    try:
        if tag == b"V":
            return Answer(None, values.decode(body))
        if tag == b"X":
            return _death(body, language)
        name, message, location = _texts(body)
    except (values.ValueCodecError, TypeError) as error:
        return Answer(Outcome.TAMPERED, message=f"a forged reply: {error}")
    outcome = _TOLD.get(tag)
    if outcome is None:
        return Answer(Outcome.TAMPERED, message="a forged reply: unknown kind")
    text = f"{name}: {message}" if message else name
    if tag == b"U":
        text = f"wrong type: {text}"
    if tag == b"L":
        text = "the returned value is too large"
    return Answer(outcome, message=text, location=location if _LOCATION.fullmatch(location) else None)


def _death(body: bytes, language: Language) -> Answer:
    """A call whose process ended without an answer."""
    pair = values.decode(body)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("not a pair")
    by_signal, number = pair
    if type(by_signal) is not bool or type(number) is not int or not 0 <= number < 256:
        raise TypeError("no wait status")
    if by_signal is True and number == signal.SIGXCPU:
        return Answer(Outcome.TIME_LIMIT, message="cpu time used up")
    if by_signal is True and number == signal.SIGXFSZ:
        return Answer(Outcome.DISK_LIMIT, message="a file grew past the limit")
    if by_signal is True and number == signal.SIGABRT and language == "javascript":  # so it ends when its heap is full
        return Answer(Outcome.MEMORY_LIMIT, message="node aborted, as it does when its heap is full")
    how = f"by signal {number}" if by_signal is True else f"with exit code {number}"
    return Answer(Outcome.RUNTIME_ERROR, message=f"the process ended {how} and gave no answer")


def _texts(body: bytes) -> list[str]:
    """Type and message of an exception as the worker reported it, and where it was raised."""
    texts = values.decode(body)
    if not isinstance(texts, tuple) or len(texts) != 3 or not all(isinstance(text, str) for text in texts):
        raise TypeError("not three texts")
    return [text for text in texts if isinstance(text, str)]
