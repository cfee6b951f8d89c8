"""The filter's verdicts, worked out by an interpreter of its own for both architectures."""

import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from sandboxes.host import seccomp
from sandboxes.host.seccomp import filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}  # linux/audit.h
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
CASES = [
    # call, its arguments, the verdict for any, local, tcp
    ("read", (0, 0, 0), "done done done"),
    ("shmget", (7,), "ENOSYS ENOSYS ENOSYS"),
    ("io_uring_setup", (1,), "ENOSYS ENOSYS ENOSYS"),
    ("clone3", (0,), "ENOSYS ENOSYS ENOSYS"),
    ("io_setup", (1,), "ENOSYS ENOSYS ENOSYS"),
    ("mount", (0,), "EPERM EPERM EPERM"),
    ("pivot_root", (0,), "EPERM EPERM EPERM"),
    ("setns", (3, 0), "EPERM EPERM EPERM"),
    ("ptrace", (0,), "done EPERM EPERM"),
    ("process_vm_readv", (1,), "done EPERM EPERM"),
    ("pidfd_getfd", (3, 1), "done EPERM EPERM"),
    ("clone", (0x01200011,), "done done done"),  # fork
    ("clone", (0x003D0F00,), "done done done"),  # a thread
    ("clone", (0x10000011,), "EPERM EPERM EPERM"),
    ("clone", (0x40000000 | 1 << 40,), "EPERM EPERM EPERM"),
    ("unshare", (0x00000400,), "done done done"),  # files
    ("unshare", (0x80,), "EPERM EPERM EPERM"),
    ("unshare", (0x00020000,), "EPERM EPERM EPERM"),
    ("ioctl", (0, 0x5401), "done done done"),
    ("ioctl", (0, 0x5412), "EPERM EPERM EPERM"),
    ("ioctl", (0, 0xFFFFFFFF_00005412), "EPERM EPERM EPERM"),
    ("ioctl", (0, 1 << 32 | 0x541C), "EPERM EPERM EPERM"),
    ("kill", (1234, 9), "done done done"),
    ("kill", (0xFFFFFFFF, 9), "done EPERM EPERM"),
    ("kill", (2**64 - 1, 9), "done EPERM EPERM"),
    ("kill", (2**64 - 2, 9), "done done done"),  # the process group 2
    ("prlimit64", (0, 7), "done done done"),
    ("prlimit64", (1234, 7), "EPERM EPERM EPERM"),
    ("setpriority", (0, 0, 5), "done done done"),
    ("setpriority", (0, 1234, 5), "EPERM EPERM EPERM"),
    ("setpriority", (2, 0, 5), "EPERM EPERM EPERM"),
    ("ioprio_set", (1, 0, 5), "done done done"),
    ("ioprio_set", (3, 0, 5), "EPERM EPERM EPERM"),
    ("sched_setaffinity", (0, 8), "done done done"),
    ("sched_setaffinity", (1234, 8), "EPERM EPERM EPERM"),
    ("sendto", (3, 0, 1, 0x4000), "done done done"),
    ("sendto", (3, 0, 1, 0x20004000), "done done EACCES"),
    ("sendmsg", (3, 0, 0x20000000), "done done EACCES"),
    ("sendmmsg", (3, 0, 1, 0x20000000), "done done EACCES"),
    ("socketpair", (1, 1, 0), "done done done"),
    ("socketpair", (30, 1, 0), "EACCES EACCES EACCES"),  # TIPC
    ("socket", (1, 1, 0), "done done done"),
    ("socket", (2, 1, 0), "done EACCES done"),
    ("socket", (2, 1 | 0o2000000 | 0o4000, 6), "done EACCES done"),
    ("socket", (10, 1 | 0o2000000, 0), "done EACCES done"),
    ("socket", (2, 2, 0), "done EACCES EACCES"),  # UDP
    ("socket", (2, 1, 262), "done EACCES EACCES"),  # MPTCP
    ("socket", (10, 3, 58), "done EACCES EACCES"),  # raw
    ("socket", (16, 3, 0), "done EACCES EACCES"),  # netlink
    ("socket", (40, 1, 0), "EACCES EACCES EACCES"),  # vsock
    ("socket", (38, 5, 0), "EACCES EACCES EACCES"),  # the kernel's ciphers
]


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...]) -> str:
    """What a filter says of one call: the machine of linux/filter.h, as far as filters here use it."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    place, held = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, place * 8)
        place += 1
        if code == 0x06:
            return "done" if value == 0x7FFF0000 else errno.errorcode[value - 0x00050000]
        if code == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif code == 0x05:
            place += value
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += if_true if holds else if_false


def listed(machine: str) -> dict[str, int]:
    """The numbers of all calls as the kernel's own header has them."""
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"no {header}: install linux-libc-dev")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return request.param


def test_every_number_is_the_kernels(machine: str):
    column = ("x86_64", "aarch64").index(machine)
    numbers = listed(machine)
    tables = seccomp._NOT_THERE | seccomp._FORBIDDEN | seccomp._FORBIDDEN_AMONG_OTHERS | seccomp._TESTED
    newer = {"open_tree_attr"}  # Linux 6.15
    assert tables["open_tree_attr"] == (467, 467)
    assert {name: pair[column] for name, pair in tables.items() if name not in newer} == {
        name: numbers.get(name) for name in tables if name not in newer
    }


def test_each_call_gets_its_verdict(machine: str):
    numbers = listed(machine)
    programs = [filter_program(sockets=sockets) for sockets in ("any", "local", "tcp")]
    said = [
        (
            call,
            arguments,
            " ".join(verdict(p or b"", ARCHITECTURES[machine], numbers[call], arguments) for p in programs),
        )
        for call, arguments, _ in CASES
    ]
    assert said == CASES


def test_no_other_name_of_a_call_gets_through(machine: str):
    """32-bit calls and x32's have other numbers: 11 would be execve, 0x40000029 socket."""
    program = filter_program(sockets="local")
    assert program is not None
    assert verdict(program, ARCHITECTURES["i386"], 11, ()) == "ENOSYS"
    assert verdict(program, ARCHITECTURES[machine], 0x40000029, (2, 2, 0)) == "ENOSYS"
    assert verdict(program, ARCHITECTURES[machine], 0x3FFFFFFF, ()) == "done"


def test_an_unknown_architecture_has_no_filter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert filter_program() is None
