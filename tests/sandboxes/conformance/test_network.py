"""An allowlist: what is on it is reached through the proxy, what is not is refused and kept as evidence."""

import hashlib
import socket

from sandboxes.limits import Network
from tests.sandboxes.conformance.backends import LIMITS, Backend, ask
from tests.sandboxes.loopback import OK, origin, recorder

NO_BYPASS = {"no_proxy": "", "NO_PROXY": ""}  # else loopback is for servers inside
FETCH = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as reply: answer = (reply.status, reply.read())
except urllib.error.HTTPError as error: answer = (error.code, b"")
except OSError as error: answer = (0, b"")
"""
TUNNEL = """
import os, socket, sys
host, _, port = os.environ["https_proxy"].removeprefix("http://").partition(":")
with socket.create_connection((host, int(port)), timeout=5) as connection:
    connection.sendall(b"CONNECT " + sys.argv[1].encode() + b" HTTP/1.1\\r\\n\\r\\n")
    head = connection.recv(4096)
    answer = head.split(b" ")[1]
    if answer == b"200":
        connection.sendall(b"any bytes \\0\\xff")
        answer = connection.recv(4096)
"""


async def test_what_is_allowed_is_reached_and_what_is_not_is_refused(backend: Backend):
    received: list[bytes] = []
    with origin(recorder(received)) as port, origin(recorder(received)) as other:
        async with backend.open(network=Network(allow=(f"127.0.0.1:{port}",))) as sandbox:
            assert await ask(sandbox, FETCH, f"http://127.0.0.1:{port}/path?q=1", env=NO_BYPASS) == (200, b"ok")
            assert (await ask(sandbox, FETCH, f"http://127.0.0.1:{other}/", env=NO_BYPASS))[0] in (0, 403)  # ty: ignore[not-subscriptable]
            assert (await ask(sandbox, FETCH, "http://example.org/", env=NO_BYPASS))[0] in (0, 403)  # ty: ignore[not-subscriptable]
        usage = await sandbox.destroy()
    assert len(received) == 1
    assert received[0].startswith(b"GET /path?q=1 HTTP/1.")
    expected = [f"allowed 127.0.0.1:{port}", f"refused 127.0.0.1:{other}", "refused example.org:80"]
    assert [entry.partition(" (")[0] for entry in usage.connections] == expected  # the reason follows


async def test_a_tunnel_carries_any_bytes_to_what_is_allowed_only(backend: Backend):
    with origin(lambda connection: connection.sendall(connection.recv(99)[::-1])) as port:
        async with backend.open(network=Network(allow=(f"127.0.0.1:{port}",))) as sandbox:
            assert await ask(sandbox, TUNNEL, f"127.0.0.1:{port}") == b"\xff\0 setyb yna"
            assert await ask(sandbox, TUNNEL, "127.0.0.1:22") == b"403"
        connections = (await sandbox.destroy()).connections
        assert [entry.partition(" (")[0] for entry in connections] == [
            f"allowed 127.0.0.1:{port}",
            "refused 127.0.0.1:22",
        ]


async def test_there_is_no_way_around_the_proxy(backend: Backend):
    with origin(recorder([])) as port:
        source = f"""
import socket
answer = []
for address in (("127.0.0.1", {port}), ("1.1.1.1", 53), ("169.254.169.254", 80)):
    try: socket.create_connection(address, timeout=0.5); answer.append(address)
    except OSError: pass
"""
        async with backend.open(network=Network(allow=(f"127.0.0.1:{port}",))) as sandbox:
            assert await ask(sandbox, source) == []


async def test_large_answers_and_many_connections_at_once(backend: Backend):
    body = bytes(range(256)) * 12_000

    def handle(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)

    source = """
import concurrent.futures, hashlib, sys, urllib.request
def fetch(n): return hashlib.sha256(urllib.request.urlopen(sys.argv[1], timeout=9).read()).hexdigest()
with concurrent.futures.ThreadPoolExecutor(4) as pool: answer = list(pool.map(fetch, range(8)))
"""
    with origin(handle) as port:
        limits = LIMITS.model_copy(update={"memory_mib": 512})
        async with backend.open(limits, network=Network(allow=(f"127.0.0.1:{port}",))) as sandbox:
            answer = await ask(sandbox, source, f"http://127.0.0.1:{port}/", env=NO_BYPASS)
    assert answer == [hashlib.sha256(body).hexdigest()] * 8


async def test_a_server_that_is_not_there_is_an_answer(backend: Backend):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    async with backend.open(network=Network(allow=(f"127.0.0.1:{port}",))) as sandbox:
        status, _ = await ask(sandbox, FETCH, f"http://127.0.0.1:{port}/", env=NO_BYPASS)  # ty: ignore[not-iterable]
        assert status in (0, 502, 503, 504)
        assert OK not in (await sandbox.destroy()).stdout
