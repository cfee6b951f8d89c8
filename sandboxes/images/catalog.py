"""Images: what programs find in a sandbox. Declared once, kept by content, the same in each back-end.

A definition is a YAML file: one shipped in `definitions/` beside this file, or a user's own. Its digest, with those
of the definitions below it, names the folder that holds what was built (see `sandboxes.images.build`):

    <cache>/images/<digest16>/rootfs          the folder that a sandbox has as its root, never written to
    <cache>/images/<digest16>/manifest.json   what is in it
    <cache>/images/<digest16>/listing.gz      one line per path, whose SHA-256 is the tree digest
    <cache>/images/<digest16>/build.log       what the build printed
    <cache>/images/names/<name>               a link to the newest folder of that name

The cache is HEADRACE_CACHE, else ~/.cache/headrace. Only root builds; others can read a cache that root built.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from sandboxes.declared import Declared
from sandboxes.images.tree import first_difference, list_tree, tree_digest
from sandboxes.protocol import ImageMissing, ProvisionFailed

SCRATCH = "scratch"
_SHIPPED = Path(__file__).parent / "definitions"
_RECIPE = 1  # raised when the same definition is built into something else, so that old results are not found
_NAME = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?")


class ImageDefinition(Declared):
    """What an image holds: a base, then packages, then files, then what commands make of it."""

    name: str = Field(pattern=f"^{_NAME}$", max_length=100)
    """Name by which tasks ask for it."""

    base: str = Field("debian:bookworm", pattern=f"^(debian:[a-z]+|{_NAME})$")
    """`debian:SUITE`; or the name of another definition, shipped or in the same folder, to put a layer on; or
    `scratch`, nothing at all, for files and static programs."""

    packages: tuple[str, ...] = ()
    """Debian packages, `name` or `name=version`; what they recommend is left out."""

    files: dict[str, str] = Field(default_factory=dict)
    """Absolute path -> text. Owned by root; executable if the text begins with `#!`."""

    commands: tuple[str, ...] = ()
    """Shell commands run as root in `/` of the image while it is built, with network, each in a shell of its own."""

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in {SCRATCH, "host", "names"}:
            raise ValueError(f"{name!r} stands for something else")
        return name

    @field_validator("packages")
    @classmethod
    def _package_names(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        for package in packages:
            if not _PACKAGE.fullmatch(package):
                raise ValueError(f"{package!r} is not a package, such as gcc or gcc=4:12.2.0-3")
        return packages

    @field_validator("files")
    @classmethod
    def _absolute_paths(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            plain = PurePosixPath(path)
            if not plain.is_absolute() or ".." in plain.parts or str(plain) != path or not path.isprintable():
                raise ValueError(f"{path!r} is not an absolute path, such as /etc/app.conf")
        return files

    @model_validator(mode="after")
    def _packages_need_a_system(self) -> "ImageDefinition":
        if self.base == SCRATCH and self.packages:
            raise ValueError("an image on scratch has no package manager: leave packages empty")
        return self


class Manifest(Declared):
    """What one built image holds and how it came to be: the row of the `images` table."""

    name: str
    digest: str
    """SHA-256 of the definition and of those below it, hexadecimal."""
    tree_digest: str
    """SHA-256 of the listing of the rootfs, hexadecimal."""
    languages: dict[str, str]
    """Language -> version of its program inside."""
    packages: dict[str, str]
    """Debian package -> version."""
    architecture: str
    builder: str
    built_at: str
    """ISO 8601, UTC."""
    build_s: float
    """Seconds the build took, without the layers below."""
    docker_image: str | None = None
    """Id in the Docker engine that it was last loaded into."""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image on this host."""

    folder: Path
    manifest: Manifest

    @property
    def rootfs(self) -> Path:
        """The folder a sandbox has as its root. Never to be written to."""
        return self.folder / "rootfs"

    @property
    def name(self) -> str:
        """Name of its definition."""
        return self.manifest.name

    @property
    def docker_tag(self) -> str:
        """The tag it has in a Docker engine."""
        return docker_tag(self.name, self.manifest.digest)

    def save(self) -> None:
        """Write the manifest, at once or not at all. Raises OSError."""
        fresh = self.folder / f".manifest.{os.getpid()}"
        fresh.write_text(self.manifest.model_dump_json(indent=1) + "\n")
        fresh.rename(self.folder / "manifest.json")


