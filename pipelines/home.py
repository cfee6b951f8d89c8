"""Where results are: what --home names, or the spec, or HEADRACE_HOME; a folder, or an address in an object store."""

import os
from pathlib import Path

from pipelines.spec import RunSpec
from pipelines.spec_file import Problem, SpecError
from transforms.lake.storage import Place, place


def home_of(spec: RunSpec) -> Place:
    """Where the run's tables and files are: `paths.home`, else `default_home`. Raises SpecError."""
    return home_at("paths.home", spec.paths.home, Path.cwd()) if spec.paths.home else default_home()


def given_home(home: str | None) -> Place:
    """What --home names, else `default_home`. Raises SpecError."""
    return home_at("--home", home, Path.cwd()) if home else default_home()


def default_home() -> Place:
    """HEADRACE_HOME, else `.headrace` in the current folder. Raises SpecError."""
    return home_at("HEADRACE_HOME", os.environ.get("HEADRACE_HOME") or ".headrace", Path.cwd())


def home_at(where: str, text: str, base: Path) -> Place:
    """What a setting names: a folder, if relative then from `base`, or an address. Raises SpecError for `where`."""
    try:
        return place(text if "://" in text else str(base / Path(text).expanduser()))
    except ValueError as error:
        raise SpecError([Problem(where, str(error), "docs/storage.md has examples")]) from None
