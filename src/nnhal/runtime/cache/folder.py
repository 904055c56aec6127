"""A cache folder: entries of several files each, published atomically, within a quota, for any number of processes.

    KEY.entry                   the description, a `Manifest`, with the generation whose files belong to the entry
    KEY.GENERATION.m0, .d0 …    the model and data files
    KEY.used                    number of the last use, number of uses, and starts without the entry: 8 bytes each
    uses                        number of the last use of any entry, 8 bytes
    making/KEY.GENERATION       a mark, locked by the process that writes this generation; its content is the one before
    written, recent             the bytes published since the last count: see `CacheFolder._written`
    digests                     see `runtime.cache.tokens`

An entry appears when its manifest is renamed to its name; before, there is the old entry or none. Readers hold
descriptors, and all changes are atomic, so no process locks the folder or waits. The files of a process that died have
a mark without a lock; the next process that publishes removes them.

Publishing takes the same time for any size of folder: it adds the entry's size to a sum, and counts the entries only
when the sum exceeds the quota. Uses are ordered by number, not by time, because clocks may jump.
"""

import contextlib
import errno
import os
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from nnhal.base.descriptors import Owner
from nnhal.base.memory import first_bytes
from nnhal.base.private import private_file, private_folder, try_lock
from nnhal.hal.cache.files import MOST_FILES, Cache, CacheFiles, write
from nnhal.runtime.cache.manifest import EntryBlocked, Listed, Manifest, NoEntry, names

MANIFEST_MOST = 1 << 20  # bytes
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
MAKING = "making"
BLOCK, RECENT = 4096, 16  # bytes; entries whose sizes are read again
_NUMBER, _USES = struct.Struct("<Q"), struct.Struct("<QQQ")
_RECENT = struct.Struct("<64s16sBB6xQ")  # key, generation, number of files, blocks
_ENTRY = re.compile(r"([0-9a-f]{64})\.entry")
_FILE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})\.(making|new|[md][0-9]{1,2})")
_MARK = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})")
_KINDS = "new", *(f"{kind}{n}" for kind in "md" for n in range(MOST_FILES))

_made_here: set[str] = set()  # marks of this process: reading one would release its lock
os.register_at_fork(after_in_child=_made_here.clear)


class OpenFiles:
    """Open files of one entry, until this object is closed or dropped. deaths: as in `Manifest`.

    owner: of the descriptors. writable: whether they are open for writing.
    """

    def __init__(self, count: CacheFiles, deaths: int = 0) -> None:
        self.owner, self._count, self.deaths, self.writable = Owner(), count, deaths, True

    def cache(self, token: bytes) -> Cache:
        """Return the files as a device receives them."""
        fds = tuple(self.owner.fds)
        return Cache(token, fds[: self._count.model], fds[self._count.model :], self.owner)

    def close(self) -> None:
        self.owner.close()


