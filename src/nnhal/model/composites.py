"""Finds functions that engines have whole, but models spell out in several operations.

A pattern has a line for each operation, its result first; later lines read earlier results:

    low = MINIMUM least 0

Other names are operands of the model, and numbers are constants of that one value. The order of arguments counts: the
patterns are those that the importers of `nnhal.frontends` write.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.lazy import cached_property
from nnhal.base.operands import fixed
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound

Lines = dict[str, tuple[str, tuple[str, ...]]]  # by result: the operation and its arguments


def pattern(text: str) -> Lines:
    """Return the lines of a pattern, by their results."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {result: (kind, tuple(arguments)) for result, _, kind, *arguments in lines}


class CompositeSearch:
    """The operations of a model's main subgraph, by the operands that they make and read."""

    def __init__(self, model: Model) -> None:
        binding = validate(model).subgraphs[0]
        self.main, self.bounds, self.values = model.main, binding.operations, binding.values
        self.makers = {i: n for n, operation in enumerate(self.main.operations) for i in operation.outputs}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Map each operand to the operations that read it."""
        found: dict[int, list[int]] = {}
        for n, operation in enumerate(self.main.operations):
            for i in operation.inputs:
                found.setdefault(i, []).append(n)
        return found

    def operations(self, *kinds: str) -> Iterator[tuple[int, Bound, Operation]]:
        """Yield the valid operations of some kinds, with their numbers."""
        for n, (operation, a) in enumerate(zip(self.main.operations, self.bounds, strict=True)):
            if a is not None and a.op.name in kinds:
                yield n, a, operation

    def maker(self, operand: int, kind: str) -> tuple[Bound, Operation] | None:
        """Return the operation that makes an operand; None if it is of another kind or has an activation."""
        n = self.makers.get(operand)
        a = None if n is None else self.bounds[n]
        if n is None or a is None or a.op.name != kind:
            return None
        plain = not a.form_has("activation") or optional_value(a, "activation") == Activation.NONE
        return (a, self.main.operations[n]) if plain else None

    def shape(self, operand: int) -> tuple[int, ...]:
        """Return an operand's dimensions; empty if they are unknown."""
        value = self.values[operand]
        return () if value is None else fixed(value.shape) or ()

    def source(self, operand: int) -> int:
        """Return the operand that has the same elements before any RESHAPE."""
        while (made := self.maker(operand, "RESHAPE")) is not None:
            operand = made[1].inputs[0]
        return operand

    def is_number(self, operand: int, number: float) -> bool:
        """Whether an operand is a constant of this one value, 0 without a sign."""
        value = self.values[operand]
        if value is None or value.data is None:
            return False
        data = np.asarray(value.data)
        return bool(data.size) and bool((data == number).all()) and not np.signbit(data).any()

    def matched(self, operand: int, lines: Lines, result: str, found: dict[str, int]) -> bool:
        """Whether an operand is made as a result of a pattern; `found` receives the operands by name.

        A RESHAPE has no line: operands stand for all that have the same elements.
        """
        if result not in lines and not result.isidentifier():
            return self.is_number(operand, float(result))
        operand = self.source(operand)
        if result in found or result not in lines:
            return found.setdefault(result, operand) == operand
        found[result] = operand
        kind, arguments = lines[result]
        made = self.maker(operand, kind)
        return made is not None and all(
            self.matched(i, lines, name, found) for i, name in zip(made[1].inputs, arguments, strict=False)
        )


def optional_value(a: Bound, name: str) -> Any:
    """Return a scalar argument; None if it is known only at execution."""
    return a.__dict__.get(name)
