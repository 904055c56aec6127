"""What each form of a HAL method is given, and the room that outputs get: declared, given by the caller, guessed, learnt."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import DeviceStatus, DeviceType, ErrorStatus, Preference, Priority
from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.base.errors import (
    Cancelled,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
)
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.drivers.samples import full
from nnhal.hal.cache.files import TOKEN_SIZE
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Capabilities, Hints
from nnhal.hal.hidl import calls
from nnhal.hal.hidl.adapters import ATTEMPTS, GUESSED_ROOM, adapt
from nnhal.hal.hidl.arguments import NOT_MEASURED, HalTiming, OutputShape, RequestArgument
from nnhal.hal.hidl.calls import LIMIT, SECONDS, Callback, Calls, wait_for_callback
from nnhal.hal.hidl.interfaces import DEVICE_METHODS, PREPARED_METHODS, InlinedModel, hal_level, newest_method
from nnhal.hal.hidl.packets import BurstRequest, Memories, PacketQueue
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests import requests
from tests.hal.hidl.old_drivers import (
    NONE,
    Plain,
    X,
    answering,
    executing,
    prepared,
    preparing,
    reshaped,
    run,
    soon,
    tiled,
)
from tests.models import doubling, one_operation

TOO_SMALL = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


# -------------------------------------------------------------------------------------------------- methods' forms


class Noting:
    """A driver with the methods of a level alone; `prepareModel` in whatever form notes what it is given."""

    def __init__(self, form: str) -> None:
        self.given: list[Any] = []
        self.executed: list[Any] = []
        setattr(self, form, self.prepare)

    def prepare(self, model: Model, *arguments: Any) -> ErrorStatus:
        self.given += [model, *arguments[:-1]]
        arguments[-1].notify(NONE, NotingPrepared(self.executed, model))
        return NONE


class NotingPrepared(full.PreparedV1_2):
    def __init__(self, executed: list[Any], model: Any) -> None:
        super().__init__(model)
        self.executed = executed

    def executeSynchronously_1_3(self, request: Any, measure: bool, deadline: Any, loops: Any) -> Any:  # noqa: N802
        self.executed += [measure, deadline, loops]
        return super().executeSynchronously(request, measure)

    def execute_1_3(self, request: Any, measure: bool, deadline: Any, loops: Any, callback: Any) -> Any:
        self.executed += [measure, deadline, loops]
        callback.notify_1_3(*super().executeSynchronously(request, measure))
        return NONE

    def executeSynchronously(self, request: Any, measure: bool) -> Any:  # noqa: N802
        self.executed += [measure]
        return super().executeSynchronously(request, measure)

    def execute_1_2(self, request: Any, measure: bool, callback: Any) -> Any:
        self.executed += [measure]
        callback.notify_1_2(*super().executeSynchronously(request, measure))
        return NONE


class Asked:
    def getCapabilities(self) -> Any:  # noqa: N802
        return NONE, Capabilities.uniform(0.5)

    def getSupportedOperations(self, model: Any) -> Any:  # noqa: N802
        return NONE, [True] * len(model.main.operations)

    def getVersionString(self) -> Any:  # noqa: N802
        return NONE, 3

    def getType(self) -> Any:  # noqa: N802
        return NONE, 4

    def getSupportedExtensions(self) -> Any:  # noqa: N802
        return NONE, ["com.example.one"]


def noting(form: str) -> Any:
    return type("Driver", (Noting, Asked), {})(form)


HINTS = Hints(Preference.LOW_POWER, Priority.HIGH, deadline=2**62)
KEPT = [(), (), bytes(32)]


@pytest.mark.parametrize(
    ("form", "level", "given"),
    [
        ("prepareModel", V1_0, []),
        ("prepareModel_1_1", V1_1, [Preference.LOW_POWER]),
        ("prepareModel_1_2", V1_2, [Preference.LOW_POWER, *KEPT]),
        ("prepareModel_1_3", V1_3, [Preference.LOW_POWER, Priority.HIGH, 2**62, *KEPT]),
    ],
)
def test_each_form_of_prepare_model_is_given_what_its_level_tells(form, level, given):
    driver = noting(form)
    assert hal_level(driver) == level and TOKEN_SIZE == 32
    adapt(driver).prepare(doubling(3, 4), HINTS)
    model, *rest = driver.given
    assert rest == given and isinstance(model, InlinedModel) == (level < V1_3)
    assert model.main.operations == doubling(3, 4).main.operations


@pytest.mark.parametrize("way", ["1", "0"])
@pytest.mark.parametrize(
    ("form", "told"),
    [("prepareModel_1_2", [True]), ("prepareModel_1_3", [True, 2**62, 77])],
)
def test_each_form_of_an_execution_is_told_what_its_level_tells(form, told, way, monkeypatch):
    monkeypatch.setenv("NNHAL_SYNC_EXEC", way)
    driver = noting(form)
    model = adapt(driver).prepare(doubling(3, 4), Hints())
    assert requests.run(model, [X], Control(2**62, 77, True)).results[0].tolist() == (X + X).tolist()
    assert driver.executed == told
    requests.run(model, [X])
    assert driver.executed[len(told)] is False


@pytest.mark.parametrize("answer", [7, -1, "CPU", None])
def test_a_type_is_one_of_the_definition(answer):
    driver = noting("prepareModel_1_2")
    driver.getType = lambda: (NONE, answer)
    with pytest.raises(OperationFailed, match=r"driver Driver: getType gave .*, must be one of OTHER, CPU, GPU, ACC"):
        adapt(driver)


def test_what_a_driver_since_1_2_says_of_itself_is_its_device():
    device = adapt(noting("prepareModel_1_2"), "mine")
    assert (device.name, device.version, device.type, device.extensions) == (
        "mine", "3", DeviceType.ACCELERATOR, ("com.example.one",),
    )  # fmt: skip
    assert device.status() == DeviceStatus.UNKNOWN and device.capabilities() == Capabilities.uniform(0.5)
    assert adapt(noting("prepareModel_1_2")).name == "Driver"
    old = adapt(Plain())
    assert (old.name, old.version, old.type, old.extensions) == ("plain", "unknown", DeviceType.OTHER, ())
    assert not old.one_at_a_time


def test_an_inlined_model_has_the_fields_of_its_main_subgraph():
    driver = noting("prepareModel_1_2")
    adapt(driver).prepare(doubling(3, 4), Hints())
    model, main = driver.given[0], driver.given[0].main
    assert (model.operands, model.operations) == (main.operands, main.operations)
    assert (model.input_indexes, model.output_indexes) == (main.inputs, main.outputs)
    assert model.operand_values == model.values and main.operands and main.operations


def test_the_newest_form_up_to_the_level_is_taken():
    class Forms:
        def execute(self) -> None: ...
        def execute_1_3(self) -> None: ...

        execute_1_2 = None
        allocate_1_2 = print

    forms = {level: newest_method(Forms(), "execute", level) for level in (V1_0, V1_1, V1_2, V1_3)}
    assert [found and found[0] for found in forms.values()] == ["execute", "execute", "execute", "execute_1_3"]
    assert newest_method(Forms(), "allocate", V1_3) is None is newest_method(Forms(), "executeFenced", V1_3)
    assert newest_method(full.PreparedV1_2(doubling(3, 4)), "executeSynchronously", V1_1) is None


def test_methods_are_those_of_the_published_interfaces():
    counts = [sum(level == at for level in DEVICE_METHODS.values()) for at in (V1_0, V1_1, V1_2, V1_3)]
    assert counts == [4, 3, 8, 5]
    assert [sum(level == at for level in PREPARED_METHODS.values()) for at in (V1_0, V1_2, V1_3)] == [1, 3, 3]


def test_a_level_above_1_3_is_1_3():
    class New(Plain):
        level = 7

        def prepareModel_1_3(self) -> None: ...  # noqa: N802

    assert hal_level(New()) == V1_3 and hal_level(Plain()) == V1_0 and hal_level(object()) is None


# ----------------------------------------------------------------------------------------------------------- answers


def test_a_driver_that_has_not_the_forms_of_the_level_that_it_says_is_refused():
    class Odd(Asked):
        level = V1_1

        def prepareModel_1_2(self) -> None: ...  # noqa: N802

    with pytest.raises(InvalidArgument, match=r"driver Odd has no prepareModel of level 1.1, must have one"):
        hal_level(Odd())
    Odd.level = V1_2
    assert hal_level(Odd()) == V1_2


def test_an_error_of_nnhals_that_a_driver_raises_stays_what_it_is():
    error = DeviceUnavailable("is asleep")

    def fall(callback: Any, model: Any) -> Any:
        raise error

    with pytest.raises(DeviceUnavailable, match="is asleep") as caught:
        prepared(preparing(fall))
    assert caught.value is error


@pytest.mark.parametrize("limit", ["300", "0.5"])
@pytest.mark.parametrize("deadline", [None, 200_000_000, 400 * 10**9])
@pytest.mark.parametrize("cancellable", [False, True])
def test_a_notification_is_waited_for_until_the_nearer_of_deadline_and_limit(limit, deadline, cancellable, monkeypatch):
    """By a clock that stands still but while somebody waits."""
    now, waits = [0], []

    def patience(until: int, may_be_cancelled: bool) -> float:
        waits.append((until, may_be_cancelled))
        now[0] = until
        return 0.0

    monkeypatch.setenv(LIMIT, limit)
    monkeypatch.setattr(calls, "wait_seconds", patience)
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    end = int(float(limit) * 10**9)
    missed = deadline is not None and deadline < end
    with pytest.raises(MissedDeadline if missed else OperationFailed, match="mine: the driver notified nothing"):
        Callback("mine").wait(deadline, threading.Event() if cancellable else None)
    assert waits == [(deadline if missed else end, cancellable)]


def test_answers_of_more_or_fewer_values_are_refused():
    calls = Calls("mine", V1_0, None)
    for answer in ((NONE,), (NONE, 1, 2), [NONE, 1], None):
        owner = type("Owner", (), {"getCapabilities": lambda self, answer=answer: answer})()
        with pytest.raises(
            OperationFailed, match=r"driver mine: getCapabilities gave .*, must give a status and 1 values"
        ):
            calls.answer(owner, "getCapabilities", 1)
    with pytest.raises(OperationFailed, match=r"driver mine: has no getType at level 1.0, must have one"):
        calls.call(object(), "getType")


@pytest.mark.parametrize("status", [True, False, "NONE", None, 99, 0.5])
def test_what_is_no_status_is_refused(status):
    with pytest.raises(OperationFailed, match=r"driver mine: notify gave status .*, must be an ErrorStatus"):
        Calls("mine", V1_0, None).status(status, "notify")


def test_a_status_may_be_its_number():
    calls = Calls("mine", V1_0, None)
    assert calls.status(0, "notify") is NONE and calls.status(4, "notify") is ErrorStatus.INVALID_ARGUMENT
    calls.expect(NONE, "notify")
    with pytest.raises(InvalidArgument, match="driver mine: notify failed with INVALID_ARGUMENT"):
        calls.expect(4, "notify")


def test_a_driver_has_five_minutes_unless_the_variable_says_otherwise(monkeypatch):
    monkeypatch.delenv(LIMIT, raising=False)
    assert wait_for_callback() == SECONDS == 300
    monkeypatch.setenv(LIMIT, "0.25")
    assert wait_for_callback() == 0.25
    for text in ("0", "-1", "1e9", "inf", "nan", "soon"):
        monkeypatch.setenv(LIMIT, text)
        with pytest.raises(InvalidArgument):
            wait_for_callback()


def test_a_callback_takes_one_notification_before_it_is_closed(caplog):
    callback = Callback("mine: prepareModel")
    callback.notify(NONE, "first")
    callback.notify_1_3(NONE, "second")
    assert callback.wait(None) == (NONE, "first") == callback.result
    assert callback.close() and "mine: prepareModel: notified again or too late" in caplog.text
    unheard = Callback("mine")
    assert not unheard.close()
    unheard.notify(NONE)
    assert unheard.result == ()


@pytest.mark.parametrize("fails", [ErrorStatus.DEVICE_UNAVAILABLE, 99, ZeroDivisionError])
@pytest.mark.parametrize("what", ["prepareModel", "execute"])
def test_what_is_notified_of_a_launch_that_failed_is_ignored(what, fails, caplog):
    kept: list[Any] = []

    def launch(callback: Any) -> Any:
        kept.append(callback)
        if isinstance(fails, type):
            raise fails
        return fails

    if what == "prepareModel":
        driver = preparing(lambda callback, model: launch(callback))
    else:
        driver = executing(lambda request, callback, real: launch(callback))
    with pytest.raises(NnhalError, match=f"driver plain: {what}"):
        run(driver)
    kept[0].notify(NONE, None)
    assert kept[0].result == () and f"driver plain: {what}: notified again or too late" in caplog.text


def test_who_waits_for_a_callback_gives_up_in_time(monkeypatch):
    with pytest.raises(MissedDeadline, match="mine: the driver notified nothing by the deadline"):
        Callback("mine").wait(soon(0.01))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled, match="mine: cancelled by its owner"):
        Callback("mine").wait(None, cancelled)
    monkeypatch.setenv(LIMIT, "0.01")
    for deadline in (None, soon(100)):
        with pytest.raises(OperationFailed, match=r"mine: the driver notified nothing within 0.01 s"):
            Callback("mine").wait(deadline, threading.Event())


# -------------------------------------------------------------------------------------------------------------- room


class Rooms:
    """A driver of 1.2 whose first executions say that they want more room, in the given words; the room each one had."""

    def __init__(self, *says: Any) -> None:
        self.says, self.had = list(says), list[int]()
        noted = self

        class Prepared(full.PreparedV1_2):
            def executeSynchronously(self, request: Any, measure: bool) -> Any:  # noqa: N802
                noted.had.append(request.outputs[0].length)
                if noted.says:
                    return TOO_SMALL, [OutputShape(noted.says.pop(0), False)], HalTiming()
                return super().executeSynchronously(request, measure)

        class Driver(full.FullV1_2):
            def notified(self, notify: Any, _: Any, model: Any) -> Any:
                return super().notified(notify, Prepared, model)

        self.model = prepared(Driver(), tiled())

    def run(self, times: Sequence[int] = (1, 1), rooms: Any = None) -> Request:
        return requests.run(self.model, [X, np.int32(times)], rooms=rooms)


def test_room_that_nobody_knows_is_guessed_by_what_is_given_and_at_least_a_page():
    assert GUESSED_ROOM == 4096 and ATTEMPTS == 6
    driver = Rooms()
    assert driver.run().results[0].tolist() == X.tolist() and driver.had == [4096]
    driver = Rooms()
    model = driver.model
    laid = model._rooms(model.request([np.zeros((3000,), np.float32), np.int32([1, 1])]))
    assert [room.size for room in laid] == [12_008]


@pytest.mark.parametrize(
    ("says", "had"),
    [
        ([()], [4096, 4 * 4096]),
        ([(0, 0)], [4096, 4 * 4096]),
        ([(5000, 0)], [4096, 4 * 4096]),
        ([(30, 40)], [4096, 4800]),
        ([(1, 5000)], [4096, 20_000]),
        ([(32, 32)], [4096, 4 * 4096]),  # as much as it had, so that cannot be all
        ([(2, 2)], [4096, 4 * 4096]),
        ([(), ()], [4096, 4 * 4096, 16 * 4096]),
        ([(30, 40), (40, 40)], [4096, 4800, 6400]),
        ([()] * 5, [4096 * 4**n for n in range(6)]),
    ],
)
def test_the_next_execution_has_the_room_that_was_asked_for_or_four_times_as_much(says, had):
    driver = Rooms(*says)
    assert driver.run().results[0].tolist() == X.tolist()
    assert driver.had == had
    driver.run()
    assert driver.had[-1] == had[-1]  # it was learnt


def test_after_six_executions_it_is_given_up_with_the_shapes():
    driver = Rooms(*[()] * 5, (7, 0))
    with pytest.raises(OutputInsufficientSize, match=r"more room after 6 executions: output 0: \[7, 0\]") as caught:
        driver.run()
    assert len(driver.had) == 6 and list(caught.value.shapes) == [(7, 0)]


@pytest.mark.parametrize("size", [1, 48, 5000])
def test_the_callers_room_is_all_there_is(size):
    driver = Rooms((9, 9))
    request = driver.run(rooms=[np.zeros(size, np.uint8)])
    assert driver.had == [size // 4 * 4] and request.small == (0,) and request.shapes == [(9, 9)]


def test_an_output_of_a_known_shape_has_exactly_its_bytes():
    lengths: list[tuple[int, tuple[int, ...]]] = []

    class Prepared(full.PreparedV1_2):
        def executeSynchronously(self, request: Any, measure: bool) -> Any:  # noqa: N802
            lengths.append((request.outputs[0].length, request.outputs[0].dimensions))
            return super().executeSynchronously(request, measure)

    class Driver(full.FullV1_2):
        def notified(self, notify: Any, _: Any, model: Any) -> Any:
            return super().notified(notify, Prepared, model)

    requests.run(prepared(Driver()), [X])
    assert lengths == [(48, (3, 4))]


def test_an_output_of_a_known_shape_cannot_need_more():
    def small(shape: tuple[int, ...]) -> Any:
        return answering(lambda status, shapes, timing: (TOO_SMALL, [OutputShape(shape, False)], timing))

    request = requests.run(prepared(small((3, 4))), [X])
    assert request.small == (0,)
    with pytest.raises(OperationFailed, match=r"output 0 has shape \[3, 5\], must be \[3, 4\]"):
        requests.run(prepared(small((3, 5))), [X])


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((12, 1), None),
        ((32, 32), None),
        ((32, 33), "output 0 of shape .32, 33. has 4224 bytes, must fit the 4096 that it was given"),
        ((2, 6, 1), r"output 0 has shape \[2, 6, 1\], must be \[\?, \?\]"),
        ((), r"output 0 has shape \[\], must be \[\?, \?\]"),
        ((2.0, 6), "output 0 has shape .*, must be sizes"),
        ((-1, 6), "output 0 has shape .*, must be sizes"),
    ],
)
def test_a_shape_that_turned_out_is_held_to_what_is_known(shape, says):
    def result(status: Any, shapes: Any, timing: Any) -> Any:
        return status, [OutputShape(shape)], timing

    model = prepared(answering(result), reshaped(False))
    given = [X, np.int32([6, 2])]
    if says is not None:
        with pytest.raises(OperationFailed, match=says):
            requests.run(model, given)
    elif shape == (12, 1):
        assert requests.run(model, given).shapes == [shape]


def test_success_with_too_little_room_is_no_success():
    driver = answering(lambda *_: (NONE, [OutputShape((3, 4), False)], HalTiming()))
    with pytest.raises(
        OperationFailed, match="gave NONE, must be OUTPUT_INSUFFICIENT_SIZE where an output is too small"
    ):
        requests.run(prepared(driver), [X])


@pytest.mark.parametrize("answer", [(NONE,), (NONE, ()), (NONE, (), HalTiming(), 1), [NONE, (), HalTiming()], NONE])
def test_an_answer_of_another_length_is_none(answer):
    says = r"^driver sample-full-1.2: executeSynchronously: gave .*, must give a status, shapes and timing"
    with pytest.raises(OperationFailed, match=says):
        requests.run(prepared(answering(lambda *_: answer)), [X])


def test_a_timing_that_is_none_is_nothing_measured():
    model = prepared(answering(lambda status, shapes, _: (status, shapes, "soon")))
    request = model.request([X])
    assert request.execute(model.run, Control(measure=True)) == Timing()


def test_shapes_may_be_left_out_where_all_were_known():
    driver = answering(lambda status, shapes, timing: (status, (), timing))
    assert requests.run(prepared(driver), [X]).results[0].tolist() == (X + X).tolist()
    with pytest.raises(OperationFailed, match="gave 0 output shapes, must be 1"):
        requests.run(prepared(driver, reshaped(False)), [X, np.int32([6, 2])])


def two_outputs(known_first: bool) -> Model:
    """A RESHAPE whose shape is an input, and a RELU of a known shape beside it."""
    b = ModelBuilder()
    x, shape = b.operand(Type.TENSOR_FLOAT32, (3, 4)), b.operand(Type.TENSOR_INT32, (2,))
    y, z = b.operand(Type.TENSOR_FLOAT32, (0, 0)), b.operand(Type.TENSOR_FLOAT32, (3, 4))
    b.operation(Op.RESHAPE, [x, shape], [y])
    b.operation(Op.RELU, [x], [z])
    return b.finish([x, shape], [z, y] if known_first else [y, z])


@pytest.mark.parametrize("known_first", [False, True])
def test_of_two_outputs_the_one_that_lacks_room_gets_more(known_first):
    had: list[list[int]] = []

    def ordered(unknown: Any, known: Any) -> list[Any]:
        return [known, unknown] if known_first else [unknown, known]

    class Prepared(full.PreparedV1_2):
        def executeSynchronously(self, request: Any, measure: bool) -> Any:  # noqa: N802
            had.append([at.length for at in request.outputs])
            if len(had) == 1:
                return TOO_SMALL, ordered(OutputShape((30, 40), False), OutputShape((3, 4))), HalTiming()
            return super().executeSynchronously(request, measure)

    class Driver(full.FullV1_2):
        def notified(self, notify: Any, _: Any, model: Any) -> Any:
            return super().notified(notify, Prepared, model)

    request = requests.run(prepared(Driver(), two_outputs(known_first)), [X, np.int32([6, 2])])
    assert had == [ordered(4096, 48), ordered(4800, 48)]
    assert [r.tolist() for r in request.results] == ordered(X.reshape(6, 2).tolist(), X.tolist())


def unknown_rank() -> Model:
    """A RELU of an input of which not even the rank is known before the execution."""
    return one_operation(Op.RELU, (Type.TENSOR_FLOAT32, ()), output=(Type.TENSOR_FLOAT32, ()))


@pytest.mark.parametrize("known_first", [False, True])
def test_shapes_of_all_are_told_where_one_was_unknown(known_first):
    driver = answering(lambda status, shapes, timing: (status, (), timing))
    with pytest.raises(OperationFailed, match="gave 0 output shapes, must be 2"):
        requests.run(prepared(driver, two_outputs(known_first)), [X, np.int32([6, 2])])


@pytest.mark.parametrize("known_first", [False, True])
@pytest.mark.parametrize(
    ("known", "unknown", "says"),
    [
        ((3, 4), (6, 2), None),
        ((3, 4), (6, 2, 1), r"output {unknown} has shape \[6, 2, 1\], must be \[\?, \?\]"),
        ((4, 3), (6, 2), r"output {known} has shape \[4, 3\], must be \[3, 4\]"),
        ((3, 4), None, "gave 2 output shapes, must be 2"),
        (None, (6, 2), "gave 2 output shapes, must be 2"),
    ],
)
def test_the_shape_of_each_output_is_looked_at(known_first, known, unknown, says):
    told = [None if shape is None else OutputShape(shape) for shape in (known, unknown)]
    driver = answering(lambda status, _, timing: (status, told if known_first else told[::-1], timing))
    model, given = prepared(driver, two_outputs(known_first)), [X, np.int32([6, 2])]
    if says is None:
        requests.run(model, given)
        return
    with pytest.raises(OperationFailed, match=says.format(known=int(not known_first), unknown=int(known_first))):
        requests.run(model, given)


def test_at_1_1_the_end_of_an_execution_is_a_status_and_nothing_else():
    def act(request: Any, callback: Any, real: Any) -> Any:
        status, _, _ = real.executeSynchronously(request, True)
        callback.notify_1_2(status, [OutputShape((7, 7))], HalTiming(1, 2))
        return NONE

    model = prepared(executing(act, full.FullV1_1))
    request = model.request([X])
    assert request.execute(model.run, Control(measure=True)) == Timing()
    assert request.shapes == [(3, 4)] and request.results[0].tolist() == (X + X).tolist()


def test_an_output_of_unknown_rank_has_the_shape_that_turns_out():
    model = prepared(full.FullV1_2(), unknown_rank())
    for x in (X, X.reshape(2, 3, 2)):
        request = requests.run(model, [x])
        assert request.results[0].tolist() == x.tolist() and request.shapes == [x.shape]


def test_a_part_of_a_shape_is_told_of_room_that_was_too_small_but_never_of_room_that_was_enough():
    """0 stands for what is not known yet: that is no shape of a result."""

    def says(shape: tuple[int, ...], enough: bool) -> Any:
        status = NONE if enough else TOO_SMALL
        return answering(lambda _, shapes, timing: (status, [OutputShape(shape, enough)], timing))

    given, room = [X, np.int32([6, 2])], [np.zeros(8, np.uint8)]
    assert requests.run(prepared(says((6, 0), False), reshaped(False)), given, rooms=room).shapes == [(6, 0)]
    with pytest.raises(OperationFailed, match=r"output 0 has shape \[6, 0\], must be \[3, 4\]"):
        requests.run(prepared(says((6, 0), True)), [X])
    with pytest.raises(OperationFailed, match=r"output 0 has shape \[6, 0\], must be \[3, 4\]"):
        requests.run(prepared(says((6, 0), False)), [X])


def test_an_execution_that_is_late_already_does_not_reach_the_driver():
    driver = Rooms()
    with pytest.raises(MissedDeadline):
        requests.run(driver.model, [X, np.int32([1, 1])], Control(deadline=1))
    assert not driver.had


@pytest.mark.parametrize("way", ["0", "1"])
def test_a_driver_is_called_by_the_form_that_it_has(way, monkeypatch):
    monkeypatch.setenv("NNHAL_SYNC_EXEC", way)

    class Synchronous:
        def __init__(self, model: Any) -> None:
            self.executeSynchronously = full.PreparedV1_2(model).executeSynchronously

    class Driver(full.FullV1_2):
        def notified(self, notify: Any, _: Any, model: Any) -> Any:
            return super().notified(notify, Synchronous, model)

    for driver in (Driver(), full.FullV1_0()):
        assert requests.run(prepared(driver), [X]).results[0].tolist() == (X + X).tolist()


def test_driver_buffers_at_1_3_are_nnhals_own():
    device = adapt(noting("prepareModel_1_3"))
    model = checked_prepared(device, doubling(3, 4), Hints())
    assert isinstance(device.allocate(BufferDesc(), [BufferRole(model, 0)]), HostBuffer)


# -------------------------------------------------------------------------------------------------- forms of figures


def test_microseconds_are_whole_and_nanoseconds_thousands_of_them():
    assert HalTiming.of(Timing(1999, 2000)) == (1, 2) and HalTiming.of(Timing(None, 0)) == (NOT_MEASURED, 0)
    assert HalTiming(1, 2).measured() == Timing(1000, 2000) and HalTiming().measured() == Timing()
    assert HalTiming(2, 2).measured() == Timing(2000, 2000) and HalTiming(3, 2).measured() == Timing(None, 2000)
    assert HalTiming(3).measured() == Timing(3000, None)


def test_an_argument_has_a_value_at_the_beginning_of_the_first_pool_unless_it_is_said():
    assert RequestArgument() == RequestArgument(False, 0, 0, 0, ()) and OutputShape() == ((), True)


def test_a_queue_gives_packets_in_order_until_its_end():
    queue = PacketQueue()
    assert queue.readBlocking(0.01) is None and not queue.closed
    assert queue.writeBlocking(1) and queue.writeBlocking(2)
    assert queue.readBlocking() == 1
    queue.close()
    assert queue.closed and queue.readBlocking() is None and not queue.writeBlocking(3)


def test_who_reads_is_woken_by_a_packet_and_by_the_end():
    for act, got in ((lambda q: q.writeBlocking(7), 7), (lambda q: q.close(), None)):
        queue = PacketQueue()
        read: list[Any] = []
        thread = threading.Thread(target=lambda queue=queue, read=read: read.append(queue.readBlocking()), daemon=True)
        thread.start()
        act(queue)
        thread.join(30)
        assert read == [got]


def test_slots_of_the_request_at_hand_have_memories_and_others_do_not():
    memories: Any = Memories()
    memories.known = {3: "three", 5: "five"}
    assert memories.getMemories([5, 3, 5]) == (NONE, ["five", "three", "five"])
    assert memories.getMemories([3, 4]) == (ErrorStatus.INVALID_ARGUMENT, ())
    packet = BurstRequest(True, (RequestArgument(),), (), (3,))
    assert packet.over(["three"]) == full.HalRequest((RequestArgument(),), (), ("three",))


@pytest.mark.parametrize(("kind", "level"), [(full.FullV1_0, V1_0), (full.FullV1_1, V1_1), (full.FullV1_2, V1_2)])
def test_driver_buffers_need_1_3(kind, level):
    with pytest.raises(OperationFailed, match=rf"allocate needs level 1.3, device .* is at {level}"):
        adapt(kind()).allocate((), ())  # type: ignore[arg-type]