class CacheFolder:
    """An open cache folder. Every method raises OSError (or NotPrivate) if it fails."""

    def __init__(self, path: Path, most: int) -> None:
        """path: created if it is missing, accessible to this user only. most: bytes of all entries together."""
        self.path, self.most = path, most
        self._owner = Owner()
        self._fd = private_folder(path, self._owner)

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

    # ------------------------------------------------------------------------------------------------------ entries

    def entry(self, key: str, count: CacheFiles, *, used: bool = True) -> OpenFiles:
        """Return the files of an entry. Missing has the reason if it cannot be used. used: whether this counts as a use.

        They are open for writing if the disk and the rights permit.
        """
        for _ in range(3):  # it may be replaced between the two
            manifest = self._read(key)
            if (manifest.model_files, manifest.data_files) != count:
                had = f"{manifest.model_files} model and {manifest.data_files} data files"
                raise NoEntry(f"the entry has {had}, the device has {count.model} and {count.data} now")
            if used and manifest.pause:
                self._refuse_for_now(manifest)
            files = OpenFiles(count, manifest.deaths)
            try:
                for name in manifest.files:
                    try:
                        self.open(name, os.O_RDWR, files.owner)
                    except OSError as error:
                        if error.errno not in (errno.EROFS, errno.EACCES):
                            raise
                        self.open(name, os.O_RDONLY, files.owner)
                        files.writable = False
            except FileNotFoundError:
                files.close()
                continue
            except BaseException:
                files.close()
                raise
            if used:
                with contextlib.suppress(OSError):
                    _, uses, refused = self._uses(key)
                    self._note_use(key, uses + 1, refused)
                    self._keep_to_quota(self._written(), key)
            return files
        raise NoEntry("damaged: a file of the entry is missing")

    def _refuse_for_now(self, manifest: Manifest) -> None:
        """Raise Blamed until as many starts have gone without the entry as its deaths require."""
        _, uses, refused = self._uses(manifest.key)
        if refused < manifest.pause:
            with contextlib.suppress(OSError):
                self._note_use(manifest.key, uses, refused + 1)
            raise EntryBlocked(f"{manifest.blamed}; it is tried again after {manifest.pause - refused} starts")

    def record_death(self, key: str, why: str) -> None:
        """Note that the driver's process ended when it restored an entry: the next starts may go without it."""
        with contextlib.suppress(NoEntry):
            manifest = self._read(key)
            self._judge(manifest, why, manifest.deaths + 1)

    def clear_deaths(self, key: str) -> None:
        """Note that an entry was restored: earlier deaths do not count any more."""
        with contextlib.suppress(NoEntry):
            self._judge(self._read(key), "", 0)

    def _judge(self, manifest: Manifest, why: str, deaths: int) -> None:
        new = f"{manifest.key}.{manifest.generation}.new"
        self.remove(new)
        self.write(new, msgspec.structs.replace(manifest, blamed=why, deaths=deaths).packed())
        self._note_use(manifest.key, self._uses(manifest.key)[1])
        self.rename(new, f"{manifest.key}.entry")

    def _read(self, key: str) -> Manifest:
        own = Owner()
        try:
            fd = self.open(f"{key}.entry", os.O_RDONLY, own)
        except FileNotFoundError:
            raise NoEntry("there is no entry") from None
        try:
            return Manifest.unpacked(first_bytes(fd, MANIFEST_MOST), key)
        finally:
            own.close()

    def manifest(self, key: str) -> Manifest | None:
        """Return the description of an entry; None without a readable one."""
        try:
            return self._read(key)
        except (NoEntry, OSError):
            return None

    def entries(self) -> list[Listed]:
        """Return every entry, the last used first."""
        found = []
        for name in os.listdir(self._fd):
            match = _ENTRY.fullmatch(name)
            if match:
                found.append(self._listed(match[1]))
        return sorted(found, key=lambda entry: (-entry.last_use, entry.key))

    def _listed(self, key: str) -> Listed:
        last, uses, _ = self._uses(key)
        try:
            manifest = self._read(key)
        except (NoEntry, OSError) as error:
            return Listed(key, 0, last, uses, None, str(error))
        sizes = [self._size(name) for name in manifest.files]
        problem = manifest.blamed if None not in sizes else "damaged: a file of the entry is missing"
        return Listed(key, sum(filter(None, sizes)), last, uses, manifest, problem)

    def _size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        except OSError:
            return None

    # --------------------------------------------------------------------------------------------------------- uses

    def _note_use(self, key: str, uses: int, refused: int = 0) -> int:
        """Record a use: how many there were, and how many starts went without the entry. Return the use's number."""
        now, own = 0, Owner()
        try:
            fd = self.open("uses", os.O_RDWR | os.O_CREAT, own)
            now = (_NUMBER.unpack(first_bytes(fd, 8).ljust(8, b"\0"))[0] + 1) % (1 << 64)
            os.pwrite(fd, _NUMBER.pack(now), 0)
            fd = self.open(f"{key}.used", os.O_RDWR | os.O_CREAT, own)
            os.pwrite(fd, _USES.pack(now, min(uses, (1 << 64) - 1), refused), 0)
        finally:
            own.close()
        return now

    def _uses(self, key: str) -> tuple[int, int, int]:
        own = Owner()
        try:
            fd = self.open(f"{key}.used", os.O_RDONLY, own)
            last, uses, refused = _USES.unpack(first_bytes(fd, _USES.size).ljust(_USES.size, b"\0"))
            return last, uses, refused
        except OSError:
            return 0, 0, 0
        finally:
            own.close()

    # -------------------------------------------------------------------------------------------------------- marks

    def mark(self, key: str, into: Owner) -> str:
        """Begin a new generation of an entry: create its mark, locked by this process until `unmark`."""
        folder = Owner()
        try:
            private_folder(self.path / MAKING, folder)
            while True:
                generation = os.urandom(8).hex()
                _made_here.add(f"{key}.{generation}")
                mark = private_file(folder.fds[0], f"{key}.{generation}", NEW, into)
                if _is_ours(mark):
                    return generation
                into.close()  # another process removed it as that of a dead process
                _made_here.discard(f"{key}.{generation}")
        finally:
            folder.close()

    def unmark(self, key: str, generation: str) -> None:
        """End what `mark` began."""
        with contextlib.suppress(OSError):
            self.remove(f"{MAKING}/{key}.{generation}")
        _made_here.discard(f"{key}.{generation}")

    def _marks(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self.path / MAKING) if _MARK.fullmatch(name)]
        return []

    def _sweep(self) -> None:
        """Delete what dead processes have left."""
        for name in self._marks():
            if name in _made_here:
                continue
            key, generation = name.split(".")
            own = Owner()
            try:
                fd = self.open(f"{MAKING}/{name}", os.O_RDWR, own)
                if try_lock(fd):
                    before = first_bytes(fd, 16).decode("ascii", "replace")
                    now = self.manifest(key)
                    for each in {generation, before} - {now and now.generation}:
                        if _MARK.fullmatch(f"{key}.{each}"):
                            for kind in _KINDS:
                                self.remove(f"{key}.{each}.{kind}")
                    self.remove(f"{MAKING}/{name}")
            except OSError:  # it disappeared, or the file system has no locks
                continue
            finally:
                own.close()

    # ---------------------------------------------------------------------------------------------------- tidying up

    def published(self, manifest: Manifest, before: Manifest | None) -> None:
        """Update the folder after an entry was published. before: the entry that it replaced."""
        for name in () if before is None else before.files:
            self.remove(name)
        self.unmark(manifest.key, manifest.generation)
        self._sweep()
        use = self._note_use(manifest.key, 0)
        self._keep_to_quota(self._written(manifest, use), manifest.key)

    def _keep_to_quota(self, written: int, keep: str) -> None:
        """Enforce the quota if all entries may exceed it. keep: as in `_tidy`."""
        if written > self.most:
            self._tidy(self.most, self.most * 7 // 8, keep)

    def _written(self, manifest: Manifest | None = None, use: int = 0) -> int:
        """Add written bytes to the sum since the last count; return the bytes that all entries may have now.

        `written` has a byte for each block, so that processes can add to it without a lock. A driver may write to
        published files: `recent` has the last entries, whose sizes are read again.

        manifest: of a new entry, with the number of its use. Without one, the result is 0 if nothing has grown.
        """
        own = Owner()
        try:
            recent = self.open("recent", os.O_RDWR | os.O_CREAT, own)
            blocks = sum(self._grown(recent, place * _RECENT.size) for place in range(RECENT))
            if manifest is not None:
                new = self._blocks(manifest.files)
                facts = manifest.key.encode(), manifest.generation.encode(), manifest.model_files, manifest.data_files
                os.pwrite(recent, _RECENT.pack(*facts, new), use % RECENT * _RECENT.size)
                blocks += new
            if not blocks:
                return 0
            log = self.open("written", os.O_RDWR | os.O_APPEND, own)
            os.write(log, bytes(blocks))
            return os.fstat(log).st_size * BLOCK
        except FileNotFoundError:  # never counted
            return self.most + 1
        finally:
            own.close()

    def _grown(self, recent: int, place: int) -> int:
        """Return the blocks by which the files of one of the last entries have grown."""
        row = os.pread(recent, _RECENT.size, place).ljust(_RECENT.size, b"\0")
        *facts, model_files, data_files, counted = _RECENT.unpack(row)
        key, generation = (fact.decode("latin1") for fact in facts)
        if not _MARK.fullmatch(f"{key}.{generation}"):
            return 0
        more: int = self._blocks(names(key, generation, CacheFiles(model_files, data_files))) - counted
        if more > 0:
            os.pwrite(recent, _RECENT.pack(*facts, model_files, data_files, counted + more), place)
        return max(more, 0)

    def _blocks(self, files: Iterable[str]) -> int:
        """Return the blocks of an entry's files and its description."""
        return 1 + sum(-(-(self._size(name) or 0) // BLOCK) for name in files)

    def take_out(self, keys: Sequence[str]) -> None:
        """Delete entries."""
        for key in keys:
            self._take_out(key)
        self.prune()

    def prune(self, most: int | None = None) -> list[str]:
        """Delete the least recently used entries until the rest is within the limit; return their keys.

        Damaged entries, and files without an entry, are deleted too.
        """
        self._sweep()
        most = self.most if most is None else most
        return self._tidy(most, most)

    def _take_out(self, key: str) -> None:
        for name in (f"{key}.entry", f"{key}.used"):
            self._clear(name)

    def _clear(self, name: str) -> None:
        """Delete a file if possible; a failure does not stop the others."""
        with contextlib.suppress(OSError):
            self.remove(name)

    def _tidy(self, most: int, rest: int, keep: str = "") -> list[str]:
        """Count the folder, and delete the least recently used entries until the rest has at most `rest` bytes.

        keep: the last entry to delete, and only if it exceeds `most` alone.
        """
        listed = os.listdir(self._fd)
        marks = set(self._marks())  # after listing the files, before reading manifests: published files have no mark
        entries = self.entries()
        total, gone = sum(entry.size for entry in entries), []
        for entry in sorted(entries, key=lambda entry: (entry.key == keep, entry.last_use)):
            if entry.manifest is not None and total <= (most if entry.key == keep else rest):
                continue
            self._take_out(entry.key)
            total -= entry.size
            gone.append(entry.key)
        alive = {f"{e.key}.{e.manifest.generation}" for e in entries if e.manifest and e.key not in gone}
        for match in filter(None, map(_FILE.fullmatch, listed)):
            generation = f"{match[1]}.{match[2]}"
            if generation not in marks and (generation not in alive or match[3] in ("making", "new")):
                self._clear(match[0])
        keys = {entry.key for entry in entries} - set(gone)
        for name in listed:
            if name.endswith(".used") and name[:-5] not in keys:
                self._clear(name)
        own = Owner()
        try:
            log = self.open("written", os.O_RDWR | os.O_CREAT, own)
            os.ftruncate(log, -(-total // BLOCK))
        finally:
            own.close()
        return gone


def _is_ours(mark: int) -> bool:
    """Lock a new mark; return whether no other process has it. Without locks, files of dead processes are not deleted."""
    try:
        return try_lock(mark) and os.fstat(mark).st_nlink > 0
    except OSError:
        return True
