"""`headrace sql`, `show` and `tables`: ask what a home folder holds."""

import re
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipelines.explain import UsageError, did_you_mean, explained
from pipelines.home_options import Home, as_time, home_with_tables


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


@explained
def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="SELECT", help="One query over the tables and views.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="QUERY.sql", help="Read the query from a file; - is stdin.")
    ] = None,
    view: Annotated[
        str | None, typer.Option("--view", metavar="NAME", help="Print all rows of a view, sorted.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="[TABLE=]VERSION|TIME", help="Read tables as they were. May be given again."),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="table cuts long values, the others nothing. Else by the ending of --out."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; an existing one is kept.")
    ] = None,
    home: Home = None,
) -> None:
    """Ask the tables of a home folder; only reads. stdout holds data and nothing else.

    On a terminal, a table that is longer goes through $PAGER, else `less`.

    [bold]--at[/bold] takes a version of a table, or a time in ISO format with
    its zone. A version needs its table's name where a query reads several.

    [dim]Examples:[/dim]

        headrace sql "SELECT cycle, outcome, count(*) FROM trajectories GROUP BY 1, 2"

        headrace sql --view learning_curve --format csv > curve.csv

        headrace sql --file flaky.sql --out flaky.parquet

        headrace sql "SELECT count(*) FROM tests" --at trajectories=12

        headrace sql --view pass_at_k --at 2026-08-21T09:30:00+02:00
    """
    from pipelines.show import print_rows
    from transforms.lake.sql import query, views

    if sum(given is not None for given in (statement, file, view)) != 1:
        raise UsageError("one query is needed: SELECT, --file or --view\n\nhint: `headrace sql --help` has examples")
    written = _format(form, out)
    text = statement or ""
    if file is not None:
        text = _read(file)
    elif view is not None:
        if view not in views():
            raise UsageError(f"no view is named `{view}`{did_you_mean(view, views())}")
        text = f"SELECT * FROM {view}"
    rows = query(home_with_tables(home), text, at=_moments(at or []))
    if view is not None:
        flat = [column.name for column in rows.schema if column.type.num_fields == 0]
        rows = rows.sort_by([(name, "ascending") for name in flat])
    try:
        print_rows(rows, written.value, out)
    except FileExistsError:
        raise UsageError(f"{out} exists\n\nhint: choose another name, or remove it first") from None
    except OSError as error:
        if out is None:
            raise
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None


def _format(form: Format | None, out: Path | None) -> Format:
    """How to write what goes to stdout or to a file. Raises UsageError."""
    ending = "" if out is None else out.suffix.removeprefix(".")
    if form is None and out is not None and ending not in ("csv", "json", "parquet"):
        raise UsageError(f"in what format is {out}?\n\nhint: name it .csv, .json or .parquet, or give --format")
    chosen = form or Format(ending or "table")
    if chosen == Format.PARQUET and out is None and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal\n\nhint: --out FILE.parquet writes it to a file")
    return chosen


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if file == Path("-") else file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text") from None


def _moments(given: list[str]) -> dict[str | None, int | datetime]:
    """What --at says: by table, or under None for all; a version or a time. Raises UsageError."""
    moments: dict[str | None, int | datetime] = {}
    for text in given:
        table, _, moment = text.rpartition("=")
        if (table or None) in moments:
            raise UsageError(f"--at {text}: " + (f"table {table} has" if table else "there is") + " a moment already")
        moments[table or None] = int(moment) if re.fullmatch("[0-9]{1,18}", moment) else as_time(moment)
    return moments


@explained
def show(
    trajectory: Annotated[
        str,
        typer.Argument(metavar="TRAJECTORY", help="Its id, or 6 characters or more that only this one begins with."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object, for programs.")] = False,
    home: Home = None,
) -> None:
    """Print an episode: what was asked, answered, run, graded and trained, and where it belongs.

    Of a group, the attempts of all its samples are listed with their rewards.

    [dim]Examples:[/dim]

        headrace sql "SELECT trajectory_id FROM trajectories WHERE outcome = 'time_limit' LIMIT 1"

        headrace show quickstart-4244e42c/1/train/largest/3/a1

        headrace show quickstart-4244e42c/1/train/largest/3/a1 --json
    """
    from pipelines.episode import read_episode
    from pipelines.episode_text import episode_text
    from pipelines.show import json_text, paged

    episode = read_episode(home_with_tables(home), trajectory)
    if as_json:
        typer.echo(json_text(episode))
    else:
        paged(episode_text(episode))


@explained
def tables(name: Annotated[str | None, typer.Argument(metavar="NAME", help="A table or view.")] = None) -> None:
    """List the tables and views, or the columns of one with types, units and descriptions.

    [dim]Examples:[/dim]

        headrace tables

        headrace tables trajectories
    """
    from pipelines.show import aligned
    from transforms.lake.document import schema_rows
    from transforms.lake.schemas import TABLES
    from transforms.lake.sql import views

    if name is None:
        lines = [[table, "table", f"{len(schema)} columns"] for table, schema in TABLES.items()]
        for view, text in views().items():
            comments = [line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--")]
            lines.append([view, "view", comments[0] if comments else ""])
        typer.echo(aligned(["name", "kind", "about"], lines, [False] * 3), nl=False)
    elif name in TABLES:
        headings = ["column", "type", "unit", "description"]
        typer.echo(aligned(headings, schema_rows(TABLES[name]), [False] * 4), nl=False)
    elif name in views():
        typer.echo(views()[name].rstrip())
    else:
        raise UsageError(f"no table or view is named `{name}`{did_you_mean(name, [*TABLES, *views()])}")
