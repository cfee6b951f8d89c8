import random
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.builders import START, a_test, trajectory_row
from transforms.lake.errors import QueryError
from transforms.lake.schemas import TABLES
from transforms.lake.sql import literal, query, views
from transforms.lake.table import Lake

Rows = list[dict[str, object]]


def step(dice: random.Random) -> dict[str, object]:
    start = START + timedelta(microseconds=dice.randrange(10**9))
    return {
        "kind": dice.choice(["rollout", "execute"]),
        "state": "s",
        "action": f"{dice.random()}",
        "observation": dice.choice([None, "", "é'\n"]),
        "workspace_digest": None,
        "output_digest": None,
        "wall_s": dice.random(),
        "cpu_s": dice.choice([None, 0.5]),
        "peak_memory_bytes": dice.choice([None, dice.randrange(10**12)]),
        "started_at": start,
        "ended_at": start + timedelta(seconds=1),
    }


def case(dice: random.Random) -> dict[str, object]:
    made = a_test(f"{dice.random()}", dice.choice(["visible", "hidden"]), dice.choice(["passed", "time_limit"]))
    told = {name: dice.choice([None, "x"]) for name in ("milestone", "got", "expected_type", "location")}
    return {**made, "message": None, "duration_s": dice.random(), **told}


def random_trajectory(dice: random.Random, number: int) -> dict[str, object]:
    """Any mixture of outcomes, with lists that are null, empty or filled."""
    outcome, outcome_class, reward = dice.choice([
        ("passed", "policy", 1.0), ("failed_tests", "policy", 0.0), ("failed_tests", "policy", 0.25),
        ("sandbox_lost", "infra", None), ("grader_error", "grader", None),
    ])  # fmt: skip
    return trajectory_row(
        trajectory_id=f"t{number}",
        run_id=dice.choice(["r1", "r2"]),
        cycle=dice.randrange(3),
        purpose=dice.choice(["train", "eval_greedy"]),
        final=dice.random() < 0.8,
        outcome=outcome,
        outcome_class=outcome_class,
        reward=reward,
        completion_tokens=dice.choice([None, dice.randrange(100)]),
        steps=dice.choice([None, [], [step(dice)], [step(dice) for _ in range(3)]]),
        tests=dice.choice([None, [], [case(dice)], [case(dice) for _ in range(4)]]),
        quarantine_reasons=[f"reason {i}" for i in range(dice.randrange(3))],
    )


@pytest.fixture
def written(lake: Lake) -> Rows:
    """120 random trajectories over five commits."""
    dice = random.Random(20260102)
    rows = [random_trajectory(dice, number) for number in range(120)]
    for version in range(5):
        lake.append("trajectories", rows[version * 24 : (version + 1) * 24], app_id="r", version=version)
    return rows


def by_trajectory(table: pa.Table, *keys: str) -> Rows:
    return sorted(table.to_pylist(), key=lambda row: tuple(row[key] for key in keys))


def unnested(rows: Rows, column: str, place: str) -> Rows:
    kept = ("trajectory_id", "run_id", "cycle", "purpose", "task_id", "policy_version", "attempt", "final")
    flat = []
    for row in rows:
        elements = row[column] or []
        assert isinstance(elements, list)
        for number, element in enumerate(elements, start=1):
            flat.append({**{name: row[name] for name in kept}, place: number, **element})
    return sorted(flat, key=lambda row: (row["trajectory_id"], row[place]))


def test_a_row_comes_back_as_it_was_written(lake: Lake, written: Rows):
    assert by_trajectory(query(lake.home, "SELECT * FROM trajectories"), "trajectory_id") == sorted(
        written, key=lambda row: str(row["trajectory_id"])
    )


