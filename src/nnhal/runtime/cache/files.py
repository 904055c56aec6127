"""The files of a private folder, by their names in it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from nnhal.base.descriptors import Owner
from nnhal.base.private import private_file, private_folder
from nnhal.hal.cache.files import write

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class FolderFiles:
    """Opens, writes and deletes files of one folder, which only this user can access.

    It keeps the folder open: its files stay the same if another folder gets its path.
    """

    def __init__(self, path: Path) -> None:
        """path: created if it is missing."""
        self.path = path
        self._owner = Owner()
        self._fd = private_folder(path, self._owner)

    def names(self) -> list[str]:
        """List the files."""
        return os.listdir(self._fd)

    def open(self, name: str, flags: int, into: Owner) -> int:
        """Open a file in it; the owner has the descriptor from the moment it is open."""
        return private_file(self._fd, name, flags, into)

    def write(self, name: str, data: bytes) -> None:
        """Write a file in it, and wait until it is on the disk."""
        new = Owner()
        try:
            self.open(name, NEW, new)
            write(new.fds[0], data)
            os.fsync(new.fds[0])
        finally:
            new.close()

    def remove(self, name: str) -> None:
        """Delete a file, or an empty folder, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, atomically and durably."""
        try:
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except IsADirectoryError:
            self.remove(new)
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)

    def clear(self, names: Iterable[str]) -> OSError | None:
        """Delete files if possible; a failure does not stop the others. Return the first failure."""
        failed = None
        for name in names:
            try:
                self.remove(name)
            except OSError as error:
                failed = failed or error
        return failed

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        except OSError:
            return None
