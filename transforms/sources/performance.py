"""The field `performance` of a task: inputs that no case has, to measure a correct program on beside the gold."""

from typing import Any

from transforms.sources.kinds.call import Call
from transforms.sources.kinds.stdio import Stdio
from transforms.sources.record import Record, literal_of, value_fields
from transforms.sources.task import Check

FIELDS = {
    "performance": "inputs to time a correct program on beside the gold, once each: a list, of lists of arguments for "
    "the kind `call`, of strings for `stdio`",
    "performance_py": "the same as a Python literal in a string",
}


def read_performance(record: Record, check: Check) -> tuple[Any, ...]:
    """The inputs: for `call`, tuples of arguments; for `stdio`, what is read, str or bytes. Raises TaskFileError."""
    inputs = record.value("performance", required=False)
    if inputs is None:
        return ()
    name = "performance" if "performance" in record.data else "performance_py"
    if record.data.get("gold") is None:
        raise record.error(f"`{name}` without `gold`", "programs are timed beside the gold: give one")
    found: tuple[Any, ...] = tuple(inputs) if isinstance(inputs, list | tuple) else (None,)
    if isinstance(check, Call):
        if not all(isinstance(args, list | tuple) for args in found):
            raise record.must_be(name, "a list of lists of arguments")
        found = tuple(map(tuple, found))
        taken = {literal_of(case.args) for case in check.cases if not case.kwargs}
    elif isinstance(check, Stdio):
        if not all(isinstance(stdin, str | bytes) for stdin in found):
            raise record.must_be(name, "a list of strings")
        taken = {literal_of(case.stdin) for case in check.cases if not case.argv}
    else:
        raise record.error(f"`{name}` is not measured for the kind {check.kind}", "it is for `call` and `stdio`")
    for number, given in enumerate(found, 1):
        if literal_of(given) in taken:
            raise record.error(f"`{name}`: input {number} is that of a case, or of another", "give a fresh one")
        taken.add(literal_of(given))
    return found


def write_performance(inputs: tuple[Any, ...]) -> dict[str, object]:
    """The field of a task's record. Raises ValueError for a value without a literal."""
    listed = [list(given) if isinstance(given, tuple) else given for given in inputs]
    return value_fields("performance", listed) if inputs else {}
