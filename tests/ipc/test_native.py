"""Lanes and queues of the native extension: what arrives, what is refused, and what ends a wait.

Offsets of the queues' memory are written out here from the layout in _native.c. Longer than other files, as most facts need
a process of their own.
"""

import array
import contextlib
import ctypes
import mmap
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nnhal.ipc.transport import _native
from tests.execution import PROGRAM_LIMIT, run_python
from tests.ipc.support import lingering, wait_until
from tests.waiting import Opened, jitter, until

HANG_NS = 30_000_000_000  # a wait that takes this long hangs
REQUEST, RESULT = 64, 320  # where a queue's words start: write index, +64 read index, +128 event, +192 waiter
LIVENESS, CLOSED, AFFINITY = (576, 640), 704, (768, 832)
PAGE = 4096
PPOLL = {"x86_64": 271, "aarch64": 73}[os.uname().machine]
SEALS = 0x0001 | 0x0002 | 0x0004  # seal, shrink, grow
NASTY = (0, 1, 5, 17, 2**16, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 17, 2**64 - 1)

PEER = """
import os, random, signal, socket, struct, sys, threading, time
from nnhal.ipc.transport import _native as n
fd = int(sys.argv[1])
"""


def packet(elements: int, tag: int = 0) -> bytes:
    """A packet with so many elements; the tag stands in all but the first words."""
    return struct.pack("<6I", 0, elements, tag, tag, tag, tag) + struct.pack("<6I", *[tag] * 6) * (elements - 1)


def peer(code: str, fd: int) -> subprocess.Popen[str]:
    """A process that runs `code` with a descriptor, up to the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", PEER + code, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for a process that ends well; the rest of what it printed."""
    rest, _ = process.communicate(timeout=PROGRAM_LIMIT)
    assert process.returncode == 0
    return rest


