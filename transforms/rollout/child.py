"""A child service that never outlives this process.

The service runs in a process group of its own under a tiny guardian: this same file, run as a script. The guardian
holds a pidfd on this process and one on the service, and when either ends, or on SIGTERM, it kills the service's group
and every other descendant of the service before it goes. A pidfd sees every kind of death, SIGKILL included, and unlike
a pipe it cannot be kept open by something else this process forked. The guardian also owns the service's folder of
temporary files (vLLM leaves its sockets behind) and removes it.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
STOP_GRACE_S = 10.0


class Child:
    """One running service: its guardian, and the log it writes to."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        """Start argv; returns at once. stdout and stderr are appended to `log`."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        guardian = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._guardian = subprocess.Popen(
                guardian,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit status of the service, 128 + n where signal n ended it; None while it runs."""
        return self._guardian.poll()

    def log_tail(self) -> str:
        """The last lines this service wrote, for an error's evidence."""
        return log_tail(self.log, since=self._log_start)

    def stop(self) -> None:
        """Kill the service and all its descendants, and wait until they are gone. May be called again."""
        if self._guardian.poll() is None:
            self._guardian.terminate()
            try:
                self._guardian.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._guardian.kill()
                self._guardian.wait()


def log_tail(log: Path, *, since: int = 0, lines: int = 30) -> str:
    """The last lines of a log from byte `since` on, and where it lies."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"{log} cannot be read: {error}"
    return f"end of {log}:\n" + "\n".join(text.splitlines()[-lines:])


def _children() -> list[int]:
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


def _kill_descendants() -> None:
    """Kill until nothing is left: as subreaper this process inherits every orphan, however deep it was born."""
    while children := _children():
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.01)


def guard(parent: int, argv: list[str]) -> int:
    """Run argv until it ends, `parent` ends, or SIGTERM comes; leave no process. Returns its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The signal only leaves word. A handler that raised could do so between the fork and the first line that knows of
    # it, or a second time in the midst of the clean-up.
    told = os.eventfd(0)
    signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(told, 1))
    parent_fd = os.pidfd_open(parent)
    if os.getppid() != parent:
        return 0  # it died before the pidfd was taken, and its number may be someone else's by now
    with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as scratch:
        try:
            service = subprocess.Popen(argv, process_group=0, env={**os.environ, "TMPDIR": scratch})
            ends = select.poll()
            for fd in (told, parent_fd, os.pidfd_open(service.pid)):
                ends.register(fd, select.POLLIN)
            ends.poll()
            code = service.poll() or 0
            return code if code >= 0 else 128 - code
        finally:
            _kill_descendants()


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
