"""One running command of a sandbox, seen from the host: its output, its channel, its limits, its end."""

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandboxes.host.cgroup import Counters
from sandboxes.limits import Limits
from sandboxes.link import Link
from sandboxes.protocol import Breach, Command, HostOutOfMemory, Result, SandboxLost

_LOOK_EVERY_S = 0.1  # how often a waiting process compares the counters with the limits
_KILL_S = 2.0  # how long the guest may take to kill its programs
_FRAME_HEADER = 4  # bytes of a frame's length, big-endian
_CHANNEL = 3
_ASK_FOR_MORE = 1 << 17  # bytes of frames taken in before the guest may send as many again; half its window


@dataclass(frozen=True, slots=True)
class Keeper:
    """What a process needs of the sandbox it runs in."""

    link: Link
    counters: Callable[[], Counters]
    broken: Callable[[Breach], None]
    """Told of a broken limit: has every program killed."""
    force: Callable[[], None]
    """Called when the programs are still alive after that."""
    why_lost: Callable[[], Breach | None]
    """Called when the connection is gone: the limit that ended the guest, or None for a program's own doing.
    Raises SandboxError when it was the host."""
    ended: Callable[[Breach | None, bytes, bytes], None]
    """Given the limit that was broken, stdout and stderr at the end."""


