"""Whether two answers are the same, up to the question whether two expressions are: that is asked of a `Judge`.

Declared rules. In order: `(1, 2)`, `[1, 2]`, rows, columns. In any order: `1, 2`, `x = 1 or x = 2`, unions, and
`\\{1, 2\\}`, in which equal elements count once. A list without brackets is also the set or the tuple of its elements,
and a column is also a tuple. `(1, 2)` is also the open interval, `[1, 2]` the closed one, and an inequality solved for
one variable is its interval. `x = 5` is also 5, but not `y = 5`. `90^\\circ` is also 90, and also half of pi. A unit
that one side has alone does not count; units that both have must be the same.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from transforms.verify.answers.answer import Answer, Expression, Group, Interval, Named, Relation, Value, Words
from transforms.verify.answers.rational import Node, symbols_of

_EITHER_WAY = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


class Undecided(Exception):
    """Plain arithmetic cannot tell."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much a number may differ from the expected one: the larger of the two bounds counts."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)
    """Share of the expected value."""

    def allows(self, expected: Fraction, found: Fraction) -> bool:
        """Whether a number is near enough."""
        return abs(found - expected) <= max(self.absolute, self.relative * abs(expected))


class Judge(Protocol):
    """Says whether two expressions, or two relations, mean the same. Expected first."""

    def equal(self, left: Expression, right: Expression) -> bool:
        """Whether two expressions are equal wherever both have a value."""
        ...

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """Whether two relations hold at the same places."""
        ...


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Decides what plain arithmetic can, and raises Undecided for the rest."""

    tolerance: Tolerance | None = None

    def equal(self, left: Expression, right: Expression) -> bool:
        """Compare two rational values exactly or within the tolerance; the same text is the same value."""
        if left.exact is not None and right.exact is not None:
            near = self.tolerance is not None and self.tolerance.allows(left.exact, right.exact)
            return near or left.exact == right.exact
        if infinite(left.node) or infinite(right.node):
            return left.node == right.node
        if left.node == right.node:
            return True
        raise Undecided

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """Compare the texts."""
        if left == right:
            return True
        raise Undecided


@dataclass(frozen=True, slots=True)
class After:
    """Asks one judge what arithmetic leaves open."""

    judge: Judge
    tolerance: Tolerance | None = None

    def equal(self, left: Expression, right: Expression) -> bool:
        """See `Judge`."""
        try:
            return Arithmetic(self.tolerance).equal(left, right)
        except Undecided:
            return self.judge.equal(left, right)

    def equivalent(self, left: Relation, right: Relation) -> bool:
        """See `Judge`."""
        return left == right or self.judge.equivalent(left, right)


def infinite(node: Node) -> bool:
    """Whether an expression is infinity or minus infinity."""
    return node.op == "infinity" or (node.op == "neg" and node.args[0].op == "infinity")


def scaled(left: Relation, right: Relation, sign: int) -> bool:
    """Whether two relations are the same, given that one is the other times a number other than 0, and its sign.

    The sign is 0 for a complex number. A negative one turns an inequality round.
    """
    return left.op in ("=", r"\ne") or sign == (1 if left.op == right.op else -1)


def same_answer(expected: Answer, found: Answer, judge: Judge) -> bool:
    """Compare two answers by the rules above. Raises what the judge raises."""
    if expected.unit and found.unit and expected.unit != found.unit:
        return False
    return _same(expected.value, found.value, judge)


def _same(left: Value, right: Value, judge: Judge) -> bool:
    match left, right:
        case Expression(), Expression():
            return _same_expression(left, right, judge)
        case Words(), Words():
            return left == right
        case Named(), Named():
            if left.name == right.name:
                return _same(left.value, right.value, judge)
            return _relations(left.relation, right.relation, judge)
        case Named(), Relation():
            # Asked for the number, an equation is not it: that of the prompt is `x = 3` times a number, too.
            return not _is_number(left.value) and _relations(left.relation, right, judge)
        case Relation(), Named():
            return _relations(left, right.relation, judge)
        case Named(), _:
            return _same(left.value, right, judge)
        case _, Named():
            return _same(left, right.value, judge)
        case Relation(), Relation():
            return _relations(left, right, judge)
        case Group(), Group():
            return _same_group(left, right, judge)
        case Interval(), Interval():
            return _same_interval(left, right, judge)
        case Interval(), Group():
            return _is_interval(right, left, judge)
        case Group(), Interval():
            return _is_interval(left, right, judge)
    return False


def _is_number(value: Value) -> bool:
    return isinstance(value, Expression) and not symbols_of(value.node)


def _same_expression(left: Expression, right: Expression, judge: Judge) -> bool:
    if left.degrees and right.degrees:
        return judge.equal(left.degrees, right.degrees)
    if left.degrees or right.degrees:
        return judge.equal(left.degrees or left, right.degrees or right) or judge.equal(left, right)
    return judge.equal(left, right)


def _relations(left: Relation | None, right: Relation | None, judge: Judge) -> bool:
    if left is None or right is None:
        return False
    kinds = {left.op, _EITHER_WAY.get(left.op, left.op)}
    return right.op in kinds and judge.equivalent(left, right)


def _same_group(left: Group, right: Group, judge: Judge) -> bool:
    kinds = {left.kind, right.kind}
    if kinds == {"set"}:
        return _same_items(_distinct(left.items, judge), _distinct(right.items, judge), judge)
    if kinds == {"set", "list"}:
        return _same_items(left.items, right.items, judge)
    if kinds in ({"list"}, {"union"}):
        return _same_items(left.items, right.items, judge)
    named = kinds == {"named", "()"}
    if named or len(kinds) == 1 or kinds in ({"()", "list"}, {"()", "column"}):
        return len(left.items) == len(right.items) and all(
            _same(a, b, judge) for a, b in zip(left.items, right.items, strict=True)
        )
    return False


def _same_items(left: tuple[Value, ...], right: tuple[Value, ...], judge: Judge) -> bool:
    """Whether each item of one side has its own equal on the other."""
    if len(left) != len(right):
        return False
    rest = list(right)
    for item in left:
        at = next((at for at, other in enumerate(rest) if _same(item, other, judge)), None)
        if at is None:
            return False
        del rest[at]
    return True


def _distinct(items: tuple[Value, ...], judge: Judge) -> tuple[Value, ...]:
    kept: list[Value] = []
    for item in items:
        if not any(_same(item, other, judge) for other in kept):
            kept.append(item)
    return tuple(kept)


def _same_interval(left: Interval, right: Interval, judge: Judge) -> bool:
    if left.name and right.name and left.name != right.name:
        return False
    closed = (left.low_closed, left.high_closed) == (right.low_closed, right.high_closed)
    return closed and _same(left.low, right.low, judge) and _same(left.high, right.high, judge)


def _is_interval(group: Group, interval: Interval, judge: Judge) -> bool:
    """`(a, b)` as the open interval, `[a, b]` as the closed one."""
    if group.kind not in ("()", "[]") or len(group.items) != 2:
        return False
    low, high = group.items
    if not isinstance(low, Expression) or not isinstance(high, Expression):
        return False
    closed = group.kind == "[]"
    return _same_interval(Interval(low, high, closed, closed), replace(interval, name=None), judge)
