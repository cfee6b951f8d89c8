"""Building images: from where, what becomes of a build that is killed or fails, and one at a time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.images.apt_sources import Source, find_sources
from sandboxes.images.build import build_image
from sandboxes.images.catalog import find_image, verify
from sandboxes.images.clean import clamp_times, clean, write_file
from sandboxes.images.tree import list_tree
from sandboxes.protocol import ProvisionFailed
from tests.sandboxes.real_images import real_image, shell_image

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root builds images")
FEW = "name: few\nbase: scratch\nfiles: {/etc/motd: hello}\n"
BUILD = "import sys; from sandboxes.images.build import build_image; build_image(sys.argv[1], say=print)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def few(tmp_path: Path) -> str:
    (tmp_path / "few.yaml").write_text(FEW)
    return str(tmp_path / "few.yaml")


@pytest.fixture
def on_base(cache: Path) -> Path:
    """A cache that holds the real `base`."""
    base = real_image("base")
    (cache / "images").mkdir(parents=True)
    (cache / "images" / base.folder.name).symlink_to(base.folder)
    return cache


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The folder of definitions, one of which is built."""
    return shell_image(tmp_path, "tiny").parent


@pytest.fixture
def under_way(tiny: Path, cache: Path) -> Iterator[subprocess.Popen]:
    """A build in another process that has come to a command that takes an hour."""
    (tiny / "slow.yaml").write_text("name: slow\nbase: tiny\ncommands: [touch /started; sleep 3600.25 & wait]\n")
    with subprocess.Popen([sys.executable, "-c", BUILD, str(tiny / "slow.yaml")], stdout=subprocess.DEVNULL) as process:
        await_(lambda: (cache / "images/.building/rootfs/started").exists())
        yield process
        process.kill()


def await_(condition, patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def sleepers() -> list[str]:
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if b"3600.25" in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_sources_are_those_of_this_machines_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://commented.test/debian bookworm main\n"
        "deb-src http://source.test/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/keys/own.gpg] http://one.test/debian  bookworm-updates main contrib # the mirror\n"
        "deb cdrom:[Debian]/ bookworm main\n"
        "deb http://flat.test/debian ./\n"
    )
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb deb-src\n# URIs: http://commented.test/debian\nURIs: https://two.test/debian\n"
        "Suites: bookworm\n  trixie\nComponents: main\nSigned-By: /keys/debian.gpg\n\n"
        "Types: deb\nURIs: http://off.test/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n"
        "Types: deb\nURIs: http://two.test/security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n"
    )
    (tmp_path / "sources.list.d/old.list.save").write_text("deb http://saved.test/debian bookworm main\n")
    assert find_sources("bookworm", tmp_path) == [
        Source("https://two.test/debian", "bookworm", ("main",), Path("/keys/debian.gpg")),
        Source("http://one.test/debian", "bookworm-updates", ("main", "contrib"), Path("/keys/own.gpg")),
        Source("http://two.test/security", "bookworm-security", ("main",), None),
    ]
    assert [source.uri for source in find_sources("trixie", tmp_path)] == ["https://two.test/debian"]


def test_without_a_source_the_mirror_is_debootstraps_own(tmp_path: Path) -> None:
    assert find_sources("bookworm", tmp_path) == [Source("http://deb.debian.org/debian", "bookworm", ("main",), None)]
    scripts = Path("/usr/share/debootstrap/scripts/sid")
    if scripts.exists():
        assert "http://deb.debian.org/debian" in scripts.read_text() + Path("/usr/sbin/debootstrap").read_text()


def test_only_root_builds_and_is_told_so(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ProvisionFailed, match=r"only root can build images.*HEADRACE_CACHE") as refused:
        build_image(few, say=lambda line: None)
    assert refused.value.evidence == "effective user id 1000"


@needs_root
def test_a_built_image_is_not_built_again(few: str) -> None:
    lines: list[str] = []
    first = build_image(few, say=lines.append)
    again = build_image(few, say=lines.append)
    assert again == first
    assert [line for line in lines if "built" in line] == [
        f"few: built in 0 s: {first.folder}",
        f"few: is built: {first.folder}",
    ]


@needs_root
def test_the_mode_of_files_is_not_the_builders(tiny: Path) -> None:
    (tiny / "own.yaml").write_text("name: own\nbase: tiny\nfiles: {/opt/own: ''}\ncommands: [touch /made]\n")
    before = os.umask(0o077)
    try:
        root = build_image(str(tiny / "own.yaml"), say=lambda line: None).rootfs
    finally:
        os.umask(before)
    modes = {name: (root / name).stat().st_mode & 0o777 for name in ("", "opt", "opt/own", "made")}
    assert modes == {"": 0o755, "opt": 0o755, "opt/own": 0o644, "made": 0o644}


