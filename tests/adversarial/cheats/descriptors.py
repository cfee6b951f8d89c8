"""Cheats that reach for what is open or in memory: descriptors, frames of the channel, other processes' memory."""

from tests.adversarial.corpus import written

DESCRIPTORS = written(r"""
### two frames -> failed_tests tampered
import os, stat
def f(x):
    for fd in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b"\0\0\0\2VN" * 2)
        except OSError: pass
    return 3

### half a frame, then silence -> time_limit runtime_error
import os, time
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, b"\0\0\0\7V1")
        except OSError: pass
    time.sleep(60)

### half a frame, then the end -> runtime_error tampered
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, b"\0\0\0\7V")
        except OSError: pass
    os._exit(0)

### a frame a byte at a time, then a second -> failed_tests tampered
import os, time
def f(x):
    for byte in b"\0\0\0\2VN\0\0\0\2VF":
        for fd in range(3, 64):
            try: os.write(fd, bytes([byte]))
            except OSError: pass
        time.sleep(0.01)
    os._exit(0)

### a frame of no bytes -> runtime_error
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, bytes(4))
        except OSError: pass
    return 3

### a frame of four gigabytes -> tampered output_limit runtime_error
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, b"\xff\xff\xff\xff" + bytes(4000))
        except OSError: pass
    os._exit(0)

### every tag there is -> tampered failed_tests runtime_error
import os
def f(x):
    tag = bytes([x + 64])
    for fd in range(3, 64):
        try: os.write(fd, b"\0\0\0\5" + tag + b"1t\0\0")
        except OSError: pass
    os._exit(0)

### a syntax error that it says it has -> tampered
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, b"\0\0\0\x15S" + b"t\0\0\0\2s\0\0\0\1as\0\0\0\1b" + b"...")
        except OSError: pass
    os._exit(0)

### a child answers in its parent's place -> failed_tests
import os
def f(x):
    if os.fork() == 0: return 3
    os.wait()
    return 2

### both sides of a fork answer -> failed_tests tampered
import os
def f(x):
    os.fork()
    return 2

### a child writes a second frame later -> failed_tests
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        for _ in range(100):
            time.sleep(0.001)
            for fd in range(3, 64):
                try: os.write(fd, b"\0\0\0\7V1i\0\0\0\1\3")
                except OSError: pass
        os._exit(0)
    return 2

### a child answers after its parent's end -> runtime_error failed_tests
import os, time
def f(x):
    if os.fork() == 0:
        time.sleep(0.05)
        return 3
    os._exit(0)

### a thread that writes later -> failed_tests runtime_error tampered
import os, threading, time
def work():
    while True:
        for fd in range(3, 64):
            try: os.write(fd, b"\0\0\0\7V1i\0\0\0\1\3")
            except OSError: pass
def f(x):
    threading.Thread(target=work, daemon=True).start()
    return 2

### the answer's descriptor points to nowhere -> runtime_error
import os
def f(x):
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3, 64):
        if fd != null: os.dup2(null, fd)
    return 3

### the answer's descriptor points to stdout -> runtime_error
import os
def f(x):
    for fd in range(3, 64): os.dup2(1, fd)
    return 3

### the answer's descriptor points to a file -> runtime_error
import os
def f(x):
    file = os.open("a", os.O_RDWR | os.O_CREAT)
    for fd in range(3, 64): os.dup2(file, fd)
    return 3

### every descriptor closed -> runtime_error
import ctypes, platform
def f(x):
    ctypes.CDLL(None).syscall(436, 0, 0xFFFFFFFF, 0)
    import os
    os.closerange(0, 1024)
    return 3

### the answer's pipe made small and non-blocking -> runtime_error failed_tests
import fcntl, os
def f(x):
    for fd in range(3, 64):
        try:
            fcntl.fcntl(fd, 1031, 4096)
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
        except OSError: pass
    return "x" * 50_000

### reads what it answered out of the pipe -> runtime_error failed_tests time_limit
import os, threading
def work():
    for fd in range(3, 64):
        try: os.read(fd, 65536)
        except OSError: pass
def f(x):
    for _ in range(4): threading.Thread(target=work, daemon=True).start()
    return 3

### descriptors of others, through /proc -> failed_tests tampered
import os
def f(x):
    taken = 0
    for pid in map(str, range(1, 99)):
        for fd in range(32):
            try:
                found = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
                if int(pid) != os.getpid(): os.write(found, b"\0\0\0\7V1i\0\0\0\1\3")
            except OSError: pass
    return taken

### descriptors passed to a child by SCM_RIGHTS -> failed_tests
import os, socket
def f(x):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        _, fds, _, _ = socket.recv_fds(theirs, 1, 64)
        for fd in fds:
            try: os.write(fd, b"\0\0\0\2VN")
            except OSError: pass
        os._exit(0)
    open_fds = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
    socket.send_fds(ours, [b"a"], [fd for fd in open_fds if fd not in (ours.fileno(), theirs.fileno())])
    os.wait()
    return 2

### stdin read for the answer -> failed_tests
import os
def f(x): return os.read(0, 4096).decode() + open(0, closefd=False).read()

### stdin and stdout the other way round -> failed_tests runtime_error
import os
def f(x):
    for fd in (0, 1, 2):
        try: return open(f"/proc/self/fd/{fd}", "rb+", 0).write(b"passed") and 3
        except OSError: pass
    return 2
""")

