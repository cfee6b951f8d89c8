"""The back-ends that the suite runs on, and what its checks use to talk to them."""

import ast
import contextlib
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.backends.confined import Confined
from sandboxes.backends.confined_host import can_change_users, counts_processes
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.host.seccomp import filter_program
from sandboxes.inside.confine import abi
from sandboxes.limits import Limits
from sandboxes.protocol import Command, ProvisionFailed, Result, Sandbox, SandboxProvider, SandboxRequest
from tests.sandboxes.containers_here import provider_here
from tests.sandboxes.real_images import real_image
from tests.sandboxes.worker_processes import lasting_worker, remote

LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=128, processes=24, output_kib=64, disk_mib=16, file_mib=8)
PYTHON = ("python3", "-I", "-S", "-c")
ROOT = os.geteuid() == 0


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to make sandboxes, and the image its programs see here."""

    name: str
    provider: SandboxProvider
    image: str = "host"
    guest_kernel: bool = False
    """Whether programs run on a kernel of their own, so that the host cannot tell one from the other."""

    @contextlib.asynccontextmanager
    async def open(self, limits: Limits = LIMITS, **request: object) -> AsyncGenerator[Sandbox]:
        """A sandbox, destroyed at the end."""
        made = SandboxRequest(**{"image": self.image, "limits": limits, **request})  # ty: ignore[invalid-argument-type]
        async with await self.provider.create(made) as sandbox:
            yield sandbox

    async def run(self, source: str, *arguments: str, limits: Limits = LIMITS, **command: object) -> Result:
        """Run Python source in a sandbox of its own."""
        async with self.open(limits) as sandbox:
            return await python(sandbox, source, *arguments, **command)

    async def ask(self, source: str, *arguments: str, limits: Limits = LIMITS, **command: object) -> object:
        """Run Python source in a sandbox of its own; what it left in `answer`."""
        async with self.open(limits) as sandbox:
            return await ask(sandbox, source, *arguments, **command)


async def python(sandbox: Sandbox, source: str, *arguments: str, **command: object) -> Result:
    return await sandbox.exec(Command((*PYTHON, source, *arguments), **command))  # ty: ignore[invalid-argument-type]


async def sh(sandbox: Sandbox, script: str, **command: object) -> Result:
    return await sandbox.exec(Command(("sh", "-c", script), **command))  # ty: ignore[invalid-argument-type]


async def ask(sandbox: Sandbox, source: str, *arguments: str, **command: object) -> object:
    """Run Python source; what it left in `answer`."""
    result = await python(sandbox, source + "\nprint(ascii(answer))", *arguments, **command)
    assert result.exit_code == 0, result
    return ast.literal_eval(result.stdout.decode())


async def text(sandbox: Sandbox, script: str, **command: object) -> str:
    """What a shell script prints."""
    result = await sh(sandbox, script, **command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


def host_pids(mark: str) -> list[int]:
    """Processes of the host, of any owner and namespace, whose command line holds the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _bubblewrap(*, cgroups: bool) -> SandboxProvider:
    if cgroups and find_hierarchy() is None:
        raise ProvisionFailed("bubblewrap without control groups", evidence="none can be written on this machine")
    return Bubblewrap(cgroups=cgroups)


def _confined(*, cgroups: bool) -> SandboxProvider:
    if abi() == 0 or filter_program() is None:
        raise ProvisionFailed("subprocess needs Landlock and a filter of system calls", evidence=f"Landlock {abi()}")
    if cgroups and find_hierarchy() is None:
        raise ProvisionFailed("subprocess without control groups", evidence="none can be written on this machine")
    if not (cgroups or can_change_users() or counts_processes()):
        raise ProvisionFailed("nothing bounds a bomb", evidence="this user is the machine's root, whatever it may do")
    return Confined(cgroups=cgroups)


def _make(name: str) -> Backend:
    """Raises ProvisionFailed, ImportError, OSError: with the reason why it cannot run here."""
    match name:
        case "bubblewrap":
            return Backend(name, _bubblewrap(cgroups=True))
        case "bubblewrap-image":
            real_image("base")
            return Backend(name, Bubblewrap(), image="base")
        case "bubblewrap-rlimits" | "bubblewrap-rootless":
            return Backend(name, _bubblewrap(cgroups=False))
        case "subprocess" | "subprocess-rlimits" | "subprocess-rootless":
            return Backend(name, _confined(cgroups=name == "subprocess"))
        case "remote":
            return Backend(name, remote(lasting_worker()))
        case "docker" | "gvisor":
            return Backend(name, provider_here(name), image="base", guest_kernel=name == "gvisor")
        case _:
            raise ImportError(f"no back-end is named {name}")


def names() -> list[str]:
    """Those to be tried by this process: root's are not those of other users."""
    if ROOT:
        return [
            "bubblewrap",
            "bubblewrap-image",
            "bubblewrap-rlimits",
            "docker",
            "gvisor",
            "remote",
            "subprocess",
            "subprocess-rlimits",
        ]
    return ["bubblewrap-rootless", "subprocess-rootless"]


def find(name: str) -> Backend | str:
    """A back-end, or the reason why it cannot run here."""
    try:
        return _make(name)
    except (ProvisionFailed, ImportError, OSError) as error:
        return f"{name}: {error}"


def required() -> set[str]:
    """Names of back-ends that must not be left out, from HEADRACE_REQUIRE."""
    return set(filter(None, os.environ.get("HEADRACE_REQUIRE", "").split(",")))
