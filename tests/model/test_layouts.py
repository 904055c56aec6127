"""Models in one layout: the same results, few transposes, nothing more to do the second time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnhal.base.codes import OperandType, OperationType
from nnhal.base.operands import Array, dtype_of
from nnhal.drivers.reference import Interpreter
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.model.graph import Model
from nnhal.model.layouts import LAYOUTS, LaidOut, Layout, laid_out
from nnhal.model.validate import validate
from tests import requests
from tests.properties import STABLE

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


@STABLE
@given(st.integers(0, 2**32), st.integers(1, 14), st.sampled_from(["nhwc", "nchw", "mixed"]), st.booleans(), st.data())
def test_a_model_in_one_layout_gives_the_same_with_few_transposes(
    seed: int, count: int, start: str, quantised: bool, data: st.DataObject
) -> None:
    layout: Layout = data.draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(seed)
    model = Drawn(rng, start, quantised).model(count)
    found = laid_out(model, layout)
    holds(model, found, layout)
    assert same(model, found.model, inputs_of(model, rng))
    assert laid_out(found.model, layout).model is found.model


def holds(model: Model, found: LaidOut, layout: Layout) -> None:
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
