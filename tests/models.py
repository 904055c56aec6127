"""Small models for tests: one expression each."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from nnhal.base.operands import SubgraphFacts
from nnhal.frontends.python import Builder
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model


def make_model(build: Callable[..., Any], *inputs: Any, name: str = "", **named: Any) -> Model:
    """Build a model: `make_model(lambda b, x, y: b.add(x, y), (4,), y=(4,))`.

    Args:
        build: Receives the builder and the inputs, the named ones last; returns the output, or a list of outputs.
        inputs: The shape of each input, or the arguments of `Builder.input` as a tuple.
        name: The name of the model.
        named: The same for inputs with a name.
    """
    b = Builder(name)
    given = [_input(b, each) for each in inputs] + [_input(b, each, name) for name, each in named.items()]
    return b.finish(given, build(b, *given))


def _input(b: Builder, given: Any, name: str = "") -> Any:
    several = isinstance(given, tuple) and given and isinstance(given[0], tuple | list)
    return b.input(*given, name=name) if several else b.input(given, name=name)


def one_operation(operation: str | int, *inputs: tuple[Any, ...], output: tuple[Any, ...], name: str = "") -> Model:
    """A model of one operation as it is, valid or not: inputs and output are arguments of `ModelBuilder.operand`."""
    b = ModelBuilder(name)
    given, made = [b.operand(*each) for each in inputs], b.operand(*output)
    b.operation(operation, given, [made])
    return b.finish(given, [made])


def operation_chain(operand: tuple[Any, ...], *operations: str | int, extensions: Any = (), name: str = "") -> Model:
    """A chain of operations as they are, of one input each; operand: arguments of `ModelBuilder.operand`."""
    b = ModelBuilder(name)
    places = [b.operand(*operand) for _ in range(len(operations) + 1)]
    for operation, (given, made) in zip(operations, pairwise(places), strict=True):
        b.operation(operation, [given], [made])
    return b.finish(places[:1], places[-1:], extensions=extensions)


def make_subgraph(b: Builder, build: Callable[..., Any], *inputs: Any) -> SubgraphFacts:
    """Build a subgraph of the model that `b` builds; the arguments are those of `make_model`."""
    s = b.subgraph()
    given = [_input(s, each) for each in inputs]
    return s.finish_subgraph(given, build(s, *given))


def counted_loop(b: Builder, x: Any, times: Any, body: Callable[..., Any], shape: Any = (4,), most: int = 0) -> Any:
    """The end of a WHILE: n = 0; while n < times: n, x = n + 1, body(builder, x, n, times).

    Args:
        b: The builder.
        x: The value at first, of `shape` in the subgraphs.
        times: The limit, a tensor that the loop carries; or a number, which it does not carry.
        body: Computes x.
        shape: The shape of x in the subgraphs.
        most: A limit that takes the place of `times`.
    """
    count = ((1,), "TENSOR_INT32")
    limit, carried = (most or times, []) if isinstance(times, int) else (most, [times])
    kinds = [count, shape, *[count] * len(carried)]
    goes_on = make_subgraph(b, lambda s, n, _, *rest: s.less(n, [limit] if limit else rest[0]), *kinds)
    turn = make_subgraph(b, lambda s, n, y, *rest: [body(s, y, n, *rest), s.add(n, [1])][::-1], *kinds)
    given = [b.constant(np.zeros(1, np.int32)), x, *carried]
    return b.while_(goes_on, turn, given, out_type=["TENSOR_INT32", "TENSOR_FLOAT32"], outputs=2)[1]


def chain(operation: str, length: int = 1, shape: Any = (4,), name: str = "", **arguments: Any) -> Model:
    """A chain of operations of one input, each on the result of the one before."""

    def build(b: Builder, y: Any) -> Any:
        for _ in range(length):
            y = getattr(b, operation)(y, **arguments)
        return y

    return make_model(build, shape, name=name)


def doubling(*shape: int | None, name: str = "") -> Model:
    """y = x + x, of 4 elements if no shape is given."""
    return make_model(lambda b, x: b.add(x, x), shape or (4,), name=name)


def adding(*shape: int | None, name: str = "") -> Model:
    """z = x + y, of 4 elements if no shape is given."""
    return make_model(lambda b, x, y: b.add(x, y), shape or (4,), shape or (4,), name=name)


def relus(length: int, size: int = 4) -> Model:
    """A chain of RELUs of `size` elements."""
    return chain("relu", length, (size,))
