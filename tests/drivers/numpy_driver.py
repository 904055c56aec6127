"""The smallest back end of `kit.operations`: numpy, which computes each primitive when it is written.

Its only user is `test_operations.py`. It shows what another graph engine has to write.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Shape
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape
from nnhal.drivers.kit.operations import Node, WindowAttributes, table_for
from nnhal.drivers.kit.real import RealGraph, RealTask
from nnhal.drivers.kit.real.arrays import ArrayNode, ArrayPrimitives
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.model.validate import validate

TABLE = table_for(RealTask, "numpy", {"WHILE": "numpy has no loops"})


class NumpyPrimitives(ArrayPrimitives):
    """Computes on the inputs of an execution, in their order."""

    name = "numpy"

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__(np, inputs)

    def top(self, x: Node, count: int, axis: int) -> Node:
        places = np.argsort(-x.array.astype(np.float64), axis=axis, kind="stable")
        return ArrayNode(np.take(places, range(count), axis).astype(np.int32))

    def convolution(self, x: Node, weights: Node, groups: int, how: WindowAttributes, bias: Node | None = None) -> Node:
        cells, filters = windows(x.array, how, 0.0), weights.array
        inputs = np.stack(
            np.split(cells, groups, 1), 1
        )  # batch, group, input, height, width, filter's height and width
        split = filters.reshape(groups, -1, *filters.shape[1:])
        y = np.einsum("ngihwab,goiab->ngohw", inputs, split)
        return ArrayNode(y.reshape(len(y), -1, *y.shape[3:]))

    def spread(
        self, x: Node, weights: Node, strides: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> Node:
        n, _, height, width = x.array.shape
        _, outputs, high, wide = weights.array.shape
        sizes = [
            (count - 1) * stride + size
            for count, stride, size in zip((height, width), strides, (high, wide), strict=True)
        ]
        y = np.zeros((n, outputs, *sizes), np.float32)
        for row in range(high):
            for column in range(wide):
                part = y[
                    :,
                    :,
                    row : row + height * strides[0] : strides[0],
                    column : column + width * strides[1] : strides[1],
                ]
                part += np.einsum("nihw,io->nohw", x.array, weights.array[:, :, row, column])
        return ArrayNode(y[:, :, before[0] : sizes[0] - after[0], before[1] : sizes[1] - after[1]])

    def mean_pool(self, x: Node, how: WindowAttributes, padded: bool = False) -> Node:
        total = windows(x.array, how, 0.0).sum((-2, -1), dtype=np.float32)
        one = np.ones((1, 1, *x.array.shape[2:]), np.float32)
        return ArrayNode(
            total / (np.float32(np.prod(how.size or ())) if padded else windows(one, how, 0.0).sum((-2, -1)))
        )

    def max_pool(self, x: Node, how: WindowAttributes) -> Node:
        return ArrayNode(windows(x.array, how, -np.inf).max((-2, -1)))


def windows(x: Array, how: WindowAttributes, fill: float) -> Array:
    """Return the windows of pictures: [batch, channel, height, width, window's height, window's width]."""
    sides = [*zip(how.before, how.after, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *sides], constant_values=fill)
    (high, wide), (down, across) = how.size or (1, 1), how.dilations
    reach = (high - 1) * down + 1, (wide - 1) * across + 1
    found = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    return found[:, :, :: how.strides[0], :: how.strides[1], ::down, ::across]


def operand_shape(model: Model, index: int) -> Shape | None:
    value = validate(model).subgraphs[0].values[index]
    return () if value is None else value.shape


def blank(model: Model) -> NumpyPrimitives:
    """Return primitives for a model of known shapes, whose inputs are ones."""
    values = validate(model).subgraphs[0].values
    return NumpyPrimitives([np.ones(v.known, v.dtype) for i in model.main.inputs if (v := values[i]) is not None])


class NumpyModel(Prepared):
    """A model of known shapes, lowered at each execution."""

    def __init__(self, model: Model) -> None:
        self.model = model
        TABLE.lower(model, partial(RealTask, RealGraph(model, blank(model))))

    def run(self, request: Request, control: Control) -> Timing | None:
        with np.errstate(all="ignore"):
            graph = RealGraph(self.model, NumpyPrimitives([x for x in request.inputs if x is not None]))
            TABLE.lower(self.model, partial(RealTask, graph))
            outputs = graph.outputs()
        checks = len(graph.checks)
        if any(node.array.any() for node in outputs[len(outputs) - checks :]):
            raise IndexError("an index is outside its dimension")
        for number, node in enumerate(outputs[: len(outputs) - checks]):
            request.write(number, node.array)
        return None


class NumpyDevice(Device):
    name, version = "numpy", "1"
    relaxations = ("float16", "infinities", "long_sums")

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def supports(self, model: Model) -> Sequence[Verdict]:
        if any(None in (operand_shape(model, index) or (None,)) for index in model.main.inputs):
            return [Verdict(False, "numpy needs inputs of known shapes")] * len(model.main.operations)
        with np.errstate(all="ignore"):
            return TABLE.verdicts(model, partial(RealTask, RealGraph(model, blank(model))))

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        with np.errstate(all="ignore"):
            return for_each_shape(model, NumpyModel, reference.Interpreter)
