"""What Beam, the lake and the quality gate add to a run, as a share of its wall time, read from the run's own tables.

    .venv/bin/python -m tests.benchmarks.overhead [HOME]

A pipeline's own cost is the time of its stage less the time in which an episode was being answered or executed (from
the first request to the last verdict of the chunk). The gate's cost is its stage. The rest is engine, sandbox, trainer.
"""

import sys
from pathlib import Path

from transforms.lake.sql import query

STAGES = """
SELECT run_id, stage, cycle, sum(seconds) AS seconds FROM events
WHERE event = 'stage' GROUP BY run_id, stage, cycle
"""
BUSY = """
SELECT run_id, cycle, CASE WHEN purpose = 'train' THEN 'rollout' ELSE 'evaluate' END AS stage, chunk,
    max(ended_at) AS last, min(started_at) AS first
FROM trajectories GROUP BY run_id, cycle, CASE WHEN purpose = 'train' THEN 'rollout' ELSE 'evaluate' END, chunk
"""
WALL = """
SELECT run_id, max(at) - min(at) AS wall FROM events GROUP BY run_id
"""


def main(home: Path) -> None:
    """Print a line a run."""
    stages = query(home, STAGES).to_pylist()
    busy = query(home, BUSY).to_pylist()
    for run in query(home, WALL).to_pylist():
        mine = [row for row in stages if row["run_id"] == run["run_id"]]
        working = sum((row["last"] - row["first"]).total_seconds() for row in busy if row["run_id"] == run["run_id"])
        pipelines = sum(row["seconds"] for row in mine if row["stage"] in ("rollout", "evaluate"))
        gate = sum(row["seconds"] for row in mine if row["stage"] == "quality")
        wall = run["wall"].total_seconds()
        added = pipelines - working + gate
        sys.stdout.write(
            f"{run['run_id']}: wall {wall:.1f} s, pipelines {pipelines:.1f} s of which answering and executing "
            f"{working:.1f} s, gate {gate:.1f} s: Beam, lake and quality {added:.1f} s = {100 * added / wall:.1f} %\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".headrace").absolute())
