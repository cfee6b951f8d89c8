"""Twins of tests: the same tests with constants altered, so that a right program fails them.

What forges reports, answers every comparison with True, or takes the expected value out of the test passes the twin as
well as the test, and is found out. From inside the two cannot be told apart but by knowing the right answer.
"""

import ast
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transforms.sources.alterations import Site, at, offsets, others, sites
from transforms.sources.kinds.repository import Edit, Repository, Twin

_POOL = 12  # twins that are kept for a test
_SCALES = (1e-3, 0.03, 0.3, 1.0, 10.0)  # of a number: how far a test may let it be off
_Run = Callable[[Mapping[str, str]], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Change:
    """Characters `start` to `end` of a file become `text`."""

    path: str
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Twins of the same cases: each alternative is changes that go together and make a right program fail them."""

    cases: frozenset[str]
    alternatives: tuple[tuple[Change, ...], ...]


def units(check: Repository) -> tuple[Unit, ...]:
    """What can be altered apart from each other: the task's twins, and canaries for the tests that have none.

    A canary is `assert False` at a test's end. It unmasks only reports that are forged for all tests alike.
    """
    grouped: dict[frozenset[str], list[tuple[Change, ...]]] = {}
    for twin in check.twins:
        changes = tuple(_change(check.tests[edit.path], edit) for edit in twin.edits)
        grouped.setdefault(frozenset(twin.cases), []).append(changes)
    made = [Unit(cases, tuple(alternatives)) for cases, alternatives in grouped.items()]
    twinned = {_function(name) for unit in made for name in unit.cases}
    bare: dict[str, set[str]] = {}
    for case in check.cases:
        if _function(case.name) not in twinned:
            bare.setdefault(_function(case.name), set()).add(case.name)
    for function, names in bare.items():
        path, _, qualified = function.partition("::")
        change = _canary(path, check.tests[path], qualified.split("::"))
        if change is not None:
            made.append(Unit(frozenset(names), ((change,),)))
    return tuple(made)


def altered(tests: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """The test files with some changes made."""
    texts = dict(tests)
    for change in sorted(changes, key=lambda change: -change.start):  # so that positions before stay as they are
        text = texts[change.path]
        texts[change.path] = text[: change.start] + change.text + text[change.end :]
    return texts


async def make_twins(
    check: Repository, run: _Run, compared: Iterable[tuple[str, str]] = (), *, max_runs: int = 300
) -> tuple[Twin, ...]:
    """Find twins for a check by altering one value at a time and running a right program against it.

    `run` runs the gold against test files and gives, for each case, `passed`, `assertion` (its test failed by an
    assertion) or another word; it is called some `max_runs` times at most. `compared` are the texts of pairs that a
    wrong program's tests found unequal: what it returned makes the best twins. Each twin was run, and failed its cases
    by assertions. Cases that no value fails so are in no twin. Raises ValueError when the gold fails the tests as they
    are.
    """
    names = [case.name for case in check.cases]
    usual = await run(check.tests)
    if failing := [name for name in names if usual.get(name) != "passed"]:
        raise ValueError(f"the gold fails {', '.join(failing[:5])}: no twin can be made")
    places = sites(check.tests)
    pairs = [pair for sides in compared if (pair := _values(*sides)) is not None]
    texts = {site: _texts(check, site, places, pairs) for site in places}
    found: list[tuple[frozenset[str], Site]] = []
    alone: set[str] = set()
    for site in [site for site in places if texts[site]][: max_runs - 1]:
        if alone >= set(names):
            break
        # A number goes far, past any tolerance: whether one near it is a twin is asked later.
        first = texts[site][0] if (value := _number(site)) is None else repr(value + 2 * math.ceil(abs(value)) + 2)
        statuses = await run(altered(check.tests, [_at_site(site, first)]))
        failed = frozenset(name for name in names if statuses.get(name) != "passed")
        # All at once is no evidence about any one of them: most likely the file broke.
        if failed and _all(failed, statuses, "assertion") and not failed & alone:
            found.append((failed, site))
            alone |= failed if len(failed) == 1 else set()
    picked: dict[Site, frozenset[str]] = {}
    for failed, site in sorted(found, key=lambda one: len(one[0])):
        if not any(failed & other for other in picked.values()):
            picked[site] = failed
    await _leave_out_near(check, run, picked, texts)
    return await _proven(check, run, picked, texts)


def _texts(
    check: Repository, site: Site, places: Sequence[Site], compared: Sequence[tuple[object, object]]
) -> list[str]:
    """Sources of values to put in a value's place, the most plausible first."""
    pairs = [pair for left, right in compared for pair in ((left, right), (right, left))]
    returned = [other for one, other in pairs if type(one) is type(site.value) and one == site.value]
    rng = random.Random(f"{site.path}:{site.start}")
    # What other tests expect is as plausible as can be; the likeliest to be expected come first.
    elsewhere = [one.value for one in places if one.path == site.path and type(one.value) is type(site.value)][:6]
    seen = [*returned, *rng.sample(elsewhere, min(2, len(elsewhere)))]
    return others(check.tests[site.path][site.start : site.end], seen, rng)[: 2 * _POOL]


def _values(left: str, right: str) -> tuple[object, object] | None:
    """Two values of whose texts both are literals, else None."""
    try:
        return ast.literal_eval(left), ast.literal_eval(right)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


async def _leave_out_near(
    check: Repository, run: _Run, picked: Mapping[Site, frozenset[str]], texts: dict[Site, list[str]]
) -> None:
    """Leave out numbers so near that a test's tolerance may let a right program pass with both.

    A gold that fails with the number moved by s both ways shows a tolerance below s, so numbers 2 s away have no value
    in common with it; for a tolerance that grows with the number 3 s are asked.
    """
    waiting = {site: value for site in picked if (value := _number(site)) is not None}
    for scale in (0.0, *_SCALES):
        steps = {site: _step(value, scale) for site, value in waiting.items()}
        runs = []
        for sign in (1, -1) if steps else ():
            moved = [_at_site(site, repr(waiting[site] + sign * step)) for site, step in steps.items()]
            runs.append(await run(altered(check.tests, moved)))
        for site, step in steps.items():
            if all(_all(picked[site], statuses, "assertion") for statuses in runs):
                value = waiting.pop(site)
                least = (3 if scale else 2) * step
                wide = [value + sign * least * times for times in (1, 1.5, 2) for sign in (1, -1) if scale]
                kept = [text for text in texts[site] if abs(ast.literal_eval(text) - value) >= least]
                texts[site] = kept + [repr(type(value)(round(one, 6))) for one in wide]
    for site in waiting:
        texts[site] = []


def _number(site: Site) -> float | None:
    """The number of a site; None for other values."""
    return site.value if isinstance(site.value, int | float) and not isinstance(site.value, bool) else None


def _step(value: float, scale: float) -> float:
    """How far to move a number: the least for a scale of 0, which is less than half of what whole numbers differ by."""
    if scale:
        return scale * max(1.0, abs(value))
    return 0.5 if isinstance(value, int) else 1e-9 * max(1.0, abs(value))


async def _proven(
    check: Repository, run: _Run, picked: Mapping[Site, frozenset[str]], texts: Mapping[Site, list[str]]
) -> tuple[Twin, ...]:
    """Twins whose cases the gold fails while it passes all the others; one of each test is tried in one run."""
    kept: dict[Site, list[str]] = {site: [] for site in picked}
    for number in range(2 * _POOL):
        tried = {site: texts[site][number] for site in picked if number < len(texts[site]) and len(kept[site]) < _POOL}
        if not tried:
            break
        statuses = await run(altered(check.tests, [_at_site(site, text) for site, text in tried.items()]))
        touched = frozenset().union(*(picked[site] for site in tried))
        if not _all({case.name for case in check.cases} - touched, statuses, "passed"):
            continue
        for site, text in tried.items():
            if _all(picked[site], statuses, "assertion"):
                kept[site].append(text)
    return tuple(
        Twin(tuple(sorted(picked[site])), (_edit(check.tests[site.path], _at_site(site, text)),))
        for site, written in kept.items()
        for text in written
    )


def _all(names: Iterable[str], statuses: Mapping[str, str], word: str) -> bool:
    return all(statuses.get(name) == word for name in names)


def _at_site(site: Site, text: str) -> Change:
    return Change(site.path, site.start, site.end, text)


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
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def _edit(text: str, change: Change) -> Edit:
    """The change as text that stands in the file once."""
    before, after = 0, 0
    while text.count(old := text[max(0, change.start - before) : change.end + after]) != 1:
        before, after = (before + 1, after) if before <= after else (before, after + 1)
    head = text[max(0, change.start - before) : change.start]
    return Edit(change.path, old, head + change.text + text[change.end : change.end + after])


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
    starts = offsets(text)
    end = at(text, starts, last.end_lineno or last.lineno, last.end_col_offset or 0)
    if first.lineno == node.lineno:  # def test_a(): assert f(1)
        return Change(path, end, end, "; assert False")
    line = starts[first.lineno - 1]
    return Change(path, end, end, f"\n{text[line : line + first.col_offset]}assert False")
