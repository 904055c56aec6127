"""Private folders and files, which other users can neither read nor replace."""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from nnhal.base.descriptors import Owner
from nnhal.base.threads import held_lock

LONGEST_WAIT, PAUSE = 5.0, 0.002  # seconds for a lock, whose owner may have been stopped
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivate(OSError):
    """A place of another user, accessible to others, or of the wrong kind; `strerror` has the rule."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(0, why, str(path))


def absolute_path(path: str) -> Path:
    """Return the absolute path, with ~ expanded; OSError if the working or home directory is unknown."""
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise NotPrivate(path, "is below a home folder that is not known")
    return Path(found).absolute()


def private_folder(path: Path, into: Owner | None = None) -> int:
    """Open a folder that only this user may access; create it with mode 0700 if it is missing.

    into: owns the descriptor from the moment it is open, also after an error. Raises NotPrivate for a link, another
    user's folder, or one that others may access; OSError if it cannot be created. A process with write access above it
    can only replace it by another folder of this user.
    """
    owner = Owner() if into is None else into
    path.parent.mkdir(parents=True, exist_ok=True)
    made = False
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        made = True
    found = Owner()  # names the folder and needs no rights: a umask may have removed the user's
    try:
        found.fds.extend(map(os.open, (path,), (os.O_PATH | _FOLDER,)))
        facts = os.fstat(found.fds[0])
        _require_private(path, facts)
        if made and facts.st_mode & 0o700 != 0o700:
            # By descriptor: the path may be another folder by now, and fchmod refuses O_PATH.
            os.chmod(f"/proc/self/fd/{found.fds[0]}", 0o700)
        owner.fds.extend(map(partial(os.open, dir_fd=found.fds[0]), (".",), (os.O_RDONLY | _FOLDER,)))
    except NotADirectoryError:
        raise NotPrivate(path, "is a link or no folder, must be a folder") from None
    finally:
        found.close()
    fd = owner.fds[-1]
    return fd if into is not None else owner.fds.pop()


def private_file(folder: int, name: str, flags: int, into: Owner | None = None) -> int:
    """Open a file in a private folder; create it with mode 0600 if the flags have O_CREAT.

    into: owns the descriptor from the moment it is open, also after an error. Raises NotPrivate for a link, a file with
    several names, another user's file, or one that others may access.
    """
    owner = Owner() if into is None else into
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    if flags & os.O_CREAT and not flags & os.O_EXCL:
        with suppress(FileExistsError):
            return private_file(folder, name, flags | os.O_EXCL, into)
        flags &= ~os.O_CREAT
    owner.fds.extend(map(partial(os.open, dir_fd=folder), (name,), (flags,), (0o600,)))
    fd = owner.fds[-1]
    if flags & os.O_EXCL:
        os.fchmod(fd, 0o600)  # regardless of the umask
    require_private_file(name, os.fstat(fd))
    return fd if into is not None else owner.fds.pop()


def require_private_file(name: str, facts: os.stat_result) -> None:
    """Raise NotPrivate as `private_file` does, from a file's status without opening it."""
    if not stat.S_ISREG(facts.st_mode):
        raise NotPrivate(name, "is not a regular file, must be one")
    if facts.st_nlink > 1:
        raise NotPrivate(name, f"has {facts.st_nlink} names, must have one")
    _require_private(name, facts)


def replace_file(folder: int, name: str, data: bytes) -> int:
    """Create or replace a file with these bytes, and return its descriptor, positioned at its end.

    OSError if they cannot all be written; an existing file is then unchanged.
    """
    new = f"{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    owner = Owner()
    private_file(folder, new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, owner)
    try:
        append(owner.fds[0], data)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
    return owner.fds.pop()


def append(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Append bytes to a file in one call. OSError if not all of them are written."""
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# POSIX locks belong to a process: a forked child inherits none. Closing any descriptor of the file releases them, and
# all threads share them. So each lock file is open once, by the thread that holds its mutex.
_mutexes: dict[tuple[int, int, str], threading.Lock] = {}
os.register_at_fork(after_in_child=_mutexes.clear)


@contextmanager
def file_lock(folder: int, name: str = "lock", *, wait: float | None = None) -> Iterator[None]:
    """Hold the lock file of that name in a private folder, against other threads and processes.

    wait: seconds, LONGEST_WAIT by default; OSError if the lock stays taken. On a file system without locks, it only
    excludes the threads of this process.
    """
    wait = LONGEST_WAIT if wait is None else wait
    until = time.monotonic() + wait
    facts, owner = os.fstat(folder), Owner()
    mutex = _mutexes.setdefault((facts.st_dev, facts.st_ino, name), threading.Lock())
    with held_lock(mutex, wait) as mine:
        if not mine:
            raise _held("thread", wait)
        try:
            fd = private_file(folder, name, os.O_RDWR | os.O_CREAT, owner)
            while not _locked(fd):
                if time.monotonic() > until:
                    raise _held("process", wait)
                time.sleep(PAUSE)  # these locks have no wait with a limit
            yield
        finally:
            owner.close()


def _locked(fd: int) -> bool:
    try:
        return try_lock(fd)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return True


def _held(by: str, wait: float) -> OSError:
    return OSError(errno.EAGAIN, f"was locked by another {by} for {wait:g} s")


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock a file for this process until it closes a descriptor of the file; return whether no other process holds it.

    OSError if the file system has no locks.
    """
    try:
        fcntl.lockf(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both
        return False
    return True


def _require_private(path: str | Path, facts: os.stat_result) -> None:
    if facts.st_uid != os.getuid():
        raise NotPrivate(path, f"belongs to user {facts.st_uid}, must be this user's")
    if facts.st_mode & 0o077:
        raise NotPrivate(path, f"has mode {facts.st_mode & 0o777:04o}, must be this user's alone (chmod go-rwx)")
