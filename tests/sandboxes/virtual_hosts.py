"""Hosts in virtual time: random arrivals and random trouble for a Scheduler, audited from outside at each step.

The audit keeps books of its own (what runs where, who waits, how each request ended) and raises AssertionError when
they disagree with what the scheduler does. Requests that a bounded queue does not take wait at the door of their owner.
"""

import collections
import heapq
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandboxes.protocol import SandboxError
from sandboxes.scheduling.breaker import BreakerRules
from sandboxes.scheduling.scheduler import Scheduler
from sandboxes.scheduling.tickets import Capacity, Lease, QueueFull, Rules, Ticket

ATTEMPTS = 3


@dataclass(frozen=True)
class Kind:
    """A sort of request, and how often it comes in relation to the others."""

    needs: Capacity
    expected_s: float
    odds: float = 1.0
    deadline_s: float | None = None


@dataclass(frozen=True)
class Load:
    """What arrives, and what goes wrong."""

    hosts: Mapping[str, Capacity]
    kinds: Sequence[Kind]
    owners: Mapping[str, float]
    """Owner -> how many of the requests are its own, in relation to the others."""
    requests: int
    every_s: float
    """Mean time between two arrivals."""
    rules: Rules = field(default_factory=Rules)
    priorities: Sequence[int] = (0, 1, 2)
    trouble_every_s: float | None = None
    """Mean time between two hosts that die, drain or fall ill; each comes back after `away_s`."""
    away_s: float = 60.0
    failures: float = 0.0
    """Share of leases that a well host fails; a sick one fails all."""
    cancels: float = 0.0
    """Share of requests given up by who asked, after an expected time."""
    overrun: float = 1.3
    """The longest hold, as a multiple of what was expected; the shortest is 0.3."""


