"""What a program sees of the host: nothing of ours, of our user's, or of another sandbox's."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxes.images.catalog import cache_folder
from sandboxes.protocol import Command, Warm
from tests.sandboxes.conformance.backends import LIMITS, Backend, ask, host_pids, python, sh, text

REPOSITORY = Path(__file__).parents[3]
REACH = """
import sys
answer = []
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as file: file.read(1)
        answer.append(path)
    except OSError: pass
"""


@contextlib.contextmanager
def planted(mark: str) -> Generator[int]:
    """A process of ours on the host, with the mark on its command line."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", mark]) as process:
        try:
            yield process.pid
            assert process.poll() is None, "something ended our process"
        finally:
            process.kill()


async def test_no_file_of_the_host_can_be_opened(backend: Backend, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    tmp_path.chmod(0o777)
    paths = [secret, __file__, REPOSITORY / "pyproject.toml", sys.executable + "/../../pyvenv.cfg", "/etc/shadow"]
    paths += [Path.home() / ".bashrc", Path.home() / ".profile", cache_folder() / "images" / ".lock", "/etc/machine-id"]
    paths += [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/proc/kcore",
        "/proc/kmsg",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/kvm",
    ]
    paths += [f"/proc/1/root{secret}", f"/proc/self/root{secret}", f"/proc/self/cwd/../../../..{secret}"]
    readable = [str(path) for path in paths if os.access(path, os.R_OK)]
    assert str(secret) in readable
    assert await backend.ask(REACH, *map(str, paths)) == []


async def test_no_file_of_another_sandbox_can_be_opened(backend: Backend):
    async with backend.open(files={"job-canary": b"x"}) as one, backend.open() as two:
        assert (await sh(one, "echo x | tee canary $TMPDIR/canary /dev/shm/canary >canary2")).exit_code == 0
        assert (
            await text(two, "find / -xdev -name '*canary*' 2>/dev/null; ls -A /dev/shm $TMPDIR | grep canary; true")
            == ""
        )
        mounted = await text(two, "find /headrace /var/lib/docker -name '*canary*' 2>/dev/null; true")
        assert mounted == ""


async def test_no_environment_of_ours_can_be_read(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY_7F3A", "canary-7f3a")
    fresh = Warm(files=((f"m{time.monotonic_ns()}.py", b""),))  # an interpreter started just now, if there is any
    async with backend.open(warm=fresh) as sandbox:
        everything = await text(sandbox, "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; true")
    assert "canary" not in everything.lower()
    assert str(REPOSITORY) not in everything


async def test_no_process_of_anybody_else_can_be_seen_or_hit(backend: Backend):
    """`kill -9 -1` and signals to our process group and every number end the sandbox's own programs only."""
    mark = f"planted-{time.monotonic_ns()}"
    source = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(0, signal.SIGTERM)
for pid in [os.getppid(), 1, *range(2, 40000)]:
    if pid == os.getpid(): continue
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        try: os.kill(pid, number)
        except OSError: break
os.kill(-1, signal.SIGKILL)
"""
    with planted(mark):
        async with (
            backend.open() as sandbox,
            backend.open() as other,
            await other.start(Command(("sleep", "30"))) as still,
        ):
            seen = await text(sandbox, "cat /proc/*/cmdline /proc/*/task/*/comm 2>/dev/null | tr '\\0' ' '; true")
            assert mark not in seen
            assert "pytest" not in seen
            assert (await python(sandbox, source)).breach is None
            assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"
            assert (await sh(other, "cat /proc/[0-9]*/comm | grep -c sleep")).stdout == b"1\n"
            assert (await still.kill()).signal == 9


async def test_nothing_of_the_keeper_can_be_touched(backend: Backend):
    """The process that carries a program's results must not be in its reach."""
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
answer = []
def attempt(name, call):
    try:
        if call() not in (-1, None): answer.append(name)
    except OSError: pass
buffer = ctypes.create_string_buffer(8)
for pid in {1, os.getppid()}:
    attempt(f"ptrace {pid}", lambda: libc.ptrace(16, pid, 0, 0))
    attempt(f"seize {pid}", lambda: libc.ptrace(0x4206, pid, 0, 0))
    iov = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    attempt(f"read {pid}", lambda: libc.process_vm_readv(pid, iov, 1, (ctypes.c_size_t * 2)(0x400000, 8), 1, 0))
    for name in ("mem", "environ", "maps", "stack", "auxv"):
        attempt(f"{name} {pid}", lambda: len(open(f"/proc/{pid}/{name}", "rb").read(1)) + 1)
    for name in ("mem", "clear_refs", "timerslack_ns"):
        attempt(f"write {name} {pid}", lambda: os.write(os.open(f"/proc/{pid}/{name}", os.O_WRONLY), b"0"))
    for fd in range(16): attempt(f"fd {fd} of {pid}", lambda: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY) + 1)
    attempt(f"cwd {pid}", lambda: len(os.readlink(f"/proc/{pid}/cwd")))
    for number in range(1, 65):  # where both have one user they are sent, and must have no effect
        try: os.kill(pid, number)
        except OSError: pass
    attempt(f"prlimit {pid}", lambda: libc.prlimit(pid, 7, (ctypes.c_size_t * 2)(0, 0), None))
    attempt(f"getfd {pid}", lambda: libc.syscall(438, os.pidfd_open(pid), 0, 0))
"""
    async with backend.open() as sandbox:
        assert await ask(sandbox, source) == []
        assert (await sh(sandbox, "echo alive")).stdout == b"alive\n"


async def test_only_the_writable_folders_can_be_written(backend: Backend):
    """Walks everything, /proc and /sys too, and opens whatever says it can be written."""
    source = """
import os, stat, sys
answer = []
own = {os.environ["TMPDIR"], os.environ["HOME"], "/dev/shm", "/dev/mqueue"}
harmless = {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx")}
harmless |= {"/dev/stdin", "/dev/stdout", "/dev/stderr"}
for top, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(top, name) not in own]
    if top == "/proc": folders[:] = [name for name in folders if not name.isdigit() and "self" not in name]
    if top not in own and os.access(top, os.W_OK): names.append("made")
    for name in names:
        path = os.path.join(top, name)
        if path in harmless or os.path.islink(path) or name != "made" and not os.access(path, os.W_OK): continue
        if os.path.exists(path) and os.stat(path).st_rdev == os.makedev(1, 3): continue  # masked by /dev/null
        flags = os.O_WRONLY | os.O_NONBLOCK | (os.O_CREAT if name == "made" else 0)
        try: os.close(os.open(path, flags)); answer.append(path)
        except OSError: pass
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/acpi", "/x",
             "/proc/sys/kernel/hostname", "/sys/power/state", "/etc/ld.so.preload", "/usr/x", "/dev/x"):
    try: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)); answer.append(path)
    except OSError: pass
