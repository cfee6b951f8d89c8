"""Turn each execution into its trajectory row: how it ended, what it earned, and the evidence."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import apache_beam as beam

from transforms.episode import CaseResult, Execution, Measured
from transforms.grade.judge import GRADER_VERSION, Ran, Verdict, judge
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import RubricSpec
from transforms.grade.signals import signals
from transforms.tally import TALLY

MAX_OBSERVATION = 2_000
"""Characters an observation may take."""

MAX_EVIDENCE = 8_000
"""Characters a failure or its evidence may take."""

STREAK = 20
"""Faults of the grader in a row, on more than one task, after which it counts as broken."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GraderBroken(Exception):
    """The grader failed time after time, whatever the program. The message ends with the evidence of the last time."""

    def __init__(self, message: str, *, evidence: str) -> None:
        super().__init__(f"{message}\n\n{evidence.strip()}")


@dataclass(frozen=True, slots=True)
class ImageUsed:
    """What programs find in their sandbox: see the table images."""

    name: str
    digest: str


class Grade(beam.PTransform):
    """Give every execution its trajectory row.

    In:   Execution, one per attempt, in any order.
    Out:  a row of the trajectories table, exactly one per Execution, `quarantine_reasons` empty; `reward` is None
          unless the policy caused the outcome. A fault of the grader is a row with the outcome `grader_error`; too many
          in a row are a GraderBroken, which fails the bundle.
    Cost: some 100 microseconds a row, most of it the parsing of its program. No state but the progress tally and that
          row of faults; safe to retry, to reshuffle and to run on any runner.
    """

    def __init__(self, rubric: RubricSpec, engine_name: str, image: ImageUsed) -> None:
        super().__init__()
        self.rubric = rubric
        self.engine_name = engine_name
        self.image = image

    def expand(self, executions: beam.PCollection[Execution]) -> beam.PCollection[dict[str, Any]]:
        """Build the stage."""
        grade = _GradeFn(self.rubric, self.engine_name, self.image)
        return executions | "Row" >> beam.ParDo(grade).with_output_types(dict[str, Any])


class _GradeFn(beam.DoFn):
    """Grades, and ends it all when the grader fails time after time: what it cannot judge need not be sampled."""

    def __init__(self, rubric: RubricSpec, engine_name: str, image: ImageUsed) -> None:
        self.rubric, self.engine_name, self.image = rubric, engine_name, image

    def setup(self) -> None:
        self.faults: list[dict[str, Any]] = []

    def process(self, element: Execution) -> Iterator[dict[str, Any]]:
        row = trajectory_row(element, self.rubric, self.engine_name, self.image)
        self.faults = [*self.faults, row] if row["outcome"] == Outcome.GRADER_ERROR else []
        tasks = {fault["task_id"] for fault in self.faults}
        if len(self.faults) >= STREAK and len(tasks) > 1:
            raise GraderBroken(
                f"the grader failed {len(self.faults)} times in a row, on programs for {len(tasks)} tasks; the last, "
                f"{row['trajectory_id']}: {row['failure']}",
                evidence=row["evidence"],
            )
        yield row


def trajectory_row(execution: Execution, rubric: RubricSpec, engine_name: str, image: ImageUsed) -> dict[str, Any]:
    """The row of one attempt, with the keys of `TRAJECTORIES`. Never loses an attempt: see `Grade`."""
    rollout, completion = execution.rollout, execution.rollout.completion
    cut = completion is not None and completion.finish_reason == "length"
    ran = Ran(execution.program, execution.report, rollout.failure or execution.failure, cut)
    verdict = judge(f"trajectory {trajectory_id(execution)}", rollout.group.task, ran, rubric)
    if execution.final and verdict.reward is not None:
        TALLY.add(scored=1, reward_sum=verdict.reward)
    return _row(execution, verdict, engine_name, image)


def trajectory_id(execution: Execution) -> str:
    """Names one attempt of an episode."""
    return f"{execution.rollout.episode_id}/a{execution.attempt}"


def _row(execution: Execution, verdict: Verdict, engine_name: str, image: ImageUsed) -> dict[str, Any]:
    rollout, group, report = execution.rollout, execution.rollout.group, execution.report
    usage = report.usage if report else None
    attempted = execution.program is not None and (report is not None or execution.failure is not None)
    return {
        "trajectory_id": trajectory_id(execution),
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
        "tests": [_test(result) for result in (report.results if report else ())],
        "outcome": str(verdict.outcome),
        "outcome_class": str(verdict.outcome.outcome_class),
        "reward": verdict.reward,
        "reward_components": [{"name": name, "value": value} for name, value in verdict.components.items()],
        "integrity": group.task.check.integrity if report else None,
        "grader_version": GRADER_VERSION,
        "measured": _measured(report.measured) if report and report.measured else None,
        "compiler_message": _storable(report.compiler_message, MAX_EVIDENCE) if report else None,
        "signals": None if execution.program is None else signals(execution.program, group.task),
        "impossible": group.task.impossible,
        "sandbox": execution.sandbox if attempted else None,
        "host": usage.host if usage else execution.failure.host if execution.failure else None,
        "image": image.name if attempted else None,
        "image_digest": image.digest if attempted else None,
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


def _test(result: CaseResult) -> dict[str, Any]:
    return {
        "name": _storable(result.name),
        "tier": result.tier,
        "outcome": str(result.outcome),
        "message": _storable(result.message),
        "duration_s": result.duration_s,
        "milestone": result.milestone,
        "got": _storable(result.got),
        "expected_type": result.expected_type,
        "location": _storable(result.location),
    }


def _measured(measured: Measured) -> dict[str, Any]:
    numbers = {each.name: getattr(measured, each.name) for each in fields(measured) if each.name != "failed"}
    problem = "; ".join(f"{name}: {why}" for name, why in measured.failed.items())
    return {**numbers, "problem": _storable(problem, MAX_EVIDENCE) or None}


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
        "output_digest": None,
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
        "workspace_digest": execution.workspace_digest,
        "output_digest": execution.output_digest,
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
