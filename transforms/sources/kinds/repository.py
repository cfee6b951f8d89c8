"""The kind `pytest`: a repository is changed by a diff, and hidden tests are run in it.

The tests share a process with the program they test, which can lie to them. So each case has a twin: the same test with
a constant altered, such that a right program fails it. A case passes where the test passes and its twin does not. See
`transforms/verify/repository.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, json_holds
from transforms.sources.repository import is_inside
from transforms.sources.task import Integrity, Tier

FIELDS = {
    "files": "the repository at the base commit: an object of paths and their text",
    "tests": "the hidden test files, and what they read: an object of paths and their text",
    "cases": "the tests that must pass: a list of objects with `name`",
    "artifacts": 'what a submission may change: a list of globs, such as ["src/**"]',
    "twins": "the tests altered so that a right program fails: a list of objects",
    "python_path": 'folders of the repository that Python imports from: a list, such as ["src"]',
    "ini": "a pytest.ini for the hidden tests: a string",
    "time_limit_s": "seconds that one run of all tests may take: a number",
}
CASE_FIELDS = HEAD_FIELDS | {"name": "the test: path::function, path::Class::function, or either with [number]"}
TWIN_FIELDS = {
    "cases": "names of the cases that a right program fails with these edits: a list of strings",
    "edits": "the edits of the test files that do it: a list of objects",
}
EDIT_FIELDS = {
    "path": "the test file: a string",
    "old": "text that stands in the file exactly once: a string",
    "new": "what stands there in the twin: a string",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test that must pass, by its name: see `FIELDS`. A parametrized test's are numbered from 0 as collected."""

    name: str
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one test file; `old` stands in it exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Twin:
    """Edits that make a right program fail just these cases."""

    cases: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Repository:
    """Change a repository; hidden tests say whether it does what was asked."""

    kind: ClassVar[str] = "pytest"
    integrity: ClassVar[Integrity] = "shared_process"
    language: ClassVar[str] = "diff"

    files: Mapping[str, str]
    tests: Mapping[str, str]
    cases: tuple[Case, ...]
    artifacts: tuple[str, ...]
    """Globs; what a submission changes besides is left out."""
    twins: tuple[Twin, ...] = ()
    """Twins of the same cases are alternatives, of which each grading draws some; else no two have a case in common.
    Cases in none are guarded by tests that must fail only."""
    python_path: tuple[str, ...] = (".",)
    ini: str = "[pytest]\n"
    time_limit_s: float | None = None
    """Wall and CPU seconds of one run of all tests; None: the sandbox's own limits."""

    @property
    def only_file(self) -> str | None:
        """The one file that may change, if there is just one: its whole content may be submitted, too."""
        single = len(self.artifacts) == 1 and not set(self.artifacts[0]) & set("*?")
        return self.artifacts[0] if single else None


def read(record: Record) -> Repository:
    """Read the kind's fields of a task. Raises TaskFileError."""
    files, tests = _texts_by_path(record, "files"), _texts_by_path(record, "tests")

    def case(one: Record, head: CaseHead) -> Case:
        path, _, function = one.full_text("name").partition("::")
        if path not in tests or not function:
            raise one.must_be("name", "`path::function`, with a path of `tests`")
        return Case(head.name, head.tier, head.milestone)

    cases = record.cases(CASE_FIELDS, case)
    artifacts = record.texts("artifacts")
    if not artifacts:
        raise record.error("`artifacts` is empty or missing", f"`artifacts`: {FIELDS['artifacts']}")
    python_path = record.texts("python_path") or (".",)
    if not all(folder == "." or is_inside(folder) for folder in python_path):
        raise record.must_be("python_path", "folders of the repository")
    return Repository(
        files=files,
        tests=tests,
        cases=cases,
        artifacts=artifacts,
        twins=_twins(record, tests, {case.name for case in cases}),
        python_path=python_path,
        ini=record.text("ini") or "[pytest]\n",
        time_limit_s=record.number("time_limit_s", least=0.1),
    )


def write(check: Repository) -> dict[str, object]:
    """The kind's fields of a task's record."""
    optional = {
        "python_path": list(check.python_path) if check.python_path != (".",) else None,
        "ini": check.ini if check.ini != "[pytest]\n" else None,
        "time_limit_s": check.time_limit_s,
        "twins": [
            {
                "cases": list(twin.cases),
                "edits": [{"path": edit.path, "old": edit.old, "new": edit.new} for edit in twin.edits],
            }
            for twin in check.twins
        ]
        or None,
    }
    return {
        "files": dict(check.files),
        "tests": dict(check.tests),
        "cases": [head_fields(case) for case in check.cases],
        "artifacts": list(check.artifacts),
    } | {name: value for name, value in optional.items() if value is not None}


def describe(check: Repository, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    twinned = any(case.name in twin.cases for twin in check.twins)
    return f"{case.name} must pass" + (", and fail in its twin" if twinned else "")


def _texts_by_path(record: Record, name: str) -> dict[str, str]:
    given = record.data.get(name)
    if given is None:
        raise record.missing(name)
    if not isinstance(given, dict) or not all(isinstance(text, str) and json_holds(text) for text in given.values()):
        raise record.must_be(name, "an object of paths and their text")
    for path in given:
        if not is_inside(path) or (name == "tests" and "[" in path):
            raise record.error(
                f"`{name}`: {path!r} is no path in a repository", "write it from the root, as src/main.py"
            )
    return given


def _twins(record: Record, tests: Mapping[str, str], names: set[str]) -> tuple[Twin, ...]:
    found, taken = [], dict[str, tuple[int, frozenset[str]]]()
    for number, one in enumerate(_objects(record, "twins", TWIN_FIELDS, "twin"), 1):
        cases = one.texts("cases")
        for name in cases:
            first, together = taken.setdefault(name, (number, frozenset(cases)))
            if name not in names or together != set(cases):
                problem = f"is in twin {first}, with others" if name in names else "is not a case of the task"
                raise one.error(f"`cases`: {name!r} {problem}", "twins have all their cases in common, or none")
        edits = tuple(_edit(edit, tests) for edit in _objects(one, "edits", EDIT_FIELDS, "edit"))
        if not cases or not edits:
            raise one.error(
                f"`{'edits' if cases else 'cases'}` is empty or missing", "a twin has cases and edits that fail them"
            )
        found.append(Twin(cases, edits))
    return tuple(found)


def _edit(record: Record, tests: Mapping[str, str]) -> Edit:
    path, old, new = (record.text(name) for name in EDIT_FIELDS)
    if path is None or old is None or new is None:
        raise record.missing("path" if path is None else "old" if old is None else "new")
    if path not in tests:
        raise record.must_be("path", "a path of `tests`")
    if (times := tests[path].count(old) if old else 0) != 1 or old == new:
        problem = "is what `new` is" if old == new else f"stands {times} times in {path}"
        raise record.error(f"`old` {problem}", "quote enough around the change that it stands there once")
    return Edit(path, old, new)


def _objects(record: Record, name: str, fields: dict[str, str], what: str) -> list[Record]:
    given = record.data.get(name, [])
    if not isinstance(given, list):
        raise record.must_be(name, "a list of objects")
    return [Record(one, record.where, fields, f"{record.inside}{what} {i}: ") for i, one in enumerate(given, 1)]
