"""From an error to a message on stderr and an exit status.

0 done, 1 failed, 2 the user's mistake, 3 stopped by the quality gate or a broken grader, 130 interrupted.
"""

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec

import typer

P = ParamSpec("P")

FAILED, USAGE, GATE, INTERRUPTED = 1, 2, 3, 130

EXIT_CODES = {
    "pipelines.spec_file.SpecError": USAGE,
    "pipelines.run_record.RunError": USAGE,
    "pipelines.admission.TaskInvalid": USAGE,
    "pipelines.admission.GoldNotTried": FAILED,
    "pipelines.explain.UsageError": USAGE,
    "pipelines.grade_input.ProgramsError": USAGE,
    "pipelines.grade_output.ResultsError": USAGE,
    "pipelines.grade_output.ResultsFull": FAILED,
    "pipelines.grade_programs.GradingBroken": FAILED,
    "transforms.sources.record.TaskFileError": USAGE,
    "transforms.lake.errors.QueryError": USAGE,
    "training.base_model.NotAModel": USAGE,
    "transforms.quality.gate.QualityStop": GATE,
    "transforms.grade.grade.GraderBroken": GATE,
    "training.batch.BatchError": FAILED,
    "training.checkpoint.NotSaved": FAILED,
    "training.trainer.CheckpointError": FAILED,
    "training.trainer.TrainingDiverged": FAILED,
    "transforms.lake.errors.LakeError": FAILED,
    "transforms.rollout.policy.EngineError": FAILED,
    "sandboxes.protocol.ImageMissing": USAGE,
    "transforms.verify.compile.ToolchainMissing": USAGE,
    "sandboxes.protocol.SandboxError": FAILED,
    "sandboxes.protocol.FilesRefused": FAILED,
}
"""Exit status of every typed error, by name: looking one up imports nothing. A subclass counts as its nearest base."""

HINTS = {
    "transforms.quality.gate.QualityStop": "after a change of `quality` the same run goes on with the "
    "rows it has; --new starts another. The queries ask the default home: name another with --home",
    "transforms.grade.grade.GraderBroken": "nothing of the chunk in hand was kept; with the cause mended, the same "
    "command goes on from the last commit",
    "transforms.rollout.policy.EngineError": "the engine's own log is in `logs` under the home folder; "
    "running the same spec again goes on from the last commit",
    "training.trainer.TrainingDiverged": "try a smaller training.lr, which makes a new run",
    "pipelines.admission.GoldNotTried": "`headrace doctor` tries the sandbox on this machine",
    "sandboxes.protocol.ImageMissing": "",
    "transforms.verify.compile.ToolchainMissing": "",
    "sandboxes.protocol.SandboxError": "`headrace doctor` tries the sandbox on this machine",
}  # fmt: skip
"""The way out, for errors whose text does not hold it."""


class UsageError(Exception):
    """What was asked for does not exist."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a UsageError about a name that does not exist: the nearest one that does, or all of them if few."""
    import difflib

    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"\n\nhint: did you mean `{close[0]}`?"
    return f"\n\nhint: there are {', '.join(names)}" if 0 < len(names) <= 20 else ""


def explained(command: Callable[P, None]) -> Callable[P, None]:
    """The one place where an error becomes a message on stderr and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            again = "the same command, without --new," if kwargs.get("new") else "the same command"
            goes_on = f": {again} goes on from the last commit" if "new" in kwargs else ""  # only a run goes on
            typer.echo(f"interrupted{goes_on}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): Python must not try to flush to it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except Exception as error:  # noqa: BLE001 - the boundary of the program: every error ends as a message and a code
            home = kwargs.get("home")
            raise typer.Exit(_explain(error, home if isinstance(home, str) else None)) from None

    return wrapped


def _explain(error: Exception, home: str | None) -> int:
    names = [f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__]
    if isinstance(error, ModuleNotFoundError):
        typer.echo(
            f"error: the package `{error.name}` is not installed, and this command needs it\n\n"
            "hint: install Headrace with its `cpu` extra, or `gpu` for a GPU; in a clone, `make setup` does",
            err=True,
        )
        return FAILED
    code = next((EXIT_CODES[name] for name in names if name in EXIT_CODES), None)
    if code is None:
        typer.echo(
            f"error: unexpected {type(error).__name__}: {error}\n\nhint: the traceback is in {_log(home)}", err=True
        )
        return FAILED
    text = str(error)
    hint = next((HINTS[name] for name in names if name in HINTS), None)
    typer.echo(text if text.startswith("error: ") else f"error: {text}", err=True)
    if hint:
        typer.echo(f"\nhint: {hint}", err=True)
    return code


def _log(home: str | None) -> Path | str:
    """Write the traceback of the error in hand to a file and return its path."""
    from pipelines.home import given_home
    from transforms.lake.table import Lake

    path = Lake(given_home(home)).work / "logs" / f"error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError as error:
        traceback.print_exc()
        return f"what stands above; it could not be written to {path}: {error.strerror}"
    return path
