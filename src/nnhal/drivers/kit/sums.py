"""Bounds of sums of products, in quantisation steps, for engines that use float32 or 32 bits.

It also bounds the length of sums. An engine adds up float32 one after another, and each addition rounds: a sum of n
equal numbers is off by up to n/4 units of 2**-24. NNAPI's tolerance is 128 of these units, so a longer sum is made in
stages: sums of blocks, and the sum of these.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, groupby
from typing import NamedTuple, TypeVar

import numpy as np

from nnhal.base.operands import Shape, UnknownValue, Value, fixed
from nnhal.drivers.kit.variants import Refused
from nnhal.ops.common import IN_A_ROW, padding, type_range
from nnhal.ops.schema import Bound

EXACT = 2**24  # float32 holds every integer up to here
SLIGHT = 2.0**-4  # quantisation steps of the output by which each rounded sum may be off

LANES = 4  # the least number of partial sums that engines hold side by side when they sum rows of the last dimension
EXPONENTIALS = 8192  # the terms that an engine's own SOFTMAX adds up; its kernel is far faster
X = TypeVar("X")


class Stage(NamedTuple):
    """One of several reductions that make a long one.

    The tensor is reshaped to `shape`, padded with `more` zeros after dimension `axis`, and reshaped to `cut`. Then
    dimension `along` is reduced and removed.
    """

    shape: tuple[int, ...]
    axis: int
    more: int
    cut: tuple[int, ...]
    along: int


def stages(shape: Shape | None, axes: Collection[int]) -> list[Stage]:
    """Divide a sum along axes, so that at most IN_A_ROW terms are added one after another; empty if it is short enough.

    Also empty while the shape is unknown: a compiled model has known shapes.
    """
    shape = fixed(shape)
    if shape is None:
        return []
    runs = [
        [along, math.prod(shape[axis] for axis in run)]
        for along, run in groupby(range(len(shape)), lambda axis: axis in axes)
    ]
    terms = math.prod(size for along, size in runs if along)
    rows = set(axes) == {len(shape) - 1} and math.prod(shape) > terms  # an engine may move the axes of pictures
    if terms <= IN_A_ROW * (LANES if rows else 1):
        return []
    return list(_cut([size for _, size in runs], [place for place, (along, _) in enumerate(runs) if along]))


def _cut(shape: list[int], axes: list[int]) -> Iterator[Stage]:
    blocks = next(
        found
        for parts in count(len(axes))
        if sum(map(len, found := [_blocks(shape[axis], IN_A_ROW // parts) for axis in axes])) <= parts
    )
    for axis, (*inner, last) in reversed([*zip(axes, blocks, strict=True)]):
        for block in inner:
            outer = -(-shape[axis] // block)
            cut = [*shape[:axis], outer, block, *shape[axis + 1 :]]
            yield Stage(tuple(shape), axis, outer * block - shape[axis], tuple(cut), axis + 1)
            shape[axis] = outer
        assert shape[axis] == last
        yield Stage(tuple(shape), axis, 0, tuple(shape), axis)
        del shape[axis]


def _blocks(size: int, most: int) -> list[int]:
    """Return lengths of at most `most` whose product is `size`, or slightly more if it has no such divisors."""
    found = []
    while size > most:
        left = next(n for n in count(2) if most**n >= size)
        root = next(n for n in count(max(1, int(size ** (1 / left)) - 1)) if n**left >= size)
        fitting = [n for n in range(root, most + 1) if size % n == 0]
        found.append(fitting[0] if fitting else root)
        size = -(-size // found[-1])
    return [*found, size]


def summed(
    x: X,
    parts: Sequence[Stage],
    reshape: Callable[[X, Sequence[int]], X],
    pad: Callable[[X, Stage], X],
    reduce: Callable[[X, Stage], X],
) -> X:
    """Sum a tensor by an engine in stages. Adjacent remaining dimensions are merged into one.

    pad: adds zeros at the end. reduce: its argument is a tensor of shape `cut`.
    """
    for stage in parts:
        if stage is parts[0]:
            x = reshape(x, stage.shape)
        if stage.more:
            x = pad(x, stage)
        if stage.cut != stage.shape:
            x = reshape(x, stage.cut)
        x = reduce(x, stage)
    return x


def padding_correction(parts: Sequence[Stage]) -> float:
    """Return the factor that corrects a mean of means for the padding zeros."""
    return math.prod((stage.shape[stage.axis] + stage.more) / stage.shape[stage.axis] for stage in parts)


def mean_windows(a: Bound) -> list[tuple[int, int]]:
    """Return the windows, height and width, of one mean pooling after another: its own, or its width before its height.

    Empty for the mean of the whole picture, which is summed in `stages`. Refused if the sums are too long for both.
    """
    height, width = a.filter_h, a.filter_w
    try:
        high, wide = min(height, a.height), min(width, a.width)
        whole = (height, width) == (a.height, a.width) and not any(padding(a, "h") + padding(a, "w"))
    except UnknownValue:
        high, wide, whole = height, width, False
    if high * wide <= IN_A_ROW:
        return [(height, width)]
    if whole:
        return []
    if high + wide <= IN_A_ROW:
        return [(1, width), (height, 1)]
    raise Refused(
        f"a window of {high} by {wide} elements is summed in float32, must be at most {IN_A_ROW} in both together"
    )


def reach(value: Value) -> int:
    """Return the greatest distance of an element from the zero point."""
    return max(abs(limit - value.zero_point) for limit in type_range(value.type))


def greatest_sum(x: Value, weights: Value, axis: int, bias: Value | None = None) -> float:
    """Return the greatest magnitude of a sum of products of integers, for any `x`.

    axis: the dimension of the weights along which the sums run. bias: in the scale of the products, added to them.
    """
    if weights.data is None:
        found = reach(x) * reach(weights) * math.prod(weights.known) / max(1, weights.known[axis])
    else:
        steps = np.abs(np.moveaxis(np.asarray(weights.data), axis, 0).astype(np.float32) - weights.zero_point)
        found = float(reach(x) * steps.reshape(len(steps), -1).sum(1, dtype=np.float64).max(initial=0))
    return found if bias is None else found + greatest_of(bias)


def greatest_of(bias: Value) -> float:
    """Return the greatest magnitude in a bias; of its type if it is known only at execution."""
    return 2.0**31 if bias.data is None else float(np.abs(np.asarray(bias.data, np.float64)).max(initial=0))


def require_exact(greatest: float, ratio: float) -> None:
    """Refuse sums that float32 may get wrong by 1 LSB of the output. ratio: the products' scale by the output's."""
    if greatest > EXACT and greatest / EXACT * ratio > SLIGHT:
        raise Refused(f"sums of up to {greatest:g} are not exact in float32")


def require_32_bits(greatest: float) -> None:
    """Refuse sums that overflow 32 bits."""
    if greatest >= 2**31:
        raise Refused(f"sums of up to {greatest:g} overflow, must fit in 32 bits")
