"""CAST, QUANTIZE, DEQUANTIZE: conversions between types."""

import numpy as np

from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops import integer
from nnhal.ops.common import elementwise, real, type_range
from nnhal.ops.order import each_element
from nnhal.ops.schema import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYMM,
    Q16A,
    Q16S,
    Bound,
    Form,
    Op,
    Stored,
    T,
    arg,
    example,
    out,
    per,
    register,
)

NUMBERS = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2}
OTHERS = {B8: V1_3, Q16A: V1_3, Q16S: V1_3, Q8S: V1_3, Q8SYMM: V1_3}  # to the same type only


def cast(a: Bound, x: Array) -> Array:
    """Convert stored values, truncated towards 0; a value outside an integer type is saturated, and NaN becomes 0."""
    if a.out.dtype.kind == "f" or x.dtype == a.out.dtype:
        return x.astype(a.out.dtype, copy=False)
    return np.nan_to_num(np.clip(x.astype(np.float64), *type_range(a.out.type))).astype(a.out.dtype)


def convert(a: Bound, x: Array) -> Array:
    return x


def quantized(x: Array) -> Array:
    """NaN, which no element represents, becomes the zero point."""
    return np.where(np.isnan(x), np.float32(0), x)


register(
    Op(
        "CAST",
        NUMBERS | OTHERS,
        (Form(arg("input", T)),),
        (out("output", per(dict.fromkeys(NUMBERS, NUMBERS) | {t: {t: since} for t, since in OTHERS.items()})),),
        cast,
        reorder=each_element,
        cost="relu",
        jumps=True,
        doc="Converts stored values to another type; scales and zero points are ignored. Integers are truncated towards 0 "
        "and saturated, NaN becomes 0.",
        example=example([1, -1], input=[1.7, -1.7], out_type="TENSOR_INT32"),
    ),
    Op(
        "QUANTIZE",
        {F32: V1_2, F16: V1_2},
        (Form(arg("input", T)),),
        (out("output", {Q8: V1_2, Q8S: V1_3}),),
        elementwise(quantized),
        integer=integer.nearest,
        reorder=each_element,
        cost="quantize",
        doc="Quantises real values, rounded and saturated, infinite ones too; NaN becomes 0.",
        example=example(
            [126, 129, 255], input=[-1, 0.5, 200], out_type="TENSOR_QUANT8_ASYMM", scale=0.5, zero_point=128
        ),
    ),
    Op(
        "DEQUANTIZE",
        {Q8: V1_0, Q8SYMM: V1_2, Q8PC: V1_2, Q8S: V1_3},
        (Form(arg("input", T, rank=(1, 4))),),
        (out("output", {F32: V1_0, F16: V1_2}),),
        real(convert),
        integer=integer.scaled_and_shifted,
        reorder=each_element,
        cost="quantize",
        doc="Returns the real values of quantised ones.",
        example=example([-1, 0, 1.5], input=Stored([126, 128, 131], Q8, 0.5, 128)),
    ),
)
