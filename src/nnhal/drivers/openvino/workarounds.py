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
rounding that `(x + a) - a` is written for. `(x * a) * b` becomes 0 or infinity if `a * b` is.

**Compilations without an end** (`searches_too_long`). To choose 8-bit kernels, OpenVINO follows the paths from each
FakeQuantize back to the closest convolutions and matrix products, one after the other. If a tensor has two readers
whose results meet again, there are twice as many paths. 17 quantised resizes one after the other took hours.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.drivers.openvino.unwritten_memory import CURVES, PAIRS, VIEWS, ComputedNodes, kind, of_float32

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
EXACT = 1024.0  # next to a constant of this size, a float32 of 1 keeps four digits
JOINED = (2.0**-100, 2.0**100)  # the limits of the product of two constants
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


def keep_constants_apart(model: Any, opset: Any) -> None:
    """Put a copy between two sums or products with constants that OpenVINO must not join.

    OpenVINO would remove a plain copy. This one is bit-identical: it multiplies the numbers below 0 by 1.
    """
    for node in model.get_ordered_ops():
        for number, source in enumerate(node.input_values()):
            constant, before = _constant(node), source.get_node()
            while before.get_type_name() in VIEWS:
                before = before.input_value(0).get_node()
            first = _constant(before)
            if constant is None or first is None or kind(source) == "Constant":
                continue
            if _lose(before.get_type_name() in SUMS, first, node.get_type_name() in SUMS, constant):
                node.input(number).replace_source_output(opset.prelu(source, np.ones(1, np.float32)).output(0))


def _constant(node: Any) -> Array | None:
    """Return the absolute values of the constant of a sum or product of float32."""
    if node.get_type_name() not in SUMS | {"Multiply"} or not of_float32(node.output(0)):
        return None
    known = (source.get_node().data for source in node.input_values() if kind(source) == "Constant")
    return next((np.abs(np.nan_to_num(array).astype(np.float64)) for array in known), None)


def _lose(first_is_sum: bool, first: Array, second_is_sum: bool, second: Array) -> bool:
    """Whether results change by more than a rounding if OpenVINO makes one constant of two."""
    if second_is_sum:
        return first_is_sum and max(first.max(initial=0), second.max(initial=0)) > EXACT
    if first_is_sum:
        return bool(first.max(initial=0) * second.max(initial=0) > EXACT)
    both = np.outer([first[first > 0].min(initial=1), first.max(initial=1)], second[second > 0])
    return bool(((both < JOINED[0]) | (both > JOINED[1])).any())


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
