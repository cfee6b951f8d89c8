"""Files named by their content: once, whole, checked, streamed, and swept only when nobody needs them."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.builders import trajectory_row
from tests.lake.s3_here import S3Server
from transforms.lake import blobs
from transforms.lake.blobs import FileDamaged, FileMissing, keep, read, sweep
from transforms.lake.errors import LakeError
from transforms.lake.storage import ObjectStore, Place
from transforms.lake.table import Lake

ROOT = Path(__file__).parents[2]
DAY = timedelta(days=1)
HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # `printf hello | sha256sum`
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture(params=["folder", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home, and where its files lie on a disk."""
    if request.param == "folder":
        yield tmp_path / "home"
        return
    (tmp_path / "s3" / "lake").mkdir(parents=True)
    server = S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with server:
        yield ObjectStore("s3://lake/a")


def on_disk(home: Place, tmp_path: Path) -> Path:
    return (home if isinstance(home, Path) else tmp_path / "s3" / "lake" / "a") / "files"


def stored(home: Place, tmp_path: Path) -> list[str]:
    folder = on_disk(home, tmp_path)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def text(home: Place, digest: str) -> bytes:
    return b"".join(read(home, digest))


def test_content_is_one_compressed_file_under_its_digest(home: Place, tmp_path: Path):
    assert keep(home, b"hello") == HELLO
    assert keep(home, io.BytesIO(b"hello")) == HELLO
    assert keep(home, b"") == EMPTY
    assert stored(home, tmp_path) == [f"2c/{HELLO}.zst", f"e3/{EMPTY}.zst"]
    assert (text(home, HELLO), text(home, EMPTY)) == (b"hello", b"")
    packed = (on_disk(home, tmp_path) / f"2c/{HELLO}.zst").read_bytes()
    assert pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read() == b"hello"
    assert packed[:4] == bytes.fromhex("28b52ffd")  # the magic number of a zstd frame


LARGE = """
import hashlib, io, os, resource, sys
from transforms.lake import blobs
from transforms.lake.storage import place
size = 96 << 20
class Noise:
    left = size
    def read(self, most):
        piece = os.urandom(min(most, self.left))
        self.left -= len(piece)
        return piece
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
home = place(sys.argv[1])
list(blobs.read(home, blobs.keep(home, io.BytesIO(os.urandom(1 << 22)))))  # what the libraries take themselves
before = peak()
digest = blobs.keep(home, Noise())
found, length = hashlib.sha256(), 0
for piece in blobs.read(home, digest):
    found.update(piece)
    length += len(piece)
assert (found.hexdigest(), length) == (digest, size)
print(peak() - before)
"""


