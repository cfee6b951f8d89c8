# ruff: noqa: E501 - as programs are written
"""Cheats by processes, signals, limits and the kernel, from inside a called function."""

from tests.adversarial.corpus import written

PROCESSES = written(r"""
### another program in its place -> runtime_error
import os
def f(x): os.execv("/bin/true", ["true"])

### another interpreter in its place -> runtime_error tampered failed_tests
import os, sys
def f(x):
    for fd in range(3, 64):
        try: os.set_inheritable(fd, True)
        except OSError: pass
    os.execvp("python3", ["python3", "-c", "import os\nfor fd in range(3, 64):\n  try: os.write(fd, bytes([0,0,0,2]) + b'VN')\n  except OSError: pass"])

### vfork -> runtime_error failed_tests time_limit
import ctypes, os
libc = ctypes.CDLL(None)
def f(x):
    if libc.vfork() == 0: libc._exit(0)
    return 2

### SIGSTOP to itself -> time_limit
import os, signal
def f(x): os.kill(os.getpid(), signal.SIGSTOP)

### SIGSTOP to its group -> time_limit runtime_error
import os, signal
def f(x): os.killpg(0, signal.SIGSTOP)

### a signal of its own making -> runtime_error
import os, signal
def f(x): os.kill(os.getpid(), signal.SIGKILL)

### the signal of a used-up processor -> time_limit runtime_error
import os, signal
def f(x):
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGXCPU)

### an alarm after the return -> failed_tests runtime_error
import os, signal
def f(x):
    signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, 0.00001, 0.00001)
    return [0] * 5000

### the end in a thread -> runtime_error
import os, threading, time
def f(x):
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(1)
    return 3

### every signal to the parent -> tampered time_limit
import os
def f(x):
    for number in (*range(34, 65), *range(1, 32)):
        try: os.kill(os.getppid(), number)
        except OSError: pass
    return 3

### an interrupt to the parent -> tampered
import os, time
def f(x):
    os.kill(os.getppid(), 2)
    time.sleep(0.1)
    return 3

### the parent stopped and continued -> failed_tests tampered
import os, time
def f(x):
    for _ in range(50):
        os.kill(os.getppid(), 19)
        os.kill(os.getppid(), 18)
    return 2

### a storm of signals that say a child ended -> failed_tests time_limit
import os
def f(x):
    for _ in range(20_000): os.kill(os.getppid(), 17)
    return 2

### signals to pid 1 -> failed_tests runtime_error tampered time_limit
import os
def f(x):
    for number in range(1, 65):
        try: os.kill(1, number)
        except OSError: pass
    return 2

### traced by the parent -> failed_tests runtime_error time_limit
import ctypes, os
def f(x):
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), 5)
    return 2

### traced by its child, which outlives it -> failed_tests runtime_error time_limit
import ctypes, os, time
libc = ctypes.CDLL(None)
def f(x):
    if os.fork() == 0:
        libc.ptrace(0x4206, os.getppid(), 0, 0x100000)
        time.sleep(60)
    time.sleep(0.05)
    os._exit(0)

### daemons by the dozen -> failed_tests process_limit
import os, signal, time
def f(x):
    for _ in range(15):
        if os.fork() == 0:
            os.setsid()
            for s in range(1, 32):
                try: signal.signal(s, signal.SIG_IGN)
                except OSError: pass
            if os.fork() == 0: time.sleep(60)
            os._exit(0)
        os.wait()
    return 2

### a chain of processes that each die at once -> failed_tests process_limit time_limit runtime_error
import os, time
def f(x):
    if os.fork() == 0:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            if os.fork(): os._exit(0)
        os._exit(0)
    return 2

### a subreaper that keeps its orphans -> failed_tests
import ctypes, os, time
def f(x):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        for _ in range(3):
            if os.fork() == 0: time.sleep(60)
        time.sleep(60)
    return 2

### a stopped child left -> failed_tests
import os, signal
def f(x):
    pid = os.fork()
    if pid == 0: os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    return 2

### zombies left -> failed_tests
import os
def f(x):
    for _ in range(10):
        if os.fork() == 0: os._exit(0)
    return 2

### a process that waits in the kernel -> failed_tests runtime_error time_limit
import ctypes, os
def f(x):
    libc = ctypes.CDLL(None)
    if os.fork() == 0:
        if libc.vfork() == 0: libc.pause()
    return 2
""")

KERNEL = written(r"""
### limits lowered to nothing -> runtime_error memory_limit time_limit disk_limit
import resource
def f(x):
    for name in ("NOFILE", "FSIZE", "AS", "STACK", "NPROC", "DATA"):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (0, 0))
    return [bytearray(1 << 20) for _ in range(20)]

### a processor limit of its own -> time_limit runtime_error
import resource
def f(x):
    resource.setrlimit(resource.RLIMIT_CPU, (0, 0))
    while True: pass

### a filter that ends whoever writes -> runtime_error
import ctypes, struct
libc = ctypes.CDLL(None)
def f(x):
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 1), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, program, 0, 0): raise SystemExit(0)
    return 3

### strict computing -> runtime_error failed_tests
import ctypes
def f(x):
    ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)
    return 3

### new namespaces -> failed_tests runtime_error
import ctypes
def f(x): return [ctypes.CDLL(None).unshare(flag) for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x80)]

### another root -> runtime_error
import os
def f(x):
    os.mkdir("a")
    os.chroot("a")
    return 3

### file systems mounted -> failed_tests
import ctypes
libc = ctypes.CDLL(None)
def f(x): return [libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0), libc.umount2(b"/proc", 2), libc.pivot_root(b".", b".")]

### the kernel's settings written -> failed_tests
def f(x):
    done = []
    for name in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches", "kernel/pid_max", "kernel/ns_last_pid", "vm/overcommit_memory"):
        try:
            with open("/proc/sys/" + name, "w") as file: file.write("1")
            done.append(name)
        except OSError: pass
    return done

### control groups written -> failed_tests
import os
def f(x):
    done = []
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        for name in ("cgroup.procs", "tasks", "memory.max", "cgroup.kill", "memory.limit_in_bytes"):
            try:
                with open(os.path.join(folder, name), "w") as file: file.write("0")
                done.append(name)
            except OSError: pass
    return done

### the clock and the machine's name set -> failed_tests
import socket, time
def f(x):
    done = []
    for change in (lambda: time.clock_settime(time.CLOCK_REALTIME, 0), lambda: socket.sethostname("passed")):
        try: done.append(change())
        except (OSError, PermissionError): pass
    return done

### a place in the memory killer's list -> failed_tests
import os
def f(x):
    for pid in (os.getpid(), os.getppid(), 1):
        try:
            with open(f"/proc/{pid}/oom_score_adj", "w") as file: file.write("-1000")
        except OSError: pass
    return 2

### core dumps asked for -> runtime_error
import os, resource, signal
def f(x):
    try: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError): pass
    os.abort()

### memory killed from inside although little is used -> runtime_error memory_limit
import os, signal
def f(x):
    open("/proc/self/oom_score_adj", "w").write("1000")
    os.kill(os.getpid(), signal.SIGKILL)

### an illegal instruction -> runtime_error
import ctypes, mmap
def f(x):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b"\x0f\x0b\xff\xff")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    return 3

### real-time priority -> failed_tests runtime_error
import os
def f(x):
    try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
    except OSError: pass
    return 2
""")
