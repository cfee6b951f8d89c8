"""The gate between a cycle's rows and the optimizer: rates over the whole cycle, held against the declared limits."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.expectations.expectation import Expectation

from transforms.grade.outcomes import OutcomeClass
from transforms.quality.config import QualitySpec
from transforms.quality.rules import Row
from transforms.quality.suite import Finding, about, run_suite

GATE_SUITE = "cycle"
"""Name of the batch-level suite."""

MAX_DETAIL = 2_000
"""Characters a check's detail may take."""


class QualityStop(Exception):
    """A cycle's rows broke the gate: they may not train a policy. The message says what broke and how to look at it."""


@dataclass(frozen=True, slots=True)
class _Measure:
    column: str
    """Column of the table that it is about."""
    setting: str | None
    """Key of `QualitySpec` that holds the limit; None when it is not for the user to set."""
    select: str
    """What `headrace sql` shows of the rows behind it ..."""
    where: str
    """... and which of the cycle's final training rows, and how they are grouped."""
    fixed_limit: float = 0.0
    """The limit where there is no setting."""


_FAILED = "trajectory_id, outcome, failure, evidence"
_MEASURES = {
    "infra_rate": _Measure("outcome_class", "max_infra_rate", _FAILED, "AND outcome_class = 'infra'"),
    "grader_error_rate": _Measure("outcome_class", "max_grader_error_rate", _FAILED, "AND outcome_class = 'grader'"),
    "quarantine_rate": _Measure(
        "quarantine_reasons",
        "max_quarantine_rate",
        "trajectory_id, quarantine_reasons",
        "AND cardinality(quarantine_reasons) > 0",
    ),
    "duplicate_rate": _Measure(
        "completion_hash",
        "max_duplicate_rate",
        "group_id, completion_hash, count(*) AS copies",
        "AND completion_hash IS NOT NULL GROUP BY group_id, completion_hash HAVING count(*) > 1 ORDER BY copies DESC",
    ),
    "truncation_rate": _Measure(
        "finish_reason",
        "max_truncation_rate",
        "trajectory_id, completion_tokens, max_tokens",
        "AND finish_reason = 'length'",
    ),
    "repeated_episode_rate": _Measure(
        "episode_id", None, "episode_id, count(*) AS copies", "GROUP BY episode_id HAVING count(*) > 1"
    ),
    "impossible_rewarded_rate": _Measure(
        "impossible",
        "max_impossible_rewarded_rate",
        "trajectory_id, task_id, reward, program",
        "AND impossible AND reward > 0",
    ),
    "signal_rate": _Measure(
        "signals", "max_signal_rate", "trajectory_id, signals, reward", "AND cardinality(signals) > 0"
    ),
    # Reported, never a breach: a policy that solves every task, or none, gives no signal and is no defect of the data.
    "no_signal_rate": _Measure(
        "reward", None, "group_id, min(reward), max(reward)", "GROUP BY group_id", fixed_limit=1.0
    ),
}
_PRESENT = "episodes_present"
_PRESENT_QUERY = ("group_id, count(DISTINCT episode_id) AS episodes", "GROUP BY group_id ORDER BY episodes")


def check_cycle(
    rows: Sequence[Row], spec: QualitySpec, run_id: str, cycle: int, *, episodes: int
) -> list[dict[str, Any]]:
    """Measure one cycle; rows of the checks table, level `batch`, one per expectation.

    Only final rows of purpose `train` count; `episodes` is how many of them the plan asked for. Rates are shares of
    those rows; the duplicate and truncation rates are shares of those with a completion, the signal rate of those with
    a program, the rate of rewarded impossible tasks of those at such tasks. Raises SuiteError if an expectation cannot
    run.
    """
    counted = [row for row in rows if row["purpose"] == "train" and row["final"]]
    limits = {
        name: measure.fixed_limit if measure.setting is None else float(getattr(spec, measure.setting))
        for name, measure in _MEASURES.items()
    }
    expectations: list[Expectation] = [
        gxe.ExpectColumnUniqueValueCountToBeBetween(
            column="episode_id", min_value=episodes, max_value=episodes, meta=about(_PRESENT, "episode_id")
        ),
        *(
            gxe.ExpectColumnMeanToBeBetween(column=name, max_value=limit, meta=about(name, _MEASURES[name].column))
            for name, limit in limits.items()
        ),
    ]
    frame = _cycle_frame(counted)
    limits[_PRESENT] = float(episodes)
    checked_at = datetime.now(UTC)
    return [
        {
            "run_id": run_id,
            "cycle": cycle,
            "chunk": None,
            "suite": GATE_SUITE,
            "expectation": finding.name,
            "column": finding.column,
            "level": "batch",
            "success": finding.success,
            "observed": finding.observed,
            "limit": limits[finding.name],
            "rows": len(counted),
            "detail": _detail(finding, frame, counted),
            "checked_at": checked_at,
        }
        for finding in run_suite(gx.ExpectationSuite(name=GATE_SUITE, expectations=expectations), frame)
    ]


