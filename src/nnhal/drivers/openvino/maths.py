"""The primitives of `kit.operations`, made of OpenVINO's operations.

The file is long because each primitive also avoids the faults of its operation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation
from nnhal.base.operands import Array, Shape, UnknownValue
from nnhal.drivers.kit.native import borrowed_array
from nnhal.drivers.kit.operations.primitives import GATES, LstmLayer, Node, RnnLayer, WindowAttributes
from nnhal.drivers.kit.real.constants import KnownConstants
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.openvino.engine import opset, ov

LAYERS = frozenset({"avg_pool", "convolution", "convolution_backprop_data", "group_convolution"})
NOT_FOLDED = LAYERS | {"elu", "gather_elements", "gru_sequence", "lstm_sequence"}
# of integers; a kernel that merges several operations computes these in float32
CHOICES = frozenset({"maximum", "minimum", "select"})
UNCONVERTED = "nonconvertable_divide_0"  # OpenVINO's mark of divisions that it keeps
TINY, SHIFT = np.finfo(np.float32).tiny, np.float32(2.0**32)
LARGEST = 2.0**31 - 128  # the greatest float32 that an int32 holds
# the two inputs' order: which one, 0 or not 0, is the greater; None: the other
INTEGERS: dict[str, tuple[str, bool | None]] = {
    "equal": ("equal", None),
    "not_equal": ("not_equal", None),
    "less": ("not_equal", False),
    "greater": ("not_equal", True),
    "less_equal": ("equal", True),
    "greater_equal": ("equal", False),
}
PASSED_ON = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def out(node: Node) -> Node:
    """Return the first output of a node; an output unchanged."""
    return node.output(0) if hasattr(node, "output") else node


class RefusingOperations:
    """OpenVINO's operations, without the wrong ones.

    They raise Refused for nodes that OpenVINO rejects, and for operations on only constants that it does not fold. OpenVINO
    computes these once, and a subsequent addition writes its sums over the result, to which the next execution adds again.
    """

    def __init__(self) -> None:
        self._moving: set[str] = set()  # names of nodes whose values may differ between executions

    def __getattr__(self, kind: str) -> Callable[..., Node]:
        make = getattr(opset(), kind)

        def made(*arguments: Any, **more: Any) -> Node:
            try:
                node = make(*arguments, **more)
            except (RuntimeError, ov().exceptions.OVError) as error:
                raise Refused(f"OpenVINO's {kind} rejects the operands: {last_line(error)}") from error
            if kind == "parameter" or any(map(self.move, node.input_values())):
                self._moving.add(node.get_name())
            elif kind in NOT_FOLDED:
                raise Refused(f"OpenVINO's {kind} of only constants is wrong from the second execution on")
            return node

        return made

    def move(self, x: Node) -> bool:
        """Whether the values of a node depend on the execution."""
        return out(x).get_node().get_name() in self._moving

    def folded(self, x: Node) -> Array:
        """Return the elements of a node that is computed from constants alone."""
        model = ov().Model([opset().result(x)], [])
        tensor = ov().Tensor(model.output(0).get_element_type(), model.output(0).get_shape())
        if not model.evaluate([tensor], []):
            raise Refused(f"OpenVINO cannot compute {out(x).get_node().get_type_name()} of only constants")
        return np.array(tensor.data)


def last_line(error: Exception) -> str:
    """Return the line in which OpenVINO names the fault, after its source locations."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


