"""One running sandbox, seen from the host: its channel, its output, its limits, its end."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

from sandboxes.cgroup import Cgroup
from sandboxes.limits import Limits
from sandboxes.procfs import ProcessTree
from sandboxes.protocol import Breach, HostOutOfMemory, ProvisionFailed, SandboxLost, Usage

_LOOK_EVERY_S = 0.1  # how often a waiting session compares the counters with the limits
_BURIAL_S = 2.0  # how long bwrap may take to end after its sandbox
_CHUNK = 65536
_HEADER = 4  # bytes of a frame's length, big-endian


class Output:
    """What a sandbox prints: drained always, kept up to a bound, counted per case."""

    def __init__(self, out: int, err: int, limit_bytes: int) -> None:
        self.fds = {"stdout": out, "stderr": err}
        self.kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._limit = limit_bytes
        self._printed = 0
        for fd in (out, err):
            os.set_blocking(fd, False)

    @property
    def over(self) -> bool:
        """Whether the current case printed more than it may."""
        return self._printed > self._limit

    def new_case(self) -> None:
        """Start counting afresh; what was printed before counts for the case before."""
        for name in self.fds:
            while not self.over and self.read(name):
                pass
        if not self.over:
            self._printed = 0

    def read(self, name: str) -> int | None:
        """Take one chunk; its bytes, 0 at the end of the stream, None when there is nothing now."""
        try:
            chunk = os.read(self.fds[name], _CHUNK)
        except BlockingIOError:
            return None
        self._printed += len(chunk)
        self.kept[name] += chunk[: self._limit - len(self.kept["stdout"]) - len(self.kept["stderr"])]
        return len(chunk)

    def close(self, name: str) -> None:
        """Close a stream. Only for a caller who knows that no event loop watches it."""
        os.close(self.fds.pop(name))

    def finish(self, patience_s: float) -> None:
        """Read on until every writer is gone or `patience_s` has passed, then close."""
        deadline = time.monotonic() + patience_s
        while self.fds and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(list(self.fds.values()), [], [], left)
            for name in [name for name, fd in self.fds.items() if fd in ready]:
                if self.read(name) == 0:
                    self.close(name)
        for name in list(self.fds):
            self.close(name)


class ProcessSession:
    """A sandbox that is a process of this machine; see `sandboxes.protocol.Session`.

    A broken limit ends the sandbox at once: `receive` gives None and `close` names the limit.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        status_fd: int,
        output: Output,
        limits: Limits,
        group: Cgroup | None,
    ) -> None:
        self._process = process
        self._channel = channel
        self._status_fd = status_fd
        self._output = output
        self._limits = limits
        self._group = group
        self._meter = group or ProcessTree(process.pid, limits)
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic()
        self._received = bytearray()
        self._gone = False  # the other side closed the channel, or broke it
        self._killed = False
        self._breach: Breach | None = None
        self._cpu_at_send = 0.0
        self._wake = asyncio.Event()
        self._ending: asyncio.Future[Usage] | None = None
        channel.setblocking(False)
        for name, fd in output.fds.items():
            self._loop.add_reader(fd, self._on_output, name)

    async def send(self, frame: bytes) -> None:
        """Write one frame. Does nothing if the other side is gone or takes it no faster than the wall-clock limit."""
        if self._gone or self._ending is not None:
            return
        self._output.new_case()
        self._cpu_at_send = self._meter.counters().cpu_s
        try:
            async with asyncio.timeout(self._limits.wall_time_s):
                await self._loop.sock_sendall(self._channel, len(frame).to_bytes(_HEADER) + frame)
        except (TimeoutError, OSError):
            self._gone = True

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        """Read one frame; None when there will be none: see `Session.receive`."""
        if self._ending is not None:
            return None
        deadline = time.monotonic() + timeout_s
        most = _HEADER + max_bytes
        self._loop.add_reader(self._channel, self._on_channel, most)
        try:
            while True:
                frame = self._take_frame(max_bytes)
                self._look()
                if self._killed:
                    return None
                left = deadline - time.monotonic()
                if frame is not None or self._gone or left <= 0:
                    return frame
                self._wake.clear()
                try:
                    async with asyncio.timeout(min(left, _LOOK_EVERY_S)):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            self._loop.remove_reader(self._channel)

    async def close(self) -> Usage:
        """Kill what is left and say what was used. Once begun it ends, even if the caller is cancelled meanwhile."""
        if self._ending is None:
            for fd in self._output.fds.values():
                self._loop.remove_reader(fd)
            self._channel.close()
            # A thread, not a task: the end of the event loop cancels tasks but waits for threads.
            self._ending = self._loop.run_in_executor(None, self._end)
        return await asyncio.shield(self._ending)

    async def __aenter__(self) -> "ProcessSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _on_channel(self, most: int) -> None:
        try:
            chunk = self._channel.recv(min(_CHUNK, most - len(self._received)))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._received += chunk
        self._gone = self._gone or not chunk
        if self._gone or len(self._received) >= most:
            self._loop.remove_reader(self._channel)
        self._wake.set()

    def _take_frame(self, max_bytes: int) -> bytes | None:
        if len(self._received) < _HEADER:
            return None
        length = int.from_bytes(self._received[:_HEADER])
        if length > max_bytes:
            self._gone = True
            return None
        if len(self._received) < _HEADER + length:
            return None
        frame = bytes(self._received[_HEADER : _HEADER + length])
        del self._received[: _HEADER + length]
        return frame

    def _on_output(self, name: str) -> None:
        ended = self._output.read(name) == 0
        if ended or self._output.over:
            self._loop.remove_reader(self._output.fds[name])
        if ended:
            self._output.close(name)
        if self._output.over:
            self._break("output_limit")

    def _look(self) -> None:
        """Compare the counters with the limits."""
        if self._killed:
            return
        counted = self._meter.counters()
        if counted.oom_kills:
            self._break("memory_limit" if counted.memory_limit_hits else None)
        elif counted.process_limit_hits:
            self._break("process_limit")
        elif counted.cpu_s - self._cpu_at_send > self._limits.cpu_time_s:
            self._break("time_limit")
        elif self._output.over:
            self._break("output_limit")

    def _break(self, breach: Breach | None) -> None:
        self._breach = self._breach or breach
        self._killed = True
        self._kill()
        self._wake.set()

    def _kill(self) -> None:
        """Kill the sandbox's init, and with it all inside; bwrap buries it and ends. If there is none, kill bwrap."""
        try:
            inits = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except OSError:
            inits = []
        for pid in inits:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not inits:
            self._process.kill()

    def _end(self) -> Usage:
        """Kill, wait, count, remove. Runs in a thread; everything of the sandbox is gone when it returns or raises."""
        before = self._ended_already()
        if before is None:
            self._kill()
        try:
            code = self._process.wait(_BURIAL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        wall_s = time.monotonic() - self._started
        # bwrap ended after the kernel had killed everything inside; the streams end with the last of it.
        self._output.finish(patience_s=2.0 if self._group is None or before is not None else 0.05)
        try:
            counted = self._meter.counters()
        finally:
            if self._group is not None:
                self._group.destroy()
        status = _read_all(self._status_fd)
        if counted.oom_kills and not counted.memory_limit_hits:
            raise HostOutOfMemory(
                "a process of the sandbox was killed for memory from above",
                evidence=f"{counted.oom_kills} killed, own limit {self._limits.memory_mib} MiB never hit",
            )
        breach = self._breach or self._late_breach(counted.oom_kills, counted.process_limit_hits)
        stderr = bytes(self._output.kept["stderr"])
        if breach is None and not self._killed and before is not None:
            if before < 0:
                raise SandboxLost(
                    "bubblewrap was killed", evidence=f"it ended by signal {-before}, which we did not send"
                )
            if "exit-code" not in status:
                evidence = stderr.decode(errors="replace").strip()[:500] or f"exit code {before} during set-up"
                raise ProvisionFailed("the sandbox could not be set up", evidence=evidence)
        ended_by = -code if code < 0 else code - 128 if 128 < code <= 128 + signal.NSIG else None
        return Usage(
            exit_code=code if ended_by is None else None,
            signal=ended_by,
            breach=breach,
            wall_s=wall_s,
            cpu_s=counted.cpu_s,
            peak_memory_bytes=counted.peak_memory_bytes,
            stdout=bytes(self._output.kept["stdout"]),
            stderr=stderr,
            limits_enforced_by=f"cgroup-v{self._group.version}" if self._group else "rlimits",
        )

    def _ended_already(self) -> int | None:
        if self._gone and not self._killed:  # bwrap holds the channel too: it is ending, if it has not yet
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(0.5)
        return self._process.poll()

    def _late_breach(self, oom_kills: int, process_limit_hits: int) -> Breach | None:
        """A limit that was broken after the last look."""
        if oom_kills:
            return "memory_limit"
        if process_limit_hits:
            return "process_limit"
        return "output_limit" if self._output.over else None


def _read_all(fd: int) -> dict[str, object]:
    """The status documents bwrap wrote, merged. Nothing inside the sandbox can write there."""
    os.set_blocking(fd, False)
    try:
        text = os.read(fd, _CHUNK).decode()
    except BlockingIOError:
        text = ""
    finally:
        os.close(fd)
    merged: dict[str, object] = {}
    for line in text.splitlines():
        merged |= json.loads(line)
    return merged
