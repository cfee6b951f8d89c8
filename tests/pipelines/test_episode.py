"""`headrace show`: an episode with everything that the tables say of it."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli import app
from pipelines.episode import read_episode
from pipelines.explain import UsageError
from tests.builders import START, a_test, trajectory_row
from tests.lake.view_rows import task_rows
from tests.pipelines.command import COMMAND
from tests.real_terminal import Terminal
from transforms.lake.table import Lake

ESCAPE = "\x1b[31mred\u202e\x9b"
PROGRAM = 'import re\n\n\ndef add(a, b):\n    return a - b  # "why"\n'
TESTS = [
    a_test("small", "visible"),
    {
        **a_test("negative", "hidden", "failed_tests"), "message": f"wrong value {ESCAPE}", "got": "1",
        "expected_type": "int", "location": "line 5", "milestone": "signs", "duration_s": 0.0625,
    },
]  # fmt: skip


def attempt(sample: int, number: int, **overrides: Any) -> dict[str, Any]:
    """A try of the group `r/2/train/add`, in cycle 2, chunk 7."""
    return trajectory_row(**{
        "trajectory_id": f"r/2/train/add/{sample}/a{number}", "episode_id": f"r/2/train/add/{sample}",
        "group_id": "r/2/train/add", "run_id": "r", "cycle": 2, "chunk": 7, "sample": sample, "attempt": number,
        "policy_version": 1, "image": "base", "host": "worker-7", **overrides,
    })  # fmt: skip


def failed(sample: int, reward: float, **overrides: Any) -> dict[str, Any]:
    return attempt(sample, 1, outcome="failed_tests", reward=reward, **overrides)


ROWS = [
    attempt(
        0, 1, final=False, outcome="sandbox_lost", outcome_class="infra", reward=None, reward_components=[], tests=[],
        failure="the worker is gone", evidence=f"cgroup gone\n{ESCAPE}",
    ),
    attempt(0, 2),
    failed(
        1, 0.25, program=PROGRAM, tests=TESTS, signals=["reads_tests"],
        reward_components=[{"name": "all_passed", "value": 0.0}, {"name": "test_share", "value": 0.5}],
        messages=[
            {"role": "system", "content": "Only code."}, {"role": "user", "content": f"Write add. {ESCAPE}"},
            {"role": "assistant", "content": f"```python\n{PROGRAM}```"},
        ],
    ),
    failed(2, 0.125, quarantine_reasons=["times are in order", "tests are named"]),
    failed(3, 0.5),
    attempt(0, 1, purpose="eval_greedy", group_id="r/2/eval", trajectory_id="r/2/eval/add/0/a1"),
    failed(0, 0.0, group_id="r/2/train/sum", trajectory_id="r/2/train/sum/0/a1", task_id="sum", task_hash="0" * 64),
    failed(1, 0.0, group_id="r/2/train/sum", trajectory_id="r/2/train/sum/1/a1", task_id="sum", task_hash="0" * 64),
]  # fmt: skip


def policy(version: int, consumed: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "run_id": "r", "policy_version": version, "parent_version": version - 1, "checkpoint": f"policies/r/{version}",
        "weights_hash": f"{version}" * 64, "batch_hash": None, "trajectories_version": 5, "spec_hash": "s" * 64,
        "optimizer_steps": [], "consumed": consumed, "created_at": START,
    }  # fmt: skip


def check(expectation: str, success: bool, **overrides: Any) -> dict[str, Any]:
    return {
        "run_id": "r", "cycle": 2, "chunk": 7, "suite": "trajectories", "expectation": expectation, "column": None,
        "level": "row", "success": success, "observed": 1.0, "limit": 0.0, "rows": 5, "detail": None,
        "checked_at": START, "suite_version": 1, "severity": None, **overrides,
    }  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Samples 0 and 1 of the group trained policy 2, in steps 3 and 4; sample 2 is in quarantine."""
    lake = Lake(tmp_path_factory.mktemp("home"))
    lake.ensure_tables()
    lake.append("trajectories", ROWS, app_id="r", version=1)
    add = next(row for row in task_rows() if row["task_id"] == "add")
    lake.append("tasks", [{**add, "task_hash": ROWS[0]["task_hash"], "source": "mine.jsonl"}], app_id="r", version=1)
    used = [
        {"trajectory_id": "r/2/train/add/0/a2", "optimizer_step": 3, "advantage": 1.25, "tokens": 11},
        {"trajectory_id": "r/2/train/add/1/a1", "optimizer_step": 4, "advantage": -0.75, "tokens": 13},
    ]
    lake.append("policies", [policy(1, []), policy(2, used)], app_id="r", version=1)
    checks = [
        check("times are in order", False, column="started_at", detail="r/2/train/add/2/a1"),
        check("reward is finite", True),
        check("infra_rate", True, chunk=None, level="batch"),
        check("of another chunk", False, chunk=8),
        check("of another cycle", False, cycle=3, chunk=None),
    ]
    lake.append("checks", checks, app_id="r", version=1)
    run: dict[str, object] = {
        "run_id": "r", "name": "night", "spec_hash": "c" * 64, "spec": "name: night", "tasks_hash": "t" * 64,
        "code_version": "0.1.0", "versions": "{}", "host": "vm", "started_at": START,
    }  # fmt: skip
    lake.append("runs", [run], app_id="r", version=1)
    return lake.work


