"""Fences: their holders can wait for an execution to end, and do nothing else.

A fence is the read end of a pipe whose write end only the executing side holds. One byte, the ErrorStatus, signals the
end of the execution; a hang-up without it is DEAD_OBJECT. nnhal reads the byte without consuming it, so every holder of
a duplicate sees it. A holder that consumes it by other means turns the fence to DEAD_OBJECT, never to a success. One
way to forge it remains: a process of the same user may open the pipe again under /proc. Kernel `sync_file` descriptors
are fences too.
"""

import ctypes
import fcntl
import functools
import math
import os
import select
import stat
import struct
from collections.abc import Callable, Generator, Sequence, Set
from itertools import chain, islice
from typing import Any

from nnhal.base.answers import safe_repr
from nnhal.base.codes import ErrorStatus
from nnhal.base.descriptors import Owner, store_in_owners
from nnhal.base.errors import Closed, DeadObject, InvalidArgument, MissedDeadline, ResourceExhausted, error_of
from nnhal.base.time import limit
from nnhal.base.uncopied import NotCopyable

_SYNC_IOC_FILE_INFO = 0xC0383E04  # _IOWR('>', 4, struct sync_file_info)
_SYNC_FILE_INFO = struct.Struct("32siIIIQ")  # name, status, flags, number of fences, padding, their address
_SPLICE_F_NONBLOCK = 2
_PIPE = os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST = 2_000_000  # seconds, 23 days: the limit of poll


