# ruff: noqa: E501 - a rule a line
"""Is the lake what it says it is? Every invariant, what breaks it, where, and what can be recovered."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from transforms.lake.errors import LakeError, QueryError, TableTooOld
from transforms.lake.maintenance import files_of, read_log
from transforms.lake.schemas import PARTITIONED_BY, TABLES
from transforms.lake.sql import query
from transforms.lake.table import Lake

_NAMED = 3  # rows or files that a problem names

_ASK_AGAIN = "`headrace lake restore` goes back to before it; `headrace run` then makes the lost rows anew"
_DEFECT = "a defect of Headrace or a foreign writer: keep the table and report it; `headrace lake restore` goes back"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant."""

    table: str
    invariant: str
    where: str
    """Files, versions or rows, the first few by name."""
    recovery: str
    """What can be done, and what is lost."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rows that must not be: a query that gives them, as one column of text."""

    table: str
    invariant: str
    sql: str
    recovery: str = _DEFECT


_RULES = (
    _Rule("trajectories", "trajectory ids are unique", "SELECT trajectory_id FROM trajectories GROUP BY 1 HAVING count(*) > 1"),
    _Rule("tasks", "task hashes are unique", "SELECT task_hash FROM tasks GROUP BY 1 HAVING count(*) > 1"),
    _Rule("policies", "a run has each policy version once", "SELECT concat(run_id, ' version ', CAST(policy_version AS VARCHAR)) FROM policies GROUP BY run_id, policy_version HAVING count(*) > 1"),
    _Rule("policies", "policy versions have no gap", "SELECT run_id FROM policies GROUP BY run_id HAVING max(policy_version) + 1 <> count(*)"),
    _Rule("trajectories", "the reward is null unless the outcome is the policy's", "SELECT trajectory_id FROM trajectories WHERE (reward IS NULL) = (outcome_class = 'policy')"),
    _Rule("trajectories", "rewards are finite, in 0 .. 1", "SELECT trajectory_id FROM trajectories WHERE NOT (reward BETWEEN 0 AND 1)"),
    _Rule("trajectories", "an episode has one final attempt", "SELECT episode_id FROM trajectories GROUP BY 1 HAVING count(CASE WHEN final THEN 1 END) <> 1"),
    _Rule("trajectories", "chunks follow each other", "SELECT run_id FROM trajectories GROUP BY 1 HAVING count(DISTINCT chunk) <> max(chunk)", _ASK_AGAIN),
    _Rule("trajectories", "rows belong to a run", "SELECT DISTINCT run_id FROM trajectories WHERE run_id NOT IN (SELECT run_id FROM runs)"),
    _Rule("trajectories", "their tasks are stored", "SELECT DISTINCT task_id FROM trajectories WHERE task_hash NOT IN (SELECT task_hash FROM tasks)"),
    _Rule("policies", "what trained a policy exists", "SELECT trajectory_id FROM consumption WHERE trajectory_id NOT IN (SELECT trajectory_id FROM trajectories)", "the policy stands, its evidence is gone: restore `policies` to before it, or keep it and know"),
    _Rule("policies", "every cycle behind a policy has its rows", "SELECT concat(p.run_id, ' cycle ', CAST(p.policy_version AS VARCHAR)) FROM policies AS p LEFT JOIN trajectories AS t ON t.run_id = p.run_id AND t.cycle = p.policy_version AND t.purpose = 'train' WHERE p.policy_version > 0 AND t.trajectory_id IS NULL", "restore `policies` to before that version, and run again"),
    _Rule("checks", "every chunk was checked", "SELECT DISTINCT concat(t.run_id, ' chunk ', CAST(t.chunk AS VARCHAR)) FROM trajectories AS t LEFT JOIN checks AS c ON c.run_id = t.run_id AND c.chunk = t.chunk WHERE c.run_id IS NULL", "`headrace run` with that spec checks the stored rows"),
)  # fmt: skip


def check(lake: Lake, *, quick: bool, progress: Callable[[str], object]) -> list[Problem]:
    """Verify every invariant of a lake; no problem, an empty list. Changes nothing.

    `quick` reads logs, sizes and footers, not the columns. `progress` is told each table and rule before it is checked.
    Raises TableTooOld.
    """
    found: list[Problem] = []
    broken = set()
    for table in TABLES:
        if lake.path(table).exists():
            progress(f"table {table}")
            problems = list(_table_problems(lake, table, quick=quick))
            found += problems
            broken |= {table} if problems else set()
    if quick:
        return found
    for rule in _RULES:
        if not (lake.path(rule.table) / "_delta_log").exists() or broken:
            continue  # what cannot be read whole would look like a broken rule
        progress(rule.invariant)
        found += _rule_problems(lake, rule)
    return found


def _rule_problems(lake: Lake, rule: _Rule) -> list[Problem]:
    try:
        rows = query(lake.home, rule.sql)
    except QueryError as error:
        return [Problem(rule.table, rule.invariant, str(error)[:300], "the query behind it fails: see the message")]
    named = [str(value) for value in rows.column(0).to_pylist()]
    return [Problem(rule.table, rule.invariant, _few(named), rule.recovery)] if named else []