def push(sock: socket.socket, number: int, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send what a lane would, by hand: a number and bytes."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([struct.pack("<Q", number) + data], rights)


def mappings(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


class Pair:
    """Both sides of a burst in this process, and a view of their memory."""

    def __init__(self, requests: int = 16, results: int = 16) -> None:
        self.fd = _native.create_queues(requests, results)
        self.client = _native.Queues(self.fd, _native.CLIENT)
        self.service = _native.Queues(self.fd, _native.SERVICE)
        self.memory = mmap.mmap(self.fd, os.fstat(self.fd).st_size)

    def word(self, place: int, form: str = "<Q") -> int:
        return int(struct.unpack_from(form, self.memory, place)[0])

    def put(self, place: int, value: int, form: str = "<Q") -> None:
        struct.pack_into(form, self.memory, place, value)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.memory.close()
    os.close(made.fd)


@pytest.fixture
def lanes() -> Iterator[tuple[_native.Lane, _native.Lane, socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        yield _native.Lane(a.fileno()), _native.Lane(b.fileno()), a, b


# ------------------------------------------------------------------------------------------------------------------- Lane


def test_message_arrives_whole_with_its_descriptors(lanes):
    a, b, _, _ = lanes
    with tempfile.TemporaryFile() as file:
        assert a.send(b"one", (file.fileno(),)) == 0
        assert a.send(bytearray(b"two")) == 0
        data, fds = b.receive(HANG_NS)
        assert data == b"one" and len(fds) == 1
        fd = fds.take()
        assert os.fstat(fd).st_ino == os.fstat(file.fileno()).st_ino
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert b.receive(HANG_NS) == (b"two", _native.NONE)


def test_call_brings_the_answer_of_another_process():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = """
l = n.Lane(fd); print('ready', flush=True)
while not isinstance(m := l.receive(), int): l.answer(m[0][::-1])
"""
    with a:
        with b:
            process = peer(code, b.fileno())
        lane = _native.Lane(a.fileno())
        for spin in (True, False):
            lane.spin = spin
            for size in (1, 200, 65536):
                data = random.Random(size).randbytes(size)
                assert lane.call(data, (), HANG_NS) == (data[::-1], _native.NONE)
        assert lane.stats()["blocks"] >= 3
    ended(process)


def test_64_descriptors_pass_and_more_are_refused_without_a_leak(lanes):
    a, b, sock, _ = lanes
    with tempfile.TemporaryFile() as file:
        opened = Opened()
        assert a.send(b"x", (file.fileno(),) * 65) == _native.TOO_LARGE
        assert a.send(b"x", (file.fileno(),) * 1000) == _native.TOO_LARGE
        assert b.receive(0) == _native.TIMEOUT
        push(sock, 0, b"x", [file.fileno()] * 100)
        assert b.receive(HANG_NS) == _native.TOO_LARGE
        opened.closed()
        assert a.send(b"x", [file.fileno()] * 64) == 0
        _, fds = b.receive(HANG_NS)
        assert len(fds) == 64 and opened.count() == 64
        taken = [fds.take() for _ in range(64)]
        assert len(set(taken)) == 64 and len(fds) == 0 and fds.take() == -1
        for fd in taken:
            os.close(fd)
        opened.closed()


def test_too_long_messages_are_refused_and_their_descriptors_closed(lanes):
    a, b, sock, _ = lanes
    opened = Opened()
    longest = 64 * 1024 + 4 * 1024
    assert a.send(bytes(longest + 1)) == _native.TOO_LARGE
    push(sock, 0, bytes(longest + 1), [0, 1])
    assert b.receive(HANG_NS) == _native.TOO_LARGE
    opened.closed()
    assert a.send(bytes(longest)) == 0
    assert b.receive(HANG_NS) == (bytes(longest), _native.NONE)


def test_descriptors_that_find_no_room_are_all_closed(lanes):
    a, b, sock, _ = lanes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert a.send(b"x", (sock.fileno(),) * 20) == 0
    opened = Opened()
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 5, hard))
    try:
        assert b.receive(HANG_NS) == _native.TOO_LARGE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    opened.closed()


def test_descriptor_that_is_not_open_is_the_callers_error(lanes):
    a, _, _, _ = lanes
    with pytest.raises(OSError, match="Bad file descriptor"):
        a.send(b"x", (2**30,))
    with pytest.raises(ValueError, match="descriptor 0 is -1, must be 0 to"):
        a.send(b"x", (-1,))
    with pytest.raises(ValueError, match="must have at least 1"):
        a.send(b"")


def test_hang_up_is_dead_after_what_was_sent_before(lanes):
    a, b, sock, other = lanes
    assert a.send(b"last") == 0
    sock.close()
    assert b.receive(HANG_NS) == (b"last", _native.NONE)
    assert b.receive(HANG_NS) == _native.DEAD
    assert b.send(b"x") == _native.DEAD
    assert b.call(b"x", (), HANG_NS) == _native.DEAD
    other.close()
    assert b.receive(HANG_NS) == _native.CLOSED and b.send(b"x") == _native.CLOSED


def test_end_of_the_watched_process_is_dead_though_its_child_keeps_the_socket():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = """
child = os.fork()
if child == 0: time.sleep(600)
n.Lane(fd).send(str(child).encode()); print('ready', flush=True)
"""
    with a:
        with b:
            process = peer(code, b.fileno())
        lane = _native.Lane(a.fileno(), os.pidfd_open(process.pid))
        data, _ = lane.receive(HANG_NS)
        assert lane.receive(HANG_NS) == _native.DEAD
        os.kill(int(data), signal.SIGKILL)
        os.close(lane.watch)
    ended(process)


def test_full_socket_waits_for_the_reader_up_to_the_timeout(lanes):
    a, b, _, _ = lanes
    sent = 0
    while a.send(bytes(60_000), (), 0) == 0:
        sent += 1
    assert sent > 0 and a.send(bytes(60_000), (), 1_000_000) == _native.TIMEOUT
    threading.Timer(0.05, lambda: [b.receive(HANG_NS) for _ in range(sent)]).start()
    assert a.send(bytes(60_000), (), HANG_NS) == 0


def test_a_call_and_its_answer_bear_the_same_number_and_a_message_bears_none(lanes):
    a, b, sock, other = lanes
    for number in (1, 2, 3):
        assert a.ask(b"call") == 0 and a.awaited == number
        assert other.recv(64) == struct.pack("<Q", number) + b"call"
        push(other, number, b"answer")
        assert a.receive(HANG_NS) == (b"answer", _native.NONE) and a.awaited == 0
    assert a.send(b"message") == 0
    assert other.recv(64) == bytes(8) + b"message"
    push(sock, 2**64 - 1, b"call")
    assert b.receive(HANG_NS) == (b"call", _native.NONE) and b.asked == 2**64 - 1
    assert b.answer(b"answer") == 0 and b.asked == 0
    assert sock.recv(64) == b"\xff" * 8 + b"answer"


def test_what_wants_no_answer_cannot_be_answered(lanes):
    a, b, _, _ = lanes
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no call was received"):
            b.answer(b"x")
        assert a.send(b"message") == 0
        assert b.receive(HANG_NS) == (b"message", _native.NONE) and b.asked == 0


def test_a_call_is_answered_once(lanes):
    a, b, _, _ = lanes
    assert a.ask(b"call") == 0
    b.receive(HANG_NS)
    assert b.answer(b"one") == 0
    with pytest.raises(RuntimeError, match="no call was received"):
        b.answer(b"two")
    assert a.receive(HANG_NS) == (b"one", _native.NONE)


def test_an_answer_that_is_too_large_may_be_replaced_by_a_shorter_one(lanes):
    a, b, _, _ = lanes
    assert a.ask(b"call") == 0
    b.receive(HANG_NS)
    assert b.answer(bytes(1 << 17)) == _native.TOO_LARGE and b.asked == 1
    assert b.answer(b"too long") == 0
    assert a.receive(HANG_NS) == (b"too long", _native.NONE)


def test_while_an_answer_is_to_come_no_call_is_taken_and_the_late_one_is_not_the_next_ones(lanes):
    a, b, _, _ = lanes
    assert a.call(b"first", (), 1_000_000) == _native.TIMEOUT and a.awaited == 1
    assert a.call(b"second", (), HANG_NS) == a.ask(b"second") == _native.CORRUPT
    assert b.receive(HANG_NS) == (b"first", _native.NONE) and b.receive(0) == _native.TIMEOUT
    assert b.answer(b"late") == 0
    assert a.call(b"second", (), HANG_NS) == _native.CORRUPT
    assert a.receive(HANG_NS) == (b"late", _native.NONE) and a.awaited == 0
    assert a.ask(b"second") == 0 and a.awaited == 2


@pytest.mark.parametrize("number", (0, 1, 3, 2**32 + 2, 2**64 - 1))
def test_an_answer_of_another_number_is_corrupt_and_its_descriptors_are_closed(lanes, number):
    a, _, _, other = lanes
    push(other, 1, b"answer")
    assert a.call(b"call", (), HANG_NS) == (b"answer", _native.NONE)
    assert a.ask(b"call") == 0
    opened = Opened()
    for _ in range(3):
        push(other, number, b"answer", [0, 1, 2])
        assert a.receive(HANG_NS) == _native.CORRUPT and a.awaited == 2
    opened.closed()
    push(other, 2, b"right")
    assert a.receive(HANG_NS) == (b"right", _native.NONE)


@pytest.mark.parametrize("awaited", (False, True))
@pytest.mark.parametrize("length", range(9))
def test_a_message_without_bytes_after_its_number_is_corrupt_and_its_descriptors_are_closed(lanes, length, awaited):
    a, _, _, other = lanes
    assert not awaited or a.ask(b"call") == 0
    opened = Opened()
    datagram = struct.pack("<Q", int(awaited))[:length]
    for fds in ([0], [0, 1, 2], [0] * 64, [0] * 65):
        other.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        assert a.receive(HANG_NS) == _native.CORRUPT
    assert a.asked == 0
    opened.closed()
    if length:
        other.send(datagram)
        assert a.receive(HANG_NS) == _native.CORRUPT


@pytest.mark.parametrize("length", range(1, 9))
def test_a_message_without_bytes_is_not_the_answer_though_its_number_may_be(lanes, length):
    a, _, _, other = lanes
    push(other, 1, b"answer")
    assert a.call(b"call", (), HANG_NS) == (b"answer", _native.NONE)
    assert a.ask(b"call") == 0
    other.send(struct.pack("<Q", 2)[:length])
    assert a.receive(HANG_NS) == _native.CORRUPT and a.awaited == 2
    assert a.ask(b"call") == _native.CORRUPT


def test_a_call_that_was_not_sent_has_no_answer_to_come(lanes):
    a, _, sock, other = lanes
    with pytest.raises(OSError, match="Bad file descriptor"):
        a.ask(b"x", (2**30,))
    assert a.ask(bytes(1 << 17)) == _native.TOO_LARGE and a.awaited == 0
    while a.send(bytes(60_000), (), 0) == 0:
        pass
    assert a.call(bytes(60_000), (), 1_000_000) == _native.TIMEOUT and a.awaited == 0
    other.close()
    assert a.ask(b"x") == _native.DEAD and a.awaited == 0
    sock.close()


@pytest.mark.parametrize("spin", (True, False))
def test_a_call_that_was_interrupted_has_an_answer_to_come(lanes, interrupts, spin):
    a, b, _, _ = lanes
    a.spin = spin
    with interrupts.expected(0.05):
        a.call(b"call")
    assert a.awaited == 1 and a.call(b"next") == _native.CORRUPT
    b.receive(HANG_NS)
    b.answer(b"late")
    assert a.receive(HANG_NS) == (b"late", _native.NONE) and a.awaited == 0


def test_a_call_that_was_interrupted_before_it_was_sent_has_none(lanes, interrupts):
    a, b, _, _ = lanes
    sent = 0
    while a.send(bytes(60_000), (), 0) == 0:
        sent += 1
    with interrupts.expected(0.05):
        a.call(bytes(60_000))
    assert a.awaited == 0
    assert [len(b.receive(0)[0]) for _ in range(sent)] == [60_000] * sent
    assert b.receive(0) == _native.TIMEOUT


# ------------------------------------------------------------------------------------------------------------ Descriptors


def received(lanes, count: int) -> _native.Descriptors:
    """The owner of so many descriptors that came with a message."""
    a, b, sock, _ = lanes
    assert a.send(b"x", [sock.fileno()] * count) == 0
    return b.receive(HANG_NS)[1]


def test_descriptors_that_nobody_took_are_closed_with_their_owner(lanes):
    opened = Opened()
    for taken in (0, 1, 3):
        owner = received(lanes, 3)
        mine = [owner.take() for _ in range(taken)]
        assert len(owner) == 3 - taken and opened.count() == 3
        del owner
        assert opened.count() == taken
        for fd in mine:
            os.close(fd)


def test_descriptors_are_closed_once(lanes):
    opened = Opened()
    owner = received(lanes, 3)
    first = owner.take()
    owner.close()
    assert (len(owner), owner.take(), opened.count()) == (0, -1, 1)
    again = os.dup(0)  # one of the numbers that were closed
    owner.close()
    del owner
    os.fstat(again)
    os.close(again)
    os.close(first)


def test_descriptors_are_closed_where_an_exception_passes_their_owner(lanes):
    opened = Opened()

    def fails() -> None:
        owner = received(lanes, 5)
        os.close(owner.take())
        raise ZeroDivisionError

    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError):
            fails()
        opened.closed()


def test_nobody_makes_an_owner_of_descriptors_but_a_lane():
    with pytest.raises(TypeError):
        _native.Descriptors()
    assert len(_native.NONE) == 0 and _native.NONE.take() == -1
    _native.NONE.close()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ("closed", "forgotten", "refused"))
