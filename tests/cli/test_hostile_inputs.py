"""Inputs out of files that lie: a clear error each, before what they claim is believed."""

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidRequest
from nnhal.cli.arrays import ArrayFile
from nnhal.cli.inputs import read_inputs
from nnhal.cli.pictures import InputOptions
from nnhal.runtime.arguments import Spec

ONES = np.ones(4, np.float32)


KINDS = {
    "f4": OperandType.TENSOR_FLOAT32,
    "i4": OperandType.TENSOR_INT32,
    "u1": OperandType.TENSOR_QUANT8_ASYMM,
    "i1": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}


def read(path: Path, shape: tuple[int | None, ...] = (4,), dtype: str = "f4") -> np.ndarray:
    spec = Spec("i", int(KINDS[dtype]), shape, np.dtype(dtype), 0.0, 0)
    return read_inputs([spec], [str(path)], 0, InputOptions())[0].array


def npy(array: np.ndarray, **options: bool) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def header(text: str, body: bytes = b"") -> bytes:
    whole = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(whole)) + whole + body


def described(shape: object, descr: object = "<f4", body: bytes = bytes(16)) -> bytes:
    return header(repr({"descr": descr, "fortran_order": False, "shape": shape}), body)


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def with_flag(content: bytes, local: int, central: int, value: int) -> bytes:
    """An archive of one member with another value in both of its headers."""
    spoilt, at = bytearray(content), content.find(b"PK\x01\x02")
    spoilt[local] = spoilt[at + central] = value
    return bytes(spoilt)


GOOD = npz(i=npy(ONES))
ARRAYS = {
    "nothing": b"",
    "half a number too little": npy(ONES)[:-2],
    "more than the header says": npy(ONES) + b"1234",
    "pickled objects": npy(np.array([None] * 4), allow_pickle=True),
    "another format": GOOD,
    "a terabyte": described((1 << 40,)),
    "more than fits into 64 bits": described((2**62, 2**62)),
    "a negative dimension": described((-4,)),
    "a dimension that is no number": described(("4",)),
    "no shape": header("{'descr': '<f4'}"),
    "900 brackets": header("(" * 900 + ")" * 900),
    "9000 signs": header("-" * 9000 + "1"),
    "a header beyond the end": header("x" * 100)[:60],
    "records": described((4,), [("a", "<f4"), ("b", "O")]),
    "elements of no bytes": described((4,), "|V0"),
    "texts of a gigabyte": described((1,), "<U1000000000"),
    "complex numbers": npy(np.ones(4, np.complex64)),
    "a format of the future": b"\x93NUMPY\x09\x00" + npy(ONES)[8:],
}
ARCHIVES = {
    "nothing": b"",
    "another format": npy(ONES),
    "half of it": GOOD[: len(GOOD) // 2],
    "a member that is no array": npz(i=b"junk"),
    "a member that says too much": npz(i=described((1 << 28,), body=b"")),
    "other arrays": npz(a=npy(ONES), b=npy(ONES)),
    "an encrypted member": with_flag(GOOD, 6, 8, 1),
    "an unknown compression": with_flag(GOOD, 8, 10, 99),
    "a wrong check sum": with_flag(GOOD, 14, 16, GOOD[14] ^ 1),
    "spoilt data": GOOD[:60] + bytes(20) + GOOD[80:],
}


def test_a_file_that_becomes_another_after_its_header_was_read_is_not_unpickled():
    contents = iter([npy(np.zeros(3, "f4")), npy(np.array([None]), allow_pickle=True)])
    file = ArrayFile(lambda: io.BytesIO(next(contents)), len(npy(np.zeros(3, "f4"))), "x.npy")
    with pytest.raises(InvalidRequest, match=r"input x\.npy: cannot be read: .*allow_pickle=False"):
        file.read()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_lies_is_a_clear_error(tmp_path, name):
    (tmp_path / "a.npy").write_bytes(ARRAYS[name])
    with pytest.raises(InvalidRequest, match=r"input .*a\.npy"):
        read(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_lies_is_a_clear_error(tmp_path, name):
    (tmp_path / "a.npz").write_bytes(ARCHIVES[name])
    with pytest.raises(InvalidRequest, match=r"input .*a\.npz"):
        read(tmp_path / "a.npz")


def test_nothing_of_a_bomb_is_unpacked_that_the_input_does_not_take(tmp_path, monkeypatch):
    content = described((1 << 20,), body=bytes(1 << 22))
    (tmp_path / "a.npz").write_bytes(npz(i=content))
    read_bytes = 0
    plain = zipfile.ZipExtFile.read

    def counted(self, *count):
        nonlocal read_bytes
        found = plain(self, *count)
        read_bytes += len(found)
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    with pytest.raises(InvalidRequest, match=r"has shape \[1048576\], must be \[4\]"):
        read(tmp_path / "a.npz")
    assert read_bytes < 1000


@pytest.mark.parametrize("stored", [ONES, ONES.astype(">f4"), ONES.astype("f8"), np.ones((2, 2), "f4", order="F")])
def test_an_array_of_another_order_or_width_is_what_it_says(tmp_path, stored):
    np.save(tmp_path / "a.npy", stored)
    assert np.array_equal(read(tmp_path / "a.npy", stored.shape), stored)
    np.savez(tmp_path / "a.npz", anything=stored)
    assert np.array_equal(read(tmp_path / "a.npz", (None,) * stored.ndim), stored)


def test_integers_that_do_not_fit_are_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2**40]))
    with pytest.raises(InvalidRequest, match="int64 that do not fit, must be int32"):
        read(tmp_path / "a.npy", (2,), "i4")


