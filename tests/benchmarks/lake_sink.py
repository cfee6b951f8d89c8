"""How fast Arrow batches become a committed table, against plain `pyarrow.parquet.write_table`; and in how much memory.

    .venv/bin/python -m tests.benchmarks.lake_sink [ROWS] [ROUNDS]

Rows are wide trajectories (128 to 512 sampled tokens with log-probabilities and mask, two steps, eight tests, text cut
from Python's own sources). Speed: 10,000 rows in batches of 1,000, by turns written by pyarrow as one zstd file, not
flushed to disk, and through the lake (checked, split, written, flushed, committed). Memory: ROWS (200,000) rows go
through the Beam stage in a process of their own as batches, and a fifth of them as dicts, made while they are written.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from tests.builders import a_test, trajectory_row
from transforms.lake.rows import to_arrow
from transforms.lake.schemas import TABLES
from transforms.lake.sink import WriteToDelta
from transforms.lake.table import Lake

BATCH = 1_000
TEXT = "".join(Path(module.__file__ or "").read_text() for module in (argparse, random, statistics, textwrap))


def wide_rows(count: int, seed: int) -> Iterator[dict[str, object]]:
    dice = random.Random(seed)
    numbers = np.random.default_rng(seed)
    rollout, execute = trajectory_row()["steps"]  # ty: ignore[not-iterable]

    def text(low: int, high: int) -> str:
        start = dice.randrange(len(TEXT) - high)
        return TEXT[start : start + dice.randrange(low, high)]

    def token_ids(size: int) -> list[int]:
        return numbers.zipf(1.3, size).clip(0, 49_000).tolist()

    for number in range(count):
        program, sampled = text(300, 1500), dice.randrange(128, 512)
        digest = f"{dice.getrandbits(256):064x}"
        yield trajectory_row(
            trajectory_id=f"run-1/1/train/task-{seed}-{number}/0/1",
            task_id=f"task-{seed}-{number // 8}",
            messages=[{"role": "user", "content": text(400, 800)}, {"role": "assistant", "content": program}],
            turns=[
                {
                    "prompt_token_ids": token_ids(dice.randrange(64, 256)),
                    "token_ids": token_ids(sampled),
                    "logprobs": (-numbers.exponential(0.5, sampled)).astype(np.float32).tolist(),
                    "loss_mask": [True] * sampled,
                    "finish_reason": "stop",
                }
            ],
            program=program,
            completion_hash=digest,
            steps=[
                {**rollout, "action": program, "wall_s": dice.random()},
                {**execute, "action": program, "observation": text(100, 300), "workspace_digest": digest},
            ],
            tests=[{**a_test(f"case-{case}"), "duration_s": dice.random()} for case in range(8)],
            reward=dice.random(),
            wall_s=dice.random(),
        )


def wide_batch(seed: int) -> pa.RecordBatch:
    [batch] = to_arrow("trajectories", list(wide_rows(BATCH, seed))).to_batches()
    return batch


def clock(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall time and of processor time, all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - cpu


def speed(home: Path, rounds: int) -> None:
    batches = [wide_batch(seed) for seed in range(10)]
    lake = Lake(home)
    lake.ensure_tables()

    def plain() -> None:
        pq.write_table(pa.Table.from_batches(batches), home / "plain.parquet", compression="zstd")

    def through_the_lake(version: int) -> None:
        lake.commit("trajectories", lake.write_batches("trajectories", batches), app_id="r", version=version)

    ratios: list[tuple[float, float]] = []
    for number in range(rounds):
        ours, theirs = clock(lambda number=number: through_the_lake(number)), clock(plain)
        ratios.append((theirs[0] / ours[0], theirs[1] / ours[1]))
        print(
            f"10,000 rows: lake {ours[0]:.2f} s wall, {ours[1]:.2f} s CPU; pyarrow {theirs[0]:.2f} s wall, "
            f"{theirs[1]:.2f} s CPU; speed against pyarrow {ratios[-1][0]:.2f} wall, {ratios[-1][1]:.2f} CPU"
        )
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"median speed against pyarrow: {wall:.2f} wall, {cpu:.2f} CPU")
    files = list(lake.path("trajectories").rglob("*.parquet"))
    ours, theirs = (file.stat().st_size / 10_000 for file in (files[0], home / "plain.parquet"))
    print(f"bytes a row: lake {ours:.0f}, pyarrow {theirs:.0f}")


def stream(home: Path, rows: int, form: str) -> None:
    """Write so many rows through the Beam stage; runs in a process of its own. The rows of ten seeds come in turn."""
    seeds = [number % 10 for number in range(rows // BATCH)]
    # Made beforehand, and read anew each time: a batch that is used twice would take no memory the second time.
    pool = [wide_batch(seed).serialize() for seed in range(10)] if form == "batches" else []
    schema = TABLES["trajectories"]

    def make(_: None) -> Iterator[dict[str, object] | pa.RecordBatch]:
        for seed in seeds:
            if form == "batches":
                yield pa.ipc.read_record_batch(pa.py_buffer(pool[seed].to_pybytes()), schema)
            else:
                yield from wide_rows(BATCH, seed)

    def run() -> None:
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
            made = pipeline | beam.Create([None]) | beam.FlatMap(make)
            _ = made | WriteToDelta(Lake(home), "trajectories", app_id="r", version=0)

    wall, cpu = clock(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    making = "" if form == "batches" else ", making the rows included"
    print(f"{rows:,} rows as {form}: {wall:.0f} s wall, {cpu:.0f} s CPU{making}; peak memory {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="?", default=200_000)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--stream", choices=("batches", "dicts"), help="only this, here")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="headrace-") as home:
        if chosen.stream:
            stream(Path(home), chosen.rows, chosen.stream)
            return
        speed(Path(home), chosen.rounds)
    for form, rows in (("batches", chosen.rows), ("dicts", chosen.rows // 5)):
        command = [sys.executable, "-m", "tests.benchmarks.lake_sink", str(rows), "--stream", form]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
