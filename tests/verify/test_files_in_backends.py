# ruff: noqa: E501 - one program a line
"""SQL, files and systems are judged alike in each back-end that runs here."""

import asyncio

import pytest

from sandboxes.limits import Limits
from sandboxes.protocol import ProvisionFailed, SandboxRequest
from tests.sandboxes.conformance.backends import Backend, find, names, required
from transforms.sources.kinds import files, sql, state
from transforms.sources.kinds.trees import Item
from transforms.sources.task import Check, Task
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=3, cpu_time_s=3, memory_mib=192, processes=24, output_kib=64, file_mib=4, disk_mib=8)

ROWS = sql.Sql(
    (sql.Case("c", ((1, "a"), (2, None))),), "CREATE TABLE t(n, s); INSERT INTO t VALUES (2, NULL), (1, 'a')"
)
DONE = sql.Sql((sql.Case("c", ((9,),)),), "CREATE TABLE t(n); INSERT INTO t VALUES (1)", probe="SELECT n FROM t")
LEFT = files.Files(
    (
        files.Case(
            "c",
            (files.Artifact("out", "text", "in x", mode=0o640),),
            {"in": Item(b"in", 0o600), "l": Item(link="in")},
            argv=("x",),
        ),
    ),
    "bash",
)
BEFORE = {
    "etc/passwd": Item(b"root:x:0:0::/:/bin/sh\n"),
    "etc/systemd/system/a.service": Item(b"[Service]\nUser=root\n"),
}
KEPT = state.State(
    tuple(
        state.Case(name, probe)
        for name, probe in {
            "file": state.FileProbe("etc/f", "matches", "^9$"),
            "mode": state.PermissionProbe("etc/f", 0o4751),
            "user": state.UserProbe("web", 5),
            "service": state.ServiceProbe("a.service", True),
        }.items()
    ),
    BEFORE,
)
SHUT = state.State(
    (
        state.Case("mode", state.PermissionProbe("etc/passwd", 0)),
        state.Case("text", state.FileProbe("etc/passwd", "contains", "root")),
    ),
    BEFORE,
)
SERVED = state.State(
    (
        state.Case(
            "port", state.PortProbe(8080, ("python3", "-I", "-S", "-c", "exec(open('srv').read())"), "pong", "ping")
        ),
    ),
    BEFORE,
)

PROGRAMS: dict[str, tuple[Check, str, list[str]]] = {
    "query": (ROWS, "SELECT * FROM t", ["passed"]),
    "wrong type": (ROWS, "SELECT CAST(n AS TEXT), s FROM t", ["failed_tests"]),
    "no SQL": (ROWS, "SELEKT", ["syntax_error"]),
    "endless query": (ROWS, "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c", ["time_limit"]),
    "endless rows": (ROWS, "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x FROM c", ["output_limit"]),
    "change": (DONE, "UPDATE t SET n = 9", ["passed"]),
    "shadow": (DONE, "CREATE TEMP TABLE t AS SELECT 9 AS n", ["failed_tests"]),
    "view": (DONE, "DROP TABLE t; CREATE VIEW t AS SELECT 9 AS n", ["failed_tests"]),
    "file": (LEFT, 'echo "$(cat l) $1" >out; chmod 640 out', ["passed"]),
    "shut file": (LEFT, 'echo "$(cat l) $1" >out; chmod 640 out; mkdir d; chmod 0 d in', ["passed"]),
    "no file": (LEFT, "true", ["failed_tests"]),
    "link": (LEFT, "ln -s /etc/passwd out", ["policy_violation"]),
    "pipe": (LEFT, "mkfifo out", ["policy_violation"]),
    "daemon": (LEFT, "(sleep 0.5; echo in x >out; chmod 640 out) </dev/null >/dev/null 2>&1 & disown", ["failed_tests"]),
    "sparse": (LEFT, "truncate -s 4M $(seq 100)", ["policy_violation"]),
    "loop": (LEFT, "while :; do :; done", ["time_limit"]),
    "system": (KEPT, "cd $ROOT; echo 9 >etc/f; chmod 4751 etc/f; echo web:x:5:5::/:/bin/sh >>etc/passwd; cd etc/systemd/system; mkdir x.wants; ln -s ../a.service x.wants/", ["passed"] * 4),
    "nothing done": (KEPT, "true", ["failed_tests"] * 4),
    "shut passwd": (SHUT, "chmod 0 $ROOT/etc/passwd", ["passed"] * 2),
    "no server": (SERVED, "true", ["failed_tests"]),
    "server": (SERVED, "printf 'import socket\\ns = socket.create_server((\"127.0.0.1\", 8080))\\nc, _ = s.accept()\\nc.recv(9)\\nc.send(b\"pong\")' >$ROOT/srv", ["passed"]),
}  # fmt: skip


@pytest.fixture(params=names())
def backend(request: pytest.FixtureRequest) -> Backend:
    found = find(request.param)
    if isinstance(found, str):
        (pytest.fail if request.param in required() else pytest.skip)(found)
    return found


@pytest.mark.slow
def test_programs_get_the_same_outcomes(backend: Backend):
    async def verdict(check: Check, program: str) -> list[str]:
        request = SandboxRequest(image=backend.image, limits=LIMITS)
        try:
            report = await run_check(backend.provider, Task("t", "p", check), program, request)
        except ProvisionFailed as error:
            return [error.message]
        return [str(result.outcome) for result in report.results]

    async def go() -> dict[str, list[str]]:
        return {name: await verdict(check, program) for name, (check, program, _) in PROGRAMS.items()}

    expected = {name: outcomes for name, (_, _, outcomes) in PROGRAMS.items()}
    if backend.name.startswith("subprocess"):  # nothing may listen there, and no program is blamed for that
        refused = ["programs cannot listen on the loopback interface of this sandbox"]
        expected |= {"server": refused, "no server": refused}
    assert asyncio.run(go()) == expected
