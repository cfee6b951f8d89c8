"""From rows of the trajectories table to what the optimizer will see, in an order that can be repeated."""

import hashlib
import itertools
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.advantages import group_advantages
from training.config import TrainingSpec

Row = Mapping[str, Any]


class BatchError(ValueError):
    """A row cannot be trained on although it was let through. The message names the trajectory and the way out."""


@dataclass(frozen=True, slots=True)
class Member:
    """One completion of a group."""

    trajectory_id: str
    token_ids: tuple[int, ...]
    """Tokens the engine sampled, never re-encoded."""
    sampler_logprobs: tuple[float, ...]
    """The engine's log-probability of each of them, in nats."""
    loss_mask: tuple[bool, ...]
    """Which of them count in the loss."""
    advantage: float

    @property
    def tokens(self) -> int:
        """Tokens of it in the loss."""
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Completions of one prompt whose rewards differ."""

    group_id: str
    task_id: str
    prompt_token_ids: tuple[int, ...]
    members: tuple[Member, ...]

    @property
    def tokens(self) -> int:
        """Tokens of it in the loss."""
        return sum(member.tokens for member in self.members)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A cycle's data, cut into optimizer steps. Equal rows, spec, seed and cycle give an equal batch."""

    steps: tuple[tuple[PromptGroup, ...], ...]
    """The groups of each optimizer step, all epochs in a row. Empty when no group gives a signal."""
    groups_with_signal: int
    groups_without_signal: int
    """Groups whose scored rewards are fewer than two or all equal; they need no pass."""
    unscored: int
    """Rows without a reward: outside every mean, not trained on."""
    left_out: int
    """Rows that were quarantined, not final or not for training."""

    @property
    def batch_hash(self) -> str:
        """SHA-256, in hex, over what reaches the optimizer and its order: tokens, log-probabilities, masks, advantages,
        cuts. Names (run, group, trajectory) are not part of it, so two runs that drew the same data agree."""
        digest = hashlib.sha256()
        for step in self.steps:
            digest.update(struct.pack("<I", len(step)))
            for group in step:
                digest.update(struct.pack("<I", len(group.members)))
                _hash_array(digest, "i", group.prompt_token_ids)
                for member in group.members:
                    _hash_array(digest, "i", member.token_ids)
                    _hash_array(digest, "d", member.sampler_logprobs)
                    _hash_array(digest, "?", member.loss_mask)
                    digest.update(struct.pack("<d", member.advantage))
        return digest.hexdigest()


def _hash_array(digest: "hashlib._Hash", kind: str, values: Sequence[float]) -> None:
    digest.update(struct.pack(f"<I{len(values)}{kind}", len(values), *values))


def cut_batch(rows: Iterable[Row], spec: TrainingSpec, *, seed: int, cycle: int) -> TrainingBatch:
    """Cut a cycle's trajectories (in any order, as `pyarrow.Table.to_pylist()` gives them) into optimizer steps.

    Rows that are quarantined, not final or not for training are left out. Raises BatchError for a row that is let
    through but cannot be trained on: several turns, ragged columns, a prompt other than its group's, or
    log-probabilities that are not the policy's own.
    """
    by_group: dict[str, list[Row]] = defaultdict(list)
    left_out = unscored = 0
    for row in rows:
        if row["purpose"] != "train" or not row["final"] or row["quarantine_reasons"]:
            left_out += 1
            continue
        unscored += row["reward"] is None
        by_group[row["group_id"]].append(row)

    groups = [group for members in by_group.values() if (group := _with_signal(members)) is not None]
    steps: list[tuple[PromptGroup, ...]] = []
    for epoch in range(spec.epochs):
        # Ordered by a hash rather than a shuffle: a group's place does not depend on which other groups there are.
        # The task's name goes into it, not the group's, because the latter differs between two runs of one spec.
        ordered = sorted(groups, key=lambda group: (_place(seed, cycle, epoch, group.task_id), group.group_id))
        steps += [
            tuple(ordered[start : start + spec.groups_per_step])
            for start in range(0, len(ordered), spec.groups_per_step)
        ]
    return TrainingBatch(
        steps=tuple(steps),
        groups_with_signal=len(groups),
        groups_without_signal=len(by_group) - len(groups),
        unscored=unscored,
        left_out=left_out,
    )


def _place(seed: int, cycle: int, epoch: int, task_id: str) -> bytes:
    return hashlib.sha256(f"{seed}/{cycle}/{epoch}/{task_id}".encode()).digest()


def _with_signal(rows: list[Row]) -> PromptGroup | None:
    """The group of these rows, or None when it gives no signal."""
    ordered = sorted(rows, key=lambda row: (row["sample"], row["trajectory_id"]))
    for earlier, later in itertools.pairwise(ordered):
        if earlier["sample"] == later["sample"]:
            raise BatchError(
                f"trajectories {earlier['trajectory_id']} and {later['trajectory_id']} are both final for sample "
                f"{later['sample']} of group {later['group_id']}: an episode has one final attempt"
            )
    advantages = group_advantages([row["reward"] for row in ordered])
    members: list[Member] = []
    prompt: tuple[int, ...] | None = None
    for row, advantage in zip(ordered, advantages, strict=True):
        if advantage is None:
            continue
        turn = _only_turn(row)
        if prompt is None:
            prompt = tuple(turn["prompt_token_ids"])
        elif prompt != tuple(turn["prompt_token_ids"]):
            raise BatchError(
                f"trajectory {row['trajectory_id']}: its prompt differs from that of its group {row['group_id']}; "
                "advantages compare answers to one prompt, so give each prompt its own group_id"
            )
        members.append(
            Member(
                trajectory_id=row["trajectory_id"],
                token_ids=tuple(turn["token_ids"]),
                sampler_logprobs=tuple(turn["logprobs"]),
                loss_mask=tuple(turn["loss_mask"]),
                advantage=advantage,
            )
        )
    if prompt is None or not any(member.tokens for member in members):
        return None
    return PromptGroup(
        group_id=ordered[0]["group_id"],
        task_id=ordered[0]["task_id"],
        prompt_token_ids=prompt,
        members=tuple(members),
    )


def _only_turn(row: Row) -> Mapping[str, Any]:
    """The one turn of a trajectory, checked: equal lengths, a prompt, log-probabilities the loss can be built on."""
    where = f"trajectory {row['trajectory_id']}"
    if row["temperature"] != 1.0 or row["top_p"] != 1.0:
        # The clipped ratio divides the trainer's probability by the stored one: both must be the untempered policy's.
        raise BatchError(
            f"{where}: sampled at temperature {row['temperature']:g} and top_p {row['top_p']:g}, so its "
            "log-probabilities are not the policy's; set sampling.temperature and sampling.top_p to 1.0 to train"
        )
    turns = row["turns"] or []
    if len(turns) != 1:
        raise BatchError(f"{where}: has {len(turns)} turns; this trainer takes trajectories of exactly one")
    turn = turns[0]
    lengths = {name: len(turn[name]) for name in ("token_ids", "logprobs", "loss_mask")}
    if len(set(lengths.values())) != 1 or not turn["prompt_token_ids"]:
        raise BatchError(
            f"{where}: {len(turn['prompt_token_ids'])} prompt tokens and {lengths}: a turn needs a prompt and equal "
            "lengths; quarantine the row (see `quality`)"
        )
    return turn
