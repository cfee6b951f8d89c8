"""Sandboxes from bubblewrap: own namespaces, no network, a read-only system, limits by control group or rlimits.

bubblewrap raises the walls once, around a warm interpreter (`zygote.py`) that sees an image and nothing else of the
host. Each sandbox is a fork of it, with namespaces, mounts and a control group of its own, used once. Works as root and
without. As root, programs and the guest run under host users of their own, mapped into a user namespace made
beforehand. Without root, programs run under the user's uid in a user namespace below the guest's. Either way they hold
no capability and can gain none. Everything inside dies with the zygote, which dies with us.

The image `host` is this machine's own system: of it and of the interpreter's installation the programs and libraries
are there to be read, without any installed Python package: one of them might hold the answers.

What this does not stop: a flaw in the kernel; side channels between programs on one machine; and what the kernel counts
for each user of the host (pages in pipes, descriptors under way between processes), since all programs have one user.
"""

import asyncio
import contextlib
import logging
import os
import re
import select
import signal
import socket
import struct
import time
from concurrent.futures import Future
from dataclasses import replace

from sandboxes.backends.walls import KEEPER_ID, PROGRAM_HOST_ID, PROGRAM_ID, Zygote, host_path, snapshot_store
from sandboxes.host.cgroup import Cgroup, Counters, find_hierarchy
from sandboxes.host.folders import remove
from sandboxes.host.procfs import ProcessTree
from sandboxes.host.threads import threads
from sandboxes.limits import MIB
from sandboxes.link import Link
from sandboxes.network.proxy import Proxy
from sandboxes.protocol import ProvisionFailed, SandboxError, SandboxRequest, Snapshot
from sandboxes.sandbox import HELLO_S, IMAGE_PATH, GuestSandbox, Inside
from sandboxes.transfer import check, check_unpacked, unpack_command

_BURIAL_S = 10.0  # longest a killed sandbox may take to be gone; a process in uninterruptible sleep takes longer
_DIGEST = re.compile("[0-9a-f]{64}")
_KEEPERS = 3  # bwrap, the zygote and the guest count where programs have no user of their own
_MAKERS = 32  # sandboxes that can be made at once; some wait for their zygote to warm up
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
_log = logging.getLogger(__name__)


class Bubblewrap:
    """Sandboxes on this machine. Picklable; holds no state of its own: the zygotes belong to the process."""

    name = "bubblewrap"

    def __init__(self, *, cgroups: bool = True) -> None:
        self.cgroups = cgroups
        """Whether control groups are used where they can be made; False always takes rlimits."""

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        """See `SandboxProvider.create`."""
        lower = None if request.snapshot is None else await self._unpacked(request.snapshot, request)
        return await self._create(request, lower=lower, fill=None)

    async def _create(self, request: SandboxRequest, *, lower: str | None, fill: str | None) -> GuestSandbox:
        # In threads of our own: neither a cancelled caller nor the end of its event loop may leave a half-made sandbox.
        making = threads("bubblewrap", _MAKERS).submit(self._fork, request, lower=lower, fill=fill)
        try:
            box, near = await asyncio.wrap_future(making)
        except asyncio.CancelledError:  # not GeneratorExit: the garbage collector may come while a lock is held
            threads("bubblewrap", _MAKERS).submit(_abandon, making)
            raise
        link = Link(Proxy(request.network) if request.network.allow else None)
        sandbox = GuestSandbox(box.name, request, self._inside(request), link, box)
        try:
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=near)
            except BaseException:
                near.close()  # from here on the link does that
                raise
            await sandbox.furnish(warm=False, snapshot=False)
        except GeneratorExit:
            raise
        except BaseException:
            with contextlib.suppress(SandboxError):
                await sandbox.destroy()
            raise
        return sandbox

    def _inside(self, request: SandboxRequest) -> Inside:
        path = host_path() if request.image == "host" else IMAGE_PATH
        root = os.geteuid() == 0
        limits, rlimits = request.limits, {}
        if not self._grouped():
            # Counted per user namespace, so only of this sandbox. With the guest that is one more than allowed, so
            # that a full house can be told from one that is past the limit.
            most = limits.processes + (0 if root else _KEEPERS)
            rlimits = {"NPROC": most, "AS": limits.memory_mib * MIB}
        return Inside(
            backend=self.name,
            path=path,
            uid=PROGRAM_ID if root else None,
            trusted_uid=KEEPER_ID if root else None,
            rlimits=rlimits,
        )

    def _grouped(self) -> bool:
        return self.cgroups and find_hierarchy() is not None

    def _fork(self, request: SandboxRequest, *, lower: str | None, fill: str | None) -> tuple["_Box", socket.socket]:
        """Fork a sandbox off its zygote. Runs in a thread. Raises ProvisionFailed."""
        try:
            group = Cgroup.create(request.limits) if self.cgroups else None
        except OSError as error:
            raise ProvisionFailed("cannot make a control group", evidence=str(error)) from error
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        entrances: list[int] = []
        zygote: Zygote | None = None
        try:
            with far:
                entrances += [os.open(path, os.O_WRONLY) for path in (group.entrances if group else ())]
                # Without groups the kernel counts processes per zygote: each sandbox has one of its own.
                zygote = Zygote.take(request.image, request.warm, shared=group is not None)
                limits = request.limits
                order = {"bytes": limits.disk_mib * MIB, "inodes": limits.inodes, "lower": lower, "fill": fill}
                zygote.ask(order, [far.fileno(), *entrances])
            pid = _first_word(near, zygote)
            return _Box(pid, group or ProcessTree(pid, limits), zygote), near
        except BaseException as error:
            near.close()
            if zygote is not None:
                zygote.give_back()
            if group is not None:
                group.destroy()
            if isinstance(error, OSError):
                raise ProvisionFailed("cannot fork a sandbox", evidence=str(error)) from error
            raise
        finally:
            for fd in entrances:
                os.close(fd)

    async def _unpacked(self, snapshot: Snapshot, request: SandboxRequest) -> str:
        """The name of the folder in the store that holds a snapshot's files: unpacked once, inside a sandbox."""
        folder = snapshot_store() / snapshot.digest
        if not _DIGEST.fullmatch(snapshot.digest) or not folder.exists():
            check(snapshot)
            begun = folder.with_name(f"{snapshot.digest}.{os.getpid()}.{time.monotonic_ns()}")
            begun.mkdir(mode=0o755)
            if os.geteuid() == 0:
                os.chown(begun, PROGRAM_HOST_ID, PROGRAM_HOST_ID)
            try:
                async with await self._create(request, lower=None, fill=begun.name) as sandbox:
                    unpack = unpack_command(snapshot.archive, sandbox.work)
                    check_unpacked(await sandbox.exec(unpack))
                    # Inside the bits have no effect, but the store is no place for them.
                    argv = ("find", ".", "-type", "f", "-perm", "/6000", "-exec", "chmod", "ug-s", "{}", "+")
                    check_unpacked(await sandbox.exec(replace(unpack, argv=argv, stdin=b"")))
                with contextlib.suppress(FileExistsError, OSError):  # somebody else was quicker
                    begun.rename(folder)
            finally:
                if begun.exists():
                    remove(begun)
        os.utime(folder)  # what is used is not swept
        return snapshot.digest


