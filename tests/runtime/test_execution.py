"""One execution at the API: what it gives back, what it leaves behind, how it ends."""

import asyncio
import contextlib
import gc
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.base.extensions import ExtensionType, register_extension
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import YES, Device, Hints, Prepared
from nnhal.hal.request import Control, Request
from nnhal.runtime import discovery
from tests.hal.devices import OwnBuffer
from tests.models import make_model, operation_chain
from tests.runtime.devices import Fake, failing
from tests.runtime.graphs import sums, svdf
from tests.waiting import LIMIT, jitter, pass_time, until
from tests.waiting import until as wait_until

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
LONG = 60  # seconds after which something counts as hanging
ISOLATION = pytest.mark.parametrize("isolation", ["none", "process"])


class Own(Device):
    """A device whose execution is a function; counts what it closes."""

    name = "own"

    def __init__(self, run: Callable[[Request, Control], Any], **more: Any) -> None:
        self.closed, self.prepared, self._run, self._more = 0, 0, run, more

    def supports(self, model: nnhal.Model) -> Any:
        return [YES] * len(model.main.operations)

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        device, run = self, self._run

        class Mine(Prepared):
            def run(self, request: Request, control: Control) -> Any:
                return run(request, control)

            def close(self) -> None:
                device.closed += 1

        self.prepared += 1
        made = Mine()
        for name, value in self._more.items():
            setattr(made, name, value)
        return made


def add(request: Request, control: Control) -> None:
    x, b = request.inputs
    request.write(0, x + b)  # type: ignore[operator]


def relued(*shape: int | None) -> nnhal.Model:
    return make_model(lambda b, x: b.relu(x, name="y"), name="open", x=shape)


def two_outputs() -> nnhal.Model:
    """doubled = x + x, squared = doubled · x: a later step reads the first output."""
    b = nnhal.Builder("two")
    x = b.input((4,), name="x")
    doubled = b.add(x, x, name="doubled")
    return b.finish([x], [doubled, b.mul(doubled, x, name="squared")])


# ------------------------------------------------------------------------------------------------------- what comes back


@ISOLATION
@pytest.mark.parametrize("devices", ["reference", "litert"])
def test_a_result_in_room_of_an_unknown_shape_has_its_true_shape_and_lies_there(devices, isolation):
    compiled = nnhal.compile(relued(None), devices=devices, isolation=isolation)
    for room in (np.full(10, -7, np.float32), np.zeros(40, np.uint8)):
        result = compiled(np.ones(3, np.float32), out=room)
        assert result.shape == (3,) and result.tolist() == [1, 1, 1] and np.shares_memory(result, room)
        assert (room.view(np.float32)[:3] == 1).all() and not (room.view(np.float32)[3:] == 1).any()


@ISOLATION
@pytest.mark.parametrize("first", [0, 1])
def test_room_in_bytes_of_an_output_that_a_later_step_reads_holds_the_output(first, isolation):
    compiled = nnhal.compile(
        two_outputs(), devices=[Fake(takes=lambda n: n == first), "reference"], isolation=isolation
    )
    for size in (16, 20):
        room = np.zeros(size, np.uint8)
        doubled, squared = compiled(X, out=[room, None])
        assert doubled.dtype == np.float32 and np.shares_memory(doubled, room)
        assert (doubled == 2 * X).all() and (squared == 2 * X * X).all()


def test_an_input_that_may_be_left_out_is_left_out_with_none():
    """UNIDIRECTIONAL_SEQUENCE_LSTM and its like have many such; LSTM's projection bias is one."""
    compiled = nnhal.compile(svdf(), devices="reference")
    given = np.float32([[1, 2]]), np.float32([[1, 0], [0, 1]]), np.float32([[1], [1]])
    zero = np.zeros((1, 2), np.float32)
    assert compiled(*given, None, zero).tolist() == [[1, 2]]
    assert compiled(*given, np.float32([10, 20]), zero).tolist() == [[11, 22]]
    named = dict(zip(("x", "features", "times", "state"), (*given, zero), strict=True))
    assert next(iter(compiled(named).values())).tolist() == [[1, 2]]
    with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\) is None, must be given"):
        compiled(None, *given[1:], None, zero)


@pytest.mark.parametrize("value", [[1.7, -2.9], [2**40, 1], [None, 1], [True, False], ["1", "2"], [[1], [2, 3]]])
def test_numbers_that_an_input_cannot_hold_are_refused(value):
    model = make_model(lambda b, x: b.abs(x), name="integers", x=((2,), "TENSOR_INT32"))
    compiled = nnhal.compile(model, devices="reference")
    assert compiled([-3, 4]).tolist() == [3, 4]
    with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\)"):
        compiled(value)