@pytest.mark.parametrize(("stored", "wanted"), [("i8", "u1"), ("i4", "u1"), ("u4", "i1"), ("i8", "i1"), ("u8", "i4")])
def test_integers_of_more_bytes_are_narrowed_where_all_fit(tmp_path, stored, wanted):
    np.save(tmp_path / "a.npy", np.array([0, 7, 127], stored))
    found = read(tmp_path / "a.npy", (3,), wanted)
    assert found.dtype == wanted and found.tolist() == [0, 7, 127]
    np.save(tmp_path / "a.npy", np.array([0, np.iinfo(wanted).max + 1, 1], stored))
    with pytest.raises(InvalidRequest, match="that do not fit, must be"):
        read(tmp_path / "a.npy", (3,), wanted)


def test_integers_of_as_many_bytes_and_another_sign_are_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.array([0, 7, 127], "u1"))
    with pytest.raises(InvalidRequest, match="is uint8, must be int8"):
        read(tmp_path / "a.npy", (3,), "i1")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.png", "x.bin"])
def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidRequest, match="is a pipe, device or folder"):
        read(tmp_path / name, (1, 8, 8, 3))
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(InvalidRequest, match="is a pipe, device or folder"):
        read(tmp_path / name, (1, 8, 8, 3))


# --------------------------------------------------------------------------------------------------------------- pictures


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, rows: int | None = None) -> bytes:
    """A grey picture; rows: how many there are in truth."""
    packed = zlib.compress(bytes((1 + width) * (height if rows is None else rows)))
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), *chunks, chunk(b"IDAT", packed)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


PICTURES = {
    "nothing": b"",
    "half of a header": png(8, 8)[:20],
    "a wrong check sum": png(8, 8).replace(b"\x08\x00\x00\x00\x00", b"\x08\x00\x00\x00\x01"),
    "a palette of none": png(8, 8, chunk(b"PLTE", b"")).replace(b"\x08\x00\x00\x00\x00", b"\x08\x03\x00\x00\x00"),
    "a text that unpacks to 100 MB": png(8, 8, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(100_000_000)))),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
    "more pixels than are taken": png(10_000, 10_000, rows=0),
    "pixels by the thousand million": png(2**31 - 1, 2**31 - 1, rows=0),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_lies_is_a_clear_error(tmp_path, name):
    (tmp_path / "a.png").write_bytes(PICTURES[name])
    with pytest.raises(InvalidRequest, match=r"input .*a\.png"):
        read(tmp_path / "a.png", (1, 8, 8, 3))
