"""The scheduler's promises one at a time, by hand."""

import random

import pytest

from sandboxes.protocol import DeadlineExceeded, ProvisionFailed
from sandboxes.scheduling.breaker import Breaker, BreakerRules
from sandboxes.scheduling.tickets import Capacity, QueueFull, Rules
from tests.sandboxes.virtual_hosts import HOST, placed, scheduler, ticket


def test_a_request_gets_everything_at_once_or_waits_holding_nothing():
    two = scheduler(Capacity(4, 4096, 4096), Capacity(4, 4096, 4096))
    two.submit(first := ticket(0, 3), 0)
    two.submit(second := ticket(0, 3), 0)
    two.submit(third := ticket(0, 3), 0)
    two.submit(small := ticket(0, 1), 0)
    leases = {lease.ticket.id: lease for lease in placed(two, 0)}
    assert leases.keys() == {first.id, second.id, small.id}
    assert leases[first.id].host != leases[second.id].host
    assert sum(host.free[0] for host in two.hosts.values()) == 1000  # 8 cores less 3, 3 and 1: the third holds nothing
    two.finish(leases[second.id], 5, ok=True)
    assert [lease.ticket.id for lease in placed(two, 5)] == [third.id]


def test_priority_is_worth_so_many_seconds_of_waiting_and_no_more():
    one = scheduler(Capacity(1, 4096, 4096), rules=Rules(priority_s=60))
    one.submit(ticket(0), 0)
    (running,) = placed(one, 0)
    old = ticket(1)
    early, late = ticket(60, priority=1), ticket(62, priority=1)
    for each in (old, early, late):
        one.submit(each, each.asked_at)
    order = []
    for now in (70, 80, 90):
        one.finish(running, now, ok=True)
        (running,) = placed(one, now)
        order.append(running.ticket.id)
    assert order == [early.id, old.id, late.id]  # 60 - 60 < 1 < 62 - 60


def test_a_deadline_includes_the_queue_and_the_time_still_needed():
    one = scheduler(Capacity(1, 4096, 4096))
    one.submit(ticket(0, expected_s=100), 0)
    placed(one, 0)
    with pytest.raises(DeadlineExceeded, match=r"cannot end by its deadline.*deadline 5 s: 5\.0 s left, 10 s expected"):
        one.submit(ticket(0, expected_s=10, deadline_s=5), 0)
    one.submit(tight := ticket(0, expected_s=10, deadline_s=30), 0)
    one.submit(short := ticket(0, expected_s=0, deadline_s=40), 0)
    assert one.wake_at() == 20
    assert one.tick(20) == ([], [])
    (_, [refusal]) = one.tick(20.5)
    assert refusal.ticket is tight
    assert str(refusal.error) == (
        "it cannot end by its deadline any more [asked for 20.5 s ago, deadline 30 s: 9.5 s left, 10 s expected]"
    )
    (_, [refusal]) = one.tick(41)
    assert refusal.ticket is short
    assert refusal.error.outcome == "deadline_exceeded"
    assert "passed in the queue" in str(refusal.error)
    assert one.wake_at() is None


def test_what_no_host_could_take_even_empty_is_refused_with_the_resource_and_the_largest_host():
    both = scheduler(Capacity(4, 8192, 4096), Capacity(16, 2048, 4096, gpus=2))
    with pytest.raises(ProvisionFailed, match=r"32000 thousandths of a core asked.*largest host h1 has 16000"):
        both.submit(ticket(0, 32), 0)
    with pytest.raises(ProvisionFailed, match=r"4 GPU slots asked.*largest host h1 has 2 GPU slots"):
        both.submit(ticket(0, gpus=4), 0)
    both.submit(large := ticket(0, 16), 0)  # fits only h1
    both.submit(ticket(0, 16), 0)
    assert [lease.ticket.id for lease in placed(both, 0)] == [large.id]
    both.drain("h1")
    (_, [refusal]) = both.tick(1)  # the one that waited can be placed nowhere any more
    assert "the largest host h0 has 4000 thousandths of a core" in refusal.error.evidence
    both.drain("h0")
    with pytest.raises(ProvisionFailed, match="there is no host"):
        both.submit(ticket(2), 2)


