"""What one row of the smaller tables must satisfy beyond what a flat column can say. See `rules` for the form."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from transforms.lake.schemas import TABLES

Row = Mapping[str, Any]


def columns_filled(table: str) -> Callable[[Row], str | None]:
    """A rule: every column that this table's schema declares not null holds something."""
    required = [column.name for column in TABLES[table] if not column.nullable]

    def rule(row: Row) -> str | None:
        absent = [name for name in required if row[name] is None]
        return f"null: {', '.join(absent)}" if absent else None

    return rule


def policy_descends(row: Row) -> str | None:
    """A policy version descends from the one before it and names its batch; the base policy has neither."""
    version, parent = row["policy_version"], row["parent_version"]
    if parent != (version - 1 if version else None):
        return f"version {version} with the parent {parent}"
    return None if (row["batch_hash"] is None) == (version == 0) else f"version {version}, batch {row['batch_hash']}"


def consumed_belongs(row: Row) -> str | None:
    """What a policy was trained on: finite advantages, tokens in the loss, and steps that the policy's row has."""
    steps = {step["optimizer_step"] for step in row["optimizer_steps"] or []}
    for used in row["consumed"]:
        if used["optimizer_step"] not in steps:
            return f"{used['trajectory_id']} in optimizer step {used['optimizer_step']}, which is not there"
        if used["advantage"] is None or not math.isfinite(used["advantage"]) or used["tokens"] < 1:
            return f"{used['trajectory_id']}: advantage {used['advantage']}, {used['tokens']} tokens"
    return None


def steps_in_order(row: Row) -> str | None:
    """Optimizer steps follow one another without a gap."""
    numbers = [step["optimizer_step"] for step in row["optimizer_steps"] or []]
    wanted = list(range(numbers[0], numbers[0] + len(numbers))) if numbers else []
    return None if numbers == wanted else f"optimizer steps {numbers[:20]}"


def step_finite(row: Row) -> str | None:
    """Every number of an optimizer step is finite where it is given; loss and gradient norm are."""
    for name, value in row.items():
        if (value is None and name in ("loss", "grad_norm")) or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name} {value}"
    return None


def check_limited(row: Row) -> str | None:
    """A check has a value and a limit, unless it failed for want of anything to measure."""
    if row["limit"] is None or (row["success"] and row["observed"] is None):
        return f"value {row['observed']}, limit {row['limit']}"
    return None


def json_readable(*columns: str) -> Callable[[Row], str | None]:
    """A rule: what these columns hold is JSON, or null."""

    def rule(row: Row) -> str | None:
        for column in columns:
            try:
                json.loads(row[column] or "null")
            except ValueError as error:
                return f"{column} is no JSON: {error}"
        return None

    return rule


TABLE_RULES: dict[str, Callable[[Row], str | None]] = {
    **{
        f"{table}_filled": columns_filled(table)
        for table in ("policies", "checks", "runs", "events", "images", "tasks")
    },
    "policy_descends": policy_descends,
    "consumed_belongs": consumed_belongs,
    "steps_in_order": steps_in_order,
    "step_finite": step_finite,
    "check_limited": check_limited,
    "event_detail_readable": json_readable("detail"),
    "run_versions_readable": json_readable("versions"),
    "task_record_readable": json_readable("record"),
}
"""Each rule by name; suites name them so."""
