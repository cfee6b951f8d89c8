"""Checkpoints on disk: whole or not there at all.

    policies/policy-00003/    config.json, model.safetensors (float32), tokenizer, chat template
                 optimizer/   AdamW's moments; only the newest checkpoint keeps them

Weights are float32, the precision they are trained in: a resumed run continues bit for bit, and vLLM casts them to its
own dtype when it loads the folder.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.trainer import Trainer

WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
"""Weight files of a checkpoint folder, as glob patterns."""
_UNFINISHED = ".writing-"
_NAME = re.compile(r"policy-(\d{5,})")


class NotSaved(Exception):
    """A checkpoint cannot be written: the message says where and why. What was committed before it is whole."""


def checkpoint_dir(policies: Path, policy_version: int) -> Path:
    """Where the checkpoint of this version is kept."""
    return policies / f"policy-{policy_version:05d}"


def save(trainer: "Trainer", directory: Path) -> None:
    """Write weights, tokenizer files and optimizer state to `directory`, atomically; every rank must call.

    A crash leaves either the whole folder or a `.writing-` folder, which `remove_unfinished` deletes. A folder that is
    already there (saved, but the crash came before it was recorded) is replaced. Raises NotSaved.
    """
    from safetensors import SafetensorError

    try:
        _save(trainer, directory)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NotSaved(f"the checkpoint {directory} cannot be written: {why}") from error


def _save(trainer: "Trainer", directory: Path) -> None:
    import torch.distributed
    from safetensors.torch import save_file

    staged = directory.with_name(_UNFINISHED + directory.name)
    if trainer.rank == 0:
        shutil.rmtree(staged, ignore_errors=True)
        (staged / "optimizer").mkdir(parents=True)
    torch.distributed.barrier()
    trainer.save_optimizer(staged / "optimizer")
    with trainer.whole_weights() as weights:
        if trainer.rank == 0:
            # Tokenizer, chat template, generation settings: whatever lies beside the weights.
            for path in trainer.checkpoint.iterdir():
                if path.is_file() and not any(path.match(pattern) for pattern in WEIGHTS):
                    shutil.copyfile(path, staged / path.name)
            trainer.model.config.save_pretrained(staged)
            save_file(weights, staged / "model.safetensors", metadata={"format": "pt"})
    torch.distributed.barrier()
    if trainer.rank == 0:
        publish(staged, directory)
    torch.distributed.barrier()
    trainer.checkpoint = directory  # the folder it came from may be pruned


def publish(staged: Path, directory: Path) -> None:
    """Bring a finished folder to the disk and give it its name; what had the name before is replaced."""
    for path in [*staged.rglob("*"), staged]:
        _sync(path)
    replaced = directory.with_name(f"{_UNFINISHED}replaced-{directory.name}")
    if directory.exists():
        directory.rename(replaced)
    staged.rename(directory)
    _sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(policies: Path) -> list[str]:
    """Delete what an interrupted `save` left, when a run starts; returns the names of the folders."""
    left = [path for path in policies.glob(f"{_UNFINISHED}*") if path.is_dir()]
    for path in left:
        shutil.rmtree(path)
    return sorted(path.name for path in left)


def prune(policies: Path, keep: int) -> None:
    """Keep the `keep` newest checkpoints, and the optimizer state of the newest alone. Version 0, the base policy, and
    folders of other names are left as they are."""
    versions = {
        int(match[1]): path for path in policies.iterdir() if path.is_dir() and (match := _NAME.fullmatch(path.name))
    }
    newest_first = sorted((version for version in versions if version > 0), reverse=True)
    for version in newest_first[1:]:
        _remove(versions[version] / "optimizer", policies)
    for version in newest_first[keep:]:
        _remove(versions[version], policies)


def _remove(folder: Path, policies: Path) -> None:
    """Delete a folder so that a crash half-way leaves nothing that looks whole, and `remove_unfinished` finds it."""
    if folder.exists():
        doomed = policies / f"{_UNFINISHED}removed-{folder.parent.name}-{folder.name}"
        folder.rename(doomed)
        shutil.rmtree(doomed)


def weights_hash(directory: Path) -> str:
    """SHA-256, in hex, over the names and bytes of a checkpoint's weight files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in WEIGHTS for path in directory.glob(pattern)):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
