from pipelines.plan import make_plan, tasks_of_cycle
from pipelines.spec import RunSpec
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Task


def tasks(n: int, prefix: str = "t") -> list[Task]:
    return [
        Task(f"{prefix}{i}", "do it", Call("f", (Case("case-1", (1,), 1),)), record=f"{prefix}{i}") for i in range(n)
    ]


def spec(**cycles: object) -> RunSpec:
    return RunSpec.model_validate({"name": "plan", "cycles": cycles, "evaluation": {"samples": 3}})


def test_a_plan_counts_every_episode_once():
    plan = make_plan(spec(count=2, group_size=4, groups_per_chunk=3), "run", tasks(5), tasks(2, "h"))
    # before: 2 tasks x (1 greedy group + 1 sampled group) = 4 groups -> 2 chunks; a cycle: 5 groups -> 2 chunks
    assert [c.number for c in plan.chunks] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [c.cycle for c in plan.chunks] == [0, 0, 1, 1, 2, 2, 2, 2]
    assert [len(c.groups) for c in plan.chunks] == [3, 1, 3, 2, 3, 2, 3, 1]
    assert sum(c.episodes for c in plan.chunks) == 2 * (2 * (1 + 3)) + 2 * 5 * 4
    ids = [group.group_id for chunk in plan.chunks for group in chunk.groups]
    assert len(set(ids)) == len(ids)
    assert all(group.chunk == chunk.number for chunk in plan.chunks for group in chunk.groups)


def test_each_cycle_asks_the_policy_that_the_cycle_before_made():
    plan = make_plan(spec(count=2), "run", tasks(2), tasks(1, "h"))
    asked = {(g.cycle, g.purpose): g.policy_version for c in plan.chunks for g in c.groups}
    assert asked == {
        (0, "eval_sampled"): 0, (0, "eval_greedy"): 0, (1, "train"): 0, (2, "train"): 1,
        (2, "eval_sampled"): 2, (2, "eval_greedy"): 2,
    }  # fmt: skip
    assert all(g.sampling.temperature == 0 for c in plan.chunks for g in c.groups if g.purpose == "eval_greedy")


def test_the_same_spec_gives_the_same_plan_and_another_seed_another():
    one, two = (make_plan(spec(count=2), "run", tasks(4), []) for _ in range(2))
    assert one == two
    other = make_plan(spec(count=2).model_copy(update={"seed": 1}), "run", tasks(4), [])
    assert [g.seed for g in other.chunks[0].groups] != [g.seed for g in one.chunks[0].groups]


def test_fewer_tasks_a_cycle_still_ask_each_task_once_an_epoch():
    chosen = [tasks_of_cycle(spec(count=5, tasks_per_cycle=2), tasks(6), cycle) for cycle in range(1, 7)]
    assert sorted(t.task_id for cycle in chosen[:3] for t in cycle) == [f"t{i}" for i in range(6)]
    assert sorted(t.task_id for cycle in chosen[3:] for t in cycle) == [f"t{i}" for i in range(6)]
    assert [t.task_id for c in chosen[:3] for t in c] != [t.task_id for c in chosen[3:] for t in c]


def test_a_cycle_over_the_seam_of_two_epochs_asks_no_task_twice():
    for cycle in range(1, 12):
        ids = [t.task_id for t in tasks_of_cycle(spec(count=12, tasks_per_cycle=2), tasks(3), cycle)]
        assert len(ids) == len(set(ids)) >= 1
