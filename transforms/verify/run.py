"""Run what was submitted against a task's check, whatever its kind."""

from collections.abc import Awaitable, Callable
from typing import Any

from sandboxes.protocol import SandboxProvider, SandboxRequest
from transforms.episode import CaseReport
from transforms.sources.task import Task
from transforms.verify.call import run_call
from transforms.verify.files import run_files
from transforms.verify.math import run_math
from transforms.verify.repository import run_repository
from transforms.verify.sql import run_sql
from transforms.verify.state import run_state
from transforms.verify.stdio import run_stdio

Verifier = Callable[[SandboxProvider, Any, str, SandboxRequest], Awaitable[CaseReport]]

VERIFIERS: dict[str, Verifier] = {
    "call": run_call,
    "stdio": run_stdio,
    "sql": run_sql,
    "files": run_files,
    "state": run_state,
    "pytest": run_repository,
    "math": run_math,
}
"""Every kind of check: how it is run. Each raises SandboxError when the host failed, and nothing for what a program
did; any other exception is a fault of the grader."""


async def run_check(sandbox: SandboxProvider, task: Task, program: str, request: SandboxRequest) -> CaseReport:
    """One result a case of the task, in their order, and what the sandboxes used.

    `request` says what sandboxes, with what limits. Raises SandboxError when the host failed.
    """
    if not task.cases:
        raise ValueError(f"task {task.task_id} has no cases, so it proves nothing about a program")
    return await VERIFIERS[task.check.kind](sandbox, task.check, program, request)
