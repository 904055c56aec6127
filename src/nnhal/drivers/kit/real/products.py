"""Exact sums of integer products in float32.

A quantised layer adds up integers in float32, which is exact up to 2**24. If sums may exceed that, the weights are
split into two digits to the base of 16, and the inputs too if that is not enough. Then there are several sums, each
exact, whose total is rounded once.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from nnhal.drivers.kit.operations.primitives import Node
from nnhal.drivers.kit.operations.task import GraphTask
from nnhal.drivers.kit.real.graph import FAR

EXACT = 2.0**24  # float32 holds every integer up to here
BASE = 16.0
Product = Callable[[Node, Node], Node]


def exact_sums(
    t: GraphTask, x: Node, weights: Node, product: Product, most: float, count: int, reach_x: int
) -> list[Node]:
    """Return exact sums of integer products: one, or several that the caller multiplies by 1, 16 or 256.

    most: the greatest magnitude of the whole; count: how many products there are.
    """
    if most < EXACT:
        return [keep_integer_weights(t, product(x, weights))]
    tens, units = digits(t, weights)
    if count * reach_x * BASE < EXACT:
        return [keep_integer_weights(t, product(x, tens)), keep_integer_weights(t, product(x, units))]
    t.require(2 * count * BASE**2 < EXACT, f"a sum has {count} 8-bit products, must have fewer to be exact in float32")
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
