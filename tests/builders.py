"""Complete, valid rows of the lake's tables, for tests to vary."""

import hashlib
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
"""When every built attempt began."""


def a_test(name: str, tier: str = "hidden", outcome: str = "passed") -> dict[str, object]:
    """One element of `tests`."""
    return {
        "name": name,
        "tier": tier,
        "outcome": outcome,
        "message": "",
        "duration_s": 0.01,
        "milestone": None,
        "got": None,
        "expected_type": None,
        "location": None,
    }


def trajectory_row(**overrides: object) -> dict[str, object]:
    """A complete row of `trajectories`: a passed training attempt with one turn, two steps and two tests.

    Overrides replace whole fields; nothing else is derived from them, so an outcome, its class and its reward (and
    an answer and its hash) must be overridden together. An unknown field is a KeyError.
    """
    answer = "```python\ndef add(a, b):\n    return a + b\n```"
    row: dict[str, object] = {
        "trajectory_id": "run-1/1/train/add/0/1",
        "episode_id": "run-1/1/train/add/0",
        "group_id": "run-1/1/train/add",
        "run_id": "run-1",
        "cycle": 1,
        "chunk": 3,
        "purpose": "train",
        "sample": 0,
        "attempt": 1,
        "final": True,
        "task_id": "add",
        "task_hash": hashlib.sha256(b"add").hexdigest(),
        "policy_version": 0,
        "engine": "transformers",
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 96,
        "seed": 7,
        "seeded": True,
        "messages": [
            {"role": "user", "content": "Write add(a, b) that returns the sum."},
            {"role": "assistant", "content": answer},
        ],
        "turns": [
            {
                "prompt_token_ids": [1, 15, 204, 9, 2],
                "token_ids": [33, 8, 512, 4],
                "logprobs": [-0.5, -1.25, -0.0625, -2.0],
                "loss_mask": [True, True, True, True],
                "finish_reason": "stop",
            }
        ],
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "completion_hash": hashlib.sha256(answer.encode()).hexdigest(),
        "program": "def add(a, b):\n    return a + b\n",
        "steps": [
            {
                "kind": "rollout",
                "state": "1 message",
                "action": answer,
                "observation": "stop after 4 tokens",
                "workspace_digest": None,
                "output_digest": None,
                "wall_s": 0.5,
                "cpu_s": None,
                "peak_memory_bytes": None,
                "started_at": START,
                "ended_at": START + timedelta(seconds=0.5),
            },
            {
                "kind": "execute",
                "state": "2 cases",
                "action": "def add(a, b):\n    return a + b\n",
                "observation": "2 of 2 passed",
                "workspace_digest": hashlib.sha256(b"").hexdigest(),
                "output_digest": None,
                "wall_s": 0.25,
                "cpu_s": 0.125,
                "peak_memory_bytes": 12_345_678,
                "started_at": START + timedelta(seconds=0.5),
                "ended_at": START + timedelta(seconds=0.75),
            },
        ],
        "tests": [a_test("small", "visible"), a_test("negative")],
        "outcome": "passed",
        "outcome_class": "policy",
        "reward": 1.0,
        "reward_components": [{"name": "all_passed", "value": 1.0}, {"name": "test_share", "value": 1.0}],
        "integrity": "split",
        "grader_version": "1",
        "measured": None,
        "compiler_message": None,
        "signals": [],
        "impossible": False,
        "sandbox": "bubblewrap",
        "host": "here",
        "image": "host",
        "image_digest": hashlib.sha256(b"host").hexdigest(),
        "limits_enforced_by": "cgroup-v1",
        "wall_s": 0.25,
        "cpu_s": 0.125,
        "peak_memory_bytes": 12_345_678,
        "failure": None,
        "evidence": None,
        "quarantine_reasons": [],
        "started_at": START,
        "ended_at": START + timedelta(seconds=0.75),
    }
    unknown = set(overrides) - set(row)
    if unknown:
        raise KeyError(f"not a field of trajectories: {', '.join(sorted(unknown))}")
    return {**row, **overrides}
