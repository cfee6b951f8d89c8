"""Runs `headrace` in forked children and kills them where it is told: a process of its own, so that forking is safe.

Reads one JSON command a line: {"argv": [...], "at": N | null, "by": signal, "kill_after_s": S | null, "out", "names":
FILE}. A child counts the boundaries it passes (before and after every write, commit, pipeline, checkpoint and optimizer
step), noting their names in a file, and sends itself the signal at the Nth; or it is killed after S seconds. Answers
{"code": exit status or -signal}, a line each.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines import cli, cycle
from training.trainer import Trainer
from transforms.lake.table import Lake


class Boundaries:
    """Counts boundaries and sends the signal at the wanted one."""

    def __init__(self, at: int | None, by: int, names: Path) -> None:
        self.at = at
        self.by = by
        self.names = names
        self.passed = 0

    def cross(self, name: str) -> None:
        self.passed += 1
        with self.names.open("a") as file:
            file.write(name + "\n")
        if self.passed == self.at:
            os.kill(os.getpid(), self.by)

    def around(self, owner: Any, attribute: str) -> None:
        inner: Callable[..., Any] = getattr(owner, attribute)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            label = f"{attribute} {args[1]}" if owner is Lake else attribute
            self.cross(f"before {label}")
            result = inner(*args, **kwargs)
            self.cross(f"after {label}")
            return result

        setattr(owner, attribute, wrapped)


def child(command: dict[str, Any]) -> None:
    boundaries = Boundaries(command["at"], command["by"], Path(command["names"]))
    for method in ("write_files", "write_batches", "commit"):
        boundaries.around(Lake, method)
    for function in ("admit", "resolve_base_model", "run_chunk", "check_cycle", "cut_batch", "save", "prune"):
        boundaries.around(cycle, function)
    boundaries.around(Trainer, "train")
    boundaries.around(cycle._Wheel, "_on_step")
    cli.app(command["argv"])


def in_child(command: dict[str, Any]) -> None:
    """Never returns: the forked process ends here."""
    code = 70
    try:
        out = os.open(command["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        child(command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve commands until stdin closes."""
    import transforms.quality.validate
    import transforms.rollout.transformers_engine  # noqa: F401 - imported once here, not in every child

    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            in_child(command)
        timer = threading.Timer(command["kill_after_s"] or 0.0, os.kill, (pid, signal.SIGKILL))
        if command["kill_after_s"] is not None:
            timer.start()
        _, status = os.waitpid(pid, 0)
        timer.cancel()
        say(json.dumps({"code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
