"""Programs to grade, read lazily from a JSONL file, plain or gzipped: a million rows take no more memory than one.

A row is an object with `task_id` and either `program` (source) or `completion` (what a model wrote). Other keys are
left alone, so that sample files of other harnesses can be read as they are.
"""

import codecs
import difflib
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transforms.sources.record import shown
from transforms.sources.task import Task
from transforms.verify.extract import extract_submission

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Bytes a row may take: more is no row but some other file."""

_GZIP = b"\x1f\x8b"
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)


class ProgramsError(Exception):
    """A file of programs that cannot be graded. Its text says where, what is wrong and, after `hint:`, the way out."""

    def __init__(self, where: str, problem: str, hint: str) -> None:
        super().__init__(f"{where}: {problem}\n\nhint: {hint}")


@dataclass(frozen=True, slots=True)
class Submission:
    """One row of the file."""

    line: int
    """Number of its line, from 1."""
    task: Task
    id: str | int | None
    """The row's own `id`, if it has one."""
    text: str | None
    """Source or completion; None where the row says that nothing was submitted."""
    whole: bool
    """Whether `text` is the program itself, not a completion that holds it."""

    def program(self) -> str | None:
        """What is run; None when there is none, or nothing but white space."""
        if self.text is None or not self.text.strip():
            return None
        # A byte order mark at the head of a source file is no part of the source.
        return self.text.removeprefix("\ufeff") if self.whole else program_in(self.text, self.task)


def program_in(completion: str, task: Task) -> str | None:
    """The program of a completion: by the rule of `extract`, but for one that goes on with the task's stub.

    That is a completion without a fence that begins with an indented line or does not define the entry point itself, as
    in the sample files of HumanEval; the program is then stub and completion, as its own harness has it.
    """
    stub = getattr(task.check, "stub", "")
    if stub and not _FENCE.search(completion):
        first = next((line for line in completion.splitlines() if line.strip()), "")
        entry_point = re.escape(getattr(task.check, "entry_point", ""))
        if first[:1] in (" ", "\t") or not re.search(rf"^(?:async\s+)?def\s+{entry_point}\b", completion, re.MULTILINE):
            return stub + completion
    return extract_submission(completion, task.check)


def sha256_of(program: str | None) -> str | None:
    """SHA-256 of a program's UTF-8, in hex."""
    return None if program is None else hashlib.sha256(program.encode("utf-8", "surrogatepass")).hexdigest()


def read_programs(path: Path, tasks: Mapping[str, Task]) -> Iterator[Submission]:
    """The rows of a file in their order; empty lines are skipped. Raises ProgramsError at the first fault."""
    try:
        if path.exists() and not path.is_file():
            hint = "the file is read twice, the first time to check it: write the rows to a file on disk"
            raise ProgramsError(str(path), "is no regular file", hint)
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            file = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MAX_LINE_BYTES:
                    raise ProgramsError(where, f"a line of more than {MAX_LINE_BYTES} bytes", "write one object a line")
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield _submission(_object(line, where), where, number, tasks)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProgramsError(str(path), reason, "give a JSONL file of programs, plain or gzipped") from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ProgramsError(where, f"byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        hint = "each line holds one whole JSON object; mend or remove this one: the rows before it stay graded"
        raise ProgramsError(where, f"broken JSON at column {error.colno}: {error.msg}", hint) from error
    except (ValueError, RecursionError) as error:
        raise ProgramsError(where, f"JSON that cannot be read: {error}", "use smaller values") from error
    if not isinstance(data, dict):
        raise ProgramsError(where, f"a line must hold an object, not {shown(data)}", 'write {"task_id": ...}')
    return data


def _submission(data: dict[str, Any], where: str, line: int, tasks: Mapping[str, Task]) -> Submission:
    task_id, own = data.get("task_id"), data.get("id")
    if not isinstance(task_id, str):
        problem = f"`task_id` must be a string, not {shown(task_id)}" if "task_id" in data else "`task_id` is missing"
        raise ProgramsError(where, problem, "`task_id` names a task of --tasks: a string")
    if task_id not in tasks:
        close = difflib.get_close_matches(task_id, tasks, n=1)
        hint = (
            f"did you mean {shown(close[0])}?"
            if close
            else f"--tasks has {len(tasks)}, such as {shown(next(iter(tasks)))}"
        )
        raise ProgramsError(where, f"no task has the id {shown(task_id)}", hint)
    given = [name for name in ("program", "completion") if name in data]
    if len(given) != 1:
        problem = (
            "`program` and `completion` are both given" if given else "neither `program` nor `completion` is given"
        )
        hint = "`program` is source, run as it is; `completion` is what a model wrote, with the program somewhere in it"
        raise ProgramsError(where, problem, f"{hint}; keep one")
    text = data[given[0]]
    if text is not None and not isinstance(text, str):
        hint = "null stands for a row that submits nothing"
        raise ProgramsError(where, f"`{given[0]}` must be a string or null, not {shown(text)}", hint)
    if own is not None and (isinstance(own, bool) or not isinstance(own, str | int)):
        raise ProgramsError(
            where, f"`id` must be a string or a whole number, not {shown(own)}", "leave it out or mend it"
        )
    return Submission(line, tasks[task_id], own, text, whole=given[0] == "program")
