"""Custom operations that well-known files carry, against LiteRT's kernels."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from flatbuffers import flexbuffers

import nnhal
from nnhal import zoo
from nnhal.frontends.tflite import load
from tests.frontends.cases import begin, malformed, refused, run
from tests.frontends.flat import Writer, litert, one_operator, tensor

begin(__name__)


# ------------------------------------------------------------------------------------------------- transposed convolution


def transposed(custom: bool, padding: int, stride: tuple[int, int], filter: tuple[int, int], size, out) -> bytes:
    generator = np.random.default_rng(1)
    w = Writer()
    x, y = w.tensor([1, *size, 3]), w.tensor([1, *out, 2])
    weights = w.tensor([2, *filter, 3], "f4", generator.normal(size=(2, *filter, 3)))
    bias = w.tensor([2], "f4", [10, 20])
    if custom:
        options = struct.pack("<3i", padding, stride[1], stride[0])
        w.operator("Convolution2DTransposeBias", [x, weights, bias], [y], custom=list(options))
    else:
        shape = w.tensor([4], "i4", [1, *out, 2])
        fields = {"padding": padding - 1, "strideH": stride[0], "strideW": stride[1]}
        w.operator("TRANSPOSE_CONV", [shape, weights, x, bias], [y], "TransposeConv", version=3, **fields)
    return w.file([x], [y])


@pytest.mark.parametrize(
    ("padding", "stride", "filter", "size", "out"),
    [
        (1, (2, 2), (2, 2), (4, 5), (8, 10)),
        (1, (2, 2), (3, 3), (4, 4), (8, 8)),
        (1, (1, 1), (3, 3), (4, 4), (4, 4)),
        (2, (2, 3), (3, 4), (4, 5), (9, 16)),
    ],
)
def test_mediapipes_transposed_convolution_is_tflites_with_a_bias(padding, stride, filter, size, out):
    x = np.random.default_rng(0).normal(size=(1, *size, 3)).astype("f4")
    (expected,) = litert(transposed(False, padding, stride, filter, size, out), x)
    (found,) = run(transposed(True, padding, stride, filter, size, out), [x])
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5
    model = load(transposed(True, padding, stride, filter, size, out), shapes=[(0, *size, 3)])
    many = nnhal.compile(model, devices="reference")(np.concatenate([x, -x, x]))
    assert many.shape == (3, *out, 2) and np.abs(many[[0, 2]] - expected).max() < 1e-5


def test_options_of_a_transposed_convolution_that_make_no_sense_are_refused():
    for options, reason in (
        (b"\1\0\0\0", "has 4 bytes of options, must have at least 12"),
        (struct.pack("<3i", 3, 2, 2), r"padding is 3, must be 1 \(SAME\) or 2 \(VALID\)"),
        (struct.pack("<3i", 1, 0, 2), "strides are 0 and 2, must be at least 1"),
    ):
        w = Writer()
        x, y = w.tensor([1, 2, 2, 1]), w.tensor([1, 4, 4, 1])
        weights, bias = w.tensor([1, 2, 2, 1], "f4", np.ones(4)), w.tensor([1], "f4", [0])
        w.operator("Convolution2DTransposeBias", [x, weights, bias], [y], custom=list(options))
        refused(w.file([x], [y]), reason)


@pytest.mark.models
@pytest.mark.parametrize("name", ["selfie_segmentation", "selfie_segmentation_landscape"])
def test_a_real_model_with_it_makes_a_mask(name):
    compiled = nnhal.compile(load(zoo.path(name)), devices="reference")
    (given,), (made,) = compiled.inputs, compiled.outputs
    mask = compiled(np.random.default_rng(0).uniform(0, 1, given.shape).astype("f4"))
    assert made.shape == (1, *given.shape[1:3], 1) and 0 <= mask.min() < mask.max() <= 1


# --------------------------------------------------------------------------------------------------------------- detection


def detector(
    options: dict, boxes: int = 60, columns: int = 4, quantised: bool = False, **changes
) -> tuple[bytes, list]:
    generator = np.random.default_rng(5)
    w = Writer()
    corners = generator.uniform(0, 1, (boxes, 2)).astype("f4")
    anchors = np.concatenate([corners, generator.uniform(0.1, 0.6, (boxes, 2)).astype("f4")], -1)
    encodings = generator.normal(0, 1, (1, boxes, 4)).astype("f4")
    scores = generator.permutation(boxes * columns).reshape(1, boxes, columns) / (boxes * columns)
    scores = changes.get("scores", scores.astype("f4"))
    if quantised:
        kind, how = "u1", [{"scale": s, "zero": z} for s, z in ((0.05, 128), (1 / 256, 0))]
        encodings = np.clip(np.round(encodings / 0.05) + 128, 0, 255).astype("u1")
        scores = np.round(scores * 255).astype("u1")
    else:
        kind, how = "f4", [{}, {}]
    x, s = w.tensor([1, boxes, 4], kind, **how[0]), w.tensor([1, boxes, columns], kind, **how[1])
    places = {"data": np.round(anchors / 0.005), "scale": 0.005} if quantised else {"data": anchors}
    a = w.tensor([boxes, 4], kind, **places)
    outs = [w.tensor([]) for _ in range(4)]
    w.operator("TFLite_Detection_PostProcess", [x, s, a], outs, custom=list(flexbuffers.Dumps(options)))
    return w.file([x, s], outs), [encodings, scores]


PLAIN = {
    "max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 5, "use_regular_nms": False,
    "nms_score_threshold": 0.3, "nms_iou_threshold": 0.4, "num_classes": 3,
    "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


def same_detections(content: bytes, fed: list, per: int = 1, room: int = 1) -> int:
    """How many there are, of `per` rows each in the room for `room`; other rows have no meaning."""
    expected, found = litert(content, *fed), run(content, fed)
    assert [x.shape for x in found] == [x.shape for x in expected]
    assert {x.dtype for x in found} == {np.dtype("f4")}
    count = int(expected[3][0])
    assert found[3].tolist() == expected[3].tolist()
    for x, y in zip(found[:3], expected[:3], strict=True):
        both = [z[:, : count * room].reshape(1, count, room, -1)[:, :, :per] for z in (x, y)]
        assert np.abs(both[0] - both[1]).max(initial=0) < 1e-5
    return count


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"use_regular_nms": True},
        {"num_classes": 4},
        {"num_classes": 4, "use_regular_nms": True},
        {"max_classes_per_detection": 2},
        {"max_classes_per_detection": 2, "use_regular_nms": True},
        {"max_classes_per_detection": 9},
        {"nms_iou_threshold": 0.05},
        {"nms_score_threshold": 0.9},
        {"nms_score_threshold": 0.0},
        {"nms_score_threshold": 1e-8, "max_detections": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("quantised", [False, True])
def test_detections_are_those_of_litert(changed, quantised):
    options = PLAIN | changed
    room = 1 if options["use_regular_nms"] else options["max_classes_per_detection"]
    assert same_detections(*detector(options, quantised=quantised), min(room, options["num_classes"]), room) > 0


@pytest.mark.parametrize("regular", [False, True])
def test_a_threshold_below_every_score_takes_all(regular):
    """As object detectors of Model Maker have it: -20, where scores are 0 to 1."""
    options = PLAIN | {"nms_score_threshold": -20.0, "use_regular_nms": regular, "nms_iou_threshold": 1.0}
    content, fed = detector(options, boxes=8, quantised=True)
    assert (fed[1][..., 1:] == 0).any() or fed[1].min() == 0
    assert same_detections(content, fed) > 0


@pytest.mark.parametrize("regular", [False, True])
def test_a_score_at_the_threshold_counts(regular):
    scores = np.zeros((1, 60, 4), "f4")
    scores[0, 7, 2] = 0.3
    options = PLAIN | {"use_regular_nms": regular}
    assert same_detections(*detector(options, scores=scores)) == 1


def test_a_threshold_below_0_takes_all_boxes_where_no_score_is_below():
    assert same_detections(*detector(PLAIN | {"nms_score_threshold": -0.5, "max_detections": 60}, quantised=True)) > 10


def test_boxes_that_overlap_exactly_by_the_threshold_both_stay():
    w = Writer()
    anchors = w.tensor([2, 4], "f4", [[1, 1, 2, 2], [1, 2, 2, 4]])  # one is half of the other
    x, s = w.tensor([1, 2, 4]), w.tensor([1, 2, 1])
    outs = [w.tensor([]) for _ in range(4)]
    options = PLAIN | {"num_classes": 1, "nms_iou_threshold": 0.5}
    w.operator("TFLite_Detection_PostProcess", [x, s, anchors], outs, custom=list(flexbuffers.Dumps(options)))
    assert same_detections(w.file([x, s], outs), [np.zeros((1, 2, 4), "f4"), np.array([[[0.9], [0.8]]], "f4")]) == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"max_detections": 0}, "max_detections is 0, must be an integer of at least 1"),
        ({"y_scale": "x"}, "y_scale is 'x', must be a finite number"),
        ({"num_classes": 9}, "has 4 scores for each box, must have 9, or one more for the background"),
        ({"nms_score_threshold": -1.0}, "nms_score_threshold is -1.0, must be at least 0"),
        ({"y_scale": float("inf")}, "y_scale is inf, must be a finite number of 32 bits"),
        ({"y_scale": float("-inf")}, "y_scale is -inf, must be a finite number of 32 bits"),
        ({"w_scale": float("nan")}, "w_scale is nan, must be a finite number of 32 bits"),
        ({"max_classes_per_detection": 1 << 24}, "max_classes_per_detection is 16777216, must be an integer"),
        ({"max_classes_per_detection": 1.0}, "max_classes_per_detection is 1.0, must be an integer of at least 1"),
        ({"detections_per_class": 0}, "detections_per_class is 0, must be an integer of at least 1"),
        ({"nms_iou_threshold": "x"}, "nms_iou_threshold is 'x', must be a finite number of 32 bits"),
    ],
)
def test_options_of_a_detection_that_make_no_sense_are_refused(changed, reason):
    refused(detector(PLAIN | changed)[0], reason)


def test_damaged_options_are_refused_and_never_an_error_of_the_parser():
    content, _ = detector(PLAIN)
    packed = flexbuffers.Dumps(PLAIN)
    generator = np.random.default_rng(3)
    for _ in range(300):
        spoilt = bytearray(packed)
        for place in generator.integers(0, len(spoilt), 3):
            spoilt[place] = generator.integers(0, 256)
        with suppress(nnhal.UnsupportedModel, nnhal.InvalidModel):
            load(content.replace(packed, bytes(spoilt)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FlexErf", "is computed by TensorFlow itself"),
        ("MaxUnpooling2D", "is an operation of MediaPipe, which nnhal does not support"),
        ("Mine", "is unknown; nnhal.register_custom_operator('Mine', ...) defines it"),
    ],
)
def test_other_custom_operations_are_refused_with_what_is_known_of_them(name, reason):
    assert f"custom operation {name} #0: {reason}" in refused(one_operator(name, [tensor([4])], [tensor([4])]))


def test_a_custom_operation_may_have_room_to_work_in_which_nobody_writes():
    """As Vela's files have it; only the operation itself says what such a tensor is for."""
    w = Writer()
    x, room, y = w.tensor([4]), w.tensor([1000], "u1"), w.tensor([4])
    w.operator("ethos-u", [room, x], [y])
    refused(w.file([x], [y]), r"cannot be expressed in NNAPI: custom operation ethos-u #0: is unknown")


