"""The gate between a cycle's rows and the optimizer: rates over the whole cycle, held against the declared limits."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from transforms.grade.outcomes import OutcomeClass
from transforms.quality.config import QualitySpec
from transforms.quality.past import Past, Total, length_drift, reward_drift
from transforms.quality.queries import GATE_SUITE, gate_measures, query_behind
from transforms.quality.rules import Row
from transforms.quality.suite import MAX_DETAIL, Finding, load_suite, run_suite, version_of

_PRESENT = "episodes_present"


class QualityStop(Exception):
    """A cycle's rows broke the gate: they may not train a policy. The message says what broke and how to look at it."""


def check_cycle(
    rows: Sequence[Row], spec: QualitySpec, run_id: str, cycle: int, *, groups: Mapping[str, int], past: Past
) -> list[dict[str, Any]]:
    """Measure one cycle; rows of the checks table, level `batch`, one per expectation.

    Only final rows of purpose `train` count; `groups` says how many of them the plan asked for, by group. Rates are
    shares of those rows; the duplicate and truncation rates are shares of those with a completion, the signal rate of
    those with a program, the rate of rewarded impossible tasks of those at such tasks, the missing group rate of the
    planned groups. Raises SuiteError if an expectation cannot run.
    """
    counted = [row for row in rows if row["purpose"] == "train" and row["final"]]
    limits = {
        meta["name"]: float(getattr(spec, meta["setting"])) if meta["setting"] else 0.0
        for meta in gate_measures().values()
    }
    limits[_PRESENT] = float(sum(groups.values()))
    totals = {
        "missing_group_rate": _missing_groups(counted, groups),
        "reward_drift": reward_drift(counted, past),
        "length_drift": length_drift(counted, past),
    }
    frame = _cycle_frame(counted, past, {name: total.value for name, total in totals.items()})
    suite = load_suite(GATE_SUITE)
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
            "detail": totals[finding.name].detail if finding.name in totals else _detail(finding, frame, counted),
            "checked_at": checked_at,
            "suite_version": version_of(suite),
            "severity": spec.level(finding.name),
        }
        for finding in run_suite(suite, frame, limits)
    ]


def raise_on_breach(checks: Sequence[Row]) -> None:
    """Raise QualityStop if a batch-level check of severity `stop` did not hold, with all that did not: each value, its
    limit and the query behind it."""
    broken = [check for check in checks if _broken(check) and check["severity"] == "stop"]
    if not broken:
        return
    place = f"cycle {broken[0]['cycle']} of run {broken[0]['run_id']}"
    head = f"the quality gate stopped {place}: its rows broke {len(broken)} expectation(s) and train nothing"
    raise QualityStop("\n".join([head, *(_told(check) for check in broken)]))


def warnings_of(checks: Sequence[Row]) -> list[str]:
    """What the batch-level checks of severity `warn` that did not hold say, one text each."""
    return [f"WARNING: {_told(check).lstrip()}" for check in checks if _broken(check) and check["severity"] == "warn"]


def _broken(check: Row) -> bool:
    return check["level"] == "batch" and not check["success"]


def _told(check: Row) -> str:
    setting = gate_measures().get(check["expectation"], {}).get("setting")
    value = "nothing to measure" if check["observed"] is None else f"{check['observed']:.6g}"
    source = f" (quality.{setting})" if setting else ""
    detail = check["detail"] or ""
    why = detail.partition("most often: ")[2].partition("; ")[0]
    lines = [f"  {check['expectation']}: {value}, limit {check['limit']:.6g}{source}"]
    lines += [f"    most often: {why}"] * bool(why)
    lines += [f"    {detail[:300]}"] * (check["expectation"] not in gate_measures())
    return "\n".join([*lines, f'    headrace sql "{query_behind(check)}"'])


def _cycle_frame(rows: Sequence[Row], past: Past, totals: Mapping[str, float]) -> pd.DataFrame:
    """One line per row: its episode, and for each measure whether it counts against it, null if it does not apply.

    A total, which belongs to no row, stands in every line: the mean, which the file's expectations look at, is itself.
    """
    copies = Counter((row["group_id"], row["completion_hash"]) for row in rows)
    episodes = Counter(row["episode_id"] for row in rows)
    attempts = Counter(row["trajectory_id"] for row in rows)
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
                "repeated_trajectory_rate": float(
                    attempts[row["trajectory_id"]] > 1 or row["trajectory_id"] in past.repeated
                ),
                "train_eval_overlap_rate": float(row["task_hash"] in past.evaluated),
                **totals,
            }
        )
    return pd.DataFrame.from_records(
        lines, columns=["episode_id", *(name for name in gate_measures() if name != _PRESENT)]
    )


def _missing_groups(rows: Sequence[Row], groups: Mapping[str, int]) -> Total:
    there = {row["group_id"] for row in rows if row["reward"] is not None and not row["quarantine_reasons"]}
    missing = sorted(set(groups) - there)
    detail = f"{len(missing)} of {len(groups)}: {', '.join(missing)}"[:MAX_DETAIL] if missing else None
    return Total(len(missing) / max(len(groups), 1), detail)


def _detail(finding: Finding, frame: pd.DataFrame, rows: Sequence[Row]) -> str | None:
    """How many rows count against a measure, and which."""
    if finding.name == _PRESENT:
        return None
    against = [row for row, value in zip(rows, frame[finding.name], strict=True) if value == 1.0]
    failures = Counter(row["failure"] for row in against if row["failure"]).most_common(1)
    why = f"most often: {failures[0][0][:300]}; " if failures else ""
    named = ", ".join(row["trajectory_id"] for row in against)
    return f"{len(against)} of {len(rows)}: {why}{named}"[:MAX_DETAIL] if against else None
