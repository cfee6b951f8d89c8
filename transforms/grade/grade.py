"""Turn each execution into its trajectory row: how it ended, what it earned, and the evidence."""

import hashlib
import traceback
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import apache_beam as beam

from transforms.episode import CaseResult, Execution
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import RubricSpec, outcome_of, score
from transforms.tally import TALLY

GRADER_VERSION = "2"
"""Version of the rules in this package; raise it when the same execution would be graded differently."""

MAX_OBSERVATION = 2_000
"""Characters an observation may take."""

MAX_EVIDENCE = 8_000
"""Characters a failure or its evidence may take."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Grade(beam.PTransform):
    """Give every execution its trajectory row.

    In:   Execution, one per attempt, in any order.
    Out:  a row of the trajectories table, exactly one per Execution, `quarantine_reasons` empty; `reward` is None
          unless the policy caused the outcome. A fault of the grader is a row with the outcome `grader_error`.
    Cost: stateless but for the progress tally; safe to retry, to reshuffle and to run on any runner. Some 20
          microseconds a row.
    """

    def __init__(self, rubric: RubricSpec, engine_name: str) -> None:
        super().__init__()
        self.rubric = rubric
        self.engine_name = engine_name

    def expand(self, executions: beam.PCollection[Execution]) -> beam.PCollection[dict[str, Any]]:
        """Build the stage."""
        return executions | "Row" >> beam.Map(
            trajectory_row, rubric=self.rubric, engine_name=self.engine_name
        ).with_output_types(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one attempt ended. `reward` is a finite number in 0 .. 1 if the policy caused the end, else None."""

    trajectory_id: str
    outcome: Outcome
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    """What failed; None when the outcome is the policy's."""
    evidence: str | None = None

    def __post_init__(self) -> None:
        fits = self.reward is not None and 0.0 <= self.reward <= 1.0  # NaN compares false
        if not (fits if self.outcome.scored else self.reward is None):
            raise ValueError(f"trajectory {self.trajectory_id}: {self.outcome} cannot carry the reward {self.reward!r}")


def trajectory_row(execution: Execution, rubric: RubricSpec, engine_name: str) -> dict[str, Any]:
    """The row of one attempt, with the keys of `TRAJECTORIES`. Never loses an attempt: see `Grade`."""
    try:
        verdict = _judge(execution, rubric)
    except Exception as error:  # noqa: BLE001 - the boundary of grading: its own fault becomes a row, never a zero
        verdict = Verdict(
            trajectory_id(execution),
            Outcome.GRADER_ERROR,
            failure=f"{type(error).__name__}: {error}",
            evidence=traceback.format_exc(),
        )
    if execution.final and verdict.reward is not None:
        TALLY.add(scored=1, reward_sum=verdict.reward)
    return _row(execution, verdict, engine_name)


def trajectory_id(execution: Execution) -> str:
    """Names one attempt of an episode."""
    return f"{execution.rollout.episode_id}/a{execution.attempt}"


def _judge(execution: Execution, rubric: RubricSpec) -> Verdict:
    rollout, name = execution.rollout, trajectory_id(execution)
    failure = rollout.failure or execution.failure
    if failure is not None:
        return Verdict(name, failure.outcome, failure=failure.message, evidence=failure.evidence)
    task = rollout.group.task
    if task.unsupported is not None:
        return Verdict(name, Outcome.TASK_INVALID, failure="the task cannot be graded", evidence=task.unsupported)
    results: tuple[CaseResult, ...] = ()
    if execution.program is None:
        cut = rollout.completion is not None and rollout.completion.finish_reason == "length"
        outcome = Outcome.TRUNCATED if cut else Outcome.NO_SUBMISSION
    else:
        results = _complete_results(execution)
        outcome = outcome_of(results)
    scored = score(rubric, outcome, results)
    return Verdict(name, outcome, scored.reward, scored.components)


def _complete_results(execution: Execution) -> tuple[CaseResult, ...]:
    """The results, once each case of the task has exactly one: an absent result is no pass."""
    if execution.report is None:
        raise ValueError(f"trajectory {trajectory_id(execution)}: its program has neither a report nor a failure")
    results = execution.report.results
    expected = Counter(case.name for case in execution.rollout.group.task.cases)
    found = Counter(result.name for result in results)
    if expected != found:
        raise ValueError(
            f"trajectory {trajectory_id(execution)}: results do not match the task's cases "
            f"(missing {sorted((expected - found).elements())}, unexpected {sorted((found - expected).elements())})"
        )
    return results


