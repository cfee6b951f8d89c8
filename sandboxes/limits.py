"""What one sandbox may use."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from sandboxes.declared import Declared
from sandboxes.network.targets import Target

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
    """KiB a case may write to stdout, KiB it may write to stderr, and KiB its returned value may take when encoded.
    Past it the outcome is `output_limit`."""

    disk_mib: int = Field(16, ge=1, le=1024 * 1024)
    """MiB of all files in the sandbox's writable folders together. Past it the outcome is `disk_limit`."""

    file_mib: int = Field(16, ge=1, le=1024 * 1024)
    """MiB of one file. Past it the outcome is `disk_limit`."""

    inodes: int = Field(4096, ge=64, le=2**31 - 1)
    """Files and folders in the writable folders together. Past it the outcome is `disk_limit`."""


class Network(Declared):
    """What a sandbox may connect to."""

    allow: tuple[str, ...] = ()
    """`host:port` entries that programs may reach through the proxy in `http_proxy` and `https_proxy`; a leading `*.`
    stands for any subdomain. Empty: there is no network at all."""

    @field_validator("allow")
    @classmethod
    def _host_and_port(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            try:
                Target.parse(entry.removeprefix("*."))
            except ValueError as error:
                raise ValueError(f"{entry!r} {error}; entries are host:port, such as pypi.org:443") from None
        return entries


class SandboxSpec(Declared):
    """Where programs run."""

    backend: Literal["bubblewrap", "docker", "gvisor", "subprocess"] = "bubblewrap"
    """`bubblewrap`: own user, pid, ipc, uts, cgroup and network namespaces, read-only system. `docker`: a container.
    `gvisor`: a container on a kernel of its own. `subprocess`: weaker, for hosts that allow no namespaces."""

    image: str = "host"
    """What programs find in the sandbox: `host`, this machine's own system, read-only and without installed Python
    packages (the one for `subprocess`, and not for `docker` and `gvisor`, whose default is `base`); or the name of an
    image built with `headrace sandbox build`."""

    network: Network = Network()
    """What programs may connect to; nothing by default."""

    parallel: int = Field(2, ge=1, le=256)
    """Sandboxes open at once in one worker process; about one per core."""

    attempts: int = Field(3, ge=1, le=10)
    """Tries per episode when the host fails; each is kept as a row. The program's own failures are never retried."""

    pool: int = Field(0, ge=0, le=256)
    """Most sandboxes made before they are asked for, as the demand tells: worth it for `docker` and `gvisor`, which
    take long to make one. 0: none."""

    hosts: tuple[str, ...] = ()
    """Addresses of workers (`python -m sandboxes.remote.worker`) that run the sandboxes, `unix:/path` or `host:port`,
    instead of this machine; each must have been started with this `backend`."""

    token_file: str | None = None
    """File with the token of workers that ask for one, as those reached over TCP do. Relative to the spec's folder."""

    limits: Limits = Limits()
    """What one sandbox may use."""

    @field_validator("hosts")
    @classmethod
    def _addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                if not address.startswith("unix:/"):
                    Target.parse(address)
            except ValueError:
                raise ValueError(f"{address!r} is no address such as unix:/run/h.sock or 10.0.0.5:7070") from None
        return addresses

    @model_validator(mode="after")
    def _image_fits(self) -> "SandboxSpec":
        if self.backend in ("docker", "gvisor") and "image" not in self.model_fields_set:
            self.__dict__["image"] = "base"  # the default of these; frozen for everyone else
        if self.backend in ("docker", "gvisor") and self.image == "host":
            raise ValueError(f"backend {self.backend} has no image `host`: use `base`, or another that you built")
        if self.backend == "subprocess" and self.image != "host":
            raise ValueError(f"backend subprocess has no image `{self.image}`: it runs on `host` only")
        return self
