"""What a place that runs untrusted code owes to those who use it.

A provider creates a `Sandbox` from an image: an isolated process tree with files of its own, used by one episode, never
reused. Commands run in it; files go in and out as bytes; a snapshot of its workspace can start the next one. A command
may have a channel: frames of bytes on descriptor 3, apart from stdout and stderr, which are evidence and never control.

Results are data. What a program did is a result (`Result.breach`, exit status); what the host failed at is a
`SandboxError`, which cannot be written without host-side evidence. A lost sandbox is never a result.

Nothing here assumes a local path or one host: files are bytes, images are names, snapshots are data.

Inside every sandbox: `Sandbox.job` is a folder that programs cannot write to; `Sandbox.work` is the workspace, where
commands start; both workspace and TMPDIR are writable, and bounded together by the disk limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sandboxes.limits import Limits, Network

Breach = Literal["time_limit", "memory_limit", "output_limit", "process_limit", "disk_limit"]


class SandboxError(Exception):
    """The host failed, not the program. `evidence` is what the host itself saw."""

    outcome = "sandbox_lost"

    def __init__(self, message: str, *, evidence: str) -> None:
        if not evidence.strip():
            raise ValueError("an infra error needs host-side evidence")
        super().__init__(f"{message} [{evidence}]")
        self.message = message
        self.evidence = evidence
        self.host: str | None = None
        """Which of several hosts failed, for `Demand.avoid`."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.evidence)


class ProvisionFailed(SandboxError):
    """The sandbox could not be created."""

    outcome = "provision_failed"


class ImageMissing(ProvisionFailed):
    """The image is not there, or not one this back-end can use. No other try and no other host will change that."""


class SandboxLost(SandboxError):
    """The sandbox went away for a reason that is the host's."""

    outcome = "sandbox_lost"


class HostOutOfMemory(SandboxError):
    """A process was killed for memory although the sandbox's own limit was never hit."""

    outcome = "host_out_of_memory"


class DeadlineExceeded(SandboxError):
    """The request's deadline passed before it could be served."""

    outcome = "deadline_exceeded"


class FilesRefused(ValueError):
    """Files asked for cannot be taken out: links, devices, pipes, names that leave the folder, too many bytes.

    The program's doing, not the host's.
    """


@dataclass(frozen=True, slots=True)
class File:
    """A regular file as data."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace at rest: a tar archive of its files, named by what it holds. Travels anywhere."""

    digest: str
    """SHA-256 of the archive, hexadecimal."""
    archive: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Warm:
    """What an interpreter has ready before a sandbox is asked for, so that a `Command.warm` starts in milliseconds.

    Runs before any untrusted code is in the sandbox, in the image's own Python.
    """

    imports: tuple[str, ...] = ()
    """Modules to import, in this order: of the image, or of `files` by stem."""
    files: tuple[tuple[str, bytes], ...] = ()
    """Python sources by name, compiled in advance; each lies in the sandbox's job folder too."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a scheduler must know of a request besides its limits, whose memory and disk it reserves."""

    cpus: float = 1.0
    gpus: int = 0
    expected_s: float = 10.0
    """Seconds the sandbox will be held, as far as the caller can tell."""
    deadline_s: float | None = None
    """Seconds from now, time in the queue included, after which the sandbox is of no use."""
    priority: int = 0
    """Higher goes first among requests of one owner."""
    avoid: frozenset[str] = frozenset()
    """Hosts not to be placed on while another will do, such as the one that failed this episode before."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What a sandbox is made from."""

    image: str = "host"
    """Name of an image: see `sandboxes.images.catalog`. `host` is this machine's own read-only system."""
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Relative name -> content, put into the job folder."""
    snapshot: Snapshot | None = None
    """What the workspace holds at the start; empty without."""
    warm: Warm = Warm()
    owner: str = ""
    """Who asked, such as a run id: shown by `headrace sandbox list`, carried by folders and containers, and what the
    scheduler shares hosts among."""
    demand: Demand = field(default_factory=Demand)


@dataclass(frozen=True, slots=True)
class Command:
    """One command to run in a sandbox."""

    argv: tuple[str, ...]
    """Program and arguments; the program is looked for on PATH inside. With `warm`: a Python file of the job folder
    and its arguments."""
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the sandbox's own few variables. Nothing of the host's environment is ever there."""
    cwd: str | None = None
    """Folder inside to start in; the workspace by default."""
    user: Literal["program", "trusted"] = "program"
    """`trusted` runs as the sandbox's own root (no capabilities), whose files programs cannot change; back-ends that
    have one user only run it as that one."""
    warm: bool = False
    """Fork the waiting interpreter instead of starting one."""
    channel: bool = False
    """Whether descriptor 3 is a channel of frames (`Process.send`, `Process.receive`)."""
    wall_time_s: float | None = None
    """These three replace the sandbox's own limits for this command."""
    cpu_time_s: float | None = None
    output_kib: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How one command ended, and what it used, measured from the host."""

    exit_code: int | None
    """Exit status; None when a signal ended it."""
    signal: int | None
    """Signal that ended it; None when it exited."""
    breach: Breach | None
    """The limit that was broken, told from a crash by what the host counted."""
    wall_s: float
    cpu_s: float
    stdout: bytes
    """What it printed, cut at the output limit; so is stderr, on its own."""
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox used from its creation to its end, measured from the host."""

    breach: Breach | None
    """The first limit that was broken."""
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    stdout: bytes
    """What its commands printed, in the order they ended, cut at the output limit; so is stderr, on its own."""
    stderr: bytes
    limits_enforced_by: str
    """`cgroup-v1`, `cgroup-v2` or `rlimits`."""
    connections: tuple[str, ...] = ()
    """Network connections asked for, in order: `allowed HOST:PORT`, `refused HOST:PORT (why)`, or `failed HOST:PORT
    (why)` for one that is allowed and was not reached."""
    host: str | None = None
    """Name of the machine it stood on; None where there was no sandbox."""


