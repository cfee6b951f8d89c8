"""Run hidden tests inside the sandbox: the two processes that do it. Stand-alone: standard library, and pytest.

The witness holds the channel to the driver and the nonce, and runs no code of the candidate's. Its child runs pytest,
and the candidate's code within: what the child reports may be a lie. The witness passes it on with the time it came and
says itself how the child ended. No process of the same user can look into the witness; one that kills it leaves the
driver without the nonce, and so without a pass.

Frames: out, b"R" + pytest's version, or b"M" + why it is missing, before any code of the candidate's is in the sandbox;
in, a JSON object with `nonce` and the child's order; out, one line of JSON (nonce, exit, signal, whether the report was
too large, and the seconds at which each of its lines came), then the report.
"""

import fcntl
import json
import os
import select
import signal
import sys
import time

CHANNEL = ORDERS = 3
REPORT = 4
MAX_REPORT = 1 << 22  # bytes
MAX_LINES = 50_000
MAX_COMPARED = 2000  # letters of a value that a test compares
HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, "tests")


def read_exactly(fd, count):
    """Read `count` bytes; None at the end of the stream."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(fd, min(count - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def write_all(fd, data):
    """Write all bytes."""
    data = memoryview(data)
    while data:
        data = data[os.write(fd, data) :]


def write_frame(body):
    """Write one frame to the driver."""
    write_all(CHANNEL, len(body).to_bytes(4, "big") + body)


def witness():
    """Start the child, hand over its order, and bear witness of its end."""
    hide()
    (orders_out, orders_in), (report_out, report_in) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        # Past 9 first, so that none is overwritten before it is used. The channel is gone with that.
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (orders_out, report_in)]
        os.dup2(copies[0], ORDERS)
        os.dup2(copies[1], REPORT)
        os.closerange(REPORT + 1, 64)
        # The environment is the sandbox's own. Python reads PYTHONHASHSEED from it, so -I will not do; a script's
        # folder is the job folder, which no program can write.
        os.execv(sys.executable, [sys.executable, "-s", "-B", os.path.abspath(__file__), "tests"])
    os.close(orders_out)
    os.close(report_in)
    first = bytearray()
    while not first.endswith(b"\n") and (byte := os.read(report_out, 1)):
        first += byte
    write_frame(bytes(first).rstrip(b"\n") or b"Mthe interpreter did not start")
    if not first.startswith(b"R"):
        return
    size = read_exactly(CHANNEL, 4)
    if size is None:
        return
    order = json.loads(read_exactly(CHANNEL, int.from_bytes(size, "big")))
    nonce = order.pop("nonce")
    write_all(orders_in, json.dumps(order).encode())
    os.close(orders_in)
    began = time.monotonic()
    report, times = collect(report_out, pid, began)
    status = os.waitpid(pid, 0)[1]
    by_signal = os.WIFSIGNALED(status)
    head = {
        "nonce": nonce,
        "exit": None if by_signal else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if by_signal else None,
        "flood": report is None,
        "times": times,
    }
    write_frame(json.dumps(head).encode() + b"\n" + (report or b""))
    read_exactly(CHANNEL, 1)  # until the driver ends us: at our own end a full disk would be told before our report


def collect(report_out, pid, began):
    """Take in the child's report until its end, whoever else holds the pipe; past the bounds the child is killed."""
    report, times = bytearray(), []
    wake_out, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.set_blocking(report_out, False)
    watch = select.poll()
    for fd, events in ((report_out, select.POLLIN), (wake_out, select.POLLIN), (CHANNEL, 0)):
        watch.register(fd, events)
    while True:
        # Asked before reading: what the child wrote is in the pipe by then.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        chunk = b""
        try:
            chunk = os.read(report_out, 1 << 16)
            if not chunk:
                watch.unregister(report_out)
        except BlockingIOError:
            pass
        except KeyError:  # it is at its end, and no longer watched
            pass
        report += chunk
        times += [round(time.monotonic() - began, 4)] * chunk.count(b"\n")
        if len(report) > MAX_REPORT or len(times) > MAX_LINES:
            os.kill(pid, signal.SIGKILL)
            return None, []
        if ended and not chunk:
            return bytes(report), times
        if not chunk:
            ready = dict(watch.poll())
            if CHANNEL in ready:
                os._exit(0)
            if wake_out in ready:
                os.read(wake_out, 1 << 16)


