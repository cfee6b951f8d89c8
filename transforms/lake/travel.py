"""Tables as they were: a version, or the version of a time, found in the table's own history."""

import itertools
from datetime import UTC, datetime

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from transforms.lake.errors import QueryError


def go_to(table: str, delta: DeltaTable | None, moment: int | datetime) -> None:
    """Load the table as of a version, or of a time with a zone.

    delta-rs itself gives the first version for any time before it, and the last for any time to come. Raises QueryError
    for those, and for a version that there is not, or not any more.
    """
    if delta is None:
        raise QueryError(f"table {table} does not exist, so it has no versions")
    versions = sorted(delta.history(), key=lambda entry: entry["version"])
    oldest, newest = versions[0], versions[-1]
    if isinstance(moment, datetime):
        if moment > datetime.now(UTC):
            raise QueryError(f"{moment.isoformat()} is still to come; without a time, the newest rows are read")
        # A clock may have been set back between two commits; a version never counts as earlier than the one before it.
        times = itertools.accumulate((entry["timestamp"] for entry in versions), max)
        reached = [entry for entry, at in zip(versions, times, strict=True) if at <= moment.timestamp() * 1000]
        if not reached:
            began = datetime.fromtimestamp(oldest["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
            which = "the first" if oldest["version"] == 0 else "the oldest that is left"
            raise QueryError(
                f"table {table} has no version of {moment.isoformat()} or before: "
                f"{which}, {oldest['version']}, is of {began}"
            )
        version = reached[-1]["version"]
    else:
        version = moment
    if version > newest["version"]:
        raise QueryError(f"table {table} has no version {version}: the newest is {newest['version']}")
    try:
        delta.load_as_version(version)
    except DeltaError:
        raise QueryError(
            f"version {version} of table {table} cannot be read any more: its log was cleaned up behind it\n\n"
            f"hint: the newest version is {newest['version']}"
        ) from None
