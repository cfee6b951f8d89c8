"""From tokens to one expression.

What is read: sums, products (`2x`, `ab`), quotients, powers, roots, factorials, binomials, absolute values, floors and
the functions of `tokens.FUNCTIONS`. `1/2x` is half of x, `\\sin 2x` is the sine of 2x, `1\\frac{1}{2}` and `1 1/2` are
one and a half, `\\log` is to base 10, `2516_8` is in base 8, an odd root of a negative number is real.
"""

from collections.abc import Sequence
from fractions import Fraction

from transforms.verify.answers.rational import Node, rational
from transforms.verify.answers.tokens import Token, Unreadable

MAX_DEPTH = 40
"""Brackets, functions or exponents within one another."""

_MAX_HEIGHT = 200  # of an expression, with a step for each further term or factor
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_LONG = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_CONSTANTS = {"e", "i", "pi"}
_MIXED_TOKENS = 3  # of `1/2` after a whole number


def read_expression(tokens: Sequence[Token]) -> Node:
    """Read all the tokens as one expression. Raises Unreadable."""
    if not tokens:
        raise Unreadable("nothing where an expression should be")
    reader = _Reader(tokens)
    node = reader.sum()
    if reader.at < len(tokens):
        raise Unreadable(f"{tokens[reader.at].text!r} has no place here")
    if _height(node) > _MAX_HEIGHT:
        raise Unreadable("an expression of too many parts")
    return node


def _height(node: Node) -> int:
    height, level = 0, (node,)
    while level:
        height, level = height + 1, tuple(part for above in level for part in above.args)
    return height


