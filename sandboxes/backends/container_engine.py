"""A Docker engine as the container back-ends need it: one client per process, its errors as ours, and the sweep.

Every container that we make carries labels: who asked for it, and the process that owns it. So what a dead process left
can be told from what a live one uses, by any other process of the same machine.
"""

import functools
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.host.cgroup import Cgroup
from sandboxes.host.owner import alive, identity
from sandboxes.images.catalog import find_image
from sandboxes.images.docker import load_into_docker
from sandboxes.protocol import ImageMissing, ProvisionFailed

if TYPE_CHECKING:
    from docker import DockerClient

LABEL = "headrace.sandbox"
_OWNER, _PROCESS = "headrace.owner", "headrace.process"
_NO_ENGINE = "no Docker engine answers: install docker.io and start dockerd, or set DOCKER_HOST"
_ANSWER_S = 30.0  # longest the engine may take for one answer
_REMOVAL_S = 10.0  # longest a container may take to go
_loaded: set[tuple[str | None, str]] = set()  # engine, tag of an image that is there
_loading, _connecting = threading.Lock(), threading.Lock()


def _renew_locks() -> None:
    global _loading, _connecting
    _loading, _connecting = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)  # whoever held them is not there to let go


@dataclass(frozen=True, slots=True)
class Container:
    """A container of ours, as the engine lists it."""

    id: str
    name: str
    owner: str
    """Who asked for it: `SandboxRequest.owner`."""
    process: str
    """Identity of the process that made it: see `sandboxes.host.owner`."""
    image: str
    created: float
    """Seconds since 1970."""
    status: str
    """As the engine says it, such as `Up 3 seconds`."""
    orphan: bool
    """Whether the process that made it, on this machine, is dead."""


@contextmanager
def engine_errors(message: str) -> Generator[None]:
    """Raise whatever goes wrong with an engine as ProvisionFailed."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        raise ProvisionFailed(message, evidence=describe(error)) from error


def describe(error: Exception) -> str:
    """What an engine, or the way to it, said."""
    said = getattr(error, "explanation", None) or error
    return f"{type(error).__name__}: {said}"[:1000]


def connect(host: str | None) -> "DockerClient":
    """This process's client of an engine; None: DOCKER_HOST, else the usual socket. Raises ProvisionFailed.

    The first call of a process removes the containers that dead processes left.
    """
    with _connecting:
        return _connect(host, os.getpid())  # a child must not share its parent's connections


@functools.cache
def _connect(host: str | None, _pid: int) -> "DockerClient":
    client = reach(host)
    with engine_errors(_NO_ENGINE):
        sweep_containers(client)
    return client


def reach(host: str | None) -> "DockerClient":
    """A new client of an engine; see `connect`, which also removes what dead processes left. Raises ProvisionFailed."""
    try:
        import docker
    except ImportError as error:
        raise ProvisionFailed(
            "the docker package is missing: pip install 'headrace[docker]'", evidence=str(error)
        ) from error
    with engine_errors(_NO_ENGINE):
        client = docker.from_env(timeout=_ANSWER_S) if host is None else docker.DockerClient(host, timeout=_ANSWER_S)
        # Else it keeps a connection for each address it ever asked, and those of containers are asked a few times only.
        client.api.headers["Connection"] = "close"
        return client


def labels(owner: str) -> dict[str, str]:
    """What a container that this process makes is marked with."""
    return {LABEL: "1", _OWNER: owner, _PROCESS: identity()}


def list_containers(client: "DockerClient") -> list[Container]:
    """Every container of ours in an engine, whoever made it. Raises the client's own errors."""
    return [
        Container(
            id=each["Id"],
            name=each["Names"][0].lstrip("/"),
            owner=each["Labels"].get(_OWNER, ""),
            process=each["Labels"].get(_PROCESS, ""),
            image=each["Image"],
            created=each["Created"],
            status=each["Status"],
            orphan=not alive(each["Labels"].get(_PROCESS, "")),
        )
        for each in client.api.containers(all=True, filters={"label": LABEL})
    ]


def sweep_containers(client: "DockerClient") -> list[str]:
    """Remove the containers whose owner is dead; returns their names. Raises the client's own errors."""
    orphans = [container for container in list_containers(client) if container.orphan]
    for container in orphans:
        remove_container(client, container.id)
    return [container.name for container in orphans]


def remove_container(client: "DockerClient", container: str) -> None:
    """Kill a container and remove it with its volumes. It is gone on return. Raises the client's own errors."""
    from docker.errors import APIError, NotFound

    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            client.api.remove_container(container, v=True, force=True)
        except NotFound:
            return
        except APIError as error:
            # It is being removed by another, whose end is to be waited for; or it died of itself while it was to be
            # killed (500, "is not running"), and the engine leaves it half removed until it is asked again.
            again = error.status_code in (HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR)
            if not again or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def docker_image(client: "DockerClient", host: str | None, image: str) -> str:
    """The engine's name for an image, loaded into it if it is not there. `image` with a tag is that name itself.

    Raises ProvisionFailed.
    """
    if image == "host":
        raise ImageMissing(
            "a container has no image `host`; build one with `headrace sandbox build base` and set `image: base`",
            evidence="image is host",
        )
    if ":" in image:
        return image
    found = find_image(image)
    with _loading:  # one at a time: loading takes long, and the next one then finds it there
        if (host, found.docker_tag) not in _loaded:
            load_into_docker(found, client)
            _loaded.add((host, found.docker_tag))
    return found.docker_tag


def forget_images() -> None:
    """Look again whether images are loaded: somebody removed one."""
    with _loading:
        _loaded.clear()


def group_of(pid: int) -> Cgroup:
    """The control group that an engine put a process in, to be read. Raises OSError, ProvisionFailed."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points: dict[str, str] = {}
    for mount in mounts:
        kind, _, options = mount[mount.index("-") + 1 :][:3]
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        points |= dict.fromkeys(names, mount[4])
    paths: dict[str, Path] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in points:
                paths[name] = Path(points[name] + path)
    if {"memory", "pids", "cpuacct"} <= paths.keys():
        return Cgroup(1, paths)
    return Cgroup(2, {"unified": paths[""]})


def worth_another_try(error: BaseException | None) -> bool:
    """Whether what an engine failed at may work at once: it was slow, a name was taken, an image had been removed."""
    from docker.errors import APIError
    from requests.exceptions import Timeout

    if isinstance(error, APIError):
        return error.status_code in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND)
    return isinstance(error, Timeout)
