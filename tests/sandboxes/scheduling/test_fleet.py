"""A fleet over hosts in memory, which fail and die on demand and count what is left on them."""

import asyncio
import gc
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from sandboxes.limits import Limits
from sandboxes.protocol import (
    DeadlineExceeded,
    Demand,
    HostOutOfMemory,
    ProvisionFailed,
    SandboxError,
    SandboxLost,
    SandboxProvider,
    SandboxRequest,
)
from sandboxes.scheduling.breaker import BreakerRules
from sandboxes.scheduling.fleet import Fleet, FleetSandbox
from sandboxes.scheduling.tickets import Capacity, Rules
from tests.sandboxes.memory_hosts import COMMAND, RESULT, USAGE, Memory

ROOM = Capacity(2, 4096, 4096)


def request(*, owner: str = "a", memory_mib: int = 64, **demand) -> SandboxRequest:
    limits = Limits(memory_mib=memory_mib, disk_mib=16)
    return SandboxRequest(owner=owner, limits=limits, demand=replace(Demand(expected_s=0.1), **demand))


def fleet_of(*hosts: Memory, rules: Rules | None = None, attempts: int = 3) -> Fleet:
    named: dict[str, tuple[SandboxProvider, Capacity]] = {f"h{i}": (host, ROOM) for i, host in enumerate(hosts)}
    return Fleet(named, rules=rules, attempts=attempts, pause_s=0.001)


async def settled(fleet: Fleet, *hosts: Memory) -> None:
    """Every host is empty and the fleet places as much as fits, no more: nothing was leaked, nothing given twice."""
    await asyncio.sleep(0.01)
    assert not any(host.open for host in hosts)
    for host in hosts:
        host.fail = host.fail_exec = None
        host.create_s = host.exec_s = host.most = 0
    boxes = [await fleet.create(request()) for _ in range(2 * len(hosts))]
    late = asyncio.ensure_future(fleet.create(request()))
    await asyncio.sleep(0.01)
    assert not late.done()
    assert [host.most for host in hosts] == [2] * len(hosts)
    for box in boxes:
        await box.destroy()
    await (await late).destroy()


def test_sandboxes_wait_their_turn_and_no_host_is_overfull():
    async def go() -> None:
        hosts = [Memory(), Memory()]
        fleet = fleet_of(*hosts)
        for host in hosts:
            host.exec_s = 0.002

        async def episode() -> None:
            async with await fleet.create(request()) as box:
                assert await box.exec(COMMAND) == RESULT

        await asyncio.gather(*(episode() for _ in range(200)))
        assert [host.most for host in hosts] == [2, 2]
        assert sum(host.made for host in hosts) == 200
        await settled(fleet, *hosts)

    asyncio.run(go())


def test_a_host_that_cannot_create_is_followed_by_another_and_the_evidence_names_each():
    async def go() -> None:
        hosts = [Memory(), Memory(), Memory()]
        fleet = fleet_of(*hosts, attempts=3)
        for number, host in enumerate(hosts[:2]):
            host.fail = ProvisionFailed("no room", evidence=f"fork: EAGAIN {number}")
        async with await fleet.create(request()) as box:
            assert isinstance(box, FleetSandbox)
            assert box.host == "h2"
        assert [host.asked for host in hosts] == [1, 1, 1]
        hosts[2].fail = HostOutOfMemory("no memory", evidence="oom_kill 1")
        with pytest.raises(SandboxError) as caught:
            await fleet.create(request())
        assert [host.asked for host in hosts] == [2, 2, 2]  # each once more, none twice
        for part in ("host h0: fork: EAGAIN 0", "host h1: fork: EAGAIN 1", "host h2: oom_kill 1"):
            assert part in caught.value.evidence
        await settled(fleet, *hosts)

    asyncio.run(go())


