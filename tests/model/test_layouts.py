"""Models in one layout: the same results, few transposes, nothing more to do the second time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.codes import Lifetime, OperandType, OperationType
from nnhal.base.extensions import register_extension
from nnhal.base.levels import V1_2
from nnhal.base.memory import Layout as Pixels
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, ChannelQuant, dtype_of
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.draw import Cell, cells, draw
from nnhal.drivers.reference import Interpreter
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.layouts import LAYOUTS, ModelInLayout, with_layout
from nnhal.model.orders import Layout
from nnhal.model.parts import outline
from nnhal.model.validate import validate, values_of
from nnhal.ops import OPS
from nnhal.ops.schema import F32, Form, Op, T, arg, register
from tests import requests
from tests.models import make_model, make_subgraph

TRANSPOSE = OperationType.TRANSPOSE
SEED = 11


def outputs_of(model: Model, inputs: Sequence[Array]) -> list[Array]:
    return requests.run(Interpreter(model), inputs).results


def inputs_of(model: Model, rng: np.random.Generator) -> list[Array]:
    found = []
    for i in model.main.inputs:
        operand = model.main.operands[i]
        kind = dtype_of(operand.type)
        values = (
            rng.standard_normal(operand.dimensions) if kind.kind == "f" else rng.integers(0, 100, operand.dimensions)
        )
        found.append(values.astype(kind))
    return found


def same(model: Model, other: Model, inputs: Sequence[Array]) -> bool:
    wanted, found = outputs_of(model, inputs), outputs_of(other, inputs)
    return all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(wanted, found, strict=True)
    )


def transposes(model: Model) -> int:
    return sum(o.type == TRANSPOSE for o in model.main.operations)


def layouts(model: Model) -> list[bool]:
    """Of each operation that has a layout whether it is NCHW."""
    return [
        a.nchw
        for a in validate(model).subgraphs[0].operations
        if a is not None and any(argument.layout for argument in a.form)
    ]


# --------------------------------------------------------------------------------------------------------- random models


class Drawn:
    """A model of operations with and without a layout: chains, branches that meet again, several outputs."""

    def __init__(self, rng: np.random.Generator, start: str, quantised: bool) -> None:
        self.rng, self.start, self.b = rng, start, Builder()
        self.kind = OperandType.TENSOR_QUANT8_ASYMM if quantised else OperandType.TENSOR_FLOAT32
        self.quant: dict[str, Any] = {"scale": 0.5, "zero_point": 90} if quantised else {}
        self.inputs = [self.b.input(self.sizes(), self.kind, **self.quant) for _ in range(self.whole(1, 2))]
        self.tensors: list[Tensor] = list(self.inputs)

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def sizes(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.choice([1, 2, 4, 6], 4))

    def pick(self, *choices: Any) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    def constant(self, shape: Sequence[int]) -> Tensor:
        if self.quant:
            return self.b.constant(self.rng.integers(0, 200, shape).astype(np.uint8), self.kind, **self.quant)
        return self.b.constant(self.rng.standard_normal(shape).astype(np.float32))

    def nchw(self) -> bool:
        return self.pick(True, False) if self.start == "mixed" else self.start == "nchw"

    def model(self, count: int) -> Model:
        steps = [self.convolution, self.pooling, self.space, self.elementwise, self.elementwise, self.with_constant]
        steps += [
            self.along,
            self.reduced,
            self.padded,
            self.transposed,
            self.reshaped,
            self.joined,
            self.cut,
            self.flat,
        ]
        for _ in range(count):
            pictures = [x for x in self.tensors if len(x.shape) == 4]
            self.tensors.append(self.pick(*steps)(self.pick(*pictures)))
        read = {i for o in self.b._model._operations for i in o.inputs}
        made = [x for x in self.tensors[len(self.inputs) :] if x.index not in read or self.rng.random() < 0.2]
        return self.b.finish(self.inputs, made)

    def convolution(self, x: Tensor) -> Tensor:
        nchw = self.nchw()
        depth, units = x.shape[1 if nchw else 3], self.pick(1, 2, 4)
        weights = self.constant((units, 1, 1, depth))
        if self.quant:
            bias = self.b.constant(np.zeros(units, np.int32), OperandType.TENSOR_INT32, x.value.scale * 0.5)
            return self.b.conv_2d(x, weights, bias, padding="same", nchw=nchw, scale=60.0, zero_point=90)
        bias = self.constant((units,))
        if self.pick(True, False):
            return self.b.conv_2d(x, weights, bias, padding="same", nchw=nchw, activation="relu6")
        ones = self.constant((1, 1, 1, depth))
        how = {"padding": ((0, 1), (1, 0)), "depth_multiplier": 1, "nchw": nchw} if min(x.shape) > 1 else {}
        if how:
            ones = self.constant((1, 2, 2, depth))
            return self.b.depthwise_conv_2d(x, ones, self.constant((depth,)), **how)
        return self.b.depthwise_conv_2d(x, ones, self.constant((depth,)), padding="same", depth_multiplier=1, nchw=nchw)

    def pooling(self, x: Tensor) -> Tensor:
        kind = self.pick(self.b.max_pool_2d, self.b.average_pool_2d)
        return kind(x, padding="same", filter_size=2, stride=self.pick(1, 2), nchw=self.nchw())

    def space(self, x: Tensor) -> Tensor:
        nchw = self.nchw()
        height, width = x.shape[2:] if nchw else x.shape[1:3]
        if height % 2 or width % 2:
            return self.b.resize_nearest_neighbor(x, out_w=2, out_h=4, nchw=nchw)
        return self.b.space_to_depth(x, 2, nchw)

    def elementwise(self, x: Tensor) -> Tensor:
        alike = [y for y in self.tensors if y.shape == x.shape and y.value.scale == x.value.scale]
        if self.pick(True, False):
            return self.b.maximum(x, self.pick(*alike), **self.of(x))
        return self.pick(self.b.relu, self.b.relu6)(x)

    def of(self, x: Tensor) -> dict[str, Any]:
        return {"scale": x.value.scale, "zero_point": x.value.zero_point} if self.quant else {}

    def with_constant(self, x: Tensor) -> Tensor:
        shape = self.pick(x.shape, x.shape[-1:], x.shape[1:], (1, *x.shape[1:3], 1), (1,))
        return self.b.minimum(self.constant(shape), x, **self.of(x))

    def along(self, x: Tensor) -> Tensor:
        axis = self.whole(-4, 3)
        if self.quant:
            return self.b.channel_shuffle(x, groups=1, axis=axis)
        return self.pick(self.b.softmax, self.b.log_softmax)(x, beta=1.0, axis=axis)

    def reduced(self, x: Tensor) -> Tensor:
        axes = self.rng.permutation(4)[: self.whole(1, 3)] - self.pick(0, 4)
        y = self.b.reduce_max(x, axes.astype(np.int32), keep_dims=self.pick(True, False))
        return y

    def padded(self, x: Tensor) -> Tensor:
        around = self.rng.integers(0, 2, (4, 2)).astype(np.int32)
        if self.pick(True, False):
            return self.b.pad(x, around)
        begin = np.array([self.whole(0, n - 1) for n in x.shape], np.int32)
        return self.b.slice(x, begin, np.full(4, -1, np.int32))

    def transposed(self, x: Tensor) -> Tensor:
        order = self.pick((0, 3, 1, 2), (0, 2, 3, 1), tuple(self.rng.permutation(4).tolist()))
        return self.b.transpose(x, np.array(order, np.int32))

    def reshaped(self, x: Tensor) -> Tensor:
        shape = self.pick(x.shape[::-1], x.shape, (x.shape[0], 1, -1, 1), (1, 1, 1, -1))
        return self.b.reshape(x, np.array(shape, np.int32))

    def joined(self, x: Tensor) -> Tensor:
        alike = [y for y in self.tensors if y.shape == x.shape and y.value.scale == x.value.scale]
        return self.b.concatenation([x, self.pick(*alike)], self.whole(0, 3), **self.of(x))

    def cut(self, x: Tensor) -> Tensor:
        axes = [i for i, n in enumerate(x.shape) if n % 2 == 0]
        if not axes:
            return self.b.squeeze(x, None) if 1 in x.shape and max(x.shape) > 1 else self.b.relu(x)
        parts = self.b.split(x, self.pick(*axes), 2, outputs=2)
        self.tensors.append(parts[0])
        return parts[1]

    def flat(self, x: Tensor) -> Tensor:
        size = int(np.prod(x.shape))
        if self.quant or size > 300:
            return self.reshaped(x)
        return self.b.fully_connected(x, self.constant((3, size)), self.constant((3,)))


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 14), st.sampled_from(["nhwc", "nchw", "mixed"]), st.booleans(), st.data())
def test_a_model_in_one_layout_gives_the_same_with_few_transposes(
    seed: int, count: int, start: str, quantised: bool, data: st.DataObject
) -> None:
    layout: Layout = data.draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(seed)
    model = Drawn(rng, start, quantised).model(count)
    found = with_layout(model, layout)
    holds(model, found, layout)
    assert same(model, found.model, inputs_of(model, rng))
    assert with_layout(found.model, layout).model is found.model


def holds(model: Model, found: ModelInLayout, layout: Layout) -> None:
    """What is true of every model that was laid out."""
    new = found.model.main
    assert set(layouts(found.model)) <= {layout == "nchw"}
    assert not found.left
    turned = sum(nchw != (layout == "nchw") for nchw in layouts(model))
    assert transposes(found.model) <= transposes(model) + 2 * turned
    assert len(found.inserted) == found.transposes <= transposes(model) + 2 * turned
    made_by = {i: o.type for o in new.operations for i in o.outputs}
    for operation in new.operations:
        if operation.type == TRANSPOSE and found.model is not model:
            assert made_by.get(operation.inputs[0]) != TRANSPOSE
    kept = [o.type for o in model.main.operations if o.type != TRANSPOSE]
    assert sorted(o.type for o in new.operations if o.type != TRANSPOSE) == sorted(kept)
    assert len(found.serves) == len(new.operations)
    for place, (operation, n) in enumerate(zip(new.operations, found.serves, strict=True)):
        assert place in found.inserted or model.main.operations[n].type == operation.type
    for ends in ("inputs", "outputs"):
        old = [model.main.operands[i] for i in getattr(model.main, ends)]
        assert [found.model.main.operands[i] for i in getattr(new, ends)] == old


# ------------------------------------------------------------------------------------------------------ every operation


LAID = sorted(
    name for name, op in OPS.items() if any(x.layout for form in op.forms for x in form) and not op.code >> 16
)
OPEN_SHAPE = "output_shape is only known at execution"  # where it is drawn as an input of the model


def ordinary(name: str) -> list[Cell]:
    return [cell for cell in cells([name]) if cell.values == "ordinary"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAID)
@pytest.mark.parametrize("open", [False, True], ids=["known", "open"])
def test_an_operation_with_a_layout_is_the_same_in_the_other(name: str, open: bool) -> None:
    rng = np.random.default_rng([SEED, len(name)])
    for cell in ordinary(name):
        for _ in range(3):
            call = draw(cell, rng, open=open)
            model = model_of(call)
            for layout in LAYOUTS:
                found = with_layout(model, layout)
                if not found.left:
                    assert layouts(found.model) == [layout == "nchw"]
                assert found.transposes <= 2 and set(found.left.values()) <= {OPEN_SHAPE}
                assert same(model, found.model, arrays_of(call)), f"{cell} {layout}"


# --------------------------------------------------------------------------------------------------------------- by hand


def weights(units: int, depth: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(SEED)
    return rng.standard_normal((units, 1, 1, depth)).astype(np.float32), np.zeros(units, np.float32)


def test_a_chain_is_transposed_at_its_ends_alone() -> None:
    b = Builder()
    first = x = b.input((1, 6, 6, 4))
    for _ in range(5):
        y = b.conv_2d(x, *weights(4, 4), padding="same", activation="relu")
        y = b.pad(b.hard_swish(y), np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.int32))
        y = b.max_pool_2d(y, padding="valid", filter_size=2, stride=1)
        y = b.prelu(y, np.full((1, 1, 4), 0.5, np.float32))
        x = b.concatenation(b.split(b.add(x, y), 3, 2, outputs=2), 3)
    model = b.finish([first], [x])
    found = with_layout(model, "nchw")
    kinds = [OperationType(o.type).name for o in found.model.main.operations]
    assert kinds.count("TRANSPOSE") == 2 and (kinds[0], kinds[-1]) == ("TRANSPOSE", "TRANSPOSE")
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))
    assert with_layout(found.model, "nhwc").transposes == 0


def test_pairs_of_transposes_that_a_model_brings_cancel() -> None:
    """As converters from NCHW make them: each operation on NHWC pictures between two transposes."""
    b = Builder()
    first = x = b.input((1, 4, 6, 6))
    for _ in range(3):
        y = b.transpose(x, np.array((0, 2, 3, 1), np.int32))
        y = b.conv_2d(y, *weights(4, 4), padding="same")
        x = b.add(x, b.transpose(y, np.array((0, 3, 1, 2), np.int32)))
    model = b.finish([first], [x])
    assert transposes(model) == 6
    found = with_layout(model, "nchw")
    assert transposes(found.model) == 0
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))
    kept = with_layout(model, "nhwc")
    assert transposes(kept.model) <= 2
    assert same(model, kept.model, inputs_of(model, np.random.default_rng(1)))


def test_what_a_constant_is_made_of_is_turned_with_it() -> None:
    """Weights of 16 bits: a slope for each channel, widened when the model runs."""
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = b.conv_2d(x, *weights(3, 3), padding="same")
    slope = b.cast(np.array([[[0.5, 2, -1]]], np.float16), out_type="TENSOR_FLOAT32")
    y = b.conv_2d(b.prelu(y, slope), *weights(3, 3), padding="same")
    model = b.finish([x], [y])
    found = with_layout(model, "nchw")
    assert found.transposes == 2
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


def test_the_numbers_beside_a_constant_that_is_turned_stay_numbers() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    bent = b.elu(np.array([[[0.5, -2, -1]]], np.float32), 0.5)
    model = b.finish([x], [b.max_pool_2d(b.add(x, bent), padding="same", filter_size=2, stride=1)])
    found = with_layout(model, "nchw")
    assert found.transposes == 2
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_constant_is_made_of_may_be_an_output_transposed(depth: int) -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = b.max_pool_2d(x, padding="same", filter_size=2, stride=1)
    z = b.cast(np.arange(6, dtype=np.float16).reshape(2, 3), out_type="TENSOR_FLOAT32")
    for _ in range(depth):
        z = b.neg(b.transpose(z, None))
    model = b.finish([x], [y, b.transpose(z, None)])
    for layout in LAYOUTS:
        found = with_layout(model, layout)
        assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


def test_a_product_is_the_same_where_its_matrices_were_transposed_before() -> None:
    """Row by row in memory or a view of a transposed matrix: libraries add up in another order."""
    rng = np.random.default_rng(1)
    b = Builder()
    x = b.input((1, 6, 4, 6))
    weights = rng.standard_normal((144, 3)).astype(np.float32)
    y = b.fully_connected(x, b.transpose(weights, None), np.zeros(3, np.float32))
    row = b.reshape(x, np.array([1, 144], np.int32))
    z = b.batch_matmul(row, b.transpose(weights, None), adj_y=True)
    model = b.finish([x], [y, z, b.max_pool_2d(x, padding="same", filter_size=2, stride=1)])
    for _ in range(20):
        inputs = inputs_of(model, rng)
        assert all(same(model, with_layout(model, layout).model, inputs) for layout in LAYOUTS)


def test_scales_of_channels_go_where_their_dimension_goes() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = b.max_pool_2d(x, padding="same", filter_size=2, stride=1)
    stored = np.arange(48, dtype=np.int8).reshape(1, 4, 4, 3)
    channel = ChannelQuant((0.5, 2.0, 3.0), 3)
    added = b.dequantize(
        b.constant(stored, "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=channel), out_type="TENSOR_FLOAT32"
    )
    y = b.max_pool_2d(b.add(y, added), padding="same", filter_size=2, stride=1)
    model = b.finish([x], [y])
    found = with_layout(model, "nchw")
    assert [o.channel.axis for o in found.model.main.operands if o.channel is not None] == [1]
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


def test_subgraphs_are_laid_out_too_and_their_ends_stay() -> None:
    b = Builder()
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input((1, 4, 4, 3))
    window = {"padding": "same", "filter_size": 2, "stride": 1}
    branches = [
        make_subgraph(b, lambda s, z: s.max_pool_2d(z, **window), (1, 4, 4, 3)),
        make_subgraph(b, lambda s, z: s.average_pool_2d(z, **window), (1, 4, 4, 3)),
    ]
    model = b.finish([condition, x], [b.if_(condition, *branches, [x], out_type="TENSOR_FLOAT32")])
    found = with_layout(model, "nchw")
    assert found.transposes == 4 and not found.inserted
    for which in (True, False):
        picture = np.random.default_rng(1).standard_normal((1, 4, 4, 3)).astype(np.float32)
        assert same(model, found.model, [np.array([which]), picture])


def test_what_cannot_be_known_before_the_execution_stays_as_it_is() -> None:
    b = Builder()
    x, nchw = b.input((1, 4, 4, 3)), b.input((), "BOOL")
    y = b.max_pool_2d(x, padding="same", filter_size=2, stride=1, nchw=nchw)
    z = b.max_pool_2d(y, padding="same", filter_size=2, stride=1)
    model = b.finish([x, nchw], [z, b.max_pool_2d(x, padding="same", filter_size=2, stride=1)])
    found = with_layout(model, "nchw")
    assert found.left == {0: "nchw is only known at execution", 1: "the rank of input is only known at execution"}
    assert found.transposes == 2


def test_an_operation_whose_output_has_no_rank_stays_as_it_is() -> None:
    m = ModelBuilder()
    x, y = m.operand(OperandType.TENSOR_FLOAT32, (1, 4, 4, 3)), m.operand(OperandType.TENSOR_FLOAT32, ())
    m.operation("MAX_POOL_2D", [x, *(m.constant(OperandType.INT32, n) for n in (1, 1, 1, 2, 2, 0))], [y])
    found = with_layout(m.finish([x], [y]), "nchw")
    assert found.left == {0: "the rank of output is only known at execution"}


def test_a_model_that_has_the_layout_is_the_very_same() -> None:
    model = make_model(lambda b, x: b.max_pool_2d(x, padding="same", filter_size=2, stride=1, nchw=True), (1, 3, 4, 4))
    for layout in ("nchw", None):
        found = with_layout(model, layout)
        assert found.model is model and found.transposes == 0 and found.serves == (0,)
    assert with_layout(model, "nhwc").model is not model


def test_elements_that_stay_where_they_are_need_no_transpose_before_a_dense_layer() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = b.average_pool_2d(x, padding="valid", filter_size=4, stride=1)
    model = b.finish([x], [b.fully_connected(y, np.ones((2, 3), np.float32), np.zeros(2, np.float32)), b.relu(x)])
    found = with_layout(model, "nchw")
    assert found.transposes == 1  # of what goes in
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


def test_transposes_of_matrices_cancel_too() -> None:
    b = Builder()
    x, m = b.input((1, 4, 4, 3)), b.input((2, 3))
    turn = np.array((1, 0), np.int32)
    y = b.transpose(b.relu(b.transpose(m, turn)), turn)
    model = b.finish([x, m], [y, b.max_pool_2d(x, padding="valid", filter_size=2, stride=1)])
    found = with_layout(model, "nchw")
    assert transposes(model) == 2 and transposes(found.model) == 2 and found.transposes == 2  # those of the picture
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))


# ------------------------------------------------------------------------------------------- what is transposed, and why


def pooled(b: Builder, x: Tensor, nchw: bool = False) -> Tensor:
    """An operation with a layout."""
    return b.max_pool_2d(x, padding="same", filter_size=2, stride=1, nchw=nchw)


def turned_to(b: Builder, x: Tensor, *order: int) -> Tensor:
    return b.transpose(x, np.array(order, np.int32))


def kinds(model: Model) -> list[str]:
    return [OperationType(o.type).name for o in model.main.operations]


def laid(model: Model, layout: Layout = "nchw") -> ModelInLayout:
    """The model in a layout, which gives the same."""
    found = with_layout(model, layout)
    assert same(model, found.model, inputs_of(model, np.random.default_rng(1)))
    return found


def sizes_transposed(found: ModelInLayout) -> list[int]:
    """Elements of what is transposed."""
    main = found.model.main
    return [int(np.prod(main.operands[o.outputs[0]].dimensions)) for o in main.operations if o.type == TRANSPOSE]


def test_a_transpose_serves_who_reads_it_or_who_was_turned_before_it() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = pooled(b, pooled(b, x))
    model = b.finish([x], [b.fully_connected(y, np.ones((2, 48), np.float32), np.zeros(2, np.float32))])
    found = laid(model)
    assert kinds(found.model) == ["TRANSPOSE", "MAX_POOL_2D", "MAX_POOL_2D", "TRANSPOSE", "FULLY_CONNECTED"]
    assert found.serves == (0, 0, 1, 1, 2) and found.inserted == {0, 3}
    assert found.served() == {0: {0}, 3: {1}}
    assert found.turned == {model.main.operations[n].outputs[0] for n in (0, 1)}
    shapes = [found.model.main.operands[o.outputs[0]].dimensions for o in found.model.main.operations]
    assert shapes == [(1, 3, 4, 4), (1, 3, 4, 4), (1, 3, 4, 4), (1, 4, 4, 3), (1, 2)]


def test_a_transpose_serves_all_who_read_it() -> None:
    found = laid(make_model(lambda b, x: [b.relu(x), pooled(b, x), pooled(b, x)], (1, 4, 4, 3)))
    place = kinds(found.model).index("TRANSPOSE")
    assert found.serves[place] == 1 and found.served()[place] == {1, 2}


def test_what_was_laid_out_once_is_kept() -> None:
    model = make_model(pooled, (1, 4, 4, 3))
    assert with_layout(model, "nchw") is with_layout(model, "nchw")
    assert with_layout(model, "nhwc") == with_layout(model, "nhwc") == ModelInLayout(model, (0,))
    b = Builder()
    x, nchw = b.input((1, 4, 4, 3)), b.input((), "BOOL")
    model = b.finish([x, nchw], [b.max_pool_2d(x, padding="same", filter_size=2, stride=1, nchw=nchw)])
    for _ in range(2):
        found = with_layout(model, "nchw")
        assert found.model is model and found.serves == (0,) and found.left == {0: "nchw is only known at execution"}


def test_a_model_without_layouts_is_left_alone() -> None:
    model = make_model(lambda b, x: b.relu(turned_to(b, turned_to(b, x, 1, 0), 1, 0)), (2, 3))
    assert all(with_layout(model, layout).model is model for layout in LAYOUTS)


def test_a_transpose_is_put_as_late_as_can_be_where_it_costs_the_same() -> None:
    found = laid(make_model(lambda b, x: pooled(b, b.relu(x)), (1, 4, 4, 3)))
    assert kinds(found.model) == ["RELU", "TRANSPOSE", "MAX_POOL_2D", "TRANSPOSE"]
    assert len(found.turned) == 1


def test_two_small_transposes_cost_more_than_one_larger() -> None:
    found = laid(make_model(lambda b, one, two: b.add(pooled(b, one), pooled(b, two)), (1, 8, 8, 1), (1, 1, 1, 64)))
    assert sizes_transposed(found) == [64, 64, 4096]


@pytest.mark.parametrize(("depth", "transposed"), [(261, [64, 261, 16704]), (262, [64, 262, 64, 262])])
def test_an_operation_more_costs_as_much_as_65536_bytes(depth: int, transposed: list[int]) -> None:
    """The sum has 256 bytes for each of its depth; the summands have 256 in all and 4 for each: even at 261.1."""
    found = laid(make_model(lambda b, one, two: b.add(pooled(b, one), pooled(b, two)), (1, 8, 8, 1), (1, 1, 1, depth)))
    assert sizes_transposed(found) == transposed


def test_no_transpose_is_added_to_save_bytes() -> None:
    """The sum has 256 KiB, its summands 16 KiB and 64 bytes."""
    found = laid(make_model(lambda b, one, two: pooled(b, b.add(one, two)), (1, 64, 64, 1), (1, 1, 1, 16)))
    assert sizes_transposed(found) == [65536, 65536]


def test_of_orders_that_cost_as_many_transposes_that_with_the_fewest_bytes_is_taken() -> None:
    """Five orders meet at a chain: that of what goes in, three of outputs, and its own; the last output is the largest."""
    b = Builder()
    picture, given = b.input((1, 3, 4, 4)), b.input((2, 2, 2, 1))
    x = turned_to(b, given, 3, 0, 1, 2)
    y = b.relu(x)
    z = b.relu(y)
    large = b.add(z, np.ones((64, 1, 1, 1), np.float32))
    outputs = [turned_to(b, y, 0, 2, 1, 3), turned_to(b, z, 0, 3, 2, 1), turned_to(b, large, 2, 0, 3, 1)]
    model = b.finish([picture, given], [pooled(b, picture, True), *outputs])
    found = laid(model)
    assert max(sizes_transposed(found)) == 8


def test_the_fifth_order_that_meets_at_a_chain_is_not_tried() -> None:
    """As before, with one more output ahead of the largest, which now is transposed as it is."""
    b = Builder()
    picture, given = b.input((1, 3, 4, 4)), b.input((2, 2, 2, 1))
    x = turned_to(b, given, 3, 0, 1, 2)
    y = b.relu(x)
    z = b.relu(y)
    large = b.add(z, np.ones((64, 1, 1, 1), np.float32))
    outputs = [turned_to(b, y, 0, 2, 1, 3), turned_to(b, z, 0, 3, 2, 1), turned_to(b, z, 1, 0, 2, 3)]
    model = b.finish([picture, given], [pooled(b, picture, True), *outputs, turned_to(b, large, 2, 0, 3, 1)])
    assert max(sizes_transposed(laid(model))) == 512


def test_of_the_four_orders_that_are_tried_none_is_that_of_the_chain_itself() -> None:
    """The dense layer wants what the chain has now, so that of the four around it only the last, of most bytes, saves."""
    b = Builder()
    picture, given = b.input((1, 2, 2, 1)), b.input((2, 2, 2, 1))
    y = b.relu(turned_to(b, given, 3, 1, 0, 2))
    z = b.relu(y)
    large = b.add(z, np.ones((64, 1, 1, 1), np.float32))
    outputs = [turned_to(b, y, 0, 2, 1, 3), turned_to(b, z, 0, 3, 2, 1), turned_to(b, large, 2, 0, 3, 1)]
    dense = b.fully_connected(y, np.ones((2, 8), np.float32), np.zeros(2, np.float32))
    found = laid(b.finish([picture, given], [pooled(b, picture), *outputs, dense]))
    assert max(sizes_transposed(found)) == 8


def test_what_does_not_care_stays_as_it_is_where_another_order_costs_the_same() -> None:
    """The picture is wanted in two orders anyway: in two places before RELU, or in one before it and one behind."""
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = pooled(b, x)
    found = laid(b.finish([x], [turned_to(b, y, 0, 2, 1, 3), b.relu(y)]))
    assert kinds(found.model) == ["TRANSPOSE", "MAX_POOL_2D", "TRANSPOSE", "TRANSPOSE", "RELU"]


def test_islands_are_looked_at_again_where_their_neighbours_changed() -> None:
    """The first could only move a transpose from its input to its output, until the second takes the output so."""
    b = Builder()
    x = b.input((1, 3, 4, 5))
    y = b.relu(turned_to(b, pooled(b, x, True), 0, 2, 3, 1))
    r = b.reduce_max(y, np.array([0], np.int32), keep_dims=False)
    outputs = [turned_to(b, kind(r), 2, 0, 1) for kind in (b.relu, b.neg)]
    model = b.finish([x], outputs)
    assert transposes(model) == 3
    assert transposes(laid(model).model) == 0


def test_what_is_made_in_another_order_and_becomes_small_is_transposed_where_it_is_small() -> None:
    b = Builder()
    x = b.input((1, 8, 8, 3))
    y = b.reduce_max(b.relu(pooled(b, x)), np.array([1, 2], np.int32), keep_dims=True)
    assert sizes_transposed(laid(b.finish([x], [y]))) == [192, 3]


def test_what_loses_a_dimension_may_be_all_that_does_not_care_for_the_order() -> None:
    b = Builder()
    x = b.input((1, 8, 8, 3))
    found = laid(b.finish([x], [b.reduce_max(pooled(b, x), np.array([1, 2], np.int32), keep_dims=False)]))
    assert sizes_transposed(found) == [192]  # what goes in: of [1, 3] the order is the same


def test_what_two_outputs_are_transposed_of_is_transposed_before() -> None:
    b = Builder()
    x, picture = b.input((1, 4, 4, 3)), b.input((1, 3, 4, 4))
    outputs = [turned_to(b, kind(x), 0, 2, 1, 3) for kind in (b.relu, b.neg)]
    assert laid(b.finish([x, picture], [pooled(b, picture, True), *outputs])).transposes == 1


def test_what_two_operations_with_a_layout_read_is_transposed_before_both() -> None:
    found = laid(make_model(lambda b, x: [pooled(b, kind(x)) for kind in (b.relu, b.neg)], (1, 4, 4, 3)))
    assert found.transposes == 3 and kinds(found.model)[0] == "TRANSPOSE"


def test_a_vector_that_is_added_to_pictures_is_turned_with_them() -> None:
    model = make_model(lambda b, x: pooled(b, b.add(pooled(b, x), np.array([1, 2, 3], np.float32))), (1, 4, 4, 3))
    assert laid(model).transposes == 2


def test_a_vector_that_is_only_given_at_execution_stays_and_so_does_who_adds_it() -> None:
    assert laid(make_model(lambda b, x, v: pooled(b, b.add(pooled(b, x), v)), (1, 4, 4, 3), (3,))).transposes == 4


def test_truth_is_never_transposed() -> None:
    """TRANSPOSE takes no TENSOR_BOOL8: what gives one as an output works in the order of that."""
    found = laid(make_model(lambda b, x, y: b.less(pooled(b, x), pooled(b, y)), (1, 4, 4, 3), (1, 4, 4, 3)))
    assert found.transposes == 4


def test_what_is_reshaped_is_made_in_the_order_of_its_readers_where_the_elements_stay() -> None:
    b = Builder()
    x = b.input((16,))
    y = b.reshape(x, np.array([1, 4, 4, 1], np.int32))
    found = laid(b.finish([x], [pooled(b, y)]))
    assert found.transposes == 1 and found.model.main.operations[0].type == OperationType.RESHAPE
    b = Builder()
    x = b.input((16,))
    y = b.reshape(x, np.array([1, 4, 4, 1], np.int32))
    assert laid(b.finish([x], [y, pooled(b, y)])).transposes == 2  # and in its own where that is wanted


def test_what_was_left_out_before_the_layout_is_put_in_with_it() -> None:
    extension = register_extension("com.example.laid", (), ["TIMES"])
    picture = arg("input", T, "batch height width depth", layout=True)
    factor = arg("factor", OperandType.INT32, since=V1_2, default=3)
    nchw = arg("nchw", OperandType.BOOL, since=V1_2, default=False)
    form, result = Form(picture, factor, nchw), replace(picture, name="output")
    register(Op("com.example.laid.TIMES", {F32: V1_2}, (form,), (result,), lambda a, x: x * np.float32(a.factor)))
    found = laid(make_model(lambda b, x: b.operation("com.example.laid.TIMES", x), (1, 4, 4, 3)))
    (turned,) = [o for o in found.model.main.operations if o.type == extension.operation("TIMES")]
    _, given, other = (found.model.main.operands[i] for i in turned.inputs)
    assert found.model.constant(given) == 3 and found.model.constant(other)


def test_a_constant_that_only_a_device_can_read_is_left_as_it_is() -> None:
    m = ModelBuilder()
    opaque = Memory.hardware_buffer(48, Pixels(4, 3, 1, 1))  # pixels of 4 bytes
    w, x, y, z = (m.operand(OperandType.TENSOR_FLOAT32, (1, 2, 2, 3)) for _ in range(4))
    window = [m.constant(OperandType.INT32, n) for n in (1, 1, 1, 1, 1, 0)]
    m.operation("MAX_POOL_2D", [w, *window], [x])
    c = m.reference(OperandType.TENSOR_FLOAT32, (1, 2, 2, 3), m.add_pool(opaque), 0, 48)
    m.operation("ADD", [x, c, m.constant(OperandType.INT32, 0)], [y])
    m.operation("MAX_POOL_2D", [y, *window], [z])
    model = m.finish([w], [z])
    found = with_layout(model, "nchw")
    assert kinds(found.model) == ["TRANSPOSE", "MAX_POOL_2D", "TRANSPOSE", "ADD", "MAX_POOL_2D", "TRANSPOSE"]
    assert found.model.pools == model.pools
    (place,) = [o for o in found.model.main.operands if o.lifetime == Lifetime.CONSTANT_REFERENCE]
    assert place == model.main.operands[c]


def test_a_shape_that_is_given_at_execution_is_not_reordered() -> None:
    b = Builder()
    x, shape = b.input((16,)), b.input((4,), "TENSOR_INT32")
    y = b.reshape(x, shape)
    b._model._operands[y.index] = replace(b._model._operands[y.index], dimensions=(1, 4, 4, 1))
    model = b.finish([x, shape], [pooled(b, replace(y, value=replace(y.value, shape=(1, 4, 4, 1))))])
    found = with_layout(model, "nchw")
    inputs = [np.arange(16, dtype=np.float32), np.array([1, 4, 4, 1], np.int32)]
    assert found.transposes == 2 and same(model, found.model, inputs)


def test_a_dense_layer_reads_any_order_that_there_is_in_which_the_elements_stay() -> None:
    b = Builder()
    x = b.input((1, 1, 4, 3))
    y = pooled(b, x)
    dense = b.fully_connected(y, np.ones((2, 12), np.float32), np.zeros(2, np.float32))
    assert len(sizes_transposed(laid(b.finish([x], [turned_to(b, y, 1, 0, 2, 3), dense])))) == 2


def test_what_is_reduced_of_constants_alone_stands_alone() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    level = b.reduce_max(np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1], np.int32), keep_dims=False)
    assert laid(b.finish([x], [pooled(b, x), level])).transposes == 2


def test_dimensions_that_are_only_known_at_execution_do_not_keep_a_picture_from_being_turned() -> None:
    model = make_model(lambda b, x: pooled(b, b.relu(pooled(b, x))), (None, 4, 4, 3))
    found = with_layout(model, "nchw")
    assert found.transposes == 2
    assert same(model, found.model, [np.arange(96, dtype=np.float32).reshape(2, 4, 4, 3)])


@pytest.mark.parametrize(
    ("count", "lifetime", "pools"), [(32, Lifetime.CONSTANT_COPY, 0), (33, Lifetime.CONSTANT_REFERENCE, 2)]
)
def test_a_new_constant_of_more_than_128_bytes_lies_in_a_pool(count: int, lifetime: Lifetime, pools: int) -> None:
    b = Builder()
    x = b.input((1, 1, 1, count))
    y = b.add(pooled(b, x), np.arange(count, dtype=np.float32))
    model = b.finish([x], [pooled(b, y)])
    found = laid(model)
    (turned,) = [o for o in found.model.main.operands if o.dimensions == (1, count, 1, 1) and o.location.length]
    assert turned.lifetime == lifetime and len(found.model.pools) == pools


def test_new_constants_lie_behind_the_others_at_multiples_of_eight() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = b.add(pooled(b, x), np.array([1, 2, 3], np.float32))
    model = b.finish([x], [pooled(b, y)])
    found = laid(model)
    places = [o.location for o in found.model.main.operands if o.lifetime == Lifetime.CONSTANT_COPY]
    assert all(at.pool == 0 for at in places)
    new = sorted(at.offset for at in places if at.offset >= len(model.values))
    assert len(new) >= 4 and all(offset % 8 == 0 for offset in new)
    assert new[0] == -(-len(model.values) // 8) * 8 and found.model.values.startswith(model.values)


def test_the_ends_and_transposes_of_what_was_laid_out_are_known_without_binding_its_operations() -> None:
    b = Builder()
    x = b.input((1, 4, 4, 3))
    y = pooled(b, b.add(pooled(b, x), b.constant(np.ones((3,), np.float32))))
    found = laid(b.finish([x], [y])).model
    fresh = replace(found)  # without what is known of it
    indices = [i for i, o in enumerate(fresh.main.operands) if 0 not in o.dimensions]
    values = values_of(fresh, indices)
    outlined = outline(fresh)
    assert "facts" not in fresh._memo
    known = validate(found).subgraphs[0].values
    for i, value in zip(indices, values, strict=True):
        expected = known[i]
        assert value is not None and expected is not None
        assert replace(value, data=None) == replace(expected, data=None)
        assert value.data is None or np.array_equal(value.data, expected.data)
    ends = validate(outlined).subgraphs[0].values
    assert [v.shape for v in ends if v is not None] == [(1, 4, 4, 3), tuple(known[found.main.outputs[0]].known)]
