"""A hostile client of a shared service, as a table: every call of `wire.ClientCalls` with its fields, descriptors and moment
broken. `GOOD` is written down by hand; what is broken follows from the types, so a new field is in the table by itself.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from nnhal.base import trace
from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import DeadObject
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel
from nnhal.model.builder import ModelBuilder
from nnhal.model.parts import outline
from tests.faults import broken
from tests.faults.support import LIMIT, Hostile, X, next_number, wait_until
from tests.ipc.support import lingering
from tests.models import doubling

ROOM = 4096
LOG = trace.size_of(64)
F_ADD_SEALS, SEAL_SHRINK = 1033, 2
TWICE = (X + X).tobytes()
OBJECTS = {
    name: 7_000_000_000 + n
    for n, name in enumerate(
        ("model", "binding", "held", "burst", "buffer", "execution", "lane", "considered", "files")
    )
}
NEW = 6_000_000_000  # in the place of a number that was not used before
NEVER = 10**15  # a number that nobody was given
KINDS: tuple[type[wire.ClientCall], ...] = get_args(wire.ClientCalls)


def pool(size: int = ROOM, **held: int) -> wire.Pool:
    """A memory whose descriptor comes along, or one that was sent ahead."""
    return wire.Pool("ashmem", size, 0, False, **held)


def _model() -> wire.WireModel:
    """y = x + a constant in a memory of the client's, which is x."""
    memory = Memory.allocate(ROOM)
    b = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x, y = b.operand(kind, (64,)), b.operand(kind, (64,))
    constant = b.reference(kind, (64,), b.add_pool(memory), 0, 256)
    b.operation(OperationType.ADD, [x, constant, b.constant(OperandType.INT32, 0)], [y])
    model = model_to_wire(b.finish([x], [y]), lambda _: pool())
    memory.close()
    return model


def _outline() -> wire.WireModel:
    """What is seen of it from outside."""
    return model_to_wire(outline(doubling(64)), lambda _: pool())


_AT, _INTO = wire.WireArgument(0, 0, 256, (64,)), wire.WireArgument(0, 256, 256, (64,))
_MODEL, _OUTLINE = _model(), _outline()
TOKEN = bytes(range(32))

# Calls that are right, as (call, what goes along); numbers of objects are put in when there are any.
GOOD: list[tuple[wire.ClientCall, tuple[str, ...]]] = [
    (wire.Hello(wire.VERSION, 3), ()),
    (wire.AttachLane(NEW, False), ()),
    (wire.Release((NEVER,)), ()),
    (wire.Cancel((NEVER,)), ()),
    (wire.Hold(NEW, (pool(),)), ("a memory",)),
    (wire.GetCapabilities(V1_3), ()),
    (wire.GetStatus(), ()),
    (wire.GetVersionString(), ()),
    (wire.GetType(), ()),
    (wire.GetSupportedExtensions(), ()),
    (wire.GetRelaxations(), ()),
    (wire.GetUsage(), ()),
    (wire.GetSupportedOperations(V1_3, _MODEL), ("a memory",)),
    (wire.PrepareModel(NEW, V1_3, _MODEL, 1, 1, 0, 2, b"{}"), ("a memory",)),
    (wire.Consider(NEW, _MODEL, 1, 1, 0, 2, b"{}"), ("a memory",)),
    (wire.PrepareConsidered(NEW, OBJECTS["considered"], (0,)), ()),
    (wire.GetNumberOfCacheFiles(), ()),
    (wire.HoldFiles(NEW, TOKEN, 1, 0), ("a file",)),
    (wire.WriteTrace(NEW, pool(LOG), 0), ("a log",)),
    (wire.PrepareModelFromCache(NEW, V1_3, _OUTLINE, 1, 1, 0, 2, b"{}", OBJECTS["files"]), ()),
    (
        wire.Bind(
            NEW,
            OBJECTS["model"],
            wire.WireRequest(
                (msgspec.structs.replace(_AT, pool=1),),
                (_INTO,),
                (wire.MemoryPool(pool()), wire.MemoryPool(pool(held=OBJECTS["held"]))),
            ),
        ),
        ("a memory",),
    ),
    (
        wire.Bind(
            NEW,
            OBJECTS["model"],
            wire.WireRequest(
                (_AT,),
                (wire.WireArgument(1, 256, 256, (64,)),),
                (wire.BufferPool(OBJECTS["buffer"]), wire.MemoryPool(pool())),
            ),
        ),
        ("a memory",),
    ),
    (wire.Execute(NEW, V1_3, OBJECTS["binding"]), ()),
    (wire.ExecuteSynchronously(V1_3, OBJECTS["binding"]), ()),
    (wire.ExecuteFenced(NEW, OBJECTS["binding"], 1), ("a fence",)),
    (wire.GetExecutionInfo(OBJECTS["execution"]), ()),
    (wire.ConfigureExecutionBurst(NEW, OBJECTS["model"]), ("queues",)),
    (wire.Allocate(NEW, (64,), ((OBJECTS["model"], 0, False, 1.0),)), ()),
    (wire.CopyTo(OBJECTS["buffer"], pool(256)), ("a memory",)),
    (wire.CopyFrom(OBJECTS["buffer"], pool(256), (64,)), ("a memory",)),
    (wire.GetShape(OBJECTS["buffer"]), ()),
    (wire.GetMemoryUse(OBJECTS["model"]), ()),
    (wire.Reconfigure(OBJECTS["model"], b"{}"), ()),
]  # fmt: skip

