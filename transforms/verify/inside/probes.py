"""What runs inside the sandbox to look at a program that is right already: which lines run, what a further call costs.

It is called as the submitted function is, in a fresh process each time, and brings the program along as an argument.
Everything it reports after the program has started comes from the program's own process, which may lie. Stand-alone:
its source follows that of `values.py`, whose `decode` and `encode` it uses, in one module.
"""

import contextlib
import sys
import threading
import types

PROGRAM = "<solution>"
decode, encode = vars().get("decode", tuple), vars().get("encode", bytes)  # of values.py, before this text
KEPT = 8  # different answers to one call that are told, the newest among them


def lines_run(prefix, program, entry_point, call):
    """Numbers of the program's lines that one call runs, loading it included; without a call, of all that can run."""
    code = compile(program, PROGRAM, "exec", dont_inherit=True)
    if call is None:
        return sorted(set().union(*(lines_of(each) for each in codes_of(code))))
    hit = set()
    left = {}  # code object -> its lines that did not run yet: a loop that is all known runs at full speed

    def enter(frame, event, arg):
        if frame.f_code.co_filename != PROGRAM:
            return None
        missing = left.setdefault(frame.f_code, lines_of(frame.f_code))
        hit.add(frame.f_code.co_firstlineno)  # no `line` event tells of it
        missing.discard(frame.f_code.co_firstlineno)
        frame.f_trace_lines = bool(missing)

        def step(frame, event, arg):
            if event == "line":
                hit.add(frame.f_lineno)
                missing.discard(frame.f_lineno)
                frame.f_trace_lines = bool(missing)
            return step

        return step

    threading.settrace(enter)
    with contextlib.suppress(BaseException):  # what a call raises undoes none of the lines it ran
        load(prefix, code, enter, entry_point, call)
    sys.settrace(None)
    return sorted(hit)


def called(prefix, program, entry_point, calls, times):
    """Load a program and call its function so many times, with the calls in turn.

    Returns the different answers to each, encoded: few of a right program, so that they take the same room for any
    number of times.
    """
    module = module_of(prefix, compile(program, PROGRAM, "exec", dont_inherit=True))
    found = [[] for _ in calls]
    for number in range(times):
        args, kwargs = decode(calls[number % len(calls)])
        answer = encode(getattr(module, entry_point)(*args, **kwargs))
        answers = found[number % len(calls)]
        if answer not in answers:
            answers[KEPT - 1 :] = []
            answers.append(answer)
    return found


def load(prefix, code, tracer, entry_point, call):
    """Run a program and one call of it under a tracer."""
    args, kwargs = decode(call)
    sys.settrace(tracer)
    getattr(module_of(prefix, code), entry_point)(*args, **kwargs)


def module_of(prefix, code):
    """The program as a module, as the worker makes it."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(prefix, "<prefix>", "exec", dont_inherit=True), module.__dict__)
    exec(code, module.__dict__)
    return module


def codes_of(code):
    """A code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def lines_of(code):
    """Numbers of the lines that a code object has instructions for."""
    return {line for _, _, line in code.co_lines() if line}
