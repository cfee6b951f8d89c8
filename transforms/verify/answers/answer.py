"""From text to an answer: an expression, words, or expressions in some structure, perhaps with a unit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

from transforms.verify.answers import units
from transforms.verify.answers.expression import MAX_DEPTH, read_expression
from transforms.verify.answers.rational import Node, rational, symbols_of
from transforms.verify.answers.tokens import Token, Unreadable, tokens_of


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression as read by us, and the same tokens as LaTeX for another reader."""

    node: Node
    latex: str
    exact: Fraction | None
    """Its value where plain arithmetic gives a rational one."""
    degrees: "Expression | None" = None
    """For `90^\\circ`: the expression without the degree sign."""


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words; letter case and space do not count."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Several values."""

    kind: str
    """`()` and `[]`: in order. `list` (without brackets): in any order. `set`: in any order, equal ones once. `union`:
    of intervals. `column` and `row`: of a matrix. `named`: of `Named` values with different names."""
    items: "tuple[Value, ...]"


@dataclass(frozen=True, slots=True)
class Interval:
    """All real numbers between two ends."""

    low: Expression
    high: Expression
    low_closed: bool
    high_closed: bool
    name: str | None = None
    """The variable, where the interval was written as an inequality."""


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality that is not solved for one variable."""

    op: str
    """`=`, `<`, `>`, `\\le`, `\\ge` or `\\ne`."""
    left: Expression
    right: Expression

    @property
    def latex(self) -> str:
        """As LaTeX."""
        return f"{self.left.latex} {self.op} {self.right.latex}"


@dataclass(frozen=True, slots=True)
class Named:
    """`x = value`."""

    name: str
    value: "Value"
    relation: Relation | None
    """The same as an equation; None where a side is no expression."""


Value = Expression | Words | Group | Interval | Relation | Named


@dataclass(frozen=True, slots=True)
class Answer:
    """A value, and its unit in one spelling."""

    value: Value
    unit: str | None = None


_OPEN = {"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil", "begin"}
_CLOSE = {")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil", "end"}
_RELATIONS = {"=", "<", ">", r"\le", r"\ge", r"\ne", r"\in"}
_MIRRORED = {"=": "=", "<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_ARGUMENTS = {"^": 1, "_": 1, r"\sqrt": 1, r"\frac": 2, r"\binom": 2}
_SPELLED = {"lg": r"\log _ {10}", "asin": r"\arcsin", "acos": r"\arccos", "atan": r"\arctan"}
_SHORT_WORDS = {"no", "yes"}


def read_answer(text: str, *, percent: bool = False) -> Answer:
    """Read a whole answer; nothing of it may be left over. `percent`: one per cent sign at the end does not count.

    Raises Unreadable.
    """
    tokens = tokens_of(text)
    if percent and tokens and tokens[-1].kind == "%":
        tokens = tokens[:-1]
    if not tokens:
        raise Unreadable("an empty answer")
    depths = accumulate((token.kind in _OPEN) - (token.kind in _CLOSE) for token in tokens)
    if max(depths) > MAX_DEPTH:
        raise Unreadable(f"brackets nested deeper than {MAX_DEPTH}")
    if _are_words(tokens):
        return Answer(Words(" ".join(" ".join(token.text for token in tokens).casefold().split())))
    tokens, unit = units.parted(tokens)
    return Answer(_several(tokens), unit)


def _are_words(tokens: Sequence[Token]) -> bool:
    real = [
        token
        for token in tokens
        if token.kind in ("text", "word") and (len(token.text) > 3 or (token.kind == "text" and len(token.text) > 1))
    ]
    short = len(tokens) == 1 and tokens[0].text.lower() in _SHORT_WORDS
    plain = all(token.kind in ("text", "word", "symbol", "-") for token in tokens)
    joins = any(token.text in ("or", "and") for token in tokens)
    return plain and not joins and (bool(real) or short)


def _several(tokens: Sequence[Token]) -> Value:
    """What stands outside of brackets: one item, or a list of them."""
    joined = [  # `1, 2, and 3` has one comma less
        token
        for at, token in enumerate(tokens)
        if token.kind != "," or tokens[at + 1 : at + 2] == [] or tokens[at + 1].text not in ("or", "and")
    ]
    parts, joins = _split(joined, lambda token: token.kind in (",", ";") or token.text in ("or", "and"))
    items = [item for part in parts for item in _items(part)]
    if len(items) == 1:
        return items[0]
    if all(isinstance(item, Interval) and item.name for item in items):
        if "and" in joins:
            raise Unreadable("inequalities joined by `and`: write one chain")
        return Group("union", tuple(items))
    if all(isinstance(item, Named) for item in items):
        named = [item for item in items if isinstance(item, Named)]
        names = {item.name for item in named}
        if len(names) == 1:
            return Group("list", tuple(item.value for item in named))
        if len(names) < len(named):
            raise Unreadable("a name with two values beside another name")
        return Group("named", tuple(sorted(named, key=lambda item: item.name)))
    return Group("list", tuple(items))


def _items(tokens: Sequence[Token]) -> list[Value]:
    """One item, or the two that a plus-minus sign stands for."""
    if not any(token.kind in (r"\pm", r"\mp") for token in tokens):
        return [_item(tokens)]
    upper, lower = {r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}
    return [
        _item([Token(signs[token.kind], signs[token.kind]) if token.kind in signs else token for token in tokens])
        for signs in (upper, lower)
    ]


def _item(tokens: Sequence[Token]) -> Value:
    sides, operators = _split_ordered(tokens, _RELATIONS)
    if operators:
        return _related(sides, operators)
    parts, joins = _split(tokens, lambda token: token.kind == r"\cup")
    if joins:
        return Group("union", tuple(_item(part) for part in parts))
    if [token.kind for token in tokens] == [r"\emptyset"]:
        return Group("set", ())
    if [token.kind for token in tokens] == [r"\R"]:
        return Interval(_infinity("-"), _infinity(), False, False)
    return _bracketed(tokens) or _expression(tokens)


def _bracketed(tokens: Sequence[Token]) -> Value | None:
    """What one pair of brackets around everything makes of its elements; None for an expression."""
    if not tokens or tokens[0].kind not in ("(", "[", r"\{", r"\langle", "begin") or _end(tokens) != len(tokens) - 1:
        return None
    opening, closing, inner = tokens[0].kind, tokens[-1].kind, tokens[1:-1]
    if opening == "begin":
        return _matrix(inner)
    parts, joins = _split(inner, lambda token: token.kind in (",", ";"))
    if opening == r"\{" and closing == r"\}":
        return Group("set", tuple(item for part in parts for item in _items(part)) if inner else ())
    if not joins:
        return None
    items = tuple(_item(part) for part in parts)
    pair = opening + closing
    if pair in ("()", r"\langle\rangle"):
        return Group("()", items)
    if pair == "[]":
        return Group("[]", items)
    low, high = items if len(items) == 2 else (None, None)
    if pair not in ("[)", "(]") or not isinstance(low, Expression) or not isinstance(high, Expression):
        raise Unreadable(f"brackets {opening} {closing} that do not match")
    return Interval(low, high, opening == "[", closing == "]")


def _matrix(tokens: Sequence[Token]) -> Group:
    lines, _ = _split(tokens, lambda token: token.kind == r"\\")
    rows = [_split(line, lambda token: token.kind == "&")[0] for line in lines if line]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("a matrix whose rows differ in length")
    made = [tuple(_expression(cell) for cell in row) for row in rows]
    if len(made[0]) == 1:
        return Group("column", tuple(row[0] for row in made))
    return Group("column", tuple(Group("row", row) for row in made))


def _related(sides: list[Sequence[Token]], operators: list[str]) -> Value:
    if len(operators) == 2 and set(operators) in ({"<"}, {r"\le"}, {"<", r"\le"}, {">"}, {r"\ge"}, {">", r"\ge"}):
        low, middle, high = map(_expression, sides)
        closed = [operator in (r"\le", r"\ge") for operator in operators]
        if operators[0] in (">", r"\ge"):
            low, high, closed = high, low, closed[::-1]
        name = _only_symbol(middle)
        if name is None or symbols_of(low.node) or symbols_of(high.node):
            raise Unreadable("an inequality that says no interval of one variable")
        return Interval(low, high, *closed, name=name)
    if len(operators) > 1:
        raise Unreadable("a chain of equalities or inequalities")
    (left, right), operator = sides, operators[0]
    if operator == r"\in":
        if _name(left) is None:
            raise Unreadable("what stands left of `in` must be a variable")
        return _item(right)
    if operator == "=":
        return _equation(left, right)
    return _inequality(Relation(operator, _expression(left), _expression(right)))


def _equation(left: Sequence[Token], right: Sequence[Token]) -> Value:
    for name, rest in ((_name(left), right), (_name(right), left)):
        if name is not None:
            value = _item(rest)
            plain = isinstance(value, Expression) and "(" not in name
            relation = Relation("=", _expression(left), _expression(right)) if plain else None
            return Named(name, value, relation)
    return Relation("=", _expression(left), _expression(right))


def _inequality(relation: Relation) -> Value:
    """An interval where it is solved for one variable."""
    if _only_symbol(relation.left) is None:
        mirrored = Relation(_MIRRORED[relation.op], relation.right, relation.left)
        solved = mirrored if _only_symbol(mirrored.left) else relation
    else:
        solved = relation
    name, bound = _only_symbol(solved.left), solved.right
    if name is None or symbols_of(bound.node):
        return relation
    below = Interval(_infinity("-"), bound, False, solved.op == r"\le", name)
    above = Interval(bound, _infinity(), solved.op == r"\ge", False, name)
    if solved.op == r"\ne":
        return Group("union", (below, above))
    return below if solved.op in ("<", r"\le") else above


def _expression(tokens: Sequence[Token]) -> Expression:
    node = read_expression(tokens)
    made = Expression(node, latex_of(tokens), rational(node))
    sign, rest = (tokens[0], tokens[1:]) if tokens[0].kind == "-" else (None, tokens)
    inner = read_expression(rest).op if sign else node.op
    if inner == "degree":
        return replace(made, degrees=_expression(tokens[:-1]))
    return made


def latex_of(tokens: Sequence[Token]) -> str:
    """The tokens as plain LaTeX: decimals as fractions, so that no reader rounds them; arguments in braces."""
    out: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        out.append(_latex(token))
        at += 1
        if token.kind == r"\sqrt" and tokens[at].kind == "[":
            end = at + _end(tokens[at:]) + 1
            out.append(latex_of(tokens[at:end]))
            at = end
        for _ in range(_ARGUMENTS.get(token.kind, 0)):
            end = _argument_end(tokens, at, token.kind)
            latex = latex_of(tokens[at:end])
            out.append(latex if tokens[at].kind == "{" else f"{{{latex}}}")
            at = end
    return " ".join(out)


def _latex(token: Token) -> str:
    text, value = token.text, token.value
    if value is not None:
        return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if token.kind == "function":
        return _SPELLED.get(text, rf"\{text}")
    if token.kind == "symbol" and len(text) > 1:
        return rf"\{text}"
    if token.kind in ("text", "word"):
        return " ".join(text)
    return "/" if token.kind == ":" else text


def _argument_end(tokens: Sequence[Token], at: int, of: str) -> int:
    """Where the argument of `of` ends that begins at a token, as `expression` reads it; tokens that it has read."""
    kind = tokens[at].kind
    end = at + 1
    if kind in ("{", "("):
        end = at + _end(tokens[at:]) + 1
    elif kind == r"\sqrt" and tokens[end].kind == "[":
        end += _end(tokens[end:]) + 1
    if kind == "-":
        return _argument_end(tokens, end, of)
    for _ in range(_ARGUMENTS.get(kind, 0)):
        end = _argument_end(tokens, end, kind)
    if of == "^" and kind != "{" and end < len(tokens) and tokens[end].kind == "^":
        return _argument_end(tokens, end + 1, "^")  # a tower
    return end


def _name(tokens: Sequence[Token]) -> str | None:
    """`x`, `x_1`, `f(x)` or `(x, y)`: what a value can be given to."""
    kinds = [token.kind for token in tokens]
    text = "".join(token.text for token in tokens)
    plain = {"symbol", "_", "number", "{", "}", "(", ")", ","}
    if not kinds or not set(kinds) <= plain or "symbol" not in (kinds[0], *kinds[1:2]) or text in ("e", "i", "pi"):
        return None
    if "(" not in kinds:
        return text if kinds == ["symbol"] or kinds[1:2] == ["_"] else None
    applied = kinds[:2] == ["symbol", "("] or kinds[0] == "("
    numbers = any(kind == "number" and kinds[at - 1] not in ("_", "{") for at, kind in enumerate(kinds))
    return text if applied and kinds[-1] == ")" and not numbers and ")" not in kinds[:-1] else None


def _only_symbol(expression: Expression) -> str | None:
    return str(expression.node.value) if expression.node.op == "symbol" else None


def _infinity(sign: str = "") -> Expression:
    node = Node("infinity")
    return Expression(Node("neg", (node,)) if sign else node, rf"{sign} \infty".strip(), None)


def _end(tokens: Sequence[Token]) -> int:
    """Where the bracket closes that the first token opens; -1 if nowhere."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.kind in _OPEN) - (token.kind in _CLOSE)
        if depth == 0:
            return at
    return -1


def _split(tokens: Sequence[Token], parts_at: Callable[[Token], bool]) -> tuple[list[Sequence[Token]], set[str]]:
    """The tokens between separators outside of brackets, and which separators there were."""
    parts: list[Sequence[Token]] = []
    joins: set[str] = set()
    depth = start = 0
    for at, token in enumerate(tokens):
        depth += (token.kind in _OPEN) - (token.kind in _CLOSE)
        if depth == 0 and parts_at(token):
            parts.append(tokens[start:at])
            joins.add(token.text)
            start = at + 1
    return [*parts, tokens[start:]], joins


def _split_ordered(tokens: Sequence[Token], kinds: set[str]) -> tuple[list[Sequence[Token]], list[str]]:
    parts, _ = _split(tokens, lambda token: token.kind in kinds)
    at, operators = 0, []
    for part in parts[:-1]:
        at += len(part)
        operators.append(tokens[at].kind)
        at += 1
    return parts, operators
