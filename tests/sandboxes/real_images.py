"""Images for tests: the real ones, and a tiny one. Tests skip without a real one, unless HEADRACE_REQUIRE names it."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from sandboxes.images.build import build_image
from sandboxes.images.catalog import Image, find_image
from sandboxes.protocol import ProvisionFailed

_CACHE = os.environ.get("HEADRACE_CACHE")  # tests may set another


def missing(what: str, reason: str) -> NoReturn:
    """Skip; fail where HEADRACE_REQUIRE, names with commas between, says that it must be here."""
    if what in os.environ.get("HEADRACE_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


def real_image(name: str) -> Image:
    """A built image of this machine's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HEADRACE_CACHE", raising=False)
        if _CACHE is not None:
            patch.setenv("HEADRACE_CACHE", _CACHE)
        try:
            return find_image(name)
        except ProvisionFailed as error:
            missing("images", str(error))


def shell_image(folder: Path, name: str) -> Path:
    """Build an image of a shell and two more programs of this machine; returns its definition's path."""
    definition = folder / f"{name}.yaml"
    definition.write_text(f"name: {name}\nbase: scratch\n")
    root = build_image(str(definition), say=lambda line: None).rootfs
    programs = [shutil.which(program) or "" for program in ("sh", "sleep", "touch")]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for path in {*programs, *re.findall(r"/\S+(?= \()", linked)}:
        place = root / ("bin" if path in programs else path.rpartition("/")[0].lstrip("/"))
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return definition
