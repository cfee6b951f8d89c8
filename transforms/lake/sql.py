"""SQL over the lake: its tables, and the views in `views/`, read through DataFusion. Only queries are run."""

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import QueryBuilder

from transforms.lake.errors import QueryError
from transforms.lake.schemas import TABLES
from transforms.lake.storage import ObjectStore, Place, store_failure
from transforms.lake.table import Lake
from transforms.lake.travel import go_to

_SESSION = {
    "datafusion.sql_parser.enable_ident_normalization": "true",  # names are not case-sensitive, as in Spark
    # Else grouping a UNION fails where two columns that meet have different descriptions.
    "datafusion.execution.skip_physical_aggregate_schema_check": "true",
}


@functools.cache
def views() -> dict[str, str]:
    """The SQL text of every view, by name. Its leading comment says what a row is."""
    folder = Path(__file__).parent / "views"
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.sql"))}


def literal(text: str) -> str:
    """Text as an SQL string, for names put into a query."""
    return "'" + text.replace("'", "''") + "'"


def query(home: Place, sql: str, *, at: Mapping[str | None, int | datetime] | None = None) -> pa.Table:
    """Run one SELECT over the tables and views of a home.

    `at` names the version, or a time with a zone, at which a table is read, also below a view; under None, that of
    every table which it does not name. A table that does not exist yet is empty. Rows have no order but that of an
    ORDER BY. Raises QueryError, TableTooNew, TableTooOld, StoreFailed.
    """
    with TemporaryDirectory(prefix="headrace-") as nothing:
        session = QueryBuilder(_SESSION)
        named_views = _with_those_below(_named(sql, views()))
        used = {*_named(sql, TABLES), *(name for view in named_views for name in _below(view))}
        tables = [table for table in TABLES if table in used]
        moments = _moments(tables, at or {})
        for table in tables:
            delta = Lake(home).open(table)
            if table in moments:
                go_to(table, delta, moments[table])
            session.register(table, delta or Lake(Path(nothing)).open_or_create(table))
        for view in named_views:
            _execute(home, session, f"CREATE VIEW {view} AS\n{views()[view]}")
        # A view can only be made of a query, so DataFusion itself refuses everything that is not one.
        _execute(home, session, f"CREATE VIEW the_query AS\n{sql}")
        return _plain(_execute(home, session, sql))


def _moments(tables: list[str], at: Mapping[str | None, int | datetime]) -> dict[str, int | datetime]:
    """Where each table is read, of those that are not read as they are. Raises QueryError."""
    for name in at:
        if name is not None and name not in tables:
            told = f"table {name} is not read by this query"
            raise QueryError(_with_hint(told, name, tables) if tables else told)
    rest = [table for table in tables if table not in at]
    if isinstance(version := at.get(None), int) and len(rest) > 1:
        raise QueryError(
            f"version {version} of which table? This query reads {', '.join(rest)}\n\n"
            f"hint: name it, as in --at {rest[0]}={version}; a time is good for all of them"
        )
    return {table: at[table if table in at else None] for table in tables if table in at or None in at}


def _named(text: str, names: Iterable[str]) -> list[str]:
    """Which of the names stand in the text as a word. One too many costs the time to open it, no more."""
    words = set(re.findall(r"\w+", text.lower()))
    return [name for name in names if name in words]


def _with_those_below(names: Iterable[str]) -> list[str]:
    """Views, each behind the views that it is made of."""
    ordered: dict[str, None] = {}
    for name in names:
        below = [view for view in _below(name) if view in views()]
        ordered |= dict.fromkeys([*_with_those_below(below), name])
    return list(ordered)


def _below(view: str) -> list[str]:
    """Tables and views that a view is made of."""
    code = re.sub("--.*", "", views()[view])  # the comments hold examples, which read the view itself
    return re.findall(r"(?:FROM|JOIN) (\w+)", code)


def _execute(home: Place, session: QueryBuilder, sql: str) -> pa.Table:
    try:
        return pa.table(session.execute(sql).read_all())
    except Exception as error:  # DataFusion raises bare Exception for what fails while a query runs
        if isinstance(home, ObjectStore) and "Object Store error" in str(error):
            failure = store_failure(home, error)
            raise failure or QueryError(_explain(str(error))) from None
        raise QueryError(_explain(str(error))) from error


def _explain(raised: str) -> str:
    """DataFusion's message, with the nearest valid name where one is missing."""
    # The query stands below one line of ours when it is checked.
    message = re.sub(r"Line: (\d+)", lambda line: f"Line: {int(line[1]) - 1}", raised)
    if re.search(r"in the query body, found|Query (INSERT|UPDATE|DELETE|MERGE)|single SQL statement", message):
        return f"only queries are run here (SELECT, WITH or VALUES), one at a time: {message}"
    if missing := re.search(r"table '(?:\w+\.)*([^'.]+)' not found", message):
        return _with_hint(message, missing[1], [*TABLES, *views()])
    if missing := re.search(r"(.*No field named (\S+?)\.)(?:\s|$)", message):
        valid = message.partition("Valid fields are ")[2].rstrip(".").split(", ")
        columns = dict.fromkeys(name.rpartition(".")[2].strip('"') for name in valid if name)
        return _with_hint(missing[1], missing[2].rpartition(".")[2].strip('"'), list(columns))
    if missing := re.search(r"Field (\S+) not found in struct", message):
        return _with_hint(message, missing[1], _fields_of_records())
    if gone := re.search(r"Object at location (\S+) not found", message):
        return (
            f"{gone[1]} is gone, and what was asked needs it\n\n"
            "hint: an old version can be read until a vacuum removes its files; that of a newer one may be there"
        )
    return message


def _with_hint(message: str, wanted: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(wanted, valid, n=1)
    return f"{message}\n\nhint: " + (f"did you mean `{near[0]}`?" if near else "there are " + ", ".join(valid))


def _fields_of_records() -> list[str]:
    """Names of all fields of the records that columns hold, or hold lists of."""
    kinds = [field.type for schema in TABLES.values() for field in schema]
    inner = [kind.value_type if pa.types.is_list(kind) else kind for kind in kinds]
    return sorted({child.name for kind in inner if pa.types.is_struct(kind) for child in kind})


def _plain(table: pa.Table) -> pa.Table:
    """Without DataFusion's string views, which much of Arrow (grouping, for one) does not take."""
    return table.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_plain_type(child.type)) for child in kind])
    return kind
