"""Conversions of an operation's tensors: between stored and real values, and between representations of stored ones."""

import math

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.base.records import replace
from nnhal.drivers.litert.graph import SIGN, EngineTensor
from nnhal.drivers.litert.limits import BEYOND_XNNPACK, require_scale
from nnhal.drivers.litert.task import WITHIN_1, Task
from nnhal.ops.common import decode, encode
from nnhal.ops.schema import F32, Q8S

AWAY = 1 + 2.0**-22  # factor for halves of a quantisation step, which XNNPACK rounds to even


def requantised(t: Task, x: EngineTensor, like: Value) -> EngineTensor:
    """Convert a quantised tensor to the scale and zero point of another; others are unchanged.

    The conversion uses real values: XNNPACK's direct one has 8 bits for the quotient of scales, and is off by up to
    0.73 LSB.
    """
    if not x.value.quantised or (x.value.scale, x.value.zero_point) == (like.scale, like.zero_point):
        return x
    t.require_alike()
    require_scale(x.value.scale, like)
    value = replace(x.value, scale=like.scale, zero_point=like.zero_point)
    if x.value.data is not None:
        return t.constant(encode(value, decode(x.value, x.value.array)), value=value)
    y = t.temporary(value)
    quantise(t, dequantised(t, x), y)
    return y


def dequantised(t: Task, x: EngineTensor) -> EngineTensor:
    """Return the real values of a quantised tensor; others are unchanged."""
    if not x.value.quantised:
        return x
    if x.value.data is not None and x.value.zero_point:  # XNNPACK folds it with one more rounding
        return t.constant(decode(x.value, x.value.array), np.float32)
    y = t.temporary(x.value, type=F32, scale=0.0, zero_point=0)
    t.emit("DEQUANTIZE", [x], y)
    return y


def dequantised_out(t: Task, out: EngineTensor) -> EngineTensor:
    """Return a tensor of real values that is quantised to `out` after the operation; others are unchanged."""
    if not out.value.quantised:
        return out
    y = t.temporary(out.value, type=F32, scale=0.0, zero_point=0)
    t.later(lambda: quantise(t, y, out))
    return y


def quantise(t: Task, x: EngineTensor, out: EngineTensor) -> None:
    """Write real values as the quantised `out`, flat if they have too many dimensions for XNNPACK.

    LiteRT's own kernel does not saturate values 2**31 LSB away, so they are clipped before it. XNNPACK rounds
    halves to even, the definition away from 0, so elsewhere they are moved past the half.
    """
    if t.exact:
        x = clipped(t, x, 2.0 ** math.ceil(math.log2(256 * out.value.scale)))
    else:
        y = t.temporary(x.value)
        t.emit("MUL", [x, t.constant(AWAY, np.float32)], y, "Mul")
        x = y
    if len(x.value.shape or ()) <= BEYOND_XNNPACK:
        t.emit("QUANTIZE", [x], out)
        return
    shape = (math.prod(x.value.known),)
    flat, steps = t.temporary(x.value, shape=shape), t.temporary(out.value, shape=shape)
    t.reshape(x, flat)
    t.emit("QUANTIZE", [flat], steps)
    t.reshape(steps, out)


def clipped(t: Task, x: EngineTensor, bound: float) -> EngineTensor:
    """Clip real values at a power of two and its negative; NaN stays.

    No digit changes, unless the value is far below.
    """
    scaled, back = t.temporary(x.value), t.temporary(x.value)
    down, up = t.constant(1 / bound, np.float32), t.constant(bound, np.float32)
    t.emit("MUL", [x, down], scaled, "Mul", fusedActivationFunction=WITHIN_1)
    t.emit("MUL", [scaled, up], back, "Mul")
    return back


def cast(t: Task, x: EngineTensor, type: OperandType) -> EngineTensor:
    """Convert a tensor's stored values to another type."""
    y = t.temporary(x.value, type=type, scale=0.0, zero_point=0)
    t.emit("CAST", [x], y)
    return y


def recast(t: Task, x: EngineTensor, type: OperandType) -> EngineTensor:
    """Convert an 8-bit tensor to the other asymmetric type, with the same real values, unless it has that type."""
    if x.value.type == type:
        return x
    value = with_other_signedness(x.value, type)
    if x.value.data is not None:
        data = (np.asarray(x.value.data).view(np.uint8) ^ SIGN).view(value.dtype)
        return t.constant(data, value=value)
    y = t.temporary(value)
    t.emit("QUANTIZE", [x], y)
    return y


def recast_out(t: Task, out: EngineTensor, type: OperandType) -> EngineTensor:
    """Return a tensor of the given 8-bit type that is converted to `out`, of the other one, after the operation."""
    if out.value.type == type:
        return out
    y = t.temporary(with_other_signedness(out.value, type))
    t.later(lambda: t.emit("QUANTIZE", [y], out))
    return y


def with_other_signedness(value: Value, type: OperandType) -> Value:
    """Return the same real values in the other asymmetric 8-bit type."""
    shift = -SIGN if type == Q8S else SIGN
    return replace(value, type=type, zero_point=value.zero_point + shift, data=None)
