"""The kind `call`: a function is called with arguments, and what it returns is compared.

How, is declared: strictly, with the types, unless the task or the case says `tolerance` or `sequences`; or not compared
at all but handed to the task's `checker`.
"""

import ast
import keyword
import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, value_fields
from transforms.sources.task import Integrity, Tier

Sequences = Literal["strict", "any"]
Language = Literal["python", "javascript"]

_RULE_FIELDS = {
    "tolerance": 'how far a float may be off, such as {"absolute": 1e-6}: an object',
    "sequences": 'whether a tuple counts as a list: "strict" or "any"',
}
FIELDS = _RULE_FIELDS | {
    "entry_point": "name of the function the cases call: a string",
    "cases": "the calls and the values they must return: a list of objects",
    "prefix": "source put before every submission: a string",
    "stub": "source that a completion without a code block goes on with: a string",
    "language": 'language of the submission: "python" or "javascript"',
    "checker": "Python source of `check(args, kwargs, returned)`, which says True or False: a string",
}
CASE_FIELDS = (
    HEAD_FIELDS
    | {
        "args": "positional arguments: a list",
        "args_py": "positional arguments: a Python list or tuple in a string",
        "kwargs": "keyword arguments: an object",
        "kwargs_py": "keyword arguments: a Python dict in a string",
        "expected": "the value the call must return: any JSON value",
        "expected_py": "the value the call must return: a Python literal in a string",
    }
    | _RULE_FIELDS
)
_TOLERANCE_FIELDS = {
    "absolute": "how far a float may be off, as a number",
    "relative": "how far a float may be off, as a share of the expected one",
}
_JAVASCRIPT_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a returned float may be off: the larger of both."""

    absolute: float = 0.0
    relative: float = 0.0
    """Of the expected number."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the entry point and the value it must return."""

    name: str
    args: tuple[object, ...]
    expected: object = None
    """With a checker: a value that it accepts, or None for none."""
    kwargs: dict[str, object] = field(default_factory=dict)
    tier: Tier = "hidden"
    milestone: str | None = None
    tolerance: Tolerance | None = None
    """None: the task's."""
    sequences: Sequences | None = None
    """None: the task's."""


@dataclass(frozen=True, slots=True)
class Call:
    """Write a function; each case calls it in a fresh process and compares what it returns."""

    kind: ClassVar[str] = "call"
    integrity: ClassVar[Integrity] = "split"

    entry_point: str
    cases: tuple[Case, ...]
    prefix: str = ""
    """Source put before the submission (imports, helpers the prompt promises)."""
    language: Language = "python"
    tolerance: Tolerance | None = None
    """None: floats are compared exactly."""
    sequences: Sequences = "strict"
    """`any`: a tuple counts as a list, at any depth."""
    stub: str = ""
    """The beginning of a program, head of the entry point included, that a completion without a code block goes on with
    (as those of a base model do). Only `headrace grade` reads completions so."""
    checker: str | None = None
    """Source of `check(args, kwargs, returned)` or `check(args, kwargs, returned, expected)`, which says whether a
    value is right. It runs in a sandbox in which no submission ever ran."""


def read(record: Record) -> Call:
    """Read the kind's fields of a task. Raises TaskFileError."""
    language = record.one_of("language", get_args(Language), "python")
    entry_point = record.full_text("entry_point")
    if language == "javascript" and not _JAVASCRIPT_NAME.fullmatch(entry_point):
        raise record.must_be("entry_point", "a JavaScript name in ASCII letters")
    if language == "python" and (not entry_point.isidentifier() or keyword.iskeyword(entry_point)):
        raise record.must_be("entry_point", "a Python name")
    checker = record.full_text("checker") if record.data.get("checker") is not None else None
    if checker is not None:
        _look_at_checker(record, checker)
    cases = record.cases(CASE_FIELDS, lambda case, head: read_case(case, head, expected=checker is None))
    if checker is not None and cases and all(case.expected is None for case in cases):
        hint = "give one case a value that the checker accepts: it tells a broken checker from a value it cannot take"
        raise record.error("no case names `expected`", hint)
    return Call(
        entry_point=entry_point,
        cases=cases,
        prefix=record.text("prefix") or "",
        language=language,
        tolerance=_tolerance(record),
        sequences=record.one_of("sequences", get_args(Sequences), "strict"),
        stub=record.text("stub") or "",
        checker=checker,
    )


