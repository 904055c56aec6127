"""Operations on boxes: transform, suppression, proposals, detections, keypoints, regions of interest."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel, OperationFailed
from nnhal.base.levels import V1_2, V1_3
from nnhal.ops.heatmap import peak
from tests.ops.run import F16, F32, I32, Q8, Q8S, Q16A, Q16S, Type, bound, result, run, value

TRANSFORM, NMS, PROPOSALS = "AXIS_ALIGNED_BBOX_TRANSFORM", "BOX_WITH_NMS_LIMIT", "GENERATE_PROPOSALS"
DETECTION, KEYPOINT = "DETECTION_POSTPROCESSING", "HEATMAP_MAX_KEYPOINT"
HARD, LINEAR, GAUSSIAN = range(3)
EMPTY = np.zeros((0, 4), np.float32)


def ints(*numbers):
    return value(I32, np.array(numbers, np.int32))


def close(actual, expected, tolerance=1e-5):
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, tolerance, tolerance)


# ------------------------------------------------------------------------------------------------------------ transform


def test_box_is_moved_and_resized_for_each_class_and_clipped_to_its_picture():
    roi, image = [[2.0, 2.0, 6.0, 10.0]], [[99.0, 99.0], [12.0, 8.0]]
    deltas = [[0.0, 0.0, math.log(0.5), 0.0, 0.5, -0.25, 0.0, math.log(2.0)]]
    made = run(TRANSFORM, [roi, deltas, ints(1), image])[0]
    close(made, [[3, 2, 5, 10, 4, 0, 8, 12]])  # of the second: centre (6, 4), size (4, 16)


def test_quantised_boxes_count_eighths():
    roi = value(Q16A, [[8, 16, 40, 48]], 0.125)
    deltas, image = value(Q8S, [[32, -32, 0, 0]], 1 / 64), value(Q16A, [[800, 800]], 0.125)
    made = run(TRANSFORM, [roi, deltas, ints(0), image], result(Q16A, None, 0.125))[0]
    assert made.tolist() == [[24, 0, 56, 32]]
    a = bound(TRANSFORM, [roi, deltas, ints(0), image], result(Q16A, (1, 4), 0.125))
    assert a.level == V1_3  # for the signed deltas


@pytest.mark.parametrize(("image", "edge"), [((10.0, 40.0), [40, 10]), ((40.0, 10.0), [10, 40])])
def test_a_box_beyond_its_picture_ends_at_its_edges(image, edge):
    roi, still = [[50.0, 60.0, 70.0, 80.0], [-9.0, -8.0, -3.0, -2.0]], np.zeros((2, 4), np.float32)
    made = run(TRANSFORM, [roi, still, ints(0, 0), [image]])[0]
    assert made.tolist() == [edge * 2, [0, 0, 0, 0]]


def test_no_boxes_make_no_boxes():
    deltas = np.zeros((0, 8), np.float32)
    assert run(TRANSFORM, [EMPTY, deltas, ints(), [[9.0, 9.0]]])[0].shape == (0, 8)


@pytest.mark.parametrize(
    ("roi", "deltas", "index", "message"),
    [
        ([0, 0, 1, 1], 4, 2, "batch_index holds 2, must be from 0 to 1"),
        ([0, 0, 1, 1], 4, -1, "batch_index holds -1, must be from 0 to 1"),
        ([0, 2, 1, 1], 4, 0, r"roi holds the box \[0.0, 2.0, 1.0, 1.0\], must have x1 <= x2 and y1 <= y2"),
        ([0, 0, math.nan, 1], 4, 0, "must have x1 <= x2 and y1 <= y2"),
        ([0, 0, 1, 1], 6, 0, "bbox_deltas has dimension 1 = 6, must be four times the number of classes"),
    ],
)
def test_wrong_boxes_are_rejected(roi, deltas, index, message):
    with pytest.raises(InvalidModel, match=message):
        bound(
            TRANSFORM, [np.float32([roi]), np.zeros((1, deltas), np.float32), ints(index), np.ones((2, 2), np.float32)]
        )


def test_boxes_with_another_scale_are_rejected():
    deltas, image = value(Q8, [[0] * 4], 0.1), value(Q16A, [[8, 8]], 0.125)
    with pytest.raises(InvalidModel, match=r"roi has scale 0.25 and zero point 0, must be 0.125 and 0"):
        bound(TRANSFORM, [value(Q16A, [[0] * 4], 0.25), deltas, ints(0), image], result(Q16A, None, 0.125))
    with pytest.raises(
        InvalidModel, match=r"output 0 \(output\) has scale 0.125 and zero point 1, must be 0.125 and 0"
    ):
        bound(TRANSFORM, [value(Q16A, [[0] * 4], 0.125), deltas, ints(0), image], result(Q16A, None, 0.125, 1))


def test_number_of_boxes_may_be_unknown():
    roi, index, image = result(F32, (None, 4)), result(I32, (None,)), result(F32, (None, 2))
    assert bound(TRANSFORM, [roi, result(F32, (None, 8)), index, image]).shapes == [(None, 8)]
    assert bound(TRANSFORM, [roi, result(F32, (3, None)), index, image]).shapes == [(3, None)]


# ---------------------------------------------------------------------------------------------------------- suppression

A, B, C = [0, 0, 4, 4], [0, 0, 4, 2], [8, 8, 9, 9]  # A and B overlap by half


def nms(scores, boxes, index=None, *, least=0.0, most=-1, kind=HARD, iou=0.5, sigma=1.0, drop=0.01, types=(F32, F32)):
    """Boxes of one class besides the background, or of as many as there are columns of scores."""
    scores = np.float32([[9, *np.ravel(s)] for s in scores]).reshape(len(scores), -1)
    roi = np.float32([[b] * scores.shape[1] for b in boxes]).reshape(len(scores), scores.shape[1] * 4)
    index = ints(*index) if index is not None else ints(*[0] * len(scores))
    outs = result(types[0]), result(types[1]), result(I32), result(I32)
    return run(NMS, [scores, roi, index, least, most, kind, iou, sigma, drop], *outs)


@pytest.mark.parametrize(
    ("kind", "scores"),
    [
        (HARD, [0.9, 0.5]),
        (LINEAR, [0.9, 0.5, 0.8 * (1 - 0.5)]),
        (GAUSSIAN, [0.9, 0.8 * math.exp(-0.5 * 0.5 / 2), 0.5]),
    ],
)
def test_overlap_lowers_scores_by_the_kernel(kind, scores):
    made = nms([0.5, 0.9, 0.8], [C, A, B], kind=kind, sigma=2.0)
    close(made[0], np.float32(scores))
    boxes = [A, B, C] if kind == GAUSSIAN else [A, C, B][: len(scores)]
    assert made[1].tolist() == boxes
    assert made[2].tolist() == [1] * len(scores)
    assert made[3].tolist() == [0] * len(scores)


def test_overlap_below_the_threshold_lowers_nothing():
    assert nms([0.9, 0.8], [A, B], iou=0.51)[0].tolist() == np.float32([0.9, 0.8]).tolist()
    assert nms([0.9, 0.8], [A, B], iou=0.5)[0].tolist() == np.float32([0.9]).tolist()


def test_scores_that_fall_below_the_second_threshold_drop_out():
    assert len(nms([0.9, 0.8], [A, B], kind=LINEAR, drop=0.39)[0]) == 2
    assert len(nms([0.9, 0.8], [A, B], kind=LINEAR, drop=0.41)[0]) == 1


def test_a_score_that_is_the_threshold_is_filtered():
    assert nms([0.5, 0.25], [A, C], least=0.25)[0].tolist() == [0.5]
    assert nms([0.5, 0.25], [A, C], least=0.125)[0].tolist() == [0.5, 0.25]


def test_a_score_lowered_to_the_second_threshold_stays():
    # half of B lies within A: 0.5 becomes 0.5 * (1 - 0.5)
    assert nms([1.0, 0.5], [A, B], kind=LINEAR, drop=0.25)[0].tolist() == [1, 0.25]


def test_background_is_never_chosen_and_boxes_come_by_picture_class_and_score():
    scores = [[0.3, 0.6], [0.5, 0.7], [0.2, 0.4]]
    made = nms(scores, [A, C, A], [4, 4, 1])
    close(made[0], [0.5, 0.3, 0.7, 0.6, 0.2, 0.4])
    assert made[2].tolist() == [1, 1, 2, 2, 1, 2]
    assert made[3].tolist() == [4, 4, 4, 4, 1, 1]


@pytest.mark.parametrize(("most", "scores"), [(-7, [0.5, 0.3, 0.7, 0.6]), (3, [0.5, 0.7, 0.6]), (1, [0.7]), (0, [])])
def test_limit_holds_for_all_classes_of_a_picture(most, scores):
    close(nms([[0.3, 0.6], [0.5, 0.7]], [A, C], most=most)[0], np.float32(scores))


def test_empty_boxes_overlap_nothing():
    assert len(nms([0.9, 0.8], [[2, 2, 2, 2]] * 2)[0]) == 2


def test_none_of_none_is_none():
    made = run(NMS, [np.zeros((0, 2), np.float32), np.zeros((0, 8), np.float32), ints(), 0.0, -1, HARD, 0.5, 1.0, 0.0],
               result(), result(), result(I32), result(I32))  # fmt: skip
    assert [m.shape for m in made] == [(0,), (0, 4), (0,), (0,)]
    assert [m.shape for m in nms([0.1], [A], least=0.5)] == [(0,), (0, 4), (0,), (0,)]


def test_quantised_scores_keep_their_steps_and_boxes_their_eighths():
    scores, roi = value(Q8S, [[0, -28], [0, 72]], 0.01, -128), value(Q16A, [[0, 0, 8, 8] * 2, [0, 0, 8, 4] * 2], 0.125)
    rest = [ints(0, 0), 0.3, -1, LINEAR, 0.25, 1.0, 0.3]
    outs = result(Q8S, None, 0.01, -128), result(Q16A, None, 0.125), result(I32), result(I32)
    made = run(NMS, [scores, roi, *rest], *outs)
    assert made[0].tolist() == [72, -78]  # 2.0, and half of 1.0
    assert made[1].tolist() == [[0, 0, 8, 4], [0, 0, 8, 8]]
    assert bound(NMS, [scores, roi, *rest], *outs).level == V1_3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": 3}, r"input 5 \(nms_kernel\) = 3, must be one of 0 \(HARD\), 1 \(LINEAR\), 2 \(GAUSSIAN\)"),
        ({"kind": GAUSSIAN, "sigma": 0.0}, "sigma = 0, must be greater than 0 for GAUSSIAN"),
        ({"index": [0, 1, 0]}, r"batch_index = \[0, 1, 0\] by groups, must have each batch in one group"),
        ({"index": [-1, 0, 0]}, "batch_index holds -1, must be at least 0"),
    ],
)
def test_wrong_suppression_is_rejected(more, message):
    with pytest.raises(InvalidModel, match=message):
        nms([0.9, 0.8, 0.7], [A, B, C], more.pop("index", None), **more)


def test_scores_and_boxes_must_have_the_same_classes_more_than_one():
    outs = result(), result(), result(I32), result(I32)
    rest = [ints(0), 0.0, -1, HARD, 0.5, 1.0, 0.0]
    with pytest.raises(InvalidModel, match=r"roi has dimension 1 = 4, must be 4 \* 2 classes"):
        bound(NMS, [[[0.0, 1.0]], [[0.0] * 4], *rest], *outs)
    with pytest.raises(InvalidModel, match="num_classes = 1, must be at least 2: class 0 is the background"):
        bound(NMS, [[[0.0]], [[0.0] * 4], *rest], *outs)


def test_number_of_chosen_boxes_is_known_at_run_time_only():
    values = [result(F32, (5, 3)), result(F32, (5, 12)), result(I32, (5,)), 0.0, 2, HARD, 0.5, 1.0, 0.0]
    outs = result(), result(), result(I32), result(I32)
    assert bound(NMS, values, *outs).shapes == [(None,), (None, 4), (None,), (None,)]


# ------------------------------------------------------------------------------------------------------------ proposals


def propose(scores, deltas, anchors, *, nchw=False, pre=0, post=0, iou=0.5, least=1.0, stride=(10.0, 20.0)):
    image = np.float32([[100, 100]] * len(scores))
    outs = result(), result(), result(I32)
    return run(PROPOSALS, [scores, deltas, anchors, image, *stride, pre, post, iou, least, nchw], *outs)


GRID = np.float32([0.9, 0.5, 0.8, 0.7]).reshape(1, 2, 2, 1)
STILL = np.zeros((1, 2, 2, 4), np.float32)
PLACES = {0.9: [0, 0, 4, 4], 0.5: [20, 0, 24, 4], 0.8: [0, 10, 4, 14], 0.7: [20, 10, 24, 14]}


def test_anchors_stand_at_every_place_of_the_feature_map():
    scores, boxes, batches = propose(GRID, STILL, [[0.0, 0.0, 4.0, 4.0]])
    close(scores, [0.9, 0.8, 0.7, 0.5])
    assert boxes.tolist() == [PLACES[0.9], PLACES[0.8], PLACES[0.7], PLACES[0.5]]
    assert batches.tolist() == [0] * 4


def test_proposals_of_either_layout_are_the_same():
    rng = np.random.default_rng(3)
    scores = rng.random((2, 3, 4, 2), np.float32)
    deltas = rng.normal(size=(2, 3, 4, 8)).astype(np.float32) / 4
    anchors = np.float32([[0, 0, 8, 4], [-2, 0, 3, 9]])
    made = propose(scores, deltas, anchors)
    moved = propose(np.moveaxis(scores, -1, 1), np.moveaxis(deltas, -1, 1), anchors, nchw=True)
    assert 2 < len(made[0]) < 48
    assert set(made[2].tolist()) == {0, 1}
    for one, other in zip(made, moved, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("more", "scores"),
    [
        ({"pre": 2}, [0.9, 0.8]),
        ({"post": 3}, [0.9, 0.8, 0.7]),
        ({"post": -1, "pre": -1}, [0.9, 0.8, 0.7, 0.5]),
        ({"least": 3.99}, [0.9, 0.8, 0.7, 0.5]),
        ({"least": 4.0}, []),  # width and height must be greater
        ({"least": -1.0}, [0.9, 0.8, 0.7, 0.5]),
    ],
)
def test_proposals_are_limited_in_number_and_size(more, scores):
    made = propose(GRID, STILL, [[0.0, 0.0, 4.0, 4.0]], **more)
    close(made[0], np.float32(scores))
    assert made[1].shape == (len(scores), 4)


def test_small_boxes_count_for_the_limit_before_suppression():
    deltas = STILL.copy()
    deltas[0, 0, 0, 2:] = -9  # the best box is tiny
    assert propose(GRID, deltas, [[0.0, 0.0, 4.0, 4.0]], pre=2)[0].tolist() == np.float32([0.8]).tolist()


def test_a_picture_that_is_not_square_has_its_height_first():
    """Boxes 30 and 50 wide at x = 40, in a picture 20 high and 60 wide: the second is cut at its right edge."""
    outs = result(), result(), result(I32)
    anchors = np.float32([[40, 0, 70, 5], [40, 10, 55, 18], [5, 15, 9, 40]])
    inputs = [np.float32([[[[0.9, 0.8, 0.7]]]]), np.zeros((1, 1, 1, 12), np.float32), anchors, [[20.0, 60.0]]]
    made = run(PROPOSALS, [*inputs, 1.0, 1.0, 0, 0, 0.5, 0.0, False], *outs)
    assert made[1].tolist() == [[40, 0, 60, 5], [40, 10, 55, 18], [5, 15, 9, 20]]


def test_negative_scores_are_scores_too():
    assert len(propose(GRID - 5, STILL, [[0.0, 0.0, 4.0, 4.0]])[0]) == 4


def test_quantised_proposals_have_signed_anchors():
    scores, deltas = value(Q8S, [[[[10]]]], 0.1, -10), value(Q8S, [[[[0] * 4]]], 0.1)
    anchors, image = value(Q16S, [[-16, 0, 16, 16]], 0.125), value(Q16A, [[80, 80]], 0.125)
    rest = [1.0, 1.0, 0, 0, 0.5, 0.0, False]
    outs = result(Q8S, None, 0.1, -10), result(Q16A, None, 0.125), result(I32)
    made = run(PROPOSALS, [scores, deltas, anchors, image, *rest], *outs)
    assert [m.tolist() for m in made] == [[10], [[0, 0, 16, 16]], [0]]
    assert bound(PROPOSALS, [scores, deltas, anchors, image, *rest], *outs).level == V1_3
    with pytest.raises(InvalidModel, match=r"anchors has scale 1 and zero point 0, must be 0.125 and 0"):
        bound(PROPOSALS, [scores, deltas, value(Q16S, [[0, 0, 1, 1]], 1), image, *rest], *outs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"stride": (0.0, 1.0)}, "height_stride = 0, must be greater than 0"),
        ({"anchors": [[1.0, 0.0, 0.0, 4.0]]}, r"anchors holds the box \[1.0, 0.0, 0.0, 4.0\], must have x1 <= x2"),
        ({"deltas": np.zeros((1, 2, 2, 8), np.float32)}, r"bbox_deltas has depth 8, must be 4 \* 1 anchors"),
    ],
)
def test_wrong_proposals_are_rejected(more, message):
    deltas, anchors = more.pop("deltas", STILL), more.pop("anchors", [[0.0, 0.0, 4.0, 4.0]])
    with pytest.raises(InvalidModel, match=message):
        propose(GRID, deltas, anchors, **more)


# ----------------------------------------------------------------------------------------------------------- detections

ANCHORS = np.float32([[1, 1, 2, 2], [1, 1, 2, 2], [9, 9, 2, 2]])  # two in one place, one elsewhere
SCORES = np.float32([[[0, 0.9, 0.3], [0, 0.8, 0.7], [0, 0.2, 0.6]]])
NO_DELTAS = np.zeros((1, 3, 4), np.float32)


def detect(*, regular, most=4, classes=2, each=3, least=0.25, iou=0.5, label=False, deltas=NO_DELTAS, scores=SCORES):
    outs = result(), result(), result(I32), result(I32)
    scales = [10.0, 10.0, 5.0, 5.0]
    return run(DETECTION, [scores, deltas, ANCHORS, *scales, regular, most, classes, each, least, iou, label], *outs)


def test_regular_suppression_is_for_each_class():
    scores, boxes, classes, count = detect(regular=True)
    close(scores, [[0.9, 0.7, 0.6, 0]])
    assert boxes.tolist() == [[[0, 0, 2, 2], [0, 0, 2, 2], [8, 8, 10, 10], [0] * 4]]
    assert classes.tolist() == [[0, 1, 1, 0]]
    assert count.tolist() == [3]


def test_fast_suppression_gives_each_box_its_best_classes():
    scores, boxes, classes, count = detect(regular=False, label=True, most=3)
    close(scores, [[0.9, 0.3, 0.6, 0.2, 0, 0]])
    assert boxes[0, :4].tolist() == [[0, 0, 2, 2]] * 2 + [[8, 8, 10, 10]] * 2
    assert classes.tolist() == [[1, 2, 2, 1, 0, 0]]
    assert count.tolist() == [4]
    assert detect(regular=False, classes=9, most=3)[0].shape == (1, 27)
    assert detect(regular=False, classes=9)[3].tolist() == [4]  # there are no more than two classes


def test_detections_are_limited_by_class_and_in_all():
    assert detect(regular=True, each=1)[3].tolist() == [2]
    assert detect(regular=True, most=1)[0].tolist() == np.float32([[0.9]]).tolist()


@pytest.mark.parametrize(
    ("regular", "count"), [(True, [1, 2]), (False, [2, 4])]
)  # two classes for each of the fast one
def test_a_detection_needs_a_score_above_the_threshold_and_less_overlap_than_its_own(regular, count):
    scores = np.float32([[[0, 0.75, 0], [0, 0, 0], [0, 0.5, 0]]])
    found = [detect(regular=regular, scores=scores, least=least)[3].tolist() for least in (0.5, 0.25)]
    assert found == [[n] for n in count]
    both = np.float32([[[0, 0.75, 0], [0, 0.5, 0], [0, 0, 0]]])  # two boxes in one place: their overlap is 1
    found = [detect(regular=regular, scores=both, iou=iou)[3].tolist() for iou in (1.0, 1.01)]
    assert found == [[n] for n in count]


def test_anchors_move_by_scaled_deltas():
    deltas = np.zeros((1, 3, 7), np.float32)
    deltas[0, 0] = [
        5,
        -10,
        5 * math.log(2),
        5 * math.log(0.5),
        9,
        9,
        9,
    ]  # half a height down, a width left; twice as high
    boxes = detect(regular=True, deltas=deltas, iou=1.0)[1]
    close(boxes[0, 0], [0, -1.5, 4, -0.5])


def test_no_anchors_make_no_detections():
    outs = result(), result(), result(I32), result(I32)
    empty = np.zeros((2, 0, 3), np.float32), np.zeros((2, 0, 4), np.float32), EMPTY
    for regular in (True, False):
        made = run(DETECTION, [*empty, 1.0, 1.0, 1.0, 1.0, regular, 2, 1, 1, 0.0, 0.5, False], *outs)
        assert [m.tolist() for m in made] == [[[0, 0]] * 2, [[[0] * 4] * 2] * 2, [[0, 0]] * 2, [0, 0]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"regular": True, "most": 0}, r"input 8 \(max_num_detections\) = 0, must be at least 1"),
        ({"regular": True, "each": 0}, "max_detections_per_class = 0, must be at least 1"),
        ({"regular": False, "classes": 0}, "max_classes_per_detection = 0, must be at least 1"),
        ({"regular": False, "least": -0.1}, r"\(score_threshold\) = -0.1.*, must be at least 0"),
        ({"regular": False, "iou": -1.0}, r"\(iou_threshold\) = -1.0, must be at least 0"),
        ({"regular": True, "deltas": NO_DELTAS[..., :3]}, "length_box_encoding = 3, must be at least 4"),
        ({"regular": True, "scores": SCORES[..., :1]}, "num_classes = 1, must be at least 2"),
    ],
)
def test_wrong_detections_are_rejected(more, message):
    with pytest.raises(InvalidModel, match=message):
        detect(**more)


def test_limits_of_the_other_suppression_do_not_count():
    assert detect(regular=True, classes=0)[0].shape == (1, 4)
    assert detect(regular=False, each=0)[0].shape == (1, 8)


# ------------------------------------------------------------------------------------------------------------ keypoints


def paraboloid(x0, y0, size=5, twist=0.5):
    """Greatest at (x0, y0), where it is 3."""
    y, x = np.mgrid[:size, :size]
    x, y = x - x0, y - y0
    return np.float32(3 - x * x - 2 * y * y - twist * x * y)[None, :, :, None]


@pytest.mark.parametrize(("x", "y"), [(2, 2), (2.25, 1.75), (1.5, 3.25)])
def test_peak_of_a_paraboloid_is_found_between_its_elements(x, y):
    score, place = run(KEYPOINT, [paraboloid(x, y), [[10.0, 20.0, 20.0, 70.0]], False], result(), result())
    close(score, [[3]])
    close(place, [[[10 + (x + 0.5) / 5 * 10, 20 + (y + 0.5) / 5 * 50]]])


@pytest.mark.parametrize(("curvature", "type", "found"), [(0.6, F16, True), (0.02, F16, False), (0.02, F32, True)])
def test_a_surface_has_a_peak_where_its_curvature_counts_in_its_type(curvature, type, found):
    """1 - curvature * ((x - 0.25)^2 + (y + 0.125)^2) / 2, of which the curvature along both axes is known."""
    y, x = np.mgrid[-1:2, -1:2]
    around = 1 - curvature * ((x - 0.25) ** 2 + (y + 0.125) ** 2) / 2
    place, value = peak(SimpleNamespace(T=type), around[None])
    assert np.allclose(place, [[0.25, -0.125]] if found else 0) and np.allclose(value, 1 if found else around[1, 1])


def test_a_flat_heatmap_has_its_peak_at_its_first_element():
    flat = np.full((1, 4, 4, 1), 2, np.float32)
    score, place = run(KEYPOINT, [flat, [[0.0, 0.0, 4.0, 8.0]], False], result(), result())
    assert (score.tolist(), place.tolist()) == ([[2]], [[[0.5, 1]]])


def test_elements_beyond_the_edge_are_mirrored():
    heatmap = np.float32([[5, 3], [4, 2]])[None, :, :, None]  # symmetric about its corner: no slope
    score, place = run(KEYPOINT, [heatmap, [[0.0, 0.0, 2.0, 2.0]], False], result(), result())
    assert (score.tolist(), place.tolist()) == ([[5]], [[[0.5, 0.5]]])


def test_peak_is_at_most_one_and_a_half_elements_away():
    heatmap = np.zeros((1, 5, 5, 1), np.float32)
    heatmap[0, 1:4, 1:4, 0] = [[0.99, 0.95, 0.89], [0.95, 1, 0.99], [0.89, 0.99, 0.99]]
    # slope 0.02, curvature -0.06 and twist 0.05 along both axes: the peak is 0.02 / (0.06 - 0.05) = 2 elements away
    score, place = run(KEYPOINT, [heatmap, [[0.0, 0.0, 5.0, 5.0]], False], result(), result())
    close(place, [[[2.5 + 1.5, 2.5 + 1.5]]])
    close(score, [[1 + 2 * 0.02 * 1.5 - 0.01 * 1.5**2]])


def test_heatmaps_of_either_layout_are_the_same():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 6, 6, 4)).astype(np.float32)
    boxes = np.float32([[0, 0, 9, 9], [1, 2, 3, 4], [5, 5, 5, 5]])
    made = run(KEYPOINT, [x, boxes, False], result(), result())
    assert [m.shape for m in made] == [(3, 4), (3, 4, 2)]
    for one, other in zip(made, run(KEYPOINT, [np.moveaxis(x, -1, 1), boxes, True], result(), result()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_quantised_heatmap_has_a_score_of_another_scale_and_places_in_eighths():
    x = value(Q8, np.rint(paraboloid(2.25, 1.75) * 4) + 200, 0.25, 200)
    boxes = value(Q16A, [[0, 0, 400, 400]], 0.125)
    outs = result(Q8, None, 0.5, 10), result(Q16A, None, 0.125)
    score, place = run(KEYPOINT, [x, boxes, False], *outs)
    assert abs(int(score[0, 0]) - 16) <= 1
    assert np.abs(place[0, 0].astype(int) - [220, 180]).max() <= 4  # the picture is rounded to quarters
    with pytest.raises(InvalidModel, match=r"boxes has scale 0.125 and zero point 8, must be 0.125 and 0"):
        bound(KEYPOINT, [x, value(Q16A, [[8] * 4], 0.125, 8), False], *outs)


def test_wrong_heatmaps_are_rejected():
    with pytest.raises(InvalidModel, match="heatmap_size = 1, must be at least 2"):
        bound(KEYPOINT, [np.zeros((1, 1, 1, 1), np.float32), [[0.0] * 4], False], result(), result())
    with pytest.raises(InvalidModel, match="has dimension 2 = 3, must be heatmap_size = 2"):
        bound(KEYPOINT, [np.zeros((1, 2, 3, 1), np.float32), [[0.0] * 4], False], result(), result())
    with pytest.raises(InvalidModel, match="must have x1 <= x2 and y1 <= y2"):
        bound(KEYPOINT, [np.zeros((1, 2, 2, 1), np.float32), [[1.0, 0.0, 0.0, 0.0]], False], result(), result())


# --------------------------------------------------------------------------------------------------- regions of interest


def mean_of_points(x, box, count, points, stride):
    """ROI_ALIGN of one region, point by point."""
    x1, y1, x2, y2 = (edge / s for edge, s in zip(box, (*stride[::-1], *stride[::-1]), strict=True))
    height, width = max(y2 - y1, 1), max(x2 - x1, 1)
    rows = points[0] or math.ceil(height / count[0])
    columns = points[1] or math.ceil(width / count[1])
    made = np.zeros((*count, x.shape[2]))
    for i, j, k, m in np.ndindex(*count, rows, columns):
        v = y1 + height / count[0] * (i + (k + 0.5) / rows)
        u = x1 + width / count[1] * (j + (m + 0.5) / columns)
        v, u = min(v, x.shape[0] - 1), min(u, x.shape[1] - 1)
        top, left = math.floor(v), math.floor(u)
        bottom, right = min(top + 1, x.shape[0] - 1), min(left + 1, x.shape[1] - 1)
        p, q = v - top, u - left
        upper = (1 - q) * x[top, left] + q * x[top, right]
        lower = (1 - q) * x[bottom, left] + q * x[bottom, right]
        made[i, j] += ((1 - p) * upper + p * lower) / (rows * columns)
    return made


def greatest_of_bins(x, box, count, stride):
    """ROI_POOLING of one region, bin by bin."""
    x1, y1, x2, y2 = (math.floor(e / s + 0.5) for e, s in zip(box, (*stride[::-1], *stride[::-1]), strict=True))
    height, width = y2 - y1 + 1, x2 - x1 + 1
    made = np.zeros((*count, x.shape[2]), x.dtype)
    for i, j in np.ndindex(*count):
        rows = slice(y1 + i * height // count[0], y1 - (-(i + 1) * height // count[0]))
        columns = slice(x1 + j * width // count[1], x1 - (-(j + 1) * width // count[1]))
        if (piece := x[rows, columns]).size:
            made[i, j] = piece.max((0, 1))
    return made


def regions(rng, many, height, width, stride):
    corners = rng.uniform(0, 1, (many, 2, 2)) * [width * stride[1], height * stride[0]]
    corners[rng.random(many) < 0.3] = np.rint(corners[rng.random(many) < 0.3][:1]) if many else 0
    return np.float32(np.sort(corners, 1).reshape(many, 4))


@pytest.mark.parametrize("points", [(0, 0), (1, 1), (3, 2), (0, 4)])
@pytest.mark.parametrize("stride", [(1.0, 1.0), (2.0, 4.0), (0.5, 3.0)])
def test_aligned_regions_are_means_of_interpolated_points(points, stride):
    rng = np.random.default_rng(11)
    x = rng.normal(size=(2, 7, 9, 3)).astype(np.float32)
    roi, index = regions(rng, 8, 7, 9, stride), rng.integers(0, 2, 8)
    made = run("ROI_ALIGN", [x, roi, ints(*index), 3, 2, *stride, *points, False])[0]
    close(made, [mean_of_points(x[b], box, (3, 2), points, stride) for b, box in zip(index, roi.tolist(), strict=True)])
    moved = run("ROI_ALIGN", [np.moveaxis(x, -1, 1), roi, ints(*index), 3, 2, *stride, *points, True])[0]
    np.testing.assert_array_equal(moved, np.moveaxis(made, -1, 1))


@pytest.mark.parametrize("stride", [(1.0, 1.0), (2.0, 4.0), (0.5, 3.0)])
def test_pooled_regions_are_greatest_elements_of_bins(stride):
    rng = np.random.default_rng(12)
    x = rng.normal(size=(2, 7, 9, 3)).astype(np.float32) - 3  # that 0 is not the greatest by chance
    roi, index = regions(rng, 12, 7, 9, stride), rng.integers(0, 2, 12)
    made = run("ROI_POOLING", [x, roi, ints(*index), 3, 4, *stride, False])[0]
    wanted = [greatest_of_bins(x[b], box, (3, 4), stride) for b, box in zip(index, roi.tolist(), strict=True)]
    np.testing.assert_array_equal(made, wanted)
    moved = run("ROI_POOLING", [np.moveaxis(x, -1, 1), roi, ints(*index), 3, 4, *stride, True])[0]
    np.testing.assert_array_equal(moved, np.moveaxis(made, -1, 1))


def test_bins_beyond_the_far_edge_are_zero():
    x = np.full((1, 4, 4, 1), -2, np.float32)
    assert run("ROI_POOLING", [x, [[4.0, 4.0, 4.0, 4.0]], ints(0), 1, 1, 1.0, 1.0, False])[0].tolist() == [[[[0]]]]
    q = value(Q8, np.full((1, 4, 4, 1), 3), 0.5, 77)
    made = run(
        "ROI_POOLING", [q, value(Q16A, [[32] * 4], 0.125), ints(0), 1, 1, 1.0, 1.0, False], result(Q8, None, 0.5, 77)
    )
    assert made[0].tolist() == [[[[77]]]]


def test_aligned_regions_may_have_another_scale_pooled_ones_not():
    x, roi = value(Q8S, np.full((1, 2, 2, 1), 40), 0.5, -8), value(Q16A, [[0, 0, 8, 8]], 0.125)
    out = result(Q8S, None, 0.25, 3)
    made = run("ROI_ALIGN", [x, roi, ints(0), 1, 1, 1.0, 1.0, 2, 2, False], out)[0]
    assert made.tolist() == [[[[99]]]]  # 24 in quarters
    with pytest.raises(InvalidModel, match=r"has scale 0.25 and zero point 3, must be those of the input, 0.5 and -8"):
        bound("ROI_POOLING", [x, roi, ints(0), 1, 1, 1.0, 1.0, False], out)


@pytest.mark.parametrize(("name", "more"), [("ROI_ALIGN", [0, 0]), ("ROI_POOLING", [])])
def test_no_regions_give_nothing(name, more):
    x = np.zeros((1, 4, 4, 3), np.float32)
    assert run(name, [x, EMPTY, ints(), 2, 5, 1.0, 1.0, *more, False])[0].shape == (0, 2, 5, 3)
    moved = np.zeros((1, 3, 4, 4), np.float32)
    assert run(name, [moved, EMPTY, ints(), 2, 5, 1.0, 1.0, *more, True])[0].shape == (0, 3, 2, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: [[0.0, 0.0, 8.0, 9.0]]}, "roi holds the box .*, must lie within the image, 8 wide and 8 high"),
        ({1: [[-1.0, 0.0, 8.0, 8.0]]}, "must lie within the image"),
        ({1: [[3.0, 0.0, 2.0, 8.0]]}, "must have x1 <= x2 and y1 <= y2"),
        ({2: ints(1)}, "batch_index holds 1, must be from 0 to 0"),
        ({2: ints(0, 0)}, "has dimension 0 = 2, must be num_rois = 1"),
        ({3: 0}, r"input 3 \(out_height\) = 0, must be at least 1"),
        ({5: 0.0}, "height_stride = 0, must be greater than 0"),
        ({7: -1}, r"input 7 \(height_samples\) = -1, must be at least 0"),
    ],
)
def test_wrong_regions_are_rejected(change, message):
    inputs = [np.zeros((1, 4, 4, 1), np.float32), [[0.0, 0.0, 8.0, 8.0]], ints(0), 2, 2, 2.0, 2.0, 0, 0, False]
    for index, new in change.items():
        inputs[index] = new
    with pytest.raises(InvalidModel, match=message):
        run("ROI_ALIGN", inputs)


def test_more_sampling_points_than_memory_are_an_error():
    inputs = [np.zeros((1, 4, 4, 1), np.float32), [[0.0, 0.0, 4.0, 4.0]], ints(0), 2, 2, 1.0, 1.0, 1, 2**31 - 1, False]
    with pytest.raises(OperationFailed, match=r"2147483647 sampling points take .* bytes, must be at most 4294967295"):
        run("ROI_ALIGN", inputs)


def test_far_edge_may_be_rounded_to_float16():
    x, one = np.zeros((1, 100, 100, 1), np.float16), value(Type.FLOAT16, 1)
    stride = value(Type.FLOAT16, 6.7)  # 6.69921875, 100 of it are less than 670
    roi = np.float16([[0, 0, 670, 100]])
    assert run("ROI_POOLING", [x, roi, ints(0), 1, 1, one, stride, False], result(F16))[0].shape == (1, 1, 1, 1)


def test_shape_of_regions_is_known_before_their_values():
    x, roi, index = result(F32, (1, 4, 4, 3)), result(F32, (None, 4)), result(I32, (None,))
    a = bound("ROI_ALIGN", [x, roi, index, 2, 5, 1.0, 1.0, 0, 0, False])
    assert (a.shapes, a.level) == ([(None, 2, 5, 3)], V1_2)
    assert bound("ROI_POOLING", [x, roi, result(I32, (7,)), 2, 5, 1.0, 1.0, True]).shapes == [(7, 4, 2, 5)]


@pytest.mark.parametrize("sizes", [(7, 9), (9, 7)])
def test_points_take_the_rows_that_they_make_and_16_bytes_each(sizes, monkeypatch):
    """Of a picture 5 x 3 with 2 channels, first along its height: 7 * 2 points make rows of 3 * 2 floats."""
    inputs = [np.zeros((1, 5, 3, 2), np.float32), [[0.0, 0.0, 3.0, 5.0]], ints(0), *sizes, 1.0, 1.0, 2, 3, False]
    rows = sizes[0] * 2 * (3 * 2 * 4 + 16)
    columns = sizes[1] * 3 * (sizes[0] * 2 * 4 + 16)
    most = max(rows, columns)
    monkeypatch.setattr("nnhal.ops.roi.MAX_OPERAND_BYTES", most)
    assert run("ROI_ALIGN", inputs)[0].shape == (1, *sizes, 2)
    monkeypatch.setattr("nnhal.ops.roi.MAX_OPERAND_BYTES", most - 1)
    with pytest.raises(OperationFailed, match=f"sampling points take {most} bytes, must be at most {most - 1}"):
        run("ROI_ALIGN", inputs)


@pytest.mark.parametrize(("top", "left"), [(0, 0), (0, 3), (3, 0), (3, 3), (1, 2)])
def test_what_lies_beyond_a_heatmaps_edge_is_its_mirror_image(top, left):
    """The same as in the middle of a larger map that has the mirror image around."""
    small = np.random.default_rng(top * 4 + left).normal(size=(4, 4))
    small[top, left] = 9
    large = np.pad(small, 2, "reflect")
    large[(large == 9) & (np.indices(large.shape) != np.array([[[top + 2]], [[left + 2]]])).any(0)] = 8.5  # no peaks
    box = [[0.0, 0.0, 1.0, 1.0]]
    score, place = run(KEYPOINT, [np.float32(small)[None, ..., None], box, False], result(), result())
    wanted = run(KEYPOINT, [np.float32(large)[None, ..., None], box, False], result(), result())
    np.testing.assert_allclose(score, wanted[0], rtol=1e-6)
    np.testing.assert_allclose(place * 4, wanted[1] * 8 - 2, rtol=1e-5)
