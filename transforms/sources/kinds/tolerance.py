"""How far a number may be off, for every kind that compares numbers."""

from dataclasses import dataclass

from transforms.sources.record import Record

_FIELDS = {
    "absolute": "largest difference: a number",
    "relative": "largest difference as a share of the expected number's size: a number",
}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A number may be off by the larger of `absolute` and `relative` times the size of the expected number."""

    absolute: float = 0.0
    relative: float = 0.0

    def within(self, number: float, expected: float) -> bool:
        """Whether a number is near enough to the expected one; both must be finite."""
        return abs(number - expected) <= max(self.absolute, self.relative * abs(expected))


def tolerance(record: Record) -> Tolerance | None:
    """The tolerance in the field `tolerance`, or None where it is absent. Raises TaskFileError."""
    given = record.inner("tolerance", _FIELDS)
    if given is None:
        return None
    found = Tolerance(given.number("absolute", 0.0) or 0.0, given.number("relative", 0.0) or 0.0)
    if found == Tolerance():
        raise given.error("neither `absolute` nor `relative` is above 0", "give one of them, or leave `tolerance` out")
    return found


def tolerance_field(found: Tolerance | None) -> dict[str, object]:
    """The field of a record that holds a tolerance; none where there is none."""
    if found is None:
        return {}
    both = {"absolute": found.absolute, "relative": found.relative}
    return {"tolerance": {name: value for name, value in both.items() if value}}
