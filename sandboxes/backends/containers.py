"""Sandboxes from a Docker engine, on the host's kernel or on gVisor's.

A container runs nothing but our guest, as its pid 1 and root with three capabilities; programs are its children, under
a user of their own. The container's own streams are the connection to the guest, attached before it starts, so no port
is open, nothing is written into an engine's log, and the container ends by itself when we do: the engine then closes
its stdin. Its root is read-only, it has no network, and its writable folders are file systems in memory.

The workspace, /tmp and /dev/shm are three file systems, as Docker offers no other way without more capabilities: each
may hold what the limits allow them together, and a command at whose end they hold more has broken the disk limit.

Limits and counters are those of a control group. As root on the engine's machine we make one and move the container
into it before any program runs: what it counted is still there after the engine removed the container. Otherwise the
container's own group is read, which everyone on that machine may. An engine on another machine is refused: nothing
would tell whose fault an end was.

What this does not stop: with the default runtime, a flaw in the kernel, as with bubblewrap. The user 1000 inside is the
host's user 1000 unless the engine maps users, and the kernel counts some things for a user, not for a container: the
memory of pipes beyond one page each and descriptors on their way through sockets, and queued signals as far as no
rlimit bounds them. A program that takes all of those leaves other sandboxes of the engine, and the host's user 1000,
with small pipes and refused sends. On gVisor none of this reaches the host.

On gVisor inodes are not limited; processes and threads are counted
by the guest, a hundred times a second; memory at its limit ends the whole sandbox, and a little more of it is allowed,
which gVisor may need. Its release of 2022, Debian's, lets programs read each other's environment, and refuses what
`ls` and `stat` ask.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import socket
import struct
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.backends.container_box import Box
from sandboxes.backends.container_engine import (
    connect,
    docker_image,
    engine_errors,
    forget_images,
    labels,
    remove_container,
    worth_another_try,
)
from sandboxes.host.cgroup import Cgroup
from sandboxes.host.owner import identity
from sandboxes.host.seccomp import filter_program
from sandboxes.host.threads import threads
from sandboxes.limits import MIB, Limits
from sandboxes.link import Link
from sandboxes.network.proxy import Proxy
from sandboxes.protocol import ProvisionFailed, SandboxError, SandboxRequest
from sandboxes.sandbox import GuestSandbox, Inside

if TYPE_CHECKING:
    from docker import DockerClient

PROGRAM_ID = 1000
"""User and group of programs, inside."""
KEEPER_ID = 1
"""User and group of trusted commands, inside."""

_MAKERS = 4  # containers made at once: more make an engine slower, not faster
_TRIES = 2  # to create one; of thousands of engine calls one hangs
_KERNEL_MIB, _KERNEL_MIB_PER_PROCESS = 16, 1  # memory that gVisor itself takes after its start
_KERNEL_THREADS = 128  # of gVisor itself, on the host
_THREADS_PER_PROCESS = 32  # of gVisor for each process inside: one for each thread of its own that ever ran it
_KERNEL_CLOCK = 8.0  # on a busy host, gVisor's CPU clock of a process was seen to run three times as fast as the host's
_COUNT_EVERY_S = 0.01  # how often a guest on gVisor counts, which is one system call
_PIECE = struct.Struct(">BxxxI")  # header of a piece of output: stream, size
_STDOUT = 1
_LAST_WORD_S = 1.0  # longest that output of a dead container is waited for
_COMPLAINT = 4096  # bytes kept of what the guest says on stderr
_INSIDE = Path(__file__).parents[1] / "inside"
_SOURCES = ("guest_streams.py", "guest.py", "container_guest.py")  # in the order of `_BOOT`
_serial = itertools.count()

# What Docker has read-only in /proc, and a folder more whose files everyone may write to.
_PATHS = {"ReadonlyPaths": [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger", "pressure")]}

_BOOT = """
import os, sys, types
def take(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c:
            os._exit(0)
        b += c
    return b
def part():
    return take(int.from_bytes(take(4), "big"))
for name in ("guest_streams", "guest"):
    guest = sys.modules[name] = types.ModuleType(name)
    exec(compile(part(), name + ".py", "exec"), guest.__dict__)
source, guest.SETTINGS = part(), part()
exec(compile(source, "container_guest.py", "exec"), {"__name__": "container_guest"})
"""


class Docker:
    """Sandboxes from a Docker engine on this machine. Picklable; the client belongs to the process."""

    def __init__(self, *, runtime: str | None = None, host: str | None = None) -> None:
        self.runtime = runtime
        """The engine's runtime, such as `runsc` for gVisor; its default without."""
        self.host = host
        """Address of the engine, such as `unix:///run/docker.sock`; without: DOCKER_HOST, else the usual socket."""
        self._guest_kernel = runtime == "runsc"
        self.name = "gvisor" if self._guest_kernel else "docker"

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        """See `SandboxProvider.create`."""
        making = threads("docker", _MAKERS).submit(self._make, request)
        try:
            box, near = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            threads("docker", _MAKERS).submit(_abandon, making)  # the event loop may end before it is made
            raise
        link = _ContainerLink(Proxy(request.network) if request.network.allow else None, box)
        inside = Inside(
            backend=self.name, uid=PROGRAM_ID, trusted_uid=KEEPER_ID, apart=("/work", "/tmp", "/dev/shm"),
            cpu_clock=_KERNEL_CLOCK if self._guest_kernel else 1.0,
        )  # fmt: skip
        sandbox = GuestSandbox(box.name, request, inside, link, box)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, sock=near)
            link.boot(request.limits.processes if self._guest_kernel else 0)
            await sandbox.furnish(warm=True, snapshot=True)
        except BaseException:
            near.close()
            with contextlib.suppress(SandboxError):
                await sandbox.destroy()
            raise
        return sandbox

    def _make(self, request: SandboxRequest) -> tuple[Box, socket.socket]:
        """Start a container whose guest waits for its source. Runs in a thread. Raises ProvisionFailed."""
        for left in reversed(range(_TRIES)):
            client = connect(self.host)
            name = f"headrace-{identity()}-{next(_serial)}"
            try:
                with engine_errors(f"the engine could not start a container of {request.image}"):
                    return self._start(client, name, request)
            except BaseException as error:
                with contextlib.suppress(OSError):  # what it left goes with the next process's sweep
                    remove_container(client, name)
                forget_images()
                if not left or not isinstance(error, ProvisionFailed) or not worth_another_try(error.__cause__):
                    raise
        raise AssertionError("not reached")

    def _limits(self, limits: Limits) -> Limits:
        """What the control group is to enforce: a guest's kernel has its own needs besides the programs'."""
        if not self._guest_kernel:
            return limits
        more = {
            "memory_mib": limits.memory_mib + _KERNEL_MIB + limits.processes * _KERNEL_MIB_PER_PROCESS,
            "processes": _KERNEL_THREADS + limits.processes * _THREADS_PER_PROCESS,
        }
        return limits.model_copy(update=more)

    def _start(self, client: "DockerClient", name: str, request: SandboxRequest) -> tuple[Box, socket.socket]:
        image = docker_image(client, self.host, request.image)
        limits = self._limits(request.limits)
        made = client.api.create_container(
            image,
            ["-P", "-s", "-X", "frozen_modules=on", "-c", _BOOT],
            entrypoint="python3",
            name=name,
            hostname="sandbox",
            user="0:0",
            working_dir="/",
            environment={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "TZ": "UTC"},
            use_config_proxy=False,  # else the host's proxies are in the environment
            stdin_open=True,  # and closed, which ends the guest, when we are gone: HostConfig knows no other way
            healthcheck={"test": ["NONE"]},
            labels=labels(request.owner),
            host_config=client.api.create_host_config(**_host_config(request.limits, limits, self.runtime)) | _PATHS,
        )
        near = _attach(client, made["Id"])
        group: Cgroup | None = None
        try:
            group = Cgroup.create(limits)
            client.api.start(made["Id"])
            pid = client.api.inspect_container(made["Id"])["State"]["Pid"]
            try:
                return Box(client, name, made["Id"], pid, group, guest_kernel=self._guest_kernel), near
            except (ProcessLookupError, FileNotFoundError) as error:
                near.settimeout(_LAST_WORD_S)
                said = near.recv(_COMPLAINT)[_PIECE.size :].decode(errors="replace").strip()
                raise ProvisionFailed("the guest ended at once", evidence=said or repr(error)) from error
        except BaseException:
            near.close()
            if group is not None:
                group.destroy()
            raise