def test_a_draining_host_gets_nothing_more_and_leaves_and_a_dead_one_gives_its_leases_back():
    two = scheduler(HOST, HOST)
    for _ in range(8):
        two.submit(ticket(0), 0)
    leases = placed(two, 0)
    two.submit(waits := ticket(0, owner="b"), 0)
    two.drain("h0")
    for lease in leases:
        if lease.host == "h0":
            two.finish(lease, 1, ok=True)
    assert placed(two, 1) == []
    assert "h0" not in two.hosts
    two.join("h0", HOST)
    (lease,) = placed(two, 2)
    assert (lease.host, lease.ticket) == ("h0", waits)
    lost = two.die("h1", 3)
    assert {lease.ticket.id for lease in lost} == {lease.ticket.id for lease in leases if lease.host == "h1"}
    assert two.hosts.keys() == {"h0"}
    two.join("h1", HOST)
    two.finish(lost[0], 4, ok=True)  # nothing of this host's
    two.finish(lease, 4, ok=True)
    two.finish(lease, 4, ok=True)
    assert [host.free for host in two.hosts.values()] == [HOST.vector()] * 2


def test_a_host_to_avoid_is_avoided_while_another_will_do():
    two = scheduler(HOST, HOST)
    for _ in range(4):
        two.submit(ticket(0, avoid=frozenset({"h0"})), 0)
    assert {lease.host for lease in placed(two, 0)} == {"h1"}
    two.submit(ticket(1, avoid=frozenset({"h0"})), 1)
    assert placed(two, 1) == []  # h1 is full, but will do
    two.die("h1", 2)
    assert [lease.host for lease in placed(two, 2)] == ["h0"]


def test_the_queue_of_an_owner_is_bounded_and_a_cancelled_request_makes_room():
    one = scheduler(Capacity(1, 4096, 4096), rules=Rules(queue_limit=2))
    one.submit(ticket(0, expected_s=99), 0)
    placed(one, 0)
    one.submit(ticket(1), 1)
    one.submit(second := ticket(1), 1)
    with pytest.raises(QueueFull):
        one.submit(ticket(1), 1)
    one.submit(ticket(1, owner="b"), 1)
    one.cancel(second.id, 1)
    one.submit(ticket(1), 1)


def test_the_breaker_opens_probes_once_and_closes_or_pauses_longer():
    one = scheduler(HOST, rules=Rules(breaker=BreakerRules(failures=3, pause_s=10)))
    for _ in range(4):
        one.submit(ticket(0), 0)
    *failing, slow = placed(one, 0)
    for lease in failing:
        one.finish(lease, 1, ok=False)
    for _ in range(2):
        one.submit(ticket(1), 1)
    assert placed(one, 1) == []
    now = 1.0
    for pause in (10, 20, 40, 80):
        probe_at = one.wake_at()
        assert probe_at is not None
        assert 0.5 * pause <= probe_at - now <= 1.5 * pause
        now = probe_at
        assert placed(one, now - 0.1) == []
        (probe,) = placed(one, now)  # one, though there is room for more
        one.submit(ticket(now), now)
        if slow in one.hosts["h0"].leases.values():
            one.finish(slow, now, ok=True)  # from before: says nothing, makes room for no second probe
            assert placed(one, now) == []
        one.finish(probe, now, ok=False)
    now = one.wake_at() or 0.0
    (probe,) = placed(one, now)
    one.submit(ticket(now), now)
    assert placed(one, now) == []
    one.finish(probe, now, ok=True)
    assert len(placed(one, now)) == 2


