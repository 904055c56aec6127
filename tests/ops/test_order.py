"""Operations on tensors whose dimensions stand in another order: the rules of `Op.reorder`, and the other layout."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nnhal.base.operands import Array, ChannelQuant, UnknownValue, Value
from nnhal.conformance.differential import bind_call
from nnhal.conformance.draw import Call, cells, draw
from nnhal.ops import OPS
from nnhal.ops.order import composed, in_other_layout, inverse, keeps_elements, without
from nnhal.ops.schema import BOOL, Bound, OperationOrders, Permutation, T, bind
from tests.ops.run import B8, F32, I32, Operand, bound, result, value

SEED = 11
OWN = {name: op for name, op in sorted(OPS.items()) if not op.code >> 16}
REORDERED = [name for name, op in OWN.items() if op.reorder is not None]
LAID = [name for name, op in OWN.items() if any(x.layout for form in op.forms for x in form)]


def kernel(a: Bound) -> list[Array]:
    with np.errstate(all="ignore"):
        made = a.op.kernel(a, *a.form.tensors([None if v is None else v.data for v in a.given]))
    return list(made) if isinstance(made, tuple) else [made]


def in_order(value: Value, order: Sequence[int]) -> Value:
    """A constant in an order, behind dimensions of 1 where it has fewer."""
    array = value.array.reshape((1,) * (len(order) - value.rank) + value.known).transpose(order)
    channel = value.channel
    if channel is not None:
        channel = ChannelQuant(channel.scales, list(order).index(channel.axis + len(order) - value.rank))
    return replace(value, shape=array.shape, data=array, channel=channel)


def reordered(call: Call, a: Bound, said: OperationOrders) -> Bound:
    """The operation as the rule says it, on tensors in the order that it says."""
    names = [x.name for x in a.form]
    count = max(len(call.inputs), *(names.index(name) + 1 for name in said.arguments), 0)  # more where one was left out
    given = [*call.inputs, *[None] * (count - len(call.inputs))]
    inputs: list[Value | None] = []
    for argument, old in zip(a.form.each(count), given, strict=True):
        if argument.name in said.arguments:
            kind = next(iter(argument.spec))
            array = np.asarray(said.arguments[argument.name], np.bool_ if kind in (BOOL, B8) else np.int32)
            inputs.append(Value(kind, array.shape, data=array))
        elif argument.name in said.inputs and old is not None:
            inputs.append(in_order(old, said.inputs[argument.name]))
        else:
            inputs.append(old)
    return bind(a.op, inputs, [replace(v, shape=None) for v in a.outs])


def holds(call: Call, a: Bound, said: OperationOrders) -> None:
    """The operation in the other order gives the same in that order: to the bit, but where it sums up."""
    agree = np.allclose if a.op.sums else np.array_equal
    for one, other, gives in zip(kernel(a), kernel(reordered(call, a, said)), said.outputs, strict=True):
        turned = one.transpose(gives) if gives else one
        assert agree(turned, other, equal_nan=other.dtype.kind == "f"), f"{call.cell} {said}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", REORDERED)
def test_an_operation_is_the_same_in_another_order_by_the_rule_of_its_record(name: str) -> None:
    rng, tried = np.random.default_rng([SEED, len(name)]), 0
    for cell in cells([name]):
        if cell.values != "ordinary":
            continue
        for _ in range(6):
            call = draw(cell, rng)
            a = bind_call(call)
            own = [v for x, v in a.inputs if x.spec is T]
            rank = max(v.rank for each in own for v in (each if isinstance(each, tuple) else (each,)) if v is not None)
            if a.op.flat:
                rank = len(a.shape_of_output)
            order = tuple(rng.permutation(rank).tolist())
            try:
                said = a.op.reorder(a, order)
            except UnknownValue:
                continue
            tried += 1
            holds(call, a, said)
    assert tried


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAID)
def test_an_operation_is_the_same_in_the_other_layout(name: str) -> None:
    rng = np.random.default_rng([SEED, len(name)])
    seen = set()
    for cell in cells([name]):
        for _ in range(4 if cell.values == "ordinary" else 0):
            call = draw(cell, rng)
            a = bind_call(call)
            said = in_other_layout(a)
            assert said.arguments["nchw"] is (not a.nchw)
            holds(call, a, said)
            seen.add(a.nchw)
    assert seen == {True, False}


def test_a_shape_that_is_not_known_yet_has_no_other_layout() -> None:
    x, weights, shape = np.zeros((1, 2, 2, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32), Value(I32, (4,))
    a = bound("TRANSPOSE_CONV_2D", [x, weights, [0.0], shape, 2, 1, 1, 0, False])
    with pytest.raises(UnknownValue, match="output_shape"):
        in_other_layout(a)


IN, TURN = Value(F32, (2, 3, 4)), (2, 0, 1)
BOTH = dict.fromkeys(("input1", "input2"), (1, 0))


@pytest.mark.parametrize(
    ("name", "inputs", "order", "turned", "made", "arguments"),
    [
        ("RELU", [Value(F32, (2, 3))], (1, 0), {"input": (1, 0)}, (1, 0), {}),
        ("ADD", [Value(F32, (2, 3)), [1.0], 0], (1, 0), {"input1": (1, 0)}, (1, 0), {}),
        ("ADD", [Value(F32, (2, 3)), [1.0, 2.0, 3.0], 0], (1, 0), BOTH, (1, 0), {}),
        ("ADD", [Value(F32, (2, 3)), [[1.0]], 0], (1, 0), BOTH, (1, 0), {}),
        ("SOFTMAX", [IN, 1.0], TURN, {"input": TURN}, TURN, {"axis": 0}),
        ("SOFTMAX", [IN, 1.0, 1], TURN, {"input": TURN}, TURN, {"axis": 2}),
        ("REVERSE", [IN, value(I32, [0])], TURN, {"input": TURN}, TURN, {"axis": [1]}),
        ("ARGMAX", [IN, -2], TURN, {"input": TURN}, (1, 0), {"axis": 2}),
        ("REDUCE_SUM", [IN, value(I32, [-1, 0]), False], TURN, {"input": TURN}, (0,), {"axes": [0, 1]}),
        ("REDUCE_SUM", [IN, value(I32, [1]), True], TURN, {"input": TURN}, TURN, {"axes": [2]}),
        ("MEAN", [Value(F32, (2, 3)), value(I32, [1]), 0], (1, 0), {"input": (1, 0)}, (0,), {"axes": [0]}),
        ("SQUEEZE", [Value(F32, (1, 3, 1, 4)), None], (2, 3, 1, 0), {"input": (2, 3, 1, 0)}, (1, 0), {"axes": [3, 0]}),
    ],
)
def test_a_rule_says_which_tensors_turn_and_what_their_dimensions_are_called_then(
    name: str, inputs: list[Operand], order: Permutation, turned: Any, made: Permutation, arguments: dict[str, Any]
) -> None:
    a = bound(name, inputs, result(I32 if name == "ARGMAX" else F32))
    assert a.op.reorder(a, order) == OperationOrders(turned, [made], arguments)


def test_bits_of_masks_and_entries_of_bounds_go_with_their_dimension() -> None:
    ints = [value(I32, x) for x in ([0, 1, 2], [5, 6, 7], [1, 2, 3])]
    a = bound("STRIDED_SLICE", [Value(F32, (8, 8, 3)), *ints, 0b001, 0b110, 0b100])
    found = a.op.reorder(a, (2, 0, 1))
    arguments = {k: np.asarray(v).tolist() for k, v in found.arguments.items()}
    assert arguments == {
        "begin": [2, 0, 1],
        "end": [7, 5, 6],
        "strides": [3, 1, 2],
        "begin_mask": 0b010,
        "end_mask": 0b101,
        "shrink_mask": 0b001,
    }
    assert (dict(found.inputs), list(found.outputs)) == ({"input": (2, 0, 1)}, [(0, 1)])


def test_a_shape_is_said_in_another_order_where_no_element_moves() -> None:
    a = bound("RESHAPE", [np.zeros(6, np.float32), value(I32, [1, 2, 1, 3])])
    found = a.op.reorder(a, (1, 2, 3, 0))
    assert (dict(found.inputs), list(found.outputs)) == ({}, [(1, 2, 3, 0)])
    assert np.asarray(found.arguments["shape"]).tolist() == [2, 1, 3, 1]
    for moving in (a, bound("RESHAPE", [Value(F32, (None,)), Value(I32, (2,))])):
        with pytest.raises(UnknownValue, match="a shape in which the elements stay where they are"):
            moving.op.reorder(moving, (3, 1, 2, 0))


def test_nothing_to_squeeze_has_no_other_order() -> None:
    a = bound("SQUEEZE", [np.zeros((2, 3), np.float32), None])
    with pytest.raises(UnknownValue, match="a dimension of 1"):
        a.op.reorder(a, (1, 0))


def test_orders_lead_there_and_back() -> None:
    order, other = (2, 0, 3, 1), (1, 3, 2, 0)
    x = np.arange(24).reshape(1, 2, 3, 4)
    assert (x.transpose(order).transpose(other) == x.transpose(composed(order, other))).all()
    assert composed(order, inverse(order)) == (0, 1, 2, 3)
    assert without((0, 3, 1, 2), {1, 2}) == (0, 1)
    assert without((2, 0, 3, 1), {0}) == (1, 2, 0)
    assert keeps_elements((1, 1, 1, 8), (0, 3, 1, 2)) and not keeps_elements((1, 2, 1, 8), (0, 3, 1, 2))
    assert not keeps_elements((1, None, 1, 8), (0, 3, 1, 2))
