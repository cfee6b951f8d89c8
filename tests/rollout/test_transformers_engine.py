import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from transforms.rollout.policy import Completion, EngineError, EngineSpec, Sampling
from transforms.rollout.transformers_engine import TransformersEngine, TransformersService

ROOT = Path(__file__).resolve().parents[2]
CHATS = [[{"role": "user", "content": text}] for text in ("sum of a list", "largest of a list", "add(a, b)")]
SAMPLING = Sampling(max_tokens=32, stop=())

# A run in the middle of a rollout: 64 groups, 32 of them asked for, each of them seconds of work.
RUN = """
import sys
from pathlib import Path
import apache_beam as beam
from transforms.episode import Group
from transforms.rollout import transformers_engine
from transforms.rollout.policy import EngineSpec, Sampling
from transforms.rollout.rollout import RolloutGroups
from transforms.rollout.transformers_engine import TransformersService
from transforms.sources.builtin import load_tasks

task = load_tasks("builtin:quickstart", Path())[0]
groups = [
    Group("r", 1, 1, "train", 0, task, n=256, sampling=Sampling(max_tokens=400, stop=()), seed=i) for i in range(64)
]
decode = transformers_engine._decode

def announced(*args):
    print("decoding", flush=True)
    return decode(*args)

transformers_engine._decode = announced
with TransformersService(EngineSpec(dtype="float32", max_model_len=500)) as service:
    engine = service.serve(Path(sys.argv[1]), 0)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create(groups) | RolloutGroups(engine, concurrency=32)
"""


@pytest.fixture
def engine(checkpoint: Path) -> TransformersEngine:
    return TransformersService(EngineSpec(dtype="float32", max_model_len=128)).serve(checkpoint, 0)


async def group(engine: TransformersEngine, i: int) -> list[Completion]:
    return await engine.sample(CHATS[i % 3], n=4, sampling=SAMPLING, seed=100 + i)


def test_interleaved_groups_draw_what_they_draw_one_after_the_other(engine: TransformersEngine):
    async def one_by_one() -> list[list[Completion]]:
        return [await group(engine, i) for i in range(6)]

    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(group(engine, i) for i in (3, 0, 5, 1, 4, 2)))

    alone = asyncio.run(one_by_one())
    torch.manual_seed(99)  # the process's own random state plays no part
    assert asyncio.run(together()) == [alone[i] for i in (3, 0, 5, 1, 4, 2)]


def test_the_event_loop_stays_free_while_a_group_is_drawn(engine: TransformersEngine):
    async def ticks_during_a_draw() -> int:
        drawing, ticks = asyncio.create_task(group(engine, 0)), 0
        while not drawing.done():
            await asyncio.sleep(0)
            ticks += 1
        return ticks

    assert asyncio.run(ticks_during_a_draw()) > 10


def test_a_handle_keeps_its_weights_whatever_was_loaded_last(
    engine: TransformersEngine, checkpoint: Path, other_checkpoint: Path
):
    first = asyncio.run(group(engine, 0))
    newer = TransformersEngine(other_checkpoint, 1, "float32", 128)
    assert asyncio.run(group(newer, 0)) != first
    assert asyncio.run(group(engine, 0)) == first


def test_the_same_folder_with_a_new_version_is_read_again(tmp_path: Path, checkpoint: Path, other_checkpoint: Path):
    folder = tmp_path / "policy"
    folder.symlink_to(checkpoint)
    first = asyncio.run(group(TransformersEngine(folder, 0, "float32", 128), 0))
    folder.unlink()
    folder.symlink_to(other_checkpoint)
    assert asyncio.run(group(TransformersEngine(folder, 1, "float32", 128), 0)) != first


def test_a_checkpoint_without_chat_template_is_an_engine_error(tmp_path: Path, checkpoint: Path):
    for file in checkpoint.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(EngineError, match="no chat template"):
        TransformersService(EngineSpec()).serve(tmp_path, 0)


def test_groups_that_wait_leave_the_threads_of_the_loop_to_others(engine: TransformersEngine):
    """Sandboxes are closed in those threads."""

    async def groups_done_before_a_thread_was_free() -> int:
        groups = [asyncio.create_task(group(engine, i)) for i in range(40)]
        await asyncio.sleep(0)
        await asyncio.to_thread(time.monotonic)
        done = sum(task.done() for task in groups)
        await asyncio.gather(*groups)
        return done

    assert asyncio.run(groups_done_before_a_thread_was_free()) < 5


def test_stop_ends_the_group_in_the_making_and_those_that_wait(checkpoint: Path):
    service = TransformersService(EngineSpec(dtype="float32", max_model_len=500))
    engine = service.serve(checkpoint, 0)
    long = Sampling(max_tokens=400, stop=())

    async def stopped() -> list[list[Completion] | BaseException]:
        groups = [asyncio.create_task(engine.sample(CHATS[0], n=256, sampling=long, seed=i)) for i in range(20)]
        await asyncio.sleep(0.3)
        service.stop()
        return await asyncio.gather(*groups, return_exceptions=True)

    begun = time.monotonic()
    first, *others = asyncio.run(stopped())
    assert isinstance(first, EngineError)
    assert "was stopped" in str(first)
    assert {type(other) for other in others} == {asyncio.CancelledError}
    assert time.monotonic() - begun < 5
    assert len(asyncio.run(group(service.serve(checkpoint, 0), 0))) == 4


def test_an_interrupted_run_ends_at_once_however_many_groups_wait(checkpoint: Path):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(checkpoint)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "decoding\n"
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=10)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    assert "KeyboardInterrupt" in stderr
    assert stdout.count("decoding") <= 1  # none of those that waited was begun
