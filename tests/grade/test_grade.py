import hashlib
import math
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that
from apache_beam.typehints.decorators import TypeCheckError

from sandboxes.protocol import Usage
from transforms.episode import CaseReport, CaseResult, Execution, Failure, Group, Measured, Purpose, Rollout
from transforms.grade.grade import GRADER_VERSION, STREAK, Grade, ImageUsed, Verdict, trajectory_row
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import RubricSpec
from transforms.lake.schemas import TRAJECTORIES
from transforms.quality.validate import validate_rows
from transforms.rollout.policy import Completion, FinishReason, Sampling
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task

RUBRIC = RubricSpec()
IMAGE = ImageUsed("base", "0f" * 32)
FINISHES = get_args(FinishReason)
PURPOSES = get_args(Purpose)
USAGE = Usage(None, 0.25, 0.125, 1024, b"", b"", "cgroup-v1", host="one")
LOST = Failure(Outcome.SANDBOX_LOST, "the sandbox went away", "signal 9 from outside")


def task(cases: int = 3, unsupported: str | None = None) -> Task:
    made = tuple(Case(f"case-{i}", (i,), i) for i in range(cases))
    return Task("add", "Write add.", Call("add", made), unsupported=unsupported, record="{}")


def rollout(
    text: str = "```python\nx = 1\n```",
    *,
    finish: FinishReason = "stop",
    of: Task | None = None,
    purpose: Purpose = "train",
    failure: Failure | None = None,
    logprobs: tuple[float, ...] = (-0.5, -1.0),
) -> Rollout:
    group = Group("run-1", 2, 5, purpose, 1, of or task(), 4, Sampling(), 7)
    completion = None if failure else Completion((1, 2, 3), tuple(range(len(logprobs))), logprobs, text, finish, True)
    messages = ({"role": "user", "content": "Write add."},)
    return Rollout(group, 3, messages, 1_000_000, 3_000_000, completion, failure)


def report(*outcomes: str) -> CaseReport:
    messages = {"passed": "", "failed_tests": "wrong value"}
    results = (CaseResult(f"case-{i}", "hidden", Outcome(o), messages.get(o, o), 0.1) for i, o in enumerate(outcomes))
    return CaseReport(tuple(results), USAGE)


def execution(
    asked: Rollout, found: CaseReport | None, program: str | None = "x = 1\n", failure: Failure | None = None
) -> Execution:
    return Execution(asked, 2, True, "bubblewrap", program, 3_000_000, 4_500_000, found, failure)


def graded(*args: Any, rubric: RubricSpec = RUBRIC, **kwargs: Any) -> dict[str, Any]:
    return trajectory_row(execution(*args, **kwargs), rubric, "engine-1", IMAGE)


def verdict(row: dict[str, Any]) -> tuple[str, str, float | None]:
    return row["outcome"], row["outcome_class"], row["reward"]


