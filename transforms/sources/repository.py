"""Read a git repository as data: the files of one commit, and nothing of what came before or after it.

Only `ls-tree` and `cat-file` look at a repository; its hooks, its configuration and its replaced objects have no say.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from sandboxes.protocol import File

_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
} | {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "headrace"), ("EMAIL", "headrace@localhost"), ("DATE", "2000-01-01T00:00:00Z"))
}
_REGULAR = {b"100644": 0o644, b"100755": 0o755, b"100664": 0o644}


class RepositoryError(Exception):
    """A repository that cannot be read, with the way out."""


def is_inside(path: str) -> bool:
    """Whether a path names a file below a repository's root, and none of git's own."""
    parts = path.split("/")
    if any("\ud800" <= letter <= "\udfff" for letter in path):  # no name of a file in UTF-8
        return False
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts) and not set(path) & set(
        "\0\\\n"
    )


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether a path matches one of the globs: `*` and `?` within a folder, `**` across folders."""
    return any(_regex(glob).fullmatch(path) for glob in globs)


def read_repository(path: Path, commit: str, *, leave_out: Iterable[str] = ()) -> dict[str, str]:
    """The text files of a commit by path, for the field `files` of a task; executable bits are not kept.

    Raises RepositoryError for a commit that is not there, and for links, submodules and files that are not UTF-8
    unless a glob of `leave_out` names them.
    """
    globs, texts, odd = tuple(leave_out), {}, []
    for name, (mode, content) in _tree(path, commit).items():
        if matches(name, globs):
            continue
        try:
            if mode not in _REGULAR:
                raise ValueError(f"mode {mode.decode()}")
            texts[name] = content.decode()
        except ValueError:
            odd.append(name)
    if odd:
        raise RepositoryError(
            f"{path} at {commit}: no plain text files: {', '.join(sorted(odd)[:10])}\n\n"
            "hint: name them in `leave_out`, if the tests do without them"
        )
    return texts


def workspace_files(files: Mapping[str, str]) -> dict[str, File]:
    """The files of a task as a workspace for `Sandbox.put`: a new repository with one commit, and no other history."""
    return _one_commit({name: (b"100644", text.encode()) for name, text in files.items()})


def scrubbed_repository(path: Path, commit: str) -> dict[str, File]:
    """The same from a real repository, with executable bits and bytes that are no text, without links and submodules.

    No object, reference, tag, note, stash, reflog, pack, hook or setting of the old repository is in it, only the files
    of the commit. Raises RepositoryError for a commit that is not there.
    """
    return _one_commit({name: entry for name, entry in _tree(path, commit).items() if entry[0] in _REGULAR})


def _one_commit(tree: Mapping[str, tuple[bytes, bytes]]) -> dict[str, File]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, (mode, content) in tree.items():
            place = root / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(_REGULAR[mode])
        _git(root, "init", "--quiet", "--template=", "--initial-branch=main")
        # As they are: no attribute of theirs may change a file on its way, no ignore rule leave one out.
        (root / ".git" / "info").mkdir()
        (root / ".git" / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        _git(root, "add", "--all", "--force")
        _git(root, "commit", "--quiet", "--allow-empty", "--no-verify", "--message=base")
        (root / ".git" / "info" / "attributes").unlink()
        return {
            str(file.relative_to(root)): File(file.read_bytes(), file.stat().st_mode & 0o777)
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }


def _tree(path: Path, commit: str) -> dict[str, tuple[bytes, bytes]]:
    """Mode and content of every file of a commit. Raises RepositoryError."""
    if not re.fullmatch(r"[0-9A-Za-z_][0-9A-Za-z_./@^~-]*", commit):
        raise RepositoryError(f"{commit!r} is not the name of a commit")
    listing = _git(path, "ls-tree", "-r", "-z", "--full-tree", commit)
    entries = [entry.partition(b"\t") for entry in listing.split(b"\0") if entry]
    tree: dict[str, tuple[bytes, bytes]] = {}
    blobs = [head.split()[2] for head, _, _ in entries if head.split()[1] == b"blob"]
    contents = dict(zip(blobs, _contents(path, blobs), strict=True))
    for head, _, raw in entries:
        mode, _, name = *head.split()[:2], raw.decode("utf-8", "surrogateescape")
        if not is_inside(name):
            raise RepositoryError(f"{path} at {commit}: {name!r} is no name for a file")
        tree[name] = (mode, contents.get(head.split()[2], b""))
    return tree


def _contents(path: Path, blobs: list[bytes]) -> list[bytes]:
    """The content of each object, in order."""
    out = _git(path, "cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in blobs))
    found, at = [], 0
    for _ in blobs:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        found.append(out[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
    return found


def _git(path: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """What git prints. Raises RepositoryError."""
    options = ("-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
    fixed = ("-c", "core.autocrlf=false", "-c", "gc.auto=0", "-c", "commit.gpgSign=false")
    argv = ("git", "-C", str(path), *options, *fixed, *arguments)
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, env=_ENVIRONMENT, check=False)
    except FileNotFoundError as error:
        raise RepositoryError("git is not on PATH\n\nhint: install git") from error
    if done.returncode != 0:
        raise RepositoryError(f"{path}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


@lru_cache(maxsize=1024)
def _regex(glob: str) -> re.Pattern[str]:
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(signs.get(part) or re.escape(part) for part in parts), re.DOTALL)
