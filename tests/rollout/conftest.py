"""Tiny random Llama checkpoints with a tokenizer of their own: quick, and loaded by every engine."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

CORPUS = [
    "def add(a, b):\n    return a + b\n",
    "def largest(values):\n    return max(values)\n",
    "The quick brown fox jumps over the lazy dog, and forty wizards vex it with 0123456789 boxing jugs.\n",
    "Write a Python function that returns the sum of a list. Reply with only the code.\n```python\n```\n",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_checkpoint(folder: Path, *, seed: int) -> Path:
    """Two layers, 128 tokens; weights large enough that the distribution over the next token is far from even."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(CORPUS * 20, trainers.BpeTrainer(vocab_size=128, special_tokens=specials))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    assert len(fast) == 128
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, initializer_range=0.15,
        eos_token_id=fast.eos_token_id, bos_token_id=None, pad_token_id=fast.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), seed=0)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer and shapes, other weights."""
    return make_checkpoint(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
def started() -> Callable[[], list[psutil.Process]]:
    """Gives the processes under this one that the test started; fixtures of the session keep others."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]
