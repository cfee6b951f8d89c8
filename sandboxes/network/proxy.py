"""The only way out of a sandbox: an HTTP proxy on the host that connects to what the task's network policy lists.

A sandbox has no interface but loopback. Its guest carries every connection made to the proxy's port inside as a stream
to the host, where one `Proxy` per sandbox serves it: `CONNECT host:port` for TLS and anything else, and plain requests
such as `GET http://host:port/path`. Names are looked up here, after the policy allowed them, and connected by the
address that was checked: a listed name that leads into the host, its networks or its cloud's services is refused.

What it does not stop: a listed host can pass on whatever it is sent; behind a CDN a tunnel to a listed name can ask for
another name of that CDN inside its TLS; names below a wildcard carry data to the DNS server of their domain.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Protocol

from sandboxes.limits import Network
from sandboxes.network.request import PIECE, Answer, Inbound, Request, Source, body, parse
from sandboxes.network.targets import Address, Target, our_own, public

MAX_HEAD_BYTES = 16 * 1024
MAX_ENTRIES = 1000
_MAX_ADDRESSES = 4  # tried of one name
_LINGER_S = 1.0


class Stream(Source, Protocol):
    """A connection that a program made inside."""

    async def write(self, data: bytes) -> None:
        """Returns when the stream takes more: who reads slowly inside is sent to slowly from here.

        Raises OSError when the other side is gone.
        """
        ...

    async def close(self) -> None:
        """End what is written, while reading goes on. May be called again, and when the other side is gone."""
        ...


class SocketStream:
    """A stream over a socket. It holds nothing back: `write` returns when the kernel has it all."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)

    async def read(self, n: int) -> bytes:
        """Up to `n` bytes; b"" at the end. Raises OSError when the other side is gone."""
        return await self._reader.read(n)

    async def write(self, data: bytes) -> None:
        """Returns when the kernel has it all. Raises OSError when the other side is gone."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """End what is written, while reading goes on."""
        self._writer.write_eof()

    def abort(self) -> None:
        """Close both directions now."""
        self._writer.transport.abort()


class Proxy:
    """Serves the streams of one sandbox. Nothing of the host's environment is used, no proxy or password of its own."""

    header_s = 10.0
    """Seconds for the head of a request to arrive, and for an answer of our own to be taken."""
    connect_s = 10.0
    """Seconds to look a name up, and again to connect."""
    idle_s = 300.0
    """Seconds without a byte from either side after which a connection is dropped."""
    at_once = 64
    """Streams served at once; one more is answered 503."""

    def __init__(self, network: Network) -> None:
        """Raises ValueError, naming the entry, where `network` lists what no host can be called."""
        self.connections: list[str] = []
        """Evidence, one entry for each request in the order they were settled: `allowed HOST:PORT`, `refused HOST:PORT
        (why)`, or `failed HOST:PORT (why)` for a listed host that was not reached. At most 1,000; the last then counts
        the rest."""
        self._left_out = 0
        self._left_out_refused = 0
        self._open = 0
        self._resolver = ThreadPoolExecutor(4, "sandbox-names")  # its own: one sandbox's slow names delay no other's
        self._listed: set[Target] = set()
        self._above: set[Target] = set()
        """Whose subdomains are listed."""
        for entry in network.allow:
            try:
                target = Target.parse(entry.removeprefix("*."))
            except ValueError as error:
                raise ValueError(f"{entry!r} {error}") from None
            if not entry.startswith("*."):
                self._listed.add(target)
            elif target.address is None:
                self._above.add(target)
            else:
                raise ValueError(f"{entry!r}: an address has no subdomains")

    async def serve(self, stream: Stream) -> None:
        """Serve one connection to its end. Afterwards, and when cancelled, the stream is the caller's to drop."""
        if self._open >= self.at_once:
            await self._refuse(stream, Answer(503, f"{self.at_once} connections are open already", "unread request"))
            return
        self._open += 1
        try:
            await self._exchange(stream)
        except* OSError:
            pass  # a side went away, was silent for too long or broke the framing: there is nobody left to tell
        finally:
            self._open -= 1

    async def _exchange(self, stream: Stream) -> None:
        inbound = Inbound(stream)
        try:
            request = await self._request(inbound)
            upstream = await self._connect(request.target)
        except Answer as answer:
            await self._refuse(stream, answer)
            return
        self._record(f"allowed {request.target}")
        try:
            async with asyncio.timeout(self.idle_s) as idle:

                def touch() -> None:
                    if not idle.expired():
                        idle.reschedule(asyncio.get_running_loop().time() + self.idle_s)

                if request.head is None:
                    await stream.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await _tunnel(inbound, stream, upstream, touch)
                else:
                    await upstream.write(request.head)
                    await _forward(request, inbound, stream, upstream, touch)
        finally:
            upstream.abort()
        if request.head is not None:
            await _linger(stream)

    async def _request(self, inbound: Inbound) -> Request:
        try:
            async with asyncio.timeout(self.header_s):
                head = await inbound.until(b"\r\n\r\n", MAX_HEAD_BYTES)
        except TimeoutError:
            raise Answer(408, f"no whole request came within {self.header_s:g} s") from None
        if head is None:
            raise Answer(431, f"the head of the request is longer than {MAX_HEAD_BYTES} bytes")
        return parse(head)

    async def _connect(self, target: Target) -> SocketStream:
        addresses = await self._addresses(target)
        patience_s = self.connect_s / len(addresses)
        why = ""
        for address in addresses:
            try:
                async with asyncio.timeout(patience_s):
                    return SocketStream(*await asyncio.open_connection(str(address), target.port))
            except TimeoutError:
                why = f"no answer within {patience_s:g} s"
            except OSError as error:
                why = error.strerror or str(error)
        raise Answer(502, why, target)

    async def _addresses(self, target: Target) -> list[Address]:
        """Where a program may be connected to for this target; at least one. Raises Answer."""
        if target not in self._listed and not any(
            target.port == above.port and target.host.endswith(f".{above.host}") for above in self._above
        ):
            raise Answer(403, "the task's network policy does not list it", target)
        if target.address is not None:
            return [target.address]
        lookup = asyncio.get_running_loop().run_in_executor(
            self._resolver, socket.getaddrinfo, target.host, target.port, socket.AF_UNSPEC, socket.SOCK_STREAM
        )
        try:
            found = await asyncio.wait_for(lookup, self.connect_s)
        except TimeoutError:
            raise Answer(502, f"its name was not found within {self.connect_s:g} s", target) from None
        except OSError as error:
            raise Answer(502, f"its name was not found: {error.strerror}", target) from None
        addresses = list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))
        for address in addresses:
            fine = address.is_loopback if target.host == "localhost" else public(address) and not our_own(address)
            if not fine:
                raise Answer(403, f"its name leads to {address}, which is not a public address", target)
        return addresses[:_MAX_ADDRESSES]

    async def _refuse(self, stream: Stream, answer: Answer) -> None:
        if answer.target:
            self._record(f"{'failed' if answer.status == 502 else 'refused'} {answer.target} ({answer})")
        with contextlib.suppress(OSError):
            async with asyncio.timeout(self.header_s):
                await stream.write(answer.message())
            await _linger(stream)

    def _record(self, entry: str) -> None:
        if len(self.connections) < MAX_ENTRIES - 1:
            self.connections.append(entry)
            return
        self._left_out += 1
        self._left_out_refused += entry.startswith("refused")
        self.connections[MAX_ENTRIES - 1 :] = [f"... {self._left_out} more, {self._left_out_refused} of them refused"]


async def _tunnel(inbound: Inbound, stream: Stream, upstream: Stream, touch: Callable[[], None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy(inbound, upstream, touch))
        group.create_task(_copy(upstream, stream, touch))


async def _forward(
    request: Request, inbound: Inbound, stream: Stream, upstream: Stream, touch: Callable[[], None]
) -> None:
    """Send one body; pass on what comes back until the origin closes."""

    async def send() -> None:
        async for piece in body(request, inbound):
            touch()
            try:
                await upstream.write(piece)
            except OSError:
                return  # the origin reads no further; its answer may be on the way

    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send())
        await _copy(upstream, stream, touch)
        sending.cancel()


async def _copy(source: Source, sink: Stream, touch: Callable[[], None]) -> None:
    while data := await source.read(PIECE):
        touch()
        await sink.write(data)
    await sink.close()


async def _linger(stream: Stream) -> None:
    """End the stream and read for a while what still comes: to drop unread data is to take the answer back."""
    await stream.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await stream.read(PIECE):
                pass
