"""A client's session against services of the tests' own making: greetings, lanes, what is given up, and deaths."""

import gc
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from nnhal.base import trace
from nnhal.base.errors import (
    Cancelled,
    Closed,
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
)
from nnhal.base.levels import FL8, V1_0, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client import endings, peer
from nnhal.ipc.client import session as subject
from nnhal.ipc.client.pending import Pending
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel
from tests.ipc.support import LIMIT, Peer, wait_until
from tests.waiting import Opened

PATIENCE = int(LIMIT * 1e9)
WELCOME = wire.Welcome(wire.VERSION, int(V1_3), "peer", os.getpid(), 0b101, True, {})
ASK = wire.GetVersionString()
ONE = wire.TextReply("1")


def soon() -> int:
    """A deadline that passes in a moment."""
    return time.monotonic_ns() + 1_000_000


# ------------------------------------------------------------------------------------------------------------ greeting


def greeted(answer: bytes | None, **named: Any) -> Session:
    """A session with who answers the greeting like that, and hangs up; None: at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve() -> None:
        lane = Channel(theirs)
        if answer is not None:
            assert isinstance(wire.decode_call(lane.receive(PATIENCE)[0]), wire.Hello)
            lane.answer(answer)
        lane.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return Session(ours, "peer", **named)
    finally:
        thread.join(LIMIT)


def other(**fields: Any) -> bytes:
    """A welcome with other fields."""
    return wire.encode(
        wire.Welcome(**{name: getattr(WELCOME, name) for name in wire.Welcome.__struct_fields__} | fields)
    )


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (wire.ENCODED_DONE, DeviceUnavailable, "peer: answered the greeting with Acknowledged, must be Welcome"),
        (other(version=wire.VERSION + 1), DeviceUnavailable, "answered the greeting with Welcome"),
        (other(level=0), DeviceUnavailable, f"peer: has HAL version 0, must be 1 to {max(Level):d}"),
        (other(level=99), DeviceUnavailable, f"peer: has HAL version 99, must be 1 to {max(Level):d}"),
        (b"\xc0", DeviceUnavailable, "peer: is not a driver service: "),
        (None, DeviceUnavailable, "peer: the driver process did not start: "),
        (
            wire.encode(wire.Failed(4, "InvalidArgument", "no", stack="in x")),
            DeviceUnavailable,
            "peer: the driver process refused the connection: no",
        ),
        (wire.encode(wire.Failed(7, "ResourceExhausted", "full", stack="in x")), ResourceExhausted, "peer: full"),
    ],
    ids=["done", "version", "level 0", "level 99", "garbage", "hang-up", "refused", "full"],
)
def test_a_greeting_that_is_not_answered_as_it_must_be_says_so_and_leaves_nothing(
    answer: bytes | None, kind: type[NnhalError], says: str
) -> None:
    gc.collect()
    opened = Opened()
    with pytest.raises(kind) as refused:
        greeted(answer)
    assert says in str(refused.value) and type(refused.value) is kind
    assert ("in x" in refused.value.stack) == (answer is not None and b"in x" in answer)
    opened.closed()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each call on a lane, how many descriptors go with it, and how long it may take."""
    seen: list[tuple[int, int]] = []
    call = Channel.call

    def watch(channel: Channel, data: bytes, fds: Sequence[int] = (), timeout_ns: int = -1) -> Any:
        seen.append((len(fds), timeout_ns))
        return call(channel, data, fds, timeout_ns)

    monkeypatch.setattr(Channel, "call", watch)
    return seen


def test_a_greeting_may_take_30_s_unless_another_time_is_given(watched: list[tuple[int, int]]) -> None:
    """A driver may import a large engine first."""
    for named in ({}, {"greeting": 7}):
        with pytest.raises(DeviceUnavailable):
            greeted(None, **named)
    assert [timeout for _, timeout in watched] == [30_000_000_000, 7]


