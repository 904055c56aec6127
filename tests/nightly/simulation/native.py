"""What stands in for the native extension, after the contract in `transport/_native.pyi`; a test holds it to the C."""

import errno
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from nnhal.ipc.transport import _native as real
from tests.nightly.simulation.kernel import (
    POLLIN,
    POLLOUT,
    File,
    SocketFile,
    _process_of,
    close,
    file_of,
    given,
    here,
    wake,
)
from tests.nightly.simulation.threads import world
from tests.nightly.simulation.world import SECOND, Source, Task

LONGEST, MOST = 69_632, 64  # bytes and descriptors of a message
ELEMENT = 24


class Descriptors:
    """Open descriptors that came with a message."""

    def __init__(self, fds: Sequence[int] = ()) -> None:
        self._fds = deque(fds)

    def __len__(self) -> int:
        return len(self._fds)

    def take(self) -> int:
        return self._fds.popleft() if self._fds else -1

    def close(self) -> None:
        while self._fds:
            close(self._fds.popleft())

    def __del__(self) -> None:
        self.close()


class Lease:
    """A number that is given back once; nothing comes between."""

    def __init__(self, number: int, into: Callable[[int], object], wakes: Any) -> None:
        self.number, self._into, self._wakes = number, [into], wakes

    def release(self) -> None:
        while self._into:
            self._into.pop()(self.number)
            for fd in self._wakes.fds[-1:]:
                wake(fd)

    def keep(self) -> None:
        self._into.clear()

    def __del__(self) -> None:
        self.release()


class _Nothing(Descriptors):
    """No descriptors."""

    def __del__(self) -> None:
        pass


NONE = _Nothing()


def _any(sock: SocketFile, events: int, watched: list[File]) -> bool:
    """Whether a socket has any of these events, or what is watched has ended."""
    return bool(sock.events() & events) or any(file.events() for file in watched)


def _limit(timeout_ns: int) -> int | None:
    return None if timeout_ns < 0 else timeout_ns


