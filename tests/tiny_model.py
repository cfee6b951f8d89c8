"""Checkpoints small enough to make in a test: random weights, and a vocabulary that the test chooses."""

from collections.abc import Sequence
from pathlib import Path


def make_tiny_model(folder: Path, vocabulary: Sequence[str], *, seed: int = 0) -> None:
    """A random two-layer Llama whose tokens are whole strings: it answers with one of them, almost evenly."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<end>", "<user>", *vocabulary]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", additional_special_tokens=["<user>"]
    )
    fast.chat_template = "{% for m in messages %}<user> {{ m.content }} {% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=1)
    model.save_pretrained(folder)
