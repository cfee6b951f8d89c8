# ruff: noqa: E501 - one query a line
import asyncio
import sqlite3

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport
from transforms.sources.kinds.sql import Case, Row, Sql
from transforms.sources.kinds.tolerance import Tolerance
from transforms.sources.task import Task, TaskBroken
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=2, cpu_time_s=2, memory_mib=128, output_kib=64)
STAFF = """
CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, unit TEXT, pay REAL);
INSERT INTO staff VALUES (1, 'Ada', 'r', 10.5), (2, 'Bob', 's', 8.0), (3, 'Cyd', 'r', NULL), (4, 'Bob', NULL, 8.0);
"""
NAMES: tuple[Row, ...] = (("Ada",), ("Bob",), ("Bob",), ("Cyd",))


def grade(query: str, check: Sql, limits: Limits = LIMITS) -> CaseReport:
    return asyncio.run(run_check(Bubblewrap(), Task("t", "p", check), query, SandboxRequest(limits=limits)))


def select(*expected: Row, setup: str = STAFF, **fields: object) -> Sql:
    return Sql((Case("c", tuple(expected)),), setup, **fields)  # ty: ignore[invalid-argument-type]


def verdict(query: str, check: Sql, limits: Limits = LIMITS) -> tuple[str, str]:
    (result,) = grade(query, check, limits).results
    return str(result.outcome), result.message


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name FROM staff",
        "SELECT name FROM staff ORDER BY pay DESC;",
        "-- all names\nselect s.name /* twice Bob */ from staff as s; -- done\n",
        "WITH n AS (SELECT name FROM staff) SELECT * FROM n;;",
        "CREATE TEMP TABLE n AS SELECT name FROM staff; SELECT name AS whatever FROM n",
        "PRAGMA foreign_keys = ON; SELECT name FROM staff",
        "CREATE TEMP TABLE staff AS SELECT name FROM main.staff; SELECT name FROM temp.staff; DROP TABLE temp.staff",
        "\ufeffSELECT name FROM staff",
        "SELECT name FROM staff WHERE name <> ';' AND name <> '\U0001f388'",
        "VALUES ('Ada'), ('Bob'), ('Bob'), ('Cyd')",
        "CREATE TEMP TABLE n(name); INSERT INTO n SELECT name FROM staff; UPDATE n SET name = name; SELECT name FROM n",
        "ATTACH ':memory:' AS m; CREATE TABLE m.n AS SELECT name FROM staff; SELECT name FROM m.n",
    ],
)
def test_queries_that_give_the_rows_pass(query: str):
    assert verdict(query, select(*NAMES)) == ("passed", "")


@pytest.mark.parametrize(
    ("query", "outcome", "message"),
    [
        ("SELECT DISTINCT name FROM staff", "failed_tests", "rows are missing: 3 came"),
        ("SELECT name FROM staff UNION ALL SELECT 'Bob'", "failed_tests", "a row that must not be there, or not so often"),
        ("SELECT name FROM staff WHERE 0", "failed_tests", "rows are missing: 0 came"),
        ("SELECT lower(name) FROM staff", "failed_tests", "a row that must not be there, or not so often"),
        ("SELECT CAST(name AS BLOB) FROM staff", "failed_tests", "a row that must not be there, or not so often"),
        ("SELECT name, name FROM staff", "failed_tests", "wrong number of columns: 2"),
        ("CREATE TEMP TABLE n(name)", "failed_tests", "no statement gives rows"),
        ("SELECT name FROM staff; DROP TABLE staff", "runtime_error", "not authorized"),
        ("SELECT name FROM staff; ALTER TABLE staff RENAME TO s", "runtime_error", "not authorized"),
        ("SELECT name FROM staff; CREATE INDEX i ON staff(name)", "runtime_error", "not authorized"),
        ("INSERT INTO staff(name) SELECT NULL WHERE 0; SELECT name FROM staff", "runtime_error", "not authorized"),
        ("BEGIN; DELETE FROM staff; ROLLBACK; SELECT name FROM staff", "runtime_error", "not authorized"),
        ("CREATE TEMP TABLE n(a); CREATE TEMP TRIGGER t AFTER INSERT ON n BEGIN UPDATE main.staff SET pay = 0; END; INSERT INTO n VALUES (1); SELECT name FROM staff", "runtime_error", ""),
        ("", "failed_tests", "no statement gives rows"),
        ("-- nothing", "failed_tests", "no statement gives rows"),
        ("SELEC name FROM staff", "syntax_error", 'near "SELEC": syntax error'),
        ("SELECT name FROM", "syntax_error", "incomplete input"),
        ("SELECT 'Ada", "syntax_error", "unrecognized token"),
        ("SELECT name FROM staff\0", "syntax_error", "null character"),
        ("SELECT '\ud800'", "syntax_error", "surrogates not allowed"),
        ("SELECT name FROM stuff", "runtime_error", "no such table: stuff"),
        ("SELECT name FROM staff WHERE id = ?", "runtime_error", "Incorrect number of bindings"),
        ("SELECT load_extension('/tmp/x')", "runtime_error", "not authorized"),
        ("SELECT writefile('x', 'y')", "runtime_error", "no such function: writefile"),
        ("SELECT readfile('/etc/passwd')", "runtime_error", "no such function: readfile"),
        ("ATTACH '/etc/passwd' AS p; SELECT * FROM p.x", "runtime_error", ""),
        ("SELECT name FROM staff; SELECT 1", "failed_tests", "a row that must not be there, or not so often"),
    ],
)  # fmt: skip
def test_others_do_not_and_it_is_said_why(query: str, outcome: str, message: str):
    came, why = verdict(query, select(*NAMES))
    assert came == outcome
    assert message in why


