"""The description of a cache entry, `KEY.entry`, and its listing."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nnhal.base.digests import blake2b
from nnhal.base.records import Record
from nnhal.hal.cache.files import MOST_FILES, CacheFiles

FORMAT = 1
GENERATION = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})")  # KEY.GENERATION, with which the names of its files begin
MOST_REFUSED = 1 << 10  # consecutive starts without an entry that killed its driver


class NoEntry(Exception):
    """There is no usable entry; the text has the reason."""


class EntryBlocked(NoEntry):
    """There is an entry that may not be used or replaced now."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of an entry. facts: for people and for `nnhal cache`; lookups ignore them.

    deaths: consecutive times that its driver's process ended while restoring it. blamed: the last reason, or "".
    """

    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    generation: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    model_files: Annotated[int, Meta(ge=0, le=MOST_FILES)]
    data_files: Annotated[int, Meta(ge=0, le=MOST_FILES)]
    facts: dict[str, Any] = {}
    format: int = FORMAT
    check: str = ""
    blamed: str = ""
    deaths: Annotated[int, Meta(ge=0)] = 0

    def packed(self) -> bytes:
        """Return the file's content, with a checksum."""
        return msgspec.json.format(_json(msgspec.structs.replace(self, check=_check(self))), indent=1)

    @classmethod
    def unpacked(cls, data: bytes, key: str) -> "Manifest":
        """Parse a description; NoEntry if it is damaged, of another format, or of another entry."""
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise NoEntry("damaged: the entry's description cannot be read") from None
        if found.check != _check(found):
            raise NoEntry("damaged: the entry's description is not what was written")
        if found.format != FORMAT:
            raise NoEntry("the entry is of another format")
        if found.key != key:
            raise NoEntry("damaged: the entry is that of another key")
        return found

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files, model files first."""
        return names(self.key, self.generation, CacheFiles(self.model_files, self.data_files))

    @property
    def pause(self) -> int:
        """How many starts go without the entry before the next one tries it: none after one death, then 1, 3, 7 …"""
        return min(2 ** max(self.deaths - 1, 0) - 1, MOST_REFUSED)


_json = msgspec.json.Encoder(order="deterministic").encode


def _check(manifest: Manifest) -> str:
    return blake2b(_json(msgspec.structs.replace(manifest, check="")), digest_size=16).hexdigest()


def names(key: str, generation: str, files: CacheFiles) -> tuple[str, ...]:
    """Return the names of an entry's files, model files first."""
    kinds = [f"m{n}" for n in range(files.model)] + [f"d{n}" for n in range(files.data)]
    return tuple(f"{key}.{generation}.{kind}" for kind in kinds)


class Listed(Record, frozen=True):
    """A listed entry. problem: why it cannot be used, or ""."""

    key: str
    size: int
    last_use: int
    uses: int
    manifest: Manifest | None
    problem: str = ""
