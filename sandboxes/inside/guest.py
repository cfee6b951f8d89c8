"""The trusted process inside every sandbox: starts commands, carries their streams, buries their dead.

It is pid 1 of the sandbox where the back-end can make it so, and always the parent of every program. Programs run as
another user where there is one; they cannot reach this process or its connection. What it says about a program is a
report: limits and their breaches are measured from outside.

Stand-alone: standard library only, and little of it. It travels to the sandbox as source (Docker) or is forked there
already loaded (bubblewrap). Messages are a 4-byte length, a 1-byte kind, a 4-byte number (of a command or connection)
and a body, both ways: the methods `on_*` say what the host may ask, calls of `send` what it is told.
"""

import _ctypes
import _signal as signal  # ty: ignore[import-not-found] - `signal` has enums, whose pages every fork would copy
import _socket  # as is `socket`
import atexit
import errno
import fcntl
import json
import os
import resource
import select
import struct
import sys
import types

from guest_streams import CHUNK, FIRST_CONNECTION, Stream  # ty: ignore[import-not-found] - beside this file, inside

# By Python (SIGXFSZ, whose breach must be told from a crash) or by whoever started us, as nohup does.
IGNORED = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
WINDOW = 1 << 18  # bytes of a connection or channel on their way to the host
CONNECTIONS = 128  # open at once; the proxy refuses politely before that
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 4, 38, 36
TIOCSCTTY, TIOCSWINSZ = 0x540E, 0x5414
HEADER = struct.Struct(">IBI")
CODES = {}  # name in the job folder -> compiled source
PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")


def prctl(option, value):
    """Call prctl(2). Raises OSError."""
    if _ctypes.call_function(PRCTL, (option, value, 0, 0, 0)) != 0:
        raise OSError(errno.EPERM, f"prctl {option}")


def unpack(body):
    """Split a body into its JSON head and the files it lists."""
    end = 4 + int.from_bytes(body[:4], "big")
    head, files = json.loads(body[4:end]), {}
    for name, size in head.pop("files"):
        files[name] = bytes(body[end : end + size])
        end += size
    return head, files


def warm_up(head, files):
    """Compile files and import modules, of the files first and then of the image."""
    for name, source in files.items():
        CODES[name] = compile(source, name, "exec", dont_inherit=True)
    for name in head["imports"]:
        if name + ".py" in CODES:
            sys.modules[name] = module = types.ModuleType(name)
            exec(CODES[name + ".py"], module.__dict__)
        else:
            __import__(name)


