"""Turn a test's asserts into data: which call, which value. Nothing of the test is executed.

`assert f(1, [2]) == 3` becomes the arguments `(1, [2])` and the expected value `3`; `abs(f(1) - 0.5) < 1e-6` a value
with a tolerance; `tuple(f(1)) == tuple([2])` one for which a tuple counts as a list. What an assert says beyond has no
place in a case: such a test cannot be compiled, and the error says why.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

from transforms.sources.kinds.call import Case, Tolerance

_MAX_SIZE = 100_000
"""Most items and characters a folded value may hold: a test must not be able to fill the host's memory."""
_MAX_BITS = 4096
"""Most bits of a folded integer."""

_UNARY: dict[type[ast.unaryop], Callable] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_BINARY: dict[type[ast.operator], Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class CannotCompile(Exception):
    """A test that says more than "this call returns this value". Its text is the reason, for people."""


def compile_asserts(statements: Sequence[ast.stmt], function: str) -> tuple[Case, ...]:
    """The cases that a test's statements come to, named `case-1`, `case-2`, ... in order, all hidden.

    `function` is the name the test calls. Raises CannotCompile when any statement is more than data, or none is a case.
    """
    cases: list[Case] = []
    for statement in statements:
        if _has_no_effect(statement):
            continue
        if not isinstance(statement, ast.Assert):
            raise CannotCompile(
                f"line {statement.lineno} of the test: {_first_line(statement)!r} would have to be executed"
            )
        try:
            cases.append(replace(_case(statement.test, function), name=f"case-{len(cases) + 1}"))
        except CannotCompile as error:
            raise CannotCompile(
                f"line {statement.lineno} of the test: {_first_line(statement.test)!r}: {error}"
            ) from error
    if not cases:
        raise CannotCompile(f"no assert calls `{function}`")
    return tuple(cases)


def fold(node: ast.expr) -> object:
    """The value of an expression made of literals, containers and arithmetic. Raises CannotCompile for any other."""
    if isinstance(node, ast.Constant) and type(node.value) in (type(None), bool, int, float, str, bytes):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [fold(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items) if isinstance(node, ast.Tuple) else _hashed(items)
    if isinstance(node, ast.Dict):
        _hashed([fold(key) for key in node.keys if key is not None])
        return {_key(key): fold(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp):
        operand = fold(node.operand)
        return _computed(node, lambda: _UNARY[type(node.op)](operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = fold(node.left), fold(node.right)
        _bound(node.op, left, right)
        return _computed(node, lambda: _BINARY[type(node.op)](left, right))
    raise CannotCompile(f"{ast.unparse(node)} is not a literal")


def _has_no_effect(statement: ast.stmt) -> bool:
    """`pass`, a docstring, a bare name, `assert True`: statements that say nothing about the function."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant | ast.Name)
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and bool(statement.test.value)
    return isinstance(statement, ast.Pass)


def _case(test: ast.expr, function: str) -> Case:
    """The case, still without a name, that an assert's condition comes to."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_call(test.operand, function):
        return _of(test.operand, False)
    if _is_call(test, function):
        return _of(test, True)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, operation, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operation, ast.Lt | ast.LtE) and _is_call(left, "abs") and len(left.args) == 1:
            return _near(left.args[0], right, function)
        same = isinstance(operation, ast.Eq) or (isinstance(operation, ast.Is) and _is_singleton(right))
        for call, value in ((left, right), (right, left)) if same else ():
            if _is_call(call, function):
                return _of(call, fold(value))
            if (
                _is_tuple_of(call)
                and _is_call(call.args[0], function)
                and (_is_tuple_of(value) or isinstance(value, ast.Tuple))
            ):
                return replace(
                    _of(call.args[0], fold(value.args[0] if _is_tuple_of(value) else value)), sequences="any"
                )
    raise CannotCompile(f"is not of the form `{function}(...) == value`")


def _near(difference: ast.expr, bound: ast.expr, function: str) -> Case:
    """The case of `abs(f(...) - value) < bound`."""
    if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub):
        for call, value in ((difference.left, difference.right), (difference.right, difference.left)):
            if _is_call(call, function):
                expected, off = fold(value), fold(bound)
                if isinstance(expected, int | float) and isinstance(off, int | float) and off > 0:
                    return replace(_of(call, float(expected)), tolerance=Tolerance(absolute=float(off)))
    raise CannotCompile(f"is not of the form `abs({function}(...) - number) < number`")


def _of(call: ast.Call, expected: object) -> Case:
    kwargs = {}
    for argument in call.keywords:
        if argument.arg is None:
            raise CannotCompile("`**` in a call is not a literal")
        kwargs[argument.arg] = fold(argument.value)
    return Case(name="", args=tuple(fold(argument) for argument in call.args), expected=expected, kwargs=kwargs)


def _is_tuple_of(node: ast.expr) -> TypeGuard[ast.Call]:
    return _is_call(node, "tuple") and len(node.args) == 1 and not node.keywords


def _is_call(node: ast.expr, function: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _key(node: ast.expr | None) -> object:
    if node is None:
        raise CannotCompile("`**` in a dict is not a literal")
    return fold(node)


def _hashed(items: list[object]) -> set[object]:
    try:
        return set(items)
    except TypeError as error:
        raise CannotCompile(str(error)) from error


def _computed(node: ast.expr, compute: Callable[[], object]) -> object:
    try:
        value = compute()
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CannotCompile(f"{ast.unparse(node)}: {error}") from error
    if isinstance(value, complex):
        raise CannotCompile(f"{ast.unparse(node)} is complex")
    return value


def _bound(operation: ast.operator, left: object, right: object) -> None:
    """Refuse, before it is computed, what would be too large, and formatting, whose width has no bound."""
    if isinstance(operation, ast.Mod) and isinstance(left, str | bytes):
        raise CannotCompile("string formatting is not a literal")
    if isinstance(operation, ast.Mult):
        times = left if isinstance(left, int) else right if isinstance(right, int) else 1
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            if max(_size(left), _size(right)) * times > _MAX_SIZE:
                raise CannotCompile(f"a value of more than {_MAX_SIZE} items")
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
            raise CannotCompile(f"an integer of more than {_MAX_BITS} bits")
    if isinstance(operation, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * abs(right) > _MAX_BITS:
            raise CannotCompile(f"an integer of more than {_MAX_BITS} bits")


def _size(value: object) -> int:
    """Items and characters in a value, at every depth."""
    if isinstance(value, str | bytes):
        return max(len(value), 1)
    if isinstance(value, dict):
        return 1 + sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list | tuple | set):
        return 1 + sum(map(_size, value))
    return 1


def _first_line(node: ast.AST) -> str:
    line = ast.unparse(node).split("\n")[0]
    return line if len(line) <= 80 else f"{line[:77]}..."