class GuestProcess:
    """See `sandboxes.protocol.Process`."""

    def __init__(self, keeper: Keeper, command: Command, limits: Limits) -> None:
        self._keeper = keeper
        self._wall_s = command.wall_time_s or limits.wall_time_s
        self._cpu_limit_s = command.cpu_time_s or limits.cpu_time_s
        self._output_limit = (command.output_kib or limits.output_kib) * 1024
        self._stdin = command.stdin
        self._at_start = keeper.counters()
        self._started = self._period = time.monotonic()
        self._cpu_at_period = self._at_start.cpu_s
        self._kept = {1: bytearray(), 2: bytearray()}
        self._printed = {1: 0, 2: 0}
        self._frames = bytearray()
        self._taken_in = 0
        self._channel_open = command.channel
        self._news = asyncio.Event()
        self._breach: Breach | None = None
        self._broke_at = math.inf
        self._status: int | None = None
        self._ended_at: float | None = None
        self._lost = False
        self._killed = False
        self._result: Result | None = None
        self._number = 0
        self._feeding: asyncio.Task[None] | None = None

    def run(self, order: dict[str, object], *, leave_stdin_open: bool = False) -> None:
        """Hand the order to the guest, and stdin with it."""
        self._number = self._keeper.link.start(order, self)
        if not leave_stdin_open:
            if self._stdin:
                self._feeding = asyncio.ensure_future(self._feed())
            else:
                self._keeper.link.sending(self._number, 0).end()

    async def send(self, frame: bytes) -> None:
        """Write one frame and start a new period: of time, of CPU time, and of output."""
        self._period = time.monotonic()
        self._cpu_at_period = self._keeper.counters().cpu_s
        self._printed = {1: 0, 2: 0}
        if self._ended_at is None and not self._lost:
            sending = self._keeper.link.sending(self._number, _CHANNEL)
            try:
                async with asyncio.timeout(self._wall_s):
                    await sending.send(len(frame).to_bytes(_FRAME_HEADER) + frame)
            except TimeoutError:
                self._channel_open = False  # half a frame is on its way: no other can follow

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        """Read one frame; None when there will be none: see `Process.receive`."""
        deadline = time.monotonic() + timeout_s
        heard = self._news.is_set()  # else there is nothing that `send` has not just looked at
        while True:
            if heard:
                self._look()
            # With a broken limit its end is on the way: that tells whether it had said all and left before our kill.
            cut_off = self._broke_at < math.inf and (self._status is None or self._status & 0x7F == signal.SIGKILL)
            if not cut_off and (frame := self._take_frame(max_bytes)) is not None:
                return frame
            left = deadline - time.monotonic()
            over = self._ended_at is not None if cut_off else not self._channel_open
            if over or self._lost or left <= 0:
                return None
            if self._taken_in >= _ASK_FOR_MORE:  # only here: a flood that nobody reads must not fill our memory
                self._keeper.link.send("A", self._number, bytes([_CHANNEL]) + self._taken_in.to_bytes(4))
                self._taken_in = 0
            await self._hear(left)
            heard = True

    async def wait(self) -> Result:
        """Wait for the end, within the limits."""
        while self._ended_at is None and not self._lost:
            self._look()
            left = self._period + self._wall_s - time.monotonic()
            if left <= 0:
                self.broke("time_limit")
            await self._hear(left if left > 0 else _LOOK_EVERY_S)
        return self._settle()

    async def kill(self) -> Result:
        """End every program of the sandbox now, and wait for it."""
        self._look()
        await self._end_programs()
        while self._ended_at is None and not self._lost:
            await self._hear(_LOOK_EVERY_S)
        return self._settle()

    async def __aenter__(self) -> "GuestProcess":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._end_programs()

    def on_output(self, name: int, chunk: bytes) -> None:
        """Keep output up to its bound, and frames until they are read."""
        if name == _CHANNEL:
            if self._channel_open:  # what follows a frame past its bound is no frame
                self._frames += chunk
            self._taken_in += len(chunk)
            self._channel_open = self._channel_open and bool(chunk)
        elif name in self._kept:
            self._printed[name] += len(chunk)
            kept = self._kept[name]
            kept += chunk[: self._output_limit - len(kept)]
            if self._printed[name] > self._output_limit:
                self.broke("output_limit")
        self._news.set()

    def on_end(self, status: int | None, full: bool, error: str | None) -> None:
        """Take the wait status."""
        self._ended_at = time.monotonic()
        self._status = status
        if full and self._breach is None:
            self._breach = "disk_limit"
        if error is not None:
            self._kept[2] += error.encode()[: self._output_limit]
        self._channel_open = False
        self._news.set()

    def on_lost(self) -> None:
        """The connection is gone."""
        self._lost = True
        self._news.set()

    def broke(self, breach: Breach) -> None:
        """A limit is broken: the first counts."""
        if self._breach is None and self._ended_at is None:
            self._breach = breach
            self._broke_at = time.monotonic()
            self._keeper.broken(breach)
            self._news.set()

    async def _end_programs(self) -> None:
        self._killed = self._ended_at is None
        if self._ended_at is None and not self._lost:
            try:
                async with asyncio.timeout(_KILL_S):
                    await self._keeper.link.kill_programs()
            except TimeoutError:
                self._keeper.force()

    async def _feed(self) -> None:
        stdin = self._keeper.link.sending(self._number, 0)
        await stdin.send(self._stdin)
        stdin.end()

    async def _hear(self, seconds: float) -> None:
        """Wait for news, but no longer than until the next look at the counters."""
        if time.monotonic() - self._broke_at > _KILL_S:
            self._keeper.force()
        self._news.clear()
        try:
            async with asyncio.timeout(min(seconds, _LOOK_EVERY_S)):
                await self._news.wait()
        except TimeoutError:
            pass

    def _take_frame(self, max_bytes: int) -> bytes | None:
        if len(self._frames) < _FRAME_HEADER:
            return None
        size = int.from_bytes(self._frames[:_FRAME_HEADER])
        if size > max_bytes:
            self._channel_open = False
            self._frames.clear()
            return None
        if len(self._frames) < _FRAME_HEADER + size:
            return None
        frame = bytes(self._frames[_FRAME_HEADER : _FRAME_HEADER + size])
        del self._frames[: _FRAME_HEADER + size]
        return frame

    def _look(self) -> None:
        """Compare the counters with the limits."""
        now, start = self._keeper.counters(), self._at_start
        if now.oom_kills > start.oom_kills and now.memory_limit_hits:
            self.broke("memory_limit")
        elif now.process_limit_hits > start.process_limit_hits:
            self.broke("process_limit")
        elif now.cpu_s - self._cpu_at_period > self._cpu_limit_s:
            self.broke("time_limit")
        elif now.disk_limit_hits > start.disk_limit_hits:
            self.broke("disk_limit")

    def _settle(self) -> Result:
        """Say how it ended. Raises SandboxError when the host ended it."""
        if self._result is not None:
            return self._result
        if self._feeding is not None:
            self._feeding.cancel()
        now = self._keeper.counters()
        if now.oom_kills > self._at_start.oom_kills and not now.memory_limit_hits:
            raise HostOutOfMemory(
                "a process of the sandbox was killed for memory from above",
                evidence=f"{now.oom_kills} killed, the sandbox's own limit never hit",
            )
        self._late_breach(now)
        self._blame_the_host(now)
        if self._lost and self._ended_at is None:
            self._breach = self._keeper.why_lost() if self._breach is None else self._breach
            self._status, self._ended_at = signal.SIGKILL, time.monotonic()
        self._keeper.link.forget(self._number)
        status = self._status
        by_signal = status & 0x7F if status is not None else 0
        stdout, stderr = bytes(self._kept[1]), bytes(self._kept[2])
        self._keeper.ended(self._breach, stdout, stderr)
        assert self._ended_at is not None
        self._result = Result(
            exit_code=None if by_signal else status >> 8 if status is not None else 126,
            signal=by_signal or None,
            breach=self._breach,
            wall_s=self._ended_at - self._started,
            cpu_s=max(0.0, now.cpu_s - self._at_start.cpu_s),
            stdout=stdout,
            stderr=stderr,
        )
        return self._result

    def _blame_the_host(self, now: Counters) -> None:
        """Raise SandboxError for an end that limits above the sandbox's own brought about."""
        start = self._at_start
        if self._breach is not None or self._status == 0 or self._killed:
            return
        if now.processes_refused_above > start.processes_refused_above:
            raise SandboxLost(
                "the host refused the sandbox a process",
                evidence=f"{now.processes_refused_above} refused, the sandbox's own limit not reached",
            )
        killed = self._status is not None and self._status & 0x7F == signal.SIGKILL
        if killed and now.oom_kills_anywhere > start.oom_kills_anywhere:
            raise HostOutOfMemory(
                "a process was killed, and not by us, while the host killed for memory in the group we share with it",
                evidence=f"{now.oom_kills_anywhere - start.oom_kills_anywhere} killed there, own limit never hit",
            )

    def _late_breach(self, now: Counters) -> None:
        """A limit that was broken after the last look."""
        if self._breach not in (None, "disk_limit"):
            return
        by_signal = self._status & 0x7F if self._status is not None else 0
        if now.oom_kills > self._at_start.oom_kills and now.memory_limit_hits:
            self._breach = "memory_limit"
        elif now.process_limit_hits > self._at_start.process_limit_hits:
            self._breach = "process_limit"
        elif by_signal == signal.SIGXCPU:
            self._breach = "time_limit"
        elif by_signal == signal.SIGXFSZ or now.disk_limit_hits > self._at_start.disk_limit_hits:
            self._breach = "disk_limit"
