"""How far a run is, for the person who waits: a live display on a terminal, a line now and then elsewhere.

All of it goes to stderr; stdout is for data.
"""

import sys
import threading
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from transforms.tally import TALLY, Counts

_EPISODES = ("evaluate", "rollout")
"""Stages whose total is in episodes; that of `train` is in optimizer steps."""

_QUIET_S = 30.0


class Reporter:
    """Progress of one run. A context manager: leaving it, also by an exception or Ctrl-C, restores the terminal.

    `plain` forces the form made of lines; it is taken anyway where stderr is no terminal. What the stages did is read
    from the tally, so a stage need not know the reporter.
    """

    def __init__(self, *, cycles: int, plain: bool = False, every_s: float = 5.0) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.cycles = cycles
        self._every_s = every_s
        self._closing = threading.Event()
        self._ticker: threading.Thread | None = None
        self._started = time.monotonic()
        self._stage = _Stage("start", 0, 0, TALLY.snapshot())
        self._cycle_started: float | None = None
        self._cycle_seconds: list[float] = []
        self._cycles_done = 0
        self._live = None if plain or not self.console.is_terminal else Live(
            console=self.console, get_renderable=self._display, refresh_per_second=4, transient=True
        )  # fmt: skip

    def __enter__(self) -> "Reporter":
        if self._live:
            self._live.start()
        else:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_stage()
        self._closing.set()
        if self._live:
            self._live.stop()
        if self._ticker:
            self._ticker.join()

    def stage(self, name: str, *, cycle: int, total: int) -> None:
        """End the stage before and start this one: setup, engine, evaluate, rollout, quality or train.

        `total` is the episodes (evaluate, rollout) or optimizer steps (train) it will take; 0 when unknown.
        """
        self._end_stage()
        if name == "rollout" and self._cycle_started is None:
            self._cycle_started = time.monotonic()
        self._stage = _Stage(name, cycle, total, TALLY.snapshot())

    def cycle_done(self, cycle: int) -> None:
        """Close a cycle. One that had been done in an earlier session is closed without having had a stage."""
        self._end_stage()
        if self._cycle_started is not None:
            self._cycle_seconds.append(time.monotonic() - self._cycle_started)
        self._cycle_started = None
        self._cycles_done = cycle

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._live:
            self.console.print(Text(text))
        else:
            sys.stderr.write(f"[{clock(time.monotonic() - self._started)}] {text}\n")
            sys.stderr.flush()

    def _end_stage(self) -> None:
        if self._stage.ended is None:
            self._stage.ended = time.monotonic()
            if self._stage.ended - self._stage.started >= 0.05:
                self.note(self._line())

    def _tick(self) -> None:
        said, at = None, self._started
        while not self._closing.wait(self._every_s):
            now, what = time.monotonic(), (self._stage, TALLY.snapshot())
            # Where nothing moves, a sign of life twice a minute is enough.
            if self._stage.ended is None and (what != said or now - at >= _QUIET_S):
                said, at = what, now
                self.note(self._line())

    def _line(self) -> str:
        stage = self._stage
        seconds = (stage.ended or time.monotonic()) - stage.started
        parts = [part for part in (stage.amount(), *stage.facts(seconds)) if part]
        where = f"cycle {stage.cycle}/{self.cycles} " if stage.cycle else ""
        left = self._left_s()
        time_left = f", about {clock(left)} left" if stage.ended is None and left else ""
        return f"{where}{stage.name}: {', '.join([*parts, clock(seconds)])}{time_left}"

    def _left_s(self) -> float | None:
        """Seconds to the end of the last cycle; None before there is a cycle to judge by. Evaluation is left out."""
        if not self._cycle_seconds:
            return None
        mean = sum(self._cycle_seconds) / len(self._cycle_seconds)
        spent = time.monotonic() - self._cycle_started if self._cycle_started is not None else 0.0
        return max(0.0, mean * (self.cycles - self._cycles_done) - spent)

    def _display(self) -> Group:
        stage = self._stage
        now = time.monotonic()
        head = Text(f"cycle {stage.cycle}/{self.cycles}  " if stage.cycle else "", style="bold")
        head.append(stage.name, style="cyan")
        left = self._left_s()
        head.append(f"  {clock(now - self._started)} elapsed", style="dim")
        head.append(f", about {clock(left)} left" if left else "", style="dim")
        grid = Table.grid(padding=(0, 2))
        done = stage.done()
        bar = ProgressBar(total=stage.total or None, completed=done, width=32, pulse=not stage.total)
        facts = [fact for fact in (stage.amount(), *stage.facts(now - stage.started)) if fact]
        grid.add_row(bar, Text("  ".join(facts)))
        return Group(head, grid)


class _Stage:
    def __init__(self, name: str, cycle: int, total: int, before: Counts) -> None:
        self.name = name
        self.cycle = cycle
        self.total = total
        self.before = before
        self.started = time.monotonic()
        self.ended: float | None = None

    def done(self) -> int:
        counts = TALLY.snapshot().since(self.before)
        return counts.graded if self.name in _EPISODES else counts.steps if self.name == "train" else 0

    def amount(self) -> str | None:
        unit = "episodes" if self.name in _EPISODES else "steps" if self.name == "train" else None
        if unit is None:
            return None
        return f"{self.done():,}/{self.total:,} {unit}" if self.total else f"{self.done():,} {unit}"

    def facts(self, seconds: float) -> list[str]:
        counts = TALLY.snapshot().since(self.before)
        said = []
        if counts.episodes > counts.graded:
            said.append(f"{counts.episodes - counts.graded:,} being graded")
        if counts.tokens:
            said.append(f"{counts.tokens:,} tokens ({counts.tokens / max(seconds, 1e-9):,.0f}/s)")
        if counts.scored:
            said.append(f"mean reward {counts.reward_sum / counts.scored:.3f}")
        return said


def clock(seconds: float) -> str:
    """A time in seconds as `M:SS` or `H:MM:SS`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
