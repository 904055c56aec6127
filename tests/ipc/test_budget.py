"""The budget of an execution: each call that belongs to it ends by its deadline, and by a default where it has none."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import DeadObject, DeviceUnavailable, MissedDeadline, NnhalError, OperationFailed
from nnhal.base.memory import Memory
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Hints
from nnhal.hal.fence import fence_pair
from nnhal.hal.host import contents_of, contents_within, fill, fill_within
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Timing
from nnhal.ipc.client import burst as bursts
from nnhal.ipc.client import pending
from nnhal.ipc.client import prepared as executions
from nnhal.ipc.client import session as sessions
from nnhal.ipc.client.buffer import RemoteBuffer
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel
from tests.ipc.support import LIMIT, numbers, request_for, wait_until, wide
from tests.ipc.test_remote import Told
from tests.models import doubling

PASSED = Control(deadline=1)
X = numbers()


class Muted(Told):
    """Leaves calls of one kind unanswered once it is `mute`."""

    mute: type[wire.ClientCall] | None = None

    def _speak(self, lane: Channel, call: wire.ClientCall) -> None:
        if type(call) is self.mute:
            self.came.append(call)
        else:
            super()._speak(lane, call)

    def _notify(self, message: wire.ServiceCall) -> None:
        if not (self.mute is wire.NotifyExecuted and isinstance(message, wire.NotifyExecuted)):
            super()._notify(message)


class Client:
    """A device of such a service, a model of it, and a buffer that is the model's input and output."""

    def __init__(self, peer: Muted) -> None:
        self.peer, self.device = peer, RemoteDevice(peer.session)
        peer.says |= {
            wire.GetShape: wire.Shape((4,)),
            wire.CopyTo: wire.Shape((4,)),
            wire.GetExecutionInfo: wire.ExecutionInfoReply(wire.WireTiming(), wire.WireTiming()),
        }
        self.prepared = self.model(doubling())
        roles = [BufferRole(self.prepared, 0), BufferRole(self.prepared, 0, True)]
        self.buffer = self.device.allocate(BufferDesc((4,)), roles)

    def model(self, model: Any) -> RemotePrepared:
        prepared = self.device.prepare(model, Hints())
        assert isinstance(prepared, RemotePrepared)
        return prepared

    def run(self, control: Control) -> Any:
        return self.prepared.run(request_for(self.prepared, X), control)

    def into_buffer(self, control: Control) -> Any:
        return self.prepared.run(self.prepared.request([X], None, output_buffers={0: self.buffer}), control)

    def many_pools(self, control: Control) -> Any:
        inputs = [Memory.allocate(4).view(0, 4, np.float32, (1,)) for _ in range(61)]
        model = self.model(wide(61))
        return model.run(model.request(inputs, None), control)

    def fenced(self, control: Control) -> Any:
        ready, signal = fence_pair()
        signal.set()
        return self.prepared.execute_fenced(request_for(self.prepared, X), control, [ready])

    def info(self, control: Control) -> Any:
        return self.fenced(UNLIMITED).info_until(control.deadline)

    def own_info(self, control: Control) -> Any:
        execution = self.fenced(UNLIMITED)
        execution._control = control  # by now
        return execution.get_execution_info()

    def callback(self, control: Control) -> Any:
        ended: SimpleQueue[NnhalError | None] = SimpleQueue()
        self.prepared.execute(request_for(self.prepared, X), control, lambda error, _: ended.put(error))
        error = ended.get(timeout=LIMIT)
        if error is not None:
            raise error

    def outcome(self, control: Control) -> Any:
        session = self.peer.session
        return session.outcome(session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED), control)

    def burst(self, control: Control) -> Any:
        return self.prepared.open_burst(control)

    def reopened_burst(self, control: Control) -> Any:
        """As after a death: the burst in a living process has ended, and the next execution opens it again."""
        self.resilient = ReconnectingDevice("peer", lambda: self.peer.session)
        burst: Any = self.resilient.prepare(doubling(), Hints()).burst()
        burst._inner.session_died()
        self.mute(self.muted)
        return burst.run(request_for(self.prepared, X), control)

    def contents(self, control: Control) -> Any:
        return contents_within(control, self.buffer)

    def copy(self, control: Control) -> Any:
        return self.buffer.within(control).copy_to(Memory.allocate(16))

    def fill(self, control: Control) -> Any:
        return fill_within(control, self.buffer, X)

    def mute(self, kind: type[Any] | None) -> None:
        """From now on calls of a kind are not answered."""
        self.peer.came.clear()
        self.peer.mute = kind

    muted: type[Any] | None = None

    def act(self, mute: type[Any], act: "Callable[[Client, Control], Any]", control: Control) -> Any:
        """What an act gives or raises where calls of a kind are not answered, once what it binds is bound."""
        self.muted = mute
        if mute not in (wire.Bind, wire.Hold) and act is not Client.reopened_burst:
            done = act(self, UNLIMITED)
            if isinstance(done, FencedExecution):  # it has the frame until it is asked
                done.get_execution_info()
        if act is not Client.reopened_burst:
            self.mute(mute)
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(act, self, control).result(LIMIT)  # TimeoutError where it hangs
        finally:
            pool.shutdown(wait=False)
            if mute is not wire.NotifyExecuted:
                wait_until(lambda: any(type(call) is mute for call in list(self.peer.came)), "the call")