RIGHT: dict[type[wire.ClientCall], type[wire.Reply]] = {
    wire.Hello: wire.Welcome,
    wire.AttachLane: wire.Acknowledged,
    wire.Release: wire.Acknowledged,
    wire.Cancel: wire.Acknowledged,
    wire.Hold: wire.Acknowledged,
    wire.GetCapabilities: wire.CapabilitiesReply,
    wire.GetStatus: wire.TextReply,
    wire.GetVersionString: wire.TextReply,
    wire.GetType: wire.TextReply,
    wire.GetSupportedExtensions: wire.NamesReply,
    wire.GetRelaxations: wire.NamesReply,
    wire.GetUsage: wire.Usage,
    wire.GetSupportedOperations: wire.Verdicts,
    wire.PrepareModel: wire.Acknowledged,
    wire.Consider: wire.SupportReply,
    wire.PrepareConsidered: wire.Acknowledged,
    wire.GetNumberOfCacheFiles: wire.CacheFileCounts,
    wire.HoldFiles: wire.Acknowledged,
    wire.WriteTrace: wire.Acknowledged,
    wire.PrepareModelFromCache: wire.Acknowledged,
    wire.Bind: wire.Acknowledged,
    wire.Execute: wire.Acknowledged,
    wire.ExecuteSynchronously: wire.Acknowledged,
    wire.ExecuteFenced: wire.Acknowledged,
    wire.GetExecutionInfo: wire.ExecutionInfoReply,
    wire.ConfigureExecutionBurst: wire.Acknowledged,
    wire.Allocate: wire.Acknowledged,
    wire.CopyTo: wire.Shape,
    wire.CopyFrom: wire.Acknowledged,
    wire.GetShape: wire.Shape,
    wire.GetMemoryUse: wire.WireMemoryUse,
    wire.Reconfigure: wire.Acknowledged,
}
# Errors that say that the client is at fault, and those of a call that was right but cannot be.
BLAMED = {"InvalidArgument", "InvalidRequest", "InvalidModel", "UnsupportedModel", "Unmappable", "ResourceExhausted"}
NAMED = BLAMED | {"MissedDeadline", "OutputInsufficientSize"}


# --------------------------------------------------------------------------------------------------------- descriptors

Maker = Callable[[contextlib.ExitStack], int]


def memfd(size: int = ROOM, seals: int = SEAL_SHRINK, flags: int = 0) -> int:
    """A memory that begins with x."""
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    if size >= X.nbytes and not flags:
        os.pwrite(fd, X.tobytes(), 0)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def _huge_pages(_: contextlib.ExitStack) -> int:
    try:
        return memfd(2 << 20, flags=os.MFD_HUGETLB)
    except OSError:  # a kernel without them: a memory that cannot be mapped is as good
        return os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)


def _holes(_: contextlib.ExitStack) -> int:
    fd = memfd(1 << 20)
    libc_fallocate(fd, 3, ROOM, (1 << 20) - ROOM)  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    return fd


def libc_fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def _half(pair: tuple[int, int], kept: int, stack: contextlib.ExitStack, *, closed: bool) -> int:
    """One end of two; the other is closed, or stays open for as long as the case lasts."""
    if closed:
        os.close(pair[kept])
    else:
        stack.callback(os.close, pair[kept])
    return pair[1 - kept]


def _pair(kind: int) -> tuple[int, int]:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    return one.detach(), other.detach()


def _lingering(stack: contextlib.ExitStack) -> int:
    """A socket whose last close takes a second: its sender wished so, and the peer does not read."""
    sock, peer = lingering(1)
    stack.enter_context(peer)
    return sock.detach()


def _fence(_: contextlib.ExitStack) -> int:
    read, write = os.pipe()
    os.write(write, b"\0")
    os.close(write)
    return read


def _file(_: contextlib.ExitStack) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(X.tobytes() * 16)
        file.flush()
        return os.dup(file.fileno())


