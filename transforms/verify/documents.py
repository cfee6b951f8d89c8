"""Documents that a program wrote against what they must hold. They come from outside and may hold anything."""

import csv
import io
import itertools
import json
from collections import Counter

from transforms.grade.outcomes import Outcome

_MOST_PARSED = 4 * 1024 * 1024  # bytes of a document or table that are parsed: its values take some 25 times as many


class Differs(Exception):
    """What was left is not what it must be: why, what is there instead, and the outcome."""

    def __init__(self, why: str, got: str | None = None, outcome: Outcome = Outcome.FAILED_TESTS) -> None:
        super().__init__(why)
        self.why, self.got, self.outcome = why, got, outcome


def text_of(path: str, content: bytes) -> str:
    """The text of a file. Raises Differs."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Differs(f"{path} is not UTF-8: byte {error.start + 1}") from error


def compare_text(path: str, content: bytes, expected: str) -> None:
    """Compare texts, white space at the end of lines and of the text aside. Raises Differs."""
    came, wanted = (io.StringIO(text.rstrip()) for text in (text_of(path, content), expected))
    for number, (line, other) in enumerate(itertools.zip_longest(came, wanted), 1):
        if line is None:
            raise Differs(f"{path} has not enough lines: {number - 1}")
        if other is None:
            raise Differs(f"{path} has too many lines", line)
        if line.rstrip() != other.rstrip():
            raise Differs(f"{path}: line {number} is wrong", line)


def compare_json(path: str, content: bytes, expected: object) -> None:
    """Compare the values of JSON documents, the order of keys aside. Raises Differs."""
    if not _same_json(_json(path, content), expected):
        raise Differs(f"{path} holds another value", text_of(path, content))


def compare_table(path: str, content: bytes, expected: tuple[tuple[str, ...], ...], *, ordered: bool) -> None:
    """Compare the cells of CSV tables, blank lines aside. Raises Differs."""
    text = _parsed_text(path, content)
    try:
        rows = [tuple(row) for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:
        raise Differs(f"{path} is not CSV: {error}", text) from error
    if ordered:
        for number, (row, other) in enumerate(zip(rows, expected, strict=False), 1):
            if row != other:
                raise Differs(f"{path}: row {number} is wrong", ", ".join(row))
    elif surplus := Counter(rows) - Counter(expected):
        raise Differs(f"{path}: a row that must not be there, or not so often", ", ".join(next(iter(surplus))))
    if len(rows) != len(expected):
        raise Differs(f"{path} has {'too many' if len(rows) > len(expected) else 'not enough'} rows: {len(rows)}")


def _parsed_text(path: str, content: bytes) -> str:
    if len(content) > _MOST_PARSED:
        raise Differs(f"{path} holds more than {_MOST_PARSED} bytes", outcome=Outcome.OUTPUT_LIMIT)
    return text_of(path, content)


def _json(path: str, content: bytes) -> object:
    def no_constant(text: str) -> float:
        raise ValueError(f"{text} is not JSON")

    def no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands twice in one object")
        return found

    text = _parsed_text(path, content)
    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_twins)
    except (ValueError, RecursionError) as error:
        raise Differs(f"{path} is not JSON: {error}", text) from error


def _same_json(value: object, wanted: object) -> bool:
    """Equal values: numbers by value, whole or not; true and false are no numbers. As deep as `wanted` at most."""
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and value.keys() == wanted.keys()
            and all(_same_json(value[key], item) for key, item in wanted.items())
        )
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(_same_json, value, wanted))
    return isinstance(value, bool) is isinstance(wanted, bool) and value == wanted
