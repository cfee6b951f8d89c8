"""Confinement of plain processes: each test asks a real child, and a child without the confinement as the control."""

import ast
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxes.host.seccomp import Sockets, filter_program
from sandboxes.inside import confine

SOURCE = Path(confine.__file__).read_text()
ROOT = Path(__file__).resolve().parents[3]
PYTHON = next(path for path in ("/usr/bin/python3", os.path.realpath(sys.executable)) if os.access(path, os.X_OK))
SYSTEM = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf"]
SYSTEM += ["/etc/passwd", os.path.dirname(os.path.dirname(os.path.realpath(PYTHON))), "/nowhere/at/all"]
PREAMBLE = """
import ctypes, errno, os, platform, signal, socket, subprocess, sys, threading
column = ("x86_64", "aarch64").index(platform.machine())
def call(x86_64, aarch64, *arguments):  # numbers of linux/unistd.h
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if ctypes.CDLL(None, use_errno=True).syscall((x86_64, aarch64)[column], *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def answer(*values): print(repr(values if len(values) > 1 else values[0]))
def attempt(action):
    try: action(); return "done"
    except OSError as error: return errno.errorcode[error.errno]
def connect(family, address, kind=socket.SOCK_STREAM, protocol=0):
    with socket.socket(family, kind, protocol) as s: s.settimeout(5); s.connect(address)
"""


def needs(version: int) -> pytest.MarkDecorator:
    found = confine.abi()
    return pytest.mark.skipif(found < version, reason=f"needs Landlock {version}; this kernel offers {found}")


needs_filter = pytest.mark.skipif(filter_program() is None, reason="no filter for this architecture")


