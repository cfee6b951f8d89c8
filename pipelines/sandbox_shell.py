"""A shell in the environment of a task, for people who debug tasks."""

import asyncio
import os
import sys
from pathlib import Path

from pipelines.explain import UsageError, did_you_mean
from sandboxes.backends.choose import backend_of
from sandboxes.limits import Limits, SandboxSpec
from sandboxes.protocol import Command, File, SandboxRequest
from sandboxes.terminal import run_attached
from transforms.sources.builtin import load_tasks
from transforms.sources.kinds.call import Call
from transforms.sources.kinds.kinds import KINDS
from transforms.sources.task import Task

LIMITS = Limits(
    wall_time_s=3600, cpu_time_s=3600, memory_mib=2048, processes=512, disk_mib=1024, file_mib=1024, inodes=100_000
)
"""Roomier than an episode's. Wall time is not limited; CPU time is that of one process."""

_SHELL = "if command -v bash >/dev/null; then exec bash --norc -i; else exec sh -i; fi"
_SHELL_FOR_PIPES = "if command -v bash >/dev/null; then exec bash --norc; else exec sh; fi"

_CASES = """\
# The cases of task {task_id!r}. To run a file against them: python3 cases.py gold.py
#
# The hidden ones are here too, for whoever debugs the task: no episode's sandbox ever holds them. Here a value is
# compared by type and ==, all in one process; grading looks inside containers too, and calls in a fresh process.

import runpy
import sys
from math import inf, nan

CASES = [
    # name, tier, arguments, keyword arguments, what must be returned
{cases}
]

if __name__ == "__main__":
    failed = 0
    for name, tier, arguments, keywords, expected in CASES:
        try:
            got = runpy.run_path(sys.argv[1])[{entry_point!r}](*arguments, **keywords)
            verdict = "passed" if type(got) is type(expected) and got == expected else f"FAILED: {{got!r}}"
        except Exception as error:
            verdict = f"FAILED: {{type(error).__name__}}: {{error}}"
        failed += verdict != "passed"
        print(f"{{tier}} {{name}}: {{verdict}}" + (f", not {{expected!r}}" if verdict != "passed" else ""))
    sys.exit(failed > 0)
"""


def find_task(file: str, task_id: str | None) -> Task:
    """One task of a file; without an id the only one there is. Raises TaskFileError, UsageError."""
    tasks = {task.task_id: task for task in load_tasks(file, Path())}
    if task_id is None and len(tasks) == 1:
        return next(iter(tasks.values()))
    if task_id is None:
        some = ", ".join(list(tasks)[:5])
        raise UsageError(f"{file} holds {len(tasks)} tasks\n\nhint: name one with --id, such as {some}")
    if task_id not in tasks:
        raise UsageError(f"{file} holds no task `{task_id}` among its {len(tasks)}{did_you_mean(task_id, tasks)}")
    return tasks[task_id]


def task_files(task: Task) -> dict[str, File]:
    """What lies in the workspace: the prompt, the gold solution where there is one, and all cases."""
    texts = {"prompt.md": task.prompt.rstrip() + "\n"}
    check = task.check
    if isinstance(check, Call):
        cases = "\n".join(
            f"    ({case.name!r}, {case.tier!r}, {case.args!r}, {case.kwargs!r}, {case.expected!r}),"
            for case in check.cases
        )
        texts["cases.py"] = _CASES.format(task_id=task.task_id, cases=cases, entry_point=check.entry_point)
        if check.prefix:
            texts["prefix.py"] = check.prefix
        if task.gold is not None:
            texts["gold.py"] = (check.prefix + "\n" if check.prefix else "") + task.gold
    else:
        describe = KINDS[check.kind].describe
        texts["cases.txt"] = "".join(f"{case.tier} {case.name}: {describe(check, case)}\n" for case in task.cases)
        if task.gold is not None:
            texts["gold.txt"] = task.gold
    return {name: File(text.encode("utf-8", "replace")) for name, text in texts.items()}


def open_shell(spec: SandboxSpec, task: Task | None, command: str | None) -> int:
    """Run a shell, or a command of it, until it ends; returns its exit status. Raises SandboxError."""
    return asyncio.run(_shell(spec, task, command))


async def _shell(spec: SandboxSpec, task: Task | None, command: str | None) -> int:
    provider = backend_of(spec)
    request = SandboxRequest(image=spec.image, limits=LIMITS, network=spec.network, owner="shell")
    async with await provider.create(request) as sandbox:
        files = task_files(task) if task is not None else {}
        if files:
            await sandbox.put(files)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if terminal and command is None:
            _say(f"{spec.backend} sandbox of image {spec.image}, gone when this shell ends (exit, or Ctrl-D)")
            if files:
                _say(f"in {sandbox.work}: {', '.join(files)}; the hidden cases too, which no episode sees")
        shell = command or (_SHELL if terminal else _SHELL_FOR_PIPES)
        env = {"TERM": os.environ.get("TERM", "dumb"), "PS1": "sandbox:$PWD\\$ "}
        status = await run_attached(sandbox, Command(("/bin/sh", "-c", shell), env=env))
        if status is None:
            usage = await sandbox.destroy()  # raises if it was the host
            _say(f"the sandbox ended: {usage.breach or 'its first process was killed from inside'}")
            return 137
        return status


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
