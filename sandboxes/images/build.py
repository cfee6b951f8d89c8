"""Building images: debootstrap where no registry is reachable, a Dockerfile where one is; the result is of one kind.

Either way the files end in one folder, are cleaned in one way, listed and hashed; `sandboxes.images.docker` loads that
folder into an engine. A build happens in `.building`, under one lock for the whole cache, and is renamed when it is
whole: what a killed build left is never taken for an image, and the next build removes it. Every program of a build
runs in a pid and mount namespace that ends with this process, so none of them outlives it.
"""

import fcntl
import gzip
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandboxes.images.apt_sources import find_sources
from sandboxes.images.catalog import (
    SCRATCH,
    Image,
    ImageDefinition,
    Manifest,
    cache_folder,
    definition_digest,
    images_folder,
    load_layers,
    open_image,
)
from sandboxes.images.clean import clamp_times, clean, write_file
from sandboxes.images.docker import build_with_docker, load_into_docker
from sandboxes.images.steps import Build, find_languages, find_packages
from sandboxes.images.tree import list_tree, tree_digest
from sandboxes.protocol import ProvisionFailed

if TYPE_CHECKING:
    from docker import DockerClient

Builder = Literal["debootstrap", "dockerfile"]
_DISTRIBUTION = "debian:"


def build_image(
    target: str, *, say: Callable[[str], None], builder: Builder = "debootstrap", client: "DockerClient | None" = None
) -> Image:
    """Build an image and those it lies on, unless they are built; returns it.

    `target` is the name of a shipped definition or the path of a YAML file; `say` gets one line per step; `builder`
    "dockerfile" needs the engine's `client` and a registry that it reaches. Raises ValueError for a definition that
    cannot be read, ProvisionFailed with the last lines of the log. Needs root. Cost: one to three minutes for `base`.
    """
    layers = load_layers(target)
    if os.geteuid() != 0:
        raise ProvisionFailed(
            "only root can build images: others can set HEADRACE_CACHE to a cache that root built and they can read",
            evidence=f"effective user id {os.geteuid()}",
        )
    with _lock(say) as lock:
        image = None
        for count in range(1, len(layers) + 1):
            image = _build(layers[:count], image, say, lock, builder, client)
        assert image is not None
        return image


def _build(
    layers: tuple[ImageDefinition, ...],
    below: Image | None,
    say: Callable[[str], None],
    lock: int,
    builder: Builder,
    client: "DockerClient | None",
) -> Image:
    digest = definition_digest(layers)
    name, folder = layers[-1].name, images_folder() / digest[:16]
    image = open_image(folder)
    if image is None:
        began = time.time()
        build = Build(name, images_folder() / ".building", cache_folder() / "debs", lock, say)
        for leftover in (build.folder, folder):
            if leftover.exists():
                say(f"{name}: removing {leftover}, which an interrupted build left")
                shutil.rmtree(leftover)
        build.folder.mkdir()
        build.downloads.mkdir(exist_ok=True)
        try:
            if builder == "dockerfile":
                if client is None:
                    raise ValueError("the builder dockerfile needs an engine's client")
                if below is not None:
                    load_into_docker(below, client)
                build_with_docker(build, layers, client)
            else:
                _make_rootfs(build, layers[-1], below)
            _finish(build, digest, builder, began)
        except BaseException:
            shutil.rmtree(build.rootfs, ignore_errors=True)  # the log stays until the next build
            raise
        build.folder.rename(folder)
        image = open_image(folder)
        assert image is not None
        say(f"{name}: built in {image.manifest.build_s:.0f} s: {folder}")
    else:
        say(f"{name}: is built: {folder}")
    _name(name, folder)
    return image


def _make_rootfs(build: Build, definition: ImageDefinition, below: Image | None) -> None:
    if below is not None:
        build.beside("copying the image below", ["cp", "-a", "--reflink=auto", str(below.rootfs), str(build.rootfs)])
    elif definition.base == SCRATCH:
        build.rootfs.mkdir()
        build.rootfs.chmod(0o755)
    else:
        _debootstrap(build, definition.base.removeprefix(_DISTRIBUTION))
    if definition.packages:
        _install(build, definition.packages)
    for path, text in definition.files.items():
        try:
            write_file(build.rootfs, path, text)
        except (OSError, ValueError) as error:
            raise build.failed(f"writing {path}", repr(error)) from error
    for command in definition.commands:
        build.inside(command, ["/bin/sh", "-ec", command])


def _debootstrap(build: Build, suite: str) -> None:
    if shutil.which("debootstrap") is None:
        raise ProvisionFailed(
            f"image {build.name} cannot be built: install debootstrap (apt-get install debootstrap), or build it from "
            "its Dockerfile",
            evidence="no debootstrap on PATH",
        )
    source = find_sources(suite)[0]
    keyring = [f"--keyring={source.signed_by}"] if source.signed_by else []
    options = ["--variant=minbase", f"--cache-dir={build.downloads}", f"--components={','.join(source.components)}"]
    argv = ["debootstrap", *options, *keyring, suite, str(build.rootfs), source.uri]
    proxy = dict(_apt_settings()).get("Acquire::http::Proxy")
    env = {"http_proxy": proxy} if proxy else {}
    build.beside(f"debootstrap of {suite} from {source.uri}", argv, env)


