"""The task of an entry for ONNX: quantised operands as 8 bits, and sums of their products.

Integers are multiplied in float32, which holds their sums, or are refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Value, fixed
from nnhal.drivers.kit.numbers import bounds, stored_bounds
from nnhal.drivers.kit.onnx.graph import AWAY, SIGN, OnnxGraph, engine_dtype, zero_point
from nnhal.drivers.kit.onnx.primitives import OnnxPrimitives
from nnhal.drivers.kit.operations import GraphTask, table_for
from nnhal.drivers.kit.operations.common import layout
from nnhal.drivers.kit.operations.elementwise import EVERY
from nnhal.drivers.kit.operations.task import FLOATS, QUANTS, Product
from nnhal.drivers.kit.sums import greatest_of, greatest_sum, reach, require_exact
from nnhal.model.graph import Operation
from nnhal.ops.common import ACTIVATION_RANGE, decode
from nnhal.ops.schema import F16, I32, Q8S, Q8SYMM, Bound
from nnhal.ops.weighted import product_scales

NEAR = 2.0**17  # up to so many quantisation steps of the output, sums of rounded numbers are close to the exact ones
FEW = 4096  # up to so many elements of a window, no mean but an exact half is so close to a half
LEAST = float(np.finfo(np.float32).min)


class OnnxTask(GraphTask):
    """One operation to lower, with its tensors by the arguments' names, and nodes to write."""

    graph: OnnxGraph
    o: OnnxPrimitives

    def __init__(self, graph: OnnxGraph, a: Bound, operation: Operation) -> None:
        super().__init__(graph, graph.engine, a, operation)
        self.nodes = graph.engine.nodes

    def xs(self) -> list[str]:
        """Return the real values of all tensor arguments.

        A tensor of one value becomes that value if another operand has the result's shape.
        """
        places = [place for argument, _ in self.a.inputs for place in self.places(argument.name)]
        given, filled, shape = list(map(self.graph.real, places)), self.o.filled, fixed(self.a.shapes[0])
        known = (self.graph.values[place] for place in places)
        whole = [
            x not in filled and v is not None and fixed(v.shape) == shape for x, v in zip(given, known, strict=True)
        ]
        return [filled.get(x, x) for x in given] if shape is not None and any(whole) else given

    def give(self, node: str, number: int = 0, within: tuple[float, float] | None = None) -> None:
        low, high = within or bounds(self.a)
        if (low, high) != ACTIVATION_RANGE[Activation.NONE]:
            x, least, most = self.graph.within.get(node, (node, low, high))  # every activation's bounds include 0 to 1
            low, high = max(low, least), min(high, most)
            node = self.o.Relu(x) if (low, high) == ACTIVATION_RANGE[Activation.RELU] else self.o.Clip(x, low, high)
            self.graph.within[node] = x, low, high
        value = self.value(number)
        self.hold(self.quantised(node, value.scale) if value.quantised else node, number)

    def give_steps(self, node: str, number: int = 0) -> None:
        self.hold(self.quantised(node, 1.0), number)

    def quantised(self, node: str, unit: float) -> str:
        """Round real values in a unit to quantisation steps of the output, halves away from 0."""
        return self.o.QuantizeLinear(node, unit / AWAY, np.uint8(zero_point(self.value())))

    def stored_constant(self, value: Value, number: Any, like: str) -> str:
        more = int(SIGN) if value.type == Q8S else 0
        return self.constant(np.asarray(number) + more, engine_dtype(value))

    def checked(self, indices: str, size: Callable[[], int], rank: int) -> str:
        """Map indices below 0 to some on which ONNX Runtime fails, as NNAPI does: ONNX would count from the end."""
        return self.o.Where(self.o.Less(indices, np.int32(0)), np.int32(2**31 - 1), indices)

    def require_new_shape(self) -> None:
        """Require the arguments of a shape that is not inferred."""
        if self.a.shapes[0] is None or None in self.a.shapes[0]:
            self.array("shape" if self.name == "RESHAPE" else "input")

    def folded(self) -> bool:
        """Whether the output is a constant: weights that a model stores in another type."""
        data = self.graph.known(self.place("input"))
        if data is not None:
            with np.errstate(over="ignore"):  # float16 overflows to infinity
                data = decode(self.a.input, data).astype(self.a.out.dtype).astype(np.float32, copy=False)
            self.graph.fold(self.operation.outputs[0], data)
        return data is not None

    def halved(self, node: str) -> str:
        """Round numbers to float16 if that is the output's type."""
        half = self.a.out.type == F16
        return self.o.convert(self.o.convert(node, np.float16), np.float32) if half else node

    # ------------------------------------------------------------------------------------------------------------ layers

    def counts(self, name: str, *, mean: bool) -> str:
        """Return an argument for a pooling; the maximum of quantised elements is that of the stored values."""
        if self.a.T in FLOATS:
            return self.x(name)
        return self.o.DequantizeLinear(self.stored(name), 1.0, self._stored_zero()) if mean else self.stored(name)

    def give_counts(self, node: str, *, mean: bool) -> None:
        if self.a.T in FLOATS:
            self.give(layout(self, node))
            return
        if mean:
            scale = 1 / AWAY if self.a.filter_h * self.a.filter_w <= FEW else 1.0
            node = self.o.QuantizeLinear(node, scale, self._stored_zero())
        self.hold(self.clipped(layout(self, node)))

    def _stored_zero(self) -> np.uint8:
        """Return the engine's element for a stored 0."""
        return SIGN if self.a.T == Q8S else np.uint8(0)

    def clipped(self, node: str) -> str:
        """Clip stored values of the output to the bounds of its activation."""
        if bounds(self.a) == ACTIVATION_RANGE[Activation.NONE]:
            return node
        return self.o.Clip(
            node, *[np.uint8(end + int(SIGN) * (self.a.out.type == Q8S)) for end in stored_bounds(self.a)]
        )

    def layer(self, product: Product, *, image: bool = True, fast: bool = True) -> None:
        """Give the layer of real numbers, or of integers in float32, whose sums are scaled and rounded once."""
        a, (name, axis) = self.a, self.weights
        weights = getattr(a, name)
        if not a.out.quantised:
            y = product(self.x("input"), self.x(name), self.x("bias"))
            self.give(layout(self, y) if image else y)
            return
        whole = self._require_sums(weights, axis)
        data = self.graph.known(self.place(name))
        if data is None:
            factor = self.graph.steps(self.place(name))
        else:
            factor = self.constant(np.subtract(data, weights.zero_point, dtype=np.float32))
        y = product(self.steps("input"), factor, self.bias_steps())
        if whole and self.o.written[-1][0] == "Conv":  # into whose weights ONNX Runtime multiplies the factor
            y = self.o.Max(y, LEAST)
        self.give_sums(layout(self, y) if image else y, weights, image=image)

    def bias_steps(self) -> str:
        return self.o.convert(self.stored("bias"), np.float32)

    def give_sums(self, y: str, weights: Value, *, image: bool) -> None:
        """Give the output by sums of integer products and the bias."""
        ratios = (product_scales(self.a.input, weights) / self.a.out.scale).astype(np.float32)
        shape = [1] if ratios.size == 1 else [-1] if not (image and self.a.nchw) else [1, -1, 1, 1]
        factor: Any = float(ratios[0]) if ratios.size == 1 else ratios.reshape(shape)
        self.hold(self.clipped(self.quantised(self.o.Mul(y, factor), 1)))

    def _require_sums(self, weights: Any, axis: int) -> bool:
        """Refuse quantised sums that float32 does not hold; a great bias is rounded, as is any sum with it.

        Return whether the sums must be whole numbers; otherwise sums that nearly cancel are off by a large part of an
        LSB.
        """
        ratio = product_scales(self.a.input, weights).max() / self.a.out.scale
        most = greatest_sum(self.a.input, weights, axis)
        require_exact(most, ratio)
        return bool((most + greatest_of(self.a.bias)) * ratio > NEAR)

    def give_product(self, product: Callable[[str, str], str]) -> None:
        a = self.a
        y = product(self.steps("x"), self.steps("y"))
        if not a.out.quantised:
            self.give(y)
            return
        ratio = a.x.scale * a.y.scale / a.out.scale
        require_exact(a.x.known[-2 if a.adj_x else -1] * reach(a.x) * reach(a.y), ratio)
        self.give_steps(self.o.Mul(y, float(ratio)))


