"""GENERATE_PROPOSALS, DETECTION_POSTPROCESSING: the best boxes from predefined anchors."""

import numpy as np

from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.boxes import (
    BOXES,
    NUMBER,
    boxes_in,
    distinct,
    eighths,
    moved,
    ordered,
    pictures,
    positive,
    real_of,
    refined,
)
from nnhal.ops.common import nhwc, real
from nnhal.ops.nms import choose, choose_by_class, classes, hard
from nnhal.ops.ranges import among, between, whole
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    Q16A,
    Q16S,
    SAME,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    example,
    out,
    per,
    register,
)

ANCHORS = per({F32: F32, F16: F16, Q8: Q16S, Q8S: Q16S})
SIZES = per({F32: F32, F16: F16, Q8: Q16A, Q8S: Q16A})
SCALAR = per({F32: FLOAT32, F16: FLOAT16})

# ----------------------------------------------------------------------------------------------------------- proposals


def four_an_anchor(a: Bound) -> None:
    """There are four deltas per anchor."""
    a.require(a.deltas == 4 * a.num_anchors, f"bbox_deltas has depth {a.deltas}, must be 4 * {a.num_anchors} anchors")


def shifted(a: Bound, anchors: Array) -> Array:
    """Return the anchors at each position of the feature map, in the original image: [height * width * num_anchors, 4]."""
    y, x = np.indices((a.height, a.width), np.float32)
    corner = np.stack([x * a.width_stride, y * a.height_stride], -1)[:, :, None]
    return (np.concatenate([corner, corner], -1) + anchors).reshape(-1, 4)


def propose(a: Bound, scores: Array, deltas: Array, anchors: Array, image: Array) -> tuple[Array, ...]:
    """Return for each picture boxes from anchors and deltas: the best before NMS, without small ones, the best by NMS."""
    start = shifted(a, anchors)
    boxes = refined(start, deltas.reshape(a.batches, len(start), 4), image[:, None])
    scores = scores.reshape(boxes.shape[:2])
    found = [np.empty((2, 0), np.int64)]
    for batch in range(a.batches):
        able = np.arange(len(start))
        if 0 < a.pre_nms_limit < len(able):
            able = np.argsort(-scores[batch], kind="stable")[: a.pre_nms_limit]
        low, high = boxes[batch, able, :2], boxes[batch, able, 2:]
        inside = (low + high) / 2 < image[batch, ::-1]
        able = able[((high - low > a.min_size) & inside).all(-1)]
        limit = a.post_nms_limit if a.post_nms_limit > 0 else -1
        chosen, _ = choose(boxes[batch, able], scores[batch, able], hard(a.iou_threshold), limit)
        found.append(np.stack([np.full(len(chosen), batch), able[chosen]]))
    at, chosen = np.concatenate(found, -1)
    return scores[at, chosen], boxes[at, chosen], at


# ---------------------------------------------------------------------------------------------------------- detections


def encoding(a: Bound) -> None:
    """Each box has at least four numbers."""
    a.require(a.length_box_encoding >= 4, f"length_box_encoding = {a.length_box_encoding}, must be at least 4")


def limits(a: Bound) -> None:
    """Rule: the limit for the kind of NMS is at least 1."""
    name = "max_detections_per_class" if a.use_regular_nms else "max_classes_per_detection"
    a.require(getattr(a, name) >= 1, f"{name} = {getattr(a, name)}, must be at least 1")


def rows(a: Bound) -> int:
    """Shape rule: the most detections; the fast NMS may give one box several classes, each in a separate row."""
    return int(a.max_num_detections * (1 if a.use_regular_nms else a.max_classes_per_detection))


def regular(a: Bound, boxes: Array, scores: Array) -> tuple[Array, ...]:
    """Return box, class and score of each detection, with an NMS for each class."""
    by_class = np.broadcast_to(boxes[:, None], (*scores.shape, 4))
    most, threshold = a.max_detections_per_class, a.score_threshold
    found = choose_by_class(by_class, scores, threshold, hard(a.iou_threshold), most)
    return tuple(part[: a.max_num_detections] for part in found)


def fast(a: Bound, boxes: Array, scores: Array) -> tuple[Array, ...]:
    """Return box, class and score of each detection, with one NMS on the best score of each box: then its best classes."""
    best = scores[:, 1:].max(-1)
    able = np.flatnonzero(best > a.score_threshold)
    chosen, _ = choose(boxes[able], best[able], hard(a.iou_threshold), a.max_num_detections)
    kinds = 1 + np.argsort(-scores[able[chosen], 1:], 1, kind="stable")[:, : a.max_classes_per_detection]
    box = np.repeat(able[chosen], kinds.shape[1])
    return box, kinds.ravel(), scores[box, kinds.ravel()]


def detect(a: Bound, scores: Array, deltas: Array, anchors: Array) -> tuple[Array, ...]:
    """Unused rows are 0."""
    scale = np.array([a.scale_y, a.scale_x, a.scale_h, a.scale_w], np.float32)
    boxes = moved(anchors[:, :2], anchors[:, 2:], deltas[..., :4] / scale)
    shape = a.batches, rows(a)
    score_out, box_out = np.zeros(shape, np.float32), np.zeros((*shape, 4), np.float32)
    class_out, count = np.zeros(shape, np.int32), np.zeros(a.batches, np.int32)
    for batch in range(a.batches):
        box, kinds, final = (regular if a.use_regular_nms else fast)(a, boxes[batch], scores[batch])
        n = count[batch] = len(box)
        score_out[batch, :n], box_out[batch, :n] = final, boxes[batch, box]
        class_out[batch, :n] = kinds - (not a.is_bg_in_label)
    return score_out, box_out, class_out, count


