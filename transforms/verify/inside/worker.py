"""The untrusted half of the `call` verifier: runs inside the sandbox, knows inputs, never an expected value.

The parent process holds the channel to the driver and runs no code of the candidate's; each case runs in a fresh child.
After a case everything else in the sandbox is killed and the writable folders are as they were, so no file, process or
setting travels from one case to the next. What the parent says about a child is a report, not a verdict: a child that
forges its answer has done no more than return that value.

Frames are a 4-byte length and a body. To the driver: one tag byte, one byte "1" if the sandbox is as new (else the
driver takes another), then the body. A child runs the program itself if that is Python, or becomes the node that does.
Stand-alone: standard library only, and little of it, because start-up is most of the cost of a case.
"""

import _signal as signal  # ty: ignore[import-not-found] - `signal` has enums, whose pages every fork would copy
import builtins
import errno
import fcntl
import marshal
import os
import select
import stat
import sys
import time
import types

import guest  # ty: ignore[import-not-found] - the process this one was forked from
import streams  # ty: ignore[import-not-found] - these two are warmed up together with this file
import values  # ty: ignore[import-not-found]

del sys.modules["guest"], sys.modules["streams"], sys.modules["values"]

CHANNEL = 3
WRITABLE = (os.environ["HOME"], os.environ["TMPDIR"])
MODES = {folder: os.stat(folder).st_mode & 0o7777 for folder in WRITABLE}
MEMORY = "/dev/shm"
NODE_RUNNER = os.path.join(os.path.dirname(__file__), "node_runner.js")
orphans_are_ours = objects_are_seen = False  # found out in `main`
WATCH = select.poll()
WAKE = []  # a pipe that becomes readable when a child ends; not a pidfd, which gVisor lacks
RARER = {"dataclasses", "datetime", "decimal", "enum", "fractions", "hashlib", "json", "random", "statistics"}
TABLES = []  # of System V objects, which outlive their makers
FOLDERS = []  # the writable ones, opened
AT_START = []  # their settings
F_GETPIPE_SZ, FS_IOC_GETFLAGS = 1032, 0x80086601
SHORT = 4096  # bytes of a frame for which room is made in advance
DISK_ERRORS = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)


def read_exactly(fd, count):
    """Read `count` bytes; None at the end of the stream. In place: what is read is wiped by whoever is through with it,
    and is in no other object, since the memory of this process is copied to each child."""
    data = bytearray(count)
    left = memoryview(data)
    while left:
        size = os.readv(fd, [left[: 1 << 20]])
        if not size:
            return None
        left = left[size:]
    return data


def read_frame(fd):
    """Read one frame; None at the end of the stream."""
    header = read_exactly(fd, 4)
    return None if header is None else read_exactly(fd, int.from_bytes(header, "big"))


def write_frame(fd, *parts):
    """Write one frame."""
    for part in (sum(map(len, parts)).to_bytes(4, "big"), *parts):
        data = memoryview(part)
        while data:
            data = data[os.write(fd, data) :]


def wipe(data):
    """Leave nothing of a case in the memory that the next one gets a copy of."""
    data[:] = bytes(len(data))


def settings():
    """What a case could set on objects that the next one gets, too: the standard streams and the writable folders."""
    found = [fcntl.fcntl(fd, what) for fd in (0, 1, 2) for what in (fcntl.F_GETFL, fcntl.F_GETOWN, F_GETPIPE_SZ)]
    for fd in FOLDERS:
        try:
            found.append(int.from_bytes(fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)), sys.byteorder))
        except OSError:  # a file system without flags
            pass
    return found


def describe(error, location=""):
    """Type and message of an exception, which may do anything when asked for its text, and where it was raised."""
    try:
        text = str(error)[:300]
    except BaseException:  # noqa: BLE001 - the candidate's own __str__
        text = ""
    return values.encode((type(error).__name__[:100], text, location or raised_at(sys.exc_info()[2])))


def raised_at(trace):
    """The innermost line of the program's in a traceback; "" where there is none."""
    line, name = 0, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == "<solution>":
            line, name = trace.tb_lineno, code.co_name
        trace = trace.tb_next
    return f"line {line} in {name[:80]}" if line else ""


