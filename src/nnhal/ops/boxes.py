"""AXIS_ALIGNED_BBOX_TRANSFORM, and what all operations on boxes share: rules, moving boxes by deltas, their overlap.

A box is [x1, y1, x2, y2] in the original image. Quantised ones count eighths of a pixel: TENSOR_QUANT16_ASYMM, scale 0.125.
"""

from collections.abc import Callable

import numpy as np

from nnhal.base.levels import V1_2
from nnhal.base.operands import Array
from nnhal.ops.common import decode, nonzero, real
from nnhal.ops.schema import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    Q8,
    Q8S,
    Q16A,
    Bound,
    Form,
    Op,
    T,
    arg,
    example,
    fixed,
    out,
    per,
    register,
)

EIGHTH = 0.125
BOXES = fixed({Q16A: (EIGHTH, 0)})  # quantisation of boxes that are an output
BOX_TYPES = per({F32: F32, F16: F16, Q8: Q16A, Q8S: Q16A})  # of boxes that come with scores or pictures
NUMBER = per({F32: FLOAT32, F16: FLOAT16, Q8: FLOAT32, Q8S: FLOAT32})  # of thresholds and ratios

# --------------------------------------------------------------------------------------------------------------- rules


def eighths(names: str) -> Callable[[Bound], None]:
    """Rule: these tensors count eighths of a pixel where they are quantised."""

    def check(a: Bound) -> None:
        for name in names.split():
            value = getattr(a, name)
            a.require(
                not value.quantised or (value.scale, value.zero_point) == (EIGHTH, 0),
                f"{name} has scale {value.scale:g} and zero point {value.zero_point}, must be {EIGHTH} and 0",
            )

    return check


def ordered(name: str) -> Callable[[Bound], None]:
    """Rule: each box of this tensor has its upper left corner first."""

    def check(a: Bound) -> None:
        value = getattr(a, name)
        boxes = decode(value, value.array).reshape(-1, 4)
        for box in boxes[~(boxes[:, :2] <= boxes[:, 2:]).all(1)]:
            a.fail(f"{name} holds the box {box.tolist()}, must have x1 <= x2 and y1 <= y2")

    return check


def in_batches(a: Bound) -> None:
    """Rule: each box lies in one of the pictures."""
    index = a.batch_index.array
    for wrong in index[(index < 0) | (index >= a.batches)]:
        a.fail(f"batch_index holds {wrong}, must be from 0 to {a.batches - 1}")


def positive(names: str) -> Callable[[Bound], None]:
    """Rule: these scalars are greater than 0."""

    def check(a: Bound) -> None:
        for name in names.split():
            a.require(getattr(a, name) > 0, f"{name} = {getattr(a, name):g}, must be greater than 0")

    return check


# ------------------------------------------------------------------------------------------------------------ geometry


def moved(centre: Array, size: Array, deltas: Array) -> Array:
    """Boxes by their corners: the centre moved by shares of the size, the size multiplied by powers of e."""
    centre = centre + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:4]) * size / 2
    return np.concatenate([centre - half, centre + half], -1)


def refined(boxes: Array, deltas: Array, image: Array) -> Array:
    """Boxes moved by deltas [dx, dy, dw, dh] and clipped to pictures of size [height, width]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.clip(moved((low + high) / 2, high - low, deltas), 0, image[..., [1, 0, 1, 0]])


def overlap(box: Array, boxes: Array) -> Array:
    """Intersection over union of one box with each of others; of two that are empty, 0."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = np.maximum(sides, 0).prod(-1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(-1) - common
    return np.divide(common, union, out=np.zeros_like(union), where=union > 0)


def whole(a: Bound) -> None:
    """There are four deltas a class."""
    a.require(a.deltas % 4 == 0, f"bbox_deltas has dimension 1 = {a.deltas}, must be four times the number of classes")


def transform(a: Bound, roi: Array, deltas: Array, index: Array, image: Array) -> Array:
    by_class = deltas.reshape(len(roi), a.deltas // 4, 4)
    return refined(roi[:, None], by_class, image[index][:, None]).reshape(deltas.shape)


register(
    Op(
        "AXIS_ALIGNED_BBOX_TRANSFORM",
        {F32: V1_2, F16: V1_2, Q16A: V1_2},
        (
            Form(
                arg("roi", T, "num_rois 4"),
                arg("bbox_deltas", per({F32: F32, F16: F16, Q16A: (Q8, Q8S)}), "num_rois deltas"),
                arg("batch_index", I32, "num_rois"),
                arg("image_info", T, "batches 2", doc="height and width of each picture"),
            ),
        ),
        (out("output", T, "num_rois deltas", quant=BOXES),),
        real(transform),
        (eighths("roi image_info"), ordered("roi"), in_batches, nonzero("batches deltas", "num_rois"), whole),
        doc="Boxes moved and resized by deltas, for each class, and clipped to their picture.",
        example=example(
            [[5, 1, 8, 5]], roi=[[1, 1, 5, 5]], bbox_deltas=[[1, 0, 0, 0]], batch_index=[0], image_info=[[6, 8]]
        ),
    ),
)
