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

A blob is one write to the end of the file, so processes need no lock. The file is mapped; what is read is copied before it
is judged, and what was judged is what the driver gets.
"""

import mmap
import os
import struct
import threading
from contextlib import suppress

from nnhal.base.answers import shown
from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger
from nnhal.base.private import locked, made_anew, private_file, private_folder
from nnhal.hal.cache import tokens
from nnhal.hal.cache.files import Section
from nnhal.hal.cache.tokens import state_file, state_folder
from nnhal.hal.device import Device, written_by

MAGIC, MARK = b"NNHALbl\n", b"blob"
MOST = 64 << 20  # bytes of the file; beyond, the older half is forgotten when a process opens it
MOST_KEY, MOST_VALUE = 1024, 16 << 20  # bytes
_HEAD = struct.Struct("<8s32s")
_BLOB = struct.Struct("<4sIQ32s")
_log = logger("driver")


class BlobCache:
    """Values by keys, for one driver. Any number of threads and processes at a time. Without a file it keeps nothing."""

    def __init__(self, file: Owner | None, identity: bytes) -> None:
        """file: open to read and to write at its end. identity: whose values."""
        self._file, self._identity = file, identity
        fd = self._fd = None if file is None else file.fds[0]
        self._key = b"" if fd is None else os.pread(fd, _HEAD.size, 0)[8:]
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        self._seen = _HEAD.size  # up to where `_places` is of the file
        self._places: dict[bytes, list[int]] = {}  # of blobs by key, the last one last

    @property
    def keeps(self) -> bool:
        """Whether there is a file to keep anything in."""
        return self._fd is not None

    def get(self, key: bytes) -> bytes | None:
        """The value put last for a key, by this process or another; None where there is none that is whole."""
        key = _checked(key)
        if self._fd is None:
            return None
        with self._lock:
            self._look()
            for place in reversed(self._places.get(key, [])):
                value = self._value(key, place)
                if value is not None:
                    return value
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
        if self._fd is None or data.nbytes > MOST_VALUE:
            return False
        blob = _BLOB.pack(MARK, len(key), data.nbytes, self._hash(key, data)) + key + data
        with self._lock:
            try:
                if os.fstat(self._fd).st_size + len(blob) > MOST:
                    return False
                return os.write(self._fd, blob) == len(blob)
            except OSError as error:
                _log.warning("a blob of %d bytes is not kept: %s", data.nbytes, error.strerror)
                return False

    def _hash(self, key: bytes, value: Section) -> bytes:
        made = blake2b(self._identity + struct.pack("<I", len(key)) + key, key=self._key, digest_size=32)
        made.update(value)
        return made.digest()

    def _look(self) -> None:
        """Find what was written since."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size <= self._seen:
            return
        self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        while (found := _next(self._map, self._seen)) is not None:
            place, self._seen = found
            start = place + _BLOB.size
            (length,) = struct.unpack_from("<I", self._map, place + 4)
            key = self._map[start : start + length]
            if self._value(key, place) is None:  # of another identity, or what stands half and hides what follows
                self._seen = place + 1
            else:
                self._places.setdefault(key, []).append(place)

    def _value(self, key: bytes, place: int) -> bytes | None:
        assert self._map is not None
        _, length, size, digest = _BLOB.unpack(self._map[place : place + _BLOB.size])
        start = place + _BLOB.size + length
        value = self._map[start : start + size]  # a copy
        return value if len(value) == size and self._hash(key, value) == digest else None


def blobs_of(device: object) -> BlobCache:
    """The store of a driver. It keeps nothing where the user's folder of state cannot be had; the log says why.

    device: the Device, or the object of a driver that is written against the HAL.
    """
    if not isinstance(device, Device):
        from nnhal.hal.hidl.adapters import adapt

        device = adapt(device)
    name, identity = written_by(device)
    try:
        return BlobCache(_only[0] if _only else opened(state_file(name, "blobs")), identity)
    except OSError as error:
        _log.warning("device %s has no store for blobs: %s", name, error.strerror or error)
        return BlobCache(None, identity)


_only: list[Owner] = []  # of a process that opens no files any more


def open_ahead(driver: str) -> None:
    """Open the files of the one driver of this process, which will be confined. Without them it keeps nothing."""
    tokens.open_ahead(driver)
    with suppress(OSError):
        _only.append(opened(state_file(driver, "blobs")))


def _checked(key: bytes) -> bytes:
    if not isinstance(key, bytes) or not 0 < len(key) <= MOST_KEY:
        raise InvalidArgument(f"blob: key is {shown(key)}, must be 1 to {MOST_KEY} bytes")
    return key


def _next(data: "mmap.mmap | bytes", at: int) -> tuple[int, int] | None:
    """Place and end of the next blob that can be one; what stands half is passed over."""
    while (place := data.find(MARK, at)) >= 0 and place + _BLOB.size <= len(data):
        _, length, size, _ = _BLOB.unpack(data[place : place + _BLOB.size])
        end = place + _BLOB.size + length + size
        if 0 < length <= MOST_KEY and size <= MOST_VALUE and end <= len(data):
            return place, end
        at = place + 1
    return None


def opened(name: str) -> Owner:
    """A file in the user's folder of state, of the right form and not too long; in the place of any other a new one with the
    newer half of its blobs.
    """
    folder, file = private_folder(state_folder()), Owner()
    try:
        locked(folder)
        file.fds.append(private_file(folder, name, os.O_RDWR | os.O_CREAT | os.O_APPEND))
        fd = file.fds[0]
        head, size = os.pread(fd, _HEAD.size, 0), os.fstat(fd).st_size
        known = head[:8] == MAGIC and len(head) == _HEAD.size
        if known and size <= MOST * 3 // 4:
            return file
        data = os.pread(fd, size, 0) if known else b""
        file = Owner()
        kept, at = list[bytes](), _HEAD.size
        while (found := _next(data, at)) is not None:
            kept.append(data[found[0] : found[1]])
            at = found[1]
        while sum(map(len, kept)) > MOST // 2:
            kept.pop(0)
        key = head[8:] if known else os.urandom(32)
        file.fds.append(made_anew(folder, name, _HEAD.pack(MAGIC, key) + b"".join(kept)))
        return file
    finally:
        os.close(folder)
