"""SQL over the lake: its tables, and the views in `views/`, read through DataFusion. Only queries are run."""

import difflib
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import QueryBuilder

from transforms.lake.errors import QueryError
from transforms.lake.schemas import TABLES
from transforms.lake.table import Lake

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


def query(home: Path, sql: str) -> pa.Table:
    """Run one SELECT over the tables and views of a home folder.

    A table that does not exist yet is empty. Rows have no order but that of an ORDER BY. Raises QueryError,
    TableTooNew.
    """
    with TemporaryDirectory(prefix="headrace-") as nothing:
        session = QueryBuilder(_SESSION)
        named_views = _with_those_below(_named(sql, views()))
        for table in _named(" ".join([sql, *(views()[view] for view in named_views)]), TABLES):
            delta = Lake(home).open(table)
            session.register(table, delta or Lake(Path(nothing)).open_or_create(table))
        for view in named_views:
            _execute(session, f"CREATE VIEW {view} AS\n{views()[view]}")
        # A view can only be made of a query, so DataFusion itself refuses everything that is not one.
        _execute(session, f"CREATE VIEW the_query AS\n{sql}")
        return _plain(_execute(session, sql))


def _named(text: str, names: Iterable[str]) -> list[str]:
    """Which of the names stand in the text as a word. One too many costs only the time to open it."""
    words = set(re.findall(r"\w+", text.lower()))
    return [name for name in names if name in words]


def _with_those_below(names: Iterable[str]) -> list[str]:
    """Views, each behind the views that it is made of."""
    ordered: dict[str, None] = {}
    for name in names:
        code = re.sub("--.*", "", views()[name])  # the comments hold examples, which read the view itself
        below = re.findall(r"(?:FROM|JOIN) (\w+)", code)
        ordered |= dict.fromkeys([*_with_those_below(view for view in below if view in views()), name])
    return list(ordered)


def _execute(session: QueryBuilder, sql: str) -> pa.Table:
    try:
        return pa.table(session.execute(sql).read_all())
    except Exception as error:  # DataFusion raises bare Exception for what fails while a query runs
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
    return message


def _with_hint(message: str, wanted: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(wanted, valid, n=1)
    return f"{message}\n\nhint: " + (f"did you mean `{near[0]}`?" if near else "there are " + ", ".join(valid))


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
