"""Memories: which descriptors may be one, what can be mapped, copied, sealed, and which pool an array lies in."""

import fcntl
import gc
import io
import mmap
import os
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnhal.base import memory as subject
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import BadFile, Closed, InvalidArgument, OutOfMemory, Unmappable
from nnhal.base.memory import Layout, Memory
from nnhal.base.sealed import Store
from tests.interrupts import Interrupts
from tests.waiting import Opened

ADD_SEALS, GET_SEALS, SHRINK, GROW = 1033, 1034, 0x0002, 0x0004
RGBA = 1  # AHARDWAREBUFFER_FORMAT_R8G8B8A8_UNORM


def opened(what: str, tmp_path: Path) -> tuple[int, ...]:
    if what == "a pipe":
        return os.pipe()
    if what == "a socket":
        return tuple(s.detach() for s in socket.socketpair())
    if what == "a character device":
        return (os.open("/dev/zero", os.O_RDWR),)
    if what == "a directory":
        return (os.open(tmp_path, os.O_RDONLY),)
    if what == "opened as a path only":
        (tmp_path / "f").write_bytes(bytes(64))
        return (os.open(tmp_path / "f", os.O_PATH),)
    return (os.eventfd(0),)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(64)))
    yield path


@pytest.mark.parametrize(
    "what",
    [
        "a pipe",
        "a socket",
        "a character device",
        "a directory",
        "opened as a path only",
        "of no kind that has bytes",
    ],
)
def test_descriptors_without_bytes_of_their_own_are_refused_by_kind(what: str, tmp_path: Path) -> None:
    fds = opened(what, tmp_path)
    try:
        with pytest.raises(Unmappable, match=f"descriptor {fds[0]} is {what}"):
            Memory.from_fd(fds[0], 8)
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize(
    ("flags", "readonly", "needed"),
    [(os.O_RDONLY, False, "reading and writing"), (os.O_WRONLY, True, "reading"), (os.O_WRONLY, False, "reading and")],
)
def test_a_descriptor_must_be_open_for_what_is_asked(file: Path, flags: int, readonly: bool, needed: str) -> None:
    fd = os.open(file, flags)
    try:
        with pytest.raises(InvalidArgument, match=f"is not open for {needed}"):
            Memory.from_fd(fd, 8, readonly=readonly)
    finally:
        os.close(fd)


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    for fd in (read, -1):
        with pytest.raises(InvalidArgument, match="is not open"):
            Memory.from_fd(fd, 8)


def test_what_is_written_through_a_writable_file_is_in_the_file(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    memory = Memory.from_fd(fd, 4, 10, readonly=False)
    os.close(fd)
    memory.writable()[:] = 9
    assert file.read_bytes()[8:16] == bytes([8, 9, 9, 9, 9, 9, 14, 15])
    assert memory.kind == "mmap_fd" and not memory.readonly
    assert Memory.from_fd(memory.fd, 1).bytes().tolist() == [0]


def test_a_refused_descriptor_leaves_none_open(file: Path) -> None:
    opened = Opened()
    fd = os.open(file, os.O_RDONLY)
    for arguments in ({"size": 65}, {"size": 8, "offset": 60}, {"size": 8, "readonly": False}, {"size": 0}):
        with pytest.raises(InvalidArgument):
            Memory.from_fd(fd, **arguments)  # type: ignore[arg-type]
    os.close(fd)
    opened.closed()


# --------------------------------------------------------------------------------------------------- sealing, copying


def test_pools_of_ones_own_are_sealed_and_files_are_not(file: Path) -> None:
    assert Memory.allocate(8).sealed and Memory.hardware_buffer_blob(8).sealed
    assert not Memory.from_file(file).sealed
    assert not Memory.wrap(np.zeros(3)).sealed


@pytest.mark.parametrize(("seals", "sealed"), [(0, False), (GROW, False), (SHRINK, True), (SHRINK | GROW, True)])
def test_sealed_says_what_the_kernel_says(seals: int, sealed: bool) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 64)
    fcntl.fcntl(fd, ADD_SEALS, seals)
    assert Memory.from_fd(fd, 64).sealed is sealed
    os.close(fd)


