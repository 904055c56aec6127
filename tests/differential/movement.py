"""Oracles of operations that move elements: for each place of the output, where its element comes from."""

from collections.abc import Callable, Sequence
from struct import pack
from types import SimpleNamespace
from typing import Any

import farmhash
import numpy as np

from nnhal.base.codes import LshProjection, MirrorPad
from nnhal.base.operands import Array
from tests.differential.oracle import laid_out, nhwc, oracle


def made(x: Array, shape: Sequence[int], element: Callable[..., Any]) -> Array:
    """An array of the numbers' kind of x, whose element at each place is `element(*place)`."""
    found = np.empty([int(n) for n in shape], x.dtype)
    for place in np.ndindex(found.shape):
        found[place] = element(*place)
    return found


# --------------------------------------------------------------------------------------------------------------- blocks


@oracle("DEPTH_TO_SPACE", exact=True)
def depth_to_space(c: SimpleNamespace) -> Array:
    x, b = nhwc(c, c.input), c.block
    n, h, w, depth = x.shape
    depth //= b * b
    found = made(x, (n, h * b, w * b, depth), lambda i, y, z, k: x[i, y // b, z // b, (y % b * b + z % b) * depth + k])
    return laid_out(c, found)


@oracle("SPACE_TO_DEPTH", exact=True)
def space_to_depth(c: SimpleNamespace) -> Array:
    x, b = nhwc(c, c.input), c.block
    n, h, w, depth = x.shape
    found = made(
        x,
        (n, h // b, w // b, depth * b * b),
        lambda i, y, z, k: x[i, y * b + k // depth // b, z * b + k // depth % b, k % depth],
    )
    return laid_out(c, found)


@oracle("SPACE_TO_BATCH_ND", exact=True)
def space_to_batch(c: SimpleNamespace) -> Array:
    """What lies outside is 0."""
    x, (high, wide), ((top, bottom), (left, right)) = nhwc(c, c.input), c.blocks, c.paddings
    n, h, w, depth = x.shape

    def element(i: int, y: int, z: int, k: int) -> Any:
        row, column = y * high + i // n // wide - top, z * wide + i // n % wide - left
        return x[i % n, row, column, k] if 0 <= row < h and 0 <= column < w else 0

    shape = (n * high * wide, (top + h + bottom) // high, (left + w + right) // wide, depth)
    return laid_out(c, made(x, shape, element))


@oracle("BATCH_TO_SPACE_ND", exact=True)
def batch_to_space(c: SimpleNamespace) -> Array:
    x, (high, wide) = nhwc(c, c.input), c.blocks
    n, h, w, depth = x.shape
    n //= high * wide
    found = made(
        x,
        (n, h * high, w * wide, depth),
        lambda i, y, z, k: x[(y % high * wide + z % wide) * n + i, y // high, z // wide, k],
    )
    return laid_out(c, found)


@oracle("CHANNEL_SHUFFLE", exact=True)
def channel_shuffle(c: SimpleNamespace) -> Array:
    size = c.input.shape[c.axis]
    return c.input.take([j % c.groups * (size // c.groups) + j // c.groups for j in range(size)], c.axis)


# --------------------------------------------------------------------------------------------------- joined, cut, filled


@oracle("FILL", exact=True)
def fill(c: SimpleNamespace) -> Array:
    x = np.asarray(c.value)
    return made(x, c.shape, lambda *_: x)


@oracle("CONCATENATION", exact=True)
def concatenation(c: SimpleNamespace) -> Array:
    slices = [part.take(j, c.axis) for part in c.parts for j in range(part.shape[c.axis])]
    return np.moveaxis(np.array(slices), 0, c.axis)


@oracle("PACK", exact=True)
def packed(c: SimpleNamespace) -> Array:
    return np.moveaxis(np.array(c.parts), 0, c.axis)


@oracle("SPLIT", exact=True)
def split(c: SimpleNamespace) -> tuple[Array, ...]:
    size = c.input.shape[c.axis] // c.pieces
    return tuple(c.input.take(range(n * size, (n + 1) * size), c.axis) for n in range(c.pieces))


# -------------------------------------------------------------------------------------------------------------- looked up


@oracle("EMBEDDING_LOOKUP", exact=True)
def embedding_lookup(c: SimpleNamespace) -> Array:
    return made(c.values, (len(c.lookups), *c.values.shape[1:]), lambda i, *rest: c.values[(c.lookups[i], *rest)])


@oracle("HASHTABLE_LOOKUP", exact=True)
def hashtable_lookup(c: SimpleNamespace) -> tuple[Array, Array]:
    """Stored zeros where the key is not there."""
    rows, out = dict(zip(c.keys.tolist(), c.values, strict=True)), c.outs[0]
    none = np.full_like(c.values, -out.zero_point * out.scale if out.quantised else 0, shape=c.values.shape[1:])
    return (
        made(c.values, (len(c.lookups), *none.shape), lambda i, *rest: rows.get(int(c.lookups[i]), none)[rest]),
        np.array([key in rows for key in c.lookups.tolist()]),
    )


def sign_bit(c: SimpleNamespace, seed: float) -> int:
    """Whether the weighted signed fingerprints of the seed and each row add up to more than 0."""
    rows = c.values["input"].array
    prints = [farmhash.fingerprint64(pack("<f", seed) + row.tobytes()) for row in rows]
    signed = [p - (p >> 63 << 64) for p in prints]
    weights = [1.0] * len(rows) if c.weight is None else c.weight
    return int(sum(float(s) * w for s, w in zip(signed, weights, strict=True)) > 0)


@oracle("LSH_PROJECTION", exact=True)
def lsh_projection(c: SimpleNamespace) -> Array:
    bits = [[sign_bit(c, seed) for seed in seeds] for seeds in c.hashes]
    if c.kind == LshProjection.DENSE:
        return np.array([bit for row in bits for bit in row])
    signatures = [sum(bit * 2**place for place, bit in enumerate(reversed(row))) for row in bits]
    offset = 2 ** c.hashes.shape[1] if c.kind == LshProjection.SPARSE else 0
    return np.array([n * offset + signature for n, signature in enumerate(signatures)])


# --------------------------------------------------------------------------------------------------------------- padded


def surrounded(c: SimpleNamespace, outside: Any) -> Array:
    x, before = c.input, c.paddings[:, 0]

    def element(*place: int) -> Any:
        at = tuple(p - b for p, b in zip(place, before, strict=True))
        return x[at] if all(0 <= p < n for p, n in zip(at, x.shape, strict=True)) else outside

    return made(x, c.paddings.sum(1) + x.shape, element)


@oracle("PAD", exact=True)
def pad(c: SimpleNamespace) -> Array:
    return surrounded(c, 0)


@oracle("PAD_V2", exact=True)
def pad_v2(c: SimpleNamespace) -> Array:
    """The value is as stored."""
    v = c.values["input"]
    return surrounded(c, (c.value - v.zero_point) * v.scale if v.quantised else c.value)


@oracle("MIRROR_PAD", exact=True)
def mirror_pad(c: SimpleNamespace) -> Array:
    """REFLECT does not repeat the border, SYMMETRIC does."""
    x, before, again = c.input, c.paddings[:, 0], int(c.mode != MirrorPad.REFLECT)

    def source(p: int, n: int) -> int:
        return -p - again if p < 0 else 2 * (n - 1) - p + again if p >= n else p

    sizes = c.paddings.sum(1) + x.shape
    places = [[source(p - b, n) for p in range(size)] for size, b, n in zip(sizes, before, x.shape, strict=True)]
    return np.asarray(x[np.ix_(*places)])


# --------------------------------------------------------------------------------------------------------------- shapes


def in_order(x: Array, shape: Sequence[int]) -> Array:
    """The same elements in the same order, from the last dimension on."""
    return np.array(x.ravel().tolist(), x.dtype).reshape(shape)


@oracle("RESHAPE", exact=True)
def reshape(c: SimpleNamespace) -> Array:
    shape = [int(n) for n in c.shape]
    known = int(np.prod([n for n in shape if n != -1]))
    return in_order(c.input, [c.input.size // known if n == -1 else n for n in shape])


@oracle("SQUEEZE", exact=True)
def squeeze(c: SimpleNamespace) -> Array:
    """All dimensions of size 1 where none are named; where none is left, the shape is [1]."""
    shape = c.input.shape
    gone = {axis % len(shape) for axis in c.axes} if c.axes is not None else {i for i, n in enumerate(shape) if n == 1}
    return in_order(c.input, [n for i, n in enumerate(shape) if i not in gone] or [1])


@oracle("EXPAND_DIMS", exact=True)
def expand_dims(c: SimpleNamespace) -> Array:
    shape = list(c.input.shape)
    shape.insert(c.axis if c.axis >= 0 else len(shape) + 1 + c.axis, 1)
    return in_order(c.input, shape)


@oracle("TRANSPOSE", exact=True)
def transpose(c: SimpleNamespace) -> Array:
    """Dimension i of the output is dimension order[i] of the input; the order is turned round where none is given."""
    x = c.input
    order = list(c.permutation) if c.permutation is not None else list(range(x.ndim))[::-1]
    shape = [x.shape[axis] for axis in order]
    return made(x, shape, lambda *place: x[tuple(place[order.index(axis)] for axis in range(x.ndim))])


@oracle("RANK", exact=True)
def rank(c: SimpleNamespace) -> Array:
    return np.array(len(c.input.shape))


# --------------------------------------------------------------------------------------------------------------- picked


@oracle("SLICE", exact=True)
def block(c: SimpleNamespace) -> Array:
    x = c.input
    shape = [n - b if s == -1 else s for n, b, s in zip(x.shape, c.begin, c.size, strict=True)]
    return made(x, shape, lambda *place: x[tuple(c.begin + place)])


def stops(n: int, begin: int | None, end: int | None, step: int) -> list[int]:
    """Where a slice in steps stops along a dimension of n: ends count from the back below 0, and are limited to it."""
    low, high = (0, n) if step > 0 else (-1, n - 1)

    def limited(p: int) -> int:
        return min(max(p + n if p < 0 else p, low), high)

    at = limited(begin) if begin is not None else low if step > 0 else high
    until = limited(end) if end is not None else high if step > 0 else low
    found = []
    while (at < until) if step > 0 else (at > until):
        found.append(at)
        at += step
    return found


@oracle("STRIDED_SLICE", exact=True)
def strided_slice(c: SimpleNamespace) -> Array:
    """A bit of the masks for each dimension: begin or end does not count, or the dimension, of one element, vanishes."""
    x, axes = c.input, range(c.input.ndim)
    picked = [
        stops(
            x.shape[i],
            None if c.begin_mask & 2**i else int(c.begin[i]),
            None if c.end_mask & 2**i else int(c.end[i]),
            int(c.strides[i]),
        )
        for i in axes
    ]
    whole = made(x, [len(p) for p in picked], lambda *place: x[tuple(picked[i][place[i]] for i in axes)])
    return in_order(whole, [len(picked[i]) for i in axes if not c.shrink_mask & 2**i] or [1])


@oracle("GATHER", exact=True)
def gather(c: SimpleNamespace) -> Array:
    x, axis, last = c.input, c.axis % c.input.ndim, c.axis % c.input.ndim + c.indices.ndim
    shape = (*x.shape[:axis], *c.indices.shape, *x.shape[axis + 1 :])
    return made(x, shape, lambda *place: x[(*place[:axis], c.indices[place[axis:last]], *place[last:])])


@oracle("TILE", exact=True)
def tile(c: SimpleNamespace) -> Array:
    x = c.input
    return made(x, c.multiples * x.shape, lambda *place: x[tuple(p % n for p, n in zip(place, x.shape, strict=True))])


@oracle("REVERSE", exact=True)
def reverse(c: SimpleNamespace) -> Array:
    (axis,) = c.axis
    return c.input.take(range(c.input.shape[axis] - 1, -1, -1), axis)
