"""docs/tables.md is what the schemas say."""

import re

import pyarrow as pa

from transforms.lake.document import PAGE, page
from transforms.lake.schemas import ROWS, TABLES


def test_the_page_is_up_to_date():
    hint = "run: .venv/bin/python -m transforms.lake.document"
    assert PAGE.read_text() == page(), hint


def test_the_page_names_every_field_of_every_table_with_what_it_holds():
    """Counted by a walk of our own over Arrow's flattened types."""

    def leaves(kind: pa.DataType) -> int:
        if pa.types.is_list(kind):
            return leaves(kind.value_type)
        return sum(1 + leaves(child.type) for child in kind) if pa.types.is_struct(kind) else 0

    sections = re.split(r"^## ", page(), flags=re.MULTILINE)[1:]
    assert [section.split("\n", 1)[0] for section in sections] == list(TABLES) == list(ROWS)
    for section, schema in zip(sections, TABLES.values(), strict=True):
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert len(rows) == sum(1 + leaves(field.type) for field in schema)
        assert all(len(re.split(r"(?<!\\)\|", row)[4].strip()) > 3 for row in rows)
