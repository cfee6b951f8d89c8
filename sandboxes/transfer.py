"""Files in and out of a sandbox as tar archives, made and read here, written and read inside by the image's own tar.

So links are followed inside, by the program's own user, never on the host; and an archive that comes out is read as
data, entry by entry.
"""

import io
import posixpath
import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256

from sandboxes.protocol import Command, File, FilesRefused, ProvisionFailed, Result, Snapshot

_TRANSFER_S = 60.0  # longest a transfer may take, on the clock and in CPU time
_PER_FILE = 4096  # bytes an archive has besides a file's content: headers, padding, a long name


def inside(path: str, work: str) -> str:
    """The absolute path inside, without its first slash. Raises FilesRefused for a name that is none."""
    joined = posixpath.normpath(posixpath.join(work, path))
    if "\0" in path or not path or ".." in path.split("/") or joined == "/":
        raise FilesRefused(f"{path!r} is not the name of a file in the sandbox")
    return joined.lstrip("/")


def pack(files: Mapping[str, File], work: str) -> bytes:
    """Make the archive for `unpack_command`. Raises FilesRefused."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, file in files.items():
            entry = tarfile.TarInfo("/" + inside(path, work))
            entry.size, entry.mode = len(file.content), file.mode & 0o777
            archive.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def unpack_command(archive: bytes, folder: str) -> Command:
    """Write an archive's files below a folder inside; `/` is not opened, which not every back-end allows."""
    where = ("-P",) if folder == "/" else ("-C", folder)
    argv = ("tar", "-x", "-p", "--no-same-owner", "--warning=no-timestamp", "-f", "-", *where)
    return Command(argv, stdin=archive, wall_time_s=_TRANSFER_S, cpu_time_s=_TRANSFER_S)


def check_unpacked(result: Result) -> None:
    """Raises ProvisionFailed where `unpack_command` did not end well, with the limit it broke and what tar said."""
    if result.exit_code == 0 and result.breach is None:
        return
    broken = f"it broke the sandbox's {result.breach}" if result.breach else ""
    said = result.stderr.decode(errors="replace").strip()[-300:]
    ended = f"tar ended by signal {result.signal}" if result.signal else f"tar ended with status {result.exit_code}"
    evidence = ": ".join(filter(None, (broken, said))) or ended
    raise ProvisionFailed("the snapshot could not be unpacked", evidence=evidence)


def pack_command(paths: Sequence[str], work: str, *, max_bytes: int) -> Command:
    """Read files, and all below folders, into an archive on stdout."""
    names = ["/" + inside(path, work) for path in paths]
    argv = ("tar", "-c", "-P", "--hard-dereference", "-f", "-", "--", *names)
    room = max_bytes // 1024 + (max_bytes // _PER_FILE + len(names) + 16) * _PER_FILE // 1024
    return Command(argv, wall_time_s=_TRANSFER_S, cpu_time_s=_TRANSFER_S, output_kib=room)


def check(snapshot: Snapshot) -> None:
    """Raises ProvisionFailed for a snapshot that is not what its digest says."""
    found = sha256(snapshot.archive).hexdigest()
    if found != snapshot.digest:
        raise ProvisionFailed("the snapshot is damaged", evidence=f"its digest is {found}, not {snapshot.digest!r}")


def snapshot_command(work: str, *, max_mib: int, inodes: int) -> Command:
    """Read the whole workspace into an archive on stdout: equal workspaces give equal bytes."""
    equal = ("--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner")
    argv = ("tar", "-c", *equal, "-f", "-", "-C", work, ".")
    room = max_mib * 1024 + inodes * 2
    return Command(argv, wall_time_s=_TRANSFER_S, cpu_time_s=_TRANSFER_S, output_kib=room)


def unpack(result: Result, paths: Sequence[str], work: str, *, max_bytes: int) -> dict[str, File]:
    """Read what `pack_command` gave. Raises FilesRefused."""
    if result.breach is not None:
        raise FilesRefused(f"the files are more than {max_bytes} bytes, or their reading broke a limit")
    for line in result.stderr.decode(errors="replace").splitlines():
        if not line.endswith(("No such file or directory", "Exiting with failure status due to previous errors")):
            raise FilesRefused(line)
    found: dict[str, File] = {}
    asked = {inside(path, work): path for path in paths}
    left = max_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(result.stdout), mode="r:") as archive:
            for entry in archive:
                if entry.isdir():
                    continue
                if not entry.isreg():
                    raise FilesRefused(f"{entry.name!r} is no regular file")
                if entry.size > left:
                    raise FilesRefused(f"the files are more than {max_bytes} bytes")
                left -= entry.size
                content = archive.extractfile(entry)
                assert content is not None
                found[_as_asked(entry.name.lstrip("/"), asked)] = File(content.read(), entry.mode & 0o777)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, FilesRefused):
            raise
        if result.stdout.strip(b"\0"):
            raise FilesRefused(f"not an archive: {error}") from error
    return found


def _as_asked(name: str, asked: Mapping[str, str]) -> str:
    """The path as the caller wrote it, or that of the folder it lies in and the rest."""
    for real, path in asked.items():
        if name == real:
            return path
        if name.startswith(real + "/"):
            return posixpath.join(path, name[len(real) + 1 :])
    raise FilesRefused(f"{name!r} was not asked for")
