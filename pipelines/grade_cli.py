"""`headrace grade`: programs in, graded rows out."""

import asyncio
import os
import random
import signal
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.explain import FAILED, INTERRUPTED, UsageError, explained
from pipelines.sandbox_options import Image, Sandbox, Workers, sandbox_spec

if TYPE_CHECKING:
    from pipelines.grade_input import Submission
    from pipelines.grade_output import Results
    from pipelines.grade_programs import Grading
    from pipelines.grade_progress import Progress, Tally


@explained
def grade(
    tasks: Annotated[str, typer.Option("--tasks", metavar="T.jsonl", help="The tasks: JSONL, or builtin:NAME.")],
    programs: Annotated[
        Path, typer.Option("--programs", metavar="P.jsonl", help="The programs: JSONL, plain or gzipped.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="R.jsonl", help="Where the rows go: one a program.")],
    sandbox: Sandbox = "bwrap",
    image: Image = None,
    workers: Workers = None,
    attempts: Annotated[
        int, typer.Option("--attempts", metavar="N", min=1, max=10, help="Tries at a program while our machine fails.")
    ] = 3,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0.01, max=3600, help="Seconds a case may take.")
    ] = 5.0,
    memory_mib: Annotated[
        int, typer.Option("--memory-mib", metavar="MIB", min=32, max=1 << 20, help="MiB a program may use.")
    ] = 256,
    rubric: Annotated[
        Path | None, typer.Option("--rubric", metavar="W.yaml", help="Weights of the reward; else all_passed: 1.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the waits between tries. No verdict depends on it.")
    ] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Grade again what we failed to judge.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start over: forget the rows that --out holds.")] = False,
) -> None:
    """Grade any set of programs without a policy.

    A row of P holds a [bold]task_id[/bold] and a [bold]program[/bold] (source) or a
    [bold]completion[/bold] (what a model wrote, with the program in
    it), and perhaps an [bold]id[/bold]: your own name for the row,
    which its result keeps. HumanEval's sample files are
    taken as they are.

    R gets one row a program, in the order of P: outcome,
    reward, tests, time, memory. The same command goes on
    where it was stopped, after the last row of R; with
    --retry it also grades again what we failed to judge.
    Progress goes to stderr, the summary to stdout.

    Exit status: 0 every program was judged, 1 some could
    not be, through no fault of theirs, 2 a mistake in the
    files or options, 130 interrupted.

    [dim]Examples:[/dim]

        headrace grade --tasks builtin:humaneval \\
            --programs s.jsonl.gz --out r.jsonl

        headrace grade --tasks t.jsonl --out r.jsonl \\
            --programs p.jsonl --sandbox docker
    """
    from pipelines.grade_progress import Tally

    for number in _stopping():
        signal.signal(number, signal.default_int_handler)
    random.seed(seed)
    if retry and force:
        raise UsageError("--retry keeps the rows that --force forgets\n\nhint: give one of them")
    _not_an_input(out, programs, Path(tasks))
    limits = {"wall_time_s": time_limit, "cpu_time_s": time_limit, "memory_mib": memory_mib}
    grading = _grading(tasks, image, sandbox, workers, attempts, limits, rubric)
    tally = Tally(impossible=frozenset(task.task_id for task in grading.tasks.values() if task.impossible))
    progress = _fill(out, programs, grading, tally, retry=retry, force=force)
    _say(tally, len(grading.tasks), progress, out)
    if tally.unjudged:
        raise typer.Exit(FAILED)


def _say(tally: "Tally", tasks: int, progress: "Progress | None", out: Path) -> None:
    """Print what the rows came to, and what is wrong with them."""
    from rich.console import Console

    from pipelines.grade_progress import alarm_of, summary, unjudged_of

    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(summary(tally, tasks, progress))
    if tally.alarms:
        typer.echo(alarm_of(tally, out), err=True)
    if tally.unjudged:
        typer.echo(unjudged_of(tally), err=True)


