"""A tiny random Llama on disk, and groups of random tokens for it."""

import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.batch import Member, PromptGroup, TrainingBatch

VOCABULARY = 128


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors are slower on many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        # Large weights: with the default 0.02 a random model is flat and its gradients too small to compare.
        initializer_range=0.2,
    )
    directory = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.fixture
def make_group():
    """A group of random prompt and completions; advantages and log-probabilities are random too."""

    def make(seed: int, *, prompt: int = 11, lengths: tuple[int, ...] = (5, 1, 9, 7)) -> PromptGroup:
        draw = random.Random(seed)
        members = tuple(
            Member(
                trajectory_id=f"g{seed}/{place}",
                token_ids=tuple(draw.randrange(VOCABULARY) for _ in range(length)),
                sampler_logprobs=tuple(-draw.uniform(3.0, 6.0) for _ in range(length)),
                loss_mask=tuple(at != 2 for at in range(length)),
                advantage=draw.choice([-1.2, -0.4, 0.7, 1.5]),
            )
            for place, length in enumerate(lengths)
        )
        return PromptGroup(
            group_id=f"g{seed}",
            task_id=f"t{seed}",
            prompt_token_ids=tuple(draw.randrange(VOCABULARY) for _ in range(prompt)),
            members=members,
        )

    return make


@pytest.fixture
def make_batch():
    """A batch of these optimizer steps."""

    def make(*steps: tuple[PromptGroup, ...]) -> TrainingBatch:
        return TrainingBatch(steps=steps, groups_with_signal=0, groups_without_signal=0, unscored=0, left_out=0)

    return make
