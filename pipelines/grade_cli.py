"""`headrace grade`: programs in, graded rows out."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.explain import FAILED, INTERRUPTED, UsageError, explained

if TYPE_CHECKING:
    from pipelines.grade_input import Submission
    from pipelines.grade_output import Results
    from pipelines.grade_programs import Grading
    from pipelines.grade_progress import Progress, Tally
    from transforms.grade.rubric import RubricSpec

_BACKENDS = {"bwrap": "bubblewrap", "docker": "docker", "gvisor": "gvisor", "subprocess": "subprocess"}


@explained
def grade(
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="T.jsonl", help="The tasks: a JSONL file, or builtin:humaneval.")
    ],
    programs: Annotated[
        Path, typer.Option("--programs", metavar="P.jsonl", help="The programs: JSONL, plain or gzipped.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="R.jsonl", help="Where the rows go: one a program.")],
    sandbox: Annotated[
        Literal["bwrap", "docker", "gvisor", "subprocess"],
        typer.Option("--sandbox", help="Where programs run: see docs/sandboxes.md."),
    ] = "bwrap",
    image: Annotated[
        str | None, typer.Option("--image", help="What they find there; by default `host`, or `base` in containers.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=256, help="Programs at once; by default one a core.")
    ] = None,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, max=10, help="Tries at a program while our machine fails.")
    ] = 3,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0.01, max=3600, help="Seconds a case may take.")
    ] = 5.0,
    memory_mib: Annotated[int, typer.Option("--memory-mib", min=32, max=1 << 20, help="MiB a program may use.")] = 256,
    rubric: Annotated[
        Path | None, typer.Option("--rubric", metavar="FILE.yaml", help="Weights of the reward; else all_passed: 1.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the waits between tries. No verdict depends on it.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Start over: forget the rows that --out holds.")] = False,
) -> None:
    """Grade any set of programs without a policy.

    A row of P holds [bold]task_id[/bold] and [bold]program[/bold] (source) or
    [bold]completion[/bold] (what a model wrote, with the program in it), and
    perhaps an [bold]id[/bold] of yours. HumanEval's sample files are taken as
    they are.

    R gets one row a program, in the order of P: outcome, reward, tests, time,
    memory. The same command goes on where it was stopped, after the last row
    of R. Progress goes to stderr, the summary to stdout.

    Exit status: 0 every program was judged, 1 some could not be, through no
    fault of theirs, 2 a mistake in the files or options, 130 interrupted.

    [dim]Examples:[/dim]

        headrace grade --tasks builtin:humaneval --programs s.jsonl.gz --out r.jsonl

        headrace grade --tasks t.jsonl --programs p.jsonl --out r.jsonl --sandbox docker
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    random.seed(seed)
    _not_an_input(out, programs, Path(tasks))
    limits = {"wall_time_s": time_limit, "cpu_time_s": time_limit, "memory_mib": memory_mib}
    grading = _grading(tasks, image, _BACKENDS[sandbox], workers, attempts, limits, rubric)
    tally = _fill(out, programs, grading, force=force)
    if tally.alarms:
        typer.echo(f"ALARM: {tally.alarms:,} rewards on tasks that no honest program can pass", err=True)
    if tally.unjudged:
        typer.echo(f"{tally.unjudged:,} programs could not be judged: their rows say why in `failure`", err=True)
        raise typer.Exit(FAILED)


