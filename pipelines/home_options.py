"""What the commands that look into a home folder share."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.explain import UsageError

if TYPE_CHECKING:
    from transforms.lake.storage import Place

Home = Annotated[
    str | None,
    typer.Option(
        "--home", metavar="DIR|URI",
        help="Folder of the results, or s3://BUCKET/PREFIX; else HEADRACE_HOME, else ./.headrace.",
    ),
]  # fmt: skip


def home_with_tables(home: str | None) -> "Place":
    """The home, which must hold tables. Raises UsageError, SpecError, StoreFailed."""
    from pipelines.home import given_home

    folder = given_home(home)
    there = (folder / "tables").is_dir() if isinstance(folder, Path) else any((folder / "tables").list())
    if not there:
        raise UsageError(
            f"{folder} holds no tables\n\nhint: --home or HEADRACE_HOME names the folder that a run wrote to"
        )
    return folder


def as_time(text: str) -> datetime:
    """A time in ISO format with its zone, as --at takes it. Raises UsageError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--at {text}: no time; one looks like 2026-08-21T09:30:00Z") from None
    if time.tzinfo is None:
        raise UsageError(f"--at {text}: a time in which zone?\n\nhint: end it with Z for UTC, or as in +02:00")
    return time
