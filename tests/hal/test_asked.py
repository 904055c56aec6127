"""What a device gives, and what the runtime makes of it: turns, executors, weights, buffers, fences, constants."""

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import Activation, DeviceStatus, DeviceType, OperandType
from nnhal.base.errors import ContractBroken, InvalidArgument, InvalidModel, MissedDeadline, OperationFailed
from nnhal.base.levels import FL8
from nnhal.base.memory import Layout, Memory
from nnhal.drivers.reference import Reference
from nnhal.hal.answers import (
    allocated_by,
    checked_info,
    checked_memory_use,
    checked_status,
    driver_capabilities,
    fenced_by,
)
from nnhal.hal.background import ExecutionInfo, FencedExecution, Notify
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.chain import (
    PreparedChain,
    checked_burst,
    checked_executor,
    checked_prepared,
    checked_reconfigure,
    release_weights,
)
from nnhal.hal.device import Capabilities, Device, Hints, Performance, Prepared, Verdict, each_operation, identity_of
from nnhal.hal.fence import fence_pair
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests.hal.devices import X, adding, asked
from tests.models import one_operation
from tests.waiting import LIMIT

MINE = "device mine"


class Gives(Prepared):
    """Writes X + 1. Attributes and methods are set by tests."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        request.write(0, X + 1)
        return Timing(5) if control.measure else None

    def reconfigure(self, options: Any) -> None:
        self.told.append(options)


def relu(dims: tuple[int, ...]) -> Model:
    return one_operation("RELU", (OperandType.TENSOR_FLOAT32, dims), output=(OperandType.TENSOR_FLOAT32, dims))


class Executor(BurstExecutor):
    def add(self, slot: int, memory: Memory) -> None: ...

    def remove(self, slot: int) -> None: ...

    def execute(self, request: Request, slots: Any, control: Control) -> Timing | None:
        request.write(0, X + 1)
        return Timing(len(slots))


def gives(prepared: Prepared | None = None, **said: Any) -> Any:
    """A device that prepares this, or a `Gives` each time."""
    said.setdefault("prepare", lambda self, model, hints: prepared or Gives())
    return type("Mine", (Reference,), {"name": "mine", **said})()


def made(device: Any = None, **said: Any) -> PreparedChain:
    """What a device has prepared, with these attributes."""
    prepared = Gives()
    for name, value in said.items():
        setattr(prepared, name, value)
    return checked_prepared(device or gives(prepared), adding(), Hints())


def soon() -> Control:
    """A limit that has passed for whoever has to wait."""
    return Control(deadline=1)


class Held:
    """Whoever has the turn of a prepared model alone meanwhile."""

    def __init__(self, prepared: PreparedChain) -> None:
        self.inside, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=prepared.around(self.hold), args=(None, Control()))

    def hold(self, *_: object) -> None:
        self.inside.set()
        assert self.over.wait(LIMIT)

    def __enter__(self) -> None:
        self.thread.start()
        assert self.inside.wait(LIMIT)

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(LIMIT)


def test_what_a_device_does_not_say_is_the_default_of_the_definition() -> None:
    class Least(Device):
        def supports(self, model: Model) -> Any: ...

        def prepare(self, model: Model, hints: Hints) -> Any: ...

    device, one = Least(), Performance(1.0, 1.0)
    assert identity_of(device) == ("unnamed", "0", DeviceType.OTHER, FL8, (), (), None, ("fast",))
    assert device.status() == DeviceStatus.AVAILABLE and not device.one_at_a_time
    stated = device.capabilities()
    assert stated == Capabilities(dict.fromkeys(OperandType, one), one, one, one, one)
    assert Capabilities() == Capabilities({}, one, one, one, one)
    prepared = Gives()
    assert prepared.memory() == (None,) * 4 and prepared.burst_executor() is None and prepared.changeable == ()


# --------------------------------------------------------------------------------------------------------- executions


def test_requests_of_a_prepared_model_share_one_signature_that_names_its_device() -> None:
    prepared, alone = made(), Gives()
    assert prepared.request([X]).signature is prepared.request([X]).signature
    assert prepared.request([X]).signature.where == MINE
    alone.model = adding()
    assert alone.request([X]).signature.where == "driver"


@pytest.mark.parametrize("where", ["device", "prepared model"])
def test_one_at_a_time_holds_for_all_models_of_a_device_or_for_one(where: str) -> None:
    of_device = where == "device"
    device = gives(one_at_a_time=of_device)
    device.prepare = lambda model, hints: type("One", (Gives,), {"one_at_a_time": not of_device})()
    one, other = (checked_prepared(device, adding(), Hints()) for _ in range(2))
    with Held(one):
        with pytest.raises(MissedDeadline):
            asked(one).execute(one.run, soon())
        if of_device:
            with pytest.raises(MissedDeadline):
                asked(other).execute(other.run, soon())
        else:
            asked(other).execute(other.run, Control())
    asked(one).execute(one.run, Control())


def test_what_runs_in_another_process_has_no_queue_here() -> None:
    prepared = made(timely=True)
    assert not prepared.queues and prepared.run == prepared.inner.run


@pytest.mark.parametrize("timely", [False, True])
def test_a_change_waits_for_executions_unless_they_are_in_another_process(timely: bool) -> None:
    prepared = made(changeable=("speed",), timely=timely)
    if not timely:
        with Held(prepared):
            asked(prepared).execute(prepared.run, Control())  # beside it
            with pytest.raises(MissedDeadline):
                checked_reconfigure(prepared, MINE, {"speed": 1}, soon())
    checked_reconfigure(prepared, MINE, {"speed": 2})
    assert prepared.inner.told == [{"speed": 2}]  # type: ignore[attr-defined]


def test_options_are_given_as_a_copy_and_an_error_of_the_drivers_names_it() -> None:
    prepared, options = made(changeable=("speed",)), {"speed": 1}
    checked_reconfigure(prepared, MINE, options)
    assert prepared.inner.told == [options] and prepared.inner.told[0] is not options  # type: ignore[attr-defined]
    with pytest.raises(ContractBroken, match=r"reconfigure\(\) is missing, must be there where `changeable` names"):
        Prepared.reconfigure(prepared, options)


@pytest.mark.parametrize("alone", [False, True])
def test_an_executor_for_bursts_waits_for_its_turn_where_there_are_any(alone: bool) -> None:
    prepared = made(one_at_a_time=alone)
    assert checked_executor(prepared, MINE) is None
    own = Executor()
    prepared.burst_executor = lambda: own  # type: ignore[method-assign]
    executor = checked_executor(prepared, MINE)
    assert executor is not None and executor.inner is own

    def run(request: Request, control: Control) -> Timing | None:
        return executor.execute(request, [4, 5], control)

    if alone:
        with Held(prepared), pytest.raises(MissedDeadline):
            asked(prepared).execute(run, soon())
    request = asked(prepared)
    assert request.execute(run, Control()) == Timing(2) and request.results[0].tolist() == (X + 1).tolist()
    with pytest.raises(ContractBroken, match=r"burst_executor\(\) gave a BurstExecutor that it gave before"):
        checked_executor(prepared, MINE)  # two bursts would number their memories alike
    prepared.burst_executor = lambda: 3  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ContractBroken, match=r"burst_executor\(\) gave 3, must give a BurstExecutor or None"):
        checked_executor(prepared, MINE)


@pytest.mark.parametrize(("trait", "value"), [("weights_consumed", 1), ("changeable", "speed"), ("changeable", [""])])
def test_a_trait_that_cannot_be_is_the_drivers_broken_contract(trait: str, value: Any) -> None:
    with pytest.raises(ContractBroken, match=f"device mine: {trait} of a Prepared.* is "):
        made(**{trait: value})


def test_an_invalid_argument_of_who_is_told_of_the_model_alone_is_about_the_model() -> None:
    def refuse(self: Any, model: Model) -> Any:
        raise InvalidArgument("is bad")

    with pytest.raises(InvalidModel, match="is bad"):
        gives(supports=refuse).consider(adding(), Hints())


def test_a_burst_is_a_new_one_each_time() -> None:
    prepared = made()
    one, other = checked_burst(prepared, MINE), checked_burst(prepared, MINE)
    assert one is not other
    prepared.burst = lambda: one  # type: ignore[method-assign]
    with pytest.raises(ContractBroken, match=r"burst\(\) gave a Burst that it gave before, must give a new one"):
        checked_burst(prepared, MINE)


# ------------------------------------------------------------------------------------------------------------ fenced


def launch(act: Callable[..., Any]) -> tuple[Prepared, Request]:
    prepared = made()
    prepared.execute_fenced = act  # type: ignore[method-assign]
    return prepared, asked(prepared)


def test_a_fenced_execution_gets_what_it_was_launched_with() -> None:
    told: list[Any] = []
    launched = FencedExecution(None)
    prepared, request = launch(lambda *arguments: told.append(arguments) or launched)
    fence, _signal = fence_pair()
    assert fenced_by(prepared, MINE, request, Control(), [fence], 7) is launched
    assert fenced_by(prepared, MINE, request, Control(), []) is launched
    assert told == [(request, Control(), [fence], 7), (request, Control(), [], None)] and not request.ended


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, r"execute_fenced\(\) gave None, must give a FencedExecution"),
        (FencedExecution("soon"), r"execute_fenced\(\) gave fence 'soon', must be a Fence or None"),  # type: ignore[arg-type]
        (OperationFailed("no"), "no"),
    ],
)
def test_nothing_is_taken_of_an_execution_that_was_not_launched(answer: Any, says: str) -> None:
    def act(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    prepared, request = launch(act)
    with pytest.raises(OperationFailed, match=f"device mine: {says}"):
        fenced_by(prepared, MINE, request, Control(), [])
    assert request.ended


@pytest.mark.parametrize("answer", [None, 3, (1, 2), "Burst"])
@pytest.mark.parametrize(
    ("method", "rule", "ask"),
    [
        ("prepare", "must give a Prepared", lambda answer: made(gives(prepare=lambda *_: answer))),
        (
            "capabilities",
            "must be Capabilities",
            lambda answer: driver_capabilities(gives(capabilities=lambda _: answer)),
        ),
        ("status", "must be a DeviceStatus", lambda answer: checked_status(gives(status=lambda _: answer))),
        ("burst", "must give a Burst", lambda answer: checked_burst(made(burst=lambda: answer), MINE)),
        ("memory", "must give a MemoryUse", lambda answer: checked_memory_use(made(memory=lambda: answer), MINE)),
    ],
)
def test_what_is_given_in_place_of_something_else_is_told_with_the_rule(method, rule, ask, answer) -> None:
    with pytest.raises(ContractBroken, match=re.escape(f"device mine: {method}() gave {answer!r}, {rule}")):
        ask(answer)


def test_times_of_a_fenced_execution_are_told_as_far_as_they_can_be_true() -> None:
    execution = FencedExecution(None)
    execution.finish(None, ExecutionInfo(Timing(3, 2), Timing(1, 2)))
    assert checked_info(execution, MINE) == (Timing(), Timing(1, 2))
    execution.finish(None, (1, 2))  # type: ignore[arg-type]
    with pytest.raises(ContractBroken, match=r"get_execution_info\(\) gave \(1, 2\), must give an ExecutionInfo"):
        checked_info(execution, MINE)


# ---------------------------------------------------------------------------------------------- memory and constants


def test_a_buffer_is_a_new_one_for_what_was_asked_for() -> None:
    prepared = made()
    role, other = BufferRole(prepared, 0), BufferRole(prepared, 0, True)
    device = gives()
    assert isinstance(allocated_by(device, BufferDesc(), [role]), HostBuffer)
    buffer = HostBuffer(BufferDesc(), [role])
    device.allocate = lambda desc, roles: buffer
    assert allocated_by(device, BufferDesc(), [role]) is buffer
    with pytest.raises(ContractBroken, match="gave a Buffer that it gave before, must give a new one"):
        allocated_by(device, BufferDesc(), [role])
    varying = checked_prepared(gives(), relu((0, 4)), Hints())
    narrow = HostBuffer(BufferDesc((3, 4)), [BufferRole(varying, 0)])
    device.allocate = lambda desc, roles: narrow
    with pytest.raises(ContractBroken, match="gave a Buffer for something else, must be for what it was asked for"):
        allocated_by(device, BufferDesc(), [BufferRole(varying, 0)])
    device.allocate = lambda desc, roles: "a buffer"
    with pytest.raises(ContractBroken, match=r"allocate\(\) gave 'a buffer', must give a Buffer"):
        allocated_by(device, BufferDesc(), [role, other])


@pytest.mark.parametrize("consumed", [False, True])
def test_weights_go_where_the_driver_needs_them_no_more(consumed: bool) -> None:
    prepared, model = made(weights_consumed=consumed), adding()
    assert prepared.weights_consumed is consumed
    assert release_weights(prepared, model, MINE) is consumed
    constant = next(o for o in model.main.operands if o.dimensions == (1, 1))
    if consumed:
        with pytest.raises(ContractBroken, match="device mine: read constants after prepare\\(\\), must not"):
            model.constant(constant)
    else:
        assert model.constant(constant).tolist() == [[1]]


def test_an_operation_with_a_constant_out_of_sight_is_refused_unasked() -> None:
    b, kind = ModelBuilder(), OperandType.TENSOR_FLOAT32
    x, y, z = (b.operand(kind, (4,)) for _ in range(3))
    seen, opaque = Memory.from_array(np.ones(4, np.float32)), Memory.hardware_buffer(16, Layout(4, 1, 1, 1))
    activation = b.constant(OperandType.INT32, Activation.NONE)
    near, far = b.reference(kind, (4,), b.add_pool(seen), 0, 16), b.reference(kind, (4,), b.add_pool(opaque), 0, 16)
    b.operation("ADD", [x, near, activation], [y])
    b.operation("ADD", [y, far, activation], [z])
    asked_about: list[int] = []

    def judge(model: Any, operation: Any) -> bool:
        asked_about.append(model.main.operations.index(operation))
        return True

    why = f"constant %{far} lies in a hardware_buffer, which cannot be mapped here"
    assert each_operation(b.finish([x], [z]), judge) == [Verdict(True), Verdict(False, why)]
    assert asked_about == [0]


def test_a_burst_in_process_takes_turns_as_plain_executions_do() -> None:
    prepared = made(one_at_a_time=True)
    with checked_burst(prepared, MINE) as burst:
        assert isinstance(burst, LocalBurst)
        with Held(prepared), pytest.raises(MissedDeadline):
            asked(prepared).execute(burst.run, soon())
        assert asked(prepared).execute(burst.run, Control(measure=True)) == Timing(5)


def test_options_of_a_model_of_which_none_may_change_are_the_applications_mistake() -> None:
    with pytest.raises(InvalidArgument, match=r"device mine: .*no option of it may change between executions"):
        checked_reconfigure(made(), MINE, {"speed": 1})


class OwnBurst(Burst):
    """A driver's burst that runs the model, or another burst of it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def run(self, request: Request, control: Control) -> Timing | None:
        found: Timing | None = self.inner.run(request, control)
        return found


