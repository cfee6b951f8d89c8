"""Zygotes and half-made sandboxes: forks of the owner, event loops that end early, starts and ends that take long."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxes.backends import bubblewrap
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.backends.walls import Zygote, snapshot_store
from sandboxes.host.cgroup import Cgroup, find_hierarchy
from sandboxes.limits import Limits
from sandboxes.protocol import Command, ProvisionFailed, SandboxRequest, Warm
from sandboxes.sandbox import GuestSandbox

ROOT = os.geteuid() == 0
shared_zygotes = pytest.mark.skipif(
    find_hierarchy() is None, reason="without control groups each sandbox has a zygote of its own"
)


def slow_warm(seconds: float) -> Warm:
    """Of an interpreter that nothing else uses, and that takes so long to warm up."""
    name = f"m{time.monotonic_ns()}"
    return Warm(imports=(name,), files=((f"{name}.py", f"import time; time.sleep({seconds})".encode()),))


async def says_hi(request: SandboxRequest) -> None:
    async with await Bubblewrap().create(request) as sandbox:
        assert (await sandbox.exec(Command(("echo", "hi")))).stdout == b"hi\n"


async def create_and_destroy(provider: Bubblewrap) -> float:
    """Seconds that a sandbox of the usual zygote takes."""
    began = time.monotonic()
    await (await provider.create(SandboxRequest())).destroy()
    return time.monotonic() - began


def in_a_fork(work: Callable[[], object]) -> int:
    """Do it in a fork of this process, which has 20 s; the fork's pid."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def held() -> list[str]:
    """What the descriptors of this process lead to."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def state() -> tuple[int, int, int]:
    """Descriptors of this process that are no zygote's, its control groups, and users of its zygotes."""
    gc.collect()
    hierarchy = find_hierarchy()
    bases = hierarchy.bases.values() if hierarchy else ()
    groups = sum(f"-{os.getpid()}-" in path.name for base in bases for path in base.iterdir())
    zygotes = list(Zygote._open)
    return len(held()) - 2 * len(zygotes), groups, sum(zygote._users for zygote in zygotes)