def test_other_threads_run_while_descriptors_are_closed_that_take_long(lanes, how):
    a, b, sock, _ = lanes
    long, reader = lingering(1)
    if how == "refused":
        sock.sendmsg([b"short"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [long.fileno()]))])
    else:
        assert a.send(b"x", (long.fileno(),)) == 0
    os.close(long.detach())
    spent: list[float] = []

    def end() -> None:
        got = b.receive(HANG_NS)
        start = time.monotonic()
        if how == "closed":
            got[1].close()
        del got
        spent.append(time.monotonic() - start)

    thread = threading.Thread(target=end)
    longest, last = 0.0, time.monotonic()
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    reader.close()
    assert how == "refused" or spent[0] > 0.5, "closing was quick, so nothing was tried"
    assert longest < 0.5


@pytest.mark.parametrize("spin", (True, False))
def test_signal_handler_interrupts_a_wait_on_a_lane(lanes, interrupts, spin):
    lanes[0].spin = spin
    with interrupts.expected(0.05):
        lanes[0].receive()


ON_AN_END_THAT_IS_SHARED = {
    "does not block": "shared.setblocking(False)",
    "times out at once": "shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 1))",
}


@pytest.mark.parametrize("how", ON_AN_END_THAT_IS_SHARED)
def test_a_wait_sleeps_in_the_kernel_whatever_the_peer_sets_on_the_open_file_that_it_shares(how):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = """
from nnhal.ipc.transport.channel import Channel
c = Channel(socket.socket(fileno=fd)); c.lane.spin = False; print('ready', flush=True)
try:
    while True: c.receive()
except Exception as error: print(error)
"""
    with a, b:
        process = peer(code, b.fileno())
        shared, asleep = b, Path(f"/proc/{process.pid}/syscall")
        exec(ON_AN_END_THAT_IS_SHARED[how], {"shared": shared, "socket": socket, "struct": struct})
        assert _native.Lane(a.fileno()).send(b"one") == 0
        wait_until(lambda: asleep.read_text().split()[0] == str(PPOLL), "the thread is in ppoll")
        a.shutdown(socket.SHUT_RDWR)
        assert "closed the connection" in ended(process)


