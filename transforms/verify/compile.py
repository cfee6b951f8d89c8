"""From source to what can be started in a sandbox, in any language; and whether a sandbox has the language at all.

A compiler runs once a program, in a sandbox of its own with limits of its own: what it makes is taken out as files, and
each run gets them in a fresh sandbox, in the job folder, where nobody can change them. What the compiler breaks or
refuses is the program's doing. That a toolchain is missing is no program's: it is found out with a program known to be
good, in a sandbox that never sees another.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.limits import MIB, Limits
from sandboxes.protocol import (
    Command,
    FilesRefused,
    ProvisionFailed,
    Result,
    Sandbox,
    SandboxProvider,
    SandboxRequest,
    Usage,
    Warm,
)
from transforms.grade.outcomes import Outcome
from transforms.sources.languages import Language

COMPILE_LIMITS = Limits(
    wall_time_s=60, cpu_time_s=30, memory_mib=1024, processes=256, output_kib=1024, disk_mib=256, file_mib=64
)
"""What a compiler may use: far more than honest programs take (the slowest, g++ with all headers, about 1 s)."""

COMPILER_MESSAGE_CHARS = 4000
"""Characters of a compiler's message that are kept; its beginning names the first error."""

# Compilers of Go say no more than where and what.
_ERROR = re.compile(r"^.*(?:\berror\b|Error: |undefined reference|^main\.go:\d).*$", re.MULTILINE)
# Of an assembler or linker below the compiler, whose own end is a plain exit; not of a line that quotes the source.
_FILE_TOO_LARGE = re.compile(
    r"^(?![ \d]|\S*main\.\w{1,4}:\d).*(?:file size limit exceeded|file too large).*$", re.MULTILINE | re.IGNORECASE
)
_LINE = re.compile(r"\b[Mm]ain\.\w{1,4}:(\d+)")
_PRODUCT_BYTES = 64 * MIB
_SITE = b"import builtins, site\nif not hasattr(builtins, 'exit'):\n    site.main()\n"
WARM = Warm(
    imports=(
        "site_packages", "streams", "ctypes", "threading", "bisect", "collections", "copy", "datetime", "decimal",
        "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "resource",
        "string", "typing",
    ),
    files=(
        *((name, (Path(__file__).parent / "inside" / name).read_bytes()) for name in ("launch.py", "streams.py")),
        ("site_packages.py", _SITE),  # an interpreter that was started without `site` does it here, once
    ),
)  # fmt: skip
"""What an interpreter has ready for programs: what most Python programs import, so that it is there before they ask."""

_HELLO = {
    "c": '#include <stdio.h>\nint main(void) { puts("ok"); return 0; }',
    "cpp": '#include <iostream>\nint main() { std::cout << "ok" << std::endl; }',
    "javascript": "console.log('ok')",
    "bash": "echo ok",
    "go": 'package main\nimport "fmt"\nfunc main() { fmt.Println("ok") }',
    "java": 'public class Main { public static void main(String[] a) { System.out.println("ok"); } }',
    "rust": 'fn main() { println!("ok"); }',
    "python": "print('ok')",
}
_TOOLCHAINS = ("go", "java", "rust")  # what the image `toolchains` has and `base` has not
_proven: set[tuple[object, ...]] = set()


class ToolchainMissing(ProvisionFailed):
    """The image has no working compiler or runtime of a language. Another image helps, not another try."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a compiler made no program."""

    outcome: Outcome
    """`syntax_error`, or a limit."""
    message: str
    """Its first error, in a line."""
    location: str | None = None
    """`line N` of the source; None where the compiler names none."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program ready to be run, or why there is none."""

    files: Mapping[str, bytes]
    """Name in the job folder -> content."""
    refusal: Refusal | None = None
    """None where the program can be run."""
    message: str | None = None
    """What the compiler said, bounded; None where nothing was compiled."""
    usage: Usage | None = None
    """Of the compiler's sandbox."""


