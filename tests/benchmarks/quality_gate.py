"""What the quality gate costs, against grading the same rows.

    .venv/bin/python -m tests.benchmarks.quality_gate [--rows N] [--chunk N] [--tokens N]

Grades the solutions of HumanEval, over again up to N, in Bubblewrap sandboxes, two at once; then holds the rows that
come of it, each with that many tokens of prompt and of completion, against the row suite chunk by chunk, and the cycle
against the gate and the suites of the smaller tables. Both are timed by the wall clock after a first use of each, so
that importing Great Expectations (3 s, once a process) is left out. Prints time a row and the share; goal: under 5 %.
"""

import argparse
import asyncio
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxProvider, SandboxRequest
from tests.builders import a_test, trajectory_row
from transforms.episode import CaseReport
from transforms.lake.table import Lake
from transforms.quality.config import QualitySpec
from transforms.quality.gate import check_cycle
from transforms.quality.past import past_of
from transforms.quality.tables import check_tables
from transforms.quality.validate import validate_rows
from transforms.sources.humaneval import load_humaneval
from transforms.sources.task import Task
from transforms.verify.run import run_check

REQUEST = SandboxRequest(limits=Limits(wall_time_s=30, cpu_time_s=30))
GROUP = 8


async def grade(sandbox: SandboxProvider, tasks: list[Task]) -> list[CaseReport]:
    """Every task's own solution against its check, two at once."""
    slots = asyncio.Semaphore(2)

    async def one(task: Task) -> CaseReport:
        async with slots:
            return await run_check(sandbox, task, task.gold or "", REQUEST)

    return await asyncio.gather(*map(one, tasks))


def row_of(number: int, task: Task, report: CaseReport, tokens: int) -> dict[str, Any]:
    """What a run would store of it."""
    group = f"run-1/1/train/{number // GROUP}"
    answer = f"```python\n{task.gold}\n```\n# {number}"
    turn = {
        "prompt_token_ids": list(range(tokens)), "token_ids": list(range(tokens)), "logprobs": [-0.5] * tokens,
        "loss_mask": [True] * tokens, "finish_reason": "stop",
    }  # fmt: skip
    return trajectory_row(
        trajectory_id=f"{group}/{number % GROUP}/a1", episode_id=f"{group}/{number % GROUP}", group_id=group,
        sample=number % GROUP, task_id=task.task_id, task_hash=task.content_hash, turns=[turn], prompt_tokens=tokens,
        completion_tokens=tokens, completion_hash=hashlib.sha256(answer.encode()).hexdigest(), program=task.gold,
        messages=[{"role": "user", "content": task.prompt}, {"role": "assistant", "content": answer}],
        tests=[a_test(result.name, result.tier, str(result.outcome)) for result in report.results],
    )  # fmt: skip


def gate(home: Path, rows: list[dict[str, Any]], cases: dict[str, list[str]], chunk: int) -> float:
    """Seconds that all of the gate takes over these rows; they must be sound."""
    began = time.monotonic()
    for start in range(0, len(rows), chunk):
        kept, _ = validate_rows(rows[start : start + chunk], "run-1", 1, start // chunk, cases)
        if bad := [row for row in kept if row["quarantine_reasons"]]:
            raise SystemExit(f"{bad[0]['trajectory_id']}: {bad[0]['quarantine_reasons']}")
    groups = {row["group_id"]: GROUP for row in rows}
    check_cycle(rows, QualitySpec(), "run-1", 1, groups=groups, past=past_of(home, "run-1", 1))
    check_tables(home, QualitySpec(), "run-1", 1)
    return time.monotonic() - began


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--chunk", type=int, default=128, help="rows of one commit, validated together")
    parser.add_argument("--tokens", type=int, default=512, help="of a prompt, and of a completion")
    given = parser.parse_args()
    known = load_humaneval()
    tasks = [known[number // GROUP % len(known)] for number in range(given.rows)]
    cases = {task.content_hash: [case.name for case in task.cases] for task in known}

    async def graded() -> tuple[float, list[CaseReport]]:
        sandbox = Bubblewrap()
        await grade(sandbox, tasks[:4])
        began = time.monotonic()
        reports = await grade(sandbox, tasks)
        return time.monotonic() - began, reports

    grading, reports = asyncio.run(graded())
    rows = [row_of(n, task, report, given.tokens) for n, (task, report) in enumerate(zip(tasks, reports, strict=True))]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        Lake(home).append("trajectories", rows, app_id="run-1", version=1)
        gate(home, rows[:16], cases, given.chunk)
        spent = gate(home, rows, cases, given.chunk)
    print(f"grading {1e3 * grading / len(rows):.2f} ms a row, gate {1e3 * spent / len(rows):.2f} ms a row")
    print(f"the gate takes {100 * spent / grading:.1f} % of the time of grading {len(rows)} rows")


if __name__ == "__main__":
    main()