def test_what_the_kernel_opens_by_itself_with_a_message_is_closed_and_ends_the_lane():
    """In a process alone: its descriptors are counted."""
    code = """
import os, socket
from nnhal.ipc.transport import _native as n
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try: b.setsockopt(socket.SOL_SOCKET, 76, 1)  # SO_PASSPIDFD, Linux 6.5
except OSError: print([n.CORRUPT, n.CORRUPT, n.TOO_LARGE, n.CORRUPT], 0); raise SystemExit
one, other, before = n.Lane(a.fileno()), n.Lane(b.fileno()), len(os.listdir("/proc/self/fd"))
got = []
for fds in ((), (a.fileno(),) * 3, (a.fileno(),) * 63):
    one.send(b"x", fds)
    got.append(other.receive())
other.ask(b"call"); one.receive(); one.answer(b"answer")
got.append(other.receive())
print(got, len(os.listdir("/proc/self/fd")) - before)
"""
    done = run_python(code)
    corrupt, no_room = _native.CORRUPT, _native.TOO_LARGE
    assert done.stdout == f"{[corrupt, corrupt, no_room, corrupt]} 0\n"


def test_who_sent_a_message_may_be_told_along_with_it(lanes):
    a, b, _, sock = lanes
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # of a listener that systemd made, PassCredentials=yes
    assert a.send(b"x", (sock.fileno(),)) == 0
    data, fds = b.receive(HANG_NS)
    assert data == b"x" and len(fds) == 1


def test_a_call_is_refused_whose_number_is_not_greater_than_those_before(lanes):
    """So what a lane's answers are led back to it for, two lanes that answer each other, ends at once."""
    a, b, one, other = lanes

    def push(number, *fds):
        socket.send_fds(other, [struct.pack("<Q", number) + b"x"], fds)

    for number, status in ((5, 0), (5, _native.CORRUPT), (4, _native.CORRUPT), (0, 0), (2**64 - 1, 0), (6, -4)):
        push(number, one.fileno())
        got = a.receive(HANG_NS)
        assert (got if isinstance(got, int) else 0) == status
        assert a.asked == (number if status == 0 else 0)
    assert b.send(b"x") == 0 and a.receive(HANG_NS)[0] == b"x"


def test_two_lanes_that_answer_each_other_come_to_an_end(lanes):
    a, b, one, _ = lanes
    one.send(struct.pack("<Q", 1) + b"x")  # to b
    for lane in (b, a):
        assert lane.receive(HANG_NS)[0] == b"x"
        lane.answer(b"x")
    assert b.receive(HANG_NS) == _native.CORRUPT


