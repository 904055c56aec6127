"""Oracles of operations on boxes and regions, one box at a time, and what must hold of random classes."""

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.ops.schema import F16
from tests.differential.oracle import PROPERTIES, laid_out, nhwc, oracle

Box = Sequence[float]  # x1, y1, x2, y2


def area(box: Box) -> float:
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = area([*low, *high])
    union = area(one) + area(other) - common
    return common / union if union > 0 else 0.0


def moved(box: Box, delta: Array) -> list[float]:
    """A box whose centre moves by shares of its size, and whose size grows by powers of e."""
    width, height = box[2] - box[0], box[3] - box[1]
    x, y = (box[0] + box[2]) / 2 + delta[0] * width, (box[1] + box[3]) / 2 + delta[1] * height
    w, h = width * math.exp(delta[2]), height * math.exp(delta[3])
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def within(box: Box, size: Array) -> list[float]:
    """A box clipped to a picture of [height, width]."""
    height, width = size
    return [min(max(place, 0.0), edge) for place, edge in zip(box, (width, height, width, height), strict=True)]


@oracle("AXIS_ALIGNED_BBOX_TRANSFORM")
def transform(c: SimpleNamespace) -> Array:
    made = np.zeros(c.bbox_deltas.shape)
    for n, (box, batch) in enumerate(zip(c.roi, c.batch_index, strict=True)):
        for k in range(0, made.shape[1], 4):
            made[n, k : k + 4] = within(moved(box, c.bbox_deltas[n, k : k + 4]), c.image_info[batch])
    return made


# ---------------------------------------------------------------------------------------------------------- suppression


def suppressed(
    boxes: Sequence[Box], scores: dict[int, float], most: int, lower: Callable[[float, float], float | None]
) -> list[tuple[int, float]]:
    """The best of `scores` by box, again and again, and its score then; each lowers the others by overlap or drops them.

    lower: of a score and an overlap, the new score; None drops. most: how many at the most, negative for any number.
    """
    chosen: list[tuple[int, float]] = []
    while scores and len(chosen) != most:
        best = max(scores, key=lambda n: scores[n])
        chosen.append((best, scores.pop(best)))
        lowered = {n: lower(score, overlap(boxes[best], boxes[n])) for n, score in scores.items()}
        scores = {n: score for n, score in lowered.items() if score is not None}
    return chosen


def hard(threshold: float) -> Callable[[float, float], float | None]:
    return lambda score, shared: score if shared < threshold else None


def soft(c: SimpleNamespace) -> Callable[[float, float], float | None]:
    def lower(score: float, shared: float) -> float | None:
        if c.nms_kernel.name == "GAUSSIAN":
            score *= math.exp(-(shared**2) / c.sigma)
        elif shared >= c.iou_threshold:
            score *= 1 - shared if c.nms_kernel.name == "LINEAR" else 0
        return score if score >= c.nms_score_threshold else None

    return lower


def falling(found: list[Any]) -> list[Any]:
    """Entries (..., score), the greatest first."""
    return sorted(found, key=lambda entry: -entry[-1])


@oracle("BOX_WITH_NMS_LIMIT")
def limited(c: SimpleNamespace) -> tuple[Array, ...]:
    boxes, rows = c.roi.reshape(*c.scores.shape, 4), []
    for batch in dict.fromkeys(c.batch_index.tolist()):
        found = []
        for kind in range(1, c.scores.shape[1]):
            here = np.flatnonzero((c.batch_index == batch) & (c.scores[:, kind] > c.score_threshold))
            able = {int(n): float(c.scores[n, kind]) for n in here}
            found += [(kind, n, s) for n, s in suppressed(boxes[:, kind], able, c.max_num_detections, soft(c))]
        found = falling(found)[: c.max_num_detections if c.max_num_detections >= 0 else None]
        rows += [(s, boxes[n, kind], kind, batch) for kind, n, s in sorted(found, key=lambda f: (f[0], -f[2]))]
    scores, places, kinds, batches = zip(*rows, strict=True) if rows else ((), (), (), ())
    return np.array(scores), np.array(places).reshape(-1, 4), np.array(kinds, np.int32), np.array(batches, np.int32)


