"""HEATMAP_MAX_KEYPOINT: the position of the maximum of each heatmap, between its elements."""

import numpy as np

from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.boxes import BOX_TYPES, BOXES, boxes_in, eighths, ordered
from nnhal.ops.common import decode, nhwc, real
from nnhal.ops.schema import BOOL, F16, F32, Q8, Q8S, Bound, Form, Op, T, arg, example, out, register

REACH = 1.5  # the greatest distance of the maximum from the greatest element


def large(a: Bound) -> None:
    """The heatmap has at least 2 rows and columns."""
    a.require(a.heatmap_size >= 2, f"heatmap_size = {a.heatmap_size}, must be at least 2")


def peak(a: Bound, around: Array) -> tuple[Array, Array]:
    """Return the peak of a parabola through 3 x 3 elements [..., y, x] and its value there.

    The peak is [x, y] from their middle. Taylor's expansion to the second order is m + g·d + d·H·d / 2 with the slope g
    and the curvature H; d solves H d = -g. If H is singular, d is 0.
    """
    (nw, n, ne), (w, m, e), (sw, s, se) = np.moveaxis(around, (-2, -1), (0, 1))
    gx, gy = (e - w) / 2, (s - n) / 2
    xx, yy, xy = w - 2 * m + e, n - 2 * m + s, (se - sw - ne + nw) / 4
    determinant = xx * yy - xy * xy
    tiny = np.float32(1e-3 if a.T == F16 else 1e-5)
    solvable = np.abs(determinant) >= tiny + tiny * xx * yy
    d = np.where(solvable, np.stack([xy * gy - yy * gx, xy * gx - xx * gy]) / np.where(solvable, determinant, 1), 0)
    d = d * np.minimum(1, REACH / np.maximum(np.abs(d).max(0), REACH))
    dx, dy = d
    value = m + gx * dx + gy * dy + (xx * dx * dx + 2 * xy * dx * dy + yy * dy * dy) / 2
    return np.moveaxis(d, 0, -1), value


def mirrored(places: Array, size: int) -> Array:
    """Return positions up to one beyond either edge; elements beyond an edge are mirror images."""
    last = size - 1
    return last - np.abs(last - np.abs(places))


def keypoints(a: Bound, heatmap: Array, boxes: Array) -> tuple[Array, Array]:
    maps = np.moveaxis(heatmap, -1, 1).astype(np.float64)  # their products need it
    size = a.heatmap_size
    y, x = np.divmod(maps.reshape(*maps.shape[:2], size * size).argmax(-1), size)
    beside = np.arange(-1, 2)
    box, keypoint, down, right = np.ix_(np.arange(len(maps)), np.arange(maps.shape[1]), beside, beside)
    rows, columns = (mirrored(at[..., None, None] + step, size) for at, step in ((y, down), (x, right)))
    offset, score = peak(a, maps[box, keypoint, rows, columns])
    share = (np.stack([x, y], -1) + offset + np.float32(0.5)) / size
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    return score, low + share * (high - low)


def open_ties(a: Bound, heatmap: Array, _: Array) -> tuple[Array, Array]:
    """Open: Maps whose greatest element occurs twice, or whose products of elements exceed float32."""
    x = decode(a.heatmap, heatmap).astype(np.float64)
    twice = (x == x.max((1, 2), keepdims=True)).sum((1, 2)) > 1
    found = twice | ~(np.square(x).max((1, 2)) <= np.finfo(np.float32).max / 64)
    return found, found[..., None]


register(
    Op(
        "HEATMAP_MAX_KEYPOINT",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (
            Form(
                arg("heatmap", T, "num_boxes heatmap_size heatmap_size num_keypoints", layout=True),
                arg(
                    "boxes",
                    BOX_TYPES,
                    "num_boxes 4",
                    drawn=boxes_in("boxes", lambda d: (60, 60)),
                    doc="the boxes of the heatmaps in the original image",
                ),
                arg("nchw", BOOL),
            ),
        ),
        (
            out("scores", T, "num_boxes num_keypoints"),
            out("keypoints", BOX_TYPES, "num_boxes num_keypoints 2", quant=BOXES, doc="each [x, y] in the image"),
        ),
        nhwc(real(keypoints)),
        (large, eighths("boxes"), ordered("boxes")),
        leaves_open=nhwc(open_ties),
        sized={"heatmap_size": lambda d: d.whole(2, 6)},
        jumps=True,
        doc="The position of the maximum of each heatmap, in the original image, and its score. If the greatest element "
        "occurs twice, or squares of elements exceed float32, both results are up to the driver.",
        example=example(([[1]], [[[1, 3]]]), heatmap=[[[[0], [0]], [[1], [0]]]], boxes=[[0, 0, 4, 4]], nchw=False),
    ),
)