def test_ctrl_c_ends_a_process_that_waits(pair):
    code = """
q = n.Queues(fd, 1)
try: print('ready', flush=True); q.receive()
except KeyboardInterrupt: print('interrupted')
"""
    process = peer(code, pair.fd)
    process.send_signal(signal.SIGINT)
    assert ended(process) == "interrupted\n"


def test_wait_lets_other_threads_run_and_takes_one_waiter(lanes, pair):
    for wait, finish in (
        (lanes[0].receive, lambda: lanes[1].send(b"x")),
        (pair.service.receive, lambda: pair.client.send(packet(1))),
    ):
        got: list[object] = []
        thread = threading.Thread(target=lambda wait=wait, got=got: got.append(wait(HANG_NS)))
        thread.start()
        with pytest.raises(RuntimeError, match="must be one at a time"):
            while True:
                wait(1)
        finish()
        thread.join()
        assert not isinstance(got[0], int)


def test_spin_is_off_where_both_have_one_cpu(lanes):
    lane = lanes[0]
    cpus = os.sched_getaffinity(0)
    one = min(cpus)
    assert _native.cpus() == sum(1 << cpu for cpu in cpus)
    assert lane.budget_ns == 50_000
    os.sched_setaffinity(0, {one})
    try:
        lane = _native.Lane(lane.fd)
        lane.peer_cpus = 1 << one
        assert lane.budget_ns == 0
        lane.peer_cpus |= 1 << (one + 1)
        assert lane.budget_ns == 50_000
    finally:
        os.sched_setaffinity(0, cpus)


def test_budget_follows_the_waits_and_falls_where_they_are_long(lanes):
    a, b, _, _ = lanes

    for _ in range(30):
        threading.Timer(0.003, a.send, (b"x",)).start()  # longer than any spin
        assert b.receive(HANG_NS) == (b"x", _native.NONE)
    assert b.budget_ns == 5_000
    for _ in range(60):
        assert a.send(b"x") == 0
        assert b.receive(HANG_NS) == (b"x", _native.NONE)
    assert b.budget_ns == 50_000
    b.spin = False
    assert b.budget_ns == 0


# ----------------------------------------------------------------------------------------------------------------- Queues


def test_memory_has_its_layout_and_seals():
    fd = _native.create_queues(17, 300)
    assert os.pread(fd, 16, 0) == struct.pack("<4sIII", b"NNFQ", 2, 32, 512)
    assert os.fstat(fd).st_size == PAGE + PAGE + 3 * PAGE  # 32 · 24 and 512 · 24 bytes, rounded up
    assert fcntl_seals(fd) == SEALS
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)
    os.close(fd)
    for wrong in (0, -1, 65537):
        with pytest.raises(ValueError, match="must be for 1 to 65536"):
            _native.create_queues(16, wrong)


def fcntl_seals(fd: int, add: int | None = None) -> int:
    import fcntl

    return fcntl.fcntl(fd, 1034) if add is None else fcntl.fcntl(fd, 1033, add)


def memory(header: bytes, size: int, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, header, 0)
    fcntl_seals(fd, seals)
    return fd


def header(magic: bytes = b"NNFQ", version: int = 2, requests: int = 16, results: int = 16) -> bytes:
    return struct.pack("<4sIII", magic, version, requests, results)


@pytest.mark.parametrize(
    ("head", "size", "seals", "why"),
    (
        (header(), 3 * PAGE, 0, "must be a memfd"),
        (header(), 3 * PAGE, SEALS | 8, "must be a memfd"),  # sealed against writing as well
        (header(), 3 * PAGE - 1, SEALS, "must have 12288"),
        (header(), 3 * PAGE + 1, SEALS, "must have 12288"),
        (header(results=32768), 3 * PAGE, SEALS, "must have 794624"),
        (header(magic=b"NNFR"), 3 * PAGE, SEALS, "no header"),
        (header(version=1), 3 * PAGE, SEALS, "no header"),
        (header()[:8], 8, SEALS, "no header"),
        (header(requests=0), 3 * PAGE, SEALS, "capacity 0 is 0, must be a power of two"),
        (header(results=24), 3 * PAGE, SEALS, "capacity 1 is 24, must be a power of two"),
        (header(results=2**17), 3 * PAGE, SEALS, "capacity 1 is 131072"),
        (header(results=2**31), 3 * PAGE, SEALS, "capacity 1 is 2147483648"),
    ),
)
def test_foreign_memory_is_refused(head, size, seals, why):
    fd = memory(head, size, seals)
    with pytest.raises(ValueError, match=why):
        _native.Queues(fd, _native.SERVICE)
    os.close(fd)


def test_what_is_no_memfd_is_refused():
    read, write = os.pipe()
    with tempfile.TemporaryFile() as file:
        file.write(header().ljust(3 * PAGE, b"\0"))
        file.flush()
        for fd in (read, write, file.fileno(), 2**30):
            with pytest.raises(ValueError, match="must be a memfd"):
                _native.Queues(fd, _native.SERVICE)
    os.close(read), os.close(write)
    with pytest.raises(ValueError, match="side is 2, must be 0"):
        _native.Queues(0, 2)


