"""`headrace tasks ...`: write, read and check task files."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.explain import FAILED, USAGE, UsageError, did_you_mean, explained
from pipelines.sandbox_options import Image, Sandbox, Workers, sandbox_spec

if TYPE_CHECKING:
    from pipelines.admission import Golds
    from sandboxes.limits import SandboxSpec
    from transforms.sources.task import Task

_EVERY_S = 5.0  # seconds between two lines of progress

tasks_app = typer.Typer(no_args_is_help=True, help="Import, read and check task files.")

TaskFile = Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file, or builtin:NAME.")]


@tasks_app.command("import")
@explained
def import_tasks(
    source: Annotated[
        str, typer.Argument(metavar="NAME", help="A task set that comes with Headrace: humaneval, quickstart.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.jsonl", help="File to write; an existing one is kept.")],
) -> None:
    """Write a task set as a JSONL file in our format.

    It is then yours to read, to edit and to train on.

    [dim]Example:[/dim]

        headrace tasks import humaneval --out tasks.jsonl
    """
    from transforms.sources.builtin import load_tasks
    from transforms.sources.jsonl import write_tasks

    loaded = load_tasks(f"builtin:{source.removeprefix('builtin:')}", Path())
    if out.exists():
        raise UsageError(f"{out} exists\n\nhint: choose another name, or remove it first")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder")
    try:
        write_tasks(out, loaded)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None
    unsupported = sum(task.unsupported is not None for task in loaded)
    typer.echo(f"wrote {len(loaded)} tasks to {out}; {unsupported} of them cannot be graded and say why", err=True)


@tasks_app.command("show")
@explained
def show_task(
    file: TaskFile, task_id: Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
) -> None:  # fmt: skip
    """Print one task for its author.

    All that it holds is shown, hidden cases and gold included.

    [dim]Example:[/dim]

        headrace tasks show builtin:humaneval HumanEval/0
    """
    from pipelines.show import task_text
    from transforms.sources.builtin import load_tasks

    loaded = {task.task_id: task for task in load_tasks(file, Path())}
    if task_id not in loaded:
        nearest = did_you_mean(task_id, loaded)
        raise UsageError(f"{file} holds no task `{task_id}` among its {len(loaded)}{nearest}")
    typer.echo(task_text(loaded[task_id]), nl=False)


@tasks_app.command("check")
@explained
def check_tasks(
    file: TaskFile, sandbox: Sandbox = "bwrap", image: Image = None, workers: Workers = None
) -> None:  # fmt: skip
    """Run every gold solution against its own task, in a sandbox.

    A line on stdout names each task at fault, and each that
    could not be tried, and says why. stderr has the sum.

    Exit status: 0 all pass, 2 a gold fails or something else
    is wrong with a task, 1 some could not be tried and
    nothing else is wrong, 130 interrupted.

    [dim]Examples:[/dim]

        headrace tasks check my-tasks.jsonl

        headrace tasks check my-tasks.jsonl --image base
    """
    from pipelines.admission import Golds, gold_of
    from transforms.sources.builtin import load_tasks

    loaded = load_tasks(file, Path())
    ungraded = sum(task.unsupported is not None for task in loaded)
    bare = sum(task.unsupported is None and task.gold is None for task in loaded)
    told = [f"{ungraded:,} cannot be graded" if ungraded else "", f"{bare:,} without a gold" if bare else ""]
    left_out = f"; not tried: {', '.join(filter(None, told))}" if any(told) else ""
    wanted = [task for task in loaded if gold_of(task) is not None]
    if not wanted:
        typer.echo(f"nothing to check: no task that can be graded has a gold{left_out}", err=True)
        return
    golds = Golds()
    try:
        asyncio.run(_try_golds(wanted, sandbox_spec(sandbox, image, workers), golds))
    finally:  # interrupted, it still says what it found
        for task in wanted:
            if task.task_id in golds.failing:
                typer.echo(f"{task.task_id}: {golds.failing[task.task_id]}")
            elif task.task_id in golds.untried:
                typer.echo(f"{task.task_id}: could not be tried: {golds.untried[task.task_id]}")
    passed = golds.tried - len(golds.failing) - len(golds.untried)
    missed = f", {len(golds.untried):,} could not be tried" if golds.untried else ""
    typer.echo(f"{passed:,} of {len(wanted):,} gold solutions pass{missed}{left_out}", err=True)
    if golds.failing or golds.untried:
        raise typer.Exit(USAGE if golds.failing else FAILED)


async def _try_golds(tasks: "list[Task]", spec: "SandboxSpec", golds: "Golds") -> None:
    from pipelines.admission import try_golds
    from sandboxes.backends.choose import backend_of

    async with _progress(golds, len(tasks)):
        await try_golds(tasks, backend_of(spec), spec, golds)


@contextlib.asynccontextmanager
async def _progress(golds: "Golds", total: int) -> AsyncGenerator[None]:
    """Say on stderr now and then how far it is, while the body runs: a line that stays in its place on a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"

    async def say() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            faults = f", {len(golds.failing):,} at fault" if golds.failing else ""
            sys.stderr.write(f"{golds.tried:,}/{total:,} tasks{faults}{end}")
            sys.stderr.flush()

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()
        if end == "\r":
            sys.stderr.write("\x1b[K")  # nothing of that line stays behind what is printed next
