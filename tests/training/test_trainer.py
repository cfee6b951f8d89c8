"""DeepSpeed itself, on a tiny model. Several trainers share this process's group of one; two ranks get processes."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from training import checkpoint
from training.config import TrainingSpec
from training.trainer import CheckpointError, Trainer, TrainingDiverged
from transforms.lake.schemas import POLICIES

FLOAT32: dict[str, Any] = {"dtype": "float32", "lr": 1e-3}


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    with trainer.whole_weights() as whole:
        return {name: value.detach().clone() for name, value in whole.items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def batches(make_group, make_batch):
    """Two cycles: of two optimizer steps, and of one."""
    groups = [make_group(seed) for seed in range(5)]
    return make_batch(tuple(groups[:2]), tuple(groups[2:3])), make_batch(tuple(groups[3:]))


def reference_step(directory: Path, groups, *, spec: TrainingSpec) -> tuple[dict[str, torch.Tensor], float, float]:
    """One optimizer step by plain torch, row by row: weights after it, loss and gradient norm."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, foreach=False)
    total, count = torch.zeros(()), 0
    for group in groups:
        for member in group.members:
            ids = torch.tensor([*group.prompt_token_ids, *member.token_ids])
            logp = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
            for place, token in enumerate(member.token_ids):
                if not member.loss_mask[place]:
                    continue
                ratio = (logp[len(group.prompt_token_ids) - 1 + place, token] - member.sampler_logprobs[place]).exp()
                bounded = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
                total = total - torch.minimum(member.advantage * ratio, member.advantage * bounded)
                count += 1
    (total / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
    optimizer.step()
    return {n: p.detach() for n, p in model.named_parameters()}, (total / count).item(), norm.item()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("tokens_per_pass", [64, 4096])
def test_a_step_is_what_plain_torch_computes(tiny_checkpoint, make_group, make_batch, stage, tokens_per_pass):
    groups = (make_group(1), make_group(2, prompt=50, lengths=(9, 3, 8)), make_group(3))
    spec = TrainingSpec(zero_stage=stage, tokens_per_pass=tokens_per_pass, max_grad_norm=0.5, **FLOAT32)
    trainer = Trainer(tiny_checkpoint, spec)
    report = trainer.train(make_batch(groups), first_step=1)
    expected, loss, norm = reference_step(tiny_checkpoint, groups, spec=spec)
    step = report.optimizer_steps[0]
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert norm > spec.max_grad_norm, "the norm must be the one before clipping"
    assert step["tokens"] == sum(group.tokens for group in groups)
    for name, value in weights(trainer).items():
        # Adam's first step is lr times nearly the sign: an element whose gradient is rounding noise may differ by it.
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-5)


def test_report_has_the_fields_of_the_policies_table(tiny_checkpoint, batches):
    seen = []
    report = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32)).train(batches[0], first_step=7, on_step=seen.append)
    for column in ("optimizer_steps", "consumed"):
        names = {field.name for field in POLICIES.field(column).type.value_type}
        assert all(entry.keys() == names for entry in getattr(report, column))
    assert [step["optimizer_step"] for step in report.optimizer_steps] == [7, 8]
    assert seen == report.optimizer_steps
    members = [(7, m) for group in batches[0].steps[0] for m in group.members]
    members += [(8, m) for group in batches[0].steps[1] for m in group.members]
    assert report.consumed == [
        {"trajectory_id": m.trajectory_id, "optimizer_step": step, "advantage": m.advantage, "tokens": m.tokens}
        for step, m in members
    ]


def test_on_policy_step_has_ratio_one(tiny_checkpoint, make_group, make_batch):
    trainer = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    group = make_group(5, lengths=(4, 6))
    step = trainer.train(make_batch((on_policy(trainer, group),)), first_step=1).optimizer_steps[0]
    assert step["clip_fraction"] == 0
    assert step["sampler_kl"] == pytest.approx(0, abs=1e-7)
    assert step["effective_share"] == pytest.approx(1, abs=1e-6)
    assert step["largest_logprob_difference"] == pytest.approx(0, abs=1e-5)
    # ratio 1 everywhere: the loss is less the mean advantage over tokens
    mean = sum(m.advantage * m.tokens for m in group.members) / group.tokens
    assert step["loss"] == pytest.approx(-mean, rel=1e-5)


