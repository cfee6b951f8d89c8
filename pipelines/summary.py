"""What a run came to: the table at its end, and a page that needs neither network nor scripts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from rich.table import Table
from rich.text import Text

from pipelines.curve import Curve, Point, draw
from pipelines.rate import Rate
from transforms.lake.sql import literal, query
from transforms.lake.storage import Place
from transforms.lake.table import Lake

STAGES = ("rollout", "quality", "train")
"""Stages that a cycle consists of."""
_LONGEST = 6000
_MOST_TASKS = 300


@dataclass(frozen=True, slots=True)
class Cycle:
    """One training cycle as the tables tell it. None where nothing was scored, or no such row exists."""

    cycle: int
    policy_version: int
    reward: Rate | None
    passed: Rate | None
    episodes: int
    infra_rate: float
    quarantined: int
    tokens: int
    """Tokens sampled. A retry runs the same answer again and samples none."""
    seconds: dict[str, float]
    """Seconds by stage, all sessions of the run together."""
    produced: int | None
    """Version of the policy that the cycle produced."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The held-out tasks asked of one policy version."""

    policy_version: int
    greedy: Rate | None
    sampled: Rate | None
    tasks: int


@dataclass(frozen=True, slots=True)
class Results:
    """Everything the table and the page show of a run."""

    run: dict[str, Any]
    cycles: list[Cycle]
    evaluations: list[Evaluation]
    """In order of policy version: the first is before training, the last after."""

    @property
    def evidence(self) -> str:
        """One plain sentence: what training did to the held-out tasks."""
        if len(self.evaluations) < 2:
            return "No evidence yet: the held-out tasks were not answered both before and after training."
        before, after = self.evaluations[0], self.evaluations[-1]
        pairs = (("", before.sampled, after.sampled), ("greedy ", before.greedy, after.greedy))
        for kind, first, last in pairs:
            if first is None or last is None:
                continue
            if first.high < last.low or last.high < first.low:
                moved = "rose" if last.mean > first.mean else "fell"
                return f"Held-out {kind}pass rate {moved} from {first} to {last}: the intervals do not overlap."
            return (
                f"Held-out {kind}pass rate went from {first} to {last}: the intervals overlap, "
                f"so this alone does not show a change."
            )
        return "No evidence: none of the held-out answers could be scored."


def read_results(home: Place, run_id: str) -> Results:
    """Gather a run's results from its tables. Raises KeyError when there is no such run."""
    name = literal(run_id)
    runs = query(home, f"SELECT * FROM runs WHERE run_id = {name}").to_pylist()
    if not runs:
        raise KeyError(run_id)
    counted = query(
        home,
        f"""SELECT purpose, cycle, policy_version,
                   sum(CASE WHEN final THEN 1 ELSE 0 END) AS episodes,
                   sum(CASE WHEN valid AND outcome_class = 'policy' THEN 1 ELSE 0 END) AS scored,
                   sum(CASE WHEN valid AND outcome = 'passed' THEN 1 ELSE 0 END) AS passed,
                   sum(CASE WHEN final AND outcome_class = 'infra' THEN 1 ELSE 0 END) AS infra,
                   sum(CASE WHEN final AND cardinality(quarantine_reasons) > 0 THEN 1 ELSE 0 END) AS quarantined,
                   sum(CASE WHEN valid THEN reward END) AS reward,
                   sum(CASE WHEN attempt = 1 THEN completion_tokens ELSE 0 END) AS tokens,
                   count(DISTINCT task_id) AS tasks
            FROM (SELECT *, final AND cardinality(quarantine_reasons) = 0 AS valid FROM trajectories)
            WHERE run_id = {name} GROUP BY purpose, cycle, policy_version ORDER BY cycle, policy_version""",
    ).to_pylist()
    seconds: dict[int, dict[str, float]] = {}
    for row in query(
        home,
        f"""SELECT cycle, stage, sum(seconds) AS seconds FROM events
            WHERE run_id = {name} AND event = 'stage' AND cycle IS NOT NULL GROUP BY cycle, stage""",
    ).to_pylist():
        seconds.setdefault(row["cycle"], {})[row["stage"]] = row["seconds"]
    versions = query(home, f"SELECT policy_version FROM policies WHERE run_id = {name}").to_pylist()
    produced = {row["policy_version"] for row in versions}
    cycles = [
        Cycle(
            cycle=row["cycle"],
            policy_version=row["policy_version"],
            reward=Rate.of(row["reward"] or 0.0, row["scored"]),
            passed=Rate.of(row["passed"], row["scored"]),
            episodes=row["episodes"],
            infra_rate=row["infra"] / max(1, row["episodes"]),
            quarantined=row["quarantined"],
            tokens=row["tokens"] or 0,
            seconds=seconds.get(row["cycle"], {}),
            produced=row["cycle"] if row["cycle"] in produced else None,
        )
        for row in counted
        if row["purpose"] == "train"
    ]
    evaluations = []
    for version in sorted({row["policy_version"] for row in counted if row["purpose"] != "train"}):
        asked = {row["purpose"]: row for row in counted if row["policy_version"] == version}
        greedy, sampled = asked.get("eval_greedy"), asked.get("eval_sampled")
        evaluations.append(
            Evaluation(
                version,
                Rate.of(greedy["passed"], greedy["scored"]) if greedy else None,
                Rate.of(sampled["passed"], sampled["scored"]) if sampled else None,
                max(row["tasks"] for row in (greedy, sampled) if row),
            )
        )
    return Results(runs[0], cycles, evaluations)