@pytest.mark.parametrize(("level", "methods"), [(V1_0, V1_0), (V1_3, V1_3), (FL8, V1_3)])
def test_a_session_knows_the_level_and_what_it_calls_by(level: Level, methods: Level) -> None:
    with Peer(lambda lane, _: lane.answer(wire.encode(ONE)), int(level)) as session:
        assert (session.level, session.methods) == (level, methods)
        assert session.where == "peer" and session.peer.dead is None and session.peer.process is None
        assert session.peer.watch >= 0 and session._first.channel.lane.watch == session.peer.watch
        memory = Memory.wrap(np.zeros(4, np.uint8))
        assert session.pools._shared is True and session.pools.shareable(memory) is not memory
        numbers = [session.number() for _ in range(3)]
        assert len(set(numbers)) == 3 and min(numbers) > 0


# --------------------------------------------------------------------------------------------------------------- lanes


class Service(Peer):
    """Answers with a word. came: the calls, but for the greeting. gate: what answers of calls that `waits` says wait for."""

    def __init__(self, **named: Any) -> None:
        self.came: list[wire.ClientCall] = []
        self.gate = threading.Event()
        self.waits: Callable[[wire.ClientCall], bool] = lambda _: False
        self.says: wire.Reply = ONE
        super().__init__(self._take, **named)

    def _take(self, lane: Channel, call: wire.ClientCall) -> None:
        self.came.append(call)
        if self.waits(call):
            assert self.gate.wait(LIMIT)
        if lane.lane.asked:
            making = isinstance(call, wire.MakingCall | wire.Release)
            lane.answer(wire.encode(wire.DONE if making else self.says))

    def _serve(self, channel: Channel) -> None:
        super()._serve(channel)
        channel.close()

    def all(self, kind: type[wire.ClientCall]) -> list[Any]:
        """What came of a kind."""
        return [call for call in list(self.came) if type(call) is kind]

    def __exit__(self, *of: object) -> None:
        self.gate.set()
        os.eventfd_write(self.session.endings.wake, 1)  # as the end of a process of the client's own does
        super().__exit__(*of)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    with service:
        yield service


def test_calls_one_after_the_other_take_one_lane(service: Service) -> None:
    for _ in range(5):
        assert asked(service.session) == ONE
    assert len(service.session.channels.opened) == 1  # of calls
    assert len(service._lanes) == 3  # the first, of callbacks, of calls
    assert service.session.calls == {"getVersionString": 5}


def asked(session: Session, control: Control = UNLIMITED) -> wire.Reply:
    return session.call(ASK, wire.TextReply, control)[0]


@contextmanager
def every_lane_taken(service: Service) -> Iterator[tuple[ThreadPoolExecutor, list[Future[wire.Reply]]]]:
    """32 calls that have no answer before the gate opens, and a thread for one more."""
    service.waits = lambda call: call == ASK
    with ThreadPoolExecutor(33) as pool:
        calls = [pool.submit(asked, service.session) for _ in range(32)]
        wait_until(lambda: len(service.came) == 32, "32 calls at once")
        yield pool, calls


def test_of_more_calls_than_32_at_once_the_others_wait_for_a_lane_and_past_their_deadline_miss_it(
    service: Service,
) -> None:
    session = service.session
    with every_lane_taken(service) as (pool, calls):
        with pytest.raises(MissedDeadline, match="peer: no channel was free by the deadline"):
            asked(session, Control(soon()))
        calls.append(pool.submit(asked, session))
        assert len(session.channels.opened) == 32 and len(service.came) == 32
        service.gate.set()
        assert [call.result(LIMIT) for call in calls] == [ONE] * 33
    assert len(session.channels.opened) == 32 and session.peer.dead is None


def test_who_is_cancelled_while_he_waits_for_a_lane_leaves_at_once(service: Service) -> None:
    session, cancelled = service.session, threading.Event()
    with every_lane_taken(service) as (pool, calls):
        waits = pool.submit(asked, session, Control(cancelled=cancelled))
        wait_until(lambda: bool(session.channels._in_want), "one that waits")
        cancelled.set()
        try:
            assert isinstance(waits.exception(LIMIT / 4), Cancelled)
        finally:
            service.gate.set()
        assert [call.result(LIMIT) for call in calls] == [ONE] * 32


def test_who_waits_for_a_lane_hears_of_a_death(service: Service) -> None:
    session = service.session
    with every_lane_taken(service) as (pool, calls):
        calls.append(pool.submit(asked, session))
        session.peer.give_up("the test ends it")
        for call in calls:
            with pytest.raises(DeadObject, match="the test ends it"):
                call.result(LIMIT)


