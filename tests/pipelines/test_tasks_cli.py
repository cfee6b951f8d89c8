import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.pipelines.command import ADD, COMMAND
from tests.sandboxes.real_images import missing, real_image

ROOT = Path(__file__).resolve().parents[2]
WRONG = {**ADD, "task_id": "wrong", "gold": "def add(a, b):\n    return a - b\n"}
BARE = {name: value for name, value in ADD.items() if name != "gold"} | {"task_id": "bare"}
TESTED = {
    "task_id": "tested",
    "kind": "pytest",
    "prompt": "Set x to 2.",
    "files": {"m.py": "x = 1\n"},
    "tests": {"t/test_m.py": "from m import x\n\n\ndef test_x():\n    assert x == 2\n"},
    "cases": [{"name": "t/test_m.py::test_x"}],
    "artifacts": ["m.py"],
    "gold": "x = 2\n",
}
"""It needs pytest, which image `host` never has: every site-packages is empty there."""


def write(path: Path, *tasks: dict) -> None:
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))


def summed(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of stderr; on a slow machine progress stands before it."""
    return done.stderr.splitlines()[-1]


def test_tasks_can_be_imported_and_shown(headrace, tmp_path):
    done = headrace("tasks", "import", "humaneval", "--out", "he.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    assert len((tmp_path / "he.jsonl").read_text().splitlines()) == 164
    again = headrace("tasks", "import", "humaneval", "--out", "he.jsonl")
    assert (again.returncode, again.stderr) == (
        2,
        "error: he.jsonl exists\n\nhint: choose another name, or remove it first\n",
    )
    write(tmp_path / "t.jsonl", ADD)
    shown = headrace("tasks", "show", "t.jsonl", "add").stdout
    assert shown.startswith("task add (call, train, from jsonl, ")
    assert shown.partition("\n\n")[2] == (
        "prompt\n    Write add(a, b).\n\nentry point\n    add\n\n"
        "visible cases (1)\n    small: add(1, 2) must return 3\n\n"
        "hidden cases (1)\n    negative: add(-1, -2) must return -3\n\n"
        "gold\n    def add(a, b):\n        return a + b\n"
    )
    wrong = headrace("tasks", "show", "t.jsonl", "ad")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "error: t.jsonl holds no task `ad` among its 1\n\nhint: did you mean `add`?\n",
    )


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["import", "show", "check"])
def test_help_teaches_by_an_example_and_cuts_nothing(headrace, command, columns):
    done = headrace("tasks", command, "--help", columns=columns)
    assert done.returncode == 0
    assert any(line.startswith(f"     headrace tasks {command} ") for line in done.stdout.splitlines()), done.stdout
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert [line for line in done.stdout.splitlines() if len(line.strip(" │")) == 1] == []  # a word of one letter


def test_a_gold_that_fails_its_own_task_is_reported(headrace, tmp_path):
    write(tmp_path / "t.jsonl", ADD, WRONG, BARE)
    done = headrace("tasks", "check", "t.jsonl")
    assert done.returncode == 2
    assert done.stdout == "wrong: small failed_tests: wrong value; add(1, 2) must return 3\n"
    assert summed(done) == "1 of 2 gold solutions pass; not tried: 1 without a gold"


def test_without_a_gold_nothing_is_claimed(headrace, tmp_path):
    write(tmp_path / "t.jsonl", BARE, {**WRONG, "unsupported": "draws its inputs"})
    done = headrace("tasks", "check", "t.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "nothing to check: no task that can be graded has a gold; not tried: 1 cannot be graded, 1 without a gold\n"
    )


NO_PYTEST = (
    "tested: could not be tried: image host has no pytest for Python 3; use an image that has it, such as `base` "
    "(`headrace sandbox build base`)"
)


def test_a_task_that_cannot_be_tried_here_is_named_and_keeps_no_other_from_it(headrace, tmp_path):
    write(tmp_path / "t.jsonl", TESTED, ADD)
    done = headrace("tasks", "check", "t.jsonl")
    assert (done.returncode, summed(done)) == (1, "1 of 2 gold solutions pass, 1 could not be tried")
    assert done.stdout == f"{NO_PYTEST} [\"No module named 'pytest'\"]\n"
    write(tmp_path / "t.jsonl", TESTED, WRONG)
    done = headrace("tasks", "check", "t.jsonl", "--workers", "1")
    assert (done.returncode, summed(done)) == (2, "0 of 2 gold solutions pass, 1 could not be tried")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["tested", "wrong"]


def test_the_way_out_is_one_that_the_back_end_has(headrace, tmp_path):
    write(tmp_path / "t.jsonl", TESTED)
    done = headrace("tasks", "check", "t.jsonl", "--sandbox", "subprocess")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{NO_PYTEST} on another back-end (`subprocess` has no images) [")


def test_containers_have_base_where_no_image_is_named(headrace, tmp_path):
    docker = pytest.importorskip("docker")
    try:
        docker.from_env().ping()
    except docker.errors.DockerException as error:
        missing("docker", str(error))
    real_image("base")
    write(tmp_path / "t.jsonl", ADD)
    done = headrace("tasks", "check", "t.jsonl", "--sandbox", "docker")
    assert (done.returncode, done.stdout, summed(done)) == (0, "", "1 of 1 gold solutions pass")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--sandbox", "docker", "--image", "host"],
            "error: --sandbox: backend docker has no image `host`: use `base`",
        ),
        (["--sandbox", "subprocess", "--image", "base"], "error: --sandbox: backend subprocess has no image `base`"),
        (["--image", "nosuch"], "error: no image is named nosuch; shipped are base, toolchains"),
    ],
)
def test_options_that_do_not_go_together_are_status_2(headrace, tmp_path, options, says):
    write(tmp_path / "t.jsonl", ADD)
    done = headrace("tasks", "check", "t.jsonl", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)


CHECKED = {"kind": "stdio", "prompt": "p", "compare": "checker", "gold": "print(1)", "cases": [{"expected": "1"}]}
QUERY = {"kind": "sql", "prompt": "p", "gold": "SELECT 1", "cases": [{"expected": [[1]]}]}
STATE = {"kind": "state", "prompt": "p", "gold": "true"}
PORT = {"probe": {"port": 8080, "start": ["no-such-program"], "expect": "x"}}
BY_CHECK = {"entry_point": "f", "prompt": "p", "gold": "def f(x): return x", "cases": [{"args": [1], "expected": 1}]}
FAULTS = [
    ({**QUERY, "setup": "CREATE TABL t(x)"}, "case 'case-1': `setup` fails: near \"TABL\": syntax error"),
    (
        {**QUERY, "cases": [{"setup": "INSERT INTO u VALUES (1)", "expected": [[1]]}]},
        "case 'case-1': `setup` fails: no such table: u",
    ),
    (
        {**CHECKED, "checker": "def check(stdin, stdout, expected):\n    return 1 / 0\n"},
        "the checker gave no verdict on case 'case-1': ZeroDivisionError: division by zero",
    ),
    (
        {**BY_CHECK, "checker": "import nope\ndef check(args, kwargs, returned):\n    return True\n"},
        "the checker gave no verdict on case 'case-1': ModuleNotFoundError: No module named 'nope'",
    ),
    (
        {"kind": "math", "prompt": "p", "answer": "1/2x", "gold": "\\frac{x}{2}"},
        "two verifiers disagree about the answer: answer ",
    ),
    ({**STATE, "cases": [PORT]}, "case-1 failed_tests: nobody listens on port 8080: no-such-program: "),
    (
        {**STATE, "files": {"etc/passwd": "a:b\n"}, "cases": [{"probe": {"user": "\0:\n", "uid": 1}}]},
        "case-1 failed_tests: there is no user  : ; must hold",
    ),
    (
        {**TESTED, "cases": [{"name": "t/test_m.py::test_y"}]},
        "`tests` holds none of the tests that `cases` names, or is no Python",
    ),
    (
        {**TESTED, "tests": {"t/test_m.py": "def test_x(:\n"}},
        "`tests` holds none of the tests that `cases` names, or is no Python",
    ),
    (
        {**TESTED, "files": {}, "gold": "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"},
        "t/test_m.py::test_x failed_tests: the patch does not apply: m.py is not in the repository",
    ),
]


def test_what_is_wrong_with_a_task_is_a_line_that_names_it_and_never_a_traceback(headrace, tmp_path):
    write(tmp_path / "t.jsonl", *({**task, "task_id": f"t{number}"} for number, (task, _) in enumerate(FAULTS)), ADD)
    done = headrace("tasks", "check", "t.jsonl")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert len(lines) == len(FAULTS)
    for number, (line, (_, says)) in enumerate(zip(lines, FAULTS, strict=True)):
        assert line.startswith(f"t{number}: {says}")
    assert summed(done) == f"1 of {len(FAULTS) + 1} gold solutions pass"
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]  # no log


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"x" * 300 + "/b": "1"},
            "is too long a path\n\nhint: a path has at most 1024 bytes, and each name in it 255\n",
        ),
        ({"/".join("d" * 3000): "1"}, "is too long a path\n\nhint: a path has at most 1024 bytes"),
        ({"l": {"link": "z" * 5000}}, "`link` is too long: "),
    ],
)
def test_a_path_that_no_system_takes_is_told_when_it_is_read(headrace, tmp_path, files, says):
    cases = [{"files": files, "expected": [{"path": "a", "text": "x"}]}]
    write(tmp_path / "t.jsonl", {"task_id": "t", "kind": "files", "prompt": "p", "gold": "pass", "cases": cases})
    done = headrace("tasks", "check", "t.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: t.jsonl:1: case 1: `files`")
    assert says in done.stderr


def test_ctrl_c_says_what_was_found_and_leaves_nothing_running(tmp_path):
    slow = {**ADD, "gold": "import time\ndef add(a, b):\n    time.sleep(3)\n    return a + b\n"}
    write(tmp_path / "t.jsonl", WRONG, *({**slow, "task_id": f"slow-{number}"} for number in range(8)))
    child = subprocess.Popen(
        [*COMMAND, "tasks", "check", "t.jsonl", "--workers", "2"], cwd=tmp_path, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stderr
    # The slow ones take 18 s each, so this is told before the first of them is done.
    assert "1/9 tasks, 1 at fault\n" in iter(child.stderr.readline, "")
    os.killpg(child.pid, signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)
    assert (child.returncode, stderr) == (130, "interrupted\n")
    assert stdout.startswith("wrong: small failed_tests: ")
    left = [path for path in Path("/proc").glob("[0-9]*/stat") if session(path) == child.pid]
    assert left == []


def session(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return None
