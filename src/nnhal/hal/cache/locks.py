"""Locks of cache files, for a driver that writes or reads them after `prepare` returned.

They belong to the open descriptor: they end with it, and duplicates share them (`F_OFD_SETLK` of fcntl(2)). A sandboxed
driver may use them, because excluding writers takes a writable descriptor. It may not use `flock`, which could block
others for any file that it can read. The two kinds of locks do not interact.
"""

import fcntl
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_LOCK = struct.Struct("hhqqi4x")  # struct flock: kind, whence, start, length (0: all), process


@contextmanager
def exclusive_files(files: Sequence[int]) -> Iterator[None]:
    """Wait until no other process writes or reads these files under a lock, and exclude all others meanwhile.

    Has no effect if the file system has no locks.
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
def try_shared_lock(fd: int) -> Iterator[None]:
    """Exclude writers. BlockingIOError if there is one now. A file system without locks is accepted."""
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
