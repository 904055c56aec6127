"""The task of an entry for an engine of float32 tensors: quantised operands as integers, and sums of their products."""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from nnhal.base.lazy import cached_property
from nnhal.base.operands import Value
from nnhal.drivers.kit.numbers import bounds, stored_bounds
from nnhal.drivers.kit.operations.common import layout
from nnhal.drivers.kit.operations.primitives import Node
from nnhal.drivers.kit.operations.task import QUANTS, GraphTask
from nnhal.drivers.kit.real.graph import FAR, RealGraph, scales_of
from nnhal.drivers.kit.sums import greatest_sum, reach
from nnhal.model.graph import Operation
from nnhal.ops.common import type_range
from nnhal.ops.schema import Bound
from nnhal.ops.weighted import product_scales

FINE = 2.0**12  # the most that an input's scale may be, relative to the output's: its stored values are real ones then
NEAR = 2.0**16  # scales are from 1 / NEAR to NEAR: an engine treats far smaller ones as 0
WELL = 2.0**20  # up to so many LSB of the output, a float32 sum of real numbers is well within one LSB
FAST = "int8"  # the variant for the engine's 8-bit kernels, which may saturate, and round sums in another way
WHOLE = 2**24  # float32 holds every integer up to here
FORMS: dict[int, tuple[str, ...]] = dict.fromkeys(QUANTS, (FAST, "float"))
BASE = 16.0  # of the digits into which integers are split
Product = Callable[[Node, Node], Node]


