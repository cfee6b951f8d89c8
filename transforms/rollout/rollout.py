"""Ask the policy: a group in, its answered episodes out."""

import apache_beam as beam

from transforms.async_map import AsyncDoFn
from transforms.episode import Failure, Group, Rollout, now_us
from transforms.grade.outcomes import Outcome
from transforms.rollout.policy import EngineError, EngineLost, PolicyEngine
from transforms.tally import TALLY


class RolloutGroups(beam.PTransform):
    """Sample the n completions of each group.

    In:   Group, in any order.
    Out:  Rollout, exactly n per Group; one the engine failed holds the failure. Fails with EngineLost.
    Cost: `concurrency` groups in flight in each worker process; the engine decides how many it decodes at once.
          Repeatable only where the engine is.
    """

    def __init__(self, engine: PolicyEngine, *, concurrency: int) -> None:
        super().__init__()
        self.engine = engine
        self.concurrency = concurrency

    def expand(self, groups: beam.PCollection[Group]) -> beam.PCollection[Rollout]:
        """Build the stage."""
        engine = self.engine

        async def ask(group: Group) -> list[Rollout]:
            return await rollout(engine, group)

        return groups | "Ask" >> beam.ParDo(AsyncDoFn(ask, self.concurrency)).with_output_types(Rollout)


async def rollout(engine: PolicyEngine, group: Group) -> list[Rollout]:
    """Ask for all n episodes of a group at once. A request that fails is n rollouts that hold the failure.

    Raises EngineLost: the fault of a dead engine is no result of any episode.
    """
    messages = ({"role": "user", "content": group.task.prompt},)
    started = now_us()
    completions, failure = [None] * group.n, None
    if group.task.unsupported is not None:
        failure = Failure(Outcome.TASK_INVALID, "the task cannot be graded", group.task.unsupported)
    else:
        try:
            completions = await engine.sample(list(messages), n=group.n, sampling=group.sampling, seed=group.seed)
        except EngineLost:
            raise
        except EngineError as error:
            failure = Failure(Outcome.ENGINE_FAILED, str(error), error.evidence)
        except Exception as error:  # noqa: BLE001 - the boundary of a rollout: an unknown error is infra, kept as a row
            failure = Failure(Outcome.ENGINE_FAILED, f"unexpected {type(error).__name__}: {error}", repr(error))
    ended = now_us()
    TALLY.add(episodes=group.n, tokens=sum(len(c.token_ids) for c in completions if c is not None))
    return [
        Rollout(group, sample, messages, started, ended, completion, failure if completion is None else None)
        for sample, completion in enumerate(completions)
    ]
