"""Run by torchrun from test_trainer.py: one rank of a trainer, on the batch that the test trains alone.

python two_ranks.py BATCH CHECKPOINT OUT STAGE
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

sys.path.insert(0, str(Path(__file__).parents[2]))

from training import checkpoint
from training.config import TrainingSpec
from training.trainer import Trainer


def main(batch: Path, start: Path, out: Path, stage: Any) -> None:
    torch.set_num_threads(1)
    trainer = Trainer(start, TrainingSpec(dtype="float32", lr=1e-3, zero_stage=stage))
    report = trainer.train(pickle.loads(batch.read_bytes()), first_step=1)
    checkpoint.save(trainer, out)
    if trainer.rank == 0:
        out.with_name("report.json").write_text(json.dumps(report.optimizer_steps))
    # Saved by both ranks, and both can go on from it.
    Trainer(out, TrainingSpec(dtype="float32", lr=1e-3, zero_stage=stage))
    # Together and in order: a rank that just ends takes gloo's threads down while the other still talks to them.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an interpreter that ends in order
