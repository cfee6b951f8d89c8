"""How far a grading is, on stderr, and what it came to: a table for stdout, what is wrong with it for stderr."""

import asyncio
import contextlib
import json
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines.grade_output import unjudged
from pipelines.progress import clock
from pipelines.rate import Rate
from transforms.grade.outcomes import Outcome, OutcomeClass

_EVERY_S = 5.0  # seconds between two lines where there is no terminal
_NAMED = 3  # reasons, or tasks, that a message names
_REASONS = 100  # reasons that are told apart
_REASON_CHARS = 240  # of a reason that are shown
_CHANGING = re.compile(r"\b(?=\w*\d)\w+")  # numbers and ids, which tell apart what has one cause
_TRY_SANDBOX = "`headrace doctor` tries the sandbox on this machine"
_TRY_TASKS = "`headrace tasks check` tries each task with its own gold"
_WAYS_OUT = {
    Outcome.PROVISION_FAILED: _TRY_SANDBOX,
    Outcome.SANDBOX_LOST: _TRY_SANDBOX,
    Outcome.HOST_OUT_OF_MEMORY: "fewer --workers, or less --memory-mib, leave the machine room",
    Outcome.GRADER_ERROR: _TRY_TASKS,
    Outcome.VERIFIER_DISAGREEMENT: "`evidence` in the row holds what the two verifiers said",
}


@dataclass(slots=True)
class Tally:
    """What the rows of a file say together."""

    impossible: frozenset[str] = frozenset()
    """Ids of the tasks that no honest program can pass."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reward_sum: float = 0.0
    tasks: set[str] = field(default_factory=set)
    """Ids of the tasks that have a row."""
    judged: Counter[str] = field(default_factory=Counter)
    """Rows with a verdict, by task; `passed` of them passed."""
    passed: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    """Rows that earned a reward on an impossible task, by task."""
    reasons: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    """Rows that we failed to judge, by outcome and the first reason of its kind: reasons that differ in numbers and ids
    only are one kind, and so is all that comes past the first `_REASONS` kinds."""
    _kinds: dict[tuple[Outcome, str], str] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        reward = row["reward"] or 0.0
        outcome, task_id = Outcome(row["outcome"]), row["task_id"]
        self.outcomes[outcome] += 1
        self.reward_sum += reward
        self.tasks.add(task_id)
        self.judged[task_id] += outcome.scored
        self.passed[task_id] += outcome is Outcome.PASSED
        if reward > 0 and task_id in self.impossible:
            self.alarms[task_id] += 1
        if unjudged(row):
            reason = " ".join(str(row["failure"]).split())
            reason = reason if len(reason) <= _REASON_CHARS else f"{reason[: _REASON_CHARS - 3]}..."
            kind = outcome, _CHANGING.sub("#", reason)
            if kind not in self._kinds and len(self._kinds) >= _REASONS:
                kind, reason = (outcome, ""), "other reasons"
            self.reasons[outcome, self._kinds.setdefault(kind, reason)] += 1

    @property
    def rows(self) -> int:
        """Rows counted."""
        return self.outcomes.total()

    def of_class(self, *classes: OutcomeClass) -> int:
        """Rows whose outcome is of one of these classes."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.outcome_class in classes)

    @property
    def unjudged(self) -> int:
        """Rows without a reward through our fault."""
        return self.of_class(OutcomeClass.INFRA, OutcomeClass.GRADER)


