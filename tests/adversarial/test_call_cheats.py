# ruff: noqa: E501 - one program a line
"""Programs that try to pass without being right. Each is wrong: none may pass, none may look like our failure."""

import asyncio

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.grade.rubric import outcome_of
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=2, cpu_time_s=2, memory_mib=128, processes=24, output_kib=64, file_mib=8)
SECRET = "expected-7c1f"  # the expected value of the first case: nothing in the sandbox may know it
TASK = Task("t", "p", Call("f", (Case("a", (1,), SECRET), Case("b", (2,), 3), Case("c", (3,), [4]))))

FORGE = """
import os, struct
def enc(v): return b"V1i" + (1).to_bytes(4, "big") + v
def flood(data):
    for fd in range(3, 64):
        for frame in (data, len(data).to_bytes(4, "big") + data, b"V" + data, b"H1", b"C1"):
            try: os.write(fd, frame)
            except OSError: pass
"""

CHEATS = {
    "always equal": "class A:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return A()",
    "int subclass": "class I(int):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\ndef f(x): return I(x)",
    "str subclass": "class S(str):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\ndef f(x): return S()",
    "class that says it is str": "class A:\n    __class__ = str\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "metaclass": "class M(type):\n    def __eq__(s, o): return True\n    def __hash__(s): return hash(int)\nclass A(metaclass=M): pass\ndef f(x): return A()",
    "patched type": "import builtins\nbuiltins.type = lambda v: str\nbuiltins.isinstance = lambda *a: True\ndef f(x): return object()",
    "sys.exit at import": "import sys\nsys.exit(0)",
    "sys.exit in the function": "import sys\ndef f(x): sys.exit(0)",
    "os._exit at import": "import os\nos._exit(0)",
    "os._exit in the function": "import os\ndef f(x): os._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return None",
    "raises a pass": "class passed(BaseException): pass\ndef f(x): raise passed('passed')",
    "prints a pass": "def f(x): print('V1', 'passed', '3 passed', 'OK')",
    "forges on every fd": FORGE + "flood(enc(b'\\3'))\ndef f(x): flood(enc(b'\\3'))",
    "forges and exits": FORGE + "def f(x):\n    flood(enc(b'\\3')); os._exit(0)",
    "garbage on every fd": "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\xff' * 99)\n        except OSError: pass\n    os._exit(0)",
    "bad value bytes": "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\0\\0\\0\\6Ve\\0\\0\\0\\1')\n        except OSError: pass\n    os._exit(0)",
    "reports a death of its own making": "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\0\\0\\0\\2XN')\n        except OSError: pass\n    os._exit(0)",
    "kills the parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return 3",
    "stops the parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 19)\n    return 3",
    "kills everything": "import os\nos.kill(-1, 9)",
    "kills at import": "import os\nfor p in range(1, 99):\n    try: os.kill(p, 9)\n    except OSError: pass",
    "walks frames": "import sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n        seen += [v for v in {**frame.f_locals, **frame.f_globals}.values() if type(v) is str and v.startswith('expected-')]\n        frame = frame.f_back\n    return seen[0] if seen else None",
    "walks the heap": "import gc\ndef f(x):\n    for o in gc.get_objects():\n        for v in (o.values() if type(o) is dict else o if type(o) in (list, tuple) else ()):\n            if type(v) is str and v.startswith('expected-'): return v",
    "reads the parent's memory": "import os, re\ndef f(x):\n    base = '/proc/%d/' % os.getppid()\n    for line in open(base + 'maps'):\n        a, b = (int(p, 16) for p in line.split()[0].split('-'))\n        try:\n            with open(base + 'mem', 'rb') as m: m.seek(a); found = re.search(rb'expected-\\w+', m.read(b - a))\n        except OSError: continue\n        if found: return found[0].decode()",
    "takes the parent's fds": "import os\ndef f(x):\n    p = os.getppid()\n    for fd in range(64):\n        try: os.write(os.open('/proc/%d/fd/%d' % (p, fd), os.O_RDWR), b'\\0\\0\\0\\2V1')\n        except OSError: pass",
    "pidfd_getfd": "import os, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(x):\n    p = os.pidfd_open(os.getppid())\n    got = libc.syscall(438, p, 3, 0)\n    if got >= 0: os.write(got, b'\\0\\0\\0\\7V1i\\0\\0\\0\\1\\3')\n    return got >= 0",
    "ptrace": "import os, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(x): return SECRET if libc.ptrace(16, os.getppid(), 0, 0) == 0 else None",
    "patches the worker": "import __main__\nfor name in list(vars(__main__)):\n    if not name.startswith('__'): setattr(__main__, name, None)\ndef f(x): return 3",
    "reads the job": "def f(x): return open('/job/worker.py').read()",
    "deep value": "def f(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v",
    "cyclic value": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "lone surrogates": "def f(x): return '\\ud800' * 3",
    "huge int": "def f(x): return 1 << 300000",
    "nan": "def f(x): return float('nan')",
    "true for one": "def f(x): return True",
    "exception with a hostile text": "class E(Exception):\n    def __str__(s): import os; os._exit(0)\ndef f(x): raise E",
    "exception that is no class of ours": "class MemoryError(BaseException): pass\ndef f(x): raise MemoryError('\\ud800')",
}  # fmt: skip


