"""Docker and gVisor on this machine, for tests. Tests skip without, unless HEADRACE_REQUIRE names them."""

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from sandboxes.backends.container_engine import connect, list_containers
from sandboxes.backends.containers import Docker
from sandboxes.host.owner import identity
from sandboxes.limits import Limits
from sandboxes.protocol import Command, ProvisionFailed, Sandbox, SandboxRequest
from tests.sandboxes.real_images import missing, real_image

if TYPE_CHECKING:
    import docker

ADDRESS = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=64, processes=16, output_kib=64, disk_mib=8, file_mib=8)
REQUEST = SandboxRequest(image="base", limits=LIMITS, owner="test")
both = pytest.mark.parametrize("provider", ["docker", "gvisor"], indirect=True)


def provider_here(kind: str) -> Docker:
    """`docker` or `gvisor`."""
    real_image("base")
    try:
        runtimes = connect(None).info()["Runtimes"]
    except ProvisionFailed as error:
        missing(kind, str(error))
    if kind == "gvisor" and "runsc" not in runtimes:
        missing("gvisor", "the engine has no runtime `runsc`: install Debian's runsc and add it to daemon.json")
    return Docker(runtime="runsc" if kind == "gvisor" else None)


def ours(engine: "docker.DockerClient") -> list[str]:
    return [each.name for each in list_containers(engine) if identity() in each.name]


async def sh(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(Command(("sh", "-c", script)))
    return (result.stdout + result.stderr).decode()


def in_one(provider: Docker, *scripts: str, request: SandboxRequest = REQUEST) -> list[str]:
    """What shell scripts print in a new sandbox."""

    async def go() -> list[str]:
        async with await provider.create(request) as sandbox:
            return [await sh(sandbox, script) for script in scripts]

    return asyncio.run(go())