class _Reader:
    """A position in tokens nobody vouches for."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].kind if at < len(self.tokens) else ""

    def take(self, *kinds: str) -> Token:
        if self.peek() not in kinds:
            found = f"{self.tokens[self.at].text!r}" if self.at < len(self.tokens) else "the end"
            raise Unreadable(f"{' or '.join(kinds)} expected, not {found}")
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> Node:
        node = self.product()
        while self.peek() in ("+", "-"):
            sign = self.take("+", "-").kind
            right = self.product()
            node = Node("+", (node, right if sign == "+" else Node("neg", (right,))))
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            if self.peek() in ("*", "/", ":"):
                op = self.take("*", "/", ":").kind
                node = Node("*" if op == "*" else "/", (node, self.signed()))
                if op != "*" and self.tokens[self.at - 1].kind == "%":
                    raise Unreadable("a per cent sign behind a quotient can be read in two ways")
            elif self.starts_factor():
                node = Node("*", (node, self.power()))
            else:
                return node

    def starts_factor(self) -> bool:
        """Whether what comes next multiplies what stands before it, without a sign between them."""
        kind = self.peek()
        if kind == "number":
            return self.tokens[self.at - 1].kind == ")"
        if kind == "|":
            return not self.bars
        return kind in ("symbol", "word", "text", "function", "(", "{") or kind in _COMMANDS

    def signed(self) -> Node:
        signs = 0
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take("+", "-").kind == "-"
            signs += 1
        if signs > 2:
            raise Unreadable("three signs in a row")
        node = self.power()
        return Node("neg", (node,)) if negative else node

    def power(self) -> Node:
        base = self.postfix()
        if self.peek() != "^":
            return base
        node = Node("^", (base, self.exponent()))
        if self.peek() in ("!", "degree"):
            raise Unreadable(f"{self.peek()} after a power can be read in two ways")
        return node

    def exponent(self) -> Node:
        self.take("^")
        if self.peek() == "{":
            return self.group()
        negative = self.peek() == "-" and bool(self.take("-"))
        node = self.primary()
        if self.peek() == "^":
            self.depth += 1  # of towers without braces, which do not come back here through `primary`
            node = Node("^", (node, self.exponent()))
            self.depth -= 1
        return Node("neg", (node,)) if negative else node

    def postfix(self) -> Node:
        node = self.primary()
        while self.peek() in ("!", "degree", "%"):
            mark = self.take("!", "degree", "%").kind
            node = Node("/", (node, Node("number", value=Fraction(100)))) if mark == "%" else Node(mark, (node,))
        return node

    def group(self) -> Node:
        """An argument in braces, or one short token."""
        if self.peek() == "{":
            self.take("{")
            node = self.sum()
            self.take("}")
            return node
        token = self.take("number", "symbol")
        if token.kind == "number" and len(token.text) > 1:
            raise Unreadable(f"braces are needed around {token.text}")
        self.at -= 1
        return self.primary()

    def primary(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}")
        node = self.atom()
        self.depth -= 1
        return node

    def atom(self) -> Node:
        kind = self.peek()
        if kind == "number":
            return self.number()
        if kind in ("symbol", "text", "word"):
            return self.name()
        if kind == "function":
            return self.function()
        if kind in _COMMANDS:
            return _COMMANDS[kind](self)
        if kind == "{":
            return self.group()
        self.take("(", "|")
        if kind == "|":
            self.bars += 1
            if self.bars > 1:
                raise Unreadable("bars within bars")
        node = self.sum()
        self.take(")" if kind == "(" else "|")
        self.bars -= kind == "|"
        return Node("abs", (node,)) if kind == "|" else node

    def number(self) -> Node:
        token = self.take("number")
        value = token.value
        if value is None or (self.peek() == "number" and not self.mixed(0)):
            raise Unreadable("two numbers side by side")
        if self.peek() == "_":
            value = self.in_base(token)
        elif token.text.isdigit() and (self.mixed(0) or self.peek() == r"\frac"):
            before, part = self.at, self.fraction()
            if part is not None and 0 < part < 1:
                return Node("number", value=value + part)
            self.at = before
        return Node("number", value=value)

    def mixed(self, ahead: int) -> bool:
        """Whether `1/2` comes next: after a whole number, the rest of a mixed number."""
        return [self.peek(ahead + n) for n in range(_MIXED_TOKENS)] == ["number", "/", "number"]

    def fraction(self) -> Fraction | None:
        """The value of a fraction of two whole numbers, where one comes next."""
        if self.mixed(0):
            above, _, below = self.tokens[self.at : self.at + _MIXED_TOKENS]
            self.at += _MIXED_TOKENS
            whole = above.text.isdigit() and below.text.isdigit() and below.value
            if not whole:
                raise Unreadable("two numbers side by side")
            return Fraction(above.text) / Fraction(below.text)
        node = self.frac()
        plain = all(part.op == "number" for part in node.args)
        return rational(node) if plain else None

    def in_base(self, token: Token) -> Fraction:
        self.take("_")
        base = rational(self.group_of_number())
        if base is None or base.denominator != 1 or not 2 <= base <= 10 or not token.text.isdigit():
            raise Unreadable("the base of a number must be 2 to 10")
        try:
            return Fraction(int(token.text, int(base)))
        except ValueError:
            raise Unreadable(f"{token.text} is no number in base {base}") from None

    def group_of_number(self) -> Node:
        if self.peek() == "{":
            return self.group()
        return Node("number", value=self.take("number").value)

    def name(self) -> Node:
        token = self.take("symbol", "text", "word")
        name = token.text
        if token.kind == "word" and len(name) <= 3:
            node = _symbol(name[0])
            for letter in name[1:]:
                node = Node("*", (node, _symbol(letter)))
            return node
        if token.kind != "symbol" and len(name) > 1:
            raise Unreadable(f"the words {name!r} in an expression")
        if self.peek() != "_":
            return _symbol(name)
        self.take("_")
        if self.peek() == "{":
            start = self.at
            self.group()
            label = "".join(part.text for part in self.tokens[start + 1 : self.at - 1])
        else:
            label = self.take("number", "symbol").text
        return Node("symbol", value=f"{name}_{label}")

    def function(self) -> Node:
        name = self.take("function").text
        name = _LONG.get(name, name)
        if name in ("max", "min"):
            return self.of_several(name)
        base = Node("number", value=Fraction(10))
        if self.peek() == "_" and name == "log":
            self.take("_")
            base = self.group_of_number() if self.peek() in ("{", "number") else self.primary()
        exponent = self.exponent() if self.peek() == "^" else None
        if exponent is not None and rational(exponent) == -1:
            if name not in _INVERSE:
                raise Unreadable(f"{name} to the power -1 can be read in two ways")
            name, exponent = _INVERSE[name], None
        argument = self.argument()
        if name in ("log", "lg"):
            node = Node("/", (Node("ln", (argument,)), Node("ln", (base,))))
        elif name == "sqrt":
            node = Node("root", (Node("number", value=Fraction(2)), argument))
        else:
            node = Node(name, (argument,))
        return node if exponent is None else Node("^", (node, exponent))

    def of_several(self, name: str) -> Node:
        closing = {"(": ")", r"\{": r"\}"}[self.take("(", r"\{").kind]
        node = self.sum()
        while self.peek() == ",":
            self.take(",")
            node = Node(name, (node, self.sum()))
        self.take(closing)
        return node

    def argument(self) -> Node:
        """Of a function: what stands in brackets, or the factors that follow it."""
        if self.peek() in ("(", "{"):
            closing = {"(": ")", "{": "}"}[self.take("(", "{").kind]
            node = self.sum()
            self.take(closing)
            return node
        node = self.power()
        while self.starts_factor() and self.peek() not in ("function", "("):
            node = Node("*", (node, self.power()))
        return node

    def frac(self) -> Node:
        self.take(r"\frac")
        return Node("/", (self.group(), self.group()))

    def binom(self) -> Node:
        self.take(r"\binom")
        return Node("binom", (self.group(), self.group()))

    def root(self) -> Node:
        self.take(r"\sqrt")
        degree = Node("number", value=Fraction(2))
        if self.peek() == "[":
            self.take("[")
            degree = self.sum()
            self.take("]")
        if self.peek() == "(":
            return Node("root", (degree, self.argument()))
        return Node("root", (degree, self.group()))

    def rounded(self) -> Node:
        opening = self.take(r"\lfloor", r"\lceil").kind
        node = self.sum()
        self.take(opening.replace(r"\l", r"\r"))
        return Node("floor" if opening == r"\lfloor" else "ceil", (node,))

    def infinity(self) -> Node:
        self.take(r"\infty")
        return Node("infinity")


def _symbol(name: str) -> Node:
    return Node(name) if name in _CONSTANTS else Node("symbol", value=name)


_COMMANDS = {
    r"\frac": _Reader.frac,
    r"\binom": _Reader.binom,
    r"\sqrt": _Reader.root,
    r"\lfloor": _Reader.rounded,
    r"\lceil": _Reader.rounded,
    r"\infty": _Reader.infinity,
}
