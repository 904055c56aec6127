"""Computes operators whose inputs are all known at import, so that shapes become constants.

Functions receive the operator's options and its inputs as arrays, and return an array or a list of them. Arrays of
objects hold None for values known only at execution: they may be moved, but not computed with.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import MAX_RANK
from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.tflite.file import DTYPES, Options

Fold = Callable[..., Any]
MOST = 4096  # elements of a result, or results of an operator: a function checks this before it makes them
KINDS = frozenset(("INT32", "INT64", "BOOL", "FLOAT32"))
FAILURES = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError)


class CannotFold(Exception):
    """This call must be left to execution."""


def require_foldable(condition: Any) -> None:
    """Leave it to execution unless the condition holds."""
    if not condition:
        raise CannotFold


def fold(
    name: str, options: Options, arrays: Sequence[Array], kinds: Sequence[str], budget: Budget
) -> list[Array] | None:
    """Return the outputs of an operator, of the types `kinds`; None if it is not computed at import."""
    function, partly = (MOVES[name], True) if name in MOVES else (SUMS.get(name), False)
    if function is None or not set(kinds) <= KINDS or sum(a.size for a in arrays) > MOST:
        return None
    if not partly and any(a.dtype == object for a in arrays):
        return None
    budget.spend(Cost.OPERATIONS, 1)
    budget.spend(Cost.ELEMENTS, sum(a.size for a in arrays) + len(arrays) + len(kinds))
    try:
        with np.errstate(all="ignore"):
            results = _cast(arrays[0], kinds[0]) if name == "CAST" else function(options, *arrays)
            results = results if isinstance(results, list) else [results]
            require_foldable(len(results) == len(kinds))
            stored = [_stored(np.asarray(r), kind) for r, kind in zip(results, kinds, strict=True)]
    except (*FAILURES, CannotFold):
        return None
    budget.spend(Cost.ELEMENTS, sum(r.size for r in stored))
    return stored


def _stored(result: Array, kind: str) -> Array:
    """Convert a result to the type of its output; leave it to execution if the value does not fit."""
    require_foldable(result.size <= MOST)
    if result.dtype == object:
        if any(n is None for n in result.reshape(-1)):
            return result
        result = result.astype(np.float64 if kind == "FLOAT32" else np.int64)
    array = result.astype(np.dtype(DTYPES[kind]))
    require_foldable(array.dtype.kind == "f" or bool((array.astype(result.dtype) == result).all()))
    return array


# ------------------------------------------------------------------------------------------------------------------ moves


def axis_of(axis: Array) -> int:
    """Return an axis that is an input."""
    require_foldable(axis.size == 1)
    return int(axis.item())


def numbers(x: Array) -> list[int]:
    """Return integers that are all known."""
    return [int(n) for n in x.reshape(-1)]


def _pack(o: Options, *xs: Array) -> Any:
    return np.stack([x.astype(object) for x in xs], o.read("PackOptions")("Axis"))


def _unpack(o: Options, x: Array) -> Any:
    axis = o.read("UnpackOptions")("Axis")
    require_foldable(x.shape[axis] <= MOST)
    return list(np.moveaxis(x, axis, 0))


def _concatenate(o: Options, *xs: Array) -> Any:
    fields = o.read("ConcatenationOptions")
    require_foldable(fields("FusedActivationFunction") == 0)
    return np.concatenate([x.astype(object) for x in xs], fields("Axis"))


def _gather(o: Options, x: Array, indices: Array) -> Any:
    fields = o.read("GatherOptions")
    batches, axis = fields("BatchDims"), fields("Axis") % x.ndim
    batches += indices.ndim if batches < 0 else 0
    require_foldable(
        indices.min(initial=0) >= 0 and 0 <= batches <= axis and x.shape[:batches] == indices.shape[:batches]
    )
    left = math.prod(x.shape[batches:axis]) * math.prod(x.shape[axis:][1:])
    require_foldable(left * indices.size <= MOST)
    indices = indices.astype(np.int64)
    if not batches:
        return x.take(indices, axis)
    pairs = zip(rows(x, batches), rows(indices, batches), strict=True)
    taken = [row.take(places, axis - batches) for row, places in pairs]
    return np.stack(taken).reshape(*x.shape[:batches], *taken[0].shape)


def rows(x: Array, count: int) -> Array:
    """Merge the first `count` dimensions."""
    return x.reshape(-1, *x.shape[count:])


def _gather_nd(_: Options, x: Array, indices: Array) -> Any:
    depth = indices.shape[-1]
    require_foldable((indices >= 0).all() and (indices < x.shape[:depth]).all())
    require_foldable(math.prod(indices.shape[:-1]) * math.prod(x.shape[depth:]) <= MOST)
    return x[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))]


def _slice(_: Options, x: Array, begin: Array, size: Array) -> Any:
    starts, sizes = numbers(begin), numbers(size)
    require_foldable(len(starts) == len(sizes) == x.ndim)
    for start, count, room in zip(starts, sizes, x.shape, strict=True):
        require_foldable(0 <= start <= room and -1 <= count <= room - start)
    return x[tuple(slice(s, None if n == -1 else s + n) for s, n in zip(starts, sizes, strict=True))]


def _strided_slice(o: Options, x: Array, begin: Array, end: Array, strides: Array) -> Any:
    fields = o.read("StridedSliceOptions")
    masks = [fields(n) for n in ("EllipsisMask", "NewAxisMask", "ShrinkAxisMask", "BeginMask", "EndMask")]
    require_foldable(not fields("Offset"))
    index: list[Any] = []
    for i, (first, last, stride) in enumerate(zip(numbers(begin), numbers(end), numbers(strides), strict=True)):
        ellipsis, new, shrink, all_before, all_behind = (mask >> i & 1 for mask in masks)
        if ellipsis:
            index.append(Ellipsis)
        elif new:
            index.append(None)
        elif shrink:
            index.append(0 if all_before else first)
        else:
            index.append(slice(None if all_before else first, None if all_behind else last, stride))
    return x[tuple(index)]


def _reshape(o: Options, x: Array, *shape: Array) -> Any:
    wanted = numbers(shape[0]) if shape else list(o.read("ReshapeOptions").numbers("NewShape") or ())
    return x.reshape([] if wanted == [0] and x.size == 1 else wanted)


def _squeeze(o: Options, x: Array) -> Any:
    return x.squeeze(o.read("SqueezeOptions").numbers("SqueezeDims") or None)


def _expand_dims(_: Options, x: Array, axis: Array) -> Any:
    return np.expand_dims(x, axis_of(axis))


def _transpose(_: Options, x: Array, order: Array) -> Any:
    return x.transpose(numbers(order))


def _tile(_: Options, x: Array, times: Array) -> Any:
    require_foldable(min(numbers(times), default=1) >= 0 and x.size * math.prod(numbers(times)) <= MOST)
    return np.tile(x, numbers(times))


def _broadcast_to(_: Options, x: Array, shape: Array) -> Any:
    return np.broadcast_to(x, numbers(shape))


def _split(o: Options, axis: Array, x: Array) -> Any:
    count = o.read("SplitOptions")("NumSplits")
    require_foldable(0 < count <= MOST)
    return np.split(x, count, axis_of(axis))


def _split_sizes(_: Options, x: Array, sizes: Array, axis: Array) -> Any:
    require_foldable(min(numbers(sizes), default=0) >= 0 and sum(numbers(sizes)) == x.shape[axis_of(axis)])
    return np.split(x, np.cumsum(sizes)[:-1].astype(np.int64), axis_of(axis))


def _reverse(_: Options, x: Array, axes: Array) -> Any:
    return np.flip(x, tuple(numbers(axes)))


def _reverse_sequence(o: Options, x: Array, lengths: Array) -> Any:
    fields = o.read("ReverseSequenceOptions")
    batch, steps = fields("BatchDim") % x.ndim, fields("SeqDim") % x.ndim
    require_foldable(batch != steps and lengths.shape == (x.shape[batch],))
    moved = np.moveaxis(x, (batch, steps), (0, 1)).copy()
    for row, length in zip(moved, numbers(lengths), strict=True):
        require_foldable(0 <= length <= len(row))
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(moved, (0, 1), (batch, steps))


def _mirror(o: Options, x: Array, paddings: Array) -> Any:
    mode = ("reflect", "symmetric")[o.read("MirrorPadOptions")("Mode")]
    widths = paddings.astype(np.int64).reshape(x.ndim, 2).tolist()
    require_foldable(all(0 <= n <= size for pair, size in zip(widths, x.shape, strict=True) for n in pair))
    require_foldable(math.prod(size + sum(pair) for pair, size in zip(widths, x.shape, strict=True)) <= MOST)
    return np.pad(x, widths, mode)  # type: ignore[call-overload]


def _space_to_depth(o: Options, x: Array) -> Any:
    side = o.read("SpaceToDepthOptions")("BlockSize")
    batch, height, width, depth = x.shape
    blocks = x.reshape(batch, height // side, side, width // side, side, depth).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height // side, width // side, side * side * depth)


def _depth_to_space(o: Options, x: Array) -> Any:
    side = o.read("DepthToSpaceOptions")("BlockSize")
    batch, height, width, depth = x.shape
    blocks = x.reshape(batch, height, width, side, side, depth // side**2).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height * side, width * side, depth // side**2)


def _batch_to_space(_: Options, x: Array, block: Array, crops: Array) -> Any:
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


def _set_diagonal(_: Options, x: Array, diagonal: Array) -> Any:
    i = np.arange(diagonal.shape[-1])
    result = x.copy()
    result[..., i, i] = diagonal
    return result


MOVES: dict[str, Fold] = {
    "PACK": _pack,
    "UNPACK": _unpack,
    "CONCATENATION": _concatenate,
    "GATHER": _gather,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "TRANSPOSE": _transpose,
    "TILE": _tile,
    "BROADCAST_TO": _broadcast_to,
    "SPLIT": _split,
    "SPLIT_V": _split_sizes,
    "REVERSE_V2": _reverse,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "GATHER_ND": _gather_nd,
    "MIRROR_PAD": _mirror,
    "SPACE_TO_DEPTH": _space_to_depth,
    "DEPTH_TO_SPACE": _depth_to_space,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "MATRIX_SET_DIAG": _set_diagonal,
}

# ------------------------------------------------------------------------------------------------------------------- sums


def plain(function: Callable[..., Any], options: str = "") -> Fold:
    """Wrap a function of the arrays alone. options: those that may fuse an activation."""

    def folded(o: Options, *xs: Array) -> Any:
        require_foldable(not options or o.read(options)("FusedActivationFunction") == 0)
        require_foldable(math.prod(np.broadcast_shapes(*(x.shape for x in xs))) <= MOST)
        return function(*xs)

    return folded


def _quotient(x: Array, y: Array) -> Any:
    """Divide integers, rounding towards 0."""
    if x.dtype.kind == "f":
        return x / y
    require_foldable((y != 0).all())
    whole = np.abs(x.astype(np.int64)) // np.abs(y.astype(np.int64))
    return whole * np.sign(x).astype(np.int64) * np.sign(y).astype(np.int64)


def _floor_quotient(x: Array, y: Array) -> Any:
    require_foldable((y != 0).all())
    return np.floor(x / y) if x.dtype.kind == "f" else x.astype(np.int64) // y


def _modulo(x: Array, y: Array) -> Any:
    require_foldable(x.dtype.kind == "i" and (y != 0).all())
    return x.astype(np.int64) % y


def _select(o: Options, condition: Array, x: Array, y: Array) -> Any:
    """Select; a vector of conditions has one for each row of the others."""
    rows_of = condition.ndim == 1 and x.ndim > 1
    return plain(np.where)(o, condition.reshape(-1, *[1] * (x.ndim - 1)) if rows_of else condition, x, y)


def _cast(x: Array, kind: str) -> Any:
    """Cast: floats to integers towards 0, numbers to whether they are not 0."""
    if kind in ("FLOAT32", "BOOL"):
        return x.astype(DTYPES[kind])
    require_foldable(x.dtype.kind != "f" or (np.isfinite(x).all() and np.abs(x).max(initial=0) < 2**31))
    return np.trunc(x).astype(np.int64) if x.dtype.kind == "f" else x.astype(np.int64)


def reduced(function: Callable[..., Any]) -> Fold:
    """Wrap a reduction over axes."""

    def folded(o: Options, x: Array, axes: Array) -> Any:
        keep, over = bool(o.read("ReducerOptions")("KeepDims")), {axis % x.ndim for axis in numbers(axes)}
        require_foldable(math.prod(n for i, n in enumerate(x.shape) if i not in over) <= MOST)
        return function(x, axis=tuple(over), keepdims=keep)

    return folded


def _span(_: Options, start: Array, limit: Array, delta: Array) -> Any:
    first, last, step = (x.reshape(()) for x in (start, limit, delta))
    require_foldable(first.dtype.kind == "i" and step != 0 and abs(int(last) - int(first)) // abs(int(step)) <= MOST)
    return np.arange(int(first), int(last), int(step))


def _filled(_: Options, dims: Array, value: Array) -> Any:
    require_foldable(min(numbers(dims), default=0) >= 0 and math.prod(numbers(dims)) <= MOST)
    return np.full(numbers(dims), value.reshape(()))


def _broadcast_args(_: Options, x: Array, y: Array) -> Any:
    require_foldable(max(x.size, y.size) <= MAX_RANK)
    return np.array(np.broadcast_shapes(tuple(numbers(x)), tuple(numbers(y))), np.int64)


def exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of integers; leave it to execution if the result exceeds 32 or 64 bits."""

    def folded(*xs: Array) -> Any:
        if all(x.dtype.kind == "f" for x in xs):
            return function(*xs)
        return function(*(x.astype(object) for x in xs))

    return folded


