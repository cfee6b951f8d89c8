"""Rows and tasks as text: for a terminal, for a pipe, for a program."""

import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import AnyCase, Task, Tier

Format = Literal["table", "csv", "json", "parquet"]

_WIDEST = 60
"""Characters of one value in a table; the other forms cut nothing."""
_MOST_DRAWN = 1000
"""Rows that are drawn as a table with rules; rich takes half a millisecond for one."""

_SHOWN_APART = {"task_id", "kind", "prompt", "split", "source", "unsupported", "cases", "gold"}
_DESCRIBED = {
    "call": ("args", "args_py", "kwargs", "kwargs_py", "expected", "expected_py"),
    "stdio": ("stdin", "stdin_py", "argv", "expected", "expected_py"),
    "sql": ("expected", "expected_py"),
    "files": (),
    "state": ("probe",),
    "pytest": (),
    "math": (),
}
"""By kind, the fields of a case that `describe` says whole."""


def print_rows(rows: pa.Table, form: Format, out: Path | None = None) -> None:
    """Write rows to stdout, or to a new file.

    A table is drawn on a terminal (a block a row, if it is too wide; through the pager, if it is too long) and aligned
    with spaces elsewhere. JSON has no NaN and no infinity: they become null. Raises FileExistsError and what else
    opening the file raises; a file that could not be written to its end is removed.
    """
    if out is None:
        if form == "table" and sys.stdout.isatty():
            paged(_drawn(rows))
        elif form == "parquet":
            pq.write_table(rows, sys.stdout.buffer, compression="zstd")
        else:
            _write(rows, form, sys.stdout)
        return
    with out.open("xb") as file:
        try:
            if form == "parquet":
                pq.write_table(rows, file, compression="zstd")
            else:
                with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
                    _write(rows, form, text)
        except BaseException:
            out.unlink(missing_ok=True)
            raise


def _write(rows: pa.Table, form: Format, to: TextIO) -> None:
    records = (row for batch in rows.to_batches(1000) for row in batch.to_pylist())
    if form == "json":
        before = "[\n"
        for row in records:
            to.write(before + json.dumps(_finite(row), ensure_ascii=to.isatty(), allow_nan=False, default=_plain))
            before = ",\n"
        to.write("\n]\n" if rows.num_rows else "[]\n")
    elif form == "csv":
        writer = csv.writer(to, lineterminator="\n")
        writer.writerow(rows.column_names)
        for row in records:
            cells = [_cell(value) for value in row.values()]
            if to.isatty():
                cells = [printable(cell) if isinstance(cell, str) else cell for cell in cells]
            writer.writerow(cells)
    else:
        lines = [[_short(value) for value in row.values()] for row in records]
        to.write(aligned(rows.column_names, lines, _numbers(rows)))


def _drawn(rows: pa.Table) -> str:
    """Rows as a terminal shows them."""
    lines = [[_short(value) for value in row.values()] for row in rows.to_pylist()]
    if lines and _drawn_width(rows.column_names, lines) > Console().width:
        return "".join(
            f"-- row {number}\n" + aligned(*_as_fields(rows.column_names, line))
            for number, line in enumerate(lines, start=1)
        )
    if len(lines) > _MOST_DRAWN:
        return aligned(rows.column_names, lines, _numbers(rows))
    table = Table()
    for name, number in zip(rows.column_names, _numbers(rows), strict=True):
        table.add_column(Text(name), justify="right" if number else "left")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return rendered(table)


def _numbers(rows: pa.Table) -> list[bool]:
    return [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in rows.schema]


def rendered(*what: RenderableType) -> str:
    """What rich draws for this terminal, with its colours; for a pipe, 160 characters wide and without."""
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with console.capture() as captured:
        console.print(*what, sep="\n")
    return captured.get()


def paged(text: str) -> None:
    """Write text to stdout; through $PAGER, else `less`, if that is a terminal with fewer lines than the text."""
    command = os.environ.get("PAGER", "less" if shutil.which("less") else "")
    if not command or not sys.stdout.isatty() or text.count("\n") < Console().height:
        sys.stdout.write(text)
        return
    # As git has it: colours are shown, the screen is left as it is, and nothing that fits waits for a key.
    surroundings = {"LESS": "FRX", **os.environ}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(text)
        file.seek(0)
        # Ctrl-C is for the pager, which must set the terminal right again.
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            subprocess.run(command, shell=True, stdin=file, env=surroundings, check=False)
        finally:
            signal.signal(signal.SIGINT, before)


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


def task_text(task: Task) -> str:
    """A task with everything that its author wrote, hidden cases and gold included, in terms of the file's fields."""
    record = json.loads(task.record)
    parts = [
        f"task {task.task_id} ({task.check.kind}, {task.split}, from {task.source}, {task.content_hash[:16]})",
        f"prompt\n{_indented(task.prompt)}",
    ]
    if task.unsupported:
        parts.insert(1, f"cannot be graded: {task.unsupported}")
    settings = {name: value for name, value in record.items() if name not in _SHOWN_APART}
    parts += [f"{name.replace('_', ' ')}\n{_indented(_readable(value))}" for name, value in settings.items()]
    fields = {case["name"]: case for case in record.get("cases", ())}
    for tier in get_args(Tier):
        cases = [_case_text(task, case, fields.get(case.name, {})) for case in task.cases if case.tier == tier]
        if cases:
            parts.append(f"{tier} cases ({len(cases)})\n" + "\n".join(cases))
    parts.append("gold\n" + _indented(task.gold if task.gold is not None else "(none)"))
    return "\n\n".join(parts) + "\n"


def _case_text(task: Task, case: AnyCase, fields: dict[str, Any]) -> str:
    """A case in a line, and below it what the line does not say."""
    said = {"name", "tier", *_DESCRIBED[task.check.kind]}
    if "checker" in json.loads(task.record):  # then the line says no value
        said -= {"expected", "expected_py"}
    rest = {name: value for name, value in fields.items() if name not in said}
    line = _indented(f"{case.name}: {KINDS[task.check.kind].describe(task.check, case)}")
    return line + (f"\n{_indented(_readable(rest), 8)}" if rest else "")


def _readable(value: object) -> str:
    """A JSON value as lines: what has several goes below its name, indented."""
    if isinstance(value, str):
        return value if value.strip() else json.dumps(value)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return _readable({str(number): item for number, item in enumerate(value, 1)})
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    lines = []
    for name, inner in value.items():
        text = _readable(inner)
        lines.append(f"{name}:\n{_indented(text)}" if "\n" in text or isinstance(inner, dict) else f"{name}: {text}")
    return "\n".join(lines)


def _indented(text: str, by: int = 4) -> str:
    """Lines without control characters."""
    lines = printable(text, keep="\n\t").split("\n")
    return "\n".join(f"{' ' * by}{line}".rstrip() for line in lines).rstrip("\n")


def printable(text: str, keep: str = "") -> str:
    """Text with its control characters, but those to keep, written as escapes: they must not reach the terminal."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def json_text(value: object) -> str:
    """A value of the tables as indented JSON in ASCII. JSON has no NaN and no infinity: they become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False, default=_plain)


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
    text = printable(str(_cell(value)))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