def on_policy(trainer: Trainer, group):
    """The group with the trainer's own log-probabilities as the sampler's."""
    drawn = iter(torch.cat(trainer.logprobs(group)).tolist())
    members = tuple(replace(m, sampler_logprobs=tuple(next(drawn) for _ in m.token_ids)) for m in group.members)
    return replace(group, members=members)


def test_off_policy_metrics(tiny_checkpoint, make_group, make_batch):
    """Sampler log-probabilities lower than the trainer's by 0.5: every ratio is e^0.5 = 1.65, past the range."""
    trainer = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    group = on_policy(trainer, make_group(6))
    members = tuple(
        replace(m, advantage=1.0, sampler_logprobs=tuple(p - 0.5 for p in m.sampler_logprobs)) for m in group.members
    )
    step = trainer.train(make_batch((replace(group, members=members),)), first_step=1).optimizer_steps[0]
    assert step["clip_fraction"] == 1
    # w = e^0.5: w - 1 - log w = 1.648721 - 1.5
    assert step["sampler_kl"] == pytest.approx(0.148721, abs=1e-5)
    assert step["largest_logprob_difference"] == pytest.approx(0.5, abs=1e-5)
    assert step["effective_share"] == pytest.approx(1, abs=1e-6)  # all weights are equal
    assert step["loss"] == pytest.approx(-1.28, rel=1e-5)
    assert step["grad_norm"] == 0


def test_one_token_that_outweighs_the_rest_leaves_few(tiny_checkpoint, make_group, make_batch):
    """All weights 1 but one of e^3: (n - 1 + e^3)^2 / (n (n - 1 + e^6))."""
    trainer = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    group = on_policy(trainer, make_group(6))
    first, *others = group.members
    off = (first.sampler_logprobs[0] - 3.0, *first.sampler_logprobs[1:])
    group = replace(group, members=(replace(first, sampler_logprobs=off), *others))
    step = trainer.train(make_batch((group,)), first_step=1).optimizer_steps[0]
    n, heavy = group.tokens, math.exp(3)
    assert step["effective_share"] == pytest.approx((n - 1 + heavy) ** 2 / (n * (n - 1 + heavy**2)), rel=1e-5)
    assert step["largest_logprob_difference"] == pytest.approx(3, abs=1e-4)


def test_a_vanishing_learning_rate_leaves_the_weights(tiny_checkpoint, batches):
    trainer = Trainer(tiny_checkpoint, TrainingSpec(dtype="float32", lr=1e-30))
    before = weights(trainer)
    first = trainer.train(batches[1], first_step=1).optimizer_steps[0]
    second = trainer.train(batches[1], first_step=2).optimizer_steps[0]
    assert equal(weights(trainer), before)
    assert first["sampler_kl"] == second["sampler_kl"]
    assert first["grad_norm"] == second["grad_norm"] > 0


def test_an_empty_batch_does_nothing(tiny_checkpoint, make_batch):
    trainer = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    before = weights(trainer)
    report = trainer.train(make_batch(), first_step=1)
    assert (report.optimizer_steps, report.consumed) == ([], [])
    assert equal(weights(trainer), before)


def test_a_step_that_is_not_finite_is_not_taken(tiny_checkpoint, make_group, make_batch):
    trainer = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    before = weights(trainer)
    group = make_group(8)
    bad = replace(group, members=(replace(group.members[0], advantage=float("nan")), *group.members[1:]))
    with pytest.raises(TrainingDiverged, match="optimizer step 3"):
        trainer.train(make_batch((bad,)), first_step=3)
    assert equal(weights(trainer), before)
    # and what it left behind does not reach the next step
    trainer.train(make_batch((group,)), first_step=3)
    clean = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    clean.train(make_batch((group,)), first_step=3)
    assert equal(weights(trainer), weights(clean))


