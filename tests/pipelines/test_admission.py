import asyncio
import json
from pathlib import Path

import pytest

from pipelines.admission import GoldNotTried, RunTasks, TaskInvalid, admit
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import SandboxRequest
from tests.pipelines.command import ADD
from tests.pipelines.test_tasks_cli import TESTED, WRONG
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.sources.jsonl import read_tasks
from transforms.sources.task import Task
from transforms.verify.attempts import attempt_program


def read(tmp_path: Path, *tasks: dict) -> list[Task]:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return read_tasks(path)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "home")
    made.ensure_tables()
    return made


def test_a_run_names_the_tasks_that_cannot_be_tried_and_admits_none(lake, tmp_path):
    tasks = read(tmp_path, TESTED, ADD, {**TESTED, "task_id": "other"})
    with pytest.raises(GoldNotTried) as caught:
        admit(RunTasks(tasks, []), lake=lake, sandbox=Bubblewrap(), spec=SandboxSpec())
    first, *lines = str(caught.value).splitlines()
    assert first == "2 gold solution(s) could not be tried:"
    assert sorted(line.partition(" has no pytest")[0] for line in lines) == [
        "  other: image host",
        "  tested: image host",
    ]
    assert query(lake.home, "SELECT task_id FROM tasks").num_rows == 0


def test_a_gold_that_fails_comes_first_and_the_list_has_an_end(lake, tmp_path):
    tasks = read(tmp_path, TESTED, *({**WRONG, "task_id": f"w{number}"} for number in range(22)))
    with pytest.raises(TaskInvalid) as caught:
        admit(RunTasks(tasks, []), lake=lake, sandbox=Bubblewrap(), spec=SandboxSpec())
    first, *lines = str(caught.value).splitlines()
    assert first == "22 gold solution(s) fail their own task:"
    assert len(lines) == 21
    assert all(": small failed_tests: wrong value; add(1, 2) must return 3" in line for line in lines[:20])
    assert lines[20] == "  and 2 more; `headrace tasks check` lists all"


def test_what_an_image_lacks_is_not_tried_again(tmp_path):
    (task,) = read(tmp_path, TESTED)
    tries = asyncio.run(attempt_program(Bubblewrap(), task, "x = 2\n", SandboxRequest(), attempts=3))
    assert [(each.number, each.final) for each in tries] == [(1, True)]
    tries = asyncio.run(attempt_program(Bubblewrap(), task, "x = 2\n", SandboxRequest(image="nosuch"), attempts=3))
    assert [(each.number, each.final) for each in tries] == [(1, True)]
