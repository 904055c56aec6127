"""Cache entries that are being written: new ones, and existing ones that their driver has not filled yet."""

import contextlib
import os
from typing import Any

from nnhal.base.descriptors import Owner
from nnhal.hal.cache.files import CacheFiles, read_refusal
from nnhal.runtime.cache.files import NEW
from nnhal.runtime.cache.folder import CacheFolder, OpenFiles
from nnhal.runtime.cache.manifest import Manifest, names


class NothingCached(Exception):
    """The driver cached nothing; the text has the reason."""


class NewEntry:
    """A new entry: its files are open and empty, and invisible to others before `publish`."""

    def __init__(self, folder: "CacheFolder", key: str, count: CacheFiles) -> None:
        """`close` ends it."""
        self._folder, self._key, self._count = folder, key, count
        self._mark = Owner()
        self._generation = folder.marks.begin(key, self._mark)
        self._names = names(key, self._generation, count)
        self.files = OpenFiles(count)
        self._published = False
        try:
            for name in self._names:
                folder.files.open(name, NEW, self.files.owner)
        except BaseException:
            self.close()
            raise

    @property
    def _new(self) -> str:
        return f"{self._key}.{self._generation}.new"

    def publish(self, token: bytes, facts: dict[str, Any], *, unwritten: bool = False) -> None:
        """Publish the entry.

        Args:
            token: Identifies the entry for the driver.
            facts: As in `Manifest`.
            unwritten: Whether an entry of empty files is valid, because its driver fills them later.

        Raises:
            OSError: The previous entry, if any, remains.
            NothingCached: The files are empty; the text has the reason.
        """
        cache = self.files.cache(token)
        if cache.unwritten and not unwritten:
            os.pwrite(cache.files[0], bytes(1), 0)  # a full disk is the better reason
            raise NothingCached("the device kept nothing of it")
        if why := next(filter(None, map(read_refusal, cache.files)), ""):
            raise NothingCached(f"the device did not keep it: {why}")
        for fd in cache.files:
            os.fsync(fd)
        manifest = Manifest(self._key, self._generation, *self._count, facts)
        self._folder.files.write(self._new, manifest.packed())
        before = self._folder.manifest(self._key)
        if before is not None:
            os.pwrite(self._mark.fds[0], before.generation.encode(), 0)
        self._folder.files.rename(self._new, f"{self._key}.entry")
        self._published = True
        with contextlib.suppress(OSError):  # it is published, even if the accounting fails
            self._folder.published(manifest, before)

    def close(self) -> None:
        """Close the files, and delete unpublished ones."""
        if not self._published:
            for name in (*self._names, self._new):
                with contextlib.suppress(OSError):
                    self._folder.files.remove(name)
        self._folder.marks.end(self._key, self._generation)
        self._mark.close()
        self.files.close()


class EntryBeingWritten:
    """An existing entry that its driver has not filled yet: another start of the driver writes the same files.

    So a later start gets what an earlier one writes late, and a driver that never writes has one entry.
    """

    def __init__(self, files: OpenFiles) -> None:
        """files: of the entry; `close` closes them."""
        self.files = files

    def publish(self, token: bytes, facts: dict[str, Any], *, unwritten: bool = False) -> None:
        """As in `NewEntry`; the entry remains in any case."""
        cache = self.files.cache(token)
        if why := next(filter(None, map(read_refusal, cache.files)), ""):
            for fd in cache.files:
                os.ftruncate(fd, 0)
            raise NothingCached(f"the device did not keep it: {why}")
        if cache.unwritten and not unwritten:
            raise NothingCached("the device kept nothing of it")

    def close(self) -> None:
        self.files.close()
