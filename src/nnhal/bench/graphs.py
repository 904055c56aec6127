"""Graphs of any number of small operations, of which growth is measured."""

from nnhal.frontends.python import Builder
from nnhal.model.graph import Model


def chain(n: int) -> Model:
    """One operation after the other, every other of which reads the model's input too."""
    b = Builder()
    x = first = b.input((4,))
    for place in range(n):
        x = b.relu(x) if place % 2 else b.add(x, first)
    return b.finish([first], [x])


def fan(n: int) -> Model:
    """One input, read by operations beside each other, as many outputs."""
    b = Builder()
    x = b.input((4,))
    return b.finish([x], [b.relu(x) for _ in range(n)])


def beams(n: int) -> Model:
    """Operations beside each other, an input and an output for each."""
    b = Builder()
    inputs = [b.input((4,)) for _ in range(n)]
    return b.finish(inputs, [b.relu(x) for x in inputs])


GRAPHS = {"chain": chain, "fan": fan, "beams": beams}