"""
    async with backend.open() as sandbox:
        assert await ask(sandbox, source) == []
        assert await ask(sandbox, source, user="trusted") == []


async def test_the_devices_are_the_harmless_ones(backend: Backend):
    source = """
import os, stat
answer = []
for top, _, names in os.walk("/dev"):
    for name in names:
        mode = os.stat(os.path.join(top, name)).st_mode if os.path.exists(os.path.join(top, name)) else 0
        if stat.S_ISBLK(mode) or stat.S_ISCHR(mode) and top == "/dev": answer.append(name)
for kind, device in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    try: os.mknod("made", kind | 0o666, device); answer.append("mknod")
    except OSError: pass
"""
    found = await backend.ask(source)
    assert isinstance(found, list)
    found = set(found)
    assert found <= {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    assert {"null", "urandom"} <= found


@pytest.mark.parametrize("user", ["program", "trusted"])
async def test_there_is_no_capability_and_no_way_to_one(backend: Backend, user: str):
    async with backend.open() as sandbox:
        lines = (await text(sandbox, "exec cat /proc/self/status", user=user)).splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        capabilities = {key: value for key, value in status.items() if key.startswith("Cap")}
        assert capabilities.items() >= dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd"), "0" * 16).items()
        assert set(capabilities.values()) == {"0" * 16}
        no_new_privileges = "import ctypes; answer = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)"
        assert await ask(sandbox, no_new_privileges, user=user) == 1
        assert "0" not in status["Uid"].split() or user == "trusted"
        assert len(set(status["Uid"].split())) == 1
        assert status["Groups"].split() in ([], [status["Gid"].split()[0]], ["65534"])


async def test_a_filter_of_system_calls_is_on(backend: Backend):
    async with backend.open() as sandbox:
        assert "Seccomp:\t2" in await text(sandbox, "exec cat /proc/self/status")


async def test_privileged_calls_are_refused(backend: Backend):
    source = """
