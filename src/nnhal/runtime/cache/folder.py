"""A cache folder: entries of several files each, published all at once, within a quota. Any number of processes share it.

    lock                        number of the last use, 8 bytes; locked while entries come and go
    digests                     see `runtime.cache.tokens`
    KEY.entry                   what the entry is: `Manifest`; it names the generation whose files are the entry's
    KEY.GENERATION.m0, .d0 …    the files, of the model and of data
    KEY.used                    number of the last use, and how many uses: 8 bytes each
    KEY.GENERATION.making       locked by who makes this generation, as long as it lives

An entry comes to be when its manifest is renamed to its name: before that there is the old one, or none. What a process that
died was making goes when somebody publishes or prunes next. Readers hold descriptors and no lock: nobody waits for them, and
what is taken out under them stays until they let go. The order of uses is a number, no time: clocks may jump.
"""

import contextlib
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.memory import first_bytes
from nnhal.base.private import locked, private_file, private_folder
from nnhal.base.records import Record
from nnhal.hal.cache.files import MOST_FILES, Cache, CacheFiles, write

FORMAT = 1
MANIFEST_MOST = 1 << 20  # bytes
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_NUMBER, _USES = struct.Struct("<Q"), struct.Struct("<QQ")
_ENTRY = re.compile(r"([0-9a-f]{64})\.entry")
_FILE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})\.(making|new|[md][0-9]{1,2})")


class Missing(Exception):
    """There is no entry that could be used; the text says why."""


class Blamed(Missing):
    """There is one, and it is not to be used, nor another made in its place."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an entry is. facts: of what, for people and for `nnhal cache`; nothing is looked for by them.

    blamed: why it is not to be used, "" for one that may be.
    """

    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    generation: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    model_files: Annotated[int, Meta(ge=0, le=MOST_FILES)]
    data_files: Annotated[int, Meta(ge=0, le=MOST_FILES)]
    facts: dict[str, Any] = {}
    format: int = FORMAT
    check: str = ""
    blamed: str = ""

    def packed(self) -> bytes:
        """As it lies in the folder, with a checksum."""
        return msgspec.json.format(_json(msgspec.structs.replace(self, check=_check(self))), indent=1)

    @classmethod
    def unpacked(cls, data: bytes, key: str) -> "Manifest":
        """Missing where it is damaged, of another format, or another entry's."""
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Missing("damaged: the entry's description cannot be read") from None
        if found.check != _check(found):
            raise Missing("damaged: the entry's description is not what was written")
        if found.format != FORMAT:
            raise Missing("the entry is of another format")
        if found.key != key:
            raise Missing("damaged: the entry is that of another key")
        return found

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files, those of the model first."""
        return names(self.key, self.generation, CacheFiles(self.model_files, self.data_files))


_json = msgspec.json.Encoder(order="deterministic").encode


def _check(manifest: Manifest) -> str:
    return blake2b(_json(msgspec.structs.replace(manifest, check="")), digest_size=16).hexdigest()


def names(key: str, generation: str, files: CacheFiles) -> tuple[str, ...]:
    """The names of an entry's files, those of the model first."""
    kinds = [f"m{n}" for n in range(files.model)] + [f"d{n}" for n in range(files.data)]
    return tuple(f"{key}.{generation}.{kind}" for kind in kinds)


class Listed(Record, frozen=True):
    """One entry as it lies there. problem: why it cannot be used, "" where nothing is known against it."""

    key: str
    size: int
    last_use: int
    uses: int
    manifest: Manifest | None
    problem: str = ""


class OpenFiles:
    """Descriptors of one entry's files, open until this is closed or dropped."""

    def __init__(self, count: CacheFiles) -> None:
        self._owner, self._count = Owner(), count

    def open(self, folder: "CacheFolder", name: str, flags: int) -> None:
        """Open one more."""
        folder.open(name, flags, self._owner)

    def cache(self, token: bytes) -> Cache:
        """What a device is given."""
        fds = tuple(self._owner.fds)
        return Cache(token, fds[: self._count.model], fds[self._count.model :], self._owner)

    def close(self) -> None:
        """Close them."""
        self._owner.close()