def _queues_of_one(_: contextlib.ExitStack) -> int:
    return _native.create_queues(16, 16)


def _epoll(stack: contextlib.ExitStack) -> int:
    with select.epoll() as poll:
        return os.dup(poll.fileno())


def _listening(stack: contextlib.ExitStack) -> int:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind("")  # a name that the kernel picks
    sock.listen()
    return sock.detach()


SLOWLY_CLOSED = "a socket that lingers"
DESCRIPTORS: dict[str, Maker] = {
    "a memory": lambda _: memfd(),
    "a log": lambda _: memfd(LOG),
    "a lane": lambda s: _half(_pair(socket.SOCK_SEQPACKET), 0, s, closed=False),
    "a fence": _fence,
    "queues": lambda _: _native.create_queues(64, 64),
    "a memory that may shrink": lambda _: memfd(seals=0),
    "a memory of one page less": lambda _: memfd(100),
    "an empty memory": lambda _: memfd(0),
    "a memory with holes": _holes,
    "a memory of huge pages": _huge_pages,
    "the reading end of a pipe": lambda s: _half(os.pipe(), 1, s, closed=False),
    "the reading end of a closed pipe": lambda s: _half(os.pipe(), 1, s, closed=True),
    "the writing end of a pipe": lambda s: _half(os.pipe(), 0, s, closed=False),
    "a file": _file,
    "a directory": lambda _: os.open("/", os.O_RDONLY | os.O_CLOEXEC),
    "a place": lambda _: os.open("/", os.O_PATH | os.O_CLOEXEC),
    "/dev/null": lambda _: os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC),
    "an eventfd": lambda _: os.eventfd(0),
    "an epoll": _epoll,
    "a lane whose end is closed": lambda s: _half(_pair(socket.SOCK_SEQPACKET), 0, s, closed=True),
    "a stream socket": lambda s: _half(_pair(socket.SOCK_STREAM), 0, s, closed=False),
    "a datagram socket": lambda s: _half(_pair(socket.SOCK_DGRAM), 0, s, closed=False),
    "a listening socket": _listening,
    SLOWLY_CLOSED: _lingering,
}
FITS: dict[str, set[str]] = {  # what may stand for what, as far as the receiver can tell
    "a log": {"a log", "a memory of huge pages"},
    "a memory": {"a memory", "a log", "a memory with holes", "a memory of huge pages", "queues"},
    "a fence": {"a fence", "the reading end of a pipe", "the reading end of a closed pipe"},
    "queues": {"queues"},
    "a file": {name for name in DESCRIPTORS if "memory" in name} | {"a file", "a log", "queues"},
}


# --------------------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Case:
    """One hostile call. data: with `OBJECTS` and `FOREIGN` for numbers. wanted: "refused", "right" or "either".

    words: what the error must hold. deep: what is broken lies within a field of the message.
    """

    name: str
    call: wire.ClientCall
    raw: Any
    along: tuple[str, ...]
    wanted: str
    words: tuple[str, ...] = ()
    deep: bool = False


FOREIGN = {name: 8_000_000_000 + n for n, name in enumerate(OBJECTS)}
RELEASED = 9_000_000_000


OF_WHAT_GOES_ON = wire.AttachLane, wire.Execute, wire.ExecuteFenced
OF_OBJECTS = (
    wire.Hold, wire.PrepareModel, wire.Consider, wire.PrepareConsidered, wire.Bind, wire.ExecuteFenced,
    wire.ConfigureExecutionBurst, wire.Allocate, wire.HoldFiles, wire.PrepareModelFromCache,
    wire.WriteTrace,
)  # fmt: skip
PREPARATIONS = wire.PrepareModel, wire.PrepareConsidered, wire.PrepareModelFromCache


def _refused(call: wire.ClientCall, number: int) -> tuple[str, ...]:
    """What is said to a call that would make something under a number of this connection's; nothing where it is free."""
    if isinstance(call, OF_WHAT_GOES_ON) and number == OBJECTS["lane"]:
        return ("is the number of work in progress, must be a new one",)
    if isinstance(call, OF_OBJECTS) and number != OBJECTS["lane"] and number in OBJECTS.values():
        return ("is held already, must be a new number",)
    return ()


def table(cases: Iterable[Case]) -> list[Case]:
    """Each case once: what two good calls of a kind have in common is broken in the first."""
    return list({case.name: case for case in reversed(list(cases))}.values())[::-1]


