"""What an engine's graph has to have, for operations to be made of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnhal.base.operands import Array, Shape

Node = Any
"""A tensor of the engine's graph."""


class Sliding(NamedTuple):
    """How a window moves over height and width. size: the window's, None where a filter says it.

    before, after: padding; auto: "same" where the engine works it out ("same_upper"), as sizes are not known.
    """

    strides: tuple[int, int]
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)
    size: tuple[int, int] | None = None
    dilations: tuple[int, int] = (1, 1)
    same: bool = False

    def around(self, size: Any, window: Any, axis: int) -> tuple[int, int]:
        """Padding before and after an axis of a size that is known, for a window of a size."""
        if not self.same:
            return self.before[axis], self.after[axis]
        stride, reach = self.strides[axis], (window - 1) * self.dilations[axis] + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        return total // 2, total - total // 2


class Primitives(Protocol):
    """A graph in the making. Pictures are NCHW, axes count from 0, sizes are numbers."""

    name: str

    def parameter(self, dtype: np.dtype[Any], shape: Shape | None) -> Node:
        """An input."""

    def constant(self, array: Array) -> Node:
        """A constant, which may stay where the array lies."""

    def elements(self, x: Node) -> Array | None:
        """The elements of a constant as it was written; None for what is computed."""

    def scaled(self, whole: Array, scales: Array) -> Node:
        """A constant of int8 times scales of the same rank, as kernels of 8 bits take weights.

        This and `levels` are for those alone.
        """

    def levels(self, x: Node, ends: tuple[float, float], become: tuple[float, float]) -> Node:
        """float32 saturated to 256 levels from one end to the other, rounded to the nearest, those from one end of `become`
        to the other: what the engine's kernels of 8 bits are made of.
        """

    def dtype(self, node: Node) -> np.dtype[Any]:
        """The type of a node's elements."""

    def shape(self, node: Node) -> Shape | None:
        """The shape, as far as the engine knows it."""

    def convert(self, node: Node, dtype: Any) -> Node:
        """Elements in another type; what does not fit is undefined."""

    def op(self, kind: str, *nodes: Node) -> Node:
        """A function of elements, with broadcasting: add, subtract, multiply, divide (rounded once), power, maximum,
        minimum, less, less_equal, greater, greater_equal, equal, not_equal, logical_and, logical_or, logical_not, select,
        floor, ceiling, round (halves away from zero), abs, negative, exp, log, sin, sqrt, tanh, sigmoid, relu, hswish,
        prelu (slopes of the same rank). Integers wrap around.
        """

    def clamp(self, x: Node, low: float, high: float) -> Node:
        """Elements within bounds."""

    def elu(self, x: Node, alpha: float) -> Node:
        """The activation."""

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """The elements in another shape, of which one dimension may be -1."""

    def squeeze(self, x: Node, axis: int) -> Node:
        """Without a dimension of 1."""

    def unsqueeze(self, x: Node, axis: int) -> Node:
        """With a dimension of 1."""

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        """The dimensions in another order."""

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """Tensors of one type behind each other."""

    def slice(
        self, x: Node, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> Node:
        """A part of some dimensions; an end beyond them is their end."""

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int], mode: str, fill: Node = None) -> Node:
        """More elements: "constant" with `fill` of the type of `x`, "reflect", "symmetric"."""

    def gather(self, x: Node, indices: Node, axis: int) -> Node:
        """Elements by their number, which is one of the axis."""

    def gather_each(self, x: Node, indices: Node, axis: int) -> Node:
        """For each index the element that is there along an axis."""

    def tile(self, x: Node, multiples: Sequence[int]) -> Node:
        """Repeated."""

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        """One element everywhere."""

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
        """mean, max, min, prod, sum; logical_and, logical_or of truth values."""

    def top(self, x: Node, count: int, axis: int, most: bool) -> tuple[Node, Node]:
        """The greatest, or least, in order, and their places: the first among equals first."""

    def blocks(self, kind: str, x: Node, block: int) -> Node:
        """Pictures by "depth_to_space" or "space_to_depth", depth in the order of blocks first."""

    def convolution(self, x: Node, weights: Node, groups: int, how: Sliding) -> Node:
        """weights: outputs, inputs of a group, height, width."""

    def spread(self, x: Node, weights: Node, strides: Sequence[int]) -> Node:
        """All products of a transposed convolution. weights: inputs, outputs, height, width."""

    def matmul(self, x: Node, y: Node, turn_x: bool = False, turn_y: bool = False) -> Node:
        """Products of matrices, either transposed before."""

    def mean_pool(self, x: Node, how: Sliding, padded: bool = False) -> Node:
        """Means of windows; padding counts where `padded`."""

    def max_pool(self, x: Node, how: Sliding) -> Node:
        """Greatest elements of windows."""

    def softmax(self, x: Node, axis: int, logarithm: bool) -> Node:
        """Along an axis."""

    def interpolate(self, x: Node, sizes: Sequence[int], how: str) -> Node:
        """Pictures resized bilinearly. how: "align_corners", "half_pixel" or "asymmetric"; or "repeated", each pixel."""

    def lstm(
        self, x: Node, states: Sequence[Node], weights: Sequence[Node], count: int, back: bool
    ) -> Sequence[Node] | None:
        """A plain LSTM over a sequence [batch, time, size]: outputs and last states; None where the engine has none.

        weights: of the input, of the state, and biases, each forget, input, cell, output one behind the other.
        """

    def gru(
        self, x: Node, state: Node, weights: Sequence[Node], count: int, reset_behind: bool
    ) -> Sequence[Node] | None:
        """A GRU over a sequence [batch, time, size]: outputs and the last state; None where the engine has none.

        weights: of the input, of the state, and biases, each update, reset, candidate one behind the other; that of the
        candidate's state by itself, as a fourth, where the reset gate acts behind its product.
        """
