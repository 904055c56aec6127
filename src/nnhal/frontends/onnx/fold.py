"""Computes nodes whose inputs are all known at import, so that shapes, indices and weights become constants.

Functions receive the task (for attributes) and its inputs as arrays, and return an array or a list of them. Arrays of
objects represent values known only at execution as OpenDimension: they may be moved, but not computed with.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.terms import OpenDimension
from nnhal.frontends.onnx.file import DTYPES, KINDS
from nnhal.frontends.onnx.task import NodeTask

Fold = Callable[..., Any]
MOST = 1 << 20  # elements of a result that may be larger than its inputs
SMALL = 4096  # elements whose cost is their number, not their bytes
FAILURES = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError, KeyError)
COMPUTED = frozenset(DTYPES)


class CannotFoldNode(Exception):
    """This node must be left to execution."""


def require_foldable(condition: Any) -> None:
    """Leave the node to execution unless the condition holds."""
    if not condition:
        raise CannotFoldNode


def folded(t: NodeTask, arrays: Sequence[Array], kinds: Sequence[str]) -> "list[tuple[Array, str]] | None":
    """Return the outputs of a node and their types, None if it is not computed at import."""
    function, partly = (MOVES[t.name], True) if t.name in MOVES else (SUMS.get(t.name), False)
    if function is None or (not partly and any(a.dtype == object for a in arrays)):
        return None
    kind = kinds[KINDLESS.get(t.name, 0)] if kinds else ""
    if t.name in OF_TRUTH:
        kind = "BOOL"
    size = sum(a.size for a in arrays)
    if size > SMALL:
        t.budget.spend(Cost.MEMORY, 2 * sum(a.nbytes for a in arrays), t.label)
    t.budget.spend(Cost.OPERATIONS, 1, t.label)
    t.budget.spend(Cost.ELEMENTS, min(size, SMALL) + len(arrays) + 8, t.label)
    try:
        with np.errstate(all="ignore"):
            results = function(t, *arrays)
            if isinstance(results, tuple):
                results, kind = results
            results = results if isinstance(results, list) else [results]
            return [(_stored(np.asarray(each), kind), kind) for each in results]
    except (*FAILURES, CannotFoldNode):
        return None


def _stored(result: Array, kind: str) -> Array:
    """Convert a result to the type of its output; leave it to execution if the value does not fit."""
    if result.dtype == object:
        if any(isinstance(n, OpenDimension) for n in result.reshape(-1)):
            return result
        result = result.astype(np.float64 if kind in ("FLOAT", "FLOAT16", "DOUBLE") else np.int64)
    array = result.astype(np.dtype(DTYPES[kind]), copy=False)
    require_foldable(
        array.dtype.kind == "f" or array.dtype == result.dtype or bool((array.astype(result.dtype) == result).all())
    )
    return array


def whole(x: Array) -> list[int]:
    """Return integers that are all known."""
    return [int(n) for n in x.reshape(-1)]


# ------------------------------------------------------------------------------------------------------------------ moves


def axes_of(t: NodeTask, given: Sequence[Array]) -> list[int] | None:
    """Return the axes: an attribute before version 13, an input from then on."""
    if given:
        return whole(given[0])
    return t.attr_ints("axes") if "axes" in t.node.attributes else None


def _unsqueeze(t: NodeTask, x: Array, *given: Array) -> Any:
    axes = axes_of(t, given) or []
    require_foldable(len(axes) <= 8)
    return np.expand_dims(x, tuple(axes)) if axes else x


def _squeeze(t: NodeTask, x: Array, *given: Array) -> Any:
    axes = axes_of(t, given)
    return x.squeeze(tuple(axes) if axes else None)


def _gather(t: NodeTask, x: Array, indices: Array) -> Any:
    axis = t.attr("axis", 0)
    require_foldable(indices.dtype != object and x.ndim)
    require_foldable(indices.size * (x.size // max(1, x.shape[axis])) <= max(MOST, x.size))
    return x.take(indices.astype(np.int64), axis)


def _concat(t: NodeTask, *xs: Array) -> Any:
    mixed = any(x.dtype == object for x in xs)
    return np.concatenate([x.astype(object) for x in xs] if mixed else xs, t.attr("axis", 0))


def _slice(t: NodeTask, x: Array, *given: Array) -> Any:
    if given:
        parts = [whole(g) for g in given]
    else:
        parts = [
            t.attr_ints("starts"),
            t.attr_ints("ends"),
            *([t.attr_ints("axes")] if "axes" in t.node.attributes else []),
        ]
    starts, ends = parts[0], parts[1]
    axes = parts[2] if len(parts) > 2 else list(range(len(starts)))
    steps = parts[3] if len(parts) > 3 else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis % x.ndim] = sliced(start, end, step, x.shape[axis])
    return x[tuple(index)]


def sliced(start: int, end: int, step: int, size: int) -> slice:
    """Return a slice, clamped as in ONNX."""
    require_foldable(step)
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


def _reshape(t: NodeTask, x: Array, shape: Array) -> Any:
    wanted = whole(shape)
    require_foldable(len(wanted) <= 8)
    if not t.attr("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(t: NodeTask, x: Array) -> Any:
    axis = t.attr("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _transpose(t: NodeTask, x: Array) -> Any:
    order = t.attr_ints("perm")
    return x.transpose(order or None)


def _identity(_: NodeTask, x: Array) -> Any:
    return x


def _split(t: NodeTask, x: Array, *sizes: Array) -> Any:
    axis, count = t.attr("axis", 0), len(t.node.outputs)
    parts = whole(sizes[0]) if sizes else t.attr_ints("split")
    if not parts:
        step = -(-x.shape[axis] // count)
        parts = [min(step, x.shape[axis] - n * step) for n in range(count)]
    require_foldable(len(parts) == count and min(parts) >= 0 and sum(parts) == x.shape[axis])
    return np.split(x, np.cumsum(parts)[:-1], axis)


def _tile(_: NodeTask, x: Array, times: Array) -> Any:
    counts = whole(times)
    require_foldable(len(counts) == x.ndim and min(counts, default=1) >= 0 and x.size * math.prod(counts) <= MOST)
    return np.tile(x, counts)


def _expand(_: NodeTask, x: Array, shape: Array) -> Any:
    full = np.broadcast_shapes(x.shape, tuple(whole(shape)))
    require_foldable(math.prod(full) <= MOST)
    return np.broadcast_to(x, full)


def _gather_elements(t: NodeTask, x: Array, indices: Array) -> Any:
    axis = t.attr("axis", 0) % max(1, x.ndim)
    require_foldable(x.ndim == indices.ndim > 0)
    cut = tuple(slice(None) if n == axis else slice(size) for n, size in enumerate(indices.shape))
    return np.take_along_axis(x[cut], indices, axis)


def _gather_nd(t: NodeTask, x: Array, indices: Array) -> Any:
    require_foldable(not t.attr("batch_dims", 0) and indices.dtype != object)
    depth = indices.shape[-1]
    require_foldable(math.prod(indices.shape[:-1]) * math.prod(x.shape[depth:]) <= max(MOST, x.size))
    return x[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))]


def _depth_to_space(t: NodeTask, x: Array) -> Any:
    side, (n, c, h, w) = t.attr("blocksize", 1), x.shape
    if t.attr("mode", "DCR") == "DCR":
        return (
            x.reshape(n, side, side, c // side**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, h * side, w * side)
        )
    return x.reshape(n, c // side**2, side, side, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, h * side, w * side)


def _space_to_depth(t: NodeTask, x: Array) -> Any:
    side, (n, c, h, w) = t.attr("blocksize", 1), x.shape
    order = (0, 3, 5, 1, 2, 4) if t.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // side, side, w // side, side).transpose(order).reshape(n, -1, h // side, w // side)


MOVES: dict[str, Fold] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Identity": _identity,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

# ------------------------------------------------------------------------------------------------------------------- sums


def plain(function: Callable[..., Any]) -> Fold:
    """Wrap a function of the arrays alone."""

    def computed(_: NodeTask, *xs: Array) -> Any:
        require_foldable(math.prod(np.broadcast_shapes(*(x.shape for x in xs))) <= max(MOST, *(x.size for x in xs)))
        return function(*xs)

    return computed


def exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of integers; leave it to execution if the result exceeds 32 or 64 bits."""

    def computed(*xs: Array) -> Any:
        if all(x.dtype.kind == "f" for x in xs):
            return function(*xs)
        require_foldable(max(x.size for x in xs) <= MOST)
        return function(*(x.astype(object) for x in xs))

    return computed


