"""The kind `pytest`: hidden tests in a repository that a diff has changed.

Tests and program share a process, so a report can be a lie. What makes it worth something:

- Each run has a fresh sandbox with the pristine files, those changes that the task admits, and the tests in a folder
  that programs cannot write. A witness process reports how the run ended, with a nonce: see `pytest_runner.py`.
- The tests have twins that a right program must fail: see `transforms/sources/twins.py`. A round is two runs. In the
  first, units drawn by lot are replaced by a twin of theirs; in the second, all the others. Of the twins that a unit
  has, each round draws another, so no grading asks what another asked. A case passes where its test passes and none of
  the twins does. One that passes both ways was passed by no right program: the outcome is `tampered`.
- A program that guesses how the tests stand in its run, and forges reports to suit, gets n units through a round once
  in 2**(n + 1) times at most, since the two runs know nothing of each other. Rounds go on until what still stands was
  a guess of `_BITS` bits, and a unit of several twins was asked `_DRAWS` of them.

A run that did not come to its end passes no case.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import SystemRandom

from sandboxes.protocol import (
    Command,
    File,
    FilesRefused,
    Process,
    ProvisionFailed,
    SandboxProvider,
    SandboxRequest,
    Snapshot,
    Usage,
)
from transforms.episode import CaseReport, CaseResult, together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.repository import Case, Repository, Twin
from transforms.sources.kinds.trees import Item
from transforms.sources.repository import matches
from transforms.sources.task import TaskBroken
from transforms.sources.twins import altered, make_twins, units
from transforms.verify.artifacts import workspace
from transforms.verify.compile import ToolchainMissing, another_image
from transforms.verify.patch import PatchError, PathRefused, apply_patch, is_patch, parse_patch, tree_with
from transforms.verify.report import Told, read_report

STARTUP_S = 30.0
"""Seconds that pytest may take to be imported, before any code of the candidate's is in the sandbox."""

_BITS = 16  # one guesser in 65536 gets through,
_DRAWS = 3
_ROUNDS = 6  # or one in 4096 where there is but one unit
_RUNNER = (Path(__file__).parent / "inside/pytest_runner.py").read_bytes()
_REPLY_BYTES = 6 << 20  # more than the runner's own bounds come to
_LOT = SystemRandom()
_STEERING = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py")
_STEERING += ("usercustomize.py", "*.pth", "pytest.py", "_pytest.py")
_NEVER = tuple(f"**/{name}" for name in _STEERING) + tuple(
    f"**/{folder}/**" for folder in ("pytest", "_pytest", "*.dist-info", "*.egg-info")
)


@dataclass(frozen=True, slots=True)
class Built:
    """The repository as the submission leaves it, and what was left out of it."""

    files: dict[str, str]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TestRun:
    """What the tests said, in one run."""

    told: dict[str, Told]
    """By case. Those of whom nothing is known are not in it."""
    usage: Usage
    fault: tuple[Outcome, str] | None = None
    """Why the run does not count: it did not come to its end, or was tampered with."""

    def words(self) -> dict[str, str]:
        """By case, for `twins.make_twins`: `passed`, `assertion` or `failed`."""
        return {
            name: "passed" if one.outcome is Outcome.PASSED else "assertion" if one.by_assertion else "failed"
            for name, one in self.told.items()
        }


@dataclass(slots=True)
class _Judge:
    """The cases of one check, over the rounds."""

    check: Repository
    standing: dict[str, float] = field(default_factory=dict)
    """Cases that nothing speaks against so far, and how long their test took, in seconds."""
    settled: dict[str, CaseResult] = field(default_factory=dict)

    def settle(self, case: Case, outcome: Outcome, message: str, told: Told | None = None) -> None:
        self.standing.pop(case.name, None)
        seconds, place = (told.seconds, told.place) if told else (0.0, None)
        self.settled[case.name] = CaseResult.of(case, outcome, message, seconds, location=place)

    def fault(self, outcome: Outcome, message: str) -> None:
        for case in self.waiting():
            self.settle(case, outcome, message)

    def waiting(self) -> list[Case]:
        return [case for case in self.check.cases if case.name in self.standing]

    def report(self, usage: Usage, note: str | None, left: Snapshot | None = None) -> CaseReport:
        results = (
            self.settled.get(case.name) or CaseResult.of(case, Outcome.PASSED, "", self.standing[case.name])
            for case in self.check.cases
        )
        return CaseReport(tuple(results), usage, note, workspace=left)


