"""Images and a Docker engine: loading a built one, and building one from a Dockerfile where a registry is reachable."""

import io
import json
import subprocess
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sandboxes.images.catalog import SCRATCH, Image, ImageDefinition, definition_digest, docker_tag
from sandboxes.images.clean import file_mode
from sandboxes.images.steps import Build
from sandboxes.images.tree import tar_stream
from sandboxes.protocol import ProvisionFailed

if TYPE_CHECKING:
    from docker import DockerClient

_DIGEST, _NAME = "headrace.digest", "headrace.image"


def load_into_docker(image: Image, client: "DockerClient") -> str:
    """Import a built image into an engine, unless it is there; returns its tag, `headrace/<name>:<digest16>`.

    `headrace/<name>:latest` is moved to it, and the engine's id written into the manifest. Raises ProvisionFailed.
    """
    from docker.errors import APIError, DockerException, ImageNotFound

    name, tag = image.docker_tag.split(":")
    labels = {_NAME: image.name, _DIGEST: image.manifest.tree_digest}
    with _engine(f"image {image.name} could not be loaded into the engine"):
        try:
            before = there = client.images.get(image.docker_tag)
        except ImageNotFound:
            before = there = None
        if there is None or there.labels.get(_DIGEST) != image.manifest.tree_digest:
            changes = [f"LABEL {key}={value}" for key, value in labels.items()]
            answer = client.api.import_image_from_data(tar_stream(image.rootfs), name, tag, changes)
            for line in answer.splitlines():  # it may begin well and end with an error
                if "error" in json.loads(line):
                    raise DockerException(line)
            there = client.images.get(image.docker_tag)
        there.tag(name, "latest")
        if before is not None and before.id != there.id:
            with suppress(APIError):  # a container still uses it, or another tag names it
                client.images.remove(before.id)
    if image.manifest.docker_image != there.id:
        Image(image.folder, image.manifest.model_copy(update={"docker_image": there.id})).save()
    return image.docker_tag


def dockerfile(layers: tuple[ImageDefinition, ...]) -> str:
    """The Dockerfile of the last of these definitions; `docker_context` has the files it copies."""
    definition = layers[-1]
    if len(layers) > 1:
        base = docker_tag(definition.base, definition_digest(layers[:-1]))
    else:
        base = definition.base
    lines = [f"FROM {base}"]
    if definition.packages:
        install = "apt-get install -y --no-install-recommends " + " ".join(definition.packages)
        steps = ["apt-get update", "apt-get -y dist-upgrade", install, "rm -rf /var/lib/apt/lists/*"]
        lines.append("RUN export DEBIAN_FRONTEND=noninteractive && " + " && ".join(steps))
    for number, path in enumerate(sorted(definition.files)):
        lines.append("COPY " + json.dumps([f"files/{number}", path]))
    lines += ["RUN " + json.dumps(["/bin/sh", "-ec", command]) for command in definition.commands]
    return "\n".join([*lines, ""])


def docker_context(layers: tuple[ImageDefinition, ...]) -> bytes:
    """The tar archive that `docker build` takes: the Dockerfile and the files it copies."""
    files = layers[-1].files
    entries = {"Dockerfile": dockerfile(layers)}
    entries |= {f"files/{number}": files[path] for number, path in enumerate(sorted(files))}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text.encode()), file_mode(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def build_with_docker(build: Build, layers: tuple[ImageDefinition, ...], client: "DockerClient") -> None:
    """Have the engine build a Dockerfile, and unpack the result as the new root folder. Raises ProvisionFailed."""
    tag = f"headrace/building-{build.name}:{definition_digest(layers)[:16]}"
    command = None if layers[0].base != SCRATCH else "/none"  # a container needs one, though it never starts
    with _engine(f"image {build.name} could not be built from its Dockerfile"):
        build.say(f"{build.name}: docker build, from {dockerfile(layers).splitlines()[0].split()[1]}")
        context = io.BytesIO(docker_context(layers))
        answer = client.api.build(fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True)
        with open(build.folder / "build.log", "a") as log:
            for said in answer:
                log.write(said.get("stream", said.get("error", "")))
                log.flush()
                if "error" in said:
                    raise build.failed("docker build", said["error"])
        try:
            container = client.containers.create(tag, command, labels={_NAME: build.name})
            try:
                _unpack(build, container.export())
            finally:
                container.remove(force=True)
        finally:
            client.images.remove(tag, force=True)


def _unpack(build: Build, archive: Iterator[bytes]) -> None:
    build.say(f"{build.name}: docker export")
    build.rootfs.mkdir()
    build.rootfs.chmod(0o755)
    argv = ["tar", "--extract", "--numeric-owner", "--same-owner", "--same-permissions", "-C", str(build.rootfs)]
    with open(build.folder / "build.log", "ab") as log, subprocess.Popen(argv, stdin=-1, stderr=log) as tar:
        assert tar.stdin is not None
        for chunk in archive:
            tar.stdin.write(chunk)
        tar.stdin.close()
    if tar.returncode != 0:
        raise build.failed("unpacking what docker export gave", f"tar: exit status {tar.returncode}")


@contextmanager
def _engine(message: str) -> Generator[None]:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        raise ProvisionFailed(message, evidence=repr(error)) from error
