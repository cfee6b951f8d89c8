"""The kind `files`: a program is run on files, and the files it leaves are looked at when it is dead."""

import base64
import json
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from transforms.sources.kinds.trees import Tree, bytes_of, mode_of, relative, the_one, tree, tree_field
from transforms.sources.languages import LANGUAGES
from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, json_holds
from transforms.sources.task import Integrity, Tier

FIELDS = {
    "language": f"language of the program: {', '.join(LANGUAGES)}",
    "cases": "the inputs and the files expected of them: a list of objects",
}
CASE_FIELDS = HEAD_FIELDS | {
    "files": 'what lies in the workspace before: an object of paths, each with text or {"base64": ...}',
    "stdin": "what the program reads: a string",
    "argv": "the program's arguments: a list of strings",
    "exit_code": "the exit status it must have, null for any: a number",
    "expected": "the files that must be there after: a list of objects",
}
_LOOKS = ("text", "bytes_base64", "json", "csv", "absent")
_EXPECTED_FIELDS = {
    "path": "the file: a relative path",
    "text": "the text, white space at the end of lines and of the file aside: a string",
    "bytes_base64": "the very bytes: base64 in a string",
    "json": "the value of a JSON document: any JSON value",
    "csv": "the cells of a table: a list of lists of strings",
    "absent": "that nothing is there: true",
    "ordered": "whether the order of a table's rows counts: true or false",
    "mode": 'permission bits: four octal digits in a string, such as "0644"',
}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that must be there, or must not."""

    path: str
    look: Literal["text", "bytes", "json", "csv", "absent"]
    value: object = None
    """str, bytes, a JSON value, or a tuple of tuples of str; None where nothing may be."""
    ordered: bool = True
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the program and the files it must leave."""

    name: str
    expected: tuple[Artifact, ...]
    files: Tree = field(default_factory=dict)
    stdin: str = ""
    argv: tuple[str, ...] = ()
    exit_code: int | None = 0
    """None: any."""
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """Write a program that makes files; each case runs it in a fresh sandbox."""

    kind: ClassVar[str] = "files"
    integrity: ClassVar[Integrity] = "separate"

    cases: tuple[Case, ...]
    language: str = "python"


def read(record: Record) -> Files:
    """Read the kind's fields of a task. Raises TaskFileError."""
    check = Files(record.cases(CASE_FIELDS, _case), record.one_of("language", tuple(LANGUAGES), "python"))
    language = LANGUAGES[check.language]
    for case in check.cases:
        if taken := {language.file, language.product} & case.files.keys():
            problem = f"case {case.name!r}: `files` has {taken.pop()!r}, where the program lies"
            raise record.error(problem, "give the input file another name")
    return check


def write(check: Files) -> dict[str, object]:
    """The kind's fields of a task's record."""
    cases = []
    for case in check.cases:
        fields = {"files": tree_field(case.files), "stdin": case.stdin, "argv": list(case.argv)}
        cases.append(
            head_fields(case)
            | {name: value for name, value in fields.items() if value}
            | ({} if case.exit_code == 0 else {"exit_code": case.exit_code})
            | {"expected": [_written(artifact) for artifact in case.expected]}
        )
    return {"language": check.language, "cases": cases}


def describe(check: Files, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    files = ", ".join(f"{artifact.path} ({artifact.look})" for artifact in case.expected)
    return f"the program must leave {files}" if files else f"the program must end with {case.exit_code}"


def _case(record: Record, head: CaseHead) -> Case:
    exit_code = record.data.get("exit_code", 0)
    if exit_code is not None and (type(exit_code) is not int or not 0 <= exit_code <= 255):
        raise record.must_be("exit_code", "a whole number from 0 to 255, or null")
    argv = record.texts("argv")
    if any("\0" in argument for argument in argv):
        raise record.must_be("argv", "a list of strings without NUL, as arguments are")
    expected = record.data.get("expected")
    if expected is None:
        raise record.missing("expected")
    if not isinstance(expected, list) or not expected:
        raise record.must_be("expected", "a list of at least one file")
    return Case(
        head.name,
        tuple(_artifact(record, number, data) for number, data in enumerate(expected, 1)),
        tree(record, "files"),
        record.text("stdin") or "",
        argv,
        exit_code,
        head.tier,
        head.milestone,
    )


def _artifact(case: Record, number: int, data: object) -> Artifact:
    record = Record(data, case.where, _EXPECTED_FIELDS, f"{case.inside}`expected` {number}: ")
    path = relative(record, "path", record.full_text("path"))
    look = the_one(record, _LOOKS)
    if "ordered" in record.data and look != "csv":
        raise record.error("`ordered` goes with `csv` only", "leave it out")
    mode = mode_of(record)
    match look:
        case "text":
            return Artifact(path, "text", record.text("text") or "", mode=mode)
        case "bytes_base64":
            return Artifact(path, "bytes", bytes_of(record, "bytes_base64"), mode=mode)
        case "json":
            return Artifact(path, "json", _json(record), mode=mode)
        case "csv":
            ordered = record.flag("ordered") if "ordered" in record.data else True
            return Artifact(path, "csv", _table(record), ordered, mode)
    if not record.flag("absent") or mode is not None:
        raise record.error("`absent` is true, and alone", "leave out the other fields, or say what must be there")
    return Artifact(path, "absent")


def _json(record: Record) -> object:
    value = record.data["json"]
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise record.error("`json` holds a lone surrogate", "give text that can be written as UTF-8") from error
    return value


def _table(record: Record) -> tuple[tuple[str, ...], ...]:
    rows = record.data["csv"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and row for row in rows):
        raise record.must_be("csv", "a list of rows, each a list of cells")
    if not all(isinstance(cell, str) and json_holds(cell) for row in rows for cell in row):
        raise record.error("`csv` holds a cell that is no string", 'cells of a CSV file are text: write 1 as "1"')
    return tuple(map(tuple, rows))


def _written(artifact: Artifact) -> dict[str, object]:
    mode = {} if artifact.mode is None else {"mode": f"{artifact.mode:04o}"}
    value = artifact.value
    match artifact.look:
        case "bytes":
            assert isinstance(value, bytes)
            held: dict[str, object] = {"bytes_base64": base64.b64encode(value).decode()}
        case "csv":
            held = {"csv": json.loads(json.dumps(value))} | ({} if artifact.ordered else {"ordered": False})
        case "absent":
            held = {"absent": True}
        case _:
            held = {artifact.look: value}
    return {"path": artifact.path} | held | mode
