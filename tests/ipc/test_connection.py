"""A service's connections in this process: the greeting, lanes, what is answered with an error, and how they end."""

import contextlib
import errno
import fcntl
import gc
import os
import socket
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import DeadObject, InvalidArgument, ResourceExhausted
from nnhal.base.levels import FL8, V1_0, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.drivers.null import Null
from nnhal.drivers.reference import Reference
from nnhal.hal.answers import fenced_by
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.service import connection as subject
from nnhal.ipc.service import quota
from nnhal.ipc.service.connection import Connection, refuse, serve_clients
from nnhal.ipc.service.quota import ClientShare, Quotas
from nnhal.ipc.service.scope import ObjectCloser
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, end_of
from nnhal.model.graph import Model
from tests import requests
from tests.ipc.support import (
    LIMIT,
    a_share,
    a_table,
    numbers,
    request_for,
    run,
    served_here,
    wait_until,
    without_thread,
)
from tests.models import doubling
from tests.runtime.devices import failing
from tests.waiting import Opened

SECONDS = 1_000_000_000
HELLO = wire.Hello(wire.VERSION, 0b1010)


class Odd(Null):
    """Does what a test wants. word: its version."""

    name, preferred_layout = "odd", "nchw"

    def __init__(self, level: Level = V1_3) -> None:
        self.level = level
        self.word: Any = "1"
        self.run: Callable[[Control], Timing | None] = lambda _: None
        self.gate: threading.Event | None = None

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return OddPrepared(self)


class OddPrepared(Prepared):
    def __init__(self, device: Odd) -> None:
        self._device = device

    def run(self, request: Request, control: Control) -> Timing | None:
        return self._device.run(control)

    def close(self) -> None:
        if self._device.gate is not None:
            self._device.gate.wait(LIMIT)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Client:
    """A client by hand: its first lane, and the connection in the service, which a thread serves."""

    def __init__(self, device: Device | None = None, share: ClientShare | None = None, **named: Any) -> None:
        ours, theirs = pair()
        self.share = share or a_share()
        self.first = self.used()
        self.lane = Channel(ours)
        named = {"shared": False, "confinement": {}} | named
        self.connection = Connection(device or Odd(), theirs, self.share, **named)
        self.thread = threading.Thread(target=self.connection.serve)
        self.thread.start()

    def used(self) -> dict[str, int]:
        return dict(self.share.quotas.usage()[0][1])

    def ask(self, message: wire.ClientCall, fds: Sequence[int] = (), lane: Channel | None = None) -> Any:
        return wire.decode_reply((lane or self.lane).call(wire.encode(message), fds, int(LIMIT * SECONDS))[0])

    def says(self, message: wire.ClientCall, fds: Sequence[int] = (), lane: Channel | None = None) -> str:
        """The message of the error that answers."""
        reply = self.ask(message, fds, lane)
        assert isinstance(reply, wire.Failed), reply
        return reply.message

    def attached(self, number: int, callbacks: bool = False) -> Channel:
        """One more lane."""
        reply, fds = self.lane.call(wire.encode(wire.AttachLane(number, callbacks)), (), int(LIMIT * SECONDS))
        assert reply == wire.ENCODED_DONE
        return Channel(end_of(fds))

    def ended(self) -> None:
        """The connection ends by itself."""
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self.lane.close()
        self.ended()


@pytest.fixture
def client() -> Iterator[Client]:
    """One that has greeted."""
    client = Client()
    assert isinstance(client.ask(HELLO), wire.Welcome)
    yield client
    client.close()
    wait_until(lambda: client.used() == client.first, "all is given back")


# ------------------------------------------------------------------------------------------------------------ greeting