class Overriding(Gives):
    """Its methods call the defaults. It notes whether each `run` has its turn."""

    one_at_a_time = True
    chain: PreparedChain
    burst_of: Callable[[Prepared], Any] = OwnBurst

    def __init__(self) -> None:
        super().__init__()
        self.alone: list[bool] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        self.alone.append(self.chain.queues[0].queue.slots.held_by(threading.get_ident()) is not None)
        return super().run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        super().execute(request, control, notify)

    def execute_fenced(self, *arguments: Any) -> FencedExecution:
        return super().execute_fenced(*arguments)

    def burst(self) -> Burst:
        burst: Burst = type(self).burst_of(self)
        return burst


def in_burst(prepared: PreparedChain, request: Request) -> None:
    with checked_burst(prepared, MINE) as burst:
        request.execute(burst.run, Control())


def in_background(prepared: PreparedChain, request: Request) -> None:
    ended = threading.Event()
    prepared.execute(request, Control(), lambda error, timing: ended.set())
    assert ended.wait(LIMIT)


def behind_fences(prepared: PreparedChain, request: Request) -> None:
    launched = prepared.execute_fenced(request, Control(), [], None)
    if launched.fence is not None:
        launched.fence.wait(LIMIT)


@pytest.mark.parametrize("way", [in_burst, in_background, behind_fences])
@pytest.mark.parametrize("burst_of", [OwnBurst, lambda prepared: OwnBurst(LocalBurst(prepared))])
def test_a_drivers_own_method_that_calls_run_or_the_default_takes_turns(way: Any, burst_of: Any) -> None:
    inner = type("Inner", (Overriding,), {"burst_of": staticmethod(burst_of)})()
    inner.chain = checked_prepared(gives(inner), adding(), Hints())
    way(inner.chain, asked(inner.chain))
    assert inner.alone == [True]


def test_a_burst_of_another_model_tells_that_model_of_its_begin_and_end() -> None:
    told: list[str] = []
    other = type("Other", (Gives,), {f"burst_{e}": lambda self, e=e: told.append(e) for e in ("opened", "closed")})()
    prepared = made()
    prepared.inner.burst = lambda: LocalBurst(other)  # type: ignore[method-assign]
    with checked_burst(prepared, MINE):
        pass
    assert told == ["opened", "closed"]


@pytest.mark.parametrize("attribute", ["timely", "one_at_a_time", "changeable", "trimmable", "run"])
def test_a_prepared_model_whose_attribute_raises_is_closed(attribute: str) -> None:
    closed: list[bool] = []

    def fails(self: Prepared) -> None:
        raise RuntimeError("no attribute")

    said = {attribute: property(fails), "close": lambda self: closed.append(True)}
    with pytest.raises(OperationFailed, match="no attribute"):
        checked_prepared(gives(type("Fails", (Gives,), said)()), adding(), Hints())
    assert closed == [True]