class RealTask(GraphTask):
    """One operation, and the graph that it is written to."""

    graph: RealGraph[Any]

    def __init__(self, graph: RealGraph[Any], a: Bound, operation: Operation) -> None:
        super().__init__(graph, graph.engine, a, operation)

    @cached_property
    def eight(self) -> bool:
        """Whether it is written for 8-bit kernels: in that variant, if their numbers hold its scales."""
        arguments = [value for _, value in self.a.inputs if isinstance(value, Value)]
        inputs, outputs = (
            [value.scale for value in values if value.quantised and value.channel is None]
            for values in (arguments, map(self.graph.value, self.operation.outputs))
        )
        near = all(1 / NEAR <= scale <= NEAR for scale in (*inputs, *outputs))
        fine = max(inputs, default=0.0) <= FINE * min(outputs, default=1.0)
        return self.form == FAST and near and fine

    def real(self, place: int) -> Node:
        return self.graph.levels(place) if self.eight else self.graph.real(place)

    def apart(self, node: Node) -> Node:
        return self.graph.apart(node)

    def give(self, node: Node, number: int = 0, within: tuple[float, float] | None = None) -> None:
        low, high = bounds(self.a) if within is None else within
        value = self.value(number)
        if self.eight:
            self.graph.hold_levels(self.operation.outputs[number], node, (low, high))
            return
        if high < np.inf:
            node = self.o.clamp(node, low, high)
        elif low == 0:
            node = self.op("relu", node)
        if value.quantised:
            self.give_steps(self.op("divide", node, self.f32(float(scales_of(value)))), number)
        else:
            self.hold(node, number)

    def give_steps(self, node: Node, number: int = 0, within: tuple[int, int] | None = None) -> None:
        value = self.value(number)
        low, high = within or type_range(value.type)
        zero = value.zero_point
        node = self.op("round", self.o.clamp(node, float(low - zero), float(high - zero)))
        self.hold(self.op("add", node, self.f32(zero)) if zero else node, number)

    def sum_of_steps(self, kind: str) -> Node | None:
        """Add up inputs of one scale as integers, so that the difference of equal ones is 0.

        An engine that joins the scaling of one with the subtraction would leave a rounding error, which is several LSB
        of a fine output.
        """
        if self.eight or self.a.input1.scale != self.a.input2.scale:
            return None
        total = self.op(kind, *(self.graph.steps(self.place(name)) for name in ("input1", "input2")))
        return self.op("multiply", self.apart(total), self.constant(scales_of(self.a.input1)))

    def stored_constant(self, value: Value, number: Any, like: Node) -> Node:
        return self.constant(number, self.o.dtype(like))

    def checked(self, indices: Node, size: Callable[[], int], rank: int) -> Node:
        """Clamp indices; a check of the graph reports one outside."""
        most = size()
        self.require(
            most < WHOLE,
            f"the dimension of {self.o.name} is {most}, must be less than {WHOLE} to compare indices in float32",
        )
        first, last = self.constant(0, np.int32), self.constant(most - 1, np.int32)
        outside = self.op("logical_or", self.op("less", indices, first), self.op("less", last, indices))
        self.graph.checks.append(self.o.reshape(self.o.reduce("logical_or", outside, range(rank), True), [1]))
        return self.op("minimum", self.op("maximum", indices, first), last)

    def counts(self, name: str, *, mean: bool) -> Node:
        return self.converted(self.stored(name), np.float32)

    def give_counts(self, node: Node, *, mean: bool) -> None:
        if not self.value().quantised:
            self.give(layout(self, node))
            return
        zero, y = self.value().zero_point, layout(self, self.op("round", node))
        self.give_steps(self.op("subtract", y, self.f32(zero)) if zero else y, within=stored_bounds(self.a))

    def layer(self, product: Callable[..., Node], *, image: bool = True, fast: bool = True) -> None:
        name, axis = self.weights
        x, weights, value = self.a.input, getattr(self.a, name), self.value()

        def shaped(numbers: Node) -> Node:
            return self.o.reshape(numbers, [1, -1, 1, 1]) if image else numbers

        def finished(y: Node) -> Node:
            return layout(self, y) if image else y

        if not x.quantised:
            self.give(finished(self.op("add", product(self.x("input"), self.x(name)), shaped(self.x("bias")))))
            return
        scales_of(x), scales_of(weights)
        parts = self._eight_bits() if self.eight and fast else []
        if parts:
            bias = self.constant(product_scales(x, weights) * self.a.bias.data, np.float32)
            products = [product(self.x("input"), part) for part in parts]
            self.give(finished(self.op("add", reduce(partial(self.op, "add"), products), shaped(bias))))
            return
        most, count = greatest_sum(x, weights, axis), math.prod(weights.known) // weights.known[axis]
        steps = self.graph.steps(self.place("input")), self.graph.steps(self.place(name))
        sums = exact_sums(self, *steps, product, most, count, reach(x))
        biased = [self.op("add", y, shaped(bias)) for y, bias in zip(sums, bias_digits(self, len(sums)), strict=True)]
        ratios = (product_scales(x, weights) / scales_of(value)).astype(np.float32)
        self.require(ratios.min() > 1 / FAR and ratios.max() < FAR, "scales are too far apart for float32")
        factor = self.constant(ratios if len(ratios) == 1 else ratios.reshape([1, -1, 1, 1] if image else [1, -1]))
        y = total(self, biased)
        if self.a.bias.data is None or np.abs(self.a.bias.data.astype(np.int64)).max(initial=0) * ratios.max() > WELL:
            y = self.apart(y)  # otherwise factor and bounds are moved before the bias, and lose their digits beside it
        self.give_steps(finished(self.op("multiply", y, factor)), within=stored_bounds(self.a))

    def _eight_bits(self) -> list[Node]:
        """Return constant weights for 8-bit kernels: one tensor, or two to be added up if a filter needs 9 bits.

        Empty if that is not enough, or if 32 bits or float32 do not hold the sums.
        """
        name, axis = self.weights
        x, weights, value = self.a.input, getattr(self.a, name), self.value()
        if weights.data is None or self.a.bias.data is None:
            return []
        whole = np.subtract(weights.data, weights.zero_point, dtype=np.int16)
        ratio = float((product_scales(x, weights) / scales_of(value)).max())
        most = greatest_sum(x, weights, axis, self.a.bias)
        scales, near = scales_of(weights), np.clip(whole, -128, 127)
        parts = [near, whole - near] if (near != whole).any() else [near]
        if whole.max() > 2 * 127 or (len(parts) > 1 and name != "filter") or 2 * most >= 2**31 or most * ratio > WELL:
            return []
        scales, scaled = scales.reshape(scales.shape or (1,) * weights.rank), self.graph.engine.scaled
        return [scaled(part.astype(np.int8), scales) for part in parts]

    def give_product(self, product: Callable[..., Node]) -> None:
        """Give product(x, y) of two computed matrices."""
        a, x, y = self.a, self.a.x, self.a.y
        if not x.quantised:
            self.give(product(self.x("x"), self.x("y")))
            return
        ratio = float(scales_of(x)) * float(scales_of(y)) / float(scales_of(a.out))
        self.require(1 / FAR < ratio < FAR, "scales are too far apart for float32")
        count, steps = x.known[-2 if a.adj_x else -1], [self.graph.steps(self.place(name)) for name in ("x", "y")]
        sums = exact_sums(self, steps[0], steps[1], product, float(count * reach(x) * reach(y)), count, reach(x))
        self.give_steps(self.op("multiply", total(self, sums), self.f32(ratio)))


