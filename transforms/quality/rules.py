"""What one trajectory row must satisfy.

Each rule is a pure function of a row (a dict with the keys of `TRAJECTORIES`, as `pa.Table.to_pylist()` gives it) that
says what is wrong, or None. The suite's file names each in an expectation of its own. A rule looks at one thing and
trusts the others to look at theirs, so that a row with one fault has one reason. What a flat column alone can say is a
rule here too: a built-in expectation costs Great Expectations five times as much as one of these.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from transforms.episode import Purpose
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.lake.schemas import TRAJECTORIES
from transforms.quality.text import no_secrets_or_host_paths

Row = Mapping[str, Any]

LOGPROB_TOLERANCE = 1e-4
"""Nats by which a log-probability may exceed 0: rounding of a float32 log-softmax."""

_CLASSES = {str(outcome): str(outcome.outcome_class) for outcome in Outcome}
_PURPOSES = get_args(Purpose)
_REQUIRED = [column.name for column in TRAJECTORIES if not column.nullable]
_WITHOUT_TESTS = frozenset({Outcome.NO_SUBMISSION, Outcome.TRUNCATED})
_CHEATED = frozenset({Outcome.TAMPERED, Outcome.POLICY_VIOLATION})


def outcome_in_contract(row: Row) -> str | None:
    """The outcome is one of ours, with its own class."""
    outcome, kind = row["outcome"], row["outcome_class"]
    return None if _CLASSES.get(outcome) == kind else f"outcome {outcome} of class {kind}"


def purpose_known(row: Row) -> str | None:
    """The purpose is one of ours."""
    return None if row["purpose"] in _PURPOSES else f"purpose {row['purpose']}"


def attempt_from_one(row: Row) -> str | None:
    """Attempts count from 1."""
    return f"attempt {row['attempt']}" if row["attempt"] is not None and row["attempt"] < 1 else None


def sample_from_zero(row: Row) -> str | None:
    """Samples count from 0."""
    return f"sample {row['sample']}" if row["sample"] is not None and row["sample"] < 0 else None


def required_present(row: Row) -> str | None:
    """Every column that the schema declares not null holds something."""
    absent = [name for name in _REQUIRED if row[name] is None]
    return f"null: {', '.join(absent)}" if absent else None


def reward_null_unless_policy(row: Row) -> str | None:
    """The reward is null if, and only if, the outcome is not the policy's."""
    scored = row["outcome_class"] == OutcomeClass.POLICY
    if scored == (row["reward"] is not None):
        return None
    return f"outcome class {row['outcome_class']} with reward {row['reward']}"


def reward_in_range(row: Row) -> str | None:
    """A reward is finite and in 0 .. 1."""
    reward = row["reward"]
    return None if reward is None or _in_unit_range(reward) else f"reward {reward}"


def components_in_range(row: Row) -> str | None:
    """Reward components have names of their own and finite values in 0 .. 1; a reward has at least one."""
    components = row["reward_components"] or []
    names = [component["name"] for component in components]
    if row["reward"] is not None and not components:
        return "a reward without components"
    if len(set(names)) != len(names) or not all(names):
        return f"component names {names}"
    wrong = [f"{c['name']}={c['value']}" for c in components if c["value"] is None or not _in_unit_range(c["value"])]
    return ", ".join(wrong) or None


def failure_explained(row: Row) -> str | None:
    """A failure is described if, and only if, the outcome is not the policy's; an infra failure has evidence."""
    scored = row["outcome_class"] == OutcomeClass.POLICY
    if scored:
        return f"a scored attempt with the failure {row['failure']!r}" if row["failure"] else None
    if not row["failure"]:
        return f"{row['outcome']} without a failure"
    if row["outcome_class"] == OutcomeClass.INFRA and not row["evidence"]:
        return f"{row['outcome']} without evidence"
    return None


def turn_lengths_equal(row: Row) -> str | None:
    """In each turn token ids, log-probabilities and loss mask are equally many."""
    for number, turn in enumerate(row["turns"] or [], 1):
        ids, logprobs, mask = len(turn["token_ids"]), len(turn["logprobs"]), len(turn["loss_mask"])
        if not ids == logprobs == mask:
            return f"turn {number}: {ids} tokens, {logprobs} log-probabilities, {mask} mask values"
    return None


def logprobs_valid(row: Row) -> str | None:
    """Log-probabilities are finite and not above 0."""
    for number, turn in enumerate(row["turns"] or [], 1):
        for place, value in enumerate(turn["logprobs"]):
            if value is None or not math.isfinite(value) or value > LOGPROB_TOLERANCE:
                return f"turn {number}, token {place}: log-probability {value}"
    return None


def loss_mask_train_only(row: Row) -> str | None:
    """Mask values are booleans, and only those of a training row may be true."""
    mask = [value for turn in row["turns"] or [] for value in turn["loss_mask"]]
    if not all(isinstance(value, bool) for value in mask):
        return "mask values that are no booleans"
    return (
        f"{sum(mask)} tokens to train on in a row of purpose {row['purpose']}"
        if any(mask) and row["purpose"] != "train"
        else None
    )


def token_counts_match(row: Row) -> str | None:
    """prompt_tokens and completion_tokens count the token ids of all turns; null when there is no turn."""
    turns = row["turns"] or []
    for column, ids in (("prompt_tokens", "prompt_token_ids"), ("completion_tokens", "token_ids")):
        counted = sum(len(turn[ids]) for turn in turns) if turns else None
        if row[column] != counted:
            return f"{column} is {row[column]}, its ids are {counted}"
    return None