@pytest.mark.parametrize(
    ("query", "expected", "passes"),
    [
        ("SELECT 1", [(1,)], True),
        ("SELECT 1.0", [(1,)], False),
        ("SELECT '1'", [(1,)], False),
        ("SELECT 1", [(1.0,)], False),
        ("SELECT TRUE", [(1,)], True),
        ("SELECT NULL", [(None,)], True),
        ("SELECT ''", [(None,)], False),
        ("SELECT 0", [(None,)], False),
        ("SELECT x'00ff'", [(b"\0\xff",)], True),
        ("SELECT 'ab'", [(b"ab",)], False),
        ("SELECT 9e999", [(float("inf"),)], True),
        ("SELECT -0.0", [(0.0,)], True),
        ("SELECT CAST(x'ff' AS TEXT)", [("\udcff",)], True),
        ("SELECT 0.1 + 0.2", [(0.3,)], False),
        ("SELECT 9223372036854775807", [(2**63 - 1,)], True),
        ("SELECT 1 WHERE 0", [], True),
        ("SELECT 1", [], False),
        ("VALUES (1, 'a'), (1, 'a')", [(1, "a")], False),
        ("VALUES (1, 'a')", [(1, "a"), (1, "a")], False),
    ],
)
def test_types_nulls_and_duplicates_count(query: str, expected: list[Row], passes: bool):
    assert (verdict(query, select(*expected))[0] == "passed") is passes


def test_order_counts_only_when_asked():
    ascending, descending = (f"SELECT name FROM staff ORDER BY name {way}" for way in ("ASC", "DESC"))
    ordered = select(*NAMES, ordered=True)
    assert verdict(ascending, ordered)[0] == "passed"
    assert verdict(descending, ordered) == ("failed_tests", "row 1 is wrong")
    assert verdict(f"{ascending} LIMIT 3", ordered) == ("failed_tests", "rows are missing: 3 came")
    assert verdict(f"SELECT * FROM ({ascending}) UNION ALL SELECT 'Zoe'", ordered)[0] == "failed_tests"
    assert verdict(descending, select(*NAMES))[0] == "passed"
    assert verdict("VALUES (1), (2.0)", select((1,), (2,), ordered=True)) == ("failed_tests", "row 2 is wrong")


def test_names_of_columns_count_only_when_given():
    check = select((1, 2), columns=("a", "b"))
    assert verdict("SELECT 1 AS A, 2 AS b", check)[0] == "passed"
    assert verdict("SELECT 2 AS b, 1 AS a", check) == ("failed_tests", "wrong column names")
    assert verdict("SELECT 1, 2", check)[0] == "failed_tests"


