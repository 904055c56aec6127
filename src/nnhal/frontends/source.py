"""Reads a model's bytes from a file, bytes, or a member of a bundle, and identifies files of other formats."""

import codecs
import io
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.errors import BadFile, InvalidArgument, NnhalError, bounded_text, error_text
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.base.sealed import Readable, Store, sealed
from nnhal.frontends.zipped import END, MAGIC, MOST_BEHIND
from nnhal.model.file import is_model

if TYPE_CHECKING:
    from nnhal.frontends.archive import Archive

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable
IDENTIFIER = b"TFL3"
UNNAMED = "model"  # the label of bytes
MOST_LEVELS = 4  # of nested bundles
HEAD = 4096  # bytes that identify a format
BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"GIF8": "a GIF picture",
    b"BM": "a BMP picture", b"II*\0": "a TIFF picture", b"MM\0*": "a TIFF picture",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes it", b"GGUF": "a GGUF file", b"\x93NUMPY": "a numpy array",
    b"\x1f\x8b": "compressed with gzip", b"BZh": "compressed with bzip2", b"\xfd7zXZ\0": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd", b"7z\xbc\xaf": "a 7z archive", b"%PDF": "a PDF document",
    b"\x7fELF": "a program or library (ELF)",
    b"version https://git-lfs": "a pointer of Git LFS: `git lfs pull` fetches the file",
    b"\x08\x01\x12": "the graph of a TensorFlow SavedModel",
}  # fmt: skip
AT_FOUR = {
    b"ORTM": "an ONNX Runtime model",
    b"M001": "metadata of a .tflite file",
    b"TFL2": "a .tflite file of schema 2",
}
IN_ARCHIVES = {
    r"(^|/)data\.pkl$": "a PyTorch or TorchScript file", r"(^|/)model\.weights\.h5$": "a Keras file",
    r"(^|/)saved_model\.pb$": "a TensorFlow SavedModel in a zip file", r"\.npy$": "arrays of numpy (.npz)",
    r"\.mlmodel$": "a Core ML package",
}  # fmt: skip
IR, ONNX = re.compile(rb"<net\s"), re.compile(rb"\x08[\x01-\x14][\x12\x1a\x22\x2a\x32\x3a\x42]")
MODEL, AN_ONNX_MODEL = "a .tflite or .onnx file", "an ONNX model"
HINT = {
    "a TensorFlow": "tf.lite.TFLiteConverter converts it", "the graph of a T": "tf.lite.TFLiteConverter converts it",
    "an HDF5": "tf.lite.TFLiteConverter converts it", "a Keras": "tf.lite.TFLiteConverter converts it",
    "a PyTorch": "torch.onnx.export or ai-edge-torch converts it",
    "an ONNX Runtime": "use the .onnx file that it was made from",
}  # fmt: skip


def open_source(source: Source) -> tuple[str, Memory]:
    """Return a label for messages, and the bytes of one `.tflite` or `.onnx` file as a sealed memory.

    source: bytes, a readable binary file from its current position, a path, or `bundle:member`. BadFile identifies
    other formats, and lists the contents of a bundle.
    """
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    if isinstance(source, bytes):
        return _checked(UNNAMED, Memory.wrap(np.frombuffer(source, np.uint8)))
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        label = short(os.fsdecode(name)) if isinstance(name, str | bytes) and name else UNNAMED
        return _checked(label, _stream(source, label))
    label = os.fspath(source)
    if not isinstance(label, str):
        raise InvalidArgument(f"path is {label!r}, must be text")
    path, members = split(label)
    if os.path.isdir(path):
        known = os.path.isfile(os.path.join(path, "saved_model.pb"))
        raise bad_file(path, "a TensorFlow SavedModel folder" if known else "a folder")
    if not os.path.isfile(path):
        raise BadFile(f"{path}: is not a file, must be {MODEL}")
    memory, name = _file(path), path
    for member in members:
        archive = bundle(memory.bytes(), name)
        if archive is None:
            raise BadFile(f"{name}: has no members, must be a zip file for {short(label)}")
        if member not in archive:
            raise BadFile(f"{name}: has no member {short(member)!r}, must be one of {archive_listing(archive)}")
        name = f"{name}:{short(member)}"
        memory = Memory.wrap(np.frombuffer(archive[member], np.uint8))
    return _checked(name, sealed(memory.bytes()) if members else memory)


def split(label: str) -> tuple[str, list[str]]:
    """Split a label into the path of a file and its members: `bundle.task:inner.task:model.tflite`."""
    path, members = label, list[str]()
    while not os.path.exists(path) and ":" in path and len(members) < MOST_LEVELS:
        path, _, member = path.rpartition(":")
        members.insert(0, member)
    return (path, members) if members and os.path.isfile(path) else (label, [])


def exists_in_archive(label: str) -> bool:
    """Whether it is a file or folder, or a member of a bundle."""
    return os.path.exists(label) or bool(split(label)[1])


def bundle(data: Array, label: str) -> "Archive | None":
    """Return the members of a zip file, None for another file. Other bytes may precede its first member.

    The zip file at the end of a model is its metadata, which a conversion to .nnhal keeps as a constant.
    """
    begins = data[: len(MAGIC)].tobytes() == MAGIC
    model = data[4:8].tobytes() == IDENTIFIER or is_model(data)
    behind = END in data[-MOST_BEHIND:].tobytes() and not model and not known(data)
    if not begins and not behind:
        return None
    from nnhal.frontends.archive import Archive

    return Archive(data, label)


