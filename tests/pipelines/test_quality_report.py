"""`headrace report quality`: what it says against values worked out here, and the page in a strict reading."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipelines.quality_page import page
from pipelines.quality_report import collect, headline, markdown
from tests.builders import START, a_test, trajectory_row
from transforms.lake.table import Lake

HOSTILE = "</style><script>alert(1)</script><img src=http://evil.example/x> `x` | [y](http://z)"


def trained(run: str, cycle: int, task: str, passing: int, asked: int = 4, **more: object) -> list[dict[str, object]]:
    """Answers to a task in a cycle of training, the first of which pass."""
    group = f"{run}/{cycle}/train/{task}"
    made = []
    for sample in range(asked):
        passed = sample < passing
        outcome = "passed" if passed else "failed_tests"
        same = {
            "trajectory_id": f"{group}/{sample}/1", "episode_id": f"{group}/{sample}", "group_id": group, "run_id": run,
            "cycle": cycle, "purpose": "train", "task_id": task, "task_hash": task, "sample": sample,
            "outcome": outcome, "reward": float(passed), "tests": [a_test("a", outcome=outcome)],
            "reward_components": [{"name": "all_passed", "value": float(passed)}],
        }  # fmt: skip
        made.append(trajectory_row(**{**same, **more}))
    return made


def checked(
    run: str, cycle: int, name: str, observed: float, limit: float, severity: str = "stop", later: int = 0
) -> dict[str, object]:  # fmt: skip
    return {
        "run_id": run, "cycle": cycle, "chunk": None, "suite": "cycle", "expectation": name, "column": "x",
        "level": "batch", "success": observed <= limit, "observed": observed, "limit": limit, "rows": 8,
        "detail": f"2 of 8: {HOSTILE}", "checked_at": START + timedelta(minutes=later), "suite_version": 1,
        "severity": severity,
    }  # fmt: skip


def of_run(run: str, minutes: int) -> dict[str, object]:
    return {
        "run_id": run, "name": "r", "spec_hash": "s", "spec": "name: r", "tasks_hash": "x", "code_version": "0",
        "versions": "{}", "host": "here", "started_at": START + timedelta(minutes=minutes),
    }  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Run `a` of two cycles, the newest of which breaks one check and warns of another; run `b`, where all is well."""
    lake = Lake(tmp_path / "home")
    lake.append("runs", [of_run("a", 0), of_run("b", 5)], app_id="runs", version=1)
    rows = [
        *trained("a", 1, "easy", 4), *trained("a", 1, "mixed", 1), *trained("a", 2, "easy", 4),
        *trained("a", 2, "mixed", 3), *trained("a", 2, HOSTILE, 0, signals=["reads_tests"]),
        *trained("b", 1, "easy", 2),
        *trained("a", 2, "kept", 0, asked=1, quarantine_reasons=["times_ordered"]),
    ]  # fmt: skip
    lake.append("trajectories", rows, app_id="rows", version=1)
    checks = [
        checked("a", 1, "truncation_rate", 0.95, 0.9), checked("a", 2, "truncation_rate", 0.99, 0.9),
        checked("a", 2, "truncation_rate", 0.5, 0.9, later=1),  # asked again after the cause was mended
        checked("a", 2, "infra_rate", 0.25, 0.1), checked("a", 2, "reward_drift", 7.0, 5.0, "warn"),
        checked("b", 1, "infra_rate", 0.0, 0.1),
    ]  # fmt: skip
    lake.append("checks", checks, app_id="checks", version=1)
    return lake.home if isinstance(lake.home, Path) else tmp_path


