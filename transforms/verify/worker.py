"""The untrusted half of the `call` verifier: runs inside the sandbox, knows inputs, never an expected value.

The parent process holds the channel to the driver and runs no code of the candidate's; each case runs in a fresh child.
After a case everything else in the sandbox is killed and the writable folders are emptied, so nothing travels from one
case to the next. What the parent says about a child is a report, not a verdict: a child that forges its answer has done
no more than return that value.

Frames are a 4-byte length and a body. To the driver: one tag byte, one byte "1" if the sandbox is as new (else the
driver takes another), then the body. Stand-alone: standard library only, and little of it, because start-up is most of
the cost of a case.
"""

import _ctypes
import builtins
import errno
import os
import select
import signal
import sys
import time
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import values  # ty: ignore[import-not-found] - beside this file, where an isolated interpreter does not look

del sys.path[0], sys.modules["values"]

CHANNEL = 3
WRITABLE = ("/tmp", "/dev/shm")
PR_SET_DUMPABLE = 4
DISK_ERRORS = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)


def set_dumpable(flag):
    """Say whether processes of the same user may look into this one (its memory, its descriptors)."""
    library = _ctypes.dlopen("", os.RTLD_NOW)
    if _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (PR_SET_DUMPABLE, flag, 0, 0, 0)) != 0:
        os._exit(71)


def read_exactly(fd, count):
    """Read `count` bytes; None at the end of the stream."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(fd, min(count - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def read_frame(fd):
    """Read one frame; None at the end of the stream."""
    header = read_exactly(fd, 4)
    return None if header is None else read_exactly(fd, int.from_bytes(header, "big"))


def write_frame(fd, body):
    """Write one frame."""
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(fd, data) :]


def describe(error):
    """Type and message of an exception, which may do anything when asked for its text."""
    try:
        text = str(error)[:300]
    except BaseException:  # noqa: BLE001 - the candidate's own __str__
        text = ""
    return values.encode((type(error).__name__[:100], text))


def answer(codes, entry_point, call, max_bytes):
    """Run the program, then the call; return the child's report."""
    args, kwargs = call
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    streams = sys.stdout, sys.stderr
    try:
        for code in codes:
            exec(code, module.__dict__)
        if not hasattr(module, entry_point):
            raise NameError(f"the program defines no {entry_point!r}")
        result = getattr(module, entry_point)(*args, **kwargs)
        for stream in streams:
            stream.flush()
        return b"V" + values.encode(result, max_bytes=max_bytes)
    except values.TooLarge as error:
        return b"L" + describe(error)
    except values.ValueCodecError as error:
        return b"U" + describe(error)
    except MemoryError as error:
        return b"M" + describe(error)
    except OSError as error:
        tag = b"D" if error.errno in DISK_ERRORS else b"P" if error.errno == errno.EAGAIN else b"E"
        return tag + describe(error)
    except RuntimeError as error:
        return (b"P" if "can't start new thread" in error.args else b"E") + describe(error)
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
        return b"E" + describe(error)


def child(write_fd, *work):
    """The life of a child: one case, one frame, no exit handlers."""
    try:
        os.close(CHANNEL)
        os.setsid()
        set_dumpable(1)
        write, leave = write_frame, os._exit  # the candidate may put others in their place
        write(write_fd, answer(*work))
        leave(0)
    finally:
        os._exit(70)


def collect(read_fd, pid, max_bytes):
    """Wait for the child's frame or its death; None when it left no frame. Nothing else can end the wait here:
    the driver keeps the clock, and its end of the channel going away ends this process."""
    data = bytearray()
    watch = select.poll()
    ended = os.pidfd_open(pid)
    for fd, events in ((read_fd, select.POLLIN), (ended, select.POLLIN), (CHANNEL, 0)):
        watch.register(fd, events)
    try:
        while True:
            ready = dict(watch.poll())
            if CHANNEL in ready:
                os._exit(0)
            if read_fd in ready:
                chunk = os.read(read_fd, 1 << 16)
                data += chunk
                if not chunk:
                    watch.unregister(read_fd)
                if len(data) >= 4:
                    length = int.from_bytes(data[:4], "big")
                    if length > max_bytes:
                        return b"L" + b"more than the limit when encoded"
                    if len(data) >= 4 + length:
                        return bytes(data[4 : 4 + length])
            elif ended in ready:
                return None
    finally:
        os.close(ended)


def kill_others(pid):
    """Kill everything in the sandbox but this process and its init; return the wait status of the child `pid`."""
    status = None
    try:
        while True:  # until nobody is left: init needs a moment to bury the orphans
            os.kill(-1, signal.SIGKILL)
            if status is None:
                status = os.waitpid(pid, 0)[1]
            else:
                time.sleep(0.0005)
    except ProcessLookupError:
        return status


def empty(folder):
    """Delete what a folder holds, whatever its modes are."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                empty(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)


def as_new():
    """Empty the writable folders; True if nothing a case could have left is left."""
    try:
        for folder in WRITABLE:
            empty(folder)
        for kind in ("shm", "sem", "msg"):  # System V objects outlive their makers
            with open("/proc/sysvipc/" + kind, "rb") as table:
                if len(table.readlines()) > 1:
                    return False
    except (OSError, RecursionError):
        return False
    return True


def run_case(codes, entry_point, call, max_bytes):
    """Run one case in a child of its own; return the frame for the driver."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(write_fd, codes, entry_point, call, max_bytes)
    os.close(write_fd)
    report = collect(read_fd, pid, max_bytes + 4096)
    os.close(read_fd)
    status = kill_others(pid)
    if not report:
        by_signal = os.WIFSIGNALED(status)
        report = b"X" + values.encode((by_signal, os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)))
    return report[:1] + (b"1" if as_new() else b"0") + report[1:]


def stop(code=None):
    """What `exit` and `quit` do; an interpreter without `site` lacks them."""
    raise SystemExit(code)


def main():
    """Say hello, compile the program, then run case after case until the driver goes away."""
    set_dumpable(0)
    os.closerange(CHANNEL + 1, 64)
    vars(builtins).update(exit=stop, quit=stop)
    write_frame(CHANNEL, b"H1")
    frame = read_frame(CHANNEL)
    if frame is None:
        return
    prefix, program, entry_point, max_bytes = values.decode(frame)
    try:
        codes = [
            compile(text, name, "exec", dont_inherit=True)
            for text, name in ((prefix, "<prefix>"), (program, "<solution>"))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        write_frame(CHANNEL, b"S1" + describe(error))
        return
    write_frame(CHANNEL, b"C1")
    while (frame := read_frame(CHANNEL)) is not None:
        write_frame(CHANNEL, run_case(codes, entry_point, values.decode(frame), max_bytes))


if __name__ == "__main__":
    main()
    os._exit(0)
