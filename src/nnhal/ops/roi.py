"""ROI_ALIGN, ROI_POOLING, HEATMAP_MAX_KEYPOINT: what pictures hold in regions of interest."""

import math
from functools import partial

import numpy as np

from nnhal.base.codes import MAX_OPERAND_BYTES
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.boxes import BOX_TYPES, BOXES, NUMBER, eighths, in_batches, ordered, positive
from nnhal.ops.common import decode, interpolate, nhwc, nonzero, real
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
PICTURES = arg("input", T, "batches height width depth", layout=True)
ROI = arg("roi", BOX_TYPES, "num_rois 4"), arg("batch_index", I32, "num_rois")
NEW_SIZE = args("out_height out_width", INT32, at_least=1)
RATIOS = args("height_stride width_stride", NUMBER, doc="size of the original image over that of the feature map")


def scaled(a: Bound, roi: Array) -> Array:
    """Regions in coordinates of the feature map."""
    stride = np.float64([a.width_stride, a.height_stride])
    return roi / np.concatenate([stride, stride])


def within(a: Bound) -> None:
    """Rule: regions lie in the picture, but for what rounding to their type makes of its far edge."""
    roi = decode(a.roi, a.roi.array)
    slack = 1 + np.finfo(np.float16 if a.T == F16 else np.float32).eps
    edge = np.float64([a.width, a.height, a.width, a.height])
    places = scaled(a, roi)
    for box in roi[~((places >= 0) & (places <= edge * slack)).all(-1)]:
        size = f"{a.width * a.width_stride:g} wide and {a.height * a.height_stride:g} high"
        a.fail(f"roi holds the box {box.tolist()}, must lie within the image, {size}")


def pooled(a: Bound, x: Array, places: Array, index: Array, reduce: partial[Array]) -> Array:
    """Each region cut into out_height by out_width bins, and each bin reduced: along the height first, then the width."""
    result = np.empty((len(places), a.out_height, a.out_width, x.shape[3]), x.dtype)
    for n, (batch, (x1, y1, x2, y2)) in enumerate(zip(index, places, strict=True)):
        rows = reduce(a, x[batch], 0, y1, y2, a.out_height)
        result[n] = reduce(a, rows, 1, x1, x2, a.out_width)
    return result
