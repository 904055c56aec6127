"""A driver's private record of what it has cached: by token the keyed hash of the files, in a file of the user's alone.

The client owns the cache files and chooses the token; neither proves anything about contents. What a driver wrote it knows
again by this record, which outlives it, and which begins anew, with a new key, when the driver is another: its version, its
code, its engine, or the processor where that matters to it.

    0   8  magic     40  32  identity of the driver     128  records: token, hash, number of its writing (32, 32, 8 bytes)
    8  32  key       72   8  number of the last writing
"""

import fcntl
import os
import re
import secrets
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from nnhal.base.log import logger
from nnhal.base.private import private_file, private_folder

MAGIC = b"NNHALtk\n"
KEY = 32  # bytes
MOST_RECORDS, MOST_OF_ONE = 4096, 8  # in all; of one token, which several processes may have written at once
_HEAD = struct.Struct("<8s32s32sQ48x")
_RECORD = struct.Struct("<32s32sQ")
_log = logger("compilation")


def state_folder() -> Path:
    """Where what belongs to the user, and is no cache, lies: NNHAL_STATE_DIR, or `nnhal` below XDG_STATE_HOME."""
    given = os.environ.get("NNHAL_STATE_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "nnhal"


class TokenStore:
    """The record of one driver. Any thread and any process may use it at any time. Every method may raise OSError."""

    def __init__(self, fd: int) -> None:
        """fd: of the file, read-write; it stays open as long as the process lives."""
        self._fd, self._lock = fd, threading.Lock()

    @classmethod
    def open(cls, driver: str) -> "TokenStore":
        """That of a driver by its name, made where it is missing. OSError, NotPrivate among them, where that cannot be."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", driver)[:64] + "-" + blake2b(driver.encode(), digest_size=8).hexdigest()
        folder = private_folder(state_folder())
        try:
            return cls(private_file(folder, f"{name}.tokens", os.O_RDWR | os.O_CREAT))
        finally:
            os.close(folder)

    def fileno(self) -> int:
        """The descriptor of its file."""
        return self._fd

    @property
    def gone(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def key(self, identity: bytes) -> bytes:
        """The key of what this driver writes; a new one where the record was another driver's."""
        with self._alone():
            return self._begun(identity)[0]

    def remember(self, identity: bytes, token: bytes, digest: bytes) -> None:
        """Note what was written for a token. The record written longest ago goes where there is no room."""
        with self._alone():
            key, count = self._begun(identity)
            records = self._records()
            same = [at for at, (its, _, _) in records.items() if its == token]
            at = next((n for n in same if records[n][1] == digest), None)
            if at is None and len(same) >= MOST_OF_ONE:
                at = min(same, key=lambda n: records[n][2])
            if at is None:
                at = next((n for n in range(MOST_RECORDS) if n not in records), None)
            if at is None:
                at = min(records, key=lambda n: records[n][2])
            os.pwrite(self._fd, _RECORD.pack(token, digest, count + 1), _HEAD.size + at * _RECORD.size)
            os.pwrite(self._fd, _HEAD.pack(MAGIC, key, identity, count + 1), 0)

    def knows(self, identity: bytes, token: bytes, digest: bytes) -> bool:
        """Whether this is what was written for a token."""
        with self._alone():
            self._begun(identity)
            return any((its, written) == (token, digest) for its, written, _ in self._records().values())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _begun(self, identity: bytes) -> tuple[bytes, int]:
        """Key and number of the last writing, of this very driver."""
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) == _HEAD.size:
            magic, key, its, count = _HEAD.unpack(head)
            if (magic, its) == (MAGIC, identity):
                return key, count
            _log.info(
                "the record of cached compilations begins anew: the driver, its engine or the processor is another"
            )
        key = secrets.token_bytes(KEY)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, _HEAD.pack(MAGIC, key, identity, 0), 0)
        return key, 0

    def _records(self) -> dict[int, tuple[bytes, bytes, int]]:
        data = os.pread(self._fd, MOST_RECORDS * _RECORD.size, _HEAD.size)
        whole = len(data) - len(data) % _RECORD.size
        found = enumerate(_RECORD.iter_unpack(data[:whole]))
        return {n: (token, digest, number) for n, (token, digest, number) in found if number}
