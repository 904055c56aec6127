"""Memories between processes: mapped once while in use; what could be cut off under its reader does not travel."""

import contextlib
import ctypes
import fcntl
import gc
import mmap
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.errors import Closed, ContractBroken, InvalidArgument, ResourceExhausted, Unmappable
from nnhal.base.memory import Memory, seals
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import ClientShare
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import MARK, whole
from tests.faults.support import MFD_HUGETLB, huge_pages
from tests.ipc.alone import came
from tests.ipc.support import a_share, own_process, prepare
from tests.models import doubling
from tests.waiting import Opened

SHRINK, ADD_SEALS = 0x0002, 1033


def memfd(size: int, seal: int = 0, flags: int = 0) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    if seal:
        fcntl.fcntl(fd, ADD_SEALS, seal)
    return fd


def sent(size: int, *, offset: int = 0, readonly: bool = False, kind: str = "ashmem") -> wire.Pool:
    return wire.Pool(kind, size, offset, readonly)


def copy_of(memory: Memory) -> _native.Descriptors:
    """A descriptor of a memory that came with a message."""
    return came(os.dup(memory.fd))


def service(
    *, shared: bool = True, held: "dict[int, list[Memory]] | None" = None, share: ClientShare | None = None
) -> ServicePools:
    return ServicePools((held or {}).__getitem__, share or a_share(), shared=shared)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 64)
    return path


# ------------------------------------------------------------------------------------------------------------- service


def test_a_memory_is_mapped_once_however_often_it_comes() -> None:
    pools, memory = service(), Memory.from_array(np.arange(8, dtype=np.uint8))
    first = pools.accept(sent(8), copy_of(memory))
    again = pools.accept(sent(8), came(os.open(f"/proc/self/fd/{memory.fd}", os.O_RDWR)))
    assert first is again and len(pools) == 1
    memory.bytes()[3] = 77
    assert first.bytes().tolist() == [0, 1, 2, 77, 4, 5, 6, 7]


def test_another_part_or_use_of_a_memory_is_another_mapping() -> None:
    pools, memory = service(), Memory.from_array(np.arange(8, dtype=np.uint8))
    ways = (sent(8), sent(7), sent(7, offset=1), sent(8, readonly=True))
    mapped = [pools.accept(way, copy_of(memory)) for way in ways]
    assert len(set(map(id, mapped))) == len(pools) == 4
    assert mapped[2].bytes().tolist() == [1, 2, 3, 4, 5, 6, 7] and not mapped[3].bytes().flags.writeable


def test_a_memory_that_is_only_read_is_mapped_for_reading() -> None:
    pools, memory = service(), Memory.from_array(np.arange(8, dtype=np.uint8))
    reading = pools.accept(sent(8), copy_of(memory), written=False)
    assert reading.readonly and not reading.bytes().flags.writeable
    assert pools.accept(sent(8, readonly=True), copy_of(memory)) is reading
    assert pools.accept(sent(8), copy_of(memory)) is not reading


def test_two_memories_that_are_alike_are_two() -> None:
    pools, memories = service(), [Memory.allocate(8) for _ in range(2)]
    assert pools.accept(sent(8), copy_of(memories[0])) is not pools.accept(sent(8), copy_of(memories[1]))


def test_a_mapping_goes_with_its_last_user_and_comes_again() -> None:
    pools, memory = service(), Memory.from_array(np.arange(4, dtype=np.uint8))
    opened = Opened()
    for _ in range(3):
        mapped = pools.accept(sent(4), copy_of(memory))
        view = mapped.view(1, 2)
        del mapped
        gc.collect()
        assert view.tolist() == [1, 2] and len(pools) == 1
        del view
        gc.collect()
        assert len(pools) == 0
        opened.closed()


def test_descriptors_are_closed_whether_taken_or_refused() -> None:
    pools = service()
    opened = Opened()
    memory = Memory.allocate(64)
    for _ in range(20):
        pools.accept(sent(64), copy_of(memory))
        for bad in (memfd(64), os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)):
            with pytest.raises((InvalidArgument, Unmappable)):
                pools.accept(sent(64), came(bad))
    memory.close()
    opened.closed()