def _table_problems(lake: Lake, table: str, *, quick: bool) -> Iterator[Problem]:
    folder = lake.path(table)
    torn = list(_log_problems(table, folder))
    yield from torn
    try:
        delta = lake.open(table)
    except TableTooOld:
        raise  # one remedy for all
    except LakeError as error:
        yield Problem(table, "this Headrace can read it", str(folder), str(error))
        return
    except DeltaError as error:
        if not torn:
            yield Problem(table, "its log is readable", str(error)[:300], _from_backup(folder))
        return
    if delta is None:
        yield Problem(table, "it has a log", str(folder), "no table is there: its files belong to nothing")
        return
    yield from _schema_problems(table, delta)
    present = files_of(delta)
    for path, row in present.items():
        yield from _file_problems(table, folder / path, row, quick=quick)
    known = {action[kind]["path"] for n in range(delta.version() + 1) for action in read_log(folder, n) for kind in ("add", "remove") if kind in action}  # fmt: skip
    stray = [
        str(path.relative_to(folder)) for path in sorted(folder.rglob("*.parquet")) if "_delta_log" not in path.parts
    ]
    stray = [path for path in stray if path not in known and path not in present]
    if stray:
        yield Problem(
            table, "every file belongs to a version", _few(stray),
            "left by an attempt that died, or of one that still runs; `headrace lake vacuum` removes old ones",
        )  # fmt: skip


def _log_problems(table: str, folder: Path) -> Iterator[Problem]:
    """Torn commits and gaps."""
    log = folder / "_delta_log"
    numbers = sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    for number in numbers:
        try:
            read_log(folder, number)
        except LakeError as error:
            newest = number == numbers[-1]
            recovery = f"move {number:020d}.json away: its commit is lost, and `headrace run` makes it again"
            yield Problem(table, "each commit is readable", str(error), recovery if newest else _from_backup(folder))
    for earlier, later in itertools.pairwise(numbers):
        if later != earlier + 1:
            gap = f"versions {earlier + 1} to {later - 1} are missing"
            yield Problem(table, "the log has no gap", gap, _from_backup(folder))
    checkpoints = [int(path.name[:20]) for path in log.glob("*.checkpoint*.parquet") if path.name[:20].isdigit()]
    if numbers and numbers[0] > 0 and not any(number >= numbers[0] - 1 for number in checkpoints):
        yield Problem(table, "the log has no gap", f"it begins at version {numbers[0]}", _from_backup(folder))


def _from_backup(folder: Path) -> str:
    return f"get the missing part of {folder / '_delta_log'} back from a copy; what is behind it cannot be told without"


def _schema_problems(table: str, delta: DeltaTable) -> Iterator[Problem]:
    known = {field.name: field.type for field in pa.schema(delta.schema().to_arrow())}
    ours = {field.name: field.type for field in TABLES[table]}
    wrong = [f"{name} is missing" for name in ours if name not in known]
    wrong += [f"{name} is {known[name]}, not {kind}" for name, kind in ours.items() if name in known and not _same(known[name], kind)]  # fmt: skip
    if wrong:
        yield Problem(table, "its columns are those of this version", _few(wrong), _DEFECT)


def _same(known: pa.DataType, ours: pa.DataType) -> bool:
    """Whether a column holds at least what ours does, whatever fields are described as, and in whatever order."""
    if pa.types.is_list(ours):
        return pa.types.is_list(known) and _same(known.value_type, ours.value_type)
    if pa.types.is_struct(ours):
        found = {child.name: child.type for child in known} if pa.types.is_struct(known) else {}
        return all(child.name in found and _same(found[child.name], child.type) for child in ours)
    return known == ours or (pa.types.is_string(ours) and known == pa.string_view())


def _file_problems(table: str, path: Path, row: dict, *, quick: bool) -> Iterator[Problem]:
    if not path.exists():
        yield Problem(table, "every file is there", path.name, f"{row['num_records']} rows are lost; {_ASK_AGAIN}")
        return
    if path.stat().st_size != row["size_bytes"]:
        where = f"{path.name} has {path.stat().st_size} bytes, not {row['size_bytes']}"
        yield Problem(table, "every file has its size", where, f"{row['num_records']} rows are lost; {_ASK_AGAIN}")
        return
    try:
        file = pq.ParquetFile(path)
        counted = file.metadata.num_rows
        data = None if quick else file.read()
    except (OSError, pa.ArrowException) as error:
        where = f"{path.name}: {str(error)[:200]}"
        yield Problem(table, "every file can be read", where, f"{row['num_records']} rows are lost; {_ASK_AGAIN}")
        return
    if counted != row["num_records"]:
        where = f"{path.name} holds {counted} rows, the log says {row['num_records']}"
        yield Problem(table, "every file has its rows", where, _DEFECT)
    wrong = [] if data is None else [why for name in data.column_names for why in _untrue(name, data.column(name), row)]
    if wrong:
        where = f"{path.name}: {_few(wrong)}"
        yield Problem(table, "statistics are true, else readers skip rows", where, _DEFECT)
    split = set(PARTITIONED_BY.get(table, [])) - set(row.get("partition") or {})
    if split:
        yield Problem(table, "files know their partition", f"{path.name}: no {_few(sorted(split))}", _DEFECT)


def _untrue(name: str, column: pa.ChunkedArray, row: dict) -> Iterator[str]:
    """Statistics of a flat column that some value of the file contradicts."""
    nulls, low, high = ((row.get(kind) or {}).get(name) for kind in ("null_count", "min", "max"))
    if pa.types.is_nested(column.type):
        return
    if nulls is not None and nulls != column.null_count:
        yield f"{name} has {column.null_count} nulls, not {nulls}"
    if pa.types.is_boolean(column.type) or column.null_count == len(column) or (low is None and high is None):
        return
    seen = pc.call_function("min_max", [column]).as_py()
    if low is not None and low > seen["min"]:
        yield f"{name} has {seen['min']!r}, below {low!r}"
    if high is not None and high < seen["max"]:
        yield f"{name} has {seen['max']!r}, above {high!r}"
    if pa.types.is_floating(column.type) and any(
        math.isnan(value) for value in column.to_pylist() if value is not None
    ):
        yield f"{name} has bounds and a value that is no number"


def _few(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