@pytest.mark.parametrize(("shared", "level"), [(True, V1_0), (False, FL8)])
def test_the_greeting_is_answered_with_all_that_a_client_has_to_know(shared: bool, level: Level) -> None:
    client = Client(Odd(level), shared=shared, confinement={"seccomp": "applied"})
    welcome = client.ask(HELLO)
    confinement = {"seccomp": "applied"}
    assert welcome == wire.Welcome(
        wire.VERSION, int(level), "odd", os.getpid(), _native.cpus(), shared, confinement, "nchw"
    )
    ours = client.attached(5)  # it lasts as long as this end of it
    (lane,) = client.connection._lanes
    assert lane.lane.peer_cpus == client.connection._control.lane.peer_cpus == 0b1010
    ours.close()
    client.close()


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (wire.encode(wire.GetStatus()), "first message is GetStatus, must be Hello"),
        (
            wire.encode(wire.Hello(wire.VERSION + 1, 0)),
            f"has protocol version {wire.VERSION + 1}, must be {wire.VERSION}",
        ),
        (
            wire.encode(wire.Hello(wire.VERSION - 1, 0)),
            f"has protocol version {wire.VERSION - 1}, must be {wire.VERSION}",
        ),
        (b"\xc0", "message: "),
    ],
    ids=["query", "newer", "older", "garbage"],
)
def test_another_first_message_is_answered_with_what_it_must_be_and_ends_the_connection(
    first: bytes, says: str
) -> None:
    client = Client()
    reply = wire.decode_reply(client.lane.call(first, (), int(LIMIT * SECONDS))[0])
    assert isinstance(reply, wire.Failed) and reply.kind == "InvalidArgument" and says in reply.message
    client.ended()
    with pytest.raises(DeadObject):
        client.lane.receive(int(LIMIT * SECONDS))
    wait_until(lambda: client.used() == client.first, "all is given back")


