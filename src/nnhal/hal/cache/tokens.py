"""A driver's private record of its cache entries: the keyed hash of the files by token, in the user's state folder.

The client owns the cache files and chooses the token, so neither guarantees the contents. The driver verifies its files by
this persistent record. Each line names its writer: the record starts over for another version, code or engine of the
driver, or for another CPU if that matters.

    0   8  magic
    8  32  key of the hashes          40  records: token, identity of the driver, hash, checksum (32, 32, 32, 8 bytes)

The file is a `StateFile`. A record that a full disk cut off is ignored, and does not affect later ones.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from nnhal.base.digests import blake2b
from nnhal.hal.cache.state import HEAD, StateFile, state_file, state_folder

__all__ = ["TokenStore", "open_ahead", "opened_ahead", "state_file", "state_folder"]

MAGIC = b"NNHALtk\n"
MOST = 8192  # records; beyond, a process that opens the file drops the older half
_RECORD = struct.Struct("<32s32s32s8s")


class TokenStore:
    """The record of one driver. Any thread and process may use it at any time. Every method may raise OSError."""

    def __init__(self, file: StateFile) -> None:
        """file: stays open as long as this object lives."""
        self._file, self.key = file, file.key

    @classmethod
    def open(cls, driver: str) -> "TokenStore":
        """Open the record of a driver by its name, and create it if it is missing. OSError or NotPrivate if that fails."""
        most = HEAD.size + MOST * _RECORD.size
        return cls(StateFile.open(state_file(driver, "tokens"), MAGIC, most, _newer))

    @property
    def gone(self) -> bool:
        """Whether the file was removed."""
        return self._file.gone

    def remember(self, identity: bytes, token: bytes, digest: bytes) -> None:
        """Record what the driver `identity` wrote for a token."""
        if not self.knows(identity, token, digest):
            self._file.append(_record(token, identity, digest))

    def knows(self, identity: bytes, token: bytes, digest: bytes) -> bool:
        """Whether the driver wrote exactly this for a token, by its last record."""
        return _record(token, identity, digest) in self._last()

    def names(self, identity: bytes, token: bytes) -> bool:
        """Whether the driver `identity` wrote anything for a token."""
        return token + identity in self._last()

    def _last(self) -> bytes:
        return self._file.last(2 * MOST * _RECORD.size)


def records() -> Iterator[TokenStore]:
    """Yield the records of all drivers of this user."""
    with suppress(OSError):
        for name in sorted(os.listdir(state_folder())):
            file = StateFile.to_read(name) if name.endswith(".tokens") else None
            if file is not None:
                yield TokenStore(file)


_only: list[TokenStore | OSError] = []  # of a process that opens no more files: its record, or why there is none


def open_ahead(driver: str) -> None:
    """Open the record of this process's driver before the process enters its sandbox. Without it, nothing is restored."""
    try:
        _only.append(TokenStore.open(driver))
    except OSError as error:
        _only.append(error)


def opened_ahead() -> TokenStore | None:
    """Return the record opened ahead, if there is one. OSError if that failed."""
    found = _only[0] if _only else None
    if isinstance(found, OSError):
        raise found
    return found


def _record(token: bytes, identity: bytes, digest: bytes) -> bytes:
    check = blake2b(token + identity + digest, digest_size=8).digest()
    return _RECORD.pack(token, identity, digest, check)


def _newer(records: bytes) -> bytes:
    return records[-(MOST // 2 * _RECORD.size) :]
