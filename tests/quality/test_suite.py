import hashlib
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx
import pyarrow as pa
import pytest

from tests.builders import START, a_test, trajectory_row
from transforms.lake.schemas import TABLES, TRAJECTORIES
from transforms.quality.config import SUITES
from transforms.quality.rules import RULES
from transforms.quality.suite import SuiteError, frame_of, load_suite, run_suite
from transforms.quality.validate import ROW_SUITE, validate_rows

GOOD: dict[str, Any] = trajectory_row()
INFRA: dict[str, Any] = {
    "outcome": "sandbox_lost", "outcome_class": "infra", "reward": None, "reward_components": [], "tests": [],
    "failure": "gone", "evidence": "signal 9 from outside",
}  # fmt: skip


def turn(**changes: Any) -> list[dict[str, Any]]:
    return [{**GOOD["turns"][0], **changes}]


def case(name: str, outcome: str) -> dict[str, Any]:
    return a_test(name, outcome=outcome)


LATE = START + timedelta(hours=1)
FAILED = [case("a", "passed"), case("b", "failed_tests"), case("c", "time_limit")]
NO_ANSWER: dict[str, Any] = {
    "turns": [], "messages": GOOD["messages"][:1], "prompt_tokens": None, "completion_tokens": None,
    "completion_hash": None, "finish_reason": None, "program": None,
}  # fmt: skip

CASES = {"known": ["a", "b", "c"]}
TWO_TURNS = [GOOD["turns"][0], {**GOOD["turns"][0], "prompt_token_ids": [1, 15, 204, 9, 2, 33, 8, 512, 4, 7]}]
TWICE: dict[str, Any] = {"turns": TWO_TURNS, "prompt_tokens": 15, "completion_tokens": 8}
AWS_KEY = "AKIA" + "QX3J7PLM2ZRT5WYA"

# For each expectation, rows that break it and nothing else.
BREAKS: list[tuple[str, dict[str, Any]]] = [
    ("trajectory_id_unique", {"trajectory_id": "twin"}),
    ("outcome_in_contract", {"outcome": "tests_failed", "tests": [case("a", "tests_failed")]}),
    ("outcome_in_contract", {**INFRA, "outcome": "passed"}),
    ("purpose_known", {"purpose": "training", "turns": turn(loss_mask=[False] * 4)}),
    ("attempt_from_one", {"attempt": 0}),
    ("sample_from_zero", {"sample": -1}),
    ("required_present", {"task_hash": None}),
    ("required_present", {"ended_at": None}),
    ("required_present", {"attempt": None}),
    ("reward_null_unless_policy", {"reward": None, "reward_components": []}),
    ("reward_null_unless_policy", {**INFRA, "reward": 0.0, "reward_components": [{"name": "x", "value": 0.0}]}),
    ("reward_in_range", {"reward": math.nan}),
    ("reward_in_range", {"reward": math.inf}),
    ("reward_in_range", {"reward": 1.5}),
    ("reward_in_range", {"reward": -0.01}),
    ("components_in_range", {"reward_components": [{"name": "all_passed", "value": math.nan}]}),
    ("components_in_range", {"reward_components": [{"name": "all_passed", "value": 2.0}]}),
    ("components_in_range", {"reward_components": [{"name": "x", "value": 0.0}, {"name": "x", "value": 1.0}]}),
    ("components_in_range", {"reward_components": []}),
    ("failure_explained", {"failure": "but it passed"}),
    ("failure_explained", {**INFRA, "failure": None}),
    ("failure_explained", {**INFRA, "evidence": ""}),
    ("turn_lengths_equal", {"turns": turn(logprobs=[-0.5, -1.0, -2.0])}),
    ("turn_lengths_equal", {"turns": turn(loss_mask=[True] * 5)}),
    ("logprobs_valid", {"turns": turn(logprobs=[-0.5, 0.01, -1.0, -2.0])}),
    ("logprobs_valid", {"turns": turn(logprobs=[-0.5, None, -1.0, -2.0])}),
    ("logprobs_valid", {"turns": turn(logprobs=[-0.5, -math.inf, -1.0, -2.0])}),
    ("logprobs_valid", {"turns": turn(logprobs=[-0.5, math.nan, -1.0, -2.0])}),
    ("loss_mask_train_only", {"purpose": "eval_greedy"}),
    ("loss_mask_train_only", {"turns": turn(loss_mask=[True, True, None, True])}),
    ("token_counts_match", {"completion_tokens": 5}),
    ("token_counts_match", {"prompt_tokens": 4}),
    ("prompt_present", {"turns": turn(prompt_token_ids=[]), "prompt_tokens": 0}),
    ("prompt_present", {**NO_ANSWER, "outcome": "no_submission", "reward": 0.0, "tests": []}),
    ("answer_last", {"messages": GOOD["messages"][:1]}),
    ("answer_last", {**INFRA, **NO_ANSWER, "messages": GOOD["messages"], "completion_hash": GOOD["completion_hash"]}),
    ("completion_hash_matches", {"completion_hash": hashlib.sha256(b"another").hexdigest()}),
    ("times_ordered", {"started_at": LATE}),
    ("times_ordered", {"steps": [{**GOOD["steps"][0], "ended_at": LATE}, GOOD["steps"][1]]}),
    ("times_ordered", {"steps": GOOD["steps"][::-1]}),
    ("tests_named", {"tests": [case("a", "passed"), case("a", "passed")]}),
    ("tests_named", {"tests": [case("", "passed")]}),
    ("outcome_follows_tests", {"tests": FAILED}),
    ("outcome_follows_tests", {"outcome": "failed_tests", "reward": 0.0}),
    ("outcome_follows_tests", {"outcome": "time_limit", "reward": 0.0, "tests": FAILED}),
    ("outcome_follows_tests", {"outcome": "failed_tests", "reward": 0.0, "tests": [*FAILED, case("z", "tampered")]}),
    ("outcome_follows_tests", {"outcome": "tampered", "reward": 0.0, "tests": [case("z", "policy_violation")]}),
    ("outcome_follows_tests", {"tests": []}),
    ("outcome_follows_tests", {"outcome": "truncated", "reward": 0.0}),
    ("program_present", {"program": None}),
    (
        "prompt_extends",
        {**TWICE, "turns": [TWO_TURNS[0], {**TWO_TURNS[1], "prompt_token_ids": [1, 15, 204, 9, 2, 33, 8, 512, 5, 7]}]},
    ),
    (
        "prompt_extends",
        {
            **TWICE,
            "prompt_tokens": 13,
            "turns": [TWO_TURNS[0], {**TWO_TURNS[1], "prompt_token_ids": [1, 15, 204, 9, 2, 33, 8, 512]}],
        },
    ),
    ("tests_complete", {"task_hash": "known", "tests": [case("a", "passed"), case("b", "passed")]}),
    ("tests_complete", {"task_hash": "known", "tests": [case(name, "passed") for name in "abcd"]}),
    ("no_secrets_or_host_paths", {"program": f"key = '{AWS_KEY}'"}),
    ("no_secrets_or_host_paths", {**INFRA, "evidence": "no such file: /home/mkowalski/.cache/x"}),
    ("no_secrets_or_host_paths", {"tests": [{**case("a", "passed"), "got": "postgres://svc:hunter22x@db.local/x"}]}),
]