def test_greetings_are_waited_for_10_s_and_ends_for_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/contributing/ipc.md says so."""
    waited: list[float] = []
    receive, finish = Channel.receive, ObjectCloser.finish

    def received(channel: Channel, timeout_ns: int = -1) -> Any:
        waited.append(timeout_ns)
        return receive(channel, timeout_ns)

    def finished(ends: ObjectCloser, seconds: float) -> bool:
        waited.append(seconds)
        return finish(ends, seconds)

    monkeypatch.setattr(Channel, "receive", received)
    monkeypatch.setattr(ObjectCloser, "finish", finished)
    client = Client()
    client.close()
    assert waited == [10 * SECONDS, 5]


# --------------------------------------------------------------------------------------------------------------- lanes


def test_a_lane_of_the_clients_own_making_is_no_lane_and_is_closed(client: Client) -> None:
    """The service answers on what it made itself alone: nobody else has that end, its flags and options."""
    ours, theirs = pair()
    with theirs:
        reply, fds = client.lane.call(wire.encode(wire.AttachLane(3, False)), (theirs.fileno(),), int(LIMIT * SECONDS))
    lane = Channel(end_of(fds))
    assert reply == wire.ENCODED_DONE and client.ask(wire.GetVersionString(), lane=lane) == wire.TextReply("1")
    with ours:
        assert ours.recv(1) == b""  # the other end was closed
    lane.close()


def test_a_lane_that_nobody_can_be_given_ends(client: Client) -> None:
    client.lane.send(wire.encode(wire.AttachLane(3, False)))  # it wants no answer
    assert client.ask(wire.GetVersionString()) == wire.TextReply("1")
    wait_until(lambda: client.used()["lanes"] == 0 and not client.connection._lanes, "its end")


def test_a_lane_for_which_there_are_no_descriptors_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    held = client.used()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", failing(OSError(errno.EMFILE, "Too many open files")))
        assert client.says(wire.AttachLane(3, False)) == "channel: cannot be opened: Too many open files"
    assert client.used() == held and client.ask(wire.GetVersionString(), lane=client.attached(3)) == wire.TextReply("1")


def test_lanes_answer_beside_one_another_and_end_by_themselves(client: Client) -> None:
    held = client.used()
    lanes = [client.attached(number) for number in (3, 4)]
    taken = client.used()
    assert (taken["lanes"], taken["threads"] - held["threads"]) == (2, 2)
    for lane in lanes:
        assert client.ask(wire.GetVersionString(), lane=lane) == wire.TextReply("1")
    lanes[0].close()
    wait_until(lambda: client.used()["lanes"] == 1, "the end of a lane")
    wait_until(lambda: len(client.connection._lanes) == 1, "it is forgotten")
    assert client.ask(wire.GetVersionString(), lane=lanes[1]) == wire.TextReply("1")
    again = client.attached(3)  # its number is free again
    assert client.ask(wire.GetVersionString(), lane=again) == wire.TextReply("1")


def test_a_lane_that_is_refused_says_why_and_counts_for_nothing(client: Client) -> None:
    lane, callbacks = client.attached(3), client.attached(4, True)
    held, opened = client.used(), Opened()
    for fields, says in (
        ((3, False), "3 is the number of work in progress"),
        ((5, True), "there is a callback channel already, must be one"),
    ):
        assert says in client.says(wire.AttachLane(*fields))
    assert client.used() == held and len(client.connection._lanes) == 1
    opened.closed()
    assert client.ask(wire.GetVersionString(), lane=lane) == wire.TextReply("1")
    callbacks.close()


def test_a_lane_that_gets_no_thread_is_refused_and_its_number_is_free(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = client.used()
    with monkeypatch.context() as patched:
        without_thread(patched, "nnhal-lane")
        assert "no thread for another channel" in client.says(wire.AttachLane(3, False))
    assert client.used() == held and not client.connection._lanes
    assert client.ask(wire.GetVersionString(), lane=client.attached(3)) == wire.TextReply("1")


@pytest.mark.parametrize("shared", [True, False])
def test_a_long_message_waits_for_its_turn_in_a_shared_service_and_no_longer_than_its_client_is_there(
    shared: bool,
) -> None:
    client = Client(shared=shared)
    client.ask(HELLO)
    lane = client.attached(3)
    paused: list[int] = []
    hour: Any = types.SimpleNamespace(pause=lambda length: paused.append(length) or 3600)
    client.share.long = hour
    lane.ask(b"\xc0" + bytes(wire.INLINE))
    if shared:
        wait_until(lambda: bool(paused), "it waits")
        assert client.ask(wire.GetVersionString()) == wire.TextReply("1")  # other lanes do not
        client.close()
        with pytest.raises(DeadObject):
            lane.receive(int(LIMIT * SECONDS))
    else:
        assert isinstance(wire.decode_reply(lane.receive(int(LIMIT * SECONDS))[0]), wire.Failed)
        client.close()
    assert paused == [wire.INLINE + 1] * shared
    lane.close()
    wait_until(lambda: client.used() == client.first, "all is given back")


@pytest.mark.parametrize(
    ("shared", "more", "refused"), [(True, 0, False), (True, 1, True), (False, 1, False)], ids=["most", "over", "alone"]
)
def test_a_message_that_others_would_wait_for_is_refused_by_a_shared_service_alone(
    shared: bool, more: int, refused: bool
) -> None:
    client = Client(shared=shared)
    client.ask(HELLO)
    # No message, so nothing of it is decoded where it is admitted.
    reply = wire.decode_reply(client.lane.call(b"\xc1" + bytes(quota.LONGEST - 1 + more), (), int(LIMIT * SECONDS))[0])
    assert isinstance(reply, wire.Failed)
    assert (reply.kind == "ResourceExhausted" and f"must be at most {quota.LONGEST} in" in reply.message) == refused
    assert client.ask(wire.GetVersionString()) == wire.TextReply("1")
    client.close()


def test_a_call_on_a_lane_is_cancelled_by_the_number_of_the_lane_and_the_others_go_on(client: Client) -> None:
    lane, other = client.attached(3), client.attached(4)
    begun = threading.Event()

    def run(control: Control) -> None:
        begun.set()
        assert control.cancelled is not None and control.cancelled.wait(LIMIT)
        control.check()

    device = client.connection._device
    assert isinstance(device, Odd)
    callbacks = client.attached(9, True)
    client.ask(wire.PrepareModel(10, V1_3, model_to_wire(doubling(1), lambda _: pytest.fail("a memory"))))
    wire.decode_callback(callbacks.receive(int(LIMIT * SECONDS))[0])
    given, taken = wire.WireArgument(0, 0, 4, (1,)), wire.WireArgument(0, 4, 4, (1,))
    with contextlib.ExitStack() as stack:
        memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        stack.callback(os.close, memory)
        os.ftruncate(memory, 8)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        pool = wire.MemoryPool(wire.Pool("ashmem", 8, 0, False))
        client.ask(wire.Bind(11, 10, wire.WireRequest((given,), (taken,), (pool,))), (memory,))
    device.run = run
    replies: list[Any] = []
    call = threading.Thread(target=lambda: replies.append(client.ask(wire.ExecuteSynchronously(V1_3, 11), lane=lane)))
    call.start()
    assert begun.wait(LIMIT)
    client.lane.send(wire.encode(wire.Cancel((4,))))
    assert client.ask(wire.GetVersionString(), lane=other) == wire.TextReply("1") and not replies
    client.lane.send(wire.encode(wire.Cancel((3,))))
    call.join(LIMIT)
    assert replies[0].kind == "Cancelled"


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_message_that_is_refused_is_answered_and_the_lane_is_sound(client: Client) -> None:
    for data, says in ((b"\xc0", "message: "), (wire.encode(HELLO), "was greeted before, must be once")):
        reply = wire.decode_reply(client.lane.call(data, (), int(LIMIT * SECONDS))[0])
        assert isinstance(reply, wire.Failed) and says in reply.message
        assert client.ask(wire.GetVersionString()) == wire.TextReply("1")


@pytest.mark.parametrize(("level", "taken"), [(V1_0, False), (FL8, True)])
def test_methods_of_later_levels_are_refused_by_the_devices_level(level: Level, taken: bool) -> None:
    client = Client(Odd(level))
    client.ask(HELLO)
    reply = client.ask(wire.GetType())
    assert isinstance(reply, wire.TextReply) == taken
    assert taken or "getType requires HAL version 1.2, the service has 1.0" in reply.message
    client.close()


def test_a_long_message_counts_while_it_is_at_hand_and_is_refused_where_there_is_no_room(client: Client) -> None:
    held = client.used()["memory"]
    objects = tuple(range(1000, 1000 + (1 << 15)))
    message = wire.encode(wire.Cancel(objects))
    assert len(message) > wire.INLINE
    seen: list[int] = []
    cancel = client.connection.wanted.cancel

    def look(number: int) -> None:
        if number == objects[-1]:
            seen.append(client.used()["memory"] - held)
        cancel(number)

    client.connection.wanted.cancel = look  # type: ignore[method-assign]
    for _ in range(2):
        assert wire.decode_reply(client.lane.call(message, (), int(LIMIT * SECONDS))[0]) == wire.DONE
    assert seen == [40 * len(message)] * 2
    wait_until(lambda: client.used()["memory"] == held, "the message is let go")
    rows = client.share.quotas.table.rows
    others = client.share.take(memory=rows["memory"].most - client.used()["memory"] - 40 * len(message) + 1)
    reply = wire.decode_reply(client.lane.call(message, (), int(LIMIT * SECONDS))[0])
    assert isinstance(reply, wire.Failed) and reply.kind == "ResourceExhausted" and "memory: " in reply.message
    others.give()
    assert wire.decode_reply(client.lane.call(message, (), int(LIMIT * SECONDS))[0]) == wire.DONE


def test_descriptors_that_nobody_asked_for_are_closed(client: Client) -> None:
    opened = Opened()
    for _ in range(3):
        assert client.ask(wire.GetVersionString(), (0, 1, 2)) == wire.TextReply("1")
        opened.closed()


def test_an_answer_that_cannot_travel_is_an_error_that_says_so() -> None:
    surrogate = "\ud800"
    failed = wire.decode_reply(subject._encoded(wire.TextReply(surrogate)))
    assert isinstance(failed, wire.Failed) and "driver: its answer cannot be sent: " in failed.message
    for kind in (wire.NotifyPrepared, wire.NotifyExecuted):
        notice = wire.decode_callback(subject._encoded(kind(7, wire.Failed(1, surrogate, ""))))
        assert type(notice) is kind and notice.object == 7
        assert isinstance(notice.result, wire.Failed) and "cannot be sent" in notice.result.message
    assert subject._encoded(wire.TextReply("good")) == wire.encode(wire.TextReply("good"))


def test_a_release_that_is_to_be_answered_is_when_what_was_released_has_ended(client: Client) -> None:
    settled: list[int] = []
    client.connection._calls.settle = lambda: settled.append(1)  # type: ignore[method-assign]
    client.lane.send(wire.encode(wire.Release((5,))))  # wants no answer, and is not waited for
    assert client.ask(wire.GetVersionString()) == wire.TextReply("1") and settled == []
    assert client.ask(wire.Release((5,))) == wire.DONE and settled == [1]


def test_outputs_that_travel_in_a_memory_leave_no_descriptor_here() -> None:
    with served_here(Reference()) as device:
        prepared = checked_prepared(device, doubling(0), Hints())
        opened = Opened()
        for n in range(3):
            done = requests.run(prepared, [numbers(100_000, n)])
            assert np.array_equal(done.results[0], 2 * numbers(100_000, n))
            del done
            opened.closed(but=2)  # the memory of the input, in the client's frame and in the service


def test_each_call_is_traced_by_its_name_where_that_is_wanted(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "nnhal.driver")
    client.ask(wire.GetVersionString())
    assert not caplog.messages
    caplog.set_level("DEBUG", "nnhal.driver")
    client.ask(wire.GetCapabilities(V1_3))
    assert "getCapabilities_1_3" in caplog.messages


# ----------------------------------------------------------------------------------------------------------- callbacks


def test_what_notifies_needs_a_lane_for_it_and_counts_until_it_has(client: Client) -> None:
    held = client.used()
    with pytest.raises(InvalidArgument, match="has no callback channel, must attach one before calls that notify"):
        client.connection.in_background(lambda: pytest.fail("is not done"))
    assert client.used() == held
    callbacks, go = client.attached(3, True), threading.Event()
    read, write = os.pipe()

    def work() -> tuple[wire.ServiceCall, Sequence[int]]:
        assert go.wait(LIMIT)
        return wire.NotifyExecuted(8, wire.ExecutedReply()), (write,)

    client.connection.in_background(work)
    waiting = client.used()
    assert waiting["background"] == 1 and waiting["threads"] == held["threads"] + 1
    go.set()
    data, fds = callbacks.receive(int(LIMIT * SECONDS))
    assert wire.decode_callback(data) == wire.NotifyExecuted(8, wire.ExecutedReply()) and len(fds) == 1
    fds.close()
    assert os.read(read, 1) == b""  # no end to write to is left here
    os.close(read)
    wait_until(lambda: client.used()["background"] == 0, "it is given back")


def test_a_client_that_cannot_be_notified_is_hung_up_on(client: Client) -> None:
    callbacks = client.attached(3, True)
    callbacks.close()
    client.connection.in_background(lambda: (wire.NotifyExecuted(8, wire.ExecutedReply()), ()))
    client.ended()
    with pytest.raises(DeadObject):
        client.lane.receive(int(LIMIT * SECONDS))


# ----------------------------------------------------------------------------------------------------------------- end


def test_when_the_client_is_gone_its_lanes_end_and_nothing_is_left_open(caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened()
    client = Client()
    client.ask(HELLO)
    lanes = [client.attached(3), client.attached(4), client.attached(5, True)]
    wanted = client.connection.wanted.begin(9)
    ended: list[str] = []
    client.connection._calls._exports.add(20, None, lambda: ended.append("object"))
    client.lane.socket.shutdown(socket.SHUT_RDWR)
    client.ended()
    for lane in lanes:
        with pytest.raises(DeadObject):
            lane.receive(int(LIMIT * SECONDS))
        lane.close()
    client.lane.close()
    assert not any("does not wait for it" in text for text in caplog.messages)
    assert wanted.is_set() and client.connection.wanted.gone.is_set() and ended == ["object"]
    opened.closed()
    wait_until(lambda: client.used() == client.first, "all is given back")
    with pytest.raises(DeadObject, match="connection: is ending"):
        client.connection._call_back(wire.NotifyExecuted(8, wire.ExecutedReply()))
    late, theirs = pair()
    with late, pytest.raises(DeadObject, match="connection: is ending"):
        client.connection._take_lane(Channel(theirs), wire.AttachLane(9, False))


def of_services() -> Counter[str]:
    """What there is in this process of what services are made of."""
    kinds = Counter(map(type, gc.get_objects()))
    return Counter({k.__qualname__: n for k, n in kinds.items() if k.__module__.startswith("nnhal.ipc.service")})


def all_kinds_of_calls(device: RemoteDevice) -> None:
    """What a client may ask for, some of it refused; it lets go of a part of it, and has the rest to the end."""
    claims = consider_support(device, doubling(), Hints())
    prepared, other = (checked_prepared(device, doubling(), hints).inner for hints in (claims.hints(Hints()), Hints()))
    assert run(prepared, numbers()).tolist() == [0, 2, 4, 6]
    kept, given_up = prepared.burst(), other.burst()
    for of, burst in ((prepared, kept), (other, given_up)):
        burst.run(request_for(of, numbers()), UNLIMITED)
    notified = threading.Event()
    prepared.execute(request_for(prepared, numbers()), UNLIMITED, lambda *_: notified.set())
    assert notified.wait(LIMIT)
    fenced = fenced_by(prepared, "test", request_for(prepared, numbers()), UNLIMITED, [], None)
    assert fenced.fence is not None
    fenced.fence.wait(LIMIT)
    buffer = device.allocate(BufferDesc(()), [BufferRole(prepared, 0, False, 1.0)])
    buffer.copy_from(Memory.from_array(numbers()), ())
    with pytest.raises(InvalidArgument):
        device.session.call(wire.GetMemoryUse(77), wire.WireMemoryUse, UNLIMITED)
    other.close()


def test_what_a_connection_was_made_of_is_let_go_of_with_it_and_waits_for_no_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs, quotas = [pair() for _ in range(4)], Quotas(a_table(shared=True))
    monkeypatch.setattr(subject, "Quotas", lambda _: quotas)
    gc.collect()
    before = of_services()
    gc.disable()
    try:
        listener: Any = Listener(*(theirs for _, theirs in pairs))
        assert serve_clients(Reference(), listener, {}, quotas.table) == 0
        for ours, _ in pairs[1:]:
            device = RemoteDevice(Session(ours, "here"))
            all_kinds_of_calls(device)
            device.close()
        pairs[0][0].close()  # before it has greeted
        here = "nnhal-client", "nnhal-lane", "nnhal-burst", "nnhal-background", "nnhal-ends"
        wait_until(lambda: not any(t.name.startswith(here) for t in threading.enumerate()), "they have ended")
        assert quotas.usage() == []
        assert of_services() - before == Counter()
    finally:
        gc.enable()


def test_an_object_whose_end_takes_too_long_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "END_SECONDS", 0.01)
    gate, client = threading.Event(), Client()
    client.ask(HELLO)
    client.connection.ends(lambda: gate.wait(LIMIT))
    client.close()
    assert any("does not wait for it" in text for text in caplog.messages)
    assert client.used() != client.first  # it counts as long as it hangs
    gate.set()
    wait_until(lambda: client.used() == client.first, "all is given back")


# ------------------------------------------------------------------------------------------------------------- clients


def test_a_client_that_is_refused_is_told_why_as_the_answer_to_its_greeting() -> None:
    ours, theirs = pair()
    thread = threading.Thread(target=refuse, args=(theirs, ResourceExhausted("too many")))
    thread.start()
    lane = Channel(ours)
    reply = wire.decode_reply(lane.call(wire.encode(HELLO), (), int(LIMIT * SECONDS))[0])
    assert isinstance(reply, wire.Failed) and (reply.kind, reply.message) == ("ResourceExhausted", "too many")
    with pytest.raises(DeadObject):
        lane.receive(int(LIMIT * SECONDS))
    thread.join(LIMIT)
    assert theirs.fileno() < 0
    lane.close()


class Listener:
    """Gives what it is told to, one after the other; then it is closed, or tells another error."""

    def __init__(self, *comes: socket.socket | OSError, end: int = errno.EBADF) -> None:
        self._comes, self._end = list(comes), end

    def accept(self) -> tuple[socket.socket, str]:
        if not self._comes:
            raise OSError(self._end, "closed")
        came = self._comes.pop(0)
        if isinstance(came, OSError):
            raise came
        return came, ""


def serve(*comes: socket.socket | OSError, end: int = errno.EBADF, **most: int) -> int:
    """Serve who comes, until the listener is closed."""
    return serve_clients(Odd(), Listener(*comes, end=end), {}, a_table(shared=True, **most))  # type: ignore[arg-type]


def greeted(lane: Channel) -> Any:
    return wire.decode_reply(lane.call(wire.encode(HELLO), (), int(LIMIT * SECONDS))[0])


@pytest.mark.parametrize("end", [errno.EBADF, errno.EINVAL, errno.ENOTSOCK])
def test_clients_are_served_until_the_listener_is_closed_whatever_fails_between(
    end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(subject.time, "sleep", pauses.append)
    pairs = [pair() for _ in range(2)]
    lack = OSError(errno.EMFILE, "too many"), OSError(errno.ECONNABORTED, "gone")
    assert serve(pairs[0][1], *lack, pairs[1][1], end=end) == 0
    assert len(pauses) == 2
    for ours, _ in pairs:
        lane = Channel(ours)
        welcome = greeted(lane)
        assert isinstance(welcome, wire.Welcome) and welcome.shared is True
        lane.close()


@pytest.mark.parametrize(("user", "served"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False), (77, False)])
def test_only_the_same_user_and_root_are_served(user: int, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "peer_of", lambda _: (os.getpid(), user))
    first, second = pair(), pair()
    assert serve(first[1], second[1]) == 0
    for ours, theirs in (first, second):
        lane = Channel(ours)
        if served:
            assert isinstance(greeted(lane), wire.Welcome)
        else:
            assert theirs.fileno() < 0
            with pytest.raises(DeadObject):
                greeted(lane)
        lane.close()


def test_one_client_too_many_is_told_so_and_of_many_no_more_than_eight_at_once() -> None:
    table = a_table(shared=True)
    table.clients = 2
    pairs = [pair() for _ in range(12)]
    pids = iter(range(100, 200))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subject, "peer_of", lambda _: (next(pids), os.getuid()))
        assert serve_clients(Odd(), Listener(*(theirs for _, theirs in pairs)), {}, table) == 0  # type: ignore[arg-type]
    lanes = [Channel(ours) for ours, _ in pairs]
    for lane in lanes[:2]:
        assert isinstance(greeted(lane), wire.Welcome)
    for lane in lanes[2:10]:
        assert "service: has 2 clients, must be at most 2" in greeted(lane).message
    for lane in lanes[10:]:
        with pytest.raises(DeadObject):
            greeted(lane)
    for lane in lanes:
        lane.close()


def test_the_place_of_a_client_that_is_gone_is_free() -> None:
    table = a_table(shared=True)
    table.clients = 1
    pairs = [pair() for _ in range(3)]

    class Follow(Listener):
        """The next one comes when the last one is gone."""

        def accept(self) -> tuple[socket.socket, str]:
            if len(self._comes) < len(pairs):
                lane = Channel(pairs[len(pairs) - len(self._comes) - 1][0])
                assert isinstance(greeted(lane), wire.Welcome)
                lane.close()
                wait_until(
                    lambda: not any(t.name.startswith("nnhal-client") for t in threading.enumerate()), "it is gone"
                )
            return super().accept()

    assert serve_clients(Odd(), Follow(*(theirs for _, theirs in pairs)), {}, table) == 0  # type: ignore[arg-type]


def test_the_client_of_a_process_of_its_own_shares_it_with_nobody() -> None:
    with served_here(Null()) as device:
        assert device.session.welcome.shared is False
        usage = device.session.call(wire.GetUsage(), wire.Usage, UNLIMITED)[0]
        assert [client.pid for client in usage.clients] == [os.getpid()]


def test_no_thread_of_a_service_or_a_session_keeps_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, bool] = {}
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started[thread.name] = thread.daemon
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    table = a_table(shared=True)
    table.clients = 1
    (ours, theirs), (more, refused) = pair(), pair()
    assert serve_clients(Odd(), Listener(theirs, refused), {}, table) == 0  # type: ignore[arg-type]
    Channel(more).close()
    device = RemoteDevice(Session(ours, "here"))
    prepared = checked_prepared(device, doubling(), Hints())
    with prepared.burst() as burst:
        assert burst is not None
    prepared.close()
    device.close()
    names = {"nnhal-refusal", "nnhal-session", "nnhal-lane", "nnhal-burst", "nnhal-background", "nnhal-ends"}
    wait_until(lambda: names <= set(started), "all kinds of threads")
    assert {f"nnhal-client-{os.getpid()}", *names} <= set(started) and all(
        daemon for name, daemon in started.items() if name.startswith("nnhal-")
    )


def test_who_is_turned_away_makes_room_for_another_who_is_told() -> None:
    table = a_table(shared=True)
    table.clients = 0
    refused: list[socket.socket] = []

    class Slow(Listener):
        """Gives the next one when the last one was answered."""

        def accept(self) -> tuple[socket.socket, str]:
            if refused:
                lane = Channel(refused.pop())
                assert "clients, must be at most 0" in greeted(lane).message
                lane.close()
                wait_until(lambda: "nnhal-refusal" not in {t.name for t in threading.enumerate()}, "the refusal")
            sock, where = super().accept()
            return sock, where

    pairs = [pair() for _ in range(12)]
    order = iter(pairs)

    class Paired(Slow):
        def accept(self) -> tuple[socket.socket, str]:
            found = super().accept()
            refused.append(next(order)[0])
            return found

    assert serve_clients(Odd(), Paired(*(theirs for _, theirs in pairs)), {}, table) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("without", ["nnhal-client", "nnhal-refusal"])
def test_a_client_without_a_thread_is_hung_up_on_and_its_place_is_free(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start
    lacks = True

    def start(thread: threading.Thread) -> None:
        if lacks and thread.name.startswith(without):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    table = a_table(shared=True)
    table.clients = 1 if without == "nnhal-client" else 0
    pairs = [pair() for _ in range(subject.TURNED_AWAY + 2)]

    class Then(Listener):
        """The last one comes when there are threads again."""

        def accept(self) -> tuple[socket.socket, str]:
            nonlocal lacks
            lacks = len(self._comes) > 1
            return super().accept()

    assert serve_clients(Odd(), Then(*(theirs for _, theirs in pairs)), {}, table) == 0  # type: ignore[arg-type]
    for ours, theirs in pairs[:-1]:
        assert theirs.fileno() < 0
        ours.close()
    lane = Channel(pairs[-1][0])
    answer = greeted(lane)
    assert isinstance(answer, wire.Welcome if without == "nnhal-client" else wire.Failed)
    lane.close()