class _ContainerLink(Link):
    """The connection through an engine, which puts a header before each piece of stdout and stderr."""

    def __init__(self, proxy: Proxy | None, box: Box) -> None:
        super().__init__(proxy)
        self._pieces = bytearray()
        self._box, self._pidfd = box, box.watch()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop: listen for the end as well, which an engine does not always pass on."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._on_death)

    def _on_death(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        loop.call_later(_LAST_WORD_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        super().connection_lost(exc)

    def boot(self, most: int) -> None:
        """Send the guest its source; `most` processes and threads it is to let live, 0 if the kernel sees to it."""
        refused = base64.b64encode(filter_program() or b"").decode()
        settings = json.dumps({"filter": refused, "most": most, "every_s": _COUNT_EVERY_S}).encode()
        sources = [(_INSIDE / name).read_bytes() for name in _SOURCES]
        assert self._transport is not None
        for part in (*sources, settings):
            self._transport.write(len(part).to_bytes(4) + part)

    def _on_message(self, kind: str, number: int, body: bytes) -> None:
        if kind == "N":
            self._box.process_limit_hits += 1
        else:
            super()._on_message(kind, number, body)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: stdout is the guest's messages, stderr what Python or the runtime says."""
        self._pieces += data
        while len(self._pieces) >= _PIECE.size:
            stream, size = _PIECE.unpack_from(self._pieces)
            piece = bytes(self._pieces[_PIECE.size : _PIECE.size + size])
            if len(piece) < size:
                return
            del self._pieces[: _PIECE.size + size]
            if stream == _STDOUT:
                super().data_received(piece)
            else:
                self.complaint = (self.complaint + piece.decode(errors="replace"))[-_COMPLAINT:]


def _host_config(given: Limits, enforced: Limits, runtime: str | None) -> dict[str, object]:
    """How a container is walled in: `given` bounds its folders, `enforced` its control group."""
    disk = f"size={given.disk_mib}m,nr_inodes={given.inodes},exec,nosuid,nodev"
    return {
        "runtime": runtime,
        "auto_remove": True,
        "read_only": True,
        "network_mode": "none",
        "dns": ["127.0.0.1"],  # else the host's are to be read inside
        "ipc_mode": "private",
        "cgroupns": "private",
        "init": False,
        "log_config": {"Type": "none"},  # else an engine writes all that goes over the link to its disk
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL", "SETPCAP"],  # the last to give up all others for ever
        "security_opt": ["no-new-privileges"],
        "mem_limit": enforced.memory_mib * MIB,
        "memswap_limit": enforced.memory_mib * MIB,  # with swap: so there is none
        "pids_limit": enforced.processes,
        "tmpfs": {
            "/work": f"{disk},mode=755,uid={PROGRAM_ID},gid={PROGRAM_ID}",
            "/tmp": f"{disk},mode=1777",
            "/dev/shm": f"{disk},mode=1777",
            "/job": "exec,nosuid,nodev,mode=755",
            "/sys": "size=4k,mode=755",  # the host's hardware is nobody's business
            "/dev/mqueue": "ro,size=4k,mode=555",  # else files there stay from case to case
        },
    }


def _attach(client: "DockerClient", container: str) -> socket.socket:
    """A connection to the streams of a container that has not started yet."""
    stream = client.api.attach_socket(container, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    try:
        return socket.socket(fileno=os.dup(stream.fileno()))
    finally:
        stream._response.close()  # holds the client's own descriptor, else until the garbage collector comes


def _abandon(making: Future[tuple[Box, socket.socket]]) -> None:
    """End what was made for a caller who is gone."""
    if not making.cancelled() and making.exception() is None:
        box, near = making.result()
        near.close()
        box.kill()
        box.bury()
