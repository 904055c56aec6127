"""Names of shared driver services: one socket each, in the user's runtime directory, for that user only.

A service listens before it enters the sandbox, and enters it before numpy starts threads. So this module imports
modules that import numpy only where it is about to raise an error.
"""

import contextlib
import os
import re
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nnhal.base.descriptors import Owner
from nnhal.base.private import file_lock, private_folder

if TYPE_CHECKING:
    from nnhal.ipc.client.session import Session

SUFFIX = ".sock"
BACKLOG = 64
LONGEST_PATH = 104  # bytes: the kernel allows 107; 3 are for the name of a socket that does not listen yet
CONNECT_SECONDS = 10  # after this time, a service that accepts no connection counts as not running
SWEEP_PAUSES = (0.01, 0.1, 1.0, 10.0)  # seconds after each attempt to remove the socket of a service that has ended
_FIRST_LISTEN_FD = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def directory() -> Path:
    """Return the directory of the sockets: `nnhal` in XDG_RUNTIME_DIR, or a directory of the user without that."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "nnhal" if base else Path(os.environ.get("TMPDIR", "/tmp")) / f"nnhal-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except OSError as error:
        raise _unavailable(
            f"directory of services {path}: {error.strerror}; set XDG_RUNTIME_DIR to a writable directory"
        ) from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise _unavailable(
            f"directory of services {path}: must be a directory that belongs to this user, with mode 0700"
        )
    return path


def path_of(name: str) -> Path:
    """Return the socket of a service.

    Raises InvalidArgument for an invalid name, DeviceUnavailable if the path is too long.
    """
    check(name)
    path = directory() / (name + SUFFIX)
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise _unavailable(
            f"service {name}: the path of its socket {path} has {length} bytes, must be at most {LONGEST_PATH}; "
            "set XDG_RUNTIME_DIR to a shorter path"
        )
    return path


def check(name: str) -> None:
    """Raise InvalidArgument for an invalid name of a service."""
    if not _NAME.fullmatch(name):
        raise _no_name(f"service name is {name!r}, must be up to 64 letters, digits, dots, dashes, underscores")


def listen(name: str) -> socket.socket:
    """Return the listening socket of a service: the one from systemd, or a new one under the name.

    Removes a socket that a dead service left behind. Raises DeviceUnavailable if a live service has the name.
    """
    if has_passed_socket():
        return socket.socket(fileno=_FIRST_LISTEN_FD)
    path = path_of(name)
    if path.exists() and not sweep(path):
        raise _unavailable(f"service {name}: is already running; stop it, or choose another name with --name")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unready = path.with_suffix(f".{os.getpid()}")  # another process would sweep a socket that does not listen yet
    old = os.umask(0o177)
    try:
        listener.bind(str(unready))
        listener.listen(BACKLOG)
        os.link(unready, path)
    except FileExistsError:
        listener.close()
        raise _unavailable(f"service {name}: is already running; choose another name with --name") from None
    except OSError as error:
        listener.close()
        raise _unavailable(f"service {name}: {path}: {error.strerror or error}") from None
    finally:
        os.umask(old)
        unready.unlink(missing_ok=True)
    return listener


def has_passed_socket() -> bool:
    """Whether systemd passes a listening socket to this process. systemd removes it."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and int(os.environ.get("LISTEN_FDS", "0")) >= 1


def address(listener: socket.socket, name: str) -> str:
    """Return the path where clients reach the result of `listen`: systemd's, or the one of the name."""
    bound = str(listener.getsockname())
    return bound if os.path.exists(bound) else str(path_of(name))


def removed_at_end(name: str) -> None:
    """Have the socket of a service removed when this process ends, in whichever way.

    This process will be sandboxed and cannot remove it then, so a small child waits for its end. If the child cannot be
    started, the next search for services removes the socket.
    """
    path, watch = path_of(name), Owner()
    try:
        watch.fds.extend(map(os.pidfd_open, (os.getpid(),)))
        if os.fork() == 0:
            _await_end(watch.fds[0], path)
    except OSError as error:
        from nnhal.base.log import logger

        logger("manager").info("service %s: its socket will not be removed: %s", name, error.strerror)
    finally:
        watch.close()


def _await_end(watch: int, path: Path) -> None:
    """Run in the child: it holds nothing of the service, and blocks signals that are sent to both."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.closerange(0, watch)
        os.closerange(watch + 1, os.sysconf("SC_OPEN_MAX"))
        end = select.poll()
        end.register(watch, select.POLLIN)
        end.poll()
        sweep_ended(path)
    finally:
        os._exit(0)


def sweep_ended(path: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Remove the socket of a service that has ended.

    Another process may hold the lock for long, and the kernel may close the socket late. So it is tried again, but not
    for ever: a new service may have the name. pause: waits for so many seconds.
    """
    for seconds in SWEEP_PAUSES:
        if sweep(path):
            return
        pause(seconds)


def sweep(path: Path) -> bool:
    """Remove a socket that no process listens on; return whether it is gone.

    Only one process sweeps at a time: meanwhile, the name may belong to a new service.
    """
    if not os.path.lexists(path):  # nor is its folder made again, which may have been removed
        return True
    with contextlib.suppress(OSError), _alone(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)  # a service that is slow to accept clients is still alive
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            _remove(path)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unavailable(f"socket {path}: {error.strerror}; remove it") from None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    folder = Owner()
    try:
        with file_lock(private_folder(directory(), folder), ".lock"):
            yield
    finally:
        folder.close()


def running() -> list[str]:
    """Return the names of running services, and remove what dead ones left behind. Empty if there is no directory."""
    from nnhal.base.errors import DeviceUnavailable
    from nnhal.base.log import logger

    try:
        there = directory()
    except DeviceUnavailable as error:
        logger("manager").info("none: %s", error)
        return []
    return sorted(p.name.removesuffix(SUFFIX) for p in there.glob("*" + SUFFIX) if not (p.is_dir() or sweep(p)))


def connect(name: str, seconds: float = CONNECT_SECONDS) -> "Session":
    """Connect to a running service of this user.

    Raises DeviceUnavailable if it does not run or answer in time, ResourceExhausted if this process has no descriptor
    left.
    """
    from nnhal.base.answers import raise_application_error
    from nnhal.base.errors import ResourceExhausted
    from nnhal.ipc import transport
    from nnhal.ipc.client.session import Session

    transport.require()
    path = path_of(name)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise ResourceExhausted(f"service {name}: cannot connect: {error.strerror}") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(seconds * 1e6), 10**6)))
    try:
        sock.connect(str(path))
        uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (os.getuid(), 0):
            sock.close()
            raise _unavailable(f"service {name}: runs as user {uid}, must run as this user")
    except OSError as error:
        sock.close()
        raise_application_error(error)
        there = ", ".join(running()) or "none is running"
        raise _unavailable(f"service {name}: {error.strerror}; running: {there}") from None
    return Session(sock, f"service {name}", greeting=int(seconds * 1e9))


def _unavailable(text: str) -> Exception:
    from nnhal.base.errors import DeviceUnavailable

    return DeviceUnavailable(text)


def _no_name(text: str) -> Exception:
    from nnhal.base.errors import InvalidArgument

    return InvalidArgument(text)
