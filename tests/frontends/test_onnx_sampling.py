"""GridSample, AffineGrid and RoiAlign, as ONNX Runtime computes them."""

from itertools import product

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import nnhal
from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, model, node

RNG = np.random.default_rng(3)
DEVICES = "reference", "litert", "onnxruntime", "openvino"


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


PICTURES = real(2, 3, 6, 7)
GRID = RNG.uniform(-2.3, 2.3, (2, 5, 4, 2)).astype(np.float32)  # also far outside
GRID[0, 0] = [[-1, -1], [1, 1], [0, -1], [500, -500]]
WAYS = list(product(["linear", "nearest"], ["zeros", "border", "reflection"], [0, 1]))


def sampled(pictures, grid, opset=20, **how):
    inputs = {"x": pictures, "g": grid}
    return model([node("GridSample", "x g", **how)], inputs, opset=opset), inputs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mode", "padding", "align"), WAYS)
def test_samples_are_those_of_onnx_runtime(mode, padding, align, device):
    made, inputs = sampled(PICTURES, GRID, mode=mode, padding_mode=padding, align_corners=align)
    np.testing.assert_allclose(by_nnhal(made, inputs, device)[0], by_onnxruntime(made, inputs)[0], atol=1e-5)


def test_the_mode_of_version_16_has_another_name():
    check(*sampled(PICTURES, GRID, 16, mode="bilinear"))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_a_picture_of_one_pixel_is_sampled(padding, align):
    check(*sampled(real(1, 2, 1, 1), GRID[:1, 1:], padding_mode=padding, align_corners=align))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_infinitely_far_is_the_pixel_at_the_border(mode):
    """ONNX Runtime converts infinity to an integer there, whose value the language leaves open."""
    far = np.float32([[[[np.inf, -np.inf], [-3e38, np.inf]]]])
    made, inputs = sampled(PICTURES[:1], far, mode=mode, padding_mode="border")
    np.testing.assert_array_equal(by_nnhal(made, inputs)[0][0, :, 0], PICTURES[0][:, [0, -1], [-1, 0]])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"mode": "cubic"}, "mode is cubic, must be one of linear, bilinear, nearest"),
        ({}, "of rank 5 has no operation"),
        ({"align_corners": 1}, "has 2 images and 1 grids, must have as many"),
    ],
)
def test_what_has_no_operation_is_refused_by_name(how, why):
    pictures, grid = (PICTURES, GRID) if how else (real(1, 2, 3, 4, 5), real(1, 2, 2, 2, 3))
    grid = grid[:1] if "align_corners" in how else grid
    refused(sampled(pictures, grid, **how)[0], f"GridSample #0: {why}")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_a_grid_of_an_affine_map_is_that_of_onnx_runtime(size, align):
    inputs = {"t": real(2, len(size) - 2, len(size) - 1)}
    check(model([node("AffineGrid", "t s", align_corners=align)], inputs, {"s": np.array(size)}, opset=20), inputs)


def test_a_grid_of_float16_is_that_of_the_specification():
    inputs = {"t": real(2, 2, 3).astype(np.float16)}
    made = model([node("AffineGrid", "t s")], inputs, {"s": np.array([2, 3, 4, 5])}, opset=20)
    (wanted,) = ReferenceEvaluator(made).run(None, inputs)
    np.testing.assert_allclose(by_nnhal(made, inputs)[0], wanted, atol=2e-3)


def test_the_corners_of_one_pixel_are_refused():
    made = model(
        [node("AffineGrid", "t s", align_corners=1)], {"t": real(2, 2, 3)}, {"s": np.array([2, 3, 1, 5])}, opset=20
    )
    refused(made, "AffineGrid #0: aligns the corners of one pixel")


MAPS, IMAGES = real(2, 3, 6, 7), np.int64([1, 0, 1, 0, 0])
REGIONS = np.float32(
    [[1, 2, 9, 11], [0, 0, 14, 12], [3.3, 4.1, 3.4, 4.3], [-3, -4, 5, 20], [9, 9, 4, 5]]  # beyond the map, and turned
)


def regions(opset, images=IMAGES, boxes=REGIONS, **how):
    inputs = {"x": MAPS, "r": boxes, "b": images}
    return model([node("RoiAlign", "x r b", spatial_scale=0.5, **how)], inputs, opset=opset), inputs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("points", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["half_pixel", "output_half_pixel"])
def test_regions_are_those_of_onnx_runtime(how, points, device):
    sizes = {"output_height": 2, "output_width": 3}
    check(*regions(16, coordinate_transformation_mode=how, sampling_ratio=points, **sizes), device=device)


def test_regions_before_version_16_are_not_shifted():
    check(*regions(10, output_height=3, sampling_ratio=2))
    check(*regions(16, output_height=3, sampling_ratio=2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "given", [{"images": np.int64([1, 0, 2, 0, 0])}, {"boxes": REGIONS * np.float32([1, 1, 1, 9])}]
)
def test_regions_of_no_image_or_with_too_many_points_fail(given, device):
    made, inputs = regions(16, **given)
    imported = nnhal.load(made.SerializeToString())
    with pytest.raises(nnhal.OperationFailed):
        nnhal.compile(imported, devices=[device], fallback="forbid").run(*inputs.values())


def test_the_greatest_points_of_regions_are_refused():
    refused(regions(16, mode="max")[0], "RoiAlign #0: mode is 'max', must be 'avg'")
