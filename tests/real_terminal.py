"""A real pseudo-terminal with a program on it, for tests to type on and to read from."""

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Terminal:
    """A terminal of 24 lines with a program on it; a context manager."""

    def __init__(self, *argv: str, columns: int = 80, env: Mapping[str, str] | None = None) -> None:
        self.near, far = os.openpty()
        self.resize(24, columns)
        self.before = termios.tcgetattr(far)
        self.child = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=far, stdout=far, stderr=far, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.far = far
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two reads

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.near)
        os.close(self.far)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.near, text.encode())

    def expect(self, pattern: str, within_s: float = 20.0) -> str:
        """Read until the screen shows the pattern; returns all up to its end, and forgets it."""
        deadline = time.monotonic() + within_s
        while (found := re.search(pattern, self.seen)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.near], [], [], left)[0]:
                raise AssertionError(f"no {pattern!r} at the end of {self.seen[-500:]!r}")
            self.seen += self.decoder.decode(os.read(self.near, 65536))
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def end(self) -> int:
        return self.child.wait(timeout=20)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.far) == self.before

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.far)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def everything(self) -> str:
        """All it shows until it ends."""
        while self.child.poll() is None or select.select([self.near], [], [], 0)[0]:
            if select.select([self.near], [], [], 0.1)[0]:
                self.seen += self.decoder.decode(os.read(self.near, 65536))
        return self.seen