def test_a_passed_attempt_is_one_complete_row():
    row = graded(rollout(), report("passed", "passed", "passed"))
    assert set(row) == set(TRAJECTORIES.names)
    assert verdict(row) == ("passed", "policy", 1.0)
    assert row["trajectory_id"] == "run-1/2/train/add/3/a2"
    assert row["episode_id"] == "run-1/2/train/add/3"
    assert row["messages"][-1] == {"role": "assistant", "content": "```python\nx = 1\n```"}
    assert row["turns"] == [
        {
            "prompt_token_ids": [1, 2, 3],
            "token_ids": [0, 1],
            "logprobs": [-0.5, -1.0],
            "loss_mask": [True, True],
            "finish_reason": "stop",
        }
    ]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (3, 2)
    assert row["completion_hash"] == hashlib.sha256(b"```python\nx = 1\n```").hexdigest()
    assert (row["integrity"], row["grader_version"], row["sandbox"]) == ("split", GRADER_VERSION, "bubblewrap")
    assert (row["image"], row["image_digest"], row["host"]) == ("base", "0f" * 32, "one")
    assert (row["wall_s"], row["cpu_s"], row["peak_memory_bytes"]) == (0.25, 0.125, 1024)
    assert (row["failure"], row["evidence"], row["quarantine_reasons"]) == (None, None, [])
    # 1 s and 4.5 s after the epoch
    assert row["started_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert row["ended_at"] == datetime(1970, 1, 1, 0, 0, 4, 500_000, tzinfo=UTC)


def test_steps_tell_what_was_said_and_what_came_of_it():
    row = graded(rollout(), report("passed", "failed_tests", "time_limit"))
    asked, ran = row["steps"]
    assert (asked["kind"], asked["action"], asked["observation"]) == ("rollout", "```python\nx = 1\n```", "stop")
    assert asked["wall_s"] == 2.0
    assert (ran["kind"], ran["action"]) == ("execute", "x = 1\n")
    assert ran["observation"] == "1/3 cases passed; first failure: case-1 failed_tests: wrong value"
    assert (ran["cpu_s"], ran["peak_memory_bytes"], ran["workspace_digest"]) == (0.125, 1024, None)


def test_an_observation_is_bounded():
    long = CaseReport((CaseResult("case-0", "hidden", Outcome.RUNTIME_ERROR, "x" * 5_000, 0.1),), USAGE)
    row = graded(rollout(of=task(cases=1)), long)
    assert len(row["steps"][1]["observation"]) == 2_000


def test_the_first_failed_case_is_the_outcome():
    assert verdict(graded(rollout(), report("passed", "failed_tests", "time_limit"))) == ("failed_tests", "policy", 0.0)
    assert verdict(graded(rollout(), report("passed", "memory_limit", "passed"))) == ("memory_limit", "policy", 0.0)


def test_a_program_that_tampered_in_any_case_keeps_no_share():
    row = graded(
        rollout(), report("failed_tests", "passed", "tampered"), rubric=RubricSpec(all_passed=0.5, test_share=0.5)
    )
    assert verdict(row) == ("tampered", "policy", 0.0)
    row = {**row, "trajectory_id": "1"}
    stored = pa.Table.from_pylist([row], schema=TRAJECTORIES).to_pylist()
    assert validate_rows(stored, "run-1", 2, 5, {})[0][0]["quarantine_reasons"] == []


def test_partial_credit_comes_from_the_rubric():
    row = graded(
        rollout(), report("passed", "passed", "failed_tests"), rubric=RubricSpec(all_passed=0.7, test_share=0.3)
    )
    assert row["reward"] == pytest.approx(0.2)  # 0.3 * 2/3
    assert row["reward_components"] == [
        {"name": "all_passed", "value": 0.0},
        {"name": "test_share", "value": pytest.approx(2 / 3)},
        {"name": "hidden_share", "value": pytest.approx(2 / 3)},
        {"name": "syntax_valid", "value": 1.0},
    ]


def test_without_a_program_it_is_truncated_or_no_submission():
    assert verdict(graded(rollout("def", finish="length"), None, None)) == ("truncated", "policy", 0.0)
    row = graded(rollout("no code"), None, None)
    assert verdict(row) == ("no_submission", "policy", 0.0)
    assert (row["integrity"], row["sandbox"], row["tests"]) == (None, None, [])
    assert [step["kind"] for step in row["steps"]] == ["rollout"]


def test_a_truncated_completion_with_a_program_is_graded_on_merit():
    row = graded(rollout(finish="length"), report("passed", "passed", "passed"))
    assert verdict(row) == ("passed", "policy", 1.0)
    assert row["finish_reason"] == "length"


def test_an_engine_failure_is_null_and_keeps_its_evidence():
    failure = Failure(Outcome.ENGINE_FAILED, "no answer", "connection refused")
    row = graded(rollout(failure=failure), None, None)
    assert verdict(row) == ("engine_failed", "infra", None)
    assert (row["failure"], row["evidence"]) == ("no answer", "connection refused")
    assert row["turns"] == []
    assert row["messages"] == [{"role": "user", "content": "Write add."}]
    assert row["seeded"] is row["completion_hash"] is row["completion_tokens"] is row["finish_reason"] is None
    assert row["reward_components"] == []


def test_a_sandbox_failure_is_null_and_keeps_the_answer():
    row = graded(rollout(), None, failure=LOST)
    assert verdict(row) == ("sandbox_lost", "infra", None)
    assert row["evidence"] == "signal 9 from outside"
    assert row["completion_tokens"] == 2
    assert row["steps"][1]["observation"] == "sandbox_lost: the sandbox went away"


def test_an_unsupported_task_is_the_tasks_fault_whatever_was_answered():
    of = task(unsupported="compares floats")
    for program, text in ((None, "no code"), ("x = 1", "code")):
        row = graded(rollout(text, of=of), None, program)
        assert verdict(row) == ("task_invalid", "task", None)
        assert "compares floats" in row["evidence"]


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1.5, -0.5])
def test_a_reward_that_is_no_number_in_range_is_the_graders_error(weight: float):
    rubric = RubricSpec.model_construct(all_passed=weight, test_share=0.0)
    row = graded(rollout(), report("passed", "passed", "passed"), rubric=rubric)
    assert verdict(row) == ("grader_error", "grader", None)
    assert "run-1/2/train/add/3/a2: passed cannot carry the reward" in row["failure"]
    assert len(row["tests"]) == 3  # what the cases said is kept


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (report("passed", "passed"), "missing ['case-2']"),
        (report("passed", "passed", "passed", "passed"), "unexpected ['case-3']"),
        (CaseReport((*report("passed", "passed", "passed").results, report("passed").results[0]), USAGE), "unexpected"),
        (report(), "missing"),
        (None, "neither a report nor a failure"),
    ],
)
def test_a_pass_needs_one_result_for_each_case(found: CaseReport | None, says: str):
    row = graded(rollout(), found)
    assert verdict(row) == ("grader_error", "grader", None)
    assert says in row["failure"]
    assert "Traceback" in row["evidence"]


