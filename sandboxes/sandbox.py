"""A sandbox whose inside is served by our guest: the verbs, whatever the back-end.

A back-end brings an `Enclosure`, the walls around one guest and what the host can see of them, and the `Inside`, how
things are arranged there. Everything else is here.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from sandboxes.host import registry
from sandboxes.host.cgroup import Counters
from sandboxes.host.threads import threads
from sandboxes.limits import MIB
from sandboxes.link import Link, Listener
from sandboxes.process import GuestProcess, Keeper
from sandboxes.protocol import (
    Breach,
    Command,
    File,
    FilesRefused,
    HostOutOfMemory,
    ProvisionFailed,
    Result,
    SandboxError,
    SandboxLost,
    SandboxRequest,
    Snapshot,
    Usage,
)
from sandboxes.transfer import check, check_unpacked, pack, pack_command, snapshot_command, unpack, unpack_command

HELLO_S = 30.0
"""Seconds a guest may take to come up, before any untrusted code is near it."""

IMAGE_PATH = "/usr/local/bin:/usr/bin:/bin"
"""PATH inside an image."""

_ENVIRONMENT = {"LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_BURIERS = 8  # sandboxes that can be buried at once


class Enclosure(Protocol):
    """The walls around one guest, seen from the host. Thread-safe, and not asynchronous."""

    limits_enforced_by: str

    def counters(self) -> Counters:
        """What was used so far."""
        ...

    def kill(self) -> None:
        """Kill everything inside; returns at once, may be called again."""
        ...

    def evidence(self) -> str | None:
        """What the host saw of an end that we did not order; None where a program could have brought it about."""
        ...

    def bury(self) -> Counters:
        """Wait until everything inside is dead, and remove every trace. Called once, after `kill`."""
        ...


@dataclass(frozen=True, slots=True)
class Inside:
    """How a back-end arranges the inside."""

    backend: str
    """Name of the back-end."""
    job: str = "/job"
    work: str = "/work"
    tmp: str = "/tmp"
    path: str = IMAGE_PATH
    uid: int | None = None
    """User of programs; None: the guest's own."""
    trusted_uid: int | None = None
    """User of trusted commands; None: the guest's own."""
    subreaper: bool = False
    """Whether the guest is not pid 1 and must find its orphans by itself."""
    apart: tuple[str, ...] = ()
    """Writable folders that are each a file system of the size all may have together: the guest looks at their sum."""
    shared_disk: bool = False
    """Whether the writable folders lie on a disk of the host's: a full one says nothing about a program."""
    proxy_port: int = 3128
    """Where programs find the proxy on 127.0.0.1."""
    cpu_clock: float = 1.0
    """How far a process's own CPU clock may be ahead of the host's."""
    rlimits: Mapping[str, int] = field(default_factory=dict)
    """Further resource limits of each program: name without RLIMIT_ -> value."""