class Lane:
    """Messages with descriptors over one end of a socket."""

    def __init__(self, fd: int, watch: int = -1) -> None:
        self.fd, self.watch, self.peer_cpus, self.spin, self.hold_ns = fd, watch, 0, True, 5000
        self.called = self.awaited = self.asked = self._heard = 0
        self._busy = False

    def _socket(self) -> SocketFile | None:
        try:
            file = file_of(self.fd, "lane")
        except OSError:
            return None
        assert isinstance(file, SocketFile), "a lane's descriptor is another's by now"
        return file

    def _watched(self) -> list[File]:
        return [] if self.watch < 0 else [file_of(self.watch, "lane's watch")]

    # ---------------------------------------------------------------------------------------------------------- receive

    def _take(self, sock: SocketFile) -> "tuple[int, bytes | None, Descriptors] | int | None":
        """A message, without bytes where they are lost, None for them where it has none; a status; None where nothing is."""
        try:
            message = sock.get()
        except OSError as error:
            return None if error.errno == errno.EAGAIN else real.DEAD
        if message is None:
            return real.DEAD
        data, files = message
        process = _process_of(self.fd) or here()
        fds: list[int] = []
        lost = len(files) > MOST or len(data) > LONGEST + 8
        for file in files[:MOST]:
            try:
                fds.append(given(process, file))
            except OSError:
                lost = True
        for file in files:
            file.drop()
        owner = Descriptors(fds) if fds else NONE
        if len(data) <= 8:
            owner.close()
            return 0, None, NONE
        number = int.from_bytes(data[:8], "little")
        if lost:
            owner.close()
            return number, b"", NONE
        return number, data[8:], owner

    def _wait(self, timeout_ns: int) -> "tuple[int, bytes | None, Descriptors] | int":
        w, sock = world(), self._socket()
        if sock is None:
            return real.CLOSED
        got = self._take(sock)
        if got is not None:
            return got
        if timeout_ns == 0:
            return real.TIMEOUT
        watched = self._watched()
        while True:
            if not w.block("receive", partial(_any, sock, ~POLLOUT, watched), (sock, *watched), _limit(timeout_ns)):
                return real.TIMEOUT
            sock = self._socket()
            if sock is None:
                return real.CLOSED
            got = self._take(sock)
            if got is not None:
                return got
            if any(file.events() for file in watched):
                return real.DEAD

    def receive(self, timeout_ns: int = -1) -> "tuple[bytes, Descriptors] | int":
        world().step("receive")
        if self._busy:
            raise RuntimeError("Lane: another thread waits in it, must be one at a time")
        self._busy = True
        try:
            got = self._wait(timeout_ns)
        finally:
            self._busy = False
        if isinstance(got, int):
            return got
        number, data, owner = got
        if self.awaited:
            self.asked = 0
            if number != self.awaited or data is None:
                owner.close()
                return real.CORRUPT
            self.awaited = 0
        else:
            if 0 < number <= self._heard:
                owner.close()
                self.asked = 0
                return real.CORRUPT
            self.asked, self._heard = number, max(number, self._heard)
        return (data, owner) if data else real.CORRUPT if data is None else real.TOO_LARGE

    # ------------------------------------------------------------------------------------------------------------- send

    def _send(self, number: int, data: bytes, fds: Sequence[int], timeout_ns: int) -> int:
        w = world()
        w.step("send")
        if len(fds) > MOST:
            return real.TOO_LARGE
        if not data:
            raise ValueError("Lane: message has 0 bytes, must have at least 1")
        if len(data) > LONGEST:
            return real.TOO_LARGE
        files = [file_of(fd, "send") for fd in fds]
        message = number.to_bytes(8, "little") + bytes(data)
        gone = False
        while True:
            sock = self._socket()
            if sock is None:
                return real.CLOSED
            try:
                sock.put(message, files)
                return 0
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return real.DEAD
            if gone:
                return real.DEAD
            watched = self._watched()
            if not w.block("send", partial(_any, sock, ~POLLIN, watched), (sock, *watched), _limit(timeout_ns)):
                return real.TIMEOUT
            gone = any(file.events() for file in watched)

    def send(self, data: Any, fds: Sequence[int] = (), timeout_ns: int = 5 * SECOND) -> int:
        return self._send(0, data, fds, timeout_ns)

    def answer(self, data: Any, fds: Sequence[int] = (), timeout_ns: int = 5 * SECOND) -> int:
        if not self.asked:
            raise RuntimeError("Lane: no call was received, must be before an answer is sent")
        status = self._send(self.asked, data, fds, timeout_ns)
        if status == 0:
            self.asked = 0
        return status

    def ask(self, data: Any, fds: Sequence[int] = (), timeout_ns: int = 5 * SECOND) -> int:
        if self.awaited:
            return real.CORRUPT
        self.called += 1
        self.awaited = self.called
        try:
            status = self._send(self.awaited, data, fds, timeout_ns)
        except BaseException:
            self.awaited = 0
            raise
        if status < 0:
            self.awaited = 0
        return status

    def call(self, data: Any, fds: Sequence[int] = (), timeout_ns: int = -1) -> "tuple[bytes, Descriptors] | int":
        end = world().now + timeout_ns
        status = self.ask(data, fds, timeout_ns)
        return status if status < 0 else self.receive(-1 if timeout_ns < 0 else max(0, end - world().now))

    def stats(self) -> dict[str, int]:
        return {}


class QueueFile(File):
    """The memory of a burst's queues."""

    kind = "queues"

    def __init__(self, *elements: int) -> None:
        super().__init__()
        self.capacity = [max(16, 1 << (count - 1).bit_length()) for count in elements]
        self.packets: tuple[deque[bytes], deque[bytes]] = deque(), deque()
        self.used = [0, 0]
        self.ended = False
        self.liveness: list[Task | str | None] = [None, None]


def create_queues(request_elements: int, result_elements: int) -> int:
    world().step("create queues")
    for elements in (request_elements, result_elements):
        if not 1 <= elements <= 65536:
            raise ValueError(f"queue for {elements} elements, must be for 1 to 65536")
    return given(here(), QueueFile(request_elements, result_elements))


