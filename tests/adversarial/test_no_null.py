# ruff: noqa: E501 - one submission a line
"""No submission buys a null: whatever is submitted to a sound task of any kind, the outcome is the policy's."""

import asyncio
from fractions import Fraction

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.verify.test_rig import CHECK as REPOSITORY
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import outcome_of
from transforms.sources.kinds import call, files, math, sql, state, stdio
from transforms.sources.task import Check, Task
from transforms.verify.attempts import attempt_program

LIMITS = Limits(wall_time_s=2, cpu_time_s=2, memory_mib=128, processes=24, output_kib=64, file_mib=4, disk_mib=8)

KINDS: dict[str, Check] = {
    "call": call.Call("f", (call.Case("a", (1,), 2),)),
    "call in JavaScript": call.Call("f", (call.Case("a", (1,), 2),), language="javascript"),
    "stdio": stdio.Stdio((stdio.Case("a", "1", "2"),)),
    "stdio in C": stdio.Stdio((stdio.Case("a", "1", "2"),), "c"),
    "stdio in bash": stdio.Stdio((stdio.Case("a", "1", "2"),), "bash"),
    "math": math.Math("\\frac{1}{2}"),
    "math with a tolerance": math.Math("0.5", tolerance=math.Tolerance(relative=Fraction(1, 100))),
    "sql": sql.Sql((sql.Case("a", ((1,),)),), "CREATE TABLE t (x); INSERT INTO t VALUES (1)"),
    "files": files.Files((files.Case("a", (files.Artifact("out.json", "json", [1]),)),)),
    "state": state.State((state.Case("a", state.FileProbe("/etc/motd", "text", "hi")),)),
    "pytest": REPOSITORY,
}
TEXTS = {
    "nothing": "",
    "blanks": " \n\t\r\n\f",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "a lone surrogate": "\udcff",
    "surrogates the wrong way round": "\udc80\ud800",
    "a byte order mark": "\ufeff",
    "every letter up to 3000": "".join(map(chr, range(3000))),
    "letters from right to left": "\u202e\u2066\u05d0\u0660",
    "100,000 parentheses": "(" * 100_000,
    "100,000 braces": "{" * 100_000,
    "100,000 quotes": "'" * 100_001,
    "100,000 backslashes": "\\" * 100_000,
    "200,000 digits": "9" * 200_000,
    "a power of powers": "\\boxed{9^{9^{9^{9^{9}}}}}",
    "a factorial": "\\boxed{(10^9)!}",
    "ten boxes": "\\boxed{1}" * 10,
    "a box in a box": "\\boxed{" * 500 + "1" + "}" * 500,
    "a fraction of nothing": "\\boxed{\\frac{1}{0}}",
    "a megabyte of one line": "x" * 1_000_000,
    "a megabyte of lines": "x\n" * 500_000,
    "half a patch": "diff --git a/solution.py b/solution.py\n--- a/solution.py\n+++ b/solution.py\n@@ -1,2 +1,99999999 @@\n",
    "a patch of numbers too large": "--- a/x\n+++ b/x\n@@ -9999999999999999999999,1 +1,1 @@\n-a\n+b\n",
    "a patch that goes up": "diff --git a/../../x b/../../x\nnew file mode 100644\n--- /dev/null\n+++ b/../../x\n@@ -0,0 +1 @@\n+a\n",
    "a query without end": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "a query of a gigabyte": "SELECT hex(zeroblob(1000000000)) FROM t",
    "a query of odd values": "SELECT x'ff00', 9e999, -9e999, CAST(x'ff' AS TEXT), NULL, 9223372036854775807",
    "a query that attaches": "ATTACH DATABASE '/job/x' AS y; SELECT load_extension('/lib/x'); PRAGMA writable_schema = ON",
    "a program that ends all": "import os\nos.kill(-1, 9)",
    "a script that ends all": "kill -9 -1; kill -9 1; rm -rf / ~ . 2>/dev/null; exec 3>&- 0<&-",
    "a script of links": "mkdir -p etc; ln -s /etc/passwd out.json; ln -sf / etc/motd; mkfifo f; ln -s loop loop",
    "JSON too deep": "print('')\nopen('out.json', 'w').write('[' * 100000 + ']' * 100000)",
    "JSON of odd numbers": "open('out.json', 'w').write('[NaN, 1e999, -Infinity, ' + '9' * 100000 + ']')",
    "JSON with one key twice": "open('out.json', 'wb').write(b'\\xff\\xfe{\"a\": 1, \"a\": 2}')",
}  # fmt: skip


