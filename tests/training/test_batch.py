import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from training.batch import BatchError, cut_batch
from training.config import TrainingSpec


def row(task: str, sample: int, reward: float | None, **changes) -> dict:
    prompt = [1, 2, ord(task)]
    turn = {
        "prompt_token_ids": prompt,
        "token_ids": [sample + 3, 4, 5],
        "logprobs": [-0.5, -1.0, -1.5],
        "loss_mask": [True, True, False],
        "finish_reason": "stop",
    }
    return {
        "trajectory_id": f"r/{task}/{sample}/1",
        "group_id": f"r/1/train/{task}",
        "task_id": task,
        "purpose": "train",
        "sample": sample,
        "final": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "turns": [turn],
        "reward": reward,
        "quarantine_reasons": [],
    } | changes


def rows() -> list[dict]:
    return [row(task, sample, float(sample == 0)) for task in "abcde" for sample in range(3)]


def cut(of: list[dict], seed: int = 0, cycle: int = 1, **spec):
    return cut_batch(of, TrainingSpec(**spec), seed=seed, cycle=cycle)


def ids(batch) -> list[str]:
    return [group.task_id for step in batch.steps for group in step]


def test_steps_hold_so_many_groups_and_the_last_one_the_rest():
    batch = cut(rows(), groups_per_step=2)
    assert [len(step) for step in batch.steps] == [2, 2, 1]
    assert sorted(ids(batch)) == list("abcde")
    assert (batch.groups_with_signal, batch.groups_without_signal, batch.unscored, batch.left_out) == (5, 0, 0, 0)


def test_a_member_is_what_the_row_says():
    member = cut(rows()).steps[0][0].members[0]
    assert (member.token_ids, member.sampler_logprobs) == ((3, 4, 5), (-0.5, -1.0, -1.5))
    assert (member.loss_mask, member.tokens) == ((True, True, False), 2)
    assert member.advantage == pytest.approx(1.154699, abs=1e-6)  # of [1, 0, 0]


def test_same_rows_in_any_order_give_the_same_batch():
    shuffled = rows()
    random.Random(3).shuffle(shuffled)
    assert cut(shuffled) == cut(rows())
    assert cut(shuffled).batch_hash == cut(rows()).batch_hash


def test_order_depends_on_seed_cycle_and_epoch():
    many = [row(chr(97 + task), sample, float(sample == 0)) for task in range(20) for sample in range(2)]
    orders = [ids(cut(many, seed, cycle)) for seed, cycle in ((0, 1), (1, 1), (0, 2))]
    two = ids(cut(many, epochs=2))
    assert two[:20] == orders[0]
    assert len({tuple(order) for order in [*orders, two[20:]]}) == 4


def test_names_do_not_enter_the_hash_but_every_number_does():
    before = cut(rows()).batch_hash
    renamed = [one | {"trajectory_id": "x" + one["trajectory_id"], "group_id": "x" + one["group_id"]} for one in rows()]
    assert cut(renamed).batch_hash == before
    for column, value in (
        ("token_ids", [9, 4, 5]),
        ("logprobs", [-0.5, -1.0, -1.25]),
        ("loss_mask", [True, True, True]),
    ):
        changed = rows()
        changed[4]["turns"][0][column] = value
        assert cut(changed).batch_hash != before, column
    rewarded = rows()
    rewarded[4]["reward"] = 0.5
    assert cut(rewarded).batch_hash != before
    assert cut(rows(), groups_per_step=3).batch_hash != before
    assert cut(rows(), seed=1).batch_hash != before


def test_the_hash_is_of_these_bytes_in_this_order():
    """Written out with numpy: counts as uint32, tokens as int32, log-probabilities and advantages as float64, masks as
    bytes, all little-endian. A change of the layout means that stored hashes can no longer be compared."""

    def array(values: Sequence[float], dtype: str) -> bytes:
        return np.uint32(len(values)).tobytes() + np.array(values, dtype).tobytes()

    batch = cut(rows())
    written = b""
    for step in batch.steps:
        written += np.uint32(len(step)).tobytes()
        for group in step:
            written += np.uint32(len(group.members)).tobytes() + array(group.prompt_token_ids, "<i4")
            for member in group.members:
                written += array(member.token_ids, "<i4") + array(member.sampler_logprobs, "<f8")
                written += array(member.loss_mask, "?") + np.float64(member.advantage).tobytes()
    assert batch.batch_hash == hashlib.sha256(written).hexdigest()


def test_unscored_rows_are_counted_not_trained():
    some = [row("a", 0, 1.0), row("a", 1, None, turns=None), row("a", 2, 0.0), row("a", 3, 0.0)]
    batch = cut(some)
    assert batch.unscored == 1
    assert [m.trajectory_id for m in batch.steps[0][0].members] == ["r/a/0/1", "r/a/2/1", "r/a/3/1"]
    assert [m.advantage for m in batch.steps[0][0].members] == pytest.approx([1.154699, -0.577349, -0.577349], abs=1e-6)


def test_groups_without_signal_are_counted_not_trained():
    some = [row("a", 0, 1.0), row("a", 1, 1.0), row("b", 0, 1.0), row("b", 1, None), row("c", 0, 0.0), row("c", 1, 1.0)]
    batch = cut(some)
    assert ids(batch) == ["c"]
    assert (batch.groups_with_signal, batch.groups_without_signal, batch.unscored) == (1, 2, 1)


def test_no_signal_at_all_is_an_empty_batch():
    assert cut([row("a", 0, 1.0), row("a", 1, 1.0)]).steps == ()
    assert cut([]).steps == ()


@pytest.mark.parametrize(
    "change", [{"quarantine_reasons": ["reward in range"]}, {"final": False}, {"purpose": "eval_sampled"}]
)
def test_rows_that_are_left_out_change_nothing(change):
    extra = row("a", 7, 0.25) | change
    batch = cut([*rows(), extra])
    assert batch.left_out == 1
    assert batch.steps == cut(rows()).steps


def test_tokens_nobody_may_train_on_give_no_signal():
    some = [row("a", 0, 1.0), row("a", 1, 0.0)]
    for one in some:
        one["turns"][0]["loss_mask"] = [False] * 3
    assert cut(some).steps == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.8}, "sampling.temperature"),
        ({"top_p": 0.9}, "sampling.top_p"),
        ({"turns": []}, "0 turns"),
        ({"sample": 1}, "both final for sample 1"),
    ],
)
def test_untrainable_rows_are_refused_by_name(change, message):
    with pytest.raises(BatchError, match=message) as caught:
        cut([row("a", 0, 1.0) | change, row("a", 1, 0.0)])
    assert "r/a/0/1" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prompt_token_ids", [1, 2, 3], "prompt differs"),
        ("logprobs", [-1.0], "equal lengths"),
        ("prompt_token_ids", [], "prompt"),
    ],
)
def test_ragged_turns_are_refused_by_name(column, value, message):
    some = [row("a", 0, 1.0), row("a", 1, 0.0)]
    some[1]["turns"][0][column] = value
    with pytest.raises(BatchError, match=message) as caught:
        cut(some)
    assert "r/a/1/1" in str(caught.value)


def test_records_are_frozen():
    batch = cut(rows())
    with pytest.raises(AttributeError):
        batch.steps = ()
    assert replace(batch, left_out=9).batch_hash == batch.batch_hash