def test_the_breaker_opens_at_a_rate_of_failures_too():
    def opened(*results: bool) -> bool:
        breaker = Breaker(BreakerRules(failures=3, window=10, rate=0.5), random.Random(0))
        for ok in results:
            breaker.record(0, ok=ok, probe=False)
        return breaker.state == "open"

    assert opened(*[True, False] * 5)
    assert not opened(*[True, True, False] * 10)
    assert not opened(*[True, False] * 4)
    assert opened(True, False, False, False)


def test_a_kept_host_takes_what_ends_in_time_or_leaves_room_and_nothing_else():
    rules = Rules(patience_s=10)
    one = scheduler(Capacity(4, 4096, 4096), rules=rules)
    one.submit(ticket(0, 2, expected_s=40), 0)
    placed(one, 0)
    one.submit(big := ticket(1, 4, memory_mib=2048, expected_s=10), 1)
    assert placed(one, 11) == []
    assert (one.hosts["h0"].kept_for, one.hosts["h0"].kept_until) == (big.id, 40)
    one.submit(ends := ticket(12, 1, owner="b", expected_s=28), 12)
    one.submit(ticket(12, 1, owner="c", expected_s=29), 12)  # until 41, and the big one needs every core
    one.submit(aside := ticket(12, 0, owner="d", memory_mib=2048, expected_s=99), 12)  # no core, and memory to spare
    one.submit(ticket(12, 0, owner="e", memory_mib=64, expected_s=99), 12)  # none to spare any more
    assert {lease.ticket.id for lease in placed(one, 12)} == {ends.id, aside.id}


def test_one_host_in_eight_is_kept_another_if_it_dies_and_nothing_is_charged_for_a_kept_one_in_the_end():
    sixteen = scheduler(*[HOST] * 16, rules=Rules(patience_s=10))
    for _ in range(32):
        sixteen.submit(ticket(0, 2, expected_s=100, owner="z"), 0)
    assert len(placed(sixteen, 0)) == 32
    big = [ticket(0, 4, owner="a") for _ in range(3)]
    for each in big:
        sixteen.submit(each, 0)

    def kept() -> dict[int | None, str]:
        return {host.kept_for: host.name for host in sixteen.hosts.values() if host.kept_for is not None}

    assert (placed(sixteen, 9), kept()) == ([], {})
    placed(sixteen, 10)
    before = kept()
    assert before.keys() == {big[0].id, big[1].id}
    sixteen.die(before[big[0].id], 11)
    placed(sixteen, 11)
    assert kept().keys() == {big[1].id}  # fifteen hosts may keep one
    for each in big:
        sixteen.cancel(each.id, 12)
    assert (placed(sixteen, 12), kept()) == ([], {})
    for owner in "ba":
        sixteen.submit(ticket(12, 2, owner=owner), 12)
    name = next(iter(sixteen.hosts))
    sixteen.finish(next(iter(sixteen.hosts[name].leases.values())), 12, ok=True)
    assert [lease.ticket.owner for lease in placed(sixteen, 12)] == ["a"]  # they are level, and a is first by name


def test_a_dead_host_that_was_kept_is_replaced_by_another():
    two = scheduler(HOST, HOST, rules=Rules(patience_s=10))
    for _ in range(4):
        two.submit(ticket(0, 2, expected_s=100, owner="z"), 0)
    placed(two, 0)
    two.submit(big := ticket(0, 4), 0)
    for now in (10, 11):
        placed(two, now)
        (host,) = [host for host in two.hosts.values() if host.kept_for == big.id]
        if now == 10:
            two.die(host.name, now)