SUMS: dict[str, Fold] = {
    "ADD": plain(exact(np.add), "AddOptions"),
    "SUB": plain(exact(np.subtract), "SubOptions"),
    "MUL": plain(exact(np.multiply), "MulOptions"),
    "DIV": plain(_quotient, "DivOptions"),
    "FLOOR_DIV": plain(_floor_quotient),
    "FLOOR_MOD": plain(_modulo),
    "MAXIMUM": plain(np.maximum),
    "MINIMUM": plain(np.minimum),
    "FLOOR": plain(np.floor),
    "CEIL": plain(np.ceil),
    "NEG": plain(exact(np.negative)),
    "EQUAL": plain(np.equal),
    "NOT_EQUAL": plain(np.not_equal),
    "LESS": plain(np.less),
    "LESS_EQUAL": plain(np.less_equal),
    "GREATER": plain(np.greater),
    "GREATER_EQUAL": plain(np.greater_equal),
    "LOGICAL_AND": plain(np.logical_and),
    "LOGICAL_OR": plain(np.logical_or),
    "LOGICAL_NOT": plain(np.logical_not),
    "SELECT": _select,
    "SELECT_V2": plain(np.where),
    "CAST": lambda *_: None,  # to the type of the output, see `fold`
    "SUM": reduced(np.sum),
    "REDUCE_PROD": reduced(np.prod),
    "REDUCE_MAX": reduced(np.max),
    "REDUCE_MIN": reduced(np.min),
    "REDUCE_ALL": reduced(np.all),
    "REDUCE_ANY": reduced(np.any),
    "ADD_N": lambda _, *xs: sum(x.astype(object) if x.dtype.kind in "iu" else x for x in xs),
    "ABS": plain(exact(np.abs)),
    "SIGN": plain(np.sign),
    "ROUND": plain(np.rint),
    "WHERE": lambda _, x: np.argwhere(x),
    "RANGE": _span,
    "FILL": _filled,
    "BROADCAST_ARGS": _broadcast_args,
}
