"""Plain data as bytes and back, between a trusted driver and an untrusted worker.

Every builtin value type survives exactly: None, bool, int of any size, float (nan, infinities, -0.0), complex, str
(lone surrogates too), bytes, list, tuple, set, frozenset, dict. A subclass or any other type is refused, so no code of
the worker's ever comes along. Stand-alone: this file is also put into the sandbox, where it may import only the
standard library, and little of it.

A value is one tag byte, then: 8-byte floats; a 4-byte length or count before the rest. Numbers are big-endian.
"""

import struct

MAX_DEPTH = 100
"""Containers within containers. Past it encoding and decoding raise TooDeep."""

_SAME_HASHES = 1000  # members of one set or dict with equal hashes: past it, an attack on the decoder's time


class ValueCodecError(ValueError):
    """A value cannot be encoded, or bytes are not an encoded value."""


class UnsupportedType(ValueCodecError):
    """A value is not plain data: a subclass, or a type that is not listed above."""


class TooDeep(ValueCodecError):
    """Containers are nested deeper than `MAX_DEPTH`, or contain themselves."""


class TooLarge(ValueCodecError):
    """The encoding would be longer than asked for."""


class BadEncoding(ValueCodecError):
    """The bytes are cut short, have bytes left over, or do not follow the format."""


_CONTAINERS = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}
_MAKERS = {tag[0]: kind for kind, tag in _CONTAINERS.items()}


def encode(value: object, *, max_bytes: int = 2**31) -> bytes:
    """Write a value as bytes. Raises UnsupportedType, TooDeep, TooLarge."""
    out = bytearray()
    _encode(value, out, 0, max_bytes, False)
    return bytes(out)


def equal(left: object, right: object) -> bool:
    """Compare two plain values strictly: equal types all the way down (True is not 1, 1 is not 1.0).

    Declared rules: nan equals nan; 0.0 equals -0.0; the order of a dict or set does not matter.
    Raises UnsupportedType, TooDeep.
    """
    return _canonical(left, 0) == _canonical(right, 0)


def decode(data: bytes) -> object:
    """Read a value back. Takes time linear in the bytes, whatever they are. Raises TooDeep, BadEncoding."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise BadEncoding(f"{len(data) - reader.at} bytes left over")
    return value


def _canonical(value: object, depth: int) -> bytes:
    out = bytearray()
    _encode(value, out, depth, 2**62, True)
    return bytes(out)


def _encode(value: object, out: bytearray, depth: int, max_bytes: int, canonical: bool) -> None:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise TooDeep(f"containers nested deeper than {MAX_DEPTH}")
    if value is None:
        out += b"N"
    elif isinstance(value, bool):
        out += b"T" if value else b"F"
    elif kind is int and isinstance(value, int):
        _sized(out, b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    elif kind is float and isinstance(value, float):
        out += b"f" + _float(value, canonical)
    elif kind is complex and isinstance(value, complex):
        out += b"c" + _float(value.real, canonical) + _float(value.imag, canonical)
    elif kind is str and isinstance(value, str):
        _sized(out, b"s", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes and isinstance(value, bytes):
        _sized(out, b"b", value)
    elif kind is dict and isinstance(value, dict):
        out += b"d" + len(value).to_bytes(4, "big")
        if canonical:
            pairs = sorted((_canonical(key, depth + 1), _canonical(item, depth + 1)) for key, item in value.items())
            out += b"".join(key + item for key, item in pairs)
        else:
            for key, item in value.items():
                _encode(key, out, depth + 1, max_bytes, canonical)
                _encode(item, out, depth + 1, max_bytes, canonical)
    elif kind in _CONTAINERS and isinstance(value, (list, tuple, set, frozenset)):
        out += _CONTAINERS[kind] + len(value).to_bytes(4, "big")
        if canonical and isinstance(value, (set, frozenset)):
            out += b"".join(sorted(_canonical(item, depth + 1) for item in value))
        else:
            for item in value:
                _encode(item, out, depth + 1, max_bytes, canonical)
    else:
        raise UnsupportedType(f"{kind.__name__} is not plain data")
    if len(out) > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes when encoded")


def _sized(out: bytearray, tag: bytes, content: bytes) -> None:
    if len(content) >= 2**32:
        raise TooLarge("one value of 4 GiB or more")
    out += tag + len(content).to_bytes(4, "big") + content


def _float(value: float, canonical: bool) -> bytes:
    if canonical and value != value:
        return b"\x7f\xf8" + bytes(6)  # one nan for all
    return struct.pack(">d", value + 0.0 if canonical else value)  # -0.0 + 0.0 is 0.0


class _Reader:
    """A position in bytes nobody vouches for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise BadEncoding("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def size(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def double(self) -> float:
        return struct.unpack(">d", self.take(8))[0]

    def value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise TooDeep(f"containers nested deeper than {MAX_DEPTH}")
        tag = self.take(1)[0]
        match tag:
            case 0x4E:
                return None
            case 0x54:
                return True
            case 0x46:
                return False
            case 0x69:
                return int.from_bytes(self.take(self.size()), "big", signed=True)
            case 0x66:
                return self.double()
            case 0x63:
                return complex(self.double(), self.double())
            case 0x73:
                try:
                    return self.take(self.size()).decode("utf-8", "surrogatepass")
                except UnicodeDecodeError as error:
                    raise BadEncoding("a str that is not UTF-8") from error
            case 0x62:
                return self.take(self.size())
            case 0x64:
                flat = [self.value(depth + 1) for _ in range(2 * self.size())]
                keys = self.hashable(flat[::2])
                return dict(zip(keys, flat[1::2], strict=True))
        if tag not in _MAKERS:
            raise BadEncoding(f"unknown tag {tag}")
        items = [self.value(depth + 1) for _ in range(self.size())]
        return _MAKERS[tag](self.hashable(items) if tag in b"ez" else items)

    def hashable(self, items: list[object]) -> list[object]:
        try:
            distinct = {hash(item) for item in items}
        except TypeError as error:
            raise BadEncoding("a set member or dict key that cannot be one") from error
        if len(items) - len(distinct) > _SAME_HASHES:
            raise BadEncoding("too many set members or dict keys with equal hashes")
        return items
