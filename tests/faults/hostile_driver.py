"""A hostile driver's process, as a table: the service's own code, but one of its messages is another than it should be.

`ANSWERS` names the message for every call of a client's; what becomes of it follows from the types in `wire`. Run as a
program it is that process: a fork for each case, which serves one client and then ends.
"""

import array
import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from nnhal.ipc.protocol import wire
from nnhal.ipc.service import burst, connection
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import MARK, Channel
from nnhal.ipc.transport.packets import pack, unpack
from tests.faults import broken
from tests.faults.drivers.witness import Witness
from tests.faults.hostile_client import DESCRIPTORS, SLOWLY_CLOSED, TWICE, memfd
from tests.ipc.golden import CALLBACKS, REPLIES
from tests.ipc.support import a_table

NEVER = "never"
CALL = 77  # in the place of the number that a notification is about
FOR_CALLS = "AttachLane for calls"

# What is broken: the call that it answers, the right reply or notification, whether a deadline ends a wait for it.
# "PACKET" is the answer over the queues of a burst; the operation that leads to it is `OPERATIONS` of the test.
ANSWERS: dict[str, tuple[type, Any, bool]] = {
    "Hello": (wire.Hello, wire.Welcome(wire.VERSION, 4, "reference", 0, 3, True, {"seccomp": "no"}), True),
    "GetCapabilities": (
        wire.GetCapabilities,
        wire.CapabilitiesReply({3: wire.WirePerformance(0.5, 1.0)}, (wire.WirePerformance(1.0, 2.0),) * 4),
        True,
    ),
    "GetStatus": (wire.GetStatus, wire.TextReply(0), True),
    "GetVersionString": (wire.GetVersionString, wire.TextReply("1"), True),
    "GetType": (wire.GetType, wire.TextReply(1), True),
    "GetSupportedExtensions": (wire.GetSupportedExtensions, wire.NamesReply(("a",)), True),
    "GetRelaxations": (wire.GetRelaxations, wire.NamesReply(("a",)), True),
    "GetUsage": (
        wire.GetUsage,
        wire.Usage(64, (wire.Quota("lanes", 3), wire.Quota("memory", 4096, 2, 1)), (wire.Usages(300, (1, 5)),)),
        True,
    ),
    "GetSupportedOperations": (wire.GetSupportedOperations, wire.Verdicts(((True, ""),)), True),
    "Consider": (wire.Consider, wire.SupportReply(((True, ""),), (), True), True),
    "PrepareConsidered": (wire.PrepareConsidered, wire.Acknowledged(), True),
    "GetNumberOfCacheFiles": (wire.GetNumberOfCacheFiles, wire.CacheFileCounts(1, 0), True),
    "HoldFiles": (wire.HoldFiles, wire.Acknowledged(), False),
    "PrepareModelFromCache": (wire.PrepareModelFromCache, wire.Acknowledged(), True),
    "Hold": (wire.Hold, wire.Acknowledged(), False),
    "PrepareModel": (wire.PrepareModel, wire.Acknowledged(), True),
    "NotifyPrepared": (wire.NotifyPrepared, wire.NotifyPrepared(CALL, wire.Acknowledged()), True),
    "Bind": (wire.Bind, wire.Acknowledged(), True),
    "ExecuteSynchronously": (wire.ExecuteSynchronously, wire.Acknowledged(), True),
    "ExecuteSynchronously measured": (
        wire.ExecuteSynchronously,
        wire.ExecutedReply(((64,),), (True,), wire.WireTiming(5, 7)),
        False,
    ),
    "ExecuteSynchronously provided": (
        wire.ExecuteSynchronously,
        wire.ExecutedReply(((64,),), (True,), wire.WireTiming(), (0,), TWICE),
        False,
    ),
    "ExecuteSynchronously provided by memory": (
        wire.ExecuteSynchronously,
        wire.ExecutedReply(((20000,),), (True,), wire.WireTiming(), (0,)),
        False,
    ),
    "Execute": (wire.Execute, wire.Acknowledged(), True),
    "NotifyExecuted": (wire.NotifyExecuted, wire.NotifyExecuted(CALL, wire.ExecutedReply(((64,),), (True,))), True),
    "ExecuteFenced": (wire.ExecuteFenced, wire.Acknowledged(), True),
    "GetExecutionInfo": (
        wire.GetExecutionInfo,
        wire.ExecutionInfoReply(wire.WireTiming(5, 7), wire.WireTiming(5, 7), ((64,),)),
        False,
    ),
    "ConfigureExecutionBurst": (wire.ConfigureExecutionBurst, wire.Acknowledged(), False),
    "PACKET": (type(None), wire.Acknowledged(), False),
    "PACKET measured": (type(None), wire.ExecutedReply(((64,),), (True,), wire.WireTiming(5, 7)), False),
    "Allocate": (wire.Allocate, wire.Acknowledged(), False),
    "CopyTo": (wire.CopyTo, wire.Shape((64,)), False),
    "CopyFrom": (wire.CopyFrom, wire.Acknowledged(), False),
    "GetShape": (wire.GetShape, wire.Shape((64,)), False),
    "GetMemoryUse": (wire.GetMemoryUse, wire.WireMemoryUse(1, 2, 3, 4), False),
    "Reconfigure": (wire.Reconfigure, wire.Acknowledged(), False),
    "AttachLane": (wire.AttachLane, wire.Acknowledged(), True),
    FOR_CALLS: (wire.AttachLane, None, False),
    "Release": (wire.Release, None, False),
    "Cancel": (wire.Cancel, None, False),
    "WriteTrace": (wire.WriteTrace, None, False),
}
ONE_WAY = wire.Release, wire.Cancel, wire.WriteTrace
CARRIES = {
    "ExecuteSynchronously provided by memory": "a memory",
    "ExecuteFenced": "a fence",
    "AttachLane": "a lane",
}  # that come with the answer