import ctypes, fcntl, os, pty, resource
libc = ctypes.CDLL(None, use_errno=True)
answer = []
calls = {
    "unshare": lambda: [libc.unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x80)],
    "clone": lambda: [libc.syscall(56, 0x10000011, 0, 0, 0, 0)],
    "mount": lambda: [libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.umount2(b"/proc", 2), libc.chroot(b"/tmp")],
    "pivot": lambda: [libc.syscall(155, b"/tmp", b"/tmp")],
    "ids": lambda: [libc.setuid(0), libc.setgid(0), libc.setresuid(0, 0, 0), libc.setgroups(1, (ctypes.c_int * 1)(0))],
    "names": lambda: [libc.sethostname(b"a", 1), libc.setdomainname(b"a", 1)],
    "clock": lambda: [libc.settimeofday((ctypes.c_long * 2)(1, 1), None), libc.adjtimex(b"\\1" + bytes(300))],
    "modules": lambda: [libc.syscall(175, b"", 0, b""), libc.syscall(246, 0, 0, 0, 0)],
    "power": lambda: [libc.reboot(0x1234567), libc.swapon(b"/tmp/x", 0), libc.acct(b"/tmp/x")],
    "setns": lambda: [libc.setns(os.open("/proc/self/ns/" + name, os.O_RDONLY), 0) for name in ("net", "mnt", "user")],
    "handle": lambda: [libc.open_by_handle_at(3, ctypes.create_string_buffer(64), 0)],
}
for name, call in calls.items():
    try: answer += [name] if any(value != -1 for value in call()) else []
    except OSError: pass
for request in (0x5412, 0x541C):
    try: fcntl.ioctl(pty.openpty()[1], request, b"x"); answer.append("typing")
    except OSError: pass
for name in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_CPU"):
    number = getattr(resource, name)
    soft, hard = resource.getrlimit(number)
    try: resource.setrlimit(number, (hard + 1, hard + 1)); answer.append(name)
    except (OSError, ValueError): pass
"""
    assert await backend.ask(source) == []


async def test_no_program_comes_before_others(backend: Backend):
    async with backend.open() as sandbox:
        assert (await sh(sandbox, "nice -n -5 true 2>&1 | grep -q denied")).exit_code == 0
        assert await ask(sandbox, "import os\ntry: answer = os.nice(-5)\nexcept OSError: answer = None") is None


async def test_what_no_namespace_contains_is_not_there(backend: Backend):
    """Among them inotify: its instances are counted against our own user, who then has none left."""
    source = """
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (248, 250, 321, 425, 298), "aarch64": (217, 219, 280, 425, 241)}  # linux/unistd.h
add_key, keyctl, bpf, io_uring, perf = numbers[platform.machine()]
calls = {
    "shmget": lambda: libc.shmget(7, 4096, 0o1600), "semget": lambda: libc.semget(7, 1, 0o1600),
    "msgget": lambda: libc.msgget(7, 0o1600), "mq_open": lambda: libc.mq_open(b"/q", os.O_CREAT | 2, 0o600, None),
    "inotify": lambda: libc.inotify_init1(0), "fanotify": lambda: libc.fanotify_init(0x200, 0),
    "add_key": lambda: libc.syscall(add_key, b"user", b"k", b"v", 1, -4),
    "keyctl": lambda: libc.syscall(keyctl, 0, -4, 1),
    "bpf": lambda: libc.syscall(bpf, 0, ctypes.create_string_buffer(120), 120),
    "perf": lambda: libc.syscall(perf, ctypes.create_string_buffer(120), 0, -1, -1, 0),
    "io_uring": lambda: libc.syscall(io_uring, 1, ctypes.create_string_buffer(120)),
    "klogctl": lambda: libc.klogctl(3, ctypes.create_string_buffer(99), 99),
}
answer = [name for name, call in calls.items() if call() != -1]
for family in (40, 38, 17, 16 + 64):  # vsock, the kernel's ciphers, packets, none
    try: socket.socket(family, socket.SOCK_RAW); answer.append(family)
    except OSError: pass
