"""The trusted program of the `sql` verifier: runs inside the sandbox, knows SQL and no expected row.

The submission is only text to it. Each call has a process and databases of its own. Stand-alone: standard library only,
of the image's own Python.
"""

import sqlite3

SYNTAX = ("syntax error", "incomplete input", "null character")  # how messages about text that is no SQL end
WRITABLE_SCHEMA = "writable_schema"


def run(setups, submission, probe, max_bytes):
    """Run a submission, then the probe if there is one, and give what came of it: a tag, then what belongs to it.

    `("rows", names, rows)`; `("no_rows",)`; `("too_large",)` past `max_bytes` when encoded; `("replaced", table, what)`
    for a table of the setup that is none any more; `(tag, message)` with `setup_failed`, `syntax_error`,
    `runtime_error`, `disk_limit` or `probe_failed`. Raises MemoryError.
    """
    database = opened()
    try:
        for script in setups:
            database.executescript(script)
        tables = ordinary_tables(database)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return "setup_failed", str(error)
    database.set_authorizer(allow)
    try:
        result = last_result(database, submission, max_bytes)
        if not probe:
            return result
        if database.in_transaction:  # what is not committed is gone when a connection closes
            database.execute("ROLLBACK")
        # The probe sees neither temporary objects, which hide tables of their name, nor attached databases, nor any
        # setting of the submission's connection.
        copy = opened()
        database.backup(copy)
        database.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a lone surrogate, a NUL
        return failure(error)
    try:
        for name in tables:
            for kind, sql in copy.execute("SELECT type, sql FROM sqlite_master WHERE lower(name) = lower(?)", [name]):
                if kind == "view" or is_virtual(sql):
                    return "replaced", name, "a view" if kind == "view" else "a virtual table"
        return last_result(copy, probe, max_bytes)
    except (sqlite3.Error, sqlite3.Warning) as error:
        return "probe_failed", str(error)


def opened():
    """A new database in memory. Text that is not UTF-8 has its bytes as lone surrogates."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def allow(action, what, value, *_):
    """Allow all but editing the schema's own table, by which a view could call itself a table."""
    editing = action == sqlite3.SQLITE_PRAGMA and what.lower() == WRITABLE_SCHEMA and value is not None
    return sqlite3.SQLITE_DENY if editing else sqlite3.SQLITE_OK


def ordinary_tables(database):
    """Names of the tables that hold rows of their own."""
    found = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return [name for name, sql in found if not is_virtual(sql)]


def is_virtual(sql):
    """Whether a table's definition is a virtual table's; SQLite writes its first words itself."""
    return sql is not None and sql.upper().startswith("CREATE VIRTUAL TABLE")


def last_result(database, script, max_bytes):
    """Run statements in turn; the rows of the last one that has columns."""
    result = ("no_rows",)
    for statement in statements(script):
        cursor = database.execute(statement)
        if cursor.description is not None:
            names = [column[0] for column in cursor.description]
            rows = fetched(cursor, max_bytes)
            result = ("too_large",) if rows is None else ("rows", names, rows)
        cursor.close()
    return result


def statements(script):
    """Cut a script after each statement: at a semicolon that SQLite says ends one."""
    start = end = 0
    while (end := script.find(";", end) + 1) > 0:
        if sqlite3.complete_statement(script[start:end]):
            yield script[start:end]
            start = end
    yield script[start:]


def fetched(cursor, max_bytes):
    """All rows, or None when their encoding must be longer than `max_bytes`."""
    rows, size = [], 0
    for row in cursor:
        size += 5 + sum(1 if cell is None else 5 + len(cell) if isinstance(cell, (str, bytes)) else 6 for cell in row)
        if size > max_bytes:
            return None
        rows.append(row)
    return rows


def failure(error):
    """The tag and message of what a submission raised."""
    message = str(error)
    if message.endswith(SYNTAX) or message.startswith("unrecognized token") or isinstance(error, ValueError):
        return "syntax_error", message
    return "disk_limit" if message == "database or disk is full" else "runtime_error", message