def test_bfloat16_passes_come_close_and_keep_float32_weights(tiny_checkpoint, make_group, make_batch):
    group = make_group(9)
    exact = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    rounded = Trainer(tiny_checkpoint, TrainingSpec(dtype="bfloat16", lr=1e-3))
    difference = torch.cat(exact.logprobs(group)) - torch.cat(rounded.logprobs(group))
    assert 1e-5 < difference.abs().mean() < 0.1
    rounded.train(make_batch((group,)), first_step=1)
    assert {value.dtype for value in weights(rounded).values()} == {torch.float32}


@pytest.mark.parametrize("stage", [0, 2])
def test_resume_is_exact(tiny_checkpoint, batches, tmp_path, stage):
    spec = TrainingSpec(zero_stage=stage, weight_decay=0.01, **FLOAT32)
    straight = Trainer(tiny_checkpoint, spec)
    straight.train(batches[0], first_step=1)
    straight.train(batches[1], first_step=3)

    first = Trainer(tiny_checkpoint, spec)
    first.train(batches[0], first_step=1)
    checkpoint.save(first, tmp_path / "policy-00001")
    resumed = Trainer(tmp_path / "policy-00001", spec)
    resumed.train(batches[1], first_step=3)
    assert equal(weights(resumed), weights(straight))

    # control: without the optimizer's state the second cycle ends elsewhere
    (tmp_path / "policy-00001" / "optimizer").rename(tmp_path / "elsewhere")
    forgetful = Trainer(tmp_path / "policy-00001", spec)
    forgetful.train(batches[1], first_step=3)
    assert not equal(weights(forgetful), weights(straight))


def test_resume_under_another_stage_is_refused(tiny_checkpoint, tmp_path):
    checkpoint.save(Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32)), tmp_path / "policy-00001")
    with pytest.raises(CheckpointError, match=r"training\.zero_stage"):
        Trainer(tmp_path / "policy-00001", TrainingSpec(zero_stage=2, **FLOAT32))


def test_weights_that_do_not_fill_the_model_are_refused(tiny_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    held = load_file(tiny_checkpoint / "model.safetensors")
    del held["model.norm.weight"]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((tiny_checkpoint / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        Trainer(tmp_path, TrainingSpec(**FLOAT32))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_take_the_same_step_as_one(tiny_checkpoint, batches, tmp_path, stage):
    """Three groups over two ranks: one rank runs out of passes."""
    root = Path(__file__).parents[2]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    launch += ["--rdzv-endpoint=127.0.0.1:0", str(Path(__file__).with_name("two_ranks.py"))]
    (tmp_path / "batch.pickle").write_bytes(pickle.dumps(batches[0]))
    launch += [str(tmp_path / "batch.pickle"), str(tiny_checkpoint), str(tmp_path / "policy-00001"), str(stage)]
    done = subprocess.run(launch, cwd=root, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]

    alone = Trainer(tiny_checkpoint, TrainingSpec(**FLOAT32))
    report = alone.train(batches[0], first_step=1)
    for name, value in weights(alone).items():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "policy-00001").state_dict()[name]
        torch.testing.assert_close(saved, value, rtol=0, atol=2e-5)
    steps = json.loads((tmp_path / "report.json").read_text())
    for two, one in zip(steps, report.optimizer_steps, strict=True):
        for key in one.keys() - {"optimizer_step", "seconds"}:
            assert two[key] == pytest.approx(one[key], rel=1e-4), key


def test_nothing_is_printed_written_or_left_in_the_environment(tiny_checkpoint, tmp_path):
    root = str(Path(__file__).parents[2])
    code = (
        f"import os, sys; sys.path.insert(0, {root!r}); before = set(os.environ)\n"
        "from pathlib import Path\n"
        "from training.config import TrainingSpec\n"
        "from training.trainer import Trainer\n"
        f"trainer = Trainer(Path({str(tiny_checkpoint)!r}), TrainingSpec())\n"
        "assert set(os.environ) - before <= {'DS_ACCELERATOR', 'OMP_WAIT_POLICY'}, set(os.environ) - before\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
