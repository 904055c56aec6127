"""Operators of shapes: reshaping, dimensions of 1, transposition, blocks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.element_moves import transposed
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.integer_ranges import of_all, of_first
from nnhal.frontends.common.terms import EmittedOperation, OpenDimension, Term
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import B8


def extents(t: NodeTask, term: Term) -> Array:
    """Return the shape of a term in the file, as a value."""
    shape = t.shape(term)[: t.rank(term)]
    return np.array([OpenDimension(term, n) if size is None else size for n, size in enumerate(shape)], object)


def dimensions(t: NodeTask, place: int, what: str) -> list[int | OpenDimension]:
    """Return the shape that input `place` holds."""
    known = zip(t.partly(place, what), t.data(place, what).reshape(-1), strict=True)
    return [n if size is None else size for size, n in known]


@operator("Shape", becomes="a constant, as far as the shape is known")
def shape_of(t: NodeTask) -> None:
    """Return the shape, known at import as far as possible."""
    shape = extents(t, t.raw(0))[t.attr("start", 0) : t.attr("end", None)]
    t.known_result(shape if any(isinstance(n, OpenDimension) for n in shape) else shape.astype(np.int64))


@operator("Size", becomes="a constant")
def size_of(t: NodeTask) -> None:
    """Return the size, known at import."""
    t.known_result(np.array(math.prod(t.known(t.raw(0))), np.int64))


def reshape_moves(t: NodeTask, x: Array) -> Any:
    wanted = t.ints(1, "shape")
    require_foldable(len(wanted) <= 8)
    if not t.attr("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


@operator("Reshape", inputs=2, becomes="RESHAPE", moves=reshape_moves, span=of_first, on_stored=True, on_reals=True)
def reshape(t: NodeTask) -> None:
    """Reshape. One dimension may be open (-1); 0 represents that of the input."""
    x = t.x(0)
    sizes = t.shape(x)[: t.rank(x)]
    if t.raw(1).data is None:
        t.require(x.value.type != B8, "of booleans to a computed shape has no operation in NNAPI")
        t.result(0, t.make("RESHAPE", x, t.index(1, "shape")), x.kind)
        return
    wanted: list[int | OpenDimension] = []
    for place, n in enumerate(dimensions(t, 1, "shape")):
        if n == 0 and not t.attr("allowzero", 0):
            t.require(
                place < len(sizes),
                f"dimension {place} is 0, which copies it from the input, whose rank is {len(sizes)}",
            )
            size = sizes[place]
            wanted.append(OpenDimension(x, place) if size is None else size)
        elif isinstance(n, int):
            t.require(n >= -1, f"dimension {place} is {n}, must be at least -1")
            wanted.append(n)
        else:
            wanted.append(n)
    t.result(0, t.reshaped(x, settled(t, x, wanted) or [1]), x.kind, scalar=not wanted)


def settled(t: NodeTask, x: Term, wanted: Sequence[int | OpenDimension]) -> list[int | None]:
    """Return the shape of x, with the dimensions that are the same for any open sizes, even in place of -1."""

    def giver(term: Term) -> EmittedOperation | None:
        return next((made for made in t.emitted if term in made.outputs), None) or t.graph.producer(term)

    left = None
    known = math.prod(n for n in wanted if isinstance(n, int) and n != -1)
    if -1 in wanted and known:
        over = [n for n in wanted if isinstance(n, OpenDimension)]
        each = t.graph.context.trials.quotient(x, over, giver)
        left = each.numerator // known if each is not None and each % known == 0 else None
        for term in (x, *(n.term for n in over)) if left is None else ():
            t.follows(term)
    return [left if n == -1 else n if isinstance(n, int) else None for n in wanted]


def flatten_moves(t: NodeTask, x: Array) -> Any:
    axis = t.attr("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), -1)


@operator("Flatten", becomes="RESHAPE", moves=flatten_moves, span=of_all, on_stored=True, on_reals=True)
def flatten(t: NodeTask) -> None:
    """Reshape to two dimensions."""
    x, axis = t.x(0), t.attr("axis", 1)
    shape = t.shape(x)[: t.rank(x)]
    axis += len(shape) if axis < 0 else 0
    parts = shape[:axis], shape[axis:]
    dims = [None if None in part else math.prod(d or 0 for d in part) for part in parts]
    t.result(0, t.reshaped(x, dims), x.kind)


def axes_in(t: NodeTask, place: int = 1) -> list[int] | None:
    """Return the axes: an attribute before version 13, an input from then on; None if unspecified."""
    if t.given(place):
        return t.ints(place, "axes")
    return t.attr.ints("axes") if "axes" in t.node.attributes else None


def squeeze_moves(t: NodeTask, x: Array) -> Any:
    return x.squeeze(tuple(axes_in(t) or ()) or None)


@operator("Squeeze", inputs=(1, 2), becomes="RESHAPE", moves=squeeze_moves, span=of_all, on_stored=True, on_reals=True)
def squeeze(t: NodeTask) -> None:
    """Remove the named dimensions of 1, or all."""
    x, named = t.x(0), axes_in(t)
    shape = t.shape(x)[: t.rank(x)]
    if not named:
        named = [i for i, d in enumerate(t.known(x)[: t.rank(x)]) if d == 1]
    axes = {t.axis(n, len(shape)) for n in named}
    t.require(all(shape[i] in (1, None) for i in axes), f"dimensions {sorted(axes)} of {list(shape)} must be 1")
    left = [d for i, d in enumerate(shape) if i not in axes]
    t.result(0, t.reshaped(x, left or [1]), x.kind, scalar=not left)


def unsqueeze_moves(t: NodeTask, x: Array) -> Any:
    axes = axes_in(t) or []
    require_foldable(len(axes) <= 8)
    return np.expand_dims(x, tuple(axes)) if axes else x


@operator("Unsqueeze", inputs=(1, 2), becomes="RESHAPE", moves=unsqueeze_moves, span=of_all, on_stored=True,
          on_reals=True)  # fmt: skip
def unsqueeze(t: NodeTask) -> None:
    """Insert dimensions of 1."""
    x, named = t.x(0), axes_in(t)
    shape = list(t.shape(x)[: t.rank(x)])
    t.require(named is not None, "has no axes, must have some")
    rank = len(shape) + len(named or ())
    for axis in sorted(t.axis(n, rank) for n in named or ()):
        shape.insert(axis, 1)
    t.result(0, t.reshaped(x, shape or [1]), x.kind, scalar=not shape)


def transpose_moves(t: NodeTask, x: Array) -> Any:
    order = t.attr.ints("perm")
    return x.transpose(order or None)


@operator("Transpose",
          becomes="TRANSPOSE, of more than four dimensions those that stay together as one; of booleans "
          "GATHER",
          moves=transpose_moves, span=of_all, on_stored=True, on_reals=True)  # fmt: skip
def transpose(t: NodeTask) -> None:
    """Permute the dimensions, reversed by default."""
    x = t.x(0)
    rank = t.rank(x)
    order = t.attr.ints("perm") or list(reversed(range(rank)))
    t.require(sorted(order) == list(range(rank)), f"perm is {order}, must be an order of {rank} dimensions")
    t.result(0, transposed(t, x, order) if rank else x, x.kind, scalar=not rank)


def depth_to_space_moves(t: NodeTask, x: Array) -> Any:
    side, (n, c, h, w) = t.attr("blocksize", 1), x.shape
    if t.attr("mode", "DCR") == "DCR":
        return (
            x.reshape(n, side, side, c // side**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, h * side, w * side)
        )
    return x.reshape(n, c // side**2, side, side, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, h * side, w * side)


def space_to_depth_moves(t: NodeTask, x: Array) -> Any:
    side, (n, c, h, w) = t.attr("blocksize", 1), x.shape
    order = (0, 3, 5, 1, 2, 4) if t.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // side, side, w // side, side).transpose(order).reshape(n, -1, h // side, w // side)


@operator(
    "DepthToSpace",
    to="DEPTH_TO_SPACE",
    becomes="DEPTH_TO_SPACE; in the order CRD RESHAPE and TRANSPOSE",
    moves=depth_to_space_moves,
    span=of_all,
    on_stored=True,
)
@operator("SpaceToDepth", to="SPACE_TO_DEPTH", becomes="SPACE_TO_DEPTH; in the order CRD RESHAPE and TRANSPOSE",
          moves=space_to_depth_moves, span=of_all, on_stored=True)  # fmt: skip
def blocks(t: NodeTask) -> None:
    """Move channels to blocks, or blocks to channels."""
    x, side = t.x(0), t.attr("blocksize", 1)
    if t.attr("mode", "DCR") == "DCR":
        t.result(0, t.make(t.facts.to, x, side, True), x.kind)
        return
    sizes = t.known(x)
    t.require(len(sizes) == 4, f"has shape {list(sizes)}, must have four dimensions")
    n, c, h, w = sizes
    split, order, shape = (
        (n * c, h // side, side, w // side, side),
        (0, 2, 4, 1, 3),
        (n, c * side**2, h // side, w // side),
    )
    if t.name == "DepthToSpace":
        less = c // side**2
        split, order, shape = (n * less, side, side, h, w), (0, 3, 1, 4, 2), (n, less, h * side, w * side)
    t.result(0, t.reshaped(transposed(t, t.reshaped(x, split), order), shape), x.kind)
