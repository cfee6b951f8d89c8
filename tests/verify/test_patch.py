# ruff: noqa: E501 - one patch a line
"""Patches as data, beside what `git apply` makes of them."""

import difflib
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.repositories.histories import git
from transforms.verify.patch import (
    MAX_BYTES,
    PatchError,
    PathRefused,
    apply_patch,
    is_patch,
    parse_patch,
    tree_with,
)

FILES = {
    "a.py": "one\ntwo\nthree\n",
    "src/b.py": "x\n",
    "dos.txt": "r\r\ns\r\nt\r\n",
    "bare.txt": "no end",
    "empty": "",
    "rows": "r\na\nb\nc\nd\nr\ne\nr\n",
}


def applied(patch: str, files: dict[str, str] | None = None) -> dict[str, str | None]:
    return apply_patch(files or FILES, parse_patch(patch))


def test_a_plain_hunk():
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2.5\n three\n"
    assert applied(patch) == {"a.py": "one\n2\n2.5\nthree\n"}


@pytest.mark.parametrize(
    ("patch", "want"),
    [
        ("diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+n\n", {"new": "n\n"}),
        ("--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+n\n\\ No newline at end of file\n", {"new": "n"}),
        ("diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", {"e": ""}),
        ("diff --git a/empty b/empty\ndeleted file mode 100644\nindex e69de29..0000000\n", {"empty": None}),
        ("--- a/src/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", {"src/b.py": None}),
        (
            "diff --git a/src/b.py b/c d.py\nsimilarity index 100%\nrename from src/b.py\nrename to c d.py\n",
            {"src/b.py": None, "c d.py": "x\n"},
        ),
        ("diff --git a/a.py b/z\nsimilarity index 100%\ncopy from a.py\ncopy to z\n", {"z": "one\ntwo\nthree\n"}),
        ("diff --git a/a.py b/a.py\nold mode 100644\nnew mode 100755\n", {"a.py": "one\ntwo\nthree\n"}),
        ("--- a/bare.txt\n+++ b/bare.txt\n@@ -1 +1 @@\n-no end\n\\ No newline at end of file\n+end\n", {"bare.txt": "end\n"}),
        ("--- a/dos.txt\n+++ b/dos.txt\n@@ -1,2 +1,2 @@\n r\r\n-s\r\n+S\r\n", {"dos.txt": "r\r\nS\r\nt\r\n"}),
        ("--- a/dos.txt\n+++ b/dos.txt\n@@ -1,2 +1,2 @@\n r\n-s\n+S\n", {"dos.txt": "r\r\nS\r\nt\r\n"}),
        ("--- a.py\t2026-01-01\n+++ a.py\t2026-01-01\n@@ -3 +3 @@\n-three\n+3\n", {"a.py": "one\ntwo\n3\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -40,2 +40,2 @@ def f():\n two\n-three\n+3\n", {"a.py": "one\ntwo\n3\n"}),
        ("--- a/rows\n+++ b/rows\n@@ -5 +5 @@\n-r\n+near\n", {"rows": "r\na\nb\nc\nd\nnear\ne\nr\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+1", {"a.py": "1\ntwo\nthree\n"}),
        ('--- /dev/null\n+++ "b/\\303\\244 \\"q\\".py"\n@@ -0,0 +1 @@\n+n\n', {'ä "q".py': "n\n"}),
        ("From: me\n\nWhy.\n---\n a.py | 2 +-\n\ndiff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+1\n-- \n2.39\n", {"a.py": "1\ntwo\nthree\n"}),
    ],
)  # fmt: skip
def test_every_form_of_change(patch: str, want: dict[str, str | None]):
    assert applied(patch) == want


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-TWO\n+2\n", "hunk 1 of a.py does not fit"),
        ("--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-x\n+y\n", "no.py is not in the repository"),
        ("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+n\n", "a.py is in the repository already"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "leaves text in it"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n", "counts the lines wrongly"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+1\n+1.5\n", "is in no hunk"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,2 +1 @@\n-one\n+1\n@@ -3 +3 @@\n-three\n+3\n", "does not hold the lines it counts"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary"),
        ("just words", "no patch"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+1\n--- a/a.py\n+++ b/a.py\n@@ -2 +2 @@\n-two\n+2\n", "changed twice"),
        ("--- a/bare.txt\n+++ b/bare.txt\n@@ -1,0 +2 @@\n+more\n", "would have no end"),
        ("+" * (MAX_BYTES + 1), "larger than"),
    ],
)  # fmt: skip
def test_what_does_not_apply_says_why(patch: str, message: str):
    with pytest.raises(PatchError, match=message) as error:
        applied(patch)
    assert not isinstance(error.value, PathRefused)


@pytest.mark.parametrize(
    "patch",
    [
        "--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+n\n",
        "--- /dev/null\n+++ b//etc/x\n@@ -0,0 +1 @@\n+n\n",
        "--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+n\n",
        "--- /dev/null\n+++ b/src/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+n\n",
        "--- /dev/null\n+++ b/.GIT/config\n@@ -0,0 +1 @@\n+n\n",
        '--- /dev/null\n+++ "b/a\\000b"\n@@ -0,0 +1 @@\n+n\n',
        "diff --git a/a.py b/a.py\nrename from a.py\nrename to ../a.py\n",
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n",
        "diff --git a/l b/l\nindex 1234567..89abcde 120000\n--- a/l\n+++ b/l\n@@ -1 +1 @@\n-x\n+y\n",
        "diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n+Subproject commit 0\n",
    ],
)
def test_what_leaves_the_repository_is_refused(patch: str):
    with pytest.raises(PathRefused):
        applied(patch)


def test_a_file_is_no_folder():
    for path, files in (("a.py/x", FILES), ("src", {"src/b.py": "x\n"})):
        with pytest.raises(PatchError, match="a folder"):
            tree_with(files, {path: "n\n"})
    assert tree_with({"a": "1"}, {"a": None, "a/b": "2"}) == {"a/b": "2"}


def test_what_means_to_be_a_patch():
    assert is_patch("words\ndiff --git a/x b/x\n")
    assert is_patch("--- x\n+++ y\n")
    assert not is_patch("def f():\n    return '--- x'\n")


def test_the_same_as_git_for_random_changes(tmp_path: Path):
    """200 trees and changes of them: git's own diffs, and diffs moved by lines put in before, give git's result."""
    draw = random.Random(7)
    git(tmp_path, "init", "--quiet")
    words = ["a", "b", "", "c", "  d", "+e", "-f", "\\g", "@@ -1 +1 @@", "diff --git a/x b/x"]

    def text() -> str:
        lines = [draw.choice(words) for _ in range(draw.randrange(12))]
        return "\n".join(lines) + draw.choice(["\n", ""]) if lines else ""

    def mutated(old: str) -> str:
        lines = old.splitlines(keepends=True)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(lines) + 1)
            lines[at : at + draw.randrange(2)] = [draw.choice(words) + "\n" for _ in range(draw.randrange(3))]
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines[:-1]) + "".join(lines[-1:])

    compared = 0
    for _ in range(200):
        old = text()
        new = mutated(old)
        drifted = draw.choice(["", "z\n", "z\ny\nx\n"]) + old
        body = "".join(
            line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), "a/f", "b/f", n=draw.choice([1, 3])
            )
        )
        if not body or not old or not new:
            continue
        (tmp_path / "f").write_bytes(drifted.encode())
        done = subprocess.run(["git", "-C", str(tmp_path), "apply", "-"], input=body.encode(), capture_output=True)
        if done.returncode == 0:
            compared += 1
            assert apply_patch({"f": drifted}, parse_patch(body)) == {"f": (tmp_path / "f").read_bytes().decode()}, body
    assert compared >= 60


def test_an_attack_on_time_is_bounded():
    files: dict[str, str] = {"f": "x\n" * 20_000}
    patch = "--- a/f\n+++ b/f\n@@ -5000,9001 +5000,9001 @@\n" + " x\n" * 9000 + "-y\n+y\n"
    began = time.monotonic()
    with pytest.raises(PatchError):
        applied(patch, files)
    assert time.monotonic() - began < 5
