"""What travels between a `Remote` and a worker: messages as data, and the connection that carries them.

A message is JSON, with its bytes set aside behind it: two counts, the sizes of the byte strings, the JSON, the byte
strings. Nothing is ever looked up by a name that came over the wire but in a list of ours: errors and verbs; no code,
class or path travels.

On the connection messages are cut into parts, so that a large one does not hold up the others, and so that whoever
receives one knows that the other side is alive. Both sides speak every few moments even with nothing to say; a side
that hears nothing for too long takes the other for dead.
"""

import abc
import asyncio
import functools
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from sandboxes.limits import MIB
from sandboxes.protocol import (
    DeadlineExceeded,
    FilesRefused,
    HostOutOfMemory,
    ImageMissing,
    ProvisionFailed,
    SandboxError,
    SandboxLost,
)

VERSION = 1
LARGEST = 256 * MIB
"""Bytes of one message, at most: a snapshot, all files of one `put`, all output of one command."""
LARGEST_AT_THE_DOOR = 4096
"""Bytes of one message before both sides have shown that they know the token."""
DOOR_S = 10.0
"""Seconds that connecting and showing the token may take."""

T = TypeVar("T")

_PART = 1 << 16
_HEADER = struct.Struct(">IBI")  # bytes that follow, kind, number of the call
_COUNTS = struct.Struct(">II")  # bytes of JSON, number of byte strings
_HEARTBEATS = 4  # in the time after which a worker's silence means death
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        SandboxError,
        ProvisionFailed,
        ImageMissing,
        SandboxLost,
        HostOutOfMemory,
        DeadlineExceeded,
        FilesRefused,
        ValueError,
    )
}


class BrokenMessage(ValueError):
    """The other side does not keep to the form."""


def encode(value: Mapping[str, object]) -> bytes:
    """Write a message: plain values, bytes, and the records of `sandboxes.protocol`. Raises TypeError for others."""
    aside: list[bytes] = []

    def plain(item: object) -> object:
        if isinstance(item, bytes | bytearray | memoryview):
            aside.append(bytes(item))
            return {"": len(aside) - 1}
        if is_dataclass(item):
            return {field.name: getattr(item, field.name) for field in fields(item)}
        if isinstance(item, BaseModel):
            return item.model_dump()
        if isinstance(item, Mapping):
            return dict(item)
        if isinstance(item, frozenset):
            return sorted(item)
        raise TypeError(f"{type(item).__name__} does not travel")

    text = json.dumps(value, default=plain).encode()
    sizes = struct.pack(f">{len(aside)}I", *map(len, aside))
    return b"".join((_COUNTS.pack(len(text), len(aside)), sizes, text, *aside))


def decode(message: bytes) -> dict[str, object]:
    """Read a message; its records are still plain: see `read`. Raises BrokenMessage."""
    try:
        length, count = _COUNTS.unpack_from(message)
        sizes = struct.unpack_from(f">{count}I", message, _COUNTS.size) if count * 4 <= len(message) else ()
        begin = _COUNTS.size + count * 4
        at = begin + length
        if at + sum(sizes) != len(message):
            raise BrokenMessage("the sizes do not add up")
        aside = []
        for size in sizes:
            aside.append(message[at : at + size])
            at += size

        def restore(item: dict[str, object]) -> object:
            number = item.get("")
            return aside[number] if type(number) is int and len(item) == 1 and number >= 0 else item

        value = json.loads(message[begin : begin + length], object_hook=restore)
    except (struct.error, ValueError, IndexError, RecursionError) as error:
        raise BrokenMessage(f"a broken message: {error}") from error
    if not isinstance(value, dict):
        raise BrokenMessage("a message that is no object")
    return value


def read(kind: type[T], value: object) -> T:
    """Make a record of its plain form. Raises BrokenMessage with what is wrong."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise BrokenMessage(f"no {error.title}: {'; '.join(wrong)}"[:500]) from error


@functools.cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def parse_address(address: str) -> str | tuple[str, int]:
    """Read unix:PATH as a path, HOST:PORT as both. Raises ValueError."""
    if address.startswith("unix:/"):
        return address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address such as unix:/run/headrace.sock or 10.0.0.5:7070")
    return host.strip("[]"), int(port)


def proof(token: str, side: str, workers_nonce: str, clients_nonce: str) -> str:
    """What shows that one side (`client` or `worker`) knows the token, without saying it."""
    return hmac.new(token.encode(), f"{side} {workers_nonce} {clients_nonce}".encode(), "sha256").hexdigest()


def check_proof(shown: object, expected: str) -> None:
    """Compare in a time that tells nothing. Raises BrokenMessage."""
    if not hmac.compare_digest(str(shown).encode(errors="replace"), expected.encode()):
        raise BrokenMessage("a wrong token")


def describe(error: BaseException, unexpected: type[SandboxError]) -> dict[str, object]:
    """Write an error; one that nobody foresaw is the host's failure, of the kind `unexpected`."""
    name = next((kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind), None)
    if name is None:
        return {
            "name": unexpected.__name__,
            "message": "the worker failed",
            "evidence": f"{type(error).__name__}: {error}",
        }
    if isinstance(error, SandboxError):
        return {"name": name, "message": error.message, "evidence": error.evidence}
    return {"name": name, "message": str(error), "evidence": ""}


