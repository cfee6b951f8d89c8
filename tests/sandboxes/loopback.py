"""Real servers on loopback, and a listener whose connections a proxy serves."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sandboxes.limits import MIB
from sandboxes.network.proxy import Proxy, SocketStream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def serving(proxy: Proxy) -> Generator[int]:
    """A loopback listener, in a thread of its own, that hands each connection to the proxy; its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = SocketStream(reader, writer)
        try:
            await proxy.serve(stream)
        except asyncio.CancelledError:
            pass  # the listener stops; asyncio would log it
        finally:
            stream.abort()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(handle, "127.0.0.1", 0, backlog=256)

    async def stop() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was aborted is closed in the next round of the loop

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def origin(handle: Callable[[socket.socket], object]) -> Generator[int]:
    """A server whose connections `handle` serves, each in a thread of its own; its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                handle(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def recorder(received: list[bytes], answer: bytes = OK) -> Callable[[socket.socket], None]:
    """Handles a connection by noting all that comes until 0.2 s pass without any, then answers."""

    def handle(connection: socket.socket) -> None:
        connection.settimeout(0.2)
        data = bytearray()
        try:
            while piece := connection.recv(MIB):
                data += piece
        except TimeoutError:
            pass
        received.append(bytes(data))
        connection.sendall(answer)

    return handle


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(MIB), b""))


def ask(port: int, request: bytes) -> bytes:
    """Send one request as it is; all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return read_all(connection)


def tunnel(port: int, target: str) -> socket.socket:
    """A socket connected to `target` through the proxy on `port`."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: elsewhere\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