@pytest.fixture
def show(home: Path) -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(app, ["show", *arguments, "--home", str(home)])


def section(text: str, title: str) -> list[list[str]]:
    """The lines of a section, each as its cells, which are two blanks or more apart."""
    found = re.search(rf"^{title} ─+\n((?:  .*\n|\n)*?)(?:\n\S|\Z)", text, re.MULTILINE)
    assert found, f"no {title} in {text}"
    return [re.split(r"\s{2,}", line.strip()) for line in found[1].splitlines() if line.strip()]


def test_an_episode_is_told_from_question_to_checkpoint(show):
    done = show("r/2/train/add/1/a1")
    assert (done.exit_code, done.stderr) == (0, "")
    text = done.stdout
    assert text.splitlines()[:2] == [
        "r/2/train/add/1/a1",
        "failed_tests  reward 0.25  task add  train  cycle 2  sample 1  attempt 1",
    ]
    assert section(text, "messages")[:5] == [
        ["system"], ["Only code."], ["user"], ["Write add. \\x1b[31mred\\u202e\\x9b"], ["assistant"],
    ]  # fmt: skip
    # By hand: (-0.5 - 1.25 - 0.0625 - 2) / 4 = -0.953125
    assert section(text, "turns")[1] == ["1", "5", "4", "4", "-0.9531", "stop"]
    assert section(text, "program") == [
        ["1 import re"], ["2"], ["3"], ["4 def add(a, b):"], ["5", 'return a - b', '# "why"'],
    ]  # fmt: skip
    assert section(text, "steps")[1:3] == [
        ["1", "rollout", "0", "0.5", "1 message -> stop after 4 tokens"],
        ["```python"],  # what was done is said where it is neither the answer nor the program shown above
    ]
    assert section(text, "tests") == [
        ["test", "tier", "milestone", "outcome", "s", "what was wrong"],
        ["small", "visible", "passed", "0.01"],
        ["negative", "hidden", "signs", "failed_tests", "0.0625", "wrong value \\x1b[31mred\\u202e\\x9b"],
        ["got 1"], ["expected a int"], ["at line 5"],
    ]  # fmt: skip
    assert section(text, "reward")[1:] == [
        ["reward", "0.25"], ["all_passed", "0"], ["test_share", "0.5"], ["signal", "reads_tests"],
    ]  # fmt: skip
    assert section(text, "training")[1:] == [["4", "-0.75", "13", "2", "policies/r/2", "222222222222"]]
    assert section(text, "attempts and samples of the group")[1:] == [
        ["0", "1", "sandbox_lost", "4", "does not count; the worker is gone"],
        ["0", "2", "passed", "1", "1.25", "4"],
        [">", "1", "1", "failed_tests", "0.25", "-0.75", "4"],
        ["2", "1", "failed_tests", "0.125", "4", "in quarantine"],
        ["3", "1", "failed_tests", "0.5", "4"],
    ]
    assert section(text, "checks") == [
        ["2 of the 3 checks of its chunk and its cycle held"],
        ["level", "expectation", "column", "observed", "limit", "rows", "detail"],
        ["row", "times are in order", "started_at", "1", "0", "5", "r/2/train/add/2/a1"],
    ]
    lineage = {cells[0]: cells[1] for cells in section(text, "lineage")}
    assert lineage["run"] == "r, spec night cccccccccccc"
    assert lineage["place"] == "cycle 2, chunk 7, group r/2/train/add"
    assert lineage["task"] == "add, call, from mine.jsonl, train"
    assert lineage["task hash"] == ROWS[0]["task_hash"]
    assert lineage["policy"] == "version 1, policies/r/1, 111111111111"
    assert lineage["sandbox"].startswith("bubblewrap, on worker-7, image base ")
    assert lineage["sandbox used"] == "wall 0.25 s, CPU 0.125 s, memory 11.77 MiB"
    assert lineage["time"] == "2026-01-02 03:04:05.678 UTC to 2026-01-02 03:04:06.428 UTC, 0.750 s"


@pytest.mark.parametrize(
    ("trajectory", "why"),
    [
        ("r/2/train/add/0/a1", "a later attempt of the episode counts"),
        ("r/2/train/add/2/a1", "it is in quarantine"),
        ("r/2/train/add/3/a1", "no committed optimizer step used it"),
        ("r/2/train/sum/1/a1", "all rewards of its group are the same"),
        ("r/2/eval/add/0/a1", "it was asked to evaluate the policy"),
    ],
)
def test_what_was_not_trained_on_says_why(show, trajectory, why):
    assert section(show(trajectory).stdout, "training") == [[f"not trained on: {why}"]]