def test_a_sealed_copy_has_the_contents_and_cannot_be_cut(file: Path) -> None:
    copy = Memory.from_array(Memory.from_file(file).bytes())
    assert copy.bytes().tobytes() == file.read_bytes()
    assert fcntl.fcntl(copy.fd, GET_SEALS) & SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(copy.fd, 1)


def test_memories_copy_to_memories_of_their_size(file: Path) -> None:
    target = Memory.allocate(64)
    Memory.from_file(file).copy_to(target)
    assert target.bytes().tolist() == list(range(64))
    with pytest.raises(InvalidArgument, match="the target is 63 bytes, must be 64"):
        target.copy_to(Memory.allocate(63))
    with pytest.raises(InvalidArgument, match="reading only"):
        target.copy_to(Memory.from_file(file))
    with pytest.raises(InvalidArgument, match=r"(?s)copied to array\(.*, must be to a memory"):
        target.copy_to(np.zeros(64, np.uint8))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (3, 0)])
def test_any_shape_becomes_a_pool(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    memory = Memory.from_array(array)
    assert memory.view(0, array.nbytes, np.float32, shape).tolist() == array.tolist()


def test_a_memory_says_whether_it_is_written_by_this_process_alone() -> None:
    assert not Memory.allocate(8).one_way
    mine = Memory.allocate(8, one_way=True)
    mine.writable()[:] = 3
    assert mine.one_way
    with pytest.raises(PermissionError):
        os.pwrite(mine.fd, b"x", 0)


def test_an_array_of_ones_own_is_wrapped_where_it_lies_and_only_without_gaps() -> None:
    own, fixed = np.arange(6, dtype=np.int16), np.arange(6, dtype=np.int16)
    fixed.flags.writeable = False
    memory = Memory.wrap(own)
    memory.writable()[0] = 7
    assert own[0] == 7 and (memory.kind, memory.size, memory.offset, memory.fd) == ("host", 12, 0, -1)
    with pytest.raises(InvalidArgument, match="is for reading only"):
        Memory.wrap(fixed).writable()
    for other in ([1, 2], own[::2], own.reshape(2, 3).T):
        with pytest.raises(InvalidArgument, match="must be an array, row-major without gaps"):
            Memory.wrap(other)  # type: ignore[arg-type]


def test_a_memory_is_shown_by_its_kind_and_size() -> None:
    shown = [repr(Memory.allocate(64)), repr(Memory.hardware_buffer(48, Layout(4, 3, 1, RGBA)))]
    assert shown == ["Memory(ashmem, 64 bytes)", "Memory(hardware_buffer, 48 bytes)"]


@pytest.mark.parametrize("size", [0, -1])
def test_there_is_no_memory_of_no_bytes(size: int) -> None:
    for make in (
        Memory.allocate,
        Memory.hardware_buffer_blob,
        lambda n: Memory.hardware_buffer(n, Layout(4, 3, 1, RGBA)),
    ):
        with pytest.raises(InvalidArgument, match=f"size is {size}, must be at least 1 byte"):
            make(size)
    assert Memory.allocate(1).bytes().tolist() == Memory.hardware_buffer_blob(1).bytes().tolist() == [0]
    assert Memory.hardware_buffer(1, Layout(1, 1, 1, RGBA)).size == 1


def test_what_cannot_be_allocated_leaves_no_descriptor_while_the_error_is_held() -> None:
    opened = Opened()
    with pytest.raises(OutOfMemory, match="could not be allocated") as caught:
        Memory.allocate(1 << 62)
    assert caught.value.__cause__ is not None
    opened.closed()


@pytest.mark.parametrize("path", [3, None, 1.5])
def test_the_path_of_a_file_is_a_path(path: object) -> None:
    with pytest.raises(InvalidArgument, match=r"memory: path is .*, must be that of a file"):
        Memory.from_file(path)  # type: ignore[arg-type]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", "a\0b"):
        with pytest.raises(BadFile, match=r"cannot be read: .*; must be a file"):
            Memory.from_file(path)


def test_what_was_had_before_the_end_is_refused_after_it() -> None:
    memory = Memory.allocate(8)
    kept = memory.bytes()
    assert memory.bytes() is kept
    memory.close()
    for use in (memory.bytes, memory.writable, memory.owner, lambda: memory.view(0, 1)):
        with pytest.raises(Closed):
            use()  # type: ignore[operator]
    assert kept.tolist() == [0] * 8 and not memory.mappable


def test_the_first_bytes_are_all_read_where_the_kernel_gives_them_in_pieces(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, pread = os.open(file, os.O_RDONLY), os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 5), offset))
    assert subject.first_bytes(fd, 12) == bytes(range(12))
    assert subject.first_bytes(fd, 100) == bytes(range(64))
    os.close(fd)


