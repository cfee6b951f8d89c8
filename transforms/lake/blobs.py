"""Files beside the tables, named by what they hold: workspaces and long outputs that rows refer to by digest.

`files/AB/ABCD...zst` under the home: zstd, below the first two digits of the SHA-256 of the content as it was before
compression. Equal content is one file, written once and never changed. Nothing is held in memory but a piece of it.
"""

import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa

from transforms.lake.errors import LakeError
from transforms.lake.files import sync
from transforms.lake.sql import query
from transforms.lake.storage import ObjectStore, Place, Stored
from transforms.lake.table import Lake

LEAST_KEPT = timedelta(days=1)
"""A younger file may be one whose row is about to be committed: it is never swept."""

FOLDER = "files"

_FRESH = LEAST_KEPT / 4
"""Whoever keeps content whose file is older than this makes it young again, so that no sweep takes it before the row is
committed."""
_PIECE = 1 << 20  # bytes
_MEND = "put it back from a copy, or remove it: the rows that name it stay, without it"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REFERENCES = (
    "SELECT DISTINCT workspace_digest FROM steps WHERE workspace_digest IS NOT NULL",
    "SELECT DISTINCT output_digest FROM steps WHERE output_digest IS NOT NULL",
)


class FileMissing(LakeError):
    """No file has this digest."""


class FileDamaged(LakeError):
    """A file does not hold what its name says. What was read of it must not be used."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A file that no row refers to."""

    name: str
    """Relative to the folder `files`."""
    size: int
    """Bytes, compressed."""


def keep(home: Place, content: bytes | IO[bytes]) -> str:
    """Store content, unless it is there; gives its digest. Raises StoreFailed, LakeError where the disk fails."""
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        if isinstance(content, bytes) and _is_fresh(home, digest := hashlib.sha256(content).hexdigest()):
            return digest
        if isinstance(home, Path):
            return _keep_here(home / FOLDER, source)
        with TemporaryFile() as packed:
            digest = _pack(source, packed)
            if not _is_fresh(home, digest):
                packed.seek(0)
                # An upload is seen whole or not at all, and that of a rival is the same.
                home.put(f"{FOLDER}/{_name(digest)}", packed)
        return digest
    except OSError as error:
        raise LakeError(
            f"cannot write in {home}/{FOLDER}: {error.strerror or error}; no row refers to what is missing: free space "
            "or mend the disk, then run again"
        ) from error


def read(home: Place, digest: str) -> Iterator[bytes]:
    """The content of a file in pieces, of which the last comes only when all are known to be right.

    A piece is 1 MiB or less. Raises FileMissing, FileDamaged, StoreFailed.
    """
    name = f"{FOLDER}/{_name(digest)}"
    found, held_back = hashlib.sha256(), b""
    try:
        with home.open(name) if isinstance(home, ObjectStore) else (home / name).open("rb") as raw:
            with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as content:
                while piece := content.read(_PIECE):
                    found.update(piece)
                    if held_back:
                        yield held_back
                    held_back = piece
    except FileNotFoundError:
        raise FileMissing(f"there is no file {digest} in {home}: it was swept, or another home holds it") from None
    except (OSError, pa.ArrowInvalid):
        raise FileDamaged(f"{home}/{name} is no whole zstd file; {_MEND}") from None
    if found.hexdigest() != digest:
        raise FileDamaged(f"{home}/{name} does not hold what its name says; {_MEND}")
    if held_back:
        yield held_back


def sweep(lake: Lake, kept: timedelta, *, dry_run: bool) -> list[Swept]:
    """Remove files that no row refers to and that are older than `kept`; says which. Safe beside running writers.

    Raises LakeError for less than `LEAST_KEPT` and for tables that cannot be read, StoreFailed.
    """
    if kept < LEAST_KEPT:
        raise LakeError("files are kept for a day at least: a younger one may be of a row that is not committed yet")
    before = datetime.now(UTC) - kept
    # First the files, then the rows: who commits a row in between has made its file young before.
    old = [file for file in _files(lake.home) if file.modified < before]
    used = {row for sql in _REFERENCES for row in query(lake.home, sql).column(0).to_pylist()}
    idle = [file for file in old if file.name.rpartition("/")[2].removesuffix(".zst") not in used]
    return [
        Swept(file.name, file.size)
        for file in sorted(idle, key=lambda file: file.name)
        if dry_run or _removed(lake.home, file.name, before)
    ]


def _name(digest: str) -> str:
    """Raises FileMissing for what is no digest, which could else name any file."""
    if not _DIGEST.fullmatch(digest):
        raise FileMissing(f"{digest[:80]!r} is no digest: 64 digits, 0-9 and a-f")
    return f"{digest[:2]}/{digest}.zst"


def _is_fresh(home: Place, digest: str) -> bool:
    """Whether content is there, and young enough to stay until its row is committed."""
    file = _stat(home, _name(digest))
    return file is not None and file.modified > datetime.now(UTC) - _FRESH


def _stat(home: Place, name: str) -> Stored | None:
    if isinstance(home, ObjectStore):
        return (home / FOLDER).stat(name)
    try:
        found = (home / FOLDER / name).stat()
    except FileNotFoundError:
        return None
    return Stored(name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _pack(source: IO[bytes], to: IO[bytes]) -> str:
    """Compress content; gives its digest."""
    found = hashlib.sha256()
    # Arrow closes what it writes to.
    with (
        os.fdopen(os.dup(to.fileno()), "wb") as below,
        pa.CompressedOutputStream(pa.PythonFile(below, mode="w"), "zstd") as packed,
    ):
        while piece := source.read(_PIECE):
            found.update(piece)
            packed.write(piece)
    return found.hexdigest()


def _keep_here(folder: Path, source: IO[bytes]) -> str:
    unfinished = folder / f"{uuid.uuid4().hex}.tmp"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished.open("xb") as packed:
            digest = _pack(source, packed)
            os.fsync(packed.fileno())
        path = folder / _name(digest)
        path.parent.mkdir(exist_ok=True)
        unfinished.replace(path)  # also over an old one, which a sweep may be about to take
    finally:
        unfinished.unlink(missing_ok=True)
    for level in (path.parent, folder, folder.parent):
        sync(level)
    return digest


def _files(home: Place) -> Iterator[Stored]:
    """All files, also those that a dead writer did not finish."""
    if isinstance(home, ObjectStore):
        yield from (home / FOLDER).list()
        return
    for path in (home / FOLDER).rglob("*"):
        if path.is_file() and (file := _stat(home, str(path.relative_to(home / FOLDER)))) is not None:
            yield file


def _removed(home: Place, name: str, before: datetime) -> bool:
    """Remove a file if it is still as old as it was. In a store, one made young between the two requests is lost."""
    file = _stat(home, name)
    if file is None or file.modified >= before:
        return False
    if isinstance(home, ObjectStore):
        (home / FOLDER).remove(name)
        return True
    path, aside = home / FOLDER / name, home / FOLDER / f"{uuid.uuid4().hex}.tmp"
    path.rename(aside)
    if aside.stat().st_mtime >= before.timestamp():  # a writer was quicker
        aside.replace(path)
        return False
    aside.unlink()
    return True
