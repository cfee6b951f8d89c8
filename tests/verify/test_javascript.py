# ruff: noqa: E501 - one program a line
"""JavaScript functions: which value becomes which, which programs are honest, and which are told to be wrong."""

import asyncio
from dataclasses import replace

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from sandboxes.sandbox import Inside
from tests.sandboxes.conformance.backends import Backend, find, names, required
from transforms.episode import CaseReport, CaseResult
from transforms.grade.outcomes import OutcomeClass
from transforms.sources.kinds.call import Call, Case, Tolerance
from transforms.sources.task import Task
from transforms.verify.compile import ToolchainMissing
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=1, cpu_time_s=1, memory_mib=192, processes=32, output_kib=64, file_mib=8)


def grade(program: str, *cases: Case, prefix: str = "", sandbox: Bubblewrap | None = None) -> CaseReport:
    task = Task("t", "p", Call("f", cases, prefix=prefix, language="javascript"))
    return asyncio.run(run_check(sandbox or Bubblewrap(), task, program, SandboxRequest(limits=LIMITS)))


def told(values: list[tuple[str, object]]) -> dict[str, CaseResult]:
    """What each JavaScript expression, returned by a function, comes to against its expected value."""
    table = ",\n".join(f"() => {source}" for source, _ in values)
    report = grade(
        f"const table = [{table}];\nfunction f(i) {{ return table[i]() }}",
        *(Case(source, (i,), expected) for i, (source, expected) in enumerate(values)),
    )
    return {result.name: result for result in report.results}


NAN = float("nan")
BOTH_WAYS = [
    None, True, 0, -1, 255, -256, 2**53, 2**53 + 1, -(2**70), 1.5, -0.0, 1e300, NAN, float("-inf"), "", "é🎈",
    "\ud800 lone", "nul\0", b"", b"\xff\0", [], [1, [2.5, ("x",)]], {}, {"a": {"b": None}}, {"__proto__": 1, "constructor": 2},
    {1: "one", None: 2}, {1, "1"}, {2**60: {"k": b"v"}},
]  # fmt: skip


def test_values_come_in_and_go_out():
    program = "function f(value) { return value }"
    report = grade(program, *(Case(str(i), (value,), value) for i, value in enumerate(BOTH_WAYS)))
    wrong = [(BOTH_WAYS[i], r) for i, r in enumerate(report.results) if r.outcome != "passed"]
    assert wrong == []


MAPPED: list[tuple[str, object]] = [
    ("undefined", None), ("[1,,undefined]", [1, None, None]), ("({a: undefined})", {"a": None}),
    ("3", 3.0), ("3.0", 3), ("2 ** 53", 2**53), ("10n ** 30n", 10**30), ("-(2n ** 64n)", -(2**64)), ("-128n", -128),
    ("-0", 0), ("0 / 0", NAN), ("1 / 0", float("inf")), ("[1, 2]", (1, 2)), ("'\\ud83d'", "\ud83d"),
    ("new Map([[1, new Set(['a'])]])", {1: {"a"}}), ("Object.assign(Object.create(null), {a: 1})", {"a": 1}),
    ("new Uint8Array([1, 255])", b"\x01\xff"), ("Buffer.from('ab')", b"ab"), ("'aXbX'.match(/X/g)", ["X", "X"]),
    ("Promise.resolve([1])", [1]), ("JSON.parse('{\"__proto__\": 1}')", {"__proto__": 1}), ("[[3.5]]", [[3.5]]),
]  # fmt: skip


def test_the_mapping_is_as_declared():
    assert [(name, result) for name, result in told(MAPPED).items() if result.outcome != "passed"] == []