class GuestSandbox:
    """See `sandboxes.protocol.Sandbox`."""

    def __init__(self, name: str, request: SandboxRequest, inside: Inside, link: Link, enclosure: Enclosure) -> None:
        self.id = name
        self.job, self.work = inside.job, inside.work
        self._request, self._inside = request, inside
        self._link, self._enclosure = link, enclosure
        self._started = time.monotonic()
        self._breach: Breach | None = None
        self._printed = (bytearray(), bytearray())
        self._keeper = Keeper(link, self._counters, self._broken, self._force, self._why_lost, self._ended)
        self._ending: Future[Usage] | None = None
        self._last: Counters | None = None
        self._forced = False
        self._record: Path | None = None

    async def furnish(self, *, warm: bool, snapshot: bool) -> None:
        """Wait for the guest and give it its settings and files; `warm` and `snapshot` say what is still missing.

        Raises ProvisionFailed; the caller then destroys the sandbox.
        """
        inside, request = self._inside, self._request
        self._enter()
        config = {
            "job": inside.job,
            "subreaper": inside.subreaper,
            "writable": [] if inside.shared_disk else inside.apart or [inside.work, inside.tmp],
        }
        if inside.apart:
            config["together"] = [request.limits.disk_mib * MIB, request.limits.inodes]
        self._link.send(
            "C", 0, json.dumps({**config, "proxy": inside.proxy_port if request.network.allow else 0}).encode()
        )
        files = dict(request.warm.files)
        if warm and (files or request.warm.imports):
            self._link.send_files("W", {"imports": request.warm.imports}, files)
        if files | dict(request.files):
            self._link.send_files("F", {}, files | dict(request.files))
        try:
            async with asyncio.timeout(HELLO_S):
                await asyncio.shield(self._link.hello)
        except TimeoutError as error:
            raise ProvisionFailed("the guest did not come up", evidence=f"silent for {HELLO_S:g} s") from error
        if self._link.gone:
            evidence = self._link.complaint or self._enclosure.evidence() or "its connection closed before it spoke"
            raise ProvisionFailed("the sandbox could not be set up", evidence=evidence)
        if snapshot and request.snapshot is not None:
            check(request.snapshot)
            check_unpacked(await self._transfer(unpack_command(request.snapshot.archive, inside.work)))

    @property
    def alive(self) -> bool:
        """Whether the guest is there, as far as is known."""
        return not self._link.gone and self._ending is None

    def hand_over(self, request: SandboxRequest) -> None:
        """Give a sandbox that was made in advance to a request of its shape. Only before its first command."""
        self._request = request
        self._started = time.monotonic()
        self._enter()
        if request.files:
            self._link.send_files("F", {}, request.files)

    async def put(self, files: Mapping[str, File]) -> None:
        """See `Sandbox.put`."""
        result = await self._transfer(unpack_command(pack(files, self.work), "/"))
        if result.exit_code != 0 or result.breach is not None:
            why = result.stderr.decode(errors="replace").strip() or f"{result.breach or 'tar failed'}"
            raise FilesRefused(f"the files could not be written: {why[:500]}")

    async def get(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, File]:
        """See `Sandbox.get`."""
        if not paths:
            return {}
        result = await self._transfer(pack_command(paths, self.work, max_bytes=max_bytes))
        return unpack(result, paths, self.work, max_bytes=max_bytes)

    async def exec(self, command: Command) -> Result:
        """See `Sandbox.exec`."""
        async with await self.start(command) as process:
            return await process.wait()

    async def start(self, command: Command) -> GuestProcess:
        """See `Sandbox.start`."""
        if self._ending is not None:
            raise SandboxLost("the sandbox was destroyed", evidence="its owner called destroy")
        process = GuestProcess(self._keeper, command, self._request.limits)
        process.run(self._order(command))
        return process

    def attach(self, command: Command, listener: Listener, *, terminal: bool) -> tuple[Link, int]:
        """Start a command whose output all goes to `listener`; returns the link and the command's number on it.

        With `terminal` its stdin, stdout and stderr are a terminal, stream 1 both ways. No time or output is bounded.
        """
        return self._link, self._link.start({**self._order(command), "pty": terminal}, listener)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        await self._link.kill_programs()
        limits = self._request.limits
        result = await self._transfer(snapshot_command(self.work, max_mib=limits.disk_mib, inodes=limits.inodes))
        if result.exit_code != 0 or result.breach is not None:
            why = result.stderr.decode(errors="replace").strip()[:500] or str(result.breach)
            raise FilesRefused(f"the workspace could not be read: {why}")
        return Snapshot(sha256(result.stdout).hexdigest(), result.stdout)

    async def destroy(self) -> Usage:
        """See `Sandbox.destroy`."""
        if self._ending is None:
            gone = self._link.gone
            self._hang_up()
            self._ending = threads("burial", _BURIERS).submit(self._end, gone)  # outlives the event loop
        return await asyncio.shield(asyncio.wrap_future(self._ending))

    async def __aenter__(self) -> "GuestSandbox":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.destroy()

    def _hang_up(self) -> None:
        loop = self._link.hello.get_loop()
        if loop is asyncio._get_running_loop():
            self._link.close()
            return
        with contextlib.suppress(RuntimeError):  # it is closed: nobody listens any more, and the kill needs no link
            loop.call_soon_threadsafe(self._link.close)

    def _enter(self) -> None:
        """Let others on this machine see whose this sandbox is."""
        image, owner = self._request.image, self._request.owner
        self._record = registry.enter(self.id, backend=self._inside.backend, image=image, owner=owner)

    async def _transfer(self, command: Command) -> Result:
        """Run a command of ours: what it prints is no program's output, its bounds are no program's limits."""

        def broken(breach: Breach) -> None:
            if breach in ("memory_limit", "process_limit"):  # a program beside it
                self._broken(breach)
            else:
                self._link.send("K", 0)

        keeper = replace(self._keeper, broken=broken, ended=lambda *_: None)
        async with GuestProcess(keeper, command, self._request.limits) as process:
            process.run(self._order(command))
            return await process.wait()

    def _order(self, command: Command) -> dict[str, object]:
        inside, limits = self._inside, self._request.limits
        # Of one process; the host watches their sum. It alone where each frame starts the time afresh: the kernel's
        # count never starts afresh, and its kill would be no breach.
        cpu_s = int((command.cpu_time_s or limits.cpu_time_s) * inside.cpu_clock) + 1
        environment = {"PATH": inside.path, "HOME": inside.work, "TMPDIR": inside.tmp, **_ENVIRONMENT}
        if self._request.network.allow:
            proxy = f"http://127.0.0.1:{inside.proxy_port}"
            names = ("http_proxy", "https_proxy", "all_proxy")
            environment |= {name: proxy for lower in names for name in (lower, lower.upper())}
            environment |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1")
        return {
            "argv": list(command.argv),
            "env": {**environment, **command.env},
            "cwd": command.cwd or inside.work,
            "uid": inside.uid if command.user == "program" else inside.trusted_uid,
            "warm": command.warm,
            "channel": command.channel,
            "pty": False,
            "rlimits": {
                "CORE": 1,  # as 0, and no program of the host's is started for a crash either
                "SIGPENDING": 512,  # the kernel counts queued signals for each user of the host
                "NOFILE": 1024,
                "FSIZE": limits.file_mib * MIB,
                **({} if command.channel else {"CPU": cpu_s}),
                **inside.rlimits,
            },
        }

    def _broken(self, breach: Breach) -> None:
        """Have the guest kill every program."""
        self._breach = self._breach or breach
        self._link.send("K", 0)

    def _counters(self) -> Counters:
        try:
            return self._last or self._enclosure.counters()
        except OSError:
            if self._last is None:
                raise
            return self._last  # it was being buried while we read

    def _force(self) -> None:
        """The guest does not do it: take down the walls."""
        self._forced = True
        self._enclosure.kill()

    def _why_lost(self) -> Breach | None:
        """See `Keeper.why_lost`."""
        counted = self._counters()
        if counted.oom_kills:
            if not counted.memory_limit_hits:
                raise HostOutOfMemory(
                    "the sandbox was killed for memory from above",
                    evidence=f"{counted.oom_kills} killed, own limit {self._request.limits.memory_mib} MiB never hit",
                )
            return "memory_limit"
        if self._forced:
            return self._breach
        evidence = self._enclosure.evidence()
        if evidence is None:
            return self._breach
        raise SandboxLost("the sandbox ended, and not by our hand", evidence=self._link.complaint or evidence)

    def _ended(self, breach: Breach | None, stdout: bytes, stderr: bytes) -> None:
        self._breach = self._breach or breach
        for kept, new in zip(self._printed, (stdout, stderr), strict=True):
            kept += new[: self._request.limits.output_kib * 1024 - len(kept)]

    def _end(self, gone: bool) -> Usage:
        """Kill, wait, count, remove. Runs in a thread; everything is gone when it returns or raises."""
        lost: SandboxError | None = None
        try:
            if gone:
                self._breach = self._why_lost() or self._breach
        except SandboxError as error:
            lost = error
        self._enclosure.kill()
        with contextlib.suppress(OSError):
            self._last = self._enclosure.counters()  # for a command that is still waited for
        try:
            counted = self._enclosure.bury()
        finally:
            registry.leave(self._record)
        if lost is None and counted.oom_kills and not counted.memory_limit_hits:
            lost = HostOutOfMemory(
                "a process of the sandbox was killed for memory from above",
                evidence=f"{counted.oom_kills} killed, own limit {self._request.limits.memory_mib} MiB never hit",
            )
        if lost is not None:
            raise lost
        late: Breach | None = "memory_limit" if counted.oom_kills else None  # of what a command left behind
        if late is None and counted.process_limit_hits:
            late = "process_limit"
        return Usage(
            breach=self._breach or late,
            wall_s=time.monotonic() - self._started,
            cpu_s=counted.cpu_s,
            peak_memory_bytes=counted.peak_memory_bytes,
            stdout=bytes(self._printed[0]),
            stderr=bytes(self._printed[1]),
            limits_enforced_by=self._enclosure.limits_enforced_by,
            connections=tuple(self._link.proxy.connections) if self._link.proxy else (),
            host=socket.gethostname(),
        )
