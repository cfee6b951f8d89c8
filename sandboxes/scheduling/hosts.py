"""What a scheduler knows of one host."""

from dataclasses import dataclass, field

from sandboxes.scheduling.breaker import Breaker
from sandboxes.scheduling.tickets import Lease, Ticket, Vector


@dataclass(slots=True)
class Host:
    """A host's room, and what holds it."""

    name: str
    size: Vector
    breaker: Breaker
    free: Vector
    draining: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)
    """By ticket."""
    probing: bool = False
    kept_for: int | None = None
    """The ticket for which the host is kept, if any."""
    kept_until: float = 0.0
    """The moment at which it is expected to have room for that ticket."""
    kept_spare: Vector = (0, 0, 0, 0)
    """What it is expected to have beyond that at that moment."""
    kept_charge: float = 0.0

    def accepts(self) -> bool:
        """Whether it may be given work: one lease at a time while it is tried out."""
        well = self.breaker.state == "closed" or (self.breaker.state == "half-open" and not self.probing)
        return well and not self.draining

    def take(self, lease: Lease) -> None:
        """Give it work."""
        self.leases[lease.ticket.id] = lease
        self.free = plus(self.free, lease.ticket.needs.vector(), -1)
        self.probing = self.probing or lease.probe
        if self.kept_for is not None and lease.began + lease.ticket.expected_s > self.kept_until:
            self.kept_spare = plus(self.kept_spare, lease.ticket.needs.vector(), -1)

    def give_back(self, lease: Lease) -> None:
        """Take work away from it."""
        del self.leases[lease.ticket.id]
        self.free = plus(self.free, lease.ticket.needs.vector())
        self.probing = self.probing and not lease.probe

    def free_at(self, need: Vector, now: float) -> tuple[float, Vector]:
        """When it is expected to have room, and what more it has then. What overran is taken to need as long again."""
        free, at = self.free, now
        ends = ((now + abs(lease.began + lease.ticket.expected_s - now), key) for key, lease in self.leases.items())
        for end, key in sorted(ends):
            if covers(free, need):
                break
            free, at = plus(free, self.leases[key].ticket.needs.vector()), end
        return at, plus(free, need, -1)

    def open_to(self, ticket: Ticket, need: Vector, now: float) -> bool:
        """Whether a request may run here without delaying the one for which the host is kept."""
        return (
            self.kept_for in (None, ticket.id)
            or now + ticket.expected_s <= self.kept_until
            or covers(self.kept_spare, need)
        )

    def lacks(self, need: Vector) -> float:
        """What it would have to get free for a need, each resource as a part of what it has in all."""
        lacking = ((want - free) / size for free, want, size in zip(self.free, need, self.size, strict=True) if size)
        return sum(part for part in lacking if part > 0)

    def left_over(self, need: Vector) -> float:
        """What it would have left, each resource as a part of what it has in all."""
        return sum((free - want) / size for free, want, size in zip(self.free, need, self.size, strict=True) if size)


def covers(have: Vector, want: Vector) -> bool:
    """Whether there is enough of each resource."""
    return have[0] >= want[0] and have[1] >= want[1] and have[2] >= want[2] and have[3] >= want[3]


def plus(a: Vector, b: Vector, sign: int = 1) -> Vector:
    """Sum, or difference with a `sign` of -1."""
    return a[0] + sign * b[0], a[1] + sign * b[1], a[2] + sign * b[2], a[3] + sign * b[3]
