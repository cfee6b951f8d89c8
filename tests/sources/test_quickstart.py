import asyncio
import re
from pathlib import Path

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.protocol import SandboxRequest
from tests.call_tasks import call_of
from transforms.grade.outcomes import Outcome
from transforms.sources.builtin import QUICKSTART, load_tasks
from transforms.sources.kinds.call import Case
from transforms.sources.task import Task
from transforms.verify.run import run_check

PROMPT = re.compile(
    r"Write a Python function `(?P<signature>(?P<name>\w+)\([\w, ]+\))`\. (?P<statement>It [^`]+\.) "
    r"Reply with only the code in a Python block\."
)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return load_tasks("builtin:quickstart", Path())


def same(value: object, expected: object) -> bool:
    """Equal in value and type at every depth, as the grader compares."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))  # ty: ignore[invalid-argument-type]
    return value == expected


def solves(program: str, name: str, cases: tuple[Case, ...]) -> bool:
    """Whether a program written for this project passes; only such programs may run here, outside a sandbox."""
    namespace: dict = {}
    exec(program, namespace)
    try:
        return all(same(namespace[name](*case.args, **case.kwargs), case.expected) for case in cases)
    except Exception:  # noqa: BLE001 - a solution of another task may fail in any way
        return False


def test_the_set_has_its_size_and_every_task_its_tiers(tasks):
    assert [sum(task.split == split for task in tasks) for split in ("train", "heldout")] == [16, 12]
    assert len({task.task_id for task in tasks}) == len({call_of(task).entry_point for task in tasks}) == len(tasks)
    for task in tasks:
        tiers = [case.tier for case in task.cases]
        assert tiers.count("visible") == 2, task.task_id
        assert tiers.count("hidden") >= 8, task.task_id
        calls = [repr((case.args, case.kwargs)) for case in call_of(task).cases]
        assert len(set(calls)) == len(calls), f"{task.task_id} asks the same call twice"
        assert (task.source, task.unsupported, call_of(task).prefix) == ("quickstart", None, "")
    assert [task.record for task in tasks] == QUICKSTART.read_text().splitlines(), "the file is not canonical"


def test_every_prompt_has_the_same_form_and_names_its_function(tasks):
    for task in tasks:
        match = PROMPT.fullmatch(task.prompt)
        assert match, task.prompt
        assert match["name"] == call_of(task).entry_point
        assert (task.gold or "").startswith(f"def {match['signature']}:\n")


def test_each_gold_solves_its_own_task_and_no_other(tasks):
    for task in tasks:
        assert task.gold is not None
        for other in tasks:
            renamed = f"{task.gold}\n{call_of(other).entry_point} = {call_of(task).entry_point}\n"
            solved = solves(renamed, call_of(other).entry_point, call_of(other).cases)
            assert solved == (task is other), f"the gold of {task.task_id} on the cases of {other.task_id}"


def test_a_constant_or_an_echo_solves_nothing(tasks):
    for task in tasks:
        bodies = {repr(case.expected) for case in call_of(task).cases} | {"args[0]", "args[-1]", "args", "None"}
        for body in sorted(bodies):
            program = f"def {call_of(task).entry_point}(*args):\n    return {body}\n"
            assert not solves(program, call_of(task).entry_point, call_of(task).cases), (
                f"{task.task_id}: `return {body}` passes"
            )


@pytest.mark.slow
def test_the_golds_pass_in_the_sandbox(tasks):
    sandbox, slots = Bubblewrap(), asyncio.Semaphore(2)

    async def outcomes(task: Task) -> set[Outcome]:
        async with slots:
            report = await run_check(sandbox, task, task.gold or "", SandboxRequest())
        assert len(report.results) == len(task.cases)
        return {result.outcome for result in report.results}

    async def everything() -> list[set[Outcome]]:
        return await asyncio.gather(*map(outcomes, tasks))

    assert asyncio.run(everything()) == [{Outcome.PASSED}] * len(tasks)
