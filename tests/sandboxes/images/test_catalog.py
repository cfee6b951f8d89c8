"""What images are declared to be, found by and recognised by: nothing here builds more than a few files."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from sandboxes.images.build import build_image
from sandboxes.images.catalog import Image, definition_digest, find_image, load_layers, shipped_names, verify
from sandboxes.images.tree import list_tree, tar_stream, tree_digest
from sandboxes.protocol import ProvisionFailed

FEW_FILES = """
name: few
base: scratch
files:
  /etc/motd: "hello\\n"
  /bin/tool: "#!/bin/sh\\necho tool\\n"
"""
FEW_DIGEST = hashlib.sha256(
    b'{"below":null,"definition":{"base":"scratch","commands":[],"files":{"/bin/tool":"#!/bin/sh\\necho tool\\n",'
    b'"/etc/motd":"hello\\n"},"name":"few","packages":[]},"recipe":1}'
).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def few(tmp_path: Path) -> str:
    (tmp_path / "few.yaml").write_text(FEW_FILES)
    return str(tmp_path / "few.yaml")


@pytest.fixture
def built(few: str) -> Image:
    if os.geteuid() != 0:
        pytest.skip("only root builds images")
    return build_image(few, say=lambda line: None)


def test_the_digest_covers_the_definition_and_what_is_below(tmp_path: Path, few: str) -> None:
    assert definition_digest(load_layers(few)) == FEW_DIGEST
    (tmp_path / "more.yaml").write_text("name: more\nbase: few\ncommands: [id]\n")
    layers = load_layers(str(tmp_path / "more.yaml"))
    assert [layer.name for layer in layers] == ["few", "more"]
    content = '{"base":"few","commands":["id"],"files":{},"name":"more","packages":[]}'
    whole = f'{{"below":"{FEW_DIGEST}","definition":{content},"recipe":1}}'
    assert definition_digest(layers) == hashlib.sha256(whole.encode()).hexdigest()


def test_every_shipped_definition_loads() -> None:
    assert shipped_names() == ["base", "toolchains"]
    assert [layer.name for layer in load_layers("toolchains")] == ["base", "toolchains"]
    assert {path.stem for path in Path("sandboxes/images/definitions").iterdir()} == set(shipped_names())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: Few", "name"),
        ("name: host", "stands for something else"),
        ("name: base", "name of a shipped definition"),
        ("name: own\nbase: own", "lies on itself"),
        ("name: own\nbase: nowhere", "nowhere.yaml"),
        ("name: own\nbase: other", "is named different, not other"),
        ("name: own\nbase: fedora:40", "base"),
        ("name: own\nbase: scratch\npackages: [gcc]", "no package manager"),
        ("name: own\npackages: [--allow-unauthenticated]", "is not a package"),
        ("name: own\npackages: ['gcc g++']", "is not a package"),
        ("name: own\nfiles: {etc/motd: x}", "not an absolute path"),
        ("name: own\nfiles: {/etc/../../motd: x}", "not an absolute path"),
        ('name: own\nfiles: {"/etc/a\\nRUN id": x}', "not an absolute path"),
        ("name: own\nsize: 3", "size"),
        ("name: [", "own.yaml"),
    ],
)
def test_a_wrong_definition_says_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "other.yaml").write_text("name: different")
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_layers(str(tmp_path / "own.yaml"))


def test_a_missing_image_names_the_command_that_builds_it(cache: Path, few: str) -> None:
    with pytest.raises(ProvisionFailed, match="headrace sandbox build base") as missing:
        find_image("base")
    digest = definition_digest(load_layers("base"))[:16]
    assert missing.value.evidence == f"{cache}/images/{digest}/manifest.json does not exist"
    with pytest.raises(ProvisionFailed, match=f"headrace sandbox build {few}"):
        find_image(few)
    with pytest.raises(ProvisionFailed, match=r"shipped are base, toolchains.*headrace sandbox build PATH\.yaml"):
        find_image("few")


def test_a_built_image_is_found_by_path_and_by_name(cache: Path, few: str, built: Image) -> None:
    assert built.folder == cache / "images" / FEW_DIGEST[:16]
    assert find_image(few) == find_image("few") == built
    assert built.docker_tag == f"headrace/few:{FEW_DIGEST[:16]}"
    assert (built.manifest.name, built.manifest.digest, built.manifest.builder) == ("few", FEW_DIGEST, "debootstrap")
    assert built.manifest.languages == built.manifest.packages == {}
    assert (built.rootfs / "bin/tool").stat().st_mode & 0o7777 == 0o755


def test_the_tree_digest_is_that_of_its_listing(built: Image) -> None:
    def content(text: bytes) -> str:
        return hashlib.sha256(text).hexdigest()

    rows = [
        ["bin", "folder", "0755", 0, 0, ""],
        ["bin/tool", "file", "0755", 0, 0, content(b"#!/bin/sh\necho tool\n")],
        ["dev", "folder", "0755", 0, 0, ""],
        ["etc", "folder", "0755", 0, 0, ""],
        ["etc/hosts", "file", "0644", 0, 0, content(b"127.0.0.1\tlocalhost\n::1\tlocalhost\n")],
        ["etc/motd", "file", "0644", 0, 0, content(b"hello\n")],
        ["etc/mtab", "link", "0777", 0, 0, "/proc/mounts"],
        ["etc/resolv.conf", "file", "0644", 0, 0, content(b"")],
        ["proc", "folder", "0755", 0, 0, ""],
        ["run", "folder", "0755", 0, 0, ""],
        ["sys", "folder", "0755", 0, 0, ""],
        ["tmp", "folder", "1777", 0, 0, ""],
    ]
    listing = "".join(json.dumps(row) + "\n" for row in rows)
    assert gzip.decompress((built.folder / "listing.gz").read_bytes()).decode() == listing
    assert built.manifest.tree_digest == hashlib.sha256(listing.encode()).hexdigest()
    verify(built)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: (root / "etc/motd").write_text("Hello\n"), "/etc/motd has another content"),
        (lambda root: (root / "etc/motd").chmod(0o666), "/etc/motd has another mode"),
        (lambda root: os.chown(root / "etc/motd", 5, 6), "/etc/motd has another owner and group"),
        (lambda root: (root / "etc/motd").unlink(), "/etc/motd is gone"),
        (lambda root: (root / "etc/added").mkdir(), "/etc/added was added"),
        (lambda root: os.mkfifo(root / "a"), "/a was added"),
    ],
    ids=["content", "mode", "owner", "gone", "folder", "pipe"],
)
def test_a_changed_image_is_refused_and_the_path_named(built: Image, change, reason: str) -> None:
    change(built.rootfs)
    with pytest.raises(ProvisionFailed, match="not what was built") as refused:
        verify(built)
    assert refused.value.evidence == f"{built.rootfs}: {reason}"


def test_a_file_put_in_place_of_a_link_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    link = list_tree(tmp_path)
    assert json.loads(link[0]) == ["a", "link", "0777", os.geteuid(), os.getegid(), "b"]
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_text("b")
    assert json.loads(list_tree(tmp_path)[0])[1] == "file"


def test_a_changed_listing_hides_nothing(built: Image) -> None:
    (built.rootfs / "etc/motd").write_text("Hello\n")
    lines = list_tree(built.rootfs)
    (built.folder / "listing.gz").write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    with pytest.raises(ProvisionFailed, match=r"listing\.gz .* was changed"):
        verify(built)


@pytest.mark.parametrize("damage", ["{", "{}"])
def test_a_damaged_manifest_is_the_hosts_failure(built: Image, damage: str) -> None:
    (built.folder / "manifest.json").write_text(damage)
    with pytest.raises(ProvisionFailed, match="cannot be read: remove"):
        find_image("few")


def test_the_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    archives = []
    for order in (["z", "b", "a"], ["a", "b", "z"]):
        root = tmp_path / order[0]
        root.mkdir()
        for name in order:
            (root / name).write_text(name * 3_000_000)  # longer than a chunk
        (root / "link").symlink_to("a")
        (root / "folder").mkdir()
        os.link(root / "a", root / "folder/same")
        (root / os.fsdecode(b"\xff")).write_text("no UTF-8")
        for path in (root, *root.rglob("*")):
            os.utime(path, (1e9 + 0.5, 1e9 + 0.5), follow_symlinks=False)
        archives.append(b"".join(tar_stream(root)))
    assert archives[0] == archives[1]
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as archive:
        names = ["a", "b", "folder", "folder/same", "link", "z", os.fsdecode(b"\xff")]
        assert archive.getnames() == names
        assert {(member.uname, member.gname, member.mtime) for member in archive} == {("", "", 10**9)}
        assert archive.getmember("folder/same").linkname == "a"
        archive.extractall(tmp_path / "out", filter="fully_trusted")
    assert tree_digest(list_tree(tmp_path / "out")) == tree_digest(list_tree(tmp_path / "a"))
