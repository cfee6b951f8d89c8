"""What a place that runs untrusted code owes to those who use it.

A provider opens a `Session`: one isolated process tree, started from argv, used by one episode, never reused. The
caller talks to it in frames of bytes over a channel of its own; stdout and stderr are evidence, never a control
channel. Results are data. What the program did is a result (`Usage.breach`, exit status); what the host failed at is a
`SandboxError`, which cannot be written without host-side evidence.

Nothing here assumes a local path or one host: files are passed as bytes, commands as argv inside the sandbox.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sandboxes.limits import Limits

Breach = Literal["time_limit", "memory_limit", "output_limit", "process_limit", "disk_limit"]


class SandboxError(Exception):
    """The host failed, not the program. `evidence` is what the host itself saw."""

    outcome = "sandbox_lost"

    def __init__(self, message: str, *, evidence: str) -> None:
        if not evidence.strip():
            raise ValueError("an infra error needs host-side evidence")
        super().__init__(f"{message} [{evidence}]")
        self.evidence = evidence


class ProvisionFailed(SandboxError):
    """The sandbox could not be created."""

    outcome = "provision_failed"


class SandboxLost(SandboxError):
    """The sandbox went away for a reason that is the host's."""

    outcome = "sandbox_lost"


class HostOutOfMemory(SandboxError):
    """A process was killed for memory although the sandbox's own limit was never hit."""

    outcome = "host_out_of_memory"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session used, measured from the host, and how it ended."""

    exit_code: int | None
    """Exit status; None when a signal ended it."""
    signal: int | None
    """Signal that ended it; None when it exited."""
    breach: Breach | None
    """The limit that was broken, told from a crash by what the host counted."""
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    stdout: bytes
    """What it printed, cut at the output limit."""
    stderr: bytes
    limits_enforced_by: str
    """`cgroup-v1`, `cgroup-v2` or `rlimits`."""


class Session(Protocol):
    """One isolated process tree and the channel to it. An asynchronous context manager: leaving it kills the tree."""

    async def send(self, frame: bytes) -> None:
        """Write one frame. Does nothing if the other side is gone."""
        ...

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        """Read one frame; None when the other side is gone, silent past `timeout_s`, or broke the framing."""
        ...

    async def close(self) -> Usage:
        """Kill what is left and say what was used. May be called again. Raises SandboxError on the host's failure."""
        ...

    async def __aenter__(self) -> "Session": ...

    async def __aexit__(self, *exc: object) -> None: ...


class SandboxProvider(Protocol):
    """A back-end. Picklable: it travels to the workers of the dataflow."""

    name: str

    async def open(self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: Limits) -> Session:
        """Start argv in a fresh sandbox that holds `files` (relative name -> content) in its read-only `/job`.

        Raises ProvisionFailed.
        """
        ...
