"""Values in the source of tests, and others that could stand in their place: what twins are made of.

An altered value must be one that a program could well return, or it would be told from the right one by its looks.
"""

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_LOOSE_KEYWORDS = {"abs", "rel", "abs_tol", "rel_tol", "places", "delta", "ndigits", "timeout", "ids", "match", "msg"}
_CLASSES = ("aeiou", "bcdfghjklmnpqrstvwxyz", "AEIOU", "BCDFGHJKLMNPQRSTVWXYZ", "0123456789", "-_", ",;", "!?")
_EACH = 4  # texts of each manner of altering a text


@dataclass(frozen=True, slots=True)
class Site:
    """A value in a test file, written from character `start` to `end`."""

    path: str
    start: int
    end: int
    value: object = field(compare=False)


def sites(tests: Mapping[str, str]) -> list[Site]:
    """The values in tests that may be altered, the likeliest to be what a program must return first."""
    found: list[tuple[int, Site]] = []
    for path, text in tests.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        starts = offsets(text)
        finder = _Finder()
        finder.visit(tree)
        for rank, node in finder.found:
            found.append((rank, Site(path, *span(text, starts, node), ast.literal_eval(node))))
    return [site for _, site in sorted(found, key=lambda one: one[0])]


def others(source: str, seen: Sequence[object], rng: random.Random) -> list[str]:
    """Sources of other values than that of `source`, in its manner: those of `seen` that are of its type come first.

    Then numbers are moved both ways, neighbours swapped, and characters replaced by others of their class. None for
    what is not written plainly, such as 0xff or a text with escapes.
    """
    node = ast.parse(source, mode="eval").body
    value = ast.literal_eval(node)
    found = [_written(one, source) for one in seen if type(one) is type(value)]
    if isinstance(value, bool):
        found.append(repr(not value))
    elif isinstance(value, int) and source == repr(value):
        found += map(repr, _numbers(value, rng))
    elif isinstance(value, float) and re.fullmatch(r"\d+\.\d+", source):
        decimals = len(source.partition(".")[2])
        scaled = round(value * 10**decimals)
        found += [f"{number / 10**decimals:.{decimals}f}" for number in _numbers(scaled, rng)]
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        if source.count(text) == 1 and "\\" not in source:
            found += [source.replace(text, other) for other in _texts(text, rng)]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
        found += _displays(source, node, rng)
    return [text for text in dict.fromkeys(found) if text is not None and ast.literal_eval(text) != value]


def offsets(text: str) -> list[int]:
    """Where each line of a text begins, as Python counts lines, and the end."""
    starts = [0]
    for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text):  # unlike splitlines
        starts.append(starts[-1] + len(line))
    return starts


def at(text: str, starts: Sequence[int], line: int, column: int) -> int:
    """Position in a text; ast counts columns in UTF-8 bytes."""
    start = starts[line - 1]
    return start + len(text[start : starts[line]].encode()[:column].decode())


def span(text: str, starts: Sequence[int], node: ast.expr) -> tuple[int, int]:
    """Where a node stands in a text: first character, and the one after the last."""
    end = at(text, starts, node.end_lineno or node.lineno, node.end_col_offset or 0)
    return at(text, starts, node.lineno, node.col_offset), end


def _written(value: object, like: str) -> str | None:
    """Source of a value with the quotes of another source; None where that cannot be done on one line."""
    text = repr(value)
    if "\n" in like or "\\" in text or "inf" in text or "nan" in text:
        return None
    if '"' in like:
        return None if '"' in text else text.replace("'", '"')
    return text


def _numbers(value: int, rng: random.Random) -> list[int]:
    """Others near a number, on both sides and not past zero, and such that digits are swapped or changed."""
    digits = str(abs(value))
    spread = [sign * step for step in (1, 2, 3, 5, 10) for sign in (1, -1)]
    rng.shuffle(spread)
    near = [value + step for step in sorted(spread, key=lambda step: abs(step) > 3)]
    swapped = [int(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]) for i in range(len(digits) - 1)]
    found = [near[0], *swapped[-2:], *near[1:]]
    return [number for number in found if (number >= 0) == (value >= 0) and number != value]


