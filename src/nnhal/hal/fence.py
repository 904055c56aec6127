"""Fences: who holds one can wait for an execution to end, and nothing else.

A fence is the read end of a pipe whose write end only the executing side holds. The end of the execution is one byte, its
ErrorStatus; a hang-up without it is DEAD_OBJECT. nnhal looks at the byte without taking it out, so every holder of a
duplicate sees it; a holder that takes it out by other means makes it DEAD_OBJECT, never a success. (The one way to forge
it that the kernel leaves open: a process of the same user may open the pipe anew under /proc.) Descriptors of the kernel's
`sync_file` are fences too.
"""

import ctypes
import fcntl
import functools
import math
import os
import select
import stat
import struct
import termios
import weakref
from collections.abc import Generator, Sequence, Set
from itertools import chain
from typing import Any

from nnhal.base.answers import shown
from nnhal.base.codes import ErrorStatus
from nnhal.base.descriptors import close_all, open_into
from nnhal.base.errors import Closed, DeadObject, InvalidArgument, MissedDeadline, ResourceExhausted, error_of
from nnhal.base.time import limit

_SYNC_IOC_FILE_INFO = 0xC0383E04  # _IOWR('>', 4, struct sync_file_info)
_SYNC_FILE_INFO = struct.Struct("32siIIIQ")  # name, status, flags, number of fences, padding, their address
_SPLICE_F_NONBLOCK = 2
_PIPE = os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST = 2_000_000  # seconds, 23 days: poll takes no more


