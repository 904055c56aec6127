"""Descriptors that a process inherits: the terminal, and those that were left open."""

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

_NAMES = {1: "output", 2: "errors"}


def open_standard_descriptors() -> None:
    """Open the closed ones of descriptors 0 to 2, so that no socket gets a number that others write to."""
    while (fd := os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def close_inherited(keep: Iterable[int]) -> None:
    """Close every inherited descriptor except 0 to 2 and these. Python's descriptors are not inheritable."""
    kept = {0, 1, 2, *keep}
    with suppress(FileNotFoundError):  # /proc is not mounted
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in kept:
                with suppress(OSError):  # the descriptor of the listing
                    if os.get_inheritable(fd):
                        os.close(fd)


def redirect() -> str:
    """Make the standard descriptors unreadable: input is /dev/null, a terminal is reopened for writing only."""
    _replace(0, "/dev/null", os.O_RDONLY)
    left = [_NAMES[fd] for fd in _NAMES if not _write_only(fd)]
    if left:
        raise OSError(0, f"{' and '.join(left)} can be read, and cannot be reopened for writing only")
    return "input is /dev/null, output and errors for writing only"


def _write_only(fd: int) -> bool:
    """Make a descriptor write-only if possible; return whether it is."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    mode = os.fstat(fd).st_mode
    if flags & os.O_ACCMODE == os.O_WRONLY or stat.S_ISSOCK(mode):  # the socket of a journal has nothing to read
        return True
    if flags & os.O_ACCMODE == os.O_RDONLY:
        _replace(fd, "/dev/null", os.O_WRONLY)
        return True
    append = os.O_APPEND if stat.S_ISREG(mode) else flags & os.O_APPEND
    try:
        _replace(fd, f"/proc/self/fd/{fd}", os.O_WRONLY | append)
    except OSError:
        return False
    return True


def _replace(fd: int, path: str, flags: int) -> None:
    opened = os.open(path, flags | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.dup2(opened, fd)
    finally:
        if opened != fd:
            os.close(opened)
