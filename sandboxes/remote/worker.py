"""A machine's sandboxes for others: run this where programs shall run, and give its address to `Remote`.

    python -m sandboxes.remote.worker --listen unix:/run/headrace/worker.sock
    python -m sandboxes.remote.worker --listen 10.0.0.5:7070 --token-file /etc/headrace/token

It prints `ready ADDRESS` when it serves; before that it makes one sandbox, to see that the back-end works (not with
docker and gvisor, which have no image that is always there). SIGTERM, and Ctrl-C, drain it: it makes no more sandboxes,
and ends when the last is gone or after `--grace` seconds. When a client goes away, all that was made for it is
destroyed at once; when the worker is killed, its sandboxes die with it.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil

from sandboxes.backends.choose import backend_of
from sandboxes.images.catalog import cache_folder
from sandboxes.limits import MIB, SandboxSpec
from sandboxes.protocol import SandboxError, SandboxRequest
from sandboxes.remote.serving import Client, Listening, Worker
from sandboxes.remote.wire import parse_address
from sandboxes.scheduling.tickets import Capacity


def measure_capacity() -> Capacity:
    """What this machine has: cores that we may use, memory (a container's if that is less), free disk, NVIDIA GPUs."""
    memory = psutil.virtual_memory().total
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit; v2 says max
            memory = min(memory, int(Path(name).read_text()))
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    gpus = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    disk = shutil.disk_usage(folder).free
    return Capacity(len(os.sched_getaffinity(0)), memory // MIB, disk // MIB, len(gpus))


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket, and its address with the port that it got. Raises OSError."""
    where = parse_address(address)
    if not isinstance(where, str):
        family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(where, family=family, backlog=128)
        return listener, f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
    if os.path.exists(where) and stat.S_ISSOCK(os.stat(where).st_mode):
        with socket.socket(socket.AF_UNIX) as knock:  # of a worker that was killed, unless one answers
            try:
                knock.connect(where)
            except ConnectionRefusedError:
                os.unlink(where)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(where)
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener, address


async def serve(listening: Listening, listener: socket.socket, *, grace_s: float, tried: bool) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises SandboxError if the back-end is tried and does not work."""
    loop, told_to_end = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_end.set)
    if tried:
        async with await listening.provider.create(SandboxRequest(owner="worker")):
            pass
    worker = Worker(listening)
    server = await loop.create_server(lambda: Client(worker), sock=listener)
    sys.stdout.write(f"ready {listening.address}\n")
    sys.stdout.flush()
    await told_to_end.wait()
    server.close()
    await worker.drain(grace_s)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sandboxes.remote.worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="ADDRESS",
        help="unix:PATH, a socket that only this user may open; or HOST:PORT, with port 0 for a free one. The traffic "
        "is not encrypted: between machines use a private network or a tunnel",
    )
    parser.add_argument(
        "--backend",
        default="bubblewrap",
        choices=["bubblewrap", "docker", "gvisor", "subprocess"],
        help="what the sandboxes are made of (default: bubblewrap)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a secret that clients must know, needed with HOST:PORT. Make one with `openssl rand -hex 32 >FILE`; "
        "spaces and line ends around it do not count",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a draining worker waits for its sandboxes before it destroys them (default: 60)",
    )
    options = parser.parse_args()
    try:
        token = options.token_file.read_text().strip() if options.token_file else ""
    except (OSError, ValueError) as error:
        parser.error(f"--token-file: {error}")
    if not token and (options.token_file or not options.listen.startswith("unix:")):
        parser.error("--token-file: HOST:PORT needs one, and a token in it")
    try:
        listener, address = listen(options.listen)
    except (OSError, ValueError) as error:
        parser.error(f"--listen {options.listen}: {error}")
    provider = backend_of(SandboxSpec(backend=options.backend))
    listening = Listening(address, token, provider, measure_capacity())
    try:
        tried = options.backend in ("bubblewrap", "subprocess")
        asyncio.run(serve(listening, listener, grace_s=options.grace, tried=tried))
    except SandboxError as error:
        sys.exit(f"the back-end {options.backend} does not work here: {error}")
    finally:
        if address.startswith("unix:"):
            os.unlink(address.removeprefix("unix:"))


if __name__ == "__main__":
    main()
