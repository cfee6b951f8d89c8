"""Which image a run's programs find, as a row of `images`: once for each content that was ever used."""

import hashlib
import json
import platform
import subprocess
from datetime import datetime
from pathlib import Path

from sandboxes.backends.walls import find_bwrap
from sandboxes.images.catalog import find_image
from sandboxes.images.steps import find_languages
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import ProvisionFailed
from transforms.episode import now_us
from transforms.grade.grade import ImageUsed
from transforms.lake.table import Lake


def record_image(lake: Lake, spec: SandboxSpec) -> ImageUsed:
    """Find the image that a spec names and keep what is known of it, unless it is kept already.

    Raises ProvisionFailed for an image that is not there, StorageFailed.
    """
    if spec.image == "host":
        row = _row_of_host()
    elif ":" in spec.image:
        row = _row_of_engine(spec.image)
    else:
        row = _row(spec.image)
    app_id = f"images/{row['name']}/{row['digest']}"
    if lake.committed_version("images", app_id) is None:
        if spec.image == "host":
            row["languages"] = _languages_of_host()
        lake.append("images", [row], app_id=app_id, version=1)
    return ImageUsed(str(row["name"]), str(row["digest"]))


def _row(image: str) -> dict[str, object]:
    manifest = find_image(image).manifest
    return {
        "name": manifest.name,
        "digest": manifest.tree_digest,
        "definition_digest": manifest.digest,
        "languages": _pairs(manifest.languages),
        "packages": _pairs(manifest.packages),
        "builder": manifest.builder,
        "architecture": manifest.architecture,
        "built_at": datetime.fromisoformat(manifest.built_at),
        "first_used_at": now_us(),
    }


def _row_of_host() -> dict[str, object]:
    """This machine's own system: nobody can list all of it, so its digest is of what decides most."""
    facts = {"python": platform.python_version(), "platform": platform.platform(), "bubblewrap": _bwrap_version()}
    return {
        "name": "host",
        "digest": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        "definition_digest": None,
        "languages": None,
        "packages": None,
        "builder": "host",
        "architecture": platform.machine(),
        "built_at": None,
        "first_used_at": now_us(),
    }


def _bwrap_version() -> str | None:
    try:
        program = find_bwrap()
    except ProvisionFailed:
        return None
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def _languages_of_host() -> list[dict[str, str]] | None:
    try:
        found = find_languages(Path("/"))
    except ProvisionFailed:  # no bubblewrap, in which they are tried
        return None
    return _pairs(found | {"python": platform.python_version()})


def _row_of_engine(image: str) -> dict[str, object]:
    """An image that a Docker engine has under a tag of its own."""
    from sandboxes.backends.container_engine import connect, engine_errors

    with engine_errors(f"the engine has no image {image}"):
        found = connect(None).images.get(image)
    return {
        "name": image,
        "digest": found.id.removeprefix("sha256:"),
        "definition_digest": None,
        "languages": None,
        "packages": None,
        "builder": "docker",
        "architecture": found.attrs["Architecture"],
        "built_at": datetime.fromisoformat(found.attrs["Created"]),
        "first_used_at": now_us(),
    }


def _pairs(versions: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "version": version} for name, version in sorted(versions.items())]