async def compile_program(
    sandbox: SandboxProvider, language: Language, program: str, request: SandboxRequest
) -> Compiled:
    """Compile a program, where its language is compiled. Raises SandboxError when the host failed."""
    # What is no text (lone surrogates) stays as bytes that are none, for the compiler to say so.
    source = {language.file: program.encode("utf-8", "surrogatepass")}
    if not language.compile:
        return Compiled(source)
    asked = replace(request, limits=COMPILE_LIMITS, files=source, snapshot=None, warm=WARM)
    async with await sandbox.create(asked) as box:
        result = await box.exec(
            Command(_words(language.compile, language, box, COMPILE_LIMITS), env=language.environment)
        )
        said = (result.stderr + result.stdout).decode(errors="replace").replace(f"{box.job}/", "")
        refusal = _refusal(result, said)
        files = source
        if refusal is None and language.product:
            try:
                found = await box.get([language.product], max_bytes=_PRODUCT_BYTES)
                files = {name.removeprefix("./"): file.content for name, file in found.items()}
                refusal = None if files else Refusal(Outcome.SYNTAX_ERROR, "the compiler made no program")
            except FilesRefused as error:
                refusal = Refusal(Outcome.SYNTAX_ERROR, f"the compiler made what cannot be run: {error}")
        usage = await box.destroy()
    return Compiled(files, refusal, said[:COMPILER_MESSAGE_CHARS], usage)


def run_request(language: Language, compiled: Compiled, request: SandboxRequest) -> SandboxRequest:
    """What sandbox a compiled program runs in."""
    limits = language.stretched(request.limits)
    if language.product not in ("", "."):  # its copy in the workspace is none of the program's own files
        size = math.ceil(sum(map(len, compiled.files.values())) / MIB)
        limits = limits.model_copy(update={"disk_mib": limits.disk_mib + size, "file_mib": max(limits.file_mib, size)})
    return replace(request, limits=limits, files={**request.files, **compiled.files}, warm=WARM)


def run_command(language: Language, box: Sandbox, limits: Limits, argv: tuple[str, ...] = ()) -> Command:
    """How a compiled program is started in a sandbox made from `run_request`, whose limits are given.

    Python tells on the command's channel that it could not be compiled: see `launch.py`.
    """
    words = _words(language.run, language, box, limits)
    return Command(("launch.py", *words, *argv), env=language.environment, warm=True, channel=language.name == "python")


async def require_toolchain(sandbox: SandboxProvider, language: Language, request: SandboxRequest) -> None:
    """Make sure that a known good program of a language compiles and runs: once a process, image and set of limits.

    Raises ToolchainMissing when it does not, SandboxError when the host failed.
    """
    key = (sandbox.name, request.image, language.name, request.limits)
    if key in _proven:
        return
    compiled = await compile_program(sandbox, language, _HELLO[language.name], request)
    evidence = f"`{' '.join(language.compile)}`: {compiled.message}"
    if compiled.refusal is None:
        asked = run_request(language, compiled, request)
        async with await sandbox.create(asked) as box:
            result = await box.exec(run_command(language, box, asked.limits))
        if result.exit_code == 0 and result.stdout.strip() == b"ok":
            _proven.add(key)
            return
        said = result.stderr.decode(errors="replace").strip()
        evidence = (
            f"`{' '.join(language.run)}`: exit {result.exit_code}, signal {result.signal}, {result.breach}; {said}"
        )
    image = "toolchains" if language.name in _TOOLCHAINS else "base"
    way = "raise its limits, or mend it" if image == request.image else another_image(sandbox, image)
    raise ToolchainMissing(
        f"a {language.name} program known to be good cannot be compiled and run in image {request.image}, so no other "
        f"is judged there; {way}",
        evidence=evidence[:500],
    )


def another_image(sandbox: SandboxProvider, name: str) -> str:
    """The way out where an image lacks what the shipped image `name` has, as the end of a message."""
    back_end = " on another back-end (`subprocess` has no images)" if sandbox.name == "subprocess" else ""
    return f"use an image that has it, such as `{name}` (`headrace sandbox build {name}`){back_end}"


def _words(words: tuple[str, ...], language: Language, box: Sandbox, limits: Limits) -> tuple[str, ...]:
    places = {"file": f"{box.job}/{language.file}", "folder": box.job, "heap_mib": limits.memory_mib * 3 // 4}
    return tuple(word.format_map(places) for word in words)


def _refusal(result: Result, said: str) -> Refusal | None:
    if result.breach is not None:
        return Refusal(Outcome(result.breach), f"{result.breach} broken by the compiler")
    if result.exit_code == 0:
        return None
    if (full := _FILE_TOO_LARGE.search(said)) is not None:
        return Refusal(Outcome.DISK_LIMIT, f"disk_limit broken by the compiler: {full[0].strip()}")
    error = _ERROR.search(said)
    if error is None:
        how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        return Refusal(Outcome.SYNTAX_ERROR, f"the compiler ended with {how}: {said.strip()}")
    line = _LINE.search(said, error.start()) or _LINE.search(said)
    return Refusal(Outcome.SYNTAX_ERROR, error[0].strip(), f"line {line[1]}" if line else None)