def read_case(record: Record, head: CaseHead, *, expected: bool) -> Case:
    """Read one case; `expected` says whether it must name the value. Raises TaskFileError."""
    args = record.value("args", required=True)
    if not isinstance(args, list | tuple):
        raise record.must_be("args" if "args" in record.data else "args_py", "a list")
    kwargs = record.value("kwargs", required=False)
    if kwargs is not None and not (isinstance(kwargs, dict) and all(type(key) is str for key in kwargs)):
        raise record.must_be("kwargs" if "kwargs" in record.data else "kwargs_py", "an object with string keys")
    return Case(
        name=head.name,
        args=tuple(args),
        expected=record.value("expected", required=expected),
        kwargs=kwargs or {},
        tier=head.tier,
        milestone=head.milestone,
        tolerance=_tolerance(record),
        sequences=record.one_of("sequences", get_args(Sequences), "strict") if "sequences" in record.data else None,
    )


def write(check: Call) -> dict[str, object]:
    """The kind's fields of a task's record. Raises ValueError for a value without a literal."""
    sequences = None if check.sequences == "strict" else check.sequences
    optional = {
        "prefix": check.prefix or None,
        "stub": check.stub or None,
        "language": None if check.language == "python" else check.language,
        "checker": check.checker,
    }
    cases = []
    for case in check.cases:
        fields = head_fields(case) | value_fields("args", list(case.args))
        if case.kwargs:
            fields |= value_fields("kwargs", case.kwargs)
        if check.checker is None or case.expected is not None:
            fields |= value_fields("expected", case.expected)
        cases.append(fields | _rule_fields(case.tolerance, case.sequences))
    given = {name: text for name, text in optional.items() if text is not None}
    return {"entry_point": check.entry_point, "cases": cases} | _rule_fields(check.tolerance, sequences) | given


def describe(check: Call, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    arguments = [repr(value) for value in case.args] + [f"{name}={value!r}" for name, value in case.kwargs.items()]
    call = f"{check.entry_point}({', '.join(arguments)})"
    return f"{call} must return {case.expected!r}" if check.checker is None else f"the checker must accept {call}"


def checker_takes_expected(source: str) -> bool:
    """Whether a checker has a fourth argument. Raises ValueError, SyntaxError for what is no checker."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args)
            if count in (3, 4) and not arguments.kwonlyargs:
                return count == 4
    raise ValueError("it defines no `check(args, kwargs, returned)`")


def _look_at_checker(record: Record, source: str) -> None:
    hint = "define `check(args, kwargs, returned)` or `check(args, kwargs, returned, expected)`; it returns a bool"
    try:
        checker_takes_expected(source)
    except SyntaxError as error:
        raise record.error(f"`checker` is not Python: line {error.lineno}: {error.msg}", hint) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise record.error(f"`checker` cannot be used: {error}", hint) from error


def _tolerance(record: Record) -> Tolerance | None:
    inner = record.inner("tolerance", _TOLERANCE_FIELDS)
    if inner is None:
        return None
    tolerance = Tolerance(inner.number("absolute", 0.0) or 0.0, inner.number("relative", 0.0) or 0.0)
    if tolerance == Tolerance():
        raise inner.error("neither `absolute` nor `relative` is above 0", "give one of them, or leave `tolerance` out")
    return tolerance


def _rule_fields(tolerance: Tolerance | None, sequences: Sequences | None) -> dict[str, object]:
    fields: dict[str, object] = {} if sequences is None else {"sequences": sequences}
    if tolerance is not None:
        both = {"absolute": tolerance.absolute, "relative": tolerance.relative}
        fields["tolerance"] = {name: value for name, value in both.items() if value}
    return fields