OTHER: list[tuple[str, object]] = [
    ("true", 1), ("1", True), ("'1'", 1), ("null", 0), ("2.5", 2), ("2 ** 53 + 1", 2**53 + 1), ("'a'", b"a"), ("[1]", {1}),
    ("new Date(0)", {}), ("new (class A { a = 1 })", {"a": 1}), ("new Proxy({a: 1}, {})", {"a": 1}), ("() => 1", 1),
    ("Symbol('a')", "a"), ("new Number(3)", 3), ("({get a() { return 1 }})", {"a": 1}), ("({toJSON() { return 3 }})", 3),
    ("({[Symbol.toPrimitive]: () => 3})", 3), ("({valueOf: () => 3})", 3), ("new (class A extends Array {})(1)", [None]),
    ("Object.setPrototypeOf([1], null)", [1]), ("Object.defineProperty([0], '0', {get: () => 1})", [1]), ("new Proxy([1], {})", [1]),
    ("new (class M extends Map {})", {}), ("(() => { const a = []; a.push(a); return a })()", []), ("new WeakMap()", {}),
    ("Object.create({a: 1})", {"a": 1}), ("new Float64Array([1])", [1]), ("new Error('x')", {}), ("globalThis", {}),
    ("({then(ok) { ok(3) }})", 3), ("/x/", {}), ("[1,,3]", [1, 2, 3]),
]  # fmt: skip


def test_what_is_something_else_is_a_wrong_answer():
    results = told(OTHER)
    assert [(name, result) for name, result in results.items() if result.outcome != "failed_tests"] == []
    assert [results[name].expected_type for name, _ in OTHER] == [type(expected).__name__ for _, expected in OTHER]