def fields() -> Iterator[Case]:
    """Every call with every field broken, and every number another's."""
    for call, along in GOOD:
        whole, name = broken.plain(call), type(call).__name__
        for b in broken.breakages(call):
            words = ("message: ", b.where.removesuffix("`")) if b.wrong else ()
            raw, wanted = broken.put(whole, b.path, b.value), "refused" if b.wrong else "either"
            yield Case(b.what, call, raw, along, wanted, words, len(b.path) > 2)
        for n in broken.numbers(call):
            others = {f"a {kind}": number for kind, number in OBJECTS.items() if kind != n.of}
            others |= {f"another's {kind}": number for kind, number in FOREIGN.items()}
            others |= {"a released one": RELEASED, "one never given": NEVER, "2**63": 2**63, "the last": 2**64 - 1}
            may = n.of == "held" or (n.of == "files" and not isinstance(call, wire.PrepareModelFromCache))
            others |= {"0": 0} if not may else {}  # there it says that the memory comes along, or that nothing is kept
            for what, number in others.items():
                words = _refused(call, number) if n.of == broken.NEW else ("not held",) if n.of else ()
                words = ("cache is 0, must be",) if n.of == "files" and number == 0 else words
                raw = broken.put(whole, n.path, number)
                # whoever is named need not be there
                wanted = "refused" if words else "right" if n.of == broken.NEW else "either"
                yield Case(f"{n.what} = {what}", call, raw, along, wanted, words)
        yield Case(f"{name} of an unknown kind", call, [99, *whole[1:]], along, "refused", ("message: ",))
        yield Case(f"{name} with a field of later times", call, [*whole, "later"], along, "right")


def carried() -> Iterator[Case]:
    """Every call with other descriptors than it needs."""
    for call, along in GOOD:
        whole, name = broken.plain(call), type(call).__name__
        surplus = "refused" if isinstance(call, wire.ExecuteFenced | wire.HoldFiles) else "right"  # it says how many
        for count in (1, wire.MAX_DESCRIPTORS - len(along)):
            yield Case(f"{name} with {count} descriptors more", call, whole, (*along, *["/dev/null"] * count), surplus)
        many = (*along, *["/dev/null"] * (wire.MAX_DESCRIPTORS + 1 - len(along)))
        yield Case(f"{name} with too many descriptors", call, whole, many, "refused", ("too many descriptors",))
        if along:
            yield Case(f"{name} without descriptors", call, whole, (), "refused")
        for what in DESCRIPTORS if along else ():
            wanted = "either" if what in FITS[along[0]] else "refused"
            slow = what == SLOWLY_CLOSED and not isinstance(call, wire.Hold)
            if what != along[0] and not slow:
                yield Case(f"{name} with {what}", call, whole, (what, *along[1:]), wanted)


# --------------------------------------------------------------------------------------------------------------- peers


def say(lane: Channel, number: int, data: bytes, fds: "list[int] | tuple[int, ...]" = ()) -> None:
    """Send past every check of a lane's."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    lane.socket.sendmsg([number.to_bytes(8, "little") + data], rights)


def hear(lane: Channel) -> tuple[int, Any]:
    """The number of the next answer, and the answer; DeadObject where the lane has ended."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            data, fds, _, _ = socket.recv_fds(lane.socket, 1 << 17, wire.MAX_DESCRIPTORS)
        except BlockingIOError:  # after a second
            continue
        except ConnectionResetError:  # told once, ahead of what the peer had sent
            continue
        for fd in fds:
            os.close(fd)
        if not data:
            raise DeadObject("the lane has ended")
        return int.from_bytes(data[:8], "little"), wire.decode_reply(data[8:])
    raise AssertionError(f"no answer within {LIMIT:.0f} s")


def asked(lane: Channel, data: bytes, fds: "list[int] | tuple[int, ...]" = (), given: Callable[[], None] = int) -> Any:
    """The reply to a call; its descriptors are closed. given: done in between."""
    if len(fds) > wire.MAX_DESCRIPTORS:
        say(lane, next_number(lane), data, fds)
        return hear(lane)[1]
    lane.ask(data, fds)
    given()
    return heard(lane)


def heard(lane: Channel) -> Any:
    """The reply to the call at hand; its descriptors are closed."""
    return wire.decode_reply(lane.receive(int(LIMIT * 1e9))[0])