def test_an_operand_of_an_extensions_type_is_an_input_like_others():
    extension = register_extension("com.example.edge", [ExtensionType("T", "<f4")], ["OP"])
    names = [(extension.name, extension.prefix)]
    model = operation_chain((extension.type("T"), (4,)), extension.operation("OP"), extensions=names)
    device = Own(lambda request, control: request.write(0, request.inputs[0] * 3))  # type: ignore[operator]
    device.extensions = ("com.example.edge",)
    compiled = nnhal.compile(model, devices=[device])
    assert (compiled(X) == 3 * X).all() and compiled.inputs[0].dtype == np.float32


# ------------------------------------------------------------------------------------------------------------ the end


def test_what_was_submitted_before_the_close_is_run():
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[Fake(on_run=lambda: gate.wait(LIMIT) and None)])
    executions = [compiled.submit(X + n, B) for n in range(12)]
    closing = threading.Thread(target=compiled.close)
    closing.start()
    gate.set()
    closing.join(LIMIT)
    assert all(e.done() for e in executions)
    assert [(e.result(LONG) == X + n + 1).all() for n, e in enumerate(executions)] == [True] * 12
    with pytest.raises(nnhal.Closed):
        compiled.submit(X, B)


@pytest.mark.parametrize("used", [False, True])
def test_a_compiled_model_that_is_dropped_closes_what_was_prepared(used):
    device = Own(add)
    compiled = nnhal.compile(sums(), devices=[device])
    if used:
        compiled(X, B)
        compiled.submit(X, B).result(LONG)
        compiled.execute_fenced(X, B).result(LONG)
    del compiled
    gc.collect()
    wait_until(lambda: device.closed == 1)


def test_a_dropped_model_is_closed_only_when_its_last_execution_has_ended():
    gate, device = threading.Event(), Own(lambda request, control: (gate.wait(LONG), add(request, control))[1])
    execution = nnhal.compile(sums(), devices=[device]).submit(X, B)
    gc.collect()
    assert device.closed == 0
    gate.set()
    assert (execution.result(LONG) == X + 1).all()
    del execution
    wait_until(lambda: gc.collect() >= 0 and device.closed == 1)


@pytest.mark.parametrize("way", ["call", "burst", "fenced"])
def test_a_model_is_closed_when_the_last_late_execution_has_come_back(way):
    gate, began = threading.Event(), threading.Event()
    device = Own(lambda request, control: (began.set(), gate.wait(LONG), add(request, control))[2])
    compiled = nnhal.compile(sums(), devices=[device])
    burst, deadline = compiled.burst(), 0.05
    while not began.is_set():  # on a busy machine a deadline may pass before the execution begins
        with pytest.raises(nnhal.MissedDeadline):
            if way == "call":
                compiled.run(X, B, deadline=deadline)
            elif way == "burst":
                burst.run(X, B, deadline=deadline)
            else:
                compiled.execute_fenced(X, B, deadline=deadline).result(LONG)
        deadline *= 2
    threading.Thread(target=compiled.close).start()
    pass_time(0.05)
    assert device.closed == 0
    gate.set()
    wait_until(lambda: device.closed == 1)


def test_steps_prepared_again_on_the_cpu_are_shared_by_bursts_and_closed(monkeypatch):
    cpu, made, closed = discovery.cpu(), [], []
    real = type(cpu).prepare

    def prepare(self: Device, model: nnhal.Model, hints: Hints) -> Prepared:
        prepared = real(self, model, hints)
        made.append(prepared)
        prepared.close = lambda: closed.append(prepared)  # type: ignore[method-assign]
        return prepared

    device = Own(failing(OperationFailed("no")))
    compiled = nnhal.compile(sums(), devices=[device], fallback="allow")
    monkeypatch.setattr(type(cpu), "prepare", prepare)
    for _ in range(3):
        with compiled.burst() as burst:
            assert (burst(X, B) == X + 1).all()
    compiled.close()
    assert made and closed == made and device.closed == 1


def test_awaiting_a_cancelled_execution_raises_cancelled():
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[Fake(on_run=lambda: gate.wait(LONG))])

    async def wait() -> None:
        executions = [compiled.submit(X, B) for _ in range(6)]
        for execution in executions:  # those that run and those that wait for their turn
            execution.cancel()
            with pytest.raises(nnhal.Cancelled):
                await execution

    asyncio.run(wait())
    gate.set()


