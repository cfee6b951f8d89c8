"""What the corpus is made of: programs as data, the tasks they are given, and how many are run at once."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from tests.sandboxes.conformance.backends import Backend
from transforms.episode import CaseReport
from transforms.grade.outcomes import Outcome, OutcomeClass
from transforms.grade.rubric import outcome_of
from transforms.sources.kinds.call import Call, Case
from transforms.sources.task import Check, Task
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=1.5, cpu_time_s=1.5, memory_mib=128, processes=24, output_kib=64, file_mib=4, disk_mib=8)
SECRET = "expected-7c1f"  # what the first case of a cheat must return: nothing in a sandbox may know it
AT_ONCE = 2
ANY = frozenset(map(str, Outcome)) - {"passed"}


@dataclass(frozen=True, slots=True)
class Program:
    """One program, and every outcome that its first case may have: `passed` alone for an honest one."""

    name: str
    source: str
    outcomes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A program and what it is asked."""

    program: Program
    check: Check


def written(text: str) -> list[Program]:
    """Programs one after the other, each below a line `### name -> outcome outcome`; without an arrow it passes."""
    found = []
    for part in text.split("\n### ")[1:]:
        head, _, source = part.partition("\n")
        name, _, outcomes = head.partition(" -> ")
        found.append(Program(name, source, frozenset(outcomes.split() or ["passed"])))
    return found


def generated(outcomes: str, sources: Mapping[str, str]) -> list[Program]:
    """Programs too odd to be written down."""
    return [Program(name, source, frozenset(outcomes.split())) for name, source in sources.items()]


def call(entry_point: str, *cases: tuple[tuple[object, ...], object]) -> Call:
    """A check of calls: arguments and what they must return."""
    return Call(entry_point, tuple(Case(f"case {i}", args, value) for i, (args, value) in enumerate(cases)))


def returned(name: str, table: Mapping[str, tuple[str, object]], outcomes: frozenset[str]) -> Asked:
    """One program that returns one expression of a table a case, and what each must be."""
    expressions = ",\n".join(f"lambda: {expression}" for expression, _ in table.values())
    cases = (Case(name, (i,), value) for i, (name, (_, value)) in enumerate(table.items()))
    program = Program(name, f"TABLE = [{expressions}]\ndef f(i): return TABLE[i]()", outcomes)
    return Asked(program, Call("f", tuple(cases)))


def ask(check: Check, *tables: Iterable[Program]) -> list[Asked]:
    """Every program of some tables, asked the same; one case is enough for those that may use up their time."""
    first = replace(check, cases=check.cases[:1])  # ty: ignore[invalid-argument-type] - all checks are dataclasses
    return [
        Asked(program, first if "time_limit" in program.outcomes and program.outcomes != ANY else check)
        for table in tables
        for program in table
    ]


async def run_all(backend: Backend, asked: Sequence[Asked]) -> list[CaseReport]:
    """Run programs, few at once; a report each."""
    places = asyncio.Semaphore(AT_ONCE)
    request = SandboxRequest(image=backend.image, limits=LIMITS)

    async def one(program: Program, check: Check) -> CaseReport:
        async with places:
            return await run_check(backend.provider, Task("t", "p", check), program.source, request)

    return list(await asyncio.gather(*(one(each.program, each.check) for each in asked)))


def complaint(asked: Asked, report: CaseReport) -> str | None:
    """What is wrong with a report; None when it is right.

    An honest program passes every case. A cheat fails the first case as it should, is not paid, and neither learns what
    is expected nor looks like a failure of ours.
    """
    outcomes = [str(result.outcome) for result in report.results]
    seen = f"{asked.program.name}: {outcomes[:3]} {report.results[0].message}"
    if len(outcomes) != len(asked.check.cases):
        return f"{seen}: not one result a case"
    if asked.program.outcomes == {"passed"}:
        wrong = [
            f"{result.name}: {result.outcome} {result.message}"
            for result in report.results
            if result.outcome != "passed"
        ]
        return f"{asked.program.name}: {wrong}" if wrong else None
    total = outcome_of(report.results)
    if total is Outcome.PASSED or not all(
        result.outcome.outcome_class is OutcomeClass.POLICY for result in report.results
    ):
        return f"{seen}: paid, or no fault of the program"
    if isinstance(asked.check, Call) and SECRET in repr(report):
        return f"{seen}: it knows the secret"
    return None if outcomes[0] in asked.program.outcomes else f"{seen}: none of {sorted(asked.program.outcomes)}"
