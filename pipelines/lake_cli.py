"""`headrace lake` and `headrace migrate`: care of the tables of a home folder."""

import contextlib
import fcntl
import json
from collections.abc import Generator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.explain import FAILED, UsageError, did_you_mean, explained
from pipelines.home_options import Home, as_time, home_with_tables

if TYPE_CHECKING:
    from transforms.lake.table import Lake

lake_app = typer.Typer(
    name="lake",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Look after the tables: history, compaction, vacuum, checkpoint, restore, check. Safe beside running writers.",
    epilog="Start with [bold]headrace lake check[/bold]. docs/lake.md says what each one keeps and what it gives up.",
)

Tables = Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables; else all that are there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")]


@lake_app.command()
@explained
def history(
    table: Annotated[str, typer.Argument(metavar="TABLE")], as_json: Json = False, home: Home = None
) -> None:  # fmt: skip
    """List the versions of a table: when, by what, rows and files.

    [dim]Examples:[/dim]

        headrace lake history trajectories

        headrace sql "SELECT count(*) FROM trajectories" --at trajectories=12
    """
    from pipelines.show import aligned
    from transforms.lake.maintenance import history as versions

    lake = _lake(home)
    commits = versions(lake, _known([table])[0])
    if as_json:
        typer.echo(json.dumps([{**asdict(commit), "at": commit.at.isoformat()} for commit in commits], indent=2))
        return
    lines = [
        [
            str(commit.version), commit.at.isoformat(timespec="milliseconds"), commit.operation,
            str(commit.rows_added), str(commit.files_added), str(commit.files_removed), commit.by,
        ]
        for commit in commits
    ]  # fmt: skip
    names = ["version", "at", "operation", "rows added", "files added", "files removed", "by"]
    typer.echo(aligned(names, lines, [True, False, False, True, True, True, False]), nl=False)


@lake_app.command()
@explained
def compact(tables: Tables = None, home: Home = None) -> None:
    """Rewrite many small files into few large ones, so that reading is fast again.

    Rows and old versions stay; [bold]headrace lake vacuum[/bold] later removes the small files.

    [dim]Examples:[/dim]

        headrace lake compact

        headrace lake compact trajectories events
    """
    from transforms.lake.maintenance import compact as compact_files

    lake = _lake(home)
    for table in _there(lake, tables):
        done = compact_files(lake, table)
        typer.echo(f"{table}: {done.files_before} files, now {done.files_after}")


@lake_app.command()
@explained
def vacuum(
    tables: Tables = None,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=1, help="Days of history to keep; else the most that a run here declares."),
    ] = None,
    dry_run: DryRun = False,
    home: Home = None,
) -> None:
    """Remove files that no version of the last days needs, those of dead attempts among them.

    Older versions can then not be read or restored any more. At least one day
    is kept: a younger file may be one that a writer is about to commit. A run
    declares its days as [bold]lake.keep_days[/bold].

    [dim]Examples:[/dim]

        headrace lake vacuum --dry-run

        headrace lake vacuum --keep-days 30
    """
    from transforms.lake.maintenance import vacuum as remove_old

    lake = _lake(home)
    days = keep_days or _declared_days(lake)
    for table in _there(lake, tables):
        removed = remove_old(lake, table, timedelta(days=days), dry_run=dry_run)
        verb = "would remove" if dry_run else "removed"
        mebibytes = sum(file.size for file in removed) / 2**20
        typer.echo(
            f"{table}: {verb} {len(removed)} files, {mebibytes:.1f} MiB, that {days} days of history do not need"
        )
        for file in removed if dry_run else []:
            typer.echo(f"  {file.path}")


@lake_app.command()
@explained
def checkpoint(tables: Tables = None, home: Home = None) -> None:
    """Write each log so far into one file: a table of very many commits opens faster. One comes by itself every 100.

    [dim]Examples:[/dim]

        headrace lake checkpoint
    """
    from transforms.lake.maintenance import checkpoint as write_checkpoint

    lake = _lake(home)
    for table in _there(lake, tables):
        typer.echo(f"{table}: checkpoint of version {write_checkpoint(lake, table)}")