def settled(before: tuple[int, int, int]) -> tuple[int, int, int]:
    """The state, once it is as before or 5 s are over."""
    deadline = time.monotonic() + 5
    while (now := state()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


@shared_zygotes
def test_a_fork_of_the_owner_has_sandboxes_of_its_own_and_leaves_its_parents_alone():
    asyncio.run(says_hi(SandboxRequest()))
    request = SandboxRequest(warm=slow_warm(0.5))
    starting = threading.Thread(target=lambda: asyncio.run(says_hi(request)))  # its locks are taken while we fork
    starting.start()
    time.sleep(0.2)
    parents = {os.readlink(f"/proc/self/fd/{zygote._host.fileno()}") for zygote in Zygote._open}
    assert len(parents) >= 2
    running = {zygote._process.pid for zygote in Zygote._open if zygote._process is not None}

    def work() -> None:
        assert not parents & set(held())  # else the parent's zygotes never hear that it hung up
        asyncio.run(says_hi(SandboxRequest()))
        asyncio.run(says_hi(request))

    assert os.waitpid(in_a_fork(work), 0)[1] == 0
    starting.join()
    asyncio.run(says_hi(SandboxRequest()))
    still = {zygote._process.pid for zygote in Zygote._open if zygote._process and zygote._process.poll() is None}
    assert running <= still


@shared_zygotes
def test_a_loop_that_ends_while_a_sandbox_waits_for_its_zygote_leaves_nothing():
    asyncio.run(says_hi(SandboxRequest()))
    before = state()
    request = SandboxRequest(warm=slow_warm(0.5))

    async def leave() -> None:
        making = asyncio.ensure_future(Bubblewrap().create(request))
        await asyncio.sleep(0.2)
        assert not making.done()

    asyncio.run(leave())
    assert state() != before
    asyncio.run(says_hi(request))  # by then the zygote that was left is warm
    assert settled(before) == before


def test_a_loop_that_ends_at_any_moment_of_a_creation_leaves_nothing():
    asyncio.run(says_hi(SandboxRequest()))
    before = state()
    rng = random.Random(3)

    def end_early(delay: float) -> bool:
        loop = asyncio.new_event_loop()
        making = loop.create_task(Bubblewrap().create(SandboxRequest()))
        loop.run_until_complete(asyncio.sleep(delay))
        early = not making.done()
        if not early:
            loop.run_until_complete(making.result().destroy())
        else:  # as asyncio.run does
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(making)
        loop.close()
        return early

    early = [end_early(rng.random() * 0.006) for _ in range(60)]
    assert sum(early) >= 10
    assert settled(before) == before


@shared_zygotes
def test_a_zygote_that_warms_up_holds_up_nobody_else_and_is_started_once():
    provider = Bubblewrap()

    async def go() -> None:
        await says_hi(SandboxRequest())
        slow = SandboxRequest(warm=slow_warm(2))
        neighbour = await provider.create(SandboxRequest())
        both = [asyncio.ensure_future(provider.create(slow)) for _ in range(2)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await neighbour.destroy()
        await create_and_destroy(provider)
        assert time.monotonic() - began < 1
        assert not any(making.done() for making in both)
        made = [await making for making in both]
        assert len({sandbox._enclosure._zygote for sandbox in made}) == 1  # ty: ignore[missing-attribute]
        for sandbox in made:
            await sandbox.destroy()

    asyncio.run(go())


def test_a_failed_start_is_told_to_all_who_wait_and_tried_again_by_the_next():
    asyncio.run(says_hi(SandboxRequest()))
    before = state()
    broken = SandboxRequest(warm=Warm(imports=("no_such_module_5d1c",)))

    async def go() -> None:
        makings = (Bubblewrap().create(broken) for _ in range(3))
        for outcome in await asyncio.gather(*makings, return_exceptions=True):
            assert isinstance(outcome, ProvisionFailed)
            assert "no_such_module_5d1c" in str(outcome)

    asyncio.run(go())
    asyncio.run(go())
    assert settled(before) == before
    assert all(zygote._failure is None for zygote in Zygote._open)


def test_a_zygote_that_does_not_end_holds_up_nobody_else():
    """Stopped, it does not notice that we hung up; it is killed after 2 s."""

    async def go() -> None:
        await says_hi(SandboxRequest())
        known = set(Zygote._open)
        stuck = await Bubblewrap(cgroups=False).create(SandboxRequest())
        (zygote,) = Zygote._open - known
        assert zygote._process is not None
        os.kill(zygote._process.pid, signal.SIGSTOP)
        ending = asyncio.ensure_future(stuck.destroy())
        await asyncio.sleep(0.3)
        assert await create_and_destroy(Bubblewrap()) < 1
        assert not ending.done()
        await ending
        assert zygote not in Zygote._open

    asyncio.run(go())


def test_what_cannot_be_buried_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A process that nobody killed and a group with another in it stand for what the kernel does not let go of."""
    group = Cgroup.create(Limits())
    if group is None:
        pytest.skip("no control group can be made here")
    monkeypatch.setattr(bubblewrap, "_BURIAL_S", 0.1)
    inner = group.paths["pids" if group.version == 1 else "unified"] / "inner"
    inner.mkdir()
    zygote = Zygote("host", Warm())
    zygote._users = 1
    with subprocess.Popen(["sleep", "60"]) as process:
        (inner / "cgroup.procs").write_text(str(process.pid))
        bubblewrap._Box(process.pid, group, zygote).bury()
        process.kill()
    said = [record.getMessage() for record in caplog.records if record.name == "sandboxes.backends.bubblewrap"]
    assert len(said) == 2
    assert f"pid {process.pid} is still there" in said[0]
    assert str(inner.parent) in said[1]
    assert zygote not in Zygote._open  # given back all the same
    inner.rmdir()
    assert group.destroy()


@pytest.fixture
def open_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of our own in folders that everybody may pass."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HEADRACE_CACHE", folder)
        yield Path(folder)


def test_unpacked_snapshots_are_for_their_owner_alone_and_nothing_in_them_changes_users(open_cache: Path):
    (open_cache / "snapshots").mkdir(mode=0o755)  # as an earlier version left it
    request = SandboxRequest(warm=slow_warm(0))

    async def go() -> str:
        provider = Bubblewrap()
        async with await provider.create(request) as sandbox:
            script = "cp /usr/bin/id x; cp x 'a b'; chmod 6755 x; chmod 4711 'a b'; mkdir d; cp x d/y; chmod 2640 d/y"
            await sandbox.exec(Command(("sh", "-c", script)))
            snapshot = await sandbox.snapshot()
        copy = SandboxRequest(warm=request.warm, snapshot=snapshot)
        async with await provider.create(copy) as sandbox:
            listing = await sandbox.exec(Command(("find", ".", "-type", "f", "-printf", "%P %m\n")))
            assert sorted(listing.stdout.decode().splitlines()) == ["a b 711", "d/y 640", "x 755"]
        return snapshot.digest

    unpacked = snapshot_store() / asyncio.run(go())
    assert stat.S_IMODE((open_cache / "snapshots").stat().st_mode) == 0o700
    assert (unpacked / "x").stat().st_mode & 0o7777 == 0o755
    assert (unpacked / "d" / "y").stat().st_mode & 0o7777 == 0o640
    if ROOT:
        stranger = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c"]
        tried = subprocess.run([*stranger, f"{unpacked}/x"], capture_output=True, text=True, check=False)
        assert (tried.returncode, "Permission denied" in tried.stderr) == (126, True), tried


def left_open() -> GuestSandbox:
    """A sandbox whose event loop is closed."""
    return asyncio.run(Bubblewrap().create(SandboxRequest()))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_sandbox_is_destroyed_from_another_event_loop_after_its_own_ended():
    asyncio.run(says_hi(SandboxRequest()))
    before = state()
    sandbox = left_open()
    box = sandbox._enclosure
    assert isinstance(box, bubblewrap._Box)
    assert Path(f"/proc/{box._pid}").exists()
    usage = asyncio.run(sandbox.destroy())
    assert usage.breach is None
    assert not Path(f"/proc/{box._pid}").exists()
    assert asyncio.run(sandbox.destroy()) == usage  # in a third loop
    del sandbox
    assert settled(before) == before


def test_a_sandbox_is_destroyed_from_another_thread_while_its_command_runs():
    async def go() -> None:
        sandbox = await Bubblewrap().create(SandboxRequest())
        running = asyncio.ensure_future(sandbox.exec(Command(("sleep", "30"))))
        await asyncio.sleep(0.1)
        usage = await asyncio.to_thread(lambda: asyncio.run(sandbox.destroy()))
        assert usage.breach is None
        with contextlib.suppress(Exception):
            await asyncio.wait_for(running, 5)
        assert running.done()

    asyncio.run(go())