def _texts(text: str, rng: random.Random) -> list[str]:
    """Others near a text: neighbours swapped, a character replaced by one of its class, left out, or written twice."""
    places = range(len(text))
    swapped = [
        text[:i] + text[i + 1] + text[i] + text[i + 2 :]
        for i in places[:-1]
        if text[i] != text[i + 1] and text[i : i + 2].isalnum()
    ]
    replaced = [
        text[:i] + rng.choice([one for one in letters if one != text[i]]) + text[i + 1 :]
        for i in places
        for letters in _CLASSES
        if text[i] in letters
    ]
    ends = [text[:-1], text[1:]] if len(text) > 1 else []
    shorter = [text[:i] + text[i + 1 :] for i in places[1:-1] if text[i].isalnum()]
    longer = [text[:i] + text[i] + text[i:] for i in places if text[i].isalnum()]
    manners = [rng.sample(one, min(_EACH, len(one))) for one in (ends, swapped, replaced, shorter, longer)]
    return [one[i] for i in range(_EACH) for one in manners if i < len(one)]


def _displays(source: str, node: ast.List | ast.Tuple | ast.Set | ast.Dict, rng: random.Random) -> list[str]:
    """Others near a container: neighbours swapped, an element altered, one left out."""
    items = node.values if isinstance(node, ast.Dict) else node.elts
    starts = offsets(source)
    places = [span(source, starts, item) for item in items]
    found = [source[:a] + source[c:d] + source[b:c] + source[a:b] + source[d:] for (a, b), (c, d) in pairwise(places)]
    for a, b in places:
        found += [source[:a] + other + source[b:] for other in others(source[a:b], (), rng)[:2]]
    if isinstance(node, ast.List):
        found += [source[:a] + source[c:] for (a, _), (c, _) in pairwise(places)]
    rng.shuffle(found)
    return found


class _Finder(ast.NodeVisitor):
    """Values with a rank: 0 expected sides, 1 tables of values, 2 others in tests, 3 the rest.

    Left alone are bounds, tolerances, and what a value must differ from or be one of: two right programs may return
    different values there, of which the altered test would take one.
    """

    def __init__(self) -> None:
        self.found: list[tuple[int, ast.expr]] = []
        self.rank = 3

    def under(self, rank: int, *nodes: ast.AST) -> None:
        before, self.rank = self.rank, rank
        for node in nodes:
            self.visit(node)
        self.rank = before

    def expected(self, rank: int, node: ast.AST) -> None:
        """Visit what may be an expected value: a container of constants is one, and its parts are."""
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict) and _plain(node):
            self.found.append((rank, node))
        self.under(rank, node)

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
        for item in node.elts[:-1]:  # in a row of a table the expected value is mostly the last
            self.under(self.rank + 1, item)
        for item in node.elts[-1:]:
            self.expected(self.rank, item)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if all(isinstance(operator, ast.Eq | ast.Is) for operator in node.ops):
            for side in sides:
                self.expected(2 if any(isinstance(part, ast.Call) for part in ast.walk(side)) else 0, side)
        elif all(isinstance(operator, ast.In) for operator in node.ops) and isinstance(node.left, ast.Constant):
            if isinstance(node.left.value, str):
                self.under(0, node.left)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name.startswith(("assertLess", "assertGreater", "assertNot", "assertIn")):
            return
        self.visit(node.func)
        called = [any(isinstance(part, ast.Call) for part in ast.walk(argument)) for argument in node.args]
        for number, argument in enumerate(node.args):
            if name.startswith("assert") and number == 1:
                self.expected(0, argument)
            elif any(called) and not called[number]:  # as in near(f(1), 2.5)
                self.expected(min(self.rank, 1), argument)
            else:
                self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _LOOSE_KEYWORDS:
                self.visit(keyword.value)


def _plain(node: ast.AST) -> bool:
    """Whether a container holds nothing but constants, of which none is a float: those may be off by a tolerance."""
    try:
        ast.literal_eval(ast.unparse(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return not any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in ast.walk(node))
