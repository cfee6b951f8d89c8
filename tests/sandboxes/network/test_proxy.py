"""The proxy between real clients and real servers on loopback, and against requests no honest client sends."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from sandboxes.limits import MIB, Network
from sandboxes.network.proxy import Proxy
from tests.sandboxes.loopback import OK, ask, origin, recorder, serving, wait_until

BIG = bytes(range(256)) * (5 * MIB // 256)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own proxy settings lead nowhere: whoever used them would fail."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def opener(port: int, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    proxy = f"http://127.0.0.1:{port}"
    return urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy, "https": proxy}), *handlers)


def test_a_plain_request_reaches_the_listed_host_as_if_asked_directly():
    received: list[bytes] = []
    with origin(recorder(received)) as port:
        proxy = Proxy(Network(allow=(f"LocalHost:{port}",)))
        request = (
            f"GET HTTP://LOCALHOST.:{port}?a=b HTTP/1.1\r\nHost: other.example\r\nhost: third.example\r\n"
            "Cookie: mine\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n"
            "Keep-Alive: 5\r\nTE: trailers\r\nX-Hop: 1\r\nConnection: keep-alive, X-HOP, Cookie2\r\nX-End:  2 \r\n\r\n"
            "GET / HTTP/1.1\r\nHost: pipelined.example\r\n\r\n"
        )
        with serving(proxy) as server:
            assert ask(server, request.encode()) == OK
    head = f"GET /?a=b HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: mine\r\nX-End: 2\r\nConnection: close\r\n\r\n"
    assert received == [head.encode()]
    assert proxy.connections == [f"allowed localhost:{port}"]


def test_exactly_one_body_passes_whatever_follows_it():
    received: list[bytes] = []
    smuggled = b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
    chunks = b"3;ext=1\r\nabc\r\n00a \r\n0123456789\r\n0\r\nHost: trailer\r\n\r\n"
    with origin(recorder(received)) as port, serving(Proxy(Network(allow=(f"127.0.0.1:{port}",)))) as server:
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\n".encode()
        # To list the length as a header of this hop must not take it away from the origin.
        ask(server, head + b"Content-Length: 005\r\nConnection: content-length\r\n\r\nhello" + smuggled)
        ask(server, head + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + smuggled)
        ask(server, head + b"\r\n" + smuggled)
    heads, bodies = zip(*(request.split(b"\r\n\r\n", 1) for request in received), strict=True)
    assert bodies == (b"hello", b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n", b"")
    assert b"\r\nContent-Length: 5\r\n" in heads[0]
    assert b"\r\nTransfer-Encoding: chunked\r\n" in heads[1]
    assert b"Content-Length" not in heads[1] + heads[2]


@pytest.mark.parametrize("chunks", [b"zz\r\n", b"-1\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3\nabc\r\n", b"0x3\r\nabc\r\n"])
def test_broken_chunks_are_not_passed_on(chunks: bytes):
    received: list[bytes] = []
    with origin(recorder(received, b"")) as port, serving(Proxy(Network(allow=(f"127.0.0.1:{port}",)))) as server:
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        with contextlib.suppress(ConnectionResetError):
            assert ask(server, head + chunks + b"tail") == b""
        wait_until(lambda: len(received) == 1)
    assert received[0].partition(b"\r\n\r\n")[2] in (b"", b"3\r\nabc\r\n")


def test_a_body_cut_short_is_no_request():
    received: list[bytes] = []
    with origin(recorder(received)) as port, serving(Proxy(Network(allow=(f"127.0.0.1:{port}",)))) as server:
        with socket.create_connection(("127.0.0.1", server), timeout=5) as connection:
            head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 9\r\n\r\n".encode()
            connection.sendall(head + b"hello")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
        wait_until(lambda: len(received) == 1)
    assert received[0].endswith(b"\r\n\r\nhello")


def test_an_answer_that_comes_before_the_body_is_read_reaches_the_program():
    done = threading.Event()

    def answer_early(connection: socket.socket) -> None:
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_WR)
        done.wait(10)

    with origin(answer_early) as port, serving(Proxy(Network(allow=(f"127.0.0.1:{port}",)))) as server:
        size = 8 * len(BIG)
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode()
        assert ask(server, head + bytes(size)) == OK
        done.set()


HOST = "http://127.0.0.1:PORT/"


@pytest.mark.parametrize(
    "request_text",
    [
        f"POST {HOST} HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        f"POST {HOST} HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        f"POST {HOST} HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
        f"POST {HOST} HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        f"POST {HOST} HTTP/1.1\r\nContent-Length: \u00b3\r\n\r\nabc",
        f"POST {HOST} HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        f"POST {HOST} HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        f"POST {HOST} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nX: a\nContent-Length: 3\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nX: a\rContent-Length: 3\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nX: a\0\r\n\r\n",
        f"GET {HOST} HTTP/1.1\r\nno colon\r\n\r\n",
        f"GET  {HOST} HTTP/1.1\r\n\r\n",
        f"GET {HOST} HTTP/2.0\r\n\r\n",
        f"GET {HOST}#x HTTP/1.1\r\n\r\n",
        f"GET {HOST}\u00e9 HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        "GET https://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        "GET http://127.0.0.1:PORT@other.example/ HTTP/1.1\r\n\r\n",
        "GET http://user@127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        "GET http://other.example\\@127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        "GET http:///path HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n",
        "CONNECT http://127.0.0.1:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:PORT:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:99999 HTTP/1.1\r\n\r\n",
        "CONNECT 127.1:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 2130706433:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 0x7f.0.0.1:PORT HTTP/1.1\r\n\r\n",
        "CONNECT 0127.0.0.1:PORT HTTP/1.1\r\n\r\n",
        "CONNECT [::1%lo]:PORT HTTP/1.1\r\n\r\n",
        "CONNECT loc\u00e4lhost:PORT HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
        "\x16\x03\x01 a TLS hello\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(request_text: str):
    received: list[bytes] = []
    with origin(recorder(received)) as port:
        proxy = Proxy(Network(allow=(f"127.0.0.1:{port}", f"localhost:{port}")))
        with serving(proxy) as server:
            answer = ask(server, request_text.replace("PORT", str(port)).encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received == []
    assert all(entry.startswith("refused ") and entry.isascii() and entry.isprintable() for entry in proxy.connections)
    assert len(proxy.connections) == 1 or not request_text.startswith("CONNECT")


def test_a_host_that_is_not_listed_is_refused_by_name_recorded_and_never_connected():
    received: list[bytes] = []
    with origin(recorder(received)) as port:
        proxy = Proxy(Network(allow=("127.0.0.1:9", "localhost:9", f"[::1]:{port}", f"pypi.org:{port}")))
        with serving(proxy) as server:
            answer = ask(server, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            # A body that nobody wants must not cost the program the answer.
            head = f"POST http://localhost:{port}/ HTTP/1.1\r\nContent-Length: {len(BIG)}\r\n\r\n"
            other = ask(server, head.encode() + BIG)
            mapped = ask(server, f"CONNECT [::ffff:7f00:1]:{port} HTTP/1.1\r\n\r\n".encode())
    body = f"127.0.0.1:{port}: the task's network policy does not list it\n"
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
    assert answer.decode() == f"{head}\r\n\r\n{body}"
    assert other.decode().endswith(f"\r\n\r\nlocalhost:{port}: the task's network policy does not list it\n")
    assert mapped.startswith(b"HTTP/1.1 403 ")
    assert received == []
    assert proxy.connections == [
        f"refused {host}:{port} (the task's network policy does not list it)"
        for host in ("127.0.0.1", "localhost", "[::ffff:7f00:1]")
    ]


def test_a_listed_host_that_does_not_answer_is_502_and_recorded_as_failed():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    proxy = Proxy(Network(allow=(f"127.0.0.1:{port}", "nowhere.invalid:80")))
    with serving(proxy) as server:
        assert ask(server, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 502 ")
        answer = ask(server, b"GET http://nowhere.invalid HTTP/1.1\r\n\r\n")
    assert b"\r\n\r\nnowhere.invalid:80: its name was not found" in answer
    failed = [entry.partition(" (")[0] for entry in proxy.connections]
    assert failed == [f"failed 127.0.0.1:{port}", "failed nowhere.invalid:80"]


def test_big_bodies_pass_whole_in_both_directions_with_urllib_and_with_curl(tmp_path: Path):
    received: list[bytes] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG
    with (
        origin(recorder(received, answer)) as port,
        serving(Proxy(Network(allow=(f"localhost:{port}",)))) as server,
    ):
        with opener(server).open(f"http://localhost:{port}/", data=BIG, timeout=20) as response:
            assert response.read() == BIG
        assert received[0].endswith(b"\r\n\r\n" + BIG)
        if curl := shutil.which("curl"):
            (tmp_path / "big").write_bytes(BIG)
            command = [
                curl,
                "-sS",
                "-x",
                f"http://127.0.0.1:{server}",
                "-H",
                "Transfer-Encoding: chunked",
                "-H",
                "Expect:",
            ]
            command += ["--data-binary", f"@{tmp_path / 'big'}", f"http://localhost:{port}/"]
            assert subprocess.run(command, capture_output=True, timeout=20, check=True).stdout == BIG
            assert b"Transfer-Encoding: chunked\r\n" in received[1][:1000]
            assert len(received[1]) > len(BIG)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    command += f" -addext subjectAltName=DNS:localhost -keyout {path} -out {tmp_path / 'cert.pem'}"
    subprocess.run(command.split(), check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_goes_through_a_tunnel_end_to_end(certificate: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(MIB)
            secured.sendall(OK.replace(b"ok", b"it"))

    with origin(handle) as port:
        proxy, url = Proxy(Network(allow=(f"localhost:{port}",))), f"https://localhost:{port}/"
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(certificate)))
        with serving(proxy) as server:
            with opener(server, trusting).open(url, timeout=10) as response:
                assert response.read() == b"it"
            if curl := shutil.which("curl"):
                command = [curl, "-sS", "-x", f"http://127.0.0.1:{server}", "--cacert", str(certificate), url]
                assert subprocess.run(command, capture_output=True, timeout=10, check=True).stdout == b"it"
    assert set(proxy.connections) == {f"allowed localhost:{port}"}
