"""Entries of reductions over axes, and of cumulative sums."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, axis_moved, broadcast, merged, moved, part_of
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.functions import RealArithmetic, modulo, plain, towards_zero
from nnhal.frontends.common.integer_ranges import Span, Spans, of_all, of_indices, of_sum, power
from nnhal.frontends.common.operators import Fold
from nnhal.frontends.common.reductions import PAIRWISE, cumulated, grouped, halved
from nnhal.frontends.common.terms import Term, bare
from nnhal.frontends.common.writing import ASYMMETRIC, FLOATS, MOST_DIMENSIONS, check_count, copied, filled
from nnhal.frontends.onnx.elementwise import in_own_type, single_floats
from nnhal.frontends.onnx.indexing import reversed_along
from nnhal.frontends.onnx.shapes import axes_in
from nnhal.frontends.onnx.task import MOST_FOLDED, NodeTask, operator
from nnhal.ops.schema import F16, F32, I32

MOST_SUMMED = 1 << 16


def reduces(function: Callable[..., Any]) -> Fold:
    """Wrap a reduction over axes."""

    def computed(t: NodeTask, x: Array, *_: Array) -> Any:
        axes, keep = axes_in(t), bool(t.attr("keepdims", 1))
        if not axes and t.attr("noop_with_empty_axes", 0):
            return x
        return function(x, axis=tuple(axes) if axes else None, keepdims=keep)

    return computed


def folded_sum(x: Array, **more: Any) -> Any:
    require_foldable(x.dtype.kind == "f" or (x.size <= MOST_FOLDED and np.abs(x.astype(np.float64)).sum() < 2**62))
    return np.sum(x, **more)


def folded_product(x: Array, **more: Any) -> Any:
    require_foldable(x.dtype.kind == "f" or np.abs(x.astype(np.float64)).prod() < 2**62)
    return np.prod(x, **more)


def of_product(s: Spans) -> Span:
    """Return the range of a product of any elements of a tensor."""
    count = 32 if s.shape is None or None in s.shape else math.prod(d or 0 for d in s.shape)
    low, high = s.inputs[0]
    most = max(1, power(max(abs(low), abs(high)), count))
    return (0 if low >= 0 else -most), most


@operator("ReduceSum", to="REDUCE_SUM", inputs=(1, 2), becomes="REDUCE_SUM; of integers ADD", fold=reduces(folded_sum),
          span=of_sum)  # fmt: skip
@operator("ReduceMean", to="MEAN", inputs=(1, 2), becomes="MEAN; of integers ADD and DIV", span=of_sum)
@operator("ReduceMax", to="REDUCE_MAX", inputs=(1, 2), becomes="REDUCE_MAX; of integers MAXIMUM", fold=reduces(np.max),
          span=of_all)  # fmt: skip
@operator("ReduceMin", to="REDUCE_MIN", inputs=(1, 2), becomes="REDUCE_MIN; of integers MINIMUM", fold=reduces(np.min),
          span=of_all)  # fmt: skip
@operator("ReduceProd", to="REDUCE_PROD", inputs=(1, 2), becomes="REDUCE_PROD; of integers MUL",
          fold=reduces(folded_product), span=of_product)  # fmt: skip
def reduce_(t: NodeTask) -> None:
    """Reduce over some axes, or all."""
    finish(t, t.x(0), t.facts.to)


@operator("ReduceL1", inputs=(1, 2), becomes="ABS, REDUCE_SUM")
def sum_of_sizes(t: NodeTask) -> None:
    """Sum the absolute values."""
    finish(t, flat(t, lambda x: t.make("ABS", x)), "REDUCE_SUM")


@operator("ReduceSumSquare", inputs=(1, 2), becomes="MUL, REDUCE_SUM")
def sum_of_squares(t: NodeTask) -> None:
    """Sum the squares."""
    finish(t, flat(t, lambda x: RealArithmetic(t)("MUL", x, x)), "REDUCE_SUM")


@operator("ReduceL2", inputs=(1, 2), becomes="MUL, REDUCE_SUM, SQRT")
def length(t: NodeTask) -> None:
    """Write the root of the sum of squares."""
    finish(t, flat(t, lambda x: RealArithmetic(t)("MUL", x, x)), "REDUCE_SUM", "SQRT")


@operator("ReduceLogSum", inputs=(1, 2), becomes="REDUCE_SUM, LOG")
def log_sum(t: NodeTask) -> None:
    """Write the logarithm of the sum."""
    finish(t, single_floats(t), "REDUCE_SUM", "LOG")


@operator("ReduceLogSumExp", inputs=(1, 2), becomes="REDUCE_MAX, SUB, EXP, REDUCE_SUM, LOG, ADD")
def log_sum_exp(t: NodeTask) -> None:
    """Subtract the greatest element first, so that no power overflows."""
    x, r = single_floats(t), RealArithmetic(t)
    axes, keep = over(t, x), bool(t.attr("keepdims", 1))
    if not axes:
        left(t, copied(t, x), x, axes, keep=keep)
        return
    shape = t.known(x)
    parts, greatest = reduced(t, x, "REDUCE_MAX", axes), float(np.finfo(np.float32).max)
    few = (math.prod(t.known(parts)),)
    limited = most = r("MINIMUM", r("MAXIMUM", t.reshaped(parts, few), -greatest), greatest)  # inf - inf would be NaN
    together = merged((shape, t.known(parts)), shape)
    if len(together[0]) > MOST_DIMENSIONS:
        most, together = broadcast(t, t.reshaped(most, t.known(parts)), shape), [[math.prod(shape)]] * 2
    rest = r("SUB", t.reshaped(x, together[0]), t.reshaped(most, together[1]))
    total = reduced(t, t.reshaped(t.make("EXP", rest), shape), "REDUCE_SUM", axes)
    made = r("ADD", t.make("LOG", t.reshaped(total, few)), limited)
    left(t, t.reshaped(made, t.known(parts)), x, axes, keep=keep)


def flat(t: NodeTask, function: Callable[[Term], Term]) -> Term:
    """Apply an elementwise function to the input, which may have more dimensions than NNAPI supports."""
    x = single_floats(t)
    if len(t.shape(x)) <= MOST_DIMENSIONS:
        return function(x)
    shape = t.known(x)
    return t.reshaped(function(t.reshaped(x, (math.prod(shape),))), shape)


def over(t: NodeTask, x: Term) -> list[int]:
    """Return the axes, all by default."""
    named, rank = axes_in(t), t.rank(t.raw(0))
    if not named:
        return [] if t.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({t.axis(n, rank) for n in named})


def finish(t: NodeTask, x: Term, name: str, *after: str) -> None:
    """Set the node's output: a reduction, and functions of it."""
    axes, keep = over(t, x), bool(t.attr("keepdims", 1))
    made = reduced(t, x, name, axes) if axes else x
    if name == "MEAN" and axes and x.value.type == I32:
        made = integer_quotient(t, made, math.prod(t.known(x)[i] for i in axes))
    for function in after:
        made = t.make(function, made)
    left(t, made, x, axes, keep=keep)