class World:
    """A client's connection with one object of each kind. first: how many numbers its objects leave out."""

    def __init__(self, name: str, first: int = 0) -> None:
        client = self.client = Hostile(name)
        try:
            client.made += first
            self.lane = client.lane()
            lane = client.made
            self.memory = memfd()
            model = client.prepare()
            binding, released = self._bound(model), self._bound(model)
            client.call(wire.Release((released,)))
            held = self.make(wire.Hold, (pool(),), fds=(self.memory,))
            buffer = self.make(wire.Allocate, (), ((model, 0, False, 1.0),))
            assert isinstance(client.call(wire.CopyFrom(buffer, pool(256), (64,)), (self.memory,)), wire.Acknowledged)
            queues = _native.create_queues(16, 16)
            burst = self.make(wire.ConfigureExecutionBurst, model, fds=(queues,))
            os.close(queues)
            execution = self.make(wire.ExecuteFenced, binding, 0)
            considered, files = self._considered(), self._saved()
            numbers = model, binding, held, burst, buffer, execution, lane, considered, files
            self.objects = dict(zip(OBJECTS, numbers, strict=True))
            self.numbers = {OBJECTS[what]: number for what, number in self.objects.items()} | {RELEASED: released}
            assert isinstance(self.info(execution), wire.ExecutionInfoReply)
        except BaseException:
            self.close()
            raise

    def slow(self) -> int:
        """A binding whose executions take their time."""
        return self._bound(self.client.prepare(sleep=SLOW))

    def _considered(self) -> int:
        reply = self.client.make(wire.Consider, _MODEL, 1, 1, 0, 2, b"{}", fds=(self.memory,))
        assert isinstance(reply, wire.SupportReply) and reply.kept, reply
        return self.client.made

    def _saved(self) -> int:
        """Cache files to which a model was saved."""
        with tempfile.TemporaryFile(buffering=0) as file:
            files = self.make(wire.HoldFiles, TOKEN, 1, 0, fds=(file.fileno(),))
        whole = model_to_wire(doubling(64), lambda _: pool())
        self.make(wire.PrepareModel, V1_3, whole, 1, 1, 0, 0, b"{}", files)
        assert isinstance(self.client.notification().result, wire.PreparedTraits)
        return files

    def _bound(self, model: int) -> int:
        request = wire.WireRequest((_AT,), (_INTO,), (wire.MemoryPool(pool()),))
        return self.make(wire.Bind, model, request, fds=(self.memory,))

    def make(self, kind: type[wire.MakingCall], *fields: Any, fds: Sequence[int] = ()) -> int:
        """The number of what a call has made."""
        reply = self.client.make(kind, *fields, fds=fds)
        assert isinstance(reply, wire.Acknowledged), reply
        return self.client.made

    def data(self, raw: Any, foreign: "dict[int, int] | None" = None) -> bytes:
        """A message of the table's, with the numbers of this connection's objects, and a new one for what it makes."""
        self.client.made += 1
        message = broken.replaced(raw, self.numbers | (foreign or {}) | {NEW: self.client.made})
        self.made = message[1] if len(message) > 1 else 0  # under which number, where it makes something
        return msgspec.msgpack.encode(message)

    def info(self, execution: int) -> Any:
        """What became of a fenced execution, once it has ended."""
        found: list[Any] = []

        def ended() -> bool:
            found[:] = [self.client.call(wire.GetExecutionInfo(execution))]
            return "has not ended" not in str(found[0])

        wait_until(ended, "the end of a fenced execution")
        return found[0]

    def computes(self) -> None:
        """Its objects do what they did: bit by bit."""
        os.pwrite(self.memory, bytes(256), 256)
        done = asked(self.lane, wire.encode(wire.ExecuteSynchronously(V1_3, self.objects["binding"])))
        assert isinstance(done, wire.Acknowledged), done
        assert os.pread(self.memory, 256, 256) == TWICE, "another client's result is wrong"
        assert asked(self.lane, wire.encode(wire.GetShape(self.objects["buffer"]))) == wire.Shape((64,))
        assert isinstance(
            asked(self.lane, wire.encode(wire.GetExecutionInfo(self.objects["execution"]))), wire.ExecutionInfoReply
        )

    def follow(self, call: wire.ClientCall, reply: Any, sent: list[int], *, right: bool) -> None:
        """See what comes after a call that was taken: exactly what it asked for. right: nothing of it was broken."""
        kind, after = type(call), reply
        if kind in (*PREPARATIONS, wire.Execute):
            after = self.notification(wire.NotifyExecuted if kind is wire.Execute else wire.NotifyPrepared)
        elif kind is wire.ExecuteFenced:
            after = self.info(self.made)
        if isinstance(after, wire.Failed):
            dead = kind is wire.ExecuteFenced and after.kind == "DeadObject"  # who was to signal its fence went
            assert not right and (after.kind in NAMED or dead), after
        if not right:
            return
        if kind is wire.Bind:
            done = self.client.call(wire.ExecuteSynchronously(V1_3, self.made))
            assert isinstance(done, wire.Acknowledged), done
            assert os.pread(sent[0], 256, 256) == TWICE
        elif kind in (wire.Execute, wire.ExecuteSynchronously, wire.ExecuteFenced):
            assert os.pread(self.memory, 256, 256) == TWICE
        elif kind in PREPARATIONS:
            assert isinstance(after, wire.PreparedTraits), after
            assert self._bound(self.made)
        elif kind is wire.Allocate:
            assert self.client.call(wire.GetShape(self.made)) == wire.Shape(None)
        elif kind in (wire.CopyTo, wire.CopyFrom):
            assert os.pread(sent[0], 256, 0) == X.tobytes()

    def notification(self, kind: type[wire.NotifyPrepared] | type[wire.NotifyExecuted]) -> Any:
        """What the next notification says, which must be about what was made last."""
        note = self.client.notification()
        assert isinstance(note, kind) and note.object == self.made, note
        return note.result

    def close(self) -> None:
        """Go away without a word."""
        if hasattr(self, "lane"):
            self.lane.close()
        if hasattr(self, "memory"):
            os.close(self.memory)
        self.client.close()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def judge(call: wire.ClientCall, reply: Any, wanted: str, words: tuple[str, ...] = ()) -> bool:
    """Whether the reply is the right one; raises where it may not be. wanted: as of `Case`."""
    measured = wanted == "either" and isinstance(reply, wire.ExecutedReply)
    if (isinstance(reply, RIGHT[type(call)]) or measured) and wanted != "refused":
        return True
    assert isinstance(reply, wire.Failed) and wanted != "right", reply
    assert reply.kind in (BLAMED if wanted == "refused" else NAMED) and reply.message and not reply.recycle, reply
    for word in words:
        assert word in reply.message, (word, reply)
    return False


