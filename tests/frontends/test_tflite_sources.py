"""What a model is read from: files of other formats are named as what they are, bundles say what they hold."""

# ruff: noqa: SIM115 (what tests open, `closed_after` closes)

import gzip
import io
import os
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import malformed, refused
from tests.frontends.flat import one_operator, tensor


def model() -> bytes:
    return one_operator("ABS", [tensor([4])], [tensor([4])], "Abs")


def zipped(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def numpys(array: np.ndarray) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


OTHERS = {
    "empty": b"",
    "a PNG picture": b"\x89PNG\r\n\x1a\n" + bytes(20),
    "a JPEG picture": b"\xff\xd8\xff\xe0" + bytes(20),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(20),
    "a GGUF file": b"GGUF" + bytes(20),
    "a numpy array": numpys(np.zeros(3)),
    "compressed with gzip": b"\x1f\x8b\x08" + bytes(20),
    "a safetensors file": struct.pack("<Q", 20) + b'{"__metadata__":{}} ' + bytes(8),
    "a Python pickle": b"\x80\x04K\x01.",
    "the graph of a TensorFlow SavedModel": b"\x08\x01\x12\xff\x01",
    "an OpenVINO model": b'<?xml version="1.0"?>\n<net name="x" version="11"></net>',
    "XML": b'<?xml version="1.0"?>\n<other/>',
    "a web page": b"<!DOCTYPE html><html>not found</html>",
    "JSON": b'{"error": "not found here"}',
    "text": b"this is not what you are looking for\n",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "a PyTorch or TorchScript file": zipped(**{"model/data.pkl": b"x", "model/version": b"3"}),
    "a Keras file": zipped(**{"config.json": b"{}", "model.weights.h5": b""}),
    "arrays of numpy": zipped(**{"a.npy": b""}),
    "an ONNX Runtime model": struct.pack("<I", 8) + b"ORTM" + bytes(20),
    "a zip file of readme.txt": zipped(**{"readme.txt": b"x"}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_format_is_named_as_what_it_is(what, tmp_path):
    path = tmp_path / "given"
    path.write_bytes(OTHERS[what])
    malformed(path, rf"given: is {what}.*must be a \.tflite or \.onnx file")


def test_folders_are_named_and_a_saved_model_among_them(tmp_path):
    malformed(tmp_path, r"is a folder, must be a \.tflite or \.onnx file")
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    malformed(tmp_path, r"a TensorFlow SavedModel folder, .*; tf\.lite\.TFLiteConverter converts it")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_bundle_says_what_is_in_it_and_a_member_is_a_model(tmp_path, compression):
    inner = zipped(**{"deep.tflite": model()})
    path = tmp_path / "x.task"
    path.write_bytes(zipped(compression, **{"a.tflite": model(), "labels.txt": b"cat", "inner.task": inner}))
    malformed(path, r"is a bundle of a\.tflite, labels\.txt, inner\.task; name one of its models")
    for member in ("a.tflite", "inner.task:deep.tflite"):
        loaded = nnhal.load(f"{path}:{member}")
        assert loaded.name and nnhal.compile(loaded, devices="reference")(np.full(4, -1, "f4")).tolist() == [1] * 4
    assert nnhal.compile(f"{path}:a.tflite", devices="reference").outputs[0].shape == (4,)
    malformed(f"{path}:b.tflite", r"has no member 'b\.tflite', must be one of a\.tflite, labels\.txt")
    malformed(f"{path}:labels.txt", r"x\.task:labels\.txt: ")


def test_bytes_may_stand_before_the_first_member_of_a_bundle(tmp_path):
    """MediaPipe's bundles have two, so that members are aligned."""
    path = tmp_path / "x.task"
    whole = zipped(**{"a.tflite": model()})
    for before in (bytes(2), bytes(100), b"\1\2\3"):
        path.write_bytes(before + whole)
        malformed(path, r"is a bundle of a\.tflite; name one of its models")
        assert nnhal.load(f"{path}:a.tflite").main.operations
    path.write_bytes(b"\x7fELF" + whole)
    malformed(path, "is a program or library")


def test_a_file_whose_name_has_a_colon_is_that_file(tmp_path):
    path = tmp_path / "a:b.tflite"
    path.write_bytes(model())
    assert nnhal.load(path).name == "a:b"


def test_a_member_of_what_is_no_bundle_is_refused(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(model())
    malformed(f"{path}:x", "has no members, must be a zip file")


# ------------------------------------------------------------------------------------------------------ open files


@contextmanager
def closed_after(source: Any) -> Iterator[Any]:
    try:
        yield source
    finally:
        getattr(source, "close", int)()


def filled(file: Any, before: bytes = b"") -> Any:
    file.write(before + model())
    file.seek(len(before))
    return file


def on_disk(folder: Path, data: bytes) -> Path:
    (folder / "m.tflite").write_bytes(data)
    return folder / "m.tflite"


class Dribbling:
    """Gives few bytes at a time, as a socket does, and knows neither a name nor a position."""

    def __init__(self) -> None:
        self.inner = io.BytesIO(model())

    def read(self, size: int) -> bytes:
        return self.inner.read(min(size, 7))


def member(name: str) -> Any:
    return zipfile.ZipFile(io.BytesIO(zipped(**{name: model()}))).open(name)


OPEN: dict[str, tuple[Callable[[Path], Any], str]] = {  # and what the model is called
    "BytesIO": (lambda _: io.BytesIO(model()), "model"),
    "a file": (lambda at: open(on_disk(at, model()), "rb"), "m"),
    "an unbuffered file": (lambda at: open(on_disk(at, model()), "rb", buffering=0), "m"),
    "a file by number": (lambda at: os.fdopen(os.open(on_disk(at, model()), os.O_RDONLY), "rb"), "model"),
    "a file that stands behind a header": (lambda _: filled(tempfile.TemporaryFile(), b"header."), "model"),
    "a buffer that stands behind a header": (lambda _: filled(io.BytesIO(), b"header."), "model"),
    "TemporaryFile": (lambda _: filled(tempfile.TemporaryFile()), "model"),
    "SpooledTemporaryFile": (lambda _: filled(tempfile.SpooledTemporaryFile(1 << 20)), "model"),
    "a spooled file on disk": (lambda _: filled(tempfile.SpooledTemporaryFile(1)), "model"),
    "a member of a zip file": (lambda _: member("in/z.tflite"), "z"),
    "what gzip unpacks": (lambda at: gzip.open(on_disk(at, gzip.compress(model()))), "m"),
    "a stream of few bytes at a time": (lambda _: Dribbling(), "model"),
    "bytes": (lambda _: model(), "model"),
    "bytearray": (lambda _: bytearray(model()), "model"),
    "memoryview": (lambda _: memoryview(model()), "model"),
    "a memoryview with gaps": (lambda _: memoryview(np.repeat(np.frombuffer(model(), "u1"), 2))[::2], "model"),
}  # fmt: skip


@pytest.mark.parametrize("what", OPEN)
def test_a_model_is_read_from_whatever_is_read_as_a_file_is(what, tmp_path):
    make, name = OPEN[what]
    with closed_after(make(tmp_path)) as source:
        assert nnhal.load(source).name == name
    with closed_after(make(tmp_path)) as source:
        assert nnhal.compile(source, devices="reference")(np.full(4, -1, "f4")).tolist() == [1] * 4


def test_a_pipe_is_read_to_its_end():
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(model())
    with open(reading, "rb") as file:
        assert nnhal.load(file).name == "model"


def test_bytes_that_change_later_are_no_part_of_the_model():
    given = bytearray(model())
    loaded = nnhal.load(given)
    given[:] = bytes(len(given))
    assert nnhal.compile(loaded, devices="reference")(np.full(4, -1, "f4")).tolist() == [1] * 4


class Broken(io.RawIOBase):
    name = "\x1b[2Jfar away"

    def read(self, size: int = -1) -> bytes:
        raise zipfile.BadZipFile("bad checksum")


class Odd(io.RawIOBase):
    def read(self, size: int = -1) -> Any:
        return None


def closed() -> Any:
    file = io.BytesIO(model())
    file.close()
    return file


def at_its_end() -> Any:
    file = io.BytesIO()
    file.write(model())
    return file


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (Broken, nnhal.BadFile, r"^\\x1b\[2Jfar away: cannot be read: BadZipFile: bad checksum; must be a \.tflite or"),
        (Odd, nnhal.BadFile, "^model: cannot be read: TypeError"),
        (closed, nnhal.BadFile, "^model: cannot be read: ValueError: I/O operation on closed file"),
        (at_its_end, nnhal.BadFile, r"^model: is at its end, must be at its beginning: seek\(0\)"),
        (lambda: io.StringIO("x"), nnhal.InvalidArgument, r"^model: is <.*>, must be open for bytes \(mode 'rb'\)"),
        (lambda: open(__file__), nnhal.InvalidArgument, r"test_tflite_sources\.py: is <.*, must be open for bytes"),
        (lambda: io.BytesIO(b"GIF89a"), nnhal.BadFile, "^model: is a GIF picture"),
        (lambda: 3, nnhal.InvalidArgument, "^model is 3, must be a Model, the path of a .tflite or .onnx file, its bytes,"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(make, error, says):
    with pytest.raises(error, match=says), closed_after(make()) as source:
        nnhal.load(source)


# ------------------------------------------------------------------------------------------------------ hostile bundles


def test_a_member_that_grows_a_thousandfold_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.task"
    path.write_bytes(zipped(zipfile.ZIP_DEFLATED, **{"a.tflite": bytes(1 << 28)}))
    tracemalloc.start()
    malformed(f"{path}:a.tflite", r"a\.tflite has 268435456 bytes, must have at most 26\d+")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_bundle_of_very_many_members_is_refused_by_its_end():
    malformed(zipped(**{f"{n}": b"" for n in range(1001)}), "is a zip file of 1001 members or more")


def test_names_of_members_reach_messages_without_control_characters():
    data = zipped(**{"\x1b]0;owned\x07.tflite": model()})
    with pytest.raises(nnhal.BadFile) as caught:
        load(data)
    assert str(caught.value).isprintable() and r"\x1b]0;owned\x07.tflite" in str(caught.value)


def test_damaged_bundles_are_always_a_bad_file(tmp_path):
    data, generator = (
        zipped(zipfile.ZIP_DEFLATED, **{"a.tflite": model(), "b.txt": b"x" * 99}),
        np.random.default_rng(0),
    )
    path, seen = tmp_path / "x.task", 0
    for turn in range(400):
        spoilt = bytearray(data)
        for place in generator.integers(4, len(spoilt), 4):
            spoilt[place] = generator.integers(0, 256)
        path.write_bytes(spoilt if turn % 4 else data[: generator.integers(5, len(data))])
        try:
            nnhal.load(f"{path}:a.tflite")
        except (nnhal.BadFile, nnhal.UnsupportedModel, nnhal.InvalidModel):
            seen += 1
    assert seen > 100


def test_members_that_are_encrypted_are_refused():
    data = bytearray(zipped(**{"a.tflite": model()}))
    data[6] |= 1
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    path = io.BytesIO(bytes(data))
    with pytest.raises(nnhal.BadFile, match="encrypted"):
        from nnhal.frontends.archive import Archive

        Archive(np.frombuffer(path.getvalue(), np.uint8), "x")["a.tflite"]


def test_what_a_stream_of_ours_says_is_said_as_it_is():
    class Full(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, room):
            raise nnhal.OutOfMemory("no room for it")

        def read(self, size=-1):
            raise nnhal.OutOfMemory("no room for it")

    refused(Full(), r"^no room for it$", nnhal.OutOfMemory)
