"""Small models for tests: one expression each."""

from collections.abc import Callable
from typing import Any

from nnhal.frontends.python import Builder
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
