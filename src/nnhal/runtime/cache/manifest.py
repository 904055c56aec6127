"""What an entry of a cache folder is: its description, `KEY.entry`, and what is shown of it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nnhal.base.digests import blake2b
from nnhal.base.records import Record
from nnhal.hal.cache.files import MOST_FILES, CacheFiles

FORMAT = 1
MOST_REFUSED = 1 << 10  # starts in a row that do without an entry on which its driver died


class Missing(Exception):
    """There is no entry that could be used; the text says why."""


class Blamed(Missing):
    """There is one, and it is not to be used now, nor another made in its place."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an entry is. facts: for people and for `nnhal cache`; nothing is looked for by them.

    deaths: how often in a row its driver's process ended when it restored the entry. blamed: how it ended last, or "".
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

    @property
    def pause(self) -> int:
        """How many starts do without the entry before the next one tries it: none after one death, then 1, 3, 7 …"""
        return min(2 ** max(self.deaths - 1, 0) - 1, MOST_REFUSED)


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
