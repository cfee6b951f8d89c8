import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from training import checkpoint
from training.config import TrainingSpec
from training.trainer import Trainer


@pytest.fixture(scope="module")
def trainer(tiny_checkpoint):
    return Trainer(tiny_checkpoint, TrainingSpec(dtype="float32"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_a_model_folder(trainer, tiny_checkpoint, tmp_path):
    checkpoint.save(trainer, tmp_path / "policy-00001")
    assert names(tmp_path) == ["policy-00001"]
    saved = tmp_path / "policy-00001"
    assert names(saved) == sorted([*names(tiny_checkpoint), "optimizer"])
    assert (saved / "tokenizer.json").read_text() == "{}"
    left, right = (AutoModelForCausalLM.from_pretrained(at).state_dict() for at in (saved, tiny_checkpoint))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    held = load_file(saved / "model.safetensors")
    assert {value.dtype for value in held.values()} == {torch.float32}
    assert "lm_head.weight" not in held  # tied to the embedding: stored once
    assert AutoModelForCausalLM.from_pretrained(saved).config.architectures == ["LlamaForCausalLM"]


def test_saving_again_replaces(trainer, tmp_path):
    target = tmp_path / "policy-00001"
    target.mkdir()
    (target / "stale").write_text("x")
    checkpoint.save(trainer, target)
    assert names(tmp_path) == ["policy-00001"]
    assert "stale" not in names(target)


def test_weights_hash_is_over_the_weight_files(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_text("{}")
    expected = hashlib.sha256(b"model.safetensors\0" + hashlib.sha256(b"weights").digest()).hexdigest()
    assert checkpoint.weights_hash(tmp_path) == expected
    (tmp_path / "tokenizer.json").write_text("other")
    assert checkpoint.weights_hash(tmp_path) == expected
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert checkpoint.weights_hash(tmp_path) != expected


def test_equal_weights_hash_equal(trainer, tmp_path):
    for version in (1, 2):
        checkpoint.save(trainer, checkpoint.checkpoint_dir(tmp_path, version))
    assert len({checkpoint.weights_hash(checkpoint.checkpoint_dir(tmp_path, version)) for version in (1, 2)}) == 1


def test_prune(tmp_path):
    for version in (0, 1, 2, 9, 10, 100_000):
        (checkpoint.checkpoint_dir(tmp_path, version) / "optimizer").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert names(tmp_path) == ["mine", "policy-00000", "policy-00010", "policy-100000"]
    assert [names(tmp_path / name) for name in names(tmp_path)] == [[], ["optimizer"], [], ["optimizer"]]
    checkpoint.prune(tmp_path, 2)
    assert names(tmp_path) == ["mine", "policy-00000", "policy-00010", "policy-100000"]


def test_a_killed_save_is_no_checkpoint_and_is_cleaned_away(tiny_checkpoint, tmp_path):
    """SIGKILL while the weights are being written."""
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from pathlib import Path\n"
        "from training import checkpoint\n"
        "from training.config import TrainingSpec\n"
        "from training.trainer import Trainer\n"
        f"trainer = Trainer(Path({str(tiny_checkpoint)!r}), TrainingSpec())\n"
        "write = trainer.save_optimizer\n"
        "def slow(directory):\n"
        "    write(directory)\n"
        "    time.sleep(60)\n"
        "trainer.save_optimizer = slow\n"
        f"checkpoint.save(trainer, Path({str(tmp_path)!r}) / 'policy-00003')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    staged = tmp_path / ".writing-policy-00003"
    deadline = time.monotonic() + 120
    while not (staged / "optimizer" / "adamw.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert names(tmp_path) == [".writing-policy-00003"]
    checkpoint.prune(tmp_path, 1)
    assert checkpoint.remove_unfinished(tmp_path) == [".writing-policy-00003"]
    assert names(tmp_path) == []


def test_publish_replaces_what_had_the_name(tmp_path):
    staged, target = tmp_path / ".writing-policy-00001", tmp_path / "policy-00001"
    for folder, text in ((staged, "new"), (target, "old")):
        folder.mkdir()
        (folder / "config.json").write_text(text)
    checkpoint.publish(staged, target)
    assert (target / "config.json").read_text() == "new"
    assert names(tmp_path) == ["policy-00001"]
