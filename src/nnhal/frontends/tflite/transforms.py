"""Entries of Fourier transforms and 3-D convolutions, as matrix products and 2-D convolutions."""

import math

import numpy as np

from nnhal.base.codes import Padding
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.functions import cosines_and_sines
from nnhal.frontends.common.terms import UNTYPED, Term, constant
from nnhal.frontends.common.writing import check_count, filled
from nnhal.frontends.tflite.layers import scheme
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import F32, I32

MOST_WAVES = 1 << 22  # elements of a constant matrix of sines and cosines


@operator("RFFT2D", inputs=2,
          becomes="FULLY_CONNECTED with sines and cosines, if COMPLEX_ABS, REAL, IMAG or CAST follows")  # fmt: skip
def transform(t: OperatorTask) -> None:
    """Multiply rows by cosines and sines, then columns; the real and imaginary parts are separate tensors."""
    x, lengths = t.x(0), t.ints(1, "fft_length")
    t.require(len(lengths) == 2 and min(lengths) > 0, f"fft_length is {lengths}, must be two sizes")
    shape, (height, width) = t.known(x), lengths
    t.require(len(shape) >= 2 and math.prod(shape), f"the input has shape {list(shape)}, must have rows and columns")
    half, batch = width // 2 + 1, math.prod(shape[:-2])
    x = resized(t, t.reshaped(x, (batch, *shape[-2:])), height, width)
    rows = t.reshaped(x, (batch * height, width))
    parts = [product(t, rows, wave) for wave in dft_basis(t, width, half)]
    if height > 1:
        turned = [t.reshaped(p, (batch, height, half)) for p in parts]
        turned = [t.reshaped(t.make("TRANSPOSE", p, t.integers([0, 2, 1])), (batch * half, height)) for p in turned]
        cosines, sines = dft_basis(t, height, height)
        (a, c), (b, d) = ([product(t, p, wave) for wave in (cosines, sines)] for p in turned)
        parts = [t.make("SUB", a, d, activation=0), t.make("ADD", c, b, activation=0)]
        parts = [t.reshaped(p, (batch, half, height)) for p in parts]
        parts = [t.make("TRANSPOSE", p, t.integers([0, 2, 1])) for p in parts]
    real, imaginary = (t.reshaped(p, (*shape[:-2], height, half)) for p in parts)
    t.same(Term(Value(UNTYPED, real.value.shape), "COMPLEX64", parts=(real, imaginary)))


def dft_basis(t: OperatorTask, size: int, count: int) -> list[Array]:
    """Return cos and -sin of the first `count` frequencies over `size` places."""
    t.require(
        size * count <= MOST_WAVES,
        f"has {size} places, a matrix of {size * count} waves, must have at most {MOST_WAVES}",
    )
    cosines, sines = cosines_and_sines(count, size, size)
    return [cosines.astype(np.float32), -sines.astype(np.float32)]


def product(t: OperatorTask, rows: Term, matrix: Array) -> Term:
    """Multiply rows by the rows of a constant matrix."""
    bias = np.zeros(len(matrix), np.float32)
    return t.make("FULLY_CONNECTED", rows, *(constant(Value(F32), each) for each in (matrix, bias)), activation=0)


def resized(t: OperatorTask, x: Term, height: int, width: int) -> Term:
    """Cut or fill with zeros to a size."""
    batch, rows, columns = t.known(x)
    if (rows, columns) == (height, width):
        return x
    kept = min(rows, height), min(columns, width)
    x = t.make("SLICE", x, t.integers([0, 0, 0]), t.integers([batch, *kept]))
    more = np.array([[0, 0], [0, height - kept[0]], [0, width - kept[1]]], np.int32)
    return t.make("PAD", x, constant(Value(I32), more)) if more.any() else x


@operator("REAL", "IMAG", "COMPLEX_ABS", becomes="a part of RFFT2D; SQRT of the sum of squares")
def part(t: OperatorTask) -> None:
    """Return a real tensor from a transform."""
    real, imaginary = parts_of(t)
    if t.name == "COMPLEX_ABS":
        flat = [t.reshaped(p, (math.prod(t.known(p)),)) for p in (real, imaginary)]
        squares = [t.make("MUL", p, p, activation=0) for p in flat]
        t.reshaped(t.make("SQRT", t.make("ADD", *squares, activation=0)), t.known(real), out=True)
    else:
        t.same(real if t.name == "REAL" else imaginary)


