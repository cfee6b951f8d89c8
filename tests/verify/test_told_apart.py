"""Ends that look alike and are not: a limit and an error, whatever kind of task meets them."""

import asyncio

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseResult
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.call import Call, Case
from transforms.sources.kinds.stdio import Case as StdioCase
from transforms.sources.kinds.stdio import Stdio
from transforms.sources.task import Check, Task
from transforms.verify.attempts import attempt_program

REQUEST = SandboxRequest(limits=Limits(wall_time_s=20, cpu_time_s=10))
READS = (StdioCase("a", "", "1\n"),)
CALLS = (Case("a", (1,), 1),)


def result(check: Check, program: str) -> CaseResult:
    (made,) = asyncio.run(attempt_program(Bubblewrap(), Task("t", "p", check), program, REQUEST, attempts=1))
    assert made.report, made.failure
    return made.report.results[0]


@pytest.mark.parametrize(("language", "main"), [("c", "int main(void)"), ("cpp", "int main()")])
def test_a_compiler_at_its_file_limit_is_a_limit(language: str, main: str):
    large = f"volatile char a[200u << 20] = {{1}};\n{main} {{ return a[5]; }}\n"  # 200 MiB, of which it may write 64
    found = result(Stdio(READS, language=language), large)
    assert found.outcome is Outcome.DISK_LIMIT
    assert found.message.startswith("disk_limit broken by the compiler: ")
    quoted = result(Stdio(READS, language=language), f"#error File too large\n{main} {{}}\n")
    assert (quoted.outcome, quoted.location) == (Outcome.SYNTAX_ERROR, "line 1")


@pytest.mark.parametrize(
    "value", ["-" * 100_000 + "1", "lambda:" * 3000 + "1", "(" * 300 + "1" + ")" * 300, "f" + "()" * 3000]
)
def test_source_nested_too_deep_is_one_outcome(value: str):
    function = result(Call("f", CALLS), f"def g(): return {value}\ndef f(n): return n\n")
    script = result(Stdio(READS), f"def g(): return {value}\nprint(1)\n")
    assert (function.outcome, script.outcome) == (Outcome.SYNTAX_ERROR, Outcome.SYNTAX_ERROR)
    assert function.message.split(":")[0] == script.message.split(":")[0]


def test_an_abort_of_node_is_no_full_heap():
    aborts = result(Call("f", CALLS, language="javascript"), "function f(n) { process.abort() }")
    assert (aborts.outcome, aborts.message) == (
        Outcome.RUNTIME_ERROR, "the process ended with exit code 134 and gave no answer",
    )  # fmt: skip
    fills = "function f(n) { const a = []; for (;;) a.push(new Array(1000).fill(n + a.length)) }"
    assert result(Call("f", CALLS, language="javascript"), fills).outcome is Outcome.MEMORY_LIMIT
