"""The host's end of the connection to a sandbox's guest: messages out, messages in, each to whom it concerns.

Everything that comes from the guest is data from an untrusted place: numbers are looked up, sizes are bounded, and a
message that breaks the rules ends the connection.
"""

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Protocol

from sandboxes.network.proxy import Proxy

_HEADER = struct.Struct(">IBI")
_MOST = 1 << 20  # bytes of one message from the guest; it sends at most a chunk of 64 KiB
_WINDOW = 1 << 18  # bytes of one stream on their way to the guest
_CHUNK = 1 << 16
_CONNECTION = b"\0"  # the name of a connection's one stream


class Listener(Protocol):
    """Whoever started a command and hears of it."""

    def on_output(self, name: int, chunk: bytes) -> None:
        """The command wrote to the stream of that name (1, 2, or 3 the channel); b"" at its end."""
        ...

    def on_end(self, status: int | None, full: bool, error: str | None) -> None:
        """It ended: wait status, whether the writable folders are full; or why it could not be started."""
        ...

    def on_lost(self) -> None:
        """The connection is gone."""
        ...


class Sending:
    """One stream on its way to the guest, with at most a window of bytes that nobody has taken yet."""

    def __init__(self, link: "Link", number: int, name: bytes) -> None:
        self._link, self._number, self._name = link, number, name
        self._on_the_way = 0
        self._room = asyncio.Event()
        self._room.set()

    async def send(self, data: bytes) -> None:
        """Send all of it; waits while the other side takes nothing. Stops when the connection is gone."""
        view = memoryview(data)
        while view and not self._link.gone:
            await self._room.wait()
            self._on_the_way += len(chunk := view[:_CHUNK])
            if self._on_the_way >= _WINDOW:
                self._room.clear()
            self._link.send("I", self._number, self._name + chunk)
            view = view[len(chunk) :]

    def end(self) -> None:
        """Say that nothing follows."""
        self._link.send("I", self._number, self._name)

    def taken(self, count: int) -> None:
        """The guest passed bytes on."""
        self._on_the_way -= count
        if self._on_the_way < _WINDOW:
            self._room.set()

    def open(self) -> None:
        """Let whoever waits for room go on: the other side is gone."""
        self._on_the_way = -(1 << 62)
        self._room.set()


class Connection:
    """A TCP connection that a program made to the proxy, as the proxy sees it."""

    def __init__(self, link: "Link", number: int) -> None:
        self._link, self._number = link, number
        self.sending = Sending(link, number, _CONNECTION)
        self.broken = False
        self._received = bytearray()
        self._ended = False
        self._news = asyncio.Event()

    async def read(self, n: int) -> bytes:
        """Up to n bytes; b"" at the end."""
        while not self._received and not self._ended:
            self._news.clear()
            await self._news.wait()
        chunk = bytes(self._received[:n])
        del self._received[:n]
        self._link.send("A", self._number, _CONNECTION + len(chunk).to_bytes(4))
        return chunk

    async def write(self, data: bytes) -> None:
        """Send all of it, no faster than the program reads. Raises BrokenPipeError when it reads no more."""
        if self.broken or self._link.gone:
            raise BrokenPipeError("the program closed its connection")
        await self.sending.send(data)

    async def close(self) -> None:
        """Say that nothing follows."""
        self.sending.end()

    def on_output(self, name: int, chunk: bytes) -> None:
        """Keep what the program sent."""
        self._received += chunk
        self._ended = self._ended or not chunk
        self._news.set()

    def on_end(self, status: int | None, full: bool, error: str | None) -> None:
        """A connection has no end of its own kind."""

    def on_lost(self) -> None:
        """Wake whoever reads."""
        self.on_output(0, b"")