def abandon_32(service: Service) -> None:
    """Give up as many calls as may be without an end."""
    service.waits = lambda call: call == ASK
    for _ in range(32):
        service.session.call(wire.GetType(), wire.TextReply, UNLIMITED)  # leaves a lane free
        with pytest.raises(MissedDeadline, match="peer: the deadline has passed without an answer"):
            asked(service.session, Control(soon()))


def test_after_32_calls_that_were_given_up_no_more_are_made_until_one_has_ended(service: Service) -> None:
    session = service.session
    abandon_32(service)
    assert len(session.channels.abandoned) == 32 and not session.channels.opened and session.peer.dead is None
    with pytest.raises(ResourceExhausted, match="peer: 32 abandoned calls have not ended, must be fewer"):
        session.call(wire.GetType(), wire.TextReply, UNLIMITED)
    assert session.peer.dead is None
    service.gate.set()
    wait_until(lambda: not session.channels.abandoned, "the ends of the calls")
    assert session.call(wire.GetType(), wire.TextReply, UNLIMITED)[0] == ONE


def test_an_own_process_in_which_32_calls_do_not_end_is_replaced(service: Service) -> None:
    session, process = service.session, Process(service.session)
    session.peer.process = process  # type: ignore[assignment]
    abandon_32(service)
    with pytest.raises(DeadObject, match="peer: 32 abandoned calls do not end; it is replaced"):
        session.call(wire.GetType(), wire.TextReply, UNLIMITED)
    assert "kill" in process.done


def test_a_call_that_was_given_up_is_told_and_what_it_made_is_given_back(service: Service) -> None:
    session = service.session
    service.waits = lambda call: isinstance(call, wire.Bind)
    number = session.number()
    session.call(wire.GetType(), wire.TextReply, UNLIMITED)  # leaves a lane free
    with pytest.raises(MissedDeadline):
        session.call(wire.Bind(number, 1, wire.WireRequest((), (), ())), wire.Acknowledged, Control(soon()))
    wait_until(lambda: bool(service.all(wire.Cancel)), "the service is told")
    (told,) = service.all(wire.Cancel)
    assert len(told.objects) == 1 and told.objects[0] != number  # the lane's
    assert not service.all(wire.Release)
    service.gate.set()
    wait_until(lambda: bool(service.all(wire.Release)), "what it made is given back")
    assert [call.objects for call in service.all(wire.Release)] == [(number,)]
    wait_until(lambda: number in {n for call in service.all(wire.Cancel) for n in call.objects}, "it is cancelled")


def test_a_cancelled_call_ends_and_others_go_on(service: Service) -> None:
    session, cancelled = service.session, threading.Event()
    service.waits = lambda call: call == ASK
    threading.Timer(0.01, cancelled.set).start()
    with pytest.raises(Cancelled, match="execution: cancelled by its owner"):
        asked(session, Control(cancelled=cancelled))
    assert session.call(wire.GetType(), wire.TextReply, Control(cancelled=threading.Event()))[0] == ONE
    assert session.call(wire.GetType(), wire.TextReply, Control(time.monotonic_ns() + PATIENCE))[0] == ONE


class Process:
    """Stands for a process of the client's own, whose end the session sees."""

    def __init__(self, session: Session) -> None:
        self.done: list[str] = []
        self.exit_by_itself = ""
        self._session = session

    def exit_description(self) -> str:
        return ""

    def poll(self) -> int | None:
        return 0 if "kill" in self.done else None

    def kill(self) -> None:
        self.done.append("kill")
        os.eventfd_write(self._session.endings.wake, 1)  # as its end does

    def wait(self, seconds: float | None = None) -> int:
        self.done.append("wait")
        return 0


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_an_own_process_that_does_not_end_a_call_past_its_deadline_hangs_and_is_killed(
    service: Service, monkeypatch: pytest.MonkeyPatch, own: bool, how: str
) -> None:
    session, process = service.session, Process(service.session)
    if own:
        session.peer.process = process  # type: ignore[assignment]
    monkeypatch.setattr(peer, "HUNG_NS", 0)
    session.call(
        wire.GetType(), wire.TextReply, UNLIMITED
    )  # leaves a lane free: else the deadline may pass before the call
    service.waits = lambda call: call == ASK
    cancelled = threading.Event()
    cancelled.set()
    looked, look = threading.Event(), session.channels.look

    def look_late(now: int) -> None:
        late = session.channels.late  # before an abandoned call can end
        look(now)
        if late:
            looked.set()

    monkeypatch.setattr(session.channels, "look", look_late)
    with pytest.raises((MissedDeadline, Cancelled)):
        if how == "deadline":
            asked(session, Control(soon()))
        else:
            asked(session, Control(cancelled=cancelled))
    if own and how == "deadline":
        wait_until(lambda: session.peer.dead is not None, "the end")
        assert str(session.peer.dead) == "peer: the driver process hangs and was killed" and "kill" in process.done
        return
    session.endings.rouse()
    assert looked.wait(LIMIT)
    assert session.peer.dead is None and "kill" not in process.done
    assert session.call(wire.GetType(), wire.TextReply, UNLIMITED)[0] == ONE


