"""Locks of cache files, for a driver that writes or reads them when `prepare` has returned.

They belong to the open descriptor, so they end with it, and copies of the descriptor share them (`F_OFD_SETLK` of fcntl(2)).
A sandboxed driver has them: to keep others from writing takes a descriptor that can be written. It has no `flock`, by which
it could keep others waiting for any file that it can read. The two kinds do not see each other.
"""

import fcntl
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_LOCK = struct.Struct("hhqqi4x")  # struct flock: kind, whence, start, length (0: all), process


@contextmanager
def written_alone(files: Sequence[int]) -> Iterator[None]:
    """Wait until nobody else writes or reads these files under a lock, and keep all others out meanwhile.

    Does without where the file system has no locks.
    """
    try:
        for fd in files:
            with suppress(OSError):
                _set(fd, fcntl.F_WRLCK, fcntl.F_OFD_SETLKW)
        yield
    finally:
        for fd in files:
            _release(fd)


@contextmanager
def read_at_once(fd: int) -> Iterator[None]:
    """Keep others from writing meanwhile. BlockingIOError while another one writes. A file system without locks is fine."""
    try:
        _set(fd, fcntl.F_RDLCK, fcntl.F_OFD_SETLK)
    except BlockingIOError:
        raise
    except OSError:
        yield
        return
    try:
        yield
    finally:
        _release(fd)


def _set(fd: int, kind: int, command: int) -> None:
    fcntl.fcntl(fd, command, _LOCK.pack(kind, 0, 0, 0, 0))


def _release(fd: int) -> None:
    with suppress(OSError, ValueError):  # closed meanwhile
        _set(fd, fcntl.F_UNLCK, fcntl.F_OFD_SETLK)
