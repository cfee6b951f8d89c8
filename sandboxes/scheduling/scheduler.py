"""Who gets which host, and when: a pure state machine, told the time and what happened, that answers with leases.

A request gets all it names (CPU, memory, GPU slots, disk) on one host at once or waits holding nothing, so requests
cannot deadlock. Three orders decide:

- Between owners: the one that has used least for its weight goes first. Use is the dominant share (largest part of one
  resource of all hosts) times seconds: charged at placement as expected, corrected at the end to what was held. An
  owner that comes back starts level with the least served one; its lead over that one never exceeds eight of the
  largest charges; when nobody waits, all debts are forgiven.
- Within an owner: first asked, first served; one level of priority is worth `Rules.priority_s` seconds of waiting.
- Against starvation: a request that waited for `Rules.patience_s` and fits nowhere has a host kept for it. Others are
  placed on a kept host only where they are expected to end before there is room for it, or leave it that room. One
  host in eight (at least one) may be kept at once, handed out by share too; but an owner's first request, passed over
  for `patience_s` since it became that, goes before all shares.

Bounded wait. Let L be the longest time that any request holds a host or is expected to, n the number of owners with
something waiting, and a, for a request R, the number of its owner's requests that come before it, R included. Those
were asked for before R, or less than (q - p) * priority_s after it, where p is R's priority and q the highest in use:
no stream of arrivals adds to them for ever. While the hosts that can take R stay well, R is placed or expires within

    a * (patience_s + 2 * (n + 1) * L) seconds:

what runs on a kept host, or was let in until it is expected free, is gone after 2 * L. So the hosts kept when an
owner's first is due are free again by then, and from there on only the firsts of the n - 1 owners due before can come
before it, each for 2 * L. This counts on one kept host at a time, the worst case.

Everything submitted ends once: as a lease, as a refusal, or cancelled. A request that no present host could take even
empty is refused. Deterministic, given the calls and the random generator, which only jitters the breakers' pauses.
"""

import collections
import functools
import heapq
import random
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandboxes.protocol import ProvisionFailed
from sandboxes.scheduling.breaker import Breaker
from sandboxes.scheduling.hosts import Host, covers, plus
from sandboxes.scheduling.tickets import Capacity, Lease, QueueFull, Refusal, Rules, Ticket, Vector

_Shape = tuple[Vector, frozenset[str]]
_Key = tuple[float, int]
_LARGEST_LEAD = 8  # in largest charges
_KEPT_PART = 8  # one host in eight, at least one
_RESOURCES = ("thousandths of a core", "MiB of memory", "MiB of disk", "GPU slots")


@dataclass(slots=True)
class _Owner:
    weight: float
    used: float = 0.0
    """Share seconds for its weight."""
    order: list[_Key] = field(default_factory=list)
    """Its waiting requests, first to last; below, the same by shape."""
    shapes: dict[_Shape, list[_Key]] = field(default_factory=dict)
    first_since: float = 0.0
    holding: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: Ticket
    shape: _Shape
    key: _Key


