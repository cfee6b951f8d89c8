import json
from pathlib import Path

import pytest

from transforms.sources.jsonl import read_tasks, task_to_record, write_tasks
from transforms.sources.kinds import stdio
from transforms.sources.kinds.stdio import Case, Stdio, Tolerance
from transforms.sources.record import TaskFileError
from transforms.sources.task import Task

CHECKER = "def check(stdin, stdout, expected):\n    return True\n"


def read(tmp_path: Path, *cases: object, **fields: object) -> Stdio:
    data = {"task_id": "t", "prompt": "p", "kind": "stdio", "cases": list(cases) or [{"expected": "1"}], **fields}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(data))
    (task,) = read_tasks(path)
    assert isinstance(task.check, Stdio)
    return task.check


def test_what_is_left_out_has_a_default(tmp_path: Path):
    assert read(tmp_path, {"expected": "1"}) == Stdio((Case("case-1", "", "1"),), "python", "trimmed", None, None)


def test_everything_is_read(tmp_path: Path):
    cases = [
        {"name": "a", "stdin": "1\n", "expected": "", "argv": ["-v", "ü"], "tier": "visible", "milestone": "m"},
        {"stdin_py": "b'\\xff'", "expected_py": "b'\\x00'"},
        {"stdin_py": "'text'", "expected": "é"},
    ]
    check = read(tmp_path, *cases, language="rust", compare="numbers", tolerance={"relative": 1e-6})
    assert check == Stdio(
        (
            Case("a", "1\n", "", ("-v", "ü"), "visible", "m"),
            Case("case-2", b"\xff", b"\0"),
            Case("case-3", "text", "é"),
        ),
        "rust",
        "numbers",
        Tolerance(0.0, 1e-6),
    )


def test_with_a_checker_one_case_must_name_what_is_expected(tmp_path: Path):
    check = read(tmp_path, {"stdin": "1"}, {"expected": "2"}, compare="checker", checker=CHECKER)
    assert (check.checker, [case.expected for case in check.cases]) == (CHECKER, ["", "2"])
    with pytest.raises(TaskFileError, match="no case names `expected`"):
        read(tmp_path, {"stdin": "1"}, compare="checker", checker=CHECKER)


def test_what_is_written_is_read_back_equal(tmp_path: Path):
    checks = [
        Stdio((Case("a", "1", "2", ("x",)), Case("b", b"\xff", b"", (), "integration", "m")), "go", "exact"),
        Stdio((Case("a", "", ""),), compare="numbers", tolerance=Tolerance(0.5, 0.25)),
        Stdio((Case("a", "", "1"),), compare="checker", checker=CHECKER),
    ]
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, [Task(f"t{number}", "p", check) for number, check in enumerate(checks)])
    tasks = read_tasks(path)
    assert [task.check for task in tasks] == checks
    assert [json.loads(task.record) for task in tasks] == [json.loads(json.dumps(task_to_record(t))) for t in tasks]


@pytest.mark.parametrize(
    ("case", "fields", "words"),
    [
        ({}, {}, "case 1: the field `expected` is missing"),
        ({"expected": 1}, {}, "case 1: `expected` must be text without lone surrogates, not 1"),
        ({"expected": "\ud800"}, {}, "`expected` must be text without lone surrogates"),
        ({"expected_py": "[1]"}, {}, "`expected_py` must be text without lone surrogates or bytes"),
        ({"expected": None}, {}, "`expected` must be text"),
        ({"expected": "1", "stdin": ["1"]}, {}, "`stdin` must be text"),
        ({"expected": "1", "argv": [1]}, {}, "`argv` must be a list of strings"),
        ({"expected": "1", "argv": ["a\0"]}, {}, "`argv` must be a list of strings without NUL"),
        ({"expected": "1", "input": ""}, {}, "case 1: unknown key `input`"),
        ({"expected": "1"}, {"language": "cobol"}, "`language` must be"),
        ({"expected": "1"}, {"compare": "fuzzy"}, '`compare` must be "trimmed" or'),
        ({"expected": "1"}, {"compare": "numbers"}, "the field `tolerance` is missing"),
        ({"expected": "1"}, {"compare": "numbers", "tolerance": {}}, "`tolerance` must be more than 0 somewhere"),
        ({"expected": "1"}, {"compare": "numbers", "tolerance": {"absolute": -1}}, "`absolute` must be a number of at"),
        ({"expected": "1"}, {"compare": "numbers", "tolerance": {"rel": 1}}, "unknown key `rel`"),
        ({"expected": "1"}, {"tolerance": {"absolute": 1}}, '`tolerance` has no effect with compare "trimmed"'),
        ({"expected": "1"}, {"checker": CHECKER}, '`checker` has no effect with compare "trimmed"'),
        ({"expected": "1"}, {"compare": "checker"}, "the field `checker` is missing"),
        ({"expected": "1"}, {"compare": "checker", "checker": "def check("}, "`checker` is not Python"),
        ({"expected": "1"}, {"compare": "checker", "checker": "x = 1"}, "`checker` defines no `check`"),
        ({"expected": "1"}, {"entry_point": "f"}, "unknown key `entry_point`"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, case: dict[str, object], fields: dict[str, object], words: str):
    with pytest.raises(TaskFileError) as caught:
        read(tmp_path, case, **fields)
    assert words in str(caught.value)
    assert "\n\nhint: " in str(caught.value)


def test_a_case_is_described():
    case = Case("a", "1 2\n", "3", ("-x",))
    assert stdio.describe(Stdio((case,)), case) == "stdin '1 2\\n' with arguments ['-x'] must print '3' (trimmed)"
    checked = Stdio((case,), compare="checker", checker=CHECKER)
    assert stdio.describe(checked, case).endswith("must print what the checker accepts")