Struck = Callable[["Hostile", bytes, Sequence[int]], None]  # sends what it likes in the place of a message


@dataclass(frozen=True)
class Case:
    """answer: of `ANSWERS`. raw: what is sent instead; or how: what is done instead. along: descriptors besides.

    wrong: whether the client has to find it out. field: one field of the message is broken.
    """

    name: str
    answer: str
    raw: Any = None
    along: tuple[str, ...] | None = None
    how: str = ""
    wrong: bool = False
    field: bool = False


def fields() -> Iterator[Case]:
    """Every other message in the place of the right one, and every field of that broken."""
    for answer, (_, right, _) in ANSWERS.items():
        if right is None:
            continue
        whole, callback = broken.plain(right), isinstance(right, wire.ServiceCall)
        for n, (other, _) in enumerate(CALLBACKS if callback else REPLIES):
            instead = broken.put(broken.plain(other), (1,), CALL) if callback else broken.plain(other)
            fits = type(other) is type(right) and isinstance(
                getattr(other, "result", None), type(getattr(right, "result", None))
            )
            answers = wire.Acknowledged | wire.PreparedTraits
            fits = fits or (answer == "NotifyPrepared" and isinstance(getattr(other, "result", None), answers))
            executes = answer.startswith(("ExecuteS", "PACKET")) and isinstance(
                other, wire.ExecutedReply | wire.Acknowledged
            )
            yield Case(
                f"{answer}: {n} {type(other).__name__} instead",
                answer,
                instead,
                wrong=not (fits or executes),
            )
        for b in broken.breakages(right):
            # another version, or a notification of nothing that was asked for
            wrong = b.wrong or (b.path == (1,) and (callback or isinstance(right, wire.Welcome)))
            yield Case(f"{answer}: {b.what}", answer, broken.put(whole, b.path, b.value), wrong=wrong, field=True)
        yield Case(f"{answer}: of an unknown kind", answer, [99], wrong=True)
        yield Case(f"{answer}: no list", answer, {"t": 0}, wrong=True)
        yield Case(f"{answer}: with a field of later times", answer, [*whole, "later"])


