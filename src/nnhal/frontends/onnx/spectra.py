"""Entries of spectra and their windows, and of Col2Im. ONNX has complex numbers as pairs of floats, in the last dimension.

Transforms become products with cosines and sines, which are known at import.
"""

import math
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.functions import cosines_and_sines
from nnhal.frontends.common.operators import COUNTED
from nnhal.frontends.onnx.expanded import ExpandedNode, expanded
from nnhal.frontends.onnx.file import DTYPES, KINDS
from nnhal.frontends.onnx.task import MOST_FOLDED, NodeTask, computed
from nnhal.frontends.onnx.volumes import flat_pads
from nnhal.frontends.onnx.windows import window

MOST_WAVES = 1 << 24  # elements of a matrix of waves

UNKNOWN_SIZE = f"of a size that is computed at execution {COUNTED}"

# ------------------------------------------------------------------------------------------------------------- transforms


def waves(t: ExpandedNode, places: int, size: int, bins: int, *, inverse: bool = False) -> tuple[Array, Array]:
    """Return the cosines and sines [places, bins] by which a transform multiplies.

    Args:
        t: The node.
        places: The number of elements.
        size: The length of the transform.
        bins: The number of frequencies.
        inverse: Whether the transform is the inverse one, which divides by the length.
    """
    t.require(places * bins <= MOST_WAVES, f"has {places * bins} waves, must have at most {MOST_WAVES}")
    t.budget.spend(Cost.MEMORY, 64 * places * bins, t.label)
    cosines, sines = cosines_and_sines(places, bins, size)
    return (cosines * (1 / size), sines * (-1 / size)) if inverse else (cosines, sines)


def pairs(cosines: Array, sines: Array, parts: int) -> Array:
    """Return the matrix [places * parts, bins * 2] that transforms numbers of one or two parts into pairs."""
    rows = np.stack([np.stack([cosines, -sines], -1), np.stack([sines, cosines], -1)][:parts], 1)
    return rows.reshape(rows.shape[0] * parts, -1)


@expanded("DFT", inputs=(1, 3), becomes="MatMul with cosines and sines")
def transform(t: ExpandedNode) -> None:
    """Transform along a dimension, cut or filled with zeros to a length."""
    shape, version = t.shape(t.x(0)), 20
    rank, one_sided, inverse = len(shape), bool(t.attr("onesided", 0)), bool(t.attr("inverse", 0))
    axis = t.attr("axis", 1) if t.opset < version else t.integer_of(2, "axis") if t.given(2) else -2
    t.require(rank > 1 and -rank <= axis < rank, f"axis is {axis} of an input of {rank} dimensions")
    axis %= rank
    parts, length = shape[-1], shape[axis]
    t.require(
        axis < rank - 1 and parts in (1, 2), f"transforms dimension {axis} of {list(shape)}, must be of 1 or 2 parts"
    )
    t.require(not (one_sided and inverse), "is inverse and of one side, which NNAPI has no operation for")
    size = t.integer_of(1, "dft_length") if t.given(1) else length
    if length is None or size is None or parts is None:
        t.refuse("has a length that is known only at execution")
    t.require(size > 0 and length > 0, f"has length {size}, must be at least 1")
    bins, kept = size // 2 + 1 if one_sided else size, min(size, length)
    matrix = pairs(*waves(t, kept, size, bins, inverse=inverse), parts)
    order = [n for n in range(rank - 1) if n != axis]
    rest = [shape[n] for n in order]
    t.require(rest.count(None) < 2, "has more than one dimension that is known only at execution")
    x = t.input(0)
    if kept < length:
        x = t.write("Slice", x, t.constant([0]), t.constant([kept]), t.constant([axis]))
    rows = t.write("Transpose", x, perm=(*order, axis, rank - 1))
    rows = t.write("Reshape", rows, t.constant([-1, kept * parts]))
    made = t.write("MatMul", rows, t.constant(matrix))
    made = t.write("Reshape", made, t.constant([*(-1 if d is None else d for d in rest), bins, 2]))
    back = [*order, axis, rank - 1]
    t.write("Transpose", made, gives=0, perm=tuple(back.index(n) for n in range(rank)))


