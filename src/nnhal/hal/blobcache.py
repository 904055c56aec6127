"""A driver's own store for what it does not want to make twice: kernels, packed weights. The way of caching without the HAL.

    blobs = blobs_of(device)
    packed = blobs.get(key)
    if packed is None:
        packed = pack(weights)
        blobs.put(key, packed)

Values last beyond the process and belong to this state of the driver alone: another version, code, or processor (where the
device says that it matters) finds none of them. A driver of any level may use it, in process or isolated.

    0   8  magic          8  32  key of the hashes          40  blobs, one after the other

    0   4  mark           4   4  length of the key          8   8  length of the value
   16  32  keyed hash of the driver's identity, key and value
   48      key, value

The file is a `StateFile`: a blob is one write to its end, so processes need no lock. The file is
read and never mapped, so a process survives when another one cuts it off. A value is copied
before it is judged, and the driver gets the bytes that were judged.
"""

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from nnhal.base.answers import shown
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger
from nnhal.hal.cache import tokens
from nnhal.hal.cache.files import Section
from nnhal.hal.cache.state import HEAD, StateFile, state_file
from nnhal.hal.device import Device, written_by

MAGIC, MARK = b"NNHALbl\n", b"blob"
MOST = 64 << 20  # bytes of the file; beyond, the older half is forgotten when a process opens it alone
MOST_KEY, MOST_VALUE = 1024, 16 << 20  # bytes
_LOOK = 1 << 16  # bytes that are searched at a time for the next mark
_BLOB = struct.Struct("<4sIQ32s")
_log = logger("driver")


class BlobCache:
    """Values by keys, for one driver. Any number of threads and processes at a time. Without a file it keeps nothing."""

    def __init__(self, file: StateFile | None, identity: bytes, again: Callable[[], StateFile] | None = None) -> None:
        """identity: whose values. again: opens the file when this one was removed; None in a process that opens none."""
        self._identity, self._again = identity, again
        self._lock = threading.Lock()
        self._begin(file)

    def _begin(self, file: StateFile | None) -> None:
        self._file = file
        self._seen = HEAD.size  # up to where `_places` is of the file
        self._places: dict[bytes, list[int]] = {}  # of blobs by key, the last one last

    @property
    def keeps(self) -> bool:
        """Whether there is a file to keep anything in."""
        return self._file is not None

    def get(self, key: bytes) -> bytes | None:
        """The value put last for a key, by this process or another; None where there is none that is whole."""
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
        """Keep a value; whether that could be done. It cannot where it is too large, or the file full until the next start.

        key: 1 to 1,024 bytes. value: 16 MiB at most. Raises InvalidArgument for what is neither.
        """
        key = _checked(key)
        try:
            data = memoryview(value).cast("B")
        except (TypeError, ValueError):
            raise InvalidArgument(f"blob: value is {shown(value)}, must be contiguous bytes") from None
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
        """Find what was written since."""
        size = file.size
        if size < self._seen:  # cut off
            self._begin(file)
        self._seen = max(self._seen, size - MOST)
        read = partial(_bytes_at, file.fd)
        while (found := _next(read, self._seen, size)) is not None:
            place, self._seen = found
            (length,) = struct.unpack("<I", read(place + 4, 4))
            key = read(place + _BLOB.size, length)
            if self._value(file, key, place) is None:  # of another identity, or what stands half and hides what follows
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
    """The store of a driver. It keeps nothing where the user's folder of state cannot be had; the log says why.

    device: the Device, or the object of a driver that is written against the HAL.
    """
    if not isinstance(device, Device):
        from nnhal.hal.hidl.adapters import adapt

        device = adapt(device)
    name, identity = written_by(device)
    try:
        if _only:
            return BlobCache(_only[0], identity)
        again = partial(opened, state_file(name, "blobs"))
        return BlobCache(again(), identity, again)
    except OSError as error:
        _log.warning("device %s has no store for blobs: %s", name, error.strerror or error)
        return BlobCache(None, identity)


_only: list[StateFile] = []  # of a process that opens no files any more


def open_ahead(driver: str) -> None:
    """Open the files of the one driver of this process, which will be confined. Without them it keeps nothing."""
    tokens.open_ahead(driver)
    with suppress(OSError):
        _only.append(opened(state_file(driver, "blobs")))


def _checked(key: bytes) -> bytes:
    if not isinstance(key, bytes) or not 0 < len(key) <= MOST_KEY:
        raise InvalidArgument(f"blob: key is {shown(key)}, must be 1 to {MOST_KEY} bytes")
    return key


def _next(read: Callable[[int, int], bytes], at: int, end: int) -> tuple[int, int] | None:
    """Place and end of the next blob that can be one, by bytes at a place; what stands half is passed over."""
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


def opened(name: str) -> StateFile:
    """A file in the user's folder of state. A process that has it alone drops the older half of a full one."""
    return StateFile.open(name, MAGIC, MOST * 3 // 4, _newer)


def _newer(data: bytes) -> bytes:
    """The last blobs that fit into half a file."""
    kept, at = list[bytes](), 0
    while (found := _next(lambda place, size: data[place : place + size], at, len(data))) is not None:
        kept.append(data[found[0] : found[1]])
        at = found[1]
    while sum(map(len, kept)) > MOST // 2:
        kept.pop(0)
    return b"".join(kept)