def carried() -> Iterator[Case]:
    """Other descriptors than the answer should have."""
    for answer, (_, right, _) in ANSWERS.items():
        if right is None or answer.startswith("PACKET"):
            continue
        along = CARRIES.get(answer)
        for count in (1, 60):
            yield Case(f"{answer}: with {count} descriptors more", answer, how="as it is", along=("/dev/null",) * count)
        yield Case(
            f"{answer}: with too many descriptors", answer, how="as it is", along=("/dev/null",) * 80, wrong=True
        )
        if along:
            yield Case(f"{answer}: without its descriptor", answer, how="alone", along=())
            for what in DESCRIPTORS:
                own = along == "a memory" and what in (
                    "a memory with holes",
                    "a memory of huge pages",
                    "a log",
                )  # of the driver's
                if what not in (along, SLOWLY_CLOSED) and not own:
                    yield Case(f"{answer}: with {what}", answer, how="alone", along=(what,))


# ------------------------------------------------------------------------------------------------- what is done instead


def _as_it_is(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data, (*fds, *h.made()))


def _alone(h: "Hostile", data: bytes, _: Sequence[int]) -> None:
    h.say(data, h.made())


def _nothing(_: "Hostile", __: bytes, ___: Sequence[int]) -> None:
    """Never answered."""


