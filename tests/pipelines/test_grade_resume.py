"""A grading that stops, for whatever reason, leaves whole rows, and the same command goes on after them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.grading import (
    HEADRACE,
    SLEEPY,
    TASKS,
    command,
    descendants,
    fill,
    grade,
    rows_of,
    timeless,
    wait_for,
    write_lines,
)
from tests.real_terminal import Terminal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of an uninterrupted grading of the twelve."""
    folder = fill(tmp_path_factory.mktemp("whole"))
    assert grade(folder).returncode == 0
    return (folder / "R.jsonl").read_text().splitlines(keepends=True)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_grading_closes_its_sandboxes_and_goes_on(folder: Path, whole: list[str], by: signal.Signals):
    results = folder / "R.jsonl"
    with subprocess.Popen(command("--workers", "2"), cwd=folder, stderr=subprocess.PIPE, text=True) as grading:
        wait_for(lambda: results.exists() and results.read_bytes().count(b"\n") == 2)  # the slow ones run
        wait_for(lambda: bool(descendants(grading.pid)))
        running = descendants(grading.pid)
        grading.send_signal(by)
        grading.send_signal(by)  # the impatient press twice
        _, said = grading.communicate(timeout=30)
    assert grading.returncode == 130
    there = rows_of(results)
    assert 2 <= len(there) < 12
    assert f"interrupted: R.jsonl holds {len(there)} of 12 rows; the same command goes on after them" in said
    assert "Traceback" not in said
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running), within_s=5)
    again = grade(folder)
    assert again.returncode == 0, again.stderr
    assert f"R.jsonl holds {len(there)} of 12 rows: going on after them" in again.stderr
    assert rows_of(results)[: len(there)] == there, "what was there is not graded again"
    assert [timeless(row) for row in rows_of(results)] == [timeless(json.loads(line)) for line in whole]
    finished = results.read_bytes()
    last = grade(folder)
    assert (last.returncode, results.read_bytes()) == (0, finished)
    assert "holds a row for each of the 12 programs: nothing to do" in last.stderr
    assert last.stdout.split("\n\n")[0] == again.stdout.split("\n\n")[0], "the summary is of all rows"


def test_a_closed_terminal_leaves_no_sandbox_and_whole_rows(folder: Path, whole: list[str]):
    files = ("--tasks", f"{folder}/T.jsonl", "--programs", f"{folder}/P.jsonl", "--out", f"{folder}/R.jsonl")
    env = {"TERM": "xterm", "PATH": os.environ["PATH"], "HEADRACE_HOME": str(folder)}
    with Terminal(HEADRACE, "grade", *files, "--workers", "2", env=env) as terminal:
        wait_for(lambda: (folder / "R.jsonl").exists() and len(rows_of(folder / "R.jsonl")) == 2)
        wait_for(lambda: bool(descendants(terminal.child.pid)))
        running = descendants(terminal.child.pid)
        os.close(terminal.near)
        try:
            assert terminal.end() == 130
        finally:
            terminal.near = os.open(os.devnull, os.O_RDONLY)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running), within_s=5)
    assert not (folder / "logs").exists(), "nobody is there to read, which is no defect to log"
    assert grade(folder).returncode == 0
    assert [timeless(row) for row in rows_of(folder / "R.jsonl")] == [timeless(json.loads(line)) for line in whole]


def test_a_torn_last_row_is_cut_off_and_graded_again(folder: Path, whole: list[str]):
    for keep in (1, 13, len(whole[10]) - 1):
        (folder / "R.jsonl").write_text("".join(whole[:10]) + whole[10][:keep])
        done = grade(folder)
        assert done.returncode == 0
        assert "R.jsonl holds 10 of 12 rows" in done.stderr
        lines = (folder / "R.jsonl").read_text().splitlines(keepends=True)
        assert lines[:10] == whole[:10]
        assert [timeless(json.loads(line)) for line in lines] == [timeless(json.loads(line)) for line in whole]


