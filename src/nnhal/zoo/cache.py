"""The folder that models are kept in: the user's own. Files in it are known by their digests; no link in it is followed."""

import hashlib
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from nnhal.base.private import alone

OTHERS = stat.S_IWGRP | stat.S_IWOTH
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Foreign(OSError):
    """A folder or lock that is not the user's own, or no folder or file at all."""


def private(root: Path, *below: str) -> Path:
    """A folder (and those below it) of the user's own, made with mode 0700 where it is missing. Raises OSError.

    A link to it that is the user's own is followed, another's is not.
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
                raise Foreign(f"{folder} belongs to user {found.st_uid}, must be yours")
            if found.st_mode & OTHERS:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
    return root.joinpath(*below)


def ordinary(path: Path) -> BufferedReader:
    """A file open for reading that is neither a link nor a pipe or device. Raises OSError."""
    file = open(path, "rb", opener=lambda name, _: os.open(name, READ))  # noqa: SIM115 (given away)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Foreign(f"{path} is no ordinary file")
    return file


def opened(path: Path, sha256: str) -> BufferedReader:
    """The file, open for reading, whose bytes have this digest. Raises OSError where there is none.

    Whoever wants to be sure reads this file, not the path again.
    """
    file = ordinary(path)
    try:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise Foreign(f"{path} has another digest than {sha256}")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def sound(path: Path, sha256: str) -> bool:
    """Whether the file is there, and the one with this digest."""
    try:
        opened(path, sha256).close()
    except OSError:
        return False
    return True


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """One holder of a name at a time in a private folder, over threads and processes."""
    fd = os.open(folder, READ | os.O_DIRECTORY)
    try:
        with alone(fd, f".{name}.lock", wait=math.inf):
            yield
    finally:
        os.close(fd)


def write(target: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all."""
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