HONEST = {
    "a buffer of its own": "class Buffer { constructor() { this.x = [] } }\nfunction f(x) { return x + 1 }",
    "declaration": "function f(x) { return x + 1 }",
    "arrow": "const f = (x) => x + 1;",
    "let": "let f = function (x) { return x + 1 }",
    "strict": "'use strict';\nconst one = 1;\nfunction f(x) { return x + one }",
    "module.exports = {f}": "const g = (x) => x + 1;\nmodule.exports = { f: g };",
    "exports.f": "exports.f = (x) => x + 1",
    "module.exports = f": "module.exports = (x) => x + 1",
    "async": "async function f(x) { await new Promise((ok) => setTimeout(ok, 5)); return x + 1 }",
    "promise": "const f = (x) => new Promise((ok) => setImmediate(() => ok(x + 1)))",
    "require": "const assert = require('assert'); const fs = require('node:fs');\nfunction f(x) { assert(fs); return x + 1 }",
    "prints": "console.log('at load'); console.error('x');\nfunction f(x) { console.log('x'.repeat(40000)); return x + 1 }",
    "class": "class P { #v; constructor(v) { this.#v = v } get v() { return this.#v } }\nvar f = (x) => new P(x).v + 1",
    "generator": "function* g(x) { yield x; yield 1 }\nfunction f(x) { let s = 0; for (const v of g(x)) s += v; return s }",
    "bigint": "const f = (x) => BigInt(x) + 1n",
    "changes its argument": "function f(...xs) { xs[0]++; return xs.pop() }",
    "timer left": "setInterval(() => {}, 1000);\nfunction f(x) { return x + 1 }",
    "worker thread": "const { Worker } = require('worker_threads');\nconst f = (x) => new Promise((ok) => new Worker('require(\"worker_threads\").parentPort.postMessage(1)', { eval: true }).on('message', (m) => ok(x + m)))",
    "child process": "const { execFileSync } = require('child_process');\nconst f = (x) => x + Number(execFileSync('echo', ['1']))",
    "file": "const fs = require('fs');\nfunction f(x) { fs.writeFileSync('a', '1'); return x + Number(fs.readFileSync('a', 'utf8')) }",
    "deep recursion": "function g(n) { return n === 0 ? 0 : 1 + g(n - 1) }\nfunction f(x) { return x + g(5000) / 5000 }",
    "its own names": "const path = 1, fs = 2, vm = 3, input = 4, main = 5, answer = 6, find = 7;\nfunction f(x) { return x + path }",
    "patches builtins": "Array.prototype.last = function () { return this[this.length - 1] };\nconst f = (x) => [x + 1].last()",
    "keeps count": "let n = 0;\nfunction f(x) { n++; return x + n }",
    "CRLF and BOM": "\ufefffunction f(x) {\r\n\treturn x + 1 }\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_pass(name: str):
    report = grade(HONEST[name], Case("a", (1,), 2), Case("b", (5,), 6))
    assert [str(result.outcome) for result in report.results] == ["passed"] * 2, report


@pytest.mark.parametrize(
    ("program", "outcome", "message", "location"),
    [
        ("function f(x) { return x + 2 }", "failed_tests", "wrong value", None),
        ("function f(x) {\n  return x.y.z }", "runtime_error", "TypeError: Cannot read properties of undefined", "line 2 in f"),
        ("function f(x) {", "syntax_error", "SyntaxError: Unexpected end of input", "line 1"),
        ("let a;\nlet a;", "syntax_error", "SyntaxError: Identifier 'a' has already been declared", "line 2"),
        ("import fs from 'fs'", "syntax_error", "SyntaxError: Cannot use import statement outside a module", "line 1"),
        ("const g = 1", "runtime_error", "ReferenceError: the program defines no function f", None),
        ("const f = 1", "runtime_error", "ReferenceError: the program defines no function f", None),
        ("throw new RangeError('no')", "runtime_error", "RangeError: no", "line 1 in <program>"),
        ("function f() { throw 'text' }", "runtime_error", "Error: string thrown: text", None),
        ("function f() { return f() }", "runtime_error", "RangeError: Maximum call stack size exceeded", "line 1 in f"),
        ("const f = async () => { await null; null.x }", "runtime_error", "TypeError: Cannot read properties of null", "line 1 in f"),
        ("const f = () => { setTimeout(() => { throw new Error('late') }); return new Promise(() => {}) }", "runtime_error", "Error: late", "line 1 in Timeout._onTimeout"),
        ("const f = () => { Promise.reject(new Error('lost')); return new Promise((ok) => setTimeout(ok, 500)) }", "runtime_error", "Error: lost", "line 1 in f"),
        ("const f = () => new Promise(() => {})", "runtime_error", "the process ended with exit code 0 and gave no answer", None),
        ("const f = () => process.exit(0)", "runtime_error", "the process ended with exit code 0", None),
        ("const f = () => { while (true); }", "time_limit", "no answer within 2 s", None),
        ("const f = () => { throw { toString() { throw 1 } } }", "runtime_error", "Error", None),
        ("const f = () => 'x'.repeat(1e6)", "output_limit", "the returned value is too large", None),
        ("const f = () => { let v = [0]; for (let i = 0; i < 60; i++) v = [v, v]; return v }", "output_limit", "too large", None),
        ("const f = () => { for (;;) console.log('x'.repeat(1000)) }", "output_limit", "output_limit broken", None),
        ("const f = () => { const l = []; for (;;) l.push(new Array(1000).fill(1.5)) }", "memory_limit", "", None),
        ("const f = () => { const l = []; for (;;) l.push(Buffer.alloc(1e6, 1)) }", "memory_limit", "memory_limit broken", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(program: str, outcome: str, message: str, location: str | None):
    [result] = grade(program, Case("c", (1,), 2)).results
    assert result.outcome == outcome, result
    assert message in result.message
    assert result.location == location


SECRET = "expected-7c1f"
CHEATS = {
    "forges on every descriptor": "const fs = require('fs');\nfor (let fd = 3; fd < 64; fd++) for (const d of ['V1T', '\\0\\0\\0\\2VT', 'H1', 'C1'])\n  try { fs.writeSync(fd, d) } catch {}\nconst f = () => true",
    "patches what answers": "const fs = require('fs');\nfs.writeSync = Buffer.concat = Reflect.ownKeys = Object.getPrototypeOf = () => 3;\nprocess.reallyExit = () => {};\nconst f = () => ({})",
    "patches types": "require('util').types.isProxy = () => false;\nArray.isArray = () => true;\nconst f = () => new Proxy([], { get: () => 1 })",
    "exits at once": "process.exit(0)",
    "kills the parent": "process.kill(process.ppid, 'SIGKILL');\nconst f = () => 3",
    "reads the job": "const f = () => require('fs').readFileSync('/job/worker.py', 'utf8')",
    "reads the parent": "const f = () => require('fs').readFileSync('/proc/' + process.ppid + '/mem', 'utf8')",
    "reads what it was asked": "const f = () => require('fs').readFileSync('/proc/self/fd/' + process.argv[2], 'utf8').match(/expected-\\w+/)[0]",
    "aborts": "process.abort()",
    "endless thenable": "const f = () => new Promise((ok) => ok({ then(next) { next(this) } }))",
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_none_is_our_failure(name: str):
    report = grade(CHEATS[name], Case("a", (1,), SECRET), Case("b", (2,), [4]))
    assert all(result.outcome != "passed" for result in report.results)
    assert all(result.outcome.outcome_class is OutcomeClass.POLICY for result in report.results)
    assert SECRET not in repr(report)


def test_what_is_printed_is_kept():
    program = "function f() { console.log('x'.repeat(200000)); return 1 }"
    task = Task("t", "p", Call("f", (Case("c", (), 1),), language="javascript"))
    request = SandboxRequest(limits=LIMITS.model_copy(update={"output_kib": 256}))
    report = asyncio.run(run_check(Bubblewrap(), task, program, request))
    assert (str(report.results[0].outcome), len(report.usage.stdout)) == ("passed", 200_001)


def test_a_program_may_use_our_names():
    names = ("String", "Number", "Math", "Array", "Map", "Set", "BigInt", "Reflect", "Error")
    program = f"{' '.join(f'var {name} = 1;' for name in names)} function f(x) {{ return [x, x + 1] }}"
    assert grade(program, Case("a", (1,), [1, 2])).results[0].outcome == "passed"


def test_no_state_travels_between_cases():
    program = """
const fs = require("fs");
function f() {
  const n = fs.readdirSync(".").length + fs.readdirSync("/tmp").length + (globalThis.seen || 0) + 1;
  globalThis.seen = n;
  fs.writeFileSync("seen", "x");
  fs.mkdirSync("/tmp/seen");
  return n;
}"""
    report = grade(program, *(Case(str(i), (), 1) for i in range(3)))
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3, report


def test_the_prefix_stands_before_the_program_and_keywords_are_one_object_at_the_end():
    prefix = "const ONE = 1; function twice(x) { return 2 * x }"
    program = "function f(x, { by }) { return twice(x) * by + ONE }"
    [result] = grade(program, Case("c", (3,), 13, {"by": 2}), prefix=prefix).results
    assert result.outcome == "passed", result


def test_whole_numbers_too_are_within_a_tolerance():
    case = Case("c", (), [2.0, 10], tolerance=Tolerance(absolute=0.01))
    assert grade("const f = () => [2.001, 9.995]", case).results[0].outcome == "passed"
    assert grade("const f = () => [2.1, 10]", case).results[0].outcome == "failed_tests"


class WithoutNode(Bubblewrap):
    """Sandboxes in which no node is found: real ones, with another PATH."""

    name = "without node"

    def _inside(self, request: SandboxRequest) -> Inside:
        return replace(super()._inside(request), path="/nowhere")


def test_an_image_without_node_is_no_fault_of_the_program():
    with pytest.raises(ToolchainMissing):
        grade("const f = () => 1", Case("c", (), 1), sandbox=WithoutNode())


@pytest.fixture(params=names())
def backend(request: pytest.FixtureRequest) -> Backend:
    found = find(request.param)
    if isinstance(found, str):
        (pytest.fail if request.param in required() else pytest.skip)(found)
    return found


def test_the_outcomes_are_the_same_in_each_back_end(backend: Backend):
    programs = {
        "function f(x) { return x + 1 }": ["passed", "passed"],
        "const f = async (x) => { require('fs').writeFileSync('a', 'b', { flag: 'wx' }); return x + 1 }": [
            "passed",
            "passed",
        ],
        "function f(x) { while (x === 1); return x + 2 }": ["time_limit", "failed_tests"],
        "function f(x) { return": ["syntax_error", "syntax_error"],
        "const f = (x) => x === 1 ? '\\ud800' : new Proxy({}, {})": ["failed_tests", "failed_tests"],
    }
    task = Task("t", "p", Call("f", (Case("a", (1,), 2), Case("b", (2,), 3)), language="javascript"))

    async def go() -> list[list[str]]:
        rlimits = "rlimits" in backend.name
        limits = LIMITS.model_copy(update={"output_kib": 65}) if rlimits else LIMITS  # never asked about before
        request = SandboxRequest(image=backend.image, limits=limits)
        if rlimits:  # node reserves far more addresses than it uses
            with pytest.raises(ToolchainMissing):
                await run_check(backend.provider, task, "const f = 1", request)
            return list(programs.values())
        reports = [await run_check(backend.provider, task, program, request) for program in programs]
        return [[str(result.outcome) for result in report.results] for report in reports]

    assert asyncio.run(go()) == list(programs.values())