def test_large_content_is_never_whole_in_memory(home: Place):
    done = subprocess.run([sys.executable, "-c", LARGE, str(home)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 << 20


def flipped(packed: bytes) -> bytes:
    return packed[:-1] + bytes([packed[-1] ^ 1])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda packed: packed[: len(packed) // 2],
    "empty": lambda packed: b"",
    "a bit": flipped,
    "other content": lambda packed: pa.Codec("zstd").compress(b"another", asbytes=True),
    "no zstd": lambda packed: b"no zstd at all",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_its_end_is_never_given(home: Place, tmp_path: Path, damage: str):
    content = os.urandom(3000)
    digest = keep(home, content)
    path = on_disk(home, tmp_path) / digest[:2] / f"{digest}.zst"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    given = []
    with pytest.raises(FileDamaged, match=f"{home}/files/{digest[:2]}/{digest}.zst .*put it back from a copy"):
        given += read(home, digest)
    assert given == []


def test_what_is_not_there_is_said(home: Place):
    with pytest.raises(FileMissing, match=f"there is no file {HELLO} in "):
        text(home, HELLO)
    for wrong in ("../../etc/passwd", "abc", HELLO.upper()):
        with pytest.raises(FileMissing, match="is no digest"):
            text(home, wrong)


def aged(home: Place, tmp_path: Path, name: str, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(on_disk(home, tmp_path) / name, (then, then))


def name(digest: str) -> str:
    return f"{digest[:2]}/{digest}.zst"


def step(**digests: str) -> list[dict[str, object]]:
    steps = trajectory_row()["steps"]
    assert isinstance(steps, list)
    return [steps[0], {**steps[1], "workspace_digest": None, "output_digest": None, **digests}]


def test_a_sweep_takes_what_is_old_and_not_referred_to(home: Place, tmp_path: Path):
    lake = Lake(home)
    digests = {content: keep(home, content.encode()) for content in ("workspace", "output", "idle", "young")}
    rows = [
        trajectory_row(trajectory_id="1", steps=step(workspace_digest=digests["workspace"])),
        trajectory_row(trajectory_id="2", steps=step(output_digest=digests["output"])),
    ]
    lake.append("trajectories", rows, app_id="r", version=1)
    for content in ("workspace", "output", "idle"):
        aged(home, tmp_path, name(digests[content]), days=2)
    aged(home, tmp_path, name(digests["young"]), days=0.9)
    (on_disk(home, tmp_path) / "dead.tmp").write_bytes(b"half")
    aged(home, tmp_path, "dead.tmp", days=2)
    everything = stored(home, tmp_path)

    assert [file.name for file in sweep(lake, DAY, dry_run=True)] == sorted([name(digests["idle"]), "dead.tmp"])
    assert stored(home, tmp_path) == everything
    swept = sweep(lake, DAY, dry_run=False)
    assert {file.name for file in swept} == {name(digests["idle"]), "dead.tmp"}
    assert stored(home, tmp_path) == sorted(name(digests[each]) for each in ("workspace", "output", "young"))
    assert sweep(lake, 3 * DAY, dry_run=False) == []
    with pytest.raises(LakeError, match="kept for a day at least"):
        sweep(lake, DAY / 2, dry_run=False)


def test_a_writer_who_finds_its_file_old_makes_it_young_again(home: Place, tmp_path: Path):
    keep(home, b"hello")
    aged(home, tmp_path, name(HELLO), days=2)
    keep(home, b"hello")
    assert sweep(Lake(home), DAY, dry_run=False) == []
    assert text(home, HELLO) == b"hello"


def test_a_writer_between_the_looks_of_a_sweep_keeps_its_file(
    home: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keep(home, b"hello")
    aged(home, tmp_path, name(HELLO), days=2)
    asked = blobs.query

    def written_meanwhile(*args):
        keep(home, b"hello")
        return asked(*args)

    monkeypatch.setattr(blobs, "query", written_meanwhile)
    assert sweep(Lake(home), DAY, dry_run=False) == []
    assert text(home, HELLO) == b"hello"


def test_a_file_made_young_in_the_last_moment_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keep(tmp_path, b"hello")
    os.utime(tmp_path / "files" / name(HELLO), (1, 1))
    rename = Path.rename

    def after_a_writer(self: Path, target: Path) -> Path:
        keep(tmp_path, b"hello")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", after_a_writer)
    assert sweep(Lake(tmp_path), DAY, dry_run=False) == []
    assert text(tmp_path, HELLO) == b"hello"


KILLED = """
import os, signal, sys
from pathlib import Path
from transforms.lake import blobs
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
blobs.keep(Path(sys.argv[1]), b"hello")
"""


def test_a_killed_writer_leaves_no_file_that_looks_whole(tmp_path: Path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False).returncode == -9
    [left] = (tmp_path / "files").iterdir()
    assert left.suffix == ".tmp"
    with pytest.raises(FileMissing):
        text(tmp_path, HELLO)
    assert keep(tmp_path, b"hello") == HELLO
    assert text(tmp_path, HELLO) == b"hello"


def test_a_disk_that_fails_is_said(tmp_path: Path):
    (tmp_path / "files").write_text("no folder")
    with pytest.raises(LakeError, match=r"cannot write in .*/files: Not a directory; no row refers to what is missing"):
        keep(tmp_path, b"hello")
