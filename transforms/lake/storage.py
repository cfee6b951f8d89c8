"""Where results are: a folder of this machine, or a place in an object store (S3, Google Cloud Storage, Azure).

Tables and files go to the store. Weights, logs, locks and reports stay in a folder here: see `ObjectStore.work`.

Credentials come from the environment, at each use, and are nowhere else: an address that holds any is refused, an
`ObjectStore` holds none, and no message repeats what a store or a library said, for that may name keys and signed
addresses.
"""

import contextlib
import io
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from deltalake.exceptions import CommitFailedError, TableNotFoundError

from transforms.lake.errors import LakeError

_ADDRESS = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]{1,254})((?:/(?!\.+(?:/|$))[\w.=+-]+)*)/?", re.ASCII)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_TRIES = 4
_PATIENCE_S = 30
"""Seconds after the first try of a request in which it is tried again; a try may take as long. The libraries' own are
180, for which a run would stand still."""
_REFUSED = re.compile(
    r"40[13] (?:Forbidden|Unauthorized)|lacked the necessary privileges|valid authentication credentials"
    r"|InvalidAccessKeyId|XAdminUserNotFound"  # an S3 server may answer 404 to an unknown key
    r"|169\.254\.169\.254|metadata\.google"  # without any, libraries ask the cloud's own machine
)
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_ABSENT = re.compile("Object at location .* not found", re.DOTALL)


class StoreFailed(LakeError):
    """An object store could not be used. What was committed stands, and nothing else was."""


class StoreRefused(StoreFailed):
    """The store does not take the credentials, or they do not allow what was asked."""


class BucketMissing(StoreFailed):
    """There is no such bucket or container."""


class StoreUnreachable(StoreFailed):
    """The store does not answer, or answers with faults of its own."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object of a store."""

    name: str
    """Relative to the place that was listed."""
    size: int
    """Bytes."""
    modified: datetime
    """By the store's clock."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A place in an object store, such as `s3://bucket/prefix`. Picklable: it holds no handle and no credentials."""

    uri: str
    """Without a slash at its end."""

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> "ObjectStore":
        return ObjectStore(f"{self.uri}/{name}")

    @property
    def parent(self) -> "ObjectStore":
        """One level up."""
        return ObjectStore(self.uri.rpartition("/")[0])

    @property
    def scheme(self) -> str:
        """`s3`, `gs` or `az`."""
        return self.uri.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket; in Azure, the container."""
        return self.uri.partition("://")[2].partition("/")[0]

    @property
    def work(self) -> Path:
        """Folder here for what does not go to the store: HEADRACE_WORK, else `.headrace`, and below it the address."""
        folder = Path(os.environ.get("HEADRACE_WORK") or ".headrace").expanduser().absolute()
        return folder / self.uri.replace("://", "/")

    def client(self) -> Any:
        """A client of obstore for this place."""
        from obstore.store import from_url

        retry: Any = {"max_retries": _TRIES - 1, "retry_timeout": timedelta(seconds=_PATIENCE_S)}
        # No client options: they would take the place of those in the environment, such as AWS_ALLOW_HTTP.
        return from_url(self.uri, retry_config=retry)

    def put(self, name: str, content: IO[bytes]) -> None:
        """Write an object, whole or not at all, also over another. Raises StoreFailed."""
        import obstore

        with said_plainly(self):
            obstore.put(self.client(), name, content, max_concurrency=2)  # 5 MiB each in memory

    def open(self, name: str) -> IO[bytes]:
        """An object, to be read from its beginning. Raises FileNotFoundError; it and its `read` raise StoreFailed."""
        return io.BufferedReader(_Object(self, name), buffer_size=1 << 20)

    def stat(self, name: str) -> Stored | None:
        """What is known of an object; None if there is none. Raises StoreFailed."""
        import obstore

        with said_plainly(self), contextlib.suppress(FileNotFoundError):
            found = obstore.head(self.client(), name)
            return Stored(name, found["size"], found["last_modified"])
        return None

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there counts as removed. Raises StoreFailed."""
        import obstore

        with said_plainly(self), contextlib.suppress(FileNotFoundError):
            obstore.delete(self.client(), name)

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """All objects below a prefix, in no order. Raises StoreFailed."""
        import obstore

        with said_plainly(self):
            for found in obstore.list(self.client(), prefix or None):
                for each in found:
                    yield Stored(each["path"], each["size"], each["last_modified"])


class _Object(io.RawIOBase):
    """An object as Python reads files."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        import obstore

        self.store, self.piece = store, b""
        with said_plainly(store):
            self.pieces = iter(obstore.get(store.client(), name).stream(min_chunk_size=1 << 20))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with said_plainly(self.store):
            self.piece = self.piece or bytes(next(self.pieces, b""))
        given, self.piece = self.piece[: len(buffer)], self.piece[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)


Place = Path | ObjectStore
"""A folder of this machine, or a place in an object store."""


def place(text: str) -> Place:
    """What a setting names: an absolute folder, or an object store. Raises ValueError, which repeats no credentials."""
    if "://" not in text:
        return Path(text).expanduser().absolute()
    found = _ADDRESS.fullmatch(text)
    if found is not None:
        return ObjectStore(f"{found[1]}://{found[2]}{found[3]}")
    if re.search(r"[@?#]", text):
        raise ValueError("an address holds no credentials and no options: they come from the environment")
    raise ValueError("an address in an object store is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX")


def delta_options(where: Place) -> dict[str, str] | None:
    """What delta-rs is told about a store; the credentials it finds in the environment itself. None for a folder."""
    if isinstance(where, Path):
        return None
    bounds = {"max_retries": str(_TRIES - 1), "retry_timeout": f"{_PATIENCE_S}s"}
    # So that of two writers of one version of a log only one succeeds; the other stores need no word for it.
    return {"conditional_put": "etag", **bounds} if where.scheme == "s3" else bounds


@contextlib.contextmanager
def said_plainly(where: Place) -> Generator[None]:
    """Turn what a library raises about an object store into a StoreFailed. A folder's errors pass as they are.

    FileNotFoundError, without what the store said, and the errors of delta-rs about a lost race or a table that is not
    there pass too: they say nothing against the store.
    """
    try:
        yield
    except (LakeError, CommitFailedError, TableNotFoundError):
        raise
    except Exception as error:
        if isinstance(where, Path):
            raise
        raise store_failure(where, error) or FileNotFoundError(f"{where}: no such object") from None


def store_failure(store: ObjectStore, error: Exception) -> StoreFailed | None:
    """What an error of a library says of the store; None where it says only that an object is not there."""
    text = str(error)
    if _REFUSED.search(text):
        return StoreRefused(
            f"{store}: the store does not take the credentials of the environment, or they do not allow this; set "
            f"{_CREDENTIALS[store.scheme]}, then run the same command again"
        )
    if _NO_BUCKET.search(text):
        return BucketMissing(f"{store}: there is no {store.bucket}; create it, or correct --home or HEADRACE_HOME")
    if _ABSENT.search(text):
        return None
    return StoreUnreachable(
        f"{store}: the store does not answer, or fails; with the network and the store mended, run the same command "
        "again: it goes on from the last commit"
    )
