"""`docs/tables.md`, written from the schemas: `python -m transforms.lake.document` brings it up to date."""

from pathlib import Path

import pyarrow as pa

from transforms.lake.schemas import PARTITIONED_BY, ROWS, SCHEMA_VERSION, TABLES

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_HEAD = f"""# Tables

Written by `python -m transforms.lake.document` from `transforms/lake/schemas.py`; a test fails when the two differ.
Schema version {SCHEMA_VERSION}. Times are UTC microseconds. `headrace tables NAME` prints the same in a terminal;
[views.md](views.md) lists the views. A field marked `*` is never null; `a.b` is field `b` of the record, or of each
record of the list, `a`.
"""


def schema_rows(schema: pa.Schema) -> list[list[str]]:
    """One line a field: name, type, unit, description. Fields of nested records are named `parent.child`."""
    lines: list[list[str]] = []

    def add(prefix: str, field: pa.Field) -> None:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        kind = field.type
        inner = kind.value_type if pa.types.is_list(kind) else kind
        name = f"{prefix}{field.name}"
        shown = str(kind) if not pa.types.is_struct(inner) else "list<record>" if inner is not kind else "record"
        shown = shown.replace("list<element: ", "list<").replace("list<item: ", "list<")
        lines.append([name, shown, metadata.get("unit", ""), metadata.get("description", "")])
        if pa.types.is_struct(inner):
            for child in inner:
                add(f"{name}.", child)

    for field in schema:
        add("", field)
    return lines


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for table, schema in TABLES.items():
        split = f" Split by {', '.join(PARTITIONED_BY[table])}." if table in PARTITIONED_BY else ""
        parts.append(f"## {table}\n\nA row is {ROWS[table]}.{split}\n")
        parts.append("| field | type | unit | what it holds |\n|---|---|---|---|")
        required = {field.name for field in schema if not field.nullable}
        for name, kind, unit, about in schema_rows(schema):
            text = about.replace("|", "\\|")
            parts.append(f"| `{name}`{' *' if name in required else ''} | {kind} | {unit} | {text} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
