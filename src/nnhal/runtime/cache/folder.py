"""A cache folder: entries of several files each, published atomically, within a quota, for any number of processes.

    KEY.entry                   the description, a `Manifest`, with the generation whose files belong to the entry
    KEY.GENERATION.m0, .d0 …    the model and data files
    KEY.used                    number of the last use, number of uses, and starts without the entry: 8 bytes each
    uses                        number of the last use of any entry, 8 bytes
    making/KEY.GENERATION       a mark, locked by the process that writes this generation; its content is the one before
    written, recent             the bytes published since the last count: see `accounts.WrittenBytes`
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from nnhal.base.descriptors import Owner
from nnhal.base.memory import first_bytes
from nnhal.base.private import NotPrivate, private_file, private_folder, try_lock
from nnhal.hal.cache.files import MOST_FILES, Cache, CacheFiles
from nnhal.runtime.cache.accounts import UseLog, WrittenBytes
from nnhal.runtime.cache.files import NEW, FolderFiles
from nnhal.runtime.cache.manifest import GENERATION, EntryBlocked, Listed, Manifest, NoEntry

MANIFEST_MOST = 1 << 20  # bytes
_ENTRY = re.compile(r"([0-9a-f]{64})\.entry")
_FILE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})\.(making|new|[md][0-9]{1,2})")


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
        self.files = files = FolderFiles(path)
        self.marks, self._uses, self._written = Marks(files), UseLog(files), WrittenBytes(files)

    # ------------------------------------------------------------------------------------------------------ entries

    def entry(self, key: str, count: CacheFiles, *, used: bool = True) -> OpenFiles:
        """Return the files of an entry. NoEntry has the reason if it cannot be used. used: whether this counts as a use.

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
                        self.files.open(name, os.O_RDWR, files.owner)
                    except OSError as error:
                        if error.errno not in (errno.EROFS, errno.EACCES):
                            raise
                        self.files.open(name, os.O_RDONLY, files.owner)
                        files.writable = False
            except FileNotFoundError:
                files.close()
                continue
            except BaseException:
                files.close()
                raise
            if used:
                with contextlib.suppress(OSError):
                    _, uses, refused = self._uses.of(key)
                    self._uses.note(key, uses + 1, refused)
                    self._keep_to_quota(self._written.add(), key)
            return files
        raise NoEntry("damaged: a file of the entry is missing")

    def _refuse_for_now(self, manifest: Manifest) -> None:
        """Raise EntryBlocked until as many starts have gone without the entry as its deaths require."""
        _, uses, refused = self._uses.of(manifest.key)
        if refused < manifest.pause:
            with contextlib.suppress(OSError):
                self._uses.note(manifest.key, uses, refused + 1)
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
        self.files.remove(new)
        self.files.write(new, msgspec.structs.replace(manifest, blamed=why, deaths=deaths).packed())
        self._uses.note(manifest.key, self._uses.of(manifest.key)[1])
        self.files.rename(new, f"{manifest.key}.entry")

    def _read(self, key: str) -> Manifest:
        own = Owner()
        try:
            fd = self.files.open(f"{key}.entry", os.O_RDONLY, own)
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
        for name in self.files.names():
            match = _ENTRY.fullmatch(name)
            if match:
                found.append(self._listed(match[1]))
        return sorted(found, key=lambda entry: (-entry.last_use, entry.key))

    def _listed(self, key: str) -> Listed:
        last, uses, _ = self._uses.of(key)
        try:
            manifest = self._read(key)
        except (NoEntry, OSError) as error:
            return Listed(key, 0, last, uses, None, str(error))
        sizes = [self.files.size(name) for name in manifest.files]
        problem = manifest.blamed if None not in sizes else "damaged: a file of the entry is missing"
        return Listed(key, sum(filter(None, sizes)), last, uses, manifest, problem)

    # ---------------------------------------------------------------------------------------------------- tidying up

    def published(self, manifest: Manifest, before: Manifest | None) -> None:
        """Update the folder after an entry was published. before: the entry that it replaced."""
        for name in () if before is None else before.files:
            self.files.remove(name)
        self.marks.end(manifest.key, manifest.generation)
        self.marks.sweep(self.manifest)
        use = self._uses.note(manifest.key, 0)
        self._keep_to_quota(self._written.add(manifest, use), manifest.key)

    def _keep_to_quota(self, written: int | None, keep: str) -> None:
        """Enforce the quota if all entries may exceed it, or were never counted. keep: as in `_tidy`."""
        if written is None or written > self.most:
            self._tidy(self.most, self.most * 7 // 8, keep)

    def take_out(self, keys: Sequence[str]) -> None:
        """Delete entries. OSError if one of them cannot be deleted."""
        failed = self.files.clear(_names_of(keys))
        self.prune()
        if failed is not None:
            raise failed

    def prune(self, most: int | None = None) -> list[str]:
        """Delete the least recently used entries until the rest is within the limit; return their keys.

        Damaged entries, and files without an entry, are deleted too. OSError if one of them cannot be deleted.
        """
        self.marks.sweep(self.manifest)
        most = self.most if most is None else most
        gone, failed = self._tidy(most, most)
        if failed is not None:
            raise failed
        return gone

    def _tidy(self, most: int, rest: int, keep: str = "") -> tuple[list[str], OSError | None]:
        """Count the folder, and delete the least recently used entries until the rest has at most `rest` bytes.

        keep: the last entry to delete, and only if it exceeds `most` alone. Return the keys of the entries to delete,
        and the first failure to delete a file.
        """
        listed = self.files.names()
        # After listing the files, before reading manifests: published files have no mark.
        marks = set(self.marks.names())
        entries = self.entries()
        total, gone = sum(entry.size for entry in entries), []
        for entry in sorted(entries, key=lambda entry: (entry.key == keep, entry.last_use)):
            if entry.manifest is not None and total <= (most if entry.key == keep else rest):
                continue
            total -= entry.size
            gone.append(entry.key)
        names = _names_of(gone)
        alive = {f"{e.key}.{e.manifest.generation}" for e in entries if e.manifest and e.key not in gone}
        for match in filter(None, map(_FILE.fullmatch, listed)):
            generation = f"{match[1]}.{match[2]}"
            if generation not in marks and (generation not in alive or match[3] in ("making", "new")):
                names.append(match[0])
        keys = {entry.key for entry in entries} - set(gone)
        names += (name for name in listed if name.endswith(".used") and name[:-5] not in keys)
        failed = self.files.clear(names)
        with contextlib.suppress(OSError):  # in a read-only folder
            self._written.count(total)
        return gone, failed


def _names_of(keys: Iterable[str]) -> list[str]:
    """Return the names of the files without which there are no entries of these keys."""
    return [f"{key}.{kind}" for key in keys for kind in ("entry", "used")]


# -------------------------------------------------------------------------------------------------------------- marks


MAKING = "making"
_KINDS = "new", *(f"{kind}{n}" for kind in "md" for n in range(MOST_FILES))

_made_here: set[str] = set()  # marks of this process: reading one would release its lock
os.register_at_fork(after_in_child=_made_here.clear)


class Marks:
    """The marks of one cache folder. A mark without a lock is that of a dead process, whose files `sweep` deletes."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files
        self._folder = files.path / MAKING

    def begin(self, key: str, into: Owner) -> str:
        """Begin a new generation of an entry: create its mark, locked by this process until `end`."""
        folder = Owner()
        try:
            try:
                private_folder(self._folder, folder)
            except NotPrivate as error:
                raise NotPrivate(self._folder, f"{self._folder} {error.strerror}") from None
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

    def end(self, key: str, generation: str) -> None:
        """End what `begin` began."""
        with contextlib.suppress(OSError):
            self._files.remove(f"{MAKING}/{key}.{generation}")
        _made_here.discard(f"{key}.{generation}")

    def names(self) -> list[str]:
        """Return KEY.GENERATION of each mark."""
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._folder) if GENERATION.fullmatch(name)]
        return []

    def sweep(self, published: Callable[[str], Manifest | None]) -> None:
        """Delete what dead processes have left. published: returns the description of an entry."""
        for name in self.names():
            if name in _made_here:
                continue
            key, generation = name.split(".")
            own = Owner()
            try:
                fd = self._files.open(f"{MAKING}/{name}", os.O_RDWR, own)
                if try_lock(fd):
                    before = first_bytes(fd, 16).decode("ascii", "replace")
                    now = published(key)
                    for each in {generation, before} - {now and now.generation}:
                        if GENERATION.fullmatch(f"{key}.{each}"):
                            for kind in _KINDS:
                                self._files.remove(f"{key}.{each}.{kind}")
                    self._files.remove(f"{MAKING}/{name}")
            except OSError:  # it disappeared, or the file system has no locks
                continue
            finally:
                own.close()


def _is_ours(mark: int) -> bool:
    """Lock a new mark; return whether no other process has it. Without locks, files of dead processes are not deleted."""
    try:
        return try_lock(mark) and os.fstat(mark).st_nlink > 0
    except OSError:
        return True
