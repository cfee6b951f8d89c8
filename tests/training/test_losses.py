import math

import pytest
import torch

from training.losses import clipped_policy_loss, clipped_tokens, k3_divergence

RANGE = {"low": 0.2, "high": 0.28}


def each(ratios: list[float], advantage: float) -> list[float]:
    """The loss of each ratio alone."""
    one = torch.ones(1, dtype=torch.bool)
    return [
        clipped_policy_loss(torch.tensor([math.log(r)]), torch.zeros(1), torch.tensor([advantage]), one, **RANGE)[
            0
        ].item()
        for r in ratios
    ]


def test_clip_higher():
    assert each([0.5, 1.25, 1.3, 5.0], 1.0) == pytest.approx([-0.5, -1.25, -1.28, -1.28])


def test_negative_advantage():
    assert each([0.5, 0.9, 1.3, 5.0], -1.0) == pytest.approx([0.8, 0.9, 1.3, 5.0])


def test_clip_range_is_asymmetric_and_sums():
    ratio = torch.tensor([0.5, 1.25, 1.3, 5.0])
    sampled = torch.ones(4, dtype=torch.bool)
    total, count = clipped_policy_loss(ratio.log(), torch.zeros(4), torch.ones(4), sampled, **RANGE)
    # by hand: -(0.5 + 1.25 + 1.28 + 1.28)
    assert total.item() == pytest.approx(-4.31)
    assert count.item() == 4


def test_token_mean_over_two_sequences():
    # sequences of 2 and 8 tokens, ratio 1, advantages -2 and -1: losses 2 and 1; (2*2 + 8*1) / 10 = 1.2
    advantage = torch.tensor([-2.0] * 2 + [-1.0] * 8)
    zeros = torch.zeros(10)
    total, count = clipped_policy_loss(zeros, zeros, advantage, torch.ones(10, dtype=torch.bool), **RANGE)
    assert (total / count).item() == pytest.approx(1.2)


def test_clipped_tokens_are_those_without_gradient():
    ratio = torch.tensor([0.5, 0.9, 1.3, 5.0, 0.5, 0.9, 1.3, 5.0, 0.1])
    advantage = torch.tensor([1.0] * 4 + [-1.0] * 4 + [0.0])
    sampled = torch.tensor([True] * 7 + [False, True])
    logp = ratio.log().requires_grad_()
    total, _ = clipped_policy_loss(logp, torch.zeros(9), advantage, sampled, **RANGE)
    total.backward()
    clipped, count = clipped_tokens(logp, torch.zeros(9), advantage, sampled, **RANGE)
    # A > 0: 1.3 and 5 are past 1.28; A < 0: 0.5 is below 0.8; A = 0 is never clipped, it asks for nothing
    assert (clipped.item(), count.item()) == (3, 8)
    assert logp.grad is not None
    assert [place for place, slope in enumerate(logp.grad.tolist()) if slope == 0] == [2, 3, 4, 7, 8]


def test_step_zero_has_ratio_one():
    logp = torch.tensor([-0.3, -2.0, -7.0])
    sampled = torch.ones(3, dtype=torch.bool)
    advantage = torch.tensor([1.0, -2.0, 0.5])
    total, _ = clipped_policy_loss(logp, logp, advantage, sampled, **RANGE)
    assert total.item() == pytest.approx(0.5)
    assert clipped_tokens(logp, logp, advantage, sampled, **RANGE)[0].item() == 0
    assert k3_divergence(logp, logp, sampled)[0].item() == 0


def test_nan_where_not_sampled_leaks_into_neither_sum_nor_gradient():
    nan = float("nan")
    sampled = torch.tensor([True, False])
    logp = torch.tensor([-1.0, nan], requires_grad=True)
    old, advantage = torch.tensor([-1.0, nan]), torch.tensor([1.0, nan])
    total, count = clipped_policy_loss(logp, old, advantage, sampled, **RANGE)
    total.backward()
    assert (total.item(), count.item()) == (-1.0, 1)
    assert logp.grad is not None
    assert logp.grad.tolist() == [-1.0, 0.0]
    assert k3_divergence(logp, old, sampled)[0].item() == 0
    assert clipped_tokens(logp, old, advantage, sampled, **RANGE)[0].item() == 0


def test_absurd_ratio_stays_finite():
    total, _ = clipped_policy_loss(
        torch.zeros(1), torch.tensor([-500.0]), -torch.ones(1), torch.ones(1, dtype=torch.bool), **RANGE
    )
    assert total.item() == pytest.approx(math.exp(20), rel=1e-5)


@pytest.mark.parametrize(("logp", "reference", "k3"), [(-1.0, -1.5, 0.106531), (-1.5, -1.0, 0.148721)])
def test_k3_golden_vectors(logp, reference, k3):
    one = torch.ones(1, dtype=torch.bool)
    assert k3_divergence(torch.tensor([logp]), torch.tensor([reference]), one)[0].item() == pytest.approx(k3, abs=1e-6)
