"""`headrace report`: what the tables say, for people and for schedulers."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipelines.explain import FAILED, explained
from pipelines.home_options import Home, home_with_tables

report_app = typer.Typer(
    name="report", no_args_is_help=True, rich_markup_mode="rich", help="Reports over the tables of a home folder."
)


class Form(StrEnum):
    """How a report is written."""

    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"


class FailOn(StrEnum):
    """From which severity on a broken check makes the command fail."""

    STOP = "stop"
    WARN = "warn"
    NEVER = "never"


@report_app.callback()
def _report() -> None:
    """Keeps `quality` a command of its own while it is the only one."""


@report_app.command()
@explained
def quality(
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN", help="A run; may be given again. Else all.")
    ] = None,
    form: Annotated[
        Form | None, typer.Option("--format", help="html, md or json; else by the ending of --out, else md.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write; else stdout.")] = None,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit status 1 for a broken check of this severity in a newest cycle.")
    ] = FailOn.STOP,
    home: Home = None,
) -> None:
    """Say what is wrong with tasks and rewards, what is becoming so, and show it over runs and cycles.

    The page is one file that asks nothing of the network. Each broken check
    comes with the query that shows the rows behind it.

    Exit status 1 if a check that stops a run is broken in the newest cycle of
    any run ([bold]--fail-on[/bold] changes that), else 0.

    [dim]Examples:[/dim]

        headrace report quality

        headrace report quality --out quality.html

        headrace report quality --run nightly-4244e42c --format json --fail-on warn
    """
    from pipelines.quality_page import page
    from pipelines.quality_report import collect, markdown
    from pipelines.show import json_text

    report = collect(home_with_tables(home), run or [])
    endings = {".html": Form.HTML, ".json": Form.JSON}
    chosen = form or endings.get(out.suffix if out else "", Form.MARKDOWN)
    text = {
        Form.HTML: lambda: page(report), Form.MARKDOWN: lambda: markdown(report), Form.JSON: lambda: json_text(report),
    }[chosen]()  # fmt: skip
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text, encoding="utf-8", errors="replace")
        typer.echo(f"{out}: {json.dumps(report['verdict'])}", err=True)
    fails = {"stop": fail_on != FailOn.NEVER, "warn": fail_on == FailOn.WARN, "fine": False}
    if fails[report["verdict"]]:
        raise typer.Exit(FAILED)
