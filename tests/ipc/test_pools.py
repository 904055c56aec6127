"""Memories between processes: a descriptor travels once, what could be cut off under its reader does not travel."""

import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.errors import InvalidArgument, ResourceExhausted, Unmappable
from nnhal.base.memory import Memory, seals
from nnhal.ipc import pools as subject
from nnhal.ipc import wire
from nnhal.ipc.pools import ClientPools, Packing, ServicePools

SHRINK, ADD_SEALS = 0x0002, 1033


def descriptors() -> set[str]:
    """Those that are open; what other tests left behind may be closed at any time."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def memfd(size: int, seal: int = 0) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seal:
        fcntl.fcntl(fd, ADD_SEALS, seal)
    return fd


def sent(number: int, size: int, *, offset: int = 0, readonly: bool = False, kind: str = "ashmem") -> wire.Pool:
    return wire.Pool(number, kind, size, offset, readonly, True)


def one(fd: int) -> Iterator[int]:
    return iter([fd])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 64)
    return path


# ------------------------------------------------------------------------------------------------------------- service


def test_a_memory_is_mapped_once_and_known_by_its_number_afterwards() -> None:
    pools, memory = ServicePools(shared=True), Memory.from_array(np.arange(8, dtype=np.uint8))
    first = pools.accept(sent(5, 8), one(os.dup(memory.fd)))
    again = pools.accept(wire.Pool(5, "ashmem", 8, 0, False, False), iter(()))
    third = pools.accept(sent(5, 8), one(os.dup(memory.fd)))
    assert first is again is third and len(pools) == 1
    memory.bytes()[3] = 77
    assert first.bytes().tolist() == [0, 1, 2, 77, 4, 5, 6, 7]


def test_descriptors_are_closed_whether_taken_or_refused() -> None:
    pools = ServicePools(shared=True)
    before = descriptors()
    memory = Memory.allocate(64)
    for number in range(1, 20):
        pools.accept(sent(1, 64), one(os.dup(memory.fd)))
        for bad in (memfd(64), os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)):
            with pytest.raises((InvalidArgument, Unmappable)):
                pools.accept(sent(100 + number, 64), one(bad))
    pools.close()
    memory.close()
    assert descriptors() <= before


@pytest.mark.parametrize("seal", [0, 0x0004, 0x0008])
def test_a_memory_that_may_shrink_is_refused(seal: int) -> None:
    with pytest.raises(InvalidArgument, match="pool 1: is not sealed against shrinking, must be"):
        ServicePools(shared=False).accept(sent(1, 64), one(memfd(64, seal)))


def test_a_file_is_for_reading_and_for_the_own_process_of_a_client(file: Path) -> None:
    whole = file.stat().st_size
    memory = ServicePools(shared=False).accept(sent(1, whole, readonly=True), one(os.open(file, os.O_RDONLY)))
    assert memory.bytes().tobytes() == file.read_bytes()
    for shared, readonly in ((True, True), (False, False), (True, False)):
        with pytest.raises(InvalidArgument, match="a file cannot be sealed"):
            pools = ServicePools(shared=shared)
            pools.accept(sent(1, whole, readonly=readonly), one(os.open(file, os.O_RDWR)))


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/dev/null"])
def test_what_is_neither_memfd_nor_file_is_refused(path: str) -> None:
    with pytest.raises(Unmappable, match="must be a memfd or file"):
        ServicePools(shared=False).accept(sent(1, 64, readonly=True), one(os.open(path, os.O_RDONLY)))


@pytest.mark.parametrize(
    ("size", "offset"), [(65, 0), (64, 1), (1, 64), (0, 0), (2**63, 0), (1, 2**63), (2**39, 2**62)]
)
def test_bytes_past_the_end_of_a_memory_are_refused(size: int, offset: int) -> None:
    pools = ServicePools(shared=True)
    with pytest.raises((InvalidArgument, ResourceExhausted)):
        pools.accept(sent(1, size, offset=offset), one(memfd(64, SHRINK)))
    assert len(pools) == 0


def test_a_part_of_a_memory_begins_at_its_offset() -> None:
    fd = memfd(3 * mmap.PAGESIZE, SHRINK)
    os.pwrite(fd, b"here", mmap.PAGESIZE + 100)
    memory = ServicePools(shared=True).accept(sent(1, 4, offset=mmap.PAGESIZE + 100), one(fd))
    assert memory.bytes().tobytes() == b"here"


def test_numbers_that_were_never_sent_or_were_released_are_refused() -> None:
    pools, memory = ServicePools(shared=True), Memory.allocate(8)
    known = wire.Pool(1, "ashmem", 8, 0, False, False)
    with pytest.raises(InvalidArgument, match="pool 1 is not known here, must be sent first"):
        pools.accept(known, iter(()))
    with pytest.raises(InvalidArgument, match="its descriptor did not come along"):
        pools.accept(sent(1, 8), iter(()))
    pools.accept(sent(1, 8), one(os.dup(memory.fd)))
    pools.release(1)
    pools.release(1)
    with pytest.raises(InvalidArgument, match="is not known here"):
        pools.accept(known, iter(()))


def test_a_connection_has_limits_of_pools_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_POOLS", 3)
    pools, memory = ServicePools(shared=True), Memory.allocate(8)
    for number in range(3):
        pools.accept(sent(number, 8), one(os.dup(memory.fd)))
    with pytest.raises(ResourceExhausted, match="3 pools are mapped"):
        pools.accept(sent(3, 8), one(os.dup(memory.fd)))
    pools.release(0)
    pools.accept(sent(3, 8), one(os.dup(memory.fd)))
    monkeypatch.setattr(subject, "MAX_POOL_BYTES", 12)
    pools.close()
    pools.accept(sent(1, 8), one(os.dup(memory.fd)))
    with pytest.raises(ResourceExhausted):
        pools.accept(sent(2, 8), one(os.dup(memory.fd)))


def test_a_mapping_outlives_its_release_where_it_is_in_use() -> None:
    pools, memory = ServicePools(shared=True), Memory.from_array(np.arange(4, dtype=np.uint8))
    view = pools.accept(sent(1, 4), one(os.dup(memory.fd))).view(1, 2)
    pools.release(1)
    memory.close()
    gc.collect()
    assert view.tolist() == [1, 2]


# -------------------------------------------------------------------------------------------------------------- client


def client(*, shared: bool = False, limit: int = 100) -> tuple[ClientPools, list[int]]:
    released: list[int] = []
    return ClientPools(shared=shared, limit=limit, release=released.append), released


def test_a_descriptor_travels_once_even_within_one_message() -> None:
    pools, _ = client()
    memory = Memory.allocate(8)
    first = Packing(pools)
    assert [first.pool(memory).sent, first.pool(memory).sent] == [True, False]
    assert first.fds == [memory.fd]
    first.delivered()
    second = Packing(pools)
    assert second.pool(memory) == wire.Pool(1, "ashmem", 8, 0, False, False) and second.fds == []


def test_a_message_that_failed_leaves_its_memories_to_be_sent_again() -> None:
    pools, _ = client()
    memory = Memory.allocate(8)
    assert Packing(pools).pool(memory).sent
    assert Packing(pools).pool(memory).sent


def test_the_service_is_told_when_a_memory_is_gone() -> None:
    pools, released = client()
    memory = Memory.allocate(8)
    packing = Packing(pools)
    number = packing.pool(memory).id
    packing.delivered()
    del packing, memory
    gc.collect()
    assert released == [number]


def test_past_the_limit_the_memory_not_used_for_longest_is_released() -> None:
    pools, released = client(limit=2)
    memories = [Memory.allocate(8) for _ in range(3)]

    def send(memory: Memory) -> int:
        packing = Packing(pools)
        number = packing.pool(memory).id
        packing.delivered()
        return number

    one, two = send(memories[0]), send(memories[1])
    send(memories[0])
    send(memories[2])
    assert released == [two]
    assert Packing(pools).pool(memories[1]).sent and not Packing(pools).pool(memories[0]).sent
    assert one == 1


def test_a_shared_service_gets_files_and_arrays_as_sealed_copies(file: Path) -> None:
    own, _ = client(shared=False)
    shared, _ = client(shared=True)
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
    for pools, _ in (client(shared=False), client(shared=True)):
        assert pools.shareable(memory) is not memory


def test_what_a_client_sends_a_service_takes(file: Path) -> None:
    for shared in (False, True):
        mine, _ = client(shared=shared)
        theirs = ServicePools(shared=shared)
        memories = [Memory.from_file(file), Memory.allocate(100), Memory.wrap(np.arange(9, dtype=np.uint8))]
        packing = Packing(mine)
        sent = [packing.pool(memory) for memory in memories]
        fds = iter([os.dup(fd) for fd in packing.fds])
        for memory, pool in zip(memories, sent, strict=True):
            assert np.array_equal(theirs.accept(pool, fds).bytes(), memory.bytes())