def integer_quotient(t: NodeTask, total: Term, count: int) -> Term:
    """Divide sums by a number above 0, rounded towards 0, as a row."""
    total = t.reshaped(total, (math.prod(t.known(total)),))
    return towards_zero(t, plain(t, "DIV", total, t.scalar(count, total)), modulo(t, total, count))


def left(t: NodeTask, made: Term, x: Term, axes: Sequence[int], *, keep: bool) -> None:
    """Set the node's output, with or without the dimensions of 1."""
    shape = t.shape(x)[: t.rank(t.raw(0))]
    dims = [1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes]
    t.result(0, t.reshaped(in_own_type(t, made), dims or [1]), t.raw(0).kind, scalar=not dims)


def reduced(t: NodeTask, x: Term, name: str, axes: Sequence[int]) -> Term:
    """Reduce; the reduced dimensions become 1."""
    if reduces_type(x, name) and len(t.shape(x)) <= MOST_DIMENSIONS:
        return t.make(name, x, t.integers(axes), True)
    shape = t.known(x)
    return t.reshaped(
        grouped(t, x, shape, axes, lambda y: along(t, y, name)), [1 if i in axes else d for i, d in enumerate(shape)]
    )


def reduces_type(x: Term, name: str) -> bool:
    """Whether NNAPI's operation reduces a type: the greatest and least of 8 bits are the same in all scales."""
    return x.value.type in FLOATS or (x.value.type in ASYMMETRIC and name in ("REDUCE_MAX", "REDUCE_MIN"))


def along(t: NodeTask, x: Term, name: str) -> Term:
    """Reduce the second of three dimensions to 1."""
    if reduces_type(x, name):
        return t.make(name, x, t.integers([1]), True)
    t.require(x.value.type == I32 and name in PAIRWISE, f"of {t.raw(0).kind} has no operation in NNAPI")
    size = t.known(x)[1]
    t.require(size <= MOST_SUMMED, f"of {size} integers, must be of at most {MOST_SUMMED}")
    return halved(t, PAIRWISE[name], x)


def folded_cumulative(t: NodeTask, x: Array, axis: Array) -> Any:
    require_foldable(not t.attr("exclusive", 0) and not t.attr("reverse", 0) and x.size <= MOST_FOLDED)
    return np.cumsum(x, int(axis.reshape(())))


@operator("CumSum", inputs=2, becomes="ADD of the tensor moved by 1, 2, 4, .. places", fold=folded_cumulative,
          span=of_sum)  # fmt: skip
