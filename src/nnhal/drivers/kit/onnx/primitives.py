"""The primitives of `kit.operations`, made of ONNX's operators: those that are right and fast in ONNX Runtime."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.base.operands import Array, Shape, UnknownValue
from nnhal.drivers.kit.onnx.nodes import OnnxNodes
from nnhal.drivers.kit.operations.primitives import LstmLayer, RnnLayer, WindowAttributes
from nnhal.drivers.kit.variants import Refused

KINDS = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "select": "Where"}
KINDS |= {"maximum": "Max", "minimum": "Min", "floor": "Floor", "ceiling": "Ceil", "abs": "Abs", "negative": "Neg"}
KINDS |= {"exp": "Exp", "log": "Log", "sin": "Sin", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "is_nan": "IsNaN"}
KINDS |= {"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu", "hswish": "HardSwish"}
KINDS |= {"logical_and": "And", "logical_or": "Or", "logical_not": "Not"}
KINDS |= {"equal": "Equal", "not_equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater"}
KINDS |= {"greater_equal": "GreaterOrEqual"}
REDUCED = {"mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd", "sum": "ReduceSum"}
FUSED = {Kind.RELU: "Relu", Kind.TANH: "Tanh", Kind.SIGMOID: "Sigmoid"}
ORDER = ("input", "output", "forget", "cell")  # of gates
LOGICAL = {"logical_or": "max", "logical_and": "min"}


class OnnxPrimitives(OnnxNodes):
    """An ONNX graph under construction."""

    name = "ONNX Runtime"
    forgets_nan = frozenset({"reduce_max", "reduce_min"})
    forgets_infinity = merges_factors = needs_elements = unknown_sizes = False

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, str] = {}  # tensors, by name: the tensor with the same elements in another shape
        self._transposed: dict[tuple[str, tuple[int, ...]], str] = {}  # by name and order
        self.gates: dict[str, str] = {}  # tensors, by name: the tensor of which each is the LOGISTIC
        self.filled: dict[str, str] = {}  # tensors of one value, by name: that value

    def convert(self, node: str, dtype: Any) -> str:
        return self.Cast(node, to=np.dtype(dtype))

    def saturate(self, x: str, dtype: np.dtype[Any]) -> str:
        """Saturate in float64, which holds all numbers."""
        x, limits = self.Where(self.IsNaN(x), 0.0, x) if self.dtype(x) == np.float32 else x, np.iinfo(dtype)
        return self.convert(
            self.Clip(self.convert(x, np.float64), np.float64(limits.min), np.float64(limits.max)), dtype
        )

    def op(self, kind: str, *nodes: Any) -> str:
        """Write one node.

        The product of a number and its LOGISTIC uses the engine's sigmoid, one kernel, as the engine fuses it: off by
        2e-6 at most, 0 below -18. A choice between 1 and 0 is a conversion.
        """
        if kind == "multiply":
            for x, gate in (nodes, nodes[::-1]):
                if x is not None and self.gates.get(gate) == x:
                    nodes = x, self.Sigmoid(x)
        if kind == "select" and all(
            alike(self.elements(x), number) for x, number in zip(nodes[1:], (1, 0), strict=True)
        ):
            return self.convert(nodes[0], self.dtype(nodes[1]))
        if kind == "divide" and self.dtype(nodes[0]) == np.int32:
            return self.whole_quotient(*nodes)
        return self.node(KINDS[kind], *nodes)

    def whole_quotient(self, x: str, y: str) -> str:
        """Round integers towards minus infinity, in float64: it holds them and never rounds a quotient up to the next."""
        known = self.elements(y)
        if known is None:
            raise Refused("input2 is computed at execution, must be constant")
        if np.isin(known, (0, -1)).any():
            raise Refused("ONNX Runtime does not define an integer division by 0, nor of the least integer by -1")
        quotient = self.Div(self.convert(x, np.float64), self.convert(y, np.float64))
        return self.convert(self.Floor(quotient), np.int32)

    def compare(self, kind: str, x: str, y: str) -> str:
        """Convert truth values to numbers if order counts."""
        if self.dtype(x) == np.bool_ and kind not in ("equal", "not_equal"):
            x, y = self.convert(x, np.int32), self.convert(y, np.int32)
        found = self.op(kind, x, y)
        return self.Not(found) if kind == "not_equal" else found

    def power(self, base: str, exponent: str) -> str:
        return self.op("power", base, exponent)

    def clamp(self, x: str, low: float, high: float) -> str:
        return self.Clip(x, float(low), float(high))

    def elu(self, x: str, alpha: float) -> str:
        return self.Elu(x, alpha=alpha)

    def prelu(self, x: str, slopes: str, alike: bool) -> str:
        """Write several operations unless there is one slope: ONNX Runtime's own kernel is nine times slower."""
        known = self.elements(slopes)
        if alike and known is not None and known.size == 1:
            return self.LeakyRelu(x, alpha=known.item())
        return self.Add(self.Relu(x), self.Mul(slopes, self.Min(x, 0.0)))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Reshape; a tensor that is itself a reshape is replaced by its source."""
        x = self._sources.get(x, x)
        y = self.Reshape(x, list(shape), allowzero=int(-1 not in shape))
        self._sources[y] = x
        return y

    def squeeze(self, x: str, axis: int) -> str:
        return self.Squeeze(x, [axis])

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.Unsqueeze(x, [axis])

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """Transpose; a constant is written in the other order."""
        known = self.arrays.get(x)
        if known is None:
            return self.Transpose(x, perm=list(order))
        key = x, tuple(order)
        if key not in self._transposed:
            self._transposed[key] = self.constant(np.ascontiguousarray(known.transpose(order)))
        return self._transposed[key]

    def concat(self, parts: Sequence[str], axis: int) -> str:
        return self.Concat(*parts, axis=axis)

    def split(self, x: str, axis: int, size: int, count: int) -> Sequence[str]:
        return self.nodes("Split", [x, [size] * count], count, axis=axis)

    def slice(self, x: str, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]) -> str:
        plain = list(axes) == [*range(len(begin))] and set(steps) <= {1}
        return self.Slice(x, list(begin), list(end), *([] if plain else [list(axes), list(steps)]))

    def pad(self, x: str, before: Sequence[int], after: Sequence[int], fill: Any) -> str:
        return self.Pad(x, [*before, *after], fill)

    def mirror(self, x: str, before: Sequence[int], after: Sequence[int], mode: Any, sizes: Shape) -> str:
        """Pick elements by their indices: ONNX mirrors in one of both ways only."""
        if None in sizes:
            raise UnknownValue
        for axis, (size, *widths) in enumerate(zip(sizes, before, after, strict=True)):
            if any(widths):
                x = self.Gather(x, np.pad(np.arange(size or 0), widths, mode=mode).tolist(), axis=axis)
        return x

    def gather(self, x: str, indices: str, axis: int) -> str:
        return self.Gather(x, indices, axis=axis)

    def gather_each(self, x: str, indices: str, axis: int) -> str:
        return self.GatherElements(x, indices, axis=axis)

    def tile(self, x: str, multiples: Sequence[int]) -> str:
        return self.Tile(x, list(multiples))

    def broadcast(self, x: str, shape: Sequence[int]) -> str:
        whole = self.Expand(x, list(shape))
        self.filled[whole] = x
        return whole

    def reduce(self, kind: str, x: str, axes: Sequence[int], keep: bool) -> str:
        """Reduce truth values as numbers."""
        if kind in LOGICAL:
            return self.convert(self.reduce(LOGICAL[kind], self.convert(x, np.int32), axes, keep), np.bool_)
        return self.node(REDUCED[kind], x, list(axes), keepdims=int(keep), noop_with_empty_axes=1)

    def top(self, x: str, count: int, axis: int) -> str:
        return self.nodes("TopK", [x, [count]], 2, axis=axis)[1]

    def extreme(self, x: str, axis: int, most: bool, keep: bool) -> str:
        return self.convert((self.ArgMax if most else self.ArgMin)(x, axis=axis, keepdims=int(keep)), np.int32)

    def blocks(self, kind: str, x: str, block: int) -> None:
        """Write nothing: ONNX Runtime's kernels support few types."""

    def softmax(self, x: str, axis: int, logarithm: bool) -> str:
        return (self.LogSoftmax if logarithm else self.Softmax)(x, axis=axis)

    def interpolate(self, x: str, sizes: Sequence[int], how: str, shares: Callable[[], tuple[Array, Array]]) -> str:
        """Multiply by the shares of the definition: ONNX Runtime's own positions are less exact."""
        rows, columns = shares()
        return self.MatMul(rows, self.MatMul(x, np.ascontiguousarray(columns.T)))

    def repeat(self, x: str, times: Sequence[int], sizes: Sequence[int]) -> str:
        """Write ONNX's operator, which is much faster than picking."""
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.Resize(x, "", np.array([1, 1, *times], np.float32), **how)

    def convolution(self, x: str, weights: str, groups: int, how: WindowAttributes, bias: str | None = None) -> str:
        return self.Conv(x, weights, *filter(None, [bias]), **moving(how), dilations=how.dilations, group=groups)

    def spread(self, x: str, weights: str, strides: Sequence[int], before: Sequence[int], after: Sequence[int]) -> str:
        return self.ConvTranspose(x, weights, strides=list(strides), pads=[*before, *after])

    def dense(self, x: str, weights: str, bias: str | None = None) -> str:
        return self.Gemm(x, weights, *filter(None, [bias]), transB=1)

    def matmul(self, x: str, y: str, turn_x: bool = False, turn_y: bool = False, rank: int = 2) -> str:
        order = *range(rank - 2), rank - 1, rank - 2
        return self.MatMul(self._turned(x, order) if turn_x else x, self._turned(y, order) if turn_y else y)

    def _turned(self, x: str, order: tuple[int, ...]) -> str:
        """Transpose once for several readers: steps share weights, and directions share a sequence."""
        if (x, order) not in self._transposed:
            self._transposed[x, order] = self.transpose(x, order)
        return self._transposed[x, order]

    def mean_pool(self, x: str, how: WindowAttributes, padded: bool = False) -> str:
        return self.AveragePool(x, **moving(how), **({"count_include_pad": 1} if padded else {}))

    def max_pool(self, x: str, how: WindowAttributes) -> str:
        return self.MaxPool(x, **moving(how))

    def recurrent(self, x: str, layer: LstmLayer | RnnLayer, count: int, back: bool, axis: int) -> Sequence[str] | None:
        """Write ONNX's own operator."""
        kind = FUSED.get(layer.activation)
        if kind is None or (isinstance(layer, RnnLayer) and count == 1):
            return None
        x = self._turned(x, (1, 0, 2)) if axis else x
        if isinstance(layer, RnnLayer):
            y, *last = self._rnn(x, layer, kind, back)
        else:
            y, *last = self._lstm(x, layer, kind, back)
        y = self.Squeeze(y, [1])
        return [self.transpose(y, [1, 0, 2]) if axis else y, *(self.Squeeze(state, [0]) for state in last)]

    def recurrent_step(self, x: str, layer: LstmLayer) -> Sequence[str] | None:
        kind = FUSED.get(layer.activation)
        if kind is None:
            return None
        return [self.Squeeze(state, [0]) for state in self._lstm(self.Unsqueeze(x, [0]), layer, kind, False)[1:]]

    def _rnn(self, x: str, layer: RnnLayer, kind: str, back: bool) -> list[str]:
        both = self.Concat(layer.bias, np.zeros(layer.units, np.float32), axis=0)
        weights, recurrent, both, state = self._of_one(layer.weights, layer.recurrent, both, layer.state)
        how = {"hidden_size": layer.units, "activations": [kind], "direction": "reverse" if back else "forward"}
        return self.nodes("RNN", [x, weights, recurrent, both, "", state], 2, **how)

    def _lstm(self, x: str, layer: LstmLayer, kind: str, back: bool) -> list[str]:
        """Write an LSTM. A coupled input gate has the negated one of the forget gate: 1 - sigmoid(x) = sigmoid(-x)."""

        def joined(part: dict[str, str], *more: Any) -> str:
            coupled = "input" not in part and "forget" in part
            known = {**part, "input": self.Neg(part["forget"])} if coupled else part
            return self.Concat(*(known[gate] for gate in ORDER if gate in known), *more, axis=0)

        both = joined(layer.bias, np.zeros(len(ORDER) * layer.units, np.float32))
        peepholes = [joined(layer.peepholes)] if layer.peepholes else []
        weights, recurrent, *others = self._of_one(
            joined(layer.weights), joined(layer.recurrent), both, layer.state, layer.memory, *peepholes
        )
        how = {"hidden_size": layer.units, "activations": ["Sigmoid", kind, kind]}
        how |= {"direction": "reverse" if back else "forward"}
        return self.nodes("LSTM", [x, weights, recurrent, others[0], "", *others[1:]], 3, **how)

    def _of_one(self, *names: str) -> list[str]:
        """Add a dimension for the directions, of which there is one."""
        return [self.Unsqueeze(name, [0]) for name in names]

    def gru(self, *_: Any) -> None:
        """Write nothing: `entries.gru` writes ONNX's own operator."""


def moving(how: WindowAttributes) -> dict[str, Any]:
    """Return the movement of a window, as attributes."""
    return {"kernel_shape": how.size, "strides": how.strides, "pads": (*how.before, *how.after)}


def alike(known: Array | None, number: int) -> bool:
    """Whether a value is known, and is that number; of zeros, the one without a sign."""
    return known is not None and bool((known == number).all()) and not np.signbit(known).any()