@lake_app.command()
@explained
def restore(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, with a version.")] = None,
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="All tables as they were then, in ISO format with zone.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    home: Home = None,
) -> None:
    """Make rows those of an older version again, as a new version: nothing is removed, so it can be undone.

    With [bold]--at[/bold] every table goes back to one moment, which keeps them true to each other. A run that had
    committed more since then goes on from there.

    [dim]Examples:[/dim]

        headrace lake restore --at 2026-08-21T09:30:00+02:00 --dry-run

        headrace lake restore trajectories 12
    """
    from transforms.lake.maintenance import restore as go_back

    lake = _lake(home)
    if (at is None) == (table is None) or (table is None) != (version is None):
        raise UsageError("restore what? A table and a version, or --at TIME\n\nhint: `headrace lake history TABLE`")
    with _nobody_at_work(lake.work):
        if table is not None and version is not None:
            wanted = {_known([table])[0]: version}
        else:
            wanted = _versions_at(lake, at or "")
        for name, number in wanted.items():
            typer.echo(f"{name}: back to version {number}", err=True)
        if dry_run or not wanted:
            return
        if not yes:
            typer.confirm("Restore?", abort=True, err=True)
        for name, number in wanted.items():
            typer.echo(f"{name}: restored version {number} as version {go_back(lake, name, number)}")


@lake_app.command()
@explained
def check(
    quick: Annotated[bool, typer.Option("--quick", help="Logs, sizes and footers only; columns are not read.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Verify every invariant of the lake and say what is wrong, where, and what can be recovered.

    Logs whole and without a gap; every file there, of its size, readable, with
    its rows and true statistics; columns of this version; ids unique; rewards
    null unless the outcome is the policy's; chunks complete and checked; what
    trained a policy there; no stray files.

    Exit status 0 if all holds, else 1.

    [dim]Examples:[/dim]

        headrace lake check

        headrace lake check --json | jq '.[].invariant'
    """
    from rich.console import Console

    from transforms.lake.check import check as verify

    lake = _lake(home)
    with Console(stderr=True).status("checking") as status:
        problems = verify(lake, quick=quick, progress=lambda what: status.update(f"checking: {what}"))
    if as_json:
        typer.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    elif not problems:
        typer.echo("all is well")
    for problem in [] if as_json else problems:
        typer.echo(
            f"{problem.table}: broken: {problem.invariant}\n  where: {problem.where}\n  then:  {problem.recovery}"
        )
    if problems:
        raise typer.Exit(FAILED)


@explained
def migrate(dry_run: DryRun = False, home: Home = None) -> None:
    """Bring the tables of a home folder, written by an older Headrace, up to date.

    Each table changes in one commit; no row is changed or removed. Stop every
    other Headrace that uses the folder first: an older one cannot read it then.

    [dim]Examples:[/dim]

        headrace migrate --dry-run

        headrace migrate --home /data/run7
    """
    from transforms.lake.migrate import migrate as bring_up

    lake = _lake(home)
    with _nobody_at_work(lake.work):
        done = bring_up(lake, dry_run=dry_run)
    for each in done:
        verb = "would go" if dry_run else "went"
        typer.echo(f"{each.table}: {verb} from schema version {each.before} to {each.after}: {'; '.join(each.steps)}")
    if not done:
        typer.echo("every table is up to date")


def _lake(home: str | None) -> "Lake":
    from transforms.lake.table import Lake

    return Lake(home_with_tables(home))


def _known(names: list[str]) -> list[str]:
    from transforms.lake.schemas import TABLES

    for name in names:
        if name not in TABLES:
            raise UsageError(f"no table is named `{name}`{did_you_mean(name, TABLES)}")
    return names


def _there(lake: "Lake", names: list[str] | None) -> list[str]:
    """The named tables, or all that exist."""
    from transforms.lake.schemas import TABLES

    return _known(names) if names else [table for table in TABLES if lake.open(table) is not None]


def _declared_days(lake: "Lake") -> int:
    """The longest history that a run of this home declares; the default where there is none."""
    import yaml

    from pipelines.spec import LakeSpec
    from transforms.lake.sql import query

    specs = [yaml.safe_load(row["spec"]) for row in query(lake.home, "SELECT spec FROM runs").to_pylist()]
    declared = [spec["lake"]["keep_days"] for spec in specs if "lake" in spec]
    return max(declared, default=LakeSpec().keep_days)


def _versions_at(lake: "Lake", text: str) -> dict[str, int]:
    """For each table that changed since a time, its version of then; 0, without rows, where it came later."""
    from transforms.lake.maintenance import history as versions

    time, wanted = as_time(text), {}
    for table in _there(lake, None):
        commits = versions(lake, table)
        then = max([commit.version for commit in commits if commit.at <= time], default=commits[0].version)
        if then != commits[-1].version:
            wanted[table] = then
    return wanted


@contextlib.contextmanager
def _nobody_at_work(home: Path) -> Generator[None]:
    """Hold the locks of all runs of a home folder. Raises UsageError where one is at work."""
    with contextlib.ExitStack() as held:
        for path in sorted((home / "locks").glob("*.lock")):
            file = held.enter_context(open(path))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"`headrace run` is working on `{path.stem}` in {home}; stop it first") from None
        yield
