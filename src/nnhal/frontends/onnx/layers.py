"""Entries of layers: convolutions, pooling, normalisations.

Pictures are NCHW in the file, and in NNAPI by its layout flag.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import part_of, three, transposed
from nnhal.frontends.common.functions import RealArithmetic
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.windows import LayerWindow
from nnhal.frontends.common.writing import ASYMMETRIC, FLOATS, MOST_DIMENSIONS, reshaped_constant
from nnhal.frontends.onnx import volumes
from nnhal.frontends.onnx.elementwise import floats, in_own_type, single_floats
from nnhal.frontends.onnx.fusion import fuse_into_weights
from nnhal.frontends.onnx.movement import filled_around
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.frontends.onnx.windows import window

MOST_PARTS = 64  # that a grouped layer is split into
MOST_FILTER = 1 << 26  # elements of a dilated filter


def spatial(t: NodeTask, x: Term) -> tuple[Term, int]:
    """Return a tensor as pictures, and its rank in the file. A row of elements becomes a picture of height 1."""
    rank = t.rank(x)
    t.require(rank in (3, 4), f"of {rank - 2} dimensions has no operation in NNAPI, which supports pictures and rows")
    return (x if rank == 4 else as_pictures(t, x)), rank


def narrowed(t: NodeTask, x: Term, w: LayerWindow, value: float) -> tuple[Term, LayerWindow]:
    """Pad in a separate operation if the padding is as wide as the window, which NNAPI's layers reject."""
    if all(max(pair) < reach for pair, reach in zip(w.pads, w.reach, strict=True)):
        return x, w
    return filled_around(t, x, [(0, 0), (0, 0), *w.pads], value), w._replace(pads=[(0, 0), (0, 0)])


# ----------------------------------------------------------------------------------------------------------- convolutions


class Filter(NamedTuple):
    """A filter in NNAPI's order, and its operation."""

    name: str
    term: Term
    more: dict[str, int]


def ordered(t: NodeTask, weights: Term, order: Sequence[int], shape: Sequence[int]) -> Term:
    """Permute weights; use the file's bytes if the order does not move any."""
    kept = [i for i in order if shape[i] != 1]
    if kept == sorted(kept) and weights.data is not None:
        return reshaped_constant(weights, [shape[i] for i in order])
    if weights.data is not None:
        data, how = np.asarray(weights.value.data), ("ordered", tuple(order), tuple(shape))
        return t.derived(weights, how, lambda: data.reshape(tuple(shape)).transpose(order))
    return transposed(t, t.reshaped(weights, shape), order)


