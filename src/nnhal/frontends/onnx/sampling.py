"""Entries that sample images at positions that are computed at execution."""

import math
from itertools import product

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.element_moves import part_of, transposed
from nnhal.frontends.common.functions import RealArithmetic, rounded
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import check_count, either
from nnhal.frontends.onnx.attention import BEYOND
from nnhal.frontends.onnx.elementwise import in_own_type, single_floats
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import F32, I32

MOST_PIXELS = 1 << 24  # float32 counts them exactly
OLD = "output_half_pixel"
MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest"}


@operator("GridSample", inputs=2, becomes="FLOOR, CAST, GATHER of pixels, MUL, ADD")
def grid_sample(t: NodeTask) -> None:
    """Interpolate between the pixels around each position. The pixels of all images are rows of one table."""
    x, grid = single_floats(t), t.x(1)
    t.require(t.rank(x) == 4, f"of rank {t.rank(x)} has no operation in NNAPI, must be of 4")
    mode, padding = t.attr("mode", "linear"), t.attr("padding_mode", "zeros")
    t.require(mode in MODES, f"mode is {mode}, must be one of {', '.join(MODES)}")
    t.require(padding in ("zeros", "border", "reflection"), f"padding_mode is {padding}, must be one of ONNX")
    (batch, depth, *sizes), (grids, height, width, _) = t.known(x), t.known(grid)
    t.require(batch == grids, f"has {batch} images and {grids} grids, must have as many")
    pixels, count = math.prod(sizes), batch * height * width
    t.require(batch * pixels <= MOST_PIXELS, f"has {batch * pixels} pixels, must have at most {MOST_PIXELS}")
    check_count(count * depth)
    table = t.reshaped(transposed(t, x, (0, 2, 3, 1)), (batch * pixels, depth))
    places = t.reshaped(t.real(grid), (count, 2))
    taps = [
        taps_along(t, t.reshaped(part_of(t, places, 1, 1 - n, 1), (count,)), size, MODES[mode], padding)
        for n, size in enumerate(sizes)
    ]
    r, starts = RealArithmetic(t), np.repeat(np.arange(batch, dtype=np.float32) * pixels, height * width)
    found: Term | None = None
    for (row, row_share), (column, column_share) in product(*taps):
        number = r("ADD", r("ADD", r("MUL", row, float(sizes[1])), column), constant(Value(F32), starts))
        part = t.make("GATHER", table, 0, t.make("CAST", number, like=Value(I32)))
        for share in filter(None, (row_share, column_share)):
            part = r("MUL", part, t.reshaped(share, (count, 1)))
        found = part if found is None else r("ADD", found, part)
    assert found is not None
    made = transposed(t, t.reshaped(found, (batch, height, width, depth)), (0, 3, 1, 2))
    t.result(0, in_own_type(t, made))


def taps_along(t: NodeTask, place: Term, size: int, mode: str, padding: str) -> list[tuple[Term, Term | None]]:
    """Return the numbers of the pixels to take along one dimension, as floats, and their shares, None for 1.

    place: from -1 to 1 for the image.
    """
    r, align = RealArithmetic(t), bool(t.attr("align_corners", 0))
    last = float(size - 1)
    position = r("ADD", r("MUL", place, last / 2 if align else size / 2), last / 2)
    if padding != "reflection":  # far outside, every pixel is as far as it matters
        low, high = (-2.0, size + 1.0) if padding == "zeros" else (0.0, last)
        position = r("MINIMUM", r("MAXIMUM", position, low), high)
    if mode == "nearest":
        found: list[tuple[Term, Term | None]] = [(rounded(t, position), None)]
    else:
        below = t.make("FLOOR", position)
        part = r("SUB", position, below)
        found = [(below, r.less(1.0, part)), (r("ADD", below, 1.0), part)]
    return [inside(t, number, share, last, padding, align) for number, share in found]