def _fill(
    out: Path, programs: Path, grading: "Grading", tally: "Tally", *, retry: bool, force: bool
) -> "Progress | None":
    """Grade what has no row yet, with `retry` also what has one without a verdict. None where nothing was to do."""
    from pipelines.grade_input import read_programs
    from pipelines.grade_programs import check_all
    from pipelines.grade_retry import complete, kept_or_again, open_results, open_retry

    with open_results(out) as results:
        there: Iterator[dict[str, Any]] = iter(()) if force else results.rows()
        extent = check_all(read_programs(programs, grading.tasks), there, grading, results, tally, retry=retry)
        total, again = extent.programs, extent.rows - tally.rows
        if not total:
            hint = "one JSON object a line, with `task_id` and `program` or `completion`"
            raise UsageError(f"{programs} holds no program\n\nhint: {hint}")
        if tally.rows == total:
            but = f", but --retry, for {tally.unjudged:,} without a verdict" if tally.unjudged else ""
            typer.echo(f"{out} holds a row for each of the {total:,} programs: nothing to do{but}", err=True)
            return None
        submissions = read_programs(programs, grading.tasks)
        try:
            if again:
                typer.echo(f"{out} holds {again:,} rows without a verdict: grading those programs again", err=True)
                with open_retry(results) as retried:
                    work = kept_or_again(submissions, results.rows())
                    try:
                        return asyncio.run(_grade(work, grading, retried, tally, total, force=False))
                    finally:
                        complete(retried, results)
            if extent.rows:
                typer.echo(f"{out} holds {extent.rows:,} of {total:,} rows: going on after them", err=True)
            rest = islice(submissions, extent.rows, None)
            return asyncio.run(_grade(rest, grading, results, tally, total, force=force))
        except KeyboardInterrupt:
            said = f"interrupted: {out} holds {tally.rows:,} of {total:,} rows; the same command goes on after them"
            if again:
                left = f"{total - tally.rows:,} of {total:,} programs are still to be graded"
                said = f"interrupted: {left}; the same command goes on with those without a verdict"
            typer.echo(said, err=True)
            raise typer.Exit(INTERRUPTED) from None


async def _grade(
    work: "Iterator[Submission | dict[str, Any]]", grading: "Grading", results: "Results", tally: "Tally", total: int,
    *, force: bool,
) -> "Progress":  # fmt: skip
    """Grade until done, or until a signal, which ends in KeyboardInterrupt once every sandbox is closed."""
    from pipelines.grade_programs import grade_all
    from pipelines.grade_progress import Progress

    task = asyncio.create_task(grade_all(work, grading, results, tally, force=force))
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def stop(number: int) -> None:
        if not came:  # a second one would cut the closing short
            task.cancel()
        came.append(number)
        for output in (sys.stdout.fileno(), sys.stderr.fileno()):
            if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
                # A terminal that has gone: what is written to it would be one more error.
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)

    for number in (signal.SIGINT, *_stopping()):
        loop.add_signal_handler(number, stop, number)
    progress = Progress(tally, total)
    async with progress.shown():
        await asyncio.wait([task])
    if came:
        raise KeyboardInterrupt
    task.result()
    return progress


def _stopping() -> list[signal.Signals]:
    """What ends a grading as Ctrl-C does: not a hang-up that is ignored, as it is under `nohup`."""
    wanted = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]


def _grading(
    tasks: str, image: str | None, sandbox: str, workers: int | None, attempts: int, limits: dict[str, float],
    rubric: Path | None,
) -> "Grading":  # fmt: skip
    """What the options ask for. Raises UsageError, SpecError, TaskFileError, ImageMissing."""
    from pipelines.grade_programs import Grading
    from pipelines.spec_file import load_rubric
    from sandboxes.backends.choose import backend_of
    from sandboxes.pool import Pool
    from transforms.grade.rubric import RubricSpec
    from transforms.sources.builtin import load_tasks

    spec = sandbox_spec(sandbox, image, workers, attempts=attempts, limits=limits)
    made = backend_of(spec)
    provider = Pool(made, most=spec.parallel) if spec.backend in ("docker", "gvisor") else made
    found = {task.task_id: task for task in load_tasks(tasks, Path())}
    weighed = RubricSpec() if rubric is None else load_rubric(rubric)
    there = {case.milestone for task in found.values() for case in task.cases}
    for name, weight in weighed.milestones.items():
        if weight and name not in there:
            known = ", ".join(sorted(milestone for milestone in there if milestone is not None)[:5])
            hint = f"they have {known}" if known else "a case names its milestone in its field `milestone`"
            said = (
                f"warning: {rubric} weighs the milestone `{name}`, which no task of {tasks} has: `all_passed` gets its"
            )
            typer.echo(f"{said} weight, {weight:g}\n\nhint: {hint}", err=True)
    return Grading(found, provider, spec, weighed)


def _not_an_input(out: Path, *inputs: Path) -> None:
    """Make sure that what is written is none of the files that are read. Raises UsageError."""
    for given in inputs:
        if out.exists() and given.exists() and out.samefile(given):
            raise UsageError(f"--out {out} is the file {given} that is read\n\nhint: name another file for the rows")
    if out.suffix == ".gz":
        raise UsageError(f"--out {out}: rows are written as plain JSONL\n\nhint: leave `.gz` out")
