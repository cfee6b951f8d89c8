"""The system calls a sandboxed program is refused, as a filter that bubblewrap or `confine` hands to the kernel.

Refused is what no namespace or limit of the sandbox contains: kernel memory outside of every process that outlives its
maker (keys, System V objects, message queues), objects that are counted against the host or its user (inotify,
fanotify, asynchronous I/O), the kernel's log, and large parts of the kernel that programs of plain languages have no
use for: those calls fail with ENOSYS. New namespaces, mounts and typing into a terminal fail with EPERM; sockets that
know no network namespace (vsock, the kernel's ciphers) with EACCES.

A filter sees numbers, not memory: it cannot tell where a connection or an opened path goes.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterable
from typing import Literal

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # numbers from here on are the same calls by x86's other names

Numbers = tuple[int, int | None]  # of one call: x86_64, aarch64
_NOT_THERE: dict[str, Numbers] = {
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "perf_event_open": (298, 241), "fanotify_init": (300, 262), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_setup": (206, 0), "syslog": (103, 116), "modify_ldt": (154, None),
    "clone3": (435, 435),  # its flags lie in memory; libraries fall back to clone, whose flags can be tested
}  # fmt: skip
_FORBIDDEN: dict[str, Numbers] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265),
}  # fmt: skip
_FORBIDDEN_AMONG_OTHERS: dict[str, Numbers] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
}  # fmt: skip
_TESTED = {
    "socket": (41, 198), "socketpair": (53, 199), "ioctl": (16, 29), "clone": (56, 220), "unshare": (272, 97),
    "kill": (62, 129), "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269),
}  # fmt: skip

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; no bit of NEWTIME's
_NEW_TIME = 0x80  # in clone's flags part of the signal's number
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_MSG_FASTOPEN = 0x20000000
_STREAM = [
    socket.SOCK_STREAM | flags
    for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
]
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

Sockets = Literal["any", "local", "tcp"]
Instruction = tuple[int, int, int, int]  # struct sock_filter: code, jump if true, jump if false, value
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # byte offsets in struct seccomp_data
_ALLOW: list[Instruction] = [(_RETURN, 0, 0, 0x7FFF0000)]


def filter_program(*, sockets: Sockets = "any", unix: bool = True) -> bytes | None:
    """The filter as an array of `struct sock_filter`; None on an architecture whose call numbers are not listed.

    `any` is for a process in namespaces of its own. `local` and `tcp` are for one that has none: it may make Unix
    sockets only, or TCP sockets besides, and may neither look into, signal all at once nor slow down the host's other
    processes of the same user. Not `unix`: it may not make Unix sockets either, but for pairs. None may change another
    process's limits and priorities: its keeper may have the same user, and the next case would find what it left there.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    column = list(_ARCHITECTURES).index(machine)
    calls = {name: numbers[column] for name, numbers in _TESTED.items()}
    tests = _tests_everywhere() | _tests_by_pid() | {"socket": _socket_test(sockets, unix)}
    refused = _refuse(_FORBIDDEN, column, errno.EPERM)
    if sockets != "any":
        tests["kill"] = _equal(0, [0xFFFFFFFF], _fail(errno.EPERM), _ALLOW)
        refused += _refuse(_FORBIDDEN_AMONG_OTHERS, column, errno.EPERM)
    if sockets == "tcp":
        tests |= _tests_of_fast_open()
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        *_fail(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        *_fail(errno.ENOSYS),
        *_refuse(_NOT_THERE, column, errno.ENOSYS),
        *refused,
    ]
    for name, test in tests.items():
        program += [(_JUMP_EQUAL, 0, len(test), calls[name]), *test]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*program, *_ALLOW])


def _tests_everywhere() -> dict[str, list[Instruction]]:
    return {
        "socketpair": _equal(0, [socket.AF_UNIX], _ALLOW, _fail(errno.EACCES)),
        "ioctl": _equal(1, [_TIOCSTI, _TIOCLINUX], _fail(errno.EPERM), _ALLOW),
        "clone": _any_bit(0, _NEW_NAMESPACES, _fail(errno.EPERM), _ALLOW),
        "unshare": _any_bit(0, _NEW_NAMESPACES | _NEW_TIME, _fail(errno.EPERM), _ALLOW),
    }


def _socket_test(sockets: Sockets, unix: bool) -> list[Instruction]:
    refuse = _fail(errno.EACCES)
    of_unix = _ALLOW if unix else refuse
    if sockets == "any":
        families = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]
        return _equal(0, families, _ALLOW, refuse)
    if sockets == "local":
        return _equal(0, [socket.AF_UNIX], of_unix, refuse)
    # Landlock knows ports of TCP alone: other protocols under a stream (MPTCP, SCTP, SMC) would pass it by.
    protocol = _equal(2, [0, socket.IPPROTO_TCP], _ALLOW, refuse)
    internet = _equal(0, [socket.AF_INET, socket.AF_INET6], _equal(1, _STREAM, protocol, refuse), refuse)
    return _equal(0, [socket.AF_UNIX], of_unix, internet)


def _tests_by_pid() -> dict[str, list[Instruction]]:
    """Calls that take the number of a process: 0 is the caller."""
    refuse = _fail(errno.EPERM)
    second_is_0 = _equal(1, [0], _ALLOW, refuse)
    names = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
    return dict.fromkeys(names, _equal(0, [0], _ALLOW, refuse)) | {
        "setpriority": _equal(0, [_PRIO_PROCESS], second_is_0, refuse),
        "ioprio_set": _equal(0, [_IOPRIO_WHO_PROCESS], second_is_0, refuse),
    }


def _tests_of_fast_open() -> dict[str, list[Instruction]]:
    """A message that opens its own connection: Landlock is asked by connect() alone."""
    places = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
    return {name: _any_bit(place, _MSG_FASTOPEN, _fail(errno.EACCES), _ALLOW) for name, place in places.items()}


def _fail(error: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, 0x00050000 | error)]


def _refuse(calls: dict[str, Numbers], column: int, error: int) -> list[Instruction]:
    numbers = [numbers[column] for numbers in calls.values()]
    listed = [number for number in numbers if number is not None]
    tests = [(_JUMP_EQUAL, len(listed) - place, 0, number) for place, number in enumerate(listed)]
    return [*tests, (_JUMP, 0, 0, 1), *_fail(error)]  # none of them: over the failure


def _equal(
    argument: int, values: Iterable[int], then: list[Instruction], otherwise: list[Instruction]
) -> list[Instruction]:
    return _branch(argument, [(_JUMP_EQUAL, value) for value in values], then, otherwise)


def _any_bit(argument: int, bits: int, then: list[Instruction], otherwise: list[Instruction]) -> list[Instruction]:
    return _branch(argument, [(_JUMP_ANY_BIT, bits)], then, otherwise)


def _branch(
    argument: int, tests: list[tuple[int, int]], then: list[Instruction], otherwise: list[Instruction]
) -> list[Instruction]:
    """Both ways end in a verdict. An argument's low 32 bits are what the kernel itself reads of these."""
    jumps = [(code, len(tests) - 1 - place + len(otherwise), 0, value) for place, (code, value) in enumerate(tests)]
    return [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), *jumps, *otherwise, *then]
