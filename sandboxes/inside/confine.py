"""Confinement of a plain process by Landlock and seccomp, for hosts that allow no namespaces.

Stands alone: its source is sent into processes that do not have this package. Needs no privileges, cannot be undone,
and holds for the calling thread and what it starts from then on, so call it before there are other threads. It takes no
capabilities away: root keeps ways around it and must change its user first.

What it does not stop: asking whether a path exists, and its `stat`; changing mode, times or attributes of any file that
belongs to the user; connecting to an allowed port of any machine; seeing other processes where `/proc` can be read.
Before Landlock 9 (Linux 7.1) every Unix socket with a path takes connections whose mode allows them; before 6 (6.12)
signals and abstract Unix sockets reach all processes of the user; before 4 (6.7) TCP is unbounded. UDP, MPTCP and TCP
Fast Open pass Landlock by: only `seccomp.filter_program(sockets=...)` keeps them closed.
"""

import ctypes
import os
import stat

_libc = ctypes.CDLL(None, use_errno=True)

# linux/landlock.h, linux/prctl.h, linux/seccomp.h. The numbers of Landlock's calls are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_BENEATH, _PORT = 1, 2  # kinds of rules
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV, _CONNECT_UNIX = (1 << bit for bit in (6, 11, 13, 14, 15, 16))
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _CONNECT_UNIX  # what a file's rule may hold
_FIRST = _REFER - 1  # all rights of version 1
_CONNECT, _BIND_AND_CONNECT = 1 << 1, 3
_SCOPES = 3  # abstract Unix sockets and signals
_SILENT = 1 << 0 | 1 << 2  # refusals of this domain and of those inside it: no lines in the host's audit log
_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def abi() -> int:
    """The version of Landlock this kernel offers to us; 0 where there is none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def confine(
    *, read: list[str], write: list[str], connect_ports: list[int], seccomp: bytes | None, scoped: bool = True
) -> dict[str, bool]:
    """Confine the caller; returns which of the holds this kernel has, by name.

    `read` are files and folders to read and execute, `write` those to do anything with but make devices; paths that do
    not exist are left out. TCP reaches `connect_ports` alone and listens nowhere. `seccomp` is an array of
    `struct sock_filter`. A rule holds for the file or folder that a path names now, so `/proc/self` is the caller's.
    Not `scoped`: signals and abstract sockets reach as far as they did, for a caller that is confined once more.
    Raises OSError with the name of the step that failed.
    """
    version = abi()
    _check("no_new_privs", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    if version:
        _landlock(version, read, write, connect_ports, _SCOPES * (scoped and version >= 6))
    if seccomp is not None:
        program = _Program(len(seccomp) // 8, seccomp)
        _check("seccomp", _libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0))
    return {
        "no_new_privs": True,
        "files": version >= 1,
        "truncate": version >= 3,
        "tcp": version >= 4,
        "devices": version >= 5,
        "signals": scoped and version >= 6,
        "abstract_sockets": scoped and version >= 6,
        "unix_sockets": version >= 9,
        "seccomp": seccomp is not None,
    }


def _landlock(version: int, read: list[str], write: list[str], connect_ports: list[int], scopes: int) -> None:
    since = ((1, _FIRST), (2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV), (9, _CONNECT_UNIX))
    known = sum(rights for first, rights in since if version >= first)
    wanted = _Ruleset(known, _BIND_AND_CONNECT * (version >= 4), scopes)
    # An older kernel's structure is shorter: it accepts what is longer and ends in zeros.
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    ruleset = _check("landlock_create_ruleset", _libc.syscall(_CREATE_RULESET, ctypes.byref(wanted), size, 0))
    try:
        for path in read:
            _allow(ruleset, path, known & (_EXECUTE | _READ_FILE | _READ_DIR))
        for path in write:
            _allow(ruleset, path, known & ~(_MAKE_CHAR | _MAKE_BLOCK))
        for port in connect_ports if version >= 4 else []:
            rule = _Port(_CONNECT, port)
            _check(f"landlock rule for port {port}", _libc.syscall(_ADD_RULE, ruleset, _PORT, ctypes.byref(rule), 0))
        quiet = _SILENT if version >= 7 else 0
        _check("landlock_restrict_self", _libc.syscall(_RESTRICT_SELF, ruleset, quiet))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    step = f"landlock rule for {path}"
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise OSError(error.errno, f"{step}: {error.strerror}") from None
    try:
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        rule = _Beneath(access if folder else access & _OF_FILES, fd)
        _check(step, _libc.syscall(_ADD_RULE, ruleset, _BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(fd)


def _check(step: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{step}: {os.strerror(error)}")
    return result
