"""What a table holds, told by the log's JSON and the Parquet files alone: shares no code with `transforms.lake`."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq


def snapshot(table: Path) -> list[str]:
    """Paths of the newest version's files. Raises ValueError for a torn commit or a gap."""
    live: dict[str, None] = {}
    commits = sorted((table / "_delta_log").glob("*.json"))
    for number, commit in enumerate(commits):
        if int(commit.stem) != number:
            raise ValueError(f"{commit.name} comes after {number - 1}")
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            if "remove" in action:
                live.pop(action["remove"]["path"])
    return list(live)


def ids(table: Path) -> Counter[str]:
    """How often each trajectory id is in the newest version."""
    found: Counter[str] = Counter()
    for path in snapshot(table):
        found.update(pq.ParquetFile(table / path).read(["trajectory_id"]).column(0).to_pylist())
    return found