@pytest.mark.slow
@needs_root
def test_a_layer_has_what_is_below_and_what_its_commands_made(tmp_path: Path, on_base: Path) -> None:
    (tmp_path / "layer.yaml").write_text(
        'name: layer\nbase: base\nfiles: {/opt/tool: "#!/bin/sh\\necho $((6 * 7))"}\n'
        "commands:\n  - /opt/tool > /answer; id -u > /user; echo kept > /tmp/step\n  - mv /tmp/step /step\n"
        "  - mkdir -p /usr/lib/python3.11/own; echo 'X = 1' > /usr/lib/python3.11/own/__init__.py\n"
    )
    began = time.time()
    image = build_image(str(tmp_path / "layer.yaml"), say=lambda line: None)
    read = {name: (image.rootfs / name).read_text().split() for name in ("answer", "user", "step")}
    assert read == {"answer": ["42"], "user": ["0"], "step": ["kept"]}
    assert image.manifest.languages["python"].startswith("3.11")
    assert list((image.rootfs / "usr/lib/python3.11/own/__pycache__").iterdir())
    assert max(path.lstat().st_mtime for path in image.rootfs.rglob("*")) < began
    verify(find_image("base"))  # building on it changed nothing in it
    below = set(list_tree(find_image("base").rootfs))
    changed = {line for line in list_tree(image.rootfs) if line not in below}
    assert sorted(line.split('"')[1] for line in changed) == [
        "answer",
        "opt/tool",
        "step",
        "user",
        "usr/lib/python3.11/own",
        "usr/lib/python3.11/own/__init__.py",
        "usr/lib/python3.11/own/__pycache__",
        "usr/lib/python3.11/own/__pycache__/__init__.cpython-311.pyc",
    ]


@needs_root
def test_a_failed_build_has_the_last_lines_and_leaves_nothing(tiny: Path, cache: Path) -> None:
    (tiny / "wrong.yaml").write_text("name: wrong\nbase: tiny\ncommands: ['echo about to fail; exit 7']\n")
    with pytest.raises(ProvisionFailed, match="wrong could not be built: echo about to fail") as failed:
        build_image(str(tiny / "wrong.yaml"), say=lambda line: None)
    assert failed.value.evidence.startswith("exit status 7\n")
    assert "\nabout to fail\n" in failed.value.evidence
    with pytest.raises(ProvisionFailed, match="is not built"):
        find_image(str(tiny / "wrong.yaml"))
    assert not (cache / "images/.building/rootfs").exists()


@needs_root
def test_a_killed_build_looks_like_none_and_is_removed_by_the_next(
    under_way: subprocess.Popen, tiny: Path, few: str
) -> None:
    assert len(sleepers()) >= 1
    under_way.send_signal(signal.SIGKILL)
    under_way.wait()
    lines: list[str] = []
    image = build_image(few, say=lines.append)  # waits for what the killed build still ran
    assert sleepers() == []
    assert any(line.endswith(".building, which an interrupted build left") for line in lines)
    assert not (image.folder.parent / ".building").exists()
    with pytest.raises(ProvisionFailed, match="is not built"):
        find_image(str(tiny / "slow.yaml"))


@needs_root
def test_two_builds_do_not_meet(under_way: subprocess.Popen, few: str) -> None:
    lines: list[str] = []
    second = threading.Thread(target=build_image, args=(few,), kwargs={"say": lines.append})
    second.start()
    await_(lambda: lines)
    time.sleep(0.3)
    assert lines == ["waiting for another build to end"]
    assert under_way.poll() is None
    under_way.kill()
    second.join(10)
    assert find_image("few").manifest.name == "few"


@needs_root
def test_nothing_of_the_builder_stays(tmp_path: Path) -> None:
    kept = ["etc/passwd", "usr/lib/python3/x.py", "usr/share/zoneinfo/UTC", "var/lib/dpkg/status", "var/log/app/"]
    gone = ["dev/null", "etc/hostname", "run/x", "tmp/x", "usr/lib/python3/__pycache__/x.pyc", "usr/share/doc/gcc/NEWS"]
    gone += ["usr/share/man/man1/gcc.1.gz", "var/cache/apt/pkgcache.bin", "var/lib/apt/lists/x", "var/log/app/x.log"]
    gone += ["var/lib/dpkg/status-old", ".dockerenv"]
    for name in [*kept, *gone, "etc/resolv.conf", "etc/machine-id"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("x")
    (tmp_path / "sys").symlink_to("/sys")  # a link is left alone
    clean(tmp_path)
    assert [name for name in kept if not (tmp_path / name).exists()] == []
    assert [name for name in gone if (tmp_path / name).exists()] == []
    assert (tmp_path / "etc/resolv.conf").read_text() == (tmp_path / "etc/machine-id").read_text() == ""
    assert (tmp_path / "etc/hosts").read_text().split() == ["127.0.0.1", "localhost", "::1", "localhost"]


def test_only_what_the_build_wrote_gets_another_time(tmp_path: Path) -> None:
    for name, time_s in (("packaged", 500.0), ("older", 400.0), ("written", 1000.0), (".", 1001.0)):
        (tmp_path / name).is_dir() or (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time_s, time_s))
    clamp_times(tmp_path, 999.0)
    times = {name: (tmp_path / name).stat().st_mtime for name in ("packaged", "older", "written", ".")}
    assert times == {"packaged": 500, "older": 400, "written": 500, ".": 500}


def test_a_file_never_leaves_the_root_folder(tmp_path: Path) -> None:
    (tmp_path / "root/usr").mkdir(parents=True)
    (tmp_path / "root/run").symlink_to(tmp_path)
    (tmp_path / "root/lib").symlink_to("usr")
    with pytest.raises(ValueError, match="/run/x lies behind a link"):
        write_file(tmp_path / "root", "/run/x", "text")
    assert not (tmp_path / "x").exists()
    (tmp_path / "root/usr/there").symlink_to(tmp_path / "outside")
    write_file(tmp_path / "root", "/lib/there", "text")
    assert (tmp_path / "root/usr/there").read_text() == "text"
    assert not (tmp_path / "outside").exists()
