import json
import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest

from tests.builders import START, trajectory_row
from transforms.lake.errors import SchemaMismatch
from transforms.lake.sql import literal, query
from transforms.lake.table import Lake

LETTERS = ["a", "b", "z", "é", "日", "\U0001f600", "\U0010ffff", "\0", " "]


def text(dice: random.Random) -> str | None:
    match dice.randrange(4):
        case 0:
            return None
        case 1:
            return "".join(dice.choices(LETTERS, k=dice.randrange(5)))
        case 2:  # alike up to the cut, so that only a true bound tells them apart
            return "b" * dice.randrange(30, 35) + "".join(dice.choices(LETTERS, k=dice.randrange(4)))
    return "\U0010ffff" * dice.randrange(30, 36) + "".join(dice.choices(LETTERS, k=dice.randrange(3)))


def number(dice: random.Random) -> float | None:
    return dice.choice([None, 0.0, -0.0, dice.uniform(-2, 2), dice.uniform(-2, 2), math.inf, -math.inf, 5e-324])


def random_rows(dice: random.Random, count: int) -> list[dict[str, object]]:
    """Rows whose values lie close enough together within a file for some files to be skipped."""
    start = START + timedelta(microseconds=dice.randrange(3000))
    return [
        trajectory_row(
            trajectory_id=f"{dice.random()}",
            program=text(dice),
            reward=number(dice),
            cpu_s=dice.choice([None, math.nan, 1.0]) if dice.random() < 0.2 else dice.uniform(0, 1),
            peak_memory_bytes=dice.choice([None, 2**62 + dice.randrange(9), -(2**63)]),
            started_at=start + timedelta(microseconds=dice.randrange(500)),
        )
        for _ in range(count)
    ]


