"""One run of a compiled program in a sandbox whose workspace is looked at afterwards."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandboxes.limits import Limits
from sandboxes.protocol import Result, Sandbox
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.trees import Item
from transforms.sources.languages import Language
from transforms.verify.compile import Compiled, run_command

_MESSAGE_BYTES = 1 << 16  # of what an interpreter says of a source that it cannot compile
_LINE = re.compile(r'File "[^"\n]*/main\.py", line (\d+)(?:, in (\w+))?')


@dataclass(frozen=True, slots=True)
class Run:
    """How a program ended."""

    result: Result
    syntax_error: str | None = None
    """What the interpreter said of a source that it could not compile."""

    @property
    def message(self) -> str:
        """How it ended and the last it said, for people."""
        if self.syntax_error is not None:
            return self.syntax_error
        if self.result.breach is not None:
            return f"{self.result.breach} broken"
        how = f"ended by signal {self.result.signal}" if self.result.signal else f"exit code {self.result.exit_code}"
        lines = self.result.stderr[-4096:].decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1]}" if lines else how

    @property
    def location(self) -> str | None:
        """Where a Python traceback says that it went wrong."""
        found = _LINE.findall(self.result.stderr[-4096:].decode(errors="replace"))
        return (f"line {found[-1][0]}" + (f" in {found[-1][1]}" if found[-1][1] else "")) if found else None

    def failure(self, exit_code: int | None) -> Outcome | None:
        """What its end alone makes of it; None where it ended with this exit code (None: any)."""
        if self.syntax_error is not None:
            return Outcome.SYNTAX_ERROR
        if self.result.breach is not None:
            return Outcome(self.result.breach)
        if self.result.signal is not None:
            return Outcome.RUNTIME_ERROR
        if exit_code in (None, self.result.exit_code):
            return None
        return Outcome.FAILED_TESTS if self.result.exit_code == 0 else Outcome.RUNTIME_ERROR


def source_files(language: Language, compiled: Compiled) -> dict[str, Item]:
    """What of a program lies in its workspace: the source, where that is run, so that it finds its inputs beside it."""
    return {} if language.product else {name: Item(content) for name, content in compiled.files.items()}


async def run_program(
    box: Sandbox, language: Language, limits: Limits, *, argv: tuple[str, ...] = (), stdin: bytes = b"",
    environment: Mapping[str, str],
) -> Run:  # fmt: skip
    """Run a program to its end in a sandbox made from `run_request`, with `source_files` in its workspace.

    Processes that it started may live on. Raises SandboxError.
    """
    command = run_command(language, box, limits, argv)
    if not language.product:
        source = f"{box.job}/{language.file}"
        command = replace(
            command, argv=tuple(f"{box.work}/{language.file}" if a == source else a for a in command.argv)
        )
    command = replace(command, stdin=stdin, env={**command.env, **environment})
    refused = None
    async with await box.start(command) as process:
        if command.channel:
            refused = await process.receive(timeout_s=limits.wall_time_s, max_bytes=_MESSAGE_BYTES)
        result = await process.wait()
    return Run(result, None if refused is None else refused.decode(errors="replace"))
