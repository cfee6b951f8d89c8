"""The fields of a `call` task that say how to compare, read from a file and written back."""

import json
from pathlib import Path

import pytest

from tests.call_tasks import call_of
from transforms.sources.jsonl import read_tasks, write_tasks
from transforms.sources.kinds.call import Case, Tolerance
from transforms.sources.record import TaskFileError

CHECKER = "def check(args, kwargs, returned): return returned == 1"


def task(tmp_path: Path, **fields: object) -> Path:
    path = tmp_path / "tasks.jsonl"
    whole = {"task_id": "t", "prompt": "p", "entry_point": "f", "cases": [{"args": [], "expected": 1.5}]} | fields
    path.write_text(json.dumps(whole) + "\n")
    return path


def test_they_are_read_and_written_back(tmp_path: Path):
    cases = [
        {"args": [], "expected": 1.5, "tolerance": {"relative": 0.1}},
        {"args": [], "expected": 2, "sequences": "strict"},
    ]
    path = task(tmp_path, cases=cases, tolerance={"absolute": 1, "relative": 0}, sequences="any")
    [found] = read_tasks(path)
    check = call_of(found)
    assert (check.tolerance, check.sequences) == (Tolerance(absolute=1.0), "any")
    assert check.cases == (
        Case("case-1", (), 1.5, tolerance=Tolerance(relative=0.1)),
        Case("case-2", (), 2, sequences="strict"),
    )
    write_tasks(path, [found])
    assert read_tasks(path) == [found]


@pytest.mark.parametrize("other", [{"args": [1]}, {"args": [2], "expected": None}])
def test_with_a_checker_the_expected_value_may_be_left_out(tmp_path: Path, other: dict):
    cases = [{"args": [1], "expected": [2]}, other]
    path = task(tmp_path, cases=cases, checker=CHECKER)
    [found] = read_tasks(path)
    assert [case.expected for case in call_of(found).cases] == [case.get("expected") for case in cases]
    write_tasks(path, [found])
    assert read_tasks(path) == [found]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cases": [{"args": []}]}, "case 1: the field `expected` is missing"),
        ({"cases": [{"args": []}], "checker": CHECKER}, "no case names `expected`"),
        ({"tolerance": 0.1}, "must be an object, not 0.1"),
        ({"tolerance": {}}, "`tolerance`: neither `absolute` nor `relative` is above 0"),
        ({"tolerance": {"absolute": -1}}, "`tolerance`: `absolute` must be a number of at least 0, not -1"),
        ({"tolerance": {"abs": 1}}, "`tolerance`: unknown key `abs`"),
        ({"cases": [{"args": [], "expected": 1, "tolerance": {"relative": "x"}}]}, "`relative` must be a number"),
        ({"sequences": "all"}, '`sequences` must be "strict" or "any", not "all"'),
        ({"checker": "def check(a, b): return True"}, "`checker` cannot be used: it defines no `check("),
        ({"checker": "def ok(args, kwargs, returned): return True"}, "`checker` cannot be used: it defines no `check("),
        ({"checker": "def check(a, k, r, *, e): return True"}, "`checker` cannot be used: it defines no `check("),
        ({"checker": "def check(:"}, "`checker` is not Python: line 1: invalid syntax"),
        ({"checker": ""}, "`checker` must be a string that is not blank"),
        ({"checker": 3}, "`checker` must be a string, not 3"),
        ({"language": "javascript", "entry_point": "größe"}, "`entry_point` must be a JavaScript name"),
        ({"language": "javascript", "entry_point": "f()"}, "`entry_point` must be a JavaScript name"),
        ({"entry_point": "$f"}, "`entry_point` must be a Python name"),
    ],
)
def test_a_fault_is_told_with_its_field(tmp_path: Path, fields: dict[str, object], problem: str):
    with pytest.raises(TaskFileError) as caught:
        read_tasks(task(tmp_path, **fields))
    assert problem in str(caught.value)
    assert "\n\nhint: " in str(caught.value)


def test_a_javascript_name_may_hold_a_dollar(tmp_path: Path):
    assert call_of(read_tasks(task(tmp_path, language="javascript", entry_point="$f"))[0]).entry_point == "$f"
