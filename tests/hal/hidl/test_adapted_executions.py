"""Executions of drivers written against NN HAL 1.0, 1.1 and 1.2: memory, deadlines, shapes, timing, wrong answers."""

import threading
from functools import partial

import numpy as np
import pytest

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    Cancelled,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    OperationFailed,
)
from nnhal.drivers.samples import full
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.hidl.adapters import adapt
from nnhal.hal.request import Control, sufficient
from tests import requests
from tests.hal.hidl.old_drivers import (
    FAILED,
    NONE,
    X,
    answering,
    executing,
    prepared,
    preparing,
    run,
    soon,
)
from tests.models import doubling
from tests.waiting import LIMIT, together

# ---------------------------------------------------------------------------------------------- executing


def test_large_inputs_are_the_callers_own_memory_and_outputs_never():
    seen = []
    x = np.arange(2000, dtype=np.float32).reshape(2, 1000)

    def look(request, callback, real):
        seen.extend(request.pools)
        assert [a.dimensions for a in (*request.inputs, *request.outputs)] == [(2, 1000), (2, 1000)]
        return real.execute(request, callback)

    y = np.empty((2, 1000), np.float32)
    requests.run(prepared(executing(look), doubling(2, 1000)), [x], rooms=[y])
    assert [np.shares_memory(p.bytes(), a) for p, a in zip(seen, (x, y), strict=True)] == [True, False]
    assert [p.readonly for p in seen] == [True, False]
    np.testing.assert_array_equal(y, 2 * x)


def test_arrays_with_gaps_are_copied():
    y = np.zeros((3, 8), np.float32)
    requests.run(prepared(full.FullV1_0()), [np.repeat(X, 2, 1)[:, ::2]], rooms=[y[:, ::2]])
    np.testing.assert_array_equal(y[:, ::2], 2 * X)
    assert not y[:, 1::2].any()


def test_room_in_bytes_gets_the_result_and_its_shape():
    small, large = np.zeros(47, np.uint8), np.zeros(64, np.uint8)
    model = prepared(full.FullV1_0())
    for room, enough in ((large, True), (small, False)):
        request = requests.run(model, [X], rooms=[room])
        assert (request.shapes, sufficient(request)) == ([(3, 4)], [enough])
    np.testing.assert_array_equal(large[:48].view(np.float32).reshape(3, 4), 2 * X)
    assert not large[48:].any() and not small.any()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (ErrorStatus.INVALID_ARGUMENT, InvalidArgument),
        (ErrorStatus.DEVICE_UNAVAILABLE, DeviceUnavailable),
        (FAILED, OperationFailed),
        (12345, OperationFailed),
    ],
)
def test_a_failed_execution_raises_what_its_status_stands_for(status, kind):
    def launch(request, callback, real):
        return status

    def end(request, callback, real):
        callback.notify(status)
        return NONE

    for act in (launch, end):
        with pytest.raises(kind):
            run(executing(act))


def test_a_late_driver_does_not_write_to_the_callers_memory():
    ended, missed = threading.Event(), threading.Event()

    def late(request, callback, real):
        def go():
            missed.wait(LIMIT)
            real.execute(request, callback)
            ended.set()

        threading.Thread(target=go).start()
        return NONE

    y = np.zeros((3, 4), np.float32)
    with pytest.raises(MissedDeadline):
        requests.run(prepared(executing(late)), [X], Control(deadline=soon(0.1)), [y])
    missed.set()
    assert ended.wait(LIMIT)
    assert not y.any()


def test_an_execution_that_is_cancelled_ends():
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    with pytest.raises(Cancelled):
        run(executing(lambda request, callback, real: NONE), Control(cancelled=cancelled))


def test_many_executions_at_once():
    model = prepared(full.FullV1_0())
    results = {}

    def one(n):
        results[n] = requests.run(model, [X + n], Control(deadline=soon(30))).results[0]

    together([partial(one, n) for n in range(16)])
    for n in range(16):
        np.testing.assert_array_equal(results[n], 2 * (X + n))


# ---------------------------------------------------------------------------------------------- 1.2


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda s, shapes, t: (s, [*shapes, *shapes], t), "gave 2 output shapes, must be 1"),
        (lambda s, shapes, t: (s, None, t), "gave None, must give output shapes"),
        (lambda s, shapes, t: (ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes, t), "must name the output"),
        (lambda s, shapes, t: (FAILED, (), t), "executeSynchronously failed with GENERAL_FAILURE"),
    ],
)
def test_answers_that_cannot_be_are_errors_of_the_driver(result, message):
    with pytest.raises(OperationFailed, match=message):
        run(answering(result))


@pytest.mark.parametrize(("value", "form"), [("1", "executeSynchronously"), ("0", "execute_1_2")])
def test_the_environment_chooses_between_synchronous_and_callback(monkeypatch, value, form):
    monkeypatch.setenv("NNHAL_SYNC_EXEC", value)
    calls: list[str] = []
    model = adapt(full.FullV1_2(), trace=calls.append).prepare(doubling(3, 4), Hints())
    request = model.request([X])
    timing = request.execute(model.run, Control(measure=True))
    np.testing.assert_array_equal(request.results[0], 2 * X)
    assert calls[-1] == form and timing is not None and timing.in_driver is not None


def test_a_driver_of_1_2_may_prepare_a_model_of_1_0():
    out, _ = run(executing(lambda request, callback, real: real.execute(request, callback), full.FullV1_2))
    np.testing.assert_array_equal(out, 2 * X)


# ------------------------------------------------------------------------------------------- drivers that never notify


# --------------------------------------------------------------------------------------------- whose stack is told


def act_of_the_driver(*_):
    return {}["conv_weights"]


@pytest.mark.parametrize(
    "driver", [preparing(act_of_the_driver), executing(act_of_the_driver)], ids=["prepare", "execute"]
)
def test_the_stack_under_what_a_drivers_method_raises_is_the_drivers(driver):
    with pytest.raises(OperationFailed, match="raised KeyError") as told:
        model = checked_prepared(adapt(driver), doubling(3, 4), Hints())
        model.request([X]).execute(model.run, Control())
    assert "in act_of_the_driver" in told.value.stack and told.value.stack.endswith("KeyError: 'conv_weights'")
    assert isinstance(told.value.__cause__, KeyError) and "adapters.py" not in told.value.stack