@pytest.mark.parametrize("own", [True, False])
def test_a_notification_that_does_not_come_by_its_deadline_nor_later_is_that_of_a_process_that_hangs(
    service: Service, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    session, process = service.session, Process(service.session)
    if own:
        session.peer.process = process  # type: ignore[assignment]
    monkeypatch.setattr(peer, "HUNG_NS", 0)
    pending = session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
    with pytest.raises(MissedDeadline):
        session.outcome(pending, Control(soon()))
    wait_until(lambda: pending.number in {n for c in service.all(wire.Cancel) for n in c.objects}, "it is told")
    if own:
        wait_until(lambda: session.peer.dead is not None, "the end")
        assert "hangs and was killed" in str(session.peer.dead)
        return
    assert session.peer.dead is None and len(session.notifications.late) == 1
    assert service.callbacks is not None
    service.callbacks.send(wire.encode(wire.NotifyExecuted(pending.number, wire.ExecutedReply())))
    wait_until(lambda: not session.notifications.late, "it came after all")
    assert pending.came and session.peer.dead is None and not session.notifications.pending


@pytest.mark.parametrize("others", ["a call", "a notification", "a burst", "a buffer", "who gave up"])
def test_a_slow_process_that_has_something_of_others_is_ended_13_s_later(service: Service, others: str) -> None:
    session, process, burst = service.session, Process(service.session), Burst()
    session.peer.process = process  # type: ignore[assignment]
    limit = peer.HUNG_NS
    channel = session.channels.reserve(UNLIMITED, 32)  # of another thread
    if others == "a notification":
        session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
    elif others == "a burst":
        session.peer.add_recipient(burst)
        burst.busy = True
    elif others == "a buffer":
        session.peer.holders.add(burst)
    elif others == "who gave up":
        with pytest.raises(MissedDeadline):
            session.outcome(session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED), Control(soon()))
    if others != "a call":
        session.channels.give_back(channel)
    if others != "who gave up":
        session.peer.look_whether_hangs(limit + 1)
        limit = 15_000_000_000
    session.peer.look_whether_hangs(limit)
    assert session.peer.dead is None
    session.peer.look_whether_hangs(limit + 1)
    assert "hangs and was killed" in str(session.peer.dead)


# ------------------------------------------------------------------------------------------------------------- answers


def test_an_answer_of_another_kind_or_none_ends_the_session(service: Service) -> None:
    session = service.session
    service.says = wire.NamesReply(())
    with pytest.raises(DeadObject, match="peer: answered getVersionString with Names"):
        asked(session)
    assert session.peer.dead is not None
    with pytest.raises(DeadObject, match="answered getVersionString with Names"):
        session.call(wire.GetType(), wire.TextReply, UNLIMITED)
    peer = Peer(lambda lane, _: lane.answer(b"\xc0"))
    with peer as odd, pytest.raises(DeadObject, match="peer: answered getVersionString with an invalid message"):
        asked(odd)


@pytest.mark.parametrize("own", [True, False])
def test_an_own_process_that_asks_for_it_is_replaced(service: Service, own: bool) -> None:
    session, process = service.session, Process(service.session)
    if own:
        session.peer.process = process  # type: ignore[assignment]
    service.says = wire.Failed(7, "ResourceExhausted", "no memory", recycle=True)
    with pytest.raises(ResourceExhausted, match="no memory"):
        asked(session)
    assert (session.peer.dead is not None) == own == ("kill" in process.done)
    assert not own or "peer: the process is replaced: no memory" in str(session.peer.dead)
    service.says = wire.Failed(7, "ResourceExhausted", "no memory")
    if not own:
        with pytest.raises(ResourceExhausted):
            asked(session)
        assert session.peer.dead is None