class Link(asyncio.Protocol):
    """Made for one guest. `hello` is done once the guest has taken its settings; or fails with what it said."""

    def __init__(self, proxy: Proxy | None) -> None:
        self.gone = False
        self.hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.complaint = ""
        """What a guest said that could not be set up."""
        self.proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._listeners: dict[int, Listener] = {}
        self._sendings: dict[tuple[int, bytes], Sending] = {}
        self._kills: dict[int, asyncio.Future[None]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._numbers = 0

    def send(self, kind: str, number: int, body: bytes = b"") -> None:
        """Send a message, in order, without waiting. Does nothing when the connection is gone."""
        if self._transport is not None and not self.gone:
            self._transport.write(_HEADER.pack(len(body) + 5, ord(kind), number) + body)

    def send_files(self, kind: str, head: Mapping[str, object], files: Mapping[str, bytes]) -> None:
        """Send a message that carries files."""
        listed = json.dumps({**head, "files": [(name, len(content)) for name, content in files.items()]}).encode()
        self.send(kind, 0, len(listed).to_bytes(4) + listed + b"".join(files.values()))

    def start(self, order: Mapping[str, object], listener: Listener) -> int:
        """Start a command; returns its number."""
        self._numbers += 1
        self._listeners[self._numbers] = listener
        self.send("X", self._numbers, json.dumps(order).encode())
        if self.gone:
            listener.on_lost()
        return self._numbers

    def sending(self, number: int, name: int) -> Sending:
        """The stream of that name to a command."""
        key = number, bytes([name])
        return self._sendings.setdefault(key, Sending(self, *key))

    def forget(self, number: int) -> None:
        """Nothing more is to be heard of a command."""
        self._listeners.pop(number, None)
        for key in [key for key in self._sendings if key[0] == number]:
            self._sendings.pop(key).open()

    async def kill_programs(self) -> None:
        """Have the guest kill every program; returns when they are dead, or the connection is gone."""
        if self.gone:
            return
        self._numbers += 1
        number = self._numbers
        self._kills[number] = asyncio.get_running_loop().create_future()
        self.send("K", number)
        try:
            await self._kills[number]
        finally:
            del self._kills[number]

    def close(self) -> None:
        """Close the connection, which tells the guest to end everything."""
        if self._transport is not None:
            self._transport.abort()
        for task in self._serving:
            task.cancel()

    def _served(self, task: asyncio.Task[None], number: int) -> None:
        self._serving.discard(task)
        self.forget(number)
        self.send("Q", number, _CONNECTION)
        if not task.cancelled():
            task.exception()  # seen: what went wrong with a connection is between the program and the other side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: tell everyone who waits."""
        self.gone = True
        for listener in list(self._listeners.values()):
            listener.on_lost()
        for sending in self._sendings.values():
            sending.open()
        for done in [self.hello, *self._kills.values()]:
            if not done.done():
                done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: cut messages out of the stream."""
        self._received += data
        while len(self._received) >= _HEADER.size:
            size, kind, number = _HEADER.unpack_from(self._received)
            if not 5 <= size <= _MOST:
                self.complaint = self.complaint or f"a message of {size} bytes"
                self.close()
                return
            if len(self._received) < 4 + size:
                return
            body = bytes(self._received[_HEADER.size : 4 + size])
            del self._received[: 4 + size]
            try:
                self._on_message(chr(kind), number, body)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self.complaint = self.complaint or f"a broken message {chr(kind)!r}: {error}"
                self.close()
                return

    def _on_message(self, kind: str, number: int, body: bytes) -> None:
        listener = self._listeners.get(number)
        match kind:
            case "O" if listener is not None:
                listener.on_output(body[0], body[1:])
            case "E" if listener is not None:
                report = json.loads(body)
                listener.on_end(report["status"], bool(report["full"]), report["error"])
            case "A":
                sending = self._sendings.get((number, body[:1]))
                if sending is not None:
                    sending.taken(int.from_bytes(body[1:5]))
            case "K":
                if number in self._kills and not self._kills[number].done():
                    self._kills[number].set_result(None)
            case "R":
                if not self.hello.done():
                    self.hello.set_result(None)
            case "L" if self.proxy is not None:
                connection = Connection(self, number)
                self._listeners[number] = connection
                self._sendings[number, _CONNECTION] = connection.sending
                task = asyncio.ensure_future(self.proxy.serve(connection))
                self._serving.add(task)
                task.add_done_callback(lambda task: self._served(task, number))
            case "B" if isinstance(listener, Connection):
                listener.broken = True
            case "!":
                self.complaint = body.decode(errors="replace")[:500]
                self.close()