def cache_folder() -> Path:
    """Where images and downloaded packages are kept."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace").absolute()


def images_folder() -> Path:
    """Where images are kept."""
    return cache_folder() / "images"


def docker_tag(name: str, digest: str) -> str:
    """The tag that an image has in a Docker engine."""
    return f"headrace/{name}:{digest[:16]}"


def shipped_names() -> list[str]:
    """Names of the definitions that come with Headrace."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_layers(target: str) -> tuple[ImageDefinition, ...]:
    """Read a definition and those it lies on, lowest first.

    `target` is the name of a shipped definition or the path of a YAML file. Raises ValueError.
    """
    path = Path(target) if _is_path(target) else _SHIPPED / f"{target}.yaml"
    layers = [_load(path)]
    while not layers[0].base.startswith("debian:") and layers[0].base != SCRATCH:
        wanted = layers[0].base
        if any(layer.name == wanted for layer in layers):
            raise ValueError(f"{path}: {wanted} lies on itself")
        places = [folder / f"{wanted}.yaml" for folder in (_SHIPPED, path.parent)]
        above, path = path, next((place for place in places if place.exists()), places[-1])
        if not path.exists():
            raise ValueError(
                f"{above}: base: no definition is named {wanted}: neither shipped ({', '.join(shipped_names())}) nor "
                f"{path}; `debian:SUITE` and `{SCRATCH}` need none"
            )
        layers.insert(0, _load(path))
        if layers[0].name != wanted:
            raise ValueError(f"{path}: is named {layers[0].name}, not {wanted}")
    return tuple(layers)


def definition_digest(layers: tuple[ImageDefinition, ...]) -> str:
    """SHA-256 of the last definition together with the digest of those below it, hexadecimal."""
    below = definition_digest(layers[:-1]) if len(layers) > 1 else None
    content = {"recipe": _RECIPE, "below": below, "definition": layers[-1].model_dump(mode="json")}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find_image(target: str) -> Image:
    """Find a built image: by the name of a shipped definition, by a YAML path, or by the name a built one had.

    Raises ImageMissing, which names the command that builds it; ValueError for a definition that cannot be read.
    """
    if _is_path(target) or target in shipped_names():
        folder = images_folder() / definition_digest(load_layers(target))[:16]
    else:
        folder = images_folder() / "names" / target
        if not folder.exists():
            raise ImageMissing(
                f"no image is named {target}; shipped are {', '.join(shipped_names())}, an own one is built with: "
                "headrace sandbox build PATH.yaml",
                evidence=f"{folder} does not exist",
            )
    image = open_image(folder)
    if image is None:
        raise ImageMissing(
            f"image {target} is not built; build it with: headrace sandbox build {target}",
            evidence=f"{folder}/manifest.json does not exist",
        )
    return image


def open_image(folder: Path) -> Image | None:
    """Read the image in a folder of the cache; None if there is none. Raises ProvisionFailed for a damaged one."""
    path = folder / "manifest.json"
    try:
        return Image(folder.resolve(), Manifest.model_validate_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProvisionFailed(
            f"image in {folder} cannot be read: {rebuild(folder, 'NAME')}", evidence=repr(error)
        ) from error


def verify(image: Image) -> None:
    """Work the digest of an image's files out again. Raises ProvisionFailed that names the first changed path."""
    try:
        kept = gzip.decompress((image.folder / "listing.gz").read_bytes()).decode().splitlines()
        found = list_tree(image.rootfs)
    except (OSError, EOFError, ValueError) as error:
        raise ProvisionFailed(f"image {image.name} cannot be verified", evidence=repr(error)) from error
    expected, seen = image.manifest.tree_digest, tree_digest(found)
    if seen == expected:
        return
    if tree_digest(kept) != expected:
        reason = f"listing.gz of {image.folder} was changed, and the tree digest is {seen}, not {expected}"
    else:
        reason = f"{image.rootfs}: {first_difference(kept, found)}"
    raise ProvisionFailed(
        f"image {image.name} is not what was built: {rebuild(image.folder, image.name)}", evidence=reason
    )


def rebuild(folder: Path, name: str) -> str:
    """What to do about a damaged image."""
    return f"remove {folder} and build it again with: headrace sandbox build {name}"


def _is_path(target: str) -> bool:
    return "/" in target or target.endswith((".yaml", ".yml"))


def _load(path: Path) -> ImageDefinition:
    try:
        content = yaml.safe_load(path.read_text())
        definition = ImageDefinition.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {_complaint(dict(detail))}" for detail in error.errors())) from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
    if definition.name in shipped_names() and path.parent.resolve() != _SHIPPED:
        raise ValueError(f"{path}: {definition.name} is the name of a shipped definition; take another")
    return definition


def _complaint(detail: Mapping[str, object]) -> str:
    """One thing that is wrong with a definition, in words."""
    place = detail["loc"]
    assert isinstance(place, tuple)
    where = ".".join(map(str, place)) or "the file"
    known = ", ".join(ImageDefinition.model_fields)
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: no such key; a definition has {known}"
        case "missing":
            return f"{where}: is missing"
        case "tuple_type":
            return f"{where}: must be a list"
        case "model_type":
            return f"{where}: must be a mapping with the keys {known}"
        case _:
            return f"{where}: {str(detail['msg']).removeprefix('Value error, ')}"