class MathOperations(KnownConstants):
    """An `ov.Model` under construction. Constants must live as long as it or a model compiled from it."""

    name = "OpenVINO"
    forgets_nan = frozenset({"exp", "maximum", "minimum", "reduce_max", "reduce_min", "softmax"})
    forgets_infinity = merges_factors = needs_elements = unknown_sizes = True

    def __init__(self) -> None:
        super().__init__()
        self.o, self.ov = RefusingOperations(), ov()

    def name_of(self, x: Node) -> str:
        return str(out(x).get_node().get_name())

    def parameter(self, dtype: np.dtype[Any], shape: Shape | None) -> Node:
        sizes = self.ov.PartialShape.dynamic() if shape is None else [-1 if n is None else n for n in shape]
        return self.o.parameter(sizes, self.ov.Type(dtype))

    def constant(self, array: Array) -> Node:
        node = self.ov.op.Constant(borrowed_array(array), shared_memory=True)
        self.constants[node.get_name()] = array
        return node

    def decoded(self, whole: Node, scales: Node) -> Node:
        return self.o.multiply(self.convert(whole, np.float32), scales)

    def levels(self, x: Node, ends: tuple[float, float], become: tuple[float, float]) -> Node:
        return self.o.fake_quantize(x, *(self.o.constant(np.float32(end)) for end in (*ends, *become)), 256)

    def whole(self, numbers: Any) -> Node:
        """Write a constant of axes or sizes."""
        return self.o.constant(np.asarray(numbers, np.int64))

    def dtype(self, node: Node) -> np.dtype[Any]:
        return np.dtype(out(node).get_element_type().to_dtype())

    def shape(self, node: Node) -> Shape | None:
        found = out(node).get_partial_shape()
        if found.rank.is_dynamic:
            return None
        return tuple(size.get_length() if size.is_static else None for size in found)

    def convert(self, node: Node, dtype: Any) -> Node:
        return self.o.convert(node, self.ov.Type(np.dtype(dtype)))

    def op(self, kind: str, *nodes: Node) -> Node:
        if kind == "round":
            return self.o.round(*nodes, "half_away_from_zero")
        if kind == "divide":
            return self.quotient(*nodes)
        if kind == "reciprocal":
            return self.quotient(self.number(1), *nodes)
        if kind == "is_nan":
            return self.o.not_equal(nodes[0], nodes[0])
        if kind == "abs" and len(self.shape(nodes[0]) or ()) == 1:  # after a concatenation it changes the inputs
            return self.squeeze(self.o.abs(self.unsqueeze(nodes[0], 0)), 0)
        if kind in CHOICES and self.dtype(nodes[-1]) == np.int32:
            return self._alone(getattr(self.o, kind)(*map(self._alone, nodes)))
        return getattr(self.o, kind)(*nodes)

    def number(self, number: float, dtype: Any = np.float32) -> Node:
        """Write a constant."""
        return self.constant(np.array(number, dtype))

    def require_normal(self, *nodes: Node) -> None:
        """Refuse subnormal constants: OpenVINO may treat these as 0, but not the other operand."""
        for known in map(self.elements, nodes):
            if known is not None and known.dtype == np.float32 and ((np.abs(known) < TINY) & (known != 0)).any():
                raise Refused("OpenVINO treats a subnormal constant as 0, but not the other operand")

    def power(self, base: Node, exponent: Node) -> Node:
        """Raise. For a constant 0.5 OpenVINO uses the root, which is NaN at minus infinity."""
        self.require_normal(base, exponent)
        known = self.elements(exponent)
        if known is not None and (known == 0.5).any():
            base = self.o.select(self.o.equal(base, self.number(-np.inf)), self.number(np.inf), base)
        return self.o.power(base, exponent)

    def compare(self, kind: str, x: Node, y: Node) -> Node:
        """Compare truth values as numbers.

        OpenVINO compares integers in float32: the greater of two, and whether a difference is 0, are exact. Only "less"
        is false for NaN everywhere.
        """
        self.require_normal(x, y)
        if self.dtype(x) == np.bool_:
            x, y = self.convert(x, np.int32), self.convert(y, np.int32)
        elif self.dtype(x) == np.int32:
            kind, of_the_greater = INTEGERS[kind]
            other = y if of_the_greater is None else self.op("maximum", x, y)
            return self.op(kind, self.op("subtract", other, y if of_the_greater else x), self.number(0, np.int32))
        return self.op(kind.replace("greater", "less"), y, x) if kind.startswith("greater") else self.op(kind, x, y)

    def saturate(self, x: Node, dtype: np.dtype[Any]) -> Node:
        """Convert to int32, or to integers of 8 bits in float32, saturated: the conversion itself does not do it."""
        given, limits = self.dtype(x), np.iinfo(dtype)
        if dtype == np.int32:
            if given != np.float32:
                return x if given == dtype else self.convert(x, dtype)
            x = self.without_nan(x)
            near = self.convert(self.clamp(x, -(2.0**31), LARGEST), dtype)
            most = self.number(2**31 - 1, dtype)
            return self.op("select", self.op("greater", x, self.number(LARGEST)), most, near)
        if given == np.float32:
            x = self.clamp(self.without_nan(x), float(limits.min), float(limits.max))
            return self.op("select", self.op("less", x, self.number(0)), self.op("ceiling", x), self.op("floor", x))
        whole = x if given == np.int32 else self.convert(x, np.int32)
        whole = self.op("minimum", whole, self.number(limits.max, np.int32))
        return self.convert(self.op("maximum", whole, self.number(limits.min, np.int32)), np.float32)

    def without_nan(self, x: Node) -> Node:
        return self.op("select", self.op("is_nan", x), self.number(0), x)

    def quotient(self, x: Node, y: Node) -> Node:
        """Divide x by y, rounded once. OpenVINO keeps a marked division, and multiplies by the reciprocal for others."""
        if self.o.move(x) and not self.o.move(y):
            x, y = self.split_constant(x, y)
        elif self.o.move(y) and not self.o.move(x):
            y, x = self.split_constant(y, x)
        found = self.o.divide(x, y)
        found.get_rt_info()[UNCONVERTED] = True
        return found

    def split_constant(self, x: Node, constant: Node) -> tuple[Node, Node]:
        """Return a computed node and a constant, one of which is divided by the other.

        The constant is chosen at execution. A layer that includes a division by a constant multiplies by the
        reciprocal, and treats a constant dividend like the divisor. OpenVINO treats a subnormal constant as 0, so both
        numbers are scaled there.
        """
        constant = self.written(constant)
        known = self.constants[self.name_of(constant)]
        small = (np.abs(known) < TINY) & (known != 0)
        if small.any():
            factors = np.where(small, SHIFT, np.float32(1))
            x, constant = self.o.multiply(x, self.constant(factors)), self.constant(known * factors)
        return x, self.o.select(self.o.less(x, x), self.o.constant(np.float32(1)), constant)

    def written(self, constant: Node) -> Node:
        """Write a constant, also for a node that is computed from constants alone."""
        return constant if self.elements(constant) is not None else self.constant(self.o.folded(constant))

    def _alone(self, x: Node) -> Node:
        """Copy the elements, between nodes that OpenVINO would merge into one kernel."""
        return self.squeeze(self.unsqueeze(x, 0), 0)

    def clamp(self, x: Node, low: float, high: float) -> Node:
        return self.o.clamp(x, low, high)

    def elu(self, x: Node, alpha: float) -> Node:
        if alpha < 0:
            raise Refused(f"alpha is {alpha:g}, must be at least 0 for OpenVINO's kernel")
        return self.o.elu(x, alpha)

    def prelu(self, x: Node, slopes: Node, alike: bool) -> Node | None:
        """Write OpenVINO's own, which its layers can include, unless a slope is 0 or subnormal."""
        known, rank = self.constants[self.name_of(slopes)], len(self.shape(x) or ())
        if not alike or rank < 2 or (np.abs(known) < TINY).any():
            return None
        return self.o.prelu(x, self.reshape(slopes, (1,) * (rank - known.ndim) + known.shape))

    def reshaped(self, x: Node, shape: Sequence[int]) -> Node:
        return self.o.reshape(x, self.whole(shape), special_zero=False)

    def squeeze(self, x: Node, axis: int) -> Node:
        return self.o.squeeze(x, self.whole([axis]))

    def unsqueeze(self, x: Node, axis: int) -> Node:
        return self.o.unsqueeze(x, self.whole(axis))

    def turned(self, x: Node, order: Sequence[int]) -> Node:
        return self.o.transpose(x, self.whole(order))

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        known = [array for array in map(self.elements, parts) if array is not None]
        if len(known) == len(parts):  # once, for all steps that read joined weights
            return self.constant(np.concatenate(known, axis))
        first, *more = parts
        sizes = self.shape(first)
        if more and all(part is first for part in more) and sizes is not None and sizes[axis] == 1:
            # as `tile` does: OpenVINO would make it a Tile
            return self.gather(first, self.whole([0] * len(parts)), axis)
        return self.o.concat(list(parts), axis)

    def split(self, x: Node, axis: int, size: int, count: int) -> Sequence[Node]:
        return [self.slice(x, [n * size], [(n + 1) * size], [1], [axis]) for n in range(count)]

    def slice(
        self, x: Node, begin: Sequence[int], end: Sequence[int], steps: Sequence[int], axes: Sequence[int]
    ) -> Node:
        return self.o.slice(x, *map(self.whole, (begin, end, steps, axes)))

    def pad(self, x: Node, before: Sequence[int], after: Sequence[int], fill: Node) -> Node:
        return self.o.pad(x, self.whole(before), self.whole(after), "constant", fill)

    def mirror(self, x: Node, before: Sequence[int], after: Sequence[int], mode: str, sizes: Shape) -> Node:
        return self.o.pad(x, self.whole(before), self.whole(after), mode)

    def gather(self, x: Node, indices: Node, axis: int) -> Node:
        return self.o.gather(x, indices, self.whole(axis))

    def gather_each(self, x: Node, indices: Node, axis: int) -> Node:
        return self.o.gather_elements(x, indices, axis)

    def tile(self, x: Node, multiples: Sequence[int]) -> Node:
        """Pick by indices: OpenVINO's Tile mixes up elements if channels are innermost and its input is one pixel."""
        sizes = self.shape(x)
        if sizes is None or None in sizes:  # only during verdicts: a compiled model has known sizes
            return self.o.tile(x, self.whole(multiples))
        for axis, (size, times) in enumerate(zip(sizes, multiples, strict=True)):
            if times != 1:
                x = self.gather(x, self.whole(np.tile(np.arange(size or 0), times)), axis)
        return x

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        if self.elements(x) is None:
            raise UnknownValue("value")
        return self.o.broadcast(x, self.whole(shape))

    def reduce(self, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
        """Reduce, avoiding two faults of OpenVINO.

        A sum after one that keeps no dimension is wrong. A function merged into a reduction of three dimensions uses
        the constants of other rows.
        """
        kept = getattr(self.o, f"reduce_{kind}")(x, self.whole(axes), True)
        kept = self._alone(kept) if len(self.shape(x) or ()) == 3 else kept
        return kept if keep else self.o.squeeze(kept, self.whole(axes))

    def top(self, x: Node, count: int, axis: int, most: bool = True) -> Node:
        mode = "max" if most else "min"
        return self.o.topk(x, self.whole(count), axis, mode, "value", "i32", stable=True).output(1)

    def extreme(self, x: Node, axis: int, most: bool, keep: bool) -> Node:
        found = self.top(x, 1, axis, most)
        return found if keep else self.squeeze(found, axis)

    def blocks(self, kind: str, x: Node, block: int) -> Node | None:
        return getattr(self.o, kind)(x, "blocks_first", block)

    def one_column(self, x: Node, weights: Node, how: WindowAttributes) -> tuple[Node, WindowAttributes]:
        """Use a stride of 1 if the output is one column wide: a kernel for AVX-512 is wrong with others."""
        shape, kernel = self.shape(x), self.shape(weights)
        if how.strides[1] == 1 or not shape or not kernel or None in (*shape, *kernel):
            return x, how
        pads = [how.around(n, k, axis) for axis, (n, k) in enumerate(zip(shape[2:], kernel[-2:], strict=True))]
        width, reach = shape[3] or 0, ((kernel[-1] or 0) - 1) * how.dilations[1] + 1
        (top, bottom), (left, right) = pads
        if (width + left + right - reach) // how.strides[1] > 0:
            return x, how
        used = min(width, reach - left)
        x = x if used == width else self.slice(x, [0], [used], [1], [3])
        strides, after = (how.strides[0], 1), (bottom, reach - left - used)
        return x, how._replace(strides=strides, before=(top, left), after=after, same=False)

    def picked(self, x: Node, weights: Node, how: WindowAttributes) -> tuple[Node, WindowAttributes]:
        """Use the pixels that a filter of one pixel needs, after a Pad: OpenVINO would move its stride before the Pad."""
        node, kernel = out(x).get_node(), self.shape(weights)
        while node.get_type_name() in PASSED_ON:
            node = node.input_value(0).get_node()
        if max(how.strides) == 1 or not kernel or kernel[-2:] != (1, 1) or node.get_type_name() != "Pad":
            return x, how
        return self.slice(x, [0, 0], [2**31 - 1] * 2, how.strides, [2, 3]), how._replace(strides=(1, 1), same=False)

    def convolution(self, x: Node, weights: Node, groups: int, how: WindowAttributes, bias: Node | None = None) -> Node:
        x, how = self.one_column(x, weights, how)
        x, how = self.picked(x, weights, how)
        told = list(how.strides), list(how.before), list(how.after), list(how.dilations), padding(how)
        if groups == 1:
            return self.o.convolution(x, weights, *told)
        outputs, *others = self.known(weights)
        return self.o.group_convolution(x, self.reshape(weights, [groups, outputs // groups, *others]), *told)

    def known(self, node: Node) -> list[int]:
        """Return a shape whose dimensions are all known."""
        return list(out(node).get_shape())

    def spread(
        self, x: Node, weights: Node, strides: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> Node:
        y = self.o.convolution_backprop_data(x, weights, list(strides), pads_begin=[0, 0], pads_end=[0, 0])
        for axis, (first, more) in enumerate(zip(before, after, strict=True), 2):
            if first or more:
                y = self.slice(y, [first], [-more if more else 2**31 - 1], [1], [axis])
        return y

    def dense(self, x: Node, weights: Node, bias: Node | None = None) -> Node:
        return self.matmul(x, weights, False, True)

    def matmul(self, x: Node, y: Node, turn_x: bool = False, turn_y: bool = False, rank: int = 2) -> Node:
        if self.shape(y) == (1, 1) and not turn_x:  # fused with a product before it, it does not compile
            return self.o.multiply(x, y)
        rows, turned = self.weights_by_output(y, turn_y)
        return self.o.matmul(x, rows, turn_x, turned)

    def weights_by_output(self, factor: Node, turned: bool) -> tuple[Node, bool]:
        """Return a constant factor as a matrix with a row for each output, and whether it is one.

        OpenVINO packs constant factors, and finds a packed one by its address and its packed shape. If one product
        reads a square constant unchanged and another transposed, OpenVINO would pack it once, for the first of both.
        """
        if self.o.move(factor) or self.decodes(factor):
            return factor, turned
        factor = self.written(factor)
        last = len(self.known(factor)) - 1
        return factor if turned else self.transpose(factor, (*range(last - 1), last, last - 1)), True

    def mean_pool(self, x: Node, how: WindowAttributes, padded: bool = False) -> Node:
        pads = list(how.before), list(how.after)
        return self.o.avg_pool(x, list(how.strides), *pads, list(how.size or ()), not padded, auto_pad=padding(how))

    def max_pool(self, x: Node, how: WindowAttributes) -> Node:
        pads, size = (list(how.before), list(how.after)), list(how.size or ())
        return self.o.max_pool(x, list(how.strides), [1, 1], *pads, size, auto_pad=padding(how)).output(0)

    def softmax(self, x: Node, axis: int, logarithm: bool) -> Node:
        return self.o.log_softmax(x, axis) if logarithm else self.o.softmax(x, axis)

    def interpolate(self, x: Node, sizes: Sequence[int], how: str, shares: Callable[[], tuple[Array, Array]]) -> Node:
        return self.resized(x, sizes, "linear_onnx", how)

    def repeat(self, x: Node, times: Sequence[int], sizes: Sequence[int]) -> Node:
        return self.resized(x, sizes, "nearest", "asymmetric")

    def resized(self, x: Node, sizes: Sequence[int], kind: str, how: str) -> Node:
        more = {"coordinate_transformation_mode": how, "nearest_mode": "floor", "axes": self.whole([2, 3])}
        return self.o.interpolate(x, self.whole(sizes), kind, "sizes", **more)

    def recurrent(
        self, x: Node, layer: LstmLayer | RnnLayer, count: int, back: bool, axis: int
    ) -> Sequence[Node] | None:
        """Write a plain LSTM: OpenVINO's kernels of other cells are not verified."""
        if not isinstance(layer, LstmLayer) or layer.peepholes or len(layer.weights) < len(GATES):
            return None
        if layer.activation != RecurrentActivation.TANH:
            return None
        weights = [self.concat([part[gate] for gate in GATES], 0) for part in layer[:3]]
        x = x if axis else self.transpose(x, [1, 0, 2])
        direction, states = "reverse" if back else "forward", (layer.state, layer.memory)
        y, *last = self._sequence(self.o.lstm_sequence, x, states, weights, count, direction)
        return [y if axis else self.transpose(y, [1, 0, 2]), *last]

    def recurrent_step(self, x: Node, layer: LstmLayer) -> None:
        """Write nothing: several nodes are as fast as a sequence of one step."""

    def gru(self, x: Node, state: Node, weights: Sequence[Node], count: int, reset_behind: bool) -> Sequence[Node]:
        make = partial(self.o.gru_sequence, linear_before_reset=reset_behind)
        return self._sequence(make, x, [state], weights, count, "forward")

    def _sequence(
        self,
        make: Callable[..., Node],
        x: Node,
        states: Sequence[Node],
        weights: Sequence[Node],
        count: int,
        direction: str,
    ) -> Sequence[Node]:
        """Run cells over a sequence, all batches with its full length.

        Return outputs and last states, without a dimension for directions.
        """
        batch, units = self.known(states[-1])
        lengths = self.o.constant(np.full(batch, count, np.int32))
        one = [self.unsqueeze(w, 0) for w in weights]
        before = [self.unsqueeze(state, 1) for state in states]
        made = make(x, *before, lengths, *one, units, direction)
        return [self.squeeze(made.output(n), 1) for n in range(1 + len(states))]


def padding(how: WindowAttributes) -> str:
    """Return OpenVINO's name of the padding."""
    return "same_upper" if how.same else "explicit"
