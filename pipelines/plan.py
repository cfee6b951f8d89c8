"""What a run will do, chunk by chunk, worked out from the spec and the tasks alone."""

import hashlib
import math
import random
from dataclasses import dataclass, replace

from pipelines.spec import RunSpec
from transforms.episode import Group, Purpose
from transforms.rollout.policy import Sampling
from transforms.sources.task import Task


@dataclass(frozen=True, slots=True)
class Chunk:
    """Groups that run in one pipeline and become rows in one commit. Numbered through the run, from 1."""

    number: int
    cycle: int
    groups: tuple[Group, ...]

    @property
    def episodes(self) -> int:
        """Episodes of all its groups."""
        return sum(group.n for group in self.groups)

    @property
    def cases(self) -> dict[str, list[str]]:
        """Names of the cases of its tasks, by the hash of each task's content."""
        return {group.task.content_hash: [case.name for case in group.task.cases] for group in self.groups}


@dataclass(frozen=True, slots=True)
class Plan:
    """All chunks of a run in the order they run. The same spec and tasks give the same plan, so a run can resume."""

    run_id: str
    chunks: tuple[Chunk, ...]

    def training(self, cycle: int) -> tuple[Chunk, ...]:
        """The chunks whose rows train the policy of this cycle."""
        return tuple(c for c in self.chunks if c.cycle == cycle and c.groups[0].purpose == "train")

    def evaluation(self, cycle: int) -> tuple[Chunk, ...]:
        """The chunks that measure the policy at this cycle: 0 and the last one have some."""
        return tuple(c for c in self.chunks if c.cycle == cycle and c.groups[0].purpose != "train")


def make_plan(spec: RunSpec, run_id: str, train: list[Task], heldout: list[Task]) -> Plan:
    """Lay out the evaluation before, the cycles, and the evaluation after."""
    cycles = spec.cycles
    chunks: list[Chunk] = []

    def add(cycle: int, groups: list[Group]) -> None:
        for start in range(0, len(groups), cycles.groups_per_chunk):
            number = len(chunks) + 1
            part = groups[start : start + cycles.groups_per_chunk]
            chunks.append(Chunk(number, cycle, tuple(replace(group, chunk=number) for group in part)))

    def evaluate(cycle: int) -> None:
        add(cycle, [g for task in heldout for g in _evaluation_groups(spec, run_id, cycle, task)])

    evaluate(0)
    for cycle in range(1, cycles.count + 1):
        add(
            cycle,
            [
                _group(spec, run_id, cycle, "train", cycle - 1, task, cycles.group_size, spec.sampling)
                for task in tasks_of_cycle(spec, train, cycle)
            ],
        )
    evaluate(cycles.count)
    return Plan(run_id, tuple(chunks))


def tasks_of_cycle(spec: RunSpec, train: list[Task], cycle: int) -> list[Task]:
    """The training tasks of one cycle: a window on an endless sequence of seeded permutations of all tasks."""
    if not train:
        return []
    wanted = min(spec.cycles.tasks_per_cycle or len(train), len(train))
    first = (cycle - 1) * wanted
    chosen: list[Task] = []
    for epoch in range(first // len(train), math.ceil((first + wanted) / len(train))):
        order = sorted(train, key=lambda task: task.task_id)
        random.Random(f"{spec.seed}/{epoch}").shuffle(order)
        start = epoch * len(train)
        chosen += order[max(0, first - start) : max(0, first + wanted - start)]
    return _without_repeats(chosen)


def _without_repeats(tasks: list[Task]) -> list[Task]:
    """A window over the seam of two permutations may hold a task twice; a cycle asks it once."""
    return list({task.task_id: task for task in tasks}.values())


def _evaluation_groups(spec: RunSpec, run_id: str, cycle: int, task: Task) -> list[Group]:
    sampled = spec.sampling.model_copy(update={"temperature": spec.evaluation.temperature})
    groups = [_group(spec, run_id, cycle, "eval_sampled", cycle, task, spec.evaluation.samples, sampled)]
    if spec.evaluation.greedy:
        greedy = spec.sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0})
        groups.append(_group(spec, run_id, cycle, "eval_greedy", cycle, task, 1, greedy))
    return groups


def _group(
    spec: RunSpec, run_id: str, cycle: int, purpose: Purpose, version: int, task: Task, n: int, sampling: Sampling
) -> Group:
    seed = int.from_bytes(hashlib.sha256(f"{spec.seed}/{cycle}/{purpose}/{task.task_id}".encode()).digest()[:4]) >> 1
    return Group(run_id, cycle, 0, purpose, version, task, n, sampling, seed)