def test_a_failure_of_ours_and_quarantine_are_told_with_their_evidence(show):
    assert show("r/2/train/add/0/a1").stdout.splitlines()[1:5] == [
        "sandbox_lost (infra)  reward none  task add  train  cycle 2  sample 0  attempt 1, which does not count",
        "failure: the worker is gone",
        "evidence: cgroup gone",
        "\\x1b[31mred\\u202e\\x9b",
    ]
    quarantined = section(show("r/2/train/add/2/a1").stdout, "checks")
    assert quarantined[0] == ["in quarantine: times are in order; tests are named"]


def test_what_it_refers_to_may_be_gone(tmp_path):
    lake = Lake(tmp_path)
    lake.append(
        "trajectories", [trajectory_row(turns=None, tests=None, steps=None, program=None)], app_id="r", version=1
    )
    done = CliRunner().invoke(app, ["show", "run-1/1/", "--home", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert not re.search("^(turns|tests|steps|program|checks) ", done.stdout, re.MULTILINE)


def test_json_holds_all_of_it(show):
    done = show("r/2/train/add/1/a1", "--json")
    told = json.loads(done.stdout)
    assert done.stdout.isascii()
    row = next(row for row in ROWS if row["trajectory_id"] == "r/2/train/add/1/a1")
    assert told["trajectory"] == json.loads(json.dumps(row, default=lambda value: value.isoformat()))
    assert [(one["optimizer_step"], one["advantage"], one["checkpoint"]) for one in told["trained"]] == [
        (4, -0.75, "policies/r/2")
    ]
    assert [(one["trajectory_id"], one["reward"], one["advantage"]) for one in told["group"]] == [
        ("r/2/train/add/0/a1", None, None), ("r/2/train/add/0/a2", 1.0, 1.25), ("r/2/train/add/1/a1", 0.25, -0.75),
        ("r/2/train/add/2/a1", 0.125, None), ("r/2/train/add/3/a1", 0.5, None),
    ]  # fmt: skip
    assert told["run"]["spec"] == "name: night"
    assert told["task"]["source"] == "mine.jsonl"
    assert told["policy"]["weights_hash"] == "1" * 64
    assert [one["expectation"] for one in told["checks"]] == ["times are in order", "reward is finite", "infra_rate"]


def test_a_beginning_is_enough_if_no_other_has_it(home):
    assert read_episode(home, "r/2/eval")["trajectory"]["trajectory_id"] == "r/2/eval/add/0/a1"
    assert read_episode(home, "r/2/train/add/1")["trajectory"]["trajectory_id"] == "r/2/train/add/1/a1"
    for beginning, message in {
        "r/2/e": "`r/2/e` is too short: give at least 6 characters of the trajectory's id",
        "r/2/train/add/0": (
            "several trajectories begin with `r/2/train/add/0`:\n  r/2/train/add/0/a1\n  r/2/train/add/0/a2\n\n"
            "hint: give more of the id"
        ),
        "r/2/train'; --": (
            "no trajectory has an id that begins with `r/2/train'; --`\n\n"
            'hint: headrace sql "SELECT trajectory_id, outcome FROM trajectories ORDER BY 1"'
        ),
    }.items():
        with pytest.raises(UsageError) as caught:
            read_episode(home, beginning)
        assert str(caught.value) == message


def test_an_id_that_others_begin_with_is_itself(tmp_path):
    lake = Lake(tmp_path)
    rows = [
        trajectory_row(trajectory_id=f"run-1/{name}") for name in ("1", "10", "11", *(f"x{n:02}" for n in range(30)))
    ]
    lake.append("trajectories", rows, app_id="r", version=1)
    assert read_episode(tmp_path, "run-1/1")["trajectory"]["trajectory_id"] == "run-1/1"
    with pytest.raises(UsageError) as caught:
        read_episode(tmp_path, "run-1/x")
    assert str(caught.value).splitlines()[20:] == ["  run-1/x19", "  ...", "", "hint: give more of the id"]


@pytest.mark.parametrize("columns", [80, 160])
def test_it_fits_the_terminal_and_keeps_control_characters_from_it(home, columns):
    env = {**os.environ, "PAGER": "cat", "TERM": "xterm-256color"}
    command = (*COMMAND, "show", "r/2/train/add/1/a1", "--home", str(home))
    with Terminal(*command, columns=columns, env=env) as terminal:
        shown = terminal.everything()
        assert terminal.end() == 0
    assert re.search(r"\x1b\[[0-9;]*mdef", shown)  # the program has colours
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n").split("\n")
    assert max(map(len, lines)) <= columns
    assert all(line.isprintable() for line in lines)
