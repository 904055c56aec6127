"""Operators that pad, or move blocks and diagonals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.element_moves import NOWHERE
from nnhal.frontends.common.folding import numbers, require_foldable
from nnhal.frontends.common.integer_ranges import of_all
from nnhal.frontends.common.writing import MOST_PLACES
from nnhal.frontends.tflite.task import MOST_FOLDED, OperatorTask, lower_by_places, operator


def with_fill(x: Array, widths: Sequence[Sequence[int]]) -> Array:
    require_foldable(math.prod(size + sum(pair) for size, pair in zip(x.shape, widths, strict=True)) <= MOST_PLACES)
    return np.pad(x, widths, constant_values=NOWHERE)


def pad_moves(_: OperatorTask, x: Array, paddings: Array) -> Any:
    return with_fill(x, paddings.astype(np.int64).reshape(x.ndim, 2).tolist())


@operator("PAD", inputs=2, fills=pad_moves, span=of_all)
def pad(t: OperatorTask) -> None:
    """Pad with real 0."""
    t.give("PAD", t.x(0), t.index(1, "paddings"))


@operator("PADV2", inputs=3, fills=pad_moves, valued=True, span=of_all)
def pad_value(t: OperatorTask) -> None:
    """Pad with a constant that has the quantisation of the input."""
    x, value = t.x(0), t.x(2)
    scales = [(v.scale, v.zero_point) for v in (x.value, value.value)]
    t.require(scales[0] == scales[1], "the value has another scale than the input, must have the same")
    t.give("PAD_V2", x, t.index(1, "paddings"), t.number(2, "value"))


def mirror_moves(t: OperatorTask, x: Array, paddings: Array) -> Any:
    mode = ("reflect", "symmetric")[t.options("MirrorPadOptions")("Mode")]
    widths = paddings.astype(np.int64).reshape(x.ndim, 2).tolist()
    require_foldable(all(0 <= n <= size for pair, size in zip(widths, x.shape, strict=True) for n in pair))
    require_foldable(math.prod(size + sum(pair) for pair, size in zip(widths, x.shape, strict=True)) <= MOST_FOLDED)
    return np.pad(x, widths, mode)  # type: ignore[call-overload]


@operator("MIRROR_PAD", inputs=2, moves=mirror_moves, span=of_all)
def mirror_pad(t: OperatorTask) -> None:
    """Pad by mirroring; TFLite's modes are NNAPI's."""
    t.give("MIRROR_PAD", t.x(0), t.index(1, "paddings"), t.options("MirrorPadOptions")("Mode"))


# ---------------------------------------------------------------------------------------------------------------- blocks


def space_to_depth_moves(t: OperatorTask, x: Array) -> Any:
    side = t.options("SpaceToDepthOptions")("BlockSize")
    batch, height, width, depth = x.shape
    blocks = x.reshape(batch, height // side, side, width // side, side, depth).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height // side, width // side, side * side * depth)


def depth_to_space_moves(t: OperatorTask, x: Array) -> Any:
    side = t.options("DepthToSpaceOptions")("BlockSize")
    batch, height, width, depth = x.shape
    blocks = x.reshape(batch, height, width, side, side, depth // side**2).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height * side, width * side, depth // side**2)


@operator("SPACE_TO_DEPTH", moves=space_to_depth_moves, span=of_all)
@operator("DEPTH_TO_SPACE", moves=depth_to_space_moves, span=of_all)
def blocks(t: OperatorTask) -> None:
    kind = "SpaceToDepthOptions" if t.name == "SPACE_TO_DEPTH" else "DepthToSpaceOptions"
    t.give(t.name, t.x(0), t.options(kind)("BlockSize"))


def space_to_batch_moves(_: OperatorTask, x: Array, block: Array, paddings: Array) -> Any:
    sides = numbers(block)
    widths = [(0, 0), *paddings.astype(np.int64).reshape(-1, 2).tolist()]
    padded = with_fill(x, widths + [(0, 0)] * (x.ndim - len(widths)))
    rest = padded.shape[1 + len(sides) :]
    pairs = [part for n, side in zip(padded.shape[1:], sides, strict=False) for part in (n // side, side)]
    split = padded.reshape(padded.shape[0], *pairs, *rest)
    count = len(sides)
    order = [2 * i + 2 for i in range(count)] + [0] + [2 * i + 1 for i in range(count)]
    whole = split.transpose(*order, *range(2 * count + 1, split.ndim))
    return whole.reshape(-1, *(n // s for n, s in zip(padded.shape[1:], sides, strict=False)), *rest)


@operator("SPACE_TO_BATCH_ND", inputs=3, fills=space_to_batch_moves, span=of_all)
def space_to_batch(t: OperatorTask) -> None:
    """Move blocks to batches; NNAPI requires four dimensions."""
    t.give(t.name, t.x(0), t.index(1, "block_shape"), t.index(2, "paddings"))


def batch_to_space_moves(_: OperatorTask, x: Array, block: Array, crops: Array) -> Any:
    sides, count = numbers(block), block.size
    batch = x.shape[0] // math.prod(sides)
    split = x.reshape(*sides, batch, *x.shape[1:])
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    order = (count, *pairs, *range(2 * count + 1, split.ndim))
    whole = split.transpose(order).reshape(
        batch, *(n * s for n, s in zip(x.shape[1:], sides, strict=False)), *x.shape[1 + count :]
    )
    edges = crops.astype(np.int64).reshape(count, 2).tolist()
    require_foldable(min(numbers(crops)) >= 0)
    cuts = tuple(slice(a, n - b) for n, (a, b) in zip(whole.shape[1:], edges, strict=False))
    return whole[(slice(None), *cuts)]


@operator("BATCH_TO_SPACE_ND", inputs=3, moves=batch_to_space_moves, span=of_all)
def batch_to_space(t: OperatorTask) -> None:
    """Move batches to blocks, and slice the result, because NNAPI does not crop."""
    x, block, crops = t.x(0), t.index(1, "block_shape"), t.ints(2, "crops")
    if not any(crops):
        t.give(t.name, x, block)
        return
    t.require(len(crops) == 4 and min(crops) >= 0, f"crops is {crops}, must be two for height and two for width")
    whole = t.make(t.name, x, block)
    sizes = t.shape(whole)
    t.require(None not in sizes[1:3], "height or width is known only at execution, must be known for crops")
    (top, bottom), (left, right) = crops[:2], crops[2:]
    extents = [-1, (sizes[1] or 0) - top - bottom, (sizes[2] or 0) - left - right, -1]
    t.give("SLICE", whole, t.integers([0, top, left, 0]), t.integers(extents))


# ---------------------------------------------------------------------------------------------- diagonals, gaps, edges


def diagonal_moves(_: OperatorTask, x: Array) -> Any:
    size = x.shape[-1]
    require_foldable(x.size * size <= MOST_PLACES)
    return np.where(np.eye(size, dtype=bool), x[..., None], NOWHERE)


def set_diagonal_moves(_: OperatorTask, x: Array, diagonal: Array) -> Any:
    i = np.arange(diagonal.shape[-1])
    result = x.copy()
    result[..., i, i] = diagonal
    return result


def dilate(x: Array, steps: Sequence[int]) -> Array:
    """Place elements `steps` apart in each dimension, with fill between."""
    require_foldable(len(steps) == x.ndim and min(steps, default=1) >= 1 and x.size)
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape, steps, strict=True)]
    require_foldable(math.prod(sizes) <= MOST_PLACES)
    result = np.full(sizes, NOWHERE, np.int64)
    result[tuple(slice(None, None, step) for step in steps)] = x
    return result


def dilated_moves(_: OperatorTask, x: Array, dilations: Array) -> Any:
    return dilate(x, numbers(dilations))


def pad_edges(x: Array, widths: Sequence[tuple[int, int]]) -> Array:
    """Add elements before and after, or remove them for negative numbers."""
    require_foldable(len(widths) == x.ndim)
    x = with_fill(x, [[max(n, 0) for n in pair] for pair in widths])
    cuts = [slice(max(-low, 0), size - max(-high, 0)) for size, (low, high) in zip(x.shape, widths, strict=True)]
    return x[tuple(cuts)]


def edged_moves(t: OperatorTask, x: Array) -> Any:
    fields = t.options("StablehloPadOptions")
    low, high, inner = (fields.numbers(n) or () for n in ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding"))
    return pad_edges(dilate(x, [n + 1 for n in inner]), list(zip(low, high, strict=True)))


@operator("MATRIX_DIAG", inputs=(1, 2), becomes="GATHER and SELECT", fills=diagonal_moves, span=of_all)
@operator("MATRIX_SET_DIAG", inputs=(1, 2), becomes="GATHER and SELECT", moves=set_diagonal_moves, joins=True,
          span=of_all)  # fmt: skip
@operator("STABLEHLO_PAD", inputs=2, becomes="GATHER and SELECT", fills=edged_moves, valued=True)
@operator("DILATE", inputs=3, becomes="GATHER and SELECT", fills=dilated_moves, valued=True)
def by_places(t: OperatorTask) -> None:
    """Move elements by constant indices."""
    lower_by_places(t)