def test_awaiting_honours_the_deadline_of_an_execution_that_has_not_begun():
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[Fake(on_run=lambda: gate.wait(LONG))])

    async def wait() -> None:
        waiting = [compiled.submit(X, B) for _ in range(4)]
        late = compiled.submit(X, B, deadline=0.05)
        with pytest.raises(nnhal.MissedDeadline):
            await late
        assert not any(e.done() for e in waiting)
        gate.set()

    asyncio.run(wait())


def test_a_task_that_is_cancelled_while_it_awaits_cancels_the_execution():
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[Fake(on_run=lambda: gate.wait(LONG))])
    execution = compiled.submit(X, B)

    async def wait() -> None:
        async def result() -> Any:
            return await execution

        task = asyncio.ensure_future(result())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(wait())
    with pytest.raises(nnhal.Cancelled):
        execution.result(LONG)
    gate.set()


# ---------------------------------------------------------------------------------------------------------------- fences


def test_a_fenced_execution_that_never_ran_leaves_what_it_was_to_write_without_contents():
    compiled = nnhal.compile(sums(), devices=[Own(add)])
    out = nnhal.allocate([(compiled, "output", 0)])
    out.write(X)
    failed, signal_ = nnhal.fence_pair()
    signal_.set(nnhal.ErrorStatus.GENERAL_FAILURE)
    with pytest.raises(nnhal.InvalidArgument):
        compiled.execute_fenced(X, B, out=out, wait_for=[failed])
    assert (out.read() == X).all()  # nothing was launched
    later, end = nnhal.fence_pair()
    fenced = compiled.execute_fenced(X, B, out=out, wait_for=[later])
    end.set(nnhal.ErrorStatus.GENERAL_FAILURE)
    with pytest.raises(OperationFailed):
        fenced.result(LONG)
    with pytest.raises(OperationFailed):
        out.read()


@ISOLATION
def test_a_result_that_is_asked_for_again_is_not_written_again(isolation):
    compiled = nnhal.compile(two_outputs(), devices="reference", isolation=isolation)
    fenced = compiled.execute_fenced(X)
    first = fenced.result(LONG)
    first[0][:] = -1
    assert fenced.result(LONG)[0] is first[0] and (first[0] == -1).all()


# ------------------------------------------------------------------------------------------------------------------ forks


def test_a_child_that_was_forked_in_the_middle_of_it_all_ends():
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[Fake(on_run=lambda: gate.wait(LONG))])
    busy = [compiled.submit(X, B) for _ in range(3)]
    child = os.fork()
    if child == 0:  # no pytest in here
        try:
            own = nnhal.compile(sums(), devices="reference")
            good = bool(
                (own.run(X, B, deadline=LONG)[0] == X + 1).all() and (own.submit(X, B).result(LONG) == X + 1).all()
            )
            own.close()
            try:
                compiled(X, B)
                good = False
            except nnhal.Closed:
                pass
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    gate.set()
    assert os.waitpid(child, 0)[1] == 0
    assert all((e.result(LONG) == X + 1).all() for e in busy)


# -------------------------------------------------------------------------------------------- drivers with ways of their own


class Background(Own):
    """A device whose prepared models execute in the background by a function: (request, notify)."""

    def __init__(self, execute: Callable[[Request, Any], Any]) -> None:
        super().__init__(add, execute=lambda request, control, notify: execute(request, notify))


@pytest.fixture
def callbacks(monkeypatch) -> None:
    monkeypatch.setenv("NNHAL_SYNC_EXEC", "0")


def late(request: Request, told: Callable[[], Any], gate: threading.Event, written: threading.Event) -> None:
    """Tells the end, and writes later, when the gate opens."""
    told()
    gate.wait(LIMIT)
    with contextlib.suppress(nnhal.NnhalError):
        request.write(0, np.full(4, 9, np.float32))
    written.set()


def test_what_is_written_after_an_error_was_notified_is_not_taken(callbacks):
    gate, written = threading.Event(), threading.Event()

    def execute(request: Request, notify: Any) -> None:
        told = lambda: notify(OperationFailed("mine"), None)  # noqa: E731
        threading.Thread(target=late, args=(request, told, gate, written)).start()

    compiled, out = nnhal.compile(sums(), devices=[Background(execute)]), np.full(4, -7, np.float32)
    with pytest.raises(OperationFailed, match="mine"):
        compiled(X, B, out=out)
    gate.set()
    assert written.wait(LIMIT) and (out == -7).all()


@pytest.mark.parametrize("told", [ValueError("of its own"), "text", 7])
def test_nonsense_that_a_driver_notifies_is_its_failure(told, callbacks):
    compiled = nnhal.compile(sums(), devices=[Background(lambda request, notify: notify(told, None))])
    with pytest.raises(OperationFailed, match="device own"):
        compiled(X, B)


