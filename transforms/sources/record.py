"""One JSON object of a task file, read field by field with errors that name the field and the way out.

Values that JSON cannot hold are Python literals in `*_py` strings; nothing in a file is ever executed.
"""

import ast
import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from transforms.sources.task import AnyCase, Tier

Case = TypeVar("Case", bound=AnyCase)
HEAD_FIELDS = {
    "name": "names the case, unique in the task: a string",
    "tier": 'who may see the case: "visible", "hidden" or "integration"',
    "milestone": "part of the task that the case belongs to: a string",
}
"""The fields that cases of every kind have."""


@dataclass(frozen=True, slots=True)
class CaseHead:
    """What every case has, whatever its kind."""

    name: str
    tier: Tier
    milestone: str | None


class TaskFileError(Exception):
    """A task file that cannot be used. Its text says where, what is wrong and, after `hint:`, the way out."""

    def __init__(self, where: str, problem: str, hint: str) -> None:
        super().__init__(f"{where}: {problem}\n\nhint: {hint}")


class Record:
    """One JSON object of a task file, where it stands and which keys it may have."""

    def __init__(self, data: Any, where: str, fields: dict[str, str], inside: str = "") -> None:
        self.data, self.where, self.fields, self.inside = data, where, fields, inside
        if not isinstance(data, dict):
            raise self.error(f"must be an object, not {shown(data)}", f"a case has the keys {listed(fields)}")
        for key in data:
            if key not in fields:
                close = difflib.get_close_matches(key, fields, n=1)
                hint = f"did you mean `{close[0]}`?" if close else f"the keys are {listed(fields)}"
                raise self.error(f"unknown key `{key}`", hint)

    def error(self, problem: str, hint: str) -> TaskFileError:
        """The error to raise about this object."""
        return TaskFileError(self.where, f"{self.inside}{problem}", hint)

    def missing(self, name: str) -> TaskFileError:
        """The error about a field that must be there."""
        return self.error(f"the field `{name}` is missing", f"`{name}`: {self.fields[name]}")

    def must_be(self, name: str, wanted: str) -> TaskFileError:
        """The error about a field of the wrong kind."""
        return self.error(f"`{name}` must be {wanted}, not {shown(self.data[name])}", f"`{name}`: {self.fields[name]}")

    def text(self, name: str) -> str | None:
        """The string of a field, or None where it is absent or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.must_be(name, "a string")
        if value is not None and not json_holds(value):
            raise self.must_be(name, "text without lone surrogates")
        return value

    def full_text(self, name: str) -> str:
        """The string of a field that must be there and not be blank."""
        value = self.text(name)
        if value is None:
            raise self.missing(name)
        if not value.strip():
            raise self.must_be(name, "a string that is not blank")
        return value

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> Any:
        """The field's value, one of `choices`."""
        value = self.data.get(name, default)
        if value not in choices:
            raise self.must_be(name, " or ".join(f'"{choice}"' for choice in choices))
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false; false where it is absent."""
        value = self.data.get(name, False)
        if not isinstance(value, bool):
            raise self.must_be(name, "true or false")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float | None:
        """A finite number of at least `least`, or the default where the field is absent or null."""
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise self.must_be(name, f"a number of at least {least:g}")
        return float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where the field is absent."""
        value = self.data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and json_holds(item) for item in value):
            raise self.must_be(name, "a list of strings")
        return tuple(value)

    def inner(self, name: str, fields: dict[str, str]) -> "Record | None":
        """The object in a field, or None where it is absent or null."""
        if self.data.get(name) is None:
            return None
        return Record(self.data[name], self.where, fields, f"{self.inside}`{name}`: ")

    def cases(self, fields: dict[str, str], read: "Callable[[Record, CaseHead], Case]") -> "tuple[Case, ...]":
        """The task's cases, each with a name of its own, read by `read`. Empty only for a task that says why."""
        unsupported = self.data.get("unsupported") is not None
        listed_cases = self.data.get("cases")
        if listed_cases is None and not unsupported:
            raise self.missing("cases")
        if listed_cases is not None and not isinstance(listed_cases, list):
            raise self.must_be("cases", "a list")
        if not listed_cases and not unsupported:
            raise self.error("`cases` is empty", "give at least one case, or say in `unsupported` why there is none")
        found: dict[str, Case] = {}
        for number, data in enumerate(listed_cases or [], 1):
            record = Record(data, self.where, fields, f"{self.inside}case {number}: ")
            head = CaseHead(
                name=record.full_text("name") if "name" in record.data else f"case-{number}",
                tier=record.one_of("tier", get_args(Tier), "hidden"),
                milestone=record.full_text("milestone") if record.data.get("milestone") is not None else None,
            )
            case = read(record, head)
            if head.name in found:
                taken = list(found).index(head.name) + 1
                raise self.error(f"case {number}: `name` {head.name!r} is taken by case {taken}", "rename one of them")
            found[head.name] = case
        return tuple(found.values())

    def value(self, name: str, *, required: bool) -> Any:
        """The value of `name`, or of the Python literal in `name_py`; None where neither is there."""
        literal = f"{name}_py"
        if name in self.data and literal in self.data:
            raise self.error(f"`{name}` and `{literal}` are both given", f"keep `{name}` unless JSON cannot hold it")
        if name in self.data or (literal not in self.data and not required):
            return self.data.get(name)
        if literal not in self.data:
            raise self.missing(name)
        source = self.full_text(literal)
        try:
            value = ast.literal_eval(_NanAndInf().visit(ast.parse(source.strip(), mode="eval")))
            literal_of(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            hint = "numbers, strings, bytes, True, False, None, nan, inf, and lists, tuples, sets and dicts of them"
            raise self.error(f"`{literal}` is not a Python literal: {shown(source)}", hint) from error
        return value


def value_fields(name: str, value: object) -> dict[str, object]:
    """The field of a record that holds a value: `name` where JSON gives it back exactly, else `name_py`."""
    return {name: value} if json_holds(value) else {f"{name}_py": literal_of(value)}


def head_fields(case: AnyCase) -> dict[str, object]:
    """The fields that cases of every kind have, for a record."""
    part = {} if case.milestone is None else {"milestone": case.milestone}
    return {"name": case.name, "tier": case.tier, **part}


def json_holds(value: object) -> bool:
    """Whether JSON, with sorted keys, gives this very value back: its type, and the order of its keys, too."""
    if type(value) is list:
        return all(map(json_holds, value))
    if type(value) is dict:
        keys = [key for key in value if type(key) is str and json_holds(key)]
        return len(keys) == len(value) and keys == sorted(keys) and all(map(json_holds, value.values()))
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    return value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))


def literal_of(value: object) -> str:
    """Python source of a value, the same in every process. Raises ValueError where there is none."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(literal_of, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(literal_of, value))}{',' if len(value) == 1 else ''})"
    if type(value) is set:
        return f"{{{', '.join(sorted(map(literal_of, value)))}}}" if value else "set()"
    if type(value) is dict:
        return f"{{{', '.join(f'{literal_of(key)}: {literal_of(item)}' for key, item in value.items())}}}"
    raise ValueError(f"a value of type {type(value).__name__} cannot be in a task")


class _NanAndInf(ast.NodeTransformer):
    """Gives the names `nan` and `inf` their value: `repr` writes them, `ast.literal_eval` does not read them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node


def shown(value: object) -> str:
    """A value as JSON, shortened, for a message."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(fields: dict[str, str]) -> str:
    """The names of fields, for a hint."""
    return ", ".join(f"`{name}`" for name in fields)
