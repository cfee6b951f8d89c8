"""The trusted program of the `sql` verifier: runs inside the sandbox, knows SQL and no expected row.

The submission is only text to it. Each call has a process and databases of its own. Stand-alone: standard library only,
of the image's own Python.
"""

import sqlite3

SYNTAX = ("syntax error", "incomplete input", "null character")  # how messages about text that is no SQL end
WRITABLE_SCHEMA = "writable_schema"
WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)


def run(setups, submission, probe, ordered, changes, redefines, max_bytes):
    """Run a submission, then the probe if there is one, and give what came of it: a tag, then what belongs to it.

    `changes`: tables whose rows may change, None for all; `redefines`: what may be defined anew. Where neither these
    nor a probe are given, nothing in the database may change.

    `("rows", names, rows)`; `("no_rows",)`; `("too_large",)` past `max_bytes` when encoded; `("by_chance",)` for an
    order that nothing asks for; `("disturbed", name, what)` for what had to stay as the setup made it; `(tag, message)`
    with `setup_failed`, `syntax_error`, `runtime_error`, `disk_limit` or `probe_failed`. Raises MemoryError.
    """
    try:
        database = made(setups)
        before = definitions(database)
        for name in changes or ():
            if ("table", name.lower()) not in before:
                return "setup_failed", f"no such table: {name}, which `changes` names"
        kept = rows_of(database, set() if changes is None else ordinary_tables(database) - set(map(str.lower, changes)))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return "setup_failed", str(error)
    read_only = not probe and not changes and not redefines
    database.set_authorizer(lambda *what: allow(read_only, *what))
    try:
        result = last_result(database, submission, max_bytes)
        if read_only:
            asks = "order" in submission.lower()
            chance = ordered and not asks and by_chance(setups, submission, result, max_bytes)
            return ("by_chance",) if chance else result
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
        if (found := disturbed(before, definitions(copy), set(map(str.lower, redefines)))) is not None:
            return "disturbed", *found
        for name, rows in rows_of(copy, kept).items():
            if rows != kept[name]:
                return "disturbed", name, "holds other rows than before"
        return last_result(copy, probe, max_bytes) if probe else result
    except (sqlite3.Error, sqlite3.Warning) as error:
        return "probe_failed", str(error)


def made(setups):
    """A new database, set up."""
    database = opened()
    for script in setups:
        database.executescript(script)
    return database


def opened():
    """A new database in memory. Text that is not UTF-8 has its bytes as lone surrogates."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def allow(read_only, action, first, second, where, _):
    """Allow all but editing the schema's own table, by which a view could call itself a table, and, where nothing may
    change, writing to the main database."""
    editing = action == sqlite3.SQLITE_PRAGMA and first.lower() == WRITABLE_SCHEMA and second is not None
    writing = (action in WRITES and where == "main") or (action == sqlite3.SQLITE_ALTER_TABLE and first == "main")
    return sqlite3.SQLITE_DENY if editing or (read_only and writing) else sqlite3.SQLITE_OK


def definitions(database):
    """What there is, by type and name: the table it belongs to, and how it is defined.

    A table's definition is told from its first bracket on: renaming a table quotes its name.
    """
    found = {}
    for kind, name, table, sql in database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        whole = kind != "table" or is_virtual(sql)
        found[kind, name.lower()] = table.lower(), sql if whole else sql.partition("(")[2]
    return found


def disturbed(before, after, redefines):
    """The first thing of the setup that is not as it was, and how; None where all is."""
    for (kind, name), (table, sql) in before.items():
        if {name, table} & redefines:
            continue
        now = next((other for other in ("table", "view") if (other, name) in after), None)
        if kind == "table" and now == "view":
            return name, "was a table and is a view now"
        if (kind, name) not in after:
            return name, "is not there any more"
        if after[kind, name] != (table, sql):
            virtual = kind == "table" and is_virtual(after[kind, name][1])
            return name, "was a table and is a virtual table now" if virtual else "is defined otherwise than before"
    for (kind, name), (table, _) in after.items():
        # A trigger or an index says what rows a table takes, so it would answer a probe that writes.
        if kind in ("trigger", "index") and (kind, name) not in before and table not in redefines:
            if {("table", table), ("view", table)} & before.keys():
                return table, f"has {'a trigger' if kind == 'trigger' else 'an index'} that it had not"
    return None


def ordinary_tables(database):
    """Names of the tables that hold rows of their own, in small letters."""
    found = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    return {name.lower() for name, sql in found if not is_virtual(sql)}


def rows_of(database, names):
    """The rows of tables, as text, in an order of their own."""
    quoted = {name: name.replace('"', '""') for name in names}
    return {name: sorted(map(repr, database.execute(f'SELECT * FROM main."{quoted[name]}"'))) for name in names}


def is_virtual(sql):
    """Whether a table's definition is a virtual table's; SQLite writes its first words itself."""
    return sql is not None and sql.upper().startswith("CREATE VIRTUAL TABLE")


def by_chance(setups, submission, result, max_bytes):
    """Whether a query gives its rows in another order when SQLite goes through its tables from the other end.

    Floats are left out: a sum of the same numbers in another order may differ in its last bits.
    """
    database = made(setups)
    database.execute("PRAGMA reverse_unordered_selects = ON")
    database.set_authorizer(lambda *what: allow(True, *what))
    again = last_result(database, submission, max_bytes)
    exact = [
        [tuple(cell for cell in row if not isinstance(cell, float)) for row in rows]
        for _, _, rows in (one for one in (result, again) if one[0] == "rows")
    ]
    return len(exact) == 2 and exact[0] != exact[1]


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