class NewEntry:
    """An entry that is being made: its files are open and empty, and nobody else sees them before `publish`."""

    def __init__(self, folder: "CacheFolder", key: str, count: CacheFiles) -> None:
        """`close` ends it."""
        self._folder, self._key, self._count = folder, key, count
        self._generation = os.urandom(8).hex()
        self._names = names(key, self._generation, count)
        self.files = OpenFiles(count)
        self._mark = Owner()
        self._published = False
        try:
            with folder.alone():
                folder.open(self._name("making"), NEW, self._mark)
                fcntl.flock(self._mark.fds[0], fcntl.LOCK_EX)
            for name in self._names:
                self.files.open(folder, name, NEW)
        except BaseException:
            self.close()
            raise

    def _name(self, kind: str) -> str:
        return f"{self._key}.{self._generation}.{kind}"

    def publish(self, token: bytes, facts: dict[str, Any], *, unwritten: bool = False) -> bool:
        """Make the entry what was written, if anything was; whether it is now. OSError: the entry is what it was.

        unwritten: also where nothing was, for a driver that writes to these files later.
        """
        cache = self.files.cache(token)
        if cache.unwritten and not unwritten:
            return False
        for fd in cache.files:
            os.fsync(fd)
        manifest = Manifest(self._key, self._generation, *self._count, facts, FORMAT)
        self._folder.write(self._name("new"), manifest.packed())
        with self._folder.alone():
            self._folder.rename(self._name("new"), f"{self._key}.entry")
            self._published = True
            self._folder.used(self._key, uses=0)
            self._folder.remove(self._name("making"))
            self._folder.tidy(keep=self._key)
        return True

    def close(self) -> None:
        """Let go of the files, and take away what was not published."""
        left = () if self._published else (*self._names, self._name("new"))
        for name in (*left, self._name("making")):
            with contextlib.suppress(OSError):
                self._folder.remove(name)
        self._mark.close()
        self.files.close()


