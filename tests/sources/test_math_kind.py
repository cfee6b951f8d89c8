"""Task lines of the kind `math`: what is read, what is written back, and what is refused with the way out."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from transforms.sources.jsonl import read_tasks, task_to_record, write_tasks
from transforms.sources.kinds import math
from transforms.sources.kinds.math import Math
from transforms.sources.record import TaskFileError
from transforms.sources.task import Task
from transforms.verify.answers.same import Tolerance


def read(tmp_path: Path, **fields: object) -> Task:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"task_id": "t", "kind": "math", "prompt": "How much?", **fields}) + "\n")
    (task,) = read_tasks(path)
    return task


def test_the_fields_are_read(tmp_path: Path):
    given = {"answer": r"\frac{1}{2}", "format": "hash", "percent": True, "tolerance": {"absolute": 0.1}}
    task = read(tmp_path, **given)
    assert task.check == Math(r"\frac{1}{2}", "hash", True, Tolerance(absolute=Fraction(1, 10)))
    assert [(case.name, case.tier) for case in task.cases] == [("answer", "hidden")]
    assert task.check.language is None
    assert task.check.integrity == "split"


def test_a_task_is_written_and_read_back_equal(tmp_path: Path):
    for fields in (
        {"answer": "5"},
        {"answer": "5", "format": "answer_tag", "percent": True},
        {"answer": "5", "tolerance": {"relative": 0.001, "absolute": 1e-9}},
    ):
        task = read(tmp_path, **fields)
        again = tmp_path / "again.jsonl"
        write_tasks(again, [task])
        assert read_tasks(again) == [task]
        assert {name: task_to_record(task).get(name) for name in fields} == fields


def test_defaults_do_not_change_the_hash(tmp_path: Path):
    plain = read(tmp_path, answer="5")
    assert read(tmp_path, answer="5", format="boxed", percent=False).content_hash == plain.content_hash
    assert read(tmp_path, answer="6").content_hash != plain.content_hash


@pytest.mark.parametrize(
    ("fields", "problem", "hint"),
    [
        ({}, "the field `answer` is missing", "the expected final answer"),
        ({"answer": " "}, "`answer` must be a string that is not blank", "the expected final answer"),
        ({"answer": 5}, "`answer` must be a string, not 5", "the expected final answer"),
        ({"answer": r"\int x"}, r"the command \int is not one we know", r"words as \text{...}; or say `unsupported`"),
        ({"answer": "5 apples"}, "'apples'", "unsupported"),
        ({"answer": "1=2=3"}, "a chain of equalities", "unsupported"),
        ({"answer": "9^9^9^9"}, "a power too large", "unsupported"),
        ({"answer": "5", "format": "box"}, "`format` must be", "where a completion gives its answer"),
        ({"answer": "5", "tolerance": 0.1}, "`tolerance`", "keys"),
        ({"answer": "5", "tolerance": {}}, "`tolerance` must be above 0", "by how much"),
        ({"answer": "5", "tolerance": {"absolute": -1}}, "`absolute` must be", "the largest difference"),
        ({"answer": "5", "tolerance": {"absolut": 1}}, "unknown key `absolut`", "did you mean `absolute`?"),
        ({"answer": "5", "cases": []}, "unknown key `cases`", "the keys are"),
    ],
)
def test_faults_name_the_field_and_the_way_out(tmp_path: Path, fields: dict[str, object], problem: str, hint: str):
    with pytest.raises(TaskFileError) as caught:
        read(tmp_path, **fields)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'tasks.jsonl'}:1: ")
    assert problem in text.split("hint:")[0]
    assert hint in text


def test_a_task_that_says_it_is_unsupported_is_kept(tmp_path: Path):
    task = read(tmp_path, answer=r"\int_0^1 f(x) dx", unsupported="an integral")
    assert task.unsupported == "an integral"


def test_a_case_is_described_for_its_author():
    check = Math("5")
    assert math.describe(check, check.cases[0]) == "the answer must be 5"
