# ruff: noqa: E501 - as programs are written
"""Programs that carry something from one case to the next. Each returns how often it thinks that it was called."""

from tests.adversarial.corpus import written

STATE = written(r"""
### a file in the workspace
import os
def f(x):
    n = len(os.listdir("."))
    open(f"seen{x}", "w").close()
    return n + 1

### names of files that are hard to delete
import os
def f(x):
    n = len(os.listdir(b".")) + 1
    for name in (b"\xff\n", b"-rf", b" ", b"a" * 255):
        os.mkdir(name)
        open(os.path.join(name, b"\xfe"), "w").close()
        os.chmod(name, 0)
    return n

### a link to where it was
import os
def f(x):
    again = os.path.join(os.environ["TMPDIR"], "again")
    n = os.path.lexists("link") + os.path.lexists("there") + os.path.exists(again) + 1
    os.symlink(os.path.dirname(again), "link")
    os.symlink("/etc/passwd", "there")
    open("a", "w").close()
    try: os.link("a", again)
    except OSError: open(again, "w").close()
    return n

### a pipe and a socket with names
import os, socket
def f(x):
    n = len(os.listdir(os.environ["TMPDIR"])) + 1
    os.mkfifo(os.environ["TMPDIR"] + "/fifo")
    try: socket.socket(socket.AF_UNIX).bind("socket")
    except OSError: pass
    return n

### a folder of 1,200 levels
import os
def f(x):
    n = len(os.listdir(".")) + 1
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    return n

### shared memory by name
import os
from multiprocessing.shared_memory import SharedMemory
def f(x):
    try: SharedMemory("state"); return 2
    except (FileNotFoundError, PermissionError): pass
    try: SharedMemory("state", create=True, size=10)
    except PermissionError: pass
    return 1

### times of the workspace
import os
def f(x):
    n = 1 + (os.stat(".").st_mtime == 5) + (os.stat("/tmp").st_mtime == 5)
    os.utime(".", (5, 5))
    return n

### mode of the workspace
import os
def f(x):
    n = 1 + (not os.stat(".").st_mode & 0o001)
    try: os.chmod(".", 0o700)
    except OSError: pass
    return n

### attributes and lists of the workspace
import os
def f(x):
    n = 1
    for folder in (".", "/tmp", "/dev/shm"):
        try:
            n += len(os.listxattr(folder))
            os.setxattr(folder, "user.seen", b"1")
        except OSError: pass
        for kind in ("system.posix_acl_default", "system.posix_acl_access"):
            acl = bytes.fromhex("0200000001000700ffffffff02000700e803000004000700ffffffff10000700ffffffff20000700ffffffff")
            try: os.setxattr(folder, kind, acl)
            except OSError: pass
    return n

### the process's own settings
import os, resource, signal, sys, time
def f(x):
    n = 1 + (os.umask(0o123) == 0o123) + (os.nice(0) == 3) + (os.getcwd() == "/tmp") + (len(os.sched_getaffinity(0)) == -1)
    n += "SEEN" in os.environ
    n += signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL
    n += bool(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]))
    n += resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 33
    n += sys.getswitchinterval() == 0.5
    n += signal.getitimer(signal.ITIMER_REAL)[0] > 0
    os.environ["SEEN"] = "1"
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (33, 33))
    sys.setswitchinterval(0.5)
    signal.setitimer(signal.ITIMER_REAL, 100)
    try: os.nice(3)
    except OSError: pass
    os.chdir("/tmp")
    return n

### settings by prctl and personality
import ctypes
libc = ctypes.CDLL(None)
def f(x):
    n = 1 + (libc.personality(0xFFFFFFFF) == 0x0040000) + (libc.prctl(30, 0, 0, 0, 0) == 777)
    libc.personality(0x0040000)
    libc.prctl(29, 777, 0, 0, 0)
    return n

### modules and builtins
import builtins, json, math, sys, gc
def f(x):
    n = getattr(builtins, "n", 0) + getattr(json, "n", 0) + getattr(sys, "n", 0) + getattr(math, "n", 0) + ("state" in sys.modules) + 1
    builtins.n = json.n = sys.n = math.n = 1
    sys.modules["state"] = sys
    return n

### compiled code and caches
import os, re, linecache
def f(x):
    n = 1 + ("seen" in linecache.cache) + (len(f.__code__.co_consts) > 99) + f.__dict__.get("n", 0)
    linecache.cache["seen"] = (1, None, [], "seen")
    f.n = 1
    return n

### a shared mapping
import mmap
shared = mmap.mmap(-1, 4096)
def f(x):
    shared[0] += 1
    return shared[0]

### a deleted file kept open by a daemon
import os, time
def f(x):
    n = 1
    for pid in range(1, 99):
        try: n += sum("seen (deleted)" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        except OSError: pass
    fd = os.open("seen", os.O_CREAT | os.O_RDWR)
    os.unlink("seen")
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    return n

### a memfd kept by a daemon
import os, time
def f(x):
    n = 1
    for pid in range(1, 99):
        try: n += sum("memfd" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        except OSError: pass
    os.memfd_create("seen")
    if os.fork() == 0: time.sleep(60)
    return n

### a lock on a file of the system
import fcntl, os, time
def f(x):
    file = open(os.__file__)
    try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return 2
    if os.fork() == 0: time.sleep(60)
    return 1

### a lock on the worker's file and on the streams
import fcntl, os, time
def f(x):
    for path in ("/job/worker.py", 1, 2, 0):
        try: fcntl.flock(open(path, "rb" if path != 1 else "wb", closefd=False) if isinstance(path, int) else open(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: return 2
        except OSError: pass
    return 1

### a port that somebody listens on
import os, socket, time
def f(x):
    try: socket.create_connection(("127.0.0.1", 4711), timeout=0.2); return 2
    except OSError: pass
    if os.fork() == 0:
        try: s = socket.create_server(("127.0.0.1", 4711))
        except OSError: os._exit(0)
        time.sleep(60)
    time.sleep(0.02)
    return 1

### a process that hides its name
import ctypes, os, time
def f(x):
    try: n = len([p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid(), os.getppid())]) + 1
    except PermissionError: n = 1
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        ctypes.CDLL(None).prctl(15, b"python3", 0, 0, 0)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        time.sleep(60)
    return n

### the parent's group and session
import os
def f(x):
    try: os.setpgid(os.getppid(), 0); return 2
    except OSError: return 1

### the parent's affinity, priority and limits
import os, resource
def f(x):
    changes = [
        lambda: os.sched_setaffinity(os.getppid(), {0}),
        lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 7),
        lambda: os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0)),
        lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (99, 99)),
    ]
    for change in changes:
        try: change(); return 2
        except OSError: pass
    return 1

### what the parent's files in /proc can be set to
import os
def f(x):
    n = 1
    for name in ("timerslack_ns", "oom_score_adj", "comm", "autogroup", "coredump_filter", "clear_refs", "attr/current", "uid_map", "setgroups", "sched", "mem"):
        try: fd = os.open(f"/proc/{os.getppid()}/{name}", os.O_WRONLY)
        except OSError: continue
        try: n += os.write(fd, b"7") > 0
        except OSError: pass
    return n

### signals that wait for the parent
import os, signal
def f(x):
    waiting = [format(number, "x") for number in signal.sigpending()]
    for number in (signal.SIGURG, signal.SIGWINCH, signal.SIGCONT, signal.SIGCHLD):
        for _ in range(99): os.kill(os.getppid(), number)
    return 1 + any(int(mask, 16) for mask in waiting)

### breakpoints and traces left behind
import sys
def f(x):
    n = 1 + (sys.gettrace() is not None) + (sys.getprofile() is not None) + (sys.getrecursionlimit() == 77)
    sys.settrace(lambda *a: None)
    sys.setprofile(lambda *a: None)
    sys.setrecursionlimit(77)
    return n

### caches of the language
import functools
@functools.lru_cache(None)
def g(): return [0]
def f(x, seen=[]):
    seen.append(x)
    g()[0] += 1
    return max(len(seen), g()[0])

### the generator of random numbers
import random
state = random.getstate()
def f(x):
    n = 1 + (random.getstate() != state)
    random.random()
    return n

### what the allocator remembers of earlier cases' objects
import gc
class Seen: pass
def f(x):
    n = 1 + sum(type(o).__name__ == "Seen" for o in gc.get_objects())
    global kept
    kept = Seen()
    return n
""")

