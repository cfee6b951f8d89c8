"""The walls of one container, seen from the host: its control group, its first process, and its engine."""

import contextlib
import logging
import os
import select
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.backends.container_engine import describe, group_of, remove_container
from sandboxes.host.cgroup import Cgroup, Counters
from sandboxes.host.threads import threads
from sandboxes.protocol import ProvisionFailed

if TYPE_CHECKING:
    from docker import DockerClient

_BURIAL_S = 10.0  # longest a killed container's first process may take to be gone
_STATE_S = 3.0  # longest an engine may take to say how a container is
_ASKERS = 4
_log = logging.getLogger(__name__)


class Box:
    """The walls of one container: see `sandboxes.sandbox.Enclosure`."""

    def __init__(
        self, client: "DockerClient", name: str, container: str, pid: int, group: Cgroup | None, *, guest_kernel: bool
    ) -> None:
        """Take hold of a started container; `group` is to be its control group. Raises OSError, ProvisionFailed.

        ProcessLookupError or FileNotFoundError say that it has ended already; its pid is then 0, or was.
        """
        self.name = name
        self.process_limit_hits = 0
        """Times the guest found too many processes, on a kernel that does not limit them."""
        self._client, self._container, self._guest_kernel = client, container, guest_kernel
        if pid == 0:
            raise ProcessLookupError(f"container {name} has ended")
        self._pidfd = os.pidfd_open(pid)
        try:
            seen = Path(f"/proc/{pid}/cgroup").read_text()
            if container not in seen and container not in Path(f"/proc/{pid}/cmdline").read_text():
                raise ProvisionFailed(
                    "the engine is not on this machine, or in another pid namespace: its limits cannot be watched",
                    evidence=f"process {pid} is not of container {container[:12]}",
                )
            self._own = group is not None
            if group is not None:
                _move(pid, group, shim_of=container if guest_kernel else None)
            elif container not in seen:
                raise ProvisionFailed(
                    f"runtime of {name} uses no control groups, and this process can make none: run as root",
                    evidence=f"process {pid} is in {seen!r}",
                )
            self._group = group or group_of(pid)
            self._last = self._group.counters()
        except BaseException:
            os.close(self._pidfd)
            raise
        self.limits_enforced_by = f"cgroup-v{self._group.version}"

    def watch(self) -> int:
        """A new descriptor that can be read once the container's first process is dead."""
        return os.dup(self._pidfd)

    def counters(self) -> Counters:
        """What was used so far."""
        try:
            counted = self._group.counters()
            self._last = replace(counted, process_limit_hits=counted.process_limit_hits + self.process_limit_hits)
        except OSError:
            if self._own:
                raise
        return self._last  # the engine removes a container's group with it

    def kill(self) -> None:
        """The guest, or its kernel, is what everything inside dies with."""
        if self._pidfd < 0:
            return
        self.counters()
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            threads("docker-ask", _ASKERS).submit(self._remove)

    def evidence(self) -> str | None:
        """What the host and the engine saw of its end."""
        # No program can end pid 1: it has another user, and ignores signals from below. But the kernel that gVisor
        # gives it ends when it can have no more threads.
        with contextlib.suppress(OSError):  # it is being buried as we ask: what was read last stands
            self.counters()
        if self._guest_kernel and self._last.process_limit_hits:
            return None
        try:
            said = threads("docker-ask", _ASKERS).submit(self._state).result(_STATE_S)
        except TimeoutError:
            said = f"nothing for {_STATE_S:g} s"
        except OSError as error:
            said = describe(error)
        return f"container {self.name}: pid 1 {'ended' if self._dead(0) else 'runs'}; the engine says: {said}"

    def bury(self) -> Counters:
        """Wait for its end, and remove group and container. An engine that does not answer keeps the container."""
        with contextlib.ExitStack() as left:  # whatever fails, the rest goes
            left.callback(self._let_go)
            left.callback(self._remove)
            if self._own:
                left.callback(self._group.destroy)
            self._dead(_BURIAL_S)
            return self.counters()

    def _let_go(self) -> None:
        pidfd, self._pidfd = self._pidfd, -1  # its number may soon be another container's
        os.close(pidfd)

    def _state(self) -> str:
        state = self._client.api.inspect_container(self._container)["State"]
        return ", ".join(f"{key} {state[key]!r}" for key in ("Status", "ExitCode", "OOMKilled", "Error"))

    def _dead(self, patience_s: float) -> bool:
        if self._pidfd < 0:
            return True
        end = select.poll()  # not select, which ends at descriptor 1023
        end.register(self._pidfd, select.POLLIN)
        return bool(end.poll(patience_s * 1000))

    def _remove(self) -> None:
        try:
            remove_container(self._client, self._container)
        except OSError as error:  # its programs are dead; the sweep of the next process gets the rest
            _log.warning("container %s is left to the engine, or the next sweep: %s", self.name, describe(error))


def _move(pid: int, group: Cgroup, *, shim_of: str | None) -> None:
    """Put a container's first process into a group; with `shim_of`, the container, all that its shim started too."""
    tops = [str(pid)]
    if shim_of is not None:
        shim = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        if shim_of in Path(f"/proc/{shim}/cmdline").read_text():  # else it died, and init took its children
            tops = _children(shim)
    moved: set[str] = set()
    while fresh := {thread for top in tops for thread in _threads(top, below=shim_of is not None)} - moved:
        for path in group.entrances:
            for thread in fresh:
                with contextlib.suppress(ProcessLookupError):
                    Path(path).write_text(thread)
        moved |= fresh


def _threads(top: str, *, below: bool) -> set[str]:
    """Threads of a process, and of those below it."""
    found: set[str] = set()
    waiting = [top]
    while waiting:
        process = waiting.pop()
        with contextlib.suppress(OSError):  # it ended while we looked
            found |= set(os.listdir(f"/proc/{process}/task"))
            waiting += _children(process) if below else []
    return found


def _children(process: str) -> list[str]:
    return [child for file in Path(f"/proc/{process}/task").glob("*/children") for child in file.read_text().split()]
