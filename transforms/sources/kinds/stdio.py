"""The kind `stdio`: a program reads standard input, and what it prints is compared."""

import ast
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from transforms.sources.languages import LANGUAGES
from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, json_holds, shown, value_fields
from transforms.sources.task import Integrity, Tier

Compare = Literal["trimmed", "exact", "tokens", "numbers", "checker"]

FIELDS = {
    "language": f"language of the submission: {', '.join(LANGUAGES)}",
    "cases": "inputs and the outputs they must give: a list of objects",
    "compare": f"how outputs are compared: {', '.join(get_args(Compare))}",
    "tolerance": 'for `numbers`, how far they may be off: {"absolute": A, "relative": R}',
    "checker": "for `checker`, Python source that defines check(stdin, stdout, expected) -> bool: a string",
}
CASE_FIELDS = HEAD_FIELDS | {
    "stdin": "what the program reads: a string",
    "stdin_py": "what the program reads: a Python literal of str or bytes in a string",
    "argv": "arguments of the program: a list of strings",
    "expected": "what the program must print: a string",
    "expected_py": "what the program must print: a Python literal of str or bytes in a string",
}
_TOLERANCE_FIELDS = {
    "absolute": "largest difference: a number",
    "relative": "largest difference as a share of the expected number's size: a number",
}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A number may be off by the larger of `absolute` and `relative` times the size of the expected number."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the program and what it must print. Text is UTF-8 on its way."""

    name: str
    stdin: str | bytes
    expected: str | bytes
    argv: tuple[str, ...] = ()
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class Stdio:
    """Write a program; each case runs it in a sandbox of its own and compares what it prints."""

    kind: ClassVar[str] = "stdio"
    integrity: ClassVar[Integrity] = "split"

    cases: tuple[Case, ...]
    language: str = "python"
    """A key of LANGUAGES."""
    compare: Compare = "trimmed"
    """`trimmed`: white space at the end of lines and around the whole does not count. `exact`: every byte. `tokens`:
    what white space divides. `numbers`: tokens, numbers within `tolerance`. `checker`: what `checker` says."""
    tolerance: Tolerance | None = None
    checker: str | None = None
    """Source of `check(stdin, stdout, expected)`, which says whether an output is right. It gets text; bytes that are
    not UTF-8 are lone surrogates in it, as `surrogateescape` makes them."""


def read(record: Record) -> Stdio:
    """Read the kind's fields of a task. Raises TaskFileError."""
    compare = record.one_of("compare", get_args(Compare), "trimmed")
    for name, only in (("tolerance", "numbers"), ("checker", "checker")):
        if record.data.get(name) is not None and compare != only:
            raise record.error(f'`{name}` has no effect with compare "{compare}"', f'set `compare` to "{only}"')
    cases = record.cases(CASE_FIELDS, lambda case, head: _case(case, head, needs_expected=compare != "checker"))
    if compare == "checker" and cases and not any(case.expected for case in cases):
        hint = (
            "give one case an output that the checker accepts: it tells a broken checker from an output it cannot take"
        )
        raise record.error("no case names `expected`", hint)
    return Stdio(
        cases=cases,
        language=record.one_of("language", tuple(LANGUAGES), "python"),
        compare=compare,
        tolerance=_tolerance(record) if compare == "numbers" else None,
        checker=_checker(record) if compare == "checker" else None,
    )


def write(check: Stdio) -> dict[str, object]:
    """The kind's fields of a task's record. Raises ValueError for a value without a literal."""
    optional: dict[str, object] = {
        "compare": None if check.compare == "trimmed" else check.compare,
        "checker": check.checker,
        "tolerance": check.tolerance and {"absolute": check.tolerance.absolute, "relative": check.tolerance.relative},
    }
    return {
        "language": check.language,
        "cases": [
            head_fields(case)
            | value_fields("stdin", case.stdin)
            | ({"argv": list(case.argv)} if case.argv else {})
            | value_fields("expected", case.expected)
            for case in check.cases
        ],
    } | {name: value for name, value in optional.items() if value is not None}


def describe(check: Stdio, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    arguments = f" with arguments {list(case.argv)}" if case.argv else ""
    wanted = "what the checker accepts" if check.compare == "checker" else f"{case.expected!r} ({check.compare})"
    return f"stdin {case.stdin!r}{arguments} must print {wanted}"


def _case(record: Record, head: CaseHead, *, needs_expected: bool) -> Case:
    argv = record.texts("argv")
    if any("\0" in argument for argument in argv):
        raise record.must_be("argv", "a list of strings without NUL")
    stdin, expected = _stream(record, "stdin", required=False), _stream(record, "expected", required=needs_expected)
    return Case(head.name, stdin, expected, argv, head.tier, head.milestone)


def _stream(record: Record, name: str, *, required: bool) -> str | bytes:
    value = record.value(name, required=required)
    given = name if name in record.data else f"{name}_py"
    if value is None and not required and record.data.get(given) is None:
        return ""
    if not isinstance(value, str | bytes) or (isinstance(value, str) and not json_holds(value)):
        raise record.must_be(given, "text without lone surrogates" + (" or bytes" if given != name else ""))
    return value


def _tolerance(record: Record) -> Tolerance:
    given = record.inner("tolerance", _TOLERANCE_FIELDS)
    if given is None:
        raise record.missing("tolerance")
    found = Tolerance(given.number("absolute", 0.0) or 0.0, given.number("relative", 0.0) or 0.0)
    if found == Tolerance():
        raise record.must_be("tolerance", "more than 0 somewhere")
    return found


def _checker(record: Record) -> str:
    source = record.full_text("checker")
    try:
        names = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise record.error(f"`checker` is not Python: {error}", f"`checker`: {FIELDS['checker']}") from error
    if "check" not in names:
        raise record.error(f"`checker` defines no `check`: {shown(source)}", f"`checker`: {FIELDS['checker']}")
    return source
