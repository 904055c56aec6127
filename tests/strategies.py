"""Calls of an operation drawn from its record: types, shapes, scalars, scales and contents that it says it takes.

Hypothesis draws a seed; from that a call is made up, again and again until the record accepts it: rules that tie arguments
to each other (padding and filter, the scales of a product) are met by chance, all else is made to fit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nnhal.base.codes import TYPE_FACTS, OperandType
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Array, Value, dtype_of
from nnhal.ops import OPS
from nnhal.ops.common import broadcast_shape
from nnhal.ops.schema import Arg, Op, T, bind, output_at, types_for
from tests.ops.run import I32, result, value
from tests.oracles.strategies import POINTS, Example, Source

ELEMENTWISE = (
    *("ABS", "NEG", "EXP", "LOG", "SQRT", "RSQRT", "SIN", "FLOOR"),
    *("RELU", "RELU1", "RELU6", "TANH", "LOGISTIC", "ELU", "HARD_SWISH"),
    *("ADD", "SUB", "MUL", "DIV", "POW", "MAXIMUM", "MINIMUM", "PRELU", "SELECT"),
    *("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "QUANTIZE", "CAST"),
)
REDUCTIONS = (
    *("REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_SUM"),
    *("MEAN", "ARGMAX", "ARGMIN"),
)
POOLS = "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"
TRIES = 300


@st.composite
def calls(draw: Any, name: str, kind: int, points: Sequence[float] = POINTS) -> Example:
    """A valid call with `kind` as the operation's own type; `points` are floats to be mixed in. No argument is omitted."""
    record, source = OPS[name], Source(draw)
    for _ in range(TRIES):
        example = _Call(record, kind, source, points).example()
        try:
            bind(record, example.inputs, [example.output])
        except InvalidModel as error:
            problem = error
            continue
        return example
    raise AssertionError(f"none of {TRIES} calls was valid; the last: {problem}")


class _Call:
    """One call in the making."""

    def __init__(self, record: Op, kind: int, source: Source, points: Sequence[float]) -> None:
        self.record, self.kind, self.source, self.points = record, kind, source, points
        form = source.pick(*record.forms)
        counts, _ = form.counts()
        self.form = form[: source.pick(*counts)]
        first = self.form[0]
        least, most = (len(first.dims),) * 2 if first.dims else first.rank or (1, 4)
        self.rank = int(source.rng.integers(max(1, least), min(4, most) + 1))
        self.sizes: dict[str, int] = {}  # of named dimensions
        self.scalars = {a.name: self.scalar(a) for a in self.form if a.scalar}
        self.tensors: dict[str, Value] = {}

    def example(self) -> Example:
        """The inputs in order, and the output as far as it is declared: its shape is not."""
        for argument in self.form:
            if not argument.scalar:
                self.tensors[argument.name] = self.tensor(argument)
        given = self.scalars | self.tensors
        return Example(tuple(given[a.name] for a in self.form), self.output())

    def type_of(self, argument: Arg) -> int:
        if argument.spec is T:
            return self.kind
        return int(self.source.pick(*types_for(self.record, argument, self.kind)))

    def scalar(self, argument: Arg) -> Value:
        kind, rng = self.type_of(argument), self.source.rng
        low = argument.at_least
        if argument.enum is not None:
            return value(kind, self.source.pick(*argument.enum))
        if kind == OperandType.BOOL:
            return value(kind, rng.integers(2))
        if dtype_of(kind).kind == "f":
            return value(kind, rng.uniform(0.05 if low is None else low, 2))
        if argument.name.startswith("axis"):
            return value(kind, rng.integers(-self.rank, self.rank))
        return value(kind, rng.integers(-2 if low is None else int(low), 4))

    def tensor(self, argument: Arg) -> Value:
        kind, shape = self.type_of(argument), self.shape(argument)
        if kind == I32 and argument.name in ("axis", "axes"):
            return value(kind, self.source.rng.integers(-self.rank, self.rank, shape))
        return self.source.tensor(kind, shape, self.source.quant(kind, 0, 2), points=self.points)

    def shape(self, argument: Arg) -> tuple[int, ...]:
        """That of the pattern; else that of the tensors before, where they broadcast with some dimensions 1 or left out."""
        rng = self.source.rng
        if argument.dims is not None:
            names = list(argument.dims)
            if argument.layout and "nchw" in self.scalars and self.scalars["nchw"].array:
                names.insert(1, names.pop())
            return tuple(int(n) if n.isdigit() else self.sizes.setdefault(n, int(rng.integers(1, 6))) for n in names)
        for n in range(self.rank):
            self.sizes.setdefault(f"axis {n}", int(rng.integers(1, 6)))
        whole = tuple(self.sizes[f"axis {n}"] for n in range(self.rank))
        if self.record.infer is not broadcast_shape:
            return whole
        lacking = int(rng.integers(self.rank)) if rng.random() < 0.3 else 0
        return tuple(n if rng.random() < 0.7 else 1 for n in whole)[lacking:]

    def output(self) -> Value:
        described = output_at(self.record, 0)
        kind = self.type_of(described)
        if TYPE_FACTS[kind].zero_points is None:
            return result(kind)
        if described.quant is not None and kind in described.quant.fixed:
            return result(kind, None, *described.quant.fixed[kind])
        first = self.tensors[self.form[0].name]
        same = described.quant is not None and described.quant.same
        return result(kind, None, *((first.scale, first.zero_point) if same else self.source.quant(kind, 0, 4)))


def real_arrays(example: Example) -> list[Array]:
    """The numbers that all inputs stand for, in float64; scalars as arrays without dimensions."""
    return [
        (v.array.astype(np.float64) - v.zero_point) * (v.scale or 1) if v.quantised else v.array.astype(np.float64)
        for v in example.tensors
    ]
