"""A warm interpreter inside bubblewrap's walls that forks one sandbox after the other.

It runs no untrusted code. It holds capabilities in its own user namespace only; each fork gets namespaces, mounts and a
control group of its own, and gives up what it held before the first program starts. Stand-alone: standard library only;
`guest.py` lies beside it.

Requests come on a SOCK_SEQPACKET socket: a JSON object, and descriptors: the connection to the host, then the entrances
of the control groups.
"""

import _signal as signal  # ty: ignore[import-not-found] - see `guest.py`
import _socket as socket
import array
import base64
import ctypes
import fcntl
import gc
import json
import os
import struct
import sys
from ctypes import c_char_p, c_int, c_ulong, c_void_p

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import guest  # ty: ignore[import-not-found] - beside this file, where an isolated interpreter does not look

del sys.path[0]

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [c_char_p, c_char_p, c_char_p, c_ulong, c_char_p]
libc.prctl.argtypes = [c_int, c_ulong, c_void_p, c_ulong, c_ulong]
NEW_PID, NEW_USER, NEW_REST = (
    0x20000000,
    0x10000000,
    0x00020000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000,
)  # mnt net ipc uts cgroup
READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
SET_KEEPCAPS, CAPBSET_DROP, SET_SECCOMP = 8, 24, 22
KILL, SETGID, SETUID = 5, 6, 7  # capabilities the guest keeps where programs have a user of their own
DISK, SNAPSHOTS = HERE + "/disk", HERE + "/snapshots"
READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "pressure")


def check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source, target, kind, flags, data=""):
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {target}")


def set_capabilities(*numbers):
    """Hold these and no others, inheritable by none."""
    mask = sum(1 << number for number in numbers)
    header = struct.pack("=Ii", 0x20080522, 0)
    check(libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)), "capset")


def loopback_up():
    any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
    any_socket.close()


def furnish(request, config):
    """Mount what is this sandbox's own."""
    program, keeper = config["program"], config["keeper"]
    mount("", "/", "", REC | PRIVATE)
    mount("tmpfs", DISK, "tmpfs", NO_SUID | NO_DEV, f"size={request['bytes']},nr_inodes={request['inodes']},mode=755")
    for name, mode in (("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777), ("upper", 0o755), ("scratch", 0o755)):
        os.mkdir(f"{DISK}/{name}")
        os.chmod(f"{DISK}/{name}", mode)
        if program is not None and name not in ("tmp", "shm"):  # their owner could remove what others have there
            os.chown(f"{DISK}/{name}", program, program)
    if request["fill"]:  # a snapshot is being unpacked
        mount(f"{SNAPSHOTS}/{request['fill']}", "/work", "", BIND)
    elif request["lower"]:
        folders = f"lowerdir={SNAPSHOTS}/{request['lower']},upperdir={DISK}/upper,workdir={DISK}/scratch"
        mount("overlay", "/work", "overlay", NO_SUID | NO_DEV, folders + ",userxattr")
    else:
        mount(f"{DISK}/work", "/work", "", BIND)
    mount(f"{DISK}/tmp", "/tmp", "", BIND)
    mount(f"{DISK}/shm", "/dev/shm", "", BIND)
    mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    owner = "" if keeper is None else f",uid={keeper},gid={keeper}"
    mount("tmpfs", "/job", "tmpfs", NO_SUID | NO_DEV, "mode=755" + owner)
    mount("proc", "/proc", "proc", NO_SUID | NO_DEV)
    for name in READ_ONLY_PROC:
        if os.path.exists("/proc/" + name):
            mount("/proc/" + name, "/proc/" + name, "", BIND | REC)
            mount("", "/proc/" + name, "", BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEV)
    loopback_up()


def seal(config):
    """Close the sandbox before its first program: runs in the guest."""
    mount("tmpfs", HERE, "tmpfs", READ_ONLY, "mode=0,size=4k")
    mount("", "/job", "", BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEV)
    if config["keeper"] is None:  # one user only: what its modes leave open of us must not be there
        mount("tmpfs", "/proc/1", "tmpfs", READ_ONLY, "mode=0555,size=4k")
    for number in range(64):
        libc.prctl(CAPBSET_DROP, number, None, 0, 0)
    if config["keeper"] is not None:
        set_capabilities(KILL, SETGID, SETUID)


def strip(config):
    """Give up what the guest holds: runs in each program's process, as the last of our code."""
    if config["keeper"] is None:  # one user only: programs get a user namespace below the guest's, and cannot look up
        check(libc.unshare(NEW_USER), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
        for number in range(64):  # a new namespace begins with all of them
            libc.prctl(CAPBSET_DROP, number, None, 0, 0)
    set_capabilities()
    if config["filter"]:
        check(libc.prctl(SET_SECCOMP, 2, config["filter"][0], 0, 0), "seccomp")


def seccomp_filter(program):
    """The address that the kernel is given of a filter, and what must live as long; None without one."""
    if not program:
        return None
    instructions = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(instructions)))
    return ctypes.addressof(filters), filters, instructions


def live(request, config, fds):
    """The life of a fork: enter the groups, leave the old namespaces, be the guest. Never returns."""
    link = fds[0]
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in fds[1:]:
            os.write(fd, b"0")
        check(libc.unshare(NEW_REST), "unshare")
        furnish(request, config)
        os.dup2(link, 3)
        os.closerange(4, 1024)
        link = 3
        os.chdir("/")
        os.umask(0o022)
        if config["keeper"] is not None:
            libc.prctl(SET_KEEPCAPS, 1, None, 0, 0)
            os.setgroups([])
            os.setresgid(config["keeper"], config["keeper"], config["keeper"])
            os.setresuid(config["keeper"], config["keeper"], config["keeper"])
            set_capabilities(KILL, SETGID, SETUID, 8, 21)  # and SETPCAP, SYS_ADMIN until the seal
        guest.prctl(guest.PR_SET_DUMPABLE, 0)
        os.write(link, b"!")  # with it the host learns our pid
        guest.Guest(link, link, seal=lambda: seal(config), strip=lambda: strip(config)).serve()
    except BaseException as error:  # noqa: BLE001 - told to the host
        text = f"{type(error).__name__}: {error}".encode()
        os.write(link, guest.HEADER.pack(len(text) + 5, ord("!"), 0) + text)
    finally:
        os._exit(1)


def main():
    """Warm up, say so, and fork for every request until the host goes away."""
    host = socket.socket(fileno=int(sys.argv[1]))
    body, ancillary, _, _ = host.recvmsg(1 << 16, socket.CMSG_SPACE(4))
    config = json.loads(body)
    config["filter"] = seccomp_filter(base64.b64decode(config["seccomp"]))
    (warm,) = array.array("i", ancillary[0][2])
    with open(warm, "rb") as file:
        guest.warm_up(*guest.unpack(file.read()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    host.send(b"ready")
    while True:
        body, ancillary, _, _ = host.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 8))
        if not body:
            os._exit(0)
        fds = [fd for _, _, data in ancillary for fd in array.array("i", data)]
        try:
            check(libc.unshare(NEW_PID), "unshare")
            pid = os.fork()
            if pid == 0:
                live(json.loads(body), config, fds)
            check(libc.setns(own, NEW_PID), "setns")
        except OSError as error:
            text = str(error).encode()
            os.write(fds[0], guest.HEADER.pack(len(text) + 5, ord("!"), 0) + text)
        for fd in fds:
            os.close(fd)


main()