def test_rows_of_anything_else_are_refused_and_kept_until_force(folder: Path, whole: list[str]):
    part = "".join(whole[:6]).encode()
    programs = rows_of(folder / "P.jsonl")
    changed = [*programs[:4], {"task_id": "double", "program": "def double(x): return 2 * x\n"}, *programs[5:]]
    other_case = {**TASKS[0], "cases": [{"args": [0], "expected": 1}]}
    for tasks, given, options, where, said in (
        (TASKS, changed, [], 5, '(task "double") is of something else: its `program_sha256` is "'),
        (TASKS, programs[1:], [], 1, '(task "inc") is of something else: its `program_sha256` is "'),
        (TASKS, [{"id": "mine", **programs[0]}, *programs[1:]], [], 1, 'its `id` is absent, here it is "mine"'),
        ([other_case, *TASKS[1:]], programs, [], 1, '(task "inc") is of something else: the task has changed since: '
         "its `task_hash` is "),
        (TASKS, programs, ["--time-limit", "1"], 1, "its `limits.wall_time_s` is 5.0, here it is 1.0\n"),
        (TASKS, programs, ["--sandbox", "subprocess"], 1, 'its `sandbox` is "bubblewrap", here it is "subprocess"\n'),
    ):  # fmt: skip
        write_lines(folder / "T.jsonl", tasks)
        write_lines(folder / "P.jsonl", given)
        (folder / "R.jsonl").write_bytes(part)
        done = grade(folder, *options)
        assert done.returncode == 2, (said, done.stderr)
        assert f"error: R.jsonl:{where} (task " in done.stderr
        assert said in done.stderr
        assert "--force to start over" in done.stderr
        assert (folder / "R.jsonl").read_bytes() == part
    write_lines(folder / "P.jsonl", programs[:4])
    few = grade(folder)
    assert (few.returncode, (folder / "R.jsonl").read_bytes()) == (2, part)
    assert "error: R.jsonl:5 is one too many: there are only 4 programs" in few.stderr
    (folder / "R.jsonl").write_bytes(part.replace(b'"outcome"', b'"outcome', 1))
    assert "error: R.jsonl:1 is broken: " in grade(folder).stderr
    assert grade(folder, "--force").returncode == 0
    assert [row["line"] for row in rows_of(folder / "R.jsonl")] == [1, 2, 3, 4]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is full after 8 KiB, and can be made larger."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_whole_rows_and_room_lets_it_go_on(folder: Path, small_disk: Path):
    results = small_disk / "R.jsonl"
    done = grade(folder, "--out", str(results))
    assert done.returncode == 1
    assert f"error: {results} cannot be written: No space left on device" in done.stderr
    assert "make room, and the same command goes on after them" in done.stderr
    there = rows_of(results)
    assert 0 < len(there) < 12
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    assert grade(folder, "--out", str(results)).returncode == 0
    assert [row["line"] for row in rows_of(results)] == list(range(1, 13))
    assert rows_of(results)[: len(there)] == there


def test_two_gradings_do_not_write_one_file(folder: Path):
    write_lines(folder / "P.jsonl", [{"task_id": "inc", "program": SLEEPY}] * 9)
    with subprocess.Popen(command(), cwd=folder, stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: (folder / "R.jsonl").exists() and (folder / "R.jsonl").stat().st_size > 0)
        second = grade(folder)
        first.send_signal(signal.SIGINT)
    assert second.returncode == 2
    assert "error: R.jsonl is being written by another `headrace grade`" in second.stderr


def test_many_programs_take_no_more_memory_than_few(folder: Path):
    def peak_kib(rows: int) -> int:
        # Behind a slow program the rest would pile up if nothing held it back.
        slow = {"task_id": "inc", "program": SLEEPY}
        write_lines(folder / "P.jsonl", [slow, *[{"task_id": "inc", "completion": "no " * 300}] * (rows - 1)])
        # By way of a small process: what is forked off this one would begin with this one's peak.
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        measured = subprocess.run([sys.executable, "-c", code, *command("--force")], cwd=folder, check=True,
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert (folder / "R.jsonl").read_bytes().count(b"\n") == rows
        return int(measured.stdout)

    few, many = peak_kib(1_000), peak_kib(20_000)
    # 19,000 rows more are 17 MB of programs and 15 MB of results.
    assert many - few < 5 * 1024
