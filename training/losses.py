"""Losses and metrics over sampled tokens. Each returns (sum, count); the trainer divides once, by the count of the
whole optimizer batch, so nothing depends on how that batch is cut into passes and ranks.

All arguments are [tokens]: log-probabilities in nats, `sampled` boolean. Positions that are not sampled may hold NaN.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this before exp, so that one absurd token cannot overflow."""


def _log_ratio(logp: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    return torch.where(sampled, logp - reference, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_policy_loss(
    logp: Tensor, old_logp: Tensor, advantage: Tensor, sampled: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate with an asymmetric range [1 - low, 1 + high] of ratios, summed over sampled tokens."""
    ratio = _log_ratio(logp, old_logp, sampled).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    return torch.where(sampled, loss, 0.0).sum(), sampled.sum()


def clipped_tokens(
    logp: Tensor, old_logp: Tensor, advantage: Tensor, sampled: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """How many sampled tokens earn no gradient because their ratio left the range on the side that pays."""
    ratio = _log_ratio(logp, old_logp, sampled).exp()
    clipped = torch.where(advantage > 0, ratio > 1 + high, ratio < 1 - low) & (advantage != 0) & sampled
    return clipped.sum(), sampled.sum()


def importance_weights(logp: Tensor, sampler: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of w = p_trainer / p_sampler, sampled tokens only: sums of w and w^2, and the largest |ln w| (nats, unclamped).

    Sums of parts add up; (sum w)^2 / sum w^2 is Kish's effective sample size, in tokens (Kong 1992).
    """
    weights = torch.where(sampled, _log_ratio(logp, sampler, sampled).exp(), 0.0).double()
    largest = torch.where(sampled, logp - sampler, 0.0).abs().max()
    return weights.sum(), weights.square().sum(), largest


def k3_divergence(logp: Tensor, reference: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """Schulman's k3 estimate of KL(policy of `logp` || policy of `reference`), from tokens the first one sampled.

    Never negative, and 0 only where both agree; divide the sum by the count for nats per token.
    """
    log_ratio = _log_ratio(reference, logp, sampled)
    return (log_ratio.exp() - 1 - log_ratio).sum(), sampled.sum()
