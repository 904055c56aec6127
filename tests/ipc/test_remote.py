"""What a client asks of a device and a prepared model in another process: by level, by hints, and what it believes."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import DeviceStatus, DeviceType, OperandType
from nnhal.base.errors import (
    Closed,
    ContractBroken,
    DeadObject,
    InvalidArgument,
    MissedDeadline,
    OperationFailed,
    UnsupportedModel,
)
from nnhal.base.levels import FL8, V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import UNLIMITED, Control, Timing
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel
from nnhal.model.graph import Model
from tests import requests
from tests.ipc.alone import Watched
from tests.ipc.support import LIMIT, Peer, numbers, over, request_for, run, served_here, wait_until
from tests.models import doubling, make_model

LATE = 2**62  # a deadline that does not pass
ONE = wire.WirePerformance(1.0, 1.0)
F32, Q8 = int(OperandType.TENSOR_FLOAT32), int(OperandType.TENSOR_QUANT8_ASYMM)


class Told(Peer):
    """Answers as a driver would, or as `says` has it. came: what it was called with."""

    def __init__(self, level: Level = V1_3) -> None:
        self.came: list[Any] = []
        self.says: dict[type[wire.ClientCall], wire.Reply] = {
            wire.GetVersionString: wire.TextReply("7"),
            wire.GetType: wire.TextReply(int(DeviceType.GPU)),
            wire.GetSupportedExtensions: wire.NamesReply(("com.example.mine",)),
            wire.GetRelaxations: wire.NamesReply(()),
            wire.GetCapabilities: wire.CapabilitiesReply({F32: ONE, Q8: ONE}, (ONE,) * (level > V1_0)),
            wire.GetStatus: wire.TextReply(int(DeviceStatus.BUSY)),
            wire.GetSupportedOperations: wire.Verdicts(((True, "yes"),)),
            wire.Consider: wire.SupportReply(((True, "yes"),), (), True),
            wire.GetMemoryUse: wire.WireMemoryUse(1, None, 3, 4),
            wire.ExecuteSynchronously: wire.DONE,
        }
        self.prepared: wire.Acknowledged | wire.PreparedTraits = wire.DONE
        self.executed: wire.ExecutedReply | wire.Failed = wire.ExecutedReply()
        super().__init__(self._speak, int(level))

    def _speak(self, lane: Channel, call: wire.ClientCall) -> None:
        self.came.append(call)
        if not lane.lane.asked:
            return
        lane.answer(wire.encode(self.says.get(type(call), wire.DONE)))
        if isinstance(call, wire.PrepareModel | wire.PrepareConsidered):
            self._notify(wire.NotifyPrepared(call.object, self.prepared))
        elif isinstance(call, wire.Execute):
            self._notify(wire.NotifyExecuted(call.object, self.executed))

    def _notify(self, message: wire.ServiceCall) -> None:
        assert self.callbacks is not None
        self.callbacks.send(wire.encode(message))

    def all(self, kind: type[wire.ClientCall]) -> list[Any]:
        """What came of a kind, which is forgotten."""
        found = [call for call in list(self.came) if type(call) is kind]
        self.came = [call for call in self.came if type(call) is not kind]
        return found


@pytest.fixture
def told() -> Iterator[Told]:
    peer = Told()
    with peer:
        yield peer


# -------------------------------------------------------------------------------------------------------------- device


@pytest.mark.parametrize("level", [V1_0, V1_1, V1_2, V1_3, FL8])
def test_a_device_is_asked_by_the_newest_forms_of_its_level(level: Level) -> None:
    peer = Told(level)
    with peer as session:
        device = RemoteDevice(session)
        form = min(level, V1_3)
        assert device.level == level and device.name == "peer"
        assert [call.form for call in peer.all(wire.GetCapabilities)] == [form]
        asked = level >= V1_2
        assert (device.version, device.type, tuple(device.extensions)) == (
            ("7", DeviceType.GPU, ("com.example.mine",)) if asked else (RemoteDevice.version, RemoteDevice.type, ())
        )
        assert device.status() == DeviceStatus.BUSY
        assert [v.reason for v in device.supports(doubling())] == ["yes"]
        assert [call.form for call in peer.all(wire.GetSupportedOperations)] == [form]
        hints = Hints(deadline=LATE, options={"a": 1}, threads=3)
        device.prepare(doubling(), hints)
        (call,) = peer.all(wire.PrepareModel)
        assert (call.form, call.threads, call.options) == (form, 3, b'{"a": 1}')
        assert call.preference == (None if level == V1_0 else 1)
        assert (call.priority, call.deadline) == ((1, LATE) if form == V1_3 else (None, 0))
        device.prepare(doubling(), Hints())
        assert peer.all(wire.PrepareModel)[0].deadline == 0
        device.consider(doubling(), hints)
        considered = peer.all(wire.Consider)
        assert len(considered) == (form == V1_3) and len(peer.all(wire.GetSupportedOperations)) == (form < V1_3)
        for call in considered:
            assert (call.preference, call.priority, call.deadline, call.threads) == (1, 1, LATE, 3)
        if level < V1_3:
            with pytest.raises(
                UnsupportedModel, match=rf"device peer: allocate requires HAL version 1\.3, it has {level}"
            ):
                device.allocate(BufferDesc((4,)), [])


def test_words_that_are_no_codes_are_other_and_unknown(told: Told) -> None:
    told.says[wire.GetType] = told.says[wire.GetStatus] = wire.TextReply(77)
    device = RemoteDevice(told.session)
    assert device.type == DeviceType.OTHER and device.status() == DeviceStatus.UNKNOWN
    assert device.preferred_layout is None


def twice() -> Model:
    """y = 4 x, in two operations."""
    return make_model(lambda b, x: b.add(y := b.add(x, x), y), (4,))


def test_what_a_driver_keeps_is_prepared_by_its_number_while_the_hints_are_those(told: Told) -> None:
    device, model = RemoteDevice(told.session), twice()
    hints, both = Hints(threads=1), ((True, "yes"), (True, "yes"))
    told.says[wire.Consider] = wire.SupportReply(both, (), True)
    claims = consider_support(device, model, hints)
    (considered,) = told.all(wire.Consider)
    device.prepare(model, claims.hints(hints))
    device.prepare(model, claims.hints(hints, (0,)))
    assert [(c.considered, c.operations) for c in told.all(wire.PrepareConsidered)] == [
        (considered.object, ()),
        (considered.object, (0,)),
    ]
    assert not told.all(wire.PrepareModel)
    for other in (claims.hints(Hints(threads=2)), hints):
        device.prepare(model, other)
    with Told() as another:
        RemoteDevice(another).prepare(model, claims.hints(hints))
    assert len(told.all(wire.PrepareModel)) == 2 and not told.all(wire.PrepareConsidered)
    told.all(wire.Release)
    del other
    claims.release_work()
    wait_until(
        lambda: any(considered.object in c.objects for c in list(told.came) if isinstance(c, wire.Release)), "it"
    )
    told.says[wire.Consider] = wire.SupportReply(both, (), False)
    claims = consider_support(device, model, hints)
    device.prepare(model, claims.hints(hints))
    assert len(told.all(wire.PrepareModel)) == 1


def test_constants_that_cannot_travel_are_no_for_each_operation(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    device, model = RemoteDevice(told.session), over(2)
    monkeypatch.setattr(type(model.pools[0]), "mappable", property(lambda self: self is not model.pools[1]))
    for verdicts in (device.supports(model), device.consider(model, Hints()).verdicts):
        assert [v.ok for v in verdicts] == [False, False]
        assert {v.reason for v in verdicts} == {"the model has constants in a ashmem, which another process cannot map"}
    assert not told.all(wire.GetSupportedOperations) and not told.all(wire.Consider)


def test_traits_of_a_prepared_model_are_those_that_its_notification_told(told: Told) -> None:
    device, model = RemoteDevice(told.session), over(1)
    plain = device.prepare(model, Hints())
    assert (plain.weights_consumed, tuple(plain.changeable)) == (False, ())
    forgotten: list[int] = []
    told.session.pools.forget = lambda pools: forgotten.append(len(tuple(pools)))  # type: ignore[method-assign]
    told.prepared = wire.PreparedTraits(True, ("speed",))
    for hints in (Hints(), consider_support(device, model, Hints()).hints(Hints())):
        prepared = device.prepare(model, hints)
        assert (prepared.weights_consumed, tuple(prepared.changeable)) == (True, ("speed",))
    assert forgotten == [1, 1]
    told.prepared = wire.PreparedTraits(False, ("speed",))
    device.prepare(model, Hints())
    assert forgotten == [1, 1]
    assert prepared.memory() == MemoryUse(1, None, 3, 4)
    prepared.reconfigure({"speed": 2})
    assert [(c.prepared, c.options) for c in told.all(wire.Reconfigure)] == [(prepared.number, b'{"speed": 2}')]  # type: ignore[attr-defined]


def test_a_preparation_that_misses_its_deadline_says_who_and_the_drivers_own_words_stay(told: Told) -> None:
    device = RemoteDevice(told.session)
    notify, told._notify = told._notify, lambda _: None  # type: ignore[method-assign, assignment]
    with pytest.raises(MissedDeadline, match="device peer: did not prepare the model by the deadline"):
        device.prepare(doubling(), Hints(deadline=time.monotonic_ns() + 1_000_000))
    told._notify = notify  # type: ignore[method-assign]
    told.prepared = wire.Failed(5, "MissedDeadline", "too big")  # type: ignore[assignment]
    with pytest.raises(MissedDeadline, match="too big"):
        device.prepare(doubling(), Hints(deadline=LATE))


# ----------------------------------------------------------------------------------------------------------- execution


@pytest.mark.parametrize("level", [V1_0, V1_1, V1_2, V1_3])
def test_an_execution_is_called_by_the_form_of_the_level_with_the_limits_that_it_has(level: Level) -> None:
    peer = Told(level)
    with peer as session:
        prepared = RemoteDevice(session).prepare(doubling(), Hints())
        peer.says[wire.ExecuteSynchronously] = wire.ExecutedReply()
        control = Control(LATE, 3_000_000_000, True)
        run(prepared, numbers(), control)
        run(prepared, numbers())
        kind = wire.ExecuteSynchronously if level >= V1_2 else wire.Execute
        limited, plain = peer.all(kind)
        form = {V1_0: V1_0, V1_1: V1_0, V1_2: V1_2, V1_3: V1_3}[level]
        assert limited.form == plain.form == form
        assert (limited.measure, plain.measure) == (level >= V1_2, False)
        assert (limited.deadline, limited.loop_timeout) == ((LATE, 3_000_000_000) if level == V1_3 else (0, 0))
        assert (plain.deadline, plain.loop_timeout) == (0, 0)
        done = threading.Event()
        prepared.execute(request_for(prepared, numbers()), control, lambda *_: done.set())
        assert done.wait(LIMIT)
        (launched,) = peer.all(wire.Execute)
        assert (launched.form, launched.measure) == (form, level >= V1_2)
        assert (launched.deadline, launched.loop_timeout) == ((LATE, 3_000_000_000) if level == V1_3 else (0, 0))


NOT_MEASURED = wire.WireTiming()
WRONG: dict[str, tuple[wire.Reply, type[Exception], str]] = {
    "kind": (wire.TextReply("x"), OperationFailed, "peer: answered an execution with TextReply"),
    "past the end": (
        wire.ExecutedReply(((4,),), (True,), NOT_MEASURED, (1,)),
        ContractBroken,
        r"provided outputs \[1\]",
    ),
    "no shape": (wire.ExecutedReply((), (), NOT_MEASURED, (0,), bytes(16)), ContractBroken, r"provided outputs \[0\]"),
    "less": (
        wire.ExecutedReply(((4,),), (True,), NOT_MEASURED, (0,), bytes(15)),
        ContractBroken,
        "provided 15 bytes of",
    ),
    "more": (wire.ExecutedReply(((4,),), (True,), NOT_MEASURED, (0,), bytes(17)), ContractBroken, "must be 16"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_to_an_execution_that_cannot_be_is_an_error(told: Told, what: str) -> None:
    prepared = RemoteDevice(told.session).prepare(doubling(), Hints())
    told.says[wire.ExecuteSynchronously], kind, says = WRONG[what]
    with pytest.raises(kind, match=says):
        run(prepared, numbers())
    told.says[wire.ExecuteSynchronously] = wire.DONE
    run(prepared, numbers())


def test_outputs_that_a_driver_provides_are_the_bytes_of_the_answer(told: Told) -> None:
    prepared = RemoteDevice(told.session).prepare(doubling(0), Hints())
    provided = wire.ExecutedReply(((4,),), (True,), wire.WireTiming(5, 9), (0,), numbers().tobytes())
    told.says[wire.ExecuteSynchronously] = provided
    request = prepared.request([numbers()], [None])
    assert request.execute(prepared.run, Control(measure=True)) == Timing(5, 9)
    assert np.array_equal(request.results[0], numbers())


@pytest.mark.parametrize(
    ("shapes", "sufficient", "small"),
    [(((4,),), (True,), False), (((4,),), (False,), True), ((), (), False)],
)
def test_shapes_are_believed_where_all_outputs_have_room(told: Told, shapes: Any, sufficient: Any, small: bool) -> None:
    prepared = RemoteDevice(told.session).prepare(doubling(), Hints())
    told.says[wire.ExecuteSynchronously] = wire.ExecutedReply(shapes, sufficient)
    request = prepared.request([numbers()], [np.zeros(4, np.float32)])
    assert request.execute(prepared.run, UNLIMITED) is None
    assert request.shapes == [(4,)] and bool(request.small) == small


def test_a_frame_is_bound_once_and_its_calls_are_encoded_once(told: Told) -> None:
    prepared = RemoteDevice(told.session).prepare(doubling(), Hints())
    assert isinstance(prepared, RemotePrepared) and prepared.timely
    for n in range(3):
        run(prepared, numbers(start=n))
        told.says[wire.ExecuteSynchronously] = wire.ExecutedReply()
        run(prepared, numbers(start=n), Control(measure=True))
        told.says[wire.ExecuteSynchronously] = wire.DONE
    (bound,) = told.all(wire.Bind)
    calls = told.all(wire.ExecuteSynchronously)
    assert [(call.binding, call.measure) for call in calls] == [(bound.object, False), (bound.object, True)] * 3
    prepared.close()
    prepared.close()
    released = lambda: sorted(n for c in list(told.came) if isinstance(c, wire.Release) for n in c.objects)  # noqa: E731
    wait_until(lambda: released() == sorted([prepared.number, bound.object]), "both are given back")


def test_the_end_of_a_model_is_waited_for_once() -> None:
    driver = Watched()
    with served_here(driver) as device:
        first, second = (checked_prepared(device, doubling(), Hints()).inner for _ in range(2))
        assert isinstance(first, RemotePrepared) and isinstance(second, RemotePrepared)
        first.end()
        assert driver.closed == 1
        first.end()
        first.close()
        second.close()
        second.end()
        wait_until(lambda: driver.closed == 2, "the other is closed")
        assert device.session.calls.get("Release", 0) == 0


# -------------------------------------------------------------------------------------------------------------- fenced


def fenced(told: Told, control: Control = UNLIMITED, after: int | None = None) -> Any:
    prepared = RemoteDevice(told.session).prepare(doubling(), Hints())
    ready, signal = fence_pair()
    signal.set()
    request = request_for(prepared, numbers())
    return prepared.execute_fenced(request, control, [ready], after), request


def test_a_fenced_execution_has_the_limits_of_its_control(told: Told) -> None:
    told.says[wire.GetExecutionInfo] = wire.ExecutionInfoReply(wire.WireTiming(1, 2), wire.WireTiming())
    execution, _ = fenced(told, Control(LATE, 3_000_000_000, True), 5)
    (call,) = told.all(wire.ExecuteFenced)
    assert (call.fences, call.measure, call.deadline, call.loop_timeout, call.after) == (
        0,
        True,
        LATE,
        3_000_000_000,
        5,
    )
    assert execution.fence is None
    assert execution.get_execution_info() == (Timing(1, 2), Timing())
    assert execution.get_execution_info() == (Timing(1, 2), Timing())
    assert len(told.all(wire.GetExecutionInfo)) == 1  # asked once
    plain, _ = fenced(told)
    (call,) = told.all(wire.ExecuteFenced)
    assert (call.measure, call.deadline, call.loop_timeout, call.after) == (False, 0, 0, 0) and plain is not None


@pytest.mark.parametrize(
    ("shapes", "says"), [(((4,), (4,)), "reported 2 shapes, must be 1"), (((5,),), "output|shape"), (((4,),), "")]
)
def test_shapes_of_a_fenced_execution_are_looked_at(told: Told, shapes: Any, says: str) -> None:
    told.says[wire.GetExecutionInfo] = wire.ExecutionInfoReply(wire.WireTiming(), wire.WireTiming(), shapes)
    execution, request = fenced(told)
    for _ in range(2):
        if says:
            with pytest.raises((ContractBroken, InvalidArgument), match=says):
                execution.get_execution_info()
        else:
            assert execution.get_execution_info() == (Timing(), Timing()) and request.shapes == [(4,)]


def test_a_wish_is_watched_until_the_outcome_of_a_fenced_execution_is_known(told: Told) -> None:
    told.says[wire.GetExecutionInfo] = wire.ExecutionInfoReply(wire.WireTiming(), wire.WireTiming())
    cancelled = threading.Event()
    execution, _ = fenced(told, Control(cancelled=cancelled))
    assert list(told.session.endings.wishes) == [execution._number]
    execution.get_execution_info()
    assert not told.session.endings.wishes
    other, _ = fenced(told, Control(cancelled=cancelled))
    number = other._number
    assert list(told.session.endings.wishes) == [number]
    del other
    wait_until(lambda: not told.session.endings.wishes, "it is forgotten with its execution")
    wait_until(lambda: any(number in c.objects for c in list(told.came) if isinstance(c, wire.Release)), "the release")


# ------------------------------------------------------------------------------------------------------ driver memory


def test_a_buffer_is_of_its_device_and_its_shape_what_it_may_be(told: Told) -> None:
    device = RemoteDevice(told.session)
    prepared = device.prepare(doubling(), Hints())
    prepared.model = doubling()
    buffer: Any = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0, False, 0.5)])
    (call,) = told.all(wire.Allocate)
    assert call.dimensions == (4,) and call.roles == ((prepared.number, 0, False, 0.5),)  # type: ignore[attr-defined]
    for says, shape in ((None, None), ((4,), (4,))):
        told.says[wire.GetShape] = wire.Shape(says)
        assert buffer.shape == shape
    told.says[wire.GetShape] = wire.Shape((5,))
    with pytest.raises(ContractBroken, match=r"peer: reports that a buffer has shape .*5.*, must be .*4"):
        _ = buffer.shape
    with Told() as another:
        other = RemoteDevice(another)
        with pytest.raises(InvalidArgument, match="belongs to another device"):
            buffer.of(another)
        with pytest.raises(InvalidArgument, match=r"refers to a model of another device"):
            other.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
    assert buffer.of(told.session) == call.object
    buffer.close()
    buffer.close()
    with pytest.raises(Closed, match="used after close"):
        buffer.of(told.session)
    wait_until(lambda: [c.objects for c in list(told.came) if isinstance(c, wire.Release)] == [(call.object,)], "one")
    told.session.peer.give_up("gone")
    orphan: Any = buffer
    orphan._number = 5
    with Told() as another, pytest.raises(DeadObject, match="gone"):
        orphan.of(another)
    orphan._number = -1


def test_contents_are_copied_as_they_are_now_and_back_into_arrays() -> None:
    with served_here(Watched()) as device:
        prepared = checked_prepared(device, doubling(), Hints()).inner
        buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
        array, room = numbers(), np.zeros(4, np.float32)
        for memory in (Memory.wrap(array), Memory.from_array(array.view(np.uint8))):
            for _ in range(2):
                buffer.copy_from(memory, (4,))
                buffer.copy_to(Memory.wrap(room))
                assert np.array_equal(room.view(np.uint8), memory.bytes())
                array += 1
        shared = Memory.allocate(16)
        buffer.copy_to(shared)
        assert np.array_equal(shared.bytes(), room.view(np.uint8))
        done = requests.run(prepared, [array])
        assert np.array_equal(done.results[0], 2 * array)