def hide():
    """Let no other process of this user look into this one."""
    import _ctypes

    library = _ctypes.dlopen("", os.RTLD_NOW)
    if _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (4, 0, 0, 0, 0)) != 0:  # PR_SET_DUMPABLE
        raise OSError("prctl")


def tests():
    """Run pytest as ordered; every line of the report is one JSON object."""
    try:
        import pytest
    except ImportError as error:
        write_all(REPORT, b"M" + ascii(str(error)).encode() + b"\n")
        return
    write_all(REPORT, b"R" + pytest.__version__.encode() + b"\n")
    order = b""
    while chunk := os.read(ORDERS, 1 << 16):
        order += chunk
    os.close(ORDERS)
    if not order:
        return
    order = json.loads(order)
    os.set_inheritable(REPORT, False)
    work = os.getcwd()
    folders = [os.path.normpath(os.path.join(work, folder)) for folder in order["python_path"]]
    sys.path.remove(HERE)
    # After the standard library, before installed packages, one of which may be an older copy of the program.
    at = next((at for at, entry in enumerate(sys.path) if entry.endswith("-packages")), len(sys.path))
    sys.path[at:at] = folders
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONPATH=os.pathsep.join(folders), PYTHONNOUSERSITE="1")
    options = ["-c", os.path.join(HERE, "pytest.ini"), "--rootdir", TESTS, "--confcutdir", TESTS]
    # Nothing of what it prints holds text of a test: it is kept with what the program prints.
    options += ["-qq", "--tb=no", "--no-summary", "--capture=no", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["--continue-on-collection-errors", *([] if order["conftest"] else ["--noconftest"])]
    sys.argv = ["pytest"]
    leave = os._exit
    code = pytest.main([*options, *(os.path.join(TESTS, path) for path in order["paths"])], [Reporter(order, work)])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    tell(finish=int(code))
    leave(int(code))  # no exit handler, and no thread that was left, has a say


def tell(**event):
    """Write one line of the report."""
    write_all(REPORT, json.dumps(event).encode() + b"\n")


class Reporter:
    """A pytest plugin that reports each phase of each test by a name that does not hold parameters."""

    def __init__(self, order, work):
        self.wanted, self.work = set(order["cases"]), work + os.sep
        self.names, self.details = {}, {}
        self.compared = {} if order["compared"] else None

    def pytest_collection_modifyitems(self, items):
        """Name the tests, and keep those that are asked for."""
        counts, kept = {}, []
        for item in items:
            name = item.nodeid
            if hasattr(item, "callspec"):
                base = name.partition("[")[0]
                counts[base] = counts.get(base, -1) + 1
                name = f"{base}[{counts[base]}]"
            if name in self.wanted:
                self.names[item.nodeid] = name
                kept.append(item)
        items[:] = kept
        tell(collected=[self.names[item.nodeid] for item in kept])

    def pytest_assertrepr_compare(self, op, left, right):
        """Keep what a test found unequal, where that is asked for: it is what a hidden test expects."""
        if self.compared is not None and op == "==":
            sides = [repr(left), repr(right)]
            self.compared = {"compared": sides} if max(map(len, sides)) <= MAX_COMPARED else {}

    def pytest_runtest_makereport(self, item, call):
        """Look at an exception before pytest makes text of it."""
        self.details[item.nodeid, call.when] = self.of(call.excinfo) | (self.compared or {})
        self.compared = self.compared and {}

    def pytest_runtest_logreport(self, report):
        """Report a phase."""
        detail = self.details.pop((report.nodeid, report.when), {})
        xfail = hasattr(report, "wasxfail")
        tell(case=self.names[report.nodeid], when=report.when, outcome=report.outcome, xfail=xfail, **detail)

    def pytest_exception_interact(self, node, call, report):
        """Report a file that could not be collected."""
        if not hasattr(report, "when"):
            value = getattr(call.excinfo.value, "__cause__", None) or call.excinfo.value
            tell(broken=report.nodeid, **self.of(call.excinfo) | {"kind": type(value).__name__})

    def of(self, excinfo):
        """Kind and place in the program of an exception. Not its text: it may hold what a hidden test expects."""
        if excinfo is None:
            return {}
        place, trace = None, excinfo.tb
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename.startswith(self.work):
                place = f"{code.co_filename[len(self.work) :]} line {trace.tb_lineno} in {code.co_name}"
            trace = trace.tb_next
        return {"kind": excinfo.type.__name__, "place": place}


if __name__ == "__main__":
    tests() if sys.argv[1:] == ["tests"] else witness()
