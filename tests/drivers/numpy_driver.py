"""The smallest back end of `kit.operations`: numpy, which computes each primitive when it is written.

Its only user is `test_operations.py`. It shows what another graph engine has to write.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, Shape
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape
from nnhal.drivers.kit.operations import Node, WindowAttributes, table_for
from nnhal.drivers.kit.real import RealGraph, RealTask
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.model.validate import validate

KINDS: dict[str, Callable[..., Any]] = {
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hswish": lambda x: x * (np.clip(x + np.float32(3), 0, 6) / np.float32(6)),
    "round": lambda x: np.trunc(x.astype(np.float64) + np.copysign(0.5, x)).astype(np.float32),
    "is_nan": np.isnan,
    "select": np.where,
    "ceiling": np.ceil,
    "reciprocal": lambda x: 1 / x,
}
REDUCED = {"logical_and": np.all, "logical_or": np.any}
TABLE = table_for(RealTask, "numpy", {"WHILE": "numpy has no loops"})


class Tensor(NamedTuple):
    """An array; constant: whether the model has it."""

    array: Any
    constant: bool = False


class NumpyPrimitives:
    """Computes on the inputs of an execution, in their order."""

    name = "numpy"
    forgets_nan: frozenset[str] = frozenset()
    forgets_infinity, merges_factors, needs_elements, unknown_sizes = False, False, True, False

    def __init__(self, inputs: Sequence[Array | None] = ()) -> None:
        self._inputs = [x for x in inputs if x is not None]

    def parameter(self, dtype: np.dtype[Any], shape: Shape | None) -> Node:
        if self._inputs:
            return Tensor(self._inputs.pop(0))
        assert shape is not None and None not in shape
        return Tensor(np.ones(shape, dtype))

    def constant(self, array: Array) -> Node:
        return Tensor(array, constant=True)

    def elements(self, x: Node) -> Array | None:
        return x.array if x.constant else None

    def dtype(self, node: Node) -> np.dtype[Any]:
        return node.array.dtype

    def shape(self, node: Node) -> Shape | None:
        return node.array.shape

    def convert(self, node: Node, dtype: Any) -> Node:
        return Tensor(node.array.astype(dtype))

    def saturate(self, x: Node, dtype: np.dtype[Any]) -> Node:
        limits = np.iinfo(dtype)
        whole = np.clip(np.trunc(np.nan_to_num(x.array.astype(np.float64), nan=0)), limits.min, limits.max)
        return Tensor(whole.astype(np.int32 if dtype == np.int32 else np.float32))

    def op(self, kind: str, *nodes: Node) -> Node:
        return Tensor((KINDS.get(kind) or getattr(np, kind))(*(node.array for node in nodes)))

    compare = op

    def power(self, base: Node, exponent: Node) -> Node:
        return self.op("power", base, exponent)

    def clamp(self, x: Node, low: float, high: float) -> Node:
        return Tensor(np.clip(x.array, np.float32(low), np.float32(high)))

    def elu(self, x: Node, alpha: float) -> Node:
        return Tensor(np.where(x.array < 0, np.float32(alpha) * np.expm1(x.array), x.array))

    def prelu(self, *_: Any) -> None: ...

    def blocks(self, *_: Any) -> None: ...

    recurrent = recurrent_step = gru = scaled = levels = blocks

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        return Tensor(x.array.reshape(shape))

    def squeeze(self, x: Node, axis: int) -> Node:
        return Tensor(x.array.squeeze(axis))

    def unsqueeze(self, x: Node, axis: int) -> Node:
        return Tensor(np.expand_dims(x.array, axis))

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        return Tensor(x.array.transpose(order))

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        return Tensor(np.concatenate([part.array for part in parts], axis))

    def split(self, x: Node, axis: int, size: int, count: int) -> Sequence[Node]:
        return [Tensor(part) for part in np.split(x.array, count, axis)]

    def slice(
        self, x: Node, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> Node:
        cut = [slice(None)] * x.array.ndim
        for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
            cut[axis] = slice(first, None if step < 0 and last < -x.array.shape[axis] else last, step)
        return Tensor(x.array[tuple(cut)])

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int], fill: Node) -> Node:
        return Tensor(np.pad(x.array, [*zip(before, after, strict=True)], constant_values=fill.array))

    def mirror(self, x: Node, before: Sequence[int], after: Sequence[int], mode: Any, sizes: Shape) -> Node:
        return Tensor(np.pad(x.array, [*zip(before, after, strict=True)], mode=mode))

    def gather(self, x: Node, indices: Node, axis: int) -> Node:
        return Tensor(np.take(x.array, indices.array, axis))

    def gather_each(self, x: Node, indices: Node, axis: int) -> Node:
        return Tensor(np.take_along_axis(x.array, indices.array, axis))

    def tile(self, x: Node, multiples: Sequence[int]) -> Node:
        return Tensor(np.tile(x.array, multiples))

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        return Tensor(np.broadcast_to(x.array, shape))

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
        y = (REDUCED.get(kind) or getattr(np, kind))(x.array, axis=tuple(axes), keepdims=keep)
        return Tensor(np.asarray(y, x.array.dtype))

    def top(self, x: Node, count: int, axis: int) -> Node:
        places = np.argsort(-x.array.astype(np.float64), axis=axis, kind="stable")
        return Tensor(np.take(places, range(count), axis).astype(np.int32))

    def extreme(self, x: Node, axis: int, most: bool, keep: bool) -> Node:
        return Tensor((np.argmax if most else np.argmin)(x.array, axis=axis, keepdims=keep).astype(np.int32))

    def softmax(self, x: Node, axis: int, logarithm: bool) -> Node:
        below = x.array - x.array.max(axis, keepdims=True)
        total = np.exp(below).sum(axis, keepdims=True)
        return Tensor(below - np.log(total) if logarithm else np.exp(below) / total)

    def interpolate(self, x: Node, sizes: Sequence[int], how: str, shares: Callable[[], tuple[Array, Array]]) -> Node:
        rows, columns = shares()
        return Tensor(rows @ x.array @ columns.T)

    def repeat(self, x: Node, times: Sequence[int], sizes: Sequence[int]) -> Node:
        return Tensor(x.array.repeat(times[0], 2).repeat(times[1], 3))

    def convolution(self, x: Node, weights: Node, groups: int, how: WindowAttributes, bias: Node | None = None) -> Node:
        cells, filters = windows(x.array, how, 0.0), weights.array
        inputs = np.stack(
            np.split(cells, groups, 1), 1
        )  # batch, group, input, height, width, filter's height and width
        split = filters.reshape(groups, -1, *filters.shape[1:])
        y = np.einsum("ngihwab,goiab->ngohw", inputs, split)
        return Tensor(y.reshape(len(y), -1, *y.shape[3:]))

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
        return Tensor(y[:, :, before[0] : sizes[0] - after[0], before[1] : sizes[1] - after[1]])

    def matmul(self, x: Node, y: Node, turn_x: bool = False, turn_y: bool = False, rank: int = 2) -> Node:
        return Tensor(
            (x.array.swapaxes(-1, -2) if turn_x else x.array) @ (y.array.swapaxes(-1, -2) if turn_y else y.array)
        )

    def dense(self, x: Node, weights: Node, bias: Node | None = None) -> Node:
        return self.matmul(x, weights, False, True)

    def mean_pool(self, x: Node, how: WindowAttributes, padded: bool = False) -> Node:
        total = windows(x.array, how, 0.0).sum((-2, -1), dtype=np.float32)
        one = np.ones((1, 1, *x.array.shape[2:]), np.float32)
        return Tensor(total / (np.float32(np.prod(how.size or ())) if padded else windows(one, how, 0.0).sum((-2, -1))))

    def max_pool(self, x: Node, how: WindowAttributes) -> Node:
        return Tensor(windows(x.array, how, -np.inf).max((-2, -1)))


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


class NumpyModel(Prepared):
    """A model of known shapes, lowered at each execution."""

    def __init__(self, model: Model) -> None:
        self.model = model
        TABLE.lower(model, partial(RealTask, RealGraph(model, NumpyPrimitives())))

    def run(self, request: Request, control: Control) -> Timing | None:
        with np.errstate(all="ignore"):
            graph = RealGraph(self.model, NumpyPrimitives(request.inputs))
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
            return TABLE.verdicts(model, partial(RealTask, RealGraph(model, NumpyPrimitives())))

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        with np.errstate(all="ignore"):
            return for_each_shape(model, NumpyModel, reference.Interpreter)
