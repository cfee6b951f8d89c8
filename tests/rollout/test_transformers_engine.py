import asyncio
from pathlib import Path

import pytest
import torch

from transforms.rollout.policy import Completion, EngineError, EngineSpec, Sampling
from transforms.rollout.transformers_engine import TransformersEngine, TransformersService

CHATS = [[{"role": "user", "content": text}] for text in ("sum of a list", "largest of a list", "add(a, b)")]
SAMPLING = Sampling(max_tokens=32, stop=())


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
