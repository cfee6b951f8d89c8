"""Tasks in our own file format: UTF-8, one JSON object a line. `docs/tasks.md` describes it field by field.

Values that JSON cannot hold are Python literals in `*_py` strings; nothing in a file is ever executed.
"""

import ast
import codecs
import difflib
import json
import keyword
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from transforms.sources.task import Case, Split, Task, Tier, canonical

TASK_FIELDS = {
    "task_id": "names the task, unique in the file: a string",
    "prompt": "what the policy is asked: a string",
    "entry_point": "name of the function the cases call: a string",
    "cases": "the calls and the values they must return: a list of objects",
    "gold": "source of a solution that passes every case: a string",
    "split": 'which set the task belongs to: "train" or "heldout"',
    "prefix": "source put before every submission: a string",
    "source": "where the task comes from: a string",
    "unsupported": "why the task is kept but cannot be graded: a string",
    "kind": 'how the task is checked: "call"',
}
CASE_FIELDS = {
    "name": "names the case, unique in the task: a string",
    "args": "positional arguments: a list",
    "args_py": "positional arguments: a Python list or tuple in a string",
    "kwargs": "keyword arguments: an object",
    "kwargs_py": "keyword arguments: a Python dict in a string",
    "expected": "the value the call must return: any JSON value",
    "expected_py": "the value the call must return: a Python literal in a string",
    "tier": 'who may see the case: "visible" or "hidden"',
}


class TaskFileError(Exception):
    """A task file that cannot be used. Its text says where, what is wrong and, after `hint:`, the way out."""

    def __init__(self, where: str, problem: str, hint: str) -> None:
        super().__init__(f"{where}: {problem}\n\nhint: {hint}")


def read_tasks(path: Path) -> list[Task]:
    """Read a task file, in its order. Empty lines are skipped. Raises TaskFileError at the first fault."""
    try:
        content = path.read_bytes()
    except OSError as error:
        hint = "give a file in the format of docs/tasks.md, or `builtin:NAME`"
        raise TaskFileError(str(path), error.strerror or str(error), hint) from error
    tasks: dict[str, Task] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        task = _task(_Object(_json_object(line, where), where, TASK_FIELDS))
        if task.task_id in tasks:
            problem = f"`task_id` {task.task_id!r} is taken by line {lines[task.task_id]}"
            raise TaskFileError(where, problem, "give each task an id of its own")
        tasks[task.task_id] = task
        lines[task.task_id] = number
    if not tasks:
        raise TaskFileError(str(path), "the file holds no task", "write one JSON object a line, as in docs/tasks.md")
    return list(tasks.values())


def write_tasks(path: Path, tasks: list[Task]) -> None:
    """Write tasks as a file that `read_tasks` reads back equal. Raises ValueError for a value without a literal."""
    path.write_text("".join(canonical(task_to_record(task)) + "\n" for task in tasks), encoding="utf-8")


def task_to_record(task: Task) -> dict[str, object]:
    """The canonical record of a task; equal tasks have equal records. Raises ValueError for a value with no literal."""
    record: dict[str, object] = {
        "task_id": task.task_id,
        "kind": "call",
        "prompt": task.prompt,
        "entry_point": task.entry_point,
        "split": task.split,
        "source": task.source,
        "cases": [_case_to_record(case) for case in task.cases],
    }
    optional = {"gold": task.gold, "prefix": task.prefix or None, "unsupported": task.unsupported}
    return record | {name: text for name, text in optional.items() if text is not None}


def with_record(task: Task) -> Task:
    """The same task carrying its canonical record. Raises ValueError for a value without a literal."""
    return replace(task, record=canonical(task_to_record(task)))


def _case_to_record(case: Case) -> dict[str, object]:
    record: dict[str, object] = {"name": case.name, "tier": case.tier}
    values = {"args": list(case.args), "kwargs": case.kwargs or None, "expected": case.expected}
    for name, value in values.items():
        if name == "kwargs" and value is None:
            continue
        if _json_holds(value):
            record[name] = value
        else:
            record[f"{name}_py"] = _literal(value)
    return record


def _json_holds(value: object) -> bool:
    """Whether JSON, with sorted keys, gives this very value back: its type, and the order of its keys, too."""
    if type(value) is list:
        return all(map(_json_holds, value))
    if type(value) is dict:
        keys = [key for key in value if type(key) is str and _json_holds(key)]
        return len(keys) == len(value) and keys == sorted(keys) and all(map(_json_holds, value.values()))
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    return value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))