async def run_repository(
    sandbox: SandboxProvider, check: Repository, program: str, request: SandboxRequest
) -> CaseReport:
    """Run every case of a check in the repository that a submission makes: a diff, or the content of the only file.

    `CaseReport.compiler_message` says what was left out of a submission. A patch that does not fit fails all cases; one
    that reaches outside the repository breaks the rules. Raises SandboxError when the host failed.
    """
    judge = _Judge(check, dict.fromkeys((case.name for case in check.cases), 0.0))
    try:
        built = build(check, program)
    except PatchError as error:
        refused = isinstance(error, PathRefused)
        outcome = Outcome.POLICY_VIOLATION if refused else Outcome.FAILED_TESTS
        judge.fault(outcome, f"the patch {'is refused' if refused else 'does not apply'}: {error}")
        return judge.report(_NOTHING_USED, str(error))
    usages = [usage async for usage in _rounds(sandbox, judge, built, request)]
    note = f"left out: {', '.join(built.left_out)}" if built.left_out else None
    left = workspace({path: Item(text.encode("utf-8", "replace")) for path, text in built.files.items()})
    return judge.report(together(usages, output_bytes=request.limits.output_kib * 1024), note, left)


def build(check: Repository, program: str) -> Built:
    """The pristine files with those changes that the task admits. Raises PatchError, PathRefused."""
    if check.only_file is not None and not is_patch(program):
        return Built(tree_with(check.files, {check.only_file: program}), ())
    patches = parse_patch(program)
    admitted = [patch for patch in patches if all(_admitted(check, path) for path in patch.paths)]
    left_out = [path for patch in patches if patch not in admitted for path in patch.paths]
    return Built(tree_with(check.files, apply_patch(check.files, admitted)), tuple(left_out))


async def run_tests(
    sandbox: SandboxProvider,
    check: Repository,
    files: Mapping[str, str],
    tests: Mapping[str, str],
    request: SandboxRequest,
    *,
    compared: bool = False,
) -> TestRun:
    """One run of a check's cases, from these test files, in a fresh sandbox with these files as its workspace.

    `compared`: report what failing tests found unequal, which is for programs of the task's own alone. Raises
    SandboxError when the host failed, ToolchainMissing when the image has no pytest.
    """
    limits = request.limits
    wall_s, cpu_s = check.time_limit_s or limits.wall_time_s, check.time_limit_s or limits.cpu_time_s
    job = {"pytest_runner.py": _RUNNER, "pytest.ini": check.ini.encode()}
    job |= {f"tests/{path}": text.encode() for path, text in tests.items()}
    async with await sandbox.create(replace(request, files={**request.files, **job})) as box:
        argv = ("python3", "-I", "-S", "-B", f"{box.job}/pytest_runner.py")
        witness = await box.start(Command(argv, channel=True, wall_time_s=wall_s, cpu_time_s=cpu_s))
        await _expect_pytest(witness, sandbox, request.image)
        try:
            await box.put({path: File(text.encode("utf-8", "replace")) for path, text in files.items()})
        except FilesRefused as error:
            return TestRun({}, await box.destroy(), (Outcome.DISK_LIMIT, str(error)))
        nonce = secrets.token_hex(16)
        order = {
            "nonce": nonce,
            "cases": [case.name for case in check.cases],
            "paths": sorted({case.name.partition("::")[0] for case in check.cases}),
            "python_path": list(check.python_path),
            "compared": compared,
            "conftest": any(path.rpartition("/")[2] == "conftest.py" for path in tests),
        }
        await witness.send(json.dumps(order).encode())
        reply = await witness.receive(timeout_s=wall_s, max_bytes=_REPLY_BYTES)
        result = await witness.kill()
        usage = await box.destroy()
    if reply is None and result.breach is not None:
        return TestRun({}, usage, (Outcome(result.breach), f"{result.breach} broken while the tests ran"))
    if reply is None and result.wall_s >= wall_s:
        return TestRun({}, usage, (Outcome.TIME_LIMIT, f"the tests did not end within {wall_s:g} s"))
    told, fault = read_report(reply, nonce, [case.name for case in check.cases], files)
    return TestRun(told, usage, fault)


