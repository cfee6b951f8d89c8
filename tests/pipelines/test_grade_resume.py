"""A grading that stops, for whatever reason, leaves whole rows, and the same command goes on after them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipelines.grading import RIGHT, TASKS, command, grade, rows_of, timeless, write_lines

SLEEPY = "import time\ndef inc(x):\n    time.sleep(0.4)\n    return x + 1\n"


def fill(folder: Path) -> Path:
    """Twelve programs of three tasks, one of them wrong, three of them slow."""
    write_lines(folder / "T.jsonl", TASKS)
    names = [name for name in RIGHT for _ in range(4)]
    programs = [{"task_id": name, "program": RIGHT[name] + f"# {number}\n"} for number, name in enumerate(names)]
    for slow in (2, 3):
        programs[slow]["program"] = SLEEPY + f"# {slow}\n"
    programs[7]["program"] = "def double(x):\n    return x\n"
    write_lines(folder / "P.jsonl", programs)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of an uninterrupted grading of the twelve."""
    folder = fill(tmp_path_factory.mktemp("whole"))
    assert grade(folder).returncode == 0
    return (folder / "R.jsonl").read_text().splitlines(keepends=True)


def wait_for(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for text in lists for child in text.split()]
    return [each for child in children for each in (child, *descendants(child))]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
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
    for tasks, given, options, where, name in (
        (TASKS, changed, [], 5, "program_sha256"),
        (TASKS, programs[1:], [], 1, "program_sha256"),
        (TASKS, [{"id": "mine", **programs[0]}, *programs[1:]], [], 1, "id"),
        ([other_case, *TASKS[1:]], programs, [], 1, "task_hash"),
        (TASKS, programs, ["--time-limit", "1"], 1, "limits"),
        (TASKS, programs, ["--sandbox", "subprocess"], 1, "sandbox"),
    ):
        write_lines(folder / "T.jsonl", tasks)
        write_lines(folder / "P.jsonl", given)
        (folder / "R.jsonl").write_bytes(part)
        done = grade(folder, *options)
        assert done.returncode == 2, (name, done.stderr)
        assert f"error: R.jsonl:{where} is of something else: its `{name}` is " in done.stderr
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


def test_a_machine_that_fails_stops_the_grading_early_and_its_rows_do_not_stay(folder: Path):
    programs = [{"task_id": name, "program": RIGHT[name]} for name in RIGHT for _ in range(20)]
    first = [{"task_id": "inc", "program": None}]
    write_lines(folder / "P.jsonl", [*first, *programs])
    nowhere = {"DOCKER_HOST": f"unix://{folder}/no.sock"}
    options = ["--sandbox", "docker", "--image", "any:1", "--attempts", "1"]
    done = grade(folder, *options, env=nowhere)
    assert done.returncode == 1
    assert "programs in a row could not be judged, the last of them for provision_failed" in done.stderr
    assert [row["outcome"] for row in rows_of(folder / "R.jsonl")] == ["no_submission"]


def test_a_program_that_we_failed_to_judge_has_no_reward_and_shows_in_the_exit_status(folder: Path):
    write_lines(folder / "P.jsonl", [{"task_id": "inc", "program": RIGHT["inc"]}, {"task_id": "inc", "program": None}])
    done = grade(folder, "--sandbox", "docker", "--image", "any:1", "--attempts", "2",
                 env={"DOCKER_HOST": f"unix://{folder}/no.sock"})  # fmt: skip
    assert done.returncode == 1
    failed, none = rows_of(folder / "R.jsonl")
    assert (failed["outcome"], failed["outcome_class"], failed["reward"]) == ("provision_failed", "infra", None)
    assert (failed["attempts"], failed["wall_s"], failed["tests"]) == (2, None, [])
    assert "No such file or directory" in failed["evidence"]
    assert none["reward"] == 0.0
    assert "1 programs could not be judged" in done.stderr
    assert "of 1 rows with a verdict" in done.stdout
    assert "of 2 rows, those that we failed to judge as not passed" in done.stdout