def test_packets_are_written_whole_or_not_at_all(pair):
    assert pair.client.send(packet(10, 1)) == 0
    assert pair.client.send(packet(7, 2)) == _native.FULL
    assert pair.client.send(packet(17, 2)) == _native.FULL
    assert pair.word(REQUEST) == 10
    assert pair.client.send(packet(6, 3)) == 0
    assert pair.service.receive(0) == packet(10, 1)
    assert pair.client.send(packet(7, 4)) == 0
    assert [pair.service.receive(0) for _ in range(3)] == [packet(6, 3), packet(7, 4), _native.TIMEOUT]


def test_packets_survive_the_wrap_around_and_indices_count_for_ever(pair):
    rng = random.Random(1)
    total = 0
    for i in range(2000):
        sent = packet(rng.randint(1, 16), i)
        total += len(sent) // 24
        assert pair.client.send(sent) == 0
        assert pair.service.receive(0) == sent
    assert pair.word(REQUEST) == pair.word(REQUEST + 64) == total
    assert pair.word(RESULT) == 0


def test_what_is_no_packet_is_not_sent(pair):
    for wrong in (
        b"",
        bytes(23),
        bytes(24),
        packet(2)[:-1],
        packet(2) + bytes(24),
        struct.pack("<6I", 1, 1, 0, 0, 0, 0),
    ):
        with pytest.raises(ValueError, match="must be"):
            pair.client.send(wrong)
    assert pair.word(REQUEST) == 0


def test_equal_packet_is_the_same_object(pair):
    for size in (5, 5, 5, 5, 3, 5):
        assert pair.client.send(packet(size)) == 0
        if size != 5:
            other = pair.service.receive(0)
        elif pair.service.stats()["packets"] == 0:
            first = pair.service.receive(0)
        elif pair.service.stats()["packets"] < 4:
            assert pair.service.receive(0) is first
    last = pair.service.receive(0)
    assert last == first and last is not first and other == packet(3)
    assert pair.service.stats()["memo_hits"] == 3


def test_two_processes_exchange_random_packets_without_a_lost_wake(pair):
    """100,000 blocking exchanges; a wake-up that was lost would show as a wait that its slice of a second cut."""
    code = """
q = n.Queues(fd, 1); q.spin = False; q.hold(); print('ready', flush=True)
while not isinstance(p := q.receive(), int): q.send(p)
print(q.stats()['lost_wakes'], p)
"""
    process = peer(code, pair.fd)
    rng = random.Random(2)
    pair.client.spin = False
    packets = [packet(rng.randint(1, 16), i) for i in range(100)]
    for i in range(100_000):
        sent = packets[rng.randrange(100)]
        assert pair.client.exchange(sent, HANG_NS) == sent
        if i % 64 == 0:  # the other side is sometimes asleep already, sometimes about to be
            jitter(rng, 1e-4)
    stats = pair.client.stats()
    assert stats["packets"] == 100_000 and stats["lost_wakes"] == 0
    assert stats["waits"] > 0 and stats["wakes"] > 0
    pair.client.close()
    assert ended(process) == f"0 {_native.CLOSED}\n"


@pytest.mark.nightly
def test_spinning_exchange_rarely_blocks_on_two_cpus(pair):
    if len(os.sched_getaffinity(0)) < 2:
        assert pair.client.budget_ns == 0
        return
    code = "q = n.Queues(fd, 1); print('ready', flush=True)\nwhile not isinstance(p := q.receive(), int): q.send(p)\n"
    process = peer(code, pair.fd)
    for i in range(5000):
        assert pair.client.exchange(packet(9, i % 3), HANG_NS) == packet(9, i % 3)
    stats = pair.client.stats()
    assert stats["spins"] > stats["waits"] and stats["wakes_saved"] > stats["wakes"]
    pair.client.close()
    ended(process)


def test_exchanges_leave_no_descriptor_and_no_mapping(pair):
    threading.Thread(target=serve, args=(pair.service,)).start()
    pair.client.exchange(packet(1), HANG_NS)
    opened, before = Opened(), mappings("nnhal-queues")
    for i in range(20_000):
        assert pair.client.exchange(packet(3, i % 2), HANG_NS) == packet(3, i % 2)
    for _ in range(300):
        fd = _native.create_queues(64, 64)
        both = _native.Queues(fd, 0), _native.Queues(fd, 1)
        os.close(fd)
        both[0].hold()
        assert both[0].send(packet(1)) == 0 and both[1].receive(0) == packet(1)
        del both
    opened.closed()
    assert mappings("nnhal-queues") == before
    pair.client.close()


def serve(queues: _native.Queues) -> None:
    while not isinstance(got := queues.receive(), int):
        queues.send(got)


# ------------------------------------------------------------------------------------------------------ a hostile peer