def many(function: Callable[[Array, Array], Any]) -> Callable[..., Any]:
    """Wrap a function of two arrays for any number of arrays."""

    def computed(first: Array, *rest: Array) -> Any:
        for x in rest:
            first = function(first, x)
        return first

    return computed


def _quotient(x: Array, y: Array) -> Any:
    """Divide integers, rounding towards 0."""
    if x.dtype.kind == "f":
        return x / y
    require_foldable((y != 0).all())
    down = np.abs(x.astype(np.int64)) // np.abs(y.astype(np.int64))
    return down * np.sign(x).astype(np.int64) * np.sign(y).astype(np.int64)


def _modulo(t: NodeTask, x: Array, y: Array) -> Any:
    require_foldable(x.dtype.kind == "f" or (y != 0).all())
    return np.fmod(x, y) if t.attr("fmod", 0) else np.mod(x, y)


def _cast(t: NodeTask, x: Array) -> Any:
    kind = KINDS.get(t.attr("to", 0), "")
    require_foldable(kind in DTYPES)
    dtype = np.dtype(DTYPES[kind])
    if x.dtype == object:
        require_foldable(kind in ("INT64", "INT32"))
        return x, kind
    if kind == "BOOL":
        return x != 0, kind
    if dtype.kind in "iu":
        require_foldable(x.dtype.kind != "f" or (np.isfinite(x).all() and np.abs(x).max(initial=0) < 2**62))
        cast = np.trunc(x).astype(np.int64) if x.dtype.kind == "f" else x.astype(np.int64)
        limits = np.iinfo(dtype)
        require_foldable(
            cast.size == 0 or (limits.min <= cast.min() and (kind == "UINT64" or cast.max() <= limits.max))
        )
        return cast, kind
    return x.astype(dtype), kind