# --------------------------------------------------------------------------------------------------- hardware buffers


def test_a_blob_is_ordinary_memory_with_a_layout() -> None:
    blob = Memory.hardware_buffer_blob(100)
    blob.writable()[:] = 3
    assert (blob.kind, blob.size, blob.layout) == ("hardware_buffer_blob", 100, Layout(100, 1, 1, 0x21))
    assert Memory.from_fd(blob.fd, 100).bytes().tolist() == [3] * 100


def test_a_blob_has_a_dma_buf_over_the_same_bytes_where_the_kernel_gives_one() -> None:
    blob = Memory.hardware_buffer_blob(100)
    blob.writable()[0] = 77
    if os.access("/dev/udmabuf", os.R_OK | os.W_OK):
        assert mmap.mmap(blob.dma_buf, mmap.PAGESIZE, access=mmap.ACCESS_READ)[0] == 77
    else:
        assert blob.dma_buf == -1


def test_a_device_that_makes_no_dma_buf_leaves_a_plain_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_UDMABUF", "/dev/null")
    assert Memory.hardware_buffer_blob(8).dma_buf == -1


def test_a_dma_buf_is_asked_for_over_all_pages_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        asked.append((request, *struct.unpack("IIQQ", argument)))
        return os.dup(asked[-1][1])

    monkeypatch.setattr(subject, "_UDMABUF", "/dev/null")
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    blob = Memory.hardware_buffer_blob(mmap.PAGESIZE + 1)
    assert asked == [(subject._UDMABUF_CREATE, blob.fd, 1, 0, 2 * mmap.PAGESIZE)]
    assert blob.dma_buf >= 0 and os.path.sameopenfile(blob.dma_buf, blob.fd)


def test_a_process_that_may_read_no_links_knows_a_dma_buf_by_its_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> str:
        raise PermissionError(path)

    assert not subject._is_dma_buf(0)
    monkeypatch.setattr(os, "readlink", refuse)
    for text, expected in ((b"pos:\t0\nexp_name:\tsystem\n", True), (b"pos:\t0\n", False)):
        monkeypatch.setattr(subject, "open", lambda path, mode, text=text: io.BytesIO(text), raising=False)
        assert subject._is_dma_buf(0) is expected


def test_the_request_for_a_dma_buf_is_the_kernels() -> None:
    size = struct.calcsize("IIQQ")  # struct udmabuf_create: memfd, flags, offset, size
    assert 1 << 30 | size << 16 | ord("u") << 8 | 0x42 == subject._UDMABUF_CREATE


def test_an_opaque_hardware_buffer_cannot_be_read_or_written() -> None:
    buffer = Memory.hardware_buffer(48, Layout(4, 3, 1, RGBA))
    assert buffer.kind == "hardware_buffer" and not buffer.mappable
    for use in (buffer.bytes, buffer.writable, lambda: buffer.view(0, 4), lambda: buffer.copy_to(Memory.allocate(48))):
        with pytest.raises(Unmappable, match="hardware_buffer cannot be mapped") as caught:
            use()
        assert caught.value.status == ErrorStatus.GENERAL_FAILURE
    buffer.close()
    with pytest.raises(Closed):
        buffer.bytes()


def test_an_opaque_hardware_buffer_is_of_another_format_than_blob() -> None:
    with pytest.raises(InvalidArgument, match="use hardware_buffer_blob"):
        Memory.hardware_buffer(48, Layout(48))


