import json
from pathlib import Path
from typing import Any

import pytest

from transforms.sources.jsonl import read_tasks, write_tasks
from transforms.sources.kinds.files import Artifact, Files
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.kinds.sql import Sql
from transforms.sources.kinds.state import ServiceProbe, State, UserProbe
from transforms.sources.kinds.tolerance import Tolerance
from transforms.sources.kinds.trees import Item
from transforms.sources.record import TaskFileError
from transforms.sources.task import Task

HEAD = {"task_id": "t", "prompt": "p"}
SQL = {
    "kind": "sql",
    "setup": "CREATE TABLE t(a)",
    "probe": "SELECT a FROM t",
    "ordered": True,
    "columns": ["a", "b"],
    "tolerance": {"relative": 0.5},
    "cases": [
        {"name": "one", "tier": "visible", "milestone": "m", "setup": "x", "probe": "y", "expected": [[1, None]]},
        {"expected_py": "[(b'\\xff', inf)]"},
        {"expected": []},
    ],
}
FILES = {
    "kind": "files",
    "language": "bash",
    "cases": [
        {
            "files": {"./a//b": "text", "c": {"base64": "AP8=", "mode": "0755"}, "l": {"link": "a/b"}},
            "stdin": "in",
            "argv": ["x"],
            "exit_code": None,
            "expected": [
                {"path": "o.json", "json": {"z": [1.5, None], "a": True}},
                {"path": "o.csv", "csv": [["1", "b"]], "ordered": False},
                {"path": "o.txt", "text": "", "mode": "0600"},
                {"path": "o.bin", "bytes_base64": "AP8="},
                {"path": "null", "json": None},
                {"path": "gone", "absent": True},
            ],
        }
    ],
}
STATE = {
    "kind": "state",
    "files": {"/etc/motd": "hi", "etc/l": {"link": "/etc/motd"}},
    "cases": [
        {"probe": {"file": "/etc/motd", "text": "hi"}},
        {"probe": {"file": "etc/motd", "contains": "h"}},
        {"probe": {"file": "etc/motd", "matches": "^h.$"}},
        {"probe": {"file": "etc/x", "absent": True}},
        {"probe": {"permission": "etc", "mode": "0750"}},
        {
            "probe": {
                "user": "web",
                "uid": 0,
                "gid": 5,
                "home": "/",
                "shell": "/bin/sh",
                "groups": ["g"],
                "locked": False,
            }
        },
        {"probe": {"user": "old", "absent": True}},
        {"probe": {"service": "a", "enabled": False, "unit": {"Service.User": "www"}}},
        {"probe": {"port": 8080, "start": ["x"], "send": "s", "expect": "e"}},
    ],
}


def read(path: Path, *records: dict[str, Any]) -> list[Task]:
    path.write_text("".join(json.dumps(HEAD | {"task_id": str(n)} | record) + "\n" for n, record in enumerate(records)))
    return read_tasks(path)


def test_tasks_of_each_kind_are_read_and_written_back_equal(tmp_path: Path):
    tasks = read(tmp_path / "in", SQL, FILES, STATE)
    write_tasks(tmp_path / "out", tasks)
    again = read_tasks(tmp_path / "out")
    assert again == tasks
    assert [task.content_hash for task in again] == [task.content_hash for task in tasks]
    for task in tasks:
        for case in task.cases:
            assert "\n" not in KINDS[task.check.kind].describe(task.check, case)


def test_what_is_read_is_what_was_meant(tmp_path: Path):
    sql, files, state = (task.check for task in read(tmp_path / "in", SQL, FILES, STATE))
    assert isinstance(sql, Sql)
    assert sql.tolerance == Tolerance(relative=0.5)
    assert [case.expected for case in sql.cases] == [((1, None),), ((b"\xff", float("inf")),), ()]
    assert (sql.language, sql.integrity) == ("sql", "split")
    assert isinstance(files, Files)
    assert files.cases[0].files == {
        "a/b": Item(b"text"),
        "c": Item(b"\0\xff", 0o755),
        "l": Item(link="a/b"),
    }
    assert files.cases[0].expected[1] == Artifact("o.csv", "csv", (("1", "b"),), ordered=False)
    assert files.cases[0].exit_code is None
    assert (files.language, files.integrity) == ("bash", "separate")
    assert isinstance(state, State)
    assert state.files == {"etc/motd": Item(b"hi"), "etc/l": Item(link="/etc/motd")}
    assert state.cases[5].probe == UserProbe("web", 0, 5, "/", "/bin/sh", ("g",), False)
    assert state.cases[7].probe == ServiceProbe("a.service", False, {"Service.User": "www"})
    assert (state.language, state.integrity) == ("bash", "separate")