def _range(_: NodeTask, start: Array, limit: Array, delta: Array) -> Any:
    first, last, step = (x.reshape(()) for x in (start, limit, delta))
    require_foldable(step != 0 and abs(float(last) - float(first)) / abs(float(step)) <= MOST)
    count = max(0, math.ceil((last.item() - first.item()) / step.item()))
    return (first + np.arange(count) * step).astype(start.dtype)


def _filled(t: NodeTask, shape: Array) -> Any:
    sizes = whole(shape)
    require_foldable(min(sizes, default=0) >= 0 and math.prod(sizes) <= MOST and len(sizes) <= 8)
    if "value" not in t.node.attributes:
        return np.zeros(sizes, np.float32), "FLOAT"
    tensor = t.tensor("value")
    value = t.graph.array(tensor)
    require_foldable(value is not None and value.size == 1)
    return np.full(sizes, np.asarray(value).reshape(())), tensor.kind


def reduced(function: Callable[..., Any]) -> Fold:
    """Wrap a reduction over axes."""

    def computed(t: NodeTask, x: Array, *given: Array) -> Any:
        axes, keep = axes_of(t, given), bool(t.attr("keepdims", 1))
        if not axes and t.attr("noop_with_empty_axes", 0):
            return x
        return function(x, axis=tuple(axes) if axes else None, keepdims=keep)

    return computed


def _total(x: Array, **more: Any) -> Any:
    require_foldable(x.dtype.kind == "f" or (x.size <= MOST and np.abs(x.astype(np.float64)).sum() < 2**62))
    return np.sum(x, **more)


def _product(x: Array, **more: Any) -> Any:
    require_foldable(x.dtype.kind == "f" or np.abs(x.astype(np.float64)).prod() < 2**62)
    return np.prod(x, **more)


def _nonzero(_: NodeTask, x: Array) -> Any:
    require_foldable(x.size <= MOST)
    return np.array(np.nonzero(x)), "INT64"


