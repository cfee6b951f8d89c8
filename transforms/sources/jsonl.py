"""Tasks in our own file format: UTF-8, one JSON object a line. `docs/tasks.md` describes it kind by kind."""

import codecs
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from transforms.sources import performance
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.record import Record, TaskFileError, shown
from transforms.sources.task import Split, Task, canonical

TASK_FIELDS = {
    "task_id": "names the task, unique in the file: a string",
    "prompt": "what the policy is asked: a string",
    "gold": "source of a solution that passes every case: a string",
    "split": 'which set the task belongs to: "train" or "heldout"',
    "source": "where the task comes from: a string",
    "unsupported": "why the task is kept but cannot be graded: a string",
    "impossible": "whether no honest program can pass: true or false",
    "kind": f"how the task is checked: {', '.join(KINDS)}",
} | performance.FIELDS
"""The fields that tasks of every kind have."""


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
        task = _task(_json_object(line, where), where)
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
        "kind": task.check.kind,
        "prompt": task.prompt,
        "split": task.split,
        "source": task.source,
    }
    optional = {"gold": task.gold, "unsupported": task.unsupported, "impossible": task.impossible or None}
    given = {name: value for name, value in optional.items() if value is not None}
    measured = performance.write_performance(task.performance)
    return record | given | measured | KINDS[task.check.kind].write(task.check)


def with_record(task: Task) -> Task:
    """The same task carrying its canonical record. Raises ValueError for a value without a literal."""
    return replace(task, record=canonical(task_to_record(task)))


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
        raise TaskFileError(where, f"a line must hold an object, not {shown(data)}", 'write {"task_id": ...}')
    return data


def _task(data: dict[str, Any], where: str) -> Task:
    kind = data.get("kind", "call")
    if not isinstance(kind, str) or kind not in KINDS:
        wanted = " or ".join(f'"{name}"' for name in KINDS)
        raise TaskFileError(where, f"`kind` must be {wanted}, not {shown(kind)}", f"`kind`: {TASK_FIELDS['kind']}")
    record = Record(data, where, TASK_FIELDS | KINDS[kind].FIELDS)
    check = KINDS[kind].read(record)
    return with_record(
        Task(
            task_id=record.full_text("task_id"),
            prompt=record.full_text("prompt"),
            check=check,
            gold=record.text("gold"),
            split=record.one_of("split", get_args(Split), "train"),
            source=record.text("source") or "jsonl",
            unsupported=record.full_text("unsupported") if data.get("unsupported") is not None else None,
            impossible=record.flag("impossible"),
            performance=performance.read_performance(record, check),
        )
    )
