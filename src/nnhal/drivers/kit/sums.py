"""How great sums of products of steps become, for engines that have float32 or 32 bits for them; and how long sums may be.

An engine adds up float32 one after the other. Each addition rounds: a sum of n equal numbers is off by up to n/4 units of
2**-24. NNAPI's tolerance has 128 of them, so a longer sum is made in stages: sums of blocks, and the sum of these.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, groupby
from typing import NamedTuple, TypeVar

import numpy as np

from nnhal.base.operands import Shape, Unknown, Value, fixed
from nnhal.drivers.kit.forms import Refused
from nnhal.ops.common import IN_A_ROW, padding, type_range
from nnhal.ops.schema import Bound

EXACT = 2**24  # integers up to here are float32
SLIGHT = 2.0**-4  # of a step of the output, by which sums may be off for each of them that is rounded

LANES = 4  # partial sums that engines hold side by side, at least, where rows of the last dimension are summed
EXPONENTIALS = 8192  # that an engine's own SOFTMAX adds up, whose kernel is far faster
X = TypeVar("X")


class Stage(NamedTuple):
    """One of several reductions that make a long one.

    The tensor is reshaped to `shape`, `more` zeros are put behind dimension `axis` of that, and it is reshaped to `cut`.
    Then dimension `along` is reduced, and goes.
    """

    shape: tuple[int, ...]
    axis: int
    more: int
    cut: tuple[int, ...]
    along: int


def stages(shape: Shape | None, axes: Collection[int]) -> list[Stage]:
    """How a sum along axes is cut so that at most IN_A_ROW terms are added one after the other; none where it need not be.

    None also while the shape is not known: what is compiled has one.
    """
    shape = fixed(shape)
    if shape is None:
        return []
    runs = [
        [along, math.prod(shape[axis] for axis in run)]
        for along, run in groupby(range(len(shape)), lambda axis: axis in axes)
    ]
    terms = math.prod(size for along, size in runs if along)
    rows = set(axes) == {len(shape) - 1} and math.prod(shape) > terms  # of pictures an engine may move the axes
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
    """Lengths of at most `most` whose product is `size`, or a little more where it has no such divisors."""
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
    """A tensor summed by an engine in stages; its dimensions are those that are left, like neighbours as one.

    pad: puts zeros behind. reduce: takes a tensor of shape `cut`.
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


def unpadded(parts: Sequence[Stage]) -> float:
    """What a mean of means is multiplied with, for the zeros that they count."""
    return math.prod((stage.shape[stage.axis] + stage.more) / stage.shape[stage.axis] for stage in parts)


def mean_windows(a: Bound) -> list[tuple[int, int]]:
    """Windows, height and width, that a mean is pooled with one after the other: its own, or its width before its height.

    None where it is the mean of the whole picture, to be summed in `stages`. Refused where the sums are too long for both.
    """
    height, width = a.filter_h, a.filter_w
    try:
        high, wide = min(height, a.height), min(width, a.width)
        whole = (height, width) == (a.height, a.width) and not any(padding(a, "h") + padding(a, "w"))
    except Unknown:
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
    """The greatest distance of an element from the zero point."""
    return max(abs(limit - value.zero_point) for limit in type_range(value.type))


def greatest_sum(x: Value, weights: Value, axis: int, bias: Value | None = None) -> float:
    """The greatest magnitude of a sum of products of steps, whatever `x` holds.

    axis: of the weights, along which the sums lie. bias: in the scale of the products, added to them.
    """
    if weights.data is None:
        found = reach(x) * reach(weights) * math.prod(weights.known) / max(1, weights.known[axis])
    else:
        steps = np.abs(np.moveaxis(np.asarray(weights.data), axis, 0).astype(np.float32) - weights.zero_point)
        found = float(reach(x) * steps.reshape(len(steps), -1).sum(1, dtype=np.float64).max(initial=0))
    return found if bias is None else found + greatest_of(bias)


def greatest_of(bias: Value) -> float:
    """The greatest magnitude in a bias, of any where it is given at execution."""
    return 2.0**31 if bias.data is None else float(np.abs(np.asarray(bias.data, np.float64)).max(initial=0))


def require_exact(greatest: float, ratio: float) -> None:
    """Refuse sums that float32 may get wrong by a step of the output. ratio: of the products' scale to the output's."""
    if greatest > EXACT and greatest / EXACT * ratio > SLIGHT:
        raise Refused(f"sums of up to {greatest:g} steps are not exact in float32")


def require_32_bits(greatest: float) -> None:
    """Refuse sums that wrap around."""
    if greatest >= 2**31:
        raise Refused(f"sums of up to {greatest:g} steps leave 32 bits")
