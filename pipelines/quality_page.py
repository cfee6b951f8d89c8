"""The quality report as one HTML page that asks nothing of the network."""

from pathlib import Path

import jinja2

from pipelines.quality_charts import mix, rates, strip, trend
from pipelines.quality_report import Row, headline

_MOST_TASKS = 40  # rows of a table of tasks
_MOST_RUNS = 3  # runs that get charts of their own: the newest


def page(report: Row) -> str:
    """The page of a report as `quality_report.collect` gives it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    newest = report["runs"][-_MOST_RUNS:]
    return environment.get_template("quality.html").render(
        report=report,
        headline=headline(report),
        shown=_shown,
        rewards=rates(
            {run: _of(report["rewards"], run) for run in report["runs"]}, "mean_reward", "Mean training reward by cycle"
        ),
        mixes=[_mix(run, _of(report["outcomes"], run)) for run in newest if _of(report["outcomes"], run)],
        components=[
            _components(run, _of(report["components"], run)) for run in newest if _of(report["components"], run)
        ],
        strips=[_strip(run, _of(report["tasks"], run)) for run in newest if _of(report["tasks"], run)],
        trends=[_trend(measure, report["runs"]) for measure in report["measures"]],
    )


def _of(rows: list[Row], run: str) -> list[Row]:
    return [row for row in rows if row["run_id"] == run]


def _mix(run: str, rows: list[Row]) -> tuple[str, object, list[str]]:
    total: dict[str, float] = {}
    for row in rows:
        total[row["outcome"]] = total.get(row["outcome"], 0.0) + row["share"]
    names = sorted(total, key=lambda name: (name != "passed", -total[name], name))
    return run, mix(rows, names, f"Outcomes of training episodes of {run} by cycle"), names


def _components(run: str, rows: list[Row]) -> tuple[str, object, list[str]]:
    names = sorted({row["name"] for row in rows})
    series = {name: [row for row in rows if row["name"] == name] for name in names}
    return run, rates(series, "mean", f"Means of the reward components of {run} by cycle"), names


def _strip(run: str, tasks: list[Row]) -> tuple[str, object, list[Row]]:
    dull = [task for task in tasks if not task["signal"]]
    return run, strip(tasks, f"Pass rates of the tasks of {run}"), dull[:_MOST_TASKS]


def _trend(measure: Row, runs: list[str]) -> tuple[Row, object, bool]:
    last = {point["run_id"]: point["cycle"] for point in measure["points"]}
    fine = all(point["success"] for point in measure["points"] if point["cycle"] == last[point["run_id"]])
    return measure, trend(measure, runs), fine


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