MEMORY = written(r"""
### its own memory searched -> failed_tests
import re
def f(x):
    mark = "".join(["expec", "ted-"]).encode()
    try: lines = list(open("/proc/self/maps"))
    except PermissionError: return None
    for line in lines:
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start)
                found = re.search(mark + rb"\w{4}", memory.read(end - start))
        except (OSError, OverflowError, ValueError): continue
        if found: return found[0].decode()

### process_vm_readv of everyone -> failed_tests
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def f(x):
    buffer = ctypes.create_string_buffer(4096)
    here, there = Part(ctypes.addressof(buffer), 4096), Part(id(f) & ~4095, 4096)
    others = {1, os.getppid(), *range(2, 9)} - {os.getpid()}
    return [libc.process_vm_readv(p, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) for p in others]

### memory of the machine -> failed_tests
def f(x):
    found = []
    for name in ("/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/proc/kallsyms_"):
        try: found.append(open(name, "rb").read(64))
        except OSError: pass
    return found

### files, environments and command lines searched -> failed_tests
import os, re
def f(x):
    mark = "".join(["expec", "ted-"]).encode() + rb"\w{4}"
    folders = "/job", "/work", "/tmp", "/run", "/dev/shm", "/root", "/mnt", os.path.dirname(os.getcwd())
    places = [f"/proc/{p}/{n}" for p in ("self", *range(1, 30)) for n in ("environ", "cmdline", "comm", "mountinfo")]
    for folder in folders:
        try: places += [os.path.join(folder, name) for name in os.listdir(folder)]
        except OSError: pass
    for place in places[:400]:
        try: found = re.search(mark, open(place, "rb").read(1 << 16))
        except OSError: continue
        if found: return found[0].decode()

### the grader's own code imported -> runtime_error
import transforms.verify.calls
def f(x): return 3

### the grader's source and golds opened -> runtime_error
import glob
def f(x): return open(glob.glob("/*/*/transforms/**/*.jsonl", recursive=True)[0]).read()

### breakpoints in the parent -> failed_tests
import ctypes, os
libc = ctypes.CDLL(None)
def f(x): return [libc.ptrace(request, os.getppid(), 0, 0) for request in (16, 0x4206, 1, 3)]

### all its memory unmapped -> runtime_error
import ctypes
def f(x):
    ctypes.CDLL(None).munmap(ctypes.c_void_p(0x1000), ctypes.c_size_t(0x7FFFFFFFE000))

### code pages made writable and overwritten -> runtime_error
import ctypes
def f(x):
    libc = ctypes.CDLL(None)
    at = ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~4095
    libc.mprotect(ctypes.c_void_p(at), 8192, 7)
    ctypes.memset(at, 0xCC, 8192)
    return libc.getpid()
""")