# ------------------------------------------------------------------------------------------------------------- moments

QUERY = wire.encode(wire.GetVersionString())
SLOW = 0.05  # seconds of an execution that others come during


@dataclass
class Moment:
    """One good call at the wrong moment. name: of the service."""

    name: str
    call: wire.ClientCall
    along: tuple[str, ...]

    def __post_init__(self) -> None:
        self.raw = broken.plain(self.call)
        self.names_objects = broken.replaced(self.raw, dict.fromkeys(OBJECTS.values())) != self.raw

    @contextlib.contextmanager
    def world(self) -> Iterator[tuple[World, bytes, list[int]]]:
        """A client, the call as bytes, and what goes along."""
        with World(self.name) as world, self.sent() as sent:
            yield world, world.data(self.raw), sent

    @contextlib.contextmanager
    def sent(self) -> Iterator[list[int]]:
        """What goes along with the call."""
        with contextlib.ExitStack() as stack:
            fds = []
            for what in self.along:
                fds.append(DESCRIPTORS[what](stack))
                stack.callback(os.close, fds[-1])
            yield fds

    def fits(self, reply: Any) -> bool:
        """Whether it is the right answer on a connection that was greeted; anything else must be an error with a name."""
        return judge(self.call, reply, "refused" if isinstance(self.call, wire.Hello) else "right")

    def done(self, world: World, reply: Any, sent: list[int]) -> None:
        """The answer is right, and so is what follows."""
        if self.fits(reply):
            world.follow(self.call, reply, sent, right=True)


def on_a_call_lane(m: Moment) -> None:
    with m.world() as (world, data, sent):
        m.done(world, asked(world.lane, data, sent), sent)


def on_the_control_lane(m: Moment) -> None:
    with m.world() as (world, data, sent):
        m.done(world, asked(world.client.channel, data, sent), sent)


def without_a_number(m: Moment) -> None:
    """Nothing is answered; what comes after is."""
    with m.world() as (world, data, sent):
        say(world.lane, 0, data, sent)
        say(world.lane, 5, QUERY)
        assert hear(world.lane) == (5, wire.TextReply("1"))


def with_the_last_number_there_is(m: Moment) -> None:
    with m.world() as (world, data, sent):
        say(world.lane, 2**64 - 1, data, sent)
        number, reply = hear(world.lane)
        assert number == 2**64 - 1
        m.done(world, reply, sent)


def before_the_greeting(m: Moment) -> None:
    with Hostile(m.name, greet=False) as client, m.sent() as sent:
        reply = asked(client.channel, wire.encode(m.call), sent)
        if isinstance(m.call, wire.Hello):
            assert isinstance(reply, wire.Welcome), reply
            return
        judge(m.call, reply, "refused", ("first message is", "must be Hello"))
        with contextlib.suppress(DeadObject):
            raise AssertionError(hear(client.channel))


def before_the_greeting_without_a_number(m: Moment) -> None:
    with Hostile(m.name, greet=False) as client, m.sent() as sent:
        say(client.channel, 0, wire.encode(m.call), sent)
        if isinstance(m.call, wire.Hello):
            assert asked(client.channel, QUERY) == wire.TextReply("1")
            return
        with contextlib.suppress(DeadObject):
            raise AssertionError(hear(client.channel))


