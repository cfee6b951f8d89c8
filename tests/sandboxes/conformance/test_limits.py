"""Every limit has a breach of its own, told from a crash by what the host counted."""

import asyncio
import time

import pytest

from sandboxes.limits import MIB
from sandboxes.protocol import Command
from tests.sandboxes.conformance.backends import LIMITS, Backend, python, sh, text

HOG = "held = []\nwhile True: held.append(b'x' * (1 << 20))"
FORKS = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(60)"


async def test_sleeping_past_the_wall_time_is_the_time_limit(backend: Backend):
    limits = LIMITS.model_copy(update={"wall_time_s": 0.4})
    async with backend.open(limits) as sandbox:
        began = time.monotonic()
        result = await sh(sandbox, "echo before; sleep 60; echo after")
        took = time.monotonic() - began
    assert (result.breach, result.signal, result.exit_code, result.stdout) == ("time_limit", 9, None, b"before\n")
    assert 0.4 <= result.wall_s <= took < 1.5
    assert result.cpu_s < 0.3


async def test_ignoring_every_signal_does_not_help(backend: Backend):
    source = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
time.sleep(60)
"""
    async with backend.open() as sandbox:
        result = await python(sandbox, source, wall_time_s=0.4)
        assert (result.breach, result.signal) == ("time_limit", 9)
        assert result.wall_s < 1.5
        assert "python3" not in await text(sandbox, "cat /proc/[0-9]*/task/*/comm | grep -c python3 || true; ls")


async def test_spinning_past_the_cpu_time_is_the_time_limit(backend: Backend):
    result = await backend.run("while True: pass", cpu_time_s=0.3)
    assert (result.breach, result.signal) == ("time_limit", 9)
    assert 0.3 <= result.cpu_s < 1.0
    assert result.wall_s < 5


async def test_processes_spend_one_cpu_time_together(backend: Backend):
    """Four at a fifth of a second each: none is past the limit of half a second."""
    source = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        while time.process_time() < 0.2: pass
        time.sleep(60)
time.sleep(60)
"""
    result = await backend.run(source, cpu_time_s=0.5)
    assert result.breach == "time_limit"
    assert 0.5 <= result.cpu_s < 1.0


async def test_cpu_time_of_ended_children_counts(backend: Backend):
    source = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.05: pass
        os._exit(0)
    os.wait()
"""
    result = await backend.run(source, cpu_time_s=0.4)
    assert result.breach == "time_limit"
    assert 0.4 <= result.cpu_s < 1.2


async def test_memory_past_the_limit_is_the_memory_limit(backend: Backend):
    async with backend.open() as sandbox:
        result = await python(sandbox, HOG)
        assert result.breach == "memory_limit"
        assert result.wall_s < 5
    usage = await sandbox.destroy()
    assert usage.breach == "memory_limit"
    assert usage.peak_memory_bytes > 90 * MIB


async def test_small_processes_share_one_memory_limit(backend: Backend):
    """Sixteen at 12 MiB each: none is past the limit of 128."""
    source = """
import os, time
for _ in range(15):
    if os.fork() == 0: break
held = os.urandom(12 << 20)
time.sleep(60)
"""
    assert (await backend.run(source)).breach == "memory_limit"


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp"])
async def test_files_in_memory_are_memory(backend: Backend, place: str):
    limits = LIMITS.model_copy(update={"disk_mib": 512, "file_mib": 512, "memory_mib": 64})
    source = f"file = open('{place}/held', 'wb')\nwhile True: file.write(bytes(1 << 20)); file.flush()"
    assert (await backend.run(source, limits=limits)).breach == "memory_limit"


async def test_files_without_a_name_are_memory(backend: Backend):
    source = """
import os, time
files = [os.memfd_create(str(n)) for n in range(40)]
for fd in files: os.write(fd, bytes(4 << 20))
time.sleep(60)
"""
    assert (await backend.run(source)).breach == "memory_limit"


async def test_page_cache_alone_is_no_breach(backend: Backend):
    """Reads 150 MB of the system's own files with 48 MiB of memory, and writes 140 MiB in pieces it removes."""
    limits = LIMITS.model_copy(update={"memory_mib": 48, "disk_mib": 16})
    source = """
import os
left = 150_000_000
for top, _, names in os.walk("/usr"):
    for name in names:
        path = os.path.join(top, name)
        if left > 0 and os.path.isfile(path) and os.access(path, os.R_OK):
            with open(path, "rb") as file:
                while piece := file.read(1 << 16): left -= len(piece)
for n in range(20):
    with open("piece", "wb") as file: file.write(bytes(7 << 20))
    os.unlink("piece")
print(left < 0)
"""
    result = await backend.run(source, limits=limits)
    assert (result.exit_code, result.breach, result.stdout) == (0, None, b"True\n")


