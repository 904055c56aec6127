"""Entries of reductions over axes, and of cumulative sums."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, moved, numbered
from nnhal.frontends.common.folding import CannotFold, numbers, require_foldable
from nnhal.frontends.common.functions import modulo, plain, towards_zero
from nnhal.frontends.common.integer_ranges import of_all, of_indices, of_sum
from nnhal.frontends.common.operators import Fold
from nnhal.frontends.common.reductions import BOTH, PAIRWISE, cumulated, grouped, halved, runs, unfused
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.windows import LayerWindow
from nnhal.frontends.common.writing import ASYMMETRIC, MOST_DIMENSIONS, check_count, filled, ones
from nnhal.frontends.tflite.padding import dilate, pad_edges
from nnhal.frontends.tflite.task import MOST_FOLDED, OPERATORS, OperatorTask, operator
from nnhal.ops.schema import B8, F32, I32

MOST_AVERAGED = 46_340  # remainders, each below their number, whose sum fits 32 bits


def reduces(function: Callable[..., Any]) -> Fold:
    """Wrap a reduction over axes."""

    def folded(t: OperatorTask, x: Array, axes: Array) -> Any:
        keep, over = bool(t.options("ReducerOptions")("KeepDims")), {axis % x.ndim for axis in numbers(axes)}
        require_foldable(math.prod(n for i, n in enumerate(x.shape) if i not in over) <= MOST_FOLDED)
        return function(x, axis=tuple(over), keepdims=keep)

    return folded


@operator("SUM", to="REDUCE_SUM", inputs=2, real=True, becomes="REDUCE_SUM; of int32 ADD of halves",
          fold=reduces(np.sum), span=of_sum)  # fmt: skip
@operator("REDUCE_PROD", inputs=2, real=True, becomes="REDUCE_PROD; of int32 MUL of halves", fold=reduces(np.prod))
@operator("REDUCE_MAX", inputs=2, real=True, becomes="REDUCE_MAX; of int32 MAXIMUM of halves", fold=reduces(np.max),
          span=of_all)  # fmt: skip
@operator("REDUCE_MIN", inputs=2, real=True, becomes="REDUCE_MIN; of int32 MINIMUM of halves", fold=reduces(np.min),
          span=of_all)  # fmt: skip
@operator("MEAN", inputs=2, real=True, becomes="MEAN; of int32 quotients and remainders, ADD of halves")
@operator("REDUCE_ANY", inputs=2, fold=reduces(np.any))
@operator("REDUCE_ALL", inputs=2, fold=reduces(np.all))
def reduce(t: OperatorTask) -> None:
    """Reduce over some axes."""
    deep = t.rank(t.raw(0)) > MOST_DIMENSIONS
    # DEQUANTIZE takes four dimensions at most: those of a deep tensor are merged before
    x, keep = t.raw(0) if t.reals and deep else t.x(0), bool(t.options("ReducerOptions")("KeepDims"))
    axes = t.ints(1, "axes") if t.raw(1).data is not None else None
    if axes == [] or t.rank(x) == 0:
        t.require(x.value.type not in ASYMMETRIC, "over no axis changes the scale")
        t.result(0, x)
    elif axes is not None and (x.value.type == I32 or deep):
        rank = t.rank(x)
        reduced = {t.axis(n, rank) for n in axes}
        shape = t.known(x)
        left = [1 if i in reduced else d for i, d in enumerate(shape) if keep or i not in reduced]
        t.result(0, t.reshaped(over_groups(t, x, reduced), left or [1]))
    else:
        t.give(t.facts.to or t.name, x, t.index(1, "axes"), keep)


def over_groups(t: OperatorTask, x: Term, axes: set[int]) -> Term:
    """Reduce a tensor of any rank: adjacent dimensions that are both reduced, or both kept, are merged."""
    t.require(0 not in t.known(x), "has no elements")
    if t.name == "MEAN" and x.value.type == I32:
        return integer_mean(t, x, axes)
    if x.value.type not in ASYMMETRIC:
        return grouped(t, x, t.known(x), axes, lambda y: along(t, y))
    sizes, places = runs(t.known(x), axes)
    t.require(len(sizes) <= MOST_DIMENSIONS, "of more than four dimensions would be rounded twice")
    merged = t.reshaped(x, sizes)
    return t.make(t.facts.to or t.name, t.real(merged) if t.reals else merged, t.integers(places), True, like=t.out())


def integer_mean(t: OperatorTask, x: Term, axes: set[int]) -> Term:
    """Average integers, rounded towards 0.

    The sum may exceed 32 bits, so quotients and remainders are summed separately.
    """
    shape = t.known(x)
    count = math.prod(shape[i] for i in axes)
    t.require(count <= MOST_AVERAGED, f"averages {count} integers, must average at most {MOST_AVERAGED}")
    flat = t.reshaped(x, (math.prod(shape),))
    rest, size = modulo(t, flat, count), t.scalar(count, x)
    quotients, rests = (
        grouped(t, each, shape, axes, lambda y: along(t, y)) for each in (plain(t, "DIV", flat, size), rest)
    )
    down = plain(t, "ADD", quotients, plain(t, "DIV", rests, size))
    return towards_zero(t, down, modulo(t, rests, count))


def along(t: OperatorTask, x: Term) -> Term:
    """Reduce the second of three dimensions to 1."""
    name = t.facts.to or t.name
    if x.value.type == I32:
        t.require(name in PAIRWISE, "of INT32 is not in TFLite")
        return halved(t, PAIRWISE[name], x)
    return t.make(name, x, t.integers([1]), True)


@operator("CUMSUM", inputs=2, becomes="ADD of the tensor moved by 1, 2, 4, .. places")
def cumulative(t: OperatorTask) -> None:
    """Sum along an axis, in either direction, with or without the element itself."""
    o, x = t.options("CumsumOptions"), t.x(0)
    t.require(x.value.type not in ASYMMETRIC, f"of {x.kind} is not in TFLite")
    axis, back = t.axis(t.integer(1, "axis"), t.rank(x)), bool(o("Reverse"))
    t.require(math.prod(t.known(x)), "has no elements")
    t.result(0, cumulated(t, x, axis, lambda y, step: shifted(t, y, step, back=back), exclusive=bool(o("Exclusive"))))


def shifted(t: OperatorTask, x: Term, step: int, *, back: bool) -> Term:
    """Move the second of three dimensions forward (back) by some places, and fill with zeros."""
    outer, size, inner = t.known(x)
    check_count(outer * size * inner)
    rows = np.arange(size) + (step if back else -step)
    there = (rows >= 0) & (rows < size)
    found = t.make("GATHER", x, 1, constant(Value(I32), np.where(there, rows, 0).astype(np.int32)))
    mask = np.broadcast_to(there[:, None], (outer, size, inner)).copy()
    zeros = filled(t, (outer, size, inner), 0, OperandType(x.value.type))
    return t.make("SELECT", constant(Value(B8), mask), found, zeros, like=x)


# ------------------------------------------------------------------------------------------------------------- windows

FUNCTIONS = (None, "REDUCE_SUM", "REDUCE_PROD", "REDUCE_MIN", "REDUCE_MAX", "REDUCE_ALL", "REDUCE_ANY")  # by number
MOST_ONES = 1 << 16  # elements of a filter that adds up windows
COMBINED: dict[str, np.ufunc] = {
    "REDUCE_SUM": np.add, "REDUCE_PROD": np.multiply, "REDUCE_MIN": np.minimum, "REDUCE_MAX": np.maximum,
    "REDUCE_ALL": np.logical_and, "REDUCE_ANY": np.logical_or,
}  # fmt: skip
NEUTRAL = {"REDUCE_SUM": 0.0, "REDUCE_MAX": -math.inf}  # of the functions that layers compute


def reduction_in(t: OperatorTask, number: int) -> tuple[list[str], str | None]:
    """Return the operators of a subgraph, and the reduction by its operation of two, if it has no other."""
    graphs = t.graph.file.subgraphs
    t.require(0 <= number < len(graphs), f"refers to subgraph {number}, must be 0 to {len(graphs) - 1}")
    body = [operator.name for operator in graphs[number].operators]
    operation = (OPERATORS[body[0]].to or body[0]) if len(body) == 1 else ""
    return body, next((name for name in FUNCTIONS if name and BOTH[name] == operation), None)


@operator("REDUCE_WINDOW", inputs=5,
          becomes="DEPTHWISE_CONV_2D, MAX_POOL_2D; or GATHER, REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN")  # fmt: skip
def reduce_window(t: OperatorTask) -> None:
    """Reduce every window within the tensor."""
    number = t.options("ReduceWindowOptions")("ReduceFunction")
    kind = FUNCTIONS[number] if 0 <= number < len(FUNCTIONS) else None
    size, stride, dilation = (
        t.ints(place, what) for place, what in ((2, "window_shape"), (3, "strides"), (4, "dilations"))
    )
    over_windows(t, kind, LayerWindow(size, stride, dilation, [(0, 0)] * t.rank(t.x(0))), ())


@operator("STABLEHLO_REDUCE_WINDOW", inputs=2, becomes="as REDUCE_WINDOW, with padding")
def reduce_padded_window(t: OperatorTask) -> None:
    """Reduce padded windows; padding has the initial value, and the function is a subgraph of one operator."""
    o, rank = t.options("StablehloReduceWindowOptions"), t.rank(t.x(0))
    _, kind = reduction_in(t, o("BodySubgraphIndex"))
    names = ("WindowDimensions", "WindowStrides", "WindowDilations", "BaseDilations")
    size, stride, dilation, grown = (list(o.numbers(name) or (1,) * rank) for name in names)
    pads = o.numbers("Padding") or (0,) * 2 * rank
    fits = len(pads) == 2 * rank == 2 * len(grown) and min(grown, default=1) > 0
    t.require(fits, "must have two paddings and a dilation for each dimension")
    over_windows(t, kind, LayerWindow(size, stride, dilation, list(zip(pads[::2], pads[1::2], strict=True))), grown)


def over_windows(t: OperatorTask, kind: str | None, window: LayerWindow, grown: Sequence[int]) -> None:
    """Set the output to reduced windows of input 0, combined with the initial value, input 1.

    grown: the dilation of each dimension of the input; none if it is 1.
    """
    x, first = t.x(0), t.x(1)
    if kind is None:
        t.refuse("reduces with a function that NNAPI has no reduction for")
    t.require(x.value.type in (F32, I32, B8), f"of {x.kind} sums stored integers, which NNAPI does not support")
    t.require((x.value.type == B8) == (kind not in PAIRWISE), f"of {x.kind} has a reduction of another type")
    count = math.prod(t.known(first))
    t.require(count == 1, f"begins with {count} numbers, must begin with one")
    lists, rank = window[:3], t.rank(x)
    fits = all(len(each) == rank and min(each, default=1) > 0 for each in lists)
    t.require(fits, f"window, strides and dilations are {lists}, must be {rank} positive numbers each")
    if x.value.data is not None and first.value.data is not None:
        places, start = places_of(t, x, window, grown), first.value.data.item()
        elements = np.append(x.value.data, x.value.data.dtype.type(start))[places]
        t.known_result(COMBINED[kind].reduce(elements, axis=-1, dtype=elements.dtype, initial=start))
        return
    found = None if max(grown, default=1) > 1 else by_layer(t, x, kind, window)
    if found is None:
        found = by_places(t, x, kind, places_of(t, x, window, grown))
    shape = t.known(found)
    if first.value.data is None or first.value.data.item() != NEUTRAL.get(kind):
        both = t.reshaped(found, (math.prod(shape),)), t.reshaped(first, (1,))
        found = t.make(BOTH[kind], *both, **unfused(BOTH[kind]))
    t.result(0, t.reshaped(found, shape))


def by_layer(t: OperatorTask, x: Term, kind: str, window: LayerWindow) -> Term | None:
    """Reduce windows of floats along a dimension, or two neighbours, by one operation; None if that is impossible.

    A convolution with ones adds them up, and a pool takes their greatest elements.
    """
    sizes, reach = t.known(x), window.reach
    rows = zip(window.size, window.stride, window.dilation, window.pads, strict=True)
    over = [axis for axis, (n, step, apart, pads) in enumerate(rows) if (n, step, apart, *pads) != (1, 1, 1, 0, 0)]
    padded = any(before or after for before, after in window.pads)
    if x.value.type != F32 or kind not in NEUTRAL or not 0 < len(over) <= 2 or over[-1] - over[0] > 1:
        return None
    if not all(
        0 <= min(pad) <= max(pad) < n <= d + sum(pad) for pad, n, d in zip(window.pads, reach, sizes, strict=True)
    ):
        return None
    if padded and (t.raw(1).data is None or t.number(1, "init_value") != NEUTRAL[kind]):
        return None
    first, last = over[0], over[-1] + 1
    size, stride, dilation = ([*each[first:last], 1][:2] for each in window[:3])
    w = LayerWindow(size, stride, dilation, [*window.pads[first:last], (0, 0)][:2])
    high, wide = [*sizes[first:last], 1][:2]
    outer, inner = math.prod(sizes[:first]), math.prod(sizes[last:])
    picture, how = t.reshaped(x, (outer, high, wide, inner)), w.padding() | w.strides() | {"activation": 0}
    if kind == "REDUCE_SUM":
        if math.prod(size) * inner > MOST_ONES:
            return None
        filter, bias = np.ones((1, *size, inner), np.float32), np.zeros(inner, np.float32)
        how |= {"depth_multiplier": 1} | w.dilations()
        found = t.make("DEPTHWISE_CONV_2D", picture, constant(Value(F32), filter), constant(Value(F32), bias), **how)
    elif not w.dilations():
        found = t.make("MAX_POOL_2D", picture, filter_w=size[1], filter_h=size[0], **how)
    else:
        return None
    return t.reshaped(found, (*sizes[:first], *t.known(found)[1 : 1 + len(over)], *sizes[last:]))


def places_of(t: OperatorTask, x: Term, window: LayerWindow, grown: Sequence[int]) -> Array:
    """Return the numbers of the elements in each window, with one more dimension. grown: see `over_windows`."""
    whole = numbered(t, [x])[0]
    try:
        if window.pads:
            whole = pad_edges(dilate(whole, grown or (1,) * whole.ndim), window.pads)
    except CannotFold:
        t.refuse("has no elements, or too many")
    fits = all(n <= size for n, size in zip(window.reach, whole.shape, strict=True))
    t.require(fits, "has a window that does not fit")
    check_count(whole.size * math.prod(window.size))
    seen = np.lib.stride_tricks.sliding_window_view(whole, window.reach)
    seen = seen[tuple(slice(None, None, n) for n in (*window.stride, *window.dilation))]
    return seen.reshape(*seen.shape[: whole.ndim], -1)


def by_places(t: OperatorTask, x: Term, kind: str, places: Array) -> Term:
    """Reduce windows whose elements are gathered."""
    fill = t.number(1, "init_value") if (places == NOWHERE).any() else 0
    found = t.reshaped(moved(t, [x], places, fill), (places[..., 0].size, places.shape[-1], 1))
    found = halved(t, PAIRWISE[kind], found) if x.value.type == I32 else t.make(kind, found, t.integers([1]), True)
    return t.reshaped(found, places.shape[:-1] or (1,))


# ------------------------------------------------------------------------------------------------------- places of extremes


@operator("ARG_MAX", to="ARGMAX", inputs=2, span=of_indices)
@operator("ARG_MIN", to="ARGMIN", inputs=2, span=of_indices)
def arg_extreme(t: OperatorTask) -> None:
    """Return the index, whose 64-bit value fits 32 bits."""
    x = t.x(0)
    axis = t.axis(t.integer(1, "axis"), t.rank(x))
    x = ones(t, x) if x.value.type == B8 else x
    (found,) = t.run(t.facts.to, x, axis, outs=[Value(I32, None)])
    t.same(found)


@operator("TOPK_V2", inputs=2, outputs=2, span=lambda s: (of_indices if s.number else of_all)(s),
          becomes="TOPK_V2 of the row reversed, whose order among equals is the other one")  # fmt: skip
def topk(t: OperatorTask) -> None:
    """Return the top elements.

    Among equals, TFLite returns the lower index first, NNAPI the higher, so NNAPI gets the reversed row.
    """
    x, k = t.x(0), t.integer(1, "k")
    if not t.reads(1):
        t.give("TOPK_V2", x, k)
        return
    size = t.shape(x)[-1]
    if size is None:
        t.refuse("the last dimension is known only at execution, must be known to count from its front")
    shape = t.shape(x)
    rows = t.reshaped(x, (math.prod(t.known(x)[:-1]), size)) if len(shape) > MOST_DIMENSIONS else x
    mirrored = t.make("REVERSE", rows, t.integers([len(t.shape(rows)) - 1]))
    values, indices = t.run("TOPK_V2", mirrored, k, outs=[t.out(0), t.out(1)])
    last = constant(Value(I32), np.array([size - 1], np.int32))
    counted = t.make("SUB", last, indices, like=indices, activation=0)
    for number, term in enumerate((values, counted)):
        t.result(number, term if rows is x else t.reshaped(term, (*shape[:-1], k)))