# ------------------------------------------------------------------------------------- exact sums of integer products
#
# A quantised layer adds up integers in float32, which is exact up to 2**24. If sums may exceed that, the weights are
# split into two digits to the base of 16, and the inputs too if that is not enough. Then there are several sums, each
# exact, whose total is rounded once.


def exact_sums(
    t: GraphTask, x: Node, weights: Node, product: Product, most: float, count: int, reach_x: int
) -> list[Node]:
    """Return exact sums of integer products: one, or several that the caller multiplies by 1, 16 or 256.

    most: the greatest magnitude of the whole; count: how many products there are.
    """
    if most < WHOLE:
        return [keep_integer_weights(t, product(x, weights))]
    tens, units = digits(t, weights)
    if count * reach_x * BASE < WHOLE:
        return [keep_integer_weights(t, product(x, tens)), keep_integer_weights(t, product(x, units))]
    t.require(2 * count * BASE**2 < WHOLE, f"a sum has {count} 8-bit products, must have fewer to be exact in float32")
    high, low = digits(t, x)
    middle = t.op("add", keep_integer_weights(t, product(high, units)), keep_integer_weights(t, product(low, tens)))
    return [keep_integer_weights(t, product(high, tens)), middle, keep_integer_weights(t, product(low, units))]


def truncated(t: GraphTask, x: Node) -> Node:
    """Truncate numbers towards 0."""
    return t.op("select", t.op("less", x, t.f32(0)), t.op("ceiling", x), t.op("floor", x))


def digits(t: GraphTask, x: Node) -> tuple[Node, Node]:
    """Split integers into high and low digits to the base of 16, both with the sign of the whole."""
    x = t.apart(x)
    tens = truncated(t, t.op("multiply", x, t.f32(1 / BASE)))
    return tens, t.op("subtract", x, t.op("multiply", tens, t.f32(BASE)))


def bias_digits(t: GraphTask, count: int) -> list[Node]:
    """Split the integers of the bias into digits for so many sums."""
    known, found = t.a.bias.data, []
    rest = t.o.convert(t.stored("bias"), np.float32) if known is None else np.asarray(known, np.float64)
    for _ in range(count - 1):
        if known is None:
            rest, units = digits(t, rest)
        else:
            whole = rest
            rest = np.trunc(whole / BASE)
            units = t.constant(whole - rest * BASE, np.float32)
        found.append(units)
    return [*found, rest if known is None else t.constant(rest, np.float32)][::-1]


def total(t: GraphTask, sums: Sequence[Node]) -> Node:
    """Return the number that these digits represent."""
    return reduce(lambda high, low: t.op("add", t.op("multiply", high, t.f32(BASE)), low), sums)


def keep_integer_weights(t: GraphTask, sums: Node) -> Node:
    """Guard sums, so that no subsequent factor is multiplied into their weights, which would not be integers then."""
    return t.o.clamp(sums, -FAR, FAR)
