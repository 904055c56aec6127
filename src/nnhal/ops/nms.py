"""BOX_WITH_NMS_LIMIT, and non-maximum suppression.

The best box is chosen; boxes that overlap it lose score or are dropped.
"""

from collections.abc import Callable
from enum import IntEnum

import numpy as np

from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.boxes import BOX_TYPES, BOXES, NUMBER, boxes_in, distinct, eighths, ordered, overlap
from nnhal.ops.common import real
from nnhal.ops.ranges import between, whole
from nnhal.ops.schema import F16, F32, I32, INT32, Q8, Q8S, SAME, Bound, Form, Op, T, arg, args, example, out, register

# Maps the scores of the other boxes, and their overlaps with the chosen one, to new scores and whether each stays.
Suppress = Callable[[Array, Array], tuple[Array, Array]]


class NmsKernel(IntEnum):
    """How overlap lowers a score."""

    HARD = 0
    LINEAR = 1
    GAUSSIAN = 2


def hard(threshold: float) -> Suppress:
    """Drop boxes whose overlap is at least the threshold."""
    return lambda scores, shared: (scores, shared < threshold)


def soft(a: Bound) -> Suppress:
    """Multiply scores by the kernel of `a`; drop those that fall below its threshold."""

    def factor(shared: Array) -> Array:
        if a.nms_kernel == NmsKernel.GAUSSIAN:
            return np.exp(-shared * shared / np.float32(a.sigma))
        rest = 1 - shared if a.nms_kernel == NmsKernel.LINEAR else np.zeros_like(shared)
        return np.where(shared < a.iou_threshold, np.ones_like(shared), rest)

    def suppress(scores: Array, shared: Array) -> tuple[Array, Array]:
        scores = scores * factor(shared)
        return scores, scores >= a.nms_score_threshold

    return suppress


def choose(boxes: Array, scores: Array, suppress: Suppress, most: int = -1) -> tuple[Array, Array]:
    """Return the indices of the chosen boxes, best first, and their scores at that time. most: negative for no limit."""
    rest = np.arange(len(scores))
    chosen: list[int] = []
    final: list[float] = []
    while len(rest) and len(chosen) != most:
        best = int(scores.argmax())
        chosen.append(rest[best])
        final.append(scores[best])
        rest, scores = np.delete(rest, best), np.delete(scores, best)
        scores, stays = suppress(scores, overlap(boxes[chosen[-1]], boxes[rest]))
        rest, scores = rest[stays], scores[stays]
    return np.array(chosen, np.int64), np.array(final, np.float32)


def choose_by_class(
    boxes: Array, scores: Array, threshold: float, suppress: Suppress, most: int
) -> tuple[Array, Array, Array]:
    """Return box, class and score of the choice of each class but 0, the background; best first.

    boxes: [n, classes, 4]. threshold: a score must be greater.
    """
    found = []
    for kind in range(1, scores.shape[1]):
        able = np.flatnonzero(scores[:, kind] > threshold)
        chosen, final = choose(boxes[able, kind], scores[able, kind], suppress, most)
        found.append((able[chosen], np.full(len(chosen), kind), final))
    box, kinds, final = (np.concatenate(part) for part in zip(*found, strict=True))
    best = np.argsort(-final, kind="stable")
    return box[best], kinds[best], final[best]


def grouped(a: Bound) -> None:
    """Rule: boxes of one picture are adjacent."""
    index = a.batch_index.array
    first = index[:1].tolist() + index[1:][index[1:] != index[:-1]].tolist()
    a.require(min(first, default=0) >= 0, f"batch_index holds {min(first, default=0)}, must be at least 0")
    a.require(len(first) == len(set(first)), f"batch_index = {first} by groups, must have each batch in one group")


def four_a_class(a: Bound) -> None:
    """There are four coordinates per class."""
    a.require(
        a.coordinates == 4 * a.num_classes,
        f"roi has dimension 1 = {a.coordinates}, must be 4 * {a.num_classes} classes",
    )


def classes(a: Bound) -> None:
    """Rule: there is a class in addition to the background."""
    a.require(a.num_classes >= 2, f"num_classes = {a.num_classes}, must be at least 2: class 0 is the background")


def sigma(a: Bound) -> None:
    """sigma is greater than 0 for GAUSSIAN."""
    a.require(
        a.nms_kernel != NmsKernel.GAUSSIAN or a.sigma > 0, f"sigma = {a.sigma:g}, must be greater than 0 for GAUSSIAN"
    )


def limited(a: Bound, scores: Array, roi: Array, index: Array) -> tuple[Array, ...]:
    """Return the best boxes of each picture, over all classes; in the order of pictures, classes, falling scores."""
    boxes = roi.reshape(*scores.shape, 4)
    most = a.max_num_detections
    parts = []
    for rows in np.split(np.arange(len(index)), np.flatnonzero(np.diff(index)) + 1):
        box, kinds, final = choose_by_class(boxes[rows], scores[rows], a.score_threshold, soft(a), most)
        kept = slice(None if most < 0 else most)
        order = np.argsort(kinds[kept], kind="stable")
        parts.append((rows[box[kept][order]], kinds[kept][order], final[kept][order]))
    at, kinds, final = (np.concatenate(part) for part in zip(*parts, strict=True))
    return final, boxes[at, kinds], kinds, index[at]


register(
    Op(
        "BOX_WITH_NMS_LIMIT",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (
            Form(
                arg("scores", T, "num_rois num_classes", drawn=distinct("scores")),
                arg("roi", BOX_TYPES, "num_rois coordinates", drawn=boxes_in("roi", lambda d: (20, 20))),
                arg("batch_index", I32, "num_rois", drawn=lambda d: np.sort(d.whole(0, 1, d.shape_of("batch_index")))),
                arg("score_threshold", NUMBER, drawn=between(0, 0.3)),
                arg("max_num_detections", INT32, drawn=whole(-1, 8), doc="for each picture; negative: any number"),
                arg("nms_kernel", NmsKernel),
                *args("iou_threshold sigma nms_score_threshold", NUMBER, drawn=between(0.05, 0.4)),
            ),
        ),
        (
            out("scores_out", T, "num_output_rois", quant=SAME),
            out("roi_out", BOX_TYPES, "num_output_rois 4", quant=BOXES),
            out("classes", I32, "num_output_rois"),
            out("batches", I32, "num_output_rois"),
        ),
        real(limited),
        (eighths("roi"), four_a_class, classes, ordered("roi"), grouped, sigma),
        sized={
            "num_rois": whole(1, 24),
            "num_classes": whole(2, 4),
            "coordinates": lambda d: 4 * d.size("num_classes"),
        },
        doc="Returns the best boxes of each picture, of every class but 0, the background, without those that overlap "
        "better ones. A score must be greater than score_threshold; an overlap of iou_threshold counts; a score lowered to "
        "nms_score_threshold stays.",
        example=example(
            ([0.9, 0.7], [[0, 0, 4, 4], [9, 9, 10, 10]], [1, 1], [0, 0]),
            scores=[[0, 0.9], [0, 0.8], [0, 0.7]],
            roi=[[0, 0, 4, 4, 0, 0, 4, 4], [0, 0, 4, 4, 0, 0, 4, 5], [9, 9, 10, 10, 9, 9, 10, 10]],
            batch_index=[0, 0, 0],
            score_threshold=0.1,
            max_num_detections=-1,
            nms_kernel="hard",
            iou_threshold=0.5,
            sigma=1.0,
            nms_score_threshold=0.1,
        ),
    ),
)