def test_a_file_without_any_buffer_has_no_constants():
    w = Writer()
    x, y = w.tensor([4]), w.tensor([4])
    w.operator("fake-op-double", [x], [y])
    w.ends([x], [y])
    w.model.buffers = []
    refused(w.bytes(), r"custom operation fake-op-double #0: is unknown")
    w.graph.tensors[x].buffer = 1
    malformed(w.bytes(), "tensor 0: buffer is 1, must be 0 to 0")


def test_what_a_known_custom_operation_reads_must_have_been_written():
    w = Writer()
    x, filter, bias, y = (w.tensor(shape) for shape in ([1, 2, 2, 1], [1, 2, 2, 1], [1], [1, 4, 4, 1]))
    w.operator("Convolution2DTransposeBias", [x, filter, bias], [y], custom=list(np.int32([1, 2, 2]).tobytes()))
    malformed(w.file([x], [y]), "subgraph 0 tensor 1: has no value, must be written by an operator before")


def given_options(options: bytes) -> dict:
    """What a hook sees of the options of its operator."""
    seen = {}

    def lower(t):
        seen.update(t.flexbuffer())
        t.same(t.x(0))

    nnhal.register_custom_operator("Seen", lower, inputs=1)
    load(with_options(options))
    return seen


def with_options(options: bytes) -> bytes:
    return one_operator("Seen", [tensor([4])], [tensor([4])], custom=list(options))


