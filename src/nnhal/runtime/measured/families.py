"""Families of operations with similar costs, and the work of each operation of a model.

Costs are measured for each family, not for each of the hundred operations. Within a family, the time depends on the
multiplications, the bytes read and written, and the sequential iterations.
"""

import math
from typing import NamedTuple

from nnhal.base.codes import TYPE_FACTS, OperandType
from nnhal.base.operands import UnknownValue
from nnhal.model.graph import Model, Operation
from nnhal.model.outline import outline
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound

FAMILIES = (  # as records name them; "pointwise" is a convolution whose window is one pixel
    *("pointwise", "convolution", "fully_connected", "batch_matmul", "depthwise", "grouped", "transpose_conv", "pool"),
    *("add", "relu", "logistic", "quantize", "softmax", "mean", "reshape", "transpose", "pad", "resize", "lstm"),
)
KINDS = ("float32", "relaxed", "quant8", "quant8_signed")  # of values, measured separately
_KIND: dict[int, str] = {
    OperandType.TENSOR_QUANT8_ASYMM: "quant8",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "quant8_signed",
    OperandType.TENSOR_QUANT8_SYMM: "quant8_signed",
}
LIGHT = OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32  # types of arguments other than the data


class OperationWork(NamedTuple):
    """The work of one operation: its family (or ""), the kind of its values, multiplications, bytes.

    turns: iterations over a sequence, each of which waits for the one before.
    """

    family: str
    kind: str
    macs: int
    bytes: int
    turns: int = 1


def work_of_operations(model: Model) -> tuple[OperationWork, ...]:
    """Return the work of each operation of the main subgraph; unknown dimensions count as 1. Computed once for a model."""
    found: tuple[OperationWork, ...] | None = model._memo.get("works")
    if found is None:
        found = model._memo["works"] = tuple(_works(model))
    return found


def _works(model: Model) -> list[OperationWork]:
    shown, facts = outline(model), validate(model).subgraphs[0]
    values = facts.values
    sizes = [0 if v is None else math.prod(d or 1 for d in v.shape or ()) * width(v.type) for v in values]
    made = []
    for node, operation, bound in zip(shown.nodes, model.main.operations, facts.operations, strict=True):
        touched = sum(sizes[i] for i in (*operation.inputs, *operation.outputs))
        family = "" if bound is None else _family(bound)
        made.append(OperationWork(family, _kind(model, operation), shown.macs(node), touched, _turns(node.name, bound)))
    return made


def _turns(name: str, bound: Bound | None) -> int:
    if bound is None or "SEQUENCE" not in name:
        return 1
    shape = bound.input.shape or (None,) * 3
    try:
        steps = shape[0 if bound.time_major else 1]
    except UnknownValue:  # known only during an execution
        steps = max(shape[0] or 1, shape[1] or 1)
    return (steps or 1) * (2 if "BIDIRECTIONAL" in name else 1)


def width(type: int) -> int:
    """Return the bytes of an element; 1 for types without elements."""
    facts = TYPE_FACTS.get(type)
    return 1 if facts is None or facts.dtype is None else facts.dtype.itemsize


def _family(bound: Bound) -> str:
    if bound.op.cost != "convolution":
        return bound.op.cost
    filters = bound.filter.shape
    return "pointwise" if filters is not None and filters[1:3] == (1, 1) else "convolution"


def main_type(model: Model, operation: Operation) -> int:
    """Return the type of the operation's first floating-point or quantised operand, or else of its first."""
    operands = model.main.operands
    types = [operands[i].type for i in (*operation.inputs, *operation.outputs)]
    return next((type for type in types if type not in LIGHT), types[0])


def _kind(model: Model, operation: Operation) -> str:
    heavy = main_type(model, operation)
    if heavy in (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32) and model.relaxed:
        return "relaxed"
    return _KIND.get(heavy, "float32")
