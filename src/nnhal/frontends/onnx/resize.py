"""Entries that resize: by NNAPI's operation if it selects the same elements, otherwise by GATHER along each axis."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import MOST_DIMENSIONS, copied
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import F16, F32, I32

MOST_SIZE = 1 << 16  # of a dimension
SHARP = -0.75  # the default of cubic interpolation
CLOSE = 1e-4  # of an element: the difference that NNAPI's positions may have from these
LINEAR, NEAREST = "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"


class SampleTaps(NamedTuple):
    """The sources of each element along an axis: indices and weights, [taps, size], and its position in the input."""

    places: Array
    shares: Array
    at: Array


class Grid(NamedTuple):
    """The grid of an axis in the input. scale: the factor. start, end: the selected part."""

    size: int
    new: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@operator("Resize", "Upsample", inputs=(1, 4),
          becomes="RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, in NCHW; else GATHER, MUL, ADD")  # fmt: skip
def resize(t: NodeTask) -> None:
    """Resize each axis separately."""
    x, mode = t.x(0), t.attr("mode", "nearest")
    t.require(mode in ("nearest", "linear", "cubic"), f"mode is {mode}, must be nearest, linear or cubic")
    t.require(mode == "nearest" or x.value.type in (F32, F16), f"of {x.kind} is interpolated, must be FLOAT")
    t.require(not t.attr("antialias", 0), "smooths (antialias), which NNAPI does not support")
    every = grids_of(t, x)
    stays = all(grid.size == grid.new for grid in every)  # ONNX Runtime copies then, regardless of the scales
    grids = {} if stays else {axis: grid for axis, grid in enumerate(every) if not is_unchanged(grid)}
    found = {axis: taps(t, mode, grid) for axis, grid in grids.items()}
    outside = [
        axis for axis, tap in found.items() if tap.at.min() < -CLOSE or tap.at.max() > grids[axis].size - 1 + CLOSE
    ]
    if coordinates(t) == "tf_crop_and_resize":
        t.require(not outside, "reads elements outside of the input, which have an extrapolation value")
    if not grids:
        t.result(0, copied(t, x), x.kind)
        return
    own = own_operation(t, x, mode, grids, found)
    if own is not None:
        t.result(0, own, x.kind)
        return
    for axis, tap in found.items():
        x = along(t, x, axis, tap)
    t.result(0, x, t.raw(0).kind)


def coordinates(t: NodeTask) -> str:
    """Return the coordinate transformation mode."""
    default = "asymmetric" if t.opset < 11 or t.name == "Upsample" else "half_pixel"
    mode: str = t.attr("coordinate_transformation_mode", default)
    return mode


def grids_of(t: NodeTask, x: Term) -> list[Grid]:
    """Return the grid of every axis."""
    rank = t.rank(x)
    axes = [t.axis(n, rank) for n in t.attr.ints("axes")] or list(range(rank))
    scales_at = 1 if t.opset < 11 or t.name == "Upsample" else 2
    scales = t.floats(scales_at, "scales") if t.given(scales_at) else [float(n) for n in t.attr("scales", ())]
    sizes = t.ints(3, "sizes") if t.given(3) else []
    roi = t.floats(1, "roi") if coordinates(t) == "tf_crop_and_resize" else []
    t.require(bool(scales) != bool(sizes), "must have either scales or sizes")
    t.require(len(scales or sizes) == len(axes), f"has {len(scales or sizes)} scales or sizes, must have {len(axes)}")
    t.require(len(roi) in (0, 2 * len(axes)), f"roi has {len(roi)} numbers, must have {2 * len(axes)}")
    open_axes = [axis for axis, size in enumerate(t.shape(x)) if size is None]
    left = all(axis not in axes or (scales and scales[axes.index(axis)] == 1) for axis in open_axes)
    shape = [size or 1 for size in t.shape(x)] if left else list(t.known(x))  # any size works for unchanged dimensions
    policy = t.attr("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        ratios = [new / shape[axis] for new, axis in zip(sizes, axes, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        scales, sizes = [ratio] * len(axes), [int(np.floor(ratio * shape[axis] + 0.5)) for axis in axes]
    grids = [Grid(size, size, 1.0) for size in shape]
    for n, axis in enumerate(axes):
        size = shape[axis]
        part = (roi[n], roi[n + len(axes)]) if roi else (0.0, 1.0)
        scale = scales[n] if scales else sizes[n] / size
        t.require(np.isfinite(scale) and scale > 0, f"has a scale of {scale:g}, must be above 0")
        # In float32, as ONNX Runtime executes it; the shape inference of ONNX and ONNX Runtime may result in one less.
        new = sizes[n] if sizes else int(np.float32(size) * np.float32(scale))
        t.require(0 < new <= MOST_SIZE, f"results in a dimension of {new}, must be 1 to {MOST_SIZE}")
        grids[axis] = Grid(size, new, scale, *part)
    return grids


def is_unchanged(grid: Grid) -> bool:
    """Whether an axis is unchanged; as in ONNX Runtime, regardless of the selected part."""
    return grid.size == grid.new and grid.scale == 1


def positions(t: NodeTask, grid: Grid) -> Array:
    """Return the positions of an axis's elements in the input, in float32, as ONNX Runtime computes them."""
    single = np.float32
    mode, at, half, scale = coordinates(t), np.arange(grid.new, dtype=single), single(0.5), single(grid.scale)
    last = single(grid.size - 1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        if mode == "pytorch_half_pixel" and grid.new == 1:
            return np.zeros(1, single)
        return (at + half) / scale - half
    if mode == "half_pixel_symmetric":
        adjusted = single(grid.new) / (scale * single(grid.size))
        return single(grid.size / 2) * (1 - adjusted) + (at + half) / scale - half
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "align_corners":
        return at * last / single(grid.new - 1) if grid.new > 1 else np.zeros(1, single)
    if mode == "asymmetric":
        return at / scale
    t.require(mode == "tf_crop_and_resize", f"coordinate_transformation_mode is {mode}, which is unknown")
    start, end = single(grid.start), single(grid.end)
    if grid.new > 1:
        return start * last + at * (end - start) * last / single(grid.new - 1)
    return np.array([half * (start + end) * last])


def taps(t: NodeTask, mode: str, grid: Grid) -> SampleTaps:
    """Return the sources of the elements of an axis."""
    at, last = positions(t, grid), grid.size - 1
    if mode == "nearest":
        before = t.opset < 11 or t.name == "Upsample"  # ONNX Runtime then rounds up if the result is smaller
        how = t.attr("nearest_mode", ("ceil" if grid.scale < 1 else "floor") if before else "round_prefer_floor")
        single = at.astype(np.float64)
        rounds: dict[str, Callable[[Array], Array]] = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }
        t.require(how in rounds, f"nearest_mode is {how}, must be one of {', '.join(rounds)}")
        places = np.clip(rounds[how](single), 0, last).astype(np.int64)
        return SampleTaps(places[None], np.ones((1, grid.new)), at)
    if mode == "linear":
        inside = np.clip(at, 0, last)
        low = np.floor(inside).astype(np.int64)
        share = inside - low
        return SampleTaps(np.stack([low, np.minimum(low + 1, last)]), np.stack([1 - share, share]), at)
    sharp = t.attr("cubic_coeff_a", SHARP)
    low = np.floor(at)
    s = at - low
    far = [((sharp * (d - 5) * d + 8 * sharp) * d - 4 * sharp) for d in (s + 1, 2 - s)]
    near = [((sharp + 2) * d - (sharp + 3)) * d * d + 1 for d in (s, 1 - s)]
    shares = np.stack([far[0], near[0], near[1], far[1]])
    places = np.stack([low + n for n in (-1, 0, 1, 2)]).astype(np.int64)
    if t.attr("exclude_outside", 0):
        shares = np.where((places >= 0) & (places <= last), shares, 0)
        shares = shares / shares.sum(0)
    return SampleTaps(np.clip(places, 0, last), shares, at)