class _Box:
    """The walls of one sandbox: see `sandboxes.sandbox.Enclosure`."""

    def __init__(self, pid: int, meter: Cgroup | ProcessTree, zygote: Zygote) -> None:
        """Take hold of a fork of the zygote. Raises OSError when it is gone."""
        self._pidfd = os.pidfd_open(pid)
        self.name = f"{os.getpid()}-{self._pidfd}-{time.monotonic_ns():x}"
        self._pid, self._meter, self._zygote = pid, meter, zygote
        self.limits_enforced_by = f"cgroup-v{meter.version}" if isinstance(meter, Cgroup) else "rlimits"

    def counters(self) -> Counters:
        return self._meter.counters(brief=True) if isinstance(self._meter, Cgroup) else self._meter.counters()

    def kill(self) -> None:
        """The guest is pid 1: with it everything inside dies."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def evidence(self) -> str | None:
        # No program can end its pid 1: it has another user or a user namespace above, and ignores signals from below.
        return f"its pid 1 ended; {self._zygote.state()}"

    def bury(self) -> Counters:
        """Wait for its end and remove its group. What the kernel does not let go of is left, with a warning."""
        try:
            end = select.poll()  # not select, which ends at descriptor 1023
            end.register(self._pidfd, select.POLLIN)
            if not end.poll(_BURIAL_S * 1000):
                _log.warning("sandbox %s: pid %d is still there %g s after its kill", self.name, self._pid, _BURIAL_S)
            counted = self._meter.counters()
            if isinstance(self._meter, Cgroup) and not self._meter.destroy():
                group = ", ".join(str(path) for path in self._meter.paths.values())
                _log.warning("sandbox %s: the group %s is left to the next process's sweep", self.name, group)
            return counted
        finally:
            pidfd, self._pidfd = self._pidfd, -1  # its number may soon be another sandbox's
            os.close(pidfd)
            self._zygote.give_back()


def _first_word(near: socket.socket, zygote: Zygote) -> int:
    """Wait until the fork stands; its pid, as the kernel tells it. Raises ProvisionFailed."""
    near.settimeout(HELLO_S)
    try:
        word, ancillary, _, _ = near.recvmsg(1, socket.CMSG_SPACE(12))
        if word == b"!":
            near.setblocking(False)
            return struct.unpack("3i", next(data for _, kind, data in ancillary if kind == _SCM_CREDENTIALS))[0]
        why = (word + near.recv(4096))[9:].decode(errors="replace")
    except TimeoutError:
        why = f"silent for {HELLO_S:g} s"
    raise ProvisionFailed("the sandbox could not be set up", evidence=why or zygote.state())


def _abandon(making: Future[tuple[_Box, socket.socket]]) -> None:
    """End what was made, or is being made, for a caller who is gone. Runs in a thread."""
    if not making.cancelled() and making.exception() is None:
        box, near = making.result()
        near.close()
        box.kill()
        box.bury()
