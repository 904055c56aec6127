"""The accounts of a cache folder: the uses of its entries, and the bytes that they may have."""

import os
import struct
from collections.abc import Iterable

from nnhal.base.descriptors import Owner
from nnhal.base.memory import first_bytes
from nnhal.hal.cache.files import CacheFiles
from nnhal.runtime.cache.files import FolderFiles
from nnhal.runtime.cache.manifest import GENERATION, Manifest, names

BLOCK, RECENT = 4096, 16  # bytes; entries whose sizes are read again
_NUMBER, _USES = struct.Struct("<Q"), struct.Struct("<QQQ")
_RECENT = struct.Struct("<64s16sBB6xQ")  # key, generation, number of files, blocks


class UseLog:
    """The uses of the entries, ordered by number, because clocks may jump."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files

    def note(self, key: str, uses: int, refused: int = 0) -> int:
        """Record a use: how many there were, and how many starts went without the entry. Return the use's number."""
        now, own = 0, Owner()
        try:
            fd = self._files.open("uses", os.O_RDWR | os.O_CREAT, own)
            now = (_NUMBER.unpack(first_bytes(fd, 8).ljust(8, b"\0"))[0] + 1) % (1 << 64)
            os.pwrite(fd, _NUMBER.pack(now), 0)
            fd = self._files.open(f"{key}.used", os.O_RDWR | os.O_CREAT, own)
            os.pwrite(fd, _USES.pack(now, min(uses, (1 << 64) - 1), refused), 0)
        finally:
            own.close()
        return now

    def of(self, key: str) -> tuple[int, int, int]:
        """Return the number of the last use, the number of uses, and the starts without the entry."""
        own = Owner()
        try:
            fd = self._files.open(f"{key}.used", os.O_RDONLY, own)
            last, uses, refused = _USES.unpack(first_bytes(fd, _USES.size).ljust(_USES.size, b"\0"))
            return last, uses, refused
        except OSError:
            return 0, 0, 0
        finally:
            own.close()


class WrittenBytes:
    """The bytes that all entries may have: a sum of what was written since the last count, never too small.

    `written` has a byte for each block, so that processes can add to it without a lock. A driver may write to published
    files: `recent` has the last entries, whose sizes are read again.
    """

    def __init__(self, files: FolderFiles) -> None:
        self._files = files

    def add(self, manifest: Manifest | None = None, use: int = 0) -> int | None:
        """Add written bytes; return the bytes that all entries may have now, None if they were never counted.

        manifest: of a new entry, with the number of its use. Without one, the result is 0 if nothing has grown.
        """
        own = Owner()
        try:
            recent = self._files.open("recent", os.O_RDWR | os.O_CREAT, own)
            blocks = sum(self._grown(recent, place * _RECENT.size) for place in range(RECENT))
            if manifest is not None:
                new = self._blocks(manifest.files)
                facts = manifest.key.encode(), manifest.generation.encode(), manifest.model_files, manifest.data_files
                os.pwrite(recent, _RECENT.pack(*facts, new), use % RECENT * _RECENT.size)
                blocks += new
            if not blocks:
                return 0
            log = self._files.open("written", os.O_RDWR | os.O_APPEND, own)
            os.write(log, bytes(blocks))
            return os.fstat(log).st_size * BLOCK
        except FileNotFoundError:  # never counted
            return None
        finally:
            own.close()

    def _grown(self, recent: int, place: int) -> int:
        """Return the blocks by which the files of one of the last entries have grown."""
        row = os.pread(recent, _RECENT.size, place).ljust(_RECENT.size, b"\0")
        *facts, model_files, data_files, counted = _RECENT.unpack(row)
        key, generation = (fact.decode("latin1") for fact in facts)
        if not GENERATION.fullmatch(f"{key}.{generation}"):
            return 0
        more: int = self._blocks(names(key, generation, CacheFiles(model_files, data_files))) - counted
        if more > 0:
            os.pwrite(recent, _RECENT.pack(*facts, model_files, data_files, counted + more), place)
        return max(more, 0)

    def _blocks(self, files: Iterable[str]) -> int:
        """Return the blocks of an entry's files and its description."""
        return 1 + sum(-(-(self._files.size(name) or 0) // BLOCK) for name in files)

    def count(self, total: int) -> None:
        """Begin a new sum after a count of all entries."""
        own = Owner()
        try:
            log = self._files.open("written", os.O_RDWR | os.O_CREAT, own)
            os.ftruncate(log, -(-total // BLOCK))
        finally:
            own.close()