def after_a_greeting_of_another_version(m: Moment) -> None:
    """The connection has ended by then, whoever is quick enough to send more."""
    with Hostile(m.name, greet=False) as client, m.sent() as sent:
        say(client.channel, 1, wire.encode(wire.Hello(wire.VERSION + 1, 0)))
        with contextlib.suppress(BrokenPipeError):
            say(client.channel, 2, wire.encode(m.call), sent)
        number, reply = hear(client.channel)
        assert number == 1 and isinstance(reply, wire.Failed) and "version" in reply.message
        with contextlib.suppress(DeadObject):
            raise AssertionError(hear(client.channel))


def on_the_callback_lane(m: Moment) -> None:
    """There only the service speaks: nothing is answered, and its notifications go on."""
    with m.world() as (world, data, sent):
        assert world.client.callbacks is not None
        say(world.client.callbacks, 1, data, sent)
        assert world.client.prepare()


def behind_an_execution(m: Moment) -> None:
    """On the lane of one that runs: it waits its turn."""
    with m.world() as (world, data, sent):
        say(world.lane, 1, wire.encode(wire.ExecuteSynchronously(V1_3, world.slow())))
        say(world.lane, 2, data, sent)
        assert hear(world.lane) == (1, wire.Acknowledged())
        number, reply = hear(world.lane)
        assert number == 2
        m.done(world, reply, sent)


def beside_an_execution(m: Moment) -> None:
    with m.world() as (world, data, sent):
        slow, other = world.slow(), world.client.lane()
        say(other, 1, wire.encode(wire.ExecuteSynchronously(V1_3, slow)))
        m.done(world, asked(world.lane, data, sent), sent)
        assert hear(other) == (1, wire.Acknowledged())
        other.close()


def as_its_objects_go(m: Moment) -> None:
    """While an execution that uses them runs, the connection's objects are released; then they are called."""
    with m.world() as (world, data, sent):
        slow, other = world.slow(), world.client.lane()
        say(other, 1, wire.encode(wire.ExecuteSynchronously(V1_3, slow)))
        say(world.lane, 1, wire.encode(wire.Release((*world.objects.values(), slow))))
        say(world.lane, 2, data, sent)
        assert hear(world.lane) == (1, wire.Acknowledged())
        number, reply = hear(world.lane)
        assert number == 2
        if m.names_objects:
            judge(m.call, reply, "refused", ("not held",))
        else:
            m.fits(reply)
        number, reply = hear(other)  # which may have begun after the release
        assert reply == wire.Acknowledged() or "not held" in reply.message, reply
        other.close()


def under_a_number_again(m: Moment) -> None:
    """The first is answered, and the lane ends."""
    with m.world() as (world, data, sent):
        for _ in range(2):
            say(world.lane, 7, data, sent)
        number, reply = hear(world.lane)
        assert number == 7
        m.fits(reply)
        with contextlib.suppress(DeadObject):
            raise AssertionError(hear(world.lane))


def twice(m: Moment) -> None:
    """The same call of the same object again, before the first was answered: each has its answer."""
    with m.world() as (world, data, sent):
        for number in (7, 8):
            say(world.lane, number, data, sent)
        for first in (True, False):
            number, reply = hear(world.lane)
            assert number == (7 if first else 8)
            if first or not isinstance(m.call, wire.MakingCall):
                m.fits(reply)
            elif not isinstance(m.call, wire.Execute | wire.AttachLane) or reply != wire.Acknowledged():
                # else the first may have ended: of a lane, this end is closed when it is heard of
                judge(m.call, reply, "refused", ("must be a new",))
        say(world.lane, 9, QUERY)
        assert hear(world.lane) == (9, wire.TextReply("1"))


def as_its_number_is_released(m: Moment) -> None:
    """Whichever is first: the answer is right, and the number is free again once what went on under it has ended."""
    with m.world() as (world, data, sent):
        number = world.made if isinstance(m.call, wire.MakingCall) else NEVER
        world.lane.ask(data, sent)
        world.client.channel.ask(wire.encode(wire.Release((number,))))
        reply = heard(world.lane)
        between = isinstance(reply, wire.Failed) and "was released before it was made" in reply.message
        assert (between and number != NEVER) or m.fits(reply) or isinstance(m.call, wire.Hello)
        assert heard(world.client.channel) == wire.Acknowledged()
        if isinstance(m.call, PREPARATIONS):
            result = world.notification(wire.NotifyPrepared)
            assert isinstance(result, wire.PreparedTraits) or result.kind in ("Cancelled", "Closed"), result
        elif isinstance(m.call, wire.Execute):
            assert isinstance(world.notification(wire.NotifyExecuted), wire.ExecutedReply)

        def again() -> bool:
            asked(world.client.channel, wire.encode(wire.Release((number,))))
            with m.sent() as fresh:
                reply = asked(world.lane, data, fresh)
            return isinstance(reply, wire.Acknowledged | wire.SupportReply) or judge(
                m.call, reply, "refused", ("of work in progress",)
            )

        if isinstance(m.call, wire.MakingCall):
            wait_until(again, "the end of what went on")


