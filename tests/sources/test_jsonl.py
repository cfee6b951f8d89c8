import enum
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.call_tasks import call_of
from transforms.sources.jsonl import (
    TASK_FIELDS,
    read_tasks,
    task_to_record,
    with_record,
    write_tasks,
)
from transforms.sources.kinds.call import CASE_FIELDS, FIELDS, Call, Case
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.record import TaskFileError
from transforms.sources.task import Split, Task, canonical

CASE = '{"args": [1], "expected": 2}'
TASK = '{"task_id": "t", "prompt": "p", "entry_point": "f", "cases": [CASES]EXTRA}'
HEAD = '{"task_id": "t", "prompt": "p", "entry_point": "f"'
LITERALS = "numbers, strings, bytes, True, False, None, nan, inf, and lists, tuples, sets and dicts of them"
TASK_KEYS = ", ".join(f"`{name}`" for name in TASK_FIELDS | FIELDS)
CASE_KEYS = ", ".join(f"`{name}`" for name in CASE_FIELDS)
KIND_NAMES = " or ".join(f'"{name}"' for name in KINDS)


class Color(enum.IntEnum):
    RED = 1


def task_line(*, cases: str = CASE, extra: str = "") -> str:
    return TASK.replace("CASES", cases).replace("EXTRA", extra)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "tasks.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n")
    return path


def test_a_line_becomes_a_task_with_the_defaults(tmp_path):
    [task] = read_tasks(written(tmp_path, task_line()))
    assert task == Task(
        task_id="t",
        prompt="p",
        check=Call("f", (Case(name="case-1", args=(1,), expected=2, kwargs={}, tier="hidden"),), prefix=""),
        gold=None,
        split="train",
        source="jsonl",
        unsupported=None,
    )


def test_every_field_is_read(tmp_path):
    case = (
        '{"name": "pairs", "args_py": "[(1, 2), {3}]", "kwargs_py": "{\'deep\': (nan, -inf)}",'
        ' "expected_py": "b\'x\'", "tier": "visible"}'
    )
    extra = ', "gold": "G", "split": "heldout", "prefix": "P", "source": "S", "kind": "call"'
    [task] = read_tasks(written(tmp_path, task_line(cases=case, extra=extra)))
    [case] = call_of(task).cases
    assert (task.gold, task.split, call_of(task).prefix, task.source) == ("G", "heldout", "P", "S")
    assert (case.name, case.args, case.expected, case.tier) == ("pairs", ((1, 2), {3}), b"x", "visible")
    assert repr(case.kwargs) == "{'deep': (nan, -inf)}"


