"""The kind `math`: a final answer is compared with the expected one, as mathematics."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, get_args

from transforms.sources.record import Record
from transforms.sources.task import Integrity, Tier
from transforms.verify.answers.answer import read_answer
from transforms.verify.answers.final import Format
from transforms.verify.answers.same import Tolerance
from transforms.verify.answers.tokens import Unreadable

FIELDS = {
    "answer": "the expected final answer, LaTeX or plain: a string",
    "format": 'where a completion gives its answer: "boxed", "answer_tag", "hash" or "last_line"',
    "percent": "whether a per cent sign at the end of an answer does not count: true or false",
    "tolerance": "by how much a number may differ: an object with `absolute`, `relative` or both",
}
CASE_FIELDS: dict[str, str] = {}
_TOLERANCE_FIELDS = {
    "absolute": "the largest difference allowed: a number",
    "relative": "the largest difference allowed, as a share of the expected number: a number",
}


@dataclass(frozen=True, slots=True)
class Case:
    """The comparison of the answer."""

    name: str = "answer"
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class Math:
    """Give one final answer."""

    kind: ClassVar[str] = "math"
    integrity: ClassVar[Integrity] = "split"
    language: ClassVar[None] = None
    cases: ClassVar[tuple[Case, ...]] = (Case(),)

    answer: str
    format: Format = "boxed"
    percent: bool = False
    """`50%` and `50` are the same answer; otherwise `50%` is one half."""
    tolerance: Tolerance | None = None
    """Only with one are numbers compared within it; otherwise exactly."""


def read(record: Record) -> Math:
    """Read the kind's fields of a task. Raises TaskFileError, also for an answer that cannot be read."""
    answer, percent = record.full_text("answer"), record.flag("percent")
    if record.data.get("unsupported") is None:
        try:
            read_answer(answer, percent=percent)
        except Unreadable as error:
            hint = r"write it in the notation of docs/tasks.md, words as \text{...}; or say `unsupported`"
            raise record.error(f"`answer` cannot be read as mathematics: {error}", hint) from error
    return Math(answer, record.one_of("format", get_args(Format), "boxed"), percent, _tolerance(record))


def write(check: Math) -> dict[str, object]:
    """The kind's fields of a task's record."""
    tolerance = check.tolerance
    bounds = {"absolute": tolerance.absolute, "relative": tolerance.relative} if tolerance else {}
    optional = {
        "format": "" if check.format == "boxed" else check.format,
        "percent": check.percent,
        "tolerance": {name: float(bound) for name, bound in bounds.items() if bound},
    }
    return {"answer": check.answer} | {name: value for name, value in optional.items() if value}


def describe(check: Math, case: Case) -> str:
    """What the case asks for, in a line, for the task's author."""
    return f"the answer must be {check.answer}"


def _tolerance(record: Record) -> Tolerance | None:
    given = record.inner("tolerance", _TOLERANCE_FIELDS)
    if given is None:
        return None
    # As the decimal fraction that was written, not its nearest binary one: 0.1 allows exactly 0.1.
    bounds = {name: Fraction(Decimal(repr(given.number(name, 0.0)))) for name in _TOLERANCE_FIELDS}
    if not any(bounds.values()):
        raise record.must_be("tolerance", "above 0 in `absolute` or `relative`; leave it out for none")
    return Tolerance(**bounds)
