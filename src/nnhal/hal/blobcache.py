"""A driver's key-value store for expensive results, such as kernels and packed weights. nnhal's addition to the HAL.

    blobs = blobs_of(device)
    packed = blobs.get(key)
    if packed is None:
        packed = pack(weights)
        blobs.put(key, packed)

Values outlive the process. They are visible to this state of the driver only: another version, other code, or another
CPU (if the device declares that it matters) does not find them. Drivers of any HAL version may use it, isolated or not.

    0   8  magic          8  32  key of the hashes          40  blobs, one after the other

    0   4  mark           4   4  length of the key          8   8  length of the value
   16  32  keyed hash of the driver's identity, key and value
   48      key, value

The file is a `StateFile`: a blob is one write to its end, so processes need no lock. The file is read and never mapped,
so a process survives if another one truncates it. A value is copied before it is verified, and the driver gets the
verified bytes.
"""

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from nnhal.base.answers import safe_repr
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger
from nnhal.hal.cache import tokens
from nnhal.hal.cache.files import Section
from nnhal.hal.cache.state import HEAD, StateFile, state_file
from nnhal.hal.device import Device, cache_record_identity

MAGIC, MARK = b"NNHALbl\n", b"blob"
MOST = 64 << 20  # bytes of the file; beyond, the only process that opens the file drops the older half
MOST_KEY, MOST_VALUE = 1024, 16 << 20  # bytes
_LOOK = 1 << 16  # bytes that are searched at a time for the next mark
_BLOB = struct.Struct("<4sIQ32s")
_log = logger("driver")


class BlobCache:
    """The store of one driver, for any number of threads and processes at a time. Without a file it stores nothing."""

    def __init__(self, file: StateFile | None, identity: bytes, again: Callable[[], StateFile] | None = None) -> None:
        """identity: of the values' writer. again: opens the file if it was removed; None in a process that opens none."""
        self._identity, self._again = identity, again
        self._lock = threading.Lock()
        self._begin(file)

    def _begin(self, file: StateFile | None) -> None:
        self._file = file
        self._seen = HEAD.size  # the end of the part of the file that `_places` covers
        self._places: dict[bytes, list[int]] = {}  # of blobs by key, the last one last

    @property
    def has_file(self) -> bool:
        """Whether it has a file."""
        return self._file is not None

    def get(self, key: bytes) -> bytes | None:
        """Return the last value of a key, from this or another process; None without a valid one."""
        key = _checked(key)
        with self._lock:
            if self._file is None:
                return None
            try:
                self._look(self._file)
                for place in reversed(self._places.get(key, [])):
                    value = self._value(self._file, key, place)
                    if value is not None:
                        return value
            except OSError as error:
                _log.warning("a blob is not read: %s", error.strerror)
        return None

    def put(self, key: bytes, value: Section) -> bool:
        """Store a value; return whether that succeeded. It fails if the file is full until the next start.

        key: 1 to 1,024 bytes. value: at most 16 MiB. InvalidArgument for anything else.
        """
        key = _checked(key)
        try:
            data = memoryview(value).cast("B")
        except (TypeError, ValueError):
            raise InvalidArgument(f"blob: value is {safe_repr(value)}, must be contiguous bytes") from None
        if data.nbytes > MOST_VALUE:
            return False
        with self._lock:
            try:
                if self._file is not None and self._file.gone and self._again is not None:
                    self._begin(self._again())
                return self._file is not None and self._put(self._file, key, data)
            except OSError as error:
                _log.warning("a blob of %d bytes is not kept: %s", data.nbytes, error.strerror)
                return False

    def _put(self, file: StateFile, key: bytes, data: memoryview) -> bool:
        blob = _BLOB.pack(MARK, len(key), data.nbytes, self._hash(file, key, data)) + key + data
        if file.size + len(blob) > MOST:
            return False
        file.append(blob)
        return True

    def _hash(self, file: StateFile, key: bytes, value: Section) -> bytes:
        made = blake2b(self._identity + struct.pack("<I", len(key)) + key, key=file.key, digest_size=32)
        made.update(value)
        return made.digest()

    def _look(self, file: StateFile) -> None:
        """Index the blobs that were written since the last call."""
        size = file.size
        if size < self._seen:  # truncated
            self._begin(file)
        self._seen = max(self._seen, size - MOST)
        read = partial(_bytes_at, file.fd)
        while (found := _next(read, self._seen, size)) is not None:
            place, self._seen = found
            (length,) = struct.unpack("<I", read(place + 4, 4))
            key = read(place + _BLOB.size, length)
            # Of another identity, or an incomplete blob that hides the following ones
            if self._value(file, key, place) is None:
                self._seen = place + 1
            else:
                self._places.setdefault(key, []).append(place)

    def _value(self, file: StateFile, key: bytes, place: int) -> bytes | None:
        head = _bytes_at(file.fd, place, _BLOB.size)
        if len(head) < _BLOB.size:
            return None
        _, length, size, digest = _BLOB.unpack(head)
        if size > MOST_VALUE:
            return None
        value = _bytes_at(file.fd, place + _BLOB.size + length, size)
        return value if len(value) == size and self._hash(file, key, value) == digest else None