def answer(codes, entry_point, call, max_bytes):
    """Run the program, then the call; return the child's report."""
    args, kwargs = call
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    printed = sys.stdout, sys.stderr
    try:
        for code in codes:
            exec(code, module.__dict__)
        if not hasattr(module, entry_point):
            raise NameError(f"the program defines no {entry_point!r}")
        result = getattr(module, entry_point)(*args, **kwargs)
        for stream in printed:
            try:
                stream.flush()
            except (OSError, ValueError):  # it has closed them
                pass
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


def become_node(write_fd, program, call, heap_mib):
    """Become the node that runs a JavaScript program. Returns only by an exception."""
    data = memoryview(program + call)
    given = os.memfd_create("case", 0)
    while data:
        data = data[os.write(given, data) :]
    os.lseek(given, 0, os.SEEK_SET)
    os.set_inheritable(write_fd, True)
    argv = ("node", f"--max-old-space-size={heap_mib}", NODE_RUNNER, str(given), str(write_fd))
    os.execvpe(argv[0], argv, {**os.environ, "OPENSSL_CONF": "/dev/null"})  # which may be closed to it elsewhere


def child(write_fd, solution, call, max_bytes):
    """The life of a child: one case, one frame, no exit handlers."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (CHANNEL, *WAKE, *TABLES, *FOLDERS):
            os.close(fd)
        os.setsid()
        guest.prctl(guest.PR_SET_DUMPABLE, 1)
        if solution[0] == "javascript":
            become_node(write_fd, solution[1], call, solution[2])
        write, leave = write_frame, os._exit  # the candidate may put others in their place
        write(write_fd, answer(solution[1], solution[2], marshal.loads(call), max_bytes))
        leave(0)
    finally:
        os._exit(70)


def collect(read_fd, pid, max_bytes):
    """Wait for the child's frame or its death; None when it left no frame. Nothing else can end the wait here:
    the driver keeps the clock, and its end of the channel going away ends this process."""
    data, size, length = bytearray(SHORT), 0, None
    WATCH.register(read_fd, select.POLLIN)
    ended = False
    while True:
        ready = dict(WATCH.poll(0 if ended else None))
        if CHANNEL in ready:
            os._exit(0)
        if read_fd in ready:
            got = os.readv(read_fd, [memoryview(data)[size:]])
            size += got
            if not got:
                WATCH.unregister(read_fd)
            if length is None and size >= 4:
                length = int.from_bytes(data[:4], "big")
                if length > max_bytes:
                    wipe(data)
                    return memoryview(b"L" + values.encode(("", "more than the limit when encoded", "")))
                if 4 + length > SHORT:  # only then is a large one made: each of its pages would cost a fault a case
                    short, data = data, bytearray(4 + length)
                    data[:size] = short[:size]
                    wipe(short)
            if length is not None and size >= 4 + length:
                return memoryview(data)[4 : 4 + length]
        elif ended:
            return None
        elif WAKE[0] in ready:  # it may have left its frame since the poll: look once more
            os.read(WAKE[0], 1 << 16)
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_others(pid):
    """Kill every process of a program's; return the wait status of the child `pid`."""
    status = None
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            if status is not None:
                return status
        except PermissionError:  # no process namespace here: only our own, and orphans of theirs are ours
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
        try:
            dead, how = os.waitpid(-1, 0)
        except ChildProcessError:
            if orphans_are_ours:
                return status
            time.sleep(0.0005)  # until init has buried them
            continue
        if dead == pid:
            status = how


def empty(folder):
    """Delete what a folder holds, whatever its modes are."""
    for name in os.listdir(folder):
        path = folder + "/" + name
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o700)
            empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)


def restore(folder):
    """Give a folder back the mode and times it had, and no attributes."""
    os.utime(folder)  # now: whatever time was put there is gone
    if os.stat(folder).st_uid == os.getuid():
        os.chmod(folder, MODES[folder])
        for name in os.listxattr(folder):
            os.removexattr(folder, name)


