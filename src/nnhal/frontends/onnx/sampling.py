"""Entries that sample images at positions that are computed at execution."""

import math
from itertools import product

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import part_of, transposed
from nnhal.frontends.common.functions import RealArithmetic, rounded
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import check_count, either
from nnhal.frontends.onnx.elementwise import in_own_type, single_floats
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import F32, I32

MOST_PIXELS = 1 << 24  # float32 counts them exactly
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
