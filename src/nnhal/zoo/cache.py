"""The folder that caches models.

It belongs to the user, its files are identified by digests, and links in it are not followed.
"""

import hashlib
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from nnhal.base.private import file_lock

OTHERS = stat.S_IWGRP | stat.S_IWOTH
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ForeignFile(OSError):
    """The folder or lock belongs to another user, or has another type."""


def private(root: Path, *below: str) -> Path:
    """Return a private folder (and those below it), made with mode 0700 if missing. Raises OSError.

    A link to it is followed only if it belongs to the user.
    """
    if root.is_symlink() and root.lstat().st_uid == os.geteuid():
        root = Path(os.path.realpath(root))
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, *(root.joinpath(*below[: n + 1]) for n in range(len(below)))):
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(folder, READ | os.O_DIRECTORY)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise ForeignFile(f"{folder} belongs to user {found.st_uid}, must be yours")
            if found.st_mode & OTHERS:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
    return root.joinpath(*below)


def ordinary(path: Path) -> BufferedReader:
    """Open a file for reading that is neither a link nor a pipe or device. Raises OSError."""
    file = open(path, "rb", opener=lambda name, _: os.open(name, READ))  # noqa: SIM115 (given away)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ForeignFile(f"{path} is not a regular file")
    return file


def opened(path: Path, sha256: str) -> BufferedReader:
    """Open the file whose bytes have this digest for reading. Raises OSError if there is none.

    Read from the returned file, not from the path again: another process may replace it.
    """
    file = ordinary(path)
    try:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ForeignFile(f"the digest of {path} is not {sha256}")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def sound(path: Path, sha256: str) -> bool:
    """Whether the file exists and has this digest."""
    try:
        opened(path, sha256).close()
    except OSError:
        return False
    return True


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold a name in a private folder, exclusively among threads and processes."""
    fd = os.open(folder, READ | os.O_DIRECTORY)
    try:
        with file_lock(fd, f".{name}.lock", wait=math.inf):
            yield
    finally:
        os.close(fd)


def write(target: Path, data: bytes) -> None:
    """Write a file atomically: others see it whole or not at all."""
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