def _fill(out: Path, programs: Path, grading: "Grading", *, force: bool) -> "Tally":
    """Grade what has no row yet and print the summary."""
    from rich.console import Console

    from pipelines.grade_input import read_programs
    from pipelines.grade_output import Results
    from pipelines.grade_programs import check_all
    from pipelines.grade_progress import Tally, summary

    progress = None
    tally = Tally(impossible=frozenset(task.task_id for task in grading.tasks.values() if task.impossible))
    with Results(out) as results:
        there: Iterator[dict[str, Any]] = iter(()) if force else results.rows()
        total = check_all(read_programs(programs, grading.tasks), there, grading, results, tally)
        if not total:
            hint = "one JSON object a line, with `task_id` and `program` or `completion`"
            raise UsageError(f"{programs} holds no program\n\nhint: {hint}")
        if tally.rows == total:
            typer.echo(f"{out} holds a row for each of the {total:,} programs: nothing to do", err=True)
        else:
            if force:
                results.cut(0)
            elif tally.rows:
                typer.echo(f"{out} holds {tally.rows:,} of {total:,} rows: going on after them", err=True)
            submissions = islice(read_programs(programs, grading.tasks), tally.rows, None)
            try:
                progress = asyncio.run(_grade(submissions, grading, results, tally, total))
            except KeyboardInterrupt:
                said = f"interrupted: {out} holds {tally.rows:,} of {total:,} rows; the same command goes on after them"
                typer.echo(said, err=True)
                raise typer.Exit(INTERRUPTED) from None
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(summary(tally, len(grading.tasks), progress))
    return tally


async def _grade(
    submissions: "Iterator[Submission]", grading: "Grading", results: "Results", tally: "Tally", total: int
) -> "Progress":
    """Grade until done, or until a signal, which ends in KeyboardInterrupt once every sandbox is closed."""
    from pipelines.grade_programs import grade_all
    from pipelines.grade_progress import Progress

    task = asyncio.create_task(grade_all(submissions, grading, results, tally))
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def stop(number: int) -> None:
        if not came:  # a second one would cut the closing short
            task.cancel()
        came.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    progress = Progress(tally, total)
    async with progress.shown():
        await asyncio.wait([task])
    if came:
        raise KeyboardInterrupt
    task.result()
    return progress


def _grading(
    tasks: str, image: str | None, backend: str, workers: int | None, attempts: int, limits: dict[str, float],
    rubric: Path | None,
) -> "Grading":  # fmt: skip
    """What the options ask for. Raises UsageError, TaskFileError, ImageMissing."""
    from pydantic import ValidationError

    from pipelines.grade_programs import Grading
    from sandboxes.backends.choose import backend_of
    from sandboxes.images.catalog import find_image
    from sandboxes.limits import SandboxSpec
    from sandboxes.pool import Pool
    from transforms.sources.builtin import load_tasks

    parallel = workers or len(os.sched_getaffinity(0))
    settings = {"backend": backend, "parallel": parallel, "attempts": attempts, "limits": limits}
    try:
        spec = SandboxSpec.model_validate(settings | ({} if image is None else {"image": image}))
    except ValidationError as error:
        raise UsageError(f"--sandbox: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    if spec.image != "host" and ":" not in spec.image:
        find_image(spec.image)  # else each program would be tried in vain
    made = backend_of(spec)
    provider = Pool(made, most=parallel) if backend in ("docker", "gvisor") else made
    return Grading({task.task_id: task for task in load_tasks(tasks, Path())}, provider, spec, _rubric(rubric))


def _rubric(path: Path | None) -> "RubricSpec":
    """The rubric of a YAML file, the same as a run's `rubric` section. Raises UsageError."""
    import yaml
    from pydantic import ValidationError

    from transforms.grade.rubric import RubricSpec

    if path is None:
        return RubricSpec()
    try:
        return RubricSpec.model_validate(yaml.safe_load(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"--rubric: {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValidationError) as error:
        hint = "weights that sum to 1, such as `all_passed: 0.8` and `test_share: 0.2`"
        said = (
            "; ".join(f"`{'.'.join(map(str, each['loc']))}`: {each['msg']}" for each in error.errors())
            if isinstance(error, ValidationError)
            else " ".join(str(error).split())
        )
        raise UsageError(f"--rubric: {path}: {said}\n\nhint: {hint}") from None


def _not_an_input(out: Path, *inputs: Path) -> None:
    """Make sure that what is written is none of the files that are read. Raises UsageError."""
    for given in inputs:
        if out.exists() and given.exists() and out.samefile(given):
            raise UsageError(f"--out {out} is the file {given} that is read\n\nhint: name another file for the rows")
    if out.suffix == ".gz":
        raise UsageError(f"--out {out}: rows are written as plain JSONL\n\nhint: leave `.gz` out")