def filter_of(t: NodeTask, weights: Term, depth: int, w: LayerWindow) -> Filter:
    """Return the filter of a convolution, by its groups."""
    groups, shape = t.attr("group", 1), list(t.known(weights))
    if len(shape) == 3:
        shape.insert(2, 1)
    t.require(len(shape) == 4, f"a filter of shape {shape} must have 3 or 4 dimensions")
    units, inner = shape[:2]
    t.require(groups >= 1 and inner * groups == depth, f"{groups} groups of {inner} channels must be {depth} channels")
    t.require(units % groups == 0, f"has {units} filters in {groups} groups")
    if groups == 1:
        return Filter("CONV_2D", ordered(t, weights, (0, 2, 3, 1), shape), w.dilations())
    if inner == 1:
        return Filter(
            "DEPTHWISE_CONV_2D",
            ordered(t, weights, (1, 2, 3, 0), shape),
            {"depth_multiplier": units // groups, **w.dilations()},
        )
    filter_ = ordered(t, weights, (0, 2, 3, 1), shape)
    if w.dilation != [1, 1]:
        t.require(filter_.data is not None, "in groups has no dilation in NNAPI")
        filter_ = constant(filter_.value, dilated_filter(t, np.asarray(filter_.value.data), w))
    return Filter("GROUPED_CONV_2D", filter_, {"groups": groups})


def dilated_filter(t: NodeTask, data: Array, w: LayerWindow) -> Array:
    """Insert the zeros of a dilated filter."""
    shape = (data.shape[0], *w.reach, data.shape[3])
    t.require(
        math.prod(shape) <= MOST_FILTER, f"a dilated filter has shape {list(shape)}, must have at most 2**26 elements"
    )
    made = np.zeros(shape, data.dtype)
    made[:, :: w.dilation[0], :: w.dilation[1]] = data
    return made


def as_pictures(t: NodeTask, x: Term) -> Term:
    """Return rows of elements [n, c, w] as pictures [n, c, 1, w]: the source pictures, if there are any."""
    found = t.graph.context.pictures.get(id(x))
    if found is not None and t.graph.operations.produces(found):
        return found
    n, c, w = t.shape(x)
    return t.reshaped(x, (n, c, 1, w))


def from_pictures(t: NodeTask, made: Term, rank: int) -> None:
    """Set the node's output from pictures, as rows if it has 3 dimensions in the file."""
    if rank == 4:
        t.result(0, made)
        return
    n, c, _, w = t.shape(made)
    t.result(0, t.reshaped(made, (n, c, w)))
    t.later.append(lambda: t.graph.context.note_reshaped_term(t.results[0], made))


@operator("Conv", inputs=(2, 3), by_rank={5: volumes.convolution},
          becomes="CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, in NCHW; of rows with RESHAPE")  # fmt: skip
def convolution(t: NodeTask) -> None:
    """Convolve pictures, or rows."""
    x, rank = spatial(t, floats(t))
    weights, shape = floats(t, 1), t.shape(x)
    depth = shape[1]
    t.require(depth is not None, "has channels whose number is known only at execution")
    kernel = list(t.known(weights)[2:])
    t.require(len(kernel) == rank - 2, f"has a filter of {len(kernel) + 2} dimensions, must have {rank}")
    w = window(t, kernel, shape[-len(kernel) :])
    filter_ = filter_of(t, weights, depth or 0, w)
    units = t.known(weights)[0]
    bias = t.x(2) if t.given(2) else constant(Value(x.value.type), np.zeros(units, x.value.dtype))
    x, w = narrowed(t, x, w, 0.0)
    more = {"nchw": True, **filter_.more}
    made = t.make(filter_.name, x, filter_.term, bias, **w.padding(), **w.strides(), activation=0, **more)
    from_pictures(t, made, rank)


@operator("ConvTranspose", inputs=(2, 3), by_rank={5: volumes.transposed_convolution},
          becomes="TRANSPOSE_CONV_2D, in NCHW; in groups one for each")  # fmt: skip
def transposed_convolution(t: NodeTask) -> None:
    """Convolve transposed: output_padding adds back what padding removes at the end."""
    x, rank = spatial(t, floats(t))
    weights = floats(t, 1)
    shape = list(t.known(weights))
    t.require(len(shape) == rank, f"has a filter of {len(shape)} dimensions, must have {rank}")
    kernel, sizes = shape[2:], t.shape(x)[-(rank - 2) :]
    t.require(None not in sizes, "is of a size that is known only at execution")
    w = transposed_window(t, kernel, [size or 0 for size in sizes])
    groups, inner = t.attr("group", 1), shape[1]
    t.require(groups >= 1 and shape[0] % groups == 0, f"has {shape[0]} channels in {groups} groups")
    if len(shape) == 3:
        shape.insert(2, 1)
    data = weights.data
    if w.dilation != [1, 1]:
        t.require(data is not None, "with dilation and a computed filter is not in NNAPI")
    bias = np.zeros(inner * groups, x.value.dtype)
    if t.given(2):
        bias = np.asarray(t.data(2, "the bias"))
    depth = shape[0] // groups
    if groups > 1 and groups > MOST_PARTS:
        t.refuse(f"has {groups} groups, must have at most {MOST_PARTS}: NNAPI has no groups here")
    parts = []
    for n in range(groups):
        part = x if groups == 1 else part_of(t, x, 1, n * depth, depth)
        filter_ = weights if groups == 1 else part_of(t, weights, 0, n * depth, depth)
        if data is not None:
            piece = np.asarray(data).reshape(shape)[n * depth : (n + 1) * depth].transpose(1, 2, 3, 0)
            filter_ = constant(weights.value, np.ascontiguousarray(dilated_filter(t, piece, w)))
        else:
            filter_ = transposed(t, t.reshaped(filter_, (depth, *shape[1:])), (1, 2, 3, 0))
        own = constant(Value(x.value.type), np.ascontiguousarray(bias[n * inner : (n + 1) * inner]))
        parts.append(
            t.make("TRANSPOSE_CONV_2D", part, filter_, own, **w.padding(), **w.strides(), activation=0, nchw=True)
        )
    from_pictures(t, parts[0] if groups == 1 else t.make("CONCATENATION", *parts, 1, like=parts[0]), rank)


def transposed_window(t: NodeTask, kernel: Sequence[int], sizes: Sequence[int]) -> LayerWindow:
    """Return the window of a transposed convolution: padding is what NNAPI removes from the range of the products."""
    count = len(kernel)
    stride = t.attr.ints("strides") or [1] * count
    dilation = t.attr.ints("dilations") or [1] * count
    extra = t.attr.ints("output_padding") or [0] * count
    given = t.attr.ints("pads") or [0] * 2 * count
    even = len(stride) == len(dilation) == len(extra) == count and len(given) == 2 * count
    t.require(
        even and min([*stride, *dilation]) >= 1, f"strides {stride}, dilations {dilation}, pads {given} do not fit"
    )
    pads = [(given[n], given[n + count] - extra[n]) for n in range(count)]
    mode, wanted = t.attr("auto_pad", "NOTSET"), t.attr.ints("output_shape")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if mode in ("SAME_UPPER", "SAME_LOWER") or wanted:
        pads, said = [], bool(wanted)
        wanted = wanted[-count:] if wanted else [s * n for s, n in zip(sizes, stride, strict=True)]
        for n in range(count):
            total = (sizes[n] - 1) * stride[n] + extra[n] + reach[n] - wanted[n]
            total = total if said else max(total, 0)  # a stride beyond the filter's reach leaves a smaller picture
            before = int(total / 2) if mode == "SAME_UPPER" else total - total // 2
            pads.append((before, total - before - extra[n]))
    elif mode == "VALID":
        pads = [(0, -extra[n]) for n in range(count)]
    t.require(all(first >= 0 for first, _ in pads), f"pads is {pads}, must be at least 0 at the beginning")
    if count == 1:
        return LayerWindow([1, kernel[0]], [1, stride[0]], [1, dilation[0]], [(0, 0), pads[0]])
    return LayerWindow(list(kernel), list(stride), list(dilation), pads)


# ---------------------------------------------------------------------------------------------------------------- pooling


@operator(
    "AveragePool", to="AVERAGE_POOL_2D", outputs=(1, 2), by_rank={5: volumes.pool}, becomes="AVERAGE_POOL_2D, in NCHW"
)
@operator("MaxPool", to="MAX_POOL_2D", outputs=(1, 2), by_rank={5: volumes.pool}, becomes="MAX_POOL_2D, in NCHW",
          on_stored=True)  # fmt: skip
@operator("LpPool", to="L2_POOL_2D", outputs=(1, 2), becomes="L2_POOL_2D, in NCHW; MUL")
def pool(t: NodeTask) -> None:
    """Pool; padding that counts in a mean becomes a separate operation."""
    x = t.x(0) if t.name == "MaxPool" else floats(t)
    t.require(x.value.type in (*FLOATS, *ASYMMETRIC), f"of {x.kind} has no operation in NNAPI")
    x, rank = spatial(t, x)
    kernel = t.attr.ints("kernel_shape")
    t.require(len(kernel) == rank - 2, f"kernel_shape is {kernel}, must have {rank - 2} numbers")
    sizes = t.shape(x)[-len(kernel) :]
    w = window(t, kernel, sizes)
    t.require(w.dilation == [1, 1], "with dilation is not in NNAPI")
    inner = w.pads
    if t.attr("ceil_mode", 0) and not t.attr("auto_pad", "NOTSET").startswith("SAME"):
        t.require(None not in sizes, "rounds up a size that is known only at execution")
        w = rounded_up(t, w, [size or 0 for size in t.shape(x)[2:]])
    padded = any(map(sum, w.pads))
    if t.name == "AveragePool" and any(map(sum, inner)) and t.attr("count_include_pad", 0):
        x = filled_around(t, x, [(0, 0), (0, 0), *inner], 0.0)
        w = w._replace(pads=[(0, all_[1] - own[1]) for all_, own in zip(w.pads, inner, strict=True)])
    if t.name == "LpPool":
        t.require(t.attr("p", 2) == 2 and not padded, "has p other than 2, or padding, which NNAPI does not support")
    if t.name == "MaxPool":
        lowest = float(np.iinfo(x.value.dtype).min) if x.value.type in ASYMMETRIC else -math.inf
        x, w = narrowed(t, x, w, lowest)
    size = {"filter_w": w.size[1], "filter_h": w.size[0]}
    made = t.make(t.facts.to, x, **w.padding(), **w.strides(), **size, activation=0, nchw=True)
    if t.name == "LpPool":
        made = RealArithmetic(t)("MUL", made, math.sqrt(math.prod(kernel)))
    from_pictures(t, made, rank)


def rounded_up(t: NodeTask, w: LayerWindow, sizes: Sequence[int]) -> LayerWindow:
    """Pad more at the end, so that a window that begins in the picture exists even if it ends beyond it."""
    pads = []
    for (low, high), size, reach, stride in zip(w.pads, sizes, w.reach, w.stride, strict=True):
        count = -(-(size + low + high - reach) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
        pads.append((low, max(high, (count - 1) * stride + reach - size - low)))
    return w._replace(pads=pads)


@operator("GlobalAveragePool", to="MEAN")
@operator("GlobalMaxPool", to="REDUCE_MAX", on_stored=True)
def whole(t: NodeTask) -> None:
    """Pool over all but the first two dimensions."""
    x = floats(t)
    rank = t.rank(x)
    if rank > MOST_DIMENSIONS:
        shape = t.known(x)
        flat = t.reshaped(x, (*shape[:2], math.prod(shape[2:])))
        t.result(0, t.reshaped(t.make(t.facts.to, flat, t.integers([2]), True), (*shape[:2], *[1] * (rank - 2))))
    else:
        t.give(t.facts.to, x, t.integers(list(range(2, rank))), True)


# --------------------------------------------------------------------------------------------------------- normalisations


def per_channel(t: NodeTask, x: Term, values: Array) -> Term:
    """Return a constant for each channel, the second dimension."""
    shape = [1] * t.rank(x)
    shape[min(1, len(shape) - 1)] = -1
    return constant(Value(x.value.type), np.ascontiguousarray(values.astype(x.value.dtype).reshape(shape)))


@operator("BatchNormalization", inputs=5, outputs=(1, 5), by_rank={5: volumes.batch_normalisation},
          becomes="the weights and bias of the layer before; else MUL, ADD")  # fmt: skip
def batch_normalisation(t: NodeTask) -> None:
    """Normalise with the statistics of the training."""
    trained = t.attr("training_mode", 0) if t.opset >= 14 else sum(map(bool, t.node.outputs)) > 1
    t.require(not trained, "is in training mode, which NNAPI does not have")
    t.require(t.attr("spatial", 1), "normalises each element by its own statistics (spatial is 0), must be 1")
    x = floats(t)
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (np.asarray(t.data(n, name), np.float64) for n, name in enumerate(names, 1))
    factor = scale / np.sqrt(variance + t.attr("epsilon", 1e-5))
    shift = bias - mean * factor
    sides = (1, -1, *[1] * (t.rank(x) - 2))[: t.rank(x)]
    merged = fuse_into_weights(t, 0, factor.reshape(sides), shift.reshape(sides))
    if merged is not None:
        t.fresh(merged)
        return
    product = t.make("MUL", x, per_channel(t, x, factor), activation=0)
    t.give("ADD", product, per_channel(t, x, shift), activation=0)


@operator("InstanceNormalization", inputs=3, becomes="INSTANCE_NORMALIZATION, in NCHW; MUL, ADD")
def instance_normalisation(t: NodeTask) -> None:
    """Normalise; NNAPI has one gamma and beta for all channels, so MUL and ADD apply those of each."""
    x = floats(t)
    shape, rank, flat = t.shape(x), t.rank(x), x
    t.require(rank >= 3, f"of {rank} dimensions has none to normalise over")
    if rank != MOST_DIMENSIONS:
        sizes = t.known(x)
        flat = t.reshaped(x, (*sizes[:2], math.prod(sizes[2:-1]), sizes[-1]))
    normal = t.make("INSTANCE_NORMALIZATION", flat, 1.0, 0.0, t.attr("epsilon", 1e-5), True)
    scale, bias = (np.asarray(t.data(n, name)) for n, name in ((1, "scale"), (2, "bias")))
    scaled = t.make("MUL", normal, per_channel(t, normal, scale), activation=0)
    t.result(0, t.reshaped(t.make("ADD", scaled, per_channel(t, normal, bias), activation=0), shape))


def rows_from(t: NodeTask, x: Term, others: Sequence[Term]) -> tuple[Term, Term, list[Term]]:
    """Return a tensor whose dimensions from the axis on are normalised, those dimensions, and its factors and shifts."""
    shape = t.shape(x)
    axis = t.axis(t.attr("axis", -1), len(shape))
    if len(shape) <= MOST_DIMENSIONS:
        return x, t.integers(list(range(axis, len(shape)))), list(others)
    sizes = t.known(x)
    whole = all(t.known(other) == sizes[axis:] for other in others)
    t.require(whole, f"of {len(shape)} dimensions must have a scale and bias for each element")
    rows, inner = math.prod(sizes[:axis]), math.prod(sizes[axis:])
    return t.reshaped(x, (rows, inner)), t.integers([1]), [t.reshaped(other, (1, inner)) for other in others]


@operator("LayerNormalization", inputs=(2, 3), outputs=(1, 3), becomes="MEAN, SUB, MUL, SQRT, DIV, ADD")
def layer_normalisation(t: NodeTask) -> None:
    """Normalise over the dimensions from an axis on."""
    x, r = single_floats(t), RealArithmetic(t)
    rows, axes, others = rows_from(t, x, [t.x(n) for n in (1, 2) if t.given(n)])
    centred = r("SUB", rows, t.make("MEAN", rows, axes, True))
    variance = t.make("MEAN", r("MUL", centred, centred), axes, True)
    deviation = t.make("SQRT", r("ADD", variance, t.attr("epsilon", 1e-5)))
    normal = r("MUL", in_own_type(t, r("DIV", centred, deviation)), others[0])
    t.result(0, t.reshaped(r("ADD", normal, others[1]) if len(others) > 1 else normal, t.shape(x)))


@operator("RMSNormalization", inputs=2, becomes="MUL, MEAN, ADD, SQRT, DIV, MUL")
def root_mean_square_normalisation(t: NodeTask) -> None:
    """Divide by the root of the mean of squares over the dimensions from an axis on."""
    x, r = single_floats(t), RealArithmetic(t)
    rows, axes, (scale,) = rows_from(t, x, [t.x(1)])
    root = t.make("SQRT", r("ADD", t.make("MEAN", r("MUL", rows, rows), axes, True), t.attr("epsilon", 1e-5)))
    t.result(0, t.reshaped(r("MUL", in_own_type(t, r("DIV", rows, root)), scale), t.shape(x)))


@operator("GroupNormalization", inputs=3, becomes="INSTANCE_NORMALIZATION, in NCHW, of groups; MUL, ADD")
def group_normalisation(t: NodeTask) -> None:
    """Normalise groups. Scale and bias belong to channels from version 21 on, to groups before."""
    x, groups = floats(t), t.attr("num_groups", 1)
    shape = t.known(x)
    t.require(groups >= 1 and shape[1] % groups == 0, f"has {shape[1]} channels in {groups} groups")
    inner = shape[1] // groups
    flat = t.reshaped(x, (shape[0], groups, inner, math.prod(shape[2:])))
    normal = t.make("INSTANCE_NORMALIZATION", flat, 1.0, 0.0, t.attr("epsilon", 1e-5), True)
    values = []
    for n, name in ((1, "scale"), (2, "bias")):
        found = np.asarray(t.data(n, name))
        values.append(np.repeat(found, inner) if found.size == groups else found)
    back = t.reshaped(normal, (shape[0], shape[1], math.prod(shape[2:])))
    scaled = t.make("MUL", back, per_channel(t, back, values[0]), activation=0)
    t.result(0, t.reshaped(t.make("ADD", scaled, per_channel(t, back, values[1]), activation=0), shape))


@operator("LpNormalization", becomes="REDUCE_SUM, SQRT, MAXIMUM, DIV")
def lp_normalisation(t: NodeTask) -> None:
    """Divide by the length of the vector along an axis; a vector of length 0 is unchanged."""
    x, r = single_floats(t), RealArithmetic(t)
    axis, p = t.axis(t.attr("axis", -1), t.rank(x)), t.attr("p", 2)
    t.require(p in (1, 2), f"p is {p}, must be 1 or 2")
    terms = t.make("ABS", x) if p == 1 else r("MUL", x, x)
    length = t.make("REDUCE_SUM", terms, t.integers([axis]), True)
    length = length if p == 1 else t.make("SQRT", length)
    t.result(0, in_own_type(t, r("DIV", x, r("MAXIMUM", length, float(np.finfo(np.float32).tiny)))))


@operator("LRN", becomes="LOCAL_RESPONSE_NORMALIZATION along the channels")
def local_response(t: NodeTask) -> None:
    """Convert alpha: NNAPI's applies to each term, ONNX's to their mean."""
    x, size = floats(t), t.attr("size", 1)
    t.require(size % 2 == 1, f"size is {size}, must be odd for NNAPI")
    alpha, beta, bias = t.attr("alpha", 1e-4), t.attr("beta", 0.75), t.attr("bias", 1.0)
    t.give("LOCAL_RESPONSE_NORMALIZATION", x, size // 2, bias, alpha / size, beta, 1)


@operator("MeanVarianceNormalization", becomes="MEAN, SUB, MUL, SQRT, DIV")
def mean_variance(t: NodeTask) -> None:
    """Normalise over axes."""
    x, r = single_floats(t), RealArithmetic(t)
    axes = t.integers(t.attr.ints("axes") or [0, 2, 3])
    centred = r("SUB", x, t.make("MEAN", x, axes, True))
    deviation = t.make("SQRT", t.make("MEAN", r("MUL", centred, centred), axes, True))
    t.result(0, in_own_type(t, r("DIV", centred, r("ADD", deviation, 1e-9))))


@operator("Softmax", to="SOFTMAX", becomes="SOFTMAX; before version 13 of rows")
@operator("LogSoftmax", to="LOG_SOFTMAX", becomes="LOG_SOFTMAX; before version 13 of rows")
def softmax(t: NodeTask) -> None:
    """Compute the softmax along an axis; before version 13, over all dimensions from an axis on."""
    x = floats(t)
    shape, old = t.shape(x), t.opset < 13
    axis = t.axis(t.attr("axis", 1 if old else -1), len(shape))
    last = axis == len(shape) - 1
    if old and not last:
        halves = shape[:axis], shape[axis:]
        flat = t.reshaped(x, [None if None in half else math.prod(d or 0 for d in half) for half in halves])
        t.result(0, t.reshaped(t.make(t.facts.to, flat, 1.0, -1), shape))
    elif len(shape) > MOST_DIMENSIONS:
        sizes = t.known(x)
        t.result(0, t.reshaped(t.make(t.facts.to, t.reshaped(x, three(sizes, axis)), 1.0, 1), sizes))
    else:
        t.give(t.facts.to, x, 1.0, -1 if last else axis)