def test_each_pool_of_a_message_takes_the_next_descriptor() -> None:
    pools, memories = service(), [Memory.from_array(np.full(4, n, np.uint8)) for n in range(3)]
    fds = came(*(os.dup(m.fd) for m in memories))
    for n in range(3):
        assert pools.accept(sent(4), fds).bytes().tolist() == [n] * 4
    with pytest.raises(InvalidArgument, match="its descriptor is missing, must be sent"):
        pools.accept(sent(4), fds)


@pytest.mark.parametrize("seal", [0, 0x0004, 0x0008])
def test_a_memory_that_may_shrink_is_refused(seal: int) -> None:
    with pytest.raises(InvalidArgument, match="pool: is not sealed against shrinking, must be"):
        service(shared=False).accept(sent(64), came(memfd(64, seal)))


def test_a_file_is_for_reading_and_for_the_own_process_of_a_client(file: Path) -> None:
    whole = file.stat().st_size
    memory = service(shared=False).accept(sent(whole, readonly=True), came(os.open(file, os.O_RDONLY)))
    assert memory.bytes().tobytes() == file.read_bytes()
    for shared, readonly in ((True, True), (False, False), (True, False)):
        with pytest.raises(InvalidArgument, match="is a file, which cannot be sealed"):
            service(shared=shared).accept(sent(whole, readonly=readonly), came(os.open(file, os.O_RDWR)))


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/dev/null"])
def test_what_is_neither_memfd_nor_file_is_refused(path: str) -> None:
    with pytest.raises(Unmappable, match="must be a memfd or file"):
        service(shared=False).accept(sent(64, readonly=True), came(os.open(path, os.O_RDONLY)))


@pytest.mark.parametrize("shared", [True, False])
def test_a_memory_of_huge_pages_is_refused(shared: bool) -> None:
    """A hole in it gives its page back, and where there is no other, a reader is killed; F_SEAL_SHRINK allows holes."""
    try:
        fd = memfd(1 << 21, SHRINK, os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"this kernel has no memory of huge pages: {error}")
    for readonly in (True, False):
        with pytest.raises(InvalidArgument, match="huge pages"):
            service(shared=shared).accept(sent(1 << 21, readonly=readonly), came(os.dup(fd)))
    os.close(fd)


def test_a_hole_in_a_memory_reads_as_zeros_and_kills_nobody() -> None:
    fd = memfd(4 * mmap.PAGESIZE, SHRINK)
    os.pwrite(fd, b"x" * 4 * mmap.PAGESIZE, 0)
    memory = service().accept(sent(4 * mmap.PAGESIZE), came(os.dup(fd)))
    keep_size_and_punch = 3
    place, length = (ctypes.c_long(n * mmap.PAGESIZE) for n in (1, 2))
    assert ctypes.CDLL(None, use_errno=True).fallocate(fd, keep_size_and_punch, place, length) == 0
    os.close(fd)
    assert bytes(memory.bytes()) == b"x" * mmap.PAGESIZE + bytes(2 * mmap.PAGESIZE) + b"x" * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("size", "offset"), [(65, 0), (64, 1), (1, 64), (0, 0), (2**63, 0), (1, 2**63), (2**39, 2**62)]
)
def test_bytes_past_the_end_of_a_memory_are_refused(size: int, offset: int) -> None:
    pools = service()
    with pytest.raises((InvalidArgument, ResourceExhausted)):
        pools.accept(sent(size, offset=offset), came(memfd(64, SHRINK)))
    assert len(pools) == 0


def test_a_part_of_a_memory_begins_at_its_offset() -> None:
    fd = memfd(3 * mmap.PAGESIZE, SHRINK)
    os.pwrite(fd, b"here", mmap.PAGESIZE + 100)
    memory = service().accept(sent(4, offset=mmap.PAGESIZE + 100), came(fd))
    assert memory.bytes().tobytes() == b"here"


def test_memories_that_were_sent_ahead_are_known_by_object_and_place() -> None:
    memories = [Memory.allocate(8) for _ in range(3)]
    pools = service(held={7: memories})
    for place, memory in enumerate(memories):
        assert pools.accept(wire.Pool("ashmem", 8, 0, False, 7, place), _native.NONE) is memory
    with pytest.raises(InvalidArgument, match="pool: place is 3, must be below 3"):
        pools.accept(wire.Pool("ashmem", 8, 0, False, 7, 3), _native.NONE)