def test_floats_may_be_off_by_the_tolerance_and_other_types_may_not():
    check = select((0.3, 1), (2e6, 2), tolerance=Tolerance(1e-6, 1e-6))
    assert verdict("VALUES (0.1 + 0.2, 1), (2000001.0, 2)", check)[0] == "passed"
    assert verdict("VALUES (0.300002, 1), (2e6, 2)", check)[0] == "failed_tests"
    assert verdict("VALUES (0.3, 1), (2000003.0, 2)", check)[0] == "failed_tests"
    assert verdict("VALUES (0.3, 1.0), (2e6, 2)", check)[0] == "failed_tests"
    assert verdict("VALUES (0.3, 1), (2000000, 2)", check)[0] == "failed_tests"
    assert verdict("VALUES (9e999, 1), (2e6, 2)", check)[0] == "failed_tests"


def test_rows_that_a_tolerance_lets_sort_otherwise_are_paired_all_the_same():
    # Sorted, 0.3 comes before 0.1 + 0.2; so the rows that belong together do not meet in turn.
    check = select((0.3, 5.0), (0.1 + 0.2, 1.0), tolerance=Tolerance(1e-9))
    assert verdict("VALUES (0.1 + 0.2, 5.0), (0.3, 1.0)", check)[0] == "passed"
    assert verdict("VALUES (0.1 + 0.2, 5.0), (0.3, 5.0)", check)[0] == "failed_tests"
    assert verdict("VALUES (0.3, 5.0), (0.3, 5.0), (0.3, 1.0)", check)[0] == "failed_tests"


def test_each_case_has_a_database_of_its_own():
    check = Sql(
        (Case("1", ((1,),)), Case("2", ((2,),), setup="INSERT INTO t VALUES (0)"), Case("3", ((1,),))),
        "CREATE TABLE t(a); INSERT INTO t VALUES (0)",
    )
    report = grade(
        "CREATE TEMP TABLE n AS SELECT a FROM t; INSERT INTO n VALUES (9); SELECT count(*) - 1 FROM n", check
    )
    assert [str(result.outcome) for result in report.results] == ["passed"] * 3


RAISE = select(
    (1, "Ada", 11.5), (2, "Bob", 8.0), (3, "Cyd", None), probe="SELECT id, name, pay FROM staff WHERE id < 4"
)


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE staff SET pay = pay + 1 WHERE name = 'Ada'",
        "BEGIN; UPDATE staff SET pay = pay + 1 WHERE name = 'Ada'; COMMIT;",
        "SELECT * FROM staff; UPDATE staff SET pay = pay + 1 WHERE name = 'Ada' RETURNING id",
        "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, unit TEXT, pay REAL); INSERT INTO n SELECT * FROM staff; DROP TABLE staff; ALTER TABLE n RENAME TO staff; UPDATE staff SET pay = 11.5 WHERE id = 1; VACUUM; ANALYZE",
        "CREATE TRIGGER t AFTER INSERT ON staff BEGIN UPDATE staff SET pay = 11.5 WHERE id = 1; DELETE FROM staff WHERE id = 9; END; INSERT INTO staff(id) VALUES (9); DROP TRIGGER t",
        "CREATE VIEW v AS SELECT id FROM staff WHERE name = 'Ada'; CREATE TABLE kept(a); UPDATE staff SET pay = 11.5 WHERE id IN v",
    ],
)  # fmt: skip
def test_a_probe_looks_at_what_the_submission_did(script: str):
    assert verdict(script, RAISE) == ("passed", "")


