"""Starts one program inside the sandbox, in a fork of the waiting interpreter. It never knows what must be printed.

    launch.py python3 FILE ARGUMENT...    runs FILE in this process, as `python3 FILE` would
    launch.py PROGRAM ARGUMENT...         becomes PROGRAM; `./NAME` is copied from the job folder first

Python that cannot be compiled is told on the channel, which is closed before any of its code runs. Stand-alone:
standard library only, and little of it.
"""

import builtins
import ctypes
import os
import resource
import signal
import sys
import types

import streams  # ty: ignore[import-not-found] - warmed up together with this file

CHANNEL = 3
STACK = 64 << 20  # bytes: deep recursion is honest, and what it takes counts as memory
BELOW = 24  # levels of recursion that may be ours, in any back-end


def tell(body):
    """Write one frame."""
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(CHANNEL, data) :]


def leave(status):
    """End the interpreter as it ends by itself: threads, exit handlers, destructors, buffers."""
    ctypes.pythonapi.Py_Exit(status & 0xFF)


def run_python(path, arguments):
    """Run a Python file as the main module, to the end of the process."""
    streams.renew()
    for name in ("guest", "guest_streams", "site_packages", "streams"):
        sys.modules.pop(name, None)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__file__=path, __cached__=None, __builtins__=builtins, __annotations__={})
    with open(path, "rb") as file:
        source = file.read()
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:  # the last: nested too deep
        tell(f"{type(error).__name__}: {error}".removesuffix(": ").encode("utf-8", "backslashreplace")[:4000])
        sys.excepthook(type(error), error, None)
        return leave(1)
    os.close(CHANNEL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setrecursionlimit(sys.getrecursionlimit() + BELOW)
    status = 0
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    except BaseException as error:  # noqa: BLE001 - whatever the program raised
        below = error.__traceback__ and error.__traceback__.tb_next  # without this function
        sys.excepthook(type(error), error.with_traceback(below), below)
        status = 1
    del main  # what only the program holds must be destroyed at the end
    leave(status)


def become(argv):
    """Run a program in this process's place. Never returns."""
    try:
        if argv[0].startswith("./"):
            with open(os.path.join(os.path.dirname(sys.argv[0]), argv[0]), "rb") as file, open(argv[0], "xb") as copy:
                copy.write(file.read())
            os.chmod(argv[0], 0o755)
            hardest = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (STACK if hardest < 0 else min(STACK, hardest), hardest))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which an interpreter ignores
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if sys.argv[1] == "python3":
    run_python(sys.argv[2], sys.argv[3:])
become(sys.argv[1:])
