"""Oracles of convolutions, products of matrices, pools, normalisations and resizing.

Pictures are taken as [batch, height, width, depth], "n y x c"; filters as [out, filter_h, filter_w, in], "o i j c".
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from nnhal.base.codes import Padding
from nnhal.base.operands import Array
from tests.differential.oracle import activated, laid_out, nhwc, oracle

# ------------------------------------------------------------------------------------------------ windows that slide


def padding(c: SimpleNamespace, side: str, spare: int) -> tuple[int, int]:
    """Padding before and after along "h" or "w"; spare: by how much windows at all positions reach over, for SAME."""
    if hasattr(c, "scheme"):
        return (0, 0) if c.scheme == Padding.VALID else (max(spare, 0) // 2, (max(spare, 0) + 1) // 2)
    return (c.pad_top, c.pad_bottom) if side == "h" else (c.pad_left, c.pad_right)


def places(c: SimpleNamespace, side: str, size: int, filter_size: int) -> Array:
    """Which element of the picture, along "h" or "w", each window meets with each element of the filter."""
    stride, dilation = getattr(c, f"stride_{side}"), getattr(c, f"dilation_{side}", 1)
    reach = (filter_size - 1) * dilation + 1
    before, after = padding(c, side, (-(-size // stride) - 1) * stride + reach - size)
    starts = np.arange(-before, size + after - reach + 1, stride)
    return starts[:, np.newaxis] + dilation * np.arange(filter_size)


def windows(c: SimpleNamespace, x: Array, filter_h: int, filter_w: int) -> tuple[Array, Array]:
    """What each window meets, [n, y, x, i, j, c], and where that is an element of the picture rather than padding."""
    rows, columns = places(c, "h", x.shape[1], filter_h), places(c, "w", x.shape[2], filter_w)
    rows, columns = rows[:, np.newaxis, :, np.newaxis], columns[np.newaxis, :, np.newaxis, :]
    there = (rows >= 0) & (rows < x.shape[1]) & (columns >= 0) & (columns < x.shape[2])
    return x[:, np.where(there, rows, 0), np.where(there, columns, 0)], there[..., np.newaxis]


def with_bias(c: SimpleNamespace, sums: Array, weights: str = "filter") -> Array:
    """Sums of products with their bias, which counts products of stored values where quantised; activated."""
    x, w = c.values["input"], c.values[weights]
    scale = x.scale * np.asarray(w.channel.scales if w.channel else w.scale, np.float64) if x.quantised else 1
    return activated(c, sums + c.bias * scale)


@oracle("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D")
def convolution(c: SimpleNamespace) -> Array:
    """Each output channel sees one group of input channels: all of them, one, or one of some groups."""
    x, filters = nhwc(c, c.input), c.filter
    if c.name == "DEPTHWISE_CONV_2D":
        filters = np.moveaxis(filters, -1, 0)[..., 0, :, :, np.newaxis]
    seen, there = windows(c, x, *filters.shape[1:3])
    seen = np.where(there, seen, 0)
    groups = x.shape[-1] // filters.shape[-1]
    pairs = zip(np.split(seen, groups, -1), np.split(filters, groups), strict=True)
    sums = [np.einsum("nyxijc,oijc->nyxo", *pair) for pair in pairs]
    return laid_out(c, with_bias(c, np.concatenate(sums, -1)))


@oracle("TRANSPOSE_CONV_2D")
def transposed(c: SimpleNamespace) -> Array:
    """Product of element y and filter element i is added to y * stride + i, less the padding."""
    x = nhwc(c, c.input)
    spreads = [spread(c, side, x.shape[axis], c.filter.shape[axis]) for axis, side in ((1, "h"), (2, "w"))]
    sums = np.einsum("pyi,qxj,nyxc,oijc->npqo", *spreads, x, c.filter, optimize=True)
    return laid_out(c, with_bias(c, sums))


def spread(c: SimpleNamespace, side: str, size: int, filter_size: int) -> Array:
    """[p, y, i]: 1 where the product of element y and filter element i is part of output p."""
    stride = getattr(c, f"stride_{side}")
    whole = (size - 1) * stride + filter_size
    if hasattr(c, "scheme"):
        asked = dict(zip("nchw" if c.nchw else "nhwc", c.output_shape, strict=True))[side]
        before, _ = padding(c, side, whole - asked)
    else:
        before, after = padding(c, side, 0)
        asked = whole - before - after
    p, y, i = np.ogrid[:asked, :size, :filter_size]
    return (p == y * stride + i - before).astype(np.float64)


@oracle("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(c: SimpleNamespace) -> Array:
    """Of the elements of each window that are there."""
    seen, there = windows(c, nhwc(c, c.input), c.filter_h, c.filter_w)
    count = there.sum((2, 3))
    if c.name == "MAX_POOL_2D":
        made = np.where(there, seen, -np.inf).max((3, 4))
    elif c.name == "AVERAGE_POOL_2D":
        made = np.where(there, seen, 0).sum((3, 4)) / count
    else:
        made = np.sqrt(np.where(there, seen * seen, 0).sum((3, 4)) / count)
    return laid_out(c, activated(c, made))


# ------------------------------------------------------------------------------------------------ products of matrices


@oracle("FULLY_CONNECTED")
def fully_connected(c: SimpleNamespace) -> Array:
    rows = c.input.reshape(-1, c.weights.shape[1])
    return with_bias(c, np.einsum("nc,oc->no", rows, c.weights), "weights")


@oracle("BATCH_MATMUL")
def batch_matmul(c: SimpleNamespace) -> Array:
    """Integers wrap around."""
    return np.einsum(f"...{'ki' if c.adj_x else 'ik'},...{'jk' if c.adj_y else 'kj'}->...ij", c.x, c.y)


# ------------------------------------------------------------------------------------------------------- normalisation


@oracle("SOFTMAX")
def softmax(c: SimpleNamespace) -> Array:
    return special.softmax(c.beta * c.input, c.axis)


@oracle("LOG_SOFTMAX")
def log_softmax(c: SimpleNamespace) -> Array:
    return special.log_softmax(c.beta * c.input, c.axis)


@oracle("L2_NORMALIZATION")
def l2_normalization(c: SimpleNamespace) -> Array:
    """A vector of zeros stays one."""
    length = np.sqrt((c.input**2).sum(c.axis, keepdims=True))
    return np.where(length == 0, 0, c.input / length)


@oracle("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(c: SimpleNamespace) -> Array:
    x = np.moveaxis(c.input, c.axis, -1)
    near = [slice(max(0, i - c.radius), i + c.radius + 1) for i in range(x.shape[-1])]
    squares = np.stack([(x[..., around] ** 2).sum(-1) for around in near], -1)
    return np.moveaxis(x / (c.bias + c.alpha * squares) ** c.beta, -1, c.axis)


@oracle("INSTANCE_NORMALIZATION")
def instance_normalization(c: SimpleNamespace) -> Array:
    x = nhwc(c, c.input)
    mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    return laid_out(c, c.gamma * (x - mean) / np.sqrt(variance + c.epsilon) + c.beta)


# ------------------------------------------------------------------------------------------------------------ resizing


def positions(c: SimpleNamespace, side: str, size: int) -> Array:
    """Where the elements of the output lie in a picture, along "h" or "w": element i reaches from i to i + 1.

    In single precision, as every published implementation: its rounding decides between neighbours.
    """
    scale = getattr(c, f"scale_{side}", None)
    new = getattr(c, f"out_{side}") if scale is None else int(np.float32(size) * np.float32(scale))
    single = np.float32
    step = single(size - 1) / single(new - 1) if c.align_corners and new > 1 else single(size) / single(new)
    return ((np.arange(new, dtype=single) + single(0.5 * c.half_pixel_centers)) * step).astype(np.float64)


@oracle("RESIZE_NEAREST_NEIGHBOR", exact=True)
def nearest(c: SimpleNamespace) -> Array:
    x: Any = nhwc(c, c.input)
    for axis, side in ((1, "h"), (2, "w")):
        at = positions(c, side, x.shape[axis])
        index = np.floor(at + 0.5 * c.align_corners).astype(int)
        x = x.take(np.minimum(index, x.shape[axis] - 1), axis)
    return laid_out(c, x)


@oracle("RESIZE_BILINEAR")
def bilinear(c: SimpleNamespace) -> Array:
    """Each element counts by how near it is, up to a distance of 1."""
    x = nhwc(c, c.input)
    shares = []
    for axis, side in ((1, "h"), (2, "w")):
        size = x.shape[axis]
        at = np.clip(positions(c, side, size) - 0.5 * c.half_pixel_centers, 0, size - 1)
        shares.append(np.maximum(0, 1 - np.abs(at[:, np.newaxis] - np.arange(size))))
    return laid_out(c, np.einsum("py,qx,nyxc->npqc", *shares, x, optimize=True))
