"""A system as data: what its files say of users and services. Links lead nowhere outside its root."""

import posixpath
import re
from dataclasses import dataclass

from transforms.sources.kinds.state import ServiceProbe, UserProbe
from transforms.verify.artifacts import Entries, Entry, resolve
from transforms.verify.documents import Differs

ROOT = "root"
"""Folder of the workspace that is the system's root."""

_UNITS = (
    "etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system",
    "lib/systemd/system",
)  # fmt: skip
"""Where systemd looks for a unit, in this order."""
# Settings that systemd collects from all their lines: see systemd.unit(5), systemd.exec(5).
_COLLECTED = {
    "After", "Before", "BindsTo", "Conflicts", "Documentation", "Environment", "PartOf", "RequiredBy", "Requires",
    "Requisite", "SupplementaryGroups", "Upholds", "WantedBy", "Wants",
}  # fmt: skip
_NUMBER = re.compile("[0-9]{1,10}")
_NO_PASSWORD = ("!", "*")  # how a password starts that nothing typed can match


@dataclass(frozen=True, slots=True)
class System:
    """What a workspace holds below `ROOT`."""

    entries: Entries
    real_root: str
    """The path that the root had for the program."""

    def find(self, path: str) -> tuple[str, Entry] | None:
        """What a path leads to, and where that lies; None where nothing is there."""
        found = resolve(self.entries, path, root=ROOT, real_root=self.real_root)
        return None if found is None else (found, self.entries[found])

    def named(self, path: str) -> Entry | None:
        """What a path itself names, be it a link that leads nowhere."""
        above = self.find(posixpath.dirname(path))
        return None if above is None else self.entries.get(posixpath.join(above[0], posixpath.basename(path)))

    def content(self, path: str) -> bytes:
        """What a regular file holds. Raises Differs where there is none."""
        found = self.find(path)
        if found is None:
            raise Differs(f"{path} is missing")
        if found[1].kind != "file":
            raise Differs(f"{path} is no regular file", found[1].kind)
        return found[1].content

    def lines(self, path: str) -> list[str]:
        """The lines of a file. Raises Differs where there is none."""
        return self.content(path).decode("utf-8", "surrogateescape").split("\n")


def check_user(system: System, probe: UserProbe) -> None:
    """Raises Differs where a user is not as asked for."""
    users = [user for user in _table(system, "etc/passwd", 7) if all(map(_NUMBER.fullmatch, user[2:4]))]
    user = next((user for user in users if user[0] == probe.name), None)  # the first counts, as for the C library
    if probe.absent:
        if user is not None:
            raise Differs(f"the user {probe.name} is there")
        return
    if user is None:
        raise Differs(f"there is no user {probe.name}")
    _, password, uid, gid, _, home, shell = user
    wanted = {"uid": probe.uid, "gid": probe.gid, "home": probe.home, "shell": probe.shell}
    came = {"uid": int(uid), "gid": int(gid), "home": home, "shell": shell}
    for name, value in wanted.items():
        if value is not None and value != came[name]:
            raise Differs(f"{probe.name} has another {name}", str(came[name]))
    if probe.groups:
        groups = _table(system, "etc/group", 4)
        member = {name for name, _, number, members in groups if number == gid or probe.name in members.split(",")}
        if missing := set(probe.groups) - member:
            raise Differs(f"{probe.name} is not in {len(missing)} of the groups", ", ".join(sorted(member)))
    if probe.locked is not None:
        if password == "x":
            shadow = [line for line in _table(system, "etc/shadow", 9) if line[0] == probe.name]
            if not shadow:
                raise Differs(f"{probe.name} is not in etc/shadow")
            password = shadow[0][1]
        if password.startswith(_NO_PASSWORD) is not probe.locked:
            raise Differs(f"{probe.name} is {'not ' if probe.locked else ''}locked")


def check_service(system: System, probe: ServiceProbe) -> None:
    """Raises Differs where a unit is not as asked for."""
    path = _unit_file(system, probe.name)
    if probe.enabled is not None and _enabled(system, probe.name, path) is not probe.enabled:
        raise Differs(f"{probe.name} is {'not ' if probe.enabled else ''}enabled")
    if not probe.unit:
        return
    if path is None:
        raise Differs(f"{probe.name} has no unit file, or is masked")
    settings = _settings(system, probe.name, path)
    for name, value in probe.unit.items():
        came = settings.get(name, [])
        if name.split(".", 1)[1] in _COLLECTED:
            right = set(value.split()) <= set(" ".join(came).split())
        else:
            right = came[-1:] == [value.strip()]
        if not right:
            raise Differs(f"{probe.name}: {name} is wrong", "; ".join(came))


def _table(system: System, path: str, fields: int) -> list[list[str]]:
    """The lines of a table of colon-separated fields; others do not count, as for the C library."""
    lines = (line.rstrip().split(":") for line in system.lines(path))
    return [line for line in lines if len(line) == fields and line[0] and not line[0].startswith("#")]


def _unit_file(system: System, name: str) -> str | None:
    """Path of the file that defines a unit; None where there is none, or it is masked."""
    prefix, at, _ = name.partition("@")
    names = [name, f"{prefix}@.{name.rpartition('.')[2]}"] if at else [name]
    for path in (posixpath.join(folder, wanted) for wanted in names for folder in _UNITS):
        if system.named(path) is not None:
            found = system.find(path)  # a link to /dev/null, or an empty file: masked
            return path if found and found[1].kind == "file" and found[1].content else None
    return None


def _enabled(system: System, name: str, path: str | None) -> bool:
    """Whether a unit that can be loaded is wanted or required by another."""
    folder = system.find(_UNITS[0])
    if path is None or folder is None:
        return False
    for entry in system.entries:
        parts = entry.removeprefix(folder[0] + "/").split("/")
        if len(parts) == 2 and parts[1] == name and parts[0].endswith((".wants", ".requires")):
            return True
    return False


def _settings(system: System, name: str, path: str) -> dict[str, list[str]]:
    """`Section.Key` -> the values assigned, in order, of a unit and its drop-ins; an empty one forgets those before."""
    settings: dict[str, list[str]] = {}
    for file in (path, *_drop_ins(system, name)):
        section, carried = "", ""
        for line in system.lines(file):
            line = line.strip()
            if line.startswith(("#", ";")):
                continue
            line, carried = carried + line, ""
            if line.endswith("\\"):
                carried = line[:-1].rstrip() + " "
            elif line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            elif "=" in line:
                key, _, value = line.partition("=")
                values = settings.setdefault(f"{section}.{key.strip()}", [])
                if value.strip():
                    values.append(value.strip())
                else:
                    values.clear()
    return settings


def _drop_ins(system: System, name: str) -> list[str]:
    """Paths of a unit's drop-in files, in the order of their names; the first folder with a name has it."""
    found: dict[str, str] = {}
    for folder in (f"{units}/{name}.d" for units in _UNITS):
        place = system.find(folder)
        for entry in system.entries if place else ():
            above, _, file = entry.rpartition("/")
            if place and above == place[0] and file.endswith(".conf"):
                found.setdefault(file, f"{folder}/{file}")
    return [found[file] for file in sorted(found)]
