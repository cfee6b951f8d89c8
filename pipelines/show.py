"""Rows and tasks as text: for a terminal, for a pipe, for a program."""

import csv
import json
import math
import sys
from datetime import datetime
from typing import Literal, get_args

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transforms.sources.jsonl import TASK_FIELDS
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import Task, Tier

Format = Literal["table", "csv", "json"]

_WIDEST = 60
"""Characters of one value in a table; `csv` and `json` cut nothing."""


def print_rows(rows: pa.Table, form: Format) -> None:
    """Write rows to stdout. A table is drawn on a terminal (a block a row, if it is too wide) and aligned with spaces
    elsewhere. JSON has no NaN and no infinity: they become null."""
    if form == "json":
        records = ",\n".join(
            json.dumps(_finite(row), ensure_ascii=False, allow_nan=False, default=_plain) for row in rows.to_pylist()
        )
        sys.stdout.write(f"[\n{records}\n]\n" if records else "[]\n")
        return
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.column_names)
        writer.writerows([_cell(value) for value in row.values()] for row in rows.to_pylist())
        return
    numbers = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in rows.schema]
    lines = [[_short(value) for value in row.values()] for row in rows.to_pylist()]
    if not sys.stdout.isatty():
        sys.stdout.write(aligned(rows.column_names, lines, numbers))
    elif lines and _drawn_width(rows.column_names, lines) > Console().width:
        for number, line in enumerate(lines, start=1):
            sys.stdout.write(f"-- row {number}\n")
            sys.stdout.write(aligned(*_as_fields(rows.column_names, line)))
    else:
        table = Table()
        for name, number in zip(rows.column_names, numbers, strict=True):
            table.add_column(Text(name), justify="right" if number else "left")
        for line in lines:
            table.add_row(*(Text(cell) for cell in line))
        Console().print(table)


def _drawn_width(names: list[str], lines: list[list[str]]) -> int:
    """Characters across of a drawn table: cells, a blank on each side, and the rules."""
    return sum(max(map(len, column)) + 3 for column in zip(names, *lines, strict=True)) + 1


def _as_fields(names: list[str], line: list[str]) -> tuple[list[str], list[list[str]], list[bool]]:
    """A row that is too wide for the terminal, as a table of its own with a line a column."""
    pairs = [list(pair) for pair in zip(names, line, strict=True)]
    return pairs[0], pairs[1:], [False, False]


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


def aligned(names: list[str], lines: list[list[str]], right: list[bool]) -> str:
    """Columns two spaces apart, as wide as their widest cell; those in `right` are flush right."""
    everything = [names, *lines]
    widths = [max(len(line[index]) for line in everything) for index in range(len(names))]
    padded = (
        "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in everything
    )
    return "".join(f"{line}\n" for line in padded)


def schema_rows(schema: pa.Schema) -> list[list[str]]:
    """One line a field: name, type, unit, description. Fields of nested records are named `parent.child`."""
    lines: list[list[str]] = []

    def add(prefix: str, field: pa.Field) -> None:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        kind = field.type
        inner = kind.value_type if pa.types.is_list(kind) else kind
        name = f"{prefix}{field.name}"
        shown = str(kind) if not pa.types.is_struct(inner) else "list<record>" if inner is not kind else "record"
        shown = shown.replace("list<element: ", "list<").replace("list<item: ", "list<")
        lines.append([name, shown, metadata.get("unit", ""), metadata.get("description", "")])
        if pa.types.is_struct(inner):
            for child in inner:
                add(f"{name}.", child)

    for field in schema:
        add("", field)
    return lines


def task_text(task: Task) -> str:
    """A task with everything an author wants to see, hidden cases and gold included."""
    describe = KINDS[task.check.kind].describe
    parts = [f"task {task.task_id} ({task.split}, from {task.source}, {task.content_hash[:16]})"]
    if task.unsupported:
        parts.append(f"cannot be graded: {task.unsupported}")
    parts.append(f"prompt\n{_indented(task.prompt)}")
    settings = {
        key: value for key, value in json.loads(task.record).items() if key not in TASK_FIELDS and key != "cases"
    }
    for name, value in settings.items():
        parts.append(f"{name.replace('_', ' ')}\n{_indented(value if isinstance(value, str) else json.dumps(value))}")
    for tier in get_args(Tier):
        cases = [case for case in task.cases if case.tier == tier]
        said = "\n".join(f"    {case.name}: {describe(task.check, case)}" for case in cases)
        if cases:
            parts.append(f"{tier} cases ({len(cases)})\n{said}")
    parts.append("gold\n" + _indented(task.gold if task.gold is not None else "(none)"))
    return "\n\n".join(parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _cell(value: object) -> object:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return _plain(value) if isinstance(value, datetime) else value


def _short(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    # Control characters of a completion must not reach the terminal.
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(_cell(value)))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