@pytest.fixture
def client() -> Iterator[Client]:
    peer = Muted()
    with peer:
        yield Client(peer)


INNER = [
    (wire.Hold, Client.many_pools),
    (wire.Bind, Client.run),
    (wire.ExecuteSynchronously, Client.run),
    (wire.Execute, Client.callback),
    (wire.NotifyExecuted, Client.outcome),
    (wire.Bind, Client.fenced),
    (wire.ExecuteFenced, Client.fenced),
    (wire.GetExecutionInfo, Client.info),
    (wire.GetExecutionInfo, Client.own_info),
    (wire.ConfigureExecutionBurst, Client.burst),
    (wire.ConfigureExecutionBurst, Client.reopened_burst),
    (wire.GetShape, Client.contents),
    (wire.CopyTo, Client.copy),
    (wire.CopyFrom, Client.fill),
]
DRIVER_AT_WORK = wire.ExecuteSynchronously, wire.NotifyExecuted, wire.ExecuteFenced
each_inner_call = pytest.mark.parametrize(
    ("mute", "act"), INNER, ids=[f"{kind.__name__} of {act.__name__}" for kind, act in INNER]
)


@each_inner_call
def test_each_call_of_an_execution_ends_by_its_deadline(
    client: Client, mute: type[Any], act: Callable[[Client, Control], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "TELL_NS", 0)
    with pytest.raises(MissedDeadline):
        client.act(mute, act, PASSED)
    assert client.peer.session.peer.dead is None


def limit_calls(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of this kind have 20 ms; the others, which are answered, keep their limits: the machine may be busy."""
    limit = "WORK_NS" if kind in DRIVER_AT_WORK else "QUERY_NS"
    if kind is wire.NotifyExecuted:
        monkeypatch.setattr(pending, limit, 20_000_000)
        return
    answer_to, called = sessions.Session.answer_to, kind.method or kind.__name__

    def limited(session: Any, name: str, *given: Any, **named: Any) -> Any:
        with monkeypatch.context() as short:
            if name.partition("_1_")[0] == called:
                short.setattr(sessions, limit, 20_000_000)
            return answer_to(session, name, *given, **named)

    monkeypatch.setattr(sessions.Session, "answer_to", limited)


@each_inner_call
def test_a_call_without_a_deadline_to_a_process_that_is_silent_ends_by_default_and_drops_it(
    client: Client, mute: type[Any], act: Callable[[Client, Control], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 30 s, or after 10 minutes where the driver may be at work."""
    assert (sessions.QUERY_NS, sessions.WORK_NS) == (30_000_000_000, 600_000_000_000)
    limit_calls(mute, monkeypatch)
    with pytest.raises(DeviceUnavailable, match=r"device peer: did not answer .+ within 0 s; it is dropped"):
        client.act(mute, act, UNLIMITED)
    with pytest.raises(DeadObject, match="it is dropped"):
        client.run(UNLIMITED)


def test_an_execution_in_a_burst_ends_by_default_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "WORK_NS", 1_000_000)
    burst = client.prepared.burst()
    with pytest.raises(DeviceUnavailable, match="did not answer an execution in a burst within 0 s; it is dropped"):
        burst.run(request_for(client.prepared, X), UNLIMITED)
    assert client.peer.session.peer.dead is not None


def test_a_process_has_a_second_at_least_to_tell_what_an_execution_that_has_ended_came_to(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it is asked: an execution that met its deadline has results."""
    assert executions.TELL_NS == 1_000_000_000
    monkeypatch.setattr(executions, "TELL_NS", int(LIMIT * 1e9))
    execution = client.fenced(Control(deadline=2**62))
    assert execution.info_until(1) == (Timing(), Timing())


@pytest.mark.parametrize("mute", [wire.Bind, wire.ExecuteSynchronously, wire.CopyFrom])
def test_a_buffer_whose_writer_was_given_up_has_no_contents_whatever_the_service_says(
    client: Client, mute: type[Any]
) -> None:
    buffer = client.buffer
    assert isinstance(buffer, RemoteBuffer)
    fill(buffer, X)
    assert buffer.shape == (4,)
    with pytest.raises(MissedDeadline):
        client.act(mute, Client.fill if mute is wire.CopyFrom else Client.into_buffer, PASSED)
    client.mute(None)
    assert buffer.shape is None
    for use in (
        lambda: contents_of(buffer),
        lambda: client.prepared.run(client.prepared.request([None], None, input_buffers={0: buffer}), UNLIMITED),
    ):
        with pytest.raises(OperationFailed, match="has no contents, must be written or copied to first"):
            use()
    client.into_buffer(UNLIMITED)
    assert buffer.shape == (4,)


def test_who_gives_up_a_writer_of_a_buffer_does_not_wait_for_its_end(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service sees to it that a late writer changes nothing; nobody is late for its sake."""
    settled: list[Any] = []
    monkeypatch.setattr(client.peer.session, "_settle", settled.append)
    with pytest.raises(MissedDeadline):
        client.act(wire.ExecuteSynchronously, Client.into_buffer, PASSED)
    assert not settled
