"""The primitives of which operations are made: what an engine's graph must offer to a lowering."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnhal.base.codes import RecurrentActivation
from nnhal.base.operands import Array, Shape

Node = Any
"""A tensor of the engine's graph."""


class WindowAttributes(NamedTuple):
    """The movement of a window over height and width.

    size: the window's or the filter's. before, after: padding; auto: "same" if the engine computes it
    ("same_upper"), because sizes are unknown.
    """

    strides: tuple[int, int]
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)
    size: tuple[int, int] | None = None
    dilations: tuple[int, int] = (1, 1)
    same: bool = False

    def around(self, size: Any, window: Any, axis: int) -> tuple[int, int]:
        """Return the padding before and after an axis of a known size, for a window of a size."""
        if not self.same:
            return self.before[axis], self.after[axis]
        stride, reach = self.strides[axis], (window - 1) * self.dilations[axis] + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        return total // 2, total - total // 2


GATES = ("forget", "input", "cell", "output")


class LstmLayer(NamedTuple):
    """One direction of an LSTM without projection, norm and clipping.

    weights, recurrent: of the input and of the state, by gate: rows are units. Without an "input" gate, the input is
    admitted as far as it is not forgotten. peepholes: empty if there are none. state, memory: before the first step.
    """

    weights: dict[str, Node]
    recurrent: dict[str, Node]
    bias: dict[str, Node]
    peepholes: dict[str, Node]
    state: Node
    memory: Node
    activation: RecurrentActivation
    units: int


class RnnLayer(NamedTuple):
    """One direction of a fully connected cell, see `LstmLayer`."""

    weights: Node
    recurrent: Node
    bias: Node
    state: Node
    activation: RecurrentActivation
    units: int


