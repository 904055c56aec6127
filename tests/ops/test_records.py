"""What holds for every record, whatever it computes: on calls drawn from it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.conformance.differential import kernel_outputs
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.ops.schema import agree, bind

Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
ORDINARY = [cell for cell in cells() if cell.values == "ordinary"]
KNOWN = (lambda s: s, lambda s: (None, *s[1:]), lambda s: (None,) * len(s), lambda s: None)  # of a shape, at build time
DRAWS = 12
STORED = {"CAST", "LSH_PROJECTION", "RANK"}  # look at the elements as they are stored
LAYOUTS = [cell for cell in ORDINARY if any(a.name == "nchw" for a in cell.op.forms[cell.form])]


def calls(cell: Cell) -> Iterator[Call]:
    rng = np.random.default_rng(list(str(cell).encode()))
    for _ in range(DRAWS):
        yield draw(cell, rng)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cell", ORDINARY, ids=str)
def test_level_and_shapes_are_known_as_far_as_they_can_be(cell):
    for call in calls(cell):
        arrays = kernel_outputs(call)
        declared = [replace(v, shape=None) for v in call.outputs]
        a = bind(cell.op, call.inputs, declared)
        assert all(s is None or agree(s, x.shape) for s, x in zip(a.shapes, arrays, strict=False))
        assert a.level >= cell.op.since
        for known in KNOWN:
            inputs = [replace(v, shape=known(v.shape), data=None) if v and v.shape else v for v in call.inputs]
            a = bind(cell.op, inputs, declared)
            for shape, array in zip(a.shapes, arrays, strict=False):
                assert shape is None or agree(shape, array.shape)
                assert a.deferred or shape == array.shape


def signed(v: Value | None) -> Value | None:
    if v is None or v.type != Q8:
        return v
    data = None if v.data is None else (v.data.astype(np.int16) - 128).astype(np.int8)
    return replace(v, type=Q8S, zero_point=v.zero_point - 128, data=data)


BOTH = [cell for cell in ORDINARY if cell.kind == Q8 and Q8S in cell.op.types and cell.op.name not in STORED]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_signed_elements_are_the_unsigned_ones_less_128(cell):
    for call in calls(cell):
        inputs, outputs = tuple(map(signed, call.inputs)), tuple(map(signed, call.outputs))
        value = next((n for n, a in enumerate(call.bound.form) if a.name == "value"), None)
        if value is not None:  # of PAD_V2: a scalar, as stored
            inputs = (*inputs[:value], replace(inputs[value], data=inputs[value].data - 128), *inputs[value + 1 :])
        other = replace(call, cell=replace(cell, kind=Q8S), inputs=inputs, outputs=outputs)
        for v, one, two in zip(call.outputs, kernel_outputs(call), kernel_outputs(other), strict=False):
            wanted = one.astype(np.int16) - 128 if v.type == Q8 else one
            if cell.op.name == "AVERAGE_POOL_2D":  # a tie goes up where it is unsigned, away from 0 where it is signed
                wanted = wanted - ((wanted - two == 1) & (two < 0))
            np.testing.assert_array_equal(two, wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cell", LAYOUTS, ids=str)
def test_either_layout_gives_the_same(cell):
    for call in calls(cell):
        slots = {a.name: n for a, n, end in call.bound.form.slots(len(call.inputs)) if end > n}
        if "nchw" not in slots or call.bound.nchw or "output_shape" in slots:
            continue
        inputs = list(call.inputs)
        inputs[slots["nchw"]] = replace(inputs[slots["nchw"]], data=np.array(True))
        for argument in call.bound.form:
            if argument.layout:
                x = np.moveaxis(inputs[slots[argument.name]].array, -1, 1)
                inputs[slots[argument.name]] = replace(inputs[slots[argument.name]], data=x, shape=x.shape)
        turned = replace(call, inputs=tuple(inputs), outputs=tuple(replace(v, shape=None) for v in call.outputs))
        for output, one, two in zip(cell.op.outputs, kernel_outputs(call), kernel_outputs(turned), strict=False):
            np.testing.assert_array_equal(two, np.moveaxis(one, -1, 1) if output.layout else one)


FLOATS = [cell for cell in ORDINARY if cell.kind == OperandType.TENSOR_FLOAT32]


@pytest.mark.parametrize("cell", [cell for cell in FLOATS if cell.op.moves], ids=str)
def test_results_of_an_operation_that_moves_are_elements_of_its_inputs_or_bounds(cell):
    for call in calls(cell):
        given = [np.abs(np.ravel(v.array)) for v in call.inputs if v is not None]
        allowed = np.concatenate([[0.0, 1.0, 6.0], *given])
        assert np.isin(np.abs(np.ravel(kernel_outputs(call)[0])), allowed).all()


@pytest.mark.parametrize("cell", [cell for cell in FLOATS if cell.op.nonnegative], ids=str)
def test_no_result_of_a_nonnegative_operation_is_below_0(cell):
    assert not any((kernel_outputs(call)[0] < 0).any() for call in calls(cell))
