"""Shared functions of entries: layouts of pictures, NaN that engines forget, and long sums in stages."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Shape, fixed
from nnhal.drivers.kit.numbers import has_many_ties
from nnhal.drivers.kit.operations.primitives import Node, WindowAttributes
from nnhal.drivers.kit.operations.task import FLOATS, GraphTask
from nnhal.drivers.kit.sums import Stage, mean_windows, padding_correction, stages, summed


def image(t: GraphTask, node: Node) -> Node:
    """Return a picture with channels first."""
    return node if t.a.nchw else t.o.transpose(node, [0, 3, 1, 2])


def layout(t: GraphTask, node: Node) -> Node:
    """Return a picture with channels first in the operation's layout."""
    return node if t.a.nchw else t.o.transpose(node, [0, 2, 3, 1])


def missing(t: GraphTask, x: Node) -> Node:
    """Return whether each element is NaN."""
    return t.op("is_nan", x)


def without_nan(t: GraphTask, x: Node, instead: float = 0.0) -> Node:
    """Return float32 with a number for NaN."""
    return t.op("select", missing(t, x), t.f32(instead), x)


def with_nan(t: GraphTask, kind: str, found: Node, *inputs: Node) -> Node:
    """Return what a function found, with the NaN of its inputs if the engine's function forgets it."""
    if t.a.T in FLOATS and kind in t.o.forgets_nan:
        for x in reversed(inputs):
            found = t.op("select", missing(t, x), x, found)
    return found


def spoilt(t: GraphTask, kind: str, found: Node, x: Node, axes: Sequence[int], keep: bool = True) -> Node:
    """Return `found`, NaN if there is a NaN along the axes, for functions of which the engine forgets it."""
    if t.a.T not in FLOATS or kind not in t.o.forgets_nan:
        return found
    return t.op("select", t.o.reduce("logical_or", missing(t, x), axes, keep), t.f32(np.nan), found)


def add_up(t: GraphTask, kind: str, x: Node, shape: Shape | None, axes: Sequence[int], keep: bool = True) -> Node:
    """Return the "sum" or "mean" of real numbers of a shape along axes, in stages if it is long."""
    parts = stages(shape, axes)
    if not parts:
        return t.o.reduce(kind, x, axes, keep)

    def pad(y: Node, stage: Stage) -> Node:
        after = [stage.more * (axis == stage.axis) for axis in range(len(stage.shape))]
        return t.o.pad(y, [0] * len(after), after, t.f32(0))

    def reduce(y: Node, stage: Stage) -> Node:
        return t.o.reduce(kind, y, [stage.along], False)

    y, share = summed(x, parts, t.o.reshape, pad, reduce), padding_correction(parts)
    y = t.op("multiply", y, t.f32(share)) if kind == "mean" and share != 1 else y
    sizes = enumerate(fixed(shape) or ())
    return t.o.reshape(y, [1 if axis in axes else n for axis, n in sizes if keep or axis not in axes])


def mean_pool(t: GraphTask, x: Node, how: WindowAttributes) -> Node:
    """Return the means of windows of a picture with channels first, in stages if they are long."""
    windows = mean_windows(t.a)
    if not windows:
        return add_up(t, "mean", x, (t.a.batch, t.a.depth, t.a.height, t.a.width), [2, 3])
    if windows == [how.size]:
        return t.o.mean_pool(x, how)
    (down, across), (top, left), (bottom, right) = how.strides, how.before, how.after
    x = t.o.mean_pool(x, how._replace(strides=(1, across), before=(0, left), after=(0, right), size=windows[0]))
    return t.o.mean_pool(x, how._replace(strides=(down, 1), before=(top, 0), after=(bottom, 0), size=windows[1]))


def part(t: GraphTask, x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    """Slice one dimension; an end of -1 with a negative step is before the first element."""
    return t.o.slice(x, [start], [end if end >= 0 else -(2**31)], [step], [axis])


def has_ties(t: GraphTask) -> bool:
    """Whether many results are exact halves of the output's quantisation step, which 8-bit kernels round to even."""
    places = [place for argument, _ in t.a.inputs for place in t.places(argument.name)]
    scales = [t.graph.value(place).scale for place in places]
    return has_many_ties([math.prod(scales)] if t.name == "MUL" else scales, t.value().scale or 1.0)
