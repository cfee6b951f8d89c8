"""Every kind of check by its name in a task file. A new kind is a module here and one in `transforms/verify`."""

from types import ModuleType

from transforms.sources.kinds import call, files, math, repository, sql, state, stdio

KINDS: dict[str, ModuleType] = {
    "call": call,
    "stdio": stdio,
    "sql": sql,
    "files": files,
    "state": state,
    "pytest": repository,
    "math": math,
}
"""Each has FIELDS, CASE_FIELDS, `read` (a Record to a check), `write` (a check to fields of a record) and `describe`
(a check and one of its cases to a line for the author)."""
