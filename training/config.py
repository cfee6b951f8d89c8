"""How a policy learns, as declared in a run."""

from typing import Literal

from pydantic import Field

from sandboxes.declared import Declared


class TrainingSpec(Declared):
    """Group-relative policy gradient over one cycle's trajectories."""

    algorithm: Literal["grpo"] = "grpo"
    """`grpo`: advantages relative to the group, clipped surrogate, loss averaged over the optimizer batch's tokens."""

    lr: float = Field(1e-5, gt=0, lt=1)
    """AdamW learning rate, constant."""

    weight_decay: float = Field(0.0, ge=0, lt=1)
    """AdamW weight decay."""

    groups_per_step: int = Field(4, ge=1)
    """Groups with signal in one optimizer batch; the last batch of a cycle may be smaller."""

    epochs: int = Field(1, ge=1, le=16)
    """Passes over a cycle's groups. Past 1 the later passes are off-policy; clipping bounds them."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    """Ratios below 1 - clip_low earn no gradient (negative advantages)."""

    clip_high: float = Field(0.28, gt=0)
    """Ratios above 1 + clip_high earn no gradient (positive advantages)."""

    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""

    tokens_per_pass: int = Field(4096, ge=64)
    """Tokens of one forward and backward pass. Bounds memory; the gradient does not depend on it."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the passes; weights and optimizer state are always float32. `auto` takes bfloat16 where the
    hardware multiplies it (avx512_bf16, amx_bf16, a GPU)."""

    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept on disk besides the base policy: the newest ones. Only the newest keeps its optimizer state."""