async def twins_for(
    sandbox: SandboxProvider, check: Repository, gold: str, request: SandboxRequest
) -> tuple[Twin, ...]:
    """Twins for a check's tests, found by running its gold, a diff: see `twins.make_twins`.

    What the repository returns before any change is asked first: no altered value is more plausible.
    Raises ValueError when the gold fails the tests, PatchError when it does not apply, SandboxError.
    """
    files = build(check, gold).files

    async def run(tests: Mapping[str, str]) -> dict[str, str]:
        return (await run_tests(sandbox, check, files, tests, request)).words()

    base = await run_tests(sandbox, check, check.files, check.tests, request, compared=True)
    return await make_twins(check, run, [one.compared for one in base.told.values() if one.compared is not None])


async def _rounds(sandbox: SandboxProvider, judge: _Judge, built: Built, request: SandboxRequest):
    """Run rounds until nothing stands or enough was confirmed; yields what each run used."""
    check = judge.check
    pool = units(check)
    if not pool:
        raise TaskBroken("`tests` holds none of the tests that `cases` names, or is no Python")
    bits = 0
    order = {unit: _LOT.sample(unit.alternatives, len(unit.alternatives)) for unit in pool}
    draws = min(_DRAWS, max(map(len, order.values())))
    for number in range(_ROUNDS):
        chosen = [unit for unit in pool if _LOT.random() < 0.5]
        runs = []
        for twinned in (chosen, [unit for unit in pool if unit not in chosen]):
            changes = [change for unit in twinned for change in order[unit][number % len(order[unit])]]
            run = await run_tests(sandbox, check, built.files, altered(check.tests, changes), request)
            yield run.usage
            if run.fault is not None:
                judge.fault(*run.fault)
                return
            runs.append(run.told)
        twins = [{name for unit in side for name in unit.cases} for side in (chosen, set(pool) - set(chosen))]
        for case in judge.waiting():
            _judge_case(judge, case, runs, [case.name in side for side in twins])
        bits += 1 + sum(any(name in judge.standing for name in unit.cases) for unit in pool)
        if not judge.standing or (bits >= _BITS and number + 1 >= draws):
            return


def _judge_case(judge: _Judge, case: Case, runs: list[dict[str, Told]], twinned: list[bool]) -> None:
    real = [run.get(case.name) for run, twin in zip(runs, twinned, strict=True) if not twin]
    twins = [run.get(case.name) for run, twin in zip(runs, twinned, strict=True) if twin]
    wrong = next((told for told in real if told is None or told.outcome is not Outcome.PASSED), None)
    if wrong is not None or None in real:
        outcome = wrong.outcome if wrong else Outcome.FAILED_TESTS
        judge.settle(case, outcome, wrong.kind if wrong else "the test was not found", wrong)
    elif any(told is not None and told.outcome is Outcome.PASSED for told in twins):
        judge.settle(case, Outcome.TAMPERED, "the test passes even when it is altered so that a right program fails it")
    else:
        judge.standing[case.name] = max(told.seconds for told in real if told is not None)


def _admitted(check: Repository, path: str) -> bool:
    """Whether a submission may change a file: one that the task names, and neither a hidden test nor one that steers
    pytest or Python."""
    return matches(path, check.artifacts) and path not in check.tests and not matches(path, _NEVER)


async def _expect_pytest(witness: Process, sandbox: SandboxProvider, image: str) -> None:
    """Wait until pytest is there. No code of the candidate's is in the sandbox yet, so a failure is not its own."""
    hello = await witness.receive(timeout_s=STARTUP_S, max_bytes=4096)
    if hello is not None and hello[:1] == b"R":
        return
    result = await witness.kill()
    said = result.stderr if hello is None else hello[1:]  # `M`, then the reason
    evidence = said.decode(errors="replace").strip()[-500:]
    if hello is not None or result.exit_code == 127:
        raise ToolchainMissing(
            f"image {image} has no pytest for Python 3; {another_image(sandbox, 'base')}",
            evidence=evidence or f"exit {result.exit_code}",
        )
    ended = f"exit {result.exit_code}, signal {result.signal}, breach {result.breach} after {result.wall_s:.1f} s"
    raise ProvisionFailed("the test runner did not start in its sandbox", evidence=evidence or ended)


_NOTHING_USED = Usage(None, 0.0, 0.0, 0, b"", b"", "none")
