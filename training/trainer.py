"""The trainer: DeepSpeed over one process or many, on the CPU or on GPUs.

Weights and optimizer state are float32 whatever the arithmetic of the passes. The old policy of the clipped ratio is
the sampler (bypass mode): the engine's stored log-probabilities take the place of a second forward pass, so the ratio
also corrects for the difference between engine and trainer, and `sampler_kl` says how large that is. It needs
untempered, untruncated sampling, which `cut_batch` demands of every row.
"""

import contextlib
import io
import math
import os
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from training.batch import PromptGroup, TrainingBatch
from training.config import TrainingSpec
from training.losses import clipped_policy_loss, clipped_tokens, importance_weights, k3_divergence
from training.packing import Pass, passes

OPTIMIZER = "optimizer"
"""Folder of a checkpoint that holds the optimizer's state. A checkpoint without it starts with fresh moments."""


class CheckpointError(ValueError):
    """A checkpoint folder cannot be trained from. The message says what is missing and the way out."""


class TrainingDiverged(ArithmeticError):
    """The loss or the gradient is not finite. Without ZeRO the step was not taken and the weights are as before; with
    it the trainer may be damaged: go on from the last checkpoint."""


@dataclass(slots=True)
class TrainingReport:
    """What one cycle of training did, as rows of the `policies` table hold it."""

    optimizer_steps: list[dict[str, Any]] = field(default_factory=list)
    """Fields of POLICIES.optimizer_steps, one dict a step."""
    consumed: list[dict[str, Any]] = field(default_factory=list)
    """Fields of POLICIES.consumed, one dict for each trajectory and step that used it."""