def test_empty_lines_and_a_byte_order_mark_are_skipped(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\n" + task_line().encode() + b"\r\n  \n")
    assert [task.task_id for task in read_tasks(path)] == ["t"]


def test_an_unsupported_task_may_have_no_cases(tmp_path):
    [task] = read_tasks(written(tmp_path, HEAD + ', "unsupported": "needs a clock"}'))
    assert (task.cases, task.unsupported) == ((), "needs a clock")


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        (b"{]", "1: broken JSON at column 2: Expecting property name enclosed in double quotes",
         "each line holds one whole JSON object; a line break inside a string is written \\n"),
        (b'{"a": "\xff"}', "1: byte 8 is not UTF-8", "save the file as UTF-8"),
        (b"[1]", "1: a line must hold an object, not [1]", 'write {"task_id": ...}'),
        ('{"kind": "call", "kind": "call"}', "1: the key `kind` stands twice in one object", "keep one of them"),
        (task_line(cases='{"args": [NaN], "expected": 2}'), "1: NaN is not JSON", "write nan in a `*_py` string"),
        (task_line(cases='{"args": [1], "expected": -Infinity}'), "1: -Infinity is not JSON",
         "write -inf in a `*_py` string"),
        (task_line(extra=', "promt": "p"'), "1: unknown key `promt`", "did you mean `prompt`?"),
        (task_line(extra=', "zzz": 1'), "1: unknown key `zzz`", f"the keys are {TASK_KEYS}"),
        (HEAD + "}", "1: the field `cases` is missing",
         "`cases`: the calls and the values they must return: a list of objects"),
        ('{"prompt": "p", "entry_point": "f", "cases": [' + CASE + "]}", "1: the field `task_id` is missing",
         "`task_id`: names the task, unique in the file: a string"),
        ('{"task_id": "t", "entry_point": "f", "cases": [' + CASE + "]}", "1: the field `prompt` is missing",
         "`prompt`: what the policy is asked: a string"),
        ('{"task_id": "t", "prompt": "p", "cases": [' + CASE + "]}", "1: the field `entry_point` is missing",
         "`entry_point`: name of the function the cases call: a string"),
        ('{"task_id": 7}', "1: the field `entry_point` is missing",
         "`entry_point`: name of the function the cases call: a string"),
        ('{"task_id": 7, "prompt": "p", "entry_point": "f", "cases": [' + CASE + "]}",
         "1: `task_id` must be a string, not 7", "`task_id`: names the task, unique in the file: a string"),
        ('{"task_id": "t", "prompt": " ", "entry_point": "f", "cases": [' + CASE + "]}",
         '1: `prompt` must be a string that is not blank, not " "', "`prompt`: what the policy is asked: a string"),
        (task_line(extra=', "gold": "\\ud800"'), '1: `gold` must be text without lone surrogates, not "\\ud800"',
         "`gold`: source of a solution that passes every case: a string"),
        ('{"task_id": "t", "prompt": "p", "entry_point": "f()", "cases": []}',
         '1: `entry_point` must be a Python name, not "f()"',
         "`entry_point`: name of the function the cases call: a string"),
        ('{"task_id": "t", "prompt": "p", "entry_point": "class", "cases": []}',
         '1: `entry_point` must be a Python name, not "class"',
         "`entry_point`: name of the function the cases call: a string"),
        (task_line(extra=', "split": "test"'), '1: `split` must be "train" or "heldout", not "test"',
         '`split`: which set the task belongs to: "train" or "heldout"'),
        (task_line(extra=', "kind": "repo"'), '1: `kind` must be KINDS, not "repo"'.replace("KINDS", KIND_NAMES),
         f"`kind`: {TASK_FIELDS['kind']}"),
        (task_line(cases=""), "1: `cases` is empty",
         "give at least one case, or say in `unsupported` why there is none"),
        (HEAD + ', "cases": {"args": []}}', '1: `cases` must be a list, not {"args": []}',
         "`cases`: the calls and the values they must return: a list of objects"),
        (task_line(cases="5"), "1: case 1: must be an object, not 5", f"a case has the keys {CASE_KEYS}"),
        (task_line(cases=CASE + ', {"arg": [1], "expected": 1}'), "1: case 2: unknown key `arg`",
         "did you mean `args`?"),
        (task_line(cases='{"expected": 1}'), "1: case 1: the field `args` is missing",
         "`args`: positional arguments: a list"),
        (task_line(cases='{"args": []}'), "1: case 1: the field `expected` is missing",
         "`expected`: the value the call must return: any JSON value"),
        (task_line(cases='{"args": 1, "expected": 1}'), "1: case 1: `args` must be a list, not 1",
         "`args`: positional arguments: a list"),
        (task_line(cases='{"args_py": "{1}", "expected": 1}'), '1: case 1: `args_py` must be a list, not "{1}"',
         "`args_py`: positional arguments: a Python list or tuple in a string"),
        (task_line(cases='{"args": [], "kwargs": [1], "expected": 1}'),
         "1: case 1: `kwargs` must be an object with string keys, not [1]",
         "`kwargs`: keyword arguments: an object"),
        (task_line(cases='{"args": [], "kwargs_py": "{1: 2}", "expected": 1}'),
         '1: case 1: `kwargs_py` must be an object with string keys, not "{1: 2}"',
         "`kwargs_py`: keyword arguments: a Python dict in a string"),
        (task_line(cases='{"args": [], "expected": 1, "expected_py": "1"}'),
         "1: case 1: `expected` and `expected_py` are both given", "keep `expected` unless JSON cannot hold it"),
        (task_line(cases='{"args": [], "expected_py": "open(1)"}'),
         '1: case 1: `expected_py` is not a Python literal: "open(1)"', LITERALS),
        (task_line(cases='{"args": [], "expected_py": "(1,"}'),
         '1: case 1: `expected_py` is not a Python literal: "(1,"', LITERALS),
        (task_line(cases='{"args": [], "expected_py": "{[]}"}'),
         '1: case 1: `expected_py` is not a Python literal: "{[]}"', LITERALS),
        (task_line(cases='{"args": [], "expected_py": "1j"}'),
         '1: case 1: `expected_py` is not a Python literal: "1j"', LITERALS),
        (task_line(cases='{"args": [], "expected_py": 5}'), "1: case 1: `expected_py` must be a string, not 5",
         "`expected_py`: the value the call must return: a Python literal in a string"),
        (task_line(cases='{"name": "", "args": [], "expected": 1}'),
         '1: case 1: `name` must be a string that is not blank, not ""',
         "`name`: names the case, unique in the task: a string"),
        (task_line(cases='{"args": [], "expected": 1, "tier": "secret"}'),
         '1: case 1: `tier` must be "visible" or "hidden" or "integration", not "secret"',
         '`tier`: who may see the case: "visible", "hidden" or "integration"'),
        (task_line(cases='{"name": "case-2", "args": [], "expected": 1}, ' + CASE),
         "1: case 2: `name` 'case-2' is taken by case 1", "rename one of them"),
        ("\n" + task_line() + "\n\n" + task_line(),
         "4: `task_id` 't' is taken by line 2", "give each task an id of its own"),
    ],
)  # fmt: skip
def test_a_fault_names_the_line_the_field_and_the_way_out(tmp_path, line, problem, hint):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else line.encode())
    with pytest.raises(TaskFileError) as caught:
        read_tasks(path)
    assert str(caught.value) == f"{path}:{problem}\n\nhint: {hint}"