def _twice(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    for _ in range(2):
        h.say(data, fds)


def _another_number(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data, fds, number=h.number + 1)


def _no_number(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data, fds, number=0)


def _a_number_alone(h: "Hostile", _: bytes, __: Sequence[int]) -> None:
    h.say(b"")


def _half_a_number(h: "Hostile", _: bytes, __: Sequence[int]) -> None:
    h.socket.sendmsg([struct.pack("<Q", h.number)[:4]])


def _two_halves(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data[:1], fds)
    h.say(data[1:])


def _garbage(h: "Hostile", data: bytes, _: Sequence[int]) -> None:
    h.say(bytes([0x91]) * 5000)


def _larger_than_any(h: "Hostile", data: bytes, _: Sequence[int]) -> None:
    h.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    h.say(data + bytes(wire.INLINE + 4096))


def _hang_up(h: "Hostile", _: bytes, __: Sequence[int]) -> None:
    h.socket.shutdown(socket.SHUT_RDWR)


def _hang_up_after(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data, fds)
    h.socket.shutdown(socket.SHUT_RDWR)


def _hang_up_within(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data[: len(data) // 2])
    h.socket.shutdown(socket.SHUT_RDWR)


def _die(_: "Hostile", __: bytes, ___: Sequence[int]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    h.say(data, fds)
    os.kill(os.getpid(), signal.SIGKILL)


def _by_memory(size: int, announced: int, seals: int, content: bytes = b"") -> Struck:
    def send(h: "Hostile", _: bytes, __: Sequence[int]) -> None:
        fd = memfd(size, seals=0)
        os.pwrite(fd, content or bytes(min(size, 64)), 0)
        if seals:
            fcntl.fcntl(fd, 1033, seals)
        h.say(struct.pack("<BQ", MARK, announced), (fd,))

    return send


def _long(h: "Hostile", data: bytes, fds: Sequence[int]) -> None:
    """The right message, by a memory, though it is short: that is allowed."""
    _by_memory(len(data), len(data), 15, data)(h, data, fds)


HOW: dict[str, tuple[Struck, bool]] = {  # what is done, and whether the client has to find it out
    "as it is": (_as_it_is, False),
    "alone": (_alone, False),
    NEVER: (_nothing, True),
    "twice": (_twice, False),
    "another number": (_another_number, True),
    "no number": (_no_number, True),
    "a number alone": (_a_number_alone, True),
    "half a number": (_half_a_number, True),
    "two halves": (_two_halves, True),
    "garbage": (_garbage, True),
    "larger than any": (_larger_than_any, True),
    "a hang-up": (_hang_up, True),
    "a hang-up after it": (_hang_up_after, False),
    "a hang-up within it": (_hang_up_within, True),
    "a death": (_die, True),
    "a death after it": (_die_after, False),
    "by a memory": (_long, False),
    "a memory that is no message": (_by_memory(64, 64, 15), True),
    "a memory of another length": (_by_memory(64, 128, 15), True),
    "a memory that is not sealed": (_by_memory(64, 64, 0), True),
    "a memory beyond the limit": (_by_memory((1 << 30) + 1, (1 << 30) + 1, 15), True),
    "a memory of 32 MiB of zeros": (_by_memory(32 << 20, 32 << 20, 15), True),
    "an empty memory": (_by_memory(0, 0, 15), True),
    "a long message without a memory": (lambda h, _, __: h.say(struct.pack("<BQ", MARK, 64)), True),
}


def _on_the_lane(number: int, data: bytes, *, ends: bool = False) -> Struck:
    """Something is said on a lane before anybody has called on it."""

    def send(h: "Hostile", _: bytes, __: Sequence[int]) -> None:
        h.say(data, number=number)
        if ends:
            h.socket.shutdown(socket.SHUT_RDWR)

    return send


_REFUSED = wire.encode(wire.Failed(5, "ResourceExhausted", "connection: has 64 lanes, must be no more"))
LANE: dict[str, tuple[Struck, bool]] = {
    "refused": (_on_the_lane(1, _REFUSED, ends=True), True),
    "refused but kept": (_on_the_lane(1, _REFUSED), True),
    "refused under another number": (_on_the_lane(2, _REFUSED, ends=True), True),
    "refused under no number": (_on_the_lane(0, _REFUSED, ends=True), True),
    "answered ahead": (_on_the_lane(1, wire.encode(wire.Acknowledged())), True),
    "answered ahead and ended": (_on_the_lane(1, wire.encode(wire.Acknowledged()), ends=True), True),
    "answered ahead by an empty message": (_on_the_lane(1, b""), True),
    "answered ahead by what is no message": (_on_the_lane(1, bytes([0x91]) * 5000), True),
    "answered ahead by half a message": (_on_the_lane(1, _REFUSED[:9], ends=True), True),
    "notified on": (_on_the_lane(0, wire.encode(wire.NotifyPrepared(CALL, wire.DONE))), True),
}
HOW |= LANE


def moments() -> Iterator[Case]:
    """Answers that come in another way, at another time, or not."""
    for answer, (_, right, patient) in ANSWERS.items():
        queues, unasked = answer.startswith("PACKET"), right is None
        for how, (_, wrong) in HOW.items():
            ends = "hang-up" in how or "death" in how
            if how in ("as it is", "alone") or (how == NEVER and not patient) or (unasked and not ends):
                continue
            if how in LANE:
                continue
            if queues and ("number" in how or "memory" in how or "hang-up" in how or "larger" in how):
                continue  # queues know none of these
            own = (
                not isinstance(right, wire.ServiceCall) or "number" not in how
            )  # notifications have no numbers to be wrong
            yield Case(f"{answer}: {how}", answer, how=how, wrong=wrong and own and not unasked)
    for how, (_, wrong) in LANE.items():
        yield Case(f"{FOR_CALLS}: {how}", FOR_CALLS, how=how, wrong=wrong)


CASES: dict[str, Case] = {}
for _case in (*fields(), *carried(), *moments()):
    CASES.setdefault(_case.name, _case)


# ------------------------------------------------------------------------------------------------------ the process


class Hostile:
    """What strikes, once, in the process that serves one client. struck: an eventfd that tells that it did."""

    def __init__(self, case: Case, struck: int) -> None:
        self.case, self._struck = case, struck
        self.kind = ANSWERS[case.answer][0]
        self.lock = threading.Lock()
        self.done = False
        self.socket: Any = None
        self.number = 0
        self.sent: Callable[[bytes], object] | None = None  # for queues
        self.shrinks: list[int] = []

    def made(self) -> tuple[int, ...]:
        """The descriptors of the case."""
        self.stack = contextlib.ExitStack()  # their other ends stay open
        made = tuple(DESCRIPTORS[what](self.stack) for what in self.case.along or ())
        self.shrinks = [
            fd for fd, what in zip(made, self.case.along or (), strict=True) if what == "a memory that may shrink"
        ]
        return made

    def say(self, data: bytes, fds: Sequence[int] = (), number: int | None = None) -> None:
        """Send past every check."""
        if self.sent is not None:
            self.sent(pack(data))
            return
        head = struct.pack("<Q", self.number if number is None else number)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        with contextlib.suppress(BrokenPipeError):
            self.socket.sendmsg([head + data], rights)
        for fd in self.shrinks:
            os.ftruncate(fd, 0)

    def strikes(self, kind: type, message: bytes) -> bool:
        """Whether this is the message: the first of its kind that is of the right one's form."""
        with self.lock:
            if self.done or kind is not self.kind:
                return False
            self.done = True
            os.eventfd_write(self._struck, 1)
            return True

    def strike(self, sock: Any, number: int, data: bytes, fds: Sequence[int], sent: Any = None) -> None:
        """Send what the case has in the place of a message."""
        self.socket, self.number, self.sent = sock, number, sent
        if self.case.how:
            HOW[self.case.how][0](self, data, fds)
            return
        raw = self.case.raw
        self.say(msgspec.msgpack.encode(_called(raw, data, self.kind)), fds)


def _called(raw: Any, data: bytes, kind: type) -> Any:
    """A notification is about what was asked for, where that is not what is broken."""
    if issubclass(kind, wire.ServiceCall) and isinstance(raw, list) and len(raw) > 2 and raw[1] == CALL:
        return [raw[0], msgspec.msgpack.decode(data)[1], *raw[2:]]
    return raw


def serve(case: Case, sock: socket.socket, struck: int) -> None:
    """Serve one client with the service's own code, one message of which is another."""
    hostile = Hostile(case, struck)

    class Lane(Channel):
        """A lane whose answers may be others."""

        _kind: type = type(None)

        def receive(self, timeout_ns: int = -1) -> Any:
            data, fds = super().receive(timeout_ns)
            try:
                self._kind = type(wire.decode_call(data))
            except wire.WireError:
                self._kind = type(None)
            if self._kind in ONE_WAY and hostile.strikes(self._kind, data):
                hostile.strike(self.socket, 0, data, ())
            return data, fds

        def answer(self, data: bytes, fds: Sequence[int] = ()) -> None:
            if self._kind not in ONE_WAY and case.answer != FOR_CALLS and hostile.strikes(self._kind, data):
                hostile.strike(self.socket, self.lane.asked, data, fds)
            else:
                super().answer(data, fds)

        def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
            if hostile.strikes(type(wire.decode_callback(data)), data):
                hostile.strike(self.socket, 0, data, fds)
            else:
                super().send(data, fds)

    class Queues:
        """The queues of a burst, whose results may be others."""

        def __init__(self, fd: int, side: int) -> None:
            self._queues = _native.Queues(fd, side)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queues, name)

        def send(self, packet: bytes) -> int:
            if hostile.strikes(type(None), packet):
                hostile.strike(None, 0, unpack(packet), (), self._queues.send)
                return 0
            return self._queues.send(packet)

    class Connection(connection.Connection):
        """A connection that says more on a lane for calls than answers."""

        def _take_lane(self, channel: Channel, call: wire.AttachLane) -> None:
            if case.answer == FOR_CALLS and not call.callbacks and hostile.strikes(type(call), b""):
                hostile.strike(channel.socket, 0, wire.encode(call), ())
            super()._take_lane(channel, call)

    connection.Channel = Lane  # type: ignore[misc]
    connection.Connection = Connection  # type: ignore[misc]
    names = {name: getattr(_native, name) for name in dir(_native)}
    burst._native = SimpleNamespace(**{**names, "Queues": Queues})  # type: ignore[assignment]
    connection.serve_one(Witness(), sock, {}, a_table())


def main() -> None:
    """Serve cases, a process each: a line with the name of one comes with the socket of its client and an eventfd."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders.send(b"ready")
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 1 << 12, 2)
        if not data:
            return
        if not os.fork():
            orders.close()
            try:
                serve(CASES[data.decode()], socket.socket(fileno=fds[0]), fds[1])
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
