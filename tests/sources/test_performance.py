import json
from pathlib import Path

import pytest

from transforms.sources.jsonl import read_tasks, task_to_record
from transforms.sources.record import TaskFileError

CALL = {
    "task_id": "t", "prompt": "p", "entry_point": "f", "gold": "def f(x): return x",
    "cases": [{"args": [1], "expected": 1}, {"args": [2], "expected": 2}],
}  # fmt: skip
STDIO = {
    "task_id": "t", "prompt": "p", "kind": "stdio", "gold": "print(input())",
    "cases": [{"stdin": "1", "expected": "1"}],
}  # fmt: skip


def read(record: dict[str, object], folder: Path) -> tuple[object, ...]:
    path = folder / "tasks.jsonl"
    path.write_text(json.dumps(record))
    (task,) = read_tasks(path)
    path.write_text(json.dumps(task_to_record(task)))
    assert read_tasks(path) == [task]  # the record holds them, and so does the task's hash
    return task.performance


@pytest.mark.parametrize(
    ("record", "inputs"),
    [
        (CALL, ()),
        (CALL | {"performance": [[3], [4]]}, ((3,), (4,))),
        (CALL | {"performance_py": "[(3,), [{4}]]"}, ((3,), ({4},))),
        (STDIO | {"performance": ["3", "4"]}, ("3", "4")),
        (STDIO | {"performance_py": "[b'\\xff']"}, (b"\xff",)),
    ],
)
def test_inputs_are_read_in_the_form_of_their_kind(record: dict, inputs: tuple, tmp_path: Path):
    assert read(record, tmp_path) == inputs


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (CALL | {"performance": [3]}, "`performance` must be a list of lists of arguments, not [3]"),
        (CALL | {"performance": "x"}, "`performance` must be a list of lists of arguments, not"),
        (CALL | {"performance": [[3], [2]]}, "`performance`: input 2 is that of a case, or of another"),
        (CALL | {"performance_py": "[[3], (3,)]"}, "`performance_py`: input 2 is that of a case, or of another"),
        (CALL | {"performance": [[3]], "gold": None}, "`performance` without `gold`"),
        (STDIO | {"performance": [[3]]}, "`performance` must be a list of strings, not [[3]]"),
        (STDIO | {"performance": ["1"]}, "input 1 is that of a case"),
    ],
)
def test_a_fault_names_the_field_and_the_way_out(record: dict, says: str, tmp_path: Path):
    with pytest.raises(TaskFileError) as caught:
        read(record, tmp_path)
    assert says in str(caught.value)
    assert "hint: " in str(caught.value)
