"""A client of the `state` verifier: connects on the loopback interface, says what is on stdin, prints the answer.

Runs inside a sandbox as the trusted user. Arguments: the port (0: only see whether a program can listen here), and the
seconds it may take. Exit status 3: nobody listens. Stand-alone: standard library only.
"""

import socket
import sys
import time

SILENCE_S = 0.5  # how long an answer may pause before it counts as complete
MOST = 1 << 20  # bytes of an answer
NOBODY = 3


def connected(port, deadline):
    """A connection, tried for until the deadline; None if nobody listened."""
    while time.monotonic() < deadline:
        for address in ("127.0.0.1", "::1"):
            try:
                return socket.create_connection((address, port), timeout=1)
            except OSError:
                continue
        time.sleep(0.02)
    return None


def answer(connection, deadline):
    """What comes until the other side closes, falls silent after its first bytes, or the deadline passes."""
    received = bytearray()
    while len(received) < MOST and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(min(left, SILENCE_S) if received else left)
        try:
            chunk = connection.recv(1 << 16)
        except OSError:  # silent, or reset
            break
        if not chunk:
            break
        received += chunk
    return bytes(received)


def main():
    """Do what the arguments say."""
    port, deadline = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    if port == 0:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return
    connection = connected(port, deadline)
    if connection is None:
        sys.exit(NOBODY)
    try:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.sendall(sys.stdin.buffer.read())
    except OSError:  # it may have answered before it stopped listening
        pass
    sys.stdout.buffer.write(answer(connection, deadline))


main()
