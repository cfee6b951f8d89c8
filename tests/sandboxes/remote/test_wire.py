"""Messages as data: exact both ways, and nothing but data."""

import math
import random
from dataclasses import replace
from typing import get_args

import pytest

from sandboxes.limits import Limits, Network
from sandboxes.protocol import (
    Breach,
    Command,
    Demand,
    File,
    FilesRefused,
    HostOutOfMemory,
    ProvisionFailed,
    Result,
    SandboxError,
    SandboxLost,
    SandboxRequest,
    Snapshot,
    Usage,
    Warm,
)
from sandboxes.remote.wire import BrokenMessage, decode, describe, encode, error_of, parse_address, read

ALPHABET = ["a", " ", "\n", "\0", '"', "\\", "ü", "✓", "😀", "\udc80", "\u2028", "{", "0"]


class Values:
    """Random records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self) -> str:
        return "".join(self.rng.choices(ALPHABET, k=self.rng.choice([0, 1, 7])))

    def data(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 1, 300]))

    def number(self) -> float:
        rng = self.rng
        return rng.choice([0.0, -0.0, 0.1 + 0.2, 1e-320, math.inf, rng.random(), math.ldexp(rng.random(), 900), 1e22])

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.rng.randrange(4)))

    def files(self) -> dict[str, File]:
        return {name: File(self.data(), self.rng.randrange(0o1000)) for name in self.texts()}

    def limits(self) -> Limits:
        rng = self.rng
        whole = {"memory_mib": rng.randrange(32, 2**20), "processes": rng.randrange(2, 2**15)}
        whole |= {
            "output_kib": rng.randrange(1, 99),
            "disk_mib": rng.randrange(1, 99),
            "file_mib": rng.randrange(1, 99),
        }
        return Limits(
            wall_time_s=rng.uniform(0.01, 3600), cpu_time_s=rng.uniform(0.01, 3600), inodes=2**31 - 1, **whole
        )

    def demand(self) -> Demand:
        rng = self.rng
        deadline = rng.choice([None, self.number()])
        return Demand(
            self.number(), rng.randrange(9), self.number(), deadline, -rng.getrandbits(70), frozenset(self.texts()[:1])
        )

    def request(self) -> SandboxRequest:
        rng = self.rng
        return SandboxRequest(
            image=self.text(),
            limits=self.limits(),
            network=Network(allow=tuple(f"h{i}.org:{rng.randrange(1, 65536)}" for i in range(rng.randrange(3)))),
            files={name: self.data() for name in self.texts()},
            snapshot=rng.choice([None, Snapshot(self.text(), self.data())]),
            warm=Warm(self.texts(), tuple((self.text(), self.data()) for _ in range(rng.randrange(3)))),
            owner=self.text(),
            demand=self.demand(),
        )

    def command(self) -> Command:
        rng = self.rng
        env = {name: self.text() for name in self.texts()}
        command = Command(
            self.texts(), self.data(), env, rng.choice([None, self.text()]), rng.choice(["program", "trusted"])
        )
        command = replace(command, warm=rng.random() < 0.5, channel=rng.random() < 0.5)
        return replace(command, wall_time_s=rng.choice([None, self.number()]), output_kib=rng.choice([None, 2**40]))

    def result(self) -> Result:
        code, by_signal = self.rng.choice([(self.rng.randrange(256), None), (None, self.rng.randrange(1, 65))])
        breach = self.rng.choice([None, *get_args(Breach)])
        return Result(code, by_signal, breach, self.number(), self.number(), self.data(), self.data())

    def usage(self) -> Usage:
        one = self.result()
        peak = self.rng.getrandbits(63)
        printed, said = (one.stdout, one.stderr), (self.text(), self.texts(), self.text())
        return Usage(one.breach, one.wall_s, one.cpu_s, peak, *printed, *said)


@pytest.mark.parametrize("kind", ["request", "command", "result", "usage"])
def test_every_record_comes_out_as_it_went_in(kind: str):
    for seed in range(200):
        record = getattr(Values(seed), kind)()
        back = read(type(record), decode(encode({"it": record}))["it"])
        assert back == record
        assert repr(back) == repr(record)  # == holds 1 and 1.0, 0.0 and -0.0, for the same


def test_files_and_frames_come_out_as_they_went_in():
    for seed in range(200):
        files, frame = Values(seed).files(), Values(seed).data()
        told = decode(encode({"files": files, "frame": frame, "": {"": "text under the mark's name"}}))
        assert (read(dict[str, File], told["files"]), read(bytes, told["frame"])) == (files, frame)
        assert told[""] == {"": "text under the mark's name"}


def test_what_is_no_record_does_not_travel():
    for item in (object(), {1, 2}, len, Result):
        with pytest.raises(TypeError):
            encode({"it": item})


def test_whatever_arrives_is_a_message_or_broken():
    rng, broken = random.Random(5), 0
    for seed in range(1500):
        message = bytearray(encode({"it": Values(seed % 50).request()}))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(message))
            match rng.randrange(3):
                case 0:
                    message[at] = rng.randrange(256)
                case 1:
                    del message[at:]
                case 2:
                    message[at:at] = rng.randbytes(3)
            message = message or bytearray(1)
        try:
            read(SandboxRequest, decode(bytes(message)).get("it"))
        except BrokenMessage:
            broken += 1
    assert broken > 1000


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "1", '{"a": {"": 7}}', '{"a": {"": -1}}', "{", ""])
def test_a_message_that_is_none_is_refused(text: str):
    message = len(text).to_bytes(4) + bytes(4) + text.encode()
    if "-1" in text:
        assert decode(message) == {"a": {"": -1}}
    else:
        with pytest.raises(BrokenMessage):
            decode(message)


def test_errors_keep_their_type_and_evidence_and_get_the_address():
    for kind in (SandboxError, ProvisionFailed, SandboxLost, HostOutOfMemory):
        back = error_of(decode(encode(describe(kind("it broke", evidence="seen"), SandboxLost))), "10.0.0.5:7070")
        assert type(back) is kind
        assert str(back) == "it broke [seen (worker 10.0.0.5:7070)]"
    back = error_of(describe(FilesRefused("a link"), SandboxLost), "x:1")
    assert (type(back), str(back)) == (FilesRefused, "a link")
    assert type(error_of(describe(UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), SandboxLost), "x:1")) is ValueError


def test_no_other_error_is_ever_made_of_a_name():
    class ProvisionFailed(Exception):
        """Ours by name only."""

    for error in (KeyError("k"), SystemExit(3), ProvisionFailed("no")):
        back = error_of(describe(error, SandboxLost), "x:1")
        assert type(back) is SandboxLost
        assert type(error).__name__ in back.evidence
    for told in ({"name": "SystemExit", "message": "3"}, {"name": "os.system"}, {}, None, [1], "SandboxLost"):
        assert type(error_of(told, "x:1")) is SandboxLost


def test_addresses():
    assert parse_address("unix:/run/w.sock") == "/run/w.sock"
    assert parse_address("10.0.0.5:7070") == ("10.0.0.5", 7070)
    assert parse_address("[::1]:0") == ("::1", 0)
    for wrong in ("", "host", "host:", ":80", "host:x", "host:65536", "unix:relative.sock"):
        with pytest.raises(ValueError, match="is not an address such as"):
            parse_address(wrong)
