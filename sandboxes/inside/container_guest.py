"""What a container's pid 1 is beyond `guest.py`: it gives up capabilities, filters system calls, and counts if it must.

Stand-alone: standard library only. It travels to the container as source, after that of `guest.py`, and is run with
`guest.SETTINGS`, a JSON object: the filter as base64, `most` processes and threads to let live (0: the kernel sees to
it), and how often to count.
"""

import _ctypes
import array
import base64
import errno
import json
import os
import signal
import struct
import time

import guest  # ty: ignore[import-not-found] - put there by `containers._BOOT`

SET_SECCOMP, CAPBSET_DROP = 22, 24
KILL, SETGID, SETUID = 5, 6, 7  # capabilities that the guest keeps
PROCS_AT = 80  # in struct sysinfo: how many processes and threads there are


class Address(_ctypes._SimpleCData):
    """A pointer among a call's arguments, which are C integers otherwise."""

    _type_ = "P"


def call(name, *arguments):
    """Call a function of the C library."""
    return _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), name), arguments)


def drop_capabilities():
    """Keep three, and let no program have any."""
    for number in range(64):
        call("prctl", CAPBSET_DROP, number, 0, 0, 0)
    held = 1 << KILL | 1 << SETGID | 1 << SETUID
    if call("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", held, held, 0, 0, 0, 0)) != 0:
        raise OSError(errno.EPERM, "capset")


def filter_calls(program):
    """Give this process, and all it starts, a filter."""
    instructions = array.array("B", program)
    filters = array.array("B", struct.pack("=H6xQ", len(program) // 8, instructions.buffer_info()[0]))
    if call("prctl", SET_SECCOMP, 2, Address(filters.buffer_info()[0]), 0, 0) != 0:
        raise OSError(errno.EPERM, "seccomp")


class CountingGuest(guest.Guest):
    """A guest on a kernel that enforces no number of processes and threads: it looks, tells, and kills."""

    due = False

    def on_X(self, number, body):
        """Count from the first command on, until nothing is left."""
        signal.signal(signal.SIGALRM, self.on_alarm)
        signal.setitimer(signal.ITIMER_REAL, settings["every_s"], settings["every_s"])
        super().on_X(number, body)

    def on_alarm(self, *_):
        """Have the next round count: it follows, as each signal wakes the guest."""
        self.due = True

    def bury(self):
        """Take in the children that are dead, and count the living."""
        super().bury()
        if self.due:
            self.due = False
            living = self.living()
            if living > settings["most"]:
                self.send("N", 0)
                self.on_K(None, b"")
            elif living == 1:  # this one
                signal.setitimer(signal.ITIMER_REAL, 0)

    def living(self):
        """How many processes and threads there are, this one included; the dead are counted for a while."""
        answer = array.array("B", bytes(128))
        call("sysinfo", Address(answer.buffer_info()[0]))
        return int.from_bytes(answer[PROCS_AT : PROCS_AT + 2].tobytes(), "little")

    def all_dead(self):
        """Wait until the dead are no longer counted, or the next command would be taken for a crowd."""
        patience = time.monotonic() + 5
        while self.living() > 1 and time.monotonic() < patience:
            time.sleep(0.002)
        self.due = False


settings = json.loads(guest.SETTINGS)
drop_capabilities()
program = base64.b64decode(settings["filter"])
kind = CountingGuest if settings["most"] else guest.Guest
kind(0, 1, strip=(lambda: filter_calls(program)) if program else None).serve()