class Progress:
    """Rows done of all rows: a live display on a terminal, a line now and then elsewhere."""

    def __init__(self, tally: Tally, total: int) -> None:
        self._tally = tally
        self._total = total
        self._before = tally.rows
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning of this session."""
        return time.monotonic() - self._started

    @property
    def graded(self) -> int:
        """Rows graded in this session."""
        return self._tally.rows - self._before

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncGenerator[None]:
        """Show it while the body runs."""
        console = Console(stderr=True, highlight=False)
        if console.is_terminal:
            with Live(console=console, get_renderable=self._display, refresh_per_second=4, transient=True):
                yield
            return
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            self._say()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self._say()

    def _say(self) -> None:
        sys.stderr.write(f"{self._tally.rows:,}/{self._total:,} programs, {self._facts()}\n")
        sys.stderr.flush()

    def _facts(self) -> str:
        rate = self.graded / max(self.seconds, 1e-9)
        left = self._total - self._tally.rows
        said = [f"{rate:.1f}/s"]
        if left and self.graded:
            said.append(f"about {clock(left / rate)} left")
        return ", ".join([*said, *(f"{count:,} {name}" for name, count in self._tally.outcomes.most_common(4))])

    def _display(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._total, completed=self._tally.rows, width=32)
        grid.add_row(bar, Text(f"{self._tally.rows:,}/{self._total:,}"))
        return Group(Text(f"grade  {clock(self.seconds)}", style="cyan"), grid, Text(self._facts()))


def summary(tally: Tally, tasks: int, progress: Progress | None) -> Group:
    """The table of outcomes and the rates. `tasks` is how many the set has; `progress` is of a session that graded."""
    table = Table("outcome", "class", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("rows", "share"):
        table.add_column(heading, justify="right")
    for outcome, count in tally.outcomes.most_common():
        table.add_row(str(outcome), str(outcome.outcome_class), f"{count:,}", f"{count / tally.rows:.4f}")
    judged = tally.of_class(OutcomeClass.POLICY)
    passed = tally.outcomes[Outcome.PASSED]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("pass rate", _rate(passed, judged, "rows with a verdict"))
    if tally.unjudged:
        facts.add_row("", _rate(passed, judged + tally.unjudged, "rows, those that we failed to judge as not passed"))
    shares = [tally.passed[task_id] / rows for task_id, rows in tally.judged.items() if rows]
    if len(shares) < judged:
        of = f"{len(shares):,} tasks, of each one's share of rows with a verdict that passed"
        facts.add_row("pass@1", f"{sum(shares) / len(shares):.4f}, the mean over {of}")
    if judged:
        facts.add_row("mean reward", f"{tally.reward_sum / judged:.4f}")
    facts.add_row("tasks", f"{len(tally.tasks):,} of {tasks:,} have a row")
    if progress is not None:
        rate = progress.graded / progress.seconds
        facts.add_row("time", f"{progress.seconds:.1f} s for {progress.graded:,} programs, {rate:.1f}/s")
    return Group(table, Text(), facts)


def alarm_of(tally: Tally, out: Path) -> str:
    """What to say of rewards on impossible tasks, of which there is at least one."""
    named = ", ".join(f"{task_id} ({count:,})" for task_id, count in tally.alarms.most_common(_NAMED))
    more = f" and {len(tally.alarms) - _NAMED:,} tasks more" if len(tally.alarms) > _NAMED else ""
    rows = tally.alarms.total()
    beginning = f'{{"task_id": {json.dumps(next(iter(tally.alarms)))},'
    return (
        f"ALARM: {rows:,} reward{'s' * (rows > 1)} on tasks that no honest program can pass: {named}{more}\n\n"
        f"hint: `grep -F {shlex.quote(beginning)} {shlex.quote(str(out))}` shows the rows of the first; `tests` and "
        "`signals` tell how, unless the task can be passed after all"
    )


def unjudged_of(tally: Tally) -> str:
    """Why rows have no verdict, of which there is at least one, and what to do."""
    lines = [f"{tally.unjudged:,} program{'s' * (tally.unjudged > 1)} could not be judged, through no fault of theirs:"]
    named = tally.reasons.most_common(_NAMED)
    lines += [f"  {count:,} {outcome}: {reason}" for (outcome, reason), count in named]
    if (rest := tally.unjudged - sum(count for _, count in named)) > 0:
        lines.append(f"  {rest:,} for other reasons")
    ways = dict.fromkeys(_WAYS_OUT[outcome] for (outcome, _), _ in named if outcome in _WAYS_OUT)
    again = "the same command with --retry grades them again and leaves the other rows as they are"
    return "\n".join([*lines, "", f"hint: {'; '.join([*ways, again])}"])


def _rate(passed: int, rows: int, of: str) -> str:
    rate = Rate.of(passed, rows)
    return (
        f"none of {rows} {of}"
        if rate is None
        else f"{rate.mean:.4f} [{rate.low:.4f}, {rate.high:.4f}] of {rows:,} {of}"
    )