class _Scorer(torch.nn.Module):
    """Log-probabilities of a pass's targets, in float32: [predicted].

    DeepSpeed switches off autocast that is on outside its engine, so the arithmetic is chosen in here.
    """

    def __init__(self, model: torch.nn.Module, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast

    def forward(self, work: Pass) -> Tensor:
        with torch.autocast(work.input_ids.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            logits = self.model(
                input_ids=work.input_ids,
                position_ids=work.position_ids,
                attention_mask=work.attention_mask,
                logits_to_keep=work.predicting,
                use_cache=False,
            ).logits[0]
        return -torch.nn.functional.cross_entropy(logits.float(), work.targets, reduction="none")


class Trainer:
    """A policy under training, from a checkpoint folder; with `optimizer/` in it, exactly where its training stopped.

    Started alone it is one process on this machine; under a launcher (torchrun, deepspeed) it is one rank of many.
    Raises CheckpointError for a folder it cannot train from.
    """

    def __init__(self, checkpoint: Path, spec: TrainingSpec) -> None:
        self.checkpoint = checkpoint
        self.spec = spec
        self.device = _join_process_group()
        import deepspeed  # after _join_process_group: importing it chooses the accelerator

        self._deepspeed = deepspeed
        self.model = _load(checkpoint, self.device)
        optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=spec.lr,
            weight_decay=spec.weight_decay,
            fused=True,  # 15 times faster than foreach on the CPU, and compiled into torch
        )
        if spec.zero_stage == 3:
            os.environ.setdefault("LOCAL_RANK", "0")  # read in every pass, not only when the engine is made
        with _local_rank():
            self.engine: Any = deepspeed.initialize(
                model=_Scorer(self.model, _autocast(spec, self.device)),
                optimizer=optimizer,
                config={
                    "train_micro_batch_size_per_gpu": 1,
                    "gradient_accumulation_steps": 1,  # the boundary is set by hand: steps differ in passes
                    "gradient_clipping": spec.max_grad_norm,
                    "zero_allow_untested_optimizer": True,
                    "zero_optimization": {
                        "stage": spec.zero_stage,
                        # The defaults reserve 2 GB for buckets whatever the model's size.
                        "reduce_bucket_size": 50_000_000,
                        "allgather_bucket_size": 50_000_000,
                    },
                },
            )[0]
        self.rank = torch.distributed.get_rank()
        self.world_size = torch.distributed.get_world_size()
        if (checkpoint / OPTIMIZER).is_dir():
            self._load_optimizer(checkpoint / OPTIMIZER)

    def train(
        self, batch: TrainingBatch, first_step: int, on_step: Callable[[dict[str, Any]], None] | None = None
    ) -> TrainingReport:
        """Take the batch's optimizer steps; the first is number `first_step` of the run (they count from 1).

        `on_step` is called after each with its report. Raises TrainingDiverged.
        """
        report = TrainingReport()
        for number, groups in enumerate(batch.steps, start=first_step):
            step = {"optimizer_step": number} | self._step(groups, number)
            report.optimizer_steps.append(step)
            report.consumed += [
                {
                    "trajectory_id": member.trajectory_id,
                    "optimizer_step": number,
                    "advantage": member.advantage,
                    "tokens": member.tokens,
                }
                for group in groups
                for member in group.members
            ]
            if on_step is not None:
                on_step(step)
        return report

    def _step(self, groups: tuple[PromptGroup, ...], number: int) -> dict[str, Any]:
        """One optimizer step over these groups."""
        started = time.perf_counter()
        work = [one for group in groups for one in passes(group, self.spec.tokens_per_pass)]
        tokens = sum(group.tokens for group in groups)
        # Every rank must make as many passes (ZeRO gathers in each), so a rank that runs out repeats one for nothing.
        rounds = math.ceil(len(work) / self.world_size)
        sums = torch.zeros(5, dtype=torch.float64, device=self.device)
        largest = torch.zeros(1, dtype=torch.float64, device=self.device)
        for turn in range(rounds):
            place = turn * self.world_size + self.rank
            spare = place >= len(work)
            self.engine.set_gradient_accumulation_boundary(turn == rounds - 1)
            loss, metrics, difference = self._measure(work[0 if spare else place].to(self.device))
            # DeepSpeed averages gradients over ranks; times their number, the division is by the batch's tokens alone.
            self.engine.backward(loss * (0 if spare else self.world_size / tokens))
            if not spare:
                sums += metrics
                largest = torch.maximum(largest, difference)
        torch.distributed.all_reduce(sums)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        loss_mean, clip_fraction, sampler_kl, weight, square = (sums / tokens).tolist()
        if self.spec.zero_stage == 0:
            # DeepSpeed clips here but keeps no norm.
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]).item()
        else:
            norm = 0.0  # known only after the step
        if math.isfinite(loss_mean + norm):
            self.engine.step()
            if self.spec.zero_stage > 0:
                norm = float(self.engine.get_global_grad_norm())
        if not math.isfinite(loss_mean + norm):
            self.engine.zero_grad()
            raise TrainingDiverged(
                f"optimizer step {number}: loss {loss_mean}, gradient norm {norm}. "
                "Go on from the last checkpoint with a lower training.lr, or look for damaged weights"
            )
        return {
            "loss": loss_mean,
            "grad_norm": norm,
            "clip_fraction": clip_fraction,
            "sampler_kl": sampler_kl,
            "effective_share": weight**2 / square,
            "largest_logprob_difference": largest.item(),
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
        }

    def _measure(self, work: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Forward: the pass's loss sum; detached float64 sums of loss, clipped tokens, k3, w, w^2; largest |ln w|."""
        logp = self.engine(work)
        bounds = {"low": self.spec.clip_low, "high": self.spec.clip_high}
        old = work.sampler_logprobs
        loss, _ = clipped_policy_loss(logp, old, work.advantages, work.sampled, **bounds)
        with torch.no_grad():
            clipped, _ = clipped_tokens(logp, old, work.advantages, work.sampled, **bounds)
            k3, _ = k3_divergence(old, logp, work.sampled)
            weight, square, largest = importance_weights(logp, old, work.sampled)
            sums = torch.stack([loss.double(), clipped.double(), k3.double(), weight, square])
            return loss, sums, largest.double()

    @torch.no_grad()
    def logprobs(self, group: PromptGroup) -> list[Tensor]:
        """Log-probability of each completion token under the present weights: one tensor a pass, in order."""
        return [self.engine(work.to(self.device)).cpu() for work in passes(group, self.spec.tokens_per_pass)]

    @contextlib.contextmanager
    def whole_weights(self) -> Generator[dict[str, Tensor]]:
        """The weights by name, gathered from all ranks; every rank must enter. Tied names appear once."""
        gathered = self._deepspeed.zero.GatheredParameters(
            list(self.model.parameters()), enabled=self.spec.zero_stage == 3
        )
        with gathered:
            tied = getattr(self.model, "all_tied_weights_keys", {})
            yield {name: value for name, value in self.model.state_dict().items() if name not in tied}

    def save_optimizer(self, directory: Path) -> None:
        """Write what an exact resume needs besides the weights into an existing folder; every rank must call."""
        if self.spec.zero_stage == 0:
            # DeepSpeed's own form would hold the weights once more; the moments are the same on every rank.
            if self.rank == 0:
                torch.save(self.engine.optimizer.state_dict(), directory / self._state_name)
        else:
            self.engine.save_checkpoint(str(directory), tag=self._state_name, save_latest=False)

    def _load_optimizer(self, directory: Path) -> None:
        state = directory / self._state_name
        if not state.exists():
            found = sorted(path.name for path in directory.iterdir())
            raise CheckpointError(
                f"{directory}: holds {found}, not {self._state_name}: the optimizer was saved under another "
                "training.zero_stage or number of ranks. Go on with those, or delete the folder to start afresh"
            )
        if self.spec.zero_stage == 0:
            self.engine.optimizer.load_state_dict(torch.load(state, map_location=self.device, weights_only=True))
        else:
            self.engine.load_checkpoint(str(directory), tag=self._state_name)
        for group in self.engine.optimizer.param_groups:  # the spec decides, not what was saved
            group["lr"], group["weight_decay"] = self.spec.lr, self.spec.weight_decay

    @property
    def _state_name(self) -> str:
        return "adamw.pt" if self.spec.zero_stage == 0 else f"zero{self.spec.zero_stage}-ranks{self.world_size}"


def _join_process_group() -> torch.device:
    """Join the launcher's process group, or make one of this process alone; returns the device of this rank."""
    cuda = torch.cuda.is_available()
    if not cuda:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it looks for one and says so on stdout
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")  # raised by ZeRO-3
    # DeepSpeed would compile a C++ kernel for reductions between processes of one host. gloo does without a compiler.
    deepspeed.ops.__compatible_ops__ = {}
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(rank)
    if not torch.distributed.is_initialized():
        backend = "nccl" if cuda else "gloo"
        if "RANK" in os.environ:
            torch.distributed.init_process_group(backend)
        else:  # a store in memory: no port is opened
            torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    return torch.device("cuda", rank) if cuda else torch.device("cpu")


@contextlib.contextmanager
def _local_rank() -> Generator[None]:
    """DeepSpeed insists on LOCAL_RANK. It is taken away again: processes started later (accelerate in them) heed it."""
    alone = "LOCAL_RANK" not in os.environ
    if alone:
        os.environ["LOCAL_RANK"] = "0"
    try:
        yield
    finally:
        if alone:
            del os.environ["LOCAL_RANK"]


def _load(checkpoint: Path, device: torch.device) -> PreTrainedModel:
    """The model, float32, without dropout. Raises CheckpointError when the weights do not fill it."""
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
        )
    model, loading = loaded
    lacking = sorted(loading["missing_keys"]) + sorted(str(key) for key in loading["mismatched_keys"])
    if lacking:
        raise CheckpointError(
            f"{checkpoint}: {len(lacking)} weights are missing or of another shape, first {lacking[0]}; "
            "save the model again with its configuration"
        )
    # Evaluation mode: dropout would make the trainer's policy another one than the sampler's.
    return model.to(device).eval()


def _autocast(spec: TrainingSpec, device: torch.device) -> torch.dtype | None:
    """The lower-precision type of the passes, or None for float32."""
    if spec.dtype != "auto":
        return torch.bfloat16 if spec.dtype == "bfloat16" else None
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else None
    capabilities = torch.cpu.get_capabilities()
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else None
