"""Who runs an execution and until when: outcomes, limits, what is closed when."""

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import BadState, Closed, ContractBroken, DriverFailed, OperationFailed
from nnhal.hal.request import UNLIMITED, Argument, Control, Request, Signature, Timing
from nnhal.runtime.deadline_executor import DeadlineExecutor
from tests.runtime.devices import failing
from tests.runtime.test_execution import wait_until

LONG = 60  # seconds after which something counts as hanging
WHERE = "device lane"
FLOAT = np.dtype(np.float32)
SIGNATURE = Signature([], [Argument("output 0", FLOAT, (2,))], WHERE)
ONES = np.ones(2, np.float32)


class Engine:
    """A prepared model that counts what it is asked to close."""

    def __init__(self, execute: Any = None) -> None:
        self.closed = 0
        if execute is not None:
            self.execute = execute

    def close(self) -> None:
        self.closed += 1


def lane(engine: Engine) -> DeadlineExecutor:
    made = DeadlineExecutor(WHERE)
    made.prepared = engine  # type: ignore[assignment]
    return made


def good(request: Request, control: Control) -> Timing:
    request.write(0, ONES)
    return Timing(1, 2)


def within(seconds: float) -> Control:
    return Control(deadline=time.monotonic_ns() + int(seconds * 1e9))


def test_what_a_failed_execution_had_is_gone_with_its_error_without_a_collection():
    """Engines' instances are in the frames of its traceback."""

    class Instance:
        pass

    instances: list[Any] = []

    def fail(request: Request, control: Control) -> Timing:
        instance = Instance()
        instances.append(weakref.ref(instance))
        raise OperationFailed("mine")

    gc.disable()
    try:
        with pytest.raises(OperationFailed) as raised:
            lane(Engine()).run(fail, Request(SIGNATURE, []), within(LONG))
        del raised
        wait_until(lambda: instances[0]() is None)
    finally:
        gc.enable()


def test_it_gives_what_the_driver_measured_and_the_request_its_results():
    request = Request(SIGNATURE, [])
    assert lane(Engine()).run(good, request, within(LONG)) == Timing(1, 2)
    assert request.ended and request.results[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (OperationFailed("mine"), OperationFailed),
        (ValueError("mine"), DriverFailed),
        (KeyboardInterrupt("mine"), nnhal.NnhalError),
    ],
)
def test_what_the_driver_raises_ends_it_with_the_device_named(raised, told):
    request = Request(SIGNATURE, [])
    with pytest.raises(told, match=r"device lane: .*mine"):
        lane(Engine()).run(failing(raised), request, within(LONG))
    with pytest.raises(nnhal.NnhalError):
        request.write(0, ONES)


def test_nothing_begins_after_the_deadline_or_in_a_closed_lane():
    ran: list[int] = []
    own = lane(Engine())
    with pytest.raises(nnhal.MissedDeadline):
        own.run(lambda *_: ran.append(1), Request(SIGNATURE, []), Control(deadline=1))
    own.close()
    with pytest.raises(Closed, match=r"^device lane: its prepared model was closed$"):
        own.run(lambda *_: ran.append(1), Request(SIGNATURE, []), within(LONG))
    assert ran == []


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_it_ends_in_time_whatever_the_driver_does_and_what_is_late_is_not_taken(how):
    gate, came, late = threading.Event(), threading.Event(), []

    def hang(request: Request, control: Control) -> None:
        came.set()
        gate.wait(LONG)
        try:
            request.write(0, ONES)
        except Closed:
            late.append(1)
            raise

    engine = Engine()
    own, request = lane(engine), Request(SIGNATURE, [], [out := np.zeros(2, np.float32)])
    cancelled = threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    control = within(0.05) if how == "deadline" else Control(cancelled=cancelled)
    with pytest.raises(nnhal.MissedDeadline if how == "deadline" else nnhal.Cancelled):
        own.run(hang, request, control)
    assert came.is_set() and request.ended
    own.close()
    assert engine.closed == 0  # it is still in there
    gate.set()
    wait_until(lambda: engine.closed == 1)
    assert late == [1] and not out.any()
    own.close()
    assert engine.closed == 1


def test_it_is_closed_once_when_the_last_of_several_has_come_back():
    gates, engine = [threading.Event() for _ in range(2)], Engine()
    own, came = lane(engine), []

    def run(gate: threading.Event) -> None:
        def wait(request: Request, control: Control) -> None:
            came.append(1)
            gate.wait(LONG)
            good(request, control)

        own.run(wait, Request(SIGNATURE, []), within(LONG))

    threads = [threading.Thread(target=run, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(came) == 2)
    own.close()
    gates[0].set()
    threads[0].join(LONG)
    assert engine.closed == 0
    gates[1].set()
    threads[1].join(LONG)
    wait_until(lambda: engine.closed == 1)


def test_what_was_never_prepared_has_nothing_to_close_until_it_is():
    own, engine = DeadlineExecutor(WHERE), Engine()
    own.close()
    own.prepared = engine  # type: ignore[assignment]
    own.close()
    assert engine.closed == 1


# ----------------------------------------------------------------------------------------------------------- launched


def launched(*told: Any, write: bool = True) -> Timing | None:
    """Of a driver that executes in the background itself, and notifies this."""

    def execute(request: Request, control: Control, notify: Any) -> None:
        if write:
            request.write(0, ONES)
        for each in told:
            notify(*each)

    return lane(Engine(execute)).run(good, Request(SIGNATURE, []), UNLIMITED, launched=True)


def test_what_a_driver_notifies_is_the_end_and_once_is_enough(caplog):
    assert launched((None, Timing(3, 4))) == Timing(3, 4)
    assert not caplog.records
    assert launched((None, Timing(3, 4)), (OperationFailed("again"), None)) == Timing(3, 4)
    assert [record.getMessage() for record in caplog.records] == ["device lane: notified again, ignored"]


@pytest.mark.parametrize(
    ("told", "kind", "said"),
    [
        (OperationFailed("mine"), OperationFailed, "mine"),
        (ValueError("mine"), DriverFailed, r"execute\(\) raised ValueError: mine"),
        ("text", ContractBroken, "notified 'text', must be an NnhalError or None"),
        (0, ContractBroken, "notified 0, must be an NnhalError or None"),
    ],
)
def test_an_error_that_is_notified_is_raised(told, kind, said):
    with pytest.raises(kind, match=said):
        launched((told, None))


def test_an_output_that_was_not_written_by_then_is_the_drivers_fault():
    with pytest.raises(ContractBroken, match="output 0 was not written"):
        launched((None, None), write=False)


def test_a_launch_that_raises_has_left():
    engine = Engine(failing(BadState("mine")))
    own, request = lane(engine), Request(SIGNATURE, [])
    with pytest.raises(BadState, match="mine"):
        own.run(good, request, UNLIMITED, launched=True)
    assert request.ended
    own.close()
    assert engine.closed == 1


def test_one_that_was_notified_has_left():
    engine = Engine(lambda request, control, notify: (request.write(0, ONES), notify(None, None)))
    own = lane(engine)
    own.run(good, Request(SIGNATURE, []), UNLIMITED, launched=True)
    own.close()
    assert engine.closed == 1


def test_a_notification_that_comes_later_is_waited_for():
    def execute(request: Request, control: Control, notify: Any) -> None:
        def end() -> None:
            request.write(0, ONES)
            notify(None, Timing(5, 6))

        threading.Timer(0.05, end).start()

    assert lane(Engine(execute)).run(good, Request(SIGNATURE, []), within(LONG), launched=True) == Timing(5, 6)