def test_a_missing_file_a_folder_and_an_empty_file(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    format_hint = "give a file in the format of docs/tasks.md, or `builtin:NAME`"
    for path, problem, hint in [
        (tmp_path / "none.jsonl", "No such file or directory", format_hint),
        (tmp_path, "Is a directory", format_hint),
        (empty, "the file holds no task", "write one JSON object a line, as in docs/tasks.md"),
    ]:
        with pytest.raises(TaskFileError) as caught:
            read_tasks(path)
        assert str(caught.value) == f"{path}: {problem}\n\nhint: {hint}"


def test_values_are_json_where_json_holds_them_and_literals_elsewhere():
    case = Case(name="c", args=(1, [2.5, None]), expected=(1,), kwargs={"b": {"x": True}}, tier="visible")
    task = Task(task_id="t", prompt="p", check=Call("f", (case,)))
    assert task_to_record(task) == {
        "task_id": "t",
        "kind": "call",
        "prompt": "p",
        "entry_point": "f",
        "split": "train",
        "source": "jsonl",
        "cases": [
            {"name": "c", "tier": "visible", "args": [1, [2.5, None]], "kwargs": {"b": {"x": True}},
             "expected_py": "(1,)"}
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ((), "()"),
        (set(), "set()"),
        ({10, 9}, "{10, 9}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
        ({1: "x"}, "{1: 'x'}"),
        (float("inf"), "inf"),
        ([float("nan")], "[nan]"),
        ("\ud800", "'\\ud800'"),
        (b"\x00", "b'\\x00'"),
    ],
)
def test_what_json_would_change_is_written_as_a_literal(value, literal):
    # {"b": .., "a": ..}: canonical JSON sorts keys, and a program can see a dict's order.
    record = task_to_record(Task("t", "p", Call("f", (Case("c", (), value),))))
    assert record["cases"] == [{"name": "c", "tier": "hidden", "args": [], "expected_py": literal}]


@pytest.mark.parametrize(("value", "kind"), [(frozenset(), "frozenset"), (1j, "complex"), (Color.RED, "Color")])
def test_a_value_without_a_literal_is_refused(value, kind):
    with pytest.raises(ValueError, match=f"a value of type {kind} cannot be in a task"):
        with_record(Task("t", "p", Call("f", (Case("c", (value,), 1),))))


def random_value(draw: random.Random, depth: int = 3) -> object:
    scalars = [
        lambda: draw.randint(-(10**30), 10**30),
        lambda: draw.choice([0.1, -0.0, 1e300, 5e-324, float("inf"), float("-inf"), draw.random()]),
        lambda: "".join(draw.choice("a'\"\\\n\x00é\u2028😀\ud800 {}") for _ in range(draw.randint(0, 6))),
        lambda: draw.choice([None, True, False, 0, 1, b"", b"\xff'"]),
    ]
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(scalars)()
    size = draw.randint(0, 3)
    kind = draw.choice(["list", "tuple", "set", "dict", "str-dict"])
    if kind == "dict":
        return {draw.choice([1, "k", (2, "x"), None, 2.5]): random_value(draw, depth - 1) for _ in range(size)}
    if kind == "str-dict":
        return {draw.choice("abcdef"): random_value(draw, depth - 1) for _ in range(size)}
    if kind == "set":
        return {draw.choice(["a", "b", 3, (1, 2), b"c", None]) for _ in range(size)}
    items = [random_value(draw, depth - 1) for _ in range(size)]
    return items if kind == "list" else tuple(items)


def exact(value: object) -> object:
    """A value with its types, signs of zero and order of keys spelled out."""
    if isinstance(value, dict):
        return ["dict", *((exact(key), exact(item)) for key, item in value.items())]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(exact, value)]
    if isinstance(value, set):
        return ["set", *sorted(repr(exact(item)) for item in value)]
    return type(value).__name__, repr(value)


def test_what_is_written_is_read_back_equal(tmp_path):
    draw = random.Random(7)
    tasks = []
    for number in range(300):
        cases = tuple(
            Case(
                name=f"n{index}",
                args=tuple(random_value(draw) for _ in range(draw.randint(0, 3))),
                expected=random_value(draw),
                kwargs={key: random_value(draw) for key in draw.sample("xyz", draw.randint(0, 2))},
                tier=draw.choice(["visible", "hidden"]),
            )
            for index in range(draw.randint(1, 3))
        )
        gold = draw.choice([None, "", "def f():\n\treturn '\u2028'\n"])
        split: Split = draw.choice(get_args(Split))
        tasks.append(
            Task(f"t{number}", "é\nline", Call("f", cases, draw.choice(["", "import x"])), gold=gold, split=split)
        )
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, tasks)
    back = read_tasks(path)
    assert back == tasks
    for before, after in zip(tasks, back, strict=True):
        for old, new in zip(call_of(before).cases, call_of(after).cases, strict=True):
            assert exact([old.args, old.kwargs, old.expected]) == exact([new.args, new.kwargs, new.expected])
        assert after.record == canonical(task_to_record(before))


