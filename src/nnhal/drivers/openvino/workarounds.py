"""Changes graphs that OpenVINO compiles wrongly.

**Crash behind matrix products** (`keep_fused_apart`). OpenVINO computes a sequence of small products, and the
element-wise operations between and behind them, in one *fused kernel*. It also merges other element-wise operations
with each other. If such an operation reads the result of a fused kernel and that of a merged operation, OpenVINO
reads a null pointer: `tokenize_node` of OpenVINO 2026.4 looks for the fused kernel among the merged operations. The
operation therefore reads the result of a fused kernel through two reshapes, which OpenVINO does not merge.

OpenVINO has a fused kernel for attention too. The driver's SOFTMAX reads a product several times, and so prevents it.

**Lost dimensions** (`keep_ranks`). OpenVINO moves a reshape behind an element-wise operation with a constant of one
element. It forgets the dimensions that the constant has more than the reshaped tensor: a tensor `[63]` and a constant
`[1, 1]` give a result `[63]` in place of `[1, 63]`.

**Constants joined** (`keep_constants_apart`). OpenVINO computes `(x + a) * b` as `x * b + a * b`, and `(x + a) + b` as
`x + (a + b)`. With a great `a * b`, as in the mask `(1 - x) * -3.4e38`, a constant that is added next is lost. So is the
rounding that `(x + a) - a` is written for. `(x * a) * b` becomes 0 or infinity if `a * b` is. Longer sequences join too.

**Compilations without an end** (`searches_too_long`). To choose 8-bit kernels, OpenVINO follows the paths from each
FakeQuantize back to the closest convolutions and matrix products, one after the other. If a tensor has two readers
whose results meet again, there are twice as many paths. 17 quantised resizes one after the other took hours.
"""

from collections.abc import Collection
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from nnhal.drivers.openvino.unwritten_memory import CURVES, PAIRS, VIEWS, ComputedNodes, copied, kind, of_float32

ELEMENTWISE = (
    CURVES
    | PAIRS
    | {"Abs", "Ceiling", "Convert", "Equal", "Erf", "FakeQuantize", "Floor", "FloorMod", "Gelu", "Greater"}
    | {"GreaterEqual", "HSigmoid", "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor"}
    | {"Mish", "Mod", "Negative", "NotEqual", "PRelu", "Power", "Round", "Select", "Softmax", "Sqrt", "Swish"}
)
RESHAPES = frozenset(("Reshape", "Squeeze", "Unsqueeze"))  # OpenVINO may remove those that it need not compute
LAYERS = frozenset(
    ("Convolution", "ConvolutionBackpropData", "GroupConvolution", "GroupConvolutionBackpropData", "MatMul")
)
SUMS = frozenset(("Add", "Subtract"))
SAME_NUMBERS = VIEWS | {"Broadcast"}  # their results have the numbers of their first input
EXACT = 1024.0  # next to a constant of this size, a float32 of 1 keeps four digits
LEAST, MOST = 2.0**-100, 2.0**100  # the limits of the product of constants
MOST_PATHS = 50_000  # about 1.5 s
DIMENSIONS = 2  # of the products of a fused kernel, at most


class _Behind(IntEnum):
    """Whether a tensor is computed from a product by element-wise operations that alone read each other."""

    NONE = 0
    PRODUCT = 1
    FUSED = 2  # of a product of such a tensor: it may be the result of a fused kernel


def keep_fused_apart(model: Any, opset: Any) -> None:
    """Put reshapes between the result of a fused kernel and an operation that reads it beside a merged operation."""
    nodes, behind = ComputedNodes(model), dict[str, _Behind]()
    for node in nodes.ordered:
        inputs = node.input_values()
        states = [behind[x.get_node().get_name()] for x in inputs]
        passed_on = [state for x, state in zip(inputs, states, strict=True) if state and nodes.has_one_reader(x)]
        behind[node.get_name()] = _behind(node, max(passed_on, default=_Behind.NONE))
        if node.get_type_name() not in ELEMENTWISE:
            continue
        fused = [number for number, state in enumerate(states) if state is _Behind.FUSED]
        merged = {nodes.value(x) for n, x in enumerate(inputs) if n in fused or kind(x) in ELEMENTWISE}
        if fused and len(merged) > 1:
            first = np.array([0], np.int64)
            for number in fused:
                apart = opset.squeeze(opset.unsqueeze(inputs[number], first), first)
                node.input(number).replace_source_output(apart.output(0))
            behind[node.get_name()] = _Behind.PRODUCT


