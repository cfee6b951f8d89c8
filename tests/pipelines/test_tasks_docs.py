"""Every example of docs/tasks.md runs as it is."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.sandboxes.real_images import real_image

DOCS = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
SETS = re.findall(r"^```json\n(.*?)^```$", DOCS, re.DOTALL | re.MULTILINE)
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", DOCS, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^(headrace tasks .*)$", DOCS, re.MULTILINE)


def of_kind(kind: str) -> str:
    (found,) = (tasks for tasks in SETS if json.loads(tasks.splitlines()[0]).get("kind") == kind)
    return found


def test_every_kind_has_an_example():
    kinds = {json.loads(line).get("kind", "call") for tasks in SETS for line in tasks.splitlines()}
    assert kinds == {"call", "stdio", "math", "sql", "files", "state", "pytest"}


@pytest.mark.parametrize("tasks", SETS, ids=lambda tasks: json.loads(tasks.splitlines()[0])["task_id"])
def test_the_golds_of_an_example_pass(headrace, tmp_path, tasks):
    real_image("base")
    (tmp_path / "mine.jsonl").write_text(tasks)
    golds = sum("gold" in json.loads(line) for line in tasks.splitlines())
    done = headrace("tasks", "check", "mine.jsonl", "--image", "base")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].startswith(f"{golds} of {golds} gold solutions pass")
    for line in tasks.splitlines():
        shown = headrace("tasks", "show", "mine.jsonl", json.loads(line)["task_id"])
        assert (shown.returncode, shown.stderr) == (0, "")


def test_the_commands_run(headrace, tmp_path):
    (tmp_path / "mine.jsonl").write_text(SETS[0])
    assert len(COMMANDS) >= 2
    for command in COMMANDS:
        done = headrace(*command.split()[1:])
        assert done.returncode == 0, done.stderr


def test_the_fault_reads_as_shown(headrace, tmp_path):
    (tmp_path / "mine.jsonl").write_text(SETS[0].replace('"prompt"', '"promt"', 1))
    done = headrace("tasks", "check", "mine.jsonl")
    assert done.returncode == 2
    assert f"```\n{done.stderr.removeprefix('error: ')}```" in DOCS


def test_the_programs_run(tmp_path, monkeypatch, capsys):
    real_image("base")
    git = ("git", "-C", str(tmp_path / "my-repository"), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q", str(tmp_path / "my-repository")], check=True)
    (tmp_path / "my-repository" / "a.py").write_text("x = 1\n")
    for arguments in (("add", "a.py"), ("commit", "-q", "-m", "one"), ("tag", "v1.0")):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.chdir(tmp_path)
    reading, repository, twins = PROGRAMS
    Path("mine.jsonl").write_text(SETS[0])
    exec(reading, {})
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["add", "train", "3"],
        ["divide", "heldout", "2"],
    ]
    namespace: dict = {}
    exec(repository, namespace)
    assert namespace["files"] == {"a.py": "x = 1\n"}
    Path("mine.jsonl").write_text(of_kind("pytest"))
    exec(twins, {})
    (task,) = map(json.loads, Path("twinned.jsonl").read_text().splitlines())
    assert task["task_id"] == "slug"
    assert {name for twin in task["twins"] for name in twin["cases"]} == {case["name"] for case in task["cases"]}
