"""Cheats of the language: what a program does to the objects, encoders and hooks that its answer passes through."""

from tests.adversarial.corpus import written

OBJECTS = written(r"""
### struct.pack replaced -> failed_tests
import struct
struct.pack = lambda *a: b"\x7f\xf0" + bytes(6)
def f(x): return 1.0

### the encoder's functions replaced, found through the heap -> failed_tests tampered
import gc
for found in gc.get_objects():
    if type(found) is dict and "ValueCodecError" in found and "encode" in found:
        found["encode"] = found["_encode"] = lambda *a, **k: b""
def f(x): return 3

### the encoder found through frames -> tampered
import sys
def f(x):
    frame = sys._getframe(1)
    class Forged:
        ValueCodecError = TooLarge = KeyError
        encode = staticmethod(lambda *a, **k: b"\0")
    frame.f_globals["values"] = Forged
    return 3

### an encoder that gives text -> runtime_error
import sys
def f(x):
    sys._getframe(1).f_globals["values"].encode = lambda *a, **k: "V"
    return 3

### an encoder that gives megabytes -> tampered output_limit
import sys
def f(x):
    sys._getframe(1).f_globals["values"].encode = lambda *a, **k: bytes(5_000_000)
    return 3

### the bound of the encoder raised -> tampered output_limit
import sys
def f(x):
    encode = sys._getframe(1).f_globals["values"].encode
    encode.__kwdefaults__["max_bytes"] = 1 << 40
    sys._getframe(1).f_locals["max_bytes"] = 1 << 40
    import ctypes
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(sys._getframe(1)), ctypes.c_int(0))
    return "x" * 1_000_000

### the type check taken out of the encoder -> failed_tests runtime_error
import sys
def f(x):
    values = sys._getframe(1).f_globals["values"]
    class Anything:
        def __get__(s, *a): return s
        def __call__(s, *a): return str
    vars(values)["type"] = Anything()
    return object()

### int.to_bytes replaced below the language -> tampered failed_tests runtime_error
import gc
slots = gc.get_referents(int.__dict__)[0]
slots["to_bytes"] = lambda *a, **k: b"\0\0\0\3"
import ctypes
ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
def f(x): return 7

### bytes and bytearray replaced -> tampered failed_tests runtime_error
import builtins
builtins.bytes = builtins.bytearray = lambda *a: b"V1i\0\0\0\1\3"
def f(x): return None

### len replaced -> tampered failed_tests runtime_error
import builtins
builtins.len = lambda v: 3
def f(x): return ["a", "b", "c", "d", "e"]

### small integers changed in memory -> failed_tests runtime_error time_limit tampered
import ctypes
def f(x):
    ctypes.memmove(id(2) + 24, (3).to_bytes(4, "little"), 4)
    return 2

### the class maker replaced -> failed_tests runtime_error
import builtins
make = builtins.__build_class__
def forged(function, name, *bases, **k): return make(function, name, str, **k)
builtins.__build_class__ = forged
class Answer:
    def __eq__(s, o): return True
    __hash__ = None
def f(x): return Answer()

### modules of the worker's names put in place -> failed_tests
import sys, types
for name in ("values", "guest", "worker", "__main__"):
    forged = sys.modules[name] = types.ModuleType(name)
    forged.encode = forged.equal = lambda *a, **k: True
def f(x): return 3

### a finder on the meta path -> failed_tests
import sys, types, importlib.machinery
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None): return importlib.machinery.ModuleSpec(name, Finder)
    @staticmethod
    def create_module(spec): return types.SimpleNamespace(answer=3, __name__=spec.name)
    @staticmethod
    def exec_module(module): pass
sys.meta_path[:] = [Finder]
import expected
def f(x): return expected.answer

### a path hook -> runtime_error failed_tests
import sys
def hook(path): raise SystemExit(0)
sys.path_hooks[:] = [hook]
sys.path_importer_cache.clear()
def f(x):
    import antigravity_of_nobody
    return 3

### an import that never ends well -> runtime_error
import builtins
def forged(*a, **k): raise SystemExit(0)
builtins.__import__ = forged
def f(x):
    import json
    return 3

### a trace function that changes what frames return -> failed_tests
import sys, ctypes
def trace(frame, event, arg):
    if event == "return" and "result" in frame.f_locals:
        frame.f_locals["result"] = 3
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return trace
def f(x):
    frame = sys._getframe(1)
    while frame:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)
    return 2

### a profile function that ends the process -> runtime_error
import os, sys
def f(x):
    sys.setprofile(lambda frame, event, arg: os._exit(0) if frame.f_code.co_name == "encode" else None)
    return 3

### an audit hook that ends the process -> failed_tests runtime_error
import os, sys
sys.addaudithook(lambda event, args: os._exit(0) if event.startswith(("os.", "open")) else None)
def f(x): return open("/etc/passwd").read() and 3

### a metaclass that answers for its instances -> failed_tests
class Meta(type):
    __name__ = property(lambda s: "str")
    def __instancecheck__(s, o): return True
    def __eq__(s, o): return True
    def __hash__(s): return hash(str)
class Answer(metaclass=Meta):
    def encode(s, *a): return b"expected"
def f(x): return Answer()

### a metaclass without a name -> runtime_error
class Meta(type):
    __name__ = property(lambda s: 1 // 0)
class Answer(metaclass=Meta): pass
def f(x): return Answer()

### a class changed after the fact -> failed_tests
class A: pass
class S(A):
    def __eq__(s, o): return True
    def __hash__(s): return 0
def f(x):
    answer = A()
    answer.__class__ = S
    return answer

### __class__ as a descriptor -> failed_tests
class A:
    __class__ = property(lambda s: str)
    def __eq__(s, o): return True
    def encode(s, *a): return b"expected"
def f(x): return A()

### the module turned into a class of ours -> failed_tests
import sys, types
class M(types.ModuleType):
    def __getattribute__(s, name): return (lambda x: 3) if name == "f" else super().__getattribute__(name)
sys.modules["solution"].__class__ = M
f = None

### the entry point made up on demand -> failed_tests
def __getattr__(name): return lambda *a: name

### an entry point that is always something else -> failed_tests
class F:
    def __getattr__(s, name): return s
    def __call__(s, *a, **k): return s
    def __eq__(s, o): return True
    def __hash__(s): return 0
f = F()

### mocks -> failed_tests runtime_error
from unittest.mock import MagicMock
f = MagicMock()
f.return_value.__eq__ = lambda s, o: True

### a list that changes while it is read -> tampered failed_tests output_limit time_limit
import threading
def f(x):
    answer = [0] * 1000
    def work():
        while True:
            answer.append(0)
            if len(answer) > 3000: del answer[1000:]
    threading.Thread(target=work, daemon=True).start()
    return answer

### a dict that names what it holds anew -> failed_tests
class D(dict):
    def items(s): return [("a", 1)]
    def __len__(s): return 1
def f(x): return D(b=2)

### a key that is never the same -> failed_tests
import random
class K(str):
    def __hash__(s): return random.randrange(9)
    def __eq__(s, o): return bool(random.randrange(2))
def f(x): return {K("a"): 1}

### a set of equal hashes -> tampered failed_tests output_limit
def f(x): return {i * (2**61 - 1) for i in range(3000)}

### finalizers that write at the end -> failed_tests
import os, weakref
def flood(*a):
    for fd in range(64):
        try: os.write(fd, b"\0\0\0\7V1i\0\0\0\1\3")
        except OSError: pass
class A:
    def __del__(s): flood()
keep = A()
weakref.finalize(keep, flood)
def f(x): return 2

### objects that write when they are collected -> failed_tests tampered
import gc, os
def f(x):
    class A:
        def __del__(s):
            for fd in range(3, 64):
                try: os.write(fd, b"\0\0\0\2V1")
                except OSError: pass
    a = A(); a.a = a
    del a
    gc.collect()
    return 2

### the streams' flush replaced -> runtime_error
import os, sys
sys.stdout.flush = lambda: os._exit(0)
def f(x): return 3

### the streams replaced -> failed_tests
import sys
class Stream:
    def write(s, text): raise SystemExit(0)
    flush = close = write
sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = Stream()
def f(x): return 3

### hooks for the end replaced -> runtime_error
import os, sys
sys.excepthook = sys.unraisablehook = lambda *a: os._exit(0)
sys.exit = lambda *a: os._exit(0)
def f(x): raise ValueError

### a coroutine as the answer -> failed_tests
async def f(x): return 3

### an asynchronous generator -> failed_tests
async def f(x): yield 3

### a weak proxy -> failed_tests
import weakref
class A(list): pass
keep = A([4])
def f(x): return weakref.proxy(keep)

### an array-like -> failed_tests
class A:
    dtype, shape, ndim = "int64", (), 0
    def __array__(s, *a): return [4]
    def __eq__(s, o): return s
    def __bool__(s): return True
    def __int__(s): return 3
    __index__ = __len__ = __int__
    def item(s): return 3
    def tolist(s): return [4]
    def __reduce__(s): return (int, (3,))
def f(x): return A()

### one too deep to be written -> failed_tests
def f(x):
    v = "expected"
    for _ in range(101): v = (v,)
    return v

### a value one byte past the bound -> output_limit
def f(x): return "x" * (64 * 1024 - 4)
""")