class Primitives(Protocol):
    """A graph under construction. Pictures are NCHW, axes count from 0, sizes are numbers.

    name: the engine's. forgets_nan: the functions that may return a number for NaN: exp, maximum, minimum,
    reduce_max, reduce_min, softmax. forgets_infinity: whether the greatest of infinities alone may be a finite number.
    merges_factors: whether the engine merges factors and roundings with neighbours,
    so that integers need guards. needs_elements: whether a tensor must not be empty.
    unknown_sizes: whether layers accept pictures of unknown sizes, and compute the padding of a scheme.
    """

    name: str
    forgets_nan: frozenset[str]
    forgets_infinity: bool
    merges_factors: bool
    needs_elements: bool
    unknown_sizes: bool

    def elements(self, x: Node) -> Array | None:
        """Return the elements of a constant as it was written; None for a computed node."""

    def dtype(self, node: Node) -> np.dtype[Any]:
        """Return the type of a node's elements."""

    def convert(self, node: Node, dtype: Any) -> Node:
        """Convert elements to another type; the result is undefined if they do not fit."""

    def saturate(self, x: Node, dtype: np.dtype[Any]) -> Node:
        """Convert to an integer type as it is held: truncated and saturated, NaN as 0."""

    def op(self, kind: str, *nodes: Node) -> Node:
        """Apply an elementwise function, with broadcasting.

        kind: add, subtract, multiply, divide (rounded once), power, maximum, minimum, less, less_equal, equal,
        logical_and, logical_or, logical_not, select, is_nan, floor, ceiling, round (halves away from zero), abs,
        negative, exp, log, sin, sqrt, reciprocal, tanh, sigmoid, relu, hswish. Integers wrap around.
        """

    def compare(self, kind: str, x: Node, y: Node) -> Node:
        """Compare numbers or truth values: less, less_equal, greater, greater_equal, equal, not_equal."""

    def power(self, base: Node, exponent: Node) -> Node:
        """Raise any number; the `op` "power" is for those above 0."""

    def clamp(self, x: Node, low: float, high: float) -> Node:
        """Limit elements to bounds."""

    def elu(self, x: Node, alpha: float) -> Node:
        """Apply the activation."""

    def prelu(self, x: Node, slopes: Node, alike: bool) -> Node | None:
        """Apply the activation with finite constant slopes; None if the engine has no better way than several nodes.

        alike: whether real numbers are computed, and the result has the shape of `x`.
        """

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """Reshape; one dimension may be -1."""

    def squeeze(self, x: Node, axis: int) -> Node:
        """Remove a dimension of 1."""

    def unsqueeze(self, x: Node, axis: int) -> Node:
        """Insert a dimension of 1."""

    def transpose(self, x: Node, order: Sequence[int]) -> Node:
        """Reorder the dimensions."""

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """Concatenate tensors of one type."""

    def split(self, x: Node, axis: int, size: int, count: int) -> Sequence[Node]:
        """Split an axis into parts of a size."""

    def slice(
        self, x: Node, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> Node:
        """Slice some dimensions; an end beyond a dimension is its end."""

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int], fill: Node) -> Node:
        """Pad with `fill`, of the type of `x`."""

    def mirror(self, x: Node, before: Sequence[int], after: Sequence[int], mode: str, sizes: Shape) -> Node:
        """Pad with the elements inside. mode: "reflect" or "symmetric"; sizes: of `x`, as far as known."""

    def gather(self, x: Node, indices: Node, axis: int) -> Node:
        """Pick elements by indices, which are within the axis."""

    def gather_each(self, x: Node, indices: Node, axis: int) -> Node:
        """Pick for each index the element that is there along an axis."""

    def tile(self, x: Node, multiples: Sequence[int]) -> Node:
        """Repeat along each dimension."""

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        """Repeat one element everywhere."""

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
        """Reduce by mean, max, min, prod, sum; logical_and, logical_or of truth values."""

    def top(self, x: Node, count: int, axis: int) -> Node:
        """Return the indices of the greatest elements in order: the first among equals first."""

    def extreme(self, x: Node, axis: int, most: bool, keep: bool) -> Node:
        """Return the int32 index of the greatest, or least, element of an axis: the first among equals.

        keep: whether the axis stays, with 1 element.
        """

    def blocks(self, kind: str, x: Node, block: int) -> Node | None:
        """Write "depth_to_space" or "space_to_depth" of pictures, whose depth has blocks first; None to transpose."""

    def softmax(self, x: Node, axis: int, logarithm: bool) -> Node:
        """Write SOFTMAX or LOG_SOFTMAX along an axis."""

    def interpolate(self, x: Node, sizes: Sequence[int], how: str, shares: Callable[[], tuple[Array, Array]]) -> Node:
        """Resize pictures bilinearly. how: "align_corners", "half_pixel" or "asymmetric".

        shares: returns the shares of input rows and columns in each output row and column, for matrix products.
        """

    def repeat(self, x: Node, times: Sequence[int], sizes: Sequence[int]) -> Node:
        """Repeat each pixel, to pictures of these sizes."""

    def convolution(self, x: Node, weights: Node, groups: int, how: WindowAttributes, bias: Node | None = None) -> Node:
        """Convolve. weights: outputs, inputs of a group, height, width. bias: only if the task of the engine gives one."""

    def spread(
        self, x: Node, weights: Node, strides: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> Node:
        """Write the products of a transposed convolution, without some rows and columns at both ends.

        weights: inputs, outputs, height, width.
        """

    def dense(self, x: Node, weights: Node, bias: Node | None = None) -> Node:
        """Multiply rows by transposed weights. bias: as of `convolution`."""

    def matmul(self, x: Node, y: Node, turn_x: bool = False, turn_y: bool = False, rank: int = 2) -> Node:
        """Multiply matrices, either one transposed first. rank: of both."""

    def mean_pool(self, x: Node, how: WindowAttributes, padded: bool = False) -> Node:
        """Return means of windows; padding counts if `padded`."""

    def max_pool(self, x: Node, how: WindowAttributes) -> Node:
        """Return the greatest elements of windows."""

    def recurrent(
        self, x: Node, layer: LstmLayer | RnnLayer, count: int, back: bool, axis: int
    ) -> Sequence[Node] | None:
        """Run a layer over a sequence along an axis, 0 or 1, by the engine's own kernel; None without such a kernel.

        Return the outputs, in the layout of `x`, and the last states.
        """

    def recurrent_step(self, x: Node, layer: LstmLayer) -> Sequence[Node] | None:
        """Run one step by the engine's own kernel; return the states, None without such a kernel."""

    def gru(
        self, x: Node, state: Node, weights: Sequence[Node], count: int, reset_behind: bool
    ) -> Sequence[Node] | None:
        """Write a GRU over a sequence [batch, time, size]; return outputs and the last state; None without such a kernel.

        weights: of the input, of the state, and biases, each in the order update, reset, candidate. If the reset gate
        acts after the product of the candidate's state, that product's bias is a fourth.
        """


class RealPrimitives(Primitives, Protocol):
    """The further primitives of an engine whose operands `kit.real` represents."""

    def parameter(self, dtype: np.dtype[Any], shape: Shape | None) -> Node:
        """Write an input."""

    def constant(self, array: Array) -> Node:
        """Write a constant, which may stay in the array's memory."""

    def shape(self, node: Node) -> Shape | None:
        """Return the shape, as far as the engine knows it."""

    def scaled(self, whole: Array, scales: Array) -> Node:
        """Write an int8 constant times scales of the same rank, as 8-bit kernels read weights.

        Only 8-bit kernels use this and `levels`.
        """

    def levels(self, x: Node, ends: tuple[float, float], become: tuple[float, float]) -> Node:
        """Round and saturate float32 to 256 levels between `ends`, mapped to those between `become`.

        The engine makes its 8-bit kernels of these.
        """