def error_of(described: object, address: str) -> Exception:
    """Read an error of the worker at `address`. What is not in our list is the host's failure."""
    told = described if isinstance(described, dict) else {}
    kind = _ERRORS.get(str(told.get("name")))
    message, evidence = str(told.get("message")), str(told.get("evidence"))
    if kind is None:
        return SandboxLost("the worker sent an unknown error", evidence=f"worker {address}: {described!r}"[:500])
    if issubclass(kind, SandboxError):
        return kind(message, evidence=f"{evidence} (worker {address})")
    return kind(message)


class Stream(asyncio.Protocol, abc.ABC):
    """One end of a connection: whole messages out and in, each for a call's number; nothing hangs on a dead peer."""

    def __init__(self) -> None:
        self.gone = False
        self.why = ""
        """Why the connection is gone or about to go, for whoever asks."""
        self._largest = LARGEST_AT_THE_DOOR
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._parts: dict[int, bytearray] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._heard = True
        self._watching: asyncio.Task[None] | None = None

    @abc.abstractmethod
    def on_message(self, number: int, message: bytes) -> None:
        """A message arrived. Raises BrokenMessage to end the connection."""

    @abc.abstractmethod
    def on_cancel(self, number: int) -> None:
        """The other side gave a call up. Raises BrokenMessage to end the connection."""

    @abc.abstractmethod
    def on_gone(self) -> None:
        """The connection is gone. Called once."""

    async def send(self, number: int, message: bytes) -> None:
        """Send a message, no faster than the other side reads; nothing if the connection is gone."""
        view = memoryview(message)
        while not self.gone:
            part, view = view[:_PART], view[_PART:]
            self._write(b"+" if view else b".", number, part)
            if not view:
                return
            await self._room.wait()

    def say(self, number: int, message: bytes) -> None:
        """Send a small message now."""
        self._write(b".", number, message)

    def cancel(self, number: int) -> None:
        """Give a call up, sent or half sent."""
        self._write(b"x", number)

    def open_the_door(self, silence_s: float, *, patience: int = 1) -> None:
        """Take large messages from now on; speak a few times in `silence_s`, and hold for dead who is silent for that
        time, or `patience` times that."""
        self._largest = LARGEST
        self._watching = asyncio.ensure_future(self._watch(silence_s / _HEARTBEATS, patience * _HEARTBEATS))

    def close(self, reason: str) -> None:
        """Tell the other side why, and close. What it has sent meanwhile is not read."""
        self.why = self.why or reason
        self._write(b"!", 0, reason.encode(errors="replace")[:1024])
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close without a word."""
        self.why = self.why or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.gone = True
        self.why = self.why or (f"the connection broke: {exc}" if exc else "closed from there")
        self._room.set()
        if self._watching is not None:
            self._watching.cancel()
        self.on_gone()

    def pause_writing(self) -> None:
        """Called by the event loop: the other side does not keep up."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._room.set()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: cut parts out of the stream."""
        self._heard = True
        self._received += data
        try:
            while len(self._received) >= _HEADER.size and not self.why:
                size, kind, number = _HEADER.unpack_from(self._received)
                if size > _PART:
                    raise BrokenMessage(f"a part of {size} bytes")
                end = _HEADER.size + size
                if len(self._received) < end:
                    return
                part = bytes(self._received[_HEADER.size : end])
                del self._received[:end]
                self._on_part(kind, number, part)
        except BrokenMessage as error:
            self.close(f"refused: {error}")

    def _on_part(self, kind: int, number: int, part: bytes) -> None:
        if number and self._watching is None:
            raise BrokenMessage("a call before the token was shown")
        match chr(kind):
            case "+" | ".":
                message = self._parts.setdefault(number, bytearray())
                message += part
                if len(message) > self._largest:
                    raise BrokenMessage(f"a message of more than {self._largest} bytes")
                if kind == ord("."):
                    self.on_message(number, bytes(self._parts.pop(number)))
            case "x":
                self._parts.pop(number, None)
                self.on_cancel(number)
            case "!":
                self.abort(f"closed from there: {part.decode(errors='replace')}")
            case "h":
                pass
            case other:
                raise BrokenMessage(f"a part of the kind {other!r}")

    def _write(self, kind: bytes, number: int, part: bytes | memoryview = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_HEADER.pack(len(part), kind[0], number) + part)

    async def _watch(self, every_s: float, most: int) -> None:
        """Speak, and count the moments in which nothing was heard: not the time, which also passes while we sleep."""
        silent = 0
        try:
            while silent < most:
                self._write(b"h", 0)
                await asyncio.sleep(every_s)
                silent = 0 if self._heard else silent + 1
                self._heard = False
            self.abort(f"silent for {every_s * most:g} s")
        finally:
            self.abort("our event loop ended")  # nothing if it is gone already
