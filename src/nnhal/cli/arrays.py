"""Reads arrays from untrusted `.npy` and `.npz` files: checks a header before it reads data."""

import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from nnhal.base.codes import MAX_OPERAND_BYTES
from nnhal.base.errors import InvalidRequest, bounded_text
from nnhal.base.operands import Array

NUMBERS = "biuf"  # kinds of elements
SUFFIX = ".npy"
DAMAGE = (  # NumPy, zipfile and their parsers raise these for malformed files
    OSError, ValueError, EOFError, SyntaxError, RecursionError, MemoryError, OverflowError, TypeError, KeyError,
    AttributeError, IndexError, RuntimeError, NotImplementedError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextmanager
def reading(origin: str) -> Iterator[None]:
    """Turns errors of malformed files into InvalidRequest with the file's name `origin`."""
    try:
        yield
    except InvalidRequest:
        raise
    except DAMAGE as error:
        said = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise InvalidRequest(f"input {origin}: cannot be read: {bounded_text(said, 200)}") from None


def ordinary(path: Path) -> IO[bytes]:
    """Opens an ordinary file for reading; InvalidRequest for a pipe or device, which might never end."""
    with reading(str(path)):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidRequest(f"input {path}: is a pipe, device or folder, must be an ordinary file")
        return os.fdopen(fd, "rb")


def size_of(file: IO[bytes]) -> int:
    """Returns the size of an ordinary file in bytes."""
    return os.fstat(file.fileno()).st_size


class ArrayFile:
    """An array in a file.

    Attributes:
        dtype: The type in the header.
        shape: The shape in the header.
        origin: The file for messages.
    """

    def __init__(self, begin: Callable[[], AbstractContextManager[IO[bytes]]], size: int, origin: str) -> None:
        """Reads the header.

        Args:
            begin: Opens the array's file at its start.
            size: The size of the file in bytes, header included.
            origin: The file for messages.

        Raises:
            InvalidRequest: The header is malformed, or does not fit the size.
        """
        self._begin, self.origin = begin, origin
        with reading(origin), begin() as file:
            version = np.lib.format.read_magic(file)
            if version not in HEADERS:
                raise InvalidRequest(f"input {origin}: has format {version}, must be 1.0 or 2.0")
            self.shape, _, self.dtype = HEADERS[version](file)
            begins = file.tell()
        if self.dtype.kind not in NUMBERS or self.dtype.subdtype:
            raise InvalidRequest(f"input {origin}: holds {self.dtype}, must hold numbers or booleans")
        needed = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or needed > MAX_OPERAND_BYTES:
            raise InvalidRequest(f"input {origin}: has shape {self.shape}, must take 0 to {MAX_OPERAND_BYTES} bytes")
        if size - begins != needed:
            raise InvalidRequest(f"input {origin}: has {size - begins} bytes of data, must have {needed} by its header")

    def read(self) -> Array:
        """Reads the elements; InvalidRequest if the data does not fit the header."""
        with reading(self.origin), self._begin() as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # zipfile compares the checksum at the member's end
                raise InvalidRequest(f"input {self.origin}: has more data than its header declares")
        return array


def array_file(path: Path) -> ArrayFile:
    """Opens a `.npy` file."""
    with ordinary(path) as file:
        return ArrayFile(partial(ordinary, path), size_of(file), str(path))


def archive(path: Path, names: Sequence[str]) -> Mapping[str, ArrayFile]:
    """Opens a `.npz` file.

    Args:
        path: The file.
        names: The names of the inputs.

    Returns:
        The arrays by input. They are matched by name, or in order if their names differ.

    Raises:
        InvalidRequest: The file is malformed, or its arrays do not match the inputs.
    """
    with ordinary(path) as file, reading(str(path)), zipfile.ZipFile(file) as members:
        found = {info.filename.removesuffix(SUFFIX): info for info in members.infolist()}
        keys = [key for key, info in found.items() if key != info.filename]
        if len(keys) != len(members.infolist()) or not (set(keys) <= set(names) or len(keys) == len(names)):
            there = bounded_text(", ".join(info.filename for info in members.infolist()), 400)
            raise InvalidRequest(f"input {path}: holds {there}, must hold {SUFFIX} files for {', '.join(names)}")
        by_name = set(keys) <= set(names)
        return {
            key if by_name else name: ArrayFile(
                partial(_member, path, found[key]), found[key].file_size, f"{path}[{key}]"
            )
            for name, key in zip(keys if by_name else names, keys, strict=True)
        }


@contextmanager
def _member(path: Path, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    with ordinary(path) as file, zipfile.ZipFile(file) as members, members.open(info) as member:
        yield member