WAYS = ("uint8", "float")  # products in the processor's own instructions, or of integers in float32
FORMS: dict[int, tuple[str, ...]] = dict.fromkeys(QUANTS, WAYS)
BOXES = "ONNX's box operators have other rules"
SEEDS = "ONNX has no such random numbers, hashes or integer cells"
TABLE = table_for(
    OnnxTask,
    "ONNX Runtime",
    {"IF": "the runtime itself runs branches", "WHILE": "ONNX Runtime cannot end a loop at its timeout"}
    | dict.fromkeys(["AXIS_ALIGNED_BBOX_TRANSFORM", "BOX_WITH_NMS_LIMIT", "DETECTION_POSTPROCESSING"], BOXES)
    | dict.fromkeys(["GENERATE_PROPOSALS", "HEATMAP_MAX_KEYPOINT", "ROI_ALIGN", "ROI_POOLING"], BOXES)
    | dict.fromkeys(["LSH_PROJECTION", "QUANTIZED_16BIT_LSTM", "QUANTIZED_LSTM", "RANDOM_MULTINOMIAL"], SEEDS),
    types={"CAST": EVERY | {Q8SYMM}, "DIV": FLOATS | {I32}},
    inexact=("RELU1", "RELU6"),  # their scale is divided by AWAY, which is inexact above 2**21
)
entry = TABLE.entry