class Strict(HTMLParser):
    """Every tag closed in order, and everything that could ask the network for something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.foreign += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "onerror", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_newest_verdict_of_the_newest_cycle_counts(home: Path):
    report = collect(home, [])
    assert (report["verdict"], report["checked"]) == ("stop", 4)
    told = [(each["run_id"], each["expectation"], each["severity"]) for each in report["attention"]]
    assert told == [("a", "infra_rate", "stop"), ("a", "reward_drift", "warn")]
    assert "outcome_class = 'infra'" in report["attention"][0]["query"]
    assert headline(report) == "2 of 4 checks of the newest cycles of 2 runs need attention."
    assert [(m["expectation"], len(m["points"])) for m in report["measures"]] == [
        ("infra_rate", 2), ("reward_drift", 1), ("truncation_rate", 2),
    ]  # fmt: skip
    alone = collect(home, ["b"])
    assert (alone["verdict"], headline(alone)) == ("fine", "All 1 checks of the newest cycle hold.")


def test_a_broken_check_stays_while_the_next_cycle_is_on_its_way(home: Path):
    rows_only = {**checked("a", 3, "times_ordered", 0.0, 0.0), "level": "row", "chunk": 9, "severity": None}
    Lake(home).append("checks", [rows_only], app_id="next", version=1)
    report = collect(home, ["a"])
    assert (report["verdict"], len(report["attention"])) == ("stop", 2)


def test_numbers_are_those_of_the_rows(home: Path):
    report = collect(home, ["a"])
    assert [(r["cycle"], r["scored"], r["mean_reward"]) for r in report["rewards"]] == [(1, 8, 5 / 8), (2, 12, 7 / 12)]
    assert [(r["cycle"], r["outcome"], r["episodes"]) for r in report["outcomes"]] == [
        (1, "failed_tests", 3), (1, "passed", 5), (2, "failed_tests", 6), (2, "passed", 7),
    ]  # fmt: skip
    assert [(t["task_id"], t["verdict"], t["signal"]) for t in report["tasks"] if t["scored"]] == [
        (HOSTILE, "too_hard", False), ("mixed", "mixed", True), ("easy", "too_easy", False),
    ]  # fmt: skip
    assert [(s["name"], s["trajectories"], s["passed"]) for s in report["signals"]] == [("reads_tests", 4, 0)]
    assert [(q["reason"], q["quarantined"]) for q in report["quarantine"]] == [("times_ordered", 1)]


def test_the_page_is_whole_and_asks_nothing_of_anybody(home: Path):
    text = page(collect(home, []))
    strict = Strict()
    strict.feed(text)
    assert (strict.open, strict.foreign) == ([], [])
    assert "script" not in strict.seen
    assert "img" not in strict.seen
    assert "default-src 'none'" in text
    assert "2 of 4 checks of the newest cycles of 2 runs need attention." in text
    assert text.count('<circle class="broken"') == 3  # cycle 1 of `a`, which was mended since, too
    assert re.search(r'<rect class="good"[^>]*><title>passed, cycle 1: 62\.5%</title>', text)


def test_markdown_holds_no_markup_of_the_rows(home: Path):
    text = markdown(collect(home, []))
    assert "**infra_rate** (stop), a cycle 2: 0.25, limit 0.1" in text
    assert "\\<script\\>" in text
    lines = [line for line in text.splitlines() if line.startswith("|") and "too_hard" in line]
    (line,) = lines
    assert len(re.findall(r"(?<!\\)\|", line)) == 6


@pytest.mark.parametrize("cycles", [0, 1, 40])
def test_nothing_one_cycle_and_many(tmp_path: Path, cycles: int):
    lake = Lake(tmp_path)
    lake.ensure_tables()
    runs = [f"run-{n}" for n in range(5)] if cycles else []
    lake.append("runs", [of_run(run, n) for n, run in enumerate(runs)], app_id="runs", version=1)
    rows: list[Any] = [row for run in runs for cycle in range(1, cycles + 1) for row in trained(run, cycle, "t", 1, 2)]
    lake.append("trajectories", rows, app_id="rows", version=1)
    checks = [checked(run, cycle, "infra_rate", 0.0, 0.1) for run in runs for cycle in range(1, cycles + 1)]
    lake.append("checks", checks, app_id="checks", version=1)
    report = collect(tmp_path, [])
    strict = Strict()
    strict.feed(page(report))
    assert strict.open == []
    assert headline(report) == (
        "All 5 checks of the newest cycles of 5 runs hold." if cycles else "There is no run here yet."
    )
    assert markdown(report).startswith("# Quality")


def test_the_command_for_schedulers(home: Path, headrace: Callable, tmp_path: Path):
    done = headrace("report", "quality", "--format", "json", "--home", str(home))
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "stop")
    assert headrace("report", "quality", "--fail-on", "never", "--home", str(home)).returncode == 0
    assert headrace("report", "quality", "--run", "b", "--fail-on", "warn", "--home", str(home)).returncode == 0
    written = headrace("report", "quality", "--out", "q.html", "--home", str(home))
    assert (written.returncode, (tmp_path / "q.html").read_text()[:15]) == (1, "<!doctype html>")
    wrong = headrace("report", "quality", "--run", "bb", "--home", str(home))
    assert (wrong.returncode, "did you mean `b`?" in wrong.stderr) == (2, True)
