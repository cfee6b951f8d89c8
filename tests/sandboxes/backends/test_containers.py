"""The walls of containers. What every back-end owes is tested in `conformance/`."""

import asyncio
import os
import signal
import socket
import subprocess
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandboxes.backends import containers
from sandboxes.backends.container_box import Box
from sandboxes.backends.container_engine import (
    connect,
    list_containers,
)
from sandboxes.backends.containers import Docker
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.protocol import Command, ProvisionFailed
from tests.sandboxes.containers_here import ADDRESS, LIMITS, REQUEST, both, in_one, provider_here, sh

docker = pytest.importorskip("docker", reason="the docker package is not installed")


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Docker:
    return provider_here(getattr(request, "param", "docker"))


@pytest.fixture
def engine(provider: Docker) -> "docker.DockerClient":
    return connect(None)


@both
def test_programs_see_the_kernel_they_are_promised(provider: Docker):
    (release,) = in_one(provider, "uname -r")
    assert release.strip() == ("4.4.0" if provider.name == "gvisor" else os.uname().release)


@both
def test_programs_hold_nothing_and_the_guest_three_capabilities(provider: Docker):
    own, first, user = in_one(provider, "grep Cap /proc/self/status", "grep Cap /proc/1/status", "id -u")
    mine, guest = (dict(line.split() for line in status.splitlines()) for status in (own, first))
    assert {mine[key] for key in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:")} == {"0" * 16}
    # Bits 5, 6 and 7 are KILL, SETGID and SETUID: 32 + 64 + 128 = 0xe0.
    assert (guest["CapPrm:"], guest["CapBnd:"]) == ("0" * 14 + "e0", "0" * 16)
    assert user == "1000\n"


@both
def test_nothing_of_the_host_is_inside(provider: Docker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_SECRET", "canary")
    environment, first, sockets, network, names, hardware = in_one(
        provider,
        "env",
        "cat /proc/1/environ",
        "find / -xdev -type s 2>/dev/null; find / -name 'docker*.sock' 2>/dev/null",
        "tail -n +3 /proc/net/dev | cut -d: -f1",
        "cat /etc/resolv.conf",
        "cd /sys && find .",
    )
    assert "canary" not in environment + first
    assert sockets == ""
    assert network.split() == ["lo"]
    assert names.strip() == "nameserver 127.0.0.1"
    assert hardware == ".\n"


@both
def test_programs_cannot_reach_the_guest_s_descriptors(provider: Docker):
    source = """
        import os
        opened = []
        for fd in range(32):
            for mode in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.open(f"/proc/1/fd/{fd}", mode)
                    opened.append(fd)
                except OSError:
                    pass
        print(opened)
    """

    async def go() -> str:
        async with await provider.create(REQUEST) as sandbox, await sandbox.start(Command(("sleep", "30"))):
            return await sh(sandbox, f"python3 -S -c '{textwrap.dedent(source)}'")

    assert asyncio.run(go()) == "[]\n"


@both
def test_only_three_folders_can_be_written(provider: Docker):
    folders = "/ /etc /usr/bin /var/tmp /job /sys /dev /work /tmp /dev/shm"
    script = f"for d in {folders}; do touch $d/x 2>/dev/null && echo $d; done"
    assert in_one(provider, script)[0].split() == ["/work", "/tmp", "/dev/shm"]


def test_message_queues_are_no_place_to_keep_files(provider: Docker):
    """Nothing clears that folder between cases, and it is in nobody's disk limit."""
    (said,) = in_one(provider, "touch /dev/mqueue/kept || mkdir /dev/mqueue/kept || echo refused")
    assert said.startswith("refused\n")


def test_the_engine_is_told_to_close_the_container(provider: Docker, engine: "docker.DockerClient"):
    async def go() -> dict[str, Any]:
        async with await provider.create(REQUEST) as sandbox:
            return engine.api.inspect_container(sandbox.id)

    told = asyncio.run(go())
    config = told["HostConfig"]
    assert config["ReadonlyRootfs"] is True
    assert config["Privileged"] is False
    assert config["Binds"] is None
    assert (config["NetworkMode"], config["IpcMode"], config["CgroupnsMode"]) == ("none", "private", "private")
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert (config["CapDrop"], config["CapAdd"]) == (["ALL"], ["SETUID", "SETGID", "KILL", "SETPCAP"])
    assert (config["Memory"], config["MemorySwap"], config["PidsLimit"]) == (64 * 2**20, 64 * 2**20, 16)
    assert told["Mounts"] == []
    assert not [entry for entry in told["Config"]["Env"] if "proxy" in entry.lower()]


def test_a_proxy_of_the_host_s_client_is_not_passed_on(
    provider: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://user:canary@proxy:1"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    client = connect(ADDRESS)  # a client of its own, which has read that file

    async def go() -> list[str]:
        async with await Docker(host=ADDRESS).create(REQUEST) as sandbox:
            return client.api.inspect_container(sandbox.id)["Config"]["Env"]

    assert client.api._general_configs["proxies"]  # else this proves nothing
    assert not [entry for entry in asyncio.run(go()) if "canary" in entry]


def test_nothing_that_goes_over_the_connection_is_on_the_engine_s_disk(provider: Docker, engine: "docker.DockerClient"):
    folder = Path(engine.info()["DockerRootDir"]) / "containers"
    if os.geteuid() != 0 or not folder.is_dir():
        pytest.skip("only root can look into the engine's folder")

    async def go() -> list[str]:
        async with await provider.create(REQUEST) as sandbox:
            assert (await sh(sandbox, "echo can''ary")) == "canary\n"
            (container,) = (each.id for each in list_containers(engine) if each.name == sandbox.id)
            files = [path for path in (folder / container).rglob("*") if path.is_file()]
            assert files
            return [path.name for path in files if b"canary" in path.read_bytes()]

    assert asyncio.run(go()) == []


@pytest.mark.parametrize("group", ["ours", "the engine's"])
def test_memory_is_attributed_in_either_group(provider: Docker, monkeypatch: pytest.MonkeyPatch, group: str):
    if group == "ours" and find_hierarchy() is None:
        pytest.skip("no writable control groups on this machine")
    if group != "ours":
        monkeypatch.setattr(containers.Cgroup, "create", lambda limits: None)

    async def go() -> None:
        async with await provider.create(REQUEST) as sandbox:
            modest = await sandbox.exec(Command(("python3", "-c", "x = bytearray(30 << 20)")))
            assert (modest.exit_code, modest.breach) == (0, None)
            greedy = await sandbox.exec(Command(("python3", "-c", "x = bytearray(90 << 20)")))
            assert (greedy.signal, greedy.breach) == (signal.SIGKILL, "memory_limit")
            usage = await sandbox.destroy()
        assert 60 << 20 < usage.peak_memory_bytes <= 64 << 20
        assert usage.cpu_s > 0.01
        assert usage.limits_enforced_by in ("cgroup-v1", "cgroup-v2")

    asyncio.run(go())


@both
@pytest.mark.skipif(find_hierarchy() is None, reason="no writable control groups on this machine")
def test_every_process_of_the_container_is_in_our_group(provider: Docker, engine: "docker.DockerClient"):
    async def go() -> dict[str, set[str]]:
        async with await provider.create(REQUEST) as sandbox, await sandbox.start(Command(("sleep", "30"))):
            await asyncio.sleep(0.3)
            first = engine.api.inspect_container(sandbox.id)["State"]["Pid"]
            shim = Path(f"/proc/{first}/stat").read_text().rsplit(")", 1)[1].split()[1]
            found = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
            below: dict[str, list[str]] = {}
            for pid, parent in (line.split() for line in found.splitlines()):
                below.setdefault(parent, []).append(pid)
            waiting, groups = list(below[shim]), {}
            while waiting:
                pid = waiting.pop()
                waiting += below.get(pid, [])
                lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
                groups[pid] = {path for _, name, path in lines if name in ("memory", "pids", "cpuacct", "")}
            return groups

    groups = asyncio.run(go())
    assert len(groups) >= 2  # the guest and its program; or gVisor's kernel, its file server and its stubs
    assert all(any("/headrace/" in path for path in paths) for paths in groups.values()), groups


@pytest.mark.parametrize("provider", ["gvisor"], indirect=True)
def test_gvisor_s_limits_are_the_program_s_and_what_gvisor_needs(provider: Docker):
    limits = LIMITS.model_copy(update={"memory_mib": 256})

    def run(source: str) -> tuple[int | None, str | None]:
        async def go() -> tuple[int | None, str | None]:
            async with await provider.create(replace(REQUEST, limits=limits)) as sandbox:
                result = await sandbox.exec(Command(("python3", "-S", "-c", source)))
                return result.exit_code, result.breach

        return asyncio.run(go())

    children = (
        "import os, time\nfor _ in range(12):\n  if os.fork() == 0: time.sleep(0.5); os._exit(0)\ntime.sleep(0.7)"
    )
    assert run(children) == (0, None)  # a dozen are fewer than 16
    assert run("import os\nwhile True: os.fork()") == (None, "process_limit")
    threads = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    assert run(threads) == (None, "process_limit")
    assert run("import subprocess\nfor _ in range(60): subprocess.run(['sh', '-c', 'true | true'])") == (0, None)
    assert run("x = bytearray(240 << 20)") == (0, None)
    assert run("x = bytearray(300 << 20)") == (None, "memory_limit")  # past 256 + 16 + 16


def test_a_process_that_is_not_the_container_s_is_not_watched(provider: Docker, engine: "docker.DockerClient"):
    # What an engine on another machine says is a pid there; here it is any process or none.
    with pytest.raises(ProvisionFailed, match="not on this machine"):
        Box(engine, "name", "0123456789abcdef" * 4, os.getpid(), None, guest_kernel=False)
    with pytest.raises(ProcessLookupError):
        Box(engine, "name", "0123456789abcdef" * 4, 2**22 - 1, None, guest_kernel=False)


class Watched(Box):
    """A process without a container around it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def watch(self) -> int:
        return os.pidfd_open(self.pid)


def test_output_is_taken_out_of_its_pieces_however_they_arrive():
    def piece(stream: int, content: bytes) -> bytes:
        return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4) + content

    said = b"".join(
        [
            (2 + 3 + 4).to_bytes(4) + b"O" + (7).to_bytes(4) + b"\1abc",
            (5).to_bytes(4) + b"R" + (0).to_bytes(4),
        ]
    )

    async def go(size: int) -> tuple[list[bytes], bool, str]:
        heard: list[bytes] = []

        class Ear:
            def on_output(self, name: int, chunk: bytes) -> None:
                heard.append(chunk)

        link = containers._ContainerLink(None, Watched(os.getpid()))
        link._listeners[7] = Ear()  # ty: ignore[invalid-assignment]
        stream = piece(1, said[:6]) + piece(2, b"warn") + piece(1, said[6:]) + piece(2, b"ing")
        for at in range(0, len(stream), size):
            link.data_received(stream[at : at + size])
        return heard, link.hello.done(), link.complaint

    for size in (1, 5, 1000):
        assert asyncio.run(go(size)) == ([b"abc"], True, "warning")


def test_the_socket_to_the_container_is_no_port(provider: Docker):
    """One of ours would be there each time; one of a neighbour's is not."""

    async def go() -> list[str]:
        before = _listening()
        async with await provider.create(REQUEST):
            return sorted(_listening() - before)

    assert [] in (asyncio.run(go()) for _ in range(5))


def _listening() -> set[str]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if line.split()[3] == "0A"}


def test_the_death_of_a_container_is_noticed_although_the_engine_keeps_the_connection_open():
    async def go() -> float:
        near, far = socket.socketpair()
        first = subprocess.Popen(["sleep", "60"])
        link = containers._ContainerLink(None, Watched(first.pid))
        await asyncio.get_running_loop().create_connection(lambda: link, sock=near)
        await asyncio.sleep(0.1)
        assert not link.gone
        first.kill()
        first.wait()
        begun = time.monotonic()
        with far:
            while not link.gone:
                await asyncio.sleep(0.01)
        return time.monotonic() - begun

    assert asyncio.run(asyncio.wait_for(go(), 10)) < 3.0
