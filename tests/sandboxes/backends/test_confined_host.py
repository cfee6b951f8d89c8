"""What the host keeps of sandboxes of plain processes, what it clears away, and what it refuses to try."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.backends import confined, confined_host
from sandboxes.backends.confined import Confined, weaknesses
from sandboxes.backends.confined_host import make_folder, sweep, take_users
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.host.owner import identity
from sandboxes.limits import Network
from sandboxes.protocol import ProvisionFailed, SandboxRequest
from tests.sandboxes.plain import ROOT, ask, gone, inside, needs_landlock, needs_root, processes

pytestmark = needs_landlock


@needs_root
def test_each_sandbox_has_users_of_its_own():
    async def go() -> list[object]:
        found = []
        async with await Confined().create(SandboxRequest()) as one, await Confined().create(SandboxRequest()) as two:
            for sandbox in (one, two):
                ids = await ask(sandbox, "import os; answer = (*os.getresuid(), *os.getresgid(), *os.getgroups())")
                owners = [os.stat(path).st_uid for path in (sandbox.job, sandbox.work)]
                found += [ids, *owners, os.stat(os.path.dirname(sandbox.work)).st_mode & 0o777]
        return found

    first, keeper, program, mode, second, other_keeper, other_program, _ = asyncio.run(go())
    assert (first, second) == ((program,) * 6, (other_program,) * 6)
    assert len({0, keeper, program, other_keeper, other_program}) == 5
    assert mode == 0o750


@needs_root
def test_users_are_nobody_elses_until_they_are_let_go():
    mine = take_users()
    assert mine is not None
    take = "from sandboxes.backends.confined_host import take_users; u = take_users()"
    source = f"{take}; print(u.keeper, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        other.kill()
    assert theirs != mine.keeper
    mine.hold.close()
    found = [users for users in (take_users(), take_users()) if users]
    assert {mine.keeper, theirs} <= {users.keeper for users in found}
    for users in found:
        users.hold.close()


@needs_root
def test_a_guest_clears_its_users_of_what_a_dead_owner_left():
    users = take_users()
    assert users is not None
    users.hold.close()
    with subprocess.Popen(["sleep", "60"], user=users.program, group=users.program, extra_groups=[]) as left:
        try:
            uid = inside(lambda sandbox: ask(sandbox, "import os; answer = os.getuid()"))
            assert uid == users.program
            assert left.wait(1) == -signal.SIGKILL
        finally:
            left.kill()


@needs_root
def test_no_program_can_take_the_users_of_others():
    """Neither by names of the kernel's nor by the files that are locked."""
    users = take_users()
    assert users is not None
    users.hold.close()
    folder = os.path.dirname(str(users.hold.name))
    source = f"""
    import fcntl, os, socket, sys
    held, opened = [], 0
    for slot in range(256):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].bind(chr(0) + "headrace-user-%d" % ({confined_host._first_user()} + 2 * slot))
    for path in sys.argv[1:]:
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_PATH):
            try: fcntl.flock(os.open(path, flags), fcntl.LOCK_EX); opened += 1
            except OSError: pass
    open("ready", "w").close()
    answer = opened
    __import__("time").sleep(1)
    """

    async def go() -> tuple[object, int]:
        async with await Confined().create(SandboxRequest()) as sandbox:
            taken = [f"{folder}/{confined_host._first_user() + 2 * slot}" for slot in range(8)]
            attack = asyncio.ensure_future(ask(sandbox, source, folder, *taken))
            while not os.path.exists(f"{sandbox.work}/ready"):
                await asyncio.sleep(0.02)
                assert not attack.done()
            found = []
            while (more := take_users()) is not None and len(found) < 9:
                found.append(more)
            for each in found:
                each.hold.close()
            return await attack, len(found)

    assert asyncio.run(go()) == (0, 9)


