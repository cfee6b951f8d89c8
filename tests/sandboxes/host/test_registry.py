import asyncio
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.host import registry
from sandboxes.host.owner import alive, identity, pid_of
from sandboxes.pool import Pool
from sandboxes.protocol import Command, SandboxRequest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "headrace" / "live"


def test_a_sandbox_has_a_record_while_it_lives(runtime: Path):
    async def look() -> tuple[list[registry.Record], str, list[Path]]:
        began = time.time()
        async with await Bubblewrap().create(SandboxRequest(owner="run-7")) as sandbox:
            seen = registry.live()
            assert began - 1 <= seen[0].created <= time.time()
            return seen, sandbox.id, list(runtime.iterdir())

    (record,), name, (path,) = asyncio.run(look())
    assert (record.id, record.backend, record.image, record.owner) == (name, "bubblewrap", "host", "run-7")
    assert pid_of(record.process) == os.getpid()
    assert not record.left_behind
    assert path.name.startswith(record.process)
    assert registry.live() == []
    assert list(runtime.iterdir()) == []


def test_a_record_is_for_its_user_alone(runtime: Path):
    path = registry.enter("a/b", backend="x", image="host", owner="o" * 9000)
    assert path is not None
    assert path.parent == runtime
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, runtime, runtime.parent)] == [0o600, 0o700, 0o700]
    assert len(registry.live()[0].owner) == 500
    registry.leave(path)
    registry.leave(path)
    registry.leave(None)
    assert registry.live() == []


def test_one_handed_over_by_a_pool_is_its_new_owners():
    async def look() -> list[str]:
        pool, owners = Pool(Bubblewrap(), most=1), []
        await pool.fill(SandboxRequest(), 1)
        owners += [record.owner for record in registry.live()]
        async with await pool.create(SandboxRequest(owner="run-8")) as sandbox:
            owners += [record.owner for record in registry.live() if record.id == sandbox.id]
        await pool.close()
        return owners

    assert asyncio.run(look()) == ["pool", "run-8"]
    assert registry.live() == []


KILLED = """
import asyncio, os, signal
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.protocol import SandboxRequest

async def main():
    await Bubblewrap().create(SandboxRequest(owner="killed"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_what_a_killed_process_left_is_seen_and_swept_by_the_next(runtime: Path):
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False).returncode == -9
    (record,) = registry.live()
    assert (record.owner, record.left_behind) == ("killed", True)
    mine = registry.enter("mine", backend="x", image="host", owner="")
    (runtime / f"{record.process}.cut.json").write_text("{")  # killed while it wrote
    assert len(registry.sweep(dry_run=True)) == 2
    assert len(list(runtime.iterdir())) == 3
    assert len(registry.sweep()) == 2
    assert [each.id for each in registry.live()] == ["mine"]
    # Another process's first sandbox sweeps too.
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False).returncode == -9
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False).returncode == -9
    assert len([each for each in registry.live() if each.left_behind]) == 1
    registry.leave(mine)


@pytest.mark.parametrize("trouble", ["file", "link", "someone else's", "nowhere"])
def test_a_folder_that_cannot_be_used_costs_the_record_and_not_the_sandbox(
    trouble: str, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if trouble == "file":
        runtime.parent.write_text("in the way")
    elif trouble == "link":
        runtime.parent.symlink_to(elsewhere)
        (elsewhere / "live").mkdir()
    elif trouble == "someone else's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        runtime.mkdir(parents=True)
        os.chown(runtime.parent, 12345, 12345)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/no/such/place")

    async def run() -> bytes:
        async with await Bubblewrap().create(SandboxRequest()) as sandbox:
            assert registry.live() == []
            return (await sandbox.exec(Command(("echo", "works")))).stdout

    assert asyncio.run(run()) == b"works\n"
    assert list(elsewhere.rglob("*.json")) == []
    assert registry.sweep() == []


def test_without_a_runtime_folder_it_is_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert registry.folder() == tmp_path / f"headrace-{os.geteuid()}" / "live"


def test_a_record_costs_next_to_nothing():
    times = []
    for _ in range(200):
        began = time.perf_counter()
        registry.leave(registry.enter("a", backend="x", image="host", owner="run"))
        times.append(time.perf_counter() - began)
    assert sorted(times)[100] < 0.0003


def test_a_process_is_known_by_more_than_its_pid():
    child = subprocess.Popen([sys.executable, "-c", f"{'import sys; sys.path.insert(0, sys.argv[1])'}\n"
        "from sandboxes.host.owner import identity; print(identity(), flush=True); input()", str(ROOT)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert pid_of(name) == child.pid
    assert alive(name)
    assert alive(f"{name}-17")  # as in the name of a control group
    namespace, pid, start = name.split("-")
    assert not alive(f"{namespace}-{pid}-{int(start) + 1}")  # the pid was used again
    assert alive(f"{int(namespace) + 1}-{pid}-{int(start) + 1}")  # nobody here can tell
    child.communicate("\n")
    assert not alive(name)
    assert alive(identity())
    assert alive("")
    assert pid_of("something") is None


def test_a_fork_is_another_process():
    mine = identity()
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, identity().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100).decode().split("-")[1] == str(pid) != mine.split("-")[1]
