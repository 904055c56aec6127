"""Entries of StableHLO's operators: elementwise ones with other names in NNAPI, and moves by computed indices."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import axis_moved, broadcast
from nnhal.frontends.common.functions import truncated_quotient
from nnhal.frontends.common.reductions import PAIRWISE, unfused
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import check_count
from nnhal.frontends.tflite.functions import cosine
from nnhal.frontends.tflite.indexing import combined
from nnhal.frontends.tflite.reduction import reduction_in
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import B8, I32


@operator("STABLEHLO_ABS", to="ABS", single=True)
@operator("STABLEHLO_EXPONENTIAL", to="EXP", single=True)
@operator("STABLEHLO_FLOOR", to="FLOOR", single=True)
@operator("STABLEHLO_LOG", to="LOG", single=True)
@operator("STABLEHLO_LOGISTIC", to="LOGISTIC", single=True)
@operator("STABLEHLO_NEGATE", to="NEG", single=True)
@operator("STABLEHLO_RSQRT", to="RSQRT", single=True)
@operator("STABLEHLO_TANH", to="TANH", single=True)
def unary(t: OperatorTask) -> None:
    t.give(t.facts.to, t.x(0))


@operator("STABLEHLO_ADD", to="ADD", inputs=2, single=True)
@operator("STABLEHLO_SUBTRACT", to="SUB", inputs=2, single=True)
@operator("STABLEHLO_MULTIPLY", to="MUL", inputs=2, single=True)
@operator("STABLEHLO_MAXIMUM", to="MAXIMUM", inputs=2, single=True)
@operator("STABLEHLO_MINIMUM", to="MINIMUM", inputs=2, single=True)
@operator("STABLEHLO_POWER", to="POW", inputs=2, single=True)
def binary(t: OperatorTask) -> None:
    t.give(t.facts.to, t.x(0), t.x(1), **unfused(t.facts.to))


@operator("STABLEHLO_AND", to="LOGICAL_AND", inputs=2, single=True)
@operator("STABLEHLO_OR", to="LOGICAL_OR", inputs=2, single=True)
def logic(t: OperatorTask) -> None:
    """Combine booleans; the integer versions work on bits."""
    t.require(t.x(0).value.type == B8, "of integers works on bits, which NNAPI has no operation for")
    t.give(t.facts.to, t.x(0), t.x(1))


@operator("STABLEHLO_DIVIDE", inputs=2, single=True, becomes="DIV; of integers corrected to round towards 0")
def divide(t: OperatorTask) -> None:
    """Divide; integers round towards 0."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        t.result(0, truncated_quotient(t, x, y))
    else:
        t.give("DIV", x, y, activation=0)


operator("STABLEHLO_COSINE", single=True, becomes="1 - 2 SIN(x / 2)²")(cosine)


# ------------------------------------------------------------------------------------------------ places that are computed


def starts_of(t: OperatorTask, place: int, depth: int, vectors: int) -> tuple[Term, tuple[int, ...]]:
    """Return index vectors [count, depth], along dimension `vectors` of an input, and the other dimensions."""
    indices = t.index(place, "indices")
    shape = t.known(indices)[: t.rank(indices)]
    t.require(0 <= vectors <= len(shape), f"index_vector_dim is {vectors}, must be 0 to {len(shape)}")
    if vectors == len(shape):
        indices, shape = t.reshaped(indices, (*shape, 1)), (*shape, 1)
    others = [n for n in range(len(shape)) if n != vectors]
    t.require(shape[vectors] == depth, f"has {shape[vectors]} indices for {depth} dimensions")
    batches = tuple(shape[n] for n in others)
    return t.reshaped(axis_moved(t, indices, [*others, vectors]), (math.prod(batches), depth)), batches


def elements_from(
    t: OperatorTask, starts: Term, axes: Sequence[int], shape: Sequence[int], part: Sequence[int]
) -> Term:
    """Return the element numbers [count, elements] of slices that start at index vectors of some axes."""
    whole = np.arange(math.prod(shape)).reshape(shape)
    offsets = whole[tuple(slice(0, n) for n in part)].reshape(1, -1).astype(np.int32)
    count = t.known(starts)[0]
    check_count(count * offsets.size)
    strides = np.array([math.prod(shape[axis + 1 :]) for axis in axes], np.int32).reshape(1, -1)
    moved = t.make("MUL", starts, constant(Value(I32), strides), activation=0)
    total: Term | None = None
    for n in range(len(axes)):
        column = t.make("SLICE", moved, t.integers([0, n]), t.integers([count, 1]))
        total = column if total is None else t.make("ADD", total, column, activation=0)
    if total is None:
        t.refuse("has no indices")
    return t.make("ADD", total, constant(Value(I32), offsets), activation=0)