def outcome_for(check: Check, submitted: str) -> tuple[str, str]:
    """The outcome, and what was said; through the same door as an episode's."""

    async def go() -> tuple[str, str]:
        request = SandboxRequest(limits=LIMITS)
        (made,) = await attempt_program(Bubblewrap(), Task("t", "p", check), submitted, request, attempts=1)
        if made.failure is not None:
            return str(made.failure.outcome), made.failure.message
        assert made.report is not None
        return str(outcome_of(made.report.results)), made.report.results[0].message

    return asyncio.run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_is_judged(kind: str):
    found = {name: outcome_for(KINDS[kind], text) for name, text in TEXTS.items()}
    wrong = {name: said for name, said in found.items() if not Outcome(said[0]).scored or said[0] == "passed"}
    assert wrong == {}


_PAIR = "def check(stdin, stdout, expected):\n    a, b = map(int, stdout.split())\n    return a * b == 12"
_MATCH = "import re\ndef check(stdin, stdout, expected): return re.match('ok', stdout) and True"
_VALUE = "def check(args, kwargs, result):\n    a, b = result\n    return a * b == 12"
CHECKERS: dict[str, tuple[Check, str, str]] = {
    "raises": (stdio.Stdio((stdio.Case("a", "", "3 4"),), compare="checker", checker=_PAIR), "print(3, 4)", "print('no')"),
    "raises on a value": (call.Call("f", (call.Case("a", (1,), (3, 4)),), checker=_VALUE), "def f(x): return 3, 4", "def f(x): return 3"),
    "gives None": (stdio.Stdio((stdio.Case("a", "", "ok"),), compare="checker", checker=_MATCH), "print('ok')", "print('no')"),
    "raises, and nothing is expected in this case": (stdio.Stdio((stdio.Case("a", "", ""), stdio.Case("b", "", "3 4")), compare="checker", checker=_PAIR), "print(3, 4)", "print('no')"),
    "raises on a value, and nothing is expected in this case": (call.Call("f", (call.Case("a", (1,), None), call.Case("b", (1,), (3, 4))), checker=_VALUE), "def f(x): return 3, 4", "def f(x): return 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKERS)
def test_what_a_checker_chokes_on_is_a_wrong_answer(name: str):
    check, right, wrong = CHECKERS[name]
    assert outcome_for(check, right)[0] == "passed"
    assert outcome_for(check, wrong)[0] == "failed_tests"


FORGED_STATUS = """
import os
def f(x):
    report = b"Xt\\0\\0\\0\\2T" + b"i\\0\\0\\x20\\0" + b"\\x7f" * 8192  # killed by a signal whose number has 19,000 digits
    for fd in range(3, 30):
        try: os.write(fd, len(report).to_bytes(4, "big") + report)
        except OSError: pass
    os._exit(0)
"""
DEEP = "def f(x):\n    value = 2\n    for _ in range({depth}): value = [value]\n    return value"
STRANGE_PATH = "\n--- /dev/null\n+++ b/\ud800.py\n@@ -0,0 +1 @@\n+x = 1\n"


def test_a_forged_wait_status_is_tampering():
    assert outcome_for(KINDS["call"], FORGED_STATUS)[0] == "tampered"


@pytest.mark.parametrize("depth", [97, 98, 99, 100])
def test_a_value_nested_too_deep_for_a_question_is_wrong(depth: int):
    checker = "def check(args, kwargs, returned): return returned == 2"
    check = call.Call("f", (call.Case("a", (1,), 2),), checker=checker)
    assert outcome_for(check, DEEP.format(depth=depth))[0] == "failed_tests"


def test_a_path_without_utf8_is_refused():
    assert outcome_for(REPOSITORY, STRANGE_PATH.lstrip())[0] == "policy_violation"