# Not closed: what the kernel counts up and no program that is not root can set back. Each is run, and must still find
# what it looks for, so that the list stays true.
OPEN = written(r"""
### the numbers of processes
import os
def f(x):
    n = os.getpid() - os.getppid()
    for _ in range(40):
        if os.fork() == 0: os._exit(0)
        os.wait()
    return 1 if n < 40 else 2

### the numbers of files
import os
def f(x):
    open("a", "w").close()
    n = os.stat("a").st_ino
    for i in range(40): open(f"b{i}", "w").close()
    return 1 if n < 40 else 2

### the faults of the parent's children
import os
def f(x):
    n = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[8])
    bytearray(40 << 20)
    return 1 if n < 10_000 else 2
""")

# Settings of objects that the worker's parent shares with its children.
SHARED = written(r"""
### flags of the standard streams
import fcntl, os
def f(x):
    n = 1
    for fd in (0, 1, 2):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        n += bool(flags & (os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC))
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_APPEND)
    return n

### who is told of the standard streams
import fcntl
def f(x):
    n = 1 + sum(fcntl.fcntl(fd, fcntl.F_GETOWN) != 0 for fd in (0, 1, 2))
    for fd in (0, 1, 2): fcntl.fcntl(fd, fcntl.F_SETOWN, 1)
    return n

### the size of the standard streams
import fcntl
def f(x):
    n = 1 + (fcntl.fcntl(1, 1032) == 16384)
    fcntl.fcntl(1, 1031, 16384)
    return n

### flags of the workspace
import fcntl, os, struct
def f(x):
    fd, flags = os.open(".", os.O_RDONLY), bytearray(8)
    try:
        fcntl.ioctl(fd, 0x80086601, flags)
        fcntl.ioctl(fd, 0x40086602, struct.pack("q", flags[0] | 0x80))
    except OSError: return 1
    return 1 + bool(flags[0] & 0x80)
""")

MEMORY = written(r"""
### inputs and answers of earlier cases in the memory of the parent
import re
def f(x):
    found = set()
    for line in open("/proc/self/maps"):
        if "[v" in line or " r" not in line: continue
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start)
                found |= set(re.findall(rb"(input|answer)\[=(\d)\]", memory.read(end - start)))
        except (OSError, OverflowError): continue
    earlier = sorted({kind.decode() for kind, number in found if number.decode() not in x})
    return earlier, "answer[" + "=" + x[-2] + "]", "." * 5000
""")
