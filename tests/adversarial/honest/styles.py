# ruff: noqa: RUF001 - letters that only look alike are part of the matter
"""Honest but odd programs for the kind `call`: styles of the language. Every `f(x)` returns x + 1, and must be paid."""

from tests.adversarial.corpus import written

STYLES = written(r'''
### a decorator with wraps
import functools
def twice(g):
    @functools.wraps(g)
    def inner(*a, **k): return g(*a, **k)
    return inner
@twice
@functools.lru_cache(maxsize=None)
def f(x): return x + 1

### a decorator that is a class
class Traced:
    def __init__(self, g): self.g = g; self.calls = 0
    def __call__(self, *a): self.calls += 1; return self.g(*a)
@Traced
def f(x): return x + 1

### a lambda
f = lambda x: x + 1

### an instance that can be called
class F:
    __slots__ = ()
    def __call__(self, x): return x + 1
f = F()

### a partial
from functools import partial
from operator import add
f = partial(add, 1)

### a method of an instance
class Solution:
    def solve(self, x): return x + 1
f = Solution().solve

### a class method and a static method
class Solution:
    @classmethod
    def a(cls, x): return x
    @staticmethod
    def b(x): return Solution.a(x) + 1
f = Solution.b

### something of the standard library
from operator import index as g
from math import gcd, prod
def f(x): return g(prod([x + 1, gcd(3, 2)]))

### a class whose instances are numbers
def f(x): return int(N(x) + N(1))
class N:
    def __init__(self, v): self.v = v
    def __add__(self, o): return N(self.v + o.v)
    def __int__(self): return self.v

### defined in a branch
import sys
if sys.version_info >= (3,):
    try: import nothing_of_this_name
    except ImportError:
        def f(x): return x + 1

### defined twice
def f(x): return 0
def f(x): return x + 1

### defined by exec
exec("def f(x):\n    return x + 1")

### any arguments
def f(*args, **kwargs): return sum(args) + 1 + len(kwargs)

### default arguments, keyword-only and positional-only
def f(x, /, *, y=1, z=None): return x + y

### a default that remembers
def f(x, memo={}):
    if x not in memo: memo[x] = x + 1
    return memo[x]

### a global counter
count = 0
def f(x):
    global count
    count += 1
    return x + count

### closures
def make():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
def f(x): return x + make()()

### names of builtins taken
sum = list = max = input = print = type = len = str = object = Exception = None
def f(x): return x + 1

### builtins changed for good
import builtins
builtins.print = builtins.open = lambda *a, **k: None
def f(x):
    print("nothing")
    return x + 1

### star imports
from math import *
from itertools import *
from collections import *
def f(x): return floor(x) + next(count(1))

### annotations from the future
from __future__ import annotations
def f(x: NoSuchName[int]) -> Undefined | None: return x + 1

### generics, protocols and overloads
from typing import Generic, Protocol, TypeVar, overload, runtime_checkable
T = TypeVar("T")
@runtime_checkable
class Adds(Protocol):
    def add(self, x: int) -> int: ...
class Box(Generic[T]):
    def __init__(self, v: T): self.v = v
    def add(self, x): return self.v + x
@overload
def f(x: int) -> int: ...
def f(x): return Box[int](1).add(x) if isinstance(Box(1), Adds) else 0

### dataclasses with order and slots
from dataclasses import dataclass, field, replace, asdict
@dataclass(order=True, frozen=True, slots=True)
class P:
    v: int
    rest: list = field(default_factory=list, compare=False)
def f(x): return asdict(replace(max(P(0), P(x)), v=x + 1))["v"]

### named tuples and enums inside
from enum import Enum, auto
from typing import NamedTuple
class Step(Enum):
    ONE = auto()
class P(NamedTuple):
    a: int
    b: int = 1
def f(x): return P(x).a + Step.ONE.value

### an abstract class and a metaclass
from abc import ABC, ABCMeta, abstractmethod
class Meta(ABCMeta):
    def __new__(m, name, bases, d): return super().__new__(m, name, bases, d | {"one": 1})
class A(ABC, metaclass=Meta):
    @abstractmethod
    def add(self, x): ...
class B(A):
    def add(self, x): return x + self.one
def f(x): return B().add(x)

### properties, descriptors and slots
class One:
    def __get__(self, o, t): return 1
class A:
    __slots__ = ("x",)
    one = One()
    @property
    def next(self): return self.x + self.one
def f(x):
    a = A(); a.x = x
    return a.next

### match and walrus
def f(x):
    match [x, {"k": (y := 1)}]:
        case [int(n), {"k": k}] if k == y: return n + k
        case _: return None

### a context manager that swallows
from contextlib import ExitStack, contextmanager, suppress
@contextmanager
def quiet():
    try: yield 1
    except ValueError: pass
def f(x):
    with quiet() as n, ExitStack() as stack, suppress(KeyError):
        stack.callback(print, "left")
        x += n
        raise ValueError
    return x

### exceptions for control flow
class Done(Exception): pass
def f(x):
    try:
        for i in range(10**9):
            if i > x: raise Done(i)
    except Done as done: return done.args[0]
    finally: print("done")

### a bare except around everything
def f(x):
    try: return int("x")
    except: return x + 1

### a class of its own for every error
def f(x):
    try: raise type("E", (KeyboardInterrupt,), {})
    except BaseException: pass
    return x + 1

### a generator driven by hand
def g():
    v = 0
    while True: v = yield v + 1
def f(x):
    it = g(); next(it)
    return it.send(x)

### asyncio
import asyncio
async def step(x):
    await asyncio.sleep(0.001)
    return x
async def main(x):
    async with asyncio.TaskGroup() as group: tasks = [group.create_task(step(v)) for v in (x, 1)]
    return sum(task.result() for task in tasks)
def f(x): return asyncio.run(main(x))

### an asynchronous entry point run by a synchronous one
import asyncio
async def f(x): return x + 1
run, f = f, lambda x: asyncio.new_event_loop().run_until_complete(run(x))

### warnings and logging
import logging, warnings
logging.basicConfig(level=logging.DEBUG)
def f(x):
    warnings.warn("careful"); logging.error("x is %s", x)
    return x + 1

### a main guard with input
def f(x): return x + 1
def main():
    n = int(input())
    print(f(n))
if __name__ == "__main__": main()

### a main guard that exits
import sys
def f(x): return x + 1
if __name__ == "__main__": sys.exit(f(0))

### semicolons and backslashes
def f(x): y = x; y += \
    1; return y

### names that are not ASCII
def größe(ｘ, 数): return ｘ + 数
f = lambda ﬁ: größe(ﬁ, 1)

### a documentation test
def f(x):
    """Add.

    >>> f(1)
    3
    """
    return x + 1
import doctest
doctest.testmod()

### its own source
import inspect, sys
def f(x):
    try: inspect.getsource(f)
    except (OSError, TypeError): pass
    return x + len([sys.modules[f.__module__]])

### deep recursion
import sys
sys.setrecursionlimit(10**6)
def g(n): return 0 if n == 0 else 1 + g(n - 1)
def f(x): return x + g(20_000) - 19_999

### deep recursion in a thread of large stack
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(64 * 1024 * 1024)
def g(n): return 0 if n == 0 else 1 + g(n - 1)
def f(x):
    out = []
    t = threading.Thread(target=lambda: out.append(x + g(20_000) - 19_999)); t.start(); t.join()
    return out[0]

### mutual recursion caught
def g(x): return g(x)
def f(x):
    try: g(x)
    except RecursionError: return x + 1

### a pickle and a copy of its own class
import copy, pickle
class P:
    def __init__(self, v): self.v = v
def f(x): return pickle.loads(pickle.dumps(copy.deepcopy(P(x)))).v + 1

### integers past the limit of text
import sys
def f(x):
    sys.set_int_max_str_digits(0)
    return x + len(str(10 ** 5000)) - 5000

### a coding cookie that nobody knows
# -*- coding: no-such-coding -*-
def f(x): return x + 1
''')