def _row(execution: Execution, verdict: Verdict, engine_name: str) -> dict[str, Any]:
    rollout, group, report = execution.rollout, execution.rollout.group, execution.report
    usage = report.usage if report else None
    attempted = execution.program is not None and (report is not None or execution.failure is not None)
    return {
        "trajectory_id": verdict.trajectory_id,
        "episode_id": rollout.episode_id,
        "group_id": group.group_id,
        "run_id": group.run_id,
        "cycle": group.cycle,
        "chunk": group.chunk,
        "purpose": group.purpose,
        "sample": rollout.sample,
        "attempt": execution.attempt,
        "final": execution.final,
        "task_id": group.task.task_id,
        "task_hash": group.task.content_hash,
        "policy_version": group.policy_version,
        "engine": engine_name,
        "temperature": group.sampling.temperature,
        "top_p": group.sampling.top_p,
        "max_tokens": group.sampling.max_tokens,
        "seed": group.seed,
        **_answer(execution),
        "program": _storable(execution.program),
        "steps": [_rollout_step(execution), *([_execute_step(execution, verdict)] if attempted else [])],
        "tests": [
            {
                "name": result.name,
                "tier": result.tier,
                "outcome": str(result.outcome),
                "message": _storable(result.message),
                "duration_s": result.duration_s,
            }
            for result in (report.results if report else ())
        ],
        "outcome": str(verdict.outcome),
        "outcome_class": str(verdict.outcome.outcome_class),
        "reward": verdict.reward,
        "reward_components": [{"name": name, "value": value} for name, value in verdict.components.items()],
        "integrity": "split" if report else None,
        "grader_version": GRADER_VERSION,
        "sandbox": execution.sandbox if attempted else None,
        "limits_enforced_by": usage.limits_enforced_by if usage else None,
        "wall_s": usage.wall_s if usage else None,
        "cpu_s": usage.cpu_s if usage else None,
        "peak_memory_bytes": usage.peak_memory_bytes if usage else None,
        "failure": _storable(verdict.failure, MAX_EVIDENCE),
        "evidence": _storable(verdict.evidence, MAX_EVIDENCE),
        "quarantine_reasons": [],
        "started_at": _utc(rollout.started_us),
        "ended_at": _utc(execution.ended_us),
    }


def _answer(execution: Execution) -> dict[str, Any]:
    """The columns that hold the chat and what the engine sampled; null or empty where it sampled nothing."""
    rollout, completion = execution.rollout, execution.rollout.completion
    chat = [{"role": m["role"], "content": _storable(m["content"])} for m in rollout.messages]
    if completion is None:
        columns = ("seeded", "finish_reason", "prompt_tokens", "completion_tokens", "completion_hash")
        return {"messages": chat, "turns": [], **dict.fromkeys(columns)}
    text = _storable(completion.text) or ""
    return {
        "seeded": completion.seeded,
        "messages": [*chat, {"role": "assistant", "content": text}],
        "turns": [
            {
                "prompt_token_ids": list(completion.prompt_token_ids),
                "token_ids": list(completion.token_ids),
                "logprobs": list(completion.logprobs),
                "loss_mask": [rollout.group.purpose == "train"] * len(completion.token_ids),
                "finish_reason": completion.finish_reason,
            }
        ],
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(completion.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
        "completion_hash": hashlib.sha256(text.encode()).hexdigest(),
    }


def _rollout_step(execution: Execution) -> dict[str, Any]:
    rollout = execution.rollout
    completion, failure = rollout.completion, rollout.failure
    observation = completion.finish_reason if completion else ""
    if failure is not None:
        observation = _observed(failure.outcome, failure.message)
    return {
        "kind": "rollout",
        "state": f"task {rollout.group.task.task_id}, {len(rollout.messages)} message(s), no answer yet",
        "action": _storable(completion.text) if completion else None,
        "observation": _storable(observation, MAX_OBSERVATION),
        "workspace_digest": None,
        "wall_s": (rollout.ended_us - rollout.started_us) / 1e6,
        "cpu_s": None,
        "peak_memory_bytes": None,
        "started_at": _utc(rollout.started_us),
        "ended_at": _utc(rollout.ended_us),
    }


def _execute_step(execution: Execution, verdict: Verdict) -> dict[str, Any]:
    report = execution.report
    usage = report.usage if report else None
    if report is None:
        observation = _observed(verdict.outcome, verdict.failure)
    else:
        passed = sum(result.outcome is Outcome.PASSED for result in report.results)
        observation = f"{passed}/{len(report.results)} cases passed"
        failed = next((result for result in report.results if result.outcome is not Outcome.PASSED), None)
        if failed is not None:
            observation += f"; first failure: {failed.name} {_observed(failed.outcome, failed.message)}"
    return {
        "kind": "execute",
        "state": f"program of {len(execution.program or '')} characters, "
        f"{len(execution.rollout.group.task.cases)} case(s), attempt {execution.attempt}",
        "action": _storable(execution.program),
        "observation": _storable(observation, MAX_OBSERVATION),
        "workspace_digest": None,
        "wall_s": usage.wall_s if usage else (execution.ended_us - execution.started_us) / 1e6,
        "cpu_s": usage.cpu_s if usage else None,
        "peak_memory_bytes": usage.peak_memory_bytes if usage else None,
        "started_at": _utc(execution.started_us),
        "ended_at": _utc(execution.ended_us),
    }


def _observed(outcome: Outcome, message: str | None) -> str:
    return f"{outcome}: {message}" if message else str(outcome)


def _storable(text: str | None, limit: int | None = None) -> str | None:
    """Text that Arrow takes: a lone surrogate, which has no UTF-8 form, becomes `?`; cut at `limit` characters."""
    if text is None:
        return None
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def _utc(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