class Queues:
    """One side's view of a burst's queues."""

    def __init__(self, fd: int, side: int) -> None:
        file = file_of(fd, "Queues")
        if not isinstance(file, QueueFile):
            raise ValueError("queues' memory is not sealed against shrinking alone, must be a memfd that is")
        self._file, self.side, self.watch = file, side, -1
        self._task: Task | None = None
        self._closed = self._corrupt = self._busy = False
        self._last: bytes | None = None
        self._called = self._awaited = self._asked = 0
        self.world = world()
        self.world.queues.add(self)

    def _there(self) -> bool:
        return bool(self._file.packets[1 - self.side])

    def send(self, packet: Any) -> int:
        status = self._put(packet, self._asked)
        if not status:
            self._asked = 0
        return status

    def _put(self, packet: Any, number: int) -> int:
        self.world.step("send a packet")
        data = bytes(packet)
        count = len(data) // ELEMENT
        if not count or len(data) % ELEMENT:
            raise ValueError(f"packet has {len(data)} bytes, must be a multiple of 24, at least 24")
        kind, size = struct.unpack_from("<II", data)
        if kind or size != count:
            raise ValueError(f"packet element 0 is kind {kind} with packetSize {size}, must be 0 with {count}")
        file = self._file
        if self._corrupt or self._closed or file.ended:
            return real.CORRUPT if self._corrupt else real.CLOSED
        if file.used[self.side] + count > file.capacity[self.side]:
            return real.FULL
        file.used[self.side] += count
        file.packets[self.side].append((number, data))
        file.changed()
        return 0

    def receive(self, timeout_ns: int = -1) -> bytes | int:
        w, file = self.world, self._file
        w.step("receive a packet")
        if self._corrupt or self._closed:
            return real.CORRUPT if self._corrupt else real.CLOSED
        if self._busy:
            raise RuntimeError("Queues: another thread waits in it, must be one at a time")
        self._busy = True
        try:
            status = self._wait(timeout_ns)
        finally:
            self._busy = False
        if status < 0 or self._closed:
            return real.CLOSED if self._closed else status
        number, data = file.packets[1 - self.side][0]
        if self._awaited and number != self._awaited:
            self._corrupt = True
            return real.CORRUPT
        file.packets[1 - self.side].popleft()
        self._asked, self._awaited = 0 if self._awaited else number, 0
        file.used[1 - self.side] -= len(data) // ELEMENT
        if data != self._last:
            self._last = data
        assert self._last is not None
        return self._last

    def _wait(self, timeout_ns: int) -> int:
        w, file = self.world, self._file
        end = None if timeout_ns < 0 else w.now + timeout_ns
        peer = 1 - self.side
        dead = False
        while not self._there():
            if self._closed or file.ended:
                return real.CLOSED
            if dead:
                return real.DEAD
            if end is not None and w.now >= end:
                return real.TIMEOUT
            if file.liveness[peer] == "died":
                return real.DEAD
            sources: list[Source] = [file]
            watched = [] if self.watch < 0 else [file_of(self.watch, "queues' watch")]
            slice_ = SECOND if watched and watched[0].events() else None  # looked at once a second
            limit = slice_ if end is None else min(end - w.now, slice_ or end - w.now)

            def ready(watched: list[File] = watched, slice_: int | None = slice_) -> bool:
                changed = self._there() or self._closed or file.ended or file.liveness[peer] == "died"
                return changed or (slice_ is None and any(f.events() for f in watched))

            passed = w.block("packet", ready, (*sources, *watched), limit)
            dead = not passed and slice_ is not None
        return 0

    @property
    def awaiting(self) -> bool:
        return bool(self._awaited)

    def exchange(self, packet: Any, timeout_ns: int = -1) -> bytes | int:
        if not self._corrupt and not self._closed and (self._awaited or self._there()):
            self._corrupt = True
            return real.CORRUPT
        self._called += 1
        status = self._put(packet, self._called)
        if status < 0:
            return status
        self._awaited = self._called
        return self.receive(timeout_ns)

    def hold(self) -> None:
        task = self.world.current
        assert task is not None
        if self._task is not None or task.holding is not None:
            raise RuntimeError("Queues: this side, or another, is held already, must be dropped first")
        self._task, task.holding = task, self
        self._file.liveness[self.side] = task
        self._file.changed()

    def drop(self) -> None:
        task = self._task
        if task is not None:
            if task is not self.world.current:
                raise RuntimeError("Queues: another thread holds this side, must be dropped by that thread")
            self._task = task.holding = None
            self._file.liveness[self.side] = None
            self._file.changed()

    def holder_died(self) -> None:
        """The kernel marks the word."""
        self._task = None
        self._file.liveness[self.side] = "died"
        self._file.changed()

    def close(self) -> None:
        self._closed = True
        self._file.ended = True
        self._file.changed()
        if not self.world.over:
            self.world.step("close queues")

    def stats(self) -> dict[str, int]:
        return {}


native = SimpleNamespace(
    **{name: getattr(real, name) for name in ("TIMEOUT", "DEAD", "CLOSED", "CORRUPT", "TOO_LARGE", "FULL")},
    CLIENT=real.CLIENT,
    SERVICE=real.SERVICE,
    Descriptors=Descriptors,
    NONE=NONE,
    Lane=Lane,
    Lease=Lease,
    Queues=Queues,
    create_queues=create_queues,
    cpus=lambda: 3,
)
