"""ROI_ALIGN, ROI_POOLING: regions of interest of a feature map, scaled to one size."""

import math
from collections.abc import Callable

import numpy as np

from nnhal.base.codes import MAX_OPERAND_BYTES
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.boxes import BOX_TYPES, NUMBER, batch_places, boxes_in, eighths, in_batches, ordered, positive
from nnhal.ops.common import decode, interpolate, nhwc, nonzero, real
from nnhal.ops.ranges import Draw, among
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    SAME,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    example,
    out,
    register,
)

TYPES = {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3}


def image(d: Draw) -> tuple[float, float]:
    """Width and height of the original image."""
    return d.size("width") * d["width_stride"], d.size("height") * d["height_stride"]


START = (
    arg("input", T, "batches height width depth", layout=True, doc="the feature map"),
    arg("roi", BOX_TYPES, "num_rois 4", drawn=boxes_in("roi", image), doc="in the original image"),
    arg("batch_index", I32, "num_rois", drawn=batch_places),
    *args("out_height out_width", INT32, at_least=1),
    *args(
        "height_stride width_stride",
        NUMBER,
        drawn=among(0.5, 1, 2, 4),  # exact quotients: bins and numbers of points depend on them
        doc="size of the original image over that of the feature map",
    ),
)
NEW = "num_rois out_height out_width depth"

# Reduces one axis of a feature map [height, width, depth], between two positions, to a number of bins.
Reduce = Callable[[Bound, Array, int, float, float], Array]


def scaled(a: Bound, roi: Array) -> Array:
    """Regions in the feature map's coordinates."""
    return roi / np.array([a.width_stride, a.height_stride] * 2, np.float64)


def require_regions_within(a: Bound) -> None:
    """Rule: regions are within the image, except for the rounding of its far edge to their type."""
    roi, edge = decode(a.roi, a.roi.array), np.array([a.width, a.height] * 2)
    places = scaled(a, roi)
    slack = 1 + np.finfo(a.roi.dtype if a.roi.dtype.kind == "f" else np.float32).eps
    for box in roi[~((places >= 0) & (places <= edge * slack)).all(1)]:
        size = f"{a.width * a.width_stride:g} wide and {a.height * a.height_stride:g} high"
        a.fail(f"roi holds the box {box.tolist()}, must lie within the image, {size}")


def each_region(a: Bound, x: Array, places: Array, index: Array, reduce: Reduce) -> Array:
    """Reduce every region [x1, y1, x2, y2] of its picture along height, then width."""
    made = np.empty((len(places), a.out_height, a.out_width, a.depth), x.dtype)
    for n, (batch, (x1, y1, x2, y2)) in enumerate(zip(index, places.tolist(), strict=True)):
        made[n] = reduce(a, reduce(a, x[batch], 0, y1, y2), 1, x1, x2)
    return made


def averaged(a: Bound, x: Array, axis: int, start: float, end: float) -> Array:
    """Return means of points spread evenly over each bin, interpolated between elements; a region spans at least one."""
    count, points = ((a.out_height, a.height_samples), (a.out_width, a.width_samples))[axis]
    size = max(end - start, 1)
    points = points or math.ceil(size / count)
    room = count * points * (x.nbytes // x.shape[axis] + 16)  # and the positions themselves
    a.require(
        room <= MAX_OPERAND_BYTES, f"{points} sampling points take {room} bytes, must be at most {MAX_OPERAND_BYTES}"
    )
    at = start + (np.arange(count * points) + 0.5) * size / (count * points)
    samples = interpolate(x, np.minimum(at, x.shape[axis] - 1), axis)
    return samples.reshape(*x.shape[:axis], count, points, *x.shape[axis + 1 :]).mean(axis + 1)


def align(a: Bound, x: Array, roi: Array, index: Array) -> Array:
    return each_region(a, x, scaled(a, roi), index, averaged)


def greatest(a: Bound, x: Array, axis: int, start: float, end: float) -> Array:
    """Return the greatest elements of bins between whole positions; bins may overlap; 0 if a bin is empty."""
    count = (a.out_height, a.out_width)[axis]
    size, k = int(end - start) + 1, np.arange(count)
    first, last = (np.minimum(int(start) + n, x.shape[axis]) for n in (k * size // count, -(-(k + 1) * size // count)))
    more = np.concatenate([x, x.take([-1], axis)], axis)  # so that the end of the last bin is a position too
    bins = np.maximum.reduceat(more, np.stack([first, last], -1).ravel(), axis)
    bins = bins.take(2 * k, axis)  # the others are between bins
    return np.where(
        np.expand_dims(first < last, [n for n in range(x.ndim) if n != axis]), bins, x.dtype.type(a.input.zero_point)
    )


def pool(a: Bound, x: Array, roi: Array, index: Array) -> Array:
    """The greatest elements are those of the greatest stored values; edges are rounded, halves up."""
    return each_region(a, x, np.floor(scaled(a, decode(a.roi, roi)) + 0.5), index, greatest)


CHECKS = (
    eighths("roi"),
    ordered("roi"),
    in_batches,
    positive("height_stride width_stride"),
    require_regions_within,
    nonzero("batches height width depth", "num_rois"),
)

register(
    Op(
        "ROI_ALIGN",
        TYPES,
        (
            Form(
                *START,
                *args("height_samples width_samples", INT32, at_least=0, doc="0: as many as elements"),
                arg("nchw", BOOL),
            ),
        ),
        (out("output", T, NEW, layout=True),),
        nhwc(real(align)),
        CHECKS,
        sums="terms",
        jumps=True,
        doc="Scales regions of interest to one size, by means of interpolated points.",
        example=example(
            [[[[2.5]]]],
            input=[[[[1], [2]], [[3], [4]]]],
            roi=[[0, 0, 1, 1]],
            batch_index=[0],
            out_height=1,
            out_width=1,
            height_stride=1,
            width_stride=1,
            height_samples=1,
            width_samples=1,
            nchw=False,
        ),
    ),
    Op(
        "ROI_POOLING",
        TYPES,
        (Form(*START, arg("nchw", BOOL)),),
        (out("output", T, NEW, layout=True, quant=SAME),),
        nhwc(pool),
        CHECKS,
        jumps=True,
        doc="Scales regions of interest to one size, by the greatest elements.",
        example=example(
            [[[[4]]]],
            input=[[[[1], [2]], [[3], [4]]]],
            roi=[[0, 0, 1, 1]],
            batch_index=[0],
            out_height=1,
            out_width=1,
            height_stride=1,
            width_stride=1,
            nchw=False,
        ),
    ),
)
