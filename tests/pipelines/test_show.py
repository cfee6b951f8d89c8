"""`headrace tasks show` leaves nothing out that an author wrote."""

import json
from pathlib import Path

import pytest

from pipelines.show import task_text
from transforms.sources.jsonl import read_tasks
from transforms.sources.task import Task

CALL = {
    "task_id": "c", "prompt": "p\nq", "entry_point": "fee", "gold": "def fee(a): return a",
    "prefix": "import re\nimport os\n", "stub": "def fee(a):\n",
    "tolerance": {"absolute": 0.25, "relative": 0.125}, "sequences": "any",
    "checker": "def check(args, kwargs, returned):\n    return True\n", "performance": [[31], [32]], "impossible": True,
    "cases": [
        {"args": [11, "ab"], "kwargs": {"kw": 12}, "expected": "eleven", "milestone": "first part", "tier": "visible"},
        {"args": [13], "tier": "integration", "tolerance": {"absolute": 0.5}},
    ],
}  # fmt: skip
STDIO = {
    "task_id": "s", "kind": "stdio", "language": "bash", "prompt": "p", "gold": "cat", "compare": "checker",
    "checker": "def check(stdin, stdout, expected):\n    return stdout == expected\n", "performance": ["in put\n"],
    "cases": [{"stdin": "7 8\n", "argv": ["-x", "y z"], "expected": "fifteen\n", "milestone": "m1"}],
}  # fmt: skip
NUMBERS = {
    "task_id": "n", "kind": "stdio", "prompt": "p", "compare": "numbers", "tolerance": {"absolute": 0.001},
    "cases": [{"stdin": "1\n", "expected": "2\n"}],
}  # fmt: skip
SQL = {
    "task_id": "q", "kind": "sql", "prompt": "p", "setup": "CREATE TABLE t(x);\nCREATE TABLE u(y);", "ordered": True,
    "probe": "SELECT x FROM t", "columns": ["x"], "tolerance": {"relative": 1e-6}, "gold": "DELETE FROM t",
    "cases": [{"setup": "INSERT INTO t VALUES (1)", "probe": "SELECT 2.5 AS x", "expected": [[2.5]], "milestone": "m"}],
}  # fmt: skip
FILES = {
    "task_id": "f", "kind": "files", "language": "bash", "prompt": "p", "gold": "true",
    "cases": [{
        "files": {"in/a.csv": "k,v\n1,2\n", "bin": {"base64": "AP8="}, "l": {"link": "in/a.csv"},
                  "run": {"text": "#!/bin/sh\n", "mode": "0755"}},
        "stdin": "say\n", "argv": ["one", "two"], "exit_code": 3, "milestone": "m3",
        "expected": [{"path": "t", "text": "line one\nline two\n", "mode": "0640"},
                     {"path": "b", "bytes_base64": "AAE="},
                     {"path": "j", "json": {"k": [1, None, True]}}, {"path": "g", "absent": True},
                     {"path": "c", "csv": [["h", "i"], ["5", "6"]], "ordered": False}],
    }],
}  # fmt: skip
STATE = {
    "task_id": "st", "kind": "state", "prompt": "p", "gold": "true", "files": {"etc/passwd": "root:x:0:0::/:/bin/sh\n"},
    "cases": [
        {"probe": {"user": "web", "uid": 7, "groups": ["adm", "www"], "locked": True}, "milestone": "m4"},
        {"probe": {"port": 8080, "start": ["srv", "--now"], "send": "hi", "expect": "yo"}},
        {"probe": {"service": "app", "unit": {"Service.User": "www"}}},
    ],
}  # fmt: skip
PYTEST = {
    "task_id": "r", "kind": "pytest", "prompt": "p", "files": {"src/m.py": "x = 1\ny = 3\n"}, "gold": "x = 2\n",
    "tests": {"t/test_m.py": "from m import x\n\n\ndef test_x():\n    assert x == 2\n"}, "artifacts": ["src/m.py"],
    "python_path": ["src"], "ini": "[pytest]\nxfail_strict = true\n", "time_limit_s": 9.5,
    "cases": [{"name": "t/test_m.py::test_x", "milestone": "m5"}],
    "twins": [{"cases": ["t/test_m.py::test_x"], "edits": [{"path": "t/test_m.py", "old": "== 2", "new": "== 4"}]}],
}  # fmt: skip
MATH = {
    "task_id": "m", "kind": "math", "prompt": "p", "answer": "4\\pi", "format": "hash", "percent": True,
    "tolerance": {"absolute": 0.005}, "gold": "12.57", "unsupported": "too hard",
}  # fmt: skip


def read(tmp_path: Path, task: dict) -> Task:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(task))
    (found,) = read_tasks(path)
    return found


def leaves(value: object) -> list[object]:
    """All that is written in a record, names of files and settings included; booleans show in their names."""
    if isinstance(value, dict):
        return [leaf for name, inner in value.items() for leaf in (*leaves(inner), *([name] if "/" in name else ()))]
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    "task", [CALL, STDIO, NUMBERS, SQL, FILES, STATE, PYTEST, MATH], ids=lambda task: task["task_id"]
)
def test_everything_that_was_written_is_shown(tmp_path, task):
    text = task_text(read(tmp_path, task))
    for name in task.keys() - {"task_id", "kind", "split", "prompt", "cases", "gold", "unsupported"}:
        assert f"\n{name.replace('_', ' ')}\n" in text
    for leaf in leaves(task):
        if isinstance(leaf, str):
            for line in leaf.splitlines():
                assert line.strip() in text, line
        elif not isinstance(leaf, bool) and leaf is not None:
            assert str(leaf) in text


def test_a_task_reads_well(tmp_path):
    text = task_text(read(tmp_path, SQL | {"columns": [], "tolerance": None}))
    assert text.partition("\n\n")[2] == (
        "prompt\n    p\n\nordered\n    true\n\nprobe\n    SELECT x FROM t\n\n"
        "setup\n    CREATE TABLE t(x);\n    CREATE TABLE u(y);\n\n"
        "hidden cases (1)\n    case-1: the probe must give [[2.5]] in this order\n"
        "        milestone: m\n        probe: SELECT 2.5 AS x\n        setup: INSERT INTO t VALUES (1)\n\n"
        "gold\n    DELETE FROM t\n"
    )
    shown = task_text(read(tmp_path, FILES)).partition("expected:\n")[2]
    assert shown.startswith(
        "            1:\n                mode: 0640\n                path: t\n"
        "                text:\n                    line one\n                    line two\n            2:\n"
    )


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    text = task_text(read(tmp_path, {**NUMBERS, "prompt": "a\x1b[31mred\u202eb", "gold": "x\ty\x07\r\n"}))
    assert "a\\x1b[31mred\\u202eb" in text
    assert "    x\ty\\x07\\r\n" in text