@oracle("GENERATE_PROPOSALS")
def proposals(c: SimpleNamespace) -> tuple[Array, ...]:
    scores, deltas = nhwc(c, c.scores), nhwc(c, c.bbox_deltas)
    rows = []
    for batch, image in enumerate(c.image_info):
        boxes, able = [], []
        for y, x, anchor in np.ndindex(*scores.shape[1:]):
            corner = np.array([x * c.width_stride, y * c.height_stride] * 2)
            delta = deltas[batch, y, x, 4 * anchor : 4 * anchor + 4]
            able.append((len(boxes), scores[batch, y, x, anchor]))
            boxes.append(within(moved(c.anchors[anchor] + corner, delta), image))
        if c.pre_nms_limit > 0:
            able = falling(able)[: c.pre_nms_limit]
        large = {n: score for n, score in able if fits(boxes[n], image, c.min_size)}
        most = c.post_nms_limit if c.post_nms_limit > 0 else -1
        rows += [(s, boxes[n], batch) for n, s in suppressed(boxes, large, most, hard(c.iou_threshold))]
    scores, places, batches = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(scores), np.array(places).reshape(-1, 4), np.array(batches, np.int32)


def fits(box: Box, image: Array, least: float) -> bool:
    """Whether a box is larger than the least size, and its centre within the picture."""
    x1, y1, x2, y2 = box
    return x2 - x1 > least and y2 - y1 > least and (x1 + x2) / 2 < image[1] and (y1 + y2) / 2 < image[0]


@oracle("DETECTION_POSTPROCESSING")
def detections(c: SimpleNamespace) -> tuple[Array, ...]:
    """Boxes are [y1, x1, y2, x2]; rows that are not needed are 0."""
    rows = c.max_num_detections * (1 if c.use_regular_nms else c.max_classes_per_detection)
    batches = len(c.scores)
    scores, places = np.zeros((batches, rows)), np.zeros((batches, rows, 4))
    kinds, counts = np.zeros((batches, rows), np.int32), np.zeros(batches, np.int32)
    by = np.array([c.scale_y, c.scale_x, c.scale_h, c.scale_w])
    for batch in range(batches):
        boxes = []
        for anchor, delta in zip(c.anchors, c.bbox_deltas[batch, :, :4], strict=True):
            start = [*(anchor[:2] - anchor[2:] / 2), *(anchor[:2] + anchor[2:] / 2)]
            boxes.append(moved(start, delta / by))
        found = (class_by_class if c.use_regular_nms else all_at_once)(c, boxes, c.scores[batch])
        counts[batch] = len(found)
        for row, (n, kind, score) in enumerate(found):
            scores[batch, row], places[batch, row] = score, boxes[n]
            kinds[batch, row] = kind if c.is_bg_in_label else kind - 1
    return scores, places, kinds, counts


def above(c: SimpleNamespace, scores: Array) -> dict[int, float]:
    """The boxes with scores above the threshold."""
    return {n: float(s) for n, s in enumerate(scores) if s > c.score_threshold}


def class_by_class(c: SimpleNamespace, boxes: list[Box], scores: Array) -> list[tuple[int, int, float]]:
    """Box, class and score of the best of all classes, each of which suppresses on its own."""
    found = []
    for kind in range(1, scores.shape[1]):
        chosen = suppressed(boxes, above(c, scores[:, kind]), c.max_detections_per_class, hard(c.iou_threshold))
        found += [(n, kind, score) for n, score in chosen]
    return falling(found)[: c.max_num_detections]


def all_at_once(c: SimpleNamespace, boxes: list[Box], scores: Array) -> list[tuple[int, int, float]]:
    """Box, class and score of the best classes of boxes that are suppressed by their best scores."""
    chosen = suppressed(boxes, above(c, scores[:, 1:].max(1)), c.max_num_detections, hard(c.iou_threshold))
    found = []
    for n, _ in chosen:
        kinds = [(n, kind, scores[n, kind]) for kind in range(1, scores.shape[1])]
        found += falling(kinds)[: c.max_classes_per_detection]
    return found


# -------------------------------------------------------------------------------------------------------------- regions


def regions(c: SimpleNamespace) -> Iterator[tuple[int, Array, Array]]:
    """Each region's number, its feature map, and its place there, [x1, y1, x2, y2]."""
    strides = np.array([c.width_stride, c.height_stride] * 2)
    for n, (box, batch) in enumerate(zip(c.roi, c.batch_index, strict=True)):
        yield n, nhwc(c, c.input)[batch], box / strides


def between(picture: Array, y: float, x: float) -> Array:
    """The value at a place, by distance from the four elements around it."""
    y, x = min(y, picture.shape[0] - 1), min(x, picture.shape[1] - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, picture.shape[0] - 1), min(left + 1, picture.shape[1] - 1)
    v, u = y - top, x - left
    upper = picture[top, left] * (1 - u) + picture[top, right] * u
    lower = picture[bottom, left] * (1 - u) + picture[bottom, right] * u
    return upper * (1 - v) + lower * v


