"""The kind `files`: what a program left in its workspace against what it must leave. All is read when it is dead."""

from collections import Counter
from dataclasses import replace

from sandboxes.protocol import FilesRefused, SandboxProvider, SandboxRequest, Snapshot, Usage
from transforms.episode import CaseReport, CaseResult, together
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.files import Artifact, Case, Files
from transforms.sources.languages import LANGUAGES, Language
from transforms.verify.artifacts import OPENER, OPENER_SOURCE, Entries, Entry, at_rest, workspace
from transforms.verify.compile import Compiled, compile_program, require_toolchain, run_request
from transforms.verify.documents import Differs, compare_json, compare_table, compare_text
from transforms.verify.runs import run_program, source_files

_STRIKES = 2  # cases that break the same limit before the rest is not run any more


async def run_files(sandbox: SandboxProvider, check: Files, program: str, request: SandboxRequest) -> CaseReport:
    """Run a program once a case, each in a fresh sandbox, and look at the files it leaves.

    Raises SandboxError when the host failed (ToolchainMissing: the image has no such language).
    """
    language = LANGUAGES[check.language]
    compiled = await compile_program(sandbox, language, program, request)
    usages = [] if compiled.usage is None else [compiled.usage]
    results: list[CaseResult] = []
    left: Snapshot | None = None  # in the first case that failed, else in the last one
    for case in check.cases:
        broken = Counter(result.outcome for result in results if result.outcome.endswith("_limit"))
        spent = next((outcome for outcome, times in broken.items() if times >= _STRIKES), None)
        if (why := compiled.refusal) is not None:
            results.append(CaseResult.of(case, why.outcome, why.message, location=why.location))
        elif spent is not None:
            results.append(CaseResult.of(case, spent, f"not run: the limit was broken {_STRIKES} times before"))
        else:
            result, usage, snapshot = await _run(sandbox, language, compiled, case, request)
            if all(before.outcome is Outcome.PASSED for before in results):
                left = snapshot
            results.append(result)
            usages.append(usage)
    if any(result.outcome is not Outcome.PASSED for result in results):
        await require_toolchain(sandbox, language, request)
    usage = together(usages, output_bytes=request.limits.output_kib * 1024)
    return CaseReport(tuple(results), usage, compiled.message, workspace=left)


async def _run(
    provider: SandboxProvider, language: Language, compiled: Compiled, case: Case, request: SandboxRequest
) -> tuple[CaseResult, Usage, Snapshot | None]:
    request = run_request(language, compiled, request)
    request = replace(
        request,
        files={**request.files, OPENER: OPENER_SOURCE},
        snapshot=workspace({**case.files, **source_files(language, compiled)}),
    )
    async with await provider.create(request) as box:
        run = await run_program(
            box, language, request.limits, argv=case.argv, stdin=case.stdin.encode(), environment={}
        )
        seconds, outcome, snapshot = run.result.wall_s, run.failure(case.exit_code), None
        if outcome is not None:
            result = CaseResult.of(case, outcome, run.message, seconds, location=run.location)
        else:
            try:
                snapshot, entries = await at_rest(box)
                result = _judged(case, entries, seconds)
            except FilesRefused as error:
                result = CaseResult.of(case, Outcome.POLICY_VIOLATION, str(error), seconds)
        return result, await box.destroy(), snapshot


def _judged(case: Case, entries: Entries, seconds: float) -> CaseResult:
    """The result of what the program left: that of the first file that is not as it must be."""
    for artifact in case.expected:
        try:
            _look(artifact, entries)
        except Differs as error:
            return CaseResult.of(case, error.outcome, error.why, seconds, got=error.got, expected_type=artifact.look)
    return CaseResult.of(case, Outcome.PASSED, "", seconds)


def _look(artifact: Artifact, entries: Entries) -> None:
    """Raises Differs where what is in the workspace is not what must be there."""
    path, entry = artifact.path, _entry(artifact.path, entries)
    if artifact.look == "absent":
        if entry is not None:
            raise Differs(f"{path} is there", entry.kind)
        return
    if entry is None:
        raise Differs(f"{path} is missing")
    if entry.kind == "folder":
        raise Differs(f"{path} is a folder")
    if entry.kind != "file":
        raise Differs(f"{path} is no regular file", entry.kind, Outcome.POLICY_VIOLATION)
    match artifact.look:
        case "text":
            compare_text(path, entry.content, str(artifact.value))
        case "bytes":
            if entry.content != artifact.value:
                raise Differs(f"{path} holds other bytes", f"{len(entry.content)} bytes")
        case "json":
            compare_json(path, entry.content, artifact.value)
        case "csv":
            assert isinstance(artifact.value, tuple)
            compare_table(path, entry.content, artifact.value, ordered=artifact.ordered)
    if artifact.mode is not None and entry.mode != artifact.mode:
        raise Differs(f"{path} has another mode", f"{entry.mode:04o}")


def _entry(path: str, entries: Entries) -> Entry | None:
    """What lies at a path. Raises Differs where a link is on the way: what it leads to is not what was declared."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        folder = "/".join(parts[:count])
        if folder in entries and entries[folder].kind == "link":
            raise Differs(f"{folder} is a link", outcome=Outcome.POLICY_VIOLATION)
    return entries.get(path)
