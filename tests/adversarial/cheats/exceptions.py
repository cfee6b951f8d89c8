"""Cheats that raise: exceptions with hostile parts, and ends that are none."""

from tests.adversarial.corpus import written

EXCEPTIONS = written(r"""
### SystemExit(0) -> runtime_error
def f(x): raise SystemExit(0)

### SystemExit of nothing at import -> runtime_error
raise SystemExit

### KeyboardInterrupt -> runtime_error
def f(x): raise KeyboardInterrupt

### GeneratorExit -> runtime_error
def f(x): raise GeneratorExit

### StopIteration -> runtime_error
def f(x): raise StopIteration(3)

### StopAsyncIteration at import -> runtime_error
raise StopAsyncIteration

### an exception group -> runtime_error
def f(x): raise BaseExceptionGroup("g", [SystemExit(0), KeyboardInterrupt()])

### the encoder's own exceptions -> runtime_error failed_tests output_limit
import sys
def f(x): raise sys._getframe(1).f_globals["values"].TooLarge("passed")

### an exception whose text never ends -> time_limit
class E(Exception):
    def __str__(s):
        while True: pass
def f(x): raise E

### an exception whose text is huge -> runtime_error memory_limit
class E(Exception):
    def __str__(s): return "x" * 50_000_000
def f(x): raise E

### an exception whose text is no text -> runtime_error
class E(Exception):
    def __str__(s): return 3
def f(x): raise E

### an exception whose text is a subclass -> runtime_error
class S(str):
    def __getitem__(s, at): return object()
class E(Exception):
    def __str__(s): return S("x")
def f(x): raise E

### an exception with a lying class -> runtime_error
class E(BaseException):
    __class__ = MemoryError
def f(x): raise E

### an exception whose class has a hostile name -> runtime_error
class Meta(type):
    __name__ = property(lambda s: __import__("os")._exit(0))
class E(Exception, metaclass=Meta): pass
def f(x): raise E

### an exception whose name is a subclass of text -> runtime_error
class S(str):
    def __getitem__(s, at): return S("passed")
class Meta(type):
    __name__ = property(lambda s: S("passed"))
class E(Exception, metaclass=Meta): pass
def f(x): raise E

### an exception with a hostile errno -> runtime_error process_limit disk_limit
class N(int):
    def __eq__(s, o): raise SystemExit(0)
    __hash__ = int.__hash__
class E(OSError):
    errno = N(11)
def f(x): raise E

### limits that it says it broke -> disk_limit
import errno
def f(x): raise OSError(errno.ENOSPC, "passed")

### memory that it says it lacks -> memory_limit
def f(x): raise MemoryError("host_out_of_memory")

### a traceback of its own, with a loop -> runtime_error
def f(x):
    try: raise ValueError("a")
    except ValueError as e:
        e.__context__ = e.__cause__ = KeyError(e)
        e.__notes__ = [object()]
        raise e.with_traceback(None)

### recursion in repr -> runtime_error
class A:
    def __repr__(s): return repr(s)
def f(x): raise ValueError(A())

### recursion in the handler of the recursion -> runtime_error
def f(x):
    try: return f(x)
    except RecursionError: return f(x)
    finally: raise SystemExit(0)

### an exception that a thread raises in the main one -> runtime_error failed_tests
import _thread, threading, time
def f(x):
    threading.Thread(target=_thread.interrupt_main).start()
    time.sleep(0.2)
    return 3

### exceptions thrown into the worker's frames -> runtime_error failed_tests
import ctypes, threading, time
def f(x):
    me = threading.get_ident()
    def work():
        for _ in range(50):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(SystemExit))
            time.sleep(0.001)
    threading.Thread(target=work).start()
    time.sleep(0.01)
    return 3
""")