register(
    Op(
        "GENERATE_PROPOSALS",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (
            Form(
                arg("scores", T, "batches height width num_anchors", layout=True, drawn=distinct("scores")),
                arg("bbox_deltas", T, "batches height width deltas", layout=True, drawn=real_of("bbox_deltas", -1, 1)),
                arg("anchors", ANCHORS, "num_anchors 4", drawn=boxes_in("anchors", lambda d: (20, 20))),
                arg("image_info", SIZES, "batches 2", drawn=pictures, doc="height and width of each picture"),
                *args(
                    "height_stride width_stride",
                    NUMBER,
                    drawn=among(1, 2, 8),
                    doc="size of the picture over that of the feature map",
                ),
                *args(
                    "pre_nms_limit post_nms_limit",
                    INT32,
                    drawn=whole(-1, 20),
                    doc="for each picture; 0 or less: any number",
                ),
                arg("iou_threshold", NUMBER, drawn=between(0.05, 0.6)),
                arg("min_size", NUMBER, drawn=between(0, 4)),
                arg("nchw", BOOL),
            ),
        ),
        (
            out("scores_out", T, "num_output_rois", quant=SAME),
            out("roi_out", SIZES, "num_output_rois 4", quant=BOXES),
            out("batches_out", I32, "num_output_rois"),
        ),
        nhwc(real(propose)),
        (
            eighths("anchors image_info"),
            four_an_anchor,
            ordered("anchors"),
            positive("height_stride width_stride"),
        ),
        sized={  # so few that their 8-bit scores can all differ
            "batches": whole(1, 3),
            **dict.fromkeys(("height", "width", "num_anchors"), whole(1, 4)),
            "deltas": lambda d: 4 * d.size("num_anchors"),
        },
        doc="Returns the best boxes, from anchors at every position of a feature map and deltas for them. Height and width "
        "must be greater than the unscaled min_size, and the centre left of and above the picture's edge; an overlap of "
        "iou_threshold counts.",
        example=example(
            ([0.9], [[0, 0, 4, 4]], [0]),
            scores=[[[[0.9, 0.8]]]],
            bbox_deltas=[[[[0, 0, 0, 0, 0, 0, 0, 0]]]],
            anchors=[[0, 0, 4, 4], [0, 0, 4, 5]],
            image_info=[[16, 16]],
            height_stride=16,
            width_stride=16,
            pre_nms_limit=0,
            post_nms_limit=0,
            iou_threshold=0.5,
            min_size=1,
            nchw=False,
        ),
    ),
    Op(
        "DETECTION_POSTPROCESSING",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                arg("scores", T, "batches num_anchors num_classes", drawn=distinct("scores")),
                arg("bbox_deltas", T, "batches num_anchors length_box_encoding", drawn=real_of("bbox_deltas", -1, 1)),
                arg(
                    "anchors",
                    T,
                    "num_anchors 4",
                    drawn=real_of("anchors", 0.5, 8),
                    doc="each [y, x, h, w], where y, x is the centre",
                ),
                *args(
                    "scale_y scale_x scale_h scale_w", SCALAR, drawn=between(1, 10), doc="the deltas are divided by it"
                ),
                arg("use_regular_nms", BOOL, doc="an NMS for each class, not one for all"),
                arg("max_num_detections", INT32, at_least=1, drawn=whole(1, 8)),
                arg("max_classes_per_detection", INT32, drawn=whole(1, 3), doc="of the one NMS for all classes"),
                arg("max_detections_per_class", INT32, drawn=whole(1, 6), doc="of the NMS for each class"),
                *args("score_threshold iou_threshold", SCALAR, at_least=0, drawn=between(0, 0.4)),
                arg("is_bg_in_label", BOOL, doc="whether class 0 of the output is the background"),
            ),
        ),
        (
            out("scores_out", T, "batches rows"),
            out("roi_out", T, "batches rows 4", doc="each [y1, x1, y2, x2]"),
            out("classes", I32, "batches rows"),
            out("num_detections", I32, "batches"),
        ),
        real(detect),
        (classes, encoding, positive("scale_y scale_x scale_h scale_w"), limits),
        where={"rows": rows},
        sized={"length_box_encoding": whole(4, 5), "num_classes": whole(2, 4), "num_anchors": whole(1, 12)},
        doc="Returns the best boxes and their classes, from anchors and deltas for them. A score must be greater than "
        "score_threshold; an overlap of iou_threshold counts.",
        example=example(
            ([[0.9, 0]], [[[0, 0, 2, 2], [0, 0, 0, 0]]], [[0, 0]], [1]),
            scores=[[[0, 0.9], [0, 0.8]]],
            bbox_deltas=[[[0, 0, 0, 0], [0, 1, 0, 0]]],
            anchors=[[1, 1, 2, 2], [1, 1, 2, 2]],
            scale_y=10,
            scale_x=10,
            scale_h=5,
            scale_w=5,
            use_regular_nms=False,
            max_num_detections=2,
            max_classes_per_detection=1,
            max_detections_per_class=1,
            score_threshold=0.5,
            iou_threshold=0.5,
            is_bg_in_label=False,
        ),
    ),
)
