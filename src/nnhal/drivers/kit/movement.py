"""Moves of elements as the numbers that engines need: orders of dimensions, positions, slices and shares."""

import math
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array
from nnhal.ops.resize import new_size, positions
from nnhal.ops.schema import Bound
from nnhal.ops.slice import strided


class BlockMove(NamedTuple):
    """A reshape into smaller dimensions, a transpose, and a reshape that joins them."""

    cut: list[int]
    order: tuple[int, ...]
    whole: list[int]


def block_move(a: Bound) -> BlockMove:
    """Return the move of DEPTH_TO_SPACE, SPACE_TO_DEPTH, SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND or CHANNEL_SHUFFLE.

    All but CHANNEL_SHUFFLE are for padded pictures with channels first.
    """
    name = a.op.name
    if name == "CHANNEL_SHUFFLE":
        sizes = list(a.input.known)
        axis = a.axis % len(sizes)
        cut = [math.prod(sizes[:axis]), a.groups, sizes[axis] // a.groups, math.prod(sizes[axis + 1 :])]
        return BlockMove(cut, (0, 2, 1, 3), sizes)
    n, h, w, c = a.batch, a.height, a.width, a.depth
    if name == "DEPTH_TO_SPACE":
        b = a.block
        c = c // b**2
        return BlockMove([n, b, b, c, h, w], (0, 3, 4, 1, 5, 2), [n, c, h * b, w * b])
    if name == "SPACE_TO_DEPTH":
        b = a.block
        h, w = h // b, w // b
        return BlockMove([n, c, h, b, w, b], (0, 3, 5, 1, 2, 4), [n, c * b**2, h, w])
    down, right = a.blocks.array.tolist()
    if name == "BATCH_TO_SPACE_ND":
        n = n // (down * right)
        return BlockMove([down, right, n, c, h, w], (2, 3, 4, 0, 5, 1), [n, c, h * down, w * right])
    rows, columns = a.paddings.array.sum(1).tolist()
    h, w = (h + rows) // down, (w + columns) // right
    return BlockMove([n, c, h, down, w, right], (3, 5, 0, 1, 2, 4), [n * down * right, c, h, w])


class StridedSlices(NamedTuple):
    """A slice of each dimension: its begin, its end (far below 0: after the first element), its stride."""

    begins: list[int]
    ends: list[int]
    steps: list[int]


FAR = 2**62


def strided_slices(a: Bound) -> StridedSlices:
    """Return the slices of STRIDED_SLICE; all positions are at least 0, except ends before the first element."""
    found = StridedSlices([], [], [])
    for part, size in zip(strided(a), a.input.known, strict=True):
        begin, end, step = part.indices(size)
        count = len(range(begin, end, step))
        found.begins.append(begin if count else 0)
        found.ends.append(0 if not count else end if end >= 0 else -FAR)
        found.steps.append(step if count else 1)
    return found


def nearest_indices(a: Bound, size: int, new: int) -> Array:
    """Return the indices that RESIZE_NEAREST_NEIGHBOR picks along an axis."""
    places = np.floor(positions(a, size, new).astype(np.float64) + (0.5 if a.align_corners else 0))
    return np.clip(places.astype(np.int64), 0, size - 1)


def repeats(a: Bound) -> tuple[int, int] | None:
    """Return how often RESIZE_NEAREST_NEIGHBOR repeats each row and each column; None if it picks other elements."""
    found = []
    for axis, size in (("h", a.height), ("w", a.width)):
        new = new_size(axis)(a)
        times = new // size
        if not np.array_equal(nearest_indices(a, size, new), np.repeat(np.arange(size), times)):
            return None
        found.append(times)
    return found[0], found[1]


def interpolation(a: Bound, size: int, new: int) -> Array:
    """Return the shares of the input elements in each output of RESIZE_BILINEAR along an axis: [new, size], float32."""
    places = np.clip(positions(a, size, new) - np.float32(0.5 * a.half_pixel_centers), 0, size - 1)
    before, row = places.astype(np.int64), np.arange(new)
    shares = np.zeros((new, size), np.float32)
    shares[row, before] = 1 - (places - before).astype(np.float32)
    shares[row, np.minimum(before + 1, size - 1)] += (places - before).astype(np.float32)
    return shares
