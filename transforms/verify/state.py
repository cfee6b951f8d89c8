"""The kind `state`: a system that a program configured, looked at by probes of ours when the program is dead.

What a probe looks at is data of a snapshot, read here. Only two things run, each in a sandbox of its own: a server that
a task wants to be asked, and regular expressions, which a hostile file could make run for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.protocol import (
    Command,
    FilesRefused,
    ProvisionFailed,
    Result,
    Sandbox,
    SandboxProvider,
    SandboxRequest,
    Snapshot,
    Usage,
)  # fmt: skip
from transforms.episode import CaseReport, CaseResult, together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.state import (
    Case,
    FileProbe,
    PermissionProbe,
    PortProbe,
    ServiceProbe,
    State,
    UserProbe,
)  # fmt: skip
from transforms.sources.languages import LANGUAGES, Language
from transforms.verify.artifacts import OPENER, OPENER_SOURCE, at_rest, workspace
from transforms.verify.calls import Arguments, Function, call_function
from transforms.verify.compile import Compiled, compile_program, require_toolchain, run_request
from transforms.verify.documents import Differs, compare_text
from transforms.verify.runs import Run, run_program, source_files
from transforms.verify.system import ROOT, System, check_service, check_user

_CLIENT = "port_client.py"
_CLIENT_SOURCE = (Path(__file__).parent / "inside" / _CLIENT).read_bytes()
_NOBODY = 3  # its exit status when nobody listened
_CLIENT_SLACK_S = 5.0  # what the client may take besides the time it waits
_UNPACK_S = 60.0
_SEARCH = Function(
    "import re\ndef found(pattern, text): return re.search(pattern, text, re.MULTILINE) is not None", "found"
)


async def run_state(sandbox: SandboxProvider, check: State, program: str, request: SandboxRequest) -> CaseReport:
    """Run a program once on the system of a check, and put each case's probe to what it left.

    Raises SandboxError when the host failed, ProvisionFailed among them where a port is asked and nothing can listen.
    """
    language = LANGUAGES[check.language]
    compiled = await compile_program(sandbox, language, program, request)
    usages = [] if compiled.usage is None else [compiled.usage]
    snapshot = None
    if (why := compiled.refusal) is None:
        left, usage = await _configured(sandbox, language, check, compiled, request)
        usages.append(usage)
        snapshot = left.snapshot
        if left.run.failure(0) is not None:
            await require_toolchain(sandbox, language, request)
        results, more = await _probed(sandbox, check.cases, left, request)
        usages += more
    else:
        await require_toolchain(sandbox, language, request)
        results = [CaseResult.of(case, why.outcome, why.message, location=why.location) for case in check.cases]
    usage = together(usages, output_bytes=request.limits.output_kib * 1024)
    return CaseReport(tuple(results), usage, compiled.message, workspace=snapshot)


@dataclass(frozen=True, slots=True)
class _Left:
    """What a program left."""

    run: Run
    system: System
    snapshot: Snapshot | None = None
    """None where it broke a limit, is no program, or left what cannot be read."""
    refused: str = ""
    """Why what it left cannot be read."""


async def _configured(
    sandbox: SandboxProvider, language: Language, check: State, compiled: Compiled, request: SandboxRequest
) -> tuple[_Left, Usage]:
    """Run the program, end all it started, and take what it left."""
    tree = {f"{ROOT}/{path}": item for path, item in check.files.items()}
    request = run_request(language, compiled, request)
    request = replace(
        request,
        files={**request.files, OPENER: OPENER_SOURCE},
        snapshot=workspace({**tree, **source_files(language, compiled)}, ROOT),
    )
    async with await sandbox.create(request) as box:
        root = f"{box.work}/{ROOT}"
        run = await run_program(box, language, request.limits, environment={"ROOT": root})
        left = _Left(run, System({}, root))
        if run.syntax_error is None and run.result.breach is None:
            try:
                snapshot, entries = await at_rest(box)
                left = _Left(run, System(entries, root), snapshot)
            except FilesRefused as error:
                left = replace(left, refused=str(error))
        return left, await box.destroy()


async def _probed(
    sandbox: SandboxProvider, cases: Sequence[Case], left: _Left, request: SandboxRequest
) -> tuple[list[CaseResult], list[Usage]]:
    """The results of all cases, and what the sandboxes used that they needed."""
    seconds = left.run.result.wall_s
    if left.snapshot is None:
        outcome, message = left.run.failure(None) or Outcome.POLICY_VIOLATION, left.refused or left.run.message
        return [CaseResult.of(case, outcome, message, seconds, location=left.run.location) for case in cases], []
    found, usages = await _searched(sandbox, left.system, cases, request)
    results = []
    for case in cases:
        if isinstance(case.probe, PortProbe):
            result, usage = await _asked(sandbox, left.snapshot, case, case.probe, request)
            usages.append(usage)
        else:
            result = found.get(case.name) or _looked(left.system, case)
        if result.outcome is Outcome.FAILED_TESTS and left.run.failure(0) is not None:  # that may be why
            result = replace(result, message=f"{result.message[:150]} (the program: {left.run.message[:100]})")
        results.append(result)
    return results, usages


def _looked(system: System, case: Case) -> CaseResult:
    """The result of a probe that needs nothing but the files."""
    try:
        match case.probe:
            case FileProbe() as probe:
                _check_file(system, probe)
            case PermissionProbe(path, mode):
                found = system.find(path)
                if found is None:
                    raise Differs(f"{path} is missing")
                if found[1].mode != mode:
                    raise Differs(f"{path} has another mode", f"{found[1].mode:04o}")
            case UserProbe() as probe:
                check_user(system, probe)
            case ServiceProbe() as probe:
                check_service(system, probe)
    except Differs as error:
        return CaseResult.of(case, error.outcome, error.why, got=error.got, expected_type=_type_of(case))
    return CaseResult.of(case, Outcome.PASSED)


def _check_file(system: System, probe: FileProbe) -> None:
    """Raises Differs where a file is not as asked for."""
    if probe.look == "absent":
        entry = system.named(probe.path)
        if entry is not None:
            raise Differs(f"{probe.path} is there", entry.kind)
        return
    content = system.content(probe.path)
    if probe.look == "text":
        compare_text(probe.path, content, probe.value)
    elif probe.value.encode() not in content:
        raise Differs(f"{probe.path} does not contain what it must")


async def _searched(
    sandbox: SandboxProvider, system: System, cases: Sequence[Case], request: SandboxRequest
) -> tuple[dict[str, CaseResult], list[Usage]]:
    """The results of the cases that are a regular expression, by name; they run where they can be killed."""
    results: dict[str, CaseResult] = {}
    searches: list[tuple[Case, Arguments]] = []
    for case in cases:
        if isinstance(case.probe, FileProbe) and case.probe.look == "matches":
            try:
                text = system.content(case.probe.path).decode("utf-8", "surrogateescape")
                searches.append((case, Arguments((case.probe.value, text))))
            except Differs as error:
                results[case.name] = CaseResult.of(case, error.outcome, error.why, got=error.got)
    if not searches:
        return results, []
    answers, usage = await call_function(sandbox, _SEARCH, [arguments for _, arguments in searches], request)
    for (case, _), answer in zip(searches, answers, strict=True):
        outcome, message = answer.outcome, answer.message
        if outcome is None:
            outcome = Outcome.PASSED if answer.value is True else Outcome.FAILED_TESTS
            message = "" if answer.value is True else "the file does not match"
        results[case.name] = CaseResult.of(case, outcome, message, answer.duration_s, expected_type=_type_of(case))
    return results, [usage]


async def _asked(
    provider: SandboxProvider, snapshot: Snapshot, case: Case, probe: PortProbe, request: SandboxRequest
) -> tuple[CaseResult, Usage]:
    """Start a server in a fresh sandbox that holds what the program left, and talk to it."""
    request = replace(request, files={**request.files, _CLIENT: _CLIENT_SOURCE})
    async with await provider.create(request) as sandbox:
        # Its first command, so nothing of the program's has a part in it.
        able = await sandbox.exec(_client(sandbox, 0, 1.0, b""))
        if able.exit_code != 0:
            evidence = able.stderr.decode(errors="replace").strip()[-300:] or str(able)
            raise ProvisionFailed("programs cannot listen on the loopback interface of this sandbox", evidence=evidence)
        # Not as the request's snapshot: what cannot be laid out again is the program's doing, not the host's.
        tar = ("tar", "-x", "-p", "--no-same-owner", "--warning=no-timestamp", "-f", "-")
        laid = await sandbox.exec(Command(tar, stdin=snapshot.archive, wall_time_s=_UNPACK_S, cpu_time_s=_UNPACK_S))
        if laid.exit_code != 0 or laid.breach is not None:
            outcome = Outcome.POLICY_VIOLATION if laid.breach is None else Outcome(laid.breach)
            message = f"the system cannot be laid out again: {laid.stderr.decode(errors='replace')[-200:]}"
            return CaseResult.of(case, outcome, message), await sandbox.destroy()
        root = f"{sandbox.work}/{ROOT}"
        async with await sandbox.start(Command(probe.start, env={"ROOT": root}, cwd=root)) as server:
            heard = await sandbox.exec(_client(sandbox, probe.port, request.limits.wall_time_s, probe.send.encode()))
            served = await server.kill()
        return _of_answer(case, probe, heard, served), await sandbox.destroy()


def _client(sandbox: Sandbox, port: int, seconds: float, said: bytes) -> Command:
    argv = ("python3", "-I", "-S", f"{sandbox.job}/{_CLIENT}", str(port), str(seconds))
    return Command(argv, stdin=said, cwd=sandbox.job, user="trusted", wall_time_s=seconds + _CLIENT_SLACK_S)


def _of_answer(case: Case, probe: PortProbe, heard: Result, served: Result) -> CaseResult:
    """The result of what a client heard. The answer is the server's, whatever way it came."""
    breach = heard.breach or served.breach
    said = served.stderr.decode(errors="backslashreplace").strip()[-150:]
    if breach is not None:
        return CaseResult.of(case, Outcome(breach), f"{breach} broken", heard.wall_s)
    if heard.exit_code == _NOBODY:
        return CaseResult.of(case, Outcome.FAILED_TESTS, f"nobody listens on port {probe.port}: {said}", heard.wall_s)
    if heard.exit_code != 0:
        return CaseResult.of(case, Outcome.RUNTIME_ERROR, f"the client was ended: {said}", heard.wall_s)
    if probe.expect.encode() in heard.stdout:
        return CaseResult.of(case, Outcome.PASSED, "", heard.wall_s)
    got = heard.stdout.decode(errors="backslashreplace")
    why = "the answer does not contain what it must" if got else f"no answer: {said}"
    return CaseResult.of(case, Outcome.FAILED_TESTS, why, heard.wall_s, got=got, expected_type=_type_of(case))


def _type_of(case: Case) -> str:
    return type(case.probe).__name__.removesuffix("Probe").lower()