def inside(
    t: NodeTask, number: Term, share: Term | None, last: float, padding: str, align: bool
) -> tuple[Term, Term | None]:
    """Move the number of a pixel into the image, or remove its share."""
    r = RealArithmetic(t)
    if padding == "reflection":
        return reflected(t, number, last, align), share
    kept = r("MINIMUM", r("MAXIMUM", number, 0.0), last)
    if padding == "zeros":
        within = either(t, r.test("EQUAL", kept, number), 1.0, 0.0, F32)
        share = within if share is None else r("MUL", share, within)
    return kept, share


def reflected(t: NodeTask, number: Term, last: float, align: bool) -> Term:
    """Reflect at the centres of the outer pixels (align), or at their edges."""
    r = RealArithmetic(t)
    edge, period = (0.0, 2 * last) if align else (0.5, 2 * last + 2)
    if period == 0:
        return r("MUL", number, 0.0)
    far = t.make("ABS", r("ADD", number, edge))
    over = r("SUB", far, r("MUL", t.make("FLOOR", r("DIV", far, period)), period))
    folded = r("SUB", r("MINIMUM", over, r.less(period, over)), edge)
    return r("MINIMUM", r("MAXIMUM", folded, 0.0), last)


@operator("AffineGrid", inputs=2, becomes="BATCH_MATMUL with constant positions")
def affine_grid(t: NodeTask) -> None:
    """Multiply the positions of an image of constant size with a matrix of each batch."""
    theta, size = single_floats(t), t.ints(1, "size")
    t.require(len(size) in (4, 5), f"has a size of {len(size)} dimensions, must be of 4 or 5")
    batch, *dims = size[0], *size[2:]
    align = bool(t.attr("align_corners", 0))
    t.require(not align or min(dims) > 1, "aligns the corners of one pixel, whose position is undefined")
    axes = [positions(n, align) for n in dims]
    grid = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(dims)], -1).reshape(-1, len(dims) + 1)
    points = constant(Value(F32), np.broadcast_to(grid, (batch, *grid.shape)).astype(np.float32))
    made = t.make("BATCH_MATMUL", points, theta, like=theta, adj_x=False, adj_y=True)
    t.result(0, in_own_type(t, t.reshaped(made, (batch, *dims, len(dims)))))


