"""Drivers written against NN HAL 1.0, 1.1 and 1.2 under the runtime: who they are, what they take, how they prepare."""
# ruff: noqa: N802 - the methods have the HAL's names

import math
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceStatus, ErrorStatus
from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, InvalidModel, MissedDeadline, OperationFailed
from nnhal.base.levels import V1_0, V1_1, V1_2
from nnhal.conformance.suite import run_vector
from nnhal.conformance.vectors import index, read
from nnhal.drivers.samples import full
from nnhal.hal.device import Capabilities, Performance
from nnhal.hal.hidl.adapters import adapt
from nnhal.hal.hidl.interfaces import SINCE
from nnhal.hal.utilities import OldCapabilities
from nnhal.ipc.protocol import wire
from nnhal.runtime import discovery
from tests.hal.hidl.old_drivers import FAILED, NONE, Plain, X, prepared, preparing, reshaped, run, soon
from tests.models import doubling, make_model

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_hal_driver.py"
# ---------------------------------------------------------------------------------------------- under the runtime


def test_a_driver_of_1_0_in_40_lines_runs_unchanged():
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    device = nnhal.load_driver(EXAMPLE)
    assert (device.name, device.level, device.status()) == ("my_hal_driver", V1_0, DeviceStatus.AVAILABLE)
    model = make_model(lambda b, x, y: b.mul(b.add(x, y), y), (3, 4), (4,))
    compiled = nnhal.compile(model, devices=device)
    other = np.float32([1, 2, 3, 4])
    np.testing.assert_array_equal(compiled(X, other), (X + other) * other)


def test_what_a_driver_of_1_0_refuses_goes_elsewhere():
    device = nnhal.load_driver(EXAMPLE)
    compiled = nnhal.compile(make_model(lambda b, x: b.abs(b.add(x, x)), (3, 4)), devices=[device, "reference"])
    assert [c.device for c in compiled.placement.choices] == ["my_hal_driver", "reference"]
    assert "needs level 1.2" in compiled.placement.choices[1].others["my_hal_driver"]
    np.testing.assert_array_equal(compiled(-X), 2 * X)


def test_a_file_that_gives_neither_device_nor_driver_is_refused(tmp_path):
    (tmp_path / "odd.py").write_text("device = dict\n")
    with pytest.raises(
        DeviceUnavailable, match=r"gave dict, must give a nnhal\.hal\.device\.Device or a driver of the"
    ):
        nnhal.load_driver(tmp_path / "odd.py")


# ---------------------------------------------------------------------------------------------- published vectors

DRIVERS = {V1_0: full.FullV1_0, V1_1: full.FullV1_1, V1_2: full.FullV1_2}
CALLED = {
    V1_0: {"getSupportedOperations", "prepareModel", "execute"},
    V1_1: {"getSupportedOperations_1_1", "prepareModel_1_1", "execute"},
    V1_2: {"getSupportedOperations_1_2", "prepareModel_1_2", "executeSynchronously"},
}


def run_vectors(vectors: Path, level, one_in: int) -> None:
    calls: list[str] = []
    device = adapt(DRIVERS[level](), trace=calls.append)
    calls.clear()

    def chosen(name: str) -> bool:
        return zlib.crc32(name.encode()) % one_in == 0

    up_to = [f"V1_{n}" for n in range(level)]
    wanted = sum(e["minSupportedVersion"] in up_to and chosen(i) for i, e in index(vectors).items())
    passed = 0
    for vector in read(vectors):
        if vector.level is not None and vector.level <= level and chosen(vector.id):
            outcome = run_vector(vector, device)
            assert outcome.verdict == "passed", outcome
            passed += 1
    assert passed == wanted > 0
    assert set(calls) == CALLED[level]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", DRIVERS)
def test_a_tenth_of_the_published_vectors_passes_at_each_level(vectors, level):
    run_vectors(vectors, level, 10)


@pytest.mark.nightly
@pytest.mark.parametrize("level", DRIVERS)
def test_all_published_vectors_pass_at_each_level(vectors, level):
    run_vectors(vectors, level, 1)


def test_methods_have_the_levels_that_the_wire_form_has():
    forms = {
        method.method if form == method.forms[0] else f"{method.method}_1_{form - 1}": form
        for method in wire.ClientCalls.__args__
        for form in method.forms
        if method.method
    }
    assert {name: SINCE[name] for name in forms if name in SINCE} == {n: f for n, f in forms.items() if n in SINCE}
    assert len(set(forms) & set(SINCE)) >= 20


# ---------------------------------------------------------------------------------------------- who the driver is


def test_a_driver_that_lacks_a_method_is_refused_by_its_name():
    class Lacking:
        def getCapabilities(self):
            return NONE, OldCapabilities(Performance(), Performance())

    with pytest.raises(InvalidArgument, match="has no getSupportedOperations, prepareModel, must have"):
        adapt(Lacking())
    with pytest.raises(InvalidArgument, match="object is not a driver"):
        adapt(object())


def test_old_capabilities_become_a_table_and_are_asked_for_once():
    calls: list[str] = []
    device = adapt(full.FullV1_1(), trace=calls.append)
    stated = device.capabilities()
    assert stated.operands[Type.TENSOR_FLOAT32] == (1.1, 1.1) and math.isinf(stated.if_performance[0])
    assert device.capabilities() is stated and calls == ["getCapabilities_1_1"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((FAILED, None), "getCapabilities failed with GENERAL_FAILURE"),
        ((NONE, Capabilities.uniform(1.0)), "gave Capabilities, must be OldCapabilities"),
        (None, "getCapabilities gave NoneType, must give a status and 1 values"),
        ((77, None), "gave status 77, must be an ErrorStatus"),
        ((NONE, OldCapabilities(Performance(math.nan), Performance())), "performance of .* is nan, must be a number"),
        ((NONE, OldCapabilities(Performance(-1.0), Performance())), "performance of .* is -1.0, must be a number"),
    ],
)
def test_capabilities_that_cannot_be_are_refused(answer, message):
    class Lying(Plain):
        def getCapabilities(self):
            return answer

    with pytest.raises(nnhal.NnhalError, match=message):
        discovery.check(adapt(Lying()))


