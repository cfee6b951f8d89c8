"""Find the tasks that a spec names: a set that comes with Headrace, or a file."""

import difflib
from collections.abc import Callable
from pathlib import Path

from transforms.sources.humaneval import load_humaneval
from transforms.sources.jsonl import read_tasks
from transforms.sources.record import TaskFileError
from transforms.sources.task import Task

QUICKSTART = Path(__file__).parent / "data" / "quickstart.jsonl"

BUILTIN: dict[str, Callable[[], list[Task]]] = {
    "humaneval": load_humaneval,
    "quickstart": lambda: read_tasks(QUICKSTART),
}


def load_tasks(reference: str, base: Path) -> list[Task]:
    """The tasks of `builtin:NAME`, or of a JSONL file, relative to `base` unless absolute. Raises TaskFileError."""
    if not reference.startswith("builtin:"):
        return read_tasks(base / reference)
    name = reference.removeprefix("builtin:")
    if name in BUILTIN:
        return BUILTIN[name]()
    close = difflib.get_close_matches(name, BUILTIN, n=1)
    listed = ", ".join(f"`builtin:{known}`" for known in BUILTIN)
    hint = f"did you mean `builtin:{close[0]}`?" if close else f"the built-in task sets are {listed}"
    raise TaskFileError(reference, "no built-in task set has this name", hint)
