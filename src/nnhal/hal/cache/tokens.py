"""A driver's private record of what it has cached: by token the keyed hash of the files, in a file of the user's alone.

The client owns the cache files and chooses the token; neither proves anything about contents. What a driver wrote it knows
again by this record, which outlives it. Each line says who wrote it, so the record begins anew when the driver is another:
its version, its code, its engine, or the processor where that matters to it.

    0   8  magic
    8  32  key of the hashes          40  records: token, identity of the driver, hash, checksum (32, 32, 32, 8 bytes)

A record is one write to the end of the file: processes need no lock, and a driver's process, once confined, has none.
"""

import os
import re
import struct
from contextlib import suppress
from pathlib import Path

from nnhal.base.digests import blake2b
from nnhal.base.private import absolute, locked, made_anew, private_file, private_folder

MAGIC = b"NNHALtk\n"
KEY = 32  # bytes
MOST = 8192  # records; beyond, the older half is forgotten when a process opens the file
_HEAD = struct.Struct("<8s32s")
_RECORD = struct.Struct("<32s32s32s8s")


def state_folder() -> Path:
    """Where what belongs to the user, and is no cache, lies: NNHAL_STATE_DIR, or `nnhal` below XDG_STATE_HOME.

    OSError where there is no such place.
    """
    given = os.environ.get("NNHAL_STATE_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return absolute(base) / "nnhal"


def state_file(driver: str, kind: str) -> str:
    """The name of a file of a driver's there, which no other driver's has."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", driver)[:64]
    return f"{name}-{blake2b(driver.encode(), digest_size=8).hexdigest()}.{kind}"


class TokenStore:
    """The record of one driver. Any thread and any process may use it at any time. Every method may raise OSError."""

    def __init__(self, fd: int, key: bytes) -> None:
        """fd: of the file, to read and to write at its end; it stays open as long as the process lives."""
        self._fd, self.key = fd, key

    @classmethod
    def open(cls, driver: str) -> "TokenStore":
        """That of a driver by its name, made where it is missing. OSError, NotPrivate among them, where that cannot be."""
        folder = private_folder(state_folder())
        try:
            locked(folder)
            fd = _opened(folder, state_file(driver, "tokens"))
            head = os.pread(fd, _HEAD.size, 0)
            return cls(fd, head[-KEY:])
        finally:
            os.close(folder)

    def fileno(self) -> int:
        """The descriptor of its file."""
        return self._fd

    @property
    def gone(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def remember(self, identity: bytes, token: bytes, digest: bytes) -> None:
        """Note what the driver `identity` wrote for a token."""
        if not self.knows(identity, token, digest):
            os.write(self._fd, _record(token, identity, digest))

    def knows(self, identity: bytes, token: bytes, digest: bytes) -> bool:
        """Whether this is what the driver wrote for a token."""
        return any(record == _record(token, identity, digest) for record in _records(self._fd))


_only: list[TokenStore] = []  # of a process that opens no files any more


def open_ahead(driver: str) -> None:
    """Open the record of the one driver of this process, which will be confined. Without one nothing is restored in it."""
    with suppress(OSError):
        _only.append(TokenStore.open(driver))


def opened_ahead() -> TokenStore | None:
    """The record that this process has opened so."""
    return _only[0] if _only else None


def _record(token: bytes, identity: bytes, digest: bytes) -> bytes:
    check = blake2b(token + identity + digest, digest_size=8).digest()
    return _RECORD.pack(token, identity, digest, check)


def _records(fd: int) -> list[bytes]:
    """All records, oldest first; what stands there half is none."""
    data, size = b"", os.fstat(fd).st_size
    while _HEAD.size + len(data) < size and (more := os.pread(fd, size, _HEAD.size + len(data))):
        data += more
    return [data[at : at + _RECORD.size] for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size)]


def _opened(folder: int, name: str) -> int:
    """The file, whole and not too long; a new one with a new key in the place of any other."""
    fd = private_file(folder, name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    head = os.pread(fd, _HEAD.size, 0)
    count, rest = divmod(os.fstat(fd).st_size - _HEAD.size, _RECORD.size)  # looked at once: others write meanwhile
    if head[:8] == MAGIC and not rest and 0 <= count <= MOST:
        return fd
    records = _records(fd)
    os.close(fd)
    key = head[8:] if head[:8] == MAGIC and len(head) == _HEAD.size else os.urandom(KEY)
    left = records[-MOST // 2 :] if head[:8] == MAGIC else []
    return made_anew(folder, name, _HEAD.pack(MAGIC, key) + b"".join(left))