def cumulative(t: NodeTask) -> None:
    """Sum along an axis, in either direction, with or without the element itself."""
    x = t.x(0)
    t.require(x.value.type in (F32, F16, I32), f"of {x.kind} has no operation in NNAPI")
    axis, back = t.axis(t.integer_of(1, "axis"), t.rank(x)), bool(t.attr("reverse", 0))
    check_count(math.prod(t.known(x)))
    exclusive = bool(t.attr("exclusive", 0))
    made = cumulated(t, x, axis, lambda y, step: shifted(t, y, step, back=back), exclusive=exclusive)
    t.result(0, made, x.kind)


def shifted(t: NodeTask, x: Term, step: int, *, back: bool) -> Term:
    """Move the second of three dimensions forward (back) by some places, and fill with zeros."""
    outer, size, inner = t.known(x)
    if x.value.type == I32:  # NNAPI does not concatenate int32
        places = np.full((outer, size + step, inner), NOWHERE)
        places[:, step if not back else 0 :][:, :size] = np.arange(outer * size * inner).reshape(outer, size, inner)
        return moved(t, [x], places[:, step:] if back else places[:, :size])
    zeros = filled(t, (outer, min(step, size), inner), 0, OperandType(x.value.type))
    if step >= size:
        return zeros
    kept = part_of(t, x, 1, step if back else 0, size - step)
    return t.make("CONCATENATION", *((kept, zeros) if back else (zeros, kept)), 1, like=x)


def places(function: Callable[..., Any]) -> Fold:
    def computed(t: NodeTask, x: Array) -> Any:
        require_foldable(not t.attr("select_last_index", 0))
        return function(x, axis=t.attr("axis", 0), keepdims=bool(t.attr("keepdims", 1))), "INT64"

    return computed


@operator("ArgMax", to="ARGMAX", fold=places(np.argmax), span=of_indices)
@operator("ArgMin", to="ARGMIN", fold=places(np.argmin), span=of_indices)
def arg_most(t: NodeTask) -> None:
    """Return the index of the greatest or least element, the first of several."""
    x = t.x(0)
    shape = t.shape(x)[: t.rank(x)]
    axis = t.axis(t.attr("axis", 0), len(shape))
    if t.attr("select_last_index", 0):
        x = reversed_along(t, x, axis)
    made = t.make(t.facts.to, x, axis, like=Value(I32))
    if t.attr("select_last_index", 0):
        sizes = t.shape(made)
        made = made if len(sizes) <= MOST_DIMENSIONS else t.reshaped(made, (math.prod(t.known(made)),))
        made = t.make("SUB", t.scalar((shape[axis] or 0) - 1, made), made, like=made, activation=0)
    keep = bool(t.attr("keepdims", 1))
    dims = [1 if i == axis else d for i, d in enumerate(shape) if keep or i != axis]
    t.result(0, t.reshaped(made, dims or [1]), "INT64", scalar=not dims)


@operator("TopK", inputs=(1, 2), outputs=2, span=lambda s: (of_indices if s.number else of_all)(s),
          becomes="TOPK_V2 along the last dimension, reversed where indices count; of the least, of the "
          "negated")  # fmt: skip
def top(t: NodeTask) -> None:
    """Return the k greatest or least elements, sorted.

    Among equals, ONNX returns the lower index first, NNAPI the higher.
    """
    x, k = t.x(0), t.integer_of(1, "k") if t.given(1) else t.attr("k", 0)  # an attribute before version 10
    shape = t.shape(x)
    axis = t.axis(t.attr("axis", -1), t.rank(x))
    size = shape[axis]
    t.require(size is None or 0 < k <= size, f"k is {k}, must be 1 to {size}")
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    turned = axis_moved(t, x, order)
    counted, least = t.is_output_used(1), not t.attr("largest", 1)
    lead = t.shape(turned)[:-1]
    if len(order) > MOST_DIMENSIONS:
        turned = t.reshaped(turned, (math.prod(t.known(turned)[:-1]), size))
    if counted:
        turned = reversed_along(t, turned, len(t.shape(turned)) - 1)
    found, places = t.run(
        "TOPK_V2", negated(t, turned) if least else turned, k, outs=[bare(turned.value), Value(I32, None)]
    )
    if least:
        found = negated(t, found)
    if counted:
        places = t.make("SUB", t.scalar((size or 0) - 1, places), places, like=places, activation=0)
    back = np.argsort(order).tolist()
    found, places = (t.reshaped(each, (*lead, k)) for each in (found, places))
    t.result(0, axis_moved(t, found, back), x.kind)
    t.result(1, axis_moved(t, places, back), "INT64")


def negated(t: NodeTask, x: Term) -> Term:
    """Reverse the order of numbers: -x, and -1 - x for integers, which always exists."""
    if x.value.type != I32:
        return t.make("NEG", x)
    return t.make("SUB", t.scalar(-1, x), x, like=x, activation=0)