@needs_root
def test_users_are_free_when_the_owner_dies_though_a_fork_of_it_lives():
    source = """
import os, time
from sandboxes.backends.confined_host import take_users
users = take_users()
read, write = os.pipe()
if (child := os.fork()) == 0:
    os.write(write, b"1")
    time.sleep(60)
os.read(read, 1)
print(users.keeper, child, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        keeper, child = map(int, owner.stdout.readline().split())
        try:
            assert confined_host._hold(keeper) is None
            owner.kill()
            owner.wait()
            found = confined_host._hold(keeper)
            assert found is not None
            found.hold.close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_fork_of_the_owner_has_sandboxes_of_its_own():
    """Threads stay behind in the parent."""
    inside(lambda _: asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        signal.alarm(15)
        try:
            inside(lambda _: asyncio.sleep(0))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    inside(lambda _: asyncio.sleep(0))


def test_nothing_is_left_where_the_event_loop_ends_first(monkeypatch: pytest.MonkeyPatch):
    def left() -> tuple[int, int, int]:
        hierarchy = find_hierarchy()
        groups = [path for base in (hierarchy.bases.values() if hierarchy else ()) for path in base.iterdir()]
        folders = list(confined_host.folders_place().iterdir())
        return (
            sum(path.name.startswith(identity()) for path in groups),
            sum(path.name.startswith(identity()) for path in folders),
            len(os.listdir("/proc/self/fd")),
        )

    async def one() -> None:
        async with await Confined().create(SandboxRequest()):
            await asyncio.sleep(9)

    async def leave(delay_s: float) -> None:
        task = asyncio.create_task(one())
        await asyncio.sleep(delay_s)
        assert not task.done()

    inside(lambda _: asyncio.sleep(0))
    before = left()
    for step in range(8):
        asyncio.run(leave(0.002 * step))
    with monkeypatch.context() as slowly:
        slowly.setattr(confined, "make_folder", lambda *given: (time.sleep(0.1), make_folder(*given))[1])
        asyncio.run(leave(0.05))
    assert gone(lambda: left() != before, seconds=5), (before, left())


OWNER = """
import asyncio, os, sys
from sandboxes.backends.confined import Confined
from sandboxes.protocol import Command, SandboxRequest
async def main():
    box = await Confined(cgroups=False).create(SandboxRequest())
    tree = "import os, signal, time; signal.signal(15, 1); os.fork(); os.fork() or os.setsid(); time.sleep(60)"
    await box.start(Command(("python3", "-c", tree, sys.argv[1])))
    await asyncio.sleep(0.3)
    print(os.path.dirname(box.work), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_nothing_survives_an_owner_that_is_killed_and_the_next_one_sweeps():
    mark = f"orphan-{time.monotonic_ns()}"
    with subprocess.Popen([sys.executable, "-c", OWNER, mark], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert len(processes(mark)) == 5  # the owner, and the tree of four
        sweep(folder.parent)
        assert folder.is_dir()  # its owner lives
        owner.kill()
    assert gone(lambda: processes(mark))
    assert sweep(folder.parent) >= 1
    assert not folder.exists()


def test_a_network_is_a_random_port_that_leads_to_the_proxy():
    source = """
    import os, socket, sys, urllib.error, urllib.request
    def attempt(action, *arguments, **options):
        try: action(*arguments, **options); return "done"
        except urllib.error.HTTPError as error: return error.code
        except OSError as error: return type(error).__name__
    answer = [
        int(os.environ["http_proxy"].rpartition(":")[2]),
        attempt(urllib.request.urlopen, "http://example.org/", timeout=5),
        attempt(socket.create_connection, ("127.0.0.1", int(sys.argv[1])), timeout=5),
        attempt(socket.create_server, ("127.0.0.1", 0)),
        attempt(socket.socket, socket.AF_INET, socket.SOCK_DGRAM),
    ]
    """

    async def go(port: int) -> tuple[object, object, tuple[str, ...]]:
        request = SandboxRequest(network=Network(allow=("pypi.org:443",)))
        async with await Confined().create(request) as one, await Confined().create(request) as two:
            return await ask(one, source, port), await ask(two, source, port), (await one.destroy()).connections

    with socket.create_server(("127.0.0.1", 0)) as server:
        (port, *first), (other, *second), connections = asyncio.run(go(server.getsockname()[1]))  # ty: ignore
    assert first == second == [403, "PermissionError", "PermissionError", "PermissionError"]
    assert port != other
    assert [entry.partition(" (")[0] for entry in connections] == ["refused example.org:80"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def refused(**request: object) -> str:
    with pytest.raises(ProvisionFailed) as failed:
        inside(lambda _: asyncio.sleep(0), cgroups=False, **request)
    return str(failed.value)


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, elsewhere: Path):
    assert "use `host`" in refused(image="python")
    (elsewhere / f"headrace-confined-{os.geteuid()}").symlink_to("/tmp")
    assert "not a folder of ours alone" in refused()
    for version, root, network, said in (
        (0, True, (), "version 1 is needed, of Linux 5.13"),
        (2, False, (), "version 3 is needed, of Linux 6.2"),
        (3, True, ("a.example:443",), "version 4 is needed, of Linux 6.7"),
    ):
        monkeypatch.setattr(confined, "abi", lambda version=version: version)
        monkeypatch.setattr(confined, "can_change_users", lambda root=root: root)
        assert said in refused(network=Network(allow=network))


def test_a_user_whose_processes_nothing_bounds_is_refused(monkeypatch: pytest.MonkeyPatch):
    """As which the kernel takes the machine's root, whatever capabilities it gave up."""
    monkeypatch.setattr(confined, "can_change_users", lambda: False)
    if os.geteuid() == 0:
        assert "nothing here bounds the processes" in refused()
    else:
        assert confined_host.counts_processes()


@needs_root
def test_a_folder_that_the_users_cannot_reach_is_refused(elsewhere: Path):
    elsewhere.chmod(0o700)
    assert f"{elsewhere} has mode 40700" in refused()


def test_a_full_host_is_refused(monkeypatch: pytest.MonkeyPatch):
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 100, 10, 10, 0, 255))
    monkeypatch.setattr(confined_host.os, "statvfs", lambda _: full)
    assert "has no room for a sandbox of 4 MiB" in refused()


def test_weaknesses_are_those_of_this_kernel(monkeypatch: pytest.MonkeyPatch):
    def told(version: int, *, root: bool) -> str:
        monkeypatch.setattr(confined, "abi", lambda: version)
        monkeypatch.setattr(confined, "can_change_users", lambda: root)
        return "; ".join(weaknesses(cgroups=False))

    assert "kill this user's processes" in told(5, root=False)
    assert "kill this user's processes" not in told(6, root=False) + told(5, root=True)
    assert "cannot run without root" in told(2, root=False)
    assert "no network allowlist" in told(3, root=True)
    assert "no control group" in told(9, root=True)
    assert "Unix sockets" not in told(9, root=True) + told(9, root=False)


def test_it_travels_to_workers():
    assert pickle.loads(pickle.dumps(Confined(cgroups=False))).cgroups is False