def grade(program: str, task: Task = TASK) -> CaseReport:
    return asyncio.run(run_check(Bubblewrap(), task, program, SandboxRequest(limits=LIMITS)))


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_none_is_an_infra_failure(name: str):
    report = grade(CHEATS[name])
    outcome = outcome_of(report.results)
    assert outcome is not Outcome.PASSED
    assert outcome.outcome_class is OutcomeClass.POLICY
    assert report.results[0].outcome is not Outcome.PASSED
    assert SECRET not in repr(report)


STATE = {
    "globals": "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n",
    "tmp": "import os\ndef f(x):\n    n = len(os.listdir('/tmp')) + len(os.listdir('/dev/shm')) + 1\n    for d in ('/tmp', '/dev/shm'): os.makedirs(f'{d}/{n}/x')\n    os.chmod('/tmp/%d' % n, 0)\n    return n",
    "daemon": "import os, time, signal\ndef f(x):\n    n = 1 + sum(1 for p in os.listdir('/proc') if p.isdigit() and b'daemon' in open(f'/proc/{p}/comm', 'rb').read())\n    if os.fork() == 0:\n        os.setsid()\n        for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n        open('/proc/self/comm', 'w').write('daemon')\n        if os.fork() == 0: time.sleep(60)\n        time.sleep(60)\n    time.sleep(0.05)\n    return n",
    "abstract socket": "import os, socket, time\ndef f(x):\n    try: socket.socket(socket.AF_UNIX).connect('\\0state'); return 2\n    except OSError: pass\n    if os.fork() == 0:\n        s = socket.socket(socket.AF_UNIX); s.bind('\\0state'); s.listen(); time.sleep(60)\n    time.sleep(0.05)\n    return 1",
    "system v memory": "import ctypes\nlibc = ctypes.CDLL(None)\ndef f(x):\n    if libc.shmget(77, 4096, 0) != -1: return 2\n    libc.shmget(77, 4096, 0o1666)\n    return 1",
    "message queue": "import ctypes, os\nlibc = ctypes.CDLL(None)\ndef f(x):\n    if libc.mq_open(b'/q', os.O_RDWR) != -1: return 2\n    libc.mq_open(b'/q', os.O_CREAT | os.O_RDWR, 0o600, None)\n    return 1",
    "key": "import ctypes, platform\nlibc = ctypes.CDLL(None)\nadd_key = {'x86_64': 248, 'aarch64': 217}[platform.machine()]\ndef f(x):\n    if ' user ' in open('/proc/keys').read(): return 2\n    libc.syscall(add_key, b'user', b'k', b'v', 1, -4)  # in the user's keyring\n    return 1",
    "the worker's module": "import __main__, builtins, sys\ndef f(x):\n    n = getattr(__main__, 'n', getattr(builtins, 'n', getattr(sys, 'n', 0))) + 1\n    __main__.n = builtins.n = sys.n = n\n    return n",
}  # fmt: skip


@pytest.mark.parametrize("name", STATE)
def test_no_state_travels_between_cases(name: str):
    """Each program returns how often it thinks it was called; a fresh process and sandbox says 1 every time."""
    task = Task("t", "p", Call("f", tuple(Case(str(i), (i,), 1) for i in range(3))))
    report = grade(STATE[name], task)
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3, report


def test_the_parent_that_holds_the_channel_is_out_of_reach():
    program = """
import ctypes, os, stat
libc = ctypes.CDLL(None, use_errno=True)
def opens(path):
    try: os.close(os.open(path, os.O_RDONLY)); return True
    except OSError: return False
def f(x):
    parent = os.getppid()
    sockets = [fd for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]
    reached = [libc.ptrace(16, parent, 0, 0) == 0, libc.syscall(438, os.pidfd_open(parent), 3, 0) >= 0]
    return reached + [opens(f"/proc/{parent}/mem"), opens(f"/proc/{parent}/environ"), opens(f"/proc/{parent}/fd")], sockets
"""
    report = grade(program, Task("t", "p", Call("f", (Case("c", (1,), ([False] * 5, [])),))))
    assert report.results[0].outcome is Outcome.PASSED, report


def test_inputs_are_not_there_before_their_case():
    """The parent that a child is forked from has not yet seen the later inputs."""
    program = """
import gc
def f(x):
    inside = (v for o in gc.get_objects() if type(o) in (list, tuple) for v in o if type(v) is str)
    return sorted({x} | {v for v in inside if v[:6] == "tupni-"[4::-1] + "-" and len(v) == 7})
"""
    cases = tuple(Case(str(i), (f"input-{i}",), [f"input-{i}"]) for i in range(3))
    report = grade(program, Task("t", "p", Call("f", cases)))
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3, report
