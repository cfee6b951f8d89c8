"""Which hosts a policy lists, and where their names may lead: with real look-ups in a network namespace of our own."""

import json
import os
import re
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from sandboxes.limits import Network
from sandboxes.network.proxy import Proxy
from sandboxes.network.targets import Target, our_own, public

ALLOW = (
    "www.example.org:80",
    "*.example.com:80",
    "localhost:80",
    "93.184.216.34:81",
    "127.0.0.1:81",
    "one.alias.org:80",
)
# In the namespace every one of these reaches a server on ports 80 and 81; 93.184.216.0/24 counts as far away.
HOSTS = """
127.0.0.1 localhost loop.example.com
93.184.216.34 www.example.org a.example.com deep.a.example.com example.com notexample.com a.example.com.evil.org
93.184.216.35 one.alias.org two.alias.org
169.254.169.254 metadata.example.com
10.0.0.1 inside.example.com
93.184.216.34 mixed.example.com
10.0.0.1 mixed.example.com
93.184.216.34 group.example.com
224.0.0.1 group.example.com
1.2.3.4 this-host.example.com
0.0.0.0 zero.example.com
168.63.129.16 azure.example.com
::1 six.example.com
::ffff:10.0.0.1 mapped.example.com
"""
EXPECTED = {
    "www.example.org:80": 200,
    "WWW.Example.ORG.:80": 200,
    "a.example.com:80": 200,
    "deep.a.example.com:80": 200,
    "one.alias.org:80": 200,
    "localhost:80": 200,
    "93.184.216.34:81": 200,
    "127.0.0.1:81": 200,
    "www.example.org:81": 403,  # another port
    "a.example.com:81": 403,
    "93.184.216.34:80": 403,  # the address of a listed name
    "example.com:80": 403,  # a wildcard means subdomains only
    "notexample.com:80": 403,
    "a.example.com.evil.org:80": 403,
    "two.alias.org:80": 403,  # another name of a listed host
    "127.0.0.1:80": 403,
    "[::1]:80": 403,
    "[::ffff:127.0.0.1]:81": 403,
    "loop.example.com:80": 403,
    "metadata.example.com:80": 403,
    "inside.example.com:80": 403,
    "mixed.example.com:80": 403,  # one of two is enough, whichever comes first
    "group.example.com:80": 403,
    "this-host.example.com:80": 403,
    "zero.example.com:80": 403,
    "azure.example.com:80": 403,
    "six.example.com:80": 403,
    "mapped.example.com:80": 403,
    "nowhere.example.com:80": 502,
}
SETUP = """
mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/nsswitch" /etc/nsswitch.conf && ip link set lo up || exit 1
for address in 10.0.0.1 1.2.3.4 169.254.169.254 168.63.129.16; do ip address add "$address/32" dev lo || exit 1; done
ip route add local 93.184.216.0/24 dev lo src 10.0.0.1 || exit 1
exec "$2" "$1/main.py"
"""
MAIN = """
import json, sys
sys.path.insert(0, {root!r})
from sandboxes.limits import Network
from sandboxes.network.proxy import Proxy
from tests.sandboxes.loopback import ask, serving
import socket, threading

reached = []
def serve(port):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    while True:
        connection, _ = server.accept()
        reached.append(port)
        connection.close()
for port in (80, 81):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
proxy = Proxy(Network(allow={allow!r}))
with serving(proxy) as server:
    answers = [ask(server, f"CONNECT {{name}} HTTP/1.1\\r\\n\\r\\n".encode()).decode() for name in {names!r}]
print(json.dumps([answers, len(reached), proxy.connections]))
"""
NAMESPACE = ["unshare", "--mount", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--"]


def can_unshare() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="no namespaces to give names and addresses a meaning of our own")
def test_a_name_is_connected_only_if_listed_and_only_where_it_may_lead(tmp_path: Path):
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "nsswitch").write_text("hosts: files\n")
    root = str(Path(__file__).parents[3])
    (tmp_path / "main.py").write_text(MAIN.format(root=root, allow=ALLOW, names=list(EXPECTED)))
    command = [*NAMESPACE, "sh", "-c", SETUP, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers, reached, connections = json.loads(done.stdout)
    assert dict(zip(EXPECTED, (int(answer.split()[1]) for answer in answers), strict=True)) == EXPECTED
    assert reached == list(EXPECTED.values()).count(200)
    words = {200: "allowed", 403: "refused", 502: "failed"}
    assert [entry.split()[0] for entry in connections] == [words[status] for status in EXPECTED.values()]
    why = "its name leads to 169.254.169.254, which is not a public address"
    assert f"refused metadata.example.com:80 ({why})" in connections
    assert any(answer.endswith(f"\r\n\r\nmetadata.example.com:80: {why}\n") for answer in answers)


@pytest.mark.parametrize(
    "text",
    "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.8.8.8 168.63.129.16 169.254.169.254 172.16.0.1 "
    "192.0.0.192 192.168.1.1 198.18.0.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 :: ::1 ::ffff:8.8.8.8 ::8.8.8.8 "
    "::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 64:ff9b:1::808:808 fe80::1 fec0::1 fc00::1 fd00:ec2::254 ff02::1 "
    "2001:0:a00:1:: 2002:7f00:1:: 2001:db8::1".split(),
)
def test_addresses_that_no_name_may_lead_to(text: str):
    assert not public(ip_address(text))


@pytest.mark.parametrize(
    "text", "1.1.1.1 8.8.8.8 151.101.0.223 172.15.0.1 172.32.0.1 192.0.1.1 2606:4700::1111 64:ff9b::808:808".split()
)
def test_addresses_of_the_internet(text: str):
    assert public(ip_address(text))


def test_this_machines_own_addresses_are_known():
    assert our_own(ip_address("127.0.0.1"))
    assert not our_own(ip_address("192.0.2.1"))


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("PyPI.org.:443", "pypi.org"),
        ("xn--bcher-kva.example:443", "xn--bcher-kva.example"),
        ("my_host:443", "my_host"),
        ("8.8.8.8:443", "8.8.8.8"),
        ("[2606:4700:0000::1111]:443", "[2606:4700::1111]"),
        ("1.2.3.4.example:443", "1.2.3.4.example"),
    ],
)
def test_a_host_has_one_spelling(text: str, host: str):
    assert Target.parse(text) == Target(host, 443)
    assert (Target.parse(text).address is None) == (host not in ("8.8.8.8", "[2606:4700::1111]"))


# U+212A, the Kelvin sign, is a k in lower case.
UNUSABLE = """b\u00fccher.example:443 \u212aernel.org:443 *:443 *.8.8.8.8:53 *.*.org:80 a..b:80 -a.org:80 a@b.org:80
https://pypi.org:443 ::1:80 [::1%lo]:80 127.1:80 1.2.3.04:80 0x7f.1:80 .org:80 .:80"""


@pytest.mark.parametrize("entry", [*UNUSABLE.split(), "a b:80", f"{'a' * 64}.org:80"])
def test_an_entry_that_no_host_can_match_is_refused_when_the_spec_is_read_or_the_proxy_made(entry: str):
    with pytest.raises(ValueError, match=re.escape(repr(entry))):
        Proxy(Network(allow=(entry,)))