def _literal(value: object) -> str:
    """Python source of a value, the same in every process. Raises ValueError where there is none."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(_literal, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if type(value) is set:
        return f"{{{', '.join(sorted(map(_literal, value)))}}}" if value else "set()"
    if type(value) is dict:
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    raise ValueError(f"a value of type {type(value).__name__} cannot be in a task")


class _NanAndInf(ast.NodeTransformer):
    """Gives the names `nan` and `inf` their value: `repr` writes them, `ast.literal_eval` does not read them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twin = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
            raise TaskFileError(where, f"the key `{twin}` stands twice in one object", "keep one of them")
        return found

    def no_constants(text: str) -> float:
        value = text.replace("NaN", "nan").replace("Infinity", "inf")
        raise TaskFileError(where, f"{text} is not JSON", f"write {value} in a `*_py` string")

    try:
        data = json.loads(line.decode(), object_pairs_hook=no_twins, parse_constant=no_constants)
    except UnicodeDecodeError as error:
        raise TaskFileError(where, f"byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        hint = "each line holds one whole JSON object; a line break inside a string is written \\n"
        raise TaskFileError(where, f"broken JSON at column {error.colno}: {error.msg}", hint) from error
    except (ValueError, RecursionError) as error:
        raise TaskFileError(where, f"JSON that cannot be read: {error}", "use smaller values") from error
    if not isinstance(data, dict):
        raise TaskFileError(where, f"a line must hold an object, not {_shown(data)}", 'write {"task_id": ...}')
    return data


class _Object:
    """One JSON object of a task file, where it stands and which keys it may have."""

    def __init__(self, data: Any, where: str, fields: dict[str, str], inside: str = "") -> None:
        self.data, self.where, self.fields, self.inside = data, where, fields, inside
        if not isinstance(data, dict):
            raise self.error(f"must be an object, not {_shown(data)}", f"a case has the keys {_listed(fields)}")
        for key in data:
            if key not in fields:
                close = difflib.get_close_matches(key, fields, n=1)
                hint = f"did you mean `{close[0]}`?" if close else f"the keys are {_listed(fields)}"
                raise self.error(f"unknown key `{key}`", hint)

    def error(self, problem: str, hint: str) -> TaskFileError:
        """The error to raise about this object."""
        return TaskFileError(self.where, f"{self.inside}{problem}", hint)

    def missing(self, name: str) -> TaskFileError:
        """The error about a field that must be there."""
        return self.error(f"the field `{name}` is missing", f"`{name}`: {self.fields[name]}")

    def must_be(self, name: str, wanted: str) -> TaskFileError:
        """The error about a field of the wrong kind."""
        return self.error(f"`{name}` must be {wanted}, not {_shown(self.data[name])}", f"`{name}`: {self.fields[name]}")

    def text(self, name: str) -> str | None:
        """The string of a field, or None where it is absent or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.must_be(name, "a string")
        if value is not None and not _json_holds(value):
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
            _literal(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            hint = "numbers, strings, bytes, True, False, None, nan, inf, and lists, tuples, sets and dicts of them"
            raise self.error(f"`{literal}` is not a Python literal: {_shown(source)}", hint) from error
        return value


def _task(record: _Object) -> Task:
    record.one_of("kind", ("call",), "call")
    entry_point = record.full_text("entry_point")
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        raise record.must_be("entry_point", "a Python name")
    unsupported = record.full_text("unsupported") if record.data.get("unsupported") is not None else None
    cases = record.data.get("cases")
    if cases is None and unsupported is None:
        raise record.missing("cases")
    if cases is not None and not isinstance(cases, list):
        raise record.must_be("cases", "a list")
    if not cases and unsupported is None:
        raise record.error("`cases` is empty", "give at least one case, or say in `unsupported` why there is none")
    found: dict[str, Case] = {}
    for number, data in enumerate(cases or [], 1):
        case = _case(_Object(data, record.where, CASE_FIELDS, f"case {number}: "), number)
        if case.name in found:
            taken = list(found).index(case.name) + 1
            raise record.error(f"case {number}: `name` {case.name!r} is taken by case {taken}", "rename one of them")
        found[case.name] = case
    return with_record(
        Task(
            task_id=record.full_text("task_id"),
            prompt=record.full_text("prompt"),
            entry_point=entry_point,
            cases=tuple(found.values()),
            gold=record.text("gold"),
            split=record.one_of("split", get_args(Split), "train"),
            source=record.text("source") or "jsonl",
            prefix=record.text("prefix") or "",
            unsupported=unsupported,
        )
    )


def _case(record: _Object, number: int) -> Case:
    args = record.value("args", required=True)
    if not isinstance(args, list | tuple):
        raise record.must_be("args" if "args" in record.data else "args_py", "a list")
    kwargs = record.value("kwargs", required=False)
    if kwargs is not None and not (isinstance(kwargs, dict) and all(type(key) is str for key in kwargs)):
        raise record.must_be("kwargs" if "kwargs" in record.data else "kwargs_py", "an object with string keys")
    return Case(
        name=record.full_text("name") if "name" in record.data else f"case-{number}",
        args=tuple(args),
        expected=record.value("expected", required=True),
        kwargs=kwargs or {},
        tier=record.one_of("tier", get_args(Tier), "hidden"),
    )


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(fields: dict[str, str]) -> str:
    return ", ".join(f"`{name}`" for name in fields)
