"""A fleet of real worker processes, some of which are killed while episodes run on all of them."""

import asyncio
import collections
import os
import random
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandboxes.limits import Limits
from sandboxes.protocol import Command, Demand, SandboxError, SandboxRequest
from sandboxes.remote.client import Remote, fleet_of
from sandboxes.scheduling.fleet import Fleet
from tests.sandboxes.conformance.backends import host_pids
from tests.sandboxes.worker_processes import WorkerProcess, until

EPISODES, WORKERS, KILLED = 150, 3, 5
LIMITS = Limits(wall_time_s=10, memory_mib=64)
PROGRAM = """
import sys, time
number = int(sys.argv[1])
time.sleep(0.1 + number % 7 * 0.04)
print(number * number + 1)
"""


@dataclass
class Tally:
    """What the caller of the episodes saw."""

    answers: collections.defaultdict[int, list[bytes]] = field(default_factory=lambda: collections.defaultdict(list))
    errors: list[SandboxError] = field(default_factory=list)
    hosts: collections.Counter[str] = field(default_factory=collections.Counter)


async def episode(fleet: Fleet, number: int, mark: str, tally: Tally) -> None:
    """Run it until a host answers. Nothing but an infra error is tried again."""
    request = SandboxRequest(limits=LIMITS, owner=f"run {number % 3}", demand=Demand(cpus=0.5, expected_s=0.2))
    while True:
        try:
            async with await fleet.create(request) as sandbox:
                request = replace(request, demand=replace(request.demand, avoid=frozenset({sandbox.host})))
                result = await sandbox.exec(Command(("python3", "-IS", "-c", PROGRAM, str(number), mark)))
                assert (result.exit_code, result.signal, result.breach) == (0, None, None)
                usage = await sandbox.destroy()
        except SandboxError as error:
            tally.errors.append(error)
            continue
        assert (usage.breach, usage.stdout) == (None, result.stdout)
        tally.answers[number].append(result.stdout)
        tally.hosts[sandbox.host] += 1
        return


class Hosts:
    """The worker processes of the test; some restart in their place, others are replaced by new ones."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self.all: list[WorkerProcess] = []
        self.alive: list[WorkerProcess] = []

    async def start(self, address: str = "") -> Remote:
        process = WorkerProcess(address or f"unix:{self._folder}/{len(self.all)}.sock")
        self.all.append(process)
        await asyncio.to_thread(process.ready)
        self.alive.append(process)
        return Remote(process.address)

    async def kill_some(self, fleet: Fleet, tally: Tally) -> None:
        """Kill one in the middle of its work and bring another; again and again."""
        coming: list[asyncio.Task[None]] = []
        for turn in range(KILLED):
            await asyncio.sleep(self._rng.uniform(0.1, 0.4))
            await until(lambda: len(self.alive) > 1, within_s=10)
            assert len(tally.answers) < EPISODES
            victim = self.alive.pop(self._rng.randrange(len(self.alive)))
            victim.end(signal.SIGKILL)
            coming.append(asyncio.ensure_future(self._replace(victim, fleet, in_its_place=turn % 2 == 1)))
        await asyncio.gather(*coming)

    async def _replace(self, victim: WorkerProcess, fleet: Fleet, *, in_its_place: bool) -> None:
        if in_its_place:  # the fleet finds out by itself
            await self.start(victim.address)
        else:
            fleet.die(victim.address, evidence="its process was killed")
            provider = await self.start()
            fleet.join(provider.address, provider, await provider.capacity())


def test_every_episode_ends_once_and_right_though_workers_are_killed(tmp_path: Path):
    rng, tally, mark = random.Random(7), Tally(), f"episode-{os.getpid()}"
    hosts = Hosts(tmp_path, rng)

    async def go() -> None:
        remotes = await asyncio.gather(*(hosts.start() for _ in range(WORKERS)))
        fleet = await fleet_of(remotes, backend="bubblewrap")
        killing = asyncio.ensure_future(hosts.kill_some(fleet, tally))
        await asyncio.gather(*(episode(fleet, number, mark, tally) for number in range(EPISODES)))
        await killing
        await until(lambda: not host_pids(mark))

    open_files = len(os.listdir("/proc/self/fd"))
    try:
        asyncio.run(go())
        assert len(os.listdir("/proc/self/fd")) <= open_files + len(hosts.alive)  # the pipes of their `ready`
        assert tally.answers == {number: [b"%d\n" % (number * number + 1)] for number in range(EPISODES)}
        assert len(tally.errors) >= KILLED
        assert all(".sock" in error.evidence for error in tally.errors)
        assert len(tally.hosts) > WORKERS
        assert [group for process in hosts.all for group in process.groups()] == []
        assert [process.end(signal.SIGTERM) for process in hosts.alive] == [0] * WORKERS
    finally:
        for process in hosts.all:
            process.end(signal.SIGKILL)
