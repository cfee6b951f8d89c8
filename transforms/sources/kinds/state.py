"""The kind `state`: a program configures a system, and probes look at it when the program is dead."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from transforms.sources.kinds.trees import Tree, mode_of, relative, the_one, tree, tree_field
from transforms.sources.languages import LANGUAGES
from transforms.sources.record import HEAD_FIELDS, CaseHead, Record, head_fields, json_holds
from transforms.sources.task import Integrity, Tier

FIELDS = {
    "language": f"language of the program: {', '.join(LANGUAGES)}",
    "files": 'the system before: an object of paths, each with text, {"base64": ...} or {"link": ...}',
    "cases": "the probes: a list of objects",
}
CASE_FIELDS = HEAD_FIELDS | {
    "probe": "what is looked at: an object with `file`, `permission`, `user`, `service` or `port`"
}
_LOOKS = ("text", "contains", "matches", "absent")
_FILE = {
    "file": "a file of the system: a path",
    "text": "all of its text, white space at the end of lines and of the file aside: a string",
    "contains": "a part of its text: a string",
    "matches": "a regular expression that is found in its text, where ^ and $ are ends of lines: a string",
    "absent": "that nothing is there: true",
}
_PERMISSION = {
    "permission": "a file or folder of the system: a path",
    "mode": 'permission bits: four octal digits in a string, such as "0640"',
}
_USER = {
    "user": "name of a user: a string",
    "uid": "number of the user",
    "gid": "number of the user's own group",
    "home": "home folder: a string",
    "shell": "login shell: a string",
    "groups": "groups that the user must be in, among others: a list of strings",
    "locked": "whether no password lets the user in: true or false",
    "absent": "that there is no such user: true",
}
_SERVICE = {
    "service": "name of a systemd unit; without a suffix, of a service: a string",
    "enabled": "whether it starts with the system: true or false",
    "unit": 'settings its unit must have: an object such as {"Service.User": "www"}',
}
_PORT = {
    "port": "a TCP port on the loopback interface: a number",
    "start": "the command that serves it, run in the system's root: a list of strings",
    "send": "what a client says first: a string",
    "expect": "what the answer must contain: a string",
}


@dataclass(frozen=True, slots=True)
class FileProbe:
    """What a file holds."""

    path: str
    look: Literal["text", "contains", "matches", "absent"]
    value: str = ""


@dataclass(frozen=True, slots=True)
class PermissionProbe:
    """What the permission bits of a file or folder are."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class UserProbe:
    """What `/etc/passwd`, `group` and `shadow` say of a user. None: does not count."""

    name: str
    uid: int | None = None
    gid: int | None = None
    home: str | None = None
    shell: str | None = None
    groups: tuple[str, ...] = ()
    locked: bool | None = None
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ServiceProbe:
    """What systemd would make of a unit. None: does not count."""

    name: str
    enabled: bool | None = None
    unit: dict[str, str] = field(default_factory=dict)
    """`Section.Key` -> value."""


@dataclass(frozen=True, slots=True)
class PortProbe:
    """What a server answers."""

    port: int
    start: tuple[str, ...]
    expect: str
    send: str = ""


Probe = FileProbe | PermissionProbe | UserProbe | ServiceProbe | PortProbe


@dataclass(frozen=True, slots=True)
class Case:
    """One probe of the system."""

    name: str
    probe: Probe
    tier: Tier = "hidden"
    milestone: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Write a program that configures a system; each case is a probe of what it left."""

    kind: ClassVar[str] = "state"
    integrity: ClassVar[Integrity] = "separate"

    cases: tuple[Case, ...]
    files: Tree = field(default_factory=dict)
    """The system before, below its root."""
    language: str = "bash"


def read(record: Record) -> State:
    """Read the kind's fields of a task. Raises TaskFileError."""
    cases = record.cases(CASE_FIELDS, _case)
    return State(cases, tree(record, "files"), record.one_of("language", tuple(LANGUAGES), "bash"))


def write(check: State) -> dict[str, object]:
    """The kind's fields of a task's record."""
    files = {"files": tree_field(check.files)} if check.files else {}
    cases = [head_fields(case) | {"probe": _written(case.probe)} for case in check.cases]
    return {"language": check.language, **files, "cases": cases}


def describe(check: State, case: Case) -> str:
    """What a case asks for, in a line, for the task's author."""
    return f"must hold of the system: {_written(case.probe)}"


