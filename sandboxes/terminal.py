"""A command of a sandbox on the terminal we have ourselves: keys go in as they are, and the screen is the program's.

Ctrl-C, Ctrl-Z and the rest are for the program inside. Whatever happens, our own terminal is set back as it was. Where
stdin or stdout is no terminal, the command has pipes instead, as with ssh.
"""

import asyncio
import fcntl
import os
import select
import signal
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, suppress

from sandboxes.link import Sending
from sandboxes.protocol import Command
from sandboxes.sandbox import GuestSandbox

_CHUNK = 1 << 14
_NO_WINDOW = bytes(8)


async def run_attached(sandbox: GuestSandbox, command: Command, *, stdin: int = 0, stdout: int = 1) -> int | None:
    """Run a command on these descriptors (stderr goes to 2) until it ends; no limit of time or output holds.

    Returns its exit status as a shell says it: 128 and the signal's number where one ended it, or us. None when the
    sandbox ended instead: `destroy` says why. Raises OSError when our own output cannot be written.
    """
    terminal = os.isatty(stdin) and os.isatty(stdout)
    screen = _Screen({1: stdout, 2: 2})
    loop = asyncio.get_running_loop()
    with _raw(stdin, wanted=terminal):
        link, number = sandbox.attach(command, screen, terminal=terminal)
        typing = asyncio.ensure_future(_type(stdin, link.sending(number, 1 if terminal else 0), screen, terminal))

        def resize() -> None:
            link.send("Z", number, _window(stdout))

        if terminal:
            resize()
            loop.add_signal_handler(signal.SIGWINCH, resize)
        ways_out = (signal.SIGTERM, signal.SIGHUP)
        for each in ways_out:
            loop.add_signal_handler(each, screen.end, 128 + each)
        try:
            return await screen.ended
        finally:
            for each in (*ways_out, signal.SIGWINCH):
                loop.remove_signal_handler(each)
            typing.cancel()
            link.forget(number)


class _Screen:
    """Hears the command and shows it: see `sandboxes.link.Listener`."""

    def __init__(self, outputs: dict[int, int]) -> None:
        self._outputs = outputs
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def on_output(self, name: int, chunk: bytes) -> None:
        # Blocks where the terminal does: then the program inside waits too.
        try:
            _write(self._outputs[name], chunk)
        except OSError as error:
            if not self.ended.done():
                self.ended.set_exception(error)

    def on_end(self, status: int | None, full: bool, error: str | None) -> None:
        if error is not None:
            self.on_output(2, f"{error}\n".encode())
        code = os.waitstatus_to_exitcode(status) if status is not None else 126
        self.end(code if code >= 0 else 128 - code)

    def on_lost(self) -> None:
        self.end(None)

    def end(self, status: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


async def _type(fd: int, keys: Sending, screen: _Screen, terminal: bool) -> None:
    """Carry what is typed until nothing more comes."""
    while True:
        await _readable(fd)
        try:
            typed = os.read(fd, _CHUNK)
        except BlockingIOError:
            continue
        except OSError:  # the terminal is gone
            typed = b""
        if not typed:
            break
        await keys.send(typed)
    if terminal:
        screen.end(128 + signal.SIGHUP)
    else:
        keys.end()


async def _readable(fd: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:  # a file, which can always be read and never polled
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # whoever gave us the descriptor wants it so
            select.select([], [fd], [])


def _window(fd: int) -> bytes:
    """Rows, columns, and the size in pixels, as the kernel says it."""
    try:
        return fcntl.ioctl(fd, termios.TIOCGWINSZ, _NO_WINDOW)
    except OSError:
        return _NO_WINDOW


@contextmanager
def _raw(fd: int, *, wanted: bool) -> Generator[None]:
    """Have a terminal pass every key on; set it back afterwards."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
