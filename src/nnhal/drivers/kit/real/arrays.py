"""The primitives for an engine with NumPy's functions, such as NumPy itself or JAX.

Such an engine computes a node when it is written, or traces it. Layers over pictures and `top` are left to the engine.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, Shape, UnknownValue, fixed
from nnhal.drivers.kit.operations.primitives import Node

REDUCED = {"logical_and": "all", "logical_or": "any"}


class ArrayNode(NamedTuple):
    """A node: an array of the engine, or the NumPy array of a constant."""

    array: Any
    constant: bool = False


class ArrayPrimitives:
    """The primitives, made of the functions of `np`. Elements of constants are moved when the graph is written.

    np: the engine's functions.
    """

    forgets_nan: frozenset[str] = frozenset()
    forgets_infinity, merges_factors, needs_elements, unknown_sizes = False, False, True, False

    def __init__(self, functions: Any, inputs: Sequence[Any]) -> None:
        self.np, self._inputs = functions, [*inputs]
        self.functions: dict[str, Callable[..., Any]] = {
            "divide": self.quotient,
            "reciprocal": lambda x: self.quotient(np.float32(1), x),
            "relu": lambda x: self.np.maximum(x, np.float32(0)),
            "sigmoid": lambda x: self.quotient(np.float32(1), 1 + self.np.exp(-x)),
            "hswish": lambda x: x * self.quotient(self.np.clip(x + np.float32(3), 0, 6), np.float32(6)),
            "round": self.rounded,
            "is_nan": self.np.isnan,
            "select": self.np.where,
            "ceiling": self.np.ceil,
        }

    def quotient(self, x: Any, y: Any) -> Any:
        """Divide, rounded once."""
        return self.np.divide(x, y)

    def rounded(self, x: Any) -> Any:
        """Round, halves away from zero."""
        whole = self.np.trunc(x)
        return whole + self.np.where(abs(x - whole) >= np.float32(0.5), self.np.sign(x), np.float32(0))

    def product(self, x: Any, y: Any) -> Any:
        """Multiply matrices, with all bits of float32."""
        return self.np.matmul(x, y)

    def parameter(self, dtype: np.dtype[Any], shape: Shape | None) -> Node:
        if self._inputs:
            return ArrayNode(self._inputs.pop(0))
        if shape is None or None in shape:  # the result of a refused operation
            raise UnknownValue("shape")
        return ArrayNode(self.np.zeros(fixed(shape), dtype))

    def constant(self, array: Array) -> Node:
        return ArrayNode(array, constant=True)

    def elements(self, x: Node) -> Array | None:
        return x.array if x.constant else None

    def dtype(self, node: Node) -> np.dtype[Any]:
        return np.dtype(node.array.dtype)

    def shape(self, node: Node) -> Shape | None:
        return tuple(node.array.shape)

    def convert(self, node: Node, dtype: Any) -> Node:
        return ArrayNode(node.array.astype(dtype), node.constant)

    def saturate(self, x: Node, dtype: np.dtype[Any]) -> Node:
        limits, held = np.iinfo(dtype), np.int32 if dtype == np.int32 else np.float32
        if self.dtype(x) != np.float32:
            return ArrayNode(self.np.clip(x.array.astype(np.int32), limits.min, limits.max).astype(held))
        real = self.np.where(self.np.isnan(x.array), np.float32(0), x.array)
        below = np.nextafter(np.float32(limits.max + 1), np.float32(0))
        inside = self.np.trunc(self.np.clip(real, np.float32(limits.min), below)).astype(held)
        return ArrayNode(self.np.where(real >= limits.max, held(limits.max), inside))

    def op(self, kind: str, *nodes: Node) -> Node:
        return ArrayNode((self.functions.get(kind) or getattr(self.np, kind))(*(node.array for node in nodes)))

    compare = op

    def power(self, base: Node, exponent: Node) -> Node:
        return self.op("power", base, exponent)

    def clamp(self, x: Node, low: float, high: float) -> Node:
        return ArrayNode(self.np.clip(x.array, np.float32(low), np.float32(high)))

    def elu(self, x: Node, alpha: float) -> Node:
        return ArrayNode(self.np.where(x.array < 0, np.float32(alpha) * self.np.expm1(x.array), x.array))

    def several(self, *_: Any) -> None:
        """Return None: the entries write several nodes."""

    prelu: Any = several
    blocks = recurrent = recurrent_step = gru = scaled = levels = prelu

    def _moved(self, move: Callable[..., Any], x: Node) -> Node:
        return ArrayNode(move(np if x.constant else self.np, x.array), x.constant)

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        return self._moved(lambda of, array: of.reshape(array, tuple(shape)), x)

    def squeeze(self, x: Node, axis: int) -> Node:
        return self._moved(lambda of, array: of.squeeze(array, axis), x)

    def unsqueeze(self, x: Node, axis: int) -> Node:
        return self._moved(lambda of, array: of.expand_dims(array, axis), x)

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        return self._moved(lambda of, array: of.transpose(array, tuple(order)), x)

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        known = all(part.constant for part in parts)
        return ArrayNode((np if known else self.np).concatenate([part.array for part in parts], axis), known)

    def split(self, x: Node, axis: int, size: int, count: int) -> Sequence[Node]:
        return [ArrayNode(part, x.constant) for part in (np if x.constant else self.np).split(x.array, count, axis)]

    def slice(
        self, x: Node, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> Node:
        cut = [slice(None)] * x.array.ndim
        for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
            cut[axis] = slice(first, None if step < 0 and last < -x.array.shape[axis] else last, step)
        return ArrayNode(x.array[tuple(cut)], x.constant)

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int], fill: Node) -> Node:
        sides = [*zip(before, after, strict=True)]
        return ArrayNode(self.np.pad(x.array, sides, constant_values=fill.array.reshape(())))

    def mirror(self, x: Node, before: Sequence[int], after: Sequence[int], mode: Any, sizes: Shape) -> Node:
        return ArrayNode(self.np.pad(x.array, [*zip(before, after, strict=True)], mode=mode))

    def gather(self, x: Node, indices: Node, axis: int) -> Node:
        return ArrayNode(self.np.take(x.array, indices.array, axis, mode="clip"))

    def gather_each(self, x: Node, indices: Node, axis: int) -> Node:
        return ArrayNode(self.np.take_along_axis(x.array, indices.array, axis))

    def tile(self, x: Node, multiples: Sequence[int]) -> Node:
        return ArrayNode(self.np.tile(x.array, tuple(multiples)))

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        return ArrayNode(self.np.broadcast_to(x.array, tuple(shape)))

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
        y = getattr(self.np, REDUCED.get(kind, kind))(x.array, axis=tuple(axes), keepdims=keep)
        return ArrayNode(self.np.asarray(y, x.array.dtype))

    def extreme(self, x: Node, axis: int, most: bool, keep: bool) -> Node:
        find = self.np.argmax if most else self.np.argmin
        return ArrayNode(find(x.array, axis=axis, keepdims=keep).astype(np.int32))

    def softmax(self, x: Node, axis: int, logarithm: bool) -> Node:
        below = x.array - x.array.max(axis, keepdims=True)
        powers = self.np.exp(below)
        total = powers.sum(axis, keepdims=True)
        return ArrayNode(below - self.np.log(total) if logarithm else powers / total)

    def interpolate(self, x: Node, sizes: Sequence[int], how: str, shares: Callable[[], tuple[Array, Array]]) -> Node:
        rows, columns = shares()
        return ArrayNode(self.product(rows, self.product(x.array, np.ascontiguousarray(columns.T))))

    def repeat(self, x: Node, times: Sequence[int], sizes: Sequence[int]) -> Node:
        return ArrayNode(x.array.repeat(times[0], 2).repeat(times[1], 3))

    def matmul(self, x: Node, y: Node, turn_x: bool = False, turn_y: bool = False, rank: int = 2) -> Node:
        left, right = (
            (node.array.swapaxes(-1, -2) if turn else node.array) for node, turn in ((x, turn_x), (y, turn_y))
        )
        return ArrayNode(self.product(left, right))

    def dense(self, x: Node, weights: Node, bias: Node | None = None) -> Node:
        return self.matmul(x, weights, False, True)