def test_a_memory_counts_for_its_client_while_it_is_mapped() -> None:
    share = a_share()
    before = used(share)
    pools, memory = service(share=share), Memory.allocate(3 * mmap.PAGESIZE)
    first = pools.accept(sent(memory.size), copy_of(memory))
    again = pools.accept(sent(memory.size), copy_of(memory))
    assert used(share)["memories"] == 1 and used(share)["addresses"] == memory.size and first is again
    part = pools.accept(sent(2, offset=mmap.PAGESIZE - 1, kind="hardware_buffer_blob"), copy_of(memory))
    assert used(share)["memories"] == 2 and used(share)["addresses"] == memory.size + 2 * mmap.PAGESIZE
    assert used(share)["descriptors"] == before["descriptors"] + 1  # drivers may want that of a hardware buffer
    view = part.view(0, 1)
    del first, again, part
    gc.collect()
    assert used(share)["memories"] == 1 and view.tolist() == [0]
    del view
    gc.collect()
    assert used(share) == before


def test_what_cannot_be_mapped_counts_for_nothing() -> None:
    share = a_share()
    before, pools = used(share), service(share=share)
    for refused in (came(memfd(64)), came(memfd(8, SHRINK)), came(os.open("/dev/null", os.O_RDONLY))):
        with pytest.raises((InvalidArgument, Unmappable)):
            pools.accept(sent(64), refused)
    assert used(share) == before


@pytest.mark.parametrize(("name", "left"), [("memories", 3), ("mappings", 3), ("addresses", 3 * mmap.PAGESIZE)])
def test_memories_past_a_limit_are_refused_until_one_has_gone(name: str, left: int) -> None:
    share = a_share()
    others = share.take(**{name: share.quotas.table.rows[name].most - used(share)[name] - left})
    pools, memories = service(share=share), [Memory.allocate(8) for _ in range(4)]
    mapped = [pools.accept(sent(8), copy_of(memory)) for memory in memories[:3]]
    with pytest.raises(ResourceExhausted, match=f"{name}: this client has"):
        pools.accept(sent(8), copy_of(memories[3]))
    assert pools.accept(sent(8), copy_of(memories[0])) is mapped[0]
    del mapped[0]
    gc.collect()
    mapped.append(pools.accept(sent(8), copy_of(memories[3])))
    others.give()


def used(share: ClientShare) -> dict[str, int]:
    return share.quotas.usage()[0][1]


# -------------------------------------------------------------------------------------------------------------- client


def client(*, shared: bool = False) -> ClientPools:
    return ClientPools(shared=shared)


def same(fd: int) -> int:
    """What tells the memory behind a descriptor."""
    return os.fstat(fd).st_ino


def test_a_memory_that_is_closed_while_its_message_goes_out_does_not_send_a_strangers_descriptor() -> None:
    memory = Memory.allocate(8)
    own, packing = same(memory.fd), Packing(client())
    packing.pool(memory)
    memory.close()
    strangers = [memfd(16) for _ in range(8)]  # they take the numbers that are free
    assert list(map(same, packing.fds)) == [own]
    for fd in strangers:
        os.close(fd)
    with pytest.raises(Closed):
        Packing(client()).pool(memory)


def test_the_descriptor_of_a_memory_travels_with_each_message() -> None:
    pools, memory, other = client(), Memory.allocate(8), Memory.allocate(16)
    for _ in range(3):
        packing = Packing(pools)
        assert packing.pool(memory) == wire.Pool("ashmem", 8, 0, False)
        assert packing.pool(other) == wire.Pool("ashmem", 16, 0, False)
        assert list(map(same, packing.fds)) == [same(memory.fd), same(other.fd)]


def test_a_memory_that_was_sent_ahead_travels_as_its_object_and_place() -> None:
    memory, other = Memory.allocate(8), Memory.allocate(8)
    packing = Packing(client(), {memory: (5, 2)})
    assert packing.pool(memory) == wire.Pool("ashmem", 8, 0, False, 5, 2)
    assert packing.pool(other) == wire.Pool("ashmem", 8, 0, False)
    assert list(map(same, packing.fds)) == [same(other.fd)]


