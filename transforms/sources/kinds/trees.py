"""Trees of files in a task: what a program finds when it starts, for the kinds `files` and `state`."""

import base64
import binascii
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from transforms.sources.record import Record, json_holds, shown

_FIELDS = {
    "text": "what the file holds: a string",
    "base64": "what the file holds, where that is no text: base64 in a string",
    "link": "what the symbolic link points at, instead of a file: a string",
    "mode": 'permission bits: four octal digits in a string, such as "0644"',
}
_MODE = re.compile(r"[0-7]{4}")
PLAIN_MODE = 0o644
_PATH_BYTES = 1024  # far more than honest paths have; what a kernel and its tools take ends at 4096
_NAME_BYTES = 255  # as file systems have it


@dataclass(frozen=True, slots=True)
class Item:
    """A file with its content, or a symbolic link."""

    content: bytes = b""
    mode: int = PLAIN_MODE
    link: str | None = None
    """Where it points; None for a file."""


Tree = Mapping[str, Item]
"""Files and links by path, relative and without `..`."""


def tree(record: Record, name: str) -> dict[str, Item]:
    """The tree in a field; empty where it is absent. Raises TaskFileError."""
    data = record.data.get(name)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise record.must_be(name, "an object of paths")
    found: dict[str, Item] = {}
    for given, item in data.items():
        path = relative(record, name, given)
        above = [other for other in found if path == other or f"{path}/".startswith(f"{other}/")]
        above += [other for other in found if other.startswith(f"{path}/")]
        if above:
            raise record.error(f"`{name}`: {path!r} and {above[0]!r} cannot both be there", "rename one of them")
        found[path] = _item(record, name, given, item)
    return found


def tree_field(files: Tree) -> dict[str, object]:
    """A tree as a record holds it."""
    return {path: _written(item) for path, item in files.items()}


def relative(record: Record, name: str, path: object) -> str:
    """A path in its one form, relative to the folder it is in. Raises TaskFileError."""
    if not isinstance(path, str) or "\0" in path or ".." in path.split("/") or not json_holds(path):
        raise record.error(f"`{name}`: {path!r} is not the path of a file", "give a relative path without `..`")
    normal = posixpath.normpath(path).lstrip("/")
    if normal in ("", "."):
        raise record.error(f"`{name}`: {path!r} is not the path of a file", "give a relative path without `..`")
    if len(normal.encode()) > _PATH_BYTES or max(len(part.encode()) for part in normal.split("/")) > _NAME_BYTES:
        hint = f"a path has at most {_PATH_BYTES} bytes, and each name in it {_NAME_BYTES}"
        raise record.error(f"`{name}`: {shown(path)} is too long a path", hint)
    return normal


def mode_of(record: Record, name: str = "mode") -> int | None:
    """The permission bits in a field, or None where it is absent. Raises TaskFileError."""
    text = record.text(name)
    if text is not None and not _MODE.fullmatch(text):
        raise record.must_be(name, 'four octal digits in a string, such as "0644"')
    return None if text is None else int(text, 8)


def bytes_of(record: Record, name: str) -> bytes:
    """The bytes in a field of base64. Raises TaskFileError."""
    try:
        return base64.b64decode(record.text(name) or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise record.must_be(name, "base64") from error


def the_one(record: Record, names: tuple[str, ...]) -> str:
    """The only one of `names` that a record has. Raises TaskFileError."""
    given = [name for name in names if name in record.data]
    if len(given) != 1:
        wanted = ", ".join(f"`{name}`" for name in names)
        raise record.error(f"has {len(given) or 'none'} of {wanted}", "give exactly one of them")
    return given[0]


def _item(record: Record, name: str, path: str, data: object) -> Item:
    fields = Record(
        {"text": data} if isinstance(data, str) else data, record.where, _FIELDS, f"{record.inside}`{name}` {path!r}: "
    )
    mode = mode_of(fields)
    match the_one(fields, ("text", "base64", "link")):
        case "text":
            content = (fields.text("text") or "").encode()
        case "base64":
            content = bytes_of(fields, "base64")
        case _:
            if mode is not None:
                raise fields.error("a link has no `mode`", "leave it out")
            target = fields.full_text("link")
            if len(target.encode()) > _PATH_BYTES:
                raise fields.error(f"`link` is too long: {shown(target)}", f"give at most {_PATH_BYTES} bytes")
            return Item(link=target)
    return Item(content, PLAIN_MODE if mode is None else mode)


def _written(item: Item) -> object:
    if item.link is not None:
        return {"link": item.link}
    try:
        held: dict[str, object] = {"text": item.content.decode()}
    except UnicodeDecodeError:
        held = {"base64": base64.b64encode(item.content).decode()}
    if item.mode != PLAIN_MODE:
        return held | {"mode": f"{item.mode:04o}"}
    return held["text"] if "text" in held else held