def in_parts(m: Moment) -> None:
    """Cut off anywhere, it is no message; and what is left of it is none either."""
    with m.world() as (world, data, sent):
        for cut in sorted({1, len(data) // 2, len(data) - 1} - {0, len(data)}):
            for part in (data[:cut], data[cut:]):
                reply = asked(world.lane, part, sent)
                if not (part != data[:cut] and isinstance(reply, wire.Reply) and not isinstance(reply, wire.Failed)):
                    judge(m.call, reply, "refused", ("message",))
        m.done(world, asked(world.lane, data, sent), sent)


def with_a_part_of_its_number(m: Moment) -> None:
    """That ends its lane, and no other."""
    with m.world() as (world, data, sent):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(sent)}i", *sent))] if sent else []
        world.lane.socket.sendmsg([data[:3]], rights)
        with contextlib.suppress(DeadObject):
            raise AssertionError(hear(world.lane))
        m.fits(asked(world.client.channel, data, sent))


def with_nobody_to_notify(m: Moment) -> None:
    """On a connection without a callback lane."""
    with Hostile(m.name, callbacks=False) as client, m.sent() as sent:
        data = wire.encode(m.call)
        reply = asked(client.channel, data, sent)
        if isinstance(m.call, wire.PrepareModel) or m.names_objects:
            words = ("not held",) if m.names_objects else ("no callback channel",)
            judge(m.call, reply, "refused", words)
        else:
            m.fits(reply)


def and_hung_up(m: Moment) -> None:
    """An answer can still be read: the right one, or that the execution was cancelled, as nobody seems to want it."""
    with m.world() as (world, data, sent):
        say(world.lane, 1, data, sent)
        world.lane.hang_up()
        with contextlib.suppress(DeadObject):
            reply = hear(world.lane)[1]
            assert getattr(reply, "kind", "") == "Cancelled" or m.fits(reply) or isinstance(reply, wire.Failed)
            raise AssertionError(hear(world.lane))


def as_the_lane_ends(m: Moment) -> None:
    with m.world() as (world, data, sent):
        say(world.lane, 1, data, sent)
        world.lane.close()
        m.fits(asked(world.client.channel, world.data(m.raw), sent))


def as_the_connection_ends(m: Moment) -> None:
    with m.world() as (world, data, sent):
        for lane in (world.lane, world.client.channel):
            say(lane, 1, data, sent)
        world.client.channel.close()


def behind_the_end_of_the_connection(m: Moment) -> None:
    """A lane whose connection has ended ends too, whatever is on its way."""
    with m.world() as (world, data, sent):
        world.client.channel.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            say(world.lane, 1, data, sent)
        end = time.monotonic() + LIMIT
        with contextlib.suppress(DeadObject):
            while time.monotonic() < end:
                reply = hear(world.lane)[1]
                assert isinstance(reply, RIGHT[type(m.call)] | wire.Failed), reply
            raise AssertionError("the lane never ended")


MOMENTS: dict[str, Callable[[Moment], None]] = {
    how.__name__: how
    for how in (
        on_a_call_lane,
        on_the_control_lane,
        without_a_number,
        with_the_last_number_there_is,
        before_the_greeting,
        before_the_greeting_without_a_number,
        after_a_greeting_of_another_version,
        on_the_callback_lane,
        behind_an_execution,
        beside_an_execution,
        as_its_objects_go,
        as_its_number_is_released,
        under_a_number_again,
        twice,
        in_parts,
        with_a_part_of_its_number,
        with_nobody_to_notify,
        and_hung_up,
        as_the_lane_ends,
        as_the_connection_ends,
        behind_the_end_of_the_connection,
    )
}


# --------------------------------------------------------------------------------- clients of a process of their own


def main() -> None:
    """Clients that send a call of `GOOD` and then kill or stop themselves: a process each, "number signal" a line."""
    for line in sys.stdin:
        number, end = map(int, line.split())
        pid = os.fork()
        if not pid:
            with Moment(sys.argv[1], *GOOD[number]).world() as (world, data, sent):
                for lane in (world.lane, world.client.channel):
                    say(lane, 1, data, sent)
                os.kill(os.getpid(), end)
        _, status = os.waitpid(pid, os.WUNTRACED)
        print(pid, flush=True)
        if os.WIFSTOPPED(status):
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