@pytest.mark.parametrize(
    ("script", "outcome", "message"),
    [
        ("SELECT 1, 'Ada', 11.5", "failed_tests", "a row"),
        ("CREATE TEMP TABLE staff AS SELECT id, name, CASE id WHEN 1 THEN 11.5 ELSE pay END AS pay FROM main.staff", "failed_tests", "a row"),
        ("CREATE TEMP VIEW staff AS SELECT id, name, CASE id WHEN 1 THEN 11.5 ELSE pay END AS pay FROM main.staff", "failed_tests", "a row"),
        ("ATTACH 'x.db' AS temp2; CREATE TABLE temp2.staff AS SELECT 1 AS id, 'Ada' AS name, 11.5 AS pay", "failed_tests", "a row"),
        ("BEGIN; UPDATE staff SET pay = pay + 1 WHERE name = 'Ada'", "failed_tests", "a row"),
        ("ALTER TABLE staff RENAME TO s; CREATE VIEW Staff AS SELECT id, name, CASE id WHEN 1 THEN 11.5 ELSE pay END AS pay FROM s", "failed_tests", "'staff' was a table and is a view now"),
        ("DROP TABLE staff; CREATE VIRTUAL TABLE staff USING fts5(id, name, pay)", "failed_tests", "'staff' was a table and is a virtual table now"),
        ("PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'x'", "runtime_error", "not authorized"),
        ("SELECT * FROM pragma_writable_schema(1)", "runtime_error", ""),
        ("DROP TABLE staff", "failed_tests", "'staff' is not there any more"),
        ("CREATE TABLE n AS SELECT * FROM staff; DROP TABLE staff; ALTER TABLE n RENAME TO staff; UPDATE staff SET pay = 11.5 WHERE id = 1", "failed_tests", "'staff' is defined otherwise than before"),
        ("UPDATE staff SET pay = 11.5 WHERE id = 1; CREATE UNIQUE INDEX i ON staff(id)", "failed_tests", "'staff' has an index that it had not"),
        ("CREATE TRIGGER t AFTER UPDATE ON staff BEGIN SELECT 1; END; UPDATE staff SET pay = 11.5 WHERE id = 1", "failed_tests", "'staff' has a trigger that it had not"),
        ("CREATE TABLE x(", "syntax_error", "incomplete input"),
        ("INSERT INTO staff(id) VALUES (1)", "runtime_error", "UNIQUE constraint failed"),
    ],
)  # fmt: skip
def test_nothing_but_the_database_itself_reaches_the_probe(script: str, outcome: str, message: str):
    came, why = verdict(script, RAISE)
    assert came == outcome
    assert message in why


TWO = "CREATE TABLE a(x); CREATE TABLE b(x); INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (1), (2); CREATE VIEW v AS SELECT x FROM a;"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("DELETE FROM a WHERE x = 1", ""),
        ("DELETE FROM a WHERE x = 1; DELETE FROM b; INSERT INTO b VALUES (2), (1)", ""),
        ("DELETE FROM a WHERE x = 1; DELETE FROM b WHERE x = 1", "'b' holds other rows than before"),
        ("DELETE FROM a WHERE x = 1; UPDATE b SET x = x + 0.0", "'b' holds other rows than before"),
        ("DELETE FROM a WHERE x = 1; INSERT INTO b VALUES (1)", "'b' holds other rows than before"),
        ("DROP VIEW v; CREATE VIEW v AS SELECT 2 AS x", "'v' is defined otherwise than before"),
    ],
)  # fmt: skip
def test_only_the_tables_that_a_task_names_may_change(script: str, message: str):
    check = select((2,), setup=TWO, probe="SELECT x FROM v", changes=("A",))
    assert verdict(script, check) == ("failed_tests" if message else "passed", message)


def test_a_task_that_changes_rows_may_ask_for_what_the_change_returns():
    check = select((1,), setup=TWO, changes=("a",))
    assert verdict("DELETE FROM a WHERE x < 2 RETURNING x", check) == ("passed", "")
    assert verdict("DELETE FROM b; SELECT 1", check) == ("failed_tests", "'b' holds other rows than before")


def test_a_task_may_ask_for_another_definition():
    setup = "CREATE TABLE t(a INTEGER); INSERT INTO t VALUES (1); CREATE INDEX i ON t(a)"
    check = select((1, "x"), setup=setup, probe="SELECT a, b FROM t", redefines=("t",))
    assert verdict("ALTER TABLE t ADD COLUMN b DEFAULT 'x'; DROP INDEX i", check) == ("passed", "")
    asked = select((1, "x"), setup=setup, probe="SELECT a, 'x' FROM t")
    assert verdict("ALTER TABLE t ADD COLUMN b DEFAULT 'x'", asked)[0] == "failed_tests"
    assert verdict("DROP INDEX i", asked) == ("failed_tests", "'i' is not there any more")


def test_a_table_that_the_setup_lacks_cannot_be_named():
    with pytest.raises(TaskBroken, match="no such table: c, which `changes` names"):
        grade("SELECT 1", select((1,), setup=TWO, changes=("c",)))


