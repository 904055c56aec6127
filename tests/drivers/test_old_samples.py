"""The full samples of 1.0 to 1.2 by the HAL's own methods: statuses, notified exactly once."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceStatus, DeviceType, ErrorStatus, OperandType, Preference
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.drivers.samples import full
from nnhal.hal.hidl.arguments import HalRequest, HalTiming, RequestArgument
from nnhal.hal.hidl.interfaces import InlinedModel
from nnhal.hal.utilities import OldCapabilities
from nnhal.model.graph import Model
from tests.models import make_model

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
STATED = (1.1, 1.1)  # a little slower than the CPU
X = np.float32([1, -2, 3])


def inlined(model: Model) -> InlinedModel:
    return InlinedModel(**{name: getattr(model, name) for name in ("main", "values", "pools")})


def model() -> InlinedModel:
    return inlined(make_model(lambda b, x: b.relu(x), (3,)))


def broken() -> InlinedModel:
    """A model whose operation reads an operand that is not there."""
    whole = model()
    (operation,) = whole.main.operations

    return replace(whole, main=replace(whole.main, operations=(replace(operation, inputs=(9,)),)))


class Told:
    """A callback of either kind: what it was notified of."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.there = threading.Event()

    def notify(self, *told: Any) -> None:
        self.calls.append(told)
        self.there.set()

    notify_1_2 = notify

    def one(self) -> Any:
        assert self.there.wait(30)
        (told,) = self.calls
        return told


def request(room: int = 12, length: int = 12) -> tuple[HalRequest, Any]:
    """The request for one execution over memory of a pool each, and the pool of the output."""
    given, made = X.view(np.uint8).copy(), np.zeros(room, np.uint8)
    places = RequestArgument(pool=0, length=length), RequestArgument(pool=1, length=room)
    return HalRequest(places[:1], places[1:], (Memory.wrap(given), Memory.wrap(made))), made


OLD = [full.v1_0(), full.v1_1(), full.v1_2()]


@pytest.mark.parametrize("driver", OLD, ids=lambda d: d.name)
def test_it_states_to_be_a_little_slower_than_the_cpu_and_is_never_busy(driver):
    status, stated = driver.getCapabilities()
    assert status == NONE and stated == OldCapabilities(STATED, STATED)
    assert driver.getStatus() == DeviceStatus.AVAILABLE


def test_later_levels_state_more():
    assert full.v1_1().getCapabilities_1_1() == (NONE, OldCapabilities(STATED, STATED, STATED))
    driver = full.v1_2()
    status, stated = driver.getCapabilities_1_2()
    assert status == NONE and set(stated.operands.values()) == {STATED} and stated.relaxed_tensor == STATED
    assert driver.getVersionString() == (NONE, "sample") and driver.getType() == (NONE, DeviceType.CPU)
    assert driver.getSupportedExtensions() == (NONE, ()) and driver.getNumberOfCacheFilesNeeded() == (NONE, 0, 0)
    newest = full.v1_3()
    assert newest.level == V1_3 and newest.capabilities().of(OperandType.TENSOR_INT32) == STATED
    assert newest.version == "sample"


ASKED = [
    (full.v1_0(), "getSupportedOperations"),
    (full.v1_1(), "getSupportedOperations_1_1"),
    (full.v1_2(), "getSupportedOperations_1_2"),
]


@pytest.mark.parametrize(("driver", "method"), ASKED, ids=[method for _, method in ASKED])
def test_all_that_has_a_kernel_is_supported_and_a_wrong_model_is_an_error(driver, method):
    assert getattr(driver, method)(model()) == (NONE, [True])
    assert getattr(driver, method)(broken()) == (INVALID, ())


def prepared(level: int, graph: InlinedModel, preference: Any = Preference.LOW_POWER) -> tuple[ErrorStatus, Told]:
    told = Told()
    if level == 0:
        return full.v1_0().prepareModel(graph, told), told
    if level == 1:
        return full.v1_1().prepareModel_1_1(graph, preference, told), told
    return full.v1_2().prepareModel_1_2(graph, preference, (), (), bytes(32), told), told


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_model_is_handed_over_once_with_the_status_that_is_returned(level):
    status, told = prepared(level, model())
    found, made = told.one()
    assert status == found == NONE and made is not None
    assert hasattr(made, "executeSynchronously") == (level == 2)
    status, told = prepared(level, broken())
    assert told.one() == (INVALID, None) and status == INVALID