def raise_on_breach(checks: Sequence[Row]) -> None:
    """Raise QualityStop if a batch-level check did not hold, with each value, its limit and the query behind it."""
    broken = [check for check in checks if check["level"] == "batch" and not check["success"]]
    if not broken:
        return
    place = f"cycle {broken[0]['cycle']} of run {broken[0]['run_id']}"
    lines = [f"the quality gate stopped {place}: its rows broke {len(broken)} expectation(s) and train nothing"]
    for check in broken:
        name = check["expectation"]
        setting = _MEASURES[name].setting if name in _MEASURES else None
        value = "nothing to measure" if check["observed"] is None else f"{check['observed']:.6g}"
        source = f" (quality.{setting})" if setting else ""
        lines.append(f"  {name}: {value}, limit {check['limit']:.6g}{source}")
        why = (check["detail"] or "").partition("most often: ")[2].partition("; ")[0]
        lines += [f"    most often: {why}"] * bool(why) + [f'    headrace sql "{_query(check)}"']
    raise QualityStop("\n".join(lines))


def _query(check: Row) -> str:
    measure = _MEASURES.get(check["expectation"])
    select, where = (measure.select, measure.where) if measure else _PRESENT_QUERY
    run = check["run_id"].replace("'", "''")
    return (
        f"SELECT {select} FROM trajectories WHERE run_id = '{run}' AND cycle = {check['cycle']} "
        f"AND purpose = 'train' AND final {where}"
    )


def _cycle_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One line per row: its episode, and for each measure whether it counts against it, null if it does not apply."""
    copies = Counter((row["group_id"], row["completion_hash"]) for row in rows)
    episodes = Counter(row["episode_id"] for row in rows)
    rewards: dict[str, set[float]] = defaultdict(set)
    for row in rows:
        if row["reward"] is not None and not row["quarantine_reasons"]:
            rewards[row["group_id"]].add(row["reward"])
    # Where the engine answered nothing at all, the infra rate tells; rates over no completion are then 0.
    unanswered = None if any(row["completion_hash"] for row in rows) else 0.0
    possible = None if any(row["impossible"] for row in rows) else 0.0
    unsubmitted = None if any(row["program"] is not None for row in rows) else 0.0
    lines = []
    for row in rows:
        answered = row["completion_hash"] is not None
        lines.append(
            {
                "episode_id": row["episode_id"],
                "infra_rate": float(row["outcome_class"] == OutcomeClass.INFRA),
                "grader_error_rate": float(row["outcome_class"] == OutcomeClass.GRADER),
                "quarantine_rate": float(bool(row["quarantine_reasons"])),
                "duplicate_rate": float(copies[row["group_id"], row["completion_hash"]] > 1)
                if answered
                else unanswered,
                "truncation_rate": float(row["finish_reason"] == "length") if answered else unanswered,
                "repeated_episode_rate": float(episodes[row["episode_id"]] > 1),
                "impossible_rewarded_rate": float((row["reward"] or 0.0) > 0.0) if row["impossible"] else possible,
                "signal_rate": float(bool(row["signals"])) if row["program"] is not None else unsubmitted,
                "no_signal_rate": float(len(rewards[row["group_id"]]) < 2),
            }
        )
    return pd.DataFrame.from_records(lines, columns=["episode_id", *_MEASURES])


def _detail(finding: Finding, frame: pd.DataFrame, rows: Sequence[Row]) -> str | None:
    """How many rows count against a measure, and which."""
    if finding.name not in _MEASURES:
        return None
    against = [row for row, value in zip(rows, frame[finding.name], strict=True) if value == 1.0]
    failures = Counter(row["failure"] for row in against if row["failure"]).most_common(1)
    why = f"most often: {failures[0][0][:300]}; " if failures else ""
    named = ", ".join(row["trajectory_id"] for row in against)
    return f"{len(against)} of {len(rows)}: {why}{named}"[:MAX_DETAIL] if against else None
