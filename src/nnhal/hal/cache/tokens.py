"""A driver's private record of what it has cached: by token the keyed hash of the files, in a file of the user's alone.

The client owns the cache files and chooses the token; neither proves anything about contents. What a driver wrote it knows
again by this record, which outlives it. Each line says who wrote it, so the record begins anew when the driver is another:
its version, its code, its engine, or the processor where that matters to it.

    0   8  magic
    8  32  key of the hashes          40  records: token, identity of the driver, hash, checksum (32, 32, 32, 8 bytes)

The file is a `StateFile`. A record that a full disk cut off is none, and hides none of those that follow.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from nnhal.base.digests import blake2b
from nnhal.hal.cache.state import HEAD, StateFile, state_file, state_folder

__all__ = ["TokenStore", "open_ahead", "opened_ahead", "state_file", "state_folder"]

MAGIC = b"NNHALtk\n"
MOST = 8192  # records; beyond, the older half is forgotten when a process opens the file
_RECORD = struct.Struct("<32s32s32s8s")


class TokenStore:
    """The record of one driver. Any thread and any process may use it at any time. Every method may raise OSError."""

    def __init__(self, file: StateFile) -> None:
        """file: stays open as long as this lives."""
        self._file, self.key = file, file.key

    @classmethod
    def open(cls, driver: str) -> "TokenStore":
        """That of a driver by its name, made where it is missing. OSError, NotPrivate among them, where that cannot be."""
        most = HEAD.size + MOST * _RECORD.size
        return cls(StateFile.open(state_file(driver, "tokens"), MAGIC, most, _newer))

    @property
    def gone(self) -> bool:
        """Whether the file has no name any more."""
        return self._file.gone

    def remember(self, identity: bytes, token: bytes, digest: bytes) -> None:
        """Note what the driver `identity` wrote for a token."""
        if not self.knows(identity, token, digest):
            self._file.append(_record(token, identity, digest))

    def knows(self, identity: bytes, token: bytes, digest: bytes) -> bool:
        """Whether this is what the driver wrote for a token, among the last of all records."""
        return _record(token, identity, digest) in self._last()

    def names(self, identity: bytes, token: bytes) -> bool:
        """Whether the driver `identity` wrote anything for a token."""
        return token + identity in self._last()

    def _last(self) -> bytes:
        return self._file.last(2 * MOST * _RECORD.size)


def records() -> Iterator[TokenStore]:
    """The records of all drivers of this user, as they are."""
    with suppress(OSError):
        for name in sorted(os.listdir(state_folder())):
            file = StateFile.to_read(name) if name.endswith(".tokens") else None
            if file is not None:
                yield TokenStore(file)


_only: list[TokenStore | OSError] = []  # of a process that opens no files any more: its record, or why there is none


def open_ahead(driver: str) -> None:
    """Open the record of the one driver of this process, which will be confined. Without one nothing is restored in it."""
    try:
        _only.append(TokenStore.open(driver))
    except OSError as error:
        _only.append(error)


def opened_ahead() -> TokenStore | None:
    """The record that this process has opened so, if it has. OSError where it could not."""
    found = _only[0] if _only else None
    if isinstance(found, OSError):
        raise found
    return found


def _record(token: bytes, identity: bytes, digest: bytes) -> bytes:
    check = blake2b(token + identity + digest, digest_size=8).digest()
    return _RECORD.pack(token, identity, digest, check)


def _newer(records: bytes) -> bytes:
    return records[-(MOST // 2 * _RECORD.size) :]
