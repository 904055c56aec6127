"""Folders and files of one user alone, for what others must neither read nor exchange."""

import fcntl
import os
import stat
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from nnhal.base.descriptors import Owner

LONGEST_WAIT, PAUSE = 5.0, 0.002  # seconds for a lock, whose owner may have been stopped


class NotPrivate(OSError):
    """A place that is not this user's alone, or of the wrong kind; `strerror` says what it must be."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(0, why, str(path))


def absolute(path: str) -> Path:
    """The path from here, with ~ as the user's home. OSError where one of the two is not known."""
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise NotPrivate(path, "is below a home folder that is not known")
    return Path(found).absolute()


def private_folder(path: Path, into: Owner | None = None) -> int:
    """A descriptor of a folder that only this user may write and read, made where it is missing, mode 0700.

    into: has it from the moment it is open, also where it is refused.
    NotPrivate for a link, another's folder, or one that others may use; OSError where it cannot be made. Whoever can write
    above it can put another folder of this user's there, and no more.
    """
    owner = Owner() if into is None else into
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        owner.fds.extend(map(os.open, (path,), (flags,)))
    except NotADirectoryError:
        raise NotPrivate(path, "is a link or no folder, must be a folder") from None
    fd = owner.fds[-1]
    _require_private(path, os.fstat(fd))
    return fd if into is not None else owner.fds.pop()


def private_file(folder: int, name: str, flags: int, into: Owner | None = None) -> int:
    """A descriptor of a file in a private folder, made with mode 0600 where the flags say O_CREAT.

    into: has it from the moment it is open, also where it is refused.
    NotPrivate for a link, one that has other names, another's file, or one that others may use.
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
        os.fchmod(fd, 0o600)  # whatever the umask
    require_private_file(name, os.fstat(fd))
    return fd if into is not None else owner.fds.pop()


def require_private_file(name: str, facts: os.stat_result) -> None:
    """NotPrivate as of `private_file`, by what is known of a file without opening it."""
    if not stat.S_ISREG(facts.st_mode):
        raise NotPrivate(name, "is no regular file, must be one")
    if facts.st_nlink > 1:
        raise NotPrivate(name, f"has {facts.st_nlink} names, must have one")
    _require_private(name, facts)


def made_anew(folder: int, name: str, data: bytes) -> int:
    """The descriptor of a new file with these bytes, to write at its end, in the place of any that has the name."""
    new = f"{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    owner = Owner()
    private_file(folder, new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, owner)
    os.write(owner.fds[0], data)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    return owner.fds.pop()


def locked(fd: int) -> None:
    """Lock a file or folder for this descriptor alone, until it is closed. OSError where somebody holds it for long."""
    until = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise OSError(error.errno, f"was locked by another process for {LONGEST_WAIT:g} s") from None
        time.sleep(PAUSE)


def _require_private(path: str | Path, facts: os.stat_result) -> None:
    if facts.st_uid != os.getuid():
        raise NotPrivate(path, f"belongs to user {facts.st_uid}, must be this user's")
    if facts.st_mode & 0o077:
        raise NotPrivate(path, f"has mode {facts.st_mode & 0o777:04o}, must be this user's alone (chmod go-rwx)")