def test_the_status_is_the_drivers_own():
    class Busy(Plain):
        answer = DeviceStatus.BUSY

        def getStatus(self):
            return self.answer

    assert adapt(Busy()).status() == DeviceStatus.BUSY
    Busy.answer = 9
    with pytest.raises(OperationFailed, match="getStatus gave 9"):
        adapt(Busy()).status()


# ---------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((NONE, []), "gave 0 verdicts, must be 1"),
        ((NONE, [True, True]), "gave 2 verdicts, must be 1"),
        ((NONE, None), "gave no verdicts, must be 1"),
        ((ErrorStatus.INVALID_ARGUMENT, []), "failed with INVALID_ARGUMENT"),
    ],
)
def test_verdicts_that_cannot_be_leave_the_driver_out(answer, message):
    class Lying(Plain):
        def getSupportedOperations(self, model):
            return answer

    with pytest.raises(nnhal.NnhalError, match=message):
        adapt(Lying()).supports(doubling(3, 4))
    with pytest.raises(nnhal.UnsupportedModel, match=message):
        nnhal.compile(doubling(3, 4), devices=adapt(Lying()))


def test_an_old_driver_is_asked_only_about_what_its_level_has():
    asked = []

    class Curious(Plain):
        def getSupportedOperations(self, model):
            asked.append([o.type for o in model.operations])
            return NONE, [True] * len(model.operations)

    model = make_model(lambda b, x: b.mul(b.abs(b.add(x, x)), x), (3, 4))
    verdicts = adapt(Curious()).supports(model)
    assert [v.ok for v in verdicts] == [True, False, True]
    assert verdicts[1].reason == "needs level 1.2: ABS exists since 1.2; the device is at 1.0"
    assert asked == [[Op.ADD, Op.MUL]]


def test_unknown_outputs_are_never_placed_below_1_2():
    verdicts = {level: adapt(DRIVERS[level]()).supports(reshaped(False))[0] for level in DRIVERS}
    wanted = r"operand %2 has shape [?, ?]; inputs and outputs at level 1.0 must be fully specified"
    assert verdicts[V1_0] == (False, wanted)
    assert [v.ok for v in verdicts.values()] == [False, False, True]


def test_unknown_dimensions_inside_are_fine_below_1_2_where_the_rank_is_known():
    device, model = adapt(full.FullV1_0()), reshaped(True)
    assert all(v.ok for v in device.supports(model))
    compiled = nnhal.compile(model, devices=device)
    other = np.ones((2, 6), np.float32)
    np.testing.assert_array_equal(compiled(X, np.int32([2, 6]), other), X.reshape(2, 6) + other)


# ---------------------------------------------------------------------------------------------- preparing


def test_a_prepared_model_may_come_from_any_thread():
    def later(callback, model):
        threading.Timer(0.05, callback.notify, (NONE, model)).start()
        return NONE

    np.testing.assert_array_equal(run(preparing(later))[0], 2 * X)


def test_no_notification_by_the_deadline_is_a_missed_deadline():
    kept = []

    def never(callback, model):
        kept.append((callback, model))
        return NONE

    with pytest.raises(MissedDeadline, match="prepareModel: the driver notified nothing by the deadline"):
        prepared(preparing(never), deadline=soon())
    kept[0][0].notify(NONE, kept[0][1])  # too late: nobody may fall over it


@pytest.mark.parametrize("status", [NONE, FAILED])
def test_an_error_of_the_launch_counts_whatever_is_notified(status):
    def both(callback, model):
        callback.notify(status, model if status == NONE else None)
        return ErrorStatus.DEVICE_UNAVAILABLE

    with pytest.raises(DeviceUnavailable, match="prepareModel failed with DEVICE_UNAVAILABLE"):
        prepared(preparing(both))


@pytest.mark.parametrize(
    ("notified", "message"),
    [
        ((ErrorStatus.INVALID_ARGUMENT, None), "prepareModel ended with INVALID_ARGUMENT"),
        ((NONE, None), "gave NoneType, must be a prepared model"),
        ((NONE,), "gave NoneType, must be a prepared model"),
        ((), "gave status None, must be an ErrorStatus"),
    ],
)
def test_what_is_notified_is_looked_at(notified, message):
    def tell(callback, model):
        callback.notify(*notified)
        return NONE

    with pytest.raises(nnhal.NnhalError, match=message):
        prepared(preparing(tell))


def test_a_model_above_the_level_is_not_prepared():
    with pytest.raises(InvalidModel, match=r"needs level 1\.2"):
        prepared(full.FullV1_0(), make_model(lambda b, x: b.abs(x), (3, 4)))


@pytest.mark.parametrize("launched", [ErrorStatus.INVALID_ARGUMENT, NONE])
def test_an_invalid_argument_of_prepare_model_is_about_the_model_and_falls_back(launched):
    def refuse(callback, _):
        callback.notify(ErrorStatus.INVALID_ARGUMENT, None)
        return launched

    with pytest.raises(InvalidModel, match="INVALID_ARGUMENT"):
        prepared(preparing(refuse))
    compiled = nnhal.compile(doubling(3, 4), devices=adapt(preparing(refuse)), fallback="allow")
    assert compiled.placement.devices() == {"reference": 1}
