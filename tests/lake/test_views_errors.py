"""Error messages without what differs from one program to the next."""

import pytest

from tests.builders import a_test, trajectory_row
from tests.lake.view_rows import PLACE, Expected, Rows, asked, grouped, same, write_lake
from transforms.lake.sql import query
from transforms.lake.table import Lake


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, dict[str, Rows]]:
    lake = Lake(tmp_path_factory.mktemp("errors"))
    return lake, write_lake(lake, seed=14)


def test_error_clusters(world: tuple[Lake, dict[str, Rows]]):
    lake, tables = world
    normal = {
        "NameError: name 'foo' is not defined": "NameError: name <name> is not defined",
        "NameError: name 'bar' is not defined": "NameError: name <name> is not defined",
        "got 3": "got <n>",
        "got -4.5e3": "got <n>",
        "a.c:3:1: error: \u2018x\u2019 undeclared": "a.c:<n>:<n>: error: <name> undeclared",
    }
    said: Rows = []
    for row in tables["trajectories"]:
        tests = [
            (case["outcome"], "test", case["message"]) for case in row["tests"] or [] if case["outcome"] != "passed"
        ]
        others = [(row["outcome"], "compiler", row["compiler_message"]), (row["outcome"], "failure", row["failure"])]
        for outcome, origin, text in [*tests, *others]:
            if text:
                message = normal.get(text, "worker <n> is gone: <path>")
                said.append({**row, "outcome": outcome, "origin": origin, "message": message})
    keys = (*PLACE, "origin", "outcome", "message")
    expected: Expected = {
        key: {
            "messages": len(group), "trajectories": len({row["trajectory_id"] for row in group}),
            "tasks": len({row["task_id"] for row in group}), "example": min(row["trajectory_id"] for row in group),
        }
        for key, group in grouped(said, *keys).items()
    }  # fmt: skip
    assert {key[3] for key in expected} == {"test", "compiler", "failure"}
    same(asked(lake.home, "error_clusters", keys), expected)


MESSAGES = {
    "can't multiply sequence by non-int of type 'float'": "can't multiply sequence by non-int of type <name>",
    "can't multiply sequence by non-int of type 'str'": "can't multiply sequence by non-int of type <name>",
    "[Errno 2] No such file or directory: '/work/a b.txt'": "[Errno <n>] No such file or directory: <name>",
    'File "/work/x.py", line 12,\n  in f': "File <name>, line <n>, in f",
    "<obj at 0x7f3a9c> in /tmp/zz-1/y.py:3": "<obj at <n>> in <path>:<n>",
    "[1, 2,3, -4.5] <> []": "[<n>] <> []",
    "missing `semi_colon` near \u2018}\u2019\r\n": "missing <name> near <name> ",
    "x" * 300: "x" * 200,
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.items())
def test_a_message_without_its_numbers_names_and_paths(lake: Lake, text: str, message: str):
    failed = {**a_test("a", outcome="runtime_error"), "message": text}
    lake.append("trajectories", [trajectory_row(tests=[failed])], app_id="r", version=0)
    assert query(lake.home, "SELECT message FROM error_clusters").to_pylist() == [{"message": message}]
