"""Read a unified diff and apply it to files held as text. Nothing touches a disk here.

The rules are those of `git apply`: the lines a hunk names must be there to the letter, though they may have moved (to
the nearest place where they fit); a patch applies as a whole or not at all. Renames, copies, new and deleted files and
"no newline at end of file" are understood; modes are read past; links, submodules and binary patches are refused. A
hunk without carriage returns fits a file whose every line ends in one, because answers of models lose them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transforms.sources.repository import is_inside

MAX_BYTES = 1 << 20
"""Of a patch, in UTF-8."""

_MOVED = 1000  # lines a hunk may be away from where it says
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}
_LINK_MODES = ("120000", "160000")


class PatchError(Exception):
    """A text that is no patch, or a patch that does not fit. Holds no text of the files."""


class PathRefused(PatchError):
    """A patch for something outside the repository, or for a link."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Some lines, with their line ends, and what they become. `start` is the number of the first, from 1."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What happens to one file: `old` is None for a new one, `new` for a deleted one."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]
    copy: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches."""
        return tuple(path for path in dict.fromkeys((self.old, self.new)) if path is not None)


def is_patch(text: str) -> bool:
    """Whether a text means to be a patch: some line begins one."""
    return re.search(r"^(diff --git |--- .*\n\+\+\+ )", text, re.MULTILINE) is not None


def parse_patch(text: str) -> list[FilePatch]:
    """Read a patch. Text before the first file, such as a mail's, is read past. Raises PatchError, PathRefused."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise PatchError(f"the patch is larger than {MAX_BYTES} bytes")
    reader = _Reader(text)
    found = []
    while reader.seek():
        found.append(reader.file())
    if not found:
        raise PatchError("there is no patch in the text")
    return found


def apply_patch(files: Mapping[str, str], patches: Iterable[FilePatch]) -> dict[str, str | None]:
    """What each touched file becomes; None where it is deleted. Raises PatchError when one does not fit."""
    changed: dict[str, str | None] = {}
    for patch in patches:
        for path in patch.paths:
            if path in changed:
                raise PatchError(f"{path} is changed twice")
        if patch.old is not None and patch.old not in files:
            raise PatchError(f"{patch.old} is not in the repository")
        if patch.new is not None and patch.new != patch.old and patch.new in files:
            raise PatchError(f"{patch.new} is in the repository already")
        text = _apply(patch, files[patch.old] if patch.old is not None else "")
        if patch.old is not None and not patch.copy:
            changed[patch.old] = None
        if patch.new is not None:
            changed[patch.new] = text
        elif text:
            raise PatchError(f"{patch.old} is deleted, but the patch leaves text in it")
    return changed


