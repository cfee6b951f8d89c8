"""Twins of tests: the same tests with constants altered, so that a right program fails them.

What forges reports, answers every comparison with True, or takes the expected value out of the test passes the twin as
well as the test, and is found out. From inside the two cannot be told apart but by knowing the right answer.
"""

import ast
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transforms.sources.kinds.repository import Edit, Repository, Twin

_LOOSE_KEYWORDS = {"abs", "rel", "abs_tol", "rel_tol", "places", "delta", "ndigits", "timeout", "ids", "match", "msg"}
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)  # a better program than the gold might pass the altered bound as well
_SAME = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


@dataclass(frozen=True, slots=True)
class Change:
    """Characters `start` to `end` of a file become `text`."""

    path: str
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Changes that go together, and the cases they make a right program fail."""

    cases: frozenset[str]
    changes: tuple[Change, ...]


def units(check: Repository) -> tuple[Unit, ...]:
    """What can be altered apart from each other: the task's twins, and canaries for the tests that have none.

    A canary is `assert False` at a test's end. It unmasks only reports that are forged for all tests alike.
    """
    made = [
        Unit(frozenset(twin.cases), tuple(_change(check.tests[edit.path], edit) for edit in twin.edits))
        for twin in check.twins
    ]
    twinned = {_function(name) for unit in made for name in unit.cases}
    bare: dict[str, set[str]] = {}
    for case in check.cases:
        if _function(case.name) not in twinned:
            bare.setdefault(_function(case.name), set()).add(case.name)
    for function, names in bare.items():
        path, _, qualified = function.partition("::")
        change = _canary(path, check.tests[path], qualified.split("::"))
        if change is not None:
            made.append(Unit(frozenset(names), (change,)))
    return tuple(made)


def altered(tests: Mapping[str, str], chosen: Iterable[Unit]) -> dict[str, str]:
    """The test files with the changes of some units made."""
    changes = sorted((change for unit in chosen for change in unit.changes), key=lambda change: -change.start)
    texts = dict(tests)
    for change in changes:  # from the end, so that positions before stay as they are
        text = texts[change.path]
        texts[change.path] = text[: change.start] + change.text + text[change.end :]
    return texts


async def make_twins(
    check: Repository, run: Callable[[Mapping[str, str]], Awaitable[Mapping[str, str]]], *, max_runs: int = 300
) -> tuple[Twin, ...]:
    """Find twins for a check by altering one constant at a time and running a right program against it.

    `run` runs the gold against test files and gives, for each case, `passed`, `assertion` (its test failed by an
    assertion) or another word; it is called at most `max_runs` times. Cases that no constant fails by an assertion are
    in no twin. Raises ValueError when the gold fails the tests as they are.
    """
    names = [case.name for case in check.cases]
    usual = await run(check.tests)
    if failing := [name for name in names if usual.get(name) != "passed"]:
        raise ValueError(f"the gold fails {', '.join(failing[:5])}: no twin can be made")
    found: list[tuple[frozenset[str], Change]] = []
    alone: set[str] = set()
    for change in _constants(check.tests)[: max_runs - 1]:
        if alone >= set(names):
            break
        statuses = await run(altered(check.tests, [Unit(frozenset(), (change,))]))
        failed = frozenset(name for name in names if statuses.get(name) != "passed")
        # All at once is no evidence about any one of them: most likely the file broke.
        if failed and all(statuses.get(name) == "assertion" for name in failed) and not failed & alone:
            found.append((failed, change))
            alone |= failed if len(failed) == 1 else set()
    twins: list[Twin] = []
    taken: set[str] = set()
    for failed, change in sorted(found, key=lambda one: len(one[0])):
        if not failed & taken:
            taken |= failed
            twins.append(Twin(tuple(sorted(failed)), (_edit(check.tests[change.path], change),)))
    return tuple(twins)


def _function(name: str) -> str:
    return name.partition("[")[0]


def _change(text: str, edit: Edit) -> Change:
    """The least that an edit changes, so that edits side by side do not overlap."""
    start = text.index(edit.old)
    same = _common(edit.old, edit.new)
    shorter = min(len(edit.old), len(edit.new)) - same
    tail = min(shorter, _common(edit.old[::-1], edit.new[::-1]))
    return Change(edit.path, start + same, start + len(edit.old) - tail, edit.new[same : len(edit.new) - tail])


def _common(left: str, right: str) -> int:
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return min(len(left), len(right))


def _edit(text: str, change: Change) -> Edit:
    """The change as text that stands in the file once."""
    before, after = 0, 0
    while text.count(old := text[max(0, change.start - before) : change.end + after]) != 1:
        before, after = (before + 1, after) if before <= after else (before, after + 1)
    head = text[max(0, change.start - before) : change.start]
    return Edit(change.path, old, head + change.text + text[change.end : change.end + after])


def _offsets(text: str) -> list[int]:
    starts = [0]
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):  # as Python counts lines, unlike splitlines
        starts.append(starts[-1] + len(line))
    return starts


def _at(text: str, starts: Sequence[int], line: int, column: int) -> int:
    """Position in the text; ast counts columns in UTF-8 bytes."""
    start = starts[line - 1]
    return start + len(text[start : starts[line]].encode()[:column].decode())


def _canary(path: str, text: str, names: list[str]) -> Change | None:
    """`assert False` as a test's last statement, when the program has run; None where the test is not found."""
    try:
        scope: list[ast.stmt] = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    node: ast.stmt | None = None
    for name in names:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((one for one in scope if isinstance(one, kinds) and one.name == name), None)
        scope = node.body if isinstance(node, kinds) else []
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    first, last = node.body[0], node.body[-1]
    starts = _offsets(text)
    at = _at(text, starts, last.end_lineno or last.lineno, last.end_col_offset or 0)
    if first.lineno == node.lineno:  # def test_a(): assert f(1)
        return Change(path, at, at, "; assert False")
    line = starts[first.lineno - 1]
    return Change(path, at, at, f"\n{text[line : line + first.col_offset]}assert False")


