"""What stands in for the kernel: descriptors, sockets, pipes, event and process descriptors, memories, polls.

A descriptor's number tells its process. Its end is seen: what is closed twice, or used after its end, is a violation.
Memories are real ones: their bytes, seals and mappings are the kernel's own.
"""

import errno
import fcntl as real_fcntl
import mmap as real_mmap
import os as real_os
import select as real_select
import socket as real_socket
import stat
import struct
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from nnhal.base import native
from tests.nightly.simulation.threads import running, world
from tests.nightly.simulation.world import SECOND, Process, Source

POLLIN, POLLOUT, POLLERR = real_select.POLLIN, real_select.POLLOUT, real_select.POLLERR
POLLHUP, POLLRDHUP, POLLNVAL = real_select.POLLHUP, real_select.POLLRDHUP, real_select.POLLNVAL
ROOM = 16  # messages that a socket holds


def failed(number: int) -> OSError:
    return OSError(number, real_os.strerror(number))


# -------------------------------------------------------------------------------------------------------- descriptors


class File(Source):
    """What a descriptor refers to. users: descriptors and messages under way that refer to it."""

    __slots__ = ("users", "world")
    kind = "file"

    def __init__(self) -> None:
        super().__init__()
        self.users, self.world = 0, world()

    def hold(self) -> "File":
        self.users += 1
        return self

    def drop(self) -> None:
        self.users -= 1
        assert self.users >= 0, "a file has fewer than no users"
        if not self.users:
            self.closed()

    def closed(self) -> None:
        """The last one let go."""

    def events(self) -> int:
        """What a poll would see."""
        return 0


def here() -> Process:
    """The process of who runs."""
    task = world().current
    return task.process if task is not None else world().kernel


def _process_of(fd: int) -> Process | None:
    for process in world().processes:
        if process.base <= fd < process.base + 10_000:
            return process
    return None


def given(process: Process, file: File) -> int:
    """A descriptor for it; EMFILE where the process may open no more."""
    if process.exhausted:
        raise failed(errno.EMFILE)
    fd = process.base
    if world().reuse:
        while fd in process.files:
            fd += 1
    else:
        process.next += 1
        fd = process.base + process.next % 10_000
        assert fd not in process.files
    process.files[fd] = file.hold()
    return fd


def file_of(fd: int, what: str) -> File:
    """What a descriptor refers to; a violation and EBADF where it is closed."""
    process = _process_of(fd)
    if process is None or (not process.alive and fd not in process.files):
        raise failed(errno.EBADF)
    file: File | None = process.files.get(fd)
    if file is None:
        world().fail(f"{what}: descriptor {fd - process.base} of {process.name} is used after its end")
        raise failed(errno.EBADF)
    return file


def close(fd: int) -> None:
    if not running():  # garbage of a world that is over
        return
    w = world()
    if w.over:
        return
    process = _process_of(fd)
    if process is None or not process.alive:
        return  # of another world, or gone with its process
    w.step(f"close {fd - process.base}")
    file = process.files.pop(fd, None)
    if file is None:
        w.fail(f"descriptor {fd - process.base} of {process.name} is closed twice")
        raise failed(errno.EBADF)
    file.drop()


def dup(fd: int) -> int:
    world().step("dup")
    file, process = file_of(fd, "dup"), _process_of(fd)
    assert process is not None
    return given(process, file)


# ------------------------------------------------------------------------------------------------------------ sockets


