"""Rows that we failed to judge: why is said once, a machine that can run nothing makes none, and a retry mends them."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from pipelines.grade_progress import Tally, unjudged_of
from tests.pipelines.grading import (
    RIGHT,
    SLEEPY,
    breakable,
    command,
    descendants,
    fill,
    grade,
    rows_of,
    timeless,
    wait_for,
    write_lines,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a grading of the twelve without an outage."""
    folder = fill(tmp_path_factory.mktemp("whole"))
    assert grade(folder).returncode == 0
    return (folder / "R.jsonl").read_text().splitlines(keepends=True)


def judged(lines: list[str]) -> list[dict[str, object]]:
    return [timeless(json.loads(line)) for line in lines]


def lost(line: str) -> str:
    """A row as an outage would have left it."""
    nothing = {"reward": None, "components": {}, "tests": [], "wall_s": None, "cpu_s": None, "peak_memory_bytes": None}
    why = {"outcome": "provision_failed", "outcome_class": "infra", "failure": "no Docker engine", "evidence": "none"}
    return json.dumps({**json.loads(line), **nothing, **why}) + "\n"


def break_down(folder: Path, env: dict[str, str], *options: str, after_rows: int) -> subprocess.CompletedProcess[str]:
    """Grade, and have every sandbox die after so many rows, and none made after."""
    argv = command("--workers", "1", "--attempts", "1", *options)
    with subprocess.Popen(
        argv, cwd=folder, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as grading:
        results = folder / "R.jsonl"
        wait_for(lambda: results.exists() and results.read_bytes().count(b"\n") >= after_rows)
        wait_for(lambda: bool(descendants(grading.pid)))
        (folder / "down").touch()
        for pid in descendants(grading.pid):
            with contextlib.suppress(ProcessLookupError):  # it died with one before it
                os.kill(pid, signal.SIGKILL)
        said, complaints = grading.communicate(timeout=60)
    return subprocess.CompletedProcess(argv, grading.returncode, said, complaints)


def test_what_an_outage_left_is_graded_again_on_demand(folder: Path, whole: list[str]):
    results, env = folder / "R.jsonl", breakable(folder)
    done = break_down(folder, env, after_rows=2)
    assert done.returncode == 1
    rows = rows_of(results)
    assert [row["outcome"] for row in rows[:2]] == ["passed"] * 2
    assert [row["outcome_class"] for row in rows[2:]] == ["infra"] * 10
    failed = rows[-1]
    assert (failed["outcome"], failed["reward"], failed["attempts"]) == ("provision_failed", None, 1)
    assert (failed["wall_s"], failed["tests"]) == (None, [])
    assert "no room left" in failed["evidence"]
    assert "of 2 rows with a verdict" in done.stdout
    assert "of 12 rows, those that we failed to judge as not passed" in done.stdout
    # How bubblewrap's end is noticed is a matter of time, so the ten may have some reasons of one outcome.
    told = r"\n10 programs could not be judged, through no fault of theirs:\n  \d+ provision_failed: .*no room left"
    assert re.search(told, done.stderr), done.stderr
    assert "hint: `headrace doctor` tries the sandbox on this machine; the same command with --retry" in done.stderr

    before = results.read_bytes()
    for options, said in (
        ((), "holds a row for each of the 12 programs: nothing to do, but --retry, for 10 without a verdict"),
        (("--retry",), "hint: `headrace doctor` tries the sandbox"),
    ):
        done = grade(folder, *options, env=env)
        assert (done.returncode, results.read_bytes()) == (1, before)
        assert said in done.stderr
    assert done.stderr.count("no room left") == 1, "one error, not one a program"

    (folder / "down").unlink()
    done = grade(folder, "--retry", env=env)
    assert done.returncode == 0, done.stderr
    assert "R.jsonl holds 10 rows without a verdict: grading those programs again" in done.stderr
    lines = results.read_text().splitlines(keepends=True)
    assert judged(lines) == judged(whole)
    assert lines[:2] == before.decode().splitlines(keepends=True)[:2]
    assert "for 10 programs" in done.stdout
    done = grade(folder, "--retry")
    assert (done.returncode, results.read_text()) == (0, "".join(lines))
    assert "for each of the 12 programs: nothing to do\n" in done.stderr


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_retry_that_is_stopped_loses_nothing(folder: Path, whole: list[str], by: signal.Signals):
    old = [lost(line) if number in (1, 4, 12) else line for number, line in enumerate(whole, 1)]
    results, beside = folder / "data" / "rows.jsonl", folder / "data" / "rows.jsonl.retry"
    results.parent.mkdir()
    results.write_text("".join(old))
    results.chmod(0o640)
    (folder / "R.jsonl").symlink_to(results)
    with subprocess.Popen(command("--retry"), cwd=folder, stderr=subprocess.PIPE, text=True) as grading:
        wait_for(lambda: beside.exists() and beside.read_bytes().count(b"\n") == 3)  # the fourth is slow
        grading.send_signal(by)
        _, said = grading.communicate(timeout=30)
    if by == signal.SIGKILL:
        assert results.read_text() == "".join(old)
        done = grade(folder)
        assert done.returncode == 1
        assert "nothing to do, but --retry, for 2 without a verdict" in done.stderr
    else:
        assert grading.returncode == 130
        assert "interrupted: 2 of 12 programs are still to be graded; the same command goes on" in said
    lines = results.read_text().splitlines(keepends=True)
    assert judged(lines[:1]) == judged(whole[:1])
    assert lines[1:] == old[1:]
    assert not beside.exists()
    done = grade(folder, "--retry")
    assert done.returncode == 0, done.stderr
    assert "R.jsonl holds 2 rows without a verdict" in done.stderr
    lines = results.read_text().splitlines(keepends=True)
    assert judged(lines) == judged(whole)
    assert [line for line, was in zip(lines, old, strict=True) if line == was] == whole[1:3] + whole[4:11]
    assert ((folder / "R.jsonl").is_symlink(), results.stat().st_mode & 0o777, beside.exists()) == (True, 0o640, False)


def test_a_retry_also_grades_what_has_no_row_yet(folder: Path, whole: list[str]):
    (folder / "R.jsonl").write_text(lost(whole[0]) + whole[1])
    assert grade(folder, "--retry").returncode == 0
    lines = (folder / "R.jsonl").read_text().splitlines(keepends=True)
    assert (judged(lines), lines[1]) == (judged(whole), whole[1])


def test_what_a_retry_of_other_rows_left_is_put_away(folder: Path, whole: list[str]):
    results, beside = folder / "R.jsonl", folder / "R.jsonl.retry"
    for there, left in ((whole, whole[1:4]), ([], whole[:2]), (whole, ['{"task_'])):
        results.write_text("".join(there))
        beside.write_text("".join(left))
        assert grade(folder).returncode == 0
        assert (judged(results.read_text().splitlines()), beside.exists()) == (judged(whole), False)
        assert not there or results.read_text() == "".join(whole)
    beside.write_text("my notes\n")
    done = grade(folder)
    assert (done.returncode, beside.read_text()) == (2, "my notes\n")
    assert "R.jsonl.retry:1 is no row that `headrace grade` wrote" in done.stderr


def test_an_outage_stops_the_grading_early_and_its_rows_do_not_stay(folder: Path):
    programs = [{"task_id": name, "program": RIGHT[name]} for name in RIGHT for _ in range(20)]
    first = [{"task_id": "inc", "program": None}, {"task_id": "inc", "program": SLEEPY}]
    write_lines(folder / "P.jsonl", [*first, *programs])
    done = break_down(folder, breakable(folder), after_rows=1)
    assert done.returncode == 1
    assert "programs in a row could not be judged, the last of them for provision_failed" in done.stderr
    assert [row["outcome"] for row in rows_of(folder / "R.jsonl")] == ["no_submission"]


@pytest.mark.parametrize("there", [0, 5])
def test_a_machine_that_can_run_nothing_is_said_once_and_changes_nothing(folder: Path, whole: list[str], there: int):
    results = folder / "R.jsonl"
    results.write_text("".join(whole[:there]))
    env = breakable(folder)
    (folder / "down").touch()
    nowhere = {"DOCKER_HOST": f"unix://{folder}/no.sock"}
    for options, environment, status, said in (
        ([], env, 1, "no room left"),
        (["--force"], env, 1, "no room left"),
        (["--force", "--sandbox", "docker"], nowhere, 1, "error: no Docker engine answers: install docker.io and "),
    ):
        done = grade(folder, *options, env=environment)
        assert (done.returncode, done.stderr.count("error: ")) == (status, 1), done.stderr
        assert said in done.stderr
        assert "hint: `headrace doctor` tries the sandbox on this machine" in done.stderr
        assert results.read_text() == "".join(whole[:there])


def test_retry_and_force_contradict_each_other(folder: Path):
    done = grade(folder, "--retry", "--force")
    assert (done.returncode, (folder / "R.jsonl").exists()) == (2, False)
    assert "error: --retry keeps the rows that --force forgets\n\nhint: " in done.stderr


def test_reasons_that_differ_in_numbers_only_are_one():
    tally = Tally()

    def add(outcome: str, failure: str) -> None:
        kind = "grader" if outcome == "grader_error" else "infra"
        row = {"outcome": outcome, "outcome_class": kind, "failure": failure, "reward": None, "task_id": "t"}
        tally.add(row)

    for number in range(7):
        add("provision_failed", f"engine gone [pid {number}, container 3f{number}a77]")
    for _ in range(2):
        add("host_out_of_memory", "killed " + 300 * "x")
    add("grader_error", "unexpected ValueError: b\n c")
    add("sandbox_lost", "gone")
    for number in range(200):
        add("deadline_exceeded", "z" * (number + 1))
    assert unjudged_of(tally) == "\n".join(
        [
            "211 programs could not be judged, through no fault of theirs:",
            # 4 reasons before them leave room for 96 of the 200: the other 104 are one.
            "  104 deadline_exceeded: other reasons",
            "  7 provision_failed: engine gone [pid 0, container 3f0a77]",
            "  2 host_out_of_memory: killed " + 230 * "x" + "...",
            "  98 for other reasons",
            "",
            "hint: `headrace doctor` tries the sandbox on this machine; fewer --workers, or less --memory-mib, leave "
            "the machine room; the same command with --retry grades them again and leaves the other rows as they are",
        ]
    )
    assert len(tally.reasons) == 4 + 96 + 1
