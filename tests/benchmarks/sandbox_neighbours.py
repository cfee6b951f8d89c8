# ruff: noqa: E501 - programs of one line
"""Do a fork bomb, a memory hog and a disk filler slow or change the programs beside them? And how fast is a clone?

    python -m tests.benchmarks.sandbox_neighbours

Eight programs of known answer run at once, alone and then beside the three, five times each, in turns. Exit status 1
if an answer changes or the median time grows by a third or more. Then a workspace of 10,000 files is cloned.
"""

import asyncio
import statistics
import sys
import time

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import Command, SandboxRequest

WORK = "total = 0\nfor i in range(6_000_000): total += i * i % 7\nprint(total)"
ANSWER = str(sum(i * i % 7 for i in range(6_000_000)))
HOGS = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "process_limit"),
    "memory hog": ("held = []\nwhile True: held.append(bytearray(1 << 20))", "memory_limit"),
    "disk filler": ("n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1", "disk_limit"),
}
LIMITS = Limits(wall_time_s=60, cpu_time_s=60)
FILES = 10_000


async def program(provider: Bubblewrap) -> float:
    """One honest program, in a sandbox of its own; its seconds."""
    async with await provider.create(SandboxRequest(limits=LIMITS)) as sandbox:
        result = await sandbox.exec(Command(("python3", "-S", "-c", WORK)))
    if result.stdout.decode().strip() != ANSWER or result.exit_code != 0:
        raise SystemExit(f"a neighbour changed a program's result: {result}")
    return result.wall_s


async def hog(provider: Bubblewrap, source: str, breach: str) -> None:
    """One bad neighbour, to the end its limits make it."""
    async with await provider.create(SandboxRequest(limits=LIMITS)) as sandbox:
        result = await sandbox.exec(Command(("python3", "-S", "-c", source)))
    if result.breach != breach:
        raise SystemExit(f"expected {breach}: {result}")


async def beside(provider: Bubblewrap, hogs: bool) -> float:
    """The median seconds of eight programs at once."""
    bad = [hog(provider, *how) for how in HOGS.values()] if hogs else []
    done = await asyncio.gather(*(program(provider) for _ in range(8)), *bad)
    return statistics.median(seconds for seconds in done if seconds is not None)


async def clones(provider: Bubblewrap) -> list[float]:
    """Seconds to have a prepared workspace of many files ready, the first time and then again."""
    limits = Limits(disk_mib=256, inodes=4 * FILES, wall_time_s=60, cpu_time_s=60)
    make = f"import os\nfor i in range({FILES}):\n    os.makedirs(f'd{{i % 100}}', exist_ok=True)\n    open(f'd{{i % 100}}/{{i}}', 'w').write('x' * 500)"
    async with await provider.create(SandboxRequest(limits=limits)) as sandbox:
        await sandbox.exec(Command(("python3", "-S", "-c", make)))
        snapshot = await sandbox.snapshot()
    took = []
    for _ in range(11):
        began = time.perf_counter()
        async with await provider.create(SandboxRequest(limits=limits, snapshot=snapshot)) as sandbox:
            took.append(time.perf_counter() - began)
            count = await sandbox.exec(Command(("sh", "-c", "find . -type f | wc -l")))
            if int(count.stdout) != FILES:
                raise SystemExit(f"a clone is not whole: {count}")
    return took


async def main() -> int:
    """See the top of the file."""
    provider = Bubblewrap()
    await beside(provider, False)
    alone, crowded = [], []
    for _ in range(5):
        alone.append(await beside(provider, False))
        crowded.append(await beside(provider, True))
    ratio = statistics.median(crowded) / statistics.median(alone)
    print(f"eight programs alone: median {statistics.median(alone):.2f} s, beside the three: "
          f"{statistics.median(crowded):.2f} s, ratio {ratio:.2f}; answers and breaches as they should be")  # fmt: skip
    first, *again = await clones(provider)
    print(f"clone of {FILES} files: first {first * 1e3:.0f} ms (unpacks it), then p50 {statistics.median(again) * 1e3:.1f} ms, "
          f"most {max(again) * 1e3:.1f} ms")  # fmt: skip
    return int(ratio >= 4 / 3 or statistics.median(again) >= 0.1)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
