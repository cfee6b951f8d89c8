"""The declared rules by which a returned value is right. Both values are plain data: see `values`."""

import math
from dataclasses import dataclass

from transforms.sources.kinds.call import Call, Case, Tolerance
from transforms.verify import values


@dataclass(frozen=True, slots=True)
class Rule:
    """What may differ between a returned value and the expected one; by default nothing, types included."""

    tolerance: Tolerance | None = None
    tuples_as_lists: bool = False
    one_number_type: bool = False
    """An int and a float of equal value are the same, as in JavaScript."""


def rule_of(check: Call, case: Case) -> Rule:
    """The rule of a case: what it does not say itself, its task says."""
    javascript = check.language == "javascript"
    return Rule(
        tolerance=case.tolerance or check.tolerance,
        tuples_as_lists=javascript or (case.sequences or check.sequences) == "any",
        one_number_type=javascript,
    )


def matches(returned: object, expected: object, rule: Rule) -> bool:
    """Whether a returned value is the expected one under a rule.

    A tolerance is for numbers where a float is expected, at any depth but in members of sets and keys of dicts, which
    are compared exactly: a returned int or float is right within `max(absolute, relative * abs(expected))`. nan is
    right for nan only, an infinity for itself only.
    """
    plain, wanted = normal(returned, rule), normal(expected, rule)
    if rule.tolerance is None:
        return values.equal(plain, wanted)
    # Under one number type, whole floats have become ints: they too are within the tolerance.
    numbers = (int, float) if rule.one_number_type else (float,)
    return _near(plain, wanted, rule.tolerance, numbers)


def normal(value: object, rule: Rule) -> object:
    """A value in the form in which the rule compares it: what it does not tell apart is equal there."""
    if isinstance(value, list | tuple):
        items = [normal(item, rule) for item in value]
        return tuple(items) if isinstance(value, tuple) and not rule.tuples_as_lists else items
    if isinstance(value, dict):
        return {_number(key, rule): normal(item, rule) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return type(value)(_number(item, rule) for item in value)
    return _number(value, rule)


def _number(value: object, rule: Rule) -> object:
    if rule.one_number_type and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _near(returned: object, expected: object, tolerance: Tolerance, numbers: tuple[type, ...]) -> bool:
    if type(expected) in numbers:
        return type(returned) in (int, float) and _within(returned, expected, tolerance)  # ty: ignore[invalid-argument-type]
    if type(expected) is complex:
        return type(returned) is complex and all(
            _within(left, right, tolerance)
            for left, right in ((returned.real, expected.real), (returned.imag, expected.imag))
        )
    if type(returned) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        assert isinstance(returned, list | tuple)
        return len(returned) == len(expected) and all(
            _near(left, right, tolerance, numbers) for left, right in zip(returned, expected, strict=True)
        )
    if isinstance(expected, dict):
        assert isinstance(returned, dict)
        ours = {values.encode(key): item for key, item in returned.items()}
        return len(returned) == len(expected) and all(
            values.encode(key) in ours and _near(ours[values.encode(key)], item, tolerance, numbers)
            for key, item in expected.items()
        )
    return values.equal(returned, expected)


def _within(returned: float, expected: float, tolerance: Tolerance) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return returned == expected or (returned != returned and expected != expected)
    try:
        off = abs(returned - expected)
    except OverflowError:  # an int too large for a float
        return False
    return off <= max(tolerance.absolute, tolerance.relative * abs(expected))
