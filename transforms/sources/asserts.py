"""Turn a test's asserts into data: which call, which value. Nothing of the test is executed.

`assert f(1, [2]) == 3` becomes the arguments `(1, [2])` and the expected value `3`. What an assert says beyond "this
call returns this value" has no place in a case: such a test cannot be compiled, and the error says why.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from typing import TypeGuard

from transforms.sources.task import Case

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
            call, expected = _call_and_value(statement.test, function)
            cases.append(_case(call, expected, name=f"case-{len(cases) + 1}"))
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


def _call_and_value(test: ast.expr, function: str) -> tuple[ast.Call, ast.expr]:
    """Split an assert's condition into the call and the expression it must equal."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_call(test.operand, function):
        return test.operand, ast.Constant(False)
    if _is_call(test, function):
        return test, ast.Constant(True)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, operation, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operation, ast.Lt | ast.LtE) and _is_call(left, "abs") and _calls(left, function):
            raise CannotCompile("compares within a tolerance, and there is no kind of case for that yet")
        same = isinstance(operation, ast.Eq) or (isinstance(operation, ast.Is) and _is_singleton(right))
        if same and _is_call(left, function):
            return left, right
        if same and _is_call(right, function):
            return right, left
    raise CannotCompile(f"is not of the form `{function}(...) == value`")


def _case(call: ast.Call, expected: ast.expr, *, name: str) -> Case:
    kwargs = {}
    for argument in call.keywords:
        if argument.arg is None:
            raise CannotCompile("`**` in a call is not a literal")
        kwargs[argument.arg] = fold(argument.value)
    return Case(name=name, args=tuple(fold(argument) for argument in call.args), expected=fold(expected), kwargs=kwargs)


def _is_call(node: ast.expr, function: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def _calls(node: ast.expr, function: str) -> bool:
    return any(isinstance(part, ast.expr) and _is_call(part, function) for part in ast.walk(node))


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