@pytest.mark.parametrize("level", [1, 2])
def test_a_preference_that_there_is_not_is_refused(level):
    for preference in Preference:
        assert prepared(level, model(), preference)[0] == NONE
    status, told = prepared(level, model(), 3)
    assert status == INVALID and told.one() == (INVALID, None)


# ------------------------------------------------------------------------------------------------------------ executions


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_execution_in_the_background_is_notified_once(level):
    made = prepared(level, model())[1].one()[1]
    asked, output = request()
    told = Told()
    assert made.execute(asked, told) == NONE and told.one() == (NONE,)
    assert output.view(np.float32).tolist() == [1, 0, 3]


@pytest.mark.parametrize("level", [0, 2])
def test_what_does_not_fit_the_model_is_told_before_the_launch(level):
    made = prepared(level, model())[1].one()[1]
    asked, output = request(length=8)
    told = Told()
    assert made.execute(asked, told) == INVALID and told.one() == (INVALID,)
    assert not output.any()


def test_a_result_with_too_little_room_is_a_failure_at_1_0_and_has_its_shape_from_1_2_on():
    made = prepared(2, model())[1].one()[1]
    asked, output = request(room=8)
    told = Told()
    assert made.execute(asked, told) == NONE and told.one() == (FAILURE,)
    status, shapes, timing = made.executeSynchronously(asked, True)
    assert status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE and timing == HalTiming()
    assert [tuple(shape) for shape in shapes] == [((3,), False)] and not output.any()


def test_a_synchronous_execution_gives_shapes_and_time_where_it_is_measured():
    made = prepared(2, model())[1].one()[1]
    asked, output = request()
    status, shapes, timing = made.executeSynchronously(asked, False)
    assert (status, [tuple(shape) for shape in shapes], timing) == (NONE, [((3,), True)], HalTiming())
    assert output.view(np.float32).tolist() == [1, 0, 3]
    _, _, timing = made.executeSynchronously(asked, True)
    assert timing != HalTiming()
    assert made.executeSynchronously(request(length=8)[0], True) == (INVALID, (), HalTiming())
    told = Told()
    assert made.execute_1_2(asked, False, told) == NONE
    status, shapes, timing = told.one()
    assert (status, [tuple(shape) for shape in shapes], timing) == (NONE, [((3,), True)], HalTiming())


@pytest.mark.parametrize(
    ("raised", "status"),
    [(nnhal.UnsupportedModel("no"), INVALID), (RuntimeError("broken"), FAILURE), (nnhal.Cancelled("no"), FAILURE)],
)
def test_an_execution_that_fails_is_notified_once_too(monkeypatch, raised, status):
    made = prepared(2, model())[1].one()[1]

    def run(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(made.interpreter, "run", run)
    told = Told()
    assert made.execute(request()[0], told) == NONE
    assert told.one() == (status,)
    told = Told()
    assert made.execute_1_2(request()[0], False, told) == NONE
    assert told.one() == (status, (), HalTiming())


def test_an_execution_that_breaks_off_is_notified_too_and_breaks_off(monkeypatch):
    made = prepared(2, model())[1].one()[1]
    threads: list[threading.Thread] = []
    broken_off: list[BaseException] = []

    class Watched(threading.Thread):
        def run(self) -> None:
            threads.append(self)
            try:
                super().run()
            except SystemExit as error:
                broken_off.append(error)

    def ended(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(full.Request, "execute", ended)
    monkeypatch.setattr(full.threading, "Thread", Watched)
    first, second = Told(), Told()
    assert made.execute(request()[0], first) == NONE and first.one() == (FAILURE,)
    assert made.execute_1_2(request()[0], False, second) == NONE and second.one() == (FAILURE, (), HalTiming())
    for thread in threads:
        thread.join(30)
    assert len(broken_off) == 2 and all(thread.daemon for thread in threads)