@dataclass
class Report:
    """What came of it."""

    ends: collections.Counter[str] = field(default_factory=collections.Counter)
    waits: dict[tuple[int, Capacity], list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    """Priority and size -> seconds from acceptance to placement or refusal."""
    stays: list[tuple[str, tuple[float, int], float, float]] = field(default_factory=list)
    """Owner, place in its order, accepted at, left the queue at: of each request."""
    held: dict[str, float] = field(default_factory=lambda: collections.defaultdict(float))
    """Owner -> core seconds held while arrivals lasted."""
    busy: float = 0.0
    """Core seconds held, and those that hosts had that were there and did not drain, while arrivals lasted."""
    had: float = 0.0
    longest_kept_s: float = 0.0
    """From the moment at which a host was kept for a request to its placement."""
    lasted_s: float = 0.0
    ticks: int = 0


class VirtualHosts:
    """One simulation. `audit` also checks at each step that nothing waits that could run."""

    def __init__(self, load: Load, seed: int, *, audit: bool = True) -> None:
        self.load, self.audit, self.rng = load, audit, random.Random(seed)
        self.scheduler = Scheduler(load.rules, random.Random(seed + 1))
        self.report = Report()
        self.now = 0.0
        self.events: list[tuple[float, int, str, object]] = []
        self.serial, self.ids = itertools.count(), itertools.count()
        self.present: dict[str, bool] = {}  # whether it takes new work
        self.sick: set[str] = set()
        self.running: dict[str, dict[int, Lease]] = {name: {} for name in load.hosts}
        self.accepted: dict[int, float] = {}
        self.attempt: dict[int, int] = {}
        self.ended: set[int] = set()
        self.door: dict[str, collections.deque[Ticket]] = {owner: collections.deque() for owner in load.owners}
        self.waiting: dict[int, Ticket] = {}
        self.queued: collections.Counter[str] = collections.Counter()
        self.cores = dict.fromkeys(load.hosts, 0.0)
        self.holds = dict.fromkeys(load.owners, 0.0)
        self.kept_since: dict[int | None, float] = {}
        self.arrived = 0
        self.next_wake = float("inf")

    def run(self) -> Report:
        """Until all that arrived has ended."""
        for name in self.load.hosts:
            self.join(name)
        self.at(self.rng.expovariate(1 / self.load.every_s), "arrive", None)
        if self.load.trouble_every_s:
            self.at(self.rng.expovariate(1 / self.load.trouble_every_s), "trouble", None)
        while self.events:
            self.advance()
            self.tick()
        assert not self.waiting, f"deadlock: {len(self.waiting)} wait and nothing will happen"
        assert not any(self.running.values())
        assert not any(self.door.values())
        assert len(self.ended) == len(self.attempt)
        return self.report

    def at(self, time: float, what: str, about: object) -> None:
        heapq.heappush(self.events, (time, next(self.serial), what, about))

    def advance(self) -> None:
        time, _, what, about = heapq.heappop(self.events)
        if self.arrived < self.load.requests:
            span = time - self.now
            self.report.busy += span * sum(self.cores.values())
            # A host that drains has only what it still holds.
            self.report.had += span * sum(
                self.load.hosts[name].cpus if takes else self.cores[name] for name, takes in self.present.items()
            )
            for owner, cores in self.holds.items():
                self.report.held[owner] += span * cores
            self.report.lasted_s = time
        self.now = time
        getattr(self, what)(about)

    def tick(self) -> None:
        self.report.ticks += 1
        while True:
            leases, refusals = self.scheduler.tick(self.now)
            for lease in leases:
                self.placed(lease)
            for refusal in refusals:
                self.left_queue(refusal.ticket)
                self.end(refusal.ticket, refusal.error.outcome)
            if not self.open_doors():
                break
        if self.audit:
            self.check_nothing_idles()
        wake = self.scheduler.wake_at()
        if wake is not None and (wake < self.next_wake or self.next_wake <= self.now):
            self.next_wake = max(wake, self.now) + 1e-6
            self.at(self.next_wake, "nothing", None)

    def placed(self, lease: Lease) -> None:
        ticket, place = lease.ticket, self.running[lease.host]
        assert self.present.get(lease.host), f"placed on {lease.host}, which takes nothing"
        assert ticket.id not in place
        place[ticket.id] = lease
        self.count(lease, 1)
        self.left_queue(ticket)
        kept_s = self.now - self.kept_since.get(ticket.id, self.now)
        self.report.longest_kept_s = max(self.report.longest_kept_s, kept_s)
        size = self.load.hosts[lease.host]
        held = [other.ticket.needs for other in place.values()]
        assert sum(need.cpus for need in held) <= size.cpus + 1e-9
        assert sum(need.memory_mib for need in held) <= size.memory_mib
        assert sum(need.disk_mib for need in held) <= size.disk_mib
        assert sum(need.gpus for need in held) <= size.gpus
        latest = ticket.latest_start()
        assert self.now <= latest, "placed too late to end in time"
        holds = ticket.expected_s * self.rng.uniform(0.3, self.load.overrun)
        self.at(self.now + holds, "finish", lease)

    def left_queue(self, ticket: Ticket) -> None:
        del self.waiting[ticket.id]  # a KeyError here: placed or refused twice
        self.queued[ticket.owner] -= 1
        accepted = self.accepted[ticket.id]
        self.report.waits[ticket.priority, ticket.needs].append(self.now - accepted)
        place = ticket.asked_at - ticket.priority * self.load.rules.priority_s, ticket.id
        self.report.stays.append((ticket.owner, place, accepted, self.now))

    def end(self, ticket: Ticket, how: str) -> None:
        assert ticket.id not in self.ended
        self.ended.add(ticket.id)
        self.report.ends[how] += 1

    def arrive(self, _: object) -> None:
        self.arrived += 1
        owner = self.rng.choices(list(self.load.owners), list(self.load.owners.values()))[0]
        kind = self.rng.choices(self.load.kinds, [kind.odds for kind in self.load.kinds])[0]
        priority = self.rng.choice(self.load.priorities)
        ticket = Ticket(
            next(self.ids), owner, kind.needs, self.now, kind.expected_s, kind.deadline_s, priority, frozenset()
        )
        self.attempt[ticket.id] = 1
        self.door[owner].append(ticket)
        self.open_doors()
        if self.arrived < self.load.requests:
            self.at(self.now + self.rng.expovariate(1 / self.load.every_s), "arrive", None)

    def open_doors(self) -> bool:
        """Submit from each owner's door what its queue takes."""
        moved = False
        for owner, door in self.door.items():
            while door and self.queued[owner] < self.load.rules.queue_limit:
                moved = True
                ticket = replace(door.popleft(), asked_at=self.now)
                try:
                    self.scheduler.submit(ticket, self.now)
                except SandboxError as error:
                    self.end(ticket, error.outcome)
                    continue
                self.waiting[ticket.id] = ticket
                self.queued[owner] += 1
                self.accepted[ticket.id] = self.now
                if self.rng.random() < self.load.cancels:
                    self.at(self.now + ticket.expected_s, "cancel", ticket)
            if door and self.audit:
                try:
                    self.scheduler.submit(replace(door[0], asked_at=self.now), self.now)
                except (QueueFull, SandboxError):
                    continue
                raise AssertionError(f"the queue of {owner} took more than its limit")
        return moved

    def finish(self, about: object) -> None:
        assert isinstance(about, Lease)
        lease = about
        if self.running[lease.host].get(lease.ticket.id) is not lease:
            return  # lost with its host
        self.release(lease)
        ok = lease.host not in self.sick and self.rng.random() >= self.load.failures
        self.scheduler.finish(lease, self.now, ok=ok)
        if ok:
            self.end(lease.ticket, "finished")
        else:
            self.retry(lease)

    def release(self, lease: Lease) -> None:
        del self.running[lease.host][lease.ticket.id]
        self.count(lease, -1)

    def count(self, lease: Lease, sign: int) -> None:
        self.cores[lease.host] += sign * lease.ticket.needs.cpus
        self.holds[lease.ticket.owner] += sign * lease.ticket.needs.cpus

    def retry(self, lease: Lease) -> None:
        """The host failed: the episode asks again, for another host."""
        attempt = self.attempt[lease.ticket.id]
        self.end(lease.ticket, "failed" if attempt == ATTEMPTS else "retried")
        if attempt < ATTEMPTS:
            again = replace(lease.ticket, id=next(self.ids), avoid=lease.ticket.avoid | {lease.host})
            self.attempt[again.id] = attempt + 1
            self.door[again.owner].append(again)

    def cancel(self, about: object) -> None:
        assert isinstance(about, Ticket)
        if about.id in self.waiting:
            self.scheduler.cancel(about.id, self.now)
            self.left_queue(about)
            self.end(about, "cancelled")

    def trouble(self, _: object) -> None:
        if self.arrived >= self.load.requests:
            return
        self.at(self.now + self.rng.expovariate(1 / (self.load.trouble_every_s or 1)), "trouble", None)
        well = [name for name, takes in self.present.items() if takes]
        if not well:
            return
        name, what = self.rng.choice(well), self.rng.choice(["die", "drain", "sick"])
        if what == "sick":
            self.sick.add(name)
            self.at(self.now + self.load.away_s, "heal", name)
            return
        self.at(self.now + self.load.away_s, "join", name)
        if what == "drain":
            self.scheduler.drain(name)
            self.present[name] = False
            return
        self.die(name)

    def die(self, name: str) -> None:
        lost = self.scheduler.die(name, self.now)
        assert {lease.ticket.id for lease in lost} == set(self.running[name]), "a dead host's leases come back"
        del self.present[name]
        for lease in lost:
            self.release(lease)
            self.retry(lease)

    def heal(self, about: object) -> None:
        self.sick.discard(str(about))

    def join(self, about: object) -> None:
        name = str(about)
        if self.running[name]:  # it drains still
            self.die(name)
        self.scheduler.join(name, self.load.hosts[name])
        self.present[name] = True

    def nothing(self, _: object) -> None:
        """A time at which the scheduler wanted to be woken."""

    def check_nothing_idles(self) -> None:
        """Nothing that waits fits on a host that is well and not kept for another; kept hosts are few."""
        hosts = self.scheduler.hosts
        kept = [host.kept_for for host in hosts.values() if host.kept_for is not None]
        assert len(kept) == len(set(kept)) <= max(1, len(hosts) // 8)
        assert set(kept) <= set(self.waiting)
        self.kept_since = {ticket_id: self.kept_since.get(ticket_id, self.now) for ticket_id in kept}
        room = []
        for name, takes in self.present.items():
            host = hosts[name] if takes else None
            if host is not None and host.accepts() and host.kept_for is None:
                size, held = self.load.hosts[name], [lease.ticket.needs for lease in self.running[name].values()]
                room.append((name, _vector(size, held)))
        for need in {ticket.needs: ticket for ticket in self.waiting.values() if not ticket.avoid}:
            for name, free in room:
                asked = need.vector()
                assert any(a < b for a, b in zip(free, asked, strict=True)), f"{need} waits, {name} idles with {free}"


def _vector(size: Capacity, held: list[Capacity]) -> list[int]:
    columns = zip(size.vector(), *(need.vector() for need in held), strict=True)
    return [column[0] - sum(column[1:]) for column in columns]


def small_load(seed: int) -> Load:
    """A few requests on a few hosts, everything else at random: sizes, rules, trouble."""
    rng = random.Random(seed)
    hosts = {
        f"h{i}": Capacity(rng.choice([2, 4, 8]), rng.choice([2048, 4096]), 4096, rng.choice([0, 0, 2]))
        for i in range(rng.choice([1, 2, 3, 5, 20]))
    }
    kinds = [
        Kind(
            Capacity(rng.choice([0.5, 1, 2, 4]), rng.choice([128, 512, 2048]), 16, rng.choice([0, 0, 0, 1])),
            expected_s=rng.choice([1, 5, 20]),
            deadline_s=rng.choice([None, None, 40]),
        )
        for _ in range(rng.randint(1, 4))
    ]
    rules = Rules(
        weights={"o1": 2.0},
        queue_limit=rng.choice([2, 5, 100]),
        priority_s=rng.choice([0, 5]),
        patience_s=rng.choice([0, 10]),
        breaker=BreakerRules(pause_s=2.0),
    )
    return Load(
        hosts,
        kinds,
        owners={f"o{i}": rng.choice([1, 2]) for i in range(rng.randint(1, 4))},
        requests=40,
        every_s=rng.choice([0.03, 0.3, 1, 3]),
        rules=rules,
        trouble_every_s=rng.choice([None, 5, 20]),
        away_s=8,
        failures=rng.choice([0, 0.1]),
        cancels=rng.choice([0, 0.1]),
    )


HOST = Capacity(4, 4096, 4096)
_ids = itertools.count()


def scheduler(*hosts: Capacity, rules: Rules | None = None) -> Scheduler:
    made = Scheduler(rules or Rules(), random.Random(0))
    for number, capacity in enumerate(hosts):
        made.join(f"h{number}", capacity)
    return made


def ticket(now: float, cpus: float = 1.0, *, owner: str = "a", memory_mib: int = 64, gpus: int = 0, **rest) -> Ticket:
    return Ticket(next(_ids), owner, Capacity(cpus, memory_mib, 16, gpus), now, **rest)


def placed(scheduler: Scheduler, now: float) -> list[Lease]:
    leases, refusals = scheduler.tick(now)
    assert refusals == []
    return leases
