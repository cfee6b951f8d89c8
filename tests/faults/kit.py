"""Seeded faults on real writers, one after the other; after each, everything must be as if nothing had happened."""

import multiprocessing
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from deltalake.exceptions import DeltaError

from tests.faults import oracle
from tests.faults.writer import DONE, FULL, KINDS, ROWS, Fault, Work, row_id, write
from transforms.lake.check import check
from transforms.lake.errors import LakeError
from transforms.lake.sql import query
from transforms.lake.table import Lake

_EVENTS = 60  # more than a writer of some commits passes: some faults never strike, which is a case too
_STRAY = "every file belongs to a version"


class Broken(AssertionError):
    """A fault did harm; says how to see it again."""


def processes() -> multiprocessing.context.ForkServerContext:
    """Where writers are forked from: a process that has imported everything and opened nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.writer"])
    return context


def scenario(seed: int, context: multiprocessing.context.ForkServerContext) -> str:
    """One scenario, all drawn from the seed: writers, faults, restarts; gives its name. Raises Broken."""
    dice = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="headrace-faults-"))
    kinds: list[str] = []
    try:
        work = [Work(folder, f"writer-{name}", dice.randint(2, 5)) for name in "ab"[: dice.randint(1, 2)]]
        Lake(folder).ensure_tables()
        with _reader(folder, work):
            for _ in range(dice.randint(1, 3)):
                faults = [Fault(dice.choice(KINDS), dice.randint(1, _EVENTS)) for _ in work]
                kinds += [f"{fault.kind} at {fault.at}" for fault in faults]
                _run(context, list(zip(work, faults, strict=True)))
            codes = _run(context, [(each, None) for each in work])
        _require(codes == [DONE] * len(work), f"a writer without a fault ended with {codes}")
        _same_rows(folder, work)
        name = f"{len(work)} writer(s): {', '.join(kinds)}"
        if dice.random() < 0.3:
            name += f"; then {_damage(dice, folder, work)}"
        return name
    except Exception as error:  # whatever it is, with its seed
        again = f"python -m tests.benchmarks.lake_faults --count 1 --seed {seed}"
        raise Broken(f"seed {seed} ({', '.join(kinds)}): {type(error).__name__}: {error}\nagain: {again}") from error
    finally:
        shutil.rmtree(folder)


def _run(
    context: multiprocessing.context.ForkServerContext, writers: list[tuple[Work, Fault | None]]
) -> list[int | None]:  # fmt: skip
    children = [context.Process(target=write, args=each) for each in writers]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        _require(child.exitcode is not None, "a writer hangs")
        _require(child.exitcode in (DONE, FULL, -9), f"a writer ended with {child.exitcode}")
    return [child.exitcode for child in children]


def _expected(work: list[Work]) -> Counter[str]:
    return Counter(
        row_id(each.app_id, version, number)
        for each in work
        for version in range(1, each.commits + 1)
        for number in range(ROWS)
    )


def _same_rows(folder: Path, work: list[Work]) -> None:
    """Every row once, for the oracle and for a query, and nothing wrong but the files of the dead."""
    found = oracle.ids(folder / "tables" / "trajectories")
    _require(found == _expected(work), f"lost {_expected(work) - found}, doubled {found - _expected(work)}")
    rows = query(folder, "SELECT trajectory_id FROM trajectories").column(0).to_pylist()
    _require(Counter(rows) == found, "a query gives other rows than the files")
    problems = [each for each in check(Lake(folder), quick=True, progress=str) if each.invariant != _STRAY]
    _require(problems == [], f"{problems}")


def _damage(dice: random.Random, folder: Path, work: list[Work]) -> str:
    """Damage what is committed: readers must fail, never give fewer rows, and `check` must name it."""
    table = folder / "tables" / "trajectories"
    commits = sorted((table / "_delta_log").glob("*.json"))
    victim, what = dice.choice(
        [
            (table / dice.choice(oracle.snapshot(table)), "half of a committed file"),
            (commits[-1], "half of the newest commit"),
            (dice.choice(commits[1:-1] or commits[-1:]), "half of a commit"),
        ]
    )
    whole = victim.read_bytes()
    victim.write_bytes(whole[: dice.randrange(1, len(whole) - 1)])
    try:
        rows = query(folder, "SELECT trajectory_id, reward, messages FROM trajectories").num_rows
        _require(rows == sum(_expected(work).values()), f"{what}: a query gives {rows} rows and no error")
    except (LakeError, DeltaError) as error:
        _require(str(error) != "", "an error without words")
    problems = check(Lake(folder), quick=False, progress=str)
    _require(any(each.table == "trajectories" for each in problems), f"check finds nothing wrong with {what}")
    victim.write_bytes(whole)
    _same_rows(folder, work)
    return what


@contextmanager
def _reader(folder: Path, work: list[Work]) -> Generator[None]:
    """Somebody who reads all the time must see whole commits only, and never fewer than before."""
    stop, wrong = threading.Event(), []

    def read() -> None:
        before: Counter[str] = Counter()
        while not stop.is_set():
            rows = query(folder, "SELECT trajectory_id FROM trajectories").column(0).to_pylist()
            seen = Counter(name.rpartition("/")[0] for name in rows)
            if any(count != ROWS for count in seen.values()) or before - seen:
                wrong.append(f"a reader saw {seen} after {before}")
            before = seen

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    _require(not wrong, "; ".join(wrong[:1]))


def _require(holds: bool, told: str) -> None:
    if not holds:
        raise Broken(told)