class Process(Protocol):
    """One running command. An asynchronous context manager: leaving it ends the command."""

    async def send(self, frame: bytes) -> None:
        """Write one frame and start counting time and output afresh. Does nothing if the other side is gone."""
        ...

    async def receive(self, *, timeout_s: float, max_bytes: int) -> bytes | None:
        """Read one frame; None when the other side is gone, silent past `timeout_s`, or broke the framing.

        What a program sent before it ended by itself is delivered first, whatever its `Result.breach`. One that was
        killed for a broken limit has sent nothing more.
        """
        ...

    async def wait(self) -> Result:
        """Wait for its end, within its limits. Raises SandboxError on the host's failure."""
        ...

    async def kill(self) -> Result:
        """End every program of the sandbox now, and wait for it. Raises SandboxError on the host's failure."""
        ...

    async def __aenter__(self) -> "Process": ...

    async def __aexit__(self, *exc: object) -> None: ...


class Sandbox(Protocol):
    """One isolated place. An asynchronous context manager: leaving it destroys the sandbox."""

    id: str
    job: str
    """Path of the job folder, inside."""
    work: str
    """Path of the workspace, inside."""

    async def put(self, files: Mapping[str, File]) -> None:
        """Write files: path inside (relative to the workspace, or absolute in a writable folder) -> file.

        Missing folders are made. Raises FilesRefused when the place cannot be written (a full disk, a link that leaves
        it, a folder in the way), SandboxError on the host's failure.
        """
        ...

    async def get(self, paths: Sequence[str], *, max_bytes: int) -> dict[str, File]:
        """Read regular files, or all files below folders; those that do not exist are not in the answer.

        `max_bytes` bounds all content together. Raises FilesRefused for what is no regular file, SandboxError.
        """
        ...

    async def exec(self, command: Command) -> Result:
        """Run a command to its end. A broken limit ends every program of the sandbox, and is in the result.

        Raises SandboxError on the host's failure.
        """
        ...

    async def start(self, command: Command) -> Process:
        """Start a command and talk to it. Raises SandboxError on the host's failure."""
        ...

    async def snapshot(self) -> Snapshot:
        """Take the workspace as data, after ending every program. Raises FilesRefused, SandboxError."""
        ...

    async def destroy(self) -> Usage:
        """Kill what is left, remove every trace, and say what was used. May be called again.

        Once begun it ends, even if the caller is cancelled meanwhile. Raises SandboxError on the host's failure.
        """
        ...

    async def __aenter__(self) -> "Sandbox": ...

    async def __aexit__(self, *exc: object) -> None: ...


class SandboxProvider(Protocol):
    """A back-end. Picklable: it travels to the workers of the dataflow."""

    name: str

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Make a fresh sandbox. Raises ProvisionFailed."""
        ...


def _rebuild(kind: type[SandboxError], message: str, evidence: str) -> SandboxError:
    return kind(message, evidence=evidence)