def as_new():
    """Empty the writable folders; True if no file, object or setting that a case could have made is left.

    What stays are the kernel's counters: which process numbers and inodes come next.
    """
    try:
        for folder in WRITABLE:
            empty(folder)
            restore(folder)
    except (OSError, RecursionError):
        return False
    try:
        empty(MEMORY)
    except FileNotFoundError:
        pass
    except PermissionError:
        try:  # not os.access, which knows nothing of Landlock
            os.mkdir(MEMORY + "/probe")
            return False
        except PermissionError:  # so no case could write there either
            pass
    except (OSError, RecursionError):
        return False
    if settings() != AT_START:
        return False
    return objects_are_seen and all(os.pread(table, 4096, 0).count(b"\n") == 1 for table in TABLES)


def run_case(solution, call, max_bytes):
    """Run one case in a child of its own; return its report, a tag and a body."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(write_fd, solution, call, max_bytes)
    os.close(write_fd)
    report = collect(read_fd, pid, max_bytes + 4096)
    try:
        WATCH.unregister(read_fd)
    except KeyError:  # it had ended
        pass
    os.close(read_fd)
    status = kill_others(pid)
    if not report:
        by_signal = os.WIFSIGNALED(status)
        how = by_signal, os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)
        report = memoryview(b"X" + values.encode(how))
    return report


def names_in(code):
    """Every name that a code object and those inside it use."""
    return set(code.co_names).union(*(names_in(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def stop(code=None):
    """What `exit` and `quit` do; an interpreter without `site` lacks them."""
    raise SystemExit(code)


def main():
    """Say hello, compile the program, then run case after case until the driver goes away."""
    guest.prctl(guest.PR_SET_DUMPABLE, 0)  # no process of the same user may look into this one
    global orphans_are_ours, objects_are_seen
    try:
        guest.prctl(guest.PR_SET_CHILD_SUBREAPER, 1)
        orphans_are_ours = True
    except OSError:  # gVisor's kernel cannot do it
        orphans_are_ours = False
    os.closerange(CHANNEL + 1, 64)
    try:
        TABLES.extend(os.open("/proc/sysvipc/" + kind, os.O_RDONLY | os.O_CLOEXEC) for kind in ("shm", "sem", "msg"))
        objects_are_seen = True
    except OSError:  # there are none if the calls that make them are refused
        with open("/proc/self/status") as status:
            objects_are_seen = "Seccomp:\t2" in status.read()
    streams.renew()
    FOLDERS.extend(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in WRITABLE)
    AT_START.extend(settings())
    WAKE.extend(os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    WATCH.register(WAKE[0], select.POLLIN)
    WATCH.register(CHANNEL, 0)
    signal.set_wakeup_fd(WAKE[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    vars(builtins).update(exit=stop, quit=stop)
    write_frame(CHANNEL, b"H1")
    frame = read_frame(CHANNEL)
    if frame is None:
        return
    language, prefix, program, entry_point, max_bytes, heap_mib = values.decode(frame)
    if language == "javascript":
        solution = language, values.encode((prefix, program, entry_point, max_bytes)), heap_mib
    else:
        try:
            codes = [
                compile(text, name, "exec", dont_inherit=True)
                for text, name in ((prefix, "<prefix>"), (program, "<solution>"))
            ]
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            inside = isinstance(error, SyntaxError) and error.filename == "<solution>" and error.lineno
            write_frame(CHANNEL, b"S1" + describe(error, f"line {error.lineno}" if inside else ""))
            return
        for name in RARER & (names_in(codes[0]) | names_in(codes[1])):
            __import__(name)
        solution = language, codes, entry_point
    write_frame(CHANNEL, b"C1")
    while (frame := read_frame(CHANNEL)) is not None:
        report = run_case(solution, frame, max_bytes)
        wipe(frame)
        write_frame(CHANNEL, report[:1], b"1" if as_new() else b"0", report[1:])
        if not report.readonly:
            wipe(report.obj)


if __name__ == "__main__":
    main()
    os._exit(0)
