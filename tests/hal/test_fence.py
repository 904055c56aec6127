"""Fences: what holders see, cannot do, and do not lose."""

import asyncio
import ctypes
import fcntl
import gc
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    Closed,
    DeadObject,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
)
from nnhal.hal import fence as subject
from nnhal.hal.fence import Fence, Signal, fence_pair, status_in_info
from tests.hal import stalled
from tests.hal.devices import LIMIT
from tests.hal.stalled import user_faults
from tests.waiting import Opened, together

NONE, FAILED, DEAD = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE, ErrorStatus.DEAD_OBJECT
SW_SYNC = [path for path in ("/dev/sw_sync", "/sys/kernel/debug/sync/sw_sync") if os.access(path, os.R_OK | os.W_OK)]


def later(work: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(0.05, work)
    timer.start()
    return timer


def foreign(fence: Fence) -> Fence:
    """The fence as another process has it: by its descriptor alone."""
    return Fence(os.dup(fence.fileno()))


def test_a_fence_is_pending_until_it_is_signalled() -> None:
    fence, signal = fence_pair()
    assert fence.status() is None and repr(fence) == "Fence(pending)"
    signal.set()
    assert fence.status() == NONE and repr(fence) == "Fence(NONE)"
    fence.wait()


@pytest.mark.parametrize("status", [s for s in ErrorStatus if s != NONE])
def test_a_failure_is_raised_as_what_its_status_stands_for(status: ErrorStatus) -> None:
    fence, signal = fence_pair()
    signal.set(status)
    with pytest.raises(NnhalError) as caught:
        fence.wait()
    assert caught.value.status == fence.status() == status


def test_only_the_first_signal_counts_from_whatever_thread() -> None:
    for _ in range(50):
        fence, signal = fence_pair()
        together([partial(signal.set, status) for status in (NONE, FAILED, DEAD)])
        first = fence.status()
        signal.set(NONE if first != NONE else FAILED)
        assert fence.duplicate().status() == first
        assert os.read(fence.fileno(), 8) == (b"" if first == DEAD else bytes((first or 0,)))


def test_a_side_that_goes_away_without_a_signal_is_a_dead_object() -> None:
    fence, signal = fence_pair()
    del signal
    gc.collect()
    assert fence.status() == DEAD
    with pytest.raises(DeadObject, match="died before it signalled"):
        fence.wait()


def test_a_process_that_dies_while_it_executes_is_a_dead_object() -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_inheritable(write, True)
    child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    os.close(write)
    fence = Fence(read)
    assert fence.status() is None
    os.kill(child, 9)
    os.waitpid(child, 0)
    with pytest.raises(DeadObject):
        fence.wait(LIMIT)


def test_a_byte_that_is_no_status_is_a_failure() -> None:
    read, write = os.pipe()
    os.write(write, b"\xee")
    assert Fence(read).status() == FAILED
    os.close(write)


# ---------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("timeout", [0, 0.0, -1, 0.0001, 0.02])
def test_waiting_ends_at_its_time_with_missed_deadline(timeout: float) -> None:
    fence, signal = fence_pair()
    start = time.monotonic()
    with pytest.raises(MissedDeadline, match="must be by then"):
        fence.wait(timeout)
    assert time.monotonic() - start >= max(0, timeout)
    signal.set()
    fence.wait(timeout)


@pytest.mark.parametrize("timeout", [None, LIMIT, 1e9, float("inf")])
def test_waiting_ends_when_it_is_signalled(timeout: float | None) -> None:
    fence, signal = fence_pair()
    timer = later(signal.set)
    fence.wait(timeout)
    timer.join()
    assert fence.status() == NONE


def test_many_threads_may_wait_for_one_fence() -> None:
    fence, signal = fence_pair()
    timer = later(lambda: signal.set(FAILED))

    def work() -> None:
        with pytest.raises(OperationFailed, match="the execution it stands for failed"):
            fence.wait(LIMIT)

    together([work] * 8)
    timer.join()


def test_a_fence_can_be_selected_on() -> None:
    fence, signal = fence_pair()
    assert select.select([fence], [], [], 0)[0] == []
    timer = later(signal.set)
    assert select.select([fence], [], [], LIMIT)[0] == [fence]
    timer.join()


def test_many_tasks_await_one_fence_while_the_loop_runs() -> None:
    fence, signal = fence_pair()

    async def wait() -> None:
        await fence

    async def main() -> int:
        tasks = [asyncio.create_task(wait()) for _ in range(5)]
        turns = 0
        while turns < 20:
            await asyncio.sleep(0)
            turns += 1
        assert not any(task.done() for task in tasks)
        signal.set()
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        await fence
        return turns

    assert asyncio.run(main()) == 20


def test_awaiting_raises_what_waiting_raises_and_can_be_given_up() -> None:
    fence, signal = fence_pair()

    async def wait() -> None:
        await fence

    async def main() -> None:
        opened = Opened()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0.01)
        opened.closed()
        signal.set(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        with pytest.raises(ResourceExhausted):
            await fence

    asyncio.run(main())


# ------------------------------------------------------------------------------------- what holders can and cannot do


def looking(fence: Fence) -> None:
    for _ in range(50):
        assert fence.duplicate().status() == ErrorStatus.DEVICE_UNAVAILABLE


def test_who_gave_up_awaiting_holds_no_descriptor_though_the_error_is_kept() -> None:
    fence, signal = fence_pair()

    async def given_up() -> BaseException:
        opened = Opened()
        task = asyncio.ensure_future(_awaited(fence))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert opened.count() == 1
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            assert opened.count() == 0
            return error
        raise AssertionError

    error = asyncio.run(given_up())
    assert error.__traceback__ is not None
    signal.set()


async def _awaited(fence: Fence) -> None:
    await fence


def test_looking_takes_nothing_out() -> None:
    fence, signal = fence_pair()
    signal.set(ErrorStatus.DEVICE_UNAVAILABLE)
    holders = [fence, *(fence.duplicate() for _ in range(20))]
    together([partial(looking, holder) for holder in holders])
    assert {holder.status() for holder in (*holders, fence.duplicate())} == {ErrorStatus.DEVICE_UNAVAILABLE}
    assert os.read(fence.fileno(), 8) == bytes((ErrorStatus.DEVICE_UNAVAILABLE,))


def test_a_holder_cannot_signal() -> None:
    fence, signal = fence_pair()
    with pytest.raises(OSError):
        os.write(fence.fileno(), b"\0")
    assert fence.status() is None
    signal.set(FAILED)
    assert fence.status() == FAILED


@pytest.mark.parametrize("status", [NONE, FAILED])
def test_a_status_that_another_holder_took_out_is_a_dead_object_and_never_a_success(status: ErrorStatus) -> None:
    here, signal = fence_pair()
    fence, thief, knows = foreign(here), foreign(here), foreign(here)
    signal.set(status)
    assert knows.status() == status
    assert os.read(thief.fileno(), 1) == bytes((status,))
    assert fence.status() == DEAD
    with pytest.raises(DeadObject):
        fence.wait(LIMIT)
    assert knows.status() == status  # who has seen it keeps it
    assert here.status() == here.duplicate().status() == status  # and so does who is in the process that signalled


@pytest.mark.parametrize(
    ("timeout", "milliseconds"),
    [
        (None, -1),
        (float("inf"), -1),
        (2_000_001, -1),
        (1_999_999, 1_999_999_000),
        (1.5, 1500),
        (0.0011, 2),
        (0, 0),
        (-1, 0),
    ],
)
def test_a_wait_is_polled_for_as_long_in_whole_milliseconds(
    timeout: float | None, milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, _signal = fence_pair()
    asked: list[int] = []

    def events(fd: int, most: int) -> int:
        asked.append(most)
        return 0

    monkeypatch.setattr(subject, "_events", events)
    with pytest.raises((MissedDeadline, TypeError)):  # without a limit nothing but a signal ends it
        fence.wait(timeout)
    assert fence.status() is None and asked == [milliseconds, 0]


def test_who_signals_in_this_process_is_believed_though_another_took_the_status_out() -> None:
    fence, signal = fence_pair()
    duplicate, other = fence.duplicate(), foreign(fence)
    signal.set(FAILED)
    os.read(other.fileno(), 1)
    assert fence.status() == duplicate.status() == FAILED and other.status() == DEAD


def test_a_descriptor_that_is_given_once_is_a_fence() -> None:
    fence, signal = fence_pair()
    asked: list[int] = []

    def take() -> int:
        asked.append(1)
        return os.dup(fence.fileno())

    taken = Fence.taken(take)
    assert asked == [1] and taken.status() is None
    signal.set()
    taken.wait(0)


def test_a_duplicate_outlives_its_original() -> None:
    fence, signal = fence_pair()
    duplicate = fence.duplicate()
    assert duplicate.fileno() != fence.fileno()
    assert not os.get_inheritable(duplicate.fileno()) and not os.get_inheritable(fence.fileno())
    fence.close()
    signal.set()
    duplicate.wait(LIMIT)


def test_a_closed_fence_says_so_and_keeps_what_it_has_seen() -> None:
    seen, unseen = (fence_pair() for _ in range(2))
    for _, signal in (seen, unseen):
        signal.set()
    assert seen[0].status() == NONE
    for fence, _ in (seen, unseen):
        fence.close()
        fence.close()
        for use in (fence.fileno, fence.duplicate):
            with pytest.raises(Closed, match="used after close"):
                use()
    seen[0].wait()
    with pytest.raises(Closed):
        unseen[0].wait()
    assert repr(seen[0]) == "Fence(NONE)"


def test_a_joined_fence_waits_for_others_until_they_are_signalled_or_its_holder_closes_it() -> None:
    (pending, signal), (joined, own) = fence_pair(), fence_pair()
    signal.set()
    assert own.wait_for_fences([pending])
    waited, other = fence_pair()
    answers: SimpleQueue[bool] = SimpleQueue()
    waiting = threading.Thread(target=lambda: answers.put(own.wait_for_fences([waited])))
    waiting.start()
    joined.close()  # nobody waits for it any more
    try:
        assert answers.get(timeout=LIMIT) is False
    finally:
        other.set()
        waiting.join(LIMIT)


def test_a_signal_to_nobody_is_no_error() -> None:
    fence, signal = fence_pair()
    fence.close()
    signal.set(FAILED)


# ------------------------------------------------------------------------------------------------ which descriptors


@pytest.mark.parametrize("what", ["a file", "a write end", "an event", "nothing"])
def test_descriptors_that_are_no_fence_are_refused_and_left_open(what: str, tmp_path: Path) -> None:
    others: list[int] = []
    if what == "a file":
        fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    elif what == "a write end":
        read, fd = os.pipe()
        others = [read]
    elif what == "an event":
        fd = os.eventfd(0)
    else:
        read, fd = os.pipe()
        os.close(read)
        os.close(fd)
    with pytest.raises(InvalidArgument, match="is not open" if what == "nothing" else "must be the read end of a pipe"):
        Fence(fd)
    for each in () if what == "nothing" else (fd, *others):
        os.close(each)


def test_a_thousand_fences_leave_no_descriptors() -> None:
    opened = Opened()
    for n in range(1000):
        fence, signal = fence_pair()
        duplicate = fence.duplicate()
        if n % 3:
            signal.set(NONE if n % 2 else FAILED)
        assert (duplicate.status() is None) == (n % 3 == 0)
        if n % 5:
            fence.close()
    del fence, signal, duplicate
    opened.closed()


def test_without_descriptors_fences_are_resource_exhausted_and_work_afterwards() -> None:
    import resource

    fence, signal = fence_pair()
    other = foreign(fence)
    signal.set()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(fence.fileno())
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        for use in (fence_pair, fence.duplicate, other.status):
            with pytest.raises(ResourceExhausted, match="no descriptor"):
                use()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert other.status() == fence.status() == NONE


# ------------------------------------------------------------------------------------------------------- sync_file


def info(status: int) -> bytes:
    """struct sync_file_info of <linux/sync_file.h>, by C's own rules of layout."""

    class SyncFileInfo(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char * 32),
            ("status", ctypes.c_int32),
            ("flags", ctypes.c_uint32),
            ("num_fences", ctypes.c_uint32),
            ("pad", ctypes.c_uint32),
            ("sync_fence_info", ctypes.c_uint64),
        )

    return bytes(SyncFileInfo(b"test", status, 0, 1, 0, 0))


@pytest.mark.parametrize(("status", "means"), [(1, NONE), (-5, FAILED), (-110, FAILED)])
def test_what_a_sync_file_says_is_read_by_the_kernels_struct(status: int, means: ErrorStatus) -> None:
    assert status_in_info(info(status)) == means


def test_the_question_to_a_sync_file_is_the_kernels() -> None:
    assert 3 << 30 | len(info(0)) << 16 | ord(">") << 8 | 4 == subject._SYNC_IOC_FILE_INFO  # _IOWR('>', 4, struct)


def test_a_descriptor_that_answers_as_a_sync_file_does_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(subject, "_status_of_sync_file", asked.append)
    fd = select.epoll()  # of no kind of file, as a sync_file is
    with fd:
        assert (subject._kind_of(fd.fileno()), asked) == ("sync_file", [fd.fileno()])


@pytest.mark.skipif(not SW_SYNC, reason="the kernel offers no sw_sync to make a sync_file with")
def test_a_sync_file_of_the_kernel_is_a_fence() -> None:
    timeline = os.open(SW_SYNC[0], os.O_RDWR)
    create, increase = 0xC0285700, 0x40045701  # _IOWR('W', 0, struct sw_sync_create_fence_data), _IOW('W', 1, __u32)
    data = bytearray(struct.pack("I32si", 1, b"test", -1))
    fcntl.ioctl(timeline, create, data)
    fence = Fence(struct.unpack("I32si", data)[2])
    assert fence.status() is None
    with pytest.raises(MissedDeadline):
        fence.wait(0.01)
    fcntl.ioctl(timeline, increase, struct.pack("I", 1))
    fence.wait(LIMIT)
    assert fence.status() == fence.duplicate().status() == NONE
    os.close(timeline)


def test_signals_belong_to_one_fence() -> None:
    pairs = [fence_pair() for _ in range(10)]
    for n, (_, signal) in enumerate(pairs):
        if n % 2:
            signal.set()
    assert [fence.status() for fence, _ in pairs] == [NONE if n % 2 else None for n in range(10)]
    assert all(isinstance(signal, Signal) for _, signal in pairs)


@pytest.mark.skipif(user_faults() < 0, reason="this user may have no userfaultfd, which holds a pipe's mutex")
def test_a_look_at_a_pipe_that_is_written_to_for_ever_holds_up_nobody_else() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, stalled.__file__, str(write)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(write,)
    ) as holder:
        os.close(write)
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        fence, seen = Fence(read), []
        looking = threading.Thread(target=lambda: seen.append(fence.status()))
        looking.start()
        task = Path(f"/proc/self/task/{looking.native_id}/stat")
        end = time.monotonic() + LIMIT
        while looking.is_alive() and " D " not in task.read_text():  # it waits in the kernel, and cannot be woken
            assert time.monotonic() < end
        holder.communicate()
        looking.join(LIMIT)
    assert holder.returncode == 0, "all threads stood still until the holder ended by itself"
    assert seen == [NONE]
