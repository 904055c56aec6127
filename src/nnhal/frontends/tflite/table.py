"""The table of operators, and what its entries share. An entry expresses one operator in NNAPI, or says why it cannot."""

from collections.abc import Callable, Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.frontends.tflite.build import Importer
from nnhal.frontends.tflite.file import Operator

T = OperandType
Entry = Callable[[Importer, Operator], None]
TABLE: dict[str, Entry] = {}
PADDING = {0: 1, 1: 2}  # SAME, VALID


def entry(*names: str) -> Callable[[Entry], Entry]:
    """Put a function into the table under the names of operators."""

    def put(function: Entry) -> Entry:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return put


def has(o: Operator, place: int) -> bool:
    """Whether an optional input is given."""
    return place < len(o.inputs) and o.inputs[place] >= 0


def same(name: str, count: int) -> Entry:
    """An operation with the same tensors and nothing else."""

    def convert(g: Importer, o: Operator) -> None:
        g.emit(name, [g.x(i) for i in o.inputs[:count]], [g.declare(o.outputs[0])])

    return convert


def scales(g: Importer, x: int, filter: int) -> list[float]:
    """What the bias' scale is made of: one product, or none where the filter's scales are per channel."""
    if g.values[filter].channel is not None:
        return []
    return [float(np.float32(g.values[x].scale) * np.float32(g.values[filter].scale))]


def zero_bias(g: Importer, x: int, filter: int, size: int | None) -> int:
    """A bias of zeros, which NNAPI wants where TFLite has none."""
    value, product = g.values[x], scales(g, x, filter)
    kind = T.TENSOR_INT32 if value.quantised else OperandType(value.type)
    scale = product[0] if value.quantised and product else 0.0
    return g.fresh(np.zeros(size or 1, "i4" if value.quantised else value.dtype), kind, scale)


def reshape(g: Importer, x: int, shape: Sequence[int]) -> int:
    """The operand in another shape."""
    y = g.like(x, shape)
    g.emit("RESHAPE", [x, g.ints(shape)], [y])
    return y