@expanded("STFT", inputs=(2, 4), becomes="Conv with cosines and sines")
def short_time_transform(t: ExpandedNode) -> None:
    """Transform windows of a signal, each a step behind the one before."""
    shape, step = t.known(t.x(0)), t.integer_of(1, "frame_step")
    batch, length, parts = (*shape, 1) if len(shape) == 2 else shape if len(shape) == 3 else (0, 0, 0)
    t.require(parts in (1, 2), f"has a signal of shape {list(shape)}, must be [batch, length, 1 or 2]")
    form = np.asarray(t.data(2, "the window"), np.float64).reshape(-1) if t.given(2) else None
    size = t.integer_of(3, "frame_length") if t.given(3) else 0 if form is None else form.size
    t.require(0 < size <= length and step > 0, f"has frames of {size} and steps of {step} in a signal of {length}")
    t.require(form is None or form.size == size, f"has a window of {0 if form is None else form.size}, must be {size}")
    one_sided = bool(t.attr("onesided", 1))
    t.require(not one_sided or parts == 1, "is of one side, must have a signal of real numbers")
    bins, count = size // 2 + 1 if one_sided else size, (length - size) // step + 1
    cosines, sines = waves(t, size, size, bins)
    if form is not None:
        cosines, sines = cosines * form[:, None], sines * form[:, None]
    filter = pairs(cosines, sines, parts).reshape(size, parts, 2 * bins).transpose(2, 1, 0)
    signal = t.write("Reshape", t.input(0), t.constant([batch, length, parts]))
    signal = t.write("Transpose", signal, perm=(0, 2, 1))
    made = t.write("Conv", signal, t.constant(filter), kernel_shape=(size,), strides=(step,))
    made = t.write("Transpose", made, perm=(0, 2, 1))
    t.write("Reshape", made, t.constant([batch, count, bins, 2]), gives=0)


@expanded("Col2Im", inputs=3, becomes="ConvTranspose with ones")
def picture_of_columns(t: ExpandedNode) -> None:
    """Add up the blocks of a picture of two dimensions."""
    image, block = t.ints(1, "image_shape"), t.ints(2, "block_shape")
    batch, rows, count = t.known(t.x(0)) if len(t.shape(t.x(0))) == 3 else (0, 0, 0)
    t.require(len(image) == len(block) == 2 and batch > 0, "must have columns of a picture of two dimensions")
    size = math.prod(block)
    t.require(size > 0 and rows % size == 0, f"has {rows} rows, must be a multiple of the block's {size} elements")
    w = window(t, block, image)
    places = w.places(image)
    t.require(min(places) > 0 and math.prod(places) == count, f"has {count} columns, must have {math.prod(places)}")
    left = [
        d + sum(pad) - (n - 1) * stride - reach
        for d, pad, n, stride, reach in zip(image, w.pads, places, w.stride, w.reach, strict=True)
    ]
    columns = t.write("Reshape", t.input(0), t.constant([batch * rows // size, size, *places]))
    t.budget.spend(Cost.MEMORY, 4 * size * size, t.label)
    ones = t.constant(np.eye(size, dtype=np.float32).reshape(size, 1, *block))
    how: dict[str, Any] = {"kernel_shape": tuple(block), "strides": tuple(w.stride), "dilations": tuple(w.dilation)}
    made = t.write("ConvTranspose", columns, ones, **how, pads=flat_pads(w.pads), output_padding=tuple(left))
    t.write("Reshape", made, t.constant([batch, rows // size, *image]), gives=0)


# --------------------------------------------------------------------------------------------------------------- constants


def shaped(t: NodeTask, size: Array, *terms: float) -> tuple[Array, str]:
    """Return a window of a known size: the sum of cosines with these factors."""
    count, number = int(size.reshape(())), t.attr("output_datatype", 1)
    require_foldable(0 < count <= MOST_FOLDED and KINDS.get(number) in ("FLOAT", "DOUBLE"))
    angles = 2 * np.pi * np.arange(count) / (count if t.attr("periodic", 1) else max(1, count - 1))
    found = sum((factor * np.cos(n * angles) for n, factor in enumerate(terms)), np.zeros(count))
    return found.astype(DTYPES[KINDS[number]]), KINDS[number]


@computed("HannWindow", becomes="a constant, of a size that is known", refused=UNKNOWN_SIZE)
def hann(t: NodeTask, size: Array) -> Any:
    return shaped(t, size, 0.5, -0.5)


@computed("HammingWindow", becomes="a constant, of a size that is known", refused=UNKNOWN_SIZE)
def hamming(t: NodeTask, size: Array) -> Any:
    return shaped(t, size, 25 / 46, -21 / 46)


@computed("BlackmanWindow", becomes="a constant, of a size that is known", refused=UNKNOWN_SIZE)
def blackman(t: NodeTask, size: Array) -> Any:
    return shaped(t, size, 0.42, -0.5, 0.08)
