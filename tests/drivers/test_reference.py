"""The reference device: what it holds and lets go, when it looks whether it is still wanted, what it says is wrong."""

import logging
import threading
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceType, OperandType, OperationType
from nnhal.base.errors import (
    Cancelled,
    InvalidModel,
    InvalidRequest,
    MissedDeadline,
    OperationFailed,
    OutOfMemory,
    UnsupportedModel,
)
from nnhal.base.operands import UnknownValue, Value
from nnhal.drivers import reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import Control
from nnhal.model.builder import ModelBuilder
from nnhal.ops.schema import F32, I32
from tests import models, requests
from tests.models import make_model, one_operation

X = np.float32([[1, 2, 3]])


def chain(shape: tuple[int | None, ...] = (1, 3), count: int = 3) -> nnhal.Model:
    """ABS again and again."""
    return models.chain("abs", count, shape)


def prepared(model: nnhal.Model) -> Prepared:
    return checked_prepared(reference.device(), model, Hints())


def looped(rounds: int) -> nnhal.Model:
    """Twice the input, `rounds` times, by a WHILE of two subgraphs."""
    b = ModelBuilder()

    def started() -> tuple[ModelBuilder, int, int]:
        part = b.subgraph()
        return part, part.operand(I32, (1,)), part.operand(F32, (2,))

    ends, count, x = started()
    more = ends.operand(OperandType.TENSOR_BOOL8, (1,))
    ends.operation("LESS", [count, ends.constant(I32, [rounds])], [more])
    places = [ends.finish_subgraph([count, x], [more])]
    body, count, x = started()
    counted, doubled = body.operand(I32, (1,)), body.operand(F32, (2,))
    none = body.constant(OperandType.INT32, 0)
    body.operation("ADD", [count, body.constant(I32, [1]), none], [counted])
    body.operation("ADD", [x, x, none], [doubled])
    places.append(body.finish_subgraph([count, x], [counted, doubled]))
    parts = [b.subgraph_operand(OperandType.SUBGRAPH, place) for place in places]
    x, counted, y = b.operand(F32, (2,)), b.operand(I32, (1,)), b.operand(F32, (2,))
    b.operation("WHILE", [*parts, b.constant(I32, [0]), x], [counted, y])
    return b.finish([x], [y])


# ------------------------------------------------------------------------------------------------------------ what it is


def test_it_is_the_cpu_that_others_state_their_time_against():
    device = reference.device()
    assert (device.name, device.version, device.type) == ("reference", "1", DeviceType.CPU)
    assert set(device.capabilities().operands.values()) == {(1.0, 1.0)}


def test_an_operation_without_a_kernel_is_refused_and_not_prepared():
    model = one_operation(OperationType.OEM_OPERATION, (F32, (2,)), output=(F32, (2,)))
    (verdict,) = reference.device().supports(model)
    assert tuple(verdict) == (False, "no reference kernel for OEM_OPERATION")
    with pytest.raises(InvalidModel, match="OEM_OPERATION #0: is not implemented by the reference device"):
        reference.device().prepare(model, Hints())
    assert tuple(reference.device().supports(chain(count=1))[0]) == (True, "")


# --------------------------------------------------------------------------------------------------------------- memory


def test_a_chain_holds_two_results_at_once():
    """4 bytes times 6 elements, of the one that is read and the one that is made; the last is held too."""
    assert prepared(chain((2, 3), 4)).memory() == MemoryUse(0, 0, 0, 2 * 24)
    assert prepared(chain((2, 3), 1)).memory() == MemoryUse(0, 0, 0, 24)


def test_a_result_that_is_read_later_is_held_till_then():
    b = nnhal.Builder()
    x = b.input((2, 3))
    first = b.abs(x)
    y = b.abs(b.abs(first))
    half = b.cast(b.add(y, first), out_type="TENSOR_FLOAT16")
    # made: first, abs, abs, sum, half of 24, 24, 24, 24 and 12 bytes; at most first, one abs and the one made of that
    assert prepared(b.finish([x], [half])).memory().per_execution == 3 * 24
    assert prepared(b.finish([x], [first, half])).memory().per_execution == 3 * 24
    # what the model gives is held to the end
    assert prepared(b.finish([x], [first, b.abs(half), y])).memory().per_execution == 3 * 24 + 12


def test_intermediates_are_not_known_where_shapes_are_open_or_subgraphs_are_called():
    assert prepared(chain((None, 3))).memory() == MemoryUse(0, 0, 0, None)
    assert prepared(looped(1)).memory().per_execution is None