def test_a_case_cannot_be_excused_as_infra():
    assert verdict(graded(rollout(), report("passed", "sandbox_lost", "passed"))) == ("grader_error", "grader", None)


def test_verifiers_that_disagree_leave_nothing_to_score():
    row = graded(rollout(), report("passed", "verifier_disagreement", "failed_tests"))
    assert verdict(row) == ("verifier_disagreement", "grader", None)
    assert row["failure"] == "case-1: verifier_disagreement"


def test_a_failure_cannot_carry_a_scored_outcome():
    row = graded(rollout(), None, failure=Failure(Outcome.PASSED, "?", "?"))
    assert verdict(row) == ("grader_error", "grader", None)


def test_nothing_is_trained_on_outside_training():
    row = graded(rollout(purpose="eval_sampled"), report("passed", "passed", "passed"))
    assert row["turns"][0]["loss_mask"] == [False, False]
    assert row["reward"] == 1.0


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (Outcome.PASSED, None), (Outcome.PASSED, math.nan), (Outcome.FAILED_TESTS, 1.01), (Outcome.SANDBOX_LOST, 0.0),
        (Outcome.TASK_INVALID, 0.0), (Outcome.GRADER_ERROR, math.nan),
    ],
)  # fmt: skip
def test_a_verdict_cannot_lie(outcome: Outcome, reward: float | None):
    with pytest.raises(ValueError, match=r"trajectory t-1: .* cannot carry the reward"):
        Verdict("trajectory t-1", outcome, reward)