def _install(build: Build, packages: tuple[str, ...]) -> None:
    """Install packages with the image's own apt, set up to reach its archives as this machine's apt does."""
    release = (build.rootfs / "etc/os-release").read_text()
    suite = next(line.split("=")[1] for line in release.splitlines() if line.startswith("VERSION_CODENAME="))
    settings = [f'{key} "{value}";' for key, value in _apt_settings() if value]
    settings += ['Dir::Etc::sourcelist "/run/headrace/sources.list";', 'Dir::Etc::sourceparts "/dev/null";']
    settings += ['Dpkg::Use-Pty "0";', 'Dpkg::Options { "--force-confdef"; "--force-confold"; };']
    lines = []
    folder = build.folder / "apt"
    folder.mkdir()
    for number, source in enumerate(find_sources(suite)):
        option = ""
        if source.signed_by is not None:
            keyring = f"{number}{source.signed_by.suffix}"
            shutil.copyfile(source.signed_by, folder / keyring)
            option = f"[signed-by=/run/headrace/{keyring}] "
        lines.append(f"deb {option}{source.uri} {source.suite} {' '.join(source.components)}")
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.exists():  # the image may have none yet
        shutil.copyfile(authorities, folder / "authorities.crt")
        settings.append('Acquire::https::CaInfo "/run/headrace/authorities.crt";')
    (folder / "sources.list").write_text("\n".join([*lines, ""]))
    (folder / "apt.conf").write_text("\n".join([*settings, ""]))
    for path in (folder, *folder.iterdir()):  # apt downloads as a user of its own
        path.chmod(0o755)
    mounts = ["--ro-bind", str(folder), "/run/headrace", "--bind", str(build.downloads), "/var/cache/apt/archives"]
    env = {"APT_CONFIG": "/run/headrace/apt.conf", "DEBIAN_FRONTEND": "noninteractive"}
    steps = {
        "apt-get update": ["update"],
        "apt-get dist-upgrade": ["-y", "dist-upgrade"],
        f"apt-get install {' '.join(packages)}": ["-y", "--no-install-recommends", "install", "--", *packages],
    }
    for what, words in steps.items():
        build.inside(what, ["apt-get", "-q", *words], env=env, options=mounts)
    shutil.rmtree(folder)


def _apt_settings() -> list[tuple[str, str]]:
    """How this machine's apt downloads: proxies, dates it does not check, authorities."""
    if shutil.which("apt-config") is None:
        return []
    dump = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
    pairs = [line.removesuffix(";").partition(" ")[::2] for line in dump.splitlines()]
    return [(key, value.strip('"')) for key, value in pairs if not key.startswith("Acquire::IndexTargets")]


def _finish(build: Build, digest: str, builder: Builder, began: float) -> None:
    build.say(f"{build.name}: cleaning and listing")
    clean(build.rootfs)
    languages = find_languages(build.rootfs)
    if "python" in languages:
        _compile_python(build)
    clamp_times(build.rootfs, began)
    lines = list_tree(build.rootfs)
    (build.folder / "listing.gz").write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))
    manifest = Manifest(
        name=build.name,
        digest=digest,
        tree_digest=tree_digest(lines),
        languages=languages,
        packages=find_packages(build.rootfs),
        architecture=platform.machine(),
        builder=builder,
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(time.time() - began, 1),
    )
    Image(build.folder, manifest).save()


def _compile_python(build: Build) -> None:
    """Compile what Python has installed: nobody can write there later, and a start without costs 100 ms and more.

    By unchecked hash, so that no time of a file is in the result.
    """
    places = sorted(path for place in ("usr/lib", "usr/local/lib") for path in (build.rootfs / place).glob("python3*"))
    inside = [f"/{path.relative_to(build.rootfs)}" for path in places if path.is_dir()]
    flags = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    # A source that is wrong on purpose, such as a test's, makes its exit status 1.
    script = 'python3 -m compileall "$@" || true'
    build.inside(
        "compiling Python's modules", ["/bin/sh", "-c", script, "sh", *flags, *inside], options=["--tmpfs", "/tmp"]
    )


def _name(name: str, folder: Path) -> None:
    names = images_folder() / "names"
    names.mkdir(exist_ok=True)
    fresh = names / f".{name}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder, names))
    fresh.rename(names / name)


@contextmanager
def _lock(say: Callable[[str], None]) -> Generator[int]:
    images_folder().mkdir(parents=True, exist_ok=True)
    with open(images_folder() / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()
