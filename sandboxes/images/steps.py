"""The steps of a build: programs run beside the new root folder or inside it, none of which outlives the build."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.backends.walls import find_bwrap
from sandboxes.protocol import ProvisionFailed

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The capabilities that a Docker engine gives to the steps of a Dockerfile.
_CAPABILITIES = (
    "CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE "
    "CAP_NET_RAW CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT"
).split()
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_VERSIONS = {
    "python": ("python3", "--version"),
    "c": ("gcc", "--version"),
    "c++": ("g++", "--version"),
    "javascript": ("node", "--version"),
    "bash": ("bash", "--version"),
    "sqlite": ("sqlite3", "--version"),
    "go": ("go", "version"),
    "java": ("javac", "-version"),
    "rust": ("rustc", "--version"),
}


@dataclass(frozen=True, slots=True)
class Build:
    """One image in the making."""

    name: str
    folder: Path
    """Becomes the image's folder when it is whole."""
    downloads: Path
    """Debian packages kept between builds."""
    lock: int
    """Descriptor that the build's programs hold too: the lock is free only when all have ended."""
    say: Callable[[str], None]

    @property
    def rootfs(self) -> Path:
        """The new root folder."""
        return self.folder / "rootfs"

    def beside(self, what: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a program on the host's own files as root. Raises ProvisionFailed with the last lines it printed."""
        options = ["--cap-add", "ALL", "--dev-bind", "/", "/", "--proc", "/proc"]
        self._run(what, [*_bwrap(env or {}), *options, "--", *argv])

    def inside(
        self, what: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """Run a program inside the new root folder, as a Dockerfile's step would. Raises ProvisionFailed."""
        capabilities = [word for name in _CAPABILITIES for word in ("--cap-add", name)]
        root = ["--cap-drop", "ALL", *capabilities, "--bind", str(self.rootfs), "/", "--dev", "/dev", "--proc", "/proc"]
        resolver = ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        self._run(what, [*_bwrap({"HOME": "/root", **(env or {})}), *root, *resolver, *options, "--", *argv])

    def _run(self, what: str, argv: list[str]) -> None:
        self.say(f"{self.name}: {what}")
        with open(self.folder / "build.log", "ab") as log:
            log.write(f"== {what}\n".encode())
            log.flush()
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o022,
                pass_fds=[self.lock],
                check=False,
            )
        if done.returncode != 0:
            raise self.failed(what, f"exit status {done.returncode}")

    def failed(self, what: str, reason: str) -> ProvisionFailed:
        """An error with the end of the log."""
        log = self.folder / "build.log"
        last = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        lines = "\n".join(["", *last, f"(all of it: {log})"])
        return ProvisionFailed(f"image {self.name} could not be built: {what}", evidence=reason + lines)


def find_languages(rootfs: Path) -> dict[str, str]:
    """Which languages a root folder has programs for, and their versions, by trying each."""
    answers = {language: ask(rootfs, argv) for language, argv in _VERSIONS.items()}
    versions = {language: re.search(r"\d+(\.\d+)+", answer) for language, answer in answers.items()}
    return {language: found[0] for language, found in versions.items() if found}


def find_packages(rootfs: Path) -> dict[str, str]:
    """The Debian packages installed in a root folder, and their versions."""
    rows = ask(rootfs, ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n"]).splitlines()
    parts = [row.split("\t") for row in rows]
    return {name: version for status, name, version in parts if status.startswith("ii")}


def ask(rootfs: Path, argv: Sequence[str]) -> str:
    """What a program inside a root folder prints, without changing anything there; empty if it fails or is missing."""
    root = ["--cap-drop", "ALL", "--unshare-net", "--ro-bind", str(rootfs), "/", "--dev", "/dev", "--proc", "/proc"]
    command = [*_bwrap({"HOME": "/tmp"}), *root, "--tmpfs", "/tmp", "--", *argv]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _bwrap(env: Mapping[str, str]) -> list[str]:
    proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    fixed = {"PATH": _PATH, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    words = [word for name, value in {**proxies, **fixed, **env}.items() for word in ("--setenv", name, value)]
    isolation = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--new-session"]
    return [find_bwrap(), *isolation, "--clearenv", *words, "--chdir", "/"]