def keep_ranks(model: Any, opset: Any) -> None:
    """Give the tensors beside a constant of one element as many dimensions as the constant has."""
    for node in model.get_ordered_ops():
        inputs = node.input_values()
        shapes = [x.get_partial_shape() for x in inputs]
        if node.get_type_name() not in ELEMENTWISE or any(shape.rank.is_dynamic for shape in shapes):
            continue
        single = [kind(x) == "Constant" and set(x.get_shape()) <= {1} for x in inputs]
        most = max((len(shape) for shape, one in zip(shapes, single, strict=True) if one), default=0)
        for number, shape in enumerate(shapes):
            if not single[number] and len(shape) < most:
                axes = np.arange(most - len(shape), dtype=np.int64)
                node.input(number).replace_source_output(opset.unsqueeze(inputs[number], axes).output(0))


class _Joined(NamedTuple):
    """The constants that OpenVINO makes of a sequence of sums and products, as absolute numbers.

    Attributes:
        least: The least factor other than 0.
        most: The greatest factor.
        added: The greatest number that is added; None without a sum.
    """

    least: float = 1.0
    most: float = 1.0
    added: float | None = None

    def then(self, following: "_Joined") -> "_Joined | None":
        """Return the constants of this sequence and a sum or product behind it.

        None if results would change by more than a rounding.
        """
        if following.added is not None:
            if self.added is not None and max(self.added, following.added) > EXACT:
                return None
            return self._replace(added=(self.added or 0.0) + following.added)
        least, most = self.least * following.least, self.most * following.most
        added = None if self.added is None else self.added * following.most
        return None if least < LEAST or most > MOST or (added or 0.0) > EXACT else _Joined(least, most, added)


def keep_constants_apart(model: Any, opset: Any) -> None:
    """Put a copy before a sum or product whose constant OpenVINO must not join with those of the sequence before it."""
    sequences: dict[str, _Joined] = {}
    for node in model.get_ordered_ops():
        own = _constant(node)
        if own is None:
            continue
        sequences[node.get_name()] = own
        for number, source in enumerate(node.input_values()):
            before = sequences.get(_node_behind(source, VIEWS).get_name())
            if before is None:
                continue
            joined = before.then(own)
            sequences[node.get_name()] = joined or own
            if joined is None:
                node.input(number).replace_source_output(copied(source, opset))


def _constant(node: Any) -> _Joined | None:
    """Return the constant of a sum or product of float32; None without one."""
    name = node.get_type_name()
    if name not in SUMS | {"Multiply"} or not of_float32(node.output(0)):
        return None
    sources = (_node_behind(source, SAME_NUMBERS) for source in node.input_values())
    found = next((each.data for each in sources if each.get_type_name() == "Constant"), None)
    if found is None:
        return None
    numbers = np.abs(np.nan_to_num(found).astype(np.float64))
    if name in SUMS:
        return _Joined(added=float(numbers.max(initial=0)))
    factors = numbers[numbers > 0]
    return _Joined(float(factors.min()), float(factors.max())) if factors.size else _Joined()


def _node_behind(source: Any, kinds: Collection[str]) -> Any:
    """Return the node of a tensor, or the one behind it if nodes of some kinds lie between."""
    node = source.get_node()
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node


def searches_too_long(model: Any) -> bool:
    """Whether OpenVINO would follow more than `MOST_PATHS` paths to choose 8-bit kernels."""
    paths: dict[str, int] = {}
    for node in model.get_ordered_ops():
        name = node.get_type_name()
        behind = 0 if name in LAYERS else sum(paths[x.get_node().get_name()] for x in node.input_values())
        paths[node.get_name()] = 0 if name == "Constant" else max(1, behind)
        if paths[node.get_name()] > MOST_PATHS:
            return True
    return False


def _behind(node: Any, before: _Behind) -> _Behind:
    name = node.get_type_name()
    if name == "MatMul":
        flat = len(node.get_output_partial_shape(0)) <= DIMENSIONS
        return _Behind.FUSED if before and flat else _Behind.PRODUCT
    if name in RESHAPES:
        return min(before, _Behind.PRODUCT)
    return before if name in ELEMENTWISE else _Behind.NONE
