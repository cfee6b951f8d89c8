"""Thread pools of a process. A fork has none of its parent's threads, so it must not find their pools either."""

import os
from concurrent.futures import ThreadPoolExecutor

_pools: dict[tuple[int, str], ThreadPoolExecutor] = {}


def threads(name: str, most: int) -> ThreadPoolExecutor:
    """This process's pool of a name; made at the first call, at most so many threads. Lives as long as the process."""
    key = os.getpid(), name
    # Of two threads that come first at once both get the same: a pool that is dropped ends its threads.
    return _pools.get(key) or _pools.setdefault(key, ThreadPoolExecutor(most, thread_name_prefix=name))
