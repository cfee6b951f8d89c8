"""What is taken out of a new image, so that the same packages give the same files and nothing tells of this host."""

import os
import shutil
from pathlib import Path

_MOUNTED = ("dev", "proc", "sys", "run", "tmp")  # back-ends put their own there
_EMPTIED = (
    *_MOUNTED,
    "var/tmp",
    "var/cache/apt",
    "var/cache/fontconfig",
    "var/cache/ldconfig",
    "var/cache/man",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
)
_REMOVED = (".dockerenv", "etc/hostname", "var/lib/dbus/machine-id")
# An engine puts these into every container, so a folder that bubblewrap shows has them too.
_EVERYWHERE = {"etc/resolv.conf": "", "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n"}


def clean(rootfs: Path) -> None:
    """Remove caches, logs, documentation, compiled Python and the builder's own names; make the mount points."""
    for name in _EMPTIED:
        folder = rootfs / name
        if folder.is_dir() and not folder.is_symlink() and leads_out(rootfs, folder) is None:
            shutil.rmtree(folder)
            _make_folder(folder)
    for name in _MOUNTED:
        if not os.path.lexists(rootfs / name):
            _make_folder(rootfs / name)
    for name in ("tmp", "var/tmp"):
        if (rootfs / name).is_dir() and leads_out(rootfs, rootfs / name / "x") is None:
            (rootfs / name).chmod(0o1777)
    for name in _REMOVED:
        if leads_out(rootfs, rootfs / name) is None:
            (rootfs / name).unlink(missing_ok=True)
    machine_id = rootfs / "etc/machine-id"
    if machine_id.is_file() and not machine_id.is_symlink():
        write_file(rootfs, "etc/machine-id", "")
    for name, text in _EVERYWHERE.items():
        write_file(rootfs, name, text)
    if not os.path.lexists(rootfs / "etc/mtab"):
        (rootfs / "etc/mtab").symlink_to("/proc/mounts")
    for folder, folders, files in os.walk(rootfs):
        here = Path(folder)
        if "__pycache__" in folders:
            shutil.rmtree(here / "__pycache__")
            folders.remove("__pycache__")
        logs = here.is_relative_to(rootfs / "var/log")
        old = here in {rootfs / "var/cache/debconf", rootfs / "var/lib/dpkg"}
        for name in files:
            if logs or (old and name.endswith("-old")):
                (here / name).unlink()


def clamp_times(rootfs: Path, started: float) -> None:
    """Give what the build itself wrote the time of the newest file that came from a package or a base.

    `started` is when the build began, in seconds since 1970.
    """
    paths = [Path(folder) / name for folder, folders, files in os.walk(rootfs) for name in (*folders, *files)]
    times = {path: path.lstat().st_mtime for path in [rootfs, *paths]}
    newest = int(max((time for time in times.values() if time < started), default=0))
    for path, time in times.items():
        if time >= started:
            os.utime(path, (newest, newest), follow_symlinks=False)


def write_file(rootfs: Path, path: str, text: str) -> None:
    """Write a file of a definition into a root folder. Raises OSError, ValueError for a way that leads out of it."""
    target = rootfs / path.lstrip("/")
    outside = leads_out(rootfs, target)
    if outside is not None:
        raise ValueError(f"{path} lies behind a link that leads to {outside}")
    for folder in reversed([folder for folder in target.parents if not folder.exists()]):
        _make_folder(folder)
    target.unlink(missing_ok=True)
    target.write_text(text)
    target.chmod(file_mode(text))


def leads_out(rootfs: Path, path: Path) -> Path | None:
    """Where the folder of a path is on this host, if links lead out of the root folder; else None."""
    parent = path.parent.resolve()
    return None if parent.is_relative_to(rootfs.resolve()) else parent


def file_mode(text: str) -> int:
    """Permissions of a definition's file."""
    return 0o755 if text.startswith("#!") else 0o644


def _make_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)