def test_a_launch_that_raises_what_it_likes_is_the_drivers_failure(callbacks):
    with pytest.raises(OperationFailed, match=r"device own: execute\(\) raised ValueError: of its own"):
        nnhal.compile(sums(), devices=[Background(failing(ValueError("of its own")))])(X, B)


@pytest.mark.parametrize("when", ["error", "hang"])
def test_a_drivers_own_fences_are_held_to_the_end_and_to_the_deadline(when):
    def execute_fenced(request: Request, control: Control, wait_for: Any, after: Any = None) -> FencedExecution:
        fence, signal_ = nnhal.fence_pair()
        execution = FencedExecution(fence)
        kept.append(signal_)

        def end() -> None:
            execution.finish(OperationFailed("mine"), None)
            signal_.set(nnhal.ErrorStatus.GENERAL_FAILURE)

        told = end if when == "error" else lambda: None
        threading.Thread(target=late, args=(request, told, gate, written), daemon=True).start()
        return execution

    gate, written, kept = threading.Event(), threading.Event(), list[Any]()
    device, out = Own(add), np.full(4, -7, np.float32)
    real = device.prepare

    def prepare(model: nnhal.Model, hints: Hints) -> Prepared:
        prepared = real(model, hints)
        kind = type("Mine", (type(prepared),), {"execute_fenced": lambda self, *a: execute_fenced(*a)})
        prepared.__class__ = kind
        return prepared

    device.prepare = prepare  # type: ignore[method-assign]
    compiled = nnhal.compile(sums(), devices=[device])
    with pytest.raises(nnhal.MissedDeadline if when == "hang" else OperationFailed):
        compiled.execute_fenced(X, B, out=out, deadline=0.2).result()
    gate.set()
    assert written.wait(LIMIT) and (out == -7).all()


def test_an_execution_that_was_submitted_writes_nothing_after_its_deadline():
    dice = random.Random(1)
    for _ in range(60):
        device = Own(lambda request, control: (jitter(dice, 0.008), add(request, control))[1])
        compiled, out = nnhal.compile(sums(), devices=[device]), np.full(4, -7, np.float32)
        try:
            compiled.submit(X, B, out=out, deadline=0.004).result()
        except nnhal.MissedDeadline:
            after = out.copy()
            compiled.close()
            until(lambda device=device: device.closed, "the late one has come back")
            assert (out == after).all()


def test_a_burst_is_told_to_end_before_its_model_is_closed():
    seen: list[str] = []
    device = Own(add, burst_closed=lambda: seen.append("burst closed"), close=lambda: seen.append("closed"))
    compiled = nnhal.compile(sums(), devices=[device])
    burst = compiled.burst()
    burst(X, B)
    compiled.close()
    burst.close()
    assert seen == ["burst closed", "closed"]


class Algebra(np.ndarray):
    """As numpy's matrices multiply."""

    __mul__ = np.ndarray.__matmul__


def test_an_array_of_another_class_is_taken_for_the_array_that_it_is():
    device = Own(lambda request, control: request.write(0, request.inputs[0] * request.inputs[1]))  # type: ignore[operator]
    compiled = nnhal.compile(make_model(lambda b, x, y: b.mul(x, y), x=(2, 2), y=(2, 2)), devices=[device])
    values = np.float32([[1, 2], [3, 4]])
    assert compiled(values.view(Algebra), values.view(Algebra)).tolist() == [[1, 4], [9, 16]]
    with pytest.raises(nnhal.InvalidRequest, match="has masked elements"):
        compiled(np.ma.masked_array(values, values > 2), values)


def test_a_buffer_of_the_drivers_own_has_to_be_said_to_be_filled():
    def run(request: Request, control: Control, how: str) -> None:
        result = request.inputs[0] + request.inputs[1]  # type: ignore[operator]
        if how == "write":
            request.write(0, result)
        elif how == "fill":
            request.output_buffers[0].contents = result
            request.filled(0, result.shape)

    for how in ("fill", "write", "nothing"):
        device = Own(lambda request, control, how=how: run(request, control, how))
        device.allocate = OwnBuffer  # type: ignore[assignment]
        compiled = nnhal.compile(sums(), devices=[device])
        out = nnhal.allocate([(compiled, "output", 0)])
        out.write(np.full(4, -100, np.float32))
        if how == "fill":
            assert compiled(X, B, out=out) is out and (out.read() == X + 1).all()
            continue
        with pytest.raises(ContractBroken, match=r"output 0 \(y\) (is written, must be filled|was not written)"):
            compiled(X, B, out=out)
        with pytest.raises(OperationFailed):
            out.read()
