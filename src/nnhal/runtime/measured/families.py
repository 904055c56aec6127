"""Families of operations with similar costs, and the work of each operation of a model.

Costs are measured for each family, not for each of the hundred operations. Within a family, the time depends on the
multiplications, the bytes read and written, and the sequential iterations.
"""

import math
from typing import NamedTuple

from nnhal.base.codes import TYPE_FACTS, OperandType, operation_name
from nnhal.base.operands import UnknownValue
from nnhal.model.graph import Model, Operation
from nnhal.model.outline import outline
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound

_MEMBERS = {
    "fully_connected": "FULLY_CONNECTED",
    "batch_matmul": "BATCH_MATMUL",
    "depthwise": "DEPTHWISE_CONV_2D",
    "grouped": "GROUPED_CONV_2D",
    "transpose_conv": "TRANSPOSE_CONV_2D",
    "pool": "AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D",
    "add": "ADD SUB MUL MAXIMUM MINIMUM DIV PRELU POW GREATER GREATER_EQUAL LESS LESS_EQUAL EQUAL NOT_EQUAL LOGICAL_AND "
    "LOGICAL_OR SELECT",
    "relu": "RELU RELU1 RELU6 ABS NEG FLOOR HARD_SWISH CAST LOGICAL_NOT",
    "logistic": "LOGISTIC TANH EXP LOG SQRT RSQRT SIN ELU",
    "quantize": "QUANTIZE DEQUANTIZE",
    "softmax": "SOFTMAX LOG_SOFTMAX L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION INSTANCE_NORMALIZATION",
    "mean": "MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM ARGMAX ARGMIN",
    "reshape": "RESHAPE SQUEEZE EXPAND_DIMS RANK",
    "transpose": "TRANSPOSE DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND CHANNEL_SHUFFLE REVERSE",
    "pad": "PAD PAD_V2 MIRROR_PAD PACK CONCATENATION SPLIT SLICE STRIDED_SLICE TILE GATHER EMBEDDING_LOOKUP FILL",
    "resize": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "lstm": "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM QUANTIZED_LSTM QUANTIZED_16BIT_LSTM RNN "
    "UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN SVDF",
}
FAMILIES = ("pointwise", "convolution", *_MEMBERS)
_FAMILY = {name: family for family, names in _MEMBERS.items() for name in names.split()}
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
        family = _family(model, operation)
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


def _family(model: Model, operation: Operation) -> str:
    name = operation_name(operation.type)
    if name != "CONV_2D":
        return _FAMILY.get(name, "")
    filters = model.main.operands[operation.inputs[1]].dimensions
    return "pointwise" if len(filters) == 4 and tuple(filters[1:3]) == (1, 1) else "convolution"


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
