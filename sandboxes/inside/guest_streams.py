"""The descriptors of programs and connections, as the guest carries them. Stand-alone, like `guest.py`."""

import _socket
import os
import select

CHUNK = 1 << 16
FIRST_CONNECTION = 1 << 31  # numbers from here on are connections, not commands


class Stream:
    """One descriptor of a program or connection: `reads` carries to the host, `writes` from it."""

    def __init__(self, guest, number, name, fd, *, reads, writes, end=None, window=None):
        self.guest, self.number, self.name, self.fd = guest, number, name, fd
        self.reads, self.writes, self.window = reads, writes, window
        self.end = end  # a socket whose one direction can be closed
        self.queue = bytearray()
        self.last = False  # nothing comes after what is queued
        self.mute = False  # its command has ended: what a child left behind writes is dropped
        self.on_the_way = 0
        self.taken = 0  # bytes passed on that the host was not told of; it needs to know before its window is full
        os.set_blocking(fd, False)
        guest.handlers[fd] = self.on_event
        self.rearm()

    def rearm(self):
        room = self.window is None or self.on_the_way < self.window
        events = (select.POLLIN if self.reads and room else 0) | (select.POLLOUT if self.queue else 0)
        if events or self.reads or self.writes:
            self.guest.poll.register(self.fd, events)
        else:
            self.close()

    def close(self):
        self.reads = self.writes = False
        del self.guest.handlers[self.fd]
        self.guest.poll.unregister(self.fd)
        self.guest.streams.pop((self.number, self.name), None)
        os.close(self.fd)
        if self.end is not None:
            self.end.close()

    def on_event(self, events):
        if events & select.POLLOUT:
            self.feed()
        if self.reads and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self.read()
        elif self.writes and events & (select.POLLERR | select.POLLHUP):
            self.end_writing()

    def read(self):
        """Carry one chunk; False when there is none now."""
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # the other side is gone
            chunk = b""
        if not self.mute:
            self.guest.send("O", self.number, self.name + chunk)
        self.on_the_way += len(chunk)
        self.reads = bool(chunk)
        self.rearm()
        return self.reads

    def feed(self):
        written = 0
        try:
            while self.queue:
                count = os.write(self.fd, self.queue[:CHUNK])
                del self.queue[:count]
                written += count
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            self.end_writing()
            return
        self.taken += written
        if self.taken >= CHUNK:
            self.guest.send("A", self.number, self.name + self.taken.to_bytes(4, "big"))
            self.taken = 0
        if self.last and not self.queue:
            self.end_writing()
        else:
            self.rearm()

    def end_writing(self):
        """Close the direction to the program. What was still to come counts as taken."""
        self.guest.send("A", self.number, self.name + (self.taken + len(self.queue)).to_bytes(4, "big"))
        if self.queue and self.number >= FIRST_CONNECTION:
            self.guest.send("B", self.number, self.name)
        self.queue.clear()
        self.writes = False
        if self.end is not None:
            try:
                self.end.shutdown(_socket.SHUT_WR)
            except OSError:
                pass
        self.rearm()