def test_closing_gives_every_descriptor_back() -> None:
    opened = Opened()
    source = Memory.allocate(16)
    memories = [source, Memory.from_fd(source.fd, 16), Memory.hardware_buffer_blob(5)]
    memories.append(Memory.hardware_buffer(48, Layout(4, 3, 1, RGBA), source.fd))
    for memory in memories:
        memory.close()
    opened.closed()


# -------------------------------------------------------------------------------------------------- which pool it is in


def test_a_view_of_a_pool_is_found_with_its_offset(file: Path) -> None:
    pool, mapped = Memory.allocate(256), Memory.from_fd(os.open(file, os.O_RDONLY), 32, 7)
    view = pool.view(64, 96, np.float32, (4, 6))
    assert Memory.of(pool.bytes()) == (pool, 0) and Memory.of(view) == (pool, 64)
    assert Memory.of(view[2]) == (pool, 64 + 2 * 24) and Memory.of(view[1:, 3:]) == (pool, 64 + 24 + 12)
    assert Memory.of(mapped.view(8, 8)) == (mapped, 8)


OFFSET = """
from nnhal.base.memory import Memory
pool = Memory.allocate(4096)
print(Memory.of(pool.view(64, 8))[1])
"""


def test_where_an_array_lies_is_not_read_from_memory_that_was_freed():
    env = os.environ | {"PYTHONMALLOC": "debug"}  # overwrites what is freed
    assert subprocess.run([sys.executable, "-c", OFFSET], env=env, capture_output=True, check=True).stdout == b"64\n"


def test_other_arrays_are_in_no_pool() -> None:
    pool, plain = Memory.allocate(64), np.zeros(16)
    host = Memory.wrap(plain[4:8])
    assert Memory.of(plain) is None and Memory.of(plain[2:]) is None
    assert Memory.of(host.bytes()) is None
    assert Memory.of(pool.view(0, 8).copy()) is None


def test_a_view_keeps_its_pool_and_a_closed_pool_is_not_found() -> None:
    pool, other = Memory.allocate(64), Memory.allocate(64)
    view, kept, fd = pool.view(0, 8), other.view(8, 8), other.fd
    pool.close()
    del other
    gc.collect()
    found = Memory.of(kept)
    assert Memory.of(view) is None and found is not None and (found[0].fd, found[1]) == (fd, 8)
    view[:] = 1  # the mapping lives as long as its arrays
    assert view.sum() == 8
    del kept, found
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_pools_in_place_of_closed_ones_are_told_apart() -> None:
    for _ in range(200):
        pool = Memory.allocate(64)
        assert Memory.of(pool.view(16, 8)) == (pool, 16)
        pool.close()
        again = Memory.allocate(64)
        assert Memory.of(again.view(8, 8)) == (again, 8)


def test_no_interrupt_parts_the_end_of_the_last_view() -> None:
    """One in a callback of a weak reference was lost, and the memory stayed for ever."""
    pool, ran = Memory.allocate(64), list[str]()
    ended, view = weakref.ref(pool), pool.bytes()
    assert Memory.of(view) == (pool, 0)
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del view
    finally:
        sys.setprofile(None)
    del pool
    assert not ran and ended() is None  # no Python ran, where signals are handled


def test_a_view_that_nobody_can_write_to_is_still_known_to_lie_in_its_pool():
    memory = Memory.from_array(np.arange(8, dtype=np.float32))
    view = np.asarray(memory.view(16, 16).data.toreadonly()).view(np.float32)
    assert Memory.of(view) == (memory, 16) and view.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "make",
    [
        lambda _: Memory.allocate(4096),
        lambda _: Memory.hardware_buffer_blob(4096),
        Memory.from_file,
        lambda _: Store("store"),
    ],
    ids=["ashmem", "blob", "file", "store"],
)
def test_an_interrupt_while_a_memory_is_made_leaves_no_descriptor(make, tmp_path):
    (tmp_path / "f").write_bytes(bytes(64))
    make(tmp_path / "f")

    def again() -> None:
        while True:
            make(tmp_path / "f")

    opened = Opened()
    with Interrupts() as interrupts:
        for n in range(50):
            assert interrupts.during(again, n * 2e-5)
    gc.collect()
    opened.closed()
