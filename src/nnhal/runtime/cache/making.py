"""Entries that are being written: new ones, and those that are there and that their driver has not written yet."""

import contextlib
import os
from typing import Any

from nnhal.base.descriptors import Owner
from nnhal.hal.cache.files import CacheFiles, refusal
from nnhal.runtime.cache.folder import NEW, CacheFolder, OpenFiles
from nnhal.runtime.cache.manifest import Manifest, names


class NothingSaved(Exception):
    """The driver kept nothing; the text says why."""


class NewEntry:
    """An entry that is being made: its files are open and empty, and nobody else sees them before `publish`."""

    def __init__(self, folder: "CacheFolder", key: str, count: CacheFiles) -> None:
        """`close` ends it."""
        self._folder, self._key, self._count = folder, key, count
        self._mark = Owner()
        self._generation = folder.mark(key, self._mark)
        self._names = names(key, self._generation, count)
        self.files = OpenFiles(count)
        self._published = False
        try:
            for name in self._names:
                folder.open(name, NEW, self.files.owner)
        except BaseException:
            self.close()
            raise

    @property
    def _new(self) -> str:
        return f"{self._key}.{self._generation}.new"

    def publish(self, token: bytes, facts: dict[str, Any], *, unwritten: bool = False) -> None:
        """Make the entry what was written.

        Args:
            token: What the driver knows the entry by.
            facts: As of `Manifest`.
            unwritten: Whether an entry of empty files is one, too: its driver writes them later.

        Raises:
            OSError: The entry is what it was.
            NothingSaved: Nothing was written, and why.
        """
        cache = self.files.cache(token)
        if cache.unwritten and not unwritten:
            os.pwrite(cache.files[0], bytes(1), 0)  # a full disk is a better reason, if it is the one
            raise NothingSaved("the device kept nothing of it")
        if why := next(filter(None, map(refusal, cache.files)), ""):
            raise NothingSaved(f"the device did not keep it: {why}")
        for fd in cache.files:
            os.fsync(fd)
        manifest = Manifest(self._key, self._generation, *self._count, facts)
        self._folder.write(self._new, manifest.packed())
        before = self._folder.manifest(self._key)
        if before is not None:
            os.pwrite(self._mark.fds[0], before.generation.encode(), 0)
        self._folder.rename(self._new, f"{self._key}.entry")
        self._published = True
        with contextlib.suppress(OSError):  # it is published, whatever becomes of the books
            self._folder.published(manifest, before)

    def close(self) -> None:
        """Let go of the files, and take away what was not published."""
        if not self._published:
            for name in (*self._names, self._new):
                with contextlib.suppress(OSError):
                    self._folder.remove(name)
        self._folder.unmark(self._key, self._generation)
        self._mark.close()
        self.files.close()


class UnwrittenEntry:
    """An entry that is there and that its driver has not written yet: another start of the driver writes the same files.

    So what an earlier start writes late is not lost to a later one, and a driver that never writes makes one entry.
    """

    def __init__(self, files: OpenFiles) -> None:
        """files: of the entry; `close` closes them."""
        self.files = files

    def publish(self, token: bytes, facts: dict[str, Any], *, unwritten: bool = False) -> None:
        """As of `NewEntry`; the entry stays, whatever was written."""
        cache = self.files.cache(token)
        if why := next(filter(None, map(refusal, cache.files)), ""):
            for fd in cache.files:
                os.ftruncate(fd, 0)
            raise NothingSaved(f"the device did not keep it: {why}")
        if cache.unwritten and not unwritten:
            raise NothingSaved("the device kept nothing of it")

    def close(self) -> None:
        """Let go of the files."""
        self.files.close()