def own_operation(t: NodeTask, x: Term, mode: str, grids: dict[int, Grid], found: dict[int, SampleTaps]) -> Term | None:
    """Return NNAPI's operation if it selects the same elements."""
    sizes = t.shape(x)
    if mode == "cubic" or len(sizes) != 4 or x.value.type == I32 or min(grids) < 2 or None in sizes[2:]:
        return None
    for align, half in ((False, False), (False, True), (True, False)):
        if all(agrees(mode, grid, found[axis], align=align, half=half) for axis, grid in grids.items()):
            h, w = (grids[axis].new if axis in grids else sizes[axis] for axis in (2, 3))
            rest = [axis for axis in (2, 3) if axis not in grids]
            if any(
                not agrees(mode, Grid(s, s, 1.0), None, align=align, half=half) for s in (sizes[a] or 0 for a in rest)
            ):
                continue
            more = {name: True for name, there in (("align_corners", align), ("half_pixel_centers", half)) if there}
            return t.make(NEAREST if mode == "nearest" else LINEAR, x, out_w=w, out_h=h, nchw=True, **more)
    return None


def agrees(mode: str, grid: Grid, wanted: SampleTaps | None, *, align: bool, half: bool) -> bool:
    """Whether NNAPI's operation selects the same elements along an axis, in float32.

    wanted: None for an unchanged axis.
    """
    between = align and grid.new > 1
    step = (
        np.float32(grid.size - 1) / np.float32(grid.new - 1)
        if between
        else np.float32(grid.size) / np.float32(grid.new)
    )
    at = np.arange(grid.new, dtype=np.float32)
    place = (at + np.float32(0.5)) * step if half else at * step
    if mode == "nearest":
        index = np.clip(np.floor(place.astype(np.float64) + (0.5 if align else 0)), 0, grid.size - 1).astype(np.int64)
        target = np.arange(grid.new) if wanted is None else wanted.places[0]
        return bool((index == target).all())
    found = np.clip(place - np.float32(0.5 * half), 0, grid.size - 1)
    target = np.arange(grid.new) if wanted is None else np.clip(wanted.at, 0, grid.size - 1)
    return bool(np.abs(found - target).max() <= CLOSE * min(1.0, 16 / grid.size))


def along(t: NodeTask, x: Term, axis: int, tap: SampleTaps) -> Term:
    """Return the elements along an axis, each a weighted sum of others."""
    if t.rank(x) > MOST_DIMENSIONS:
        shape = t.known(x)
        before, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]
        found = along(t, t.reshaped(x, (math.prod(before), size, math.prod(behind))), 1, tap)
        return t.reshaped(found, (*before, tap.places.shape[1], *behind))
    total: Term | None = None
    for places, shares in zip(tap.places, tap.shares, strict=True):
        if not shares.any():
            continue
        part = t.make("GATHER", x, axis, constant(Value(I32), places.astype(np.int32)))
        if not (shares == 1).all():
            part = t.make("MUL", part, constant_along(t, x, axis, shares), activation=0)
        total = part if total is None else t.make("ADD", total, part, activation=0)
    if total is None:
        t.refuse("has no elements")
    return total


def constant_along(t: NodeTask, x: Term, axis: int, shares: Sequence[float] | Array) -> Term:
    """Return a constant for each element along an axis."""
    shape = [1] * t.rank(x)
    shape[axis] = -1
    return constant(Value(x.value.type), np.asarray(shares, x.value.dtype).reshape(shape))
