"""Graphs of any number of small operations, to measure how costs grow with it."""

from nnhal.frontends.python import Builder
from nnhal.model.graph import Model


def chain(n: int) -> Model:
    """Builds a chain of `n` operations; every second one also reads the model's input."""
    b = Builder()
    x = first = b.input((4,))
    for place in range(n):
        x = b.relu(x) if place % 2 else b.add(x, first)
    return b.finish([first], [x])


def fan(n: int) -> Model:
    """Builds `n` independent operations that read one input; each writes an output."""
    b = Builder()
    x = b.input((4,))
    return b.finish([x], [b.relu(x) for _ in range(n)])


def beams(n: int) -> Model:
    """Builds `n` independent operations, each with an input and an output."""
    b = Builder()
    inputs = [b.input((4,)) for _ in range(n)]
    return b.finish(inputs, [b.relu(x) for x in inputs])


GRAPHS = {"chain": chain, "fan": fan, "beams": beams}