def test_what_fits_on_no_host_fails_at_once_even_if_its_owner_has_a_full_queue():
    async def go() -> None:
        host = Memory()
        fleet = fleet_of(host, rules=Rules(queue_limit=1))
        running = [await fleet.create(request()) for _ in range(2)]
        waiting = [asyncio.ensure_future(fleet.create(request())) for _ in range(3)]
        await asyncio.sleep(0.01)
        with pytest.raises(ProvisionFailed, match=r"8000 thousandths of a core asked for.*largest host h0 has 2000"):
            await fleet.create(request(cpus=8))
        with pytest.raises(ProvisionFailed, match="MiB of memory"):
            await fleet.create(request(memory_mib=8192))
        for box in running:
            await box.destroy()
        for task in waiting:
            await (await task).destroy()
        await settled(fleet, host)

    asyncio.run(go())


@pytest.mark.parametrize("queue_limit", [1, 100])
def test_a_deadline_ends_the_wait_in_the_queue_and_at_the_door(queue_limit: int):
    async def go() -> None:
        host = Memory()
        fleet = fleet_of(host, rules=Rules(queue_limit=queue_limit))
        running = [await fleet.create(request()) for _ in range(2)]
        patient = asyncio.ensure_future(fleet.create(request()))  # the queue is full with it, if it holds one
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        waits = [fleet.create(request(deadline_s=2.1, expected_s=2.0)) for _ in range(3)]
        for error in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(error, DeadlineExceeded)
            assert "deadline 2.1 s" in error.evidence
        assert 0.09 < asyncio.get_running_loop().time() - began < 2  # when it is too late to begin, not to end
        for box in running:
            await box.destroy()
        await (await patient).destroy()
        await settled(fleet, host)

    asyncio.run(go())


def test_a_dead_hosts_sandboxes_are_lost_with_its_name_and_its_requests_go_elsewhere():
    async def go() -> None:
        dying, other = Memory(), Memory()
        fleet = fleet_of(dying)
        dying.exec_s = 60
        box = await fleet.create(request())
        running = asyncio.ensure_future(box.exec(COMMAND))
        process = await (idle := await fleet.create(request())).start(COMMAND)
        reading = asyncio.ensure_future(process.receive(timeout_s=60, max_bytes=1))
        waiting = asyncio.ensure_future(fleet.create(request()))
        await asyncio.sleep(0.01)
        fleet.join("spare", other, ROOM)
        await (await waiting).destroy()
        fleet.die("h0", evidence="no heartbeat for 10 s")
        for lost in (running, reading, idle.exec(COMMAND), process.wait(), box.destroy(), idle.destroy()):
            with pytest.raises(SandboxLost, match=r"host h0 died \[host h0: no heartbeat for 10 s\]"):
                await lost
        assert dying.open == set()  # what could be reached was cleaned all the same
        await settled(fleet, other)

    asyncio.run(go())


def test_a_host_that_dies_while_it_creates_is_followed_by_another():
    async def go() -> None:
        dying, other = Memory(), Memory()
        fleet = fleet_of(dying, other)
        dying.create_s = 60
        making = asyncio.ensure_future(fleet.create(request()))
        await asyncio.sleep(0.01)
        fleet.die("h0", evidence="connection reset")
        box = await making
        assert box.host == "h1"
        await box.destroy()
        await settled(fleet, other)

    asyncio.run(go())


def test_a_draining_host_finishes_what_it_has():
    async def go() -> None:
        leaving, other = Memory(), Memory()
        fleet = fleet_of(leaving, other)
        boxes = [await fleet.create(request()) for _ in range(4)]
        fleet.drain("h0")
        with pytest.raises(ValueError, match="still here"):
            fleet.join("h0", leaving, ROOM)
        for box in boxes:
            assert await box.exec(COMMAND) == RESULT
            await box.destroy()
        fleet.join("h0", leaving, ROOM)
        await settled(fleet, leaving, other)

    asyncio.run(go())


