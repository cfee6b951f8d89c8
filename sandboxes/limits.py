"""What one sandbox may use."""

from typing import Literal

from pydantic import Field

from sandboxes.declared import Declared

MIB = 1024 * 1024


class Limits(Declared):
    """Bounds on one program, enforced and attributed from outside it."""

    wall_time_s: float = Field(5.0, gt=0, le=3600)
    """Seconds one case may take on the host's clock, start-up excluded. Past it every process of the sandbox is
    killed and the case's outcome is `time_limit`."""

    cpu_time_s: float = Field(5.0, gt=0, le=3600)
    """CPU seconds one case may use, all its processes together. Past it the outcome is `time_limit`."""

    memory_mib: int = Field(256, ge=32, le=1024 * 1024)
    """Memory of the whole sandbox in MiB, tmpfs included. Past it the outcome is `memory_limit`."""

    processes: int = Field(32, ge=2, le=32768)
    """Processes and threads alive at once in the sandbox. Past it the outcome is `process_limit`."""

    output_kib: int = Field(256, ge=1, le=1024 * 1024)
    """KiB a case may write to stdout and stderr together, and KiB its returned value may take when encoded.
    Past it the outcome is `output_limit`."""

    file_mib: int = Field(16, ge=1, le=1024 * 1024)
    """MiB of one file, and of all files in the private tmp together. Past it the outcome is `disk_limit`."""


class SandboxSpec(Declared):
    """Where programs run."""

    backend: Literal["bubblewrap"] = "bubblewrap"
    """`bubblewrap`: own user, pid, ipc, uts, cgroup and network namespaces, no network, read-only system."""

    parallel: int = Field(2, ge=1, le=256)
    """Sandboxes open at once in one worker process; about one per core."""

    attempts: int = Field(3, ge=1, le=10)
    """Tries per episode when the host fails; each is kept as a row. The program's own failures are never retried."""

    limits: Limits = Limits()
    """What one sandbox may use."""