def case_of(kind: dict[str, Any], **case: Any) -> dict[str, Any]:
    return kind | {"cases": [case]}


def artifact(**fields: Any) -> dict[str, Any]:
    return case_of(FILES, expected=[{"path": "a"} | fields])


def probe(**fields: Any) -> dict[str, Any]:
    return case_of(STATE, probe=fields)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (SQL | {"setupp": ""}, "unknown key `setupp`"),
        (SQL | {"ordered": 1}, "`ordered` must be true or false"),
        (SQL | {"tolerance": 1}, "`tolerance`: must be an object"),
        (SQL | {"tolerance": {"relative": 0}}, "neither `absolute` nor `relative` is above 0"),
        (SQL | {"columns": ["a"]}, "case 'one': its rows have 2 columns"),
        (case_of(SQL), "the field `expected` is missing"),
        (case_of(SQL, expected=[1]), "`expected` must be a list of rows"),
        (case_of(SQL, expected=[[1, 2], [1]]), "not of one length"),
        (case_of(SQL, expected=[[]]), "not of one length"),
        (case_of(SQL, expected=[[True, 1]]), "`expected` holds True, which is no value of SQLite"),
        (case_of(SQL, expected=[[2**63, 1]]), "no value of SQLite"),
        (case_of(SQL, expected_py="[[nan, 1]]"), "`expected_py` holds nan"),
        (case_of(SQL, expected=[[[1], 1]]), "no value of SQLite"),
        (FILES | {"language": "perl"}, "`language` must be"),
        (case_of(FILES, expected=[]), "`expected` must be a list of at least one file"),
        (case_of(FILES), "the field `expected` is missing"),
        (artifact(), "`expected` 1: has none of `text`"),
        (artifact(text="", json=1), "has 2 of"),
        (artifact(path="../a", text=""), "without `..`"),
        (artifact(path="/", text=""), "is not the path of a file"),
        (artifact(path="a\0", text=""), "is not the path of a file"),
        (artifact(text="", mode="644"), "`mode` must be four octal digits"),
        (artifact(text="", ordered=True), "`ordered` goes with `csv` only"),
        (artifact(csv=[[1]]), "a cell that is no string"),
        (artifact(json="\ud800"), "lone surrogate"),
        (artifact(bytes_base64="x"), "`bytes_base64` must be base64"),
        (artifact(absent=False), "`absent` is true, and alone"),
        (artifact(absent=True, mode="0644"), "`absent` is true, and alone"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], files={"main.sh": ""}), "where the program lies"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], files={"a": "", "a/b": ""}), "cannot both be there"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], files={"a": "", "./a": ""}), "cannot both be there"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], files={"a": {}}), "has none of `text`"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], argv=["\0"]), "without NUL"),
        (case_of(FILES, expected=[{"path": "a", "text": ""}], exit_code=True), "`exit_code` must be"),
        (case_of(STATE), "the field `probe` is missing"),
        (probe(), "has none of `file`"),
        (probe(file="a", user="b"), "has 2 of"),
        (probe(file="a"), "has none of `text`"),
        (probe(file="a", absent=False), "`absent` must be true"),
        (probe(file="a", matches="("), "is no regular expression"),
        (probe(file="a", text="", mode="0600"), "unknown key `mode`"),
        (probe(permission="a"), "the field `mode` is missing"),
        (probe(user="a", uid="0"), "`uid` must be a whole number"),
        (probe(user="a", absent=True, uid=0), "`absent` stands with other fields"),
        (probe(service="a"), "asks nothing of the service"),
        (probe(service="a", unit={"User": "x"}), "by `Section.Key`"),
        (probe(port=80, start=["x"], expect="e"), "`port` must be a whole number from 1024"),
        (probe(port=8080, expect="e"), "the field `start` is missing"),
        (probe(port=8080, start=["x"]), "the field `expect` is missing"),
    ],
)
def test_a_fault_names_the_field(tmp_path: Path, record: dict[str, Any], problem: str):
    with pytest.raises(TaskFileError) as raised:
        read(tmp_path / "in", record)
    assert problem in str(raised.value)
    assert "hint: " in str(raised.value)
