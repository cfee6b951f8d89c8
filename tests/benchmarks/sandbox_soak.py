"""Do sandboxes leak? Thousands in a row and many at once, counted before and after.

    python -m tests.benchmarks.sandbox_soak --backend bubblewrap --in-a-row 10000 --at-once 64

Counted: live processes, control groups, mounts, containers, files of the runtime and cache folders, descriptors and
resident memory of this process. Then the supervisor is killed with signal 9 while as many run, and what survives two
seconds is counted. Exit status 1 if anything is left.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from rich.progress import track

from sandboxes.backends.choose import backend_of
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.host.registry import folder as runtime_folder
from sandboxes.images.catalog import cache_folder
from sandboxes.limits import SandboxSpec
from sandboxes.protocol import Command, SandboxProvider, SandboxRequest, Warm

MARK = b"import time; print('here', flush=True); time.sleep(float(__import__('sys').argv[1]))"


def census() -> dict[str, int]:
    """What a leak would show in."""
    groups = find_hierarchy()
    containers = subprocess.run(["docker", "ps", "-aq"], capture_output=True, text=True, check=False).stdout.split()
    folders = [runtime_folder(), cache_folder() / "snapshots"]
    return {
        "processes": _live_processes(),
        "control groups": sum(sum(1 for path in base.iterdir() if path.is_dir()) for base in _bases(groups)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "containers": len(containers),
        "files": sum(sum(1 for _ in folder.rglob("*")) for folder in folders if folder.exists()),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def _live_processes() -> int:
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
            # The kernel's own threads, children of pid 2, come and go with its work.
            found += process.status() != psutil.STATUS_ZOMBIE and 2 not in (process.pid, process.ppid())
    return found


def _bases(groups: object) -> list[Path]:
    return list(getattr(groups, "bases", {}).values())


async def one(provider: SandboxProvider, request: SandboxRequest) -> None:
    """One sandbox with one program, to its end."""
    async with await provider.create(request) as sandbox:
        result = await sandbox.exec(Command(("mark.py", "0"), warm=True))
        if result.stdout != b"here\n":
            raise AssertionError(f"a program was mis-scored: {result}")


async def soak(provider: SandboxProvider, request: SandboxRequest, in_a_row: int, at_once: int) -> bool:
    """Run them; True if nothing is left."""
    await one(provider, request)  # what is kept for the next sandbox is there from now on
    await asyncio.gather(*(one(provider, request) for _ in range(4)))
    me, before = psutil.Process(), census()
    memory = [me.memory_info().rss]
    for number in track(range(in_a_row), description="in a row", disable=not sys.stderr.isatty()):
        await one(provider, request)
        if number % max(1, in_a_row // 10) == 0:
            memory.append(me.memory_info().rss)
    for _ in range(3):
        await asyncio.gather(*(one(provider, request) for _ in range(at_once)))
    memory.append(me.memory_info().rss)
    await asyncio.sleep(1.0)
    after = census()
    for what, count in before.items():
        print(f"{what:16} before {count:6}  after {after[what]:6}")
    print("resident MiB of the supervisor:", " ".join(f"{size / 2**20:.0f}" for size in memory))
    return all(after[what] <= count for what, count in before.items())


def killed(backend: str, at_once: int) -> bool:
    """Kill a supervisor with that many running; True if nothing survives two seconds."""
    before = census()
    argv = [sys.executable, "-m", "tests.benchmarks.sandbox_soak", "--backend", backend, "--hold", str(at_once)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"all run\n"
        during = census()
        supervisor.kill()
        supervisor.wait()
        began = time.monotonic()
        while (alive := census()["processes"]) > before["processes"] and time.monotonic() - began < 2.0:
            time.sleep(0.02)
    took = time.monotonic() - began
    more = during["processes"] - before["processes"]
    print(f"kill -9 of a supervisor with {at_once} sandboxes ({more} processes): ", end="")
    print(f"{max(0, alive - before['processes'])} left after {took:.2f} s")
    return alive <= before["processes"]


async def hold(provider: SandboxProvider, request: SandboxRequest, at_once: int) -> None:
    """Keep that many running, until we are killed."""

    async def run() -> None:
        sandbox = await provider.create(request)
        await sandbox.start(Command(("mark.py", "600"), warm=True))
        await sandbox.start(Command(("sleep", "600")))

    await asyncio.gather(*(run() for _ in range(at_once)))
    await asyncio.sleep(1.0)
    print("all run", flush=True)
    await asyncio.sleep(600)


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="bubblewrap")
    parser.add_argument("--image", default=None)
    parser.add_argument("--in-a-row", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--hold", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    image = asked.image or ("base" if asked.backend in ("docker", "gvisor") else "host")
    provider = backend_of(SandboxSpec(backend=asked.backend, image=image))
    request = SandboxRequest(image=image, warm=Warm(files=(("mark.py", MARK),)), owner="soak")
    if asked.hold:
        asyncio.run(hold(provider, request, asked.hold))
    began = time.monotonic()
    clean = asyncio.run(soak(provider, request, asked.in_a_row, asked.at_once))
    print(f"{asked.in_a_row} in a row and 3 x {asked.at_once} at once: {time.monotonic() - began:.0f} s")
    clean &= killed(asked.backend, asked.at_once)
    raise SystemExit(0 if clean else 1)


if __name__ == "__main__":
    main()
