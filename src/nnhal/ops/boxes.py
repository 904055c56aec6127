"""AXIS_ALIGNED_BBOX_TRANSFORM, and shared functions of operations on boxes: rules, moving boxes by deltas, overlap.

A box is [x1, y1, x2, y2] in the original image. Quantised ones are in eighths of a pixel: TENSOR_QUANT16_ASYMM, scale
0.125.
"""

from collections.abc import Callable

import numpy as np

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_2
from nnhal.base.operands import Array, Value, dtype_of, quantised
from nnhal.base.records import replace
from nnhal.ops.common import decode, nonzero, real
from nnhal.ops.ranges import Draw, Range
from nnhal.ops.schema import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    Q8,
    Q8S,
    Q16A,
    Q16S,
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
    """Rule: these tensors are in eighths of a pixel if they are quantised."""

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
    """Rule: each box belongs to one of the pictures."""
    index = a.batch_index.array
    for wrong in index[(index < 0) | (index >= a.batches)]:
        a.fail(f"batch_index holds {wrong}, must be from 0 to {a.batches - 1}")


def positive(names: str) -> Callable[[Bound], None]:
    """Rule: these scalars are greater than 0."""

    def check(a: Bound) -> None:
        for name in names.split():
            a.require(getattr(a, name) > 0, f"{name} = {getattr(a, name):g}, must be greater than 0")

    return check


# -------------------------------------------------------------------------------------------------------------- ranges


def boxes_in(name: str, size: Callable[[Draw], tuple[float, float]]) -> Range:
    """Range: boxes with their upper left corner first, within a picture of this width and height."""

    def draw(d: Draw) -> Value:
        shape, edge = d.shape_of(name), size(d)
        corners = d.rng.uniform(0, 1, (*shape[:-1], shape[-1] // 4, 2, 2)) * edge
        return counted(d, name, np.sort(corners, -2).reshape(shape))

    return draw


def counted(d: Draw, name: str, places: Array) -> Value:
    """Return coordinates as an argument stores them; quantised ones in eighths, rounded down."""
    kind = d.type_of(name)
    if kind in (Q16A, Q16S):
        return Value(kind, places.shape, EIGHTH, data=np.floor(places / EIGHTH).astype(dtype_of(kind)))
    return Value(kind, places.shape, data=(np.floor(places * 8) / 8).astype(dtype_of(kind)))


def pictures(d: Draw) -> Value:
    """Range: sizes of pictures."""
    return counted(d, "image_info", d.rng.uniform(4, 60, d.shape_of("image_info")))


def real_of(name: str, low: float, high: float) -> Range:
    """Range: real numbers of a tensor; a quantised one has a scale that just covers them."""

    def draw(d: Draw) -> Value:
        kind, shape = d.type_of(name), d.shape_of(name)
        numbers = d.rng.uniform(low, high, shape)
        if not quantised(kind):
            return Value(kind, shape, data=numbers.astype(dtype_of(kind)))
        scale, least = float(np.float32((high - low) / 255)), np.iinfo(dtype_of(kind)).min
        zero = int(np.clip(round(least - low / scale), least, least + 255))
        return Value(
            kind, shape, scale, zero, data=np.clip(numbers / scale + zero, least, least + 255).astype(dtype_of(kind))
        )

    return draw


def distinct(name: str) -> Range:
    """Range: scores from 0 to 1 without repetition: the order of equal ones is undefined."""

    def draw(d: Draw) -> Value:
        value: Value = real_of(name, 0, 1)(d)
        most = 256 if value.quantised else 1024
        if value.array.size > most:
            raise InvalidModel(f"{name} has {value.array.size} elements, must have at most {most} to be distinct")
        levels = d.rng.permutation(most)[: value.array.size].reshape(value.array.shape)
        least = np.iinfo(value.dtype).min if value.quantised else 0
        return replace(value, data=(levels + least if value.quantised else levels / 1024).astype(value.dtype))

    return draw


def batch_places(d: Draw) -> Array:
    """Range: the picture of each box, in order."""
    return np.sort(d.whole(0, d.size("batches") - 1, d.shape_of("batch_index")))


# ------------------------------------------------------------------------------------------------------------ geometry


def moved(centre: Array, size: Array, deltas: Array) -> Array:
    """Return boxes by their corners: the centre moved by shares of the size, the size multiplied by powers of e."""
    centre = centre + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:4]) * size / 2
    return np.concatenate([centre - half, centre + half], -1)


def refined(boxes: Array, deltas: Array, image: Array) -> Array:
    """Move boxes by deltas [dx, dy, dw, dh] and clip them to pictures of size [height, width]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return np.clip(moved((low + high) / 2, high - low, deltas), 0, image[..., [1, 0, 1, 0]])


def overlap(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with each other one; 0 for two empty ones."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = np.maximum(sides, 0).prod(-1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(-1) - common
    return np.divide(common, union, out=np.zeros_like(union), where=union > 0)


def whole(a: Bound) -> None:
    """There are four deltas per class."""
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
                arg("roi", T, "num_rois 4", drawn=boxes_in("roi", lambda d: (60, 60))),
                arg(
                    "bbox_deltas",
                    per({F32: F32, F16: F16, Q16A: (Q8, Q8S)}),
                    "num_rois deltas",
                    drawn=real_of("bbox_deltas", -1, 1),
                ),
                arg("batch_index", I32, "num_rois", drawn=batch_places),
                arg("image_info", T, "batches 2", drawn=pictures, doc="height and width of each picture"),
            ),
        ),
        (out("output", T, "num_rois deltas", quant=BOXES),),
        real(transform),
        (eighths("roi image_info"), ordered("roi"), in_batches, nonzero("batches deltas", "num_rois"), whole),
        sized={"deltas": lambda d: 4 * d.whole(1, 3)},
        doc="Moves and resizes boxes by deltas, for each class, and clips them to their picture.",
        example=example(
            [[5, 1, 8, 5]], roi=[[1, 1, 5, 5]], bbox_deltas=[[1, 0, 0, 0]], batch_index=[0], image_info=[[6, 8]]
        ),
    ),
)