def archive_listing(archive: Mapping[str, bytes]) -> str:
    """List the contents of a bundle."""
    names = list(archive)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(map(short, names[:20])) or "nothing: it is empty") + more


def bad_file(label: str, what: str) -> BadFile:
    """Return the error for a file of another format."""
    hint = next((f"; {text}" for start, text in HINT.items() if what.startswith(start)), "")
    return BadFile(f"{label}: is {what}, must be {MODEL}{hint}")


class TrailingArchive(Mapping[str, bytes]):
    """The zip file at the end of a model file, opened on first use; a missing one is empty."""

    def __init__(self, data: Array, label: str) -> None:
        there = END in data[-MOST_BEHIND:].tobytes()
        # The memory of a file without one may be released
        self._data, self._label = data if there else data[:0].copy(), label
        self._archive: Mapping[str, bytes] | None = None if there else {}

    def __reduce__(self) -> tuple[Any, ...]:
        return TrailingArchive, (self._data, self._label)

    def _opened(self) -> Mapping[str, bytes]:
        if self._archive is None:
            from nnhal.frontends.archive import Archive

            self._archive = Archive(self._data, self._label)
        return self._archive

    def __getitem__(self, name: str) -> bytes:
        return self._opened()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._opened()

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())


def _file(path: str) -> Memory:
    store = Store("nnhal-model")
    try:
        store.add_file(path)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}; must be {MODEL}") from error
    return store.seal()


def _stream(stream: Any, label: str) -> Memory:
    """Read the rest of an open file, or of a similar object."""
    if isinstance(stream, io.TextIOBase) or not callable(getattr(stream, "read", None)):
        raise InvalidArgument(f"{label}: is {safe_repr(stream)}, must be open for bytes (mode 'rb')")
    store = Store("nnhal-model")
    try:
        raw = getattr(stream, "raw", stream)
        if isinstance(raw, io.FileIO) and raw.seekable():
            stream.flush()
            store.add_file(label, stream.fileno(), stream.tell())
        else:
            store.add_stream(stream)
    except NnhalError:
        raise
    except Exception as error:  # any error of the object that is read
        raise BadFile(f"{label}: cannot be read: {bounded_text(error_text(error), 200)}; must be {MODEL}") from error
    if not store.size and _position(stream):
        raise BadFile(f"{label}: is at its end, must be at its beginning: seek(0)")
    return store.seal()


def _position(stream: Any) -> int:
    try:
        return int(stream.tell())
    except Exception:  # it has no position
        return 0


def _checked(label: str, memory: Memory) -> tuple[str, Memory]:
    """Return both; BadFile for a known other format."""
    data = memory.bytes()
    if data[4:8].tobytes() == IDENTIFIER or is_onnx(data):
        return label, memory
    archive = bundle(data, label)
    if archive is not None:
        raise _bundled(label, archive)
    what = known(data)
    if what:
        raise bad_file(label, what)
    return label, memory


def _bundled(label: str, archive: "Archive") -> BadFile:
    names = list(archive)
    for pattern, what in IN_ARCHIVES.items():
        if any(re.search(pattern, name) for name in names):
            return bad_file(label, what)
    models = [name for name in names if name.endswith((".tflite", ".task", ".lite", ".onnx"))]
    if not models:
        return BadFile(f"{label}: is a zip file of {archive_listing(archive)}, must be {MODEL} or hold one")
    ways = " or ".join(f"{label}:{short(name)}" for name in models[:8])
    return BadFile(f"{label}: is a bundle of {archive_listing(archive)}; name one of its models: {ways}")


def is_onnx(data: Array) -> bool:
    """Whether bytes begin like an `.onnx` file: with its version, and one of the next fields."""
    return data[4:8].tobytes() != IDENTIFIER and known(data) == AN_ONNX_MODEL


def known(data: Array) -> str:
    """Return the format of bytes that do not begin a `.tflite` file, "" if unknown."""
    head = data[:HEAD].tobytes()
    if not head:
        return "empty"
    found = next((what for start, what in BEGINNINGS.items() if head.startswith(start)), "") or AT_FOUR.get(
        head[4:8], ""
    )
    if found:
        return found
    if head[:4] == b"RIFF":
        return "a WebP picture" if head[8:12] == b"WEBP" else "sound (WAVE)" if head[8:12] == b"WAVE" else "a RIFF file"
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= len(data):
        return "a safetensors file"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1:
        return "a Python pickle, as PyTorch writes it"
    if ONNX.match(head):
        return AN_ONNX_MODEL
    return _text(head)


def _text(head: bytes) -> str:
    """Return the kind of text, "" if it is not text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD)  # the last character may be cut
    except UnicodeDecodeError:
        return ""
    if len(head) < 16 or any(byte < 9 or 13 < byte < 32 for byte in head):
        return ""
    start = head.lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if start.startswith(b"<"):
        return "an OpenVINO model (XML)" if IR.search(head) else "XML"
    return "JSON" if start[:1] in (b"{", b"[") else "text"