def test_text_without_a_utf8_form_is_stored_all_the_same():
    found = CaseReport((CaseResult("case-0", "hidden", Outcome.RUNTIME_ERROR, "\ud800 \x00", 0.1),), USAGE)
    row = graded(rollout("\udfff text", of=task(cases=1)), found, "s = '\ud800'")
    stored = pa.Table.from_pylist([row], schema=TRAJECTORIES).to_pylist()[0]
    assert stored["messages"][-1]["content"] == "? text"
    assert stored["completion_hash"] == hashlib.sha256(b"? text").hexdigest()
    assert stored["program"] == "s = '?'"
    assert stored["tests"][0]["message"] == "? \x00"


def test_what_a_case_said_and_what_was_measured_are_columns():
    made = Case("case-0", (), 0, milestone="parse")
    result = CaseResult.of(made, Outcome.PASSED, got="4", expected_type="int", location="line 12 in add")
    measured = Measured(0.25, 0.125, 2000, 1000, 0.5, 0.75, {"latency": "x"})
    found = CaseReport((result,), USAGE, "warning: unused", measured)
    row = graded(rollout(of=replace(task(), check=Call("add", (made,)), impossible=True)), found)
    (test,) = row["tests"]
    assert [test[name] for name in ("milestone", "got", "expected_type", "location")] == [
        "parse", "4", "int", "line 12 in add",
    ]  # fmt: skip
    assert row["measured"] == {
        "latency_s": 0.25, "reference_latency_s": 0.125, "peak_memory_bytes": 2000, "reference_peak_memory_bytes": 1000,
        "memory_growth_bytes": 0.5, "coverage": 0.75, "problem": "latency: x",
    }  # fmt: skip
    assert (row["compiler_message"], row["impossible"], row["signals"]) == ("warning: unused", True, [])
    components = {each["name"]: each["value"] for each in row["reward_components"]}
    assert (components["milestone:parse"], components["latency"], components["coverage"]) == (1.0, 0.0, 0.75)
    stored = pa.Table.from_pylist([{**row, "trajectory_id": "1"}], schema=TRAJECTORIES).to_pylist()
    assert validate_rows(stored, "run-1", 2, 5, {})[0][0]["quarantine_reasons"] == []
    assert graded(rollout(), report("passed", "passed", "passed"))["measured"] is None


def test_signals_are_a_column_and_no_part_of_the_reward():
    row = graded(rollout(), report("passed", "passed", "passed"), "import ctypes, os\nos._exit")
    assert (row["signals"], row["reward"]) == (["ctypes", "process_exit"], 1.0)
    assert graded(rollout("no code"), None, None)["signals"] is None


def broken_executions(count: int, tasks: int) -> list[Execution]:
    """Executions whose reports miss their cases, which is the grader's fault, over so many tasks."""
    of = [replace(task(), task_id=f"task-{number}") for number in range(tasks)]
    return [execution(rollout(of=of[number % tasks]), report("passed")) for number in range(count)]


def run_stage(executions: list[Execution]) -> None:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = pipeline | beam.Create(executions, reshuffle=False) | Grade(RUBRIC, "engine-1", IMAGE)


def test_a_grader_that_fails_time_after_time_ends_the_chunk():
    with pytest.raises(
        RuntimeError, match="the grader failed 20 times in a row, on programs for 2 tasks; the last, run-1"
    ):
        run_stage(broken_executions(STREAK, 2))


def test_a_grader_that_fails_now_and_then_or_on_one_task_does_not():
    good = execution(rollout(), report("passed", "passed", "passed"))
    run_stage(broken_executions(STREAK - 1, 2))
    run_stage([*broken_executions(STREAK - 1, 2), good, *broken_executions(STREAK - 1, 2)])
    run_stage(broken_executions(2 * STREAK, 1))  # the gate counts them: see quality.max_grader_error_rate


