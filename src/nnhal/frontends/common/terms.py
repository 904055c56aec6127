"""What importers make of a file's values on their way into a model: terms, and operations on them."""

from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Shape, SubgraphFacts, Value
from nnhal.base.records import Struct
from nnhal.model.graph import EdgeForm
from nnhal.ops.schema import I32, Q8, Q8S, Bound

UNTYPED = -1  # the type of a Value that NNAPI has no type for
PLAIN_SCALE = 1.0  # of 8-bit integers that stand for themselves


class Blob(NamedTuple):
    """Bytes of the file, or of another one beside it. file: which."""

    offset: int
    length: int
    file: int = 0


class WrittenGraph:
    """A graph of operations, as it goes into a model. forms: of the outputs, as the file has them."""

    inputs: "list[Term]"
    outputs: "list[Term]"
    operations: "list[Emitted]"
    forms: list[EdgeForm]

    @property
    def facts(self) -> SubgraphFacts:
        """What control flow may know of it. The index is the writer's business."""
        return SubgraphFacts(0, tuple(t.value for t in self.inputs), tuple(t.value for t in self.outputs))

    @property
    def edge(self) -> "list[tuple[Term, EdgeForm]]":
        """Its inputs and outputs, and how the file has them."""
        given = [EdgeForm(term.scalar, term.kind == "INT64") for term in self.inputs]
        return list(zip([*self.inputs, *self.outputs], [*given, *self.forms], strict=True))


class Inexpressible(Exception):
    """An operator that NNAPI cannot express; the message is the reason. Without one, it follows from another's."""


class OpenDimension(Struct, eq=False):
    """In the shape of a term a dimension that is known only at execution."""

    term: "Term"
    axis: int


class Term(Struct, eq=False):
    """A value in the making.

    value: what NNAPI is told of it; its `data` is there for constants. kind: its type in the file.
    data: what is known of the value at import, in the file's own shape and type; None or an OpenDimension within an array of
    objects is an element known only at execution. blob: where constant data lie in the file.
    scalar: of rank 0 in the file, where NNAPI has one dimension of 1. span: least and greatest value that integers may have.
    doubtful: written by an operator that was refused. variable: of a resource. graph: of a SUBGRAPH operand.
    made: a constant of import's own, which nobody has been charged for yet.
    parts: of complex numbers, which NNAPI lacks, the real and the imaginary ones.
    reals: of integers of a type that NNAPI lacks, the same numbers as a float tensor.
    """

    value: Value
    kind: str = ""
    data: Array | None = None
    blob: Blob | None = None
    scalar: bool = False
    span: tuple[int, int] | None = None
    doubtful: bool = False
    variable: "Variable | None" = None
    graph: WrittenGraph | None = None
    made: bool = False
    parts: "tuple[Term, Term] | None" = None
    reals: "Term | None" = None

    @property
    def partly(self) -> bool:
        """Whether it is a shape of which only a part is known; no operation of NNAPI gives the rest."""
        return self.data is not None and self.data.dtype == object


class Variable(Struct, eq=False):
    """What is kept from run to run: its initial value, the term it is read from, and the one it now stands for."""

    name: str
    initial: Array | None = None
    value: Value | None = None
    input: Term | None = None
    current: Term | None = None


class Emitted(NamedTuple):
    """An operation: an input is a term, or the type of one that is omitted. bound: it, bound to them."""

    type: str
    inputs: tuple["Term | int", ...]
    outputs: tuple[Term, ...]
    label: str
    bound: Bound


def constant(value: Value, data: Array | None, kind: str = "", blob: Blob | None = None) -> Term:
    """A constant term, of rank 1 at least. data: None for a variable, or partly known (an array of objects)."""
    if data is None:
        return Term(value, kind)
    shape = data.shape or (1,)
    known = None if data.dtype == object else data.reshape(shape)
    span = None
    if known is not None and data.dtype == np.int64 and value.type == I32:
        span = (int(data.min()), int(data.max())) if data.size else (0, 0)
        if not fits(span):
            return Term(Value(UNTYPED, shape), kind, data, scalar=data.ndim == 0, made=True)
        known, blob = known.astype(np.int32), None
    return Term(shaped(value, shape, known), kind, data, blob, scalar=data.ndim == 0, span=span, made=blob is None)


def shaped(value: Value, shape: Shape | None, data: Any = None) -> Value:
    """The same type, quantisation and name with a shape and perhaps data: `replace`, which takes four times as long."""
    return Value(value.type, shape, value.scale, value.zero_point, value.channel, data, value.name)


def fits(span: tuple[int, int]) -> bool:
    """Whether 32 bits hold all of these integers."""
    return span[0] >= -(1 << 31) and span[1] < 1 << 31


def stored(value: Value) -> int:
    """The stored value of real 0."""
    return value.zero_point if value.type in (Q8, Q8S, OperandType.TENSOR_QUANT16_ASYMM) else 0