@dataclass(frozen=True)
class Box:
    """A user (None: ourselves), a folder of its own, and one beside it that the user may read and write."""

    user: int | None
    work: Path
    outside: Path

    @property
    def is_root(self) -> bool:
        return not (os.geteuid() if self.user is None else self.user)

    def run(
        self, program: str, *, confined: bool = True, before: str = "", sockets: Sockets = "local",
        ports: list[int] | None = None, also_read: list[str] | None = None, also_write: list[str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> Any:  # fmt: skip
        """Run Python in a confined child after `before`; what it answers."""
        settings = {
            "read": SYSTEM + (also_read or []),
            "write": [str(self.work), "/dev/null", *(also_write or [])],
            "connect_ports": ports or [],
            "seccomp": filter_program(sockets=sockets),
        }
        confinement = f"held = confine(**{settings!r})" if confined else ""
        ended = subprocess.run(
            [PYTHON, "-I", "-c", "\n".join([PREAMBLE, SOURCE, before, confinement, program])],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.work), "TMPDIR": str(self.work)},
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=60,
            pass_fds=pass_fds,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ast.literal_eval(ended.stdout.splitlines()[-1])


@pytest.fixture(params=[None, 64123], ids=["as-we-are", "as-64123"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    if request.param and os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    with tempfile.TemporaryDirectory(prefix="confine-", dir="/tmp") as folder:
        made = Box(request.param, Path(folder, "work"), Path(folder, "outside"))
        made.work.mkdir()
        made.outside.mkdir()
        (made.outside / "secret").write_text("kept")
        os.chmod(folder, 0o755)
        for path in (made.work, made.outside, made.outside / "secret"):
            os.chown(path, request.param or -1, -1)
        yield made


@pytest.fixture
def neighbour(box: Box) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user outside."""
    groups = None if box.user is None else []
    with subprocess.Popen(["/bin/sleep", "60"], user=box.user, group=box.user, extra_groups=groups) as process:
        yield process
        process.kill()


@pytest.fixture
def servers() -> Iterator[list[int]]:
    """Ports of two servers on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        yield [one.getsockname()[1], other.getsockname()[1]]


def test_it_stands_alone():
    imported = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {alias.name for node in imported for alias in node.names} == {"ctypes", "os", "stat"}


@needs(1)
def test_reads_end_at_the_listed_paths(box: Box):
    program = f"""
paths = ["/etc/shadow", {str(ROOT / "README.md")!r}, {str(box.outside / "secret")!r}, "/proc/self/environ"]
answer([attempt(lambda: open(p).read()) for p in paths], [attempt(lambda: os.listdir(p)) for p in ("/root", "/", "..")])
"""
    assert box.run(program) == (["EACCES"] * 4, ["EACCES"] * 3)
    files, _ = box.run(program, confined=False)
    assert files[2:] == ["done", "done"]
    if box.is_root:
        assert files == ["done"] * 4


@needs(1)
def test_a_rule_on_a_file_opens_that_file_alone(box: Box):
    (box.outside / "sibling").write_text("kept")
    program = f"""
os.chdir({str(box.outside)!r})
answer([attempt(lambda: open(name, mode).close()) for name in ("secret", "sibling") for mode in ("r", "a")])
"""
    secret = str(box.outside / "secret")
    assert box.run(program, also_read=[secret]) == ["done", "EACCES", "EACCES", "EACCES"]
    assert box.run(program, also_write=[secret]) == ["done", "done", "EACCES", "EACCES"]


@needs(3)
def test_writes_end_at_the_folder(box: Box):
    program = f"""
out = {str(box.outside)!r}
os.mkdir("a"); os.mkdir("b"); open("a/f", "w").write("x"); os.rename("a/f", "b/f"); os.symlink("f", "b/link")
os.mkfifo("b/pipe"); os.link("b/f", "a/hard"); os.truncate("b/f", 0); os.unlink("b/link")
socket.socket(socket.AF_UNIX).bind("b/socket")
answer([attempt(action) for action in (
    lambda: open(out + "/new", "w"), lambda: open(out + "/secret", "a"), lambda: os.truncate(out + "/secret", 0),
    lambda: os.mkdir(out + "/folder"), lambda: os.symlink("x", out + "/link"), lambda: os.unlink(out + "/secret"),
    lambda: os.rename("b/f", out + "/f"), lambda: os.link("b/f", out + "/f"), lambda: open("/dev/shm/x", "w"),
)])
"""
    refused = box.run(program)
    assert (len(refused), set(refused)) == (9, {"EACCES"})
    assert {path.name: path.read_text() for path in box.outside.iterdir()} == {"secret": "kept"}


@needs(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
@pytest.mark.parametrize("box", [None], indirect=True)
def test_not_even_root_makes_devices(box: Box):
    program = "answer(attempt(lambda: os.mknod('null', 0o20666, os.makedev(1, 3))))"
    assert box.run(program, confined=False) == "done"
    (box.work / "null").unlink()
    assert box.run(program) == "EACCES"


@needs_filter
@pytest.mark.parametrize("sockets", ["local", "tcp", "any"])
def test_which_sockets_can_be_made(box: Box, sockets: Sockets):
    """The control tells a refusal from a family that this kernel or user does not have."""
    program = """
families = {"udp": (2, 2, 0), "udp6": (10, 2, 0), "raw": (2, 3, 1), "netlink": (16, 3, 0), "vsock": (40, 1, 0),
            "crypto": (38, 5, 0), "mptcp": (2, 1, 262), "tcp": (2, 1, 0), "tcp6": (10, 1, 6), "unix": (1, 1, 0)}
a, b = socket.socketpair(); a.send(b"x"); b.recv(1)
answer({name: attempt(lambda: socket.socket(*arguments).close()) for name, arguments in families.items()})
"""
    closed = {"any": {"vsock", "crypto"}, "tcp": {"vsock", "crypto", "udp", "udp6", "raw", "netlink", "mptcp"}}
    closed["local"] = closed["tcp"] | {"tcp", "tcp6"}
    control = box.run(program, confined=False)
    assert "EACCES" not in control.values()
    assert box.run(program, sockets=sockets) == control | dict.fromkeys(closed[sockets], "EACCES")


@needs(4)
@needs_filter
def test_tcp_reaches_the_listed_ports_alone(box: Box, servers: list[int]):
    allowed, other = servers
    program = f"""
def fast_open(port, send):
    with socket.socket() as s: s.settimeout(5); send(s, 0x20000000, ("127.0.0.1", port))
def bind():
    with socket.socket() as s: s.bind(("127.0.0.1", 0))
answer([attempt(action) for action in (
    lambda: connect(socket.AF_INET, ("127.0.0.1", {allowed})), lambda: connect(socket.AF_INET, ("127.0.0.1", {other})),
    lambda: connect(socket.AF_INET6, ("::ffff:127.0.0.1", {other})), bind,
    lambda: fast_open({other}, lambda s, flags, to: s.sendto(b"x", flags, to)),
    lambda: fast_open({other}, lambda s, flags, to: s.sendmsg([b"x"], [], flags, to)),
    lambda: connect(socket.AF_INET, ("127.0.0.1", {other}), protocol=262),
)])
"""
    assert box.run(program, sockets="tcp", ports=[allowed]) == ["done"] + ["EACCES"] * 6
    control = box.run(program, confined=False)
    assert control[:2] == ["done", "done"]
    assert "EACCES" not in control


@needs(6)
@needs_filter
def test_no_signal_leaves_and_children_can_be_ended(box: Box, neighbour: subprocess.Popen[bytes]):
    program = f"""
pid = {neighbour.pid}
child = subprocess.Popen(["/bin/sleep", "60"]); child.terminate()
answer([attempt(action) for action in (
    lambda: os.kill(pid, signal.SIGTERM), lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0),
    lambda: os.kill(os.getppid(), 0), lambda: os.kill(-1, 0), lambda: os.kill(1, 0),
)], child.wait(), attempt(lambda: os.kill(os.getpid(), 0)))
"""
    assert box.run(program) == (["EPERM"] * 5, -signal.SIGTERM, "done")
    assert neighbour.poll() is None
    control = f"answer([attempt(lambda: os.kill(pid, 0)) for pid in ({neighbour.pid}, -1)])"
    assert box.run(control, confined=False) == ["done", "done"]


@needs(1)
@needs_filter
def test_other_processes_of_the_user_are_left_alone(box: Box, neighbour: subprocess.Popen[bytes]):
    """Landlock covers the memory of others; their limits, priority and cores it leaves open, the filter closes them."""
    program = f"""
import resource
pid = {neighbour.pid}
answer([attempt(action) for action in (
    lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)), lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    lambda: os.setpriority(os.PRIO_USER, 0, 0), lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)), lambda: call(251, 30, 1, pid, 2 << 13 | 7),
    lambda: call(101, 117, 0x4206, pid, 0, 0), lambda: call(310, 270, os.getpid(), None, 0, None, 0, 0),
)])
"""
    assert box.run(program) == ["EPERM"] * 8
    environ = f"answer(attempt(lambda: open('/proc/{neighbour.pid}/environ').read()))"
    if not box.is_root:  # root may, Landlock or not
        assert box.run(environ, also_read=["/proc"]) == "EACCES"
        assert box.run(environ, confined=False) == "done"
    if not box.is_root:  # root's would be a matter for the whole machine
        assert box.run(program, confined=False)[:2] == ["done"] * 2
    own = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))
answer(1)
"""
    assert box.run(own) == 1


@needs(6)
def test_abstract_sockets_outside_are_out_of_reach(box: Box):
    name = f"\0headrace-{os.getpid()}-{box.user}"
    program = f"""
own = socket.socket(socket.AF_UNIX); own.bind("\\0headrace-own-" + str(os.getpid())); own.listen()
answer([attempt(lambda: connect(socket.AF_UNIX, to)) for to in ({name!r}, own.getsockname())])
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert box.run(program) == ["EPERM", "done"]
        assert box.run(program, confined=False) == ["done", "done"]


@needs_filter
@pytest.mark.parametrize("confined", [True, False])
def test_nothing_is_typed_into_the_terminal(box: Box, confined: bool):
    """The kernel reads 32 bits of the request; a filter that compares 64 would let the odd ones pass."""
    ours, theirs = pty.openpty()
    program = f"""
def ask(request): call(16, 29, {theirs}, request, ctypes.create_string_buffer(b"#"))
size = attempt(lambda: fcntl.ioctl({theirs}, 0x5413, b"12345678"))  # TIOCGWINSZ
answer([attempt(lambda: ask(high << 32 | low)) for low in (0x5412, 0x541C) for high in (0, 1)], size)
"""
    before = f"import fcntl; os.setsid(); fcntl.ioctl({theirs}, 0x540E, 0)"  # TIOCSCTTY
    with open(ours), open(theirs):
        typed, size = box.run(program, before=before, confined=confined, sockets="any", pass_fds=(theirs,))
    assert size == "done"
    if confined:
        assert typed == ["EPERM"] * 4
    else:  # kernels may have done away with TIOCSTI
        assert typed in (["done", "done", "ENOTTY", "ENOTTY"], ["EIO", "EIO", "ENOTTY", "ENOTTY"])


@needs_filter
@pytest.mark.parametrize("sockets", ["any", "local"])
def test_no_namespace_and_no_mount_can_be_made(box: Box, sockets: Sockets):
    """Arguments that the kernel itself finds wrong before it asks for rights: another answer is the filter's."""
    program = """
answer({name: attempt(lambda: call(*arguments)) for name, arguments in {
    "unshare user": (272, 97, 0x10000000 | 1 << 40), "unshare time": (272, 97, 0x80 | 1 << 40),
    "clone user": (56, 220, 0x10000000 | 0x200, 0, 0, 0, 0), "clone net": (56, 220, 0x40000200, 0, 0, 0, 0),
    "clone3": (435, 435, 0, 0), "setns": (308, 268, -1, 0), "mount": (165, 40, 0, 0, 0, 0, 0),
    "open_tree": (428, 428, -1, 0, 1 << 30), "fsopen": (430, 430, 0, 0),
}.items()})
"""
    refused = box.run(program, sockets=sockets)
    assert refused == dict.fromkeys(refused, "EPERM") | {"clone3": "ENOSYS"}
    control = box.run(program, confined=False)
    wrong = dict.fromkeys(("unshare user", "unshare time", "clone user", "clone3"), "EINVAL")
    assert control.items() >= (wrong | {"setns": "EBADF", "mount": "EFAULT"}).items()


@needs(1)
def test_ordinary_programs_run(box: Box):
    """Semaphores of multiprocessing lie in /dev/shm, which is to be allowed for them."""
    program = """
import asyncio, multiprocessing, sqlite3, concurrent.futures as futures
done = []
thread = threading.Thread(target=done.append, args=("thread",)); thread.start(); thread.join()
with multiprocessing.get_context("fork").Pool(2) as pool: done.append(pool.map(abs, [-1, -2]))
spawned = multiprocessing.get_context("spawn").Process(target=print); spawned.start(); spawned.join()
with multiprocessing.Manager() as manager: done.append(list(manager.list("ab")))
with futures.ThreadPoolExecutor(2) as pool: done.append(pool.submit(abs, -3).result())
done += [spawned.exitcode, sqlite3.connect("new.db").execute("select 4").fetchone()[0]]
async def aside():
    process = await asyncio.create_subprocess_exec("/bin/echo", "hi", stdout=-1)
    return (await process.communicate())[0]
done.append(asyncio.run(aside()))
done.append(subprocess.check_output([sys.executable, "-I", "-c", "import json; print(json.dumps([5]))"]))
answer(done)
"""
    expected = ["thread", [1, 2], ["a", "b"], 3, 0, 4, b"hi\n", b"[5]\n"]
    assert box.run(program, also_write=["/dev/shm"]) == expected


@needs(1)
@pytest.mark.parametrize("tool", ["gcc", "bash", "node"])
def test_tools_run(box: Box, tool: str):
    if shutil.which(tool, path="/usr/bin:/bin") is None:
        pytest.skip(f"{tool} is not installed")
    command = {
        "gcc": "echo 'int main() { return 0; }' > a.c && gcc a.c && ./a.out && echo ok",
        "bash": "bash -c 'cat <(echo ok)'",
        "node": """node -e 'new (require("worker_threads").Worker)("console.log(`ok`)", {eval: true})'""",
    }[tool]
    assert box.run(f"answer(subprocess.check_output({command!r}, shell=True))") == b"ok\n"


@needs(7)
@needs_filter
@pytest.mark.parametrize("version", range(8))
def test_it_says_what_an_older_kernel_does_not_hold(
    box: Box, neighbour: subprocess.Popen[bytes], servers: list[int], version: int
):
    """Each hold that is said to be there is, each that is said not to be is really open."""
    secret = str(box.outside / "secret")
    name = f"\0headrace-{os.getpid()}-{box.user}-{version}"
    program = f"""
zero = os.open("/dev/zero", os.O_RDONLY)
answer(held, {{
    "files": attempt(lambda: open({secret!r})), "truncate": attempt(lambda: os.truncate({secret!r}, 4)),
    "tcp": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", {servers[0]}))),
    "devices": attempt(lambda: call(16, 29, zero, 0x5413, 0)), "signals": attempt(lambda: os.kill({neighbour.pid}, 0)),
    "abstract_sockets": attempt(lambda: connect(socket.AF_UNIX, {name!r})),
}})
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        before = f"abi = lambda: {version}"
        held, tried = box.run(program, before=before, sockets="tcp", also_read=["/dev/zero"])
    since = {"files": 1, "truncate": 3, "tcp": 4, "devices": 5, "signals": 6, "abstract_sockets": 6, "unix_sockets": 9}
    assert held == {name: version >= first for name, first in since.items()} | {"no_new_privs": True, "seccomp": True}
    open_as = dict.fromkeys(tried, "done") | {"devices": "ENOTTY"}  # the kernel's own answer for /dev/zero
    refused_as = dict.fromkeys(tried, "EACCES") | {"signals": "EPERM", "abstract_sockets": "EPERM"}
    assert tried == {name: (refused_as if held[name] else open_as)[name] for name in tried}


@needs(4)
@needs_filter
def test_a_failure_names_its_step(box: Box):
    program = """
def message(**changes):
    try: confine(**{"read": [], "write": [], "connect_ports": [], "seccomp": None} | changes)
    except OSError as error: return str(error)
answer(message(connect_ports=[70000]), message(seccomp=b"\\xff" * 8), message(read=["/usr/" + "x" * 300]))
"""
    assert box.run(program, confined=False) == (
        "[Errno 22] landlock rule for port 70000: Invalid argument",
        "[Errno 22] seccomp: Invalid argument",
        f"[Errno 36] landlock rule for /usr/{'x' * 300}: File name too long",
    )