@pytest.mark.parametrize("value", NASTY)
def test_lie_about_the_write_index_is_corrupt_for_good(pair, value):
    assert pair.client.send(packet(5, 1)) == 0
    assert pair.service.receive(0) == packet(5, 1)
    pair.put(REQUEST, value)
    expected = _native.TIMEOUT if value == 5 else _native.CORRUPT
    assert pair.service.receive(0) == expected
    if value != 5:
        pair.put(REQUEST, 5)
        assert pair.service.receive(0) == pair.service.send(packet(1)) == _native.CORRUPT
        assert pair.service.exchange(packet(1), 0) == _native.CORRUPT


@pytest.mark.parametrize("value", NASTY)
def test_lie_about_the_read_index_is_corrupt_for_good(pair, value):
    for _ in range(2):
        assert pair.client.send(packet(5, 1)) == 0
        assert pair.service.receive(0) == packet(5, 1)
    assert pair.client.send(packet(7, 1)) == 0  # 17 are written; 10 are read, and known to be
    pair.put(REQUEST + 64, value)
    expected = 0 if value == 17 else _native.CORRUPT
    assert pair.client.send(packet(1, 2)) == expected
    if value != 17:
        pair.put(REQUEST + 64, 17)
        assert pair.client.send(packet(1)) == pair.client.receive(0) == _native.CORRUPT


def test_index_that_moves_backwards_within_the_queue_is_corrupt(pair):
    assert pair.client.send(packet(5)) == pair.client.send(packet(5)) == 0
    assert pair.service.receive(0) == packet(5)
    pair.put(REQUEST, 9)
    assert pair.service.receive(0) == _native.CORRUPT


@pytest.mark.parametrize("size", (0, 4, 16, 17, 2**32 - 1))
def test_a_packet_of_more_elements_than_there_are_is_corrupt(pair, size):
    assert pair.client.send(packet(3)) == 0
    pair.put(PAGE + 4, size, "<I")
    assert pair.service.receive(0) == _native.CORRUPT


def test_answer_before_the_request_is_corrupt(pair):
    assert pair.service.send(packet(1)) == 0
    assert pair.client.exchange(packet(1), 0) == _native.CORRUPT
    assert pair.word(REQUEST) == 0


def test_an_answer_that_comes_a_second_time_is_not_the_next_ones(pair):
    with ThreadPoolExecutor(1) as pool:
        for tag in (1, 2):
            answer = pool.submit(pair.client.exchange, packet(2, tag), HANG_NS)
            assert pair.service.receive(HANG_NS) == packet(2, tag)
            assert pair.service.send(packet(1, tag)) == 0
            assert answer.result() == packet(1, tag)
        asked = pair.word(REQUEST)
        answer = pool.submit(pair.client.exchange, packet(2, 3), HANG_NS)
        until(lambda: pair.word(REQUEST) != asked, "the question")
        assert pair.service.send(packet(1, 2)) == 0
        assert answer.result() == _native.CORRUPT


def test_a_question_while_an_answer_is_to_come_is_corrupt(pair):
    assert pair.client.exchange(packet(1), 0) == _native.TIMEOUT
    assert pair.client.exchange(packet(2), 0) == _native.CORRUPT
    assert pair.word(REQUEST) == 1


def test_a_late_answer_is_received_for_the_question_that_it_belongs_to(pair):
    assert pair.client.exchange(packet(1), 0) == _native.TIMEOUT
    assert pair.service.receive(0) == packet(1)
    assert pair.service.send(packet(3)) == 0
    assert pair.client.receive(0) == packet(3)


def test_what_could_not_be_sent_is_no_answer_yet(pair):
    assert pair.client.exchange(packet(1), 0) == _native.TIMEOUT
    assert pair.service.receive(0) == packet(1)
    assert pair.service.send(packet(17)) == _native.FULL
    assert pair.service.send(packet(2)) == 0
    assert pair.client.receive(0) == packet(2)


@pytest.mark.parametrize("place", (REQUEST + 128, REQUEST + 192, RESULT + 128, RESULT + 192, *AFFINITY))
def test_other_words_may_hold_anything(pair, place):
    for value in NASTY:
        pair.put(place, value)
        assert pair.client.send(packet(2, 7)) == 0
        assert pair.service.receive(HANG_NS) == packet(2, 7)
        assert pair.service.receive(1_000_000) == _native.TIMEOUT


def test_own_index_in_the_shared_memory_is_never_read(pair):
    for _ in range(3):
        assert pair.client.send(packet(4)) == 0
        pair.put(REQUEST, 12345)
        pair.put(REQUEST, pair.word(REQUEST + 64) + 4)
        assert pair.service.receive(0) == packet(4)
    pair.put(REQUEST, 2**60)
    assert pair.client.send(packet(4)) == 0 and pair.word(REQUEST) == 16


# -------------------------------------------------------------------------------------------------- death, closing, signals