GOOD_VARIANTS: list[dict[str, Any]] = [
    {},
    INFRA,
    {**INFRA, **NO_ANSWER},
    {"outcome": "failed_tests", "reward": 0.0, "tests": FAILED},
    {"outcome": "tampered", "reward": 0.0},
    {"outcome": "tampered", "reward": 0.0, "tests": [*FAILED, case("z", "tampered"), case("y", "policy_violation")]},
    {"outcome": "policy_violation", "reward": 0.0, "tests": []},
    {"outcome": "no_submission", "reward": 0.0, "tests": [], "program": None},
    {"purpose": "eval_sampled", "turns": turn(loss_mask=[False] * 4)},
    {"turns": turn(loss_mask=[False] * 4)},
    TWICE,
    {"task_hash": "known", "tests": [case(name, "passed") for name in "cab"]},
    {"task_hash": "known", "tests": [], "outcome": "policy_violation", "reward": 0.0},
    {"turns": turn(logprobs=[-0.5, 1e-7, -1.0, -2.0])},
    {"ended_at": START + timedelta(seconds=0.75), "steps": [], "attempt": 3, "sample": 7, "final": False},
]


def reasons(changes: dict[str, Any]) -> list[list[str]]:
    """What the suite says of a good row, the changed row and, where the identity is what changed, its twin."""
    rows = [GOOD, trajectory_row(**{"trajectory_id": "changed", **changes})]
    if changes.get("trajectory_id") == "twin":
        rows.append(trajectory_row(trajectory_id="twin"))
    return told(rows)