def test_every_table_reads_back_with_the_types_of_its_schema(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    for table, schema in TABLES.items():
        columns = ", ".join(f'"{name}"' for name in schema.names)
        read = query(lake.home, f"SELECT {columns} FROM {table}").schema
        for field in schema:
            assert read.field(field.name).type.equals(field.type) or str(read.field(field.name).type) == str(
                field.type
            ).replace("item:", "element:"), field.name


def test_steps(lake: Lake, written: Rows):
    expected = unnested(written, "steps", "step")
    assert len(expected) > 50
    assert by_trajectory(query(lake.home, "SELECT * FROM steps"), "trajectory_id", "step") == expected


def test_tests(lake: Lake, written: Rows):
    expected = unnested(written, "tests", "test")
    assert len(expected) > 50
    assert by_trajectory(query(lake.home, "SELECT * FROM tests"), "trajectory_id", "test") == expected


def test_quarantine(lake: Lake, written: Rows):
    expected = sorted(
        (str(row["trajectory_id"]), row["outcome"], reason)
        for row in written
        for reason in row["quarantine_reasons"]  # ty: ignore[not-iterable]
    )
    read = query(lake.home, "SELECT trajectory_id, outcome, reason FROM quarantine").to_pylist()
    assert sorted(tuple(row.values()) for row in read) == expected
    grouped = query(lake.home, "SELECT reason, count(*) AS n FROM quarantine GROUP BY reason").to_pylist()
    assert {row["reason"]: row["n"] for row in grouped} == Counter(reason for _, _, reason in expected)


def test_learning_curve(lake: Lake, written: Rows):
    groups: dict[tuple[object, ...], Rows] = defaultdict(list)
    for row in written:
        if row["final"]:
            groups[row["run_id"], row["cycle"], row["purpose"]].append(row)
    curve = query(lake.home, "SELECT * FROM learning_curve").to_pylist()
    assert len(curve) == len(groups) == 12
    assert any(row["scored"] for row in curve)
    for row in curve:
        group = groups[row["run_id"], row["cycle"], row["purpose"]]
        valid = [one for one in group if not one["quarantine_reasons"]]
        rewards = [float(str(one["reward"])) for one in valid if one["reward"] is not None]
        tokens = [one["completion_tokens"] for one in group if isinstance(one["completion_tokens"], int)]
        assert (row["episodes"], row["scored"]) == (len(group), len(rewards))
        if rewards:
            assert row["mean_reward"] == pytest.approx(sum(rewards) / len(rewards))
            assert row["pass_rate"] == pytest.approx(sum(reward == 1.0 for reward in rewards) / len(rewards))
        assert row["infra_rate"] == pytest.approx(sum(one["outcome_class"] == "infra" for one in group) / len(group))
        assert row["completion_tokens"] == sum(tokens)


def test_learning_curve_without_a_scored_row(lake: Lake):
    lost = trajectory_row(outcome="sandbox_lost", outcome_class="infra", reward=None)
    first_try = trajectory_row(final=False)
    lake.append("trajectories", [lost, first_try], app_id="r", version=0)
    [row] = query(lake.home, "SELECT * FROM learning_curve").to_pylist()
    assert row == {
        "run_id": "run-1", "cycle": 1, "purpose": "train", "episodes": 1, "scored": 0, "mean_reward": None,
        "pass_rate": None, "infra_rate": 1.0, "completion_tokens": 4,
    }  # fmt: skip


def policy(version: int, consumed: Rows) -> dict[str, object]:
    return {
        "run_id": "r", "policy_version": version, "parent_version": None, "checkpoint": "c", "weights_hash": "w",
        "batch_hash": None, "trajectories_version": None, "spec_hash": "s", "optimizer_steps": None,
        "consumed": consumed, "created_at": START,
    }  # fmt: skip


def test_consumption_leads_from_an_optimizer_step_to_its_trajectories(lake: Lake):
    used: Rows = [
        {"trajectory_id": "t1", "optimizer_step": 1, "advantage": 0.5, "tokens": 7},
        {"trajectory_id": "t2", "optimizer_step": 1, "advantage": -0.5, "tokens": 9},
        {"trajectory_id": "t1", "optimizer_step": 2, "advantage": 0.5, "tokens": 7},
    ]
    lake.append("policies", [policy(0, []), policy(1, used)], app_id="r", version=0)
    lake.append("trajectories", [trajectory_row(trajectory_id="t1", task_id="sum")], app_id="r", version=0)
    read = query(lake.home, "SELECT * FROM consumption ORDER BY optimizer_step, trajectory_id").to_pylist()
    assert read == [{"run_id": "r", "policy_version": 1, **row} for row in used]
    joined = query(
        lake.home,
        "SELECT c.optimizer_step, t.task_id FROM consumption AS c JOIN trajectories AS t "
        "ON t.trajectory_id = c.trajectory_id ORDER BY 1",
    )
    assert joined.to_pylist() == [{"optimizer_step": 1, "task_id": "sum"}, {"optimizer_step": 2, "task_id": "sum"}]


@pytest.mark.parametrize("view", views())
def test_a_view_says_what_a_row_is_and_its_example_runs(lake: Lake, view: str):
    comment = [line.removeprefix("--").strip() for line in views()[view].splitlines() if line.startswith("--")]
    assert comment[0].startswith("One row is one ")
    example = " ".join(comment).partition("Example: ")[2].partition(";")[0]
    assert view in example
    assert query(lake.home, example).num_rows == 0  # of a lake that does not exist yet
    assert list(lake.work.iterdir()) == []


def test_text_is_text_and_order_is_kept(lake: Lake):
    for version, task in enumerate(["it's", '"; DROP TABLE trajectories', "a\\b"]):
        lake.append("trajectories", [trajectory_row(task_id=task, sample=version)], app_id="r", version=version)
    for task in ["it's", '"; DROP TABLE trajectories', "a\\b"]:
        found = query(lake.home, f"SELECT task_id FROM trajectories WHERE task_id = {literal(task)}")
        assert found.to_pylist() == [{"task_id": task}]
    ordered = query(lake.home, "SELECT sample FROM trajectories ORDER BY sample DESC;  -- the last first")
    assert ordered.column("sample").to_pylist() == [2, 1, 0]


def test_names_are_not_case_sensitive(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    assert query(lake.home, "select COUNT(*) as N from Steps where Run_ID = 'run-1'").to_pylist() == [{"n": 2}]


def test_columns_can_be_grouped_in_arrow(lake: Lake):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    assert query(lake.home, "SELECT task_id FROM trajectories").group_by("task_id").aggregate([]).num_rows == 1


ONLY = "only queries are run here (SELECT, WITH or VALUES), one at a time: "
BODY = 'SQL error: ParserError("Expected: SELECT, VALUES, or a subquery in the query body, found: '
MISTAKES = {
    "SELECT rewrad FROM trajectories": "Schema error: No field named rewrad.\n\nhint: did you mean `reward`?",
    "SELECT t.rewrad FROM trajectories AS t": "Schema error: No field named t.rewrad.\n\nhint: did you mean `reward`?",
    "SELECT zzz FROM quarantine": (
        "Schema error: No field named zzz.\n\nhint: there are trajectory_id, run_id, cycle, purpose, task_id, "
        "policy_version, outcome, reason"
    ),
    "SELECT messages[1]['rol'] FROM trajectories": (
        "Error during planning: Field rol not found in struct\n\nhint: did you mean `role`?"
    ),
    "SELECT 1 FROM trajectory": (
        "Error during planning: table 'datafusion.public.trajectory' not found\n\nhint: did you mean `trajectories`?"
    ),
    "SELECT 1 FROM zzz": (
        "Error during planning: table 'datafusion.public.zzz' not found\n\nhint: there are trajectories, tasks, "
        f"policies, checks, runs, events, images, {', '.join(views())}"
    ),
    "SELECT 1\nFROM trajectories LIMIT LIMIT 2 3": (
        'SQL error: ParserError("Expected: end of statement, found: 2 at Line: 2, Column: 31")'
    ),
    "SELECT fooo(1)": "Error during planning: Invalid function 'fooo'.\nDid you mean 'floor'?",
    "SELECT 1 / (sample - sample) FROM trajectories": "External error: Arrow error: Divide by zero error",
    "SELEC 1": ONLY + BODY + 'SELEC at Line: 1, Column: 1")',
    "": ONLY + BODY + 'EOF")',
    "DROP TABLE trajectories": ONLY + BODY + 'DROP at Line: 1, Column: 1")',
    "EXPLAIN ANALYZE SELECT 1": ONLY + BODY + 'EXPLAIN at Line: 1, Column: 1")',
    "SET datafusion.execution.batch_size = 1": ONLY + BODY + 'SET at Line: 1, Column: 1")',
    "CREATE TABLE x AS SELECT 1": ONLY + BODY + 'CREATE at Line: 1, Column: 1")',
    "SELECT 1; DROP TABLE trajectories": (
        ONLY + "This feature is not implemented: The context currently only supports a single SQL statement"
    ),
}


@pytest.mark.parametrize(("sql", "message"), MISTAKES.items(), ids=[sql[:40] for sql in MISTAKES])
def test_a_mistake_is_explained(lake: Lake, sql: str, message: str):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    with pytest.raises(QueryError) as caught:
        query(lake.home, sql)
    assert str(caught.value) == message


WRITES = [
    "INSERT INTO trajectories SELECT * FROM trajectories",
    "WITH t AS (SELECT 1) INSERT INTO trajectories SELECT * FROM trajectories",
    "DELETE FROM trajectories",
    "WITH t AS (SELECT 1) DELETE FROM trajectories",
    "WITH t AS (DELETE FROM trajectories) SELECT 1",
    "SELECT * FROM (DELETE FROM trajectories) AS t",
    "UPDATE trajectories SET sample = 1",
    "MERGE INTO trajectories AS t USING trajectories AS u ON t.task_id = u.task_id WHEN MATCHED THEN DELETE",
    "EXPLAIN ANALYZE DELETE FROM trajectories",
    "COPY (SELECT 1) TO '{folder}/copy.parquet'",
    "CREATE EXTERNAL TABLE x (a INT) STORED AS CSV LOCATION '{folder}'",
    "SELECT 1) TO '{folder}/copy.parquet' --",
]


@pytest.mark.parametrize("sql", WRITES, ids=[sql[:40] for sql in WRITES])
def test_nothing_is_written(lake: Lake, tmp_path: Path, sql: str):
    lake.append("trajectories", [trajectory_row()], app_id="r", version=0)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(QueryError):
        query(lake.home, sql.replace("{folder}", str(tmp_path)))
    assert sorted(path for path in tmp_path.rglob("*")) == before