def test_room_that_a_kept_host_need_not_keep_any_more_is_used_in_the_same_step():
    rules = Rules(patience_s=10)
    many = scheduler(HOST, Capacity(8, 1024, 4096), *[Capacity(1, 64, 64)] * 14, rules=rules)
    many.submit(ticket(0, 3, memory_mib=1100, expected_s=100, owner="z"), 0)  # on h0, the rest on h1
    for cpus, expected_s in ((2, 50), (4, 200), (2, 200)):
        many.submit(ticket(0, cpus, expected_s=expected_s, owner="z"), 0)
    leases = placed(many, 0)
    many.submit(four := ticket(1, 4, expected_s=500, owner="s"), 1)
    many.submit(two := ticket(2, 2, expected_s=500, owner="r"), 2)
    many.submit(aside := ticket(12, 1, memory_mib=2000, expected_s=500, owner="x"), 12)
    placed(many, 12)
    assert (many.hosts["h0"].kept_for, many.hosts["h1"].kept_for) == (four.id, two.id)
    for lease in leases[1:3]:
        many.finish(lease, 20, ok=True)
    # The two cores go where they were kept, so that there are four beside them, so that h0 is for others again.
    assert {lease.ticket.id: lease.host for lease in placed(many, 20)} == {two.id: "h1", four.id: "h1", aside.id: "h0"}


def test_hosts_with_gpus_are_spared_and_the_fullest_host_is_filled_first():
    three = scheduler(Capacity(4, 4096, 4096, gpus=1), HOST, HOST)
    three.submit(ticket(0, gpus=1), 0)
    placed(three, 0)
    for _ in range(9):
        three.submit(ticket(0), 0)
    hosts = [lease.host for lease in placed(three, 0)]
    assert hosts == ["h1"] * 4 + ["h2"] * 4 + ["h0"]


def test_a_host_whose_lease_overran_is_not_taken_to_be_free_at_once():
    two = scheduler(HOST, HOST, rules=Rules(patience_s=10))
    two.submit(ticket(0, 4, expected_s=10), 0)
    two.submit(ticket(0, 4, expected_s=60), 0)
    placed(two, 0)
    two.submit(ticket(30, 4), 30)
    placed(two, 40)  # h0's lease overran by 30 s, h1's needs 20 s more
    assert [(host.name, host.kept_until) for host in two.hosts.values() if host.kept_for] == [("h1", 60)]


def test_kept_hosts_are_shared_by_weight_and_first_go_to_those_passed_over_longest():
    many = scheduler(*[HOST] * 32, rules=Rules(patience_s=10, weights={"b": 3.0}))
    for _ in range(32):
        many.submit(ticket(0, 4, expected_s=100, owner="z"), 0)
    placed(many, 0)
    waiting = {each.id: each for owner in "abab" * 2 for each in [ticket(1, 4, owner=owner)]}
    for each in waiting.values():
        many.submit(each, 1)
    placed(many, 11)
    kept = [waiting[host.kept_for].owner for host in many.hosts.values() if host.kept_for is not None]
    assert sorted(kept) == ["a", "b", "b", "b"]

    one = scheduler(HOST, rules=Rules(patience_s=10, weights={"old": 0.01}))
    one.submit(ticket(0, 4, expected_s=100, owner="old"), 0)  # far more than its share
    placed(one, 0)
    one.submit(first := ticket(1, 4, owner="old"), 1)
    one.submit(ticket(2, 4, owner="new"), 2)
    placed(one, 20)
    assert one.hosts["h0"].kept_for == first.id


def test_one_that_waits_for_a_sick_host_does_not_hold_up_those_due_after_it():
    breaker = BreakerRules(failures=1, pause_s=100)
    two = scheduler(Capacity(4, 4096, 4096, gpus=1), HOST, rules=Rules(patience_s=10, breaker=breaker))
    two.submit(ticket(0, 0, gpus=1), 0)
    two.submit(ticket(0, 4, expected_s=99), 0)
    gpu, _ = placed(two, 0)
    two.finish(gpu, 1, ok=False)
    two.submit(ticket(1, gpus=1, owner="g"), 1)
    two.submit(big := ticket(2, 4, owner="b"), 2)
    placed(two, 20)
    assert two.hosts["h1"].kept_for == big.id
