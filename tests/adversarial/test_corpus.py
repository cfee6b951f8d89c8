# ruff: noqa: E501 - one database a line
"""The corpus in every back-end: no cheat is paid, no honest program is refused, nothing travels between cases.

Here, everything in bubblewrap and a sample in the others; with `slow`, everything everywhere.
"""

import asyncio
import os
from dataclasses import replace

import pytest

from tests.adversarial import state
from tests.adversarial.cheats import descriptors, exceptions, objects, processes
from tests.adversarial.cheats import sql as sql_cheats
from tests.adversarial.cheats import stdio as stdio_cheats
from tests.adversarial.cheats import values as wrong_values
from tests.adversarial.corpus import ANY, SECRET, Asked, ask, call, complaint, generated, returned, run_all
from tests.adversarial.honest import sql as sql_honest
from tests.adversarial.honest import stdio as stdio_honest
from tests.adversarial.honest import styles, system
from tests.adversarial.honest import values as right_values
from tests.adversarial.test_call_cheats import CHEATS
from tests.sandboxes.conformance.backends import Backend, find, names, required
from tests.verify.test_languages import UNUSABLE
from transforms.sources.kinds.sql import Case as Database
from transforms.sources.kinds.sql import Sql
from transforms.sources.kinds.stdio import Case, Stdio

SECRETS = call("f", ((1,), SECRET), ((2,), 3), ((3,), [4]))
PLUS_ONE = call("f", ((1,), 2), ((2,), 3))
ONCE = call("f", *(((i,), 1) for i in range(3)))
SUM = (Case("three", "3\n1 2 3\n", "6\n"), Case("two", "2\n-20 10\n", "-10\n"))
STAFF = "CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, unit TEXT, pay REAL); INSERT INTO staff VALUES (1, 'Ada', 'r', 1.0), (2, 'Bob', NULL, 9.0);"
TOP = Sql(
    (
        Database(
            "two", (("r", 5.0), ("s", 2.0)), "INSERT INTO staff VALUES (3, 'Cyd', 'r', 5.0), (4, 'Dan', 's', 2.0)"
        ),
        Database("one", (("r", 1.0),)),
    ),
    STAFF,
)
NAMED = Sql(
    (Database("view", ((9.0,),)), Database("write", ((1,),), probe="UPDATE staff SET pay = 0; SELECT count(*) FROM named")),
    "CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, pay REAL); INSERT INTO staff VALUES (1, 'Ada', 1.0), (2, 'Bob', 9.0);"
    "CREATE VIEW named AS SELECT id, name, pay FROM staff WHERE name = 'bob'; CREATE TABLE log(at); INSERT INTO log VALUES (5)",
    "SELECT sum(pay) FROM named",
    changes=("staff",),
)  # fmt: skip

TABLES: dict[str, list[Asked]] = {
    "cheats: first": ask(SECRETS, generated(" ".join(ANY), CHEATS)),
    "cheats: objects": ask(SECRETS, objects.OBJECTS),
    "cheats: exceptions": ask(SECRETS, exceptions.EXCEPTIONS),
    "cheats: descriptors": ask(SECRETS, descriptors.DESCRIPTORS),
    "cheats: memory": ask(SECRETS, descriptors.MEMORY),
    "cheats: processes": ask(SECRETS, processes.PROCESSES),
    "cheats: kernel": ask(SECRETS, processes.KERNEL),
    "cheats: sources": ask(PLUS_ONE, wrong_values.REFUSED),
    "state": ask(ONCE, state.STATE, state.SHARED),
    "honest: styles": ask(PLUS_ONE, styles.STYLES, right_values.ODD_SOURCES),
    "honest: system": ask(PLUS_ONE, system.SYSTEM, system.WITH_SEMAPHORES),
    "cheats: queries": ask(TOP, sql_cheats.QUERIES),
    "cheats: scripts": ask(NAMED, sql_cheats.SCRIPTS),
    "honest: queries": ask(TOP, sql_honest.QUERIES),
    "honest: scripts": ask(NAMED, sql_honest.SCRIPTS),
    "honest: values": [returned("values", right_values.RETURNED, frozenset({"passed"}))],
}
for language, programs in {"python": stdio_honest.PYTHON, **stdio_honest.OTHERS}.items():
    TABLES[f"honest: {language}"] = ask(Stdio(SUM, language), programs)
for language, programs in stdio_cheats.CHEATS.items():
    TABLES[f"cheats: {language}"] = ask(Stdio(SUM, language), programs)

