"""The format of cache files: `header | sections | keyed hash`.

The client that opened the files, or another process with write access, may have changed them. So a file is read into
memory once, and only those bytes are verified and used.

    0   8  magic           48  32  token                    112  names and sizes of the sections, 16 bytes each and the name
    8   4  version         80  32  identity of the driver     …  the sections, each from a multiple of 64 on
    12  2  kind, number                                       …  32 bytes: keyed hash of all before
    16  8  length of the whole file
    24  4  count of sections
"""

import os
import struct
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nnhal.base.answers import safe_repr
from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.base.memory import Memory, aligned
from nnhal.base.names import printable
from nnhal.base.records import PartlyCompared, Struct, field

TOKEN_SIZE = 32  # bytes
MOST_FILES = 32  # of each kind
LARGEST = 1 << 31  # bytes of one file
MOST_SECTIONS, LONGEST_NAME = 4096, 255
MAGIC, VERSION = b"NNHALcf\n", 1
REFUSAL, MOST_REFUSAL = b"NNHALno\n", 1000  # bytes
HASH = 32  # bytes
_HEADER = struct.Struct("<8sIBBxxQI20x32s32s")
_SECTION = struct.Struct("<QII")  # size, length of the name, 0
KINDS = "model", "data"


class CacheFiles(NamedTuple):
    """The number of cache files of each kind in one compilation."""

    model: int = 0
    data: int = 0

    def __bool__(self) -> bool:
        return self.model > 0 or self.data > 0


class Cache(PartlyCompared, frozen=True):
    """The files of one compilation, and its token.

    token: 32 bytes. model_files, data_files: descriptors, read-write and at 0, as many as the device requests. They
    belong to the caller: a driver that needs them after the call duplicates them. kept_by: keeps them open. settled:
    set when the call has ended and its result is saved, or will not be: `Later` writes then. later: set if `Later` has
    them.
    """

    token: bytes
    model_files: tuple[int, ...] = ()
    data_files: tuple[int, ...] = ()
    kept_by: Any = None
    settled: threading.Event = field(default_factory=threading.Event)
    later: threading.Event = field(default_factory=threading.Event)

    _not_compared = _not_shown = frozenset({"kept_by", "settled", "later"})

    @property
    def files(self) -> tuple[int, ...]:
        """All descriptors, those of the model files first."""
        return self.model_files + self.data_files

    @property
    def unwritten(self) -> bool:
        """Whether all files are empty, because the driver will write them later. OSError."""
        return not any(os.fstat(fd).st_size for fd in self.files)


Section = bytes | bytearray | memoryview


class CacheContent(Struct):
    """The content that a prepared model saves and is restored from: for each file, sections of bytes by name.

    model: content that is dangerous if it is changed, such as code. data: constants. pools: the memories of the model's
    constants, the same in both: content may refer to bytes of them instead of copying them.
    """

    model: list[MutableMapping[str, Any]] = field(default_factory=list)
    data: list[MutableMapping[str, Any]] = field(default_factory=list)
    pools: Sequence[Memory] = ()

    @classmethod
    def empty(cls, files: CacheFiles, pools: Sequence[Memory] = ()) -> "CacheContent":
        """Return empty content, to fill."""
        return cls([{} for _ in range(files.model)], [{} for _ in range(files.data)], pools)


class DamagedCacheFile(OperationFailed):
    """A cache file has changed since it was written."""


def encode_files(content: CacheContent, token: bytes, identity: bytes, key: bytes) -> tuple[list[bytearray], bytes]:
    """Return the bytes of each file, those of the model files first, and the hash over all of them."""
    made = [
        _file(sections, kind, number, token, identity, key)
        for kind, files in enumerate((content.model, content.data))
        for number, sections in enumerate(files)
    ]
    return made, _together(made, key)


def parse_files(
    model: Sequence[Section], data: Sequence[Section], token: bytes, identity: bytes, key: bytes
) -> tuple[CacheContent, bytes]:
    """Return the content of the files and their hash; DamagedCacheFile names the file and the reason.

    The content refers to the given bytes.
    """
    content = CacheContent()
    for kind, (files, into) in enumerate(((model, content.model), (data, content.data))):
        for number, file in enumerate(files):
            into.append(_sections(memoryview(file).toreadonly(), kind, number, token, identity, key))
    return content, _together([*model, *data], key)


def written_by(file: Section) -> bytes | None:
    """Return the identity of the writer in a file's header; None if it has another format."""
    if len(file) < _HEADER.size or bytes(file[: len(MAGIC)]) != MAGIC:
        return None
    return bytes(_HEADER.unpack_from(file)[-1])


def read(fd: int) -> bytes:
    """Return a copy of the whole file. OSError.

    DamagedCacheFile if the size is not that in its header, which is checked first, or if there is not enough memory.
    """
    size = os.fstat(fd).st_size
    if size > LARGEST:
        raise DamagedCacheFile(f"it has {size} bytes, must be at most {LARGEST}")
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) == _HEADER.size and head.startswith(MAGIC) and _HEADER.unpack(head)[4] != size:
        raise DamagedCacheFile(f"it has {size} bytes, must be {_HEADER.unpack(head)[4]}")
    try:
        data = os.pread(fd, size, 0)
        while len(data) < size:
            more = os.pread(fd, size - len(data), len(data))
            if not more:
                raise DamagedCacheFile(f"it ends at byte {len(data)}, was {size} bytes long")
            data += more
    except MemoryError:
        raise DamagedCacheFile(f"its {size} bytes do not fit into memory") from None
    return data


