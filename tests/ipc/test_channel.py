"""Lanes of whole messages: long ones by a sealed memory, statuses as errors; who is on the other end, and its end."""

import errno
import fcntl
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from nnhal.base.errors import DeadObject, DeviceUnavailable, InvalidArgument, MissedDeadline, ResourceExhausted
from nnhal.ipc import transport
from nnhal.ipc.transport import _native, absent, peer_end
from nnhal.ipc.transport import channel as subject
from nnhal.ipc.transport.channel import Channel, NoProtocol, failure
from tests.ipc.support import LIMIT
from tests.runtime.devices import failing
from tests.waiting import Opened

PATIENCE = int(LIMIT * 1e9)
INLINE, MARK = 64 << 10, 0xC1  # bytes of a message in itself; a byte that MessagePack never begins with
SHRINK, GROW, WRITE = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE


@pytest.fixture
def lanes() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a lane."""
    ours, theirs = (Channel(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield ours, theirs
    ours.close()
    theirs.close()


# ------------------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize("size", [1, INLINE, INLINE + 1, 1 << 20])
def test_a_message_arrives_as_it_is_however_long_with_its_descriptors(
    lanes: tuple[Channel, Channel], size: int
) -> None:
    ours, theirs = lanes
    data = bytes(range(1, 101)) * (size // 100 + 1)
    data = data[:size]
    opened, read, write = Opened(), *os.pipe()
    for _ in range(2):
        ours.send(data, (read, write))
        got, fds = theirs.receive(PATIENCE)
        assert got == data and len(fds) == 2
        fds.close()
    ours.ask(data)
    assert theirs.receive(PATIENCE)[0] == data and ours.in_doubt
    theirs.answer(data[::-1], (read,))
    got, fds = ours.receive(PATIENCE)
    assert got == data[::-1] and len(fds) == 1 and not ours.in_doubt
    fds.close()
    os.close(read)
    os.close(write)
    opened.closed()


@pytest.mark.parametrize("size", [10, INLINE, INLINE + 1])
def test_a_call_has_its_answer(lanes: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = lanes

    def serve() -> None:
        data, _ = theirs.receive(PATIENCE)
        theirs.answer(data + b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    data = b"x" * size
    assert ours.call(data, (), PATIENCE)[0] == data + b"!"
    thread.join(LIMIT)
    for asked in (b"x", b"x" * (INLINE + 1)):
        with pytest.raises(MissedDeadline, match="driver process: no answer by the deadline"):
            ours.call(asked, (), 1_000_000)
        assert ours.in_doubt
        ours, theirs = (Channel(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))


def test_what_wants_no_answer_gets_none(lanes: tuple[Channel, Channel]) -> None:
    ours, theirs = lanes
    ours.send(b"said")
    theirs.receive(PATIENCE)
    theirs.answer(b"an answer")
    with pytest.raises(MissedDeadline):
        ours.receive(0)


def test_who_is_told_of_a_long_message_may_refuse_it_before_it_is_read(lanes: tuple[Channel, Channel]) -> None:
    ours, theirs = lanes
    told: list[int] = []

    def admit(length: int) -> None:
        told.append(length)
        if len(told) > 1:
            raise ResourceExhausted("no room")

    theirs.admit = ours.admit = admit
    ours.send(b"short")
    theirs.receive(PATIENCE)
    opened = Opened()
    for _ in range(2):
        ours.send(bytes(INLINE + 7))
    assert len(theirs.receive(PATIENCE)[0]) == INLINE + 7
    with pytest.raises(ResourceExhausted, match="no room"):
        theirs.receive(PATIENCE)
    assert told == [INLINE + 7] * 2
    opened.closed()
    ours.ask(b"x")
    theirs.receive(PATIENCE)
    theirs.answer(bytes(INLINE + 9))
    with pytest.raises(ResourceExhausted, match="no room"):
        ours.receive(PATIENCE)


def memory(size: int, seal: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    return fd


WHOLE = SHRINK | GROW | WRITE | fcntl.F_SEAL_SEAL
LONG = {
    "sealed": (struct.pack("<BQ", MARK, 100), lambda: memory(100, WHOLE), ""),
    "no memory": (struct.pack("<BQ", MARK, 100), None, "has no memory or length, must have both"),
    "no length": (struct.pack("<B", MARK), lambda: memory(100, WHOLE), "has no memory or length, must have both"),
    "longer": (
        struct.pack("<BQB", MARK, 100, 0),
        lambda: memory(100, WHOLE),
        "has no memory or length, must have both",
    ),
    "writable": (
        struct.pack("<BQ", MARK, 100),
        lambda: memory(100, SHRINK),
        "is not sealed against writing and shrink",
    ),
    "shrinks": (struct.pack("<BQ", MARK, 100), lambda: memory(100, WRITE), "is not sealed against writing and shrink"),
    "no memfd": (struct.pack("<BQ", MARK, 100), lambda: os.open("/dev/null", 0), "is not sealed against writing and"),
    "nothing": (struct.pack("<BQ", MARK, 0), lambda: memory(0, WHOLE), "0 bytes are announced, must be its memory's"),
    "too little": (struct.pack("<BQ", MARK, 100), lambda: memory(99, WHOLE), "100 bytes are announced, must be its"),
    "too much": (struct.pack("<BQ", MARK, 100), lambda: memory(101, WHOLE), "100 bytes are announced, must be its"),
    "1 GiB and 1": (
        struct.pack("<BQ", MARK, (1 << 30) + 1),
        lambda: memory((1 << 30) + 1, WHOLE),
        "must be its memory's size, at most 1 GiB",
    ),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_message_lies_in_a_sealed_memory_of_its_size(lanes: tuple[Channel, Channel], what: str) -> None:
    head, make, says = LONG[what]
    ours, theirs = lanes
    opened = Opened()
    fds = [] if make is None else [make()]
    assert ours.lane.send(head, fds) == 0
    for fd in fds:
        os.close(fd)
    if says:
        with pytest.raises(InvalidArgument, match=rf"long message: .*{says}"):
            theirs.receive(PATIENCE)
    else:
        assert theirs.receive(PATIENCE)[0] == bytes(100)
    opened.closed()
    ours.send(b"next")
    assert theirs.receive(PATIENCE)[0] == b"next"


def test_a_memory_of_1_gib_is_taken_and_a_longer_message_is_not_sent(
    lanes: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = lanes
    monkeypatch.setattr(subject, "first_bytes", lambda fd, length: length)
    fd = memory(1 << 30, WHOLE)
    ours.lane.send(struct.pack("<BQ", MARK, 1 << 30), (fd,))
    os.close(fd)
    assert theirs.receive(PATIENCE)[0] == 1 << 30  # type: ignore[comparison-overlap]
    monkeypatch.setattr(subject, "MAX_MESSAGE", INLINE + 5)
    ours.send(bytes(INLINE + 5))
    with pytest.raises(InvalidArgument, match=f"message has {INLINE + 6} bytes, must be at most {INLINE + 5}"):
        ours.send(bytes(INLINE + 6))


def test_a_long_message_is_sealed_and_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:1000]))  # as little as the kernel likes
    into: list[int] = []
    data = os.urandom(5300)
    subject._spill(data, into)
    (fd,) = into
    assert os.pread(fd, 6000, 0) == data and not os.get_inheritable(fd)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (SHRINK | WRITE) == SHRINK | WRITE
    os.close(fd)


@pytest.mark.parametrize("what", ["memfd_create", "write"])
def test_a_long_message_that_there_is_no_room_for_is_not_sent(
    lanes: tuple[Channel, Channel], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened()
    with monkeypatch.context() as patched:
        patched.setattr(os, what, failing(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(ResourceExhausted, match=r"message: .*no room"):
            lanes[0].send(bytes(INLINE + 1))
    opened.closed()
    with pytest.raises(MissedDeadline):
        lanes[1].receive(0)


# ------------------------------------------------------------------------------------------------------------ statuses


def test_statuses_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, kind, says in (
        (_native.TIMEOUT, MissedDeadline, "no answer by the deadline"),
        (_native.CORRUPT, NoProtocol, "it broke the protocol"),
        (_native.DEAD, DeadObject, "it died or closed the connection"),
        (_native.CLOSED, DeadObject, "it died or closed the connection"),
        (_native.TOO_LARGE, InvalidArgument, "larger than the transport allows, or carries too many descriptors"),
    ):
        assert type(failure(status)) is kind and says in str(failure(status))

    for number, kind in (
        (errno.EMFILE, ResourceExhausted),
        (errno.ENFILE, ResourceExhausted),
        (errno.EPERM, InvalidArgument),
    ):
        monkeypatch.setattr(os, "eventfd", failing(OSError(number, "no")))
        assert type(failure(_native.TOO_LARGE)) is kind


def test_a_look_at_whether_descriptors_are_to_be_had_leaves_none() -> None:
    opened = Opened()
    assert subject._no_descriptors() is False
    opened.closed()


def test_a_lane_hangs_up_is_closed_and_says_whose_it_is(lanes: tuple[Channel, Channel]) -> None:
    ours, theirs = lanes
    ours.hang_up()
    with pytest.raises(DeadObject):
        theirs.receive(PATIENCE)
    theirs.send(b"last words")
    assert ours.receive(PATIENCE)[0] == b"last words"
    theirs.close()
    with pytest.raises(DeadObject):
        ours.receive(PATIENCE)
    with pytest.raises(DeadObject, match="it died or closed the connection"):
        ours.send(b"x")
    ours.close()
    ours.hang_up()  # of no use, and no error
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    named = Channel(a, 0, 0b11, 7)
    assert (named.number, named.lane.watch, named.lane.peer_cpus) == (7, 0, 0b11)
    plain = Channel(b)
    assert (plain.number, plain.lane.watch, plain.lane.peer_cpus) == (0, -1, 0)
    del named
    assert a.fileno() < 0  # closed with its lane
    plain.close()


# ------------------------------------------------------------------------------------------------- the other end


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.kill()
    process.wait()


def test_a_process_is_watched_by_a_descriptor_that_its_end_makes_readable(process: "subprocess.Popen[bytes]") -> None:
    watch = peer_end.pidfd(process.pid)
    assert watch >= 0 and not select.select([watch], [], [], 0)[0] and peer_end.ended(watch) is False
    threading.Timer(0.1, process.kill).start()
    assert peer_end.ended(watch, 60_000) is True
    assert peer_end.ended(watch) is True and peer_end.ended(-1) is False and peer_end.ended(-1, 1000) is False
    os.close(watch)
    for none in (2**22 + 5, 2**40, -1):
        assert peer_end.pidfd(none) == -1


def test_an_end_within_a_moment_is_seen_without_giving_the_interpreter_up(process: "subprocess.Popen[bytes]") -> None:
    """Beside a busy thread that would cost more than the look."""
    watch = peer_end.pidfd(process.pid)
    killer = subprocess.Popen(["/bin/sh", "-c", f"kill -{int(signal.SIGKILL)} {process.pid}"])
    killer.wait(LIMIT)
    select.select([watch], [], [], LIMIT)
    assert peer_end.ended(watch) is True
    os.close(watch)
    assert 0 < peer_end._ENDING_MS <= 100 and peer_end.DYING_MS > peer_end._ENDING_MS


def test_a_look_at_an_end_asks_for_one_descriptor_and_keeps_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, int]] = []
    waits = SimpleNamespace(register=lambda *_: None, poll=lambda _: pytest.fail("gives the interpreter up"))
    monkeypatch.setattr(peer_end, "select", SimpleNamespace(POLLIN=select.POLLIN, poll=lambda: waits))
    monkeypatch.setattr(
        peer_end, "_libc", SimpleNamespace(poll=lambda entry, count, _: asked.append((entry.raw[:8], count)) or 0)
    )
    assert [peer_end.ended(watch) for watch in (-1, 0, 5)] == [False] * 3
    assert asked == [(struct.pack("ihh", watch, select.POLLIN, 0), 1) for watch in (0, 5)]


@pytest.mark.parametrize("newer", [True, False])
def test_the_peer_of_a_socket_is_known_by_process_and_user(newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not newer:
        monkeypatch.setattr(peer_end, "_SO_PEERPIDFD", 0x7FFF)  # as a kernel before 6.5
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_end.peer_of(ours) == (os.getpid(), os.getuid())
        watch = peer_end.watch_peer(ours)
        with open(f"/proc/self/fdinfo/{watch}", encoding="ascii") as file:
            assert f"Pid:\t{os.getpid()}\n" in file.read()
        os.close(watch)
        if not newer:
            monkeypatch.setattr(peer_end, "peer_of", lambda _: (2**22 + 5, 0))
            assert peer_end.watch_peer(ours) == -1
    assert peer_end.__dict__["_libc"] is not None


def test_the_number_of_the_option_that_gives_a_peers_pidfd_is_the_kernels() -> None:
    """asm-generic/socket.h."""
    assert getattr(socket, "SO_PEERPIDFD", 77) == peer_end._SO_PEERPIDFD


# ------------------------------------------------------------------------------------------------ no extension


def test_without_the_extension_modules_load_and_all_else_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses = "TIMEOUT", "DEAD", "CLOSED", "CORRUPT", "TOO_LARGE", "FULL", "CLIENT", "SERVICE"
    for name in statuses:
        assert getattr(absent, name) == getattr(_native, name)
    assert isinstance(absent.NONE, absent.Descriptors)
    for name in ("Lane", "Queues", "create_queues"):
        with pytest.raises(
            DeviceUnavailable, match=r"isolation: nnhal was installed without its extension .* install a C compiler"
        ):
            getattr(absent, name)
    with pytest.raises(AttributeError):
        _ = absent.__wrapped__
    transport.require()
    monkeypatch.setitem(sys.modules, "nnhal.ipc.transport._native", None)
    monkeypatch.delattr(transport, "_native")
    try:
        importlib.reload(transport)
        assert transport._native is absent
        with pytest.raises(DeviceUnavailable, match="without its extension"):
            transport.require()
    finally:
        monkeypatch.undo()
        importlib.reload(transport)
    transport.require()