class SocketFile(File):
    """One end of a SEQPACKET socket pair."""

    __slots__ = ("error", "owner", "peer", "read_end", "received", "write_end")
    kind = "socket"

    def __init__(self, owner: Process) -> None:
        super().__init__()
        self.owner = owner
        self.peer: SocketFile | None = None
        self.received: deque[tuple[bytes, tuple[File, ...]]] = deque()
        self.read_end = self.write_end = False
        self.error = 0

    def events(self) -> int:
        full = self.peer is not None and len(self.peer.received) >= ROOM
        return (
            (POLLIN if self.received or self.read_end else 0)
            | (POLLRDHUP if self.read_end else 0)
            | (POLLHUP if self.read_end and self.write_end else 0)
            | (POLLERR if self.error else 0)
            | (0 if full else POLLOUT)
        )

    def closed(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.peer = None
            peer.read_end = peer.write_end = True
            if self.received:
                peer.error = errno.ECONNRESET
            peer.changed()
        while self.received:
            for file in self.received.popleft()[1]:
                file.drop()

    def shutdown(self, how: int) -> None:
        read, write = how in (real_socket.SHUT_RD, real_socket.SHUT_RDWR), how != real_socket.SHUT_RD
        self.read_end |= read
        self.write_end |= write
        if self.peer is not None:
            self.peer.read_end |= write
            self.peer.write_end |= read
            self.peer.changed()
        self.changed()

    def _failed(self) -> OSError | None:
        number, self.error = self.error, 0
        return failed(number) if number else None

    def put(self, data: bytes, files: Sequence[File]) -> None:
        """Send; EAGAIN where there is no room."""
        error = self._failed()
        if error is not None:
            raise error
        if self.peer is None or self.write_end or self.peer.read_end:
            raise failed(errno.EPIPE)
        if len(self.peer.received) >= ROOM:
            raise failed(errno.EAGAIN)
        self.peer.received.append((data, tuple(file.hold() for file in files)))
        self.peer.changed()

    def get(self) -> tuple[bytes, tuple[File, ...]] | None:
        """Receive; None at the end, EAGAIN where nothing is there. Whoever takes files holds them from now on."""
        error = self._failed()
        if error is not None:
            raise error
        if self.received:
            message = self.received.popleft()
            if self.peer is not None:
                self.peer.changed()
            return message
        if self.read_end:
            return None
        raise failed(errno.EAGAIN)


class Socket:
    """socket.socket"""

    def __init__(
        self, family: int = real_socket.AF_UNIX, type: int = real_socket.SOCK_SEQPACKET, fileno: int = -1
    ) -> None:
        assert fileno >= 0, "not simulated"
        if not isinstance(file_of(fileno, "socket"), SocketFile):
            raise failed(errno.ENOTSOCK)
        self.family, self.type, self._fd = family, type, fileno

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, on: bool) -> None:
        pass

    def setsockopt(self, level: int, name: int, value: object) -> None:
        pass

    def getsockopt(self, level: int, name: int, length: int) -> bytes:
        file = file_of(self._fd, "getsockopt")
        assert isinstance(file, SocketFile)
        peer = file.peer
        owner = peer.owner if peer is not None else world().kernel
        if name == real_socket.SO_PEERCRED:
            return struct.pack("3i", owner.pid, real_os.getuid(), 0)
        assert name == 77, "SO_PEERPIDFD"
        return struct.pack("i", given(_process_of(self._fd) or here(), PidFile(owner)))

    def shutdown(self, how: int) -> None:
        world().step("shut a socket down")
        if self._fd < 0:
            raise failed(errno.EBADF)
        file = file_of(self._fd, "shutdown")
        assert isinstance(file, SocketFile)
        if file.peer is None:
            raise failed(errno.ENOTCONN)
        file.shutdown(how)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close(fd)

    def detach(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def pair(a: Process, b: Process) -> tuple[SocketFile, SocketFile]:
    """Two ends."""
    one, other = SocketFile(a), SocketFile(b)
    one.peer, other.peer = other, one
    return one, other


def socketpair(family: int, kind: int) -> tuple[Socket, Socket]:
    world().step("socketpair")
    process = here()
    one, other = pair(process, process)
    fd = given(process, one)
    try:
        return Socket(fileno=fd), Socket(fileno=given(process, other))
    except OSError:
        process.files.pop(fd).drop()
        raise


class Listener(Source):
    """A listening socket: who connects waits until he is accepted."""

    def __init__(self, owner: Process) -> None:
        super().__init__()
        self.owner = owner
        self.waiting: deque[SocketFile] = deque()
        self.closed = False

    def accept(self) -> tuple[Socket, str]:
        w = world()
        w.block("accept", lambda: bool(self.waiting) or self.closed, (self,))
        if self.closed:
            raise failed(errno.EINVAL)
        file = self.waiting.popleft()
        try:
            return Socket(fileno=given(self.owner, file)), ""
        finally:
            file.drop()

    def connect(self) -> Socket:
        """A client's end; ConnectionRefusedError where nobody listens any more."""
        world().step("connect")
        if not self.owner.alive or self.closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        ours, theirs = pair(here(), self.owner)
        fd = given(here(), ours)
        theirs.hold()
        self.waiting.append(theirs)
        self.changed()
        return Socket(fileno=fd)

    def close(self) -> None:
        self.closed = True
        while self.waiting:
            self.waiting.popleft().drop()
        self.changed()


# ------------------------------------------------------------------------------------------- events, processes, pipes


class EventFile(File):
    __slots__ = ("count",)
    kind = "eventfd"

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def events(self) -> int:
        return (POLLIN if self.count else 0) | POLLOUT


class PidFile(File):
    __slots__ = ("process",)
    kind = "pidfd"

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        process.waiters.append(self)  # type: ignore[arg-type]

    def wake(self) -> None:
        """The process has ended."""
        self.changed()

    def closed(self) -> None:
        self.process.waiters.remove(self)  # type: ignore[arg-type]

    def events(self) -> int:
        return POLLIN if self.process.dead else 0


class PipeFile(File):
    """One end of a pipe."""

    __slots__ = ("data", "other", "writes")
    kind = "pipe"

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.data = bytearray()  # of the read end
        self.other: PipeFile | None = None

    def events(self) -> int:
        if self.writes:
            return POLLOUT if self.other is not None else POLLOUT | POLLERR
        return (POLLIN if self.data else 0) | (POLLHUP if self.other is None else 0)

    def closed(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.changed()


class MemoryFile(File):
    """A memory: a real memfd."""

    __slots__ = ("fd",)
    kind = "memory"

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd

    def closed(self) -> None:
        real_os.close(self.fd)


def _memory(fd: int, what: str) -> MemoryFile:
    file = file_of(fd, what)
    if not isinstance(file, MemoryFile):
        raise failed(errno.EINVAL)
    return file


def eventfd(count: int = 0, flags: int = 0) -> int:
    world().step("eventfd")
    return given(here(), EventFile(count))


def eventfd_write(fd: int, value: int) -> None:
    w = world()
    if w.over:
        return
    w.step("write an eventfd")
    wake(fd, value)


def wake(fd: int, value: int = 1) -> None:
    """Write an eventfd; nothing comes between."""
    if world().over:
        return
    process = _process_of(fd)
    if process is None or not process.alive:
        return
    file = file_of(fd, "eventfd_write")
    assert isinstance(file, EventFile), "eventfd_write: of another descriptor"
    file.count += value
    file.changed()


def eventfd_read(fd: int) -> int:
    world().step("read an eventfd")
    file = file_of(fd, "eventfd_read")
    assert isinstance(file, EventFile)
    if not file.count:
        raise BlockingIOError(errno.EAGAIN, "nothing")
    count, file.count = file.count, 0
    return count


def pidfd_open(pid: int, flags: int = 0) -> int:
    world().step("pidfd_open")
    for process in world().processes:
        if process.pid == pid and not process.dead:
            return given(here(), PidFile(process))
    raise failed(errno.ESRCH)


def pipe2(flags: int) -> tuple[int, int]:
    world().step("pipe")
    read, write = PipeFile(False), PipeFile(True)
    read.other, write.other = write, read
    process = here()
    fd = given(process, read)
    try:
        return fd, given(process, write)
    except OSError:
        process.files.pop(fd).drop()
        raise


def memfd_create(name: str, flags: int = 0) -> int:
    world().step("memfd_create")
    if here().exhausted:
        raise failed(errno.EMFILE)
    return given(here(), MemoryFile(real_os.memfd_create(name, flags)))


def write(fd: int, data: Any) -> int:
    world().step("write")
    file = file_of(fd, "write")
    if isinstance(file, MemoryFile):
        return real_os.write(file.fd, data)
    assert isinstance(file, PipeFile) and file.writes
    if file.other is None:
        raise BrokenPipeError(errno.EPIPE, "broken")
    file.other.data += bytes(data)
    file.other.changed()
    return len(data)


def read(fd: int, size: int) -> bytes:
    world().step("read")
    file = file_of(fd, "read")
    assert isinstance(file, PipeFile) and not file.writes
    data = bytes(file.data[:size])
    del file.data[:size]
    if not data and file.other is not None:
        raise BlockingIOError(errno.EAGAIN, "nothing")
    return data


def fstat(fd: int) -> Any:
    file = file_of(fd, "fstat")
    if isinstance(file, MemoryFile):
        return real_os.fstat(file.fd)
    mode = {"pipe": stat.S_IFIFO, "socket": stat.S_IFSOCK}.get(file.kind, stat.S_IFCHR)
    return SimpleNamespace(st_mode=mode, st_dev=0, st_ino=id(file), st_size=0)


def fcntl_(fd: int, command: int, argument: int = 0) -> int:
    file = file_of(fd, "fcntl")
    if command == real_fcntl.F_DUPFD_CLOEXEC:
        return dup(fd)
    if isinstance(file, MemoryFile):
        return real_fcntl.fcntl(file.fd, command, argument)
    if command == real_fcntl.F_GETFL:
        return real_os.O_WRONLY if isinstance(file, PipeFile) and file.writes else real_os.O_RDONLY
    raise failed(errno.EINVAL)


def ioctl(fd: int, request: int, argument: object = 0) -> Any:
    file_of(fd, "ioctl")
    raise failed(errno.ENOTTY)  # no sync_file here


class _Constants:
    """A module whose constants are the real ones, and whose functions are those given."""

    def __init__(self, real: Any, constants: Sequence[str] = (), **given: Any) -> None:
        self.__dict__.update(given)
        self._real, self._allowed = real, constants

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if callable(value) and name not in self._allowed:
            world().fail(f"{self._real.__name__}.{name} is not simulated")
            raise NotImplementedError(name)
        return value


os = _Constants(
    real_os,
    ("fspath", "sched_getaffinity"),
    close=close,
    dup=dup,
    eventfd=eventfd,
    eventfd_write=eventfd_write,
    eventfd_read=eventfd_read,
    pidfd_open=pidfd_open,
    pipe2=pipe2,
    memfd_create=memfd_create,
    ftruncate=lambda fd, size: real_os.ftruncate(_memory(fd, "ftruncate").fd, size),
    write=write,
    read=read,
    pread=lambda fd, size, offset: real_os.pread(_memory(fd, "pread").fd, size, offset),
    fstat=fstat,
    getpid=lambda: here().pid,
    getuid=real_os.getuid,
)
fcntl = _Constants(real_fcntl, fcntl=fcntl_, ioctl=ioctl)
mmap = _Constants(real_mmap, mmap=lambda fd, size, **how: real_mmap.mmap(_memory(fd, "mmap").fd, size, **how))
socket = _Constants(
    real_socket,
    socket=Socket,
    SocketType=lambda family, type, proto, fileno: Socket(fileno=fileno),
    socketpair=socketpair,
)


class _Instances(type):
    """What its class makes are real mappings."""

    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, native.Mapping)


class Mapping(metaclass=_Instances):
    """nnhal.base.native.Mapping: makes real ones."""

    def __new__(cls, fd: int, size: int, offset: int, writable: bool) -> Any:
        world().step("mmap")
        return native.Mapping(_memory(fd, "mmap").fd, size, offset, writable)


class Owner:
    """nnhal.base.native.Owner"""

    __slots__ = ("__weakref__", "fds")

    def __init__(self, *fds: int) -> None:
        self.fds = [*fds]
        weakref.finalize(self, _close_all, self.fds)

    def close(self) -> None:
        _close_all(self.fds)


def _close_all(fds: list[int]) -> None:
    while fds:
        close(fds.pop())


# -------------------------------------------------------------------------------------------------------------- polls


class Poll:
    """select.poll"""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, fd: int, mask: int = POLLIN) -> None:
        self._wanted[fd] = mask

    def unregister(self, fd: int) -> None:
        del self._wanted[fd]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        files = {fd: file_of(fd, "poll") for fd in self._wanted}

        def seen() -> list[tuple[int, int]]:
            always = POLLERR | POLLHUP
            found = [(fd, file.events() & (self._wanted[fd] | always)) for fd, file in files.items()]
            return [(fd, events) for fd, events in found if events]

        timeout = None if milliseconds is None or milliseconds < 0 else int(milliseconds * 1_000_000)
        world().block("poll", lambda: bool(seen()), files.values(), timeout)
        return seen()


