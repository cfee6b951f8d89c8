from pathlib import Path

import pytest

from transforms.sources.builtin import BUILTIN, load_tasks
from transforms.sources.jsonl import write_tasks
from transforms.sources.kinds.call import Call, Case
from transforms.sources.record import TaskFileError
from transforms.sources.task import Task


def test_a_path_is_relative_to_the_base_unless_absolute(tmp_path):
    task = Task("t", "p", Call("f", (Case("c", (1,), 2),)))
    write_tasks(tmp_path / "mine.jsonl", [task])
    assert load_tasks("mine.jsonl", tmp_path) == [task]
    assert load_tasks(str(tmp_path / "mine.jsonl"), Path("elsewhere")) == [task]


def test_every_builtin_set_loads_with_unique_ids_and_records():
    for name in BUILTIN:
        tasks = load_tasks(f"builtin:{name}", Path())
        assert len({task.task_id for task in tasks}) == len(tasks) > 0
        assert len({task.content_hash for task in tasks}) == len(tasks)
        assert all(task.record for task in tasks)


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("builtin:quikstart", "did you mean `builtin:quickstart`?"),
        ("builtin:zzz", "the built-in task sets are `builtin:humaneval`, `builtin:quickstart`"),
    ],
)
def test_an_unknown_builtin_names_the_nearest(reference, hint):
    with pytest.raises(TaskFileError) as caught:
        load_tasks(reference, Path())
    assert str(caught.value) == f"{reference}: no built-in task set has this name\n\nhint: {hint}"