@pytest.mark.parametrize(
    "source", [FORKS, "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"],
    ids=["forks", "threads"],
)  # fmt: skip
async def test_a_bomb_is_the_process_limit(backend: Backend, source: str):
    async with backend.open(LIMITS.model_copy(update={"memory_mib": 512})) as sandbox:
        result = await python(sandbox, source, wall_time_s=3)
        assert result.breach == "process_limit"
        after = await sh(sandbox, "true | true | true")
        assert after.exit_code == 0 or outrun(backend, after.breach)


def outrun(backend: Backend, breach: str | None) -> bool:
    """A bomb that forks faster than a guest can count ends the kernel inside: each later command tells of it."""
    return backend.guest_kernel and breach == "process_limit"


async def test_eight_threads_fit_into_192_mebibytes(backend: Backend):
    source = """
import concurrent.futures, time
with concurrent.futures.ThreadPoolExecutor(8) as pool: list(pool.map(time.sleep, [0.1] * 8))
"""
    async with backend.open(LIMITS.model_copy(update={"memory_mib": 192})) as sandbox:
        # Without a control group memory is address space, of which the C library takes 64 MiB for each thread that may.
        result = await python(sandbox, source, env={"MALLOC_ARENA_MAX": "1"})
    assert (result.exit_code, result.breach) == (0, None)


async def test_processes_up_to_the_limit_are_allowed(backend: Backend):
    source = """
import os, time
for _ in range(18):
    if os.fork() == 0: time.sleep(0.3); os._exit(0)
for _ in range(18): os.wait()
"""
    result = await backend.run(source)
    assert (result.exit_code, result.breach) == (0, None)


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >f$i; done",
        "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >$TMPDIR/f$i; done",
        "for i in 1 2 3; do head -c 1000000 /dev/zero >f$i; head -c 1000000 /dev/zero >$TMPDIR/f$i; done",
        "for i in 1 2 3; do head -c 1000000 /dev/zero >f$i; head -c 1000000 /dev/zero >/dev/shm/f$i; done",
    ],
    ids=["work", "tmp", "work-and-tmp", "work-and-shm"],
)
async def test_writable_folders_have_one_size_together(backend: Backend, script: str):
    limits = LIMITS.model_copy(update={"disk_mib": 4})
    async with backend.open(limits) as sandbox:
        assert (await sh(sandbox, script)).breach == "disk_limit"
    assert (await sandbox.destroy()).breach == "disk_limit"


async def test_too_many_files_are_the_disk_limit(backend: Backend):
    limits = LIMITS.model_copy(update={"inodes": 200})
    result = await backend.run("for n in range(400): open(str(n), 'w').close()", limits=limits)
    assert result.breach == "disk_limit"


@pytest.mark.parametrize(
    "script", ["exec head -c 3000000 /dev/zero >big", "exec truncate -s 1T hole"], ids=["bytes", "hole"]
)
async def test_one_file_past_its_size_is_the_disk_limit(backend: Backend, script: str):
    limits = LIMITS.model_copy(update={"file_mib": 2})
    async with backend.open(limits) as sandbox:
        assert (await sh(sandbox, script)).breach == "disk_limit"
        assert int(await text(sandbox, "cat * | wc -c")) <= 2 * MIB


async def test_a_file_past_its_size_is_told_although_the_signal_is_ignored(backend: Backend):
    """Python ignores SIGXFSZ: the program sees an OSError, and the file is no longer than it may be."""
    limits = LIMITS.model_copy(update={"file_mib": 2})
    async with backend.open(limits) as sandbox:
        result = await python(sandbox, "open('big', 'wb').write(bytes(3 << 20))")
        assert int(await text(sandbox, "cat big | wc -c")) <= 2 * MIB
        assert result.breach == "disk_limit"