"""
    assert await backend.ask(source) == []


async def test_a_program_with_the_set_user_bit_gains_nothing(backend: Backend):
    async with backend.open() as sandbox:
        mine = await text(sandbox, "id -u")
        await sh(sandbox, "cp $(command -v id) $TMPDIR/id && chmod 6755 $TMPDIR/id", user="trusted")
        assert await text(sandbox, "$TMPDIR/id -u") == mine
        source = """
import os, stat, subprocess
answer = []
for folder in ("/usr/bin", "/usr/sbin", "/bin", "/usr/libexec"):
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.stat(path).st_mode & stat.S_ISUID:
            child = subprocess.Popen([path, "--version"], stdin=-3, stdout=-3, stderr=-3)
            answer.append(any(line.startswith("Uid:") and "\\t0" in line for line in open(f"/proc/{child.pid}/status")))
            child.kill()
answer = any(answer)
"""
        assert await ask(sandbox, source) is False


async def test_there_is_no_network(backend: Backend):
    """Not the world, not the host's loopback, not its abstract sockets, not a name server."""
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        name = f"headrace-canary-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        port = listener.getsockname()[1]
        source = f"""
import os, socket
answer = []
def attempt(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(0.5)
            s.connect(address); s.send(b"x" * 12); s.recv(1); answer.append(address)
    except OSError: pass
hosts = (("127.0.0.1", {port}), ("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 80), ("172.17.0.1", {port}))
for address in hosts:
    attempt(socket.AF_INET, socket.SOCK_STREAM, address)
attempt(socket.AF_INET, socket.SOCK_DGRAM, ("1.1.1.1", 53))
attempt(socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700:4700::1111", 53))
attempt(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + "{name}")
try: answer.append(socket.getaddrinfo("example.org", 80))
except OSError: pass
answer += [name for name in os.environ if "proxy" in name.lower()]
"""
        assert await backend.ask(source) == []
        with socket.create_connection(("127.0.0.1", port), timeout=1), socket.socket(socket.AF_UNIX) as client:
            client.connect("\0" + name)  # the control: from outside they answer


async def test_programs_have_a_loopback_of_their_own(backend: Backend):
    source = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8080))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hi")).start()
with socket.create_connection(("127.0.0.1", 8080)) as client: answer = client.recv(9)
"""
    async with backend.open() as one, backend.open() as two:
        assert await ask(one, source) == b"hi"
        assert await ask(two, source) == b"hi"


async def test_the_host_is_not_named(backend: Backend):
    seen = await backend.ask("import os, platform; answer = (os.uname().nodename, platform.node())")
    assert socket.gethostname() not in str(seen)


async def test_on_the_host_programs_are_nobody(backend: Backend):
    if os.geteuid() != 0 or backend.guest_kernel:
        pytest.skip("one user only, or a kernel that keeps its programs to itself")
    mark = f"9{time.monotonic_ns() % 10**6:06d}"
    async with backend.open() as sandbox, await sandbox.start(Command(("sleep", mark))):
        for _ in range(100):
            if pids := [pid for pid in host_pids(f"sleep\0{mark}") if os.stat(f"/proc/{pid}").st_uid != 0]:
                break
            time.sleep(0.01)
        assert len(pids) == 1
        assert os.stat(f"/proc/{pids[0]}").st_uid not in (0, os.getuid())


async def test_crashes_leave_no_core(backend: Backend):
    limits = LIMITS.model_copy(update={"disk_mib": 64})
    async with backend.open(limits) as sandbox:
        await sh(sandbox, "ulimit -c unlimited; kill -SEGV $$")
        assert await text(sandbox, "echo * $TMPDIR/*") == f"* {await text(sandbox, 'echo $TMPDIR')}".strip() + "/*\n"
