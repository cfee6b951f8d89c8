"""Standard streams for a program in a forked interpreter. Stand-alone: runs inside the sandbox."""

import io
import sys


def renew():
    """Standard streams as a new interpreter has them: the waiting one's were made for other files."""
    for fd, name, old in ((0, "stdin", sys.stdin), (1, "stdout", sys.stdout), (2, "stderr", sys.stderr)):
        raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if fd == 0 else io.BufferedWriter(raw)
        newline = None if fd == 0 else "\n"
        stream = io.TextIOWrapper(buffer, old.encoding, old.errors, newline, line_buffering=fd == 2)
        stream.mode = "r" if fd == 0 else "w"  # ty: ignore[invalid-assignment] - as the interpreter does
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
