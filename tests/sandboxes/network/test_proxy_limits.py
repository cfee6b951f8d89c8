"""What a hostile program or a slow server can make the proxy hold: memory, time, connections, evidence."""

import asyncio
import hashlib
import socket
import threading
import time
import tracemalloc

from sandboxes.limits import MIB, Network
from sandboxes.network.proxy import MAX_ENTRIES, MAX_HEAD_BYTES, Proxy
from tests.sandboxes.loopback import ask, origin, read_all, serving, tunnel, wait_until

# What the kernel's own buffers of two sockets can hold on loopback, with room.
KERNEL_BYTES = 24 * MIB


class Program:
    """The program's side of a stream: gives `request`, then zeros without end or nothing at all; takes nothing."""

    def __init__(self, request: str, *, endless: bool) -> None:
        self.request = request.encode()
        self.endless = endless
        self.given = 0

    async def read(self, n: int) -> bytes:
        if self.request:
            data, self.request = self.request, b""
            return data
        if not self.endless:
            await asyncio.sleep(60)
        self.given += n
        return bytes(n)

    async def write(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 Connection"):
            await asyncio.sleep(60)

    async def close(self) -> None:
        pass


def serve_for(seconds: float, proxy: Proxy, program: Program) -> int:
    """Serve one stream for a while, then cancel; the peak of memory allocated meanwhile, in bytes."""

    async def go() -> int:
        task = asyncio.create_task(proxy.serve(program))
        await asyncio.sleep(0.1)
        tracemalloc.start()
        try:
            await asyncio.sleep(seconds)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return peak

    return asyncio.run(go())


def test_a_program_that_does_not_read_holds_the_server_back_not_our_memory():
    sent: list[int] = []
    data = memoryview(bytes(256 * MIB))

    def flood(connection: socket.socket) -> None:
        try:
            while sum(sent) < len(data):
                sent.append(connection.send(data[: 64 * 1024]))
        except OSError:
            pass

    with origin(flood) as port:
        proxy = Proxy(Network(allow=(f"127.0.0.1:{port}",)))
        peak = serve_for(0.7, proxy, Program(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n", endless=False))
    assert MIB // 16 < sum(sent) < KERNEL_BYTES
    assert peak < MIB


def test_a_server_that_does_not_read_holds_the_program_back_not_our_memory():
    done = threading.Event()
    with origin(lambda _: done.wait(10)) as port:
        for request in (
            f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n",
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: {1 << 40}\r\n\r\n",
        ):
            program = Program(request, endless=True)
            peak = serve_for(0.7, Proxy(Network(allow=(f"127.0.0.1:{port}",))), program)
            assert MIB // 16 < program.given < KERNEL_BYTES
            assert peak < MIB
        done.set()


def test_a_head_that_drips_or_never_ends_is_cut_off():
    proxy = Proxy(Network(allow=("127.0.0.1:9",)))
    proxy.header_s = 0.5
    with serving(proxy) as server:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server), timeout=5) as connection:
            connection.settimeout(0.05)
            answer = b""
            while not answer and time.monotonic() < began + 5:
                connection.sendall(b"G")
                try:
                    answer = connection.recv(100)
                except TimeoutError:
                    continue
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 2
        fits = b"GET http://x/ HTTP/1.1\r\nX: \r\n\r\n"
        long = fits.replace(b"X: ", b"X: " + b"a" * (MAX_HEAD_BYTES - len(fits)))
        assert ask(server, long).startswith(b"HTTP/1.1 403 ")
        assert ask(server, long.replace(b"X: ", b"X: a")).startswith(b"HTTP/1.1 431 ")
        assert ask(server, bytes(MIB)).startswith(b"HTTP/1.1 431 ")


def test_a_silent_connection_is_dropped_and_a_talking_one_is_not():
    ended = threading.Event()

    def echo(connection: socket.socket) -> None:
        while data := connection.recv(100):
            connection.sendall(data)
        ended.set()

    with origin(echo) as port:
        proxy = Proxy(Network(allow=(f"127.0.0.1:{port}",)))
        proxy.idle_s = 0.5
        with serving(proxy) as server, tunnel(server, f"127.0.0.1:{port}") as never_a_word:
            began = time.monotonic()
            assert never_a_word.recv(100) == b""
            assert 0.3 < time.monotonic() - began < 2
        ended.clear()
        with serving(proxy) as server, tunnel(server, f"127.0.0.1:{port}") as connection:
            for _ in range(5):
                time.sleep(0.2)
                connection.sendall(b"ping")
                assert connection.recv(100) == b"ping"
            began = time.monotonic()
            assert connection.recv(100) == b""
            assert 0.3 < time.monotonic() - began < 2
            assert ended.wait(2)


def test_each_side_may_end_its_half_first():
    data = bytes(range(256)) * (5 * MIB // 256)
    last_words: list[bytes] = []

    def answer_at_the_end(connection: socket.socket) -> None:
        connection.sendall(hashlib.sha256(read_all(connection)).digest())

    def speak_first(connection: socket.socket) -> None:
        connection.sendall(b"bye")
        connection.shutdown(socket.SHUT_WR)
        last_words.append(read_all(connection))

    with origin(answer_at_the_end) as one, origin(speak_first) as two:
        with serving(Proxy(Network(allow=(f"127.0.0.1:{one}", f"127.0.0.1:{two}")))) as server:
            with tunnel(server, f"127.0.0.1:{one}") as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                assert read_all(connection) == hashlib.sha256(data).digest()
            with tunnel(server, f"127.0.0.1:{two}") as connection:
                assert read_all(connection) == b"bye"
                connection.sendall(data)
            wait_until(lambda: last_words == [data])


def test_one_connection_too_many_is_told_so_and_an_ended_one_makes_room():
    with origin(lambda connection: connection.recv(1)) as port:
        target = f"127.0.0.1:{port}"
        proxy = Proxy(Network(allow=(target,)))
        with serving(proxy) as server:
            connections = [tunnel(server, target) for _ in range(Proxy.at_once)]
            request = f"CONNECT {target} HTTP/1.1\r\n\r\n".encode()
            assert ask(server, request).startswith(b"HTTP/1.1 503 ")
            assert proxy.connections[-1] == "refused unread request (64 connections are open already)"
            connections.pop().close()
            time.sleep(0.2)
            connections.append(tunnel(server, target))
            for connection in connections:
                connection.close()


def test_cancelling_closes_the_connection_to_the_server():
    ended = threading.Event()

    def wait_for_the_end(connection: socket.socket) -> None:
        try:
            connection.recv(1)
        except ConnectionResetError:
            pass
        ended.set()

    with origin(wait_for_the_end) as port:
        program = Program(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n", endless=False)
        assert not ended.is_set()
        serve_for(0.1, Proxy(Network(allow=(f"127.0.0.1:{port}",))), program)
        assert ended.wait(2)


def test_evidence_is_bounded_and_still_tells_of_refusals():
    class Refused(Program):
        async def read(self, n: int) -> bytes:
            return await super().read(n) if self.request else b""

        async def write(self, data: bytes) -> None:
            assert data.startswith(b"HTTP/1.1 403 ")

    proxy = Proxy(Network(allow=("pypi.org:443",)))

    async def go() -> None:
        for i in range(MAX_ENTRIES + 4):
            await proxy.serve(Refused(f"CONNECT {i}.example.org:443 HTTP/1.1\r\n\r\n", endless=False))

    asyncio.run(go())
    assert len(proxy.connections) == MAX_ENTRIES == 1000
    assert proxy.connections[998] == "refused 998.example.org:443 (the task's network policy does not list it)"
    assert proxy.connections[999] == "... 5 more, 5 of them refused"
