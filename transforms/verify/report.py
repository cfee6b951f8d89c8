"""Read what a run of hidden tests reported: lines from a process that the candidate's code shares, so they may lie.

Only a whole and consistent report counts: each test exactly once, the end, and an exit status that goes with it.
"""

import builtins
import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transforms.grade.outcomes import Outcome

_PHASES = ("setup", "call", "teardown")
_ASSERTIONS = ("AssertionError", "Failed")
_PARTS = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_PLACE = re.compile(r"(.+) line (\d{1,9}) in (\w+|<\w+>)")


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of one test."""

    outcome: Outcome
    kind: str = ""
    """Type of the exception, or what else went wrong. Never text of the program's choice: it can read the tests, and
    would tell the policy of them."""
    place: str | None = None
    """Where in the program the exception was: `src/main.py line 3 in add`."""
    by_assertion: bool = False
    """Whether an assertion of the test failed."""
    compared: tuple[str, str] | None = None
    """The last two values that it found unequal, as their text, where the run was asked to tell."""
    seconds: float = 0.0
    """Between the lines before and after, as they came."""


class _Forged(Exception):
    """A report that the runner does not write."""


def read_report(
    reply: bytes | None, nonce: str, names: Sequence[str], files: Mapping[str, str]
) -> tuple[dict[str, Told], tuple[Outcome, str] | None]:
    """What was said of each test, and why the run does not count, if it does not.

    A place in a program is believed where `files`, what was submitted included, has such a line and name.
    """
    head, _, body = (reply or b"").partition(b"\n")
    try:
        witness = json.loads(head) if head else {}
        if not isinstance(witness, dict) or witness.get("nonce") != nonce:
            return {}, (Outcome.TAMPERED, "the program ended or silenced the process that watches its tests")
        if (lost := _early_end(witness, body)) is not None:
            return {}, lost
        told = _read(witness, body, names)
    except (_Forged, ValueError, RecursionError) as error:
        return {}, (Outcome.TAMPERED, f"a forged report: {error}"[:200])
    return {name: replace(one, place=_believed(one.place, files)) for name, one in told.items()}, None


def _believed(place: str | None, files: Mapping[str, str]) -> str | None:
    match = _PLACE.fullmatch(place or "")
    text = files.get(match[1], "") if match else ""
    there = match is not None and (match[3] in text or match[3] in _PARTS) and int(match[2]) <= text.count("\n") + 1
    return place if there else None


def _early_end(witness: dict[str, object], body: bytes) -> tuple[Outcome, str] | None:
    """Why the process that ran the tests ended before them, if it did."""
    if witness["flood"]:
        return Outcome.OUTPUT_LIMIT, "the report of the tests is too large"
    if b'\n{"finish":' in b"\n" + body:
        return None
    if witness["signal"] is not None:
        limits = {int(signal.SIGXCPU): Outcome.TIME_LIMIT, int(signal.SIGXFSZ): Outcome.DISK_LIMIT}
        outcome = next(
            (found for number, found in limits.items() if number == witness["signal"]), Outcome.RUNTIME_ERROR
        )
        return outcome, f"the process ended by signal {witness['signal']} before its tests did"
    return Outcome.RUNTIME_ERROR, f"the process ended with exit code {witness['exit']} before its tests did"


def _read(witness: dict[str, object], body: bytes, names: Sequence[str]) -> dict[str, Told]:
    """Raises _Forged, and ValueError or RecursionError for lines that are no JSON."""
    lines = [json.loads(line) for line in body.decode("utf-8", "replace").split("\n") if line]
    times = witness["times"]
    if not all(isinstance(line, dict) for line in lines) or not isinstance(times, list):
        raise _Forged("a line that is no object")
    collected = _collected(lines, names)
    phases: dict[str, dict[str, dict[str, object]]] = {name: {} for name in collected}
    seconds: dict[str, float] = {}
    broken: dict[str, Told] = {}
    before = 0.0
    for line, came in zip(lines, times, strict=False):
        if "case" in line:
            name, when = line["case"], line.get("when")
            known = isinstance(name, str) and name in phases and isinstance(when, str) and when in _PHASES
            if not known or when in phases[name]:
                raise _Forged("a test that was not collected, or reported twice")
            phases[name][when] = line
            seconds[name] = seconds.get(name, 0.0) + came - before
        elif "broken" in line and isinstance(line["broken"], str):
            broken[line["broken"]] = _failure(line)
        elif "collected" not in line and line is not lines[-1]:
            raise _Forged("a line of a kind that there is not")
        before = came
    told = {name: _told(phases[name], seconds.get(name, 0.0)) for name in collected}
    for name in names:
        path = name.partition("::")[0]
        if name not in told and path in broken:
            told[name] = broken[path]
    good = set(told) == set(names) and all(one.outcome is Outcome.PASSED for one in told.values())
    code = lines[-1].get("finish")
    if type(code) is not int or code != witness["exit"] or (code == 0) != good:
        raise _Forged("its end does not go with its tests")
    return told


def _collected(lines: Sequence[dict[str, object]], names: Sequence[str]) -> list[str]:
    """The names of the tests that were found, each of them asked for and there once."""
    found = [line["collected"] for line in lines if "collected" in line]
    if len(found) > 1 or not all(isinstance(one, list) for one in found):
        raise _Forged("tests collected twice")
    collected = found[0] if found else []
    assert isinstance(collected, list)
    if len(collected) > len(names) or not all(isinstance(name, str) and name in names for name in collected):
        raise _Forged("tests that nobody asked for")
    if len(set(collected)) != len(collected):
        raise _Forged("a test collected twice")
    return collected


def _told(phases: dict[str, dict[str, object]], seconds: float) -> Told:
    for when in _PHASES:
        line = phases.get(when)
        if line is None:
            if when == "teardown" or "teardown" not in phases:
                return Told(Outcome.RUNTIME_ERROR, "the test did not run to its end", seconds=seconds)
            raise _Forged("a test without its call")
        if line.get("xfail") is not False:
            return Told(Outcome.FAILED_TESTS, "expected to fail, which is no pass", seconds=seconds)
        if line.get("outcome") == "skipped":
            return Told(Outcome.FAILED_TESTS, "skipped, which is no pass", seconds=seconds)
        if line.get("outcome") != "passed":
            return _failure(line, seconds)
    return Told(Outcome.PASSED, seconds=seconds)


def _failure(line: dict[str, object], seconds: float = 0.0) -> Told:
    kind, place = (value if isinstance(value := line.get(key), str) else "" for key in ("kind", "place"))
    outcome = Outcome.FAILED_TESTS if kind in _ASSERTIONS else Outcome.RUNTIME_ERROR
    outcome = Outcome.SYNTAX_ERROR if kind in ("SyntaxError", "IndentationError", "TabError") else outcome
    known = kind in _ASSERTIONS or isinstance(getattr(builtins, kind, None), type)
    match line.get("compared"):
        case [str(left), str(right)]:
            compared = left, right
        case _:
            compared = None
    kind, by_assertion = kind if known else "an exception of the program's own", kind in _ASSERTIONS
    return Told(outcome, kind, place or None, by_assertion, compared, seconds)
