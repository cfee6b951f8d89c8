"""The queries behind checks: what `headrace sql` shows of the rows. Imports nothing of Great Expectations."""

import json
from functools import cache
from typing import Any

from transforms.lake.sql import literal
from transforms.quality.config import SUITES
from transforms.quality.rules import Row

GATE_SUITE = "cycle"
"""Name of the batch-level suite, whose file says what each measure is about."""

_ASKED = "(SELECT {column} FROM trajectories WHERE run_id = {run} AND cycle = {cycle})"
QUERIES = {
    "policies": "SELECT * FROM policies WHERE run_id = {run} ORDER BY policy_version",
    "checks": "SELECT * FROM checks WHERE run_id = {run} AND cycle = {cycle} AND level = 'row'",
    "runs": "SELECT * FROM runs WHERE run_id = {run}",
    "events": "SELECT * FROM events WHERE run_id = {run} ORDER BY at",
    "images": "SELECT * FROM images WHERE digest IN " + _ASKED.replace("{column}", "image_digest"),
    "tasks": "SELECT * FROM tasks WHERE task_hash IN " + _ASKED.replace("{column}", "task_hash"),
}
"""By table, the query for its rows that belong to a cycle of a run."""


def table_query(suite: str, run: str, cycle: int) -> str:
    """The query for the rows that a suite looks at; `run` is the run's id as an SQL string."""
    return QUERIES["policies" if suite == "optimizer_steps" else suite].format(run=run, cycle=cycle)


@cache
def gate_measures() -> dict[str, dict[str, Any]]:
    """What the gate's file says of each expectation: its setting, and the query behind its value."""
    declared = json.loads((SUITES / f"{GATE_SUITE}.json").read_text(encoding="utf-8"))
    return {expectation["meta"]["name"]: expectation["meta"] for expectation in declared["expectations"]}


def query_behind(check: Row) -> str:
    """The query that shows the rows behind a batch-level check."""
    run, cycle = literal(check["run_id"]), check["cycle"]
    if check["suite"] != GATE_SUITE:
        return table_query(check["suite"], run, cycle)
    measure = gate_measures()[check["expectation"]]
    if measure.get("across") == "all":
        where = f"run_id = {run}"
    else:
        where = f"run_id = {run} AND cycle {'<=' if measure.get('across') else '='} {cycle}"
        where += " AND purpose = 'train' AND final"
    return f"SELECT {measure['select']} FROM trajectories WHERE {where} {measure['where'].replace('{run}', run)}"