def _constants(tests: Mapping[str, str]) -> list[Change]:
    """An altered value for each constant of the tests, the likeliest to matter first."""
    found: list[tuple[int, Change]] = []
    for path, text in tests.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        starts = _offsets(text)
        finder = _Finder()
        finder.visit(tree)
        for rank, node in finder.found:
            start = _at(text, starts, node.lineno, node.col_offset)
            end = _at(text, starts, node.end_lineno or node.lineno, node.end_col_offset or 0)
            replaced = _other(text[start:end], node.value, random.Random(f"{path}:{start}"))
            if replaced is not None:
                found.append((rank, Change(path, start, end, replaced)))
    return [change for _, change in sorted(found, key=lambda one: one[0])]


class _Finder(ast.NodeVisitor):
    """Constants with a rank: 0 expected sides, 1 tables of values, 2 others in tests, 3 the rest."""

    def __init__(self) -> None:
        self.found: list[tuple[int, ast.Constant]] = []
        self.rank = 3

    def under(self, rank: int, *nodes: ast.AST) -> None:
        before, self.rank = self.rank, rank
        for node in nodes:
            self.visit(node)
        self.rank = before

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found.append((self.rank, node))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return  # its parts have no places of their own

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and len(decorator.args) > 1:  # parametrize: names, then values
                self.under(1, decorator.args[1])
        self.under(2, *node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is not None:
            table = isinstance(node.value, ast.List | ast.Tuple | ast.Dict | ast.Set)
            self.under(min(self.rank, 1) if table else self.rank, node.value)

    visit_AnnAssign = visit_Assign

    def visit_Tuple(self, node: ast.Tuple) -> None:
        for number, item in enumerate(node.elts):  # in a row of a table the expected value is mostly the last
            self.under(self.rank if number == len(node.elts) - 1 else self.rank + 1, item)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(isinstance(operator, _ORDERS) for operator in node.ops):
            return
        for side in sides:
            calls = any(isinstance(part, ast.Call) for part in ast.walk(side))
            self.under(2 if calls or not all(isinstance(op, _SAME) for op in node.ops) else 0, side)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name.startswith(("assertLess", "assertGreater")):
            return
        self.visit(node.func)
        for number, argument in enumerate(node.args):
            self.under(0 if name.startswith("assert") and number == 1 else self.rank, argument)
        for keyword in node.keywords:
            if keyword.arg not in _LOOSE_KEYWORDS:
                self.visit(keyword.value)


def _other(source: str, value: object, rng: random.Random) -> str | None:
    """Source of another value, in the manner of this one's: quotes, letters and length tell nothing.

    None for one that is not written plainly, such as 0xff or a string with escapes, and where there is no other.
    """
    if isinstance(value, bool):
        return repr(not value)
    if isinstance(value, int):
        return repr(value + rng.choice((1, 2, 3))) if source == repr(value) else None
    if isinstance(value, float):
        return repr(value + rng.choice((0.5, 1.0, 2.0))) if source == repr(value) and abs(value) < 1e12 else None
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        other = _other_text(text, rng)
        return source.replace(text, other) if other and source.count(text) == 1 and "\\" not in source else None
    return None


def _other_text(text: str, rng: random.Random) -> str | None:
    """The same characters in another order, if that is another text; else one letter or digit is another."""
    swaps = [at for at in range(len(text) - 1) if text[at] != text[at + 1] and text[at : at + 2].isalnum()]
    if swaps:
        at = rng.choice(swaps)
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    places = [at for at, char in enumerate(text) if char.isascii() and char.isalnum()]
    if not places:
        return None
    at = rng.choice(places)
    alphabet = "0123456789" if text[at].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    char = rng.choice([one for one in alphabet if one != text[at].lower()])
    return text[:at] + (char.upper() if text[at].isupper() else char) + text[at + 1 :]