def result_table(home: Place, run_id: str, width: int) -> Table:
    """A row a cycle, the held-out evaluation and the sentence of evidence below. Raises KeyError: no such run.

    On a terminal of fewer than `WIDE` characters the seconds by stage and the new policy are left out.
    """
    results = read_results(home, run_id)
    caption = Text("\n".join(_evaluation_lines(results)))
    table = Table(title=Text(f"run {run_id}"), caption=caption, caption_justify="left", caption_style="")
    narrow = HEADINGS[: HEADINGS.index("tokens") + 1]
    shown = range(len(HEADINGS if width >= WIDE else narrow))
    for place in shown:
        table.add_column(
            HEADINGS[place], justify="left" if HEADINGS[place].startswith("pass rate") else "right", no_wrap=True
        )
    for cycle in results.cycles:
        row = cells(cycle)
        table.add_row(*(row[place] for place in shown))
    return table


HEADINGS = (
    "cycle",
    "policy",
    "mean reward",
    "pass rate [95 %]",
    "infra",
    "tokens",
    *(f"{stage} s" for stage in STAGES),
    "new policy",
)
"""Columns of the result table, in the terminal and on the page."""

WIDE = 118
"""Characters across of the table with all its columns."""


def cells(cycle: Cycle) -> list[str]:
    """One row of the result table, as text."""
    return [
        str(cycle.cycle),
        str(cycle.policy_version),
        f"{cycle.reward.mean:.3f}" if cycle.reward else "none scored",
        str(cycle.passed) if cycle.passed else "none scored",
        f"{cycle.infra_rate:.1%}",
        f"{cycle.tokens:,}",
        *(f"{cycle.seconds[stage]:.1f}" if stage in cycle.seconds else "-" for stage in STAGES),
        str(cycle.produced) if cycle.produced is not None else "-",
    ]


def _evaluation_lines(results: Results) -> list[str]:
    lines = [
        f"held-out, policy {each.policy_version}: greedy {each.greedy or 'not asked'}, "
        f"sampled {each.sampled or 'not asked'} ({each.tasks} tasks, {each.sampled.n if each.sampled else 0} samples)"
        for each in results.evaluations
    ]
    return [*lines, results.evidence]


def write_summary(home: Place, run_id: str) -> Path:
    """Write `reports/RUN_ID/summary.html` in the home's folder here; gives its path. Raises KeyError: no such run."""
    results = read_results(home, run_id)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("summary.html").render(
        results=results,
        headings=HEADINGS,
        rows=[cells(cycle) for cycle in results.cycles],
        curve=draw(_curve(results)),
        answers=_answers(home, run_id, results),
        answers_greedy=_asked_greedily(results),
        facts=_facts(home, run_id, results),
    )
    path = Lake(home).work / "reports" / run_id / "summary.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A completion may hold any code point; one that UTF-8 cannot carry must not cost the page.
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _curve(results: Results) -> Curve:
    ends = results.evaluations[:1] + results.evaluations[1:][-1:]
    return Curve(
        train=[_point(c.policy_version, c.reward) for c in results.cycles if c.reward],
        sampled=[_point(e.policy_version, e.sampled) for e in ends if e.sampled],
        greedy=[_point(e.policy_version, e.greedy) for e in ends if e.greedy],
    )


