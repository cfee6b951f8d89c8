"""The command line. Nothing heavy is imported before the command that needs it, so that help answers at once."""

import importlib.metadata
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.ask_cli import show, sql, tables
from pipelines.explain import FAILED, explained
from pipelines.files_cli import files_app
from pipelines.grade_cli import grade
from pipelines.home_options import Home
from pipelines.lake_cli import lake_app, migrate
from pipelines.report_cli import report_app
from pipelines.sandbox_cli import sandbox_app
from pipelines.tasks_cli import tasks_app

if TYPE_CHECKING:
    from pipelines.spec import RunSpec

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn task datasets into better policies: roll out, run in sandboxes, grade, validate, train, again.",
    epilog="Start with [bold]headrace doctor[/bold], then [bold]headrace run quickstart[/bold].",
)
app.add_typer(tasks_app, name="tasks")
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(lake_app, name="lake")
app.add_typer(report_app, name="report")
app.add_typer(files_app, name="files")
for command in (sql, show, tables, migrate, grade):
    app.command()(command)


def main() -> None:
    """Entry point of the `headrace` command."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {importlib.metadata.version('headrace')}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Only holds --version; what the program is for is said by `app`."""


@app.command()
@explained
def run(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A YAML file, or the name of a shipped one: quickstart.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. training.lr=2e-5. May be given again."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved spec and the plan; do nothing.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new run even if this spec was run before.")] = False,
    home: Home = None,
    plain: Annotated[bool, typer.Option("--plain", help="Progress as lines, not as a live display.")] = False,
) -> None:
    """Run a spec, or go on with it where it was stopped.

    The same spec goes on with the run it began before, from the last commit:
    nothing that was committed is asked, graded or trained again.
    [bold]--new[/bold] starts another run.

    Progress goes to stderr, the result table to stdout.

    Exit status: 0 done, 1 failed, 2 a mistake in the spec or its tasks,
    3 stopped by the quality gate, 130 interrupted.

    [dim]Examples:[/dim]

        headrace run quickstart

        headrace run quickstart --set cycles.count=2 --set training.lr=2e-5

        headrace run quickstart --dry-run > my.yaml; headrace run my.yaml
    """
    from pipelines.home import given_home
    from pipelines.spec_file import find_spec, load_spec

    path = find_spec(spec)
    loaded = load_spec(path, overrides or [])
    if home is not None:
        loaded = loaded.model_copy(update={"paths": loaded.paths.model_copy(update={"home": str(given_home(home))})})
    if dry_run:
        _dry_run(loaded, path.parent)
        return
    from rich.console import Console

    from pipelines.admission import read_run_tasks
    from pipelines.home import home_of
    from pipelines.run_record import finished_run
    from pipelines.summary import result_table, write_summary
    from transforms.lake.table import Lake

    tasks = read_run_tasks(loaded, path.parent)
    lake = Lake(home_of(loaded))
    run_id = None if new else finished_run(lake, loaded, tasks.tasks_hash)
    if run_id is not None:
        typer.echo(f"run {run_id} was finished before; --new starts another", err=True)
    else:
        # Beam warns of a cloud library that nothing here uses.
        logging.getLogger().addFilter(lambda record: "apitools" not in record.getMessage())
        from pipelines import cycle
        from pipelines.progress import Reporter

        with Reporter(cycles=loaded.cycles.count, plain=plain) as reporter:
            run_id = cycle.run(loaded, tasks, lake=lake, spec_folder=path.parent, new=new, reporter=reporter)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(result_table(lake.home, run_id, console.width))
    typer.echo(f"summary: {write_summary(lake.home, run_id).resolve()}", err=True)


def _dry_run(spec: "RunSpec", folder: Path) -> None:
    """Print the resolved spec, and the plan as comments behind it, so that the whole is itself a spec."""
    from pipelines.admission import read_run_tasks
    from pipelines.home import home_of
    from pipelines.plan import make_plan
    from pipelines.spec_file import resolved_yaml, spec_hash

    tasks = read_run_tasks(spec, folder)
    digest = spec_hash(spec)
    plan = make_plan(spec, f"{spec.name}-{digest[:8]}", tasks.train, tasks.heldout)
    lines = [
        f"spec hash {digest}",
        f"tasks: {len(tasks.train)} to train on, {len(tasks.heldout)} held out, hash {tasks.tasks_hash}",
    ]
    for cycle in range(spec.cycles.count + 1):
        for name, chunks in (("train", plan.training(cycle)), ("evaluate", plan.evaluation(cycle))):
            if chunks:
                episodes = sum(chunk.episodes for chunk in chunks)
                stages = "rollout, verify, grade, validate" + (", quality gate, train" if name == "train" else "")
                numbers = f"chunks {chunks[0].number} to {chunks[-1].number}"
                lines.append(f"cycle {cycle} {name}: {episodes:,} episodes, {numbers}: {stages}")
    rows = sum(chunk.episodes for chunk in plan.chunks)
    lines.append(f"rows: {rows:,} trajectories, one more for every retry, in {len(plan.chunks)} commits")
    lines.append(f"files: tables, policies, logs and reports in {home_of(spec)}")
    typer.echo(resolved_yaml(_moved(spec, folder)) + "\n# The plan:\n" + "\n".join(f"#   {line}" for line in lines))


def _moved(spec: "RunSpec", folder: Path) -> "RunSpec":
    """The spec with its files named absolutely, so that it means the same in another folder."""

    def absolute(reference: str) -> str:
        return reference if reference.startswith(("builtin:", "wheel:")) else str((folder / reference).resolve())

    heldout = spec.tasks.heldout
    tasks = {"train": absolute(spec.tasks.train), "heldout": heldout and absolute(heldout)}
    return spec.model_copy(
        update={
            "tasks": spec.tasks.model_copy(update=tasks),
            "policy": spec.policy.model_copy(update={"model": absolute(spec.policy.model)}),
        }
    )


@app.command()
@explained
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False, home: Home = None
) -> None:
    """Try what this machine can do, and say how to get what is missing.

    Exit status 0 if `headrace run quickstart` can run here, else 1.
    """
    from pipelines.doctor import examine, ready
    from pipelines.home import given_home
    from transforms.lake.table import Lake

    findings = examine(Lake(given_home(home)).work)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        marks = {"ok": "ok", "absent": "--", "missing": "!!"}
        for finding in findings:
            way = "" if finding.state == "ok" else f"; to get it: {finding.get}"
            typer.echo(f"{marks[finding.state]}  {finding.name:<16}  {finding.detail} (for {finding.enables}){way}")
        typer.echo("\nthe quickstart can run here" if ready(findings) else "\nthe quickstart cannot run here: see `!!`")
    if not ready(findings):
        raise typer.Exit(FAILED)