@pytest.mark.parametrize(
    ("query", "passes"),
    [
        ("SELECT id, pay FROM t", False),
        ("SELECT id, pay FROM t ORDER BY id", True),
        ("SELECT id, pay FROM t GROUP BY id", True),  # SQLite sorts to group, from either end
        ("VALUES (1, 1.5), (2, 2.5)", True),
        ("SELECT * FROM sorted", True),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2) SELECT n, n + 0.5 FROM c", True),
    ],
)  # fmt: skip
def test_an_order_that_nothing_asks_for_is_none(query: str, passes: bool):
    setup = "CREATE TABLE t(id, pay); INSERT INTO t VALUES (1, 1.5), (2, 2.5); CREATE VIEW sorted AS SELECT * FROM t ORDER BY id"
    check = select((1, 1.5), (2, 2.5), setup=setup, ordered=True)
    wanted = ("passed", "") if passes else ("failed_tests", "nothing asks for the order that the rows came in")
    assert verdict(query, check) == wanted
    assert verdict(query, select((1, 1.5), (2, 2.5), setup=setup)) == ("passed", "")


def test_what_is_searched_by_tables_of_its_own_can_be_asked():
    setup = "CREATE VIRTUAL TABLE f USING fts5(a); INSERT INTO f VALUES ('one two'); CREATE VIRTUAL TABLE r USING rtree(id, x0, x1); INSERT INTO r VALUES (7, 0, 1)"
    query = "CREATE TEMP TABLE n(a); SELECT a, id FROM f, r WHERE f MATCH 'two' AND x0 < 1"
    assert verdict(query, select(("one two", 7), setup=setup)) == ("passed", "")


def test_a_view_over_a_probed_table_cannot_run_for_ever():
    script = "DROP TABLE staff; CREATE TABLE staff(id, name, pay AS (1))"
    assert verdict(script, RAISE)[0] == "failed_tests"
    loop = "CREATE VIEW v AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) AS n FROM c"
    assert verdict(loop, select((1,), probe="SELECT n FROM v"))[0] == "time_limit"


def test_a_probe_may_be_a_script_and_a_case_may_have_its_own():
    check = Sql(
        (
            Case("kept", ((1,),)),
            Case("refused", ((1,),), probe="INSERT OR IGNORE INTO t VALUES (1); SELECT count(*) FROM t"),
        ),
        "CREATE TABLE t(a)",
        probe="SELECT a FROM t",
        redefines=("T",),
    )
    unique = "DROP TABLE t; CREATE TABLE t(a UNIQUE); INSERT INTO t VALUES (1)"
    assert [str(result.outcome) for result in grade(unique, check).results] == ["passed", "passed"]
    plain = "INSERT INTO t VALUES (1)"
    assert [str(result.outcome) for result in grade(plain, check).results] == ["passed", "failed_tests"]


@pytest.mark.parametrize(
    ("query", "outcome"),
    [
        ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c", "time_limit"),
        ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c", "output_limit"),
        ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 1000000) SELECT x FROM c", "output_limit"),
        ("SELECT hex(zeroblob(40000))", "output_limit"),
        ("SELECT length(group_concat(hex(zeroblob(5000000)))) FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15))", "memory_limit"),
    ],
)  # fmt: skip
def test_limits(query: str, outcome: str):
    assert verdict(query, select((1,)))[0] == outcome


def test_a_setup_that_fails_is_the_tasks_fault_and_no_verdict():
    with pytest.raises(TaskBroken, match=r"case 'c': `setup` fails: no such table: nowhere"):
        grade("SELECT 1", select((1,), setup="INSERT INTO nowhere VALUES (1)"))


def test_a_message_says_what_came_and_nothing_of_what_was_expected():
    (result,) = grade("SELECT 'came'", select(("secret",))).results
    assert result.got == "('came',)"
    assert result.expected_type == "rows"
    assert "secret" not in result.message


def test_the_machine_that_runs_the_tests_agrees_about_the_rows():
    database = sqlite3.connect(":memory:")
    database.executescript(STAFF)
    assert sorted(database.execute("SELECT name FROM staff")) == list(NAMES)
