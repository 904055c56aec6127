"""Who is on the other end of a socket, and whether that process has ended, as the kernel tells."""

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
    """A descriptor that becomes readable when the process ends; -1 where there is none to be had."""
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # who told the number may lie
        return -1


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Process and user on the other end of a socket."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def watch_peer(sock: socket.socket) -> int:
    """A pidfd of the process on the other end, -1 where there is none to be had."""
    try:
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError:
        try:
            return os.pidfd_open(peer_of(sock)[0])
        except OSError:
            return -1


def ended(watch: int, longer: int = 0) -> bool:
    """Whether a process has ended, or does within some milliseconds: its sockets are closed just before it ends.

    The interpreter is kept meanwhile: beside a busy thread, each time that it is given up costs 5 ms until it comes back.
    longer: milliseconds more, with the interpreter given up: on a machine that is busy, a process takes its time to end.
    """
    if watch < 0:
        return False
    entry = ctypes.create_string_buffer(struct.pack("ihh", watch, select.POLLIN, 0))
    if _libc.poll(entry, 1, _ENDING_MS) > 0:
        return True
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(longer and poll.poll(longer))
