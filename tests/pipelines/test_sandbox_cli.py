"""`headrace sandbox ...` as its users meet it: the installed command, real sandboxes, a real terminal."""

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.host.owner import identity
from sandboxes.images.build import build_image
from sandboxes.protocol import SandboxRequest
from tests.real_terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]
HEADRACE = str(Path(sys.executable).with_name("headrace"))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root builds images")

TASK = {
    "task_id": 'it\'s\n"add"',
    "prompt": "Write add(a, b).",
    "entry_point": "add",
    "gold": "def add(a, b):\n    return a + b\n",
    "cases": [
        {"name": "small", "args": [1, 2], "expected": 3, "tier": "visible"},
        {"name": "negative", "args": [-1, -2], "expected": -3},
    ],
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Records, images and temporary files of this test alone; no Docker engine."""
    tmp_path.chmod(0o755)
    for folder in ("run", "cache", "tmp"):
        (tmp_path / folder).mkdir()
    own = {
        "XDG_RUNTIME_DIR": f"{tmp_path}/run",
        "HEADRACE_CACHE": f"{tmp_path}/cache",
        "TMPDIR": f"{tmp_path}/tmp",
        "DOCKER_HOST": f"unix://{tmp_path}/no.sock",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return {**own, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "COLUMNS": "100", "TERM": "xterm"}


@pytest.fixture
def headrace(env: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HEADRACE, "sandbox", *arguments], cwd=tmp_path, env=env, input=typed, stdin=None if typed else -3,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run


def a_dead_identity() -> str:
    namespace, _, _ = identity().split("-")
    child = subprocess.Popen(["true"])
    child.wait()
    return f"{namespace}-{child.pid}-1"


@pytest.mark.parametrize("command", ["list", "clean", "bench", "shell", "build", "images"])
def test_every_command_teaches_by_an_example(headrace: Run, command: str):
    done = headrace(command, "--help")
    assert done.returncode == 0
    assert f"headrace sandbox {command}" in done.stdout.partition("Examples:")[2]


def test_an_open_sandbox_is_listed_and_an_ended_one_is_not(headrace: Run):
    async def look() -> tuple[str, str, str]:
        async with await Bubblewrap().create(SandboxRequest(owner="run-7")) as sandbox:
            listed = await asyncio.to_thread(headrace, "list")
            as_json = await asyncio.to_thread(headrace, "list", "--json")
            return sandbox.id, listed.stdout, as_json.stdout

    name, listed, as_json = asyncio.run(look())
    heading, line = listed.splitlines()
    assert heading.split() == ["id", "back-end", "image", "owner", "age", "process", "state"]
    assert line.split() == [name, "bubblewrap", "host", "run-7", line.split()[4], "s", str(os.getpid()), "live"]
    (row,) = json.loads(as_json)
    assert 0 <= row.pop("age_s") < 60
    assert row == {
        "id": name, "backend": "bubblewrap", "image": "host", "owner": "run-7", "pid": os.getpid(), "state": "live",
    }  # fmt: skip
    done = headrace("list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no sandbox is open\n")


KILLED = """
import asyncio, os, signal
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.protocol import SandboxRequest

async def main():
    await asyncio.gather(*(Bubblewrap().create(SandboxRequest(owner="a-run-with-quite-a-long-name")) for _ in range(2)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("columns", [80, 120])
def test_what_a_killed_process_left_is_shown_on_a_terminal_and_cleaned(
    headrace: Run, env: dict[str, str], columns: int
):
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False).returncode == -9
    del env["COLUMNS"]
    with Terminal(HEADRACE, "sandbox", "list", columns=columns, env=env) as screen:
        shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.everything())  # without colours
    assert shown.count("left behind") == 3
    assert "2 left behind by dead processes: `headrace sandbox clean` removes them" in shown
    assert max(map(len, shown.splitlines())) <= columns
    tried = headrace("clean", "--dry-run").stdout
    assert tried.count("would remove record ") == 2
    assert len(json.loads(headrace("list", "--json").stdout)) == 2
    assert headrace("clean").stdout.count("removed record ") == 2
    done = headrace("clean")
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(headrace("list", "--json").stdout) == []


def test_clean_takes_what_dead_owners_left_and_nothing_else(headrace: Run, tmp_path: Path):
    dead, images, snapshots = a_dead_identity(), tmp_path / "cache" / "images", tmp_path / "cache" / "snapshots"
    confined = tmp_path / "tmp" / f"headrace-confined-{os.geteuid()}"
    old = time.time() - 25 * 3600
    gone = {
        "half-built image": images / ".building",
        "unused snapshot": snapshots / ("a" * 64),
        "half-unpacked snapshot": snapshots / f"{'b' * 64}.{dead.split('-')[1]}.5",
        "folder": confined / f"{dead}-0",
    }
    kept = [
        images / "0123456789abcdef",
        snapshots / ("c" * 64),
        snapshots / f"{'d' * 64}.{os.getpid()}.5",
        confined / f"{identity()}-0",
        confined / "python-3.11",
    ]
    for folder in (*gone.values(), *kept):
        (folder / "work").mkdir(parents=True)
    (images / ".lock").touch()
    os.utime(gone["unused snapshot"], (old, old))
    hierarchy = find_hierarchy()
    groups = [base / f"{dead}-0" for base in hierarchy.bases.values()] if hierarchy else []
    for group in groups:
        group.mkdir()
    done = headrace("clean", "--dry-run")
    assert all(f"would remove {kind} {path}\n" in done.stdout for kind, path in gone.items())
    assert all(path.exists() for path in (*gone.values(), *kept))
    with open(images / ".lock") as lock:  # as a build that goes on holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ".building" not in headrace("clean", "--dry-run").stdout
    done = headrace("clean")
    assert done.returncode == 0
    assert all(f"removed {kind} {path}\n" in done.stdout for kind, path in gone.items())
    assert not [path for path in (*gone.values(), *groups) if path.exists()]
    assert [path for path in kept if not path.exists()] == []


def test_bench_times_cold_and_pooled_sandboxes(headrace: Run):
    done = headrace("bench", "--backend", "bubblewrap", "--n", "5", "--at-once", "2", "--json")
    assert done.returncode == 0, done.stderr
    first, cold, pooled = json.loads(done.stdout)
    assert [(row["how"], row["n"], row["at_once"]) for row in (first, cold, pooled)] == [
        ("first", 1, 1), ("cold", 5, 2), ("pooled", 5, 2),
    ]  # fmt: skip
    for row in (first, cold, pooled):
        assert 0 < row["start_p50_ms"] <= row["start_p99_ms"]
        assert 0 < row["end_p50_ms"] <= row["end_p99_ms"]
    assert (cold["ready"], pooled["ready"]) == (None, 1.0)
    assert first["start_p50_ms"] > pooled["start_p50_ms"]  # it starts an interpreter
    table = headrace("bench", "--backend", "bubblewrap", "--n", "1").stdout.splitlines()
    assert table[0].split() == "back-end how n at once start p50 p99 end p50 p99 ready".split()
    assert [line.split()[:3] for line in table[1:]] == [
        ["bubblewrap", how, "1"] for how in ("first", "cold", "pooled")
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["bench", "shell"])
def test_without_an_engine_it_says_how_to_get_one(headrace: Run, command: str):
    done = headrace(command, "--backend", "docker")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no Docker engine answers: install docker.io and start dockerd")
    assert "hint: " in done.stderr


def test_an_image_that_is_not_there_says_how_to_build_it(headrace: Run):
    done = headrace("shell", "--image", "base")
    assert (done.returncode, done.stdout) == (2, "")
    assert "build it with: headrace sandbox build base" in done.stderr
    done = headrace("bench", "--backend", "bubblewrap", "--image", "bse")
    assert done.returncode == 2
    assert "no image is named bse; shipped are base, toolchains" in done.stderr


@needs_root
def test_build_and_images(headrace: Run, tmp_path: Path):
    done = headrace("build", "bse")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("\n\nhint: did you mean `base`?\n")
    (tmp_path / "bad.yaml").write_text("name: Bad Name\n")
    done = headrace("build", "bad.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.yaml" in done.stderr
    (tmp_path / "mine.yaml").write_text("name: mine\nbase: scratch\nfiles: {/etc/motd: hello}\n")
    done = headrace("build", "mine.yaml")
    assert done.returncode == 0, done.stderr
    assert "mine: built in" in done.stderr
    folder = next((tmp_path / "cache" / "images").glob("[!.]*/manifest.json")).parent
    assert done.stdout == (
        f"mine {folder.name}: 0 packages; no languages\nin {folder}\n"
        "to use it: `image: mine` under `sandbox` in a spec, or headrace sandbox shell --image mine\n"
    )
    assert "mine: is built" in headrace("build", "mine.yaml").stderr
    done = headrace("images", "--verify")
    assert (done.returncode, done.stderr.splitlines()) == (0, [
        "base: not built; headrace sandbox build base", "toolchains: not built; headrace sandbox build toolchains",
        "1 of 1 hold what was built",
    ])  # fmt: skip
    assert done.stdout.splitlines()[1].split()[:2] == ["mine", folder.name]
    assert json.loads(headrace("images", "--json").stdout)[0]["digest"].startswith(folder.name)
    (folder / "rootfs" / "etc" / "motd").write_text("HELLO")
    done = headrace("images", "--verify")
    assert done.returncode == 1
    assert "/etc/motd" in done.stderr
    assert "headrace sandbox build mine" in done.stderr


def test_a_shell_in_a_pipe_passes_on_what_it_is_given_and_its_status(headrace: Run):
    done = headrace("shell", typed="echo $((6 * 7)); pwd; echo oops >&2; exit 7\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "42\n/work\n", "oops\n")
    assert headrace("shell", "-c", "kill -9 $$").returncode == 137


def test_a_task_is_laid_out_with_its_hidden_cases(headrace: Run, tmp_path: Path):
    (tmp_path / "t.jsonl").write_text(json.dumps(TASK) + "\n")
    task = ("shell", "--task", "t.jsonl")
    assert headrace(*task, "-c", "ls; cat prompt.md").stdout == "cases.py\ngold.py\nprompt.md\nWrite add(a, b).\n"
    done = headrace(*task, "-c", "python3 cases.py gold.py")
    assert (done.returncode, done.stdout) == (0, "visible small: passed\nhidden negative: passed\n")
    wrong = "printf 'def add(a, b):\\n    return abs(a) + abs(b)\\n' > mine.py; python3 cases.py mine.py"
    done = headrace(*task, "-c", wrong)
    assert (done.returncode, done.stdout) == (1, "visible small: passed\nhidden negative: FAILED: 3, not -3\n")


def test_a_task_that_is_not_there_is_the_users_mistake(headrace: Run, tmp_path: Path):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({**TASK, "task_id": name}) + "\n" for name in ("add", "sub")))
    for arguments, said in {
        ("--id", "add"): "error: --id names a task of a file\n\nhint: give the file with --task\n",
        ("--task", "t.jsonl"): "error: t.jsonl holds 2 tasks\n\nhint: name one with --id, such as add, sub\n",
        (
            "--task",
            "t.jsonl",
            "--id",
            "ad",
        ): "error: t.jsonl holds no task `ad` among its 2\n\nhint: did you mean `add`?\n",
    }.items():
        done = headrace("shell", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_shell_on_a_terminal_says_what_is_there(env: dict[str, str], tmp_path: Path):
    (tmp_path / "t.jsonl").write_text(json.dumps(TASK) + "\n")
    with Terminal(HEADRACE, "sandbox", "shell", "--task", str(tmp_path / "t.jsonl"), env=env) as screen:
        banner = screen.expect(r"sandbox:/work\$ ")
        assert "bubblewrap sandbox of image host, gone when this shell ends" in banner
        assert "prompt.md, cases.py, gold.py" in banner
        assert "hidden cases" in banner
        screen.type("cd /tmp; echo $TERM\r")
        screen.expect(r"xterm\r\n.*sandbox:/tmp\$ ")
        screen.type("exit 5\r")
        assert screen.end() == 5
        assert screen.is_as_before()


def test_images_are_those_of_this_cache(env: dict[str, str], headrace: Run):
    if os.geteuid() == 0:
        path = Path(env["HEADRACE_CACHE"]) / "other.yaml"
        path.write_text("name: other\nbase: scratch\n")
        build_image(str(path), say=lambda line: None)
    done = headrace("images")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == (["other"] if os.geteuid() == 0 else [])
    assert done.stderr.count("not built") == 2
