"""What records say of generated calls: which values their ranges give, that they reach the edges, and fit each other."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import LshProjection, MirrorPad, Padding
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Value, dtype_of
from nnhal.conformance.draw import Cell, Drawn
from nnhal.ops import OPS
from nnhal.ops.boxes import counted, distinct, real_of
from nnhal.ops.ranges import divisors, sometimes
from nnhal.ops.recurrent import scaled_to_float32
from tests.ops.run import F16, F32, I32, Q8, Q8PC, Q8S, Q16A, Q16S

TIMES = 300
EIGHTH = 0.125


def calls(
    name: str, times: int = TIMES, *, form: int = 0, kind: int = F32, values: str = "ordinary"
) -> Iterator[Drawn]:
    """Calls in the making, of which only what is asked for is drawn."""
    cell, rng = Cell(OPS[name], form, kind, values), np.random.default_rng([len(name), form, kind])
    for _ in range(times):
        yield Drawn(cell, rng)


def numbers(found: Any) -> list[Any]:
    return found.array.ravel().tolist() if isinstance(found, Value) else [found]


def drawn(name: str, argument: str, **how: Any) -> list[Any]:
    """All numbers of an argument over many calls."""
    return [n for d in calls(name, **how) for n in numbers(d[argument])]


def dims(d: Drawn, name: str = "input") -> tuple[int, ...]:
    return d[name].known  # type: ignore[no-any-return]


def share(found: list[Any]) -> float:
    return sum(map(bool, found)) / len(found)


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("name", "arguments", "choices"),
    [
        ("SPACE_TO_DEPTH", "block", {1, 2, 3}),
        ("DEPTH_TO_SPACE", "block", {1, 2, 3}),
        ("SPACE_TO_BATCH_ND", "blocks", {1, 2, 3}),
        ("BATCH_TO_SPACE_ND", "blocks", {1, 2, 3}),
        ("CONV_2D", "dilation_w dilation_h", {1, 2, 3}),
        ("DEPTHWISE_CONV_2D", "dilation_w dilation_h", {1, 2, 3}),
        ("TRANSPOSE_CONV_2D", "pad_left pad_top", {0, 1, 2}),
        ("TRANSPOSE_CONV_2D", "pad_right pad_bottom", {-2, -1, 0, 1, 2}),
        ("RESIZE_BILINEAR", "out_w out_h", set(range(1, 10))),
        ("RESIZE_NEAREST_NEIGHBOR", "out_w out_h", set(range(1, 10))),
        ("TILE", "multiples", {1, 2, 3}),
        ("STRIDED_SLICE", "strides", {1, 2, 3, -1, -2}),
        ("FILL", "shape", {0, 1, 2, 3, 4}),
        ("PAD", "paddings", {0, 1, 2, 3}),
        ("PAD_V2", "paddings", {0, 1, 2, 3}),
        ("MEAN", "keep_dims", {0, 1}),
        ("SOFTMAX", "beta", {0.25, 0.7, 1, 2.5}),
        ("LOG_SOFTMAX", "beta", {0.25, 0.7, 1, 2.5}),
        ("ELU", "alpha", {0, 0.5, 1, 2}),
        ("INSTANCE_NORMALIZATION", "epsilon", {1e-3, 1e-5, 1}),
        ("ROI_ALIGN", "height_stride width_stride", {0.5, 1, 2, 4}),
        ("ROI_POOLING", "height_stride width_stride", {0.5, 1, 2, 4}),
        ("BOX_WITH_NMS_LIMIT", "max_num_detections", set(range(-1, 9))),
        ("BOX_WITH_NMS_LIMIT", "batch_index", {0, 1}),
        ("GENERATE_PROPOSALS", "height_stride width_stride", {1, 2, 8}),
        ("GENERATE_PROPOSALS", "pre_nms_limit post_nms_limit", set(range(-1, 21))),
        ("DETECTION_POSTPROCESSING", "max_num_detections", set(range(1, 9))),
        ("DETECTION_POSTPROCESSING", "max_classes_per_detection", {1, 2, 3}),
        ("DETECTION_POSTPROCESSING", "max_detections_per_class", set(range(1, 7))),
        ("RANDOM_MULTINOMIAL", "sample_count", set(range(10))),
        ("LSTM", "cell_clip projection_clip", {0, 0.5, 3}),
        ("LSTM", "activation_kind", {0, 1, 3, 4, 6}),
        ("RNN", "activation_kind", {0, 1, 2, 3, 4, 6}),
        ("SVDF", "activation_kind", {0, 1, 2, 3, 4, 6}),
    ],
)
def test_each_of_some_numbers_is_drawn(name: str, arguments: str, choices: set[float]) -> None:
    for argument in arguments.split():
        assert {round(n, 6) for n in drawn(name, argument)} == choices


@pytest.mark.parametrize(
    ("name", "argument", "number", "part"),
    [
        ("SPACE_TO_DEPTH", "block", 2, 1 / 2),
        ("CONV_2D", "dilation_w", 1, 2 / 3),  # half of where there is one: of four forms the last
        ("SOFTMAX", "beta", 1, 2 / 5),
        ("LSTM", "cell_clip", 0, 1 / 2),
    ],
)
def test_usual_numbers_are_drawn_more_often(name: str, argument: str, number: float, part: float) -> None:
    found = share([n == number for n in drawn(name, argument, times=900)])
    assert found > part - 0.06 and (found < part + 0.06 or name == "CONV_2D")


@pytest.mark.parametrize(
    ("name", "arguments", "low", "high"),
    [
        ("RESIZE_BILINEAR", "scale_w scale_h", 0.3, 3),
        ("RESIZE_NEAREST_NEIGHBOR", "scale_w scale_h", 0.3, 3),
        ("LOCAL_RESPONSE_NORMALIZATION", "bias alpha beta", 0.1, 2),
        ("INSTANCE_NORMALIZATION", "gamma beta", -2, 2),
        ("BOX_WITH_NMS_LIMIT", "score_threshold", 0, 0.3),
        ("BOX_WITH_NMS_LIMIT", "iou_threshold sigma nms_score_threshold", 0.05, 0.4),
        ("BOX_WITH_NMS_LIMIT", "roi", 0, 20),
        ("GENERATE_PROPOSALS", "iou_threshold", 0.05, 0.6),
        ("GENERATE_PROPOSALS", "min_size", 0, 4),
        ("GENERATE_PROPOSALS", "bbox_deltas", -1, 1),
        ("GENERATE_PROPOSALS", "anchors", 0, 20),
        ("GENERATE_PROPOSALS", "image_info", 4, 60),
        ("DETECTION_POSTPROCESSING", "scale_y scale_x scale_h scale_w", 1, 10),
        ("DETECTION_POSTPROCESSING", "score_threshold iou_threshold", 0, 0.4),
        ("DETECTION_POSTPROCESSING", "bbox_deltas", -1, 1),
        ("DETECTION_POSTPROCESSING", "anchors", 0.5, 8),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", "roi", 0, 60),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", "bbox_deltas", -1, 1),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", "image_info", 4, 60),
        ("HEATMAP_MAX_KEYPOINT", "boxes", 0, 60),
        ("RANDOM_MULTINOMIAL", "seeds", 0, 2**31 - 1),
    ],
)
def test_numbers_are_drawn_between_two(name: str, arguments: str, low: float, high: float) -> None:
    margin = (high - low) / 25
    for argument in arguments.split():
        found = drawn(name, argument, form=1 if argument.startswith("scale_") and name.startswith("RESIZE") else 0)
        assert low - 1e-6 <= min(found) < low + margin and high - margin < max(found) <= high + 1e-6


@pytest.mark.parametrize(
    ("name", "names", "choices"),
    [
        ("CONV_2D", "filter_h filter_w", {1, 2, 3, 5, 7}),
        ("DEPTHWISE_CONV_2D", "filter_h filter_w", {1, 2, 3, 5, 7}),
        ("GROUPED_CONV_2D", "filter_h filter_w", {1, 2, 3, 5, 7}),
        ("TRANSPOSE_CONV_2D", "filter_h filter_w", {1, 2, 3, 4}),
        ("BOX_WITH_NMS_LIMIT", "num_rois", set(range(1, 25))),
        ("BOX_WITH_NMS_LIMIT", "num_classes", {2, 3, 4}),
        ("BOX_WITH_NMS_LIMIT", "coordinates", {8, 12, 16}),
        ("GENERATE_PROPOSALS", "batches", {1, 2, 3}),
        ("GENERATE_PROPOSALS", "height width num_anchors", {1, 2, 3, 4}),
        ("GENERATE_PROPOSALS", "deltas", {4, 8, 12, 16}),
        ("DETECTION_POSTPROCESSING", "length_box_encoding", {4, 5}),
        ("DETECTION_POSTPROCESSING", "num_classes", {2, 3, 4}),
        ("DETECTION_POSTPROCESSING", "num_anchors", set(range(1, 13))),
        ("HEATMAP_MAX_KEYPOINT", "heatmap_size", {2, 3, 4, 5, 6}),
        ("AXIS_ALIGNED_BBOX_TRANSFORM", "deltas", {4, 8, 12}),
    ],
)
def test_each_of_some_sizes_is_drawn(name: str, names: str, choices: set[int]) -> None:
    for size in names.split():
        assert {d.size(size) for d in calls(name)} == choices


@pytest.mark.parametrize(
    ("name", "size", "times"),  # a size is a product of others, and of what is drawn
    [
        ("DEPTH_TO_SPACE", "depth", lambda d: d["block"] ** 2),
        ("SPACE_TO_DEPTH", "height", lambda d: d["block"]),
        ("SPACE_TO_DEPTH", "width", lambda d: d["block"]),
        ("GROUPED_CONV_2D", "depth_out", lambda d: d["groups"]),
        ("SVDF", "filters", lambda d: d["rank"]),
    ],
)
def test_a_size_is_one_to_three_times_what_it_must_be_a_multiple_of(name: str, size: str, times: Any) -> None:
    assert {d.size(size) / times(d) for d in calls(name)} == {1, 2, 3}


def test_sizes_follow_from_each_other() -> None:
    for d in calls("DEPTHWISE_CONV_2D", 50):
        assert d.size("depth_out") == d.size("depth_in") * d["depth_multiplier"]
    for d in calls("GROUPED_CONV_2D", 50):
        assert d.size("depth_in") == d.size("depth_group") * d["groups"]
    assert {d.size("batch") / np.prod(d["blocks"].array) for d in calls("BATCH_TO_SPACE_ND")} == {1, 2}
    for d in calls("FULLY_CONNECTED", 100):
        assert math.prod(dims(d)) % d.size("input_size") == 0
    for d in calls("SVDF", 50):
        assert d.size("units") == d.size("filters") / d["rank"]
    places = Counter(d.size("memory_size") - d.size("state_size") / d.size("filters") for d in calls("SVDF", 600))
    assert set(places) == {0, 1} and places[0] > 2 * places[1]  # with the place of the newest element, or without


# ------------------------------------------------------------------------------------------------------------- places


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "argument", "low", "high"),  # of a tensor of rank n
    [
        ("SOFTMAX", "axis", lambda n: -n, lambda n: n - 1),
        ("ARGMAX", "axis", lambda n: -n, lambda n: n - 1),
        ("SPLIT", "axis", lambda n: -n, lambda n: n - 1),
        ("EXPAND_DIMS", "axis", lambda n: -n - 1, lambda n: n),
        ("REVERSE", "axis", lambda n: 0, lambda n: n - 1),
        ("REDUCE_SUM", "axes", lambda n: -n, lambda n: n - 1),
        ("STRIDED_SLICE", "begin_mask", lambda n: 0, lambda n: 2**n - 1),
        ("STRIDED_SLICE", "shrink_mask", lambda n: 0, lambda n: 2**n - 1),
    ],
)
def test_axes_are_drawn_from_the_first_to_the_last(name: str, argument: str, low: Any, high: Any) -> None:
    found: dict[int, set[int]] = {}
    for d in calls(name, 600):
        found.setdefault(d["input"].rank, set()).update(numbers(d[argument]))
    for rank in (1, 2, 3):
        assert found[rank] == set(range(low(rank), high(rank) + 1))


def test_masks_are_empty_every_other_time() -> None:
    assert 0.3 < share(drawn("STRIDED_SLICE", "end_mask", times=600)) < 0.55


def test_as_many_axes_as_there_are_dimensions_are_reduced_and_some_twice() -> None:
    found = [(d["axes"].array % d["input"].rank, d["input"].rank) for d in calls("REDUCE_SUM")]
    assert {(len(axes), rank) for axes, rank in found} == {
        (n, rank) for rank in (1, 2, 3, 4) for n in range(1, rank + 1)
    }
    assert any(len(set(axes.tolist())) < len(axes) for axes, _ in found)


def test_slices_lie_within_and_reach_both_ends() -> None:
    seen: Counter[str] = Counter()
    for d in calls("SLICE"):
        for n, begin, size in zip(dims(d), numbers(d["begin"]), numbers(d["size"]), strict=True):
            assert 0 <= begin <= n and -1 <= size <= n - begin
            seen.update(first=begin == 0, last=begin == n, rest=size == -1, whole=size == n - begin > 0)
            seen.update(part=0 < size < n - begin, none=size == 0 < n - begin)
    assert min(seen[what] for what in ("first", "last", "rest", "whole", "part", "none")) > 20


def test_steps_begin_and_end_up_to_one_element_outside_on_either_side() -> None:
    for argument in ("begin", "end"):
        offsets: dict[int, set[int]] = {}
        for d in calls("STRIDED_SLICE"):
            for n, place in zip(dims(d), numbers(d[argument]), strict=True):
                offsets.setdefault(n, set()).add(place)
        for n in (1, 2, 3):
            assert offsets[n] == set(range(-n - 1, n + 2))


def test_indices_are_of_all_elements_in_tensors_of_one_or_two_dimensions() -> None:
    shapes, ends, sizes = Counter[int](), Counter[bool](), set()
    for d in calls("GATHER"):
        size, indices = dims(d)[d["axis"]], d["indices"].array
        sizes |= set(indices.shape)
        assert 0 <= indices.min() <= indices.max() < size
        shapes[indices.ndim] += 1
        ends[bool(size > 1 and indices.max() == size - 1)] += 1
        ends[bool(size > 1 and indices.min() == 0)] += 1
    assert set(shapes) == {1, 2} and shapes[1] > 1.4 * shapes[2] and ends[True] > 100 and sizes == {1, 2, 3}


def test_there_are_no_indices_into_nothing() -> None:
    rng, none = np.random.default_rng(3), 0
    for _ in range(TIMES):
        d = Drawn(Cell(OPS["GATHER"], 0, F32, "ordinary"), rng, open=True)
        if dims(d)[d["axis"]] == 0:
            assert d["indices"].known == (0,)
            none += 1
    assert none


def test_the_greatest_are_one_to_all() -> None:
    for d in calls("TOPK_V2"):
        assert 1 <= d["k"] <= dims(d)[-1]
    assert {d["k"] - dims(d)[-1] == 0 for d in calls("TOPK_V2")} == {True, False}


def test_dimensions_of_1_are_squeezed_from_either_end_or_not_named() -> None:
    seen = Counter[str]()
    for d in calls("SQUEEZE"):
        ones = [i for i, n in enumerate(dims(d)) if n == 1]
        if d["axes"] is None:
            seen["none"] += 1
            seen["none of some"] += bool(ones)
            continue
        axes = numbers(d["axes"])
        assert {axis % len(dims(d)) for axis in axes} <= set(ones)
        seen.update(back=any(axis < 0 for axis in axes), front=any(axis >= 0 for axis in axes))
        seen.update(part=len(axes) < len(ones), all=len(axes) == len(ones) > 1)
    assert min(seen[what] for what in ("none", "none of some", "back", "front", "part", "all")) > 4


def test_permutations_are_left_out_now_and_then() -> None:
    found = [d["permutation"] for d in calls("TRANSPOSE")]
    assert 0.6 < share([v is not None for v in found]) < 0.8
    assert any(numbers(v) != sorted(numbers(v)) for v in found if v is not None)


def test_what_is_left_out_now_and_then_is_there_with_its_share() -> None:
    for given, expected in ((0.7, sometimes(lambda d: 1)), (0.2, sometimes(lambda d: 1, 0.2))):
        assert abs(share([expected(d) for d in calls("RELU", 1000)]) - given) < 0.05


def test_shapes_are_made_of_factors_and_hold_all_elements() -> None:
    ranks, left_over, places = Counter[int](), [], set()
    for d in calls("RESHAPE", 600):
        shape, count = numbers(d["shape"]), math.prod(dims(d))
        ranks[len(shape)] += 1
        left_over.append(-1 in shape)
        if -1 in shape:
            places.add((len(shape), shape.index(-1)))
        assert shape.count(-1) <= 1
        rest = math.prod(n for n in shape if n != -1)
        assert count % rest == 0 if -1 in shape else rest == count
    assert set(ranks) == {1, 2, 3, 4} and 0.2 < share(left_over) < 0.4
    assert places >= {(n, k) for n in (1, 2, 3, 4) for k in range(n)}


def test_what_divides_a_size() -> None:
    assert [divisors(n) for n in (0, 1, 6, 7, 12)] == [[1], [1], [1, 2, 3, 6], [1, 7], [1, 2, 3, 4, 6, 12]]


@pytest.mark.parametrize(("name", "parts"), [("CHANNEL_SHUFFLE", "groups"), ("SPLIT", "pieces")])
def test_an_axis_falls_into_one_to_all_parts(name: str, parts: str) -> None:
    found = [(dims(d)[d["axis"]], d[parts]) for d in calls(name)]
    assert all(size % n == 0 for size, n in found)
    assert {n for size, n in found if size == 4} == {1, 2, 4}


def test_paddings_fill_blocks_up_and_add_one_now_and_then() -> None:
    firsts, extra = Counter[int](), Counter[int]()
    for d in calls("SPACE_TO_BATCH_ND", 600):
        sizes = d.size("height"), d.size("width")
        rows = zip(sizes, d["paddings"].array.tolist(), d["blocks"].array.tolist(), strict=True)
        for size, (before, after), block in rows:
            assert (size + before + after) % block == 0 and after >= 0
            firsts[before] += 1
            extra[after // block] += 1
    assert set(firsts) == {0, 1, 2, 3} and set(extra) == {0, 1} and extra[1] < 0.7 * extra[0]


def test_as_much_is_mirrored_as_there_is_and_no_more() -> None:
    reached: dict[tuple[int, int], set[int]] = {}
    for d in calls("MIRROR_PAD"):
        for n, row in zip(dims(d), d["paddings"].array.tolist(), strict=True):
            reached.setdefault((int(d["mode"]), n), set()).update(row)
    for n in (1, 2, 3):
        assert reached[MirrorPad.SYMMETRIC, n] == set(range(n + 1))
        assert reached[MirrorPad.REFLECT, n] == set(range(n))


def test_a_shape_is_asked_for_of_which_a_convolution_makes_the_input() -> None:
    slack = set()
    for d in calls("TRANSPOSE_CONV_2D", form=1):
        batch, *rest = d["output_shape"].array.tolist()
        depth, *sizes = rest if d["nchw"] else [rest[-1], *rest[:-1]]
        assert (batch, depth) == (d.size("batch"), d.size("depth_out"))
        for size, there, axis in zip(sizes, (d.size("height"), d.size("width")), "hw", strict=True):
            stride, reach = d[f"stride_{axis}"], d.size(f"filter_{axis}")
            if d["scheme"] == Padding.SAME:
                assert -(-size // stride) == there
                slack.add((stride, -size % stride))
            else:
                assert (size - reach) // stride + 1 == there
                slack.add((stride, (size - reach) % stride))
    assert slack >= {(stride, n) for stride in (1, 2, 3) for n in range(stride)}


def test_pixels_have_their_centres_at_halves_only_without_aligned_corners() -> None:
    found = {(d["align_corners"], d["half_pixel_centers"]) for d in calls("RESIZE_NEAREST_NEIGHBOR")}
    assert found == {(False, False), (False, True), (True, False)}


def test_fills_have_one_to_four_dimensions() -> None:
    assert {d["shape"].known for d in calls("FILL")} == {(1,), (2,), (3,), (4,)}


@pytest.mark.parametrize("kind", [F32, Q8])
def test_the_value_of_a_padding_is_one_of_its_type(kind: int) -> None:
    found = drawn("PAD_V2", "value", kind=kind)
    assert len(set(found)) > 50 and all(isinstance(n, float if kind == F32 else int) for n in found)


# -------------------------------------------------------------------------------------------------- several, and rows


def test_parts_differ_along_the_axis_alone() -> None:
    counts, own = Counter[int](), Counter[bool]()
    ranks, sizes, along, unlike = set(), set(), set(), 0
    for d in calls("CONCATENATION", kind=Q8):
        parts, axis = d["parts"], d["axis"]
        counts[len(parts)] += 1
        ranks.add((parts[0].rank, axis))
        rest = {(*p.known[:axis], *p.known[axis + 1 :]) for p in parts}
        assert len(rest) == 1
        sizes |= set(next(iter(rest)))
        along |= {p.known[axis] for p in parts}
        unlike += len({p.known for p in parts}) > 1
        if len(parts) > 1:
            own[len({(p.scale, p.zero_point) for p in parts}) > 1] += 1
    assert set(counts) == {1, 2, 3, 4, 5, 6, 9, 17, 33} and sizes == along == {1, 2, 3, 4} and unlike > 50
    assert ranks == {(rank, axis) for rank in (1, 2, 3, 4) for axis in range(rank)}
    assert min(own[True], own[False]) > 60


def test_parts_are_joined_in_the_firsts_scale_or_in_a_finer_or_coarser_one() -> None:
    scaled, ratios, same = OPS["CONCATENATION"].scaled["output"], set(), 0
    for d in calls("CONCATENATION", 2 * TIMES, kind=Q8S):
        first, (scale, zero) = d["parts"][0], scaled(d)
        ratio = math.log2(scale / first.scale)
        assert ratio == round(ratio)
        ratios.add(round(ratio))
        same += (scale, zero) == (first.scale, first.zero_point)
    assert ratios == set(range(-12, 13)) and 0.4 < same / (2 * TIMES) < 0.7


def test_packed_parts_are_alike() -> None:
    seen = set()
    for d in calls("PACK", kind=Q8):
        first, *others = d["parts"]
        seen |= {len(others), f"rank {first.rank}", *(f"size {n}" for n in first.known)}
        seen.add(f"axis {d['axis']} of {first.rank}")
        assert {(v.known, v.scale, v.zero_point) for v in others} <= {(first.known, first.scale, first.zero_point)}
    assert seen == {
        *(n - 1 for n in (1, 2, 3, 4, 5, 6, 9, 17, 33)),
        *(f"rank {n}" for n in (1, 2, 3)),
        *(f"size {n}" for n in (1, 2, 3, 4)),
        *(f"axis {k} of {n}" for n in (1, 2, 3) for k in range(n + 1)),
    }


def test_rows_and_keys_are_those_of_the_table_and_some_that_are_not() -> None:
    rows = [(d["values"].known[0], n) for d in calls("EMBEDDING_LOOKUP") for n in numbers(d["lookups"])]
    assert all(0 <= n < size for size, n in rows) and {n for size, n in rows if size == 3} == {0, 1, 2}
    keys, wanted, twice = set(), set(), 0
    for d in calls("HASHTABLE_LOOKUP"):
        found = numbers(d["keys"])
        assert found == sorted(found) and len(found) == d["values"].known[0]
        keys.update(found)
        wanted.update(numbers(d["lookups"]))
        twice += len(set(found)) < len(found)
    assert keys == set(range(-3, 10)) and wanted == set(range(-4, 11)) and twice > 20


def test_a_weight_stands_for_each_row_and_may_be_left_out_of_sparse_projections() -> None:
    seen = set()
    for d in calls("LSH_PROJECTION"):
        seen.add((LshProjection(d["kind"]).name, d["weight"] is None))
        assert d["weight"] is None or d["weight"].known == dims(d)[:1]
    assert ("DENSE", True) not in seen and len(seen) == 5


def test_one_class_at_least_is_possible_in_every_row() -> None:
    changed = 0
    for d in calls("RANDOM_MULTINOMIAL", values="nan"):
        rows = d["input"].array
        assert np.isfinite(rows).any(-1).all()
        lonely = np.isfinite(rows).sum(-1) == 1
        changed += int((rows[lonely, 0] == 1).sum())
        assert rows.shape[1] == 1 or not (rows == 1).all()
    assert changed > 10


def test_a_condition_is_of_the_shape_of_what_it_chooses_from() -> None:
    for d in calls("SELECT", 50):
        assert d["condition"].known == d["input1"].known == d["input2"].known
    assert {*drawn("SELECT", "condition")} == {False, True}


def test_matrices_fit() -> None:
    turned = set()
    columns = set()
    for d in calls("BATCH_MATMUL"):
        x, y = (np.empty(dims(d, name)) for name in "xy")
        turned.add((d["adj_x"], d["adj_y"]))
        x, y = (m.swapaxes(-1, -2) if d[f"adj_{name}"] else m for m, name in ((x, "x"), (y, "y")))
        columns.add((x @ y).shape[-1])
    assert len(turned) == 4 and columns == {1, 2, 3, 4, 5}


# -------------------------------------------------------------------------------------------------- scales and weights


@pytest.mark.parametrize(
    ("name", "axis"), [("CONV_2D", 0), ("DEPTHWISE_CONV_2D", 3), ("GROUPED_CONV_2D", 0), ("TRANSPOSE_CONV_2D", 0)]
)
def test_scales_of_channels_lie_along_the_outputs_channels(name: str, axis: int) -> None:
    scales, stored, plain = [], [], 0
    for d in calls(name, kind=Q8):
        weights = d["filter"]
        assert weights.known == d.shape_of("filter")
        if weights.type != Q8PC:
            plain += 1
            continue
        assert weights.channel.axis == axis and len(weights.channel.scales) == weights.known[axis]
        scales += weights.channel.scales
        stored += numbers(weights)
    assert plain > 100 and 2**-9 <= min(scales) < 2**-8.8 and 2**-3.2 < max(scales) <= 2**-3
    assert (min(stored), max(stored)) == (-127, 127)


@pytest.mark.parametrize(("name", "weights"), [("CONV_2D", "filter"), ("FULLY_CONNECTED", "weights")])
def test_a_bias_has_the_scale_of_the_products_and_is_small_or_fills_its_type(name: str, weights: str) -> None:
    reach = Counter[int]()
    for d in calls(name, 600, kind=Q8S):
        bias, w = d["bias"], d[weights]
        product = float(np.float32(d["input"].scale * w.scale))
        assert bias.scale == (0 if w.channel else product) and bias.known == d.shape_of("bias")
        reach[next(n for n in (100, 5000, 2**20, 2**31) if np.abs(bias.array.astype(np.int64)).max() <= n)] += 1
    assert min(reach.values()) > 60 and reach[5000] > 1.4 * max(n for r, n in reach.items() if r != 5000)
    assert {v.type for d in calls(name, 20) for v in [d["bias"]]} == {F32}


def test_the_scale_of_a_product_is_above_that_of_the_factors_by_little_or_much() -> None:
    scaled = OPS["MUL"].scaled["output"]
    ratios = [scaled(d)[0] / (d["input1"].scale * d["input2"].scale) for d in calls("MUL", kind=Q8)]
    assert min(ratios) > 1 and min(ratios) < 1.002 and max(ratios) > 8
    assert all(0 < scaled(d)[0] <= 3.0001e38 for d in calls("MUL", kind=Q8, values="far"))


# -------------------------------------------------------------------------------------------------------------- boxes


@pytest.mark.parametrize("kind", [F32, F16, Q8])
def test_boxes_have_their_upper_left_corner_first_and_lie_in_their_picture(kind: int) -> None:
    for d in calls("ROI_ALIGN", 60, kind=kind):
        roi = d["roi"]
        places = roi.array.astype(float) * (roi.scale or 1)
        assert roi.known == d.shape_of("roi") and (places[:, :2] <= places[:, 2:]).all()
        width, height = d.size("width") * d["width_stride"], d.size("height") * d["height_stride"]
        assert (places >= 0).all() and (places <= np.array([width, height] * 2) * 1.001).all()
        assert (places * 8 == np.floor(places * 8)).all()
        if kind == Q8:
            assert (roi.type, roi.scale, roi.zero_point) == (Q16A, EIGHTH, 0)


def test_regions_fill_their_picture() -> None:
    found = []
    for d in calls("ROI_ALIGN"):
        edge = [d.size("width") * d["width_stride"], d.size("height") * d["height_stride"]] * 2
        found.append((d["roi"].array / edge).reshape(-1, 4))
    places = np.concatenate(found)
    assert places[:, :2].min(0).max() < 0.05 and places[:, 2:].max(0).min() > 0.9


@pytest.mark.parametrize("name", ["ROI_ALIGN", "ROI_POOLING", "AXIS_ALIGNED_BBOX_TRANSFORM"])
def test_boxes_come_by_picture(name: str) -> None:
    pictures = set()
    for d in calls(name):
        index = numbers(d["batch_index"])
        assert index == sorted(index) and set(index) <= set(range(d.size("batches")))
        pictures |= {d.size("batches") - 1 - n for n in index}
    assert {0, 1} <= pictures


def test_boxes_of_pictures_with_limits_come_by_picture() -> None:
    for d in calls("BOX_WITH_NMS_LIMIT", 50):
        assert numbers(d["batch_index"]) == sorted(numbers(d["batch_index"]))


def test_places_are_counted_in_eighths_rounded_down() -> None:
    places = np.array([[0.0, 0.2, 1.99, 5.125]])
    for kind, anchors in ((F32, F32), (Q8, Q16S)):
        d = next(calls("GENERATE_PROPOSALS", kind=kind))
        value = counted(d, "anchors", places)
        assert value.type == anchors and (value.array * (value.scale or 1)).tolist() == [[0, 0.125, 1.875, 5.125]]
    d = next(calls("GENERATE_PROPOSALS", kind=Q8))
    assert counted(d, "image_info", places).type == Q16A


@pytest.mark.parametrize("kind", [F32, F16, Q8, Q8S])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (2.0, 6.0)])
def test_real_numbers_fill_their_range_and_quantised_ones_their_type(kind: int, low: float, high: float) -> None:
    found = []
    for d in calls("GENERATE_PROPOSALS", 60, kind=kind):
        value = real_of("bbox_deltas", low, high)(d)
        assert value.type == kind and value.known == d.shape_of("bbox_deltas") and value.dtype == dtype_of(kind)
        stored = value.array.astype(float)
        found += ((stored - value.zero_point) * (value.scale or 1)).ravel().tolist()
        if value.quantised:
            least = -128 if kind == Q8S else 0
            assert value.scale == pytest.approx((high - low) / 255, rel=1e-6)
            assert value.zero_point == np.clip(round(least - low / value.scale), least, least + 255)
    width = (high - low) / 20
    if kind in (F32, F16) or low <= 0:
        assert abs(min(found) - low) < width and abs(max(found) - high) < width


@pytest.mark.parametrize(("kind", "most"), [(F32, 1024), (F16, 1024), (Q8, 256), (Q8S, 256)])
def test_scores_are_each_there_once(kind: int, most: int) -> None:
    seen = set()
    for d in calls("GENERATE_PROPOSALS", 60, kind=kind):
        value = distinct("scores")(d)
        stored = numbers(value)
        assert len(set(stored)) == len(stored) and value.known == d.shape_of("scores")
        seen.update(stored)
        real = (value.array.astype(float) - value.zero_point) * (value.scale or 1)
        assert real.min() >= -0.01 and real.max() <= 1.01
        assert value.quantised or (real * 1024 == np.rint(real * 1024)).all()
    if kind in (Q8, Q8S):
        assert (min(seen), max(seen)) == ((0, 255) if kind == Q8 else (-128, 127))


@pytest.mark.parametrize(("kind", "most"), [(F32, 1024), (Q8, 256)])
def test_more_scores_than_can_be_told_apart_are_drawn_anew(kind: int, most: int) -> None:
    for count, fine in ((most, True), (most + 1, False)):
        d = next(calls("BOX_WITH_NMS_LIMIT", kind=kind))
        d._sizes |= {"num_rois": count, "num_classes": 1}
        if fine:
            assert len(set(numbers(distinct("scores")(d)))) == count
        else:
            with pytest.raises(InvalidModel, match=f"has {count} elements, must have at most {most} to be distinct"):
                distinct("scores")(d)


# ---------------------------------------------------------------------------------------------------------- recurrent


@pytest.mark.parametrize(
    "name", ["UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM"]
)
def test_sequences_stand_in_their_layout(name: str) -> None:
    seen = set()
    for d in calls(name, 60):
        times, batch = d.size("times"), d.size("batch")
        assert dims(d) == (*((times, batch) if d["time_major"] else (batch, times)), d.size("input_size"))
        seen.add(bool(d["time_major"]))
    assert seen == {True, False}


def test_numbers_that_go_in_are_bounded_but_for_those_that_are_not_finite() -> None:
    data = np.float32([3e38, -2e30, 1e30, 5, -np.inf, np.nan])
    found = scaled_to_float32(Value(F32, (6,), data=data)).array
    np.testing.assert_array_equal(found, np.float32([1e30, -1e30, 1e30, 5, -np.inf, np.nan]))
    half = Value(F16, (1,), data=np.float16([60000]))
    assert scaled_to_float32(half) is half


def test_weights_are_an_eighth_and_none_is_beyond_1() -> None:
    weights, inputs = drawn("RNN", "weights"), drawn("RNN", "bias")
    assert (min(weights), max(weights)) == (-1, 1) and max(inputs) > 9
    assert np.std(np.clip(inputs, -8, 8)) / np.std(weights) == pytest.approx(8, rel=0.15)
    assert drawn("QUANTIZED_LSTM", "input_to_cell", kind=Q8S, times=20)  # as they are


@pytest.mark.parametrize("name", ["BIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"])
def test_an_auxiliary_input_is_linked_in_either_way_or_not_there(name: str) -> None:
    weight = "fw_aux_weights" if name.endswith("RNN") else "fw_aux_to_forget"
    seen = Counter[tuple[bool, bool]]()
    for d in calls(name):
        aux, crossed = d["aux_input"] is not None, d[weight] is not None
        assert (d[weight.replace("fw", "bw")] is not None) == crossed
        seen[aux, crossed] += 1
        parallel = aux and not crossed
        assert d.size("bw_input_size") == d.size("aux_size" if parallel else "input_size")
        if aux:
            assert d["aux_input"].known[:2] == dims(d)[:2] and d["aux_input"].known[2] == d.size("aux_size")
    assert set(seen) == {(False, False), (True, False), (True, True)} and min(seen.values()) > 60


@pytest.mark.parametrize(("name", "states"), [("BIDIRECTIONAL_SEQUENCE_RNN", 2), ("BIDIRECTIONAL_SEQUENCE_LSTM", 4)])
def test_one_output_or_two_and_all_states_or_none_are_asked_for(name: str, states: int) -> None:
    count = OPS[name].counted
    assert count is not None
    found = {(d["merge_outputs"], count(d)) for d in calls(name)}
    assert found == {(True, 1), (True, 1 + states), (False, 2), (False, 2 + states)}


@pytest.mark.parametrize("name", ["LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "QUANTIZED_LSTM"])
def test_parts_of_a_cell_are_there_together(name: str) -> None:
    parts = {
        "gate": ["input_to_input", "state_to_input", "bias_input"],
        "peep": ["peep_forget", "peep_output"],
        "norm": ["norm_forget", "norm_cell", "norm_output"],
        "projection": ["projection"],
    }
    seen: dict[str, set[bool]] = {part: set() for part in parts}
    for d in calls(name, 100, kind=Q8S if name == "QUANTIZED_LSTM" else F32, form=1 if name == "LSTM" else 0):
        there = {}
        for part, names in parts.items():
            (there[part],) = {d[n] is not None for n in names}
            seen[part].add(there[part])
        for part in ("peep", "norm"):
            assert (d[f"{part}_input"] is not None) == (there[part] and there["gate"])
        assert there["projection"] or d["projection_bias"] is None
        assert there["projection"] or d.size("output_size") == d.size("units")
    assert all(found == {True, False} for found in seen.values())


def test_a_projection_has_one_to_five_outputs_with_a_bias_or_without() -> None:
    found = [d for d in calls("LSTM") if d["projection"] is not None]
    assert {d.size("output_size") for d in found} == {1, 2, 3, 4, 5}
    assert {d["projection_bias"] is None for d in found} == {True, False}


def test_quantised_cells_have_scales_of_their_kind_of_tensor() -> None:
    """Exponents of two, about which scales are drawn; and zero points."""
    wanted = {"input": (-6, 50), "state": (-7, 8), "projection": (-7, 0), "input_to_cell": (-8, 0)}
    wanted |= {"state_to_output": (-8, 0), "peep_forget": (-15, 0), "norm_cell": (-15, 0), "bias_cell": (-14, 0)}
    exponents: dict[str, list[float]] = {}
    zeros: dict[str, list[int]] = {}
    for d in calls("QUANTIZED_LSTM", 400, kind=Q8S):
        for name in wanted:
            if (v := d[name]) is not None:
                exponents.setdefault(name, []).append(math.log2(v.scale))
                zeros.setdefault(name, []).append(v.zero_point)
    for name, (middle, reach) in wanted.items():
        least, most = min(exponents[name]), max(exponents[name])
        assert middle - 1 <= least < middle - 0.9 and middle + 0.9 < most <= middle + 1, name
        assert (min(zeros[name]), max(zeros[name])) == (-reach, reach), name


def test_quantised_states_keep_their_scales_and_a_cells_is_a_power_of_two() -> None:
    scaled, exponents = OPS["QUANTIZED_LSTM"].scaled, set()
    for d in calls("QUANTIZED_LSTM", 60, kind=Q8S):
        for ends, start in (("state_out", "state"), ("output", "state"), ("cell_state_out", "cell_state")):
            assert scaled[ends](d) == (d[start].scale, d[start].zero_point)
        exponents.add(math.log2(d["cell_state"].scale))
        assert d["cell_state"].zero_point == 0
    assert exponents == {-13, -12, -11, -10}


@pytest.mark.parametrize(
    ("argument", "choices"),
    [
        ("hidden_state_zero_point", set(range(-8, 9))),
        ("cell_clip", {None, 0, 0.3, 1.5}),
        ("projection_clip", {None, 0, 0.3, 1.5}),
        ("input_intermediate_scale", {2.0**-12, 2.0**-10}),
    ],
)
def test_settings_of_quantised_cells_are_some_of_these(argument: str, choices: set[Any]) -> None:
    assert {None if n is None else round(n, 6) for n in drawn("QUANTIZED_LSTM", argument, kind=Q8S)} == {
        None if n is None else round(n, 6) for n in choices
    }


def test_quantised_cells_are_small_and_their_hidden_scale_is_that_of_a_state() -> None:
    for size in ("units", "input_size"):
        assert {d.size(size) for d in calls("QUANTIZED_LSTM", kind=Q8S)} == {1, 2, 3, 4, 5}
    scales = drawn("QUANTIZED_LSTM", "hidden_state_scale", kind=Q8S)
    assert 0.004 <= min(scales) < 0.0043 and 0.0097 < max(scales) <= 0.01


def test_integer_biases_are_about_1_in_their_units() -> None:
    """Up to 2**14 steps; 2**25 of those that are 1024 times finer, with a normalisation."""
    seen: dict[tuple[bool, str], float] = {}
    for d in calls("QUANTIZED_LSTM", kind=Q8S):
        for name in ("bias_cell", "projection_bias"):
            if (v := d[name]) is not None:
                key = d["norm_cell"] is not None, name
                assert (v.type, v.known) == (I32, d.shape_of(name))
                seen[key] = max(seen.get(key, 0), float(np.abs(v.array).max()))
    for (normed, name), most in seen.items():
        limit = 2**25 if normed and name == "bias_cell" else 2**14
        assert 0.9 * limit < most <= limit
    assert len(seen) == 4


def test_cells_of_16_bits_have_one_scale_for_all_weights() -> None:
    scales, zeros = set(), set()
    for d in calls("QUANTIZED_16BIT_LSTM", 100, kind=Q8):
        first = d["input_to_input"]
        names = [
            f"{source}_to_{gate}" for source in ("input", "state") for gate in ("input", "forget", "cell", "output")
        ]
        assert {(d[n].scale, d[n].zero_point) for n in names} == {(first.scale, first.zero_point)}
        assert d["bias_cell"].scale == pytest.approx(first.scale / 128, rel=1e-6) and d["bias_cell"].zero_point == 0
        assert [(d[n].scale, d[n].zero_point) for n in ("input", "state")] == [(1 / 128, 128)] * 2
        assert (d["cell_state"].scale, d["cell_state"].zero_point) == (1 / 2048, 0)
        scales.add(round(first.scale, 6))
        zeros.add(first.zero_point)
    assert scales == {0.002, 0.004, 0.008} and zeros == {100, 128, 140}