def test_a_call_that_is_refused_is_notified_of_by_nobody(service: Service) -> None:
    session = service.session
    service._answer = lambda lane, _: lane.answer(wire.encode(wire.Failed(4, "InvalidArgument", "no")))
    with pytest.raises(InvalidArgument, match="no"):
        session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
    assert not session.notifications.pending and session.peer.dead is None


def test_a_query_has_30_s_and_who_does_not_answer_it_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert subject.QUERY_NS == 30_000_000_000
    session = service.session
    assert asked(session) == ONE
    service.says = wire.Failed(5, "MissedDeadline", "the driver says so")
    with pytest.raises(MissedDeadline, match="the driver says so"):
        asked(session)
    assert session.peer.dead is None
    monkeypatch.setattr(subject, "QUERY_NS", 2 * 10**9 // 1000)
    service.waits = lambda call: call == ASK
    with pytest.raises(
        DeviceUnavailable, match="device peer: did not answer getVersionString within 0 s; it is dropped"
    ):
        asked(session)
    assert session.peer.dead is not None and "it is dropped" in str(session.peer.dead)


# ------------------------------------------------------------------------------------------------------- house-keeping


def test_memories_travel_with_their_message_up_to_60_and_more_are_sent_ahead(service: Service) -> None:
    session = service.session
    memories = [Memory.allocate(8) for _ in range(121)]
    for count, holds in ((60, []), (61, [60, 1]), (121, [60, 60, 1])):
        service.came.clear()
        with session.carrying(memories[:count], UNLIMITED) as packing:
            sent = [packing.pool(memory) for memory in memories[:count]]
            assert [len(call.pools) for call in service.all(wire.Hold)] == holds
            numbers = [call.object for call in service.all(wire.Hold)]
            assert not service.all(wire.Release)
        assert len(packing.fds) == (0 if holds else count)
        placed = [(numbers[n // 60], n % 60) if holds else (0, 0) for n in range(count)]
        assert [(pool.held, pool.place) for pool in sent] == placed
        many = len(holds)
        wait_until(lambda many=many: len(released(service)) == many, "they are given back")  # type: ignore[misc]
        assert sorted(released(service)) == sorted(numbers)
    service.came.clear()
    with session.carrying([*memories[:30], *memories[:31]], UNLIMITED) as packing:  # 61, of which each travels once
        assert [len(call.pools) for call in service.all(wire.Hold)] == [31]


def released(service: Service) -> list[int]:
    return [number for call in service.all(wire.Release) for number in call.objects]


def test_what_is_let_go_of_is_told_in_messages_of_no_more_than_the_wire_takes(service: Service) -> None:
    session = service.session
    count = (1 << 15) + 5
    session.endings.released.extend(range(1, count))
    session.endings.release(count)
    wait_until(lambda: len(released(service)) == count, "all is told")
    assert sorted(released(service)) == list(range(1, count + 1))
    assert max(len(call.objects) for call in service.all(wire.Release)) <= 1 << 16
    assert endings._some(session.endings.released) == ()


def test_numbers_of_any_size_fit_a_message_that_needs_no_descriptor() -> None:
    """A client without a free descriptor could not send a longer one, and its session would end."""
    numbers = deque(range(1 << 62, (1 << 62) + (1 << 15)))
    for kind in (wire.Release, wire.Cancel):
        assert len(wire.encode(kind(endings._some(numbers)))) <= wire.INLINE


def test_a_wish_is_told_once_when_it_ends_unless_it_was_forgotten(service: Service) -> None:
    session = service.session
    events = {number: threading.Event() for number in (101, 102, 103)}
    for number, event in events.items():
        session.endings.watch_cancellation(number, event)
    session.endings.watch_cancellation(104, None)
    session.endings.unwatch_cancellation(102)
    session.endings.unwatch_cancellation(999)
    events[102].set()
    events[101].set()
    wait_until(lambda: bool(service.all(wire.Cancel)), "it is told")
    events[103].set()
    wait_until(lambda: len(service.all(wire.Cancel)) == 2, "the other is told")
    assert [call.objects for call in service.all(wire.Cancel)] == [(101,), (103,)] and not session.endings.wishes


def test_an_end_that_is_waited_for_is_answered(service: Service) -> None:
    service.waits = lambda call: isinstance(call, wire.Release)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (service.session.end_object(7), done.set()))
    thread.start()
    wait_until(lambda: released(service) == [7], "it is asked for")
    assert not done.is_set()
    service.gate.set()
    thread.join(LIMIT)
    assert done.is_set()


def test_a_trace_that_ends_while_a_session_takes_it_up_is_recorded_no_further(service: Service) -> None:
    session = service.session
    ended = trace.Recording(trace.Log(16), time.monotonic_ns())
    session._follower.follow(ended)
    wait_until(lambda: bool(service.all(wire.WriteTrace)), "the log")
    wait_until(lambda: released(service) == [service.all(wire.WriteTrace)[0].object], "it is given back")
    assert not ended.remotes
    session._follower.unfollow()
    asked(session)
    assert len(released(service)) == 1


# -------------------------------------------------------------------------------------------------------------- deaths


class Burst:
    def __init__(self) -> None:
        self.died, self.busy = 0, False

    def session_died(self) -> None:
        self.died += 1


def test_a_death_is_told_to_all_who_wait_and_to_all_who_come(service: Service) -> None:
    session, told, burst = service.session, list[str](), Burst()
    session.peer.on_death(lambda error: told.append(f"before: {error}"))
    session.peer.add_recipient(burst)
    pending = session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
    session.peer.give_up("peer: the end")
    session.peer.give_up("peer: another end")
    session.peer.on_death(lambda error: told.append(f"after: {error}"))
    assert told == ["before: peer: the end", "after: peer: the end"] and burst.died >= 1
    for act in (
        lambda: session.outcome(pending, UNLIMITED),
        lambda: asked(session),
        lambda: session._first.attach_callbacks(0),
    ):
        with pytest.raises(DeadObject, match="peer: the end"):
            act()
    session._thread.join(LIMIT)
    assert (
        not session.notifications.pending and not session.channels.free and session._first.channel.socket.fileno() < 0
    )
    assert session._callbacks.socket.fileno() < 0


def test_a_session_ends_all_its_channels_while_other_threads_abandon_some(service: Service) -> None:
    channels = service.session.channels
    service.waits = lambda call: call == ASK
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(service.session.call, ASK, wire.TextReply, UNLIMITED) for _ in range(3)]
        wait_until(lambda: len(service.all(type(ASK))) == 3, "three calls at once")
        service.gate.set()
        assert [call.result()[0] for call in calls] == [ONE] * 3
    resumed = 0

    def other_thread(frame: Any, event: str, _: Any) -> None:
        """Abandon a channel's call while this thread looks at the channels."""
        nonlocal resumed
        if event == "call" and frame.f_code is weakref.WeakSet.__iter__.__code__:
            resumed += 1
            if resumed == 2:
                channels.opened.discard(channels.free[0])

    opened = list(channels.free)
    sys.setprofile(other_thread)
    try:
        channels.end()
    finally:
        sys.setprofile(None)
    assert len(opened) == 3 and all(channel.socket.fileno() < 0 for channel in opened)


def test_two_threads_that_report_a_death_at_once_wake_each_waiter_and_raise_nothing(service: Service) -> None:
    session = service.session
    pending = session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
    expected, taken = session.notifications.pending, list[Pending]()

    def other_thread(_: Any, event: str, called: Any) -> None:
        """Take the last notification just before this thread would."""
        if event == "c_call" and getattr(called, "__self__", None) is expected and not taken:
            taken.extend(expected.values())
            expected.clear()

    sys.setprofile(other_thread)
    try:
        session.notifications.session_died()
    finally:
        sys.setprofile(None)
    assert taken == [pending] and not expected


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("another answer", "protocol"),
        ("no message", "protocol"),
        ("a notification of nothing", "protocol"),
        ("it ended itself: crash", "crash"),
        ("it ended itself: exit", "exit"),
        ("it was killed", ""),
        ("it hangs", ""),
        ("no answer to a query", ""),
        ("it asks to be replaced", ""),
    ],
)
def test_a_death_is_the_drivers_fault_where_there_is_evidence(
    service: Service, what: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/contributing/ipc.md has the table. A client that kills the process does not take that for its own end."""
    session, process = service.session, Process(service.session)
    session.peer.process = process  # type: ignore[assignment]
    if what == "another answer":
        service.says = wire.NamesReply(())
    elif what == "no message":
        service._answer = lambda lane, _: lane.answer(b"\xc0")
    elif what == "it asks to be replaced":
        service.says = wire.Failed(7, "ResourceExhausted", "no memory", recycle=True)
    if what == "a notification of nothing":
        wait_until(lambda: service.callbacks is not None, "the lane for notifications")
        assert service.callbacks is not None
        service.callbacks.send(wire.encode(wire.NotifyExecuted(99, wire.ExecutedReply())))
    elif what.startswith("it ended itself"):
        process.exit_by_itself = what.removeprefix("it ended itself: ")
        session.peer.died(DeadObject("gone"))
    elif what == "it was killed":
        session.peer.died(DeadObject("gone"))
    elif what == "it hangs":
        session.peer.look_whether_hangs(peer.HUNG_NS + 1)
    elif what == "no answer to a query":
        monkeypatch.setattr(subject, "QUERY_NS", 2_000_000)
        service.waits = lambda call: call == ASK
        with pytest.raises(DeviceUnavailable):
            asked(session)
    else:
        with pytest.raises(NnhalError):
            asked(session)
    wait_until(lambda: session.peer.dead is not None, "the end")
    assert session.peer.dead is not None and session.peer.dead.driver_fault == fault
    with pytest.raises(DeadObject) as raised:
        asked(session)
    assert raised.value.driver_fault == fault


def test_a_closed_session_is_closed_and_who_comes_is_told(service: Service) -> None:
    session = service.session
    asked(session)
    session.close()
    session.close()
    assert not session._thread.is_alive() and session._first.channel.socket.fileno() < 0
    with pytest.raises(Closed, match="peer: the connection was closed"):
        asked(session)
    session.peer.give_up("too late")
    assert isinstance(session.peer.dead, Closed)


def test_a_session_of_the_process_that_this_one_was_forked_from_is_closed_and_its_service_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "_sessions", weakref.WeakSet())  # those of other tests are not forked
    service = Service()
    service.waits = lambda call: isinstance(call, wire.GetStatus)
    with service as session:
        asked(session)
        with pytest.raises(MissedDeadline):
            session.call(wire.GetStatus(), wire.TextReply, Control(soon()))
        asked(session)
        lanes = [session._first.channel, session._callbacks, *session.channels.opened]
        lanes += [each.channel for each in session.channels.abandoned.values()]
        watch, wake, locks = (
            session.peer.watch,
            session.endings.wake,
            (session.peer._deciding, session._first.attaching),
        )
        kept = os.dup(wake)
        subject._after_fork()
        assert isinstance(session.peer.dead, Closed)
        assert "peer: belongs to the process that this one was forked from; compile again here" in str(
            session.peer.dead
        )
        assert all(lane.socket.fileno() < 0 for lane in lanes) and len(lanes) == 4
        assert session.peer.watch == -1 and watch >= 0 and not session.endings.own.fds
        assert session.peer._deciding is not locks[0] and session._first.attaching is not locks[1]
        with pytest.raises(Closed):
            asked(session)
        os.eventfd_write(kept, 1)  # the thread, which a child does not have, ends
        session._thread.join(LIMIT)
        session.endings.wake = kept
    os.close(kept)


def test_a_service_that_hangs_up_is_dead_for_who_calls_and_its_process_for_who_confirms(service: Service) -> None:
    session = service.session
    assert "lives" in str(session.peer.confirm_death("lives")) and session.peer.dead is None  # its process does
    watch, session.peer.watch = session.peer.watch, -1
    assert "gone" in str(session.peer.confirm_death("gone")) and session.peer.dead is not None
    session.peer.watch = watch
    assert "gone" in str(session.peer.confirm_death("another"))


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (wire.encode(wire.Failed(7, "ResourceExhausted", "lanes: no more")), ResourceExhausted, "lanes: no more"),
        (wire.encode(ONE), DeadObject, "peer: answered AttachLane with TextReply"),
        (b"\xc1", InvalidArgument, "long message"),
        (b"\xc0", DeadObject, "peer: answered AttachLane with an invalid message"),
        (wire.ENCODED_DONE, DeadObject, "sent no end of a channel, must be a SEQPACKET socket of the Unix family"),
    ],
    ids=["refused", "word", "long", "garbage", "nothing along"],
)
def test_a_lane_that_the_service_does_not_give_is_an_error_of_the_call(
    service: Service, answer: bytes, kind: type[NnhalError], says: str
) -> None:
    session, attach = service.session, service._attach
    service._attach = lambda channel, _: channel.answer(answer)  # type: ignore[method-assign]
    with pytest.raises(kind, match=says):
        asked(session)
    assert (
        not session.channels.opened
        and not session.channels.free
        and (session.peer.dead is None) == (kind is not DeadObject)
    )
    if session.peer.dead is None:
        service._attach = attach  # type: ignore[method-assign]
        assert asked(session) == ONE


@pytest.mark.parametrize(
    "make",
    [
        lambda: os.eventfd(0),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach(),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(),
    ],
    ids=["eventfd", "internet", "stream", "datagrams"],
)
def test_what_comes_in_the_place_of_a_lane_ends_the_session_and_is_closed(
    service: Service, make: Callable[[], int]
) -> None:
    read, write = os.pipe()
    fd = make()

    def attach(channel: Channel, _: wire.AttachLane) -> None:
        channel.answer(wire.ENCODED_DONE, (fd, write))
        os.close(write)

    service._attach = attach  # type: ignore[method-assign]
    with pytest.raises(DeadObject, match="sent no end of a channel"):
        asked(service.session)
    os.close(fd)
    assert os.read(read, 1) == b""  # nobody holds the other end any more
    os.close(read)


def test_a_lane_that_comes_after_the_deadline_of_who_asked_for_it_is_for_the_next_call(service: Service) -> None:
    session, attach, gate = service.session, service._attach, threading.Event()

    def late(channel: Channel, call: wire.AttachLane) -> None:
        assert gate.wait(LIMIT)
        attach(channel, call)

    service._attach = late  # type: ignore[method-assign]
    with pytest.raises(MissedDeadline, match="peer: the deadline has passed without an answer"):
        asked(session, Control(soon()))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        asked(session, Control(cancelled=cancelled))
    assert session._first.channel.in_doubt and not session.channels.opened and session.peer.dead is None
    gate.set()
    assert asked(session) == ONE
    assert (
        len(session.channels.opened) == 1
        and len(service.all(wire.GetVersionString)) == 1
        and not session._first.overdue
    )


def test_an_own_process_that_gives_no_lane_by_a_deadline_and_long_after_it_is_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, gate = service.session, threading.Event()
    monkeypatch.setattr(peer, "HUNG_NS", 1)
    process = session.peer.process = Process(session)  # type: ignore[assignment]
    service._attach = lambda *_: gate.wait(LIMIT)  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(MissedDeadline):
            asked(session, Control(soon()))
        wait_until(lambda: "kill" in process.done, "its end")  # type: ignore[union-attr]
    finally:
        gate.set()


def test_what_a_lane_brings_with_its_answer_is_for_who_called(service: Service) -> None:
    session = service.session
    read, write = os.pipe()
    service._answer = lambda lane, _: lane.answer(wire.encode(ONE), (write,))
    word, fds = session.call(ASK, wire.TextReply, UNLIMITED)
    assert word == ONE and len(fds) == 1
    os.close(write)
    fds.close()
    assert os.read(read, 1) == b""
    os.close(read)


def test_descriptors_and_memories_of_a_call_travel_with_it(service: Service, watched: list[tuple[int, int]]) -> None:
    session, packing = service.session, service.session.packing()
    packing.pool(Memory.allocate(8))
    asked(session)
    session.call(ASK, wire.TextReply, UNLIMITED, fds=(0, 1))
    session.call(ASK, wire.TextReply, UNLIMITED, packing)
    session.call(ASK, wire.TextReply, UNLIMITED, packing, fds=(0, 1))
    assert [count for count, _ in watched] == [0, 2, 1, 3]
