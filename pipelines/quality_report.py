"""What the tables say of the quality of tasks and rewards: collected once, written as a page, Markdown or JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pipelines.explain import UsageError, did_you_mean
from transforms.lake.sql import literal, query
from transforms.lake.storage import Place
from transforms.quality.queries import query_behind

Row = dict[str, Any]

_MOST = 30
"""Rows of a table that names tasks, signs or reasons."""


def collect(home: Place, runs: Sequence[str]) -> Row:
    """Everything a report shows, as JSON can hold it; of the given runs, or of all. Raises UsageError: no such run.

    Keys: `verdict` (`fine`, `warn` or `stop`: the worst broken check of any run's newest cycle), `attention` (those
    checks), `checked` (how many there are of those cycles), `measures` (each batch-level check over runs and cycles),
    `broken_rows` (row-level checks that some row broke), `outcomes`, `rewards`, `components`, `tasks`, `flaky`,
    `signals`, `quarantine`: rows of the views of these names, over cycles; `made_at`, `home`, `runs`.
    """
    known = [row["run_id"] for row in query(home, "SELECT run_id FROM runs ORDER BY started_at").to_pylist()]
    for name in runs:
        if name not in known:
            raise UsageError(f"no run is named `{name}`{did_you_mean(name, known)}")
    chosen = list(runs) or known
    here = f"run_id IN ({', '.join(map(literal, chosen)) or 'NULL'})"
    checks = _newest_checks(home, here)
    last: dict[str, int] = {}
    for check in checks:
        if check["level"] != "batch":  # rows of a cycle that has not been through the gate yet
            continue
        last[check["run_id"]] = max(check["cycle"], last.get(check["run_id"], 0))
    newest = [check for check in checks if check["level"] == "batch" and check["cycle"] == last[check["run_id"]]]
    attention = sorted(
        (check for check in newest if not check["success"]), key=lambda check: check["severity"] == "warn"
    )
    severities = {check["severity"] or "stop" for check in attention}
    trained = f"{here} AND purpose = 'train'"

    def rows(sql: str) -> list[Row]:
        return query(home, sql).to_pylist()

    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "home": str(home),
        "runs": chosen,
        "verdict": "stop" if "stop" in severities else "warn" if severities else "fine",
        "checked": len(newest),
        "attention": [{**check, "query": query_behind(check)} for check in attention],
        "measures": _measures([check for check in checks if check["level"] == "batch"]),
        "broken_rows": rows(
            f"SELECT run_id, cycle, expectation, observed, checked FROM checks_over_time WHERE {here} "
            "AND level = 'row' AND NOT held ORDER BY run_id, cycle, expectation"
        ),
        "outcomes": rows(
            f"SELECT run_id, cycle, outcome, outcome_class, sum(episodes) AS episodes, sum(share) AS share "
            f"FROM outcome_mix WHERE {trained} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"
        ),
        "rewards": rows(
            f"SELECT run_id, cycle, mean_reward, pass_rate, scored, episodes FROM learning_curve WHERE {trained} "
            "ORDER BY run_id, cycle"
        ),
        "components": rows(
            f"SELECT run_id, cycle, name, mean, deviation, scored FROM reward_components WHERE {trained} "
            "ORDER BY run_id, name, cycle"
        ),
        "tasks": rows(
            f"SELECT d.run_id, d.cycle, task_id, verdict, pass_rate, scored, signal FROM task_difficulty AS d "
            f"JOIN (SELECT run_id, max(cycle) AS cycle FROM trajectories WHERE {trained} GROUP BY run_id) AS l "
            f"ON l.run_id = d.run_id AND l.cycle = d.cycle WHERE d.{trained} ORDER BY d.run_id, pass_rate, task_id"
        ),
        "flaky": rows(f"SELECT * FROM flaky_tasks ORDER BY flips DESC, flaky DESC, task_id LIMIT {_MOST}"),
        "signals": rows(
            f"SELECT run_id, cycle, kind, name, trajectories, share, passed, example FROM hack_signals WHERE {trained} "
            f"ORDER BY passed DESC, trajectories DESC, run_id, cycle LIMIT {_MOST}"
        ),
        "quarantine": rows(
            f"SELECT run_id, cycle, reason, quarantined, share, example FROM quarantine_by_reason WHERE {here} "
            f"ORDER BY quarantined DESC, run_id, cycle, reason LIMIT {_MOST}"
        ),
    }


def _newest_checks(home: Place, here: str) -> list[Row]:
    """The newest verdict of every check of every cycle: a resumed run asks the gate again."""
    found = query(
        home,
        f"""SELECT * FROM (
            SELECT *, row_number() OVER (
                PARTITION BY run_id, cycle, suite, expectation, chunk ORDER BY checked_at DESC) AS place
            FROM checks WHERE {here}
        ) WHERE place = 1 ORDER BY run_id, cycle, suite, expectation""",
    ).to_pylist()
    return [{name: value for name, value in row.items() if name != "place"} for row in found]


def _measures(checks: list[Row]) -> list[Row]:
    """Each check with its values over runs and cycles; those that are broken now come first, then by name."""
    found: dict[tuple[str, str], Row] = {}
    for check in checks:
        key = check["suite"], check["expectation"]
        measure = found.setdefault(key, {"suite": key[0], "expectation": key[1], "points": []})
        measure["points"].append({name: check[name] for name in ("run_id", "cycle", "observed", "limit", "success")})
    last = {check["run_id"]: check["cycle"] for check in checks}

    def order(measure: Row) -> tuple[bool, str, str]:
        fine = all(point["success"] for point in measure["points"] if point["cycle"] == last[point["run_id"]])
        return fine, measure["suite"], measure["expectation"]

    return sorted(found.values(), key=order)


def headline(report: Row) -> str:
    """What is wrong, in a sentence."""
    if not report["runs"]:
        return "There is no run here yet."
    if not report["checked"]:
        return "No cycle has been through the gate yet."
    broken = len(report["attention"])
    where = "the newest cycle" if len(report["runs"]) == 1 else f"the newest cycles of {len(report['runs'])} runs"
    if not broken:
        return f"All {report['checked']} checks of {where} hold."
    return f"{broken} of {report['checked']} checks of {where} need attention."


def markdown(report: Row) -> str:
    """The report for a terminal, a pull request or a chat."""
    lines = ["# Quality of tasks and rewards", "", headline(report), ""]
    for check in report["attention"]:
        lines += [
            f"- **{check['expectation']}** ({check['severity'] or 'stop'}), {check['run_id']} cycle {check['cycle']}: "
            f"{_number(check['observed'])}, limit {_number(check['limit'])}",
            f'  `headrace sql "{check["query"]}"`',
        ]
    lines += _table("Rewards of training", report["rewards"], ["run_id", "cycle", "scored", "pass_rate", "mean_reward"])
    lines += _table("How episodes end", report["outcomes"], ["run_id", "cycle", "outcome", "episodes", "share"])
    lines += _table("Reward components", report["components"], ["run_id", "cycle", "name", "mean", "deviation"])
    dull = [task for task in report["tasks"] if not task["signal"]]
    lines += _table(
        "Tasks without a signal in the newest cycle", dull, ["run_id", "task_id", "verdict", "pass_rate", "scored"]
    )
    lines += _table(
        "Tasks that grade one program two ways", report["flaky"], ["task_id", "flips", "passed_in", "failed_in"]
    )
    lines += _table(
        "Signs of cheating", report["signals"], ["run_id", "cycle", "kind", "name", "trajectories", "passed"]
    )
    lines += _table("Quarantine", report["quarantine"], ["run_id", "cycle", "reason", "quarantined", "example"])
    lines += _table(
        "Rows that broke an expectation", report["broken_rows"], ["run_id", "cycle", "expectation", "observed"]
    )
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[Row], columns: list[str]) -> list[str]:
    if not rows:
        return []
    body = ["| " + " | ".join(_cell(row[name]) for name in columns) + " |" for row in rows]
    return ["", f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *body]


def _cell(value: object) -> str:
    """A value in one line of a table; what would end the cell, or be markup, is escaped."""
    text = _number(value) if isinstance(value, float | None) else " ".join(str(value).split())
    return "".join(f"\\{char}" if char in "\\|`*<>[]" else char for char in text)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
