"""Limits of LiteRT's kernels: numbers that fit their integers, scales, and the memory that an operation may hold."""

import math

from nnhal.base.operands import Array, Shape, Value
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.litert.graph import MOST, Graph, require_scales
from nnhal.model.graph import Operation

ROOM = 2**28  # bytes that an operation may always hold in addition to its operands
PROPORTION = 8  # how many times its largest operand it may hold
BEYOND_XNNPACK = 6  # the most dimensions of its tensors
STEEPEST = 256  # from here on XNNPACK refuses a quotient of scales, and LiteRT's own integers overflow


class MemoryLimit:
    """The memory that LiteRT may hold for an operation in addition to its operands."""

    def __init__(self, graph: Graph, operation: Operation) -> None:
        self._graph, self._operation = graph, operation

    def require(self, shape: Shape, size: int, what: str) -> None:
        """Refuse an operation that needs much more memory inside the engine than its operands.

        shape: the shape of the held elements of `size` bytes; nothing is required while it is unknown.
        """
        if None in shape:
            return
        needed, room = math.prod(count for count in shape if count is not None) * size, ROOM
        if needed > room:
            room = max(room, PROPORTION * self._largest())
        if needed > room:
            raise Refused(f"LiteRT would hold {needed} bytes {what}, must be at most {room}")

    def _largest(self) -> int:
        """Return the bytes of the largest operand."""
        values = [self._graph.values[i] for i in (*self._operation.inputs, *self._operation.outputs)]
        known = [v for v in values if v is not None and v.shape is not None and None not in v.shape]
        return max((math.prod(v.known) * v.dtype.itemsize for v in known), default=0)


def require_scale(coarsest: float, out: Value, steepest: int = STEEPEST) -> None:
    """Refuse a quantised output whose scale is too fine for values of scale `coarsest`."""
    if out.quantised and not coarsest < steepest * out.scale:
        raise Refused(f"output scale {out.scale:g} is too fine for LiteRT here, must exceed {coarsest / steepest:g}")


def product_of_scales(x: float, y: float) -> float:
    """Return the product of two scales, which LiteRT computes in float32; refused if it is beyond that."""
    require_scales(x * y, x * y)
    return x * y


def require_sum(count: int, greatest: int = 255) -> None:
    """Refuse sums of so many integers, of 8 bits or of another range, that they wrap around in LiteRT's 32 bits."""
    if count * greatest > MOST:
        raise Refused(f"a sum has {count} integers of up to {greatest}, must fit in LiteRT's 32 bits")


def require_32_bits(numbers: Array) -> None:
    """Refuse integers that do not fit LiteRT's fields."""
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    if low < -MOST - 1 or high > MOST:
        raise Refused(f"{high if high > MOST else low} exceeds LiteRT's 32 bits")