def prompt_present(row: Row) -> str | None:
    """Each turn has prompt tokens, and a scored row has a turn."""
    turns = row["turns"] or []
    if not turns and row["outcome_class"] == OutcomeClass.POLICY:
        return "a scored attempt without a turn"
    empty = [number for number, turn in enumerate(turns, 1) if not turn["prompt_token_ids"]]
    return f"turn {empty[0]} has no prompt tokens" if empty else None


def prompt_extends(row: Row) -> str | None:
    """The prompt of each turn but the first begins with the prompt before it and what was sampled there."""
    for number, (before, turn) in enumerate(itertools.pairwise(row["turns"] or []), 2):
        stored = [*before["prompt_token_ids"], *before["token_ids"]]
        if list(turn["prompt_token_ids"][: len(stored)]) != stored:
            return f"turn {number} does not extend the {len(stored)} tokens stored before it"
    return None


def answer_last(row: Row) -> str | None:
    """The chat ends with the policy's answer when there is one, and only then."""
    messages = row["messages"] or []
    answered = bool(messages) and messages[-1]["role"] == "assistant"
    if answered == bool(row["turns"]):
        return None
    last = messages[-1]["role"] if messages else "nobody"
    return f"{len(row['turns'] or [])} turn(s), but the last message is by {last}"


def completion_hash_matches(row: Row) -> str | None:
    """completion_hash is the SHA-256 of the last answer."""
    answers = [message["content"] for message in row["messages"] or [] if message["role"] == "assistant"]
    if not answers:
        return None
    wanted = hashlib.sha256(answers[-1].encode()).hexdigest()
    return None if row["completion_hash"] == wanted else f"{row['completion_hash']}, the answer's is {wanted}"


def times_ordered(row: Row) -> str | None:
    """Start before end, in the row and in each step, and steps one after the other within the row."""
    if row["started_at"] is None or row["ended_at"] is None:
        return None
    steps = row["steps"] or []
    times = [row["started_at"], *(t for s in steps for t in (s["started_at"], s["ended_at"])), row["ended_at"]]
    for earlier, later in itertools.pairwise(times):
        if earlier > later:
            return f"{earlier}, then {later}"
    return None


def tests_named(row: Row) -> str | None:
    """Tests have names, each its own."""
    names = [test["name"] for test in row["tests"] or []]
    return f"test names {names}" if len(set(names)) != len(names) or not all(names) else None


def tests_complete(row: Row) -> str | None:
    """The tests are those of the task, in any order, where there are any.

    `task_cases`, which the stage adds to a row, names the task's cases; null where nobody knows them.
    """
    tests, cases = row["tests"] or [], row["task_cases"]
    if not tests or cases is None or sorted(test["name"] or "" for test in tests) == sorted(cases):
        return None
    names = {test["name"] for test in tests}
    absent, odd = sorted(set(cases) - names), sorted(str(name) for name in names - set(cases))
    return f"{len(tests)} tests of {len(cases)} cases; missing {absent[:5]}, unknown {odd[:5]}"


def outcome_follows_tests(row: Row) -> str | None:
    """A scored outcome is that of the first test that did not pass, `passed` when all did; an attempt without a
    submission has none. One test that shows tampering or broken rules decides, wherever it stands; without such a test
    they are told from elsewhere."""
    outcome, tests = row["outcome"], row["tests"] or []
    cheated = [test["outcome"] for test in tests if test["outcome"] in _CHEATED]
    if row["outcome_class"] != OutcomeClass.POLICY or (outcome in _CHEATED and not cheated):
        return None
    if outcome in _WITHOUT_TESTS:
        return f"{outcome} with {len(tests)} tests" if tests else None
    if not tests:
        return f"{outcome} without tests"
    failed = [test["outcome"] for test in tests if test["outcome"] != Outcome.PASSED]
    told = (cheated or failed or [Outcome.PASSED])[0]
    return None if outcome == told else f"{outcome}, but its tests say {told}"


def program_present(row: Row) -> str | None:
    """What was tested is there."""
    return f"{len(row['tests'])} tests of no program" if row["tests"] and not row["program"] else None


def _in_unit_range(value: float) -> bool:
    return 0.0 <= value <= 1.0  # NaN compares false


RULES: dict[str, Callable[[Row], str | None]] = {
    "outcome_in_contract": outcome_in_contract,
    "purpose_known": purpose_known,
    "attempt_from_one": attempt_from_one,
    "sample_from_zero": sample_from_zero,
    "required_present": required_present,
    "reward_null_unless_policy": reward_null_unless_policy,
    "reward_in_range": reward_in_range,
    "components_in_range": components_in_range,
    "failure_explained": failure_explained,
    "turn_lengths_equal": turn_lengths_equal,
    "logprobs_valid": logprobs_valid,
    "loss_mask_train_only": loss_mask_train_only,
    "token_counts_match": token_counts_match,
    "prompt_present": prompt_present,
    "prompt_extends": prompt_extends,
    "answer_last": answer_last,
    "completion_hash_matches": completion_hash_matches,
    "times_ordered": times_ordered,
    "tests_named": tests_named,
    "tests_complete": tests_complete,
    "outcome_follows_tests": outcome_follows_tests,
    "program_present": program_present,
    "no_secrets_or_host_paths": no_secrets_or_host_paths,
}
"""Each rule by name; `suites/trajectories.json` names them so."""