def _case(record: Record, head: CaseHead) -> Case:
    data = record.data.get("probe")
    if data is None:
        raise record.missing("probe")
    inside = f"{record.inside}`probe`: "
    look = the_one(Record(data, record.where, _FILE | _PERMISSION | _USER | _SERVICE | _PORT, inside), tuple(_READERS))
    fields, read_probe = _READERS[look]
    return Case(head.name, read_probe(Record(data, record.where, fields, inside)), head.tier, head.milestone)


def _file(record: Record) -> Probe:
    path = relative(record, "file", record.full_text("file"))
    look = the_one(record, _LOOKS)
    if look == "absent":
        return FileProbe(path, "absent") if record.flag("absent") else _must_be_true(record)
    text = record.text(look) or ""
    if look == "matches":
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise record.error(f"`matches` is no regular expression: {error}", "write one of Python's `re`") from error
    return FileProbe(path, look, text)  # ty: ignore[invalid-argument-type] - one of _LOOKS


def _permission(record: Record) -> Probe:
    mode = mode_of(record)
    if mode is None:
        raise record.missing("mode")
    return PermissionProbe(relative(record, "permission", record.full_text("permission")), mode)


def _user(record: Record) -> Probe:
    name = record.full_text("user")
    if "absent" in record.data:
        if len(record.data) > 2:
            raise record.error("`absent` stands with other fields", "leave them out: nobody is there to have them")
        return UserProbe(name, absent=True) if record.flag("absent") else _must_be_true(record)
    return UserProbe(
        name,
        uid=_number(record, "uid"),
        gid=_number(record, "gid"),
        home=record.text("home"),
        shell=record.text("shell"),
        groups=record.texts("groups"),
        locked=record.flag("locked") if "locked" in record.data else None,
    )


def _service(record: Record) -> Probe:
    name = record.full_text("service")
    if "/" in name:
        raise record.must_be("service", "a name without `/`")
    unit = record.data.get("unit", {})
    if not isinstance(unit, dict) or not all("." in key and isinstance(text, str) for key, text in unit.items()):
        raise record.must_be("unit", "an object of strings by `Section.Key`")
    if not json_holds(dict(sorted(unit.items()))):
        raise record.must_be("unit", "text without lone surrogates")
    enabled = record.flag("enabled") if "enabled" in record.data else None
    if enabled is None and not unit:
        raise record.error("asks nothing of the service", "give `enabled` or `unit`")
    return ServiceProbe(name if "." in name else f"{name}.service", enabled, unit)


def _port(record: Record) -> Probe:
    port = _number(record, "port")
    if port is None or not 1024 <= port <= 65535:  # below, only root may listen, which no program is
        raise record.must_be("port", "a whole number from 1024 to 65535")
    start = record.texts("start")
    if not start:
        raise record.missing("start")
    if any("\0" in argument for argument in start):
        raise record.must_be("start", "a list of strings without NUL, as arguments are")
    return PortProbe(port, start, record.full_text("expect"), record.text("send") or "")


def _number(record: Record, name: str) -> int | None:
    value = record.data.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise record.must_be(name, "a whole number")
    return value


def _must_be_true(record: Record) -> Probe:
    raise record.must_be("absent", "true")


_READERS: dict[str, tuple[dict[str, str], Callable[[Record], Probe]]] = {
    "file": (_FILE, _file),
    "permission": (_PERMISSION, _permission),
    "user": (_USER, _user),
    "service": (_SERVICE, _service),
    "port": (_PORT, _port),
}


def _written(probe: Probe) -> dict[str, object]:
    match probe:
        case FileProbe():
            return {"file": probe.path, probe.look: True if probe.look == "absent" else probe.value}
        case PermissionProbe():
            return {"permission": probe.path, "mode": f"{probe.mode:04o}"}
        case UserProbe():
            fields: dict[str, Any] = {
                "uid": probe.uid,
                "gid": probe.gid,
                "home": probe.home,
                "shell": probe.shell,
                "groups": list(probe.groups) or None,
                "locked": probe.locked,
                "absent": probe.absent or None,
            }
            return {"user": probe.name} | {name: value for name, value in fields.items() if value is not None}
        case ServiceProbe():
            enabled = {} if probe.enabled is None else {"enabled": probe.enabled}
            return {"service": probe.name} | enabled | ({"unit": dict(probe.unit)} if probe.unit else {})
        case PortProbe():
            send = {"send": probe.send} if probe.send else {}
            return {"port": probe.port, "start": list(probe.start), **send, "expect": probe.expect}
