"""Runs the driver in forked children and kills them where it is told: a process of its own, so that forking is safe.

Reads one JSON command a line: {"spec": FILE, "die_at": N | null, "after_s": S | null, ...}. A child counts the
boundaries it passes (before and after every commit, checkpoint, pipeline and optimizer step) and kills itself with
SIGKILL at the Nth; or it is killed from outside after S seconds. Answers {"code": exit status or -signal}, a line each.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipelines.cycle as cycle
from pipelines.progress import Reporter
from pipelines.spec_file import load_spec
from training.trainer import Trainer
from transforms.lake.table import Lake


class Boundaries:
    """Counts boundaries and dies at the wanted one."""

    def __init__(self, die_at: int | None, names: Path) -> None:
        self.die_at = die_at
        self.names = names
        self.passed = 0

    def cross(self, name: str) -> None:
        self.passed += 1
        with self.names.open("a") as file:
            file.write(name + "\n")
        if self.passed == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

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
    names = Path(command["names"])
    boundaries = Boundaries(command["die_at"], names)
    boundaries.around(Lake, "commit")
    boundaries.around(Lake, "write_files")
    for function in ("save", "prune", "run_chunk", "check_cycle", "cut_batch", "resolve_base_model", "admit"):
        boundaries.around(cycle, function)
    boundaries.around(Trainer, "train")
    boundaries.around(cycle._Wheel, "_on_step")
    path = Path(command["spec"])
    spec = load_spec(path, [])
    with Reporter(cycles=spec.cycles.count, plain=True, every_s=1000) as reporter:
        cycle.run(spec, spec_folder=path.parent, new=False, reporter=reporter)


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
            code = 1
            try:
                log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                child(command)
                code = 0
            except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        if command["after_s"] is not None:
            timer = threading.Timer(command["after_s"], os.kill, (pid, signal.SIGKILL))
            timer.start()
            _, status = os.waitpid(pid, 0)
            timer.cancel()
        else:
            _, status = os.waitpid(pid, 0)
        time.sleep(0.01)
        say(json.dumps({"code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
