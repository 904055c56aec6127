"""Constants in a memory of their own: copied once, the same for everybody afterwards."""

import fcntl
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.sealed import Store, sealed
from tests.waiting import Opened

WRITTEN = np.arange(100, dtype=np.int16)


@pytest.fixture
def memory() -> Memory:
    store = Store("test")
    store.add(WRITTEN)
    return store.seal()


def test_every_array_begins_at_a_multiple_of_64_and_is_copied_in_row_major_order() -> None:
    store, turned = Store("test"), np.arange(6, dtype=np.int32).reshape(2, 3).T
    places = [store.add(WRITTEN), store.add(turned)]
    turned[:] = 0
    memory = store.seal()
    assert places == [0, 256] and memory.size == 256 + 24
    assert memory.view(256, 24, np.int32).tolist() == [0, 3, 1, 4, 2, 5]


def test_an_array_over_it_cannot_be_made_writable(memory: Memory) -> None:
    array = memory.view(0, 200, np.int16)
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        array.flags.writeable = True


def test_no_holder_of_its_descriptor_writes_grows_or_shrinks_it(memory: Memory) -> None:
    fd = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDWR)
    for change in (
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.ftruncate(fd, 10),
        lambda: os.ftruncate(fd, 1000),
        lambda: mmap.mmap(fd, 200, access=mmap.ACCESS_WRITE),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            change()
    os.close(fd)
    assert memory.sealed and memory.view(0, 200, np.int16).tolist() == WRITTEN.tolist()


def test_where_the_kernel_knows_no_seal_against_writing_it_is_still_for_reading_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnhal.base.memory.FUTURE_WRITE", 1 << 20)  # a seal that does not exist
    store = Store("test")
    store.add(WRITTEN)
    memory = store.seal()
    assert memory.sealed and memory.readonly and not memory.bytes().flags.writeable


def test_a_store_that_is_never_sealed_gives_its_descriptor_back() -> None:
    gc.collect()
    opened = Opened()
    Store("test").add(WRITTEN)
    gc.collect()
    opened.closed()


def test_a_file_is_copied_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(WRITTEN.tobytes())
    store = Store("test")
    store.add_file(path)
    path.write_bytes(b"other")
    assert store.seal().bytes().tobytes() == WRITTEN.tobytes()


def test_a_file_that_the_kernel_gives_in_pieces_is_whole_and_begins_where_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sendfile = tmp_path / "f", os.sendfile
    path.write_bytes(bytes(range(100)))
    monkeypatch.setattr(os, "sendfile", lambda to, fd, at, count: sendfile(to, fd, at, min(count, 30)))
    store = Store("test")
    store.add(WRITTEN)
    with open(path, "rb") as file:
        file.seek(50)
        store.add_file(path, file.fileno(), 7)
        assert file.tell() == 50
    assert store.seal().bytes()[200:].tolist() == list(range(7, 100))


def test_a_stream_is_read_to_its_end_whatever_pieces_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pieces:
        left = [b"ab", b"c" * 10, bytearray(b"d"), b""]

        def read(self, size: int) -> bytes:
            return self.left.pop(0)

    store = Store("test")
    store.add(np.uint8([1]))
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    store.add_stream(Pieces())
    assert store.seal().bytes().tobytes() == b"\1ab" + b"c" * 10 + b"d"
    with pytest.raises(TypeError):
        Store("test").add_stream(type("Text", (), {"read": lambda self, size: "text"})())


def test_bytes_are_sealed_as_they_are() -> None:
    memory = sealed(b"abc")
    assert (memory.bytes().tobytes(), memory.sealed, memory.readonly, memory.kind) == (b"abc", True, True, "ashmem")
    assert sealed(b"").size == 0 and sealed(WRITTEN).bytes().tobytes() == WRITTEN.tobytes()


def test_an_empty_file_is_a_memory_of_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    store = Store("test")
    store.add_file(tmp_path / "f")
    assert store.seal().size == 0


def test_a_file_that_is_written_to_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sendfile = tmp_path / "f", os.sendfile
    path.write_bytes(bytes(100))
    os.utime(path, (1, 1))

    def meanwhile(*arguments: int) -> int:
        with open(path, "r+b") as file:
            file.write(b"x")
        return sendfile(*arguments)

    monkeypatch.setattr(os, "sendfile", meanwhile)
    with pytest.raises(BadFile, match="f: was written to while it was read, must stay as it is until it is loaded"):
        Store("test").add_file(path)
