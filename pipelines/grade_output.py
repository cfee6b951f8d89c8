"""The file that graded rows go to: always whole rows, in the order of the programs, so that a stopped grading goes on.

What tells where it stopped is the rows themselves. They say which task, program, limits and grader they are of, so rows
of anything else are found before one more is added.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.grade_input import MAX_LINE_BYTES
from transforms.grade.outcomes import OutcomeClass
from transforms.sources.record import shown

_BEGINNING = b'{"task_id": '
"""How every row begins: a torn last line that does not is somebody else's."""


def unjudged(row: Mapping[str, Any]) -> bool:
    """Whether a row has no reward through our fault, so that another try may give it one."""
    return row["outcome_class"] in (OutcomeClass.INFRA, OutcomeClass.GRADER)


class ResultsError(Exception):
    """A file that rows cannot go to, as it is. Its text says why and, after `hint:`, the way out."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}\n\nhint: {hint}")


class ResultsFull(ResultsError):
    """A row could not be written: the disk is full or failed."""


class Results:
    """The open file. A context manager: leaving it puts all rows on the disk, and leaves no new file without a row."""

    def __init__(self, path: Path) -> None:
        """Open or create it for this process alone. Raises ResultsError."""
        self.path = path
        self._new = not path.exists()
        self.end = 0
        """Bytes of complete rows."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ResultsError(f"{path} cannot be written: {error.strerror}", "--out names a file to write") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ResultsError(f"{path} is no regular file", "--out names a file to write and to go on with")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file), path.stat()):
                raise BlockingIOError  # a retry that ends just now has put another file in its place
        except (BlockingIOError, FileNotFoundError):
            os.close(self._file)
            problem = f"{path} is being written by another `headrace grade`"
            raise ResultsError(problem, "wait for it, stop it, or choose another --out") from None
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._new and not self.end:
                self.path.unlink()
            os.fsync(self._file)
        except OSError as error:
            raise ResultsFull(f"{self.path} cannot be written: {error.strerror}", _GO_ON) from error
        finally:
            os.close(self._file)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The complete rows that are there; a torn last one is cut off at the end. Raises ResultsError."""
        self.end, number = 0, 0
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                torn = not line.endswith(b"\n")
                ours = line.startswith(_BEGINNING) or (torn and _BEGINNING.startswith(line))
                if not ours or len(line) == MAX_LINE_BYTES:
                    raise self.foreign(number, "is no row that `headrace grade` wrote")
                if torn:
                    break
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise self.foreign(number, f"is broken: {error}") from error
                self.end += len(line)
                yield row
        self.cut(self.end)

    def compare(self, number: int, row: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Make sure that a row is of what it would be of if it were graded now. Raises ResultsError."""
        for name, value in expected.items():
            was = row.get(name)
            if was == value:
                continue
            if isinstance(was, dict) and isinstance(value, dict):
                key = next(key for key in (*value, *was) if was.get(key) != value.get(key))
                raise self._differs(number, row, f"{name}.{key}", was.get(key), value.get(key))
            raise self._differs(number, row, name, was, value)

    def _differs(self, number: int, row: Mapping[str, Any], name: str, was: object, value: object) -> ResultsError:
        since = "the task has changed since: " if name == "task_hash" else ""
        said = f"its `{name}` is {'absent' if was is None else shown(was)}, here it is {shown(value)}"
        return self.foreign(number, f"(task {shown(row.get('task_id'))}) is of something else: {since}{said}")

    def foreign(self, number: int, problem: str) -> ResultsError:
        """The error about a row that this grading cannot go on after."""
        hint = "give the tasks, programs and options it was begun with; or another --out; or --force to start over"
        return ResultsError(f"{self.path}:{number} {problem}", hint)

    def append(self, row: str) -> None:
        """Add one row, whole or not at all. Raises ResultsFull."""
        data = memoryview(row.encode() + b"\n")
        left = data
        try:
            os.lseek(self._file, self.end, os.SEEK_SET)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.cut(self.end)
            raise ResultsFull(f"{self.path} cannot be written: {error.strerror}", _GO_ON) from error
        self.end += len(data)

    def cut(self, end: int) -> None:
        """Take away every row past this byte."""
        os.ftruncate(self._file, end)
        self.end = end

    def replace(self, old: "Results") -> None:
        """Take the place, the mode and the owner of another file, in one step. Raises ResultsFull."""
        try:
            status = os.fstat(old._file)
            os.fchmod(self._file, stat.S_IMODE(status.st_mode))
            with contextlib.suppress(PermissionError):  # not ours, but we may write it: then it becomes ours
                os.fchown(self._file, status.st_uid, status.st_gid)
            os.fsync(self._file)
            self.path.replace(old.path.resolve())
        except OSError as error:
            hint = f"both are whole; mend that, and the same command completes {old.path}"
            raise ResultsFull(f"{self.path} cannot take the place of {old.path}: {error.strerror}", hint) from error
        self.path = old.path


_GO_ON = "the rows before it are complete; make room, and the same command goes on after them"