_NO_MODES = "its kernel changes no modes of pipes, which belong to the sandbox's trusted user"
_NO_SHM = "multiprocessing needs semaphores in /dev/shm: see the weaknesses of the back-end"
# (back-end, or "" for all; program) -> why it is refused. Each must really be: a pass is a failure too.
REFUSED: dict[tuple[str, str], str] = {
    ("gvisor", "/dev/stdin"): _NO_MODES,
    ("gvisor", "/dev/stdin, and exit in a callback"): _NO_MODES,
    ("gvisor", "who is told of the standard streams"): "its kernel says that somebody is from the start",
    **{
        (backend, program.name): _NO_SHM
        for backend in names()
        if backend.startswith("subprocess")
        for program in system.WITH_SEMAPHORES
    },
}  # fmt: skip
# (back-end, program) that may take all its time there, where a fork is slow, before it fails otherwise.
SLOW = {("gvisor", "daemons by the dozen")}
BUBBLEWRAP, *OTHERS = names()
SAMPLE = 40  # one program in so many, where not all are run
# One in so many in the back-ends that take long to make a sandbox. Before a release: HEADRACE_WHOLE=1.
FEWER = 1 if os.environ.get("HEADRACE_WHOLE") else 8


def found(name: str) -> Backend:
    backend = find(name)
    if isinstance(backend, str):
        (pytest.fail if name in required() else pytest.skip)(backend)
    return backend


def wrong(backend: Backend, asked: list[Asked]) -> list[str]:
    """What is not as it should be, of programs and of those that are known to be refused."""
    reports = asyncio.run(run_all(backend, asked))
    complaints = []
    for each, report in zip(asked, reports, strict=True):
        slow = {"time_limit"} if (backend.name, each.program.name) in SLOW else set()
        program = replace(each.program, outcomes=each.program.outcomes | slow)
        said = complaint(replace(each, program=program), report)
        known = ("", each.program.name) in REFUSED or (backend.name, each.program.name) in REFUSED
        if known and said is None:
            complaints.append(f"{each.program.name}: passes now, so it is no more to be listed in REFUSED")
        if said is not None and not known:
            complaints.append(said)
    return complaints


def check_all(name: str, asked: list[Asked]) -> None:
    able = [each for each in asked if getattr(each.check, "language", None) not in UNUSABLE.get(name, ())]
    backend = found(name)
    assert wrong(backend, able) == []
    assert wrong(backend, ask(PLUS_ONE, styles.STYLES[:1])) == [], "the next program is not as well off"


@pytest.mark.parametrize("table", [table for table in TABLES if table != "cheats: first"])  # for which see there
def test_programs_get_what_they_deserve(table: str):
    check_all(BUBBLEWRAP, TABLES[table])


@pytest.mark.parametrize("name", OTHERS)
def test_some_do_in_every_back_end(name: str):
    check_all(name, [each for asked in TABLES.values() for each in asked][::SAMPLE])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("table", TABLES)
def test_all_do_in_every_back_end(table: str, name: str):
    check_all(name, TABLES[table][::FEWER])


@pytest.mark.parametrize("name", [BUBBLEWRAP, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_what_is_no_plain_data_is_a_wrong_answer(name: str):
    table = wrong_values.NOT_PLAIN
    (report,) = asyncio.run(run_all(found(name), [returned("values", table, ANY)]))
    refused = {result.name for result in report.results if result.outcome == "failed_tests"}
    assert set(table) - refused == set()


def test_channels_that_are_open_are_known():
    """Each program still finds what the one before left: else it belongs among those that must not."""
    asked = ask(ONCE, state.OPEN)
    reports = asyncio.run(run_all(found(BUBBLEWRAP), asked))
    paired = zip(asked, reports, strict=True)
    closed = [each.program.name for each, report in paired if report.results[1].outcome == "passed"]
    assert closed == []


def test_nothing_of_earlier_cases_is_left_in_memory():
    pad = "." * 5000
    cases = [((f"{pad}input[={i}]",), ([], f"answer[={i}]", pad)) for i in range(3)]
    (report,) = asyncio.run(run_all(found(BUBBLEWRAP), ask(call("f", *cases), state.MEMORY)))
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3


def test_the_corpus_is_as_large_as_it_says():
    programs = [each.program for asked in TABLES.values() for each in asked]
    carriers = [*state.STATE, *state.SHARED]
    honest = [program for program in programs if program.outcomes == {"passed"} and program not in carriers]
    assert len(honest) + len(right_values.RETURNED) > 180
    assert len(programs) - len(honest) - len(carriers) + len(wrong_values.NOT_PLAIN) > 300
    for asked in TABLES.values():
        assert len({each.program.name for each in asked}) == len(asked)