def order(value: object) -> tuple[int, int] | bytes | object:
    """The order engines use: text by its bytes, floats in IEEE total order (-0.0 below 0.0, NaN on top)."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        bits = struct.unpack(">q", struct.pack(">d", value))[0]
        return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF) - 1
    return value


@pytest.mark.parametrize("seed", range(15))
def test_bounds_hold_for_every_value(lake: Lake, log: Callable[[str], list[dict[str, dict]]], seed: int):
    rows = random_rows(random.Random(seed), 1 + seed * 3)
    lake.append("trajectories", rows, app_id="r", version=0)
    [add] = [action["add"] for action in log("trajectories") if "add" in action]
    stats = json.loads(add["stats"])
    assert "\\u" not in add["stats"].replace("\\u0000", "")  # see files.statistics
    assert stats["numRecords"] == len(rows)
    for name in ("program", "reward", "cpu_s", "peak_memory_bytes", "started_at"):
        values = [row[name] for row in rows if row[name] is not None]
        assert stats["nullCount"][name] == len(rows) - len(values)
        for bounds, holds in (("minValues", lambda bound, v: bound <= v), ("maxValues", lambda bound, v: bound >= v)):
            if name in stats[bounds]:
                bound = stats[bounds][name]
                bound = datetime.fromisoformat(bound) if name == "started_at" else bound
                broken = [value for value in values if not holds(order(bound), order(value))]
                assert broken == [], (name, bounds, bound)


def test_bounds_worked_out_by_hand(lake: Lake, log: Callable[[str], list[dict[str, dict]]]):
    rows = [
        trajectory_row(program="a" * 40, reward=0.0, cpu_s=math.nan, peak_memory_bytes=5, failure="x"),
        trajectory_row(program="b" * 33, reward=-0.0, cpu_s=1.0, peak_memory_bytes=None, failure="y" * 31 + "日本"),
    ]
    lake.append("trajectories", rows, app_id="r", version=0)
    [add] = [action["add"] for action in log("trajectories") if "add" in action]
    stats = json.loads(add["stats"])
    low, high = stats["minValues"], stats["maxValues"]
    assert (low["program"], high["program"]) == ("a" * 32, "b" * 32 + "\U0010ffff")
    assert (low["failure"], high["failure"]) == ("x", "y" * 31 + "日" + "\U0010ffff")
    assert (str(low["reward"]), str(high["reward"])) == ("-0.0", "0.0")
    assert "cpu_s" not in low | high
    assert (low["peak_memory_bytes"], high["peak_memory_bytes"]) == (5, 5)
    assert (low["started_at"], high["started_at"]) == ("2026-01-02T03:04:05.678901Z",) * 2
    assert stats["nullCount"]["peak_memory_bytes"] == 1
    assert "evidence" not in low
    assert stats["nullCount"]["evidence"] == 2
    assert not {"run_id", "cycle", "steps"} & (set(low) | set(stats["nullCount"]))
    assert add["partitionValues"] == {"run_id": "run-1", "cycle": "1"}


@pytest.mark.parametrize("seed", range(2))
def test_skipping_files_gives_the_same_answers(lake: Lake, seed: int):
    dice = random.Random(seed)
    files = [random_rows(dice, dice.randrange(1, 8)) for _ in range(6)]
    for version, rows in enumerate(files):
        lake.append("trajectories", rows, app_id="r", version=version)
    rows = [row for part in files for row in part]
    for name in ("program", "reward", "cpu_s", "peak_memory_bytes", "started_at"):
        known = [row[name] for row in rows if row[name] is not None]
        for value in dice.sample(known, k=min(8, len(known))):
            if isinstance(value, str):
                written = literal(value)
            elif isinstance(value, datetime):
                written = f"TIMESTAMP '{value.isoformat()}'"
            elif isinstance(value, float) and not math.isfinite(value):
                written = f"CAST('{value}' AS DOUBLE)"
            else:
                written = repr(value)
            for sign in ("=", "<", ">="):
                condition = f"{name} {sign} {written}"
                # the same condition in a form that no statistics can answer
                full = f"CASE WHEN {condition} THEN TRUE ELSE FALSE END"
                counts = [
                    query(lake.home, f"SELECT count(*) AS n FROM trajectories WHERE {where}").to_pylist()
                    for where in (condition, full)
                ]
                assert counts[0] == counts[1], condition
                if sign == "=" and value == value and value != 0:
                    assert counts[0] == [{"n": known.count(value)}], condition
    largest = query(lake.home, "SELECT max(program) AS p, min(started_at) AS s, max(started_at) AS e FROM trajectories")
    times = [row["started_at"] for row in rows if isinstance(row["started_at"], datetime)]
    programs = [row["program"] for row in rows if isinstance(row["program"], str)]
    assert largest.to_pylist() == [{"p": max(programs, key=str.encode), "s": min(times), "e": max(times)}]


def test_files_that_cannot_match_are_not_opened(lake: Lake):
    for version, reward in enumerate([0.0, 1.0]):
        lake.append("trajectories", [trajectory_row(reward=reward, cycle=1)], app_id="r", version=version)
    low = lake.write_files("trajectories", [trajectory_row(reward=0.0, cycle=2)])
    lake.commit("trajectories", low, app_id="r", version=2)
    (lake.path("trajectories") / low[0].path).unlink()
    sql = "SELECT trajectory_id FROM trajectories WHERE "
    assert query(lake.home, sql + "reward > 0.5").num_rows == 1
    assert query(lake.home, sql + "cycle = 1").num_rows == 2


def test_one_file_a_partition_and_values_from_the_log(lake: Lake, log: Callable[[str], list[dict[str, dict]]]):
    strange = "a b/%2F=é"
    places = [(run, cycle) for run in ("r-1", strange) for cycle in (0, 10, 0)]
    rows = [trajectory_row(run_id=run, cycle=cycle, program=f"{run} {cycle}") for run, cycle in places]
    files = lake.write_files("trajectories", rows)
    assert [(file.rows, dict(file.partition_values)) for file in files] == [
        (2, {"run_id": "r-1", "cycle": "0"}), (1, {"run_id": "r-1", "cycle": "10"}),
        (2, {"run_id": strange, "cycle": "0"}), (1, {"run_id": strange, "cycle": "10"}),
    ]  # fmt: skip
    assert [file.path.rpartition("/")[0] for file in files] == ["run_id=r-1/cycle=0", "run_id=r-1/cycle=10", "", ""]
    lake.commit("trajectories", files, app_id="r", version=0)
    counts = query(
        lake.home, "SELECT run_id, cycle, program, count(*) FROM trajectories GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    assert [tuple(row.values()) for row in counts.to_pylist()] == [
        (strange, 0, f"{strange} 0", 2), (strange, 10, f"{strange} 10", 1), ("r-1", 0, "r-1 0", 2),
        ("r-1", 10, "r-1 10", 1),
    ]  # fmt: skip


def test_an_empty_partition_value_is_refused(lake: Lake):
    with pytest.raises(SchemaMismatch) as caught:
        lake.write_files("trajectories", [trajectory_row(), trajectory_row(run_id="")])
    assert str(caught.value) == (
        "table trajectories, row 1, field run_id: empty, but the table is split by it: it must have a value"
    )
    assert list(lake.path("trajectories").rglob("*.parquet")) == []


def test_files_are_zstd_parquet_with_statistics(lake: Lake):
    [file] = lake.write_files("trajectories", [trajectory_row()])
    path = lake.path("trajectories") / file.path
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert (chunk.path_in_schema, chunk.compression, chunk.statistics.min) == (
        "trajectory_id", "ZSTD", "run-1/1/train/add/0/1",
    )  # fmt: skip
    assert path.stat().st_size == file.size
    assert abs(datetime.now(UTC).timestamp() * 1000 - file.modified_ms) < 60_000
