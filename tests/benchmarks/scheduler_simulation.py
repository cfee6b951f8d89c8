"""The scheduler in virtual time: 50 hosts and 100,000 requests of mixed size under overload, then 1,000 small seeds.

    .venv/bin/python -m tests.benchmarks.scheduler_simulation [REQUESTS [SEEDS]]

Offered: 1.5 times what the hosts can do, from five owners of weights 4, 2, 1, 1, 1, the last of which asks for three
times its part, and in three priorities; every two minutes a host dies, drains or falls ill, and is back five minutes
later. Waits count from acceptance into the bounded queue. Utilisation: core seconds held, of those that hosts had that
were there (sick ones too; of those that drain, what they still held), while arrivals lasted. The owner that asks for
too much gets more than its part of the cores because its small requests fill gaps that nothing else waiting fits. Each
step of each small seed is audited for room that idles while something waiting fits.
"""

import statistics
import sys
import time

from sandboxes.scheduling.tickets import Capacity, Rules
from tests.sandboxes.virtual_hosts import Kind, Load, VirtualHosts, small_load

GIB = 1024
KINDS = [
    Kind(Capacity(1, GIB // 2, 256), 10.0, odds=85),
    Kind(Capacity(4, 8 * GIB, 4 * GIB), 30.0, odds=10),
    Kind(Capacity(16, 32 * GIB, 16 * GIB), 60.0, odds=2),
    Kind(Capacity(8, 180 * GIB, 16 * GIB), 60.0, odds=1),
    Kind(Capacity(8, 64 * GIB, 32 * GIB, gpus=2), 60.0, odds=1),
    Kind(Capacity(48, 128 * GIB, 64 * GIB), 60.0, odds=0.3),
]
WEIGHTS = {"a": 4.0, "b": 2.0, "c": 1.0, "d": 1.0, "e": 1.0}


def overload(requests: int) -> Load:
    """50 hosts of 64 cores and 256 GiB, eight of them with 8 GPUs."""
    hosts = {f"h{i:02}": Capacity(64, 256 * GIB, 2048 * GIB, 8 if i < 8 else 0) for i in range(50)}
    # 0.8 is the mean of what is held, as a part of what is expected.
    work = sum(kind.odds * kind.needs.cpus * kind.expected_s * 0.8 for kind in KINDS) / sum(kind.odds for kind in KINDS)
    rules = Rules(weights=WEIGHTS, queue_limit=400)
    every_s = work / (50 * 64 * 1.5)
    asks = WEIGHTS | {"e": 3.0}
    return Load(hosts, KINDS, asks, requests, every_s, rules, trouble_every_s=120, away_s=300, failures=0.002)


def main(requests: int, seeds: int) -> None:
    """Print two tables and a line."""
    started = time.monotonic()
    report = VirtualHosts(overload(requests), 1, audit=False).run()
    took = time.monotonic() - started
    write = sys.stdout.write
    write(f"{requests} requests on 50 hosts: {report.lasted_s:.0f} s of virtual time in {took:.1f} s of real time\n")
    write(f"utilisation {100 * report.busy / report.had:.1f} %; ends: {dict(sorted(report.ends.items()))}\n")
    for title, at in (("priority", 0), ("size", 1)):
        write(f"\n{title:55} requests   wait p50 s   p99 s   max s\n")
        for value in dict.fromkeys(key[at] for key in sorted(report.waits, key=str)):
            waits = [wait for key, some in report.waits.items() if key[at] == value for wait in some]
            cut = statistics.quantiles(waits, n=100)
            write(f"{value!s:55} {len(waits):8} {cut[49]:12.1f} {cut[98]:7.1f} {max(waits):7.1f}\n")
    write("\nowner   weight   core seconds, for its weight, as a part of owner a's\n")
    for owner, weight in WEIGHTS.items():
        write(f"{owner:5} {weight:8.0f} {report.held[owner] / weight / (report.held['a'] / WEIGHTS['a']):12.3f}\n")
    started = time.monotonic()
    ended = 0
    for seed in range(seeds):  # a deadlock is an AssertionError
        ended += VirtualHosts(small_load(seed), seed).run().ends.total()
    write(f"\n{seeds} seeds, {ended} requests: no deadlock, in {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main(int((sys.argv[1:2] or ["100000"])[0]), int((sys.argv[2:3] or ["1000"])[0]))