class Guest:
    """Serves the connection to the host until it closes.

    `seal` is called once, before the first program starts; `strip` in each program's process, as the last of our code.
    `listener` is a socket that listens for the proxy's connections already.
    """

    def __init__(self, read_fd, write_fd, *, seal=None, strip=None, listener=None):
        self.read_fd, self.write_fd, self.seal, self.strip = read_fd, write_fd, seal, strip
        self.listener = listener
        self.config = {}
        self.jobs = {}  # pid -> number of the command
        self.streams = {}  # (number, name) -> Stream
        self.connections = 0
        self.poll = select.poll()
        self.handlers = {}

    def send(self, kind, number, body=b""):
        data = memoryview(HEADER.pack(len(body) + 5, ord(kind), number) + body)
        while data:
            data = data[os.write(self.write_fd, data) :]

    def serve(self):
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # pid 1 is deaf to it then: a program of its user may send it
        received = bytearray()
        self.handlers[wake_read] = lambda _: (os.read(wake_read, CHUNK), self.bury())
        self.handlers[self.read_fd] = lambda _: received.extend(self.take())
        for fd in (wake_read, self.read_fd):
            self.poll.register(fd, select.POLLIN)
        while True:
            for fd, events in self.poll.poll():
                if fd in self.handlers:
                    self.handlers[fd](events)
            while len(received) >= 4 and len(received) >= 4 + (size := int.from_bytes(received[:4], "big")):
                _, kind, number = HEADER.unpack_from(received)
                body = bytes(received[HEADER.size : 4 + size])
                del received[: 4 + size]
                getattr(self, "on_" + chr(kind))(number, body)

    def take(self):
        chunk = os.read(self.read_fd, CHUNK)
        if not chunk:  # the host is gone; as pid 1 this ends everything inside
            self.on_K(None, b"")
            os._exit(0)
        return chunk

    def on_C(self, number, body):
        """Take the settings, and say that we are here."""
        self.config = json.loads(body)
        if self.config["subreaper"]:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        if self.config["proxy"]:
            listener = self.listener
            if listener is None:
                from socket import create_server

                listener = create_server(("127.0.0.1", self.config["proxy"]), backlog=64)
            self.handlers[listener.fileno()] = lambda _: self.on_connection(listener)
            self.poll.register(listener.fileno(), select.POLLIN)
        self.send("R", 0, str(os.getpid()).encode())

    def on_W(self, number, body):
        """Warm up the interpreter."""
        warm_up(*unpack(body))

    def on_F(self, number, body):
        """Write files into the job folder."""
        for name, content in unpack(body)[1].items():
            path = os.path.join(self.config["job"], name)
            if "/" in name:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
            data = memoryview(content)
            while data:
                data = data[os.write(fd, data) :]
            os.fchmod(fd, 0o444)
            os.close(fd)

    def on_X(self, number, body):
        """Start a command."""
        order = json.loads(body)
        if self.seal is not None:
            self.seal()
            self.seal = None
        end = None
        if order["pty"]:
            near, far = (dict.fromkeys(b"\1", fd) for fd in os.openpty())
        else:
            pairs = {0: os.pipe()[::-1], 1: os.pipe(), 2: os.pipe()}
            for name, mode in ((0, 0o604), (1, 0o602), (2, 0o602)):  # for the program's user, by /dev/stdin and such
                try:
                    os.fchmod(pairs[name][0], mode)
                except PermissionError:  # gVisor's kernel, whose pipes have no modes to speak of
                    pass
            if order["channel"]:
                end, theirs = _socket.socketpair()
                pairs[3] = os.dup(end.fileno()), theirs.detach()
            near, far = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (*near.values(), *far.values()):
                os.close(fd)
            self.send("E", number, json.dumps({"status": None, "error": str(error), "full": False}).encode())
            return
        if pid == 0:
            self.become(order, far)
        self.jobs[pid] = number
        for fd in far.values():
            os.close(fd)
        for name, fd in near.items():
            both = name == 3 or order["pty"]
            self.streams[number, bytes([name])] = Stream(
                self, number, bytes([name]), fd, reads=both or name != 0, writes=both or name == 0,
                end=end if name == 3 else None, window=WINDOW if name == 3 else None,
            )  # fmt: skip

    def on_I(self, number, body):
        """Pass bytes on to a program or connection; none means that none will follow."""
        stream = self.streams.get((number, body[:1]))
        if stream is None or not stream.writes:
            self.send("A", number, body[:1] + (len(body) - 1).to_bytes(4, "big"))
            return
        stream.last = len(body) == 1
        stream.queue += body[1:]
        stream.feed()

    def on_A(self, number, body):
        """The host took bytes of a connection or channel."""
        stream = self.streams.get((number, body[:1]))
        if stream is not None:
            stream.on_the_way -= int.from_bytes(body[1:], "big")
            stream.rearm()

    def on_K(self, number, body):
        """Kill everything in the sandbox but this process, and only then tell of ends."""
        dead = []
        while True:
            for pid in self.everyone():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if pid in self.jobs:
                dead.append((self.jobs.pop(pid), status))
        self.all_dead()
        for job, status in dead:
            self.ended(job, status)
        if number is not None:
            self.send("K", number)

    def all_dead(self):
        """Hook: everything was killed and buried."""

    def everyone(self):
        """Whom to kill: groups of commands, which die at once however fast they fork, and whoever left them."""
        return [*(-pid for pid in self.jobs), *descendants(os.getpid())] if self.config["subreaper"] else [-1]

    def on_Z(self, number, body):
        """The terminal has another size."""
        stream = self.streams.get((number, b"\1"))
        if stream is not None:
            fcntl.ioctl(stream.fd, TIOCSWINSZ, body)

    def on_Q(self, number, body):
        """The proxy is through with a connection."""
        stream = self.streams.get((number, body))
        if stream is not None:
            stream.close()

    def on_connection(self, listener):
        try:
            client, _ = listener.accept()
            if sum(number >= FIRST_CONNECTION for number, _ in self.streams) >= CONNECTIONS:
                client.close()
                return
            fd = os.dup(client.fileno())
        except OSError:  # it is gone again, or there are too many descriptors: the program's loss
            return
        number = FIRST_CONNECTION + self.connections
        self.connections += 1
        self.send("L", number)
        self.streams[number, b"\0"] = Stream(
            self, number, b"\0", fd, reads=True, writes=True, end=client, window=WINDOW
        )

    def become(self, order, far):
        """The life of a child up to its program. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in IGNORED - ({signal.SIGPIPE} if order["warm"] else set()):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            if order["pty"]:
                fcntl.ioctl(far[1], TIOCSCTTY, 0)
                far = dict.fromkeys((0, 1, 2), far[1])
            # Past 9 first, so that none is overwritten before it is used.
            for name, fd in [(name, fcntl.fcntl(fd, fcntl.F_DUPFD, 10)) for name, fd in far.items()]:
                os.dup2(fd, name)
            os.closerange(max(far) + 1, 1024)
            prctl(PR_SET_DUMPABLE, 1)  # else its own files in /proc are closed to it
            hint = os.open("/proc/self/oom_score_adj", os.O_WRONLY)  # to the kernel: rather this one than us
            os.write(hint, b"1000")
            os.close(hint)
            for name, value in order["rlimits"].items():
                number = getattr(resource, "RLIMIT_" + name)
                hardest = resource.getrlimit(number)[1]  # a container's may be lower already
                most = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
                try:
                    resource.setrlimit(number, (most, most))
                except (ValueError, OSError):
                    if name != "SIGPENDING":  # which gVisor's kernel does not have
                        raise
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            if order["uid"] is not None:
                os.setgroups([])
                os.setresgid(order["uid"], order["uid"], order["uid"])
                os.setresuid(order["uid"], order["uid"], order["uid"])
            prctl(PR_SET_DUMPABLE, 1)  # changing users took it away
            if self.strip is not None:
                self.strip()
            os.chdir(order["cwd"])
            if order["warm"]:
                run_warm(self.config["job"], order["argv"], order["env"])
            os.execvpe(order["argv"][0], order["argv"], order["env"])
        except BaseException as error:  # noqa: BLE001 - whatever it is, this child must end here
            os.write(2, f"{order['argv'][0]}: {error}\n".encode("utf-8", "backslashreplace"))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def bury(self):
        """Take in the children that are dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.jobs:
                self.ended(self.jobs.pop(pid), status)

    def ended(self, number, status):
        for stream in [stream for (owner, _), stream in self.streams.items() if owner == number]:
            for _ in range(8):  # what it wrote before its end; a child it left may go on for ever
                if not stream.reads or not stream.read():
                    break
            stream.mute = True
            if stream.writes:
                stream.end_writing()
        rooms = [os.statvfs(folder) for folder in self.config["writable"]]
        full = any(room.f_bavail * room.f_frsize < 4096 or (room.f_files > 0 and room.f_ffree == 0) for room in rooms)
        if "together" in self.config:  # each has room for all
            size, inodes = self.config["together"]
            full = full or sum((room.f_blocks - room.f_bfree) * room.f_frsize for room in rooms) > size
            full = full or sum(room.f_files - room.f_ffree for room in rooms) > inodes
        self.send("E", number, json.dumps({"status": status, "error": None, "full": full}).encode())


def descendants(root):
    """Every process below one."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    below = [int(child) for child in file.read().split()]
                found += below
                waiting += below
        except OSError:
            continue
    return found


def run_warm(job, argv, env):
    """Run a Python file of the job folder in this interpreter, as its main module. Never returns."""
    path = os.path.join(job, argv[0])
    code = CODES.get(argv[0]) or open(path, "rb").read()
    os.environ.clear()
    os.environ.update(env)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    sys.argv = [path, *argv[1:]]
    status = 0
    try:
        exec(compile(code, path, "exec", dont_inherit=True) if isinstance(code, bytes) else code, main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    except BaseException as error:  # noqa: BLE001 - whatever the program raised
        below = error.__traceback__ and error.__traceback__.tb_next  # without this function
        sys.excepthook(type(error), error.with_traceback(below), below)
        status = 1
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)