def tree_with(files: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """The files after a change. Raises PatchError where a file would be a folder too."""
    tree = {path: text for path, text in {**files, **changed}.items() if text is not None}
    for path in changed:
        parts = path.split("/")
        for count in range(1, len(parts)):
            if path in tree and "/".join(parts[:count]) in tree:
                raise PatchError(f"{'/'.join(parts[:count])} is a file, not a folder")
    folders = {path.rsplit("/", count)[0] for path in tree for count in range(1, path.count("/") + 1)}
    if clash := folders & {path for path in changed if path in tree}:
        raise PatchError(f"{min(clash)} is a folder, not a file")
    return tree


def _apply(patch: FilePatch, text: str) -> str:
    lines = _lines(text)
    dos = bool(lines) and all(line.endswith("\r\n") for line in lines)
    done: list[str] = []
    at = 0
    for number, hunk in enumerate(patch.hunks, 1):
        old, new = hunk.old, hunk.new
        if dos and not any("\r" in line for line in (*old, *new)):
            old, new = (tuple(line.replace("\n", "\r\n") for line in side) for side in (old, new))
        start = _find(lines, old, hunk.start - (1 if old else 0), at)
        if start is None:
            raise PatchError(f"hunk {number} of {patch.paths[0]} does not fit: its lines are not there")
        done += [*lines[at:start], *new]
        at = start + len(old)
    done += lines[at:]
    if any(not line.endswith("\n") for line in done[:-1]):
        raise PatchError(f"a line in the middle of {patch.paths[0]} would have no end")
    return "".join(done)


def _find(lines: list[str], old: tuple[str, ...], wanted: int, least: int) -> int | None:
    """Where the lines stand, the nearest place to where they should."""
    most = len(lines) - len(old)
    if not old:  # nothing to find it by
        return wanted if least <= wanted <= most else None
    for away in range(_MOVED + 1):
        for start in (wanted + away, wanted - away):
            if least <= start <= most and lines[start] == old[0] and tuple(lines[start : start + len(old)]) == old:
                return start
    return None


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a newline ends one."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


class _Reader:
    """A position in the lines of a patch."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self.at = 0
        self.hunks_before = False

    def here(self) -> str:
        return self.lines[self.at] if self.at < len(self.lines) else ""

    def plain_header(self) -> bool:
        after = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
        return self.here().startswith("--- ") and after.startswith("+++ ")

    def seek(self) -> bool:
        """Go to the next file; False at the end. Raises PatchError for lines that a hunk should have held."""
        signature = False
        while self.at < len(self.lines):
            line = self.here()
            if line.startswith("diff --git ") or self.plain_header():
                return True
            signature = signature or line.rstrip() == "--"
            if self.hunks_before and not signature and line.startswith(("+", "-", "@@ ")):
                raise PatchError(f"line {self.at + 1} of the patch is in no hunk: a header counts its lines wrongly")
            self.at += 1
        return False

    def file(self) -> FilePatch:
        old: str | None = None
        new: str | None = None
        copy = False
        extended: dict[str, str] = {}
        if self.here().startswith("diff --git "):
            old, new = _both(self.here().removeprefix("diff --git ").rstrip("\r"))
            self.at += 1
            extended = self.extended()
            copy = "copy from" in extended
            for key in ("rename", "copy"):
                if f"{key} from" in extended and f"{key} to" in extended:
                    old, new = _unquoted(extended[f"{key} from"]), _unquoted(extended[f"{key} to"])
        if self.plain_header():
            old, new = _name(self.here()[4:], "a/"), _name(self.lines[self.at + 1][4:], "b/")
            self.at += 2
        if "new file mode" in extended:
            old = None
        if "deleted file mode" in extended:
            new = None
        hunks = self.hunks()
        if old is None and new is None:
            raise PatchError("a file of the patch has no name")
        for path in (old, new):
            if path is not None and not is_inside(path):
                raise PathRefused(f"{path!r} is not a file of the repository")
        return FilePatch(old, new, hunks, copy)

    def extended(self) -> dict[str, str]:
        """The lines between `diff --git` and the hunks: `rename from x` and the like."""
        found: dict[str, str] = {}
        keys = ("old mode", "new mode", "new file mode", "deleted file mode", "rename from", "rename to", "copy from")
        while (line := self.here().rstrip("\r")) and not line.startswith(("diff --git ", "--- ", "@@ ")):
            if line.startswith(("GIT binary patch", "Binary files ")):
                raise PatchError("a binary patch cannot be applied")
            for key in (*keys, "copy to", "index"):
                if line.startswith(key + " "):
                    found[key] = line.removeprefix(key + " ")
            self.at += 1
        for key in ("old mode", "new mode", "new file mode", "deleted file mode", "index"):
            if found.get(key, "").endswith(_LINK_MODES):
                raise PathRefused("links and submodules cannot be in a patch")
        return found

    def hunks(self) -> tuple[Hunk, ...]:
        found = []
        while (head := _HUNK.match(self.here())) is not None:
            self.at += 1
            old_left, new_left = (int(head[2]) if head[2] else 1), (int(head[4]) if head[4] else 1)
            old: list[str] = []
            new: list[str] = []
            while old_left > 0 or new_left > 0:
                if self.at >= len(self.lines):
                    raise PatchError("the patch ends within a hunk: its header counts the lines wrongly")
                line = self.here()
                sign, text = line[:1] or " ", line[1:] + "\n"
                sign, text = (" ", "\r\n") if line == "\r" else (sign, text)
                if sign not in " +-":
                    break
                if sign != "+":
                    old.append(text)
                    old_left -= 1
                if sign != "-":
                    new.append(text)
                    new_left -= 1
                self.at += 1
                self.unended(sign, old, new)
            if old_left or new_left:
                raise PatchError(f"the hunk before line {self.at + 1} of the patch does not hold the lines it counts")
            found.append(Hunk(int(head[1]), tuple(old), tuple(new)))
        self.hunks_before = bool(found)
        return tuple(found)

    def unended(self, sign: str, old: list[str], new: list[str]) -> None:
        """Take the end off the line just read, if the next one says that it has none."""
        if self.here().startswith("\\"):
            self.at += 1
            for side in ([old] if sign != "+" else []) + ([new] if sign != "-" else []):
                side[-1] = side[-1].removesuffix("\n")


def _name(field: str, prefix: str) -> str | None:
    """The path in a `---` or `+++` line; None for /dev/null."""
    text = field.rstrip("\r")
    text = _unquoted(text) if text.startswith('"') else text.split("\t")[0]
    return None if text == "/dev/null" else text.removeprefix(prefix)


def _both(text: str) -> tuple[str | None, str | None]:
    """The paths in a `diff --git` line; only one that names a file twice can be read without other lines."""
    names = [match[0] for match in _QUOTED.finditer(text)]
    if len(names) == 2:
        return _unquoted(names[0]).removeprefix("a/"), _unquoted(names[1]).removeprefix("b/")
    middle = len(text) // 2
    old, new = text[:middle].removeprefix("a/"), text[middle + 1 :].removeprefix("b/")
    return (old, new) if text[middle : middle + 1] == " " and old == new else (None, None)


def _unquoted(text: str) -> str:
    """A path as git quotes it in C's manner when it holds odd characters."""
    match = _QUOTED.fullmatch(text)
    if match is None:
        return text

    def byte(escape: re.Match[str]) -> bytes:
        code = escape[1]
        return bytes([int(code, 8) & 0xFF]) if code[0] in "01234567" else _ESCAPES.get(code, code).encode()

    raw = b""
    at = 0
    for escape in re.finditer(r"\\([0-7]{3}|.)", match[1]):
        raw += match[1][at : escape.start()].encode("utf-8", "replace") + byte(escape)
        at = escape.end()
    return (raw + match[1][at:].encode("utf-8", "replace")).decode("utf-8", "replace")
