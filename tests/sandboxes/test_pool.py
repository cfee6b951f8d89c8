"""The pool, over real bubblewrap sandboxes; a provider that counts and can be slow stands in front of them."""

import asyncio
import gc
import pickle
import time
from collections.abc import Awaitable, Callable

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.pool import Pool
from sandboxes.protocol import Command, ProvisionFailed, SandboxRequest
from sandboxes.sandbox import GuestSandbox

REQUEST = SandboxRequest(limits=Limits(memory_mib=64))


class Slow(Bubblewrap):
    """Real sandboxes that take as long to make as those of a slower back-end."""

    def __init__(self, make_s: float = 0.0) -> None:
        super().__init__()
        self.make_s = make_s
        self.made: list[GuestSandbox] = []
        self.fail = False

    async def create(self, request: SandboxRequest) -> GuestSandbox:
        if self.fail:
            raise ProvisionFailed("no more", evidence="the test says so")
        await asyncio.sleep(self.make_s)
        self.made.append(await super().create(request))
        return self.made[-1]


def pooled(provider: Slow, most: int, job: Callable[[Pool], Awaitable[None]], *, least: int = 0) -> Pool:
    async def go() -> Pool:
        pool = Pool(provider, most=most, least=least)
        try:
            await job(pool)
        finally:
            await pool.close()
        assert not any(sandbox.alive for sandbox in provider.made)
        return pool

    return asyncio.run(go())


async def use(pool: Pool, request: SandboxRequest = REQUEST) -> bytes:
    async with await pool.create(request) as sandbox:
        return (await sandbox.exec(Command(("cat", "/job/name"), cwd="/"))).stdout


def test_a_ready_sandbox_is_handed_out_once_with_the_files_of_its_request():
    async def job(pool: Pool) -> None:
        await pool.fill(REQUEST, 3)
        assert pool.ready(REQUEST) == 3
        taken = [await pool.create(SandboxRequest(limits=REQUEST.limits, files={"name": b"%d" % i})) for i in range(3)]
        assert len({sandbox.id for sandbox in taken}) == 3
        for i, sandbox in enumerate(taken):
            assert (await sandbox.exec(Command(("cat", "/job/name")))).stdout == b"%d" % i
            await sandbox.destroy()

    pool = pooled(Slow(0.5), 3, job)
    assert (pool.report.hits, pool.report.misses) == (3, 0)
    assert pool.report.longest_s < 0.5


def test_another_shape_is_another_shelf():
    async def job(pool: Pool) -> None:
        await pool.fill(REQUEST, 1)
        other = SandboxRequest(limits=Limits(memory_mib=128))
        assert (pool.ready(REQUEST), pool.ready(other)) == (1, 0)
        await (await pool.create(other)).destroy()
        assert pool.ready(REQUEST) == 1

    assert pooled(Slow(), 2, job).report.misses == 1


def test_the_shelf_follows_the_arrivals_times_the_time_it_takes_to_make_one():
    provider = Slow(0.2)

    async def job(pool: Pool) -> None:
        began, asked = time.monotonic(), 0
        while time.monotonic() - began < 3.0:  # 20 a second x 0.2 s: four on their way, twice that with the margin
            await asyncio.sleep(max(0.0, began + asked / 20 - time.monotonic()))
            task = asyncio.ensure_future(use(pool))
            tasks.append(task)
            asked += 1
        assert pool.target(REQUEST) == pytest.approx(8, abs=2)
        await asyncio.gather(*tasks)

    tasks: list[asyncio.Task[bytes]] = []
    pool = pooled(provider, 16, job)
    assert pool.report.hits > 2 * pool.report.misses
    assert pool.report.hits + pool.report.misses == len(tasks) <= len(provider.made) <= len(tasks) + 16


def test_a_burst_beyond_the_shelf_is_served_and_nothing_is_handed_out_twice():
    async def job(pool: Pool) -> None:
        await pool.fill(REQUEST, 2)
        sandboxes = await asyncio.gather(*(pool.create(REQUEST) for _ in range(8)))
        assert len({sandbox.id for sandbox in sandboxes}) == 8
        await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes))

    pool = pooled(Slow(), 2, job)
    assert (pool.report.hits, pool.report.misses) == (2, 6)


def test_a_sandbox_that_died_on_the_shelf_is_not_handed_out():
    provider = Slow()

    async def job(pool: Pool) -> None:
        await pool.fill(REQUEST, 1)
        provider.made[0]._enclosure.kill()
        while provider.made[0].alive:
            await asyncio.sleep(0.01)
        async with await pool.create(REQUEST) as sandbox:
            assert (await sandbox.exec(Command(("true",)))).exit_code == 0

    assert pooled(provider, 1, job).report.discarded == 1


def test_a_provider_that_fails_is_heard_by_who_asks_and_the_pool_goes_on():
    provider = Slow()

    async def job(pool: Pool) -> None:
        provider.fail = True
        for _ in range(2):
            with pytest.raises(ProvisionFailed):
                await pool.create(REQUEST)
        provider.fail = False
        await use(pool)

    pooled(provider, 2, job)


def test_a_pool_is_one_in_its_process_and_travels_to_others_without_its_sandboxes():
    pool = Pool(Bubblewrap(), most=3)
    sent = pickle.dumps(pool)
    assert pickle.loads(sent) is pool
    del pool
    gc.collect()
    assert pickle.loads(sent).report.hits == 0


def test_bounds_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="least"):
        Pool(Bubblewrap(), most=1, least=2)
