"""What of this machine the programs of a confined sandbox may read: the same as bubblewrap's image `host` shows.

Landlock can open folders but not close one inside an open one. So where Python packages are installed below a folder of
the system, its other parts are opened one by one; and an interpreter whose own packages lie inside its library is
copied without them, by hard links where they can be made.
"""

import contextlib
import functools
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path

from sandboxes.host.owner import identity

_PACKAGES = ("site-packages", "dist-packages")
_SYSTEM = [f"{top}/{name}" for top in ("/usr", "") for name in ("bin", "sbin", "lib", "lib32", "lib64")]
_ALSO = [
    "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/alternatives", "/dev/random", "/dev/urandom",
    "/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
]  # fmt: skip
_DEVICES = ["/dev/null", "/dev/zero", "/dev/full"]
_TERMINAL = "/dev/tty"
_NEW_TERMINALS = ["/dev/ptmx", "/dev/pts"]


def guest_may(folder: Path, prefix: str) -> dict[str, list[str]]:
    """Paths that a guest and all below it may read, and write."""
    return {
        "read": [*_system_parts(), prefix, *_ALSO],
        "write": [str(folder), "/proc", *_DEVICES, _TERMINAL, *_NEW_TERMINALS],
    }


def program_may(folder: Path, prefix: str, *, terminals: bool) -> dict[str, list[str]]:
    """What is left of that to programs. Landlock holds both lists against them, so these can be broad.

    New terminals are the guest's alone to make: a few programs could take all that the host has.
    """
    return {
        "read": [*_SYSTEM, prefix, *_ALSO, "/proc/self", str(folder / "job")],
        "write": [str(folder / "work"), str(folder / "tmp"), *_DEVICES, *([_TERMINAL] if terminals else [])],
    }


def interpreter(base: Path) -> tuple[str, str]:
    """The Python that programs get, and its prefix: ours, or a copy of it below `base`. Raises OSError."""
    ours = os.path.realpath(sys.executable)
    library = os.path.dirname(os.__file__)
    if sys.base_prefix == "/usr" and not any(os.path.exists(f"{library}/{name}") for name in _PACKAGES):
        return ours, sys.base_prefix
    status = os.stat(ours)
    key = f"{ours} {status.st_mtime_ns} {status.st_size}".encode()
    prefix = base / f"python-{sha256(key).hexdigest()[:16]}"
    copied = prefix / "bin" / os.path.basename(ours)
    if not os.access(copied, os.X_OK):
        begun = base / f"{identity()}-python"  # a sweep finds it
        shutil.rmtree(begun, ignore_errors=True)
        _copy_interpreter(ours, library, begun)
        with contextlib.suppress(FileExistsError):  # somebody else was quicker
            shutil.rmtree(prefix, ignore_errors=True)
            begun.rename(prefix)
    return str(copied), str(prefix)


def _copy_interpreter(ours: str, library: str, target: Path) -> None:
    place = target / os.path.relpath(library, sys.base_prefix)
    for folder in (target, target / "bin", place.parent):
        (target / folder).mkdir()
        (target / folder).chmod(0o755)  # whatever our umask is
    _copy_program(ours, os.path.dirname(library), target / "bin" / os.path.basename(ours))
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(os.path.basename(ours))
    unwanted = shutil.ignore_patterns(*_PACKAGES, "test", "config-*")
    shutil.copytree(library, place, symlinks=True, ignore=unwanted, copy_function=_link)
    for shared in Path(library).parent.glob("libpython*.so.*"):
        _link(shared, place.parent / shared.name)


def _copy_program(ours: str, library_folder: str, target: Path) -> None:
    """Copy the interpreter; one that looks for its own library at a fixed place then looks beside itself."""
    content = Path(ours).read_bytes()
    fixed = f"\0{library_folder}\0".encode()
    beside = f"\0$ORIGIN/../{os.path.relpath(library_folder, sys.base_prefix)}\0".encode()
    if fixed in content and len(fixed) >= len(beside):
        target.write_bytes(content.replace(fixed, beside.ljust(len(fixed), b"\0")))
        target.chmod(0o755)
    else:
        _link(ours, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or not ours to link
        shutil.copy2(source, target)


@functools.cache
def _system_parts() -> tuple[str, ...]:
    folders = [folder for folder in _SYSTEM if os.path.isdir(folder) and not os.path.islink(folder)]
    return tuple(part for folder in folders for part in _parts(folder))


def _parts(folder: str) -> list[str]:
    """The folder; or, if Python packages are installed below, the parts of it without them."""
    parts, whole = [], True
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name in _PACKAGES:
                whole = False
            elif entry.is_dir(follow_symlinks=False):
                below = _parts(entry.path)
                whole = whole and below == [entry.path]
                parts += below
            elif not entry.is_symlink():  # what counts is where it leads
                parts.append(entry.path)
    return [folder] if whole else parts