def test_options_are_numbers_truths_texts_and_lists_of_them():
    options = {"i": -3, "f": 2.5, "t": True, "n": False, "s": "x", "l": [1, 2.5, "y"], "v": [1, 2, 3], "m": {"a": 1}}
    seen = given_options(flexbuffers.Dumps(options))
    assert seen == options | {"m": None}
    assert (seen["t"], seen["n"]) == (True, False) and isinstance(seen["t"], bool)
    assert given_options(flexbuffers.Dumps({"nothing": None})) == {"nothing": None}


def test_options_are_64_at_most_in_65536_bytes():
    many = {f"k{n:02}": n for n in range(64)}
    assert given_options(flexbuffers.Dumps(many)) == many
    refused(with_options(flexbuffers.Dumps(many | {"z": 1})), "has 65 options, must have at most 64")
    packed = [flexbuffers.Dumps({"s": "x" * length}) for length in range(65_400, 65_600)]
    fits, over = (
        max((p for p in packed if len(p) <= 65536), key=len),
        min((p for p in packed if len(p) > 65536), key=len),
    )
    assert len(fits) >= 65535 and len(over) <= 65540
    assert len(given_options(fits)["s"]) > 65_400
    refused(with_options(over), f"has {len(over)} bytes of options, must have at most 65536")