class CacheFolder:
    """One folder, open. Raises OSError (NotPrivate among them) where a call fails, from every method."""

    def __init__(self, path: Path, most: int) -> None:
        """path: made where it is missing, and this user's alone. most: bytes of all entries together."""
        self.path, self.most = path, most
        self._owner = Owner()
        self._fd = private_folder(path, self._owner)

    def open(self, name: str, flags: int, into: Owner) -> int:
        """A descriptor of a file in it, which the owner has from the moment it is open."""
        return private_file(self._fd, name, flags, into)

    def write(self, name: str, data: bytes) -> None:
        """Make a file in it, which is on the disk then."""
        new = Owner()
        try:
            self.open(name, NEW, new)
            write(new.fds[0], data)
            os.fsync(new.fds[0])
        finally:
            new.close()

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once and for good."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While nobody else publishes or prunes."""
        own = Owner()
        fd = self.open("lock", os.O_RDWR | os.O_CREAT, own)
        try:
            locked(fd)
            yield
        finally:
            own.close()

    # ------------------------------------------------------------------------------------------------------ entries

    def entry(self, key: str, count: CacheFiles, *, used: bool = True) -> OpenFiles:
        """The files of an entry. Missing says why there are none that could be used. used: whether that is a use."""
        for _ in range(3):  # it may be replaced between the two
            manifest = self._manifest(key)
            if manifest.blamed:
                raise Blamed(manifest.blamed)
            if (manifest.model_files, manifest.data_files) != count:
                had = f"{manifest.model_files} model and {manifest.data_files} data files"
                raise Missing(f"the entry has {had}, the device has {count.model} and {count.data} now")
            files = OpenFiles(count)
            try:
                for name in manifest.files:
                    files.open(self, name, os.O_RDWR)
            except FileNotFoundError:
                files.close()
                continue
            except BaseException:
                files.close()
                raise
            if used:
                with contextlib.suppress(OSError):
                    self.used(key)
            return files
        raise Missing("damaged: a file of the entry is missing")

    def blame(self, key: str, why: str) -> None:
        """Let an entry, if there is one, not be used any more."""
        with self.alone(), contextlib.suppress(Missing):
            manifest = self._manifest(key)
            new = f"{key}.{manifest.generation}.new"
            self.remove(new)
            self.write(new, msgspec.structs.replace(manifest, blamed=why).packed())
            self.rename(new, f"{key}.entry")

    def _manifest(self, key: str) -> Manifest:
        own = Owner()
        try:
            fd = self.open(f"{key}.entry", os.O_RDONLY, own)
        except FileNotFoundError:
            raise Missing("there is no entry") from None
        try:
            return Manifest.unpacked(first_bytes(fd, MANIFEST_MOST), key)
        finally:
            own.close()

    def used(self, key: str, uses: int | None = None) -> None:
        """Note that an entry was used now. uses: how often it was; once more than noted by default."""
        own = Owner()
        fd = self.open("lock", os.O_RDWR | os.O_CREAT, own)
        try:
            (last,) = _NUMBER.unpack(first_bytes(fd, 8).ljust(8, b"\0"))
            now = (last + 1) % (1 << 64)
            os.pwrite(fd, _NUMBER.pack(now), 0)
        finally:
            own.close()
        own = Owner()
        fd = self.open(f"{key}.used", os.O_RDWR | os.O_CREAT, own)
        try:
            if uses is None:
                uses = _USES.unpack(first_bytes(fd, 16).ljust(16, b"\0"))[1] + 1
            os.pwrite(fd, _USES.pack(now, min(uses, (1 << 64) - 1)), 0)
        finally:
            own.close()

    def entries(self) -> list[Listed]:
        """Every entry, the one used last first."""
        found = []
        for name in os.listdir(self._fd):
            match = _ENTRY.fullmatch(name)
            if match:
                found.append(self._listed(match[1]))
        return sorted(found, key=lambda entry: (-entry.last_use, entry.key))

    def _listed(self, key: str) -> Listed:
        last, uses = self._uses(key)
        try:
            manifest = self._manifest(key)
        except (Missing, OSError) as error:
            return Listed(key, 0, last, uses, None, str(error))
        size, problem = 0, manifest.blamed
        for name in manifest.files:
            try:
                size += os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
            except OSError:
                problem = "damaged: a file of the entry is missing"
        return Listed(key, size, last, uses, manifest, problem)

    def _uses(self, key: str) -> tuple[int, int]:
        own = Owner()
        try:
            fd = self.open(f"{key}.used", os.O_RDONLY, own)
        except OSError:
            return 0, 0
        try:
            last, uses = _USES.unpack(first_bytes(fd, 16).ljust(16, b"\0"))
            return last, uses
        finally:
            own.close()

    # ---------------------------------------------------------------------------------------------------- tidying up

    def take_out(self, keys: Sequence[str]) -> None:
        """Take entries away."""
        with self.alone():
            for key in keys:
                self._take_out(key)
            self.tidy()

    def prune(self, most: int | None = None) -> list[str]:
        """Take out what was not used for longest until the rest is within the limit; the keys that went."""
        with self.alone():
            return self.tidy(most)

    def _take_out(self, key: str) -> None:
        for name in (f"{key}.entry", f"{key}.used"):
            self.remove(name)

    def tidy(self, most: int | None = None, keep: str = "") -> list[str]:
        """As `prune`, for who holds the lock; also what nobody makes any more goes. keep: the entry that goes last."""
        entries = self.entries()
        total, gone = sum(entry.size for entry in entries), []
        for entry in sorted(entries, key=lambda entry: (entry.key == keep, entry.last_use)):
            if entry.manifest is not None and total <= (self.most if most is None else most):
                continue
            self._take_out(entry.key)
            total -= entry.size
            gone.append(entry.key)
        self._sweep({e.key: e.manifest.generation for e in entries if e.manifest and e.key not in gone})
        return gone

    def _sweep(self, generations: dict[str, str]) -> None:
        """Take away files of no entry that nobody makes."""
        listed = os.listdir(self._fd)
        found = [match for name in listed if (match := _FILE.fullmatch(name))]
        made = {(m[1], m[2]) for m in found if m[3] == "making" and self._being_made(m[0])}
        for match in found:
            whose = match[1], match[2]
            published = generations.get(match[1]) == match[2] and match[3] not in ("making", "new")
            if whose not in made and not published:
                self.remove(match[0])
        for name in listed:
            if name.endswith(".used") and f"{name[:-5]}.entry" not in listed:
                self.remove(name)

    def _being_made(self, name: str) -> bool:
        own = Owner()
        try:
            fd = self.open(name, os.O_RDWR, own)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            own.close()
        return False
