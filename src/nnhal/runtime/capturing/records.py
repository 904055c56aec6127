"""The format of a capture: a file of records, which a reader does not trust.

The file begins with 8 bytes that identify the format and its version. Frames follow: a mark, the CRC-32 of the payload,
its length, and the payload. The payload of a `RECD` frame is a record as MessagePack. That of a `BLOB` frame is the digest
of some bytes, and these bytes: the contents of a weight pool or an array, once in the file. The CRC of a blob covers its
digest. Frames are appended whole, so a file is usable up to its last frame, whatever became of the application.
"""

import struct
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nnhal.base.digests import blake2b

VERSION = 1
MAGIC = b"\x00NNHALC" + bytes([VERSION])
RECORD, BLOB = b"RECD", b"BLOB"
FRAME = struct.Struct("<4sIQ")  # mark, CRC-32, length of the payload
DIGEST = 16  # bytes
LONGEST_RECORD = 1 << 28  # bytes; a reader refuses longer ones

Number = Annotated[int, Meta(ge=0)]
Digest = Annotated[bytes, Meta(max_length=DIGEST)]  # b"" if the bytes are not in the file


class CapturedArray(Struct, array_like=True, frozen=True):
    """An input or output. lacks: why its contents are not in the file. buffer: whether it lay in a device's buffer."""

    dtype: str
    shape: tuple[Number, ...]
    contents: Digest = b""
    lacks: str = ""
    buffer: bool = False


class CapturedRoom(Struct, array_like=True, frozen=True):
    """The client's memory for an output. of_bytes: an array of bytes, whose shape is its size."""

    shape: tuple[Number, ...]
    of_bytes: bool = False


class CaptureHead(Struct, array_like=True, frozen=True, tag="head"):
    """The first record: who wrote the file."""

    nnhal: str
    pid: int
    command: tuple[str, ...]
    started: str  # UTC, ISO 8601
    system: str
    data: bool  # whether inputs and outputs are captured
    limit: Number  # of the file, in bytes


class CapturedModel(Struct, array_like=True, frozen=True, tag="model"):
    """A model. head: as in `model.file.head_of`, without `values`. lacks: why some of its contents are not in the file."""

    number: Number
    name: str
    operations: tuple[str, ...]
    head: bytes
    values: Digest
    pools: tuple[Digest, ...]
    lacks: str = ""


class CapturedCompilation(Struct, array_like=True, frozen=True, tag="compilation"):
    """An application compiles a model. token: its own token for the cache, if it gave one."""

    number: Number
    model: Number
    token: bytes | None


class CapturedPreparation(Struct, array_like=True, frozen=True, tag="preparation"):
    """A device is given a model to prepare. where: its label, origin and isolation. deadline: nanoseconds left."""

    number: Number
    compilation: Number
    model: Number
    device: str
    version: str
    level: str
    where: dict[str, str]
    preference: int
    priority: int
    threads: int
    deadline: int | None
    options: dict[str, bool | int | float | str | None]
    lacks: str = ""


class PreparationEnd(Struct, array_like=True, frozen=True, tag="prepared"):
    """The end of a preparation: an `ErrorStatus` and a message, or the outcome of the cache entry."""

    number: Number
    status: int
    error: str
    nanoseconds: Number
    cached: str = ""


class CapturedPlacement(Struct, array_like=True, frozen=True, tag="placement"):
    """Where the operations run, and why: JSON as of `Placement.to_dict`. parts: the preparations of its partitions."""

    compilation: Number
    parts: tuple[int, ...]  # -1 for one that no device prepared
    placement: bytes


class CapturedRequest(Struct, array_like=True, frozen=True, tag="request"):
    """A device is given a request. inputs: None for an omitted one. rooms: None if the client gave no memory.

    deadline: nanoseconds left. at: nanoseconds since the capture began.
    """

    number: Number
    preparation: Number
    way: str
    inputs: tuple[CapturedArray | None, ...]
    rooms: tuple[CapturedRoom | None, ...]
    deadline: int | None
    loop_timeout: int
    measure: bool
    at: Number


class RequestEnd(Struct, array_like=True, frozen=True, tag="executed"):
    """The end of a request. shapes: None for an unknown one. small: the outputs whose memory was too small."""

    number: Number
    status: int
    error: str
    outputs: tuple[CapturedArray | None, ...]
    shapes: tuple[tuple[Number, ...] | None, ...]
    small: tuple[Number, ...]
    nanoseconds: Number
    on_device: int | None = None
    in_driver: int | None = None


class CaptureNote(Struct, array_like=True, frozen=True, tag="note"):
    """Something that the capture lacks, and why."""

    text: str


class CaptureEnd(Struct, array_like=True, frozen=True, tag="end"):
    """The last record of a capture that ended in order. dropped: records beyond the limit of the file."""

    dropped: Number


CaptureRecord = (
    CaptureHead
    | CapturedModel
    | CapturedCompilation
    | CapturedPreparation
    | PreparationEnd
    | CapturedPlacement
    | CapturedRequest
    | RequestEnd
    | CaptureNote
    | CaptureEnd
)
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(CaptureRecord).decode


def digest_of(data: bytes | memoryview) -> bytes:
    """Return the digest of the bytes of a blob."""
    return blake2b(data, digest_size=DIGEST).digest()


def frame(mark: bytes, payload: bytes, more: int = 0) -> bytes:
    """Return the beginning of a frame, whose payload has `more` bytes after these."""
    return FRAME.pack(mark, zlib.crc32(payload), len(payload) + more) + payload
