"""The files of an image as data: a listing whose digest names them, and a tar archive for a Docker engine."""

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CHUNK = 1024 * 1024
_FIELDS = ("path", "kind", "mode", "owner", "group", "content")
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe"}
_KINDS |= {stat.S_IFCHR: "character device", stat.S_IFBLK: "block device", stat.S_IFSOCK: "socket"}


def list_tree(root: Path) -> list[str]:
    """One JSON line for each path below a folder, sorted by the bytes of the paths. Times are left out.

    A line is [path, kind, mode, owner, group, content]; content is a file's SHA-256, a link's target, a device's
    number. Raises OSError. Cost: reads every file once, on as many threads as there are cores.
    """
    paths = sorted(_walk(os.fsencode(root)))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda path: _line(os.fsencode(root), path), paths))


def tree_digest(lines: list[str]) -> str:
    """SHA-256 of a listing, each line ended by a newline, hexadecimal."""
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def first_difference(kept: list[str], found: list[str]) -> str:
    """Say what the first path is that two different listings do not agree on, and in what."""
    old, new = ({row[0]: row for row in map(json.loads, lines)} for lines in (kept, found))
    path = min((path for path in old | new if old.get(path) != new.get(path)), key=os.fsencode)
    if path not in new:
        return f"/{path} is gone"
    if path not in old:
        return f"/{path} was added"
    changed = [name for name, a, b in zip(_FIELDS, old[path], new[path], strict=True) if a != b]
    return f"/{path} has another {' and '.join(changed)}"


def tar_stream(root: Path) -> Iterator[bytes]:
    """A folder as an uncompressed tar archive: the same bytes for the same files, owners by number.

    Holds one file at a time in memory. Raises OSError.
    """
    written = _Written()
    with tarfile.open(fileobj=written, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_CHUNK) as archive:  # ty: ignore
        for path in sorted(_walk(os.fsencode(root))):
            info = archive.gettarinfo(root / os.fsdecode(path), os.fsdecode(path))
            info.uname = info.gname = ""
            if info.isreg():
                with open(root / os.fsdecode(path), "rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
            yield from written.take()
    yield from written.take()


class _Written:
    """What tarfile wrote and nobody took yet."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._chunks.append(data)
        return len(data)

    def take(self) -> list[bytes]:
        taken, self._chunks = self._chunks, []
        return taken


def _walk(root: bytes) -> Iterator[bytes]:
    """Every path below a folder, relative to it."""
    left = [b""]
    while left:
        folder = left.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                yield path
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)


def _line(root: bytes, path: bytes) -> str:
    full = os.path.join(root, path)
    info = os.lstat(full)
    content = ""
    if stat.S_ISREG(info.st_mode):
        with open(full, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(info.st_mode):
        content = os.fsdecode(os.readlink(full))
    elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        content = f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    mode = f"{stat.S_IMODE(info.st_mode):04o}"
    kind = _KINDS[stat.S_IFMT(info.st_mode)]
    return json.dumps([os.fsdecode(path), kind, mode, info.st_uid, info.st_gid, content])