class Fence(NotCopyable, instead="its descriptor can be sent over a socket"):
    """A fence, which owns its descriptor. You can select or poll on it (`fileno`): readable means signalled."""

    def __init__(self, fd: int = -1, told: "list[ErrorStatus] | None" = None, kind: str = "") -> None:
        """Take over a descriptor; InvalidArgument if it is neither a pipe's read end nor a sync_file.

        told: where a signaller in this process notes the status. kind: for a descriptor that comes later.
        """
        self._kind = kind or _kind_of(fd)
        self._told: list[ErrorStatus] = [] if told is None else told
        self._status: ErrorStatus | None = None
        self._own: Owner | None = Owner()
        if not kind:
            self._own.fds.append(fd)

    def owner(self) -> Owner:
        """The owner of its descriptor, which stays open while it is held, also after `close`."""
        own = self._own
        if own is None or not own.fds:
            raise Closed("fence: used after close")
        return own

    @classmethod
    def taken(cls, take: Callable[[], int]) -> "Fence":
        """Create a fence from the descriptor that `take` returns.

        `take` is written in C, so an interrupt comes before or after it.

        Args:
            take: Returns the descriptor.
        """
        fence = cls(kind="pipe")
        assert fence._own is not None
        fence._own.fds.extend(islice(iter(take, -1), 1))
        fence._kind = _kind_of(fence.fileno())
        return fence

    def fileno(self) -> int:
        """Return the descriptor, which the fence still owns."""
        return self.owner().fds[0]

    def duplicate(self) -> "Fence":
        """Return another fence for the same execution, with a duplicate of the descriptor."""
        own, fence = self.owner(), Fence(told=self._told, kind=self._kind)
        assert fence._own is not None
        try:
            fence._own.fds.extend(map(fcntl.fcntl, own.fds, (fcntl.F_DUPFD_CLOEXEC,), (0,)))
        except OSError as error:
            raise ResourceExhausted(f"fence: no descriptor: {error.strerror}") from error
        return fence

    def status(self) -> ErrorStatus | None:
        """Return the status: NONE after a success, another status after a failure, None while pending."""
        if self._status is None:
            self._look(0)
        return self._status

    def _look(self, milliseconds: int) -> bool:
        """Wait until it is signalled or the time is over, note the status, and return whether it was signalled."""
        own = self.owner()
        events = _events(own.fds[0], milliseconds)
        if self._told and events:
            self._status = self._told[0]
        elif events & select.POLLIN:
            look = _status_of_sync_file if self._kind == "sync_file" else _status_in_pipe
            self._status = look(own.fds[0])
        elif events:
            self._status = ErrorStatus.DEAD_OBJECT
        return bool(events)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a success.

        Args:
            timeout: The most seconds to wait; None for no limit.

        Raises:
            MissedDeadline: It was not signalled in time.
            DeadObject: The executing process died.
            NnhalError: The execution failed; the error is that of the status.
        """
        most = limit(timeout, "timeout")
        left = -1 if most is None or most > _LONGEST else math.ceil(most * 1000)
        if self._status is None and not self._look(left):
            raise MissedDeadline(f"fence: not signalled after {most:g} s, must be by then")
        status = self._status
        if status == ErrorStatus.DEAD_OBJECT:
            raise DeadObject("fence: the side that executes died before it signalled")
        if status != ErrorStatus.NONE:
            raise error_of(status or ErrorStatus.GENERAL_FAILURE, "fence: the execution it stands for failed")

    def __await__(self) -> Generator[Any, None, None]:
        """Wait as `wait` does, without blocking the event loop."""
        if self.status() is None:
            yield from _readable_soon(self).__await__()
        self.wait(0)

    def close(self) -> None:
        """Close the descriptor."""
        self._own = None

    def __repr__(self) -> str:
        status = self._status if self._own is None else self.status()
        return f"Fence({'pending' if status is None else status.name})"


def fence_list(fences: Any) -> list[Fence]:
    """Return fences to wait for as a list; InvalidArgument for anything else."""
    found: list[Any] = list(fences) if isinstance(fences, Sequence | Set) else [None]
    if not all(isinstance(fence, Fence) for fence in found):
        raise InvalidArgument(f"wait_for is {safe_repr(fences)}, must be a list of fences")
    return found


class Signal:
    """The signalling end of a fence. Garbage collection without `set` signals DEAD_OBJECT."""

    def __init__(self, tell: "list[ErrorStatus]") -> None:
        """tell: where fences of this process look for the status before they read their descriptor."""
        self._tell = tell
        self._own, self._once = Owner(), [None]

    def set(self, status: ErrorStatus = ErrorStatus.NONE) -> None:
        """Signal the fence. Only the first call has an effect, from whichever thread.

        Args:
            status: NONE for a success.
        """
        if not isinstance(status, ErrorStatus):
            raise InvalidArgument(f"fence: status is {safe_repr(status)}, must be an ErrorStatus")
        try:
            self._once.pop()
        except IndexError:
            return
        try:
            self._tell.append(status)
            if status != ErrorStatus.DEAD_OBJECT:  # has no byte: the hang-up signals it
                os.write(self._own.fds[0], bytes((status,)))
        except BrokenPipeError:  # no holder is left
            pass
        finally:
            self._own.close()

    def wait_for_fences(self, fences: Sequence[Fence]) -> bool:
        """Wait until all these fences are signalled.

        Args:
            fences: The fences to wait for.

        Returns:
            False if no holder of this fence is left.

        Raises:
            NnhalError: As from `Fence.wait`.
        """
        for fence in fences:
            poll, own = select.poll(), fence.owner()
            poll.register(own.fds[0], select.POLLIN)
            poll.register(self._own.fds[0], 0)  # its hang-up alone
            if any(fd == self._own.fds[0] for fd, _ in poll.poll()):
                return False
            fence.wait(0)
        return True


def fence_pair() -> tuple[Fence, Signal]:
    """Create a pending fence, and the only object that can signal it."""
    told: list[ErrorStatus] = []
    fence, signal = Fence(told=told, kind="pipe"), Signal(told)
    assert fence._own is not None
    try:
        store_in_owners([fence._own, signal._own], chain.from_iterable(map(os.pipe2, (_PIPE,))))
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
        # A sync_file has no file type; other files may use the number of this ioctl for something else
        if stat.S_IFMT(mode):
            raise OSError
        _status_of_sync_file(fd)
    except OSError:
        raise InvalidArgument(
            f"fence: descriptor {fd} is not a fence, must be the read end of a pipe or a sync_file"
        ) from None
    return "sync_file"


def _events(fd: int, milliseconds: int) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return next((events for _, events in poll.poll(milliseconds)), 0)


async def _readable_soon(fence: Fence) -> None:
    import asyncio  # its import takes longer than all other imports of this file

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
def _libc() -> ctypes.CDLL:
    """Return libc. Its calls release the interpreter: even a poll waits while another process writes to its pipe."""
    return ctypes.CDLL(None, use_errno=True)


def _status_in_pipe(fd: int) -> ErrorStatus:
    """Read the status byte and leave it in the pipe; DEAD_OBJECT if another holder consumed it."""
    ends = Owner()
    try:
        ends.fds.extend(chain.from_iterable(map(os.pipe2, (_PIPE,))))
    except OSError as error:
        raise ResourceExhausted(f"fence: no descriptors to look at it: {error.strerror}") from error
    read, write = ends.fds
    count = _libc().tee(fd, write, ctypes.c_size_t(1), ctypes.c_uint(_SPLICE_F_NONBLOCK))
    value = os.read(read, 1)[0] if count == 1 else ErrorStatus.DEAD_OBJECT
    return ErrorStatus(value) if value in ErrorStatus.__members__.values() else ErrorStatus.GENERAL_FAILURE


def _status_of_sync_file(fd: int) -> ErrorStatus:
    return status_in_info(fcntl.ioctl(fd, _SYNC_IOC_FILE_INFO, bytes(_SYNC_FILE_INFO.size)))


def status_in_info(info: bytes) -> ErrorStatus:
    """Return the status in the kernel's struct sync_file_info: 1 signalled, 0 active, below 0 an error."""
    return ErrorStatus.NONE if _SYNC_FILE_INFO.unpack(info)[1] >= 0 else ErrorStatus.GENERAL_FAILURE