@pytest.mark.parametrize("use_waitv", (True, False))
@pytest.mark.parametrize("forked", (False, True))
@pytest.mark.parametrize("spin", (True, False))
def test_killing_the_holder_wakes_the_waiter(pair, use_waitv, forked, spin):
    fork = "child = os.fork()\nif child == 0: time.sleep(600)\n" if forked else "child = 0\n"
    code = (
        fork
        + "q = n.Queues(fd, 1); q.hold(); q.send(struct.pack('<6I', 0, 1, child, 0, 0, 0)); print('ready', flush=True)\n"
    )
    process = peer(code + "time.sleep(600)", pair.fd)
    pair.client.use_waitv, pair.client.spin = use_waitv, spin
    first = pair.client.receive(HANG_NS)
    threading.Timer(0.05, process.kill).start()
    assert pair.client.receive(HANG_NS) == _native.DEAD
    assert pair.client.receive(HANG_NS) == _native.DEAD
    assert pair.client.use_waitv == use_waitv
    process.wait()
    if forked:
        os.kill(struct.unpack_from("<3I", first)[2], signal.SIGKILL)
    process.stdout.close()


def test_what_a_dead_peer_sent_before_comes_first(pair):
    process = peer("q = n.Queues(fd, 1); q.hold(); print('ready', flush=True); time.sleep(600)", pair.fd)
    assert pair.service.send(packet(2)) == 0
    process.kill()
    process.communicate()
    assert pair.client.receive(HANG_NS) == packet(2)
    assert pair.client.receive(HANG_NS) == _native.DEAD


def test_end_of_the_watched_process_is_dead_without_a_holder(pair):
    process = peer("print('ready', flush=True); time.sleep(600)", pair.fd)
    pair.client.watch = os.pidfd_open(process.pid)
    threading.Timer(0.05, process.kill).start()
    assert pair.client.receive(HANG_NS) == _native.DEAD
    os.close(pair.client.watch)
    process.communicate()


def test_waiter_that_came_before_the_holder_sees_its_end(pair):
    dice = random.Random(1)

    def live() -> None:
        jitter(dice, 0.1)
        pair.service.hold()
        jitter(dice, 0.1)

    thread = threading.Thread(target=live)
    thread.start()
    assert pair.client.receive(HANG_NS) == _native.DEAD
    thread.join()


def test_drop_restores_the_threads_robust_list_and_is_no_death(pair):
    call = ctypes.CDLL(None, use_errno=True).syscall
    number = {"x86_64": 274, "aarch64": 100}[os.uname().machine]

    def registered() -> int:
        head, size = ctypes.c_void_p(), ctypes.c_size_t()
        assert call(number, 0, ctypes.byref(head), ctypes.byref(size)) == 0
        return head.value or 0

    before = registered()
    pair.service.hold()
    assert registered() != before
    assert pair.word(LIVENESS[1], "<I") & 0x3FFFFFFF == threading.get_native_id()
    pair.service.drop()
    pair.service.drop()
    assert registered() == before and pair.word(LIVENESS[1], "<I") == 0
    assert pair.client.receive(1_000_000) == _native.TIMEOUT


def test_thread_holds_one_side_at_a_time(pair):
    pair.client.hold()
    with pytest.raises(RuntimeError, match="must be dropped first"):
        pair.client.hold()
    with pytest.raises(RuntimeError, match="must drop them first"):
        pair.service.hold()
    failures: list[str] = []

    def drop() -> None:
        try:
            pair.client.drop()
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert failures and "must be dropped by that thread" in failures[0]
    pair.client.drop()
    pair.service.hold()
    pair.service.drop()


@pytest.mark.parametrize("closer", ("client", "service"))
@pytest.mark.parametrize("use_waitv", (True, False))
def test_close_on_either_side_wakes_the_waiter(pair, closer, use_waitv):
    pair.client.use_waitv = use_waitv
    threading.Timer(0.05, getattr(pair, closer).close).start()
    assert pair.client.receive(HANG_NS) == _native.CLOSED
    assert pair.client.receive(0) == pair.client.send(packet(1)) == pair.client.exchange(packet(1)) == _native.CLOSED
    assert pair.service.receive(0) == pair.service.send(packet(1)) == _native.CLOSED


def test_packets_sent_before_the_peer_closed_come_first(pair):
    assert pair.service.send(packet(2)) == 0
    pair.service.close()
    assert pair.client.receive(0) == packet(2)
    assert pair.client.receive(0) == _native.CLOSED


def test_forked_child_neither_closes_nor_drops_its_parents_queues(pair):
    code = """
q = n.Queues(fd, 1); q.hold(); child = os.fork()
if child == 0:
    own = n.Queues(n.create_queues(16, 16), 0); own.hold(); own.drop()
    q.close(); status = q.receive(0)
    try: q.drop()
    except RuntimeError: del q; os._exit(0 if status == n.CLOSED else 1)
assert os.waitpid(child, 0)[1] == 0
print('ready', flush=True); q.send(q.receive())
"""
    process = peer(code, pair.fd)
    assert pair.word(LIVENESS[1], "<I") & 0x3FFFFFFF == process.pid
    assert pair.client.exchange(packet(4), HANG_NS) == packet(4)
    ended(process)


@pytest.mark.parametrize("spin", (True, False))
@pytest.mark.parametrize("use_waitv", (True, False))
def test_signal_handler_interrupts_a_wait_on_queues(pair, interrupts, spin, use_waitv):
    pair.client.spin, pair.client.use_waitv = spin, use_waitv
    with interrupts.expected(0.05):
        pair.client.receive()
    assert pair.service.send(packet(1)) == 0 and pair.client.receive() == packet(1)