def random_execution(dice: random.Random, number: int) -> Execution:
    """Any combination of what the stages before can hand over, sense or not."""
    failures = [Failure(outcome, "m", "e") for outcome in Outcome]
    of = Task(f"task-{number}", "?", task(dice.randrange(4)).check, unsupported=dice.choice([None, None, "no"]))
    asked = rollout(
        dice.choice(["", "x", "\ud800", "é" * 300]),
        finish=dice.choice(FINISHES),
        of=of,
        purpose=dice.choice(PURPOSES),
        failure=dice.choice([None, None, None, dice.choice(failures)]),
        logprobs=tuple(-dice.random() for _ in range(dice.randrange(4))),
    )
    outcomes = dice.choices([str(outcome) for outcome in Outcome], weights=[20] + [1] * (len(Outcome) - 1), k=4)
    return execution(
        asked,
        dice.choice([None, report(*outcomes[: dice.choice([len(of.cases), dice.randrange(5)])])]),
        dice.choice([None, "x = 1", "x = 1", "\ud800"]),
        dice.choice([None, None, None, dice.choice(failures)]),
    )


def test_any_execution_gives_one_row_that_holds_no_lie():
    dice = random.Random(5)
    rubrics = [RUBRIC, RubricSpec(all_passed=0.5, test_share=0.5), RubricSpec.model_construct(all_passed=math.nan)]
    executions = [random_execution(dice, number) for number in range(600)]
    rows = [trajectory_row(one, dice.choice(rubrics), "engine-1", IMAGE) for one in executions]
    for row in rows:
        scored = row["reward"] is not None and math.isfinite(row["reward"]) and 0 <= row["reward"] <= 1
        assert scored == (row["outcome_class"] == "policy") == (row["failure"] is None)
        assert scored or row["reward"] is None
        assert Outcome(row["outcome"]).outcome_class == row["outcome_class"]
    assert {row["outcome_class"] for row in rows} == {"policy", "infra", "grader", "task"}
    stored = pa.Table.from_pylist(rows, schema=TRAJECTORIES)
    assert stored.num_rows == 600


def test_what_the_grader_makes_of_sound_executions_passes_the_row_suite():
    rows = [
        graded(rollout(), report("passed", "passed", "passed")),
        graded(rollout(finish="length"), report("passed", "failed_tests", "time_limit")),
        graded(rollout("no code"), None, None),
        graded(rollout("def", finish="length"), None, None),
        graded(rollout(), None, failure=LOST),
        graded(rollout(failure=Failure(Outcome.ENGINE_FAILED, "no answer", "refused")), None, None),
        graded(rollout(of=task(unsupported="compares floats")), None, None),
        graded(rollout(), report("passed")),
        graded(rollout(purpose="eval_greedy"), report("passed", "passed", "passed")),
    ]
    rows = [{**row, "trajectory_id": str(number)} for number, row in enumerate(rows)]
    stored = pa.Table.from_pylist(rows, schema=TRAJECTORIES).to_pylist()
    assert [row["quarantine_reasons"] for row in validate_rows(stored, "run-1", 2, 5, {})[0]] == [[]] * len(rows)


def test_the_stage_gives_one_row_per_execution():
    attempts = [
        execution(rollout(), None, failure=LOST),
        execution(rollout(), report("passed", "passed", "passed")),
        execution(rollout(), report("passed")),
    ]

    def outcomes(rows: list[dict[str, Any]]) -> None:
        assert sorted(str(row["outcome"]) for row in rows) == ["grader_error", "passed", "sandbox_lost"]

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        assert_that(pipeline | beam.Create(attempts) | Grade(RUBRIC, "engine-1", IMAGE), outcomes)


def test_beam_refuses_the_stage_after_one_that_gives_something_else():
    pipeline = beam.Pipeline(runner="FnApiRunner")
    with pytest.raises(TypeCheckError, match="Execution"):
        pipeline | beam.Create([1]) | beam.Map(str).with_output_types(str) | Grade(RUBRIC, "engine-1", IMAGE)