@operator("STABLEHLO_GATHER", inputs=2, becomes="GATHER of elements counted through")
def gather(t: OperatorTask) -> None:
    """Gather a slice of the tensor for each index vector, moved as far as needed to fit."""
    o, x = t.options("StablehloGatherOptions"), t.x(0)
    shape = t.known(x)[: t.rank(x)]
    names = ("SliceSizes", "StartIndexMap", "OffsetDims", "CollapsedSliceDims")
    part, axes, offsets, collapsed = (o.numbers(name) or () for name in names)
    fits = len(part) == len(shape) and all(0 < n <= size for n, size in zip(part, shape, strict=False))
    t.require(fits, f"slice_sizes is {list(part)}, must be 1 to those of {list(shape)}")
    t.require(axes and set(axes) | set(collapsed) <= set(range(len(shape))), "names dimensions that are not there")
    starts, batches = starts_of(t, 1, len(axes), o("IndexVectorDim"))
    most = np.array([shape[axis] - part[axis] for axis in axes], np.int32).reshape(1, -1)
    starts = t.make("MINIMUM", t.make("MAXIMUM", starts, t.scalar(0, starts)), constant(Value(I32), most))
    places = elements_from(t, starts, axes, shape, part)
    found = t.make("GATHER", t.reshaped(x, (math.prod(shape),)), 0, places)
    kept = [n for axis, n in enumerate(part) if axis not in collapsed]
    rank = len(batches) + len(kept)
    t.require(
        len(offsets) == len(kept) and set(offsets) <= set(range(rank)),
        f"offset_dims is {list(offsets)}, which does not fit",
    )
    ahead, behind = iter(range(len(batches))), iter(range(len(batches), rank))
    order = [next(behind) if n in offsets else next(ahead) for n in range(rank)]
    t.result(0, axis_moved(t, t.reshaped(found, (*batches, *kept) or (1,)), order))


@operator("STABLEHLO_SCATTER", inputs=3,
          becomes="EQUAL or GATHER, SELECT, REDUCE_SUM, then ADD, MUL, MAXIMUM or MINIMUM")  # fmt: skip
def scatter(t: OperatorTask) -> None:
    """Combine single elements or complete rows of a tensor with updates; indices outside are ignored."""
    o, x, updates = t.options("StablehloScatterOptions"), t.x(0), t.x(2)
    shape, sizes = t.known(x)[: t.rank(x)], t.known(updates)[: t.rank(updates)]
    names = ("UpdateWindowDims", "InsertedWindowDims", "ScatterDimsToOperandDims")
    windows, inserted, axes = (o.numbers(name) or () for name in names)
    rank = range(len(shape))
    fits = set(windows) <= set(range(len(sizes))) and set(inserted) | set(axes) <= set(rank)
    t.require(fits and axes and len(windows) + len(inserted) == len(shape), "names dimensions that are not there")
    left = iter(sizes[n] for n in windows)
    part = [1 if n in inserted else next(left) for n in rank]
    t.require(all(0 < n <= size for n, size in zip(part, shape, strict=True)), f"updates {part} of {list(shape)}")
    t.require(all(part[n] == 1 for n in axes), "moves parts of more than one element along a dimension by its indices")
    starts, batches = starts_of(t, 1, len(axes), o("IndexVectorDim"))
    body, kind = reduction_in(t, o("UpdateComputationSubgraphIndex"))
    if kind not in PAIRWISE or not body[0].startswith("STABLEHLO_"):
        t.refuse(f"combines with {', '.join(body) or 'the update alone'}, whose order matters")
    others = [n for n in range(len(sizes)) if n not in windows]
    t.require(tuple(sizes[n] for n in others) == batches, "updates must have the dimensions of the indices")
    most = np.array([[shape[axis] - 1 for axis in axes]], np.int32)
    kept = t.make("MINIMUM", t.make("MAXIMUM", starts, t.scalar(0, starts)), constant(Value(I32), most))
    places = elements_from(t, kept, axes, shape, part)
    count, each = t.known(places)
    off = t.make("NOT_EQUAL", kept, starts, like=Value(B8))
    outside = t.make("REDUCE_ANY", off, t.integers([1]), True)
    nowhere = constant(Value(I32), np.full((count, each), -1, np.int32))
    places = t.make("SELECT", broadcast(t, outside, (count, each)), nowhere, places, like=places)
    rows = t.reshaped(axis_moved(t, updates, [*others, *windows]), (count * each, 1))
    size = math.prod(shape)
    made = t.reshaped(combined(t, kind, rows, t.reshaped(places, (count * each,)), size), shape or (1,))
    t.result(0, t.make(PAIRWISE[kind], x, made, **unfused(PAIRWISE[kind])))