select = _Constants(real_select, poll=Poll)


class _Libc:
    """The calls of the C library that the border makes past Python."""

    def poll(self, entry: Any, count: int, milliseconds: int) -> int:
        fd, mask, _ = struct.unpack("ihh", entry.raw[:8])
        poll = Poll()
        poll.register(fd, mask)
        return len(poll.poll(milliseconds))

    def tee(self, source: int, target: int, length: Any, flags: Any) -> int:
        world().step("tee")
        held, into = file_of(source, "tee"), file_of(target, "tee")
        assert isinstance(held, PipeFile) and isinstance(into, PipeFile) and into.other is not None
        into.other.data += held.data[: length.value]
        return min(length.value, len(held.data))


libc = _Libc()

# ---------------------------------------------------------------------------------------------------------- processes


class DriverProcess:
    """nnhal.ipc.client.output.DriverProcess"""

    def __init__(self, process: Process) -> None:
        self.process, self.pid = process, process.pid
        self.returncode: int | None = None

    @property
    def exit_by_itself(self) -> str:
        return "exit" if self.process.dead else ""

    def poll(self) -> int | None:
        if self.process.dead:
            self.returncode = -9
        return self.returncode

    def kill(self) -> None:
        world().step("kill")
        self.process.kill()

    def wait(self, timeout: float | None = None) -> int:
        limit = None if timeout is None else int(timeout * SECOND)
        if not world().block("wait", lambda: self.process.dead, (self.process,), limit):
            raise subprocess.TimeoutExpired("driver", timeout or 0)
        self.returncode = -9
        return self.returncode

    def exit_description(self) -> str:
        try:
            self.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        return "the driver process ended"


def watched(fd: int) -> Process | None:
    """The process that a descriptor stands for."""
    process = _process_of(fd)
    file = process.files.get(fd) if process is not None else None
    return file.process if isinstance(file, PidFile) else None


def when_dead(process: Process, then: Callable[[], object]) -> None:
    """Do something once a process has ended."""
    w = world()

    def wait() -> None:
        w.block("end of a process", lambda: process.dead, (process,))
        then()

    w.kernel.spawn(f"after {process.name}", wait)