def test_a_sick_host_gets_no_more_work_until_its_probe_succeeds():
    async def go() -> None:
        sick, well = Memory(), Memory()
        breaker = BreakerRules(failures=3, pause_s=0.1)
        fleet = fleet_of(sick, well, rules=Rules(breaker=breaker))
        sick.fail_exec = SandboxLost("gone", evidence="pid 7 vanished")
        errors: list[str] = []

        async def episode() -> None:
            async with await fleet.create(request()) as box:
                try:
                    await box.exec(COMMAND)
                except SandboxLost as error:
                    errors.append(error.evidence)

        for _ in range(20):
            await asyncio.gather(*(episode() for _ in range(2)))
        assert 3 <= len(errors) <= 5
        assert set(errors) == {"host h0: pid 7 vanished"}
        sick.fail_exec = None
        before = sick.made
        await asyncio.sleep(0.16)
        for _ in range(5):
            await asyncio.gather(*(episode() for _ in range(4)))
        assert sick.made > before + 2
        await settled(fleet, sick, well)

    asyncio.run(go())


def test_cancelling_at_any_await_releases_everything():
    async def go() -> None:
        host = Memory()
        breaker = BreakerRules(failures=10**6, window=10**6)
        fleet = fleet_of(host, attempts=2, rules=Rules(queue_limit=2, breaker=breaker))
        host.create_s = host.exec_s = host.destroy_s = 0.002

        async def episode() -> None:
            async with await fleet.create(request()) as box:
                await box.exec(COMMAND)

        for steps in range(40):  # one loop iteration later each time, with others in each stage around it
            host.fail = ProvisionFailed("no", evidence="no") if steps % 3 == 2 else None
            tasks = [asyncio.ensure_future(episode()) for _ in range(6)]
            for _ in range(steps):
                await asyncio.sleep(0.0005 if steps > 12 else 0)
            for task in tasks[1::2]:
                task.cancel()
            host.fail = None
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError | ProvisionFailed | None) for end in ended[1::2])
            assert all(isinstance(end, ProvisionFailed | None) for end in ended[::2]), ended
            await asyncio.sleep(0.005)
            assert host.open == set()
        await settled(fleet, host)

    asyncio.run(go())


@pytest.mark.parametrize("placed_first", [True, False])
def test_a_turn_that_comes_in_the_moment_of_cancelling_is_given_back(placed_first: bool):
    async def go() -> None:
        host, other = Memory(), Memory()
        fleet = fleet_of(host)
        boxes = [await fleet.create(request()) for _ in range(2)]
        waiting = asyncio.ensure_future(fleet.create(request()))
        await asyncio.sleep(0.01)
        if not placed_first:
            waiting.cancel()
        fleet.join("h1", other, ROOM)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert other.asked == 0
        for box in boxes:
            await box.destroy()
        await settled(fleet, host, other)

    asyncio.run(go())


def test_a_host_that_cannot_create_is_soon_asked_no_more():
    async def go() -> None:
        sick, well = Memory(), Memory()
        fleet = fleet_of(sick, well, rules=Rules(breaker=BreakerRules(failures=3, pause_s=60)))
        sick.fail = ProvisionFailed("no room", evidence="ENOSPC")
        for _ in range(10):
            async with await fleet.create(request()) as box:
                assert box.host == "h1"
        assert sick.asked == 3

    asyncio.run(go())


def test_a_destroy_ends_though_its_caller_is_cancelled_and_answers_again():
    async def go() -> None:
        host = Memory()
        fleet = fleet_of(host)
        host.destroy_s = 0.01
        box = await fleet.create(request())
        leaving = asyncio.ensure_future(box.destroy())
        await asyncio.sleep(0.001)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await box.destroy() == replace(USAGE, host="h0")
        assert host.destroyed == 1
        await settled(fleet, host)

    asyncio.run(go())


def test_a_fleet_is_one_in_its_process_and_starts_empty_in_another():
    fleet = fleet_of(Memory())
    data = pickle.dumps(fleet)
    assert pickle.loads(data) is fleet
    del fleet
    gc.collect()
    elsewhere = pickle.loads(data)
    assert pickle.loads(data) is elsewhere

    async def go(make: Callable[[], Fleet]) -> None:
        async with await make().create(request()) as box:
            assert box.host == "h0"

    asyncio.run(go(lambda: elsewhere))