def test_constants_are_counted_once_where_they_lie_in_subgraphs_too():
    b, weights = nnhal.Builder(), np.ones((4, 3), np.float32)
    x = b.input((1, 3))
    w = b.constant(weights)
    y = b.fully_connected(x, w, np.zeros(4, np.float32))
    z = b.fully_connected(b.abs(x), w, np.zeros(4, np.float32))
    found = prepared(b.finish([x], [y, z])).memory()
    assert found.weights_copied == 0 and found.weights_in_place is not None
    scalars = found.weights_in_place - weights.nbytes
    assert 2 * 16 <= scalars <= 2 * (16 + 4)  # two biases, two activations
    loop = prepared(looped(1)).memory().weights_in_place
    assert loop is not None and 4 + 4 + 4 + 4 <= loop <= 5 * 4  # 0, the rounds, 1, and the activation of one ADD or two


def test_a_result_goes_with_its_last_reader(monkeypatch):
    made: list[Any] = []
    alive: list[list[bool]] = []
    apply = reference._apply

    def watched(*arguments: Any) -> Any:
        alive.append([each() is not None for each in made])  # the last made is at hand
        results = apply(*arguments)
        made.extend(ref(each) for each in results)
        return results

    b = nnhal.Builder()
    x = b.input((1, 3))
    first = b.neg(x)
    unread = b.neg(first)  # by nobody
    second = b.neg(first)
    y = b.add(b.neg(b.neg(second)), first)
    assert unread is not None
    model = prepared(b.finish([x], [y]))
    monkeypatch.setattr(reference, "_apply", watched)
    requests.run(model, [X])
    assert [[n for n, there in enumerate(each) if there] for each in alive] == [[], [0], [0, 1], [0, 2], [0, 3], [0, 4]]


# ------------------------------------------------------------------------------------------------- how an execution goes


def test_operations_of_the_main_subgraph_are_told_in_order_each_with_its_time():
    told: list[tuple[int, int, int]] = []
    found = prepared(chain())
    found.request([X]).execute(found.run, Control(profile=lambda *entry: told.append(entry)))
    assert [place for place, _, _ in told] == [0, 1, 2]
    times = [time for _, begin, end in told for time in (begin, end)]
    assert times[0] > 0 and times == sorted(times)
    told.clear()
    loop = prepared(looped(3))
    request = loop.request([np.float32([1, 2])])
    request.execute(loop.run, Control(profile=lambda *entry: told.append(entry)))
    assert request.results[0].tolist() == [8, 16] and [place for place, _, _ in told] == [0]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_what_each_operation_wrote_is_told_where_it_is_asked_for(caplog: Any, level: int) -> None:
    caplog.set_level(level, "nnhal.cpuexe")
    requests.run(reference.Interpreter(chain(count=2)), [X])
    told = ["ABS #0 wrote operand 1: float32[1, 3]", "ABS #1 wrote operand 2: float32[1, 3]"]
    assert [each.getMessage() for each in caplog.records] == (told if level == logging.DEBUG else [])


def test_whether_it_is_still_wanted_is_looked_at_before_each_operation():
    cancelled, told, found = threading.Event(), list[int](), prepared(chain())

    def profile(place: int, begin: int, end: int) -> None:
        told.append(place)
        cancelled.set()

    with pytest.raises(Cancelled):
        found.request([X]).execute(found.run, Control(cancelled=cancelled, profile=profile))
    assert told == [0]
    with pytest.raises(MissedDeadline):
        loop = prepared(looped(1 << 30))
        loop.request([np.float32([0, 0])]).execute(loop.run, Control(deadline=1))


def test_time_is_measured_where_it_is_asked_for():
    found = prepared(chain())
    timing = found.request([X]).execute(found.run, Control(measure=True))
    assert timing is not None and timing.on_device is not None and 0 < timing.on_device == timing.in_driver
    assert found.request([X]).execute(found.run, Control()) is None


def test_what_a_rule_looks_at_is_bound_again_with_what_is_given():
    found = prepared(make_model(lambda b, x, order: b.transpose(x, order), (2, 3), ((2,), "TENSOR_INT32")))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert requests.run(found, [x, np.int32([1, 0])]).results[0].tolist() == x.T.tolist()
    with pytest.raises(OperationFailed, match=r"TRANSPOSE #0: permutation = \[0, 0\], must hold each of 0 to 1 once"):
        requests.run(found, [x, np.int32([0, 0])])