def write(fd: int, data: Section) -> None:
    """Replace the contents of a file. OSError."""
    os.ftruncate(fd, 0)
    view, at = memoryview(data), 0
    while at < len(view):
        at += os.pwrite(fd, view[at : at + (1 << 26)], at)


def os_reason(error: OSError) -> str:
    """Return the system's reason."""
    return (error.strerror or str(error)).lower() if error.errno else str(error.strerror)


def write_refusal(cache: Cache, why: str) -> None:
    """Replace the files' contents with the reason, for `read_refusal`, if possible."""
    for fd in cache.files:
        with suppress(OSError):
            os.ftruncate(fd, 0)
    with suppress(OSError):
        write(cache.files[0], REFUSAL + why.encode()[:MOST_REFUSAL])


def read_refusal(fd: int) -> str:
    """Return why a driver cached nothing, from its first file; "" if the file has no reason. OSError."""
    said = os.pread(fd, len(REFUSAL) + MOST_REFUSAL, 0)
    if not said.startswith(REFUSAL):
        return ""
    return printable(said[len(REFUSAL) :].decode(errors="replace")) or "no reason given"


def _file(sections: Mapping[str, Any], kind: int, number: int, token: bytes, identity: bytes, key: bytes) -> bytearray:
    names = [_name(name) for name in sections]
    views = [_view(value, name) for name, value in sections.items()]
    if len(names) > MOST_SECTIONS:
        raise ContractBroken(f"save() gave {len(names)} sections for a file, must be at most {MOST_SECTIONS}")
    table = b"".join(_SECTION.pack(len(view), len(name), 0) + name for view, name in zip(views, names, strict=True))
    starts, end = [], _HEADER.size + len(table)
    for view in views:
        starts.append(aligned(end))
        end = starts[-1] + len(view)
    size = end + HASH
    if size > LARGEST:
        raise ContractBroken(f"save() gave {size} bytes for a file, must be at most {LARGEST}")
    made = bytearray(size)
    _HEADER.pack_into(made, 0, MAGIC, VERSION, kind, number, size, len(names), token, identity)
    made[_HEADER.size : _HEADER.size + len(table)] = table
    for start, view in zip(starts, views, strict=True):
        made[start : start + len(view)] = view
    made[end:] = _hash(memoryview(made)[:end], key)
    return made


def _name(name: Any) -> bytes:
    encoded = name.encode() if isinstance(name, str) else b""
    if not 0 < len(encoded) <= LONGEST_NAME:
        raise ContractBroken(
            f"save() gave a section called {safe_repr(name)}, must be text of 1 to {LONGEST_NAME} bytes"
        )
    return encoded


def _view(value: Any, name: str) -> memoryview:
    try:
        return memoryview(value).cast("B")
    except (TypeError, ValueError):
        raise ContractBroken(f"save() gave {safe_repr(value)} for section {name}, must be contiguous bytes") from None


def _sections(
    file: memoryview, kind: int, number: int, token: bytes, identity: bytes, key: bytes
) -> dict[str, memoryview]:
    """Return the sections of one file, after its hash is verified."""
    what = f"{KINDS[kind]} file {number}"
    if len(file) < _HEADER.size + HASH:
        raise DamagedCacheFile(f"damaged: {what} has {len(file)} bytes, must be at least {_HEADER.size + HASH}")
    magic, version, its_kind, its_number, size, count, its_token, its_identity = _HEADER.unpack_from(file)
    if magic != MAGIC:
        raise DamagedCacheFile(f"damaged: {what} does not begin as a cache file does")
    if version != VERSION:
        raise DamagedCacheFile(f"{what} is of format {version}, must be {VERSION}")
    if size != len(file):
        raise DamagedCacheFile(f"damaged: {what} has {len(file)} bytes, must be {size}")
    if its_identity != identity:
        raise DamagedCacheFile(f"{what} is of another driver, version, engine or processor")
    if _hash(file[:-HASH], key) != file[-HASH:]:
        raise DamagedCacheFile(f"damaged: {what} is not what was written, or was written with another key")
    if its_token != token:
        raise DamagedCacheFile(f"{what} is of another token")
    if (its_kind, its_number) != (kind, number):
        raise DamagedCacheFile(f"{what} was written as {KINDS[its_kind & 1]} file {its_number}")
    found, at, sizes = {}, _HEADER.size, []
    for _ in range(count):
        length, name, _ = _SECTION.unpack_from(file, at)
        at += _SECTION.size + name
        sizes.append((str(file[at - name : at], "utf-8"), length))
    for name, length in sizes:
        start = aligned(at)
        at = start + length
        found[name] = file[start:at]
    return found


def _together(files: Sequence[Section], key: bytes) -> bytes:
    return _hash(b"".join(bytes(memoryview(file)[-HASH:]) for file in files), key, b"nnhal entry")


def _hash(data: Section, key: bytes, person: bytes = b"") -> bytes:
    from nnhal.base.digests import blake2b

    return blake2b(data, key=key, digest_size=HASH, person=person).digest()
