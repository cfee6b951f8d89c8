"""Where this machine gets its Debian packages from, so that images come from the same place."""

import re
from dataclasses import dataclass
from pathlib import Path

_DEFAULT_MIRROR = "http://deb.debian.org/debian"  # what debootstrap itself takes when it is not told


@dataclass(frozen=True, slots=True)
class Source:
    """One archive of packages."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: Path | None
    """Keyring that its signature must come from; None for the keys the system trusts anyway."""


def find_sources(suite: str, etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Where to get a suite from, then its updates and its security updates, as this machine's apt is set up.

    Sources for other suites are left out. Debian's own mirror where nothing offers the suite.
    """
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    known = [source for path in files if path.is_file() for source in _read(path)]
    wanted = [suite, f"{suite}-updates", f"{suite}-security"]
    found = [source for name in wanted for source in known if source.suite == name]
    if not any(source.suite == suite for source in found):
        return [Source(_DEFAULT_MIRROR, suite, ("main",), None)]
    return found


def _read(path: Path) -> list[Source]:
    text = path.read_text(errors="replace")
    if path.suffix == ".sources":
        return [source for block in re.split(r"\n[ \t]*\n", text) for source in _deb822(block)]
    return [source for line in text.splitlines() for source in _one_line(line)] if path.suffix == ".list" else []


def _deb822(block: str) -> list[Source]:
    fields: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false", "off"}:
        return []
    uris, suites, components = (fields.get(key, "").split() for key in ("uris", "suites", "components"))
    return [_source(uri, suite, components, fields.get("signed-by")) for uri in uris for suite in suites if _web(uri)]


def _one_line(line: str) -> list[Source]:
    match = re.fullmatch(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<rest>\S+\s+\S+.*)", line.partition("#")[0].strip())
    if match is None:
        return []
    uri, suite, *components = match["rest"].split()
    options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
    return [_source(uri, suite, components, options.get("signed-by"))] if _web(uri) else []


def _source(uri: str, suite: str, components: list[str], signed_by: str | None) -> Source:
    # A key written out in the file, not named by path, is left to the keys the system trusts anyway.
    keyring = Path(signed_by) if signed_by and re.fullmatch(r"/\S+", signed_by) else None
    return Source(uri, suite, tuple(components), keyring)


def _web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))