def test_an_input_that_is_left_out_is_bound_as_omitted():
    b = nnhal.Builder()
    x, bias = b.input((1, 3)), b.input((2,))
    weights, state = b.constant(np.ones((2, 3), np.float32)), b.constant(np.zeros((1, 8), np.float32))
    _, y = b.svdf(x, weights, b.constant(np.ones((2, 4), np.float32)), bias, state, rank=1, activation_kind=0)
    found = prepared(b.finish([x, bias], [y]))
    assert requests.run(found, [X, None]).results[0].tolist() == [[6, 6]]
    assert requests.run(found, [X, np.float32([1, 2])]).results[0].tolist() == [[7, 8]]


# -------------------------------------------------------------------------------------------------------- what is wrong


PAIR = Value(F32, (2,))


def bound(kernel: Any, outs: Any = (PAIR,), shapes: Any = ((2,),), context: bool = False) -> Any:
    """As much of a bound operation as its execution needs."""
    form = SimpleNamespace(tensors=list)
    return SimpleNamespace(
        op=SimpleNamespace(kernel=kernel, context=context), form=form, name="IT", outs=outs, shapes=shapes
    )


def fails(error: BaseException) -> Any:
    def kernel(*_: Any) -> Any:
        raise error

    return bound(kernel)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (InvalidModel("why"), OperationFailed, "^why$"),
        (UnsupportedModel("why"), OperationFailed, "^why$"),  # an InvalidModel
        (InvalidRequest("why"), InvalidRequest, "^why$"),
        (Cancelled("why"), Cancelled, "^why$"),
        (MemoryError("no room"), OutOfMemory, "^IT: no room$"),
        (UnknownValue("stride"), OperationFailed, "^IT: stride is omitted, must have a value$"),
        (ValueError("v"), OperationFailed, "^IT: v$"),
        (IndexError("i"), OperationFailed, "^IT: i$"),
        (TypeError("t"), OperationFailed, "^IT: t$"),
        (ZeroDivisionError("z"), OperationFailed, "^IT: z$"),
        (KeyError("k"), KeyError, "k"),
    ],
)
def test_what_a_kernel_raises_is_an_error_of_the_execution_by_its_kind(raised, kind, message):
    with pytest.raises(kind, match=message) as found:
        reference._apply(fails(raised), [], SimpleNamespace())
    assert found.type is kind and (found.value is raised or found.value.__cause__ is raised)


@pytest.mark.parametrize(
    ("made", "shape", "declared", "told"),
    [
        (np.zeros(2, np.float32), (2,), (2,), ""),
        (np.zeros(2, np.float32), (None,), (), ""),
        (np.zeros(2, np.float32), None, None, ""),
        (np.zeros(3, np.float32), (2,), (2,), r"IT: the result is float32\[3\], must be float32\[2\]"),
        (np.zeros(3, np.float32), None, (2,), r"IT: the result is float32\[3\], must be float32\[2\]"),
        (np.zeros(3, np.float32), (2,), None, r"IT: the result is float32\[3\], must be float32\[2\]"),
        (np.zeros(2, np.float64), (2,), (2,), r"IT: the result is float64\[2\], must be float32\[2\]"),
    ],
)
def test_what_a_kernel_makes_has_to_have_the_type_and_both_shapes(made, shape, declared, told):
    a = bound(lambda _: made, (Value(F32, declared),), (shape,))
    if told:
        with pytest.raises(OperationFailed, match=f"^{told}$"):
            reference._apply(a, [], SimpleNamespace())
    else:
        assert reference._apply(a, [], SimpleNamespace())[0] is made


def test_a_kernel_may_give_one_array_or_several_of_which_the_first_are_taken():
    one, two = np.zeros(2, np.float32), np.ones(2, np.float32)
    for made in ((one, two), [one, two]):
        found = reference._apply(bound(lambda _, made=made: made), [], SimpleNamespace())
        assert len(found) == 1 and found[0] is one


def test_a_kernel_of_control_flow_gets_the_context_behind_its_arguments():
    seen: list[Any] = []

    def kernel(*given: Any) -> Any:
        seen.extend(given)
        return np.zeros(2, np.float32)

    a, context = bound(kernel, context=True), SimpleNamespace()
    reference._apply(a, [X], context)
    assert seen[0] is a and seen[1] is context and seen[2] is X
    seen.clear()
    reference._apply(replace_context(a), [X], context)
    assert len(seen) == 2 and seen[1] is X


def replace_context(a: Any) -> Any:
    return SimpleNamespace(**{**vars(a), "op": SimpleNamespace(kernel=a.op.kernel, context=False)})