def positions(size: int, align: bool) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the positions of pixels from -1 to 1, which are the centres (align) or the edges of the outer ones."""
    steps = np.arange(size, dtype=np.float64)
    return steps * (2 / (size - 1)) - 1 if align else (2 * steps + 1) / size - 1


# ---------------------------------------------------------------------------------------------------------------- regions


@operator("RoiAlign", inputs=3, becomes="shares of rows and columns by FLOOR, ABS, MAXIMUM, MEAN; BATCH_MATMUL")
def roi_align(t: NodeTask) -> None:
    """Interpolate points of regions and average them: a product with the shares of rows, and one with those of columns.

    The rows of all images are one table; each region has shares of 0 in the images of others.
    """
    x, rois, batches = single_floats(t), t.real(t.x(1)), t.index(2, "batch_indices")
    t.require(t.rank(x) == 4, f"of rank {t.rank(x)}, must be of 4")
    mode = t.attr("mode", "avg")
    t.require(mode == "avg", f"mode is {mode!r}, must be 'avg': NNAPI has no greatest of interpolated points")
    (images, depth, *sizes), regions = t.known(x), t.known(rois)[0]
    t.require(t.known(rois) == (regions, 4) and t.known(batches) == (regions,), "must have 4 numbers and an image each")
    counts = [t.attr(f"output_{side}", 1) for side in ("height", "width")]
    t.require(min(counts) > 0, f"output is {counts}, must be at least 1")
    x1, y1, x2, y2 = (part_of(t, rois, 1, n, 1) for n in range(4))
    rows, row_fits = shares_along(t, y1, y2, counts[0], sizes[0])
    columns, column_fits = shares_along(t, x1, x2, counts[1], sizes[1])
    chosen = batches
    for fits in filter(None, (row_fits, column_fits)):
        chosen = t.make("ADD", chosen, t.reshaped(either(t, fits, 0, BEYOND, I32), (regions,)), activation=0)
    own = t.make("GATHER", constant(Value(F32), np.eye(images, dtype=np.float32)), 0, chosen)
    r, (high, wide) = RealArithmetic(t), counts
    rows = r("MUL", t.reshaped(rows, (regions, high, 1, sizes[0])), t.reshaped(own, (regions, 1, images, 1)))
    table = t.reshaped(transposed(t, x, (0, 2, 1, 3)), (1, images * sizes[0], depth * sizes[1]))
    rows = t.reshaped(rows, (1, regions * high, images * sizes[0]))
    found = t.make("BATCH_MATMUL", rows, table, like=x, adj_x=False, adj_y=False)
    found = t.reshaped(found, (regions, high * depth, sizes[1]))
    found = t.make("BATCH_MATMUL", found, columns, like=x, adj_x=False, adj_y=True)
    found = transposed(t, t.reshaped(found, (regions, high, depth, wide)), (0, 2, 1, 3))
    t.result(0, in_own_type(t, found))


def shares_along(t: NodeTask, start: Term, end: Term, count: int, size: int) -> tuple[Term, Term | None]:
    """Return the share of each element of a dimension in each bin of each region.

    Args:
        t: The node.
        start: Where the regions begin, [regions, 1].
        end: Where they end.
        count: The number of bins.
        size: The number of elements.

    Returns:
        The shares [regions, count, size]; which regions [regions, 1] have no more points than were provided for, None
        for all.
    """
    r, how = RealArithmetic(t), t.attr("coordinate_transformation_mode", "half_pixel" if t.opset >= 16 else OLD)
    t.require(how in ("half_pixel", OLD), f"coordinate_transformation_mode is {how!r}, must be half_pixel or {OLD}")
    scale, points = t.attr("spatial_scale", 1.0), t.attr("sampling_ratio", 0)
    start, end = (r("SUB", r("MUL", each, scale), 0.5 * (how != OLD)) for each in (start, end))
    length = r("SUB", end, start)
    length = r("MAXIMUM", length, 1.0) if how == OLD else length
    regions, adaptive = t.known(start)[0], points <= 0
    most = -(-3 * size // (2 * count)) + 1 if adaptive else points  # of a region that is longer than the image
    t.budget.spend(Cost.ELEMENTS, regions * count * most * size, t.label)
    step = r("DIV", length, float(count))
    first = r("ADD", start, r("MUL", step, row_of(np.arange(count))))
    offset = r("MUL", step, row_of(np.arange(most) + 0.5))
    numbers: Term | float = float(points)
    used, fits = None, None
    if adaptive:
        numbers = t.make("NEG", t.make("FLOOR", t.make("NEG", step)))
        used, fits = r.test("LESS", row_of(np.arange(most)), numbers), r.test("LESS_EQUAL", numbers, float(most))
        numbers = r("MAXIMUM", numbers, 1.0)
    offset = r("DIV", offset, numbers)
    place = r("ADD", t.reshaped(first, (regions, count, 1)), t.reshaped(offset, (regions, 1, most)))
    inside = t.make("LOGICAL_AND", r.test("GREATER_EQUAL", place, -1.0), r.test("LESS_EQUAL", place, float(size)))
    weight = either(t, inside, 1.0, 0.0, F32)
    if used is not None:
        weight = r("MUL", weight, t.reshaped(either(t, used, 1.0, 0.0, F32), (regions, 1, most)))
    place = t.reshaped(r("MINIMUM", r("MAXIMUM", place, 0.0), size - 1.0), (regions * count, most, 1))
    far = t.make("ABS", r("SUB", place, row_of(np.arange(size))))
    shares = r("MUL", r("MAXIMUM", r.less(1.0, far), 0.0), t.reshaped(weight, (regions * count, most, 1)))
    summed = t.reshaped(t.make("REDUCE_SUM", shares, t.integers([1]), False), (regions, count, size))
    return r("DIV", summed, t.reshaped(numbers, (regions, 1, 1)) if isinstance(numbers, Term) else numbers), fits


def row_of(numbers: Array) -> Term:
    """Return numbers as a constant of one row."""
    return constant(Value(F32), numbers.astype(np.float32)[None])