def test_the_hash_is_of_the_content_not_of_the_text(tmp_path):
    plain = read_tasks(written(tmp_path, task_line()))[0]
    spelled = task_line(
        cases='{"expected_py": "2", "tier": "hidden", "name": "case-1", "args_py": "(1,)", "kwargs": {}}',
        extra=', "split": "train", "gold": null, "prefix": ""',
    )
    assert read_tasks(written(tmp_path, spelled))[0].content_hash == plain.content_hash
    other = read_tasks(written(tmp_path, task_line(cases='{"args": [1], "expected": 2.0}')))[0]
    assert other.content_hash != plain.content_hash
    # sha256sum of the canonical text, worked out with coreutils.
    assert plain.record == (
        '{"cases":[{"args":[1],"expected":2,"name":"case-1","tier":"hidden"}],"entry_point":"f",'
        '"kind":"call","prompt":"p","source":"jsonl","split":"train","task_id":"t"}'
    )
    coreutils = subprocess.run(["sha256sum"], input=plain.record.encode(), capture_output=True, check=True).stdout
    assert plain.content_hash == coreutils.split()[0].decode()


def test_the_record_of_a_set_does_not_depend_on_the_hash_seed():
    code = (
        "from transforms.sources.jsonl import with_record\n"
        "from transforms.sources.kinds.call import Call, Case\n"
        "from transforms.sources.task import Task\n"
        "print(with_record(Task('t', 'p', Call('f', (Case('c', ({'a', 'b', 'c', 'd', 'e'},), 1),)))).content_hash)"
    )
    hashes = set()
    for seed in "123":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        hashes.add(run.stdout)
    assert len(hashes) == 1


def test_the_docs_describe_every_field():
    docs = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    for name in {name for kind in KINDS.values() for name in (*TASK_FIELDS, *kind.FIELDS, *kind.CASE_FIELDS)}:
        assert f"| `{name}` |" in docs, f"docs/tasks.md has no row for `{name}`"


def test_the_example_of_the_docs_runs(tmp_path):
    docs = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    example = docs.split("```json\n")[1].split("\n```")[0]
    tasks = read_tasks(written(tmp_path, example))
    assert [json.loads(task.record)["kind"] for task in tasks] == ["call"] * len(tasks)
    for task in tasks:
        assert task.gold is not None
        namespace: dict = {}
        exec(task.gold, namespace)
        for case in call_of(task).cases:
            value = namespace[call_of(task).entry_point](*case.args, **case.kwargs)
            assert exact(value) == exact(case.expected)
