import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from pipelines.image_record import record_image
from sandboxes.backends.container_engine import reach
from sandboxes.backends.walls import find_bwrap
from sandboxes.images.build import build_image
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import ProvisionFailed
from tests.sandboxes.real_images import missing, real_image
from transforms.lake.sql import query
from transforms.lake.table import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "home")


def rows(lake: Lake) -> list[dict[str, object]]:
    return query(lake.home, "SELECT * FROM images ORDER BY name").to_pylist()


def test_this_machines_own_system_is_kept_once(lake: Lake):
    used = record_image(lake, SandboxSpec())
    assert record_image(lake, SandboxSpec(backend="subprocess")) == used
    (row,) = rows(lake)
    version = subprocess.run([find_bwrap(), "--version"], capture_output=True, text=True, check=True).stdout
    facts = {
        "bubblewrap": version.removeprefix("bubblewrap ").strip(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    assert used.digest == hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    assert (row["name"], row["digest"], row["builder"]) == ("host", used.digest, "host")
    languages = {each["name"]: each["version"] for each in row["languages"]}  # ty: ignore[not-iterable]
    assert languages["python"] == platform.python_version()
    assert languages["bash"] in subprocess.run(["bash", "--version"], capture_output=True, text=True, check=True).stdout
    assert (row["packages"], row["built_at"]) == (None, None)


def test_a_built_image_is_kept_with_what_is_in_it(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    image = real_image("base")
    used = record_image(lake, SandboxSpec(image="base"))
    assert used.digest == image.manifest.tree_digest
    (row,) = rows(lake)
    assert (row["definition_digest"], row["builder"]) == (image.manifest.digest, image.manifest.builder)
    listed = (image.rootfs / "var/lib/dpkg/status").read_text()
    packages = {each["name"]: each["version"] for each in row["packages"]}  # ty: ignore[not-iterable]
    assert {"python3", "gcc", "nodejs", "sqlite3"} <= packages.keys()
    assert listed.count("\nStatus: install ok installed\n") == len(packages)
    assert "Package: sqlite3\nStatus: install ok installed" in listed
    assert f"Version: {packages['sqlite3']}" in listed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root builds images")
def test_the_same_name_with_other_content_is_another_row(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    definition, digests = tmp_path / "mine.yaml", []
    for text in ("one", "two", "two"):
        definition.write_text(f"name: mine\nbase: scratch\nfiles: {{/etc/motd: {text}}}\n")
        image = build_image(str(definition), say=lambda line: None)
        used = record_image(lake, SandboxSpec(image="mine"))
        assert (used.name, used.digest) == ("mine", image.manifest.tree_digest)
        digests.append(used.digest)
    assert digests[1] == digests[2] != digests[0]
    assert sorted(str(row["digest"]) for row in rows(lake)) == sorted(set(digests))


def test_an_image_that_is_not_built_says_how_to_build_it(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with pytest.raises(ProvisionFailed, match="headrace sandbox build toolchains"):
        record_image(lake, SandboxSpec(image="toolchains"))
    assert not (lake.work / "tables" / "images").exists()


def test_an_engines_own_image_is_kept_by_its_id(lake: Lake):
    try:
        client = reach(None)
    except ProvisionFailed as error:
        missing("docker", str(error))
    tags = [tag for image in client.images.list() for tag in image.tags]
    if not tags:
        missing("docker", "the engine has no image")
    used = record_image(lake, SandboxSpec(backend="docker", image=tags[0]))
    assert (used.name, used.digest) == (tags[0], client.images.get(tags[0]).id.removeprefix("sha256:"))
    assert rows(lake)[0]["builder"] == "docker"
    with pytest.raises(ProvisionFailed, match="no image not:there"):
        record_image(lake, SandboxSpec(backend="docker", image="not:there"))
    client.close()
