"""Random faults on the lake until something breaks or the count is reached: see `tests/faults`.

    python -m tests.benchmarks.lake_faults --count 1000 --seed 1

Each scenario is drawn from its own seed, `--seed` and those after it; a failure prints the one that repeats it.
"""

import argparse
import re
import time
from collections import Counter

from rich.progress import track

from tests.faults.kit import processes, scenario


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="scenarios (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one (default 1)")
    asked = parser.parse_args()
    context, faults, started = processes(), Counter[str](), time.monotonic()
    for seed in track(range(asked.seed, asked.seed + asked.count), description="faults"):
        faults.update(re.findall(r"([a-z ]+) at \d+|then (half of [a-z ]+)", scenario(seed, context)))
    kinds = Counter({(one or other).strip(): count for (one, other), count in faults.items()})
    told = ", ".join(f"{name} {count}" for name, count in kinds.most_common())
    print(f"{asked.count} scenarios, {kinds.total()} faults in {time.monotonic() - started:.0f} s: {told}")
    print("no row was lost, doubled or half visible")


if __name__ == "__main__":
    main()
