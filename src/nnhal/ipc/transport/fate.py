"""The process on the other end of a socket, and whether it has ended, by the kernel."""

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
    """Return a descriptor that becomes readable when the process ends; -1 if that is impossible."""
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # the number may be invalid
        return -1


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process and user on the other end of a socket."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def watch_peer(sock: socket.socket) -> int:
    """Return a pidfd of the process on the other end; -1 if that is impossible."""
    try:
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError:
        try:
            return os.pidfd_open(peer_of(sock)[0])
        except OSError:
            return -1


def ended(watch: int, longer: int = 0) -> bool:
    """Whether a process has ended, or does within some milliseconds: its sockets close just before it ends.

    It keeps the interpreter: beside a busy thread, each release costs 5 ms. longer: further milliseconds, without the
    interpreter, because a process may end slowly on a busy machine.
    """
    if watch < 0:
        return False
    entry = ctypes.create_string_buffer(struct.pack("ihh", watch, select.POLLIN, 0))
    if _libc.poll(entry, 1, _ENDING_MS) > 0:
        return True
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(longer and poll.poll(longer))