def parts_of(t: OperatorTask) -> tuple[Term, Term]:
    """Return the real and the imaginary part of input 0."""
    x = t.raw(0)
    t.follows(x)
    if x.parts is None:
        t.refuse(f"of {x.kind}, must come from an RFFT2D: NNAPI has no complex numbers")
    return x.parts


def lower_in_parts(t: OperatorTask) -> None:
    """Lower a move of complex numbers as two moves, of the real and imaginary parts."""
    assert t.facts.lower is not None
    real, imaginary = PartTask(t, 0), PartTask(t, 1)
    for task in (real, imaginary):
        t.facts.lower(task)
    for number in range(len(t.operator.outputs)):
        parts = real.ranked(number), imaginary.ranked(number)
        t.results[number] = Term(
            Value(UNTYPED, parts[0].value.shape), t.kind(number), scalar=parts[0].scalar, parts=parts
        )


class PartTask(OperatorTask):
    """An operator on one part of each complex tensor. It writes for the complete task."""

    def __init__(self, whole: OperatorTask, part: int) -> None:
        super().__init__(whole.graph, whole.operator)
        self.emitted, self.later, self._part = whole.emitted, whole.later, part

    def raw(self, place: int) -> Term:
        """Return input `place`, or its part if it is complex."""
        term = super().raw(place)
        return term.parts[self._part] if term.parts else term

    def declared(self, number: int = 0) -> Value:
        """Return the type and quantisation of output `number`, or of its part if it is complex."""
        return Value(F32, None) if self.kind(number) == "COMPLEX64" else super().declared(number)


# ------------------------------------------------------------------------------------------------------ three dimensions


@operator("CONV_3D", inputs=(2, 3), becomes="GATHER along the depth, then CONV_2D with its planes as channels")
def deep_convolution(t: OperatorTask) -> None:
    """Convolve; the planes that a filter covers at once become channels of one picture."""
    o, x = t.options("Conv3DOptions"), t.x(0)
    w = t.data(1, "the filter")
    t.require(w.ndim == 5 and len(t.known(x)) == 5, "must have five dimensions")
    t.require(x.value.type == F32 and w.dtype == np.float32, f"of {x.kind} is not in TFLite")
    planes = pictures_of_planes(t, x, o("StrideD"), o("DilationDFactor"), w.shape[0], scheme(t, o))
    deep, height, width, depth = planes[1], w.shape[1], w.shape[2], w.shape[4]
    filter = w.transpose(4, 1, 2, 0, 3).reshape(depth, height, width, -1)
    bias = t.maybe(2) or constant(Value(F32), np.zeros(depth, np.float32))
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH")}
    if (o("DilationWFactor"), o("DilationHFactor")) != (1, 1):
        how |= {"dilation_w": o("DilationWFactor"), "dilation_h": o("DilationHFactor")}
    weights = constant(Value(F32), np.ascontiguousarray(filter))
    found = t.make("CONV_2D", planes[0], weights, bias, activation=o("FusedActivationFunction"), **how)
    _, rows, columns, _ = t.known(found)
    t.result(0, t.reshaped(found, (t.known(x)[0], deep, rows, columns, depth)))