def _point(version: int, rate: Rate) -> Point:
    return Point(version, rate.mean, rate.low, rate.high)


def _asked_greedily(results: Results) -> bool:
    return all(each.greedy for each in results.evaluations)


def _answers(home: Place, run_id: str, results: Results) -> list[dict[str, Any]]:
    """For each held-out task, one answer before and one after (the greedy one, else the first sampled one), and how
    many of the sampled ones pass."""
    if not results.evaluations:
        return []
    ends = results.evaluations[:1] + results.evaluations[1:][-1:]
    purpose = "eval_greedy" if _asked_greedily(results) else "eval_sampled"
    sampled = {
        (row["task_id"], row["policy_version"]): f"{row['passed']} of {row['scored']} sampled answers pass"
        for row in query(
            home,
            f"""SELECT task_id, policy_version, count(reward) AS scored,
                    sum(CASE WHEN outcome = 'passed' THEN 1 ELSE 0 END) AS passed
                FROM trajectories WHERE run_id = {literal(run_id)} AND final AND purpose = 'eval_sampled'
                    AND cardinality(quarantine_reasons) = 0
                GROUP BY task_id, policy_version""",
        ).to_pylist()
    }
    rows = query(
        home,
        f"""SELECT task_id, policy_version, messages, program, outcome, tests, failure FROM trajectories
            WHERE run_id = {literal(run_id)} AND final AND sample = 0 AND purpose = '{purpose}'
              AND policy_version IN ({", ".join(str(each.policy_version) for each in ends)})
            ORDER BY task_id, policy_version""",
    ).to_pylist()
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        messages = row["messages"] or []
        said = [each["content"] for each in messages if each["role"] == "assistant"]
        asked = [each["content"] for each in messages if each["role"] == "user"]
        task = tasks.setdefault(row["task_id"], {"task_id": row["task_id"], "prompt": "", "answers": []})
        task["prompt"] = _cut(asked[0]) if asked else task["prompt"]
        bad = [test for test in row["tests"] or [] if test["outcome"] != "passed"]
        task["answers"].append(
            {
                "policy_version": row["policy_version"],
                "sampled": sampled.get((row["task_id"], row["policy_version"]), ""),
                "text": _cut(row["program"] or (said[-1] if said else "")),
                "outcome": row["outcome"],
                "passed": row["outcome"] == "passed",
                "why": _cut(f"{bad[0]['name']}: {bad[0]['message'] or bad[0]['outcome']}" if bad else row["failure"]),
            }
        )
    return list(tasks.values())[:_MOST_TASKS]


def _facts(home: Place, run_id: str, results: Results) -> list[tuple[str, str]]:
    run = results.run
    draws = query(
        home,
        f"""SELECT count(*) AS answers, sum(CASE WHEN seeded THEN 1 ELSE 0 END) AS seeded FROM trajectories
            WHERE run_id = {literal(run_id)} AND final AND seeded IS NOT NULL""",
    ).to_pylist()[0]
    policies = query(
        home,
        f"""SELECT policy_version, weights_hash, checkpoint FROM policies
            WHERE run_id = {literal(run_id)} ORDER BY policy_version""",
    ).to_pylist()
    seeded = draws["seeded"] or 0
    if seeded == draws["answers"]:
        repeat = f"order of tasks, and all {seeded:,} draws of the engine"
    else:
        unseeded = draws["answers"] - seeded
        repeat = f"order of tasks; not seeded: {unseeded:,} of {draws['answers']:,} draws, so new rollouts differ"
    facts = [
        ("run", run_id),
        ("begun", f"{run['started_at']:%Y-%m-%d %H:%M:%S} UTC on {run['host']}"),
        ("spec hash", run["spec_hash"]),
        ("tasks hash", run["tasks_hash"]),
        ("seeded", repeat),
    ]
    for policy in policies[:1] + policies[1:][-1:]:
        facts.append((f"policy {policy['policy_version']}", f"{policy['checkpoint']} ({policy['weights_hash'][:16]})"))
    facts.append(("Headrace", run["code_version"]))
    facts += sorted(json.loads(run["versions"]).items())
    return facts


def _cut(text: str | None) -> str:
    if text is None or len(text) <= _LONGEST:
        return text or ""
    return f"{text[:_LONGEST]}\n... ({len(text) - _LONGEST:,} more characters)"
