"""Bind and run the record of one operation on arrays, without a model around it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import TYPE_FACTS, OperandType
from nnhal.base.operands import Array, ChannelQuant, Shape, Value, dtype_of
from nnhal.drivers.reference import SubgraphContext, _apply
from nnhal.hal.request import Control
from nnhal.ops import OPS
from nnhal.ops.schema import Bound, bind

Type = OperandType
F32, F16, I32 = Type.TENSOR_FLOAT32, Type.TENSOR_FLOAT16, Type.TENSOR_INT32
B8, Q8, Q8S = Type.TENSOR_BOOL8, Type.TENSOR_QUANT8_ASYMM, Type.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYMM, Q8PC = Type.TENSOR_QUANT8_SYMM, Type.TENSOR_QUANT8_SYMM_PER_CHANNEL
Q16S, Q16A = Type.TENSOR_QUANT16_SYMM, Type.TENSOR_QUANT16_ASYMM
Operand = Value | Array | float | Sequence[Any] | None


def value(type: int, data: Any, scale: float = 0.0, zero: int = 0, channel: ChannelQuant | None = None) -> Value:
    """An operand whose value is known."""
    array = np.asarray(data, dtype_of(type))
    return Value(type, array.shape, scale, zero, channel, array)


def known(operand: Operand) -> Value | None:
    """An operand from a plain value: a number is a scalar, a list or array of floats TENSOR_FLOAT32, None is omitted."""
    if operand is None or isinstance(operand, Value):
        return operand
    if isinstance(operand, bool | int | float):
        return value({bool: Type.BOOL, int: Type.INT32, float: Type.FLOAT32}[type(operand)], operand)
    array = np.asarray(operand)
    kinds = {f.dtype: t for t, f in reversed(TYPE_FACTS.items()) if f.tensor and f.zero_points is None}
    narrow = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
    return value(kinds[narrow.get(array.dtype, array.dtype)], array)


def result(type: int = F32, shape: Shape | None = None, scale: float = 0.0, zero: int = 0) -> Value:
    """An output, or an input that is not known yet; its shape is unknown unless stated."""
    return Value(type, shape, scale, zero)


def bound(name: str, inputs: Sequence[Operand], *outputs: Value) -> Bound:
    """The operation bound to its operands; one TENSOR_FLOAT32 output where none is given."""
    return bind(OPS[name], [known(x) for x in inputs], outputs or [result()])


def run(name: str, inputs: Sequence[Operand], *outputs: Value, context: SubgraphContext | None = None) -> list[Array]:
    """What the operation makes of its inputs, by the reference kernel."""
    values = [known(x) for x in inputs]
    given = [None if v is None or not isinstance(v.data, np.ndarray) else v.data for v in values]
    with np.errstate(all="ignore"):
        return _apply(bound(name, inputs, *outputs), given, context or SubgraphContext(lambda *_: [], Control()))