def pictures_of_planes(
    t: OperatorTask, x: Term, stride: int, dilation: int, size: int, padding: Padding
) -> tuple[Term, int]:
    """Return pictures [batch * places, height, width, size * channels] of the planes at each place, and the places."""
    batch, depth, height, width, channels = t.known(x)
    t.require(
        stride > 0 and dilation > 0, f"stride and dilation of the depth are {stride} and {dilation}, must be at least 1"
    )
    reach = (size - 1) * dilation + 1
    same = padding == Padding.SAME
    places = -(-depth // stride) if same else (depth - reach) // stride + 1
    t.require(places > 0, f"a filter of depth {reach} must fit into {depth} planes")
    check_count(places * size)
    before = max(0, (places - 1) * stride + reach - depth) // 2 if same else 0
    after = max(0, (places - 1) * stride + reach - depth - before)
    flat = t.reshaped(x, (batch, depth, height * width * channels))
    if before or after:
        flat = t.make("PAD", flat, t.reshaped(t.integers([0, 0, before, after, 0, 0]), (3, 2)))
    seen = (np.arange(places)[:, None] * stride + np.arange(size) * dilation).astype(np.int32)
    found = t.make("GATHER", flat, 1, constant(Value(I32), seen))
    found = t.reshaped(found, (batch * places, size, height * width, channels))
    found = t.make("TRANSPOSE", found, t.integers([0, 2, 1, 3]))
    return t.reshaped(found, (batch * places, height, width, size * channels)), places


@operator("CONV_3D_TRANSPOSE", inputs=(3, 4),
          becomes="TRANSPOSE_CONV_2D with the filter's planes as channels, PAD, SLICE, ADD")  # fmt: skip
def deep_transposed_convolution(t: OperatorTask) -> None:
    """Convolve transposed: add each plane's product with each picture to the picture that it belongs to."""
    o, x, w = t.options("Conv3DOptions"), t.x(2), t.data(1, "the filter")
    t.require(w.ndim == 5 and len(t.known(x)) == 5, "must have five dimensions")
    t.require(x.value.type == F32 and w.dtype == np.float32, f"of {x.kind} is not in TFLite")
    grown = o("DilationWFactor"), o("DilationHFactor")
    t.require(grown == (1, 1), f"has dilations {grown} of width and height, which TRANSPOSE_CONV_2D lacks")
    (batch, deep, *picture), shape = t.known(x), t.ints(0, "output_shape")
    t.require(len(shape) == 5 and shape[0] == batch and min(shape) > 0, f"output_shape is {shape}, which does not fit")
    planes, height, width, units, depth = w.shape
    t.require(depth == picture[2] and units == shape[4], "the filter must have the channels of input and output")
    stride, step = o("StrideD"), o("DilationDFactor")
    t.require(stride > 0 and step > 0, f"has stride {stride} and dilation {step}, must be at least 1")

    filter = w.transpose(0, 3, 1, 2, 4).reshape(planes * units, height, width, depth)
    sizes = t.integers([batch * deep, *shape[2:4], planes * units])
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH"), "activation": 0, "nchw": False}
    none = constant(Value(F32), np.zeros(planes * units, np.float32))
    weights = constant(Value(F32), np.ascontiguousarray(filter))
    pictures = t.reshaped(x, (batch * deep, *picture))
    made = t.make("TRANSPOSE_CONV_2D", pictures, weights, none, sizes, **how)
    made = t.reshaped(made, (batch * deep, math.prod(shape[2:4]), planes * units))

    reach = (planes - 1) * step + 1
    before = max(0, (deep - 1) * stride + reach - shape[1]) // 2
    total: Term | None = None
    for plane in range(planes):
        part = t.make("SLICE", made, t.integers([0, 0, plane * units]), t.integers([*t.known(made)[:2], units]))
        rows = t.reshaped(part, (batch, deep, 1, math.prod(shape[2:])))
        if stride > 1:
            rows = t.make("PAD", rows, t.reshaped(t.integers([0, 0, 0, 0, 0, stride - 1, 0, 0]), (4, 2)))
        rows = t.reshaped(rows, (batch, deep * stride, math.prod(shape[2:])))
        placed = moved_to(t, rows, plane * step - before, shape[1])
        total = placed if total is None else t.make("ADD", total, placed, activation=0)
    if total is None:
        t.refuse("has a filter without elements")
    result = t.reshaped(total, (batch * shape[1], *shape[2:]))
    if t.given(3):
        result = t.make("ADD", result, t.reshaped(t.x(3), (units,)), activation=0)
    t.result(0, t.reshaped(result, shape))


def moved_to(t: OperatorTask, x: Term, start: int, size: int) -> Term:
    """Move the second of three dimensions to place `start` of another size; fill with zeros."""
    batch, count, inner = t.known(x)
    first, last = max(0, -start), min(count, size - start)
    if first >= last:
        return filled(t, (batch, size, inner), 0, F32)
    x = t.make("SLICE", x, t.integers([0, first, 0]), t.integers([batch, last - first, inner]))
    more = [0, 0, start + first, size - start - last, 0, 0]
    return t.make("PAD", x, t.reshaped(t.integers(more), (3, 2))) if any(more) else x
