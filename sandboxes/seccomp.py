"""The system calls a sandboxed program is refused, as a filter that bubblewrap hands to the kernel.

Refused is what no namespace or limit of the sandbox contains: kernel memory outside of every process that outlives its
maker (keys, System V objects, message queues), objects that are counted against the host's user (inotify, fanotify),
and large parts of the kernel that programs of plain Python have no use for. A refused call fails with ENOSYS.
"""

import errno
import platform
import struct

_REFUSED = {
    "x86_64": {
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "add_key": 248, "request_key": 249, "keyctl": 250,
        "inotify_init": 253, "inotify_init1": 294, "perf_event_open": 298, "fanotify_init": 300, "bpf": 321,
        "userfaultfd": 323, "io_uring_setup": 425,
    },
    "aarch64": {
        "inotify_init1": 26, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "add_key": 217,
        "request_key": 218, "keyctl": 219, "perf_event_open": 241, "fanotify_init": 262, "bpf": 280,
        "userfaultfd": 282, "io_uring_setup": 425,
    },
}  # fmt: skip
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # numbers from here on are the same calls by x86's other names

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # byte offsets in struct seccomp_data


def filter_program() -> bytes | None:
    """The filter as an array of `struct sock_filter`; None on an architecture whose call numbers are not listed."""
    machine = platform.machine()
    if machine not in _REFUSED:
        return None
    tests = [(_JUMP_AT_LEAST, _X32), *((_JUMP_EQUAL, number) for number in _REFUSED[machine].values())]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 0, len(tests) + 2, _ARCHITECTURES[machine]),  # another architecture's calls: to the end
        (_LOAD, 0, 0, _NUMBER_AT),
        *((code, len(tests) - place, 0, value) for place, (code, value) in enumerate(tests)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
