"""Requests to a proxy, read strictly: what two servers could read in two ways is refused."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from sandboxes.network.targets import Target

PIECE = 64 * 1024
_MAX_LINE_BYTES = 1024  # of a chunk's size, of a trailer
_MAX_TRAILERS = 100

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_URL = re.compile(r"http://([^/?#]*)([/?][\x21-\x22\x24-\x7e]*)?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n")
# For one hop only, or written afresh here. What a request lists in `Connection` goes too.
_DROPPED = frozenset(
    "connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade "
    "transfer-encoding content-length host".split()
)
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class Answer(Exception):
    """What a program is told instead of what it asked for. `target` is what it asked for, as far as that was read."""

    def __init__(self, status: int, why: str, target: Target | str = "") -> None:
        super().__init__(why)
        self.status = status
        self.target = str(target)

    def message(self) -> bytes:
        """The whole HTTP response."""
        body = f"{self.target}: {self}\n" if self.target else f"{self}\n"
        return (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode("ascii", "replace")


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and how its body is framed."""

    target: Target
    head: bytes | None
    """What the origin gets; None for a tunnel."""
    length: int = 0
    """Bytes of the body when it is not chunked."""
    chunked: bool = False


class Source(Protocol):
    """Where bytes come from."""

    async def read(self, n: int) -> bytes:
        """Up to `n` bytes; b"" at the end. Raises OSError when the other side is gone."""
        ...


class Inbound:
    """Reads a source by marks and by counts, and keeps what it read too far."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held = bytearray()

    async def until(self, mark: bytes, limit: int) -> bytes | None:
        """Bytes up to and with `mark`; None if it is not within `limit` bytes. Raises ConnectionError at the end."""
        while (found := self._held.find(mark, 0, limit)) < 0:
            if len(self._held) >= limit:
                return None
            self._held += await self._source.read(4096) or _cut_off()
        return self._take(found + len(mark))

    async def some(self, n: int) -> bytes:
        """Between 1 and `n` bytes. Raises ConnectionError at the end."""
        return await self.read(n) or _cut_off()

    async def read(self, n: int) -> bytes:
        """Up to `n` bytes; b"" at the end."""
        return self._take(n) if self._held else await self._source.read(n)

    def _take(self, n: int) -> bytes:
        taken = bytes(self._held[:n])
        del self._held[:n]
        return taken


def parse(head: bytes) -> Request:
    """Read the head of a request to a proxy, through its empty line. Raises Answer (400)."""
    first, *fields = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise Answer(400, "not a request line of HTTP/1.1")
    headers: list[tuple[str, str]] = []
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not re.fullmatch(_TOKEN, name) or _CONTROL.search(value):
            raise Answer(400, "a header field is not `name: value` on a line of its own")
        headers.append((name, value.strip(" \t")))
    method, url, minor = line.groups()
    if method == "CONNECT":
        return Request(_target(url), None)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise Answer(400, "ask a proxy for http://host/path, or for a tunnel with CONNECT")
    target = _target(parts[1], default_port=80)
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Answer(400, "the length of the body is given more than once", target)
    if not all(re.fullmatch("[0-9]{1,15}", value) for value in lengths):
        raise Answer(400, "Content-Length is not a number", target)
    if not all(value.lower() == "chunked" and minor == "1" for value in codings):
        raise Answer(400, "the only Transfer-Encoding is chunked, in HTTP/1.1", target)
    for_this_hop = {
        word.strip().lower() for name, value in headers if name.lower() == "connection" for word in value.split(",")
    }
    path = parts[2] or "/"
    lines = [
        f"{method} {path if path.startswith('/') else f'/{path}'} HTTP/1.{minor}",
        f"Host: {target.host if target.port == 80 else target}",
        *(f"{name}: {value}" for name, value in headers if name.lower() not in _DROPPED | for_this_hop),
        *(f"Content-Length: {int(value)}" for value in lengths),
        *("Transfer-Encoding: chunked" for _ in codings),
        "Connection: close",
    ]
    length = int(lengths[0]) if lengths else 0
    return Request(target, "\r\n".join([*lines, "", ""]).encode("latin-1"), length, bool(codings))


async def body(request: Request, inbound: Inbound) -> AsyncIterator[bytes]:
    """Exactly one body, its chunks framed afresh, without extensions and trailers.

    Raises ConnectionError where it ends early or breaks the framing.
    """
    if not request.chunked:
        async for piece in _exactly(request.length, inbound):
            yield piece
        return
    while True:
        size = _CHUNK.fullmatch(await inbound.until(b"\r\n", _MAX_LINE_BYTES) or b"")
        if size is None:
            raise ConnectionAbortedError("not the size of a chunk")
        length = int(size[1], 16)
        if not length:
            break
        async for piece in _exactly(length, inbound):
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        if await inbound.until(b"\r\n", 2) is None:
            raise ConnectionAbortedError("a chunk is longer than it said")
    for _ in range(_MAX_TRAILERS):
        if await inbound.until(b"\r\n", _MAX_LINE_BYTES) == b"\r\n":
            yield b"0\r\n\r\n"
            return
    raise ConnectionAbortedError("too many trailers")


async def _exactly(length: int, inbound: Inbound) -> AsyncIterator[bytes]:
    left = length
    while left:
        piece = await inbound.some(min(left, PIECE))
        left -= len(piece)
        yield piece


def _cut_off() -> bytes:
    raise ConnectionAbortedError("the other side ended in the middle of a request")


def _target(text: str, *, default_port: int | None = None) -> Target:
    try:
        return Target.parse(text, default_port=default_port)
    except ValueError as error:
        raise Answer(400, str(error), f"{text[:100]!a}") from None