def test_a_copy_lives_as_long_as_the_memory_and_its_message() -> None:
    pools, opened = client(), Opened()
    memory = Memory.wrap(np.arange(4, dtype=np.uint8))
    packing = Packing(pools)
    packing.pool(memory)
    del memory
    gc.collect()
    assert os.pread(packing.fds[0], 4, 0) == bytes(range(4))
    del packing
    opened.closed()


def test_a_shared_service_gets_files_and_arrays_as_sealed_copies(file: Path) -> None:
    own = client(shared=False)
    shared = client(shared=True)
    memory = Memory.from_file(file)
    assert own.shareable(memory) is memory
    copy = shared.shareable(memory)
    assert copy is not memory and copy is shared.shareable(memory)
    assert (seals(copy.fd) or 0) & SHRINK and np.array_equal(copy.bytes(), memory.bytes())
    for pools in (own, shared):
        copy = pools.shareable(Memory.wrap(np.arange(4, dtype=np.uint8)))
        assert (seals(copy.fd) or 0) & SHRINK and copy.bytes().tolist() == [0, 1, 2, 3]


def test_a_writable_part_of_a_file_is_never_shared_itself(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    memory = Memory.from_fd(fd, 64, readonly=False)
    os.close(fd)
    for pools in (client(shared=False), client(shared=True)):
        assert pools.shareable(memory) is not memory


def test_what_a_client_sends_a_service_takes(file: Path) -> None:
    for shared in (False, True):
        mine, theirs = client(shared=shared), service(shared=shared)
        memories = [Memory.from_file(file), Memory.allocate(100), Memory.wrap(np.arange(9, dtype=np.uint8))]
        packing = Packing(mine)
        sent = [packing.pool(memory) for memory in memories]
        fds = came(*map(os.dup, packing.fds))
        for memory, pool in zip(memories, sent, strict=True):
            assert np.array_equal(theirs.accept(pool, fds).bytes(), memory.bytes())


@pytest.mark.skipif(not huge_pages(), reason="this kernel has no huge pages")
def test_a_long_message_in_huge_pages_of_which_there_are_none_is_read() -> None:
    """It is not mapped: whatever its sender does to it later, nobody dies of it."""
    fd = memfd(huge_pages(), SHRINK | 1 | 4 | 8, MFD_HUGETLB)
    head = struct.pack("<BQ", MARK, huge_pages())
    assert whole((head, came(fd)))[0] == bytes(huge_pages())


@pytest.mark.skipif(not huge_pages(), reason="this kernel has no huge pages")
def test_a_memory_of_huge_pages_travels_as_a_copy() -> None:
    fd = huge()
    memory = Memory.wrap(np.zeros(64, np.uint8))
    memory.fd = fd  # as if it could be mapped, which takes huge pages of the machine's
    assert not memory.sealed and ClientPools(shared=False).shareable(memory) is not memory
    memory.fd = -1
    os.close(fd)


def huge() -> int:
    return memfd(huge_pages(), SHRINK, MFD_HUGETLB)


PROVIDED = {
    "shrinks": lambda: memfd(1 << 20),
    "is too short": lambda: memfd(8),
    "is no memory": lambda: os.open("/dev/null", os.O_RDONLY),
}


@pytest.mark.parametrize("what", PROVIDED | ({"has huge pages": huge} if huge_pages() else {}))
def test_memory_that_a_driver_provides_is_read_and_kills_nobody_whatever_becomes_of_it(what: str) -> None:
    given = np.zeros(1 << 17, np.float32)
    told = wire.ExecutedReply(((given.size,),), (True,), provided=(0,))
    fd, ending = (PROVIDED | {"has huge pages": huge})[what](), threading.Event()

    def change() -> None:
        while not ending.is_set():
            os.ftruncate(fd, 0)
            os.ftruncate(fd, 1 << 20)

    changing = threading.Thread(target=change)
    with own_process("reference") as device:
        prepared = prepare(device, doubling(0))
        assert isinstance(prepared, RemotePrepared)
        if what == "shrinks":
            changing.start()
        try:
            for _ in range(100):
                with contextlib.suppress(ContractBroken):
                    prepared._take_provided(prepared.request([given]), told, came(os.dup(fd)))
        finally:
            ending.set()
            if what == "shrinks":
                changing.join()
            os.close(fd)
