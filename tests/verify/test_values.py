import math
import struct
import time

import pytest

from transforms.verify.values import (
    MAX_DEPTH,
    BadEncoding,
    TooDeep,
    TooLarge,
    UnsupportedType,
    ValueCodecError,
    decode,
    encode,
    equal,
)

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    10**5000,
    -(2**70000),
    0.0,
    -0.0,
    1.5,
    math.inf,
    -math.inf,
    1e-320,
    complex(-0.0, math.inf),
    "",
    "grüße 🎈",
    "\ud800 lone",
    "nul\0",
    b"",
    b"\xff\0",
    [],
    (),
    set(),
    frozenset(),
    {},
    [1, [2, (3, {4: {5}})]],
    {None: 1, True: 2, 2.5: 3, (1, "a"): 4, frozenset({1}): 5, b"k": 6, "k": 7},
    {1, "1", b"1", (1,)},
]


def exact(value: object) -> str:
    """repr tells types, signs and order apart; sets are sorted by theirs."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(exact, value))}"
    if isinstance(value, int):
        return f"{type(value).__name__}{value:x}"  # hex: decimal digits are capped
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[exact(item) for item in value]}"
    if isinstance(value, dict):
        return f"dict{[(exact(key), exact(item)) for key, item in value.items()]}"
    return repr(value)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_every_plain_value_survives_exactly(value: object):
    assert exact(decode(encode(value))) == exact(value)
    assert equal(decode(encode(value)), value)


def test_the_encoding_is_the_documented_one():
    # By hand: tag, 4-byte count or length, big-endian.
    assert encode(258) == b"i\0\0\0\2\1\2"
    assert encode(-1) == b"i\0\0\0\1\xff"
    assert encode([None, "a"]) == b"l\0\0\0\2Ns\0\0\0\1a"
    assert encode(1.0) == b"f\x3f\xf0\0\0\0\0\0\0"


def test_nan_survives_and_equals_nan_by_the_declared_rule():
    quiet, payload = math.nan, struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    assert encode(payload)[1:].hex() == "7ff8000000000123"
    assert equal([quiet], [payload])
    assert equal({"a": quiet}, {"a": payload})
    assert not equal(quiet, 1.0)
    # The bytes of no ordinary float may stand for nan.
    assert not equal(quiet, struct.unpack(">d", b"nan.....")[0])


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, True, False),
        (0, False, False),
        (1, 1.0, False),
        (1.0, complex(1), False),
        ([1], (1,), False),
        ({1}, frozenset({1}), False),
        ({1}, {True}, False),
        ({1: "a"}, {True: "a"}, False),
        ([1, [2.0]], [1, [2]], False),
        ("1", b"1", False),
        (None, False, False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({3, 1, 2}, {1, 2, 3}, True),
        (0.0, -0.0, True),
        ({"a": {1: [2]}}, {"a": {1: [2]}}, True),
        ([[1], [2]], [[1, 2], []], False),
        ({"ab": "c"}, {"a": "bc"}, False),
    ],
)
def test_equality_is_strict(left: object, right: object, same: bool):
    assert equal(left, right) is same
    assert equal(right, left) is same


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Int(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Dict(dict):
    pass


@pytest.mark.parametrize(
    "value",
    [
        AlwaysEqual(),
        Int(1),
        Dict(),
        [Int(1)],
        {"a": AlwaysEqual()},
        {Int(1): 1},
        range(3),
        iter([]),
        object,
        len,
        bytearray(b""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_data_is_refused(value: object):
    with pytest.raises(UnsupportedType):
        encode(value)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_both_ways():
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(TooDeep):
        encode(nested(MAX_DEPTH + 1))
    with pytest.raises(TooDeep):
        encode(nested(100_000))
    with pytest.raises(TooDeep):
        decode(b"l\0\0\0\1" * 100_000 + b"N")
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TooDeep):
        encode(loop)


def test_a_wide_web_of_shared_lists_is_too_large_at_once():
    value: object = [0]
    for _ in range(60):
        value = [value, value]  # 2**60 leaves
    with pytest.raises(TooLarge):
        encode(value, max_bytes=10_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"NN",
        b"i",
        b"i\0\0\0\5a",
        b"f123",
        b"l\xff\xff\xff\xff",
        b"l\xff\xff\xff\xffN",
        b"d\0\0\0\1N",
        b"e\0\0\0\1l\0\0\0\0",
        b"d\0\0\0\1e\0\0\0\0N",
        b"s\0\0\0\1\xff",
        b"\x80\x04N.",
    ],
)
def test_bytes_that_are_no_value_are_a_typed_error(data: bytes):
    with pytest.raises(BadEncoding):
        decode(data)


def test_every_cut_of_an_encoding_is_a_typed_error():
    whole = encode([1, {"a": (2.0, b"x", {3})}, "ü"])
    for end in range(len(whole)):
        with pytest.raises(ValueCodecError):
            decode(whole[:end])


def test_colliding_hashes_cannot_buy_the_drivers_time():
    """20,000 ints with one hash would make a set in about 200 million steps."""
    modulus = 2**61 - 1
    items = b"".join(encode(factor * modulus) for factor in range(1, 20_001))
    began = time.perf_counter()
    with pytest.raises(BadEncoding, match="equal hashes"):
        decode(b"e" + (20_000).to_bytes(4, "big") + items)
    assert time.perf_counter() - began < 2
    assert decode(encode(set(range(20_000)))) == set(range(20_000))  # honest ones pass
