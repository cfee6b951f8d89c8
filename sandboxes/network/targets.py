"""Hosts and ports in one spelling, and which addresses are the internet's."""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Public by the registry, but a cloud's own metadata and control services.
_CLOUD = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
_UNICAST = IPv6Network("2000::/3")
_TUNNELLED = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))  # Teredo, 6to4: an IPv4 address inside
_NAT64 = IPv6Network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """A host, in its one spelling, and a port. Made by `parse`."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = None) -> "Target":
        """Read `host:port`; an IPv6 address stands in brackets. Raises ValueError, which says what is wrong."""
        match = _HOST_AND_PORT.fullmatch(text)
        if match is None:
            raise ValueError("is not host:port")
        port = int(match[2]) if match[2] else default_port
        if port is None or not 0 < port < 65536:
            raise ValueError("has no port between 1 and 65535")
        return cls(_host(match[1]), port)

    @property
    def address(self) -> Address | None:
        """The host as an address if it is written as one."""
        if self.host.startswith("["):
            return IPv6Address(self.host[1:-1])
        return IPv4Address(self.host) if _NUMBER.fullmatch(self.host.rpartition(".")[2]) else None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def public(address: Address) -> bool:
    """Whether an address is on the internet: no loopback, private network, cloud service, group or way around these."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in block for block in _CLOUD)
    if address in _NAT64:
        return public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and address in _UNICAST and not any(address in block for block in _TUNNELLED)


def our_own(address: Address) -> bool:
    """Whether an address is one of this machine's: the kernel answers its own addresses from themselves."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False  # no way there
        return ip_address(probe.getsockname()[0]) == address


def _host(text: str) -> str:
    """The one spelling of a host name or address: lower case, no final dot. Raises ValueError."""
    if not text.isascii():
        raise ValueError("is not ASCII: write the host in its xn-- form")
    host = text.lower().removesuffix(".")
    if host.startswith("["):
        if "%" in host:
            raise ValueError("names a network interface")
        return f"[{IPv6Address(host.strip('[]'))}]"
    # Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses; here only four decimal numbers are one.
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return str(IPv4Address(host))
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("has no valid host name")
    return host