class Scheduler:
    """See the module. `now` never goes back."""

    def __init__(self, rules: Rules, rng: random.Random) -> None:
        self._rules = rules
        self._rng = rng
        self.hosts: dict[str, Host] = {}
        """To look at, not to change."""
        self._owners: dict[str, _Owner] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._shapes: collections.Counter[_Shape] = collections.Counter()
        self._deadlines: list[_Key] = []
        self._kept: dict[int, Host] = {}
        self._stuck: set[_Shape] = set()
        """Shapes known to fit nowhere but perhaps on a host of `_grown`, which got room since."""
        self._grown: set[str] = set()
        self._hosts_left = False
        self._let_one_go = False
        self._total: Vector = (0, 0, 0, 0)
        self._least_used = 0.0
        self._largest_charge = 0.0

    def join(self, host: str, capacity: Capacity) -> None:
        """Add a host. Raises ValueError if it is present, draining included."""
        if host in self.hosts:
            raise ValueError(f"host {host!r} is still here")
        size = capacity.vector()
        self.hosts[host] = Host(host, size, Breaker(self._rules.breaker, self._rng), size)
        self._hosts_changed()

    def drain(self, host: str) -> None:
        """Place nothing more on a host; it leaves when its last lease ends. Raises KeyError."""
        place = self.hosts[host]
        place.draining = True
        if not place.leases:
            del self.hosts[host]
        self._let_go(place)
        self._hosts_left = True
        self._hosts_changed()

    def die(self, host: str, now: float) -> list[Lease]:
        """Take a host away at once; the leases lost with it, which need no `finish`. Raises KeyError."""
        place = self.hosts.pop(host)
        for lease in place.leases.values():
            self._settle(lease, now)
        self._let_go(place)
        self._hosts_left = True
        self._hosts_changed()
        return list(place.leases.values())

    def check(self, ticket: Ticket, now: float) -> None:
        """Raise ProvisionFailed if no host could take a request even empty, DeadlineExceeded if its time is short."""
        if not self._could_fit(ticket.needs.vector()):
            raise self._misfit(ticket)
        if now > ticket.latest_start():
            raise ticket.late(now)

    def submit(self, ticket: Ticket, now: float) -> None:
        """Queue a request; `tick` places it. Raises QueueFull, and what `check` raises."""
        if ticket.id in self._waiting:
            raise ValueError(f"ticket {ticket.id} is waiting already")
        self.check(ticket, now)
        owner = self._owners.get(ticket.owner)
        if owner is None:
            self._forget_idle()
            owner = self._owners[ticket.owner] = _Owner(self._rules.weights.get(ticket.owner, 1.0))
        if len(owner.order) >= self._rules.queue_limit:
            raise QueueFull(ticket.owner)
        if not owner.order:
            owner.used = max(owner.used, self._least_used)
        key = (ticket.asked_at - ticket.priority * self._rules.priority_s, ticket.id)
        entry = _Waiting(ticket, (ticket.needs.vector(), ticket.avoid), key)
        self._waiting[ticket.id] = entry
        insort(owner.order, key)
        insort(owner.shapes.setdefault(entry.shape, []), key)
        self._shapes[entry.shape] += 1
        if owner.order[0] == key:
            owner.first_since = now
        if ticket.deadline_s is not None:
            insort(self._deadlines, (ticket.latest_start(), ticket.id))

    def cancel(self, ticket_id: int, now: float) -> None:
        """Forget a request that waits; nothing if it does not."""
        if ticket_id in self._waiting:
            self._leave(self._waiting[ticket_id], now)

    def finish(self, lease: Lease, now: float, *, ok: bool | None) -> None:
        """Give a lease back. `ok`: whether the host did its part; None if that did not show. Nothing if it was lost."""
        host = self.hosts.get(lease.host)
        if host is None or host.leases.get(lease.ticket.id) is not lease:
            return
        host.give_back(lease)
        self._settle(lease, now)
        if ok is not None:
            before = host.breaker.state
            host.breaker.record(now, ok=ok, probe=lease.probe)
            if host.breaker.state != before:
                self._let_go(host)
                self._hosts_changed()
        self._grown.add(host.name)
        if host.draining and not host.leases:
            del self.hosts[host.name]

    def tick(self, now: float) -> tuple[list[Lease], list[Refusal]]:
        """Place what can be placed and refuse what cannot wait. Call after any other method and at `wake_at`."""
        refusals = self._refuse(now)
        for host in self.hosts.values():
            if host.breaker.let_probe(now):
                self._hosts_changed()
        leases: list[Lease] = []
        self._let_one_go = True
        while self._let_one_go:  # a kept host that is kept no longer has room for those already passed over
            self._let_one_go = False
            leases += self._place_overdue(now)
            leases += self._place_by_share(now)
        self._grown.clear()
        if not self._waiting:
            self._forgive()
        return leases, refusals

    def wake_at(self) -> float | None:
        """When `tick` has something to do even if nothing happens until then."""
        if not self._waiting:
            return None
        times = [host.breaker.probe_at for host in self.hosts.values() if host.breaker.state == "open"]
        times += [start for start, _ in self._deadlines[:1]]
        return min(times, default=None)

    def _refuse(self, now: float) -> list[Refusal]:
        gone: list[Refusal] = []
        while self._deadlines and now > self._deadlines[0][0]:
            entry = self._waiting[self._deadlines[0][1]]
            self._leave(entry, now)
            gone.append(Refusal(entry.ticket, entry.ticket.late(now)))
        if self._hosts_left:
            homeless = {shape for shape in self._shapes if not self._could_fit(shape[0])}
            for entry in [entry for entry in self._waiting.values() if entry.shape in homeless]:
                self._leave(entry, now)
                gone.append(Refusal(entry.ticket, self._misfit(entry.ticket)))
            self._hosts_left = False
        return gone

    def _place_overdue(self, now: float) -> list[Lease]:
        """Place requests that have a host kept, and firsts that were passed over for too long, or keep them a host."""
        leases: list[Lease] = []
        for ticket_id in list(self._kept):
            leases += self._try(self._waiting[ticket_id], now)
        due = [owner for owner in self._owners.values() if owner.order and self._overdue(owner.first_since, now)]
        for owner in sorted(due, key=lambda owner: (owner.first_since, owner.order[0])):
            entry = self._waiting[owner.order[0][1]]
            if entry.ticket.id not in self._kept:
                placed = self._try(entry, now)
                leases += placed
                if not placed:
                    self._keep_host(entry, now)
        return leases

    def _place_by_share(self, now: float) -> list[Lease]:
        leases: list[Lease] = []
        shapes = {shape for shape in self._shapes if shape not in self._stuck or self._roomy(shape)}
        queue = [(owner.used, owner.first_since, name) for name, owner in self._owners.items() if owner.order]
        heapq.heapify(queue)
        keep = True
        while queue:
            _, _, name = heapq.heappop(queue)
            owner = self._owners[name]
            following = next((key[1] for key in owner.order if key[1] not in self._kept), None)
            if keep and following is not None:
                entry = self._waiting[following]
                # No host is kept past an owner that used less and may yet get room without.
                keep = self._overdue(entry.ticket.asked_at, now)
                if keep and entry.shape in self._stuck and not self._roomy(entry.shape) and self._keep_host(entry, now):
                    heapq.heappush(queue, (owner.used, owner.first_since, name))
                    continue
            for key, shape in sorted((owner.shapes[shape][0], shape) for shape in shapes if shape in owner.shapes):
                placed = self._try(self._waiting[key[1]], now)
                leases += placed
                if placed:
                    heapq.heappush(queue, (owner.used, owner.first_since, name))
                    break
                if shape in self._stuck and not self._roomy(shape):
                    shapes.discard(shape)
        return leases

    def _overdue(self, since: float, now: float) -> bool:
        return now >= since + self._rules.patience_s

    def _try(self, entry: _Waiting, now: float) -> list[Lease]:
        """Place a request on the host where it leaves the least room, hosts with GPUs last if it needs none."""
        need, ticket = entry.shape[0], entry.ticket
        roomy = self._roomy(entry.shape)
        if not roomy:
            self._stuck.add(entry.shape)
        open_to = [host for host in roomy if host.open_to(ticket, need, now)]
        if not open_to:
            return []
        host = min(open_to, key=lambda host: (host.size[3] > 0 and not need[3], host.left_over(need), host.name))
        if ticket.id in self._kept:
            self._let_go(self._kept[ticket.id])
        owner, share = self._owners[ticket.owner], self._share(need)
        before = owner.used
        self._charge(owner, share * ticket.expected_s / owner.weight)
        self._leave(entry, now)
        owner.holding += 1
        lease = Lease(ticket, host.name, now, share, owner.used - before, host.breaker.state == "half-open")
        host.take(lease)
        return [lease]

    def _roomy(self, shape: _Shape) -> list[Host]:
        """The hosts that have room for a shape now; of one that was stuck, only those that grew can."""
        need, avoid = shape
        hosts: Iterable[Host] = self.hosts.values()
        if shape in self._stuck:
            hosts = [self.hosts[name] for name in sorted(self._grown) if name in self.hosts]
        fits = [host for host in hosts if covers(host.free, need) and host.accepts()]
        return [host for host in fits if host.name not in avoid] if fits and self._choice(shape) else fits

    def _choice(self, shape: _Shape) -> bool:
        """Whether a shape's hosts to avoid can be avoided."""
        need, avoid = shape
        return bool(avoid) and any(
            host.name not in avoid and not host.draining and host.breaker.state != "open" and covers(host.size, need)
            for host in self.hosts.values()
        )

    def _keep_host(self, entry: _Waiting, now: float) -> bool:
        """Keep the host that is expected to have room first, if one may be; its owner is charged from now on."""
        if len(self._kept) >= max(1, len(self.hosts) // _KEPT_PART):
            return False
        need, avoid = entry.shape
        choice = self._choice(entry.shape)
        hosts = [
            host
            for host in self.hosts.values()
            if host.kept_for is None and host.accepts() and host.breaker.state == "closed" and covers(host.size, need)
            if not (choice and host.name in avoid)
        ]
        if not hosts:
            return False
        nearest = heapq.nsmallest(5, hosts, key=lambda host: (host.lacks(need), host.name))
        host = min(nearest, key=lambda host: (host.free_at(need, now)[0], host.name))
        host.kept_for, (host.kept_until, host.kept_spare) = entry.ticket.id, host.free_at(need, now)
        self._kept[entry.ticket.id] = host
        owner = self._owners[entry.ticket.owner]
        before = owner.used
        self._charge(owner, self._share(need) * entry.ticket.expected_s / owner.weight)
        host.kept_charge = owner.used - before
        return True

    def _let_go(self, host: Host) -> None:
        if host.kept_for is not None:
            self._owners[self._waiting[host.kept_for].ticket.owner].used -= host.kept_charge
            del self._kept[host.kept_for]
            host.kept_for = None
            self._grown.add(host.name)
            self._let_one_go = True

    def _leave(self, entry: _Waiting, now: float) -> None:
        """Take a request out of the queue."""
        ticket, owner = entry.ticket, self._owners[entry.ticket.owner]
        if ticket.id in self._kept:
            self._let_go(self._kept[ticket.id])
        del self._waiting[ticket.id]
        if owner.order[0] == entry.key:
            owner.first_since = now
        _remove(owner.order, entry.key)
        same = owner.shapes[entry.shape]
        _remove(same, entry.key)
        if not same:
            del owner.shapes[entry.shape]
        self._shapes[entry.shape] -= 1
        if not self._shapes[entry.shape]:
            del self._shapes[entry.shape]
            self._stuck.discard(entry.shape)
        if ticket.deadline_s is not None:
            _remove(self._deadlines, (ticket.latest_start(), ticket.id))

    def _share(self, need: Vector) -> float:
        return max((amount / of for amount, of in zip(need, self._total, strict=True) if amount), default=0.0)

    def _charge(self, owner: _Owner, cost: float, *, charged: float = 0.0) -> None:
        """Let an owner's use grow by the cost of a lease, of which some may be charged already."""
        levels = (other.used for other in self._owners.values() if other.order)
        self._least_used = min(levels, default=self._least_used)
        self._largest_charge = max(self._largest_charge, cost)
        most = self._least_used + _LARGEST_LEAD * self._largest_charge
        owner.used = min(owner.used + cost - charged, most)

    def _settle(self, lease: Lease, now: float) -> None:
        owner = self._owners[lease.ticket.owner]
        owner.holding -= 1
        self._charge(owner, lease.share * (now - lease.began) / owner.weight, charged=lease.charge)

    def _forgive(self) -> None:
        """Nobody waits: what was used was to spare."""
        self._least_used = max((owner.used for owner in self._owners.values()), default=self._least_used)
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop the owners that would start level again anyway."""
        for name, owner in list(self._owners.items()):
            if not owner.order and not owner.holding and owner.used <= self._least_used:
                del self._owners[name]

    def _hosts_changed(self) -> None:
        self._stuck.clear()
        sizes = [host.size for host in self.hosts.values() if not host.draining]
        self._total = functools.reduce(plus, sizes, (0, 0, 0, 0))

    def _could_fit(self, need: Vector) -> bool:
        return any(covers(host.size, need) for host in self.hosts.values() if not host.draining)

    def _misfit(self, ticket: Ticket) -> ProvisionFailed:
        need = ticket.needs.vector()
        hosts = [host for host in self.hosts.values() if not host.draining]
        if not hosts:
            return ProvisionFailed("there is no host", evidence="every host is gone or drains")
        wanted = [i for i in range(len(need)) if need[i]]
        nearest = max(hosts, key=lambda host: min(host.size[i] / need[i] for i in wanted))
        lacks = min(wanted, key=lambda i: nearest.size[i] / need[i])
        return ProvisionFailed(
            f"no host is large enough: {need[lacks]} {_RESOURCES[lacks]} asked for",
            evidence=f"the largest host {nearest.name} has {nearest.size[lacks]} {_RESOURCES[lacks]} in all",
        )


def _remove(ordered: list[_Key], key: _Key) -> None:
    del ordered[bisect_left(ordered, key)]