def _bytes_at(fd: int, at: int, size: int) -> bytes:
    return os.pread(fd, size, at)


def blobs_of(device: object) -> BlobCache:
    """Return the store of a driver. Without a state folder it stores nothing, and the log has the reason.

    device: the Device, or the object of a driver that implements the HAL.
    """
    if not isinstance(device, Device):
        from nnhal.hal.hidl.adapters import adapt

        device = adapt(device)
    name, identity = cache_record_identity(device)
    try:
        if _only:
            return BlobCache(_only[0], identity)
        again = partial(open_state_file, state_file(name, "blobs"))
        return BlobCache(again(), identity, again)
    except OSError as error:
        _log.warning("device %s has no store for blobs: %s", name, error.strerror or error)
        return BlobCache(None, identity)


_only: list[StateFile] = []  # of a process that opens no more files


def open_ahead(driver: str) -> None:
    """Open the files of this process's driver before the process enters its sandbox. Without them, nothing is stored."""
    tokens.open_ahead(driver)
    with suppress(OSError):
        _only.append(open_state_file(state_file(driver, "blobs")))


def _checked(key: bytes) -> bytes:
    if not isinstance(key, bytes) or not 0 < len(key) <= MOST_KEY:
        raise InvalidArgument(f"blob: key is {safe_repr(key)}, must be 1 to {MOST_KEY} bytes")
    return key


def _next(read: Callable[[int, int], bytes], at: int, end: int) -> tuple[int, int] | None:
    """Return the place and end of the next possible blob; incomplete ones are skipped. read: the bytes at a place."""
    while at + _BLOB.size <= end:
        head = read(at, _BLOB.size)
        if not head.startswith(MARK):
            found = read(at, _LOOK).find(MARK)
            at += found if found >= 0 else _LOOK - len(MARK) + 1
            continue
        if len(head) < _BLOB.size:
            return None
        _, length, size, _ = _BLOB.unpack(head)
        after = at + _BLOB.size + length + size
        if 0 < length <= MOST_KEY and size <= MOST_VALUE and after <= end:
            return at, after
        at += 1
    return None


def open_state_file(name: str) -> StateFile:
    """Open a state file. The only process that has a full one open drops its older half."""
    return StateFile.open(name, MAGIC, MOST * 3 // 4, _newer)


def _newer(data: bytes) -> bytes:
    """Return the last blobs that fit into half a file."""
    kept, at = list[bytes](), 0
    while (found := _next(lambda place, size: data[place : place + size], at, len(data))) is not None:
        kept.append(data[found[0] : found[1]])
        at = found[1]
    while sum(map(len, kept)) > MOST // 2:
        kept.pop(0)
    return b"".join(kept)
