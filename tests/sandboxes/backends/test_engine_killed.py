"""A Docker engine of our own is killed and started again while sandboxes run: nothing is lost unseen or mis-scored."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.backends.container_engine import connect, list_containers
from sandboxes.backends.containers import Docker
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.host.owner import identity
from sandboxes.protocol import Command, ProvisionFailed, SandboxLost, SandboxRequest
from tests.sandboxes.containers_here import LIMITS, provider_here
from tests.sandboxes.real_images import real_image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("dockerd") is None, reason="root starts an engine with dockerd"
    ),
]

IMAGE = "headrace-test:small"
_LIBRARIES = ("ld-*", "libc.so*", "libm.so*", "libz.so*", "libexpat.so*", "libffi.so*")
_SMALL = (
    "bin",
    "lib",
    "lib64",
    "usr/lib64",
    "usr/bin/python3*",
    "usr/bin/sh",
    "usr/bin/dash",
    "usr/bin/sleep",
    "usr/lib/python3.11",
)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Engine:
    """A Docker engine apart from the machine's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/socket"
        (folder / "daemon.json").write_text(json.dumps({"data-root": f"{folder}/data", "exec-root": f"{folder}/exec"}))
        self._log = open(folder / "log", "ab")
        # With no bridge it would take away that of the machine's own engine.
        self._bridge = f"hr{os.getpid()}"
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", "10.222.222.1/24", "dev", self._bridge)

    def start(self) -> None:
        self._dockerd = subprocess.Popen(
            [
                "dockerd",
                f"--config-file={self.folder}/daemon.json",
                f"--host={self.address}",
                f"--pidfile={self.folder}/pid",
                f"--bridge={self._bridge}",
                "--iptables=false",
            ],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        for _ in range(300):
            with contextlib.suppress(ProvisionFailed, OSError):
                connect(self.address).ping()
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        """End it as a power cut would; its containerd goes with it."""
        note = self.folder / "exec/containerd/containerd.pid"
        containerd = Path("/proc", note.read_text().strip(), "stat")
        self._dockerd.kill()
        self._dockerd.wait()
        while containerd.exists() and ") Z " not in containerd.read_text():
            time.sleep(0.01)
        note.unlink()  # while init has not buried it, the next engine would take it for one that runs

    def stop(self) -> None:
        self._dockerd.terminate()
        self._dockerd.wait(30)
        _ip("link", "delete", self._bridge)
        self._log.close()

    def load_image(self) -> None:
        """A Python and a shell, out of the base image."""
        rootfs = real_image("base").rootfs
        wanted = [*_SMALL, *(f"usr/lib/*-linux-gnu/{name}" for name in _LIBRARIES)]
        found = [str(path.relative_to(rootfs)) for pattern in wanted for path in sorted(rootfs.glob(pattern))]
        archive = subprocess.run(["tar", "-c", "-C", str(rootfs), *found], capture_output=True, check=True).stdout
        name, tag = IMAGE.split(":")
        connect(self.address).api.import_image_from_data(archive, name, tag)


@pytest.fixture
def private() -> Iterator[Engine]:
    provider_here("docker")  # skips where there is no base image or Docker at all
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))  # short: a socket's path may have 108 bytes
    engine = Engine(folder)
    try:
        engine.start()
        engine.load_image()
        yield engine
    finally:
        engine.stop()
        points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
            subprocess.run(["umount", point], check=True)  # one that was killed leaves them
        shutil.rmtree(folder)


def test_an_engine_killed_under_load_loses_nothing_unseen(private: Engine):
    request = SandboxRequest(image=IMAGE, limits=LIMITS, owner="test")
    provider = Docker(host=private.address)
    outcomes: dict[str, int] = {}
    said: set[str] = set()
    midway: set[object] = set()
    stop = asyncio.Event()

    def count(outcome: str) -> None:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    async def episode() -> None:
        """One sandbox, some commands: each gives the one right result, or an error that says it was the host."""
        async with await provider.create(request) as sandbox:
            for number in range(20):
                (midway.add if number in range(3, 12) else midway.discard)(sandbox)
                result = await sandbox.exec(
                    Command(("python3", "-S", "-c", f"import time; time.sleep(0.1); print({number})"))
                )
                assert (result.exit_code, result.breach, result.stdout) == (0, None, f"{number}\n".encode()), result
                count("right")
            assert (await sandbox.destroy()).breach is None

    async def worker() -> None:
        while not stop.is_set():
            try:
                await episode()
            except (SandboxLost, ProvisionFailed) as error:
                count(error.outcome)
                said.add(str(error))
                await asyncio.sleep(0.1)

    async def go() -> None:
        workers = [asyncio.create_task(worker()) for _ in range(4)]
        await asyncio.sleep(4)
        before = dict(outcomes)
        assert set(before) == {"right"}, said
        async with asyncio.timeout(30):
            while not midway:  # else all four may just be making a new sandbox, and none is lost
                await asyncio.sleep(0.01)
        private.kill()
        await asyncio.sleep(1.5)
        assert outcomes.get("sandbox_lost", 0) + outcomes.get("provision_failed", 0) >= 4, (outcomes, said)
        await asyncio.to_thread(private.start)
        after = outcomes["right"]
        await asyncio.sleep(4)
        assert outcomes["right"] > after + 20, outcomes  # it goes on by itself
        stop.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*workers)
        assert outcomes["sandbox_lost"] >= 1, said

    asyncio.run(go())
    deadline = time.monotonic() + 10
    while left := [each.name for each in list_containers(connect(private.address))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    hierarchy = find_hierarchy()
    groups = [path for base in (hierarchy.bases.values() if hierarchy else ()) for path in base.iterdir()]
    assert [path for path in groups if path.name.startswith(identity())] == []