def _where(_: NodeTask, condition: Array, x: Array, y: Array) -> Any:
    require_foldable(math.prod(np.broadcast_shapes(condition.shape, x.shape, y.shape)) <= max(MOST, x.size, y.size))
    return np.where(condition, x, y)


def _one_hot(t: NodeTask, indices: Array, depth: Array, values: Array) -> Any:
    axis, count = t.attr("axis", -1), int(depth.reshape(()))
    require_foldable(count > 0 and indices.size * count <= MOST)
    hits = np.where(indices < 0, indices + count, indices)[..., None] == np.arange(count)
    return np.moveaxis(np.where(hits, values[1], values[0]), -1, axis)


def _arg(function: Callable[..., Any]) -> Fold:
    def computed(t: NodeTask, x: Array) -> Any:
        require_foldable(not t.attr("select_last_index", 0))
        return function(x, axis=t.attr("axis", 0), keepdims=bool(t.attr("keepdims", 1))), "INT64"

    return computed


def _cumulative(t: NodeTask, x: Array, axis: Array) -> Any:
    require_foldable(not t.attr("exclusive", 0) and not t.attr("reverse", 0) and x.size <= MOST)
    return np.cumsum(x, int(axis.reshape(())))


def _quantised(t: NodeTask, x: Array, scale: Array, *zero: Array) -> Any:
    number = t.attr("output_dtype", 0)
    kind = t.raw(2).kind if zero else KINDS.get(number, "") if number else "UINT8"
    require_foldable(x.dtype == scale.dtype == np.float32 and kind in DTYPES and not t.attr("block_size", 0))
    limits = np.iinfo(DTYPES[kind])
    sizes = [1] * x.ndim
    if scale.size > 1:
        sizes[t.attr("axis", 1)] = scale.size
    steps, first = (each.reshape(sizes) for each in (scale, zero[0] if zero else np.zeros(scale.shape, DTYPES[kind])))
    return np.clip(np.rint(x / steps).astype(np.float64) + first, limits.min, limits.max), kind


SUMS: dict[str, Fold] = {
    "Abs": plain(np.abs),
    "Add": plain(exact(np.add)),
    "And": plain(np.logical_and),
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "Cast": _cast,
    "CastLike": lambda t, x, y: (x.astype(y.dtype), t.raw(1).kind),
    "Ceil": plain(np.ceil),
    "ConstantOfShape": _filled,
    "Cos": plain(np.cos),
    "CumSum": _cumulative,
    "Div": plain(_quotient),
    "Equal": plain(np.equal),
    "Exp": plain(np.exp),
    "Floor": plain(np.floor),
    "Greater": plain(np.greater),
    "GreaterOrEqual": plain(np.greater_equal),
    "Less": plain(np.less),
    "LessOrEqual": plain(np.less_equal),
    "Log": plain(np.log),
    "Max": plain(many(np.maximum)),
    "Min": plain(many(np.minimum)),
    "Mod": _modulo,
    "Mul": plain(exact(np.multiply)),
    "Neg": plain(exact(np.negative)),
    "NonZero": _nonzero,
    "Not": plain(np.logical_not),
    "OneHot": _one_hot,
    "Or": plain(np.logical_or),
    "Pow": plain(
        lambda x, y: np.power(x.astype(np.float64), y).astype(x.dtype) if x.dtype.kind == "f" else np.power(x, y)
    ),
    "QuantizeLinear": _quantised,
    "Range": _range,
    "Reciprocal": plain(lambda x: 1 / x),
    "ReduceMax": reduced(np.max),
    "ReduceMin": reduced(np.min),
    "ReduceProd": reduced(_product),
    "ReduceSum": reduced(_total),
    "Round": plain(np.round),
    "Sign": plain(np.sign),
    "Sin": plain(np.sin),
    "Sqrt": plain(np.sqrt),
    "Sub": plain(exact(np.subtract)),
    "Where": _where,
    "Xor": plain(np.logical_xor),
}
KINDLESS = {"Where": 1, "OneHot": 2}  # the input with the type of the output, if not the first
OF_TRUTH = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"))
