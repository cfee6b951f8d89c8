"""Three small repositories of ours: patches, from which real git histories and tasks are made.

Each folder: base.patch makes the first commit, with a seeded bug; fix.patch mends it; hidden.patch changes the tests as
the fixing commit does; wrong.patch and partial.patch are other answers; task.json is the rest of the task.
"""

import json
import os
import subprocess
from pathlib import Path

from transforms.sources.kinds import repository as kind
from transforms.sources.kinds.repository import Repository
from transforms.sources.record import Record
from transforms.sources.repository import read_repository

FOLDER = Path(__file__).parent
NAMES = ("ledger", "spans", "textkit")
_ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"} | {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))
}


def git(root: Path, *arguments: str, stdin: str | None = None) -> str:
    argv = ("git", "-C", str(root), *arguments)
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=True, env=_ENVIRONMENT)
    return done.stdout


def patch(name: str, which: str) -> str:
    return (FOLDER / name / f"{which}.patch").read_text()


def history(name: str, root: Path) -> str:
    """Make the repository: the base, tagged, then its fix. Returns the base's commit."""
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    for number, parts in enumerate((("base",), ("fix", "hidden"))):
        for part in parts:
            git(root, "apply", "--index", str(FOLDER / name / f"{part}.patch"))
        git(root, "commit", "--quiet", "--message", " and ".join(parts))
        git(root, "tag", f"v{number}")
    return git(root, "rev-parse", "v0").strip()


def check_of(name: str, root: Path, base: str) -> Repository:
    """The task's check, read as from a task file: its files are the base commit's, its tests the last one's."""
    data = json.loads((FOLDER / name / "task.json").read_text())
    del data["prompt"]
    tests = {path: text for path, text in read_repository(root, "main").items() if Path(path).name.startswith("test_")}
    wanted = {case["name"].partition("::")[0] for case in data["cases"]}
    data |= {"files": read_repository(root, base), "tests": {path: tests[path] for path in wanted}}
    return kind.read(Record(data, name, kind.FIELDS))