@oracle("ROI_ALIGN")
def align(c: SimpleNamespace) -> Array:
    made = np.zeros((len(c.roi), c.out_height, c.out_width, nhwc(c, c.input).shape[-1]))
    for n, picture, (x1, y1, x2, y2) in regions(c):
        height, width = max(y2 - y1, 1), max(x2 - x1, 1)
        high, wide = height / c.out_height, width / c.out_width  # of a bin
        down, across = c.height_samples or math.ceil(high), c.width_samples or math.ceil(wide)
        for i, j in np.ndindex(c.out_height, c.out_width):
            points = [
                between(picture, y1 + (i + (k + 0.5) / down) * high, x1 + (j + (m + 0.5) / across) * wide)
                for k, m in np.ndindex(down, across)
            ]
            made[n, i, j] = np.mean(points, 0)
    return laid_out(c, made)


def bins(start: float, end: float, count: int, size: int) -> list[range]:
    """The elements of each bin of a region from its rounded start to its rounded end, both included."""
    first = math.floor(start + 0.5)
    length = max(math.floor(end + 0.5) - first + 1, 1)
    edges = [(first + k * length // count, first - (-(k + 1) * length // count)) for k in range(count)]
    return [range(min(a, size), min(b, size)) for a, b in edges]


@oracle("ROI_POOLING")
def pool(c: SimpleNamespace) -> Array:
    made = np.zeros((len(c.roi), c.out_height, c.out_width, nhwc(c, c.input).shape[-1]))
    for n, picture, (x1, y1, x2, y2) in regions(c):
        for i, rows in enumerate(bins(y1, y2, c.out_height, picture.shape[0])):
            for j, columns in enumerate(bins(x1, x2, c.out_width, picture.shape[1])):
                if rows and columns:
                    made[n, i, j] = picture[rows.start : rows.stop, columns.start : columns.stop].max((0, 1))
    return laid_out(c, made)


@oracle("HEATMAP_MAX_KEYPOINT")
def keypoints(c: SimpleNamespace) -> tuple[Array, Array]:
    maps = nhwc(c, c.heatmap)
    scores, places = np.zeros(maps[:, 0, 0].shape), np.zeros((*maps[:, 0, 0].shape, 2))
    for n, k in np.ndindex(scores.shape):
        x, y, scores[n, k] = peak(maps[n, :, :, k], 1e-3 if c.kind == F16 else 1e-5)
        x1, y1, x2, y2 = c.boxes[n]
        size = maps.shape[1]
        places[n, k] = x1 + (x + 0.5) / size * (x2 - x1), y1 + (y + 0.5) / size * (y2 - y1)
    return scores, places


def peak(picture: Array, tiny: float) -> tuple[float, float, float]:
    """Where a parabola through the greatest element and those around it has its extreme, and its value there.

    Beyond an edge the picture is mirrored. The extreme lies up to 1.5 away, in the same direction where it would be farther.
    """
    y, x = np.unravel_index(picture.argmax(), picture.shape)
    f = np.pad(picture, 1, "reflect")[y : y + 3, x : x + 3]
    slope = np.array([f[1, 2] - f[1, 0], f[2, 1] - f[0, 1]]) / 2
    mixed = (f[2, 2] - f[2, 0] - f[0, 2] + f[0, 0]) / 4
    curvature = np.array([[f[1, 0] - 2 * f[1, 1] + f[1, 2], mixed], [mixed, f[0, 1] - 2 * f[1, 1] + f[2, 1]]])
    (xx, xy), (_, yy) = curvature
    off = np.zeros(2)
    if abs(xx * yy - xy * xy) >= tiny * (1 + xx * yy):
        off = -np.linalg.solve(curvature, slope)
        off *= min(1, 1.5 / max(abs(off)))
    return x + off[0], y + off[1], f[1, 1] + slope @ off + off @ curvature @ off / 2


# --------------------------------------------------------------------------------------------------------------- random


@oracle("RANDOM_MULTINOMIAL")
def multinomial(_: SimpleNamespace) -> None:
    """Nobody can say."""


def possible(c: SimpleNamespace, outputs: list[Array]) -> str:
    """As many classes as asked for, each of which exists and is possible."""
    (drawn,) = outputs
    if drawn.shape != (len(c.input), c.sample_count):
        return f"shape {drawn.shape}"
    for row, logits in zip(drawn, c.input, strict=True):
        wrong = [k for k in row if not 0 <= k < len(logits) or not np.isfinite(logits[k])]
        if wrong:
            return f"class {wrong[0]} is drawn of {logits}"
    return ""


PROPERTIES["RANDOM_MULTINOMIAL"] = possible
