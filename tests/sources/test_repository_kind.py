# ruff: noqa: E501 - one fault a line
"""Reading repository tasks and git repositories."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.repositories.histories import NAMES, check_of, git, history
from transforms.sources.jsonl import read_tasks, task_to_record
from transforms.sources.kinds.repository import Edit, Repository, Twin, describe
from transforms.sources.record import TaskFileError
from transforms.sources.repository import (
    RepositoryError,
    is_inside,
    matches,
    read_repository,
    scrubbed_repository,
    workspace_files,
)

TASK = {
    "task_id": "t",
    "kind": "pytest",
    "prompt": "Fix f.",
    "files": {"src/s.py": "def f():\n    return 1\n"},
    "tests": {"tests/test_s.py": "def test_f():\n    assert f() == 2\n"},
    "cases": [{"name": "tests/test_s.py::test_f", "milestone": "f"}],
    "artifacts": ["src/**"],
    "python_path": ["src"],
    "twins": [
        {
            "cases": ["tests/test_s.py::test_f"],
            "edits": [{"path": "tests/test_s.py", "old": "== 2", "new": "== 3"}],
        }
    ],
    "time_limit_s": 20,
}
ANSWER = "the_answer_that_must_not_be_found"


def read(tmp_path: Path, **changes: object):
    line = {key: value for key, value in (TASK | changes).items() if value is not None}
    (tmp_path / "t.jsonl").write_text(json.dumps(line))
    return read_tasks(tmp_path / "t.jsonl")[0]


def test_a_task_is_read_and_its_record_gives_it_back(tmp_path: Path):
    task = read(tmp_path)
    check = task.check
    assert isinstance(check, Repository)
    assert (check.integrity, check.language, check.time_limit_s) == ("shared_process", "diff", 20.0)
    assert check.twins == (Twin(("tests/test_s.py::test_f",), (Edit("tests/test_s.py", "== 2", "== 3"),)),)
    assert describe(check, check.cases[0]) == "tests/test_s.py::test_f must pass, and fail in its twin"
    again = read(tmp_path, **task_to_record(task))
    assert again.content_hash == task.content_hash
    assert again.check == check


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": None}, "the field `files` is missing"),
        ({"files": {"../x": ""}}, "`files`: '../x' is no path in a repository"),
        ({"files": {".git/config": ""}}, "is no path in a repository"),
        ({"files": {"x": 1}}, "`files` must be an object of paths and their text"),
        ({"tests": {"a[1].py": ""}}, "`tests`: 'a[1].py' is no path"),
        ({"cases": [{"name": "tests/other.py::test_f"}]}, "`name` must be `path::function`"),
        ({"cases": [{"tier": "hidden"}]}, "the field `name` is missing"),
        ({"artifacts": []}, "`artifacts` is empty or missing"),
        ({"python_path": ["/usr"]}, "`python_path` must be folders of the repository"),
        ({"twins": [{"cases": ["x"], "edits": []}]}, "twin 1: `cases`: 'x' is not a case of the task"),
        (
            {
                "cases": [{"name": f"tests/test_s.py::test_{letter}"} for letter in "fg"],
                "twins": [*TASK["twins"], TASK["twins"][0] | {"cases": [f"tests/test_s.py::test_{letter}" for letter in "fg"]}],
            },
            "twin 2: `cases`: 'tests/test_s.py::test_f' is in twin 1, with others",
        ),
        ({"twins": [{"cases": ["tests/test_s.py::test_f"]}]}, "twin 1: `edits` is empty or missing"),
        (
            {"twins": [{"cases": ["tests/test_s.py::test_f"], "edits": [{"path": "tests/test_s.py", "old": "f", "new": "g"}]}]},
            "twin 1: edit 1: `old` stands 3 times in tests/test_s.py",
        ),
        (
            {"twins": [{"cases": ["tests/test_s.py::test_f"], "edits": [{"path": "x", "old": "f", "new": "g"}]}]},
            "twin 1: edit 1: `path` must be a path of `tests`",
        ),
    ],
)  # fmt: skip
def test_a_fault_names_the_field(tmp_path: Path, changes: dict[str, object], message: str):
    with pytest.raises(TaskFileError) as error:
        read(tmp_path, **changes)
    assert message in str(error.value)
    assert "\n\nhint: " in str(error.value)


def test_globs_and_paths():
    assert matches("src/a/b.py", ["src/**"])
    assert matches("b.py", ["**/*.py"])
    assert matches("a/x.dist-info/y", ["**/*.dist-info/**"])
    assert not matches("src/a/b.py", ["src/*", "**/*.txt", "?"])
    assert not matches("srcs/a", ["src/**"])
    assert [
        path for path in ("a", "a/b", "..", "a/../b", "/a", "a//b", "", "a/", "a/.GIT/b", "a\0") if is_inside(path)
    ] == [
        "a",
        "a/b",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_repository_is_read_at_its_base_without_what_came_later(tmp_path: Path, name: str):
    base = history(name, tmp_path / name)
    files = read_repository(tmp_path / name, base)
    listed = git(tmp_path / name, "ls-tree", "-r", "--name-only", base).split()
    assert sorted(files) == sorted(listed)
    assert all(text == git(tmp_path / name, "show", f"{base}:{path}") for path, text in files.items())
    assert files != read_repository(tmp_path / name, "main")
    assert check_of(name, tmp_path / name, base).files == files


def test_what_is_no_text_must_be_left_out_by_name(tmp_path: Path):
    root = tmp_path / "r"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "a.bin").write_bytes(b"\xff\0")
    (root / "link").symlink_to("/etc/passwd")
    (root / "keep.txt").write_bytes(b"a\r\nb")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "1")
    with pytest.raises(RepositoryError, match=r"no plain text files: a\.bin, link"):
        read_repository(root, "HEAD")
    assert read_repository(root, "HEAD", leave_out=["*.bin", "link"]) == {"keep.txt": "a\r\nb"}
    with pytest.raises(RepositoryError, match="git ls-tree"):
        read_repository(root, "no-such-branch")
    with pytest.raises(RepositoryError, match="is not the name of a commit"):
        read_repository(root, "--output=x")
    assert sorted(path for path in scrubbed_repository(root, "HEAD") if not path.startswith(".git/")) == [
        "a.bin",
        "keep.txt",
    ]


def with_the_answer_everywhere(root: Path) -> str:
    """A repository whose future, branches, tags, notes, stash, reflog, packs, config and hooks hold the answer."""
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    (root / "dos.txt").write_bytes(b"a\r\n$Id$\r\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "before there were attributes")
    run = root / "run.sh"
    run.write_text("echo\n")
    run.chmod(0o755)
    (root / ".gitignore").write_text("ignored\n")
    (root / ".gitattributes").write_text("* text=auto ident\nexport.txt export-ignore\n")
    (root / "export.txt").write_text("e\n")
    (root / "ignored").write_text("i\n")
    git(root, "add", "run.sh", ".gitignore", ".gitattributes", "export.txt")
    git(root, "add", "--force", "ignored")
    git(root, "commit", "--quiet", "--message", "base")
    base = git(root, "rev-parse", "HEAD").strip()
    code = root / "code.py"
    for number, branch in enumerate(("main", "other", "main")):
        git(root, "checkout", "--quiet", *(["-b"] if branch == "other" else []), branch)
        code.write_text(f"{ANSWER} {number}\n")
        git(root, "add", "code.py")
        git(root, "commit", "--quiet", "--message", f"{ANSWER} commit {number}", "code.py")
    git(root, "tag", "--annotate", "--message", f"{ANSWER} tag", "v9")
    git(root, "notes", "add", "--message", f"{ANSWER} note")
    code.write_text(f"{ANSWER} stash\n")
    git(root, "stash", "--quiet")
    code.write_text(f"{ANSWER} dropped\n")
    git(root, "commit", "--quiet", "--all", "--message", f"{ANSWER} dropped")
    git(root, "reset", "--quiet", "--hard", "HEAD~1")
    git(root, "gc", "--quiet")
    git(root, "config", "user.signingkey", ANSWER)
    git(root, "replace", base, "main")
    (root / ".git" / "description").write_text(ANSWER)
    (root / ".git" / "hooks" / "post-commit").write_text(f"#!/bin/sh\necho {ANSWER}\n")
    (root / ".git" / "info" / "attributes").write_text(f"{ANSWER} text\n")
    return base


def test_no_byte_of_the_future_is_in_a_scrubbed_repository(tmp_path: Path):
    base = with_the_answer_everywhere(tmp_path / "old")
    files = scrubbed_repository(tmp_path / "old", base)
    new = tmp_path / "new"
    for path, file in files.items():
        place = new / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(file.mode)
    raw = subprocess.run(
        ["git", "-C", str(new), "cat-file", "--batch-all-objects", "--batch"], capture_output=True, check=True
    ).stdout
    assert b"$Id$" in raw
    assert ANSWER.encode() not in raw
    assert [path for path in new.rglob("*") if path.is_file() and ANSWER.encode() in path.read_bytes()] == []
    assert git(new, "log", "--all", "--format=%s").split() == ["base"]
    for command in (("tag",), ("stash", "list"), ("notes", "list"), ("branch", "--all", "--format=%(refname)")):
        assert git(new, *command).split() in ([], ["refs/heads/main"])
    assert len(git(new, "reflog").splitlines()) <= 1
    for name in ("ORIG_HEAD", "FETCH_HEAD", "objects/info/alternates", "packed-refs", "hooks", "info/attributes"):
        assert not (new / ".git" / name).exists()
    # The tree is the base's to the byte: the same hash, whatever attributes say of line ends and exports.
    tree = "rev-parse", f"{base}^{{tree}}"
    assert git(new, "rev-parse", "HEAD^{tree}") == git(tmp_path / "old", "--no-replace-objects", *tree)
    assert ANSWER in git(tmp_path / "old", "show", "main:code.py")  # it was there to be found


def test_the_workspace_of_a_task_is_a_clean_repository(tmp_path: Path):
    for path, file in workspace_files({"src/a.py": "a\r\n", ".gitignore": "*\n"}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(file.content)
    assert git(tmp_path, "ls-files").split() == [".gitignore", "src/a.py"]
    assert git(tmp_path, "show", "HEAD:src/a.py") == "a\n"  # text mode reads the line end so
    assert git(tmp_path, "log", "--format=%an %ae %at %s").strip() == "headrace headrace@localhost 946684800 base"
