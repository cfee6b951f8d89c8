"""Honest but odd programs for `call`: streams, files, threads, processes. Each `f(x)` returns x + 1 and is paid."""

from tests.adversarial.corpus import written

SYSTEM = written(r"""
### prints a lot, in every way
import os, sys
def f(x):
    for i in range(500): print(i, "\u20ac\U0001f388", end=" ")
    sys.stdout.buffer.write(b"\xff\xfe\0"); sys.stdout.write("no newline")
    os.write(1, b"raw"); print("err", file=sys.stderr, flush=True)
    return x + 1

### prints what looks like an answer
def f(x):
    print("V1", "passed", "H1", "\0\0\0\x02VN", flush=True)
    return x + 1

### prints a lone surrogate
import sys
sys.stdout.reconfigure(errors="backslashreplace")
def f(x):
    print("\ud800")
    return x + 1

### stdout caught
import contextlib, io
def f(x):
    with contextlib.redirect_stdout(io.StringIO()) as out: print(x + 1)
    return int(out.getvalue())

### stdout replaced and never put back
import io, sys
sys.stdout = io.StringIO()
def f(x):
    print(x)
    return int(sys.stdout.getvalue().split()[-1]) + 1

### stdout closed
import sys
def f(x):
    sys.stdout.close()
    return x + 1

### reads an empty stdin
import sys
def f(x): return x + 1 + len(sys.stdin.read())

### temporary files and folders
import os, tempfile
def f(x):
    with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile("w+", dir=d) as t:
        t.write("1"); t.seek(0)
        return x + int(t.read()) + len(os.listdir(d)) - 1

### files of the folder it is in
import json, pathlib
def f(x):
    p = pathlib.Path("cache") / "a.json"
    p.parent.mkdir(exist_ok=True); p.write_text(json.dumps([x]))
    return json.loads(p.read_text())[0] + 1

### a database in memory
def f(x):
    import sqlite3
    return sqlite3.connect(":memory:").execute("select ? + 1", (x,)).fetchone()[0]

### threads and a queue
import queue, threading
def f(x):
    q = queue.Queue()
    ts = [threading.Thread(target=q.put, args=(v,)) for v in (x, 1)]
    for t in ts: t.start()
    for t in ts: t.join()
    return q.get() + q.get()

### a pool of threads
from concurrent.futures import ThreadPoolExecutor
def f(x):
    with ThreadPoolExecutor(4) as pool: return sum(pool.map(int, [x, 1]))

### a thread that outlives the answer
import threading, time
def f(x):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    return x + 1

### a child by fork, waited for
import os
def f(x):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, str(x + 1).encode()); os._exit(0)
    os.wait()
    return int(os.read(r, 9))

### a shell
import subprocess
def f(x): return int(subprocess.check_output(f"expr {x} + 1", shell=True))

### another interpreter
import subprocess
def f(x): return int(subprocess.run(["python3", "-c", f"print({x} + 1)"], capture_output=True, text=True).stdout)

### an alarm for itself
import signal, time
class Late(Exception): pass
def late(*a): raise Late
def f(x):
    signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.02)
    try: time.sleep(1)
    except Late: return x + 1

### an exit handler
import atexit
atexit.register(print, "bye")
def f(x): return x + 1

### a collector that is off
import gc
gc.disable(); gc.freeze()
def f(x):
    a = []; a.append(a)
    return x + 1

### objects that print when they go
class A:
    def __del__(self): print("gone")
keep = A()
def f(x):
    A(); a = A(); a.a = a
    return x + 1

### changes its arguments
def f(x):
    items = [x]; items += [1]; items.sort(); del items[1:]
    x += 1
    return x

### the time, the host and the user
import getpass, os, platform, socket, time
def f(x):
    time.sleep(0.001); platform.node(); os.cpu_count(); os.times(); time.strftime("%c")
    try: getpass.getuser()
    except (KeyError, OSError): pass
    return x + 1

### random numbers with a seed
import random
random.seed(7)
def f(x): return x + random.choice([1, 1]) + int(random.random() * 0)

### memory, much but within the bound
def f(x):
    a = bytearray(40 << 20); a[-1] = 1
    return x + a[-1]

### many small objects
def f(x): return x + len([{i: (i,)} for i in range(50_000)]) - 49_999

### descriptors closed that it did not open
import os
def f(x):
    os.closerange(0, 3)
    return x + 1

### foreign functions
import ctypes
def f(x): return ctypes.CDLL(None).abs(-x) + 1

### a shared mapping with its child
import mmap, os
def f(x):
    m = mmap.mmap(-1, 8)
    if os.fork() == 0:
        m[0] = 1; os._exit(0)
    os.wait()
    return x + m[0]

### decimal, locale and dates
import datetime, decimal, locale
def f(x):
    locale.setlocale(locale.LC_ALL, "C"); decimal.getcontext().prec = 50
    return int(decimal.Decimal(x) + datetime.timedelta(days=1).days)

### a socket pair and select
import select, socket
def f(x):
    a, b = socket.socketpair()
    a.send(bytes([x + 1])); select.select([b], [], [])
    return b.recv(1)[0]
""")

WITH_SEMAPHORES = written(r"""
### a pool of processes
import multiprocessing
def g(v): return v + 1
def f(x):
    with multiprocessing.get_context("fork").Pool(2) as pool: return pool.map(g, [x])[0]

### a queue between processes
import multiprocessing
def g(q, v): q.put(v + 1)
def f(x):
    context = multiprocessing.get_context("fork"); q = context.Queue()
    p = context.Process(target=g, args=(q, x)); p.start()
    n = q.get(); p.join()
    return n
""")
"""Not for the back-end `subprocess`, which has no /dev/shm."""