class Fence:
    """One fence; owns its descriptor. `fileno` makes it a thing to select or poll on: readable means signalled."""

    def __init__(self, fd: int = -1, told: "list[ErrorStatus] | None" = None, kind: str = "") -> None:
        """Take over a descriptor; InvalidArgument where it is neither a pipe's read end nor a sync_file.

        told: where whoever signals it notes the status, if that is in this process. kind: of one that comes later.
        """
        self._kind = kind or _kind_of(fd)
        self._told: list[ErrorStatus] = [] if told is None else told
        self._status: ErrorStatus | None = None
        self._own: list[int] = []
        self._finalizer = weakref.finalize(self, close_all, self._own)
        if not kind:
            self._own.append(fd)

    def fileno(self) -> int:
        """The descriptor; it stays the fence's."""
        try:
            return self._own[0]
        except IndexError:
            raise Closed("fence: used after close") from None

    def duplicate(self) -> "Fence":
        """Another fence for the same execution, with a descriptor of its own."""
        fence = Fence(told=self._told, kind=self._kind)
        try:
            fence._own.extend(map(fcntl.fcntl, (self.fileno(),), (fcntl.F_DUPFD_CLOEXEC,), (0,)))
        except OSError as error:
            raise ResourceExhausted(f"fence: no descriptor: {error.strerror}") from error
        return fence

    def status(self) -> ErrorStatus | None:
        """NONE for a success, another status for a failure, None while it is pending."""
        if self._status is None and _readable(self.fileno(), 0):
            self._look()
        return self._status

    def _look(self) -> None:
        """What it says, once it is readable."""
        if self._told:
            self._status = self._told[0]
            return
        look = _status_of_sync_file if self._kind == "sync_file" else _status_in_pipe
        self._status = look(self.fileno())

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for a success; raises MissedDeadline, DeadObject or what the status stands for."""
        most = limit(timeout, "timeout")
        left = -1 if most is None or most > _LONGEST else math.ceil(most * 1000)
        if self._status is None:
            if not _readable(self.fileno(), left):
                raise MissedDeadline(f"fence: not signalled after {most:g} s, must be by then")
            self._look()
        status = self._status
        if status == ErrorStatus.DEAD_OBJECT:
            raise DeadObject("fence: the side that executes died before it signalled")
        if status != ErrorStatus.NONE:
            raise error_of(status or ErrorStatus.GENERAL_FAILURE, "fence: the execution it stands for failed")

    def __await__(self) -> Generator[Any, None, None]:
        """As `wait`, without blocking the event loop."""
        if self.status() is None:
            yield from _readable_soon(self).__await__()
        self.wait(0)

    def close(self) -> None:
        """Give the descriptor back."""
        self._finalizer()

    def __repr__(self) -> str:
        status = self.status() if self._own else self._status
        return f"Fence({'pending' if status is None else status.name})"


def taken(fd: int) -> Fence:
    """A fence over a descriptor that came from elsewhere, which is closed where it is none."""
    try:
        return Fence(fd)
    except BaseException:
        os.close(fd)
        raise


def listed(fences: Any) -> list[Fence]:
    """Fences to wait for; InvalidArgument for anything else."""
    found: list[Any] = list(fences) if isinstance(fences, Sequence | Set) else [None]
    if not all(isinstance(fence, Fence) for fence in found):
        raise InvalidArgument(f"wait_for is {shown(fences)}, must be a list of fences")
    return found


class Signal:
    """The other end of a fence: `set` once; dropping it without is the hang-up that holders see as DEAD_OBJECT."""

    def __init__(self, tell: "list[ErrorStatus]") -> None:
        """tell: where fences of this process look for the status before they look at their descriptor."""
        self._tell = tell
        self._own: list[int] = []
        self._finalizer = weakref.finalize(self, close_all, self._own)

    def set(self, status: ErrorStatus = ErrorStatus.NONE) -> None:
        """Signal; later calls do nothing, from whatever thread."""
        if not isinstance(status, ErrorStatus):
            raise InvalidArgument(f"fence: status is {shown(status)}, must be an ErrorStatus")
        if self._finalizer.detach() is not None:
            try:
                self._tell.append(status)
                if status != ErrorStatus.DEAD_OBJECT:  # which is no byte: the hang-up says it
                    os.write(self._own[0], bytes((status,)))
            except BrokenPipeError:  # nobody waits any more
                pass
            finally:
                close_all(self._own)


def fence_pair() -> tuple[Fence, Signal]:
    """A pending fence and the one thing that can signal it."""
    told: list[ErrorStatus] = []
    fence, signal = Fence(told=told, kind="pipe"), Signal(told)
    try:
        open_into([fence._own, signal._own], chain.from_iterable(map(os.pipe2, (_PIPE,))))
    except OSError as error:
        raise ResourceExhausted(f"fence: no descriptors: {error.strerror}") from error
    return fence, signal


def _kind_of(fd: int) -> str:
    try:
        mode = os.fstat(fd).st_mode
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, TypeError, OverflowError):
        raise InvalidArgument(f"fence: descriptor {fd} is not open") from None
    if stat.S_ISFIFO(mode) and access == os.O_RDONLY:
        return "pipe"
    try:
        _status_of_sync_file(fd)
    except OSError:
        raise InvalidArgument(
            f"fence: descriptor {fd} is no fence, must be the read end of a pipe or a sync_file"
        ) from None
    return "sync_file"


def _readable(fd: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds))


async def _readable_soon(fence: Fence) -> None:
    import asyncio  # takes longer to import than all of this file's others

    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    own = fence.duplicate()  # a loop has one reader for each descriptor
    loop.add_reader(own.fileno(), there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(own.fileno())
        own.close()


@functools.cache
def _libc() -> ctypes.PyDLL:
    """Its calls keep the interpreter: beside a busy thread each time that it is given up costs 5 ms. None of them waits."""
    return ctypes.PyDLL(None, use_errno=True)


def _status_in_pipe(fd: int) -> ErrorStatus:
    """The status byte, left in the pipe; DEAD_OBJECT where the write end is gone without one."""
    held = ctypes.c_int(0)
    if _libc().ioctl(fd, termios.FIONREAD, ctypes.byref(held)) == 0 and held.value == 0:
        return ErrorStatus.DEAD_OBJECT
    try:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ResourceExhausted(f"fence: no descriptors to look at it: {error.strerror}") from error
    try:
        count = _libc().tee(fd, write, ctypes.c_size_t(1), ctypes.c_uint(_SPLICE_F_NONBLOCK))
        value = os.read(read, 1)[0] if count == 1 else ErrorStatus.DEAD_OBJECT
    finally:
        os.close(read)
        os.close(write)
    return ErrorStatus(value) if value in ErrorStatus.__members__.values() else ErrorStatus.GENERAL_FAILURE


def _status_of_sync_file(fd: int) -> ErrorStatus:
    return status_in_info(fcntl.ioctl(fd, _SYNC_IOC_FILE_INFO, bytes(_SYNC_FILE_INFO.size)))


def status_in_info(info: bytes) -> ErrorStatus:
    """The status that the kernel's struct sync_file_info tells: 1 signalled, 0 active, below 0 an error."""
    return ErrorStatus.NONE if _SYNC_FILE_INFO.unpack(info)[1] >= 0 else ErrorStatus.GENERAL_FAILURE
