"""What the host failed at is an error with evidence, never a result; what a program did is never an error."""

import asyncio
import os
import pickle
import re
import signal
import time
from pathlib import Path

import pytest

from sandboxes.host.cgroup import find_hierarchy
from sandboxes.protocol import Command, ProvisionFailed, Sandbox, SandboxLost, SandboxRequest
from tests.sandboxes.conformance.backends import LIMITS, Backend, ask, host_pids, parent, python, sh

needs_to_see_programs = "the host cannot tell one program of this kernel from another"


async def program_and_guest(sandbox: Sandbox) -> tuple[int, int]:
    """The host's numbers of a program that sleeps, and of the process that started it."""
    mark = f"9{time.monotonic_ns() % 10**6:06d}"
    await sh(sandbox, f"sleep {mark} >/dev/null 2>&1 & exec true")
    for _ in range(200):
        for pid in host_pids(f"sleep\0{mark}"):
            return pid, parent(pid)
        await asyncio.sleep(0.01)
    raise AssertionError("no such process")


@pytest.mark.parametrize("during", ["exec", "talk", "idle"])
async def test_a_guest_killed_from_outside_is_the_hosts_failure(backend: Backend, during: str):
    if backend.guest_kernel:
        pytest.skip(needs_to_see_programs)
    sandbox = await backend.provider.create(SandboxRequest(image=backend.image, limits=LIMITS))
    _, guest = await program_and_guest(sandbox)
    process = await sandbox.start(Command(("sleep", "30"), channel=True))
    if during == "idle":
        await process.kill()
    os.kill(guest, signal.SIGKILL)
    if during == "talk":
        assert await process.receive(timeout_s=5, max_bytes=9) is None
    if during != "idle":
        with pytest.raises(SandboxLost) as lost:
            await asyncio.wait_for(process.wait(), 5)
        assert lost.value.evidence
    await asyncio.sleep(0.1)  # the host must notice
    with pytest.raises(SandboxLost) as lost:
        await asyncio.wait_for(sandbox.destroy(), 10)
    assert lost.value.evidence


async def test_verbs_of_a_lost_sandbox_raise_and_do_not_hang(backend: Backend):
    if backend.guest_kernel:
        pytest.skip(needs_to_see_programs)
    sandbox = await backend.provider.create(SandboxRequest(image=backend.image, limits=LIMITS))
    _, guest = await program_and_guest(sandbox)
    os.kill(guest, signal.SIGKILL)
    await asyncio.sleep(0.1)
    for verb in (
        sandbox.exec(Command(("true",))),
        sandbox.get(["f"], max_bytes=9),
        sandbox.put({}),
        sandbox.snapshot(),
        sandbox.destroy(),
    ):
        with pytest.raises(SandboxLost):
            await asyncio.wait_for(verb, 5)


async def test_a_program_killed_from_outside_is_a_result(backend: Backend):
    """The kernel or an operator may kill one program; the sandbox still stands, and says what it saw."""
    if backend.guest_kernel:
        pytest.skip(needs_to_see_programs)
    async with backend.open() as sandbox:
        mark = f"9{time.monotonic_ns() % 10**6:06d}"
        async with await sandbox.start(Command(("sleep", mark))) as process:
            await asyncio.sleep(0.1)
            for pid in host_pids(f"sleep\0{mark}"):
                os.kill(pid, signal.SIGKILL)
            result = await process.wait()
        assert (result.signal, result.breach) == (9, None)


async def test_no_program_can_look_like_a_failed_host(backend: Backend):
    """It kills what it can reach, closes what it has, imitates a runtime; and gets a result each time."""
    attacks = [
        "import os\nfor n in range(1, 32):\n try: os.kill(1, n); os.kill(os.getppid(), n)\n except OSError: pass",
        "import os; os.closerange(0, 1024); os._exit(125)",
        "import os; os.write(2, b'bwrap: Creating new namespace failed\\n'); os._exit(1)",
        "import os, signal; os.kill(0, signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)",
        "import os\nfor fd in range(1024):\n try: os.write(fd, b'\\0\\0\\0\\5E\\0\\0\\0\\1{}')\n except OSError: pass",
    ]
    async with backend.open() as sandbox:
        for attack in attacks:
            result = await python(sandbox, attack)
            assert result.breach is None
            assert result.exit_code is not None or result.signal == 9
        assert await ask(sandbox, "answer = 'alive'") == "alive"


async def test_a_keeper_offered_to_the_kernel_changes_no_verdict(backend: Backend):
    """Where memory is short the kernel kills who was named first: still the program's doing."""
    source = """
import os
for path in ("/proc/1/oom_score_adj", f"/proc/{os.getppid()}/oom_score_adj"):
    try: open(path, "w").write("1000")
    except OSError: pass
held = []
while True: held.append(b"x" * (1 << 20))
"""
    async with backend.open() as sandbox:
        result = await python(sandbox, source)
        assert result.breach == "memory_limit" or b"Error" in result.stderr


async def test_a_missing_image_is_an_infra_error_that_says_how_to_build_it(backend: Backend):
    with pytest.raises(ProvisionFailed, match="headrace sandbox build") as failed:
        await backend.provider.create(SandboxRequest(image="no-such-image-7f3a"))
    assert failed.value.evidence


async def test_what_enforces_the_limits_is_told_and_true(backend: Backend):
    enforced = ""
    async with backend.open() as sandbox:
        if not backend.guest_kernel:
            pid, _ = await program_and_guest(sandbox)
            enforced = enforced_on(pid)
    said = (await sandbox.destroy()).limits_enforced_by
    assert said in ("cgroup-v1", "cgroup-v2", "rlimits")
    assert said.startswith("cgroup") == ("-r" not in backend.name and find_hierarchy() is not None)  # rlimits, rootless
    if not backend.guest_kernel:
        assert enforced == ("rlimits" if said == "rlimits" else "cgroup")


def enforced_on(pid: int) -> str:
    """What the kernel holds one process to: a memory group of the limit's size, or else an address space of it."""
    wanted = LIMITS.memory_mib << 20
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
            bound = Path("/sys/fs/cgroup", mount, path.lstrip("/"), file)
            if mount in controllers.split(",") and bound.exists() and bound.read_text().strip() == str(wanted):
                return "cgroup"
    space = re.search(r"Max address space +(\S+)", Path(f"/proc/{pid}/limits").read_text())
    return "rlimits" if space and space[1] == str(wanted) else "nothing"


async def test_the_provider_travels_to_other_processes(backend: Backend):
    provider = pickle.loads(pickle.dumps(backend.provider))
    assert provider.name == backend.provider.name
    async with await provider.create(SandboxRequest(image=backend.image)) as sandbox:
        assert (await sandbox.exec(Command(("true",)))).exit_code == 0
