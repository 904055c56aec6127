"""Names of shared driver services: one socket each in the user's runtime directory, for that user alone.

A service listens before it confines itself, and confines itself before numpy starts threads: nothing that imports numpy is
imported here but where an error is about to be raised.
"""

import contextlib
import os
import re
import select
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nnhal.base.descriptors import Owner
from nnhal.base.private import alone, private_folder

if TYPE_CHECKING:
    from nnhal.ipc.client.session import Session

SUFFIX = ".sock"
BACKLOG = 64
LONGEST_PATH = 104  # bytes: of the 107 that the kernel takes, 3 are for the name of a socket that nobody listens on yet
CONNECT_SECONDS = 10  # until a service that accepts nobody counts as not running
_FIRST_LISTEN_FD = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def directory() -> Path:
    """Where the sockets lie: `nnhal` in XDG_RUNTIME_DIR, or in a directory of the user's own where that is not set."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "nnhal" if base else Path(os.environ.get("TMPDIR", "/tmp")) / f"nnhal-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except OSError as error:
        raise _unavailable(
            f"directory of services {path}: {error.strerror}; set XDG_RUNTIME_DIR to a directory that can be written"
        ) from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise _unavailable(f"directory of services {path}: must be a directory of this user alone (mode 0700)")
    return path


def path_of(name: str) -> Path:
    """The socket of a service; InvalidArgument for what is no name, DeviceUnavailable where its path would be too long."""
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
    """InvalidArgument for what is no name of a service."""
    if not _NAME.fullmatch(name):
        raise _no_name(f"service name is {name!r}, must be up to 64 letters, digits, dots, dashes, underscores")


def listen(name: str) -> socket.socket:
    """The listening socket of a service: the one that systemd hands over, or a new one under the name.

    A socket that a dead service left behind is swept; DeviceUnavailable where a living one has the name.
    """
    if handed_over():
        return socket.socket(fileno=_FIRST_LISTEN_FD)
    path = path_of(name)
    if path.exists() and not sweep(path):
        raise _unavailable(f"service {name}: one of this name is running; stop it, or choose another with --name")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unready = path.with_suffix(f".{os.getpid()}")  # a socket that nobody listens on yet would be swept
    old = os.umask(0o177)
    try:
        listener.bind(str(unready))
        listener.listen(BACKLOG)
        os.link(unready, path)
    except FileExistsError:
        listener.close()
        raise _unavailable(f"service {name}: one of this name is running; choose another with --name") from None
    except OSError as error:
        listener.close()
        raise _unavailable(f"service {name}: {path}: {error.strerror or error}") from None
    finally:
        os.umask(old)
        unready.unlink(missing_ok=True)
    return listener


def handed_over() -> bool:
    """Whether systemd hands a listening socket over to this process. It is systemd's to remove."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and int(os.environ.get("LISTEN_FDS", "0")) >= 1


def address(listener: socket.socket, name: str) -> str:
    """Where clients reach what `listen` returned: systemd's own path, or the one of the name."""
    bound = str(listener.getsockname())
    return bound if os.path.exists(bound) else str(path_of(name))


def removed_at_end(name: str) -> None:
    """Have the socket of a service removed when this process has ended, in whichever way.

    This process is going to be confined and removes nothing then, so a small one waits for its end. Where that cannot be
    started, the next look for services removes the socket.
    """
    path, watch = path_of(name), Owner()
    try:
        watch.fds.extend(map(os.pidfd_open, (os.getpid(),)))
        if os.fork() == 0:
            _await_end(watch.fds[0], path)
    except OSError as error:
        from nnhal.base.log import logger

        logger("manager").info("service %s: its socket will stay: %s", name, error.strerror)
    finally:
        watch.close()


def _await_end(watch: int, path: Path) -> None:
    """In the small process: it holds nothing of the service's, and no signal to both of them ends it early."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.closerange(0, watch)
        os.closerange(watch + 1, os.sysconf("SC_OPEN_MAX"))
        end = select.poll()
        end.register(watch, select.POLLIN)
        end.poll()  # a process has closed its files when it has ended
        sweep(path)
    finally:
        os._exit(0)


def sweep(path: Path) -> bool:
    """Remove a socket that nobody listens on; whether it is gone. One at a time: the name may be another's by then."""
    with contextlib.suppress(OSError), _alone(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)  # who is behind with its clients is there all the same
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
        with alone(private_folder(directory(), folder), ".lock"):
            yield
    finally:
        folder.close()


def running() -> list[str]:
    """Names of the services that somebody listens on; what dead ones left behind is swept. None where there is no place."""
    from nnhal.base.errors import DeviceUnavailable
    from nnhal.base.log import logger

    try:
        there = directory()
    except DeviceUnavailable as error:
        logger("manager").info("none: %s", error)
        return []
    return sorted(p.name.removesuffix(SUFFIX) for p in there.glob("*" + SUFFIX) if not (p.is_dir() or sweep(p)))


def connect(name: str, seconds: float = CONNECT_SECONDS) -> "Session":
    """Connect to a running service of this user. DeviceUnavailable where there is none, or it does not answer in time.

    ResourceExhausted where this process has no descriptor for it.
    """
    from nnhal.base.answers import raise_own
    from nnhal.base.errors import ResourceExhausted
    from nnhal.ipc import transport
    from nnhal.ipc.client.session import Session

    transport.require()
    path = path_of(name)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise ResourceExhausted(f"service {name}: cannot be connected to: {error.strerror}") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(seconds * 1e6), 10**6)))
    try:
        sock.connect(str(path))
        uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (os.getuid(), 0):
            sock.close()
            raise _unavailable(f"service {name}: runs as user {uid}, must be this user's")
    except OSError as error:
        sock.close()
        raise_own(error)
        there = ", ".join(running()) or "none is running"
        raise _unavailable(f"service {name}: {error.strerror}; running: {there}") from None
    return Session(sock, f"service {name}", greeting=int(seconds * 1e9))


def _unavailable(text: str) -> Exception:
    from nnhal.base.errors import DeviceUnavailable

    return DeviceUnavailable(text)


def _no_name(text: str) -> Exception:
    from nnhal.base.errors import InvalidArgument

    return InvalidArgument(text)
