"""`headrace files`: the files beside the tables that rows refer to by digest."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipelines.explain import UsageError, explained
from pipelines.home_options import Home, home_with_tables

files_app = typer.Typer(
    name="files",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Workspaces and outputs that rows refer to by digest: get one, remove those that no row refers to.",
    epilog="docs/storage.md says what is kept, where, and for how long.",
)


@files_app.command()
@explained
def get(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="From workspace_digest or output_digest of a step.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; an existing one is kept.")
    ] = None,
    home: Home = None,
) -> None:
    """Write a file to stdout as it was kept: what a program printed, or a tar archive of its workspace.

    It is checked against its digest: exit status 1 and a message where it is
    damaged, and then what came before must not be used.

    [dim]Examples:[/dim]

        headrace sql "SELECT trajectory_id, output_digest FROM steps WHERE output_digest IS NOT NULL LIMIT 5"

        headrace files get 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824

        headrace files get 8a3f...c1 | tar -tv
    """
    from transforms.lake.blobs import read

    pieces = read(home_with_tables(home), digest)
    if out is None and sys.stdout.isatty():
        from pipelines.show import printable

        for piece in pieces:
            sys.stdout.write(printable(piece.decode(errors="replace"), keep="\n\t"))
        return
    try:
        with sys.stdout.buffer if out is None else out.open("xb") as to:
            to.writelines(pieces)
    except FileExistsError:
        raise UsageError(f"{out} exists\n\nhint: choose another name, or remove it first") from None
    except BaseException:
        if out is not None:
            out.unlink(missing_ok=True)
        raise


@files_app.command()
@explained
def sweep(
    keep_days: Annotated[
        int, typer.Option("--keep-days", min=1, help="Younger files stay, whether a row refers to them or not.")
    ] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; do nothing.")] = False,
    home: Home = None,
) -> None:
    """Remove files that no row of the tables refers to, as a run that was killed leaves them.

    Safe beside running writers: at least one day is kept.

    [dim]Examples:[/dim]

        headrace files sweep --dry-run

        headrace files sweep --keep-days 30
    """
    from transforms.lake.blobs import sweep as remove_idle
    from transforms.lake.table import Lake

    swept = remove_idle(Lake(home_with_tables(home)), timedelta(days=keep_days), dry_run=dry_run)
    for file in swept:
        typer.echo(f"{file.name} {file.size}")
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(swept)} files, {sum(file.size for file in swept) / 2**20:.1f} MiB, {verb}", err=True)
