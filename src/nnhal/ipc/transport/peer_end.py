"""Identifies the process on the other end of a socket, and detects its end, through the kernel."""

import ctypes
import os
import select
import socket
import struct

_ENDING_MS = 20
DYING_MS = 300
_SO_PEERPIDFD = 77
_libc = ctypes.PyDLL(None)  # calls keep the interpreter lock


def pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 if none is available."""
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # the reported number may be wrong
        return -1


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process and user on the other end of a socket."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def watch_peer(sock: socket.socket) -> int:
    """Return a pidfd of the process on the other end; -1 if none is available."""
    try:
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError:
        try:
            return os.pidfd_open(peer_of(sock)[0])
        except OSError:
            return -1


def ended(watch: int, longer: int = 0) -> bool:
    """Whether a process has ended, or ends within some milliseconds: its sockets are closed just before it ends.

    The call keeps the interpreter lock: beside a busy thread, each release costs 5 ms until it returns. longer:
    additional milliseconds, without the interpreter lock, because a process on a busy machine takes time to end.
    """
    if watch < 0:
        return False
    entry = ctypes.create_string_buffer(struct.pack("ihh", watch, select.POLLIN, 0))
    if _libc.poll(entry, 1, _ENDING_MS) > 0:
        return True
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(longer and poll.poll(longer))
