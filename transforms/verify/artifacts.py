"""What a program left in its workspace, read as data when every process of it is dead."""

import io
import json
import posixpath
import tarfile
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from sandboxes.protocol import Command, FilesRefused, Result, Sandbox, Snapshot
from transforms.sources.kinds.trees import Tree

OPENER = "opened_modes.py"
"""Name of the file that `at_rest` needs in the job folder."""
OPENER_SOURCE = (Path(__file__).parent / "inside" / OPENER).read_bytes()

_LINKS = 40  # links that one path may go through, as in Linux
_LISTING_KIB = 8192  # the modes of all files and folders of a workspace
_KINDS: dict[bytes, Literal["file", "folder", "link", "special"]] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a workspace."""

    kind: Literal["file", "folder", "link", "special"]
    """`special`: a pipe or a device."""
    mode: int
    """Permission bits, with set-id and sticky."""
    content: bytes = b""
    target: str = ""
    """Where a link points."""


Entries = dict[str, Entry]
"""What a workspace holds, by path relative to it; the workspace itself is the empty path."""


async def at_rest(sandbox: Sandbox) -> tuple[Snapshot, Entries]:
    """End every program of a sandbox, and read its workspace. Ask for `OPENER` in its job folder.

    Raises FilesRefused where the workspace is too much to read, SandboxError.
    """
    try:
        snapshot = await sandbox.snapshot()
        return snapshot, read_archive(snapshot.archive)
    except FilesRefused:
        # A program may have shut files to itself, as a task may even ask. All are dead now, so nothing changes between
        # the listing of the modes, the opening, and the second snapshot.
        opener = ("python3", "-I", "-S", f"{sandbox.job}/{OPENER}", sandbox.work)
        modes = _modes(await sandbox.exec(Command(opener, cwd=sandbox.job, output_kib=_LISTING_KIB)))
        snapshot = await sandbox.snapshot()
    entries = read_archive(snapshot.archive)
    return snapshot, {
        path: replace(entry, mode=modes[path]) if path in modes else entry for path, entry in entries.items()
    }


def read_archive(archive: bytes) -> Entries:
    """What a snapshot's archive holds, each hard link as a file of its own. Raises FilesRefused."""
    entries: Entries = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8") as opened:
            for member in opened:
                path, mode = _relative(member.name), member.mode & 0o7777
                if member.islnk():
                    entries[path] = entries[_relative(member.linkname)]
                    continue
                kind = _KINDS.get(member.type, "special")
                file = opened.extractfile(member) if kind == "file" else None
                entries[path] = Entry(kind, mode, file.read() if file else b"", member.linkname)
    except (tarfile.TarError, EOFError, ValueError, KeyError, OverflowError) as error:
        raise FilesRefused(f"the workspace's archive cannot be read: {error}") from error
    return entries


def workspace(files: Tree, *folders: str) -> Snapshot:
    """A workspace that holds a tree, and folders besides those that its files need."""
    needed = set(folders)
    for path in files:
        parts = path.split("/")
        needed |= {"/".join(parts[:count]) for count in range(1, len(parts))}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(needed):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for path, item in files.items():
            member = tarfile.TarInfo(path)
            member.mode, member.size = item.mode, len(item.content)
            if item.link is not None:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, item.link, 0o777
            archive.addfile(member, io.BytesIO(item.content))
    return Snapshot(sha256(buffer.getvalue()).hexdigest(), buffer.getvalue())


def resolve(entries: Entries, path: str, *, root: str = "", real_root: str = "") -> str | None:
    """The path that a path below the folder `root` leads to, through links; None where nothing is there.

    `root` is what programs call `/`, as in a chroot: no link leads out of it. `real_root` is the path that it has
    inside, by which a link may call it too.
    """
    waiting = [part for part in path.split("/") if part][::-1]
    at, links = root, 0
    while waiting:
        part = waiting.pop()
        if part in (".", ""):
            continue
        if part == "..":
            at = root if at == root else posixpath.dirname(at)
            continue
        step = posixpath.join(at, part)
        entry = entries.get(step)
        if entry is None:
            return None
        if entry.kind != "link":
            at = step
            continue
        links += 1
        if links > _LINKS:
            return None
        target = entry.target
        if target.startswith("/"):
            at = root
            if real_root and (target + "/").startswith(real_root + "/"):
                target = target[len(real_root) :]
        waiting += target.split("/")[::-1]
    return at if at in entries else None


def _relative(name: str) -> str:
    normal = posixpath.normpath(name)
    return "" if normal == "." else normal


def _modes(result: Result) -> dict[str, int]:
    """What the opener printed. Raises FilesRefused."""
    if result.exit_code != 0 or result.breach is not None:
        why = result.breach or result.stderr.decode(errors="replace")[-200:]
        raise FilesRefused(f"the workspace cannot be opened: {why}")
    return json.loads(result.stdout)