def told(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The reasons that each row is given."""
    validated: list[dict[str, Any]] = validate_rows(rows, "run-1", 1, 3, CASES)[0]
    return [row["quarantine_reasons"] for row in validated]


@pytest.mark.parametrize(("name", "changes"), BREAKS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BREAKS)])
def test_a_row_with_one_fault_has_exactly_that_reason(name: str, changes: dict[str, Any]):
    good, *changed = reasons(changes)
    assert good == []
    assert changed == [[name]] * len(changed)


def test_every_expectation_has_a_row_that_breaks_it():
    expectations: list[Any] = load_suite(ROW_SUITE).expectations
    names = [expectation.meta["name"] for expectation in expectations]
    assert len(set(names)) == len(names)
    assert {name for name, _ in BREAKS} == set(names)
    assert [*RULES] == names[1:]  # the first is a built-in one


def test_good_rows_break_nothing():
    rows = [trajectory_row(**{"trajectory_id": str(n), **changes}) for n, changes in enumerate(GOOD_VARIANTS)]
    assert told(rows) == [[]] * len(rows)


def test_stored_rows_get_the_reasons_they_had_before_they_were_stored():
    # On resume rows come back from Arrow: float32 log-probabilities, NaN beside null, datetimes of another class.
    rows = [
        trajectory_row(**{"trajectory_id": str(n), **changes})
        for n, (name, changes) in enumerate(BREAKS)
        if name not in ("required_present", "trajectory_id_unique")
    ]
    stored = pa.Table.from_pylist(rows, schema=TRAJECTORIES).to_pylist()
    assert told(stored) == told(rows)
    assert all(told(stored))


def test_a_row_that_cannot_be_read_is_an_error_and_not_a_pass():
    with pytest.raises(SuiteError, match="rule reward_in_range cannot read trajectory odd: TypeError"):
        validate_rows([GOOD, trajectory_row(trajectory_id="odd", reward="high")], "run-1", 1, 3, CASES)


def test_an_expectation_that_cannot_run_is_an_error_and_not_a_pass():
    frame = frame_of([{**GOOD, "task_cases": None}], [*TRAJECTORIES.names, "task_cases"])
    with pytest.raises(SuiteError, match=r"expectation purpose_known could not run: .*purpose"):
        run_suite(load_suite(ROW_SUITE), frame.drop(columns="purpose"))
    with pytest.raises(SuiteError, match=r"expectation turn_lengths_equal could not run"):
        run_suite(load_suite(ROW_SUITE), frame.drop(columns="turns"))


SECRETS = [
    (AWS_KEY, "AWS access key"),
    ("ghp_" + "a1B2" * 9, "GitHub token"),
    ("hf_" + "aBcD" * 9, "Hugging Face token"),
    ("sk-proj-" + "a1B2" * 12, "OpenAI or Anthropic key"),
    ("sk-ant-api03-" + "a1B2" * 12, "OpenAI or Anthropic key"),
    ("xoxb-123456789012-abcdefghijkl", "Slack token"),
    ("AIza" + "a1B2c" * 7, "Google API key"),
    ("-----BEGIN RSA PRIVATE KEY-----\n" + "MIIE" * 12, "private key"),
    ("git clone https://bob:s3cretpw@git.example.org/x", "credentials in a URL"),
    ("File /Users/anna/x.py", "a home folder"),
    ("'/home/j.doe/x' and /home/jdoe/x", "a home folder"),
]
INNOCENT = [
    "AKIAIOSFODNN7EXAMPLE", "hf_model_name_of_some_length", "sk-learn and task-force", "ghp_short",
    "-----BEGIN PRIVATE KEY-----", "https://user:password@host/x", "http://localhost:8000/a@b", "'postgres://{u}:{p}@h'",
    "open('/home/user/data.txt')", "/home/", "x/home/page/index", "https://x.org/home/page/", "/root/x",
    "/usr/home/anna/x",
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), SECRETS)
def test_a_secret_is_told_by_kind_and_place_and_never_repeated(text: str, kind: str):
    checks: list[dict[str, Any]]
    _, checks = validate_rows([trajectory_row(compiler_message=f"x = 1  # {text}")], "run-1", 1, 3, {})
    [check] = [check for check in checks if not check["success"]]
    assert check["detail"] == f"{GOOD['trajectory_id']}: {kind} in compiler_message"


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_a_secret_is_none(text: str):
    assert told([trajectory_row(compiler_message=text)]) == [[]]


def test_a_prompt_and_a_program_may_name_folders_and_hold_no_secret():
    path, key = "/home/projects/src/foo.py", SECRETS[1][0]  # the path is one in an issue of SWE-bench
    asked = [{"role": "user", "content": path}, GOOD["messages"][1]]
    assert told([trajectory_row(messages=asked, program=path)]) == [[]]
    asked[0]["content"] = key
    assert told([trajectory_row(messages=asked)]) == [["no_secrets_or_host_paths"]]


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.json")), ids=lambda path: path.stem)
def test_great_expectations_itself_loads_and_gives_back_each_file(path: Path):
    declared = json.loads(path.read_text())
    context = gx.get_context(mode="ephemeral")
    stored: Any = context.suites.add(gx.ExpectationSuite(**declared))
    assert (declared["name"], declared["meta"]["version"]) == (path.stem, 1)
    back = stored.to_json_dict()["expectations"]
    assert [(each["type"], each["kwargs"], each["meta"]) for each in back] == [
        (each["type"], each["kwargs"], each["meta"]) for each in declared["expectations"]
    ]


def test_every_table_that_a_run_writes_has_a_suite_and_names_are_unique():
    names = {path.stem for path in SUITES.glob("*.json")}
    assert names == {*TABLES, "optimizer_steps", "cycle"}
    metas = [e["meta"]["name"] for path in SUITES.glob("*.json") for e in json.loads(path.read_text())["expectations"]]
    assert len(set(metas)) == len(metas)