async def test_a_crash_is_no_breach(backend: Backend):
    """What looks like a broken limit from inside and is none."""
    async with backend.open() as sandbox:
        for script in ("kill -9 $$", "kill -XCPU $PPID; exit 137", "echo Killed >&2; exit 152", "exit 1"):
            assert (await sh(sandbox, script)).breach is None, script
        result = await python(sandbox, "raise MemoryError")
        assert (result.exit_code, result.breach) == (1, None)


@pytest.mark.parametrize(
    ("breach", "source"),
    [
        ("time_limit", "import time; time.sleep(60)"),
        ("memory_limit", HOG),
        ("process_limit", FORKS),
        ("output_limit", "while True: print('x' * 9999)"),
    ],
    ids=["time", "memory", "processes", "output"],
)
async def test_the_sandbox_can_be_used_after_a_breach(backend: Backend, breach: str, source: str):
    memory_mib = 1024 if breach == "process_limit" else 128  # a kernel inside has needs of its own for a bomb
    async with backend.open(LIMITS.model_copy(update={"memory_mib": memory_mib})) as sandbox:
        assert (await python(sandbox, source, wall_time_s=None if breach != "time_limit" else 0.3)).breach == breach
        for _ in range(2):
            result = await sh(sandbox, "echo again | cat")
            assert outrun(backend, result.breach) or (result.exit_code, result.breach, result.stdout) == (
                0,
                None,
                b"again\n",
            )
    assert (await sandbox.destroy()).breach == breach


async def test_a_limit_broken_between_commands_is_in_the_usage(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, f'(sleep 0.2; exec python3 -c "{HOG}") >/dev/null 2>&1 &')
        await asyncio.sleep(1)
    assert (await sandbox.destroy()).breach == "memory_limit"


async def test_a_breach_ends_what_runs_beside(backend: Backend):
    async with backend.open() as sandbox, await sandbox.start(Command(("sleep", "60"))) as beside:
        assert (await python(sandbox, "while True: print('x' * 9999)")).breach == "output_limit"
        assert (await beside.wait()).signal == 9


async def test_what_was_used_is_told_as_it_was(backend: Backend):
    """Holds 40 MiB, computes for 0.3 s, sleeps for 0.3 s: all worked out beforehand."""
    source = """
import os, time
held = os.urandom(40 << 20)
start = time.process_time()
while time.process_time() - start < 0.3: pass
time.sleep(0.3)
"""
    async with backend.open() as sandbox:
        result = await python(sandbox, source)
        assert 0.3 <= result.cpu_s < 0.9
        assert 0.6 <= result.wall_s < 2.5
    usage = await sandbox.destroy()
    assert 40 * MIB <= usage.peak_memory_bytes < 100 * MIB
    assert usage.cpu_s >= result.cpu_s
    assert usage.wall_s >= result.wall_s
    assert usage.breach is None


async def test_a_sandbox_that_did_nothing_used_little(backend: Backend):
    async with backend.open() as sandbox:
        pass
    usage = await sandbox.destroy()
    assert usage.cpu_s < 0.5
    assert usage.peak_memory_bytes < 64 * MIB
    assert (usage.breach, usage.stdout, usage.stderr, usage.connections) == (None, b"", b"", ())


async def test_neighbours_do_not_notice(backend: Backend):
    """A fork bomb, a memory hog and a disk filler beside three honest programs."""
    limits = LIMITS.model_copy(update={"disk_mib": 4})
    honest = "import hashlib, time; h = b''\nfor _ in range(20): h = hashlib.sha256(h + open('in', 'rb').read()).digest(); time.sleep(.02)\nprint(h.hex())"  # noqa: E501
    filler = "while True:\n try: open('full', 'ab').write(bytes(1 << 16))\n except OSError: pass"

    async def calm() -> tuple[int | None, str | None, bytes]:
        async with backend.open(limits) as sandbox:
            await sh(sandbox, "head -c 100000 /dev/zero >in")
            result = await python(sandbox, honest)
            return result.exit_code, result.breach, result.stdout

    alone = await calm()
    attacks = asyncio.gather(*(backend.run(s, limits=limits, wall_time_s=1) for s in (FORKS, HOG, filler)))
    assert await asyncio.gather(calm(), calm(), calm()) == [alone] * 3
    assert alone[:2] == (0, None)
    assert all(result.exit_code != 0 for result in await attacks)
