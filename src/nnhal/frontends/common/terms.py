"""An importer's representation of a file's values before they become a model: terms, and operations on them."""

from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Shape, SubgraphFacts, Value
from nnhal.base.records import Struct
from nnhal.model.graph import EdgeForm
from nnhal.ops.schema import F32, I32, Q8, Q8S, Bound

UNTYPED = -1  # the type of a Value without an NNAPI type
WIDE_KINDS = frozenset(("DOUBLE", "INT64"))  # types in a file that have 32 bits in NNAPI
PLAIN_SCALE = 1.0  # of 8-bit integers that represent themselves


class Blob(NamedTuple):
    """Bytes of the file, or of an external file. file: its number."""

    offset: int
    length: int
    file: int = 0


class WrittenGraph:
    """A graph of operations, before it becomes part of a model. forms: the types of the outputs in the file."""

    inputs: "list[Term]"
    outputs: "list[Term]"
    operations: "list[EmittedOperation]"
    forms: list[EdgeForm]

    @property
    def facts(self) -> SubgraphFacts:
        """The facts that control flow may use. The writer sets the index."""
        return SubgraphFacts(0, tuple(t.value for t in self.inputs), tuple(t.value for t in self.outputs))

    @property
    def edge(self) -> "list[tuple[Term, EdgeForm]]":
        """Its inputs and outputs, with their types in the file."""
        given = [EdgeForm(t.scalar, t.kind in WIDE_KINDS, t.step, t.span[1] if t.span else 0) for t in self.inputs]
        return list(zip([*self.inputs, *self.outputs], [*given, *self.forms], strict=True))


class UnsupportedOperator(Exception):
    """An operator that NNAPI cannot express; the message is the reason.

    Without a message, it follows from another's.
    """


class OpenDimension(Struct, eq=False):
    """A dimension in the shape of a term that is known only at execution."""

    term: "Term"
    axis: int


class Term(Struct, eq=False):
    """A value during import.

    Attributes:
        value: Its NNAPI type and shape; `data` is set for constants.
        kind: Its type in the file.
        data: The part of the value that is known at import, in the file's shape and type. None, or an OpenDimension in an
            array of objects, is an element known only at execution.
        blob: The place of constant data in the file.
        scalar: Whether it has rank 0 in the file; in NNAPI it has one dimension of 1.
        span: The range of integer values.
        doubtful: Whether its operator was refused.
        variable: The variable of a resource.
        graph: The graph of a SUBGRAPH operand.
        made: Whether the importer made this constant, and its cost is not charged yet.
        parts: The real and imaginary parts of complex numbers, which NNAPI lacks.
        reals: For integers of a type that NNAPI lacks, a float tensor of the same numbers.
        step: For 16-bit integers of an input: their scale in the file, if NNAPI has their real values.
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
    step: float = 0.0

    @property
    def partly(self) -> bool:
        """Whether it is a partly known shape; no NNAPI operation gives the rest."""
        return self.data is not None and self.data.dtype == object


class Variable(Struct, eq=False):
    """A value that persists between executions: initial value, the term that it is read from, current term."""

    name: str
    initial: Array | None = None
    value: Value | None = None
    input: Term | None = None
    current: Term | None = None


class EmittedOperation(NamedTuple):
    """An operation: an input is a term, or the type of an omitted one. bound: the operation with bound arguments."""

    type: str
    inputs: tuple["Term | int", ...]
    outputs: tuple[Term, ...]
    label: str
    bound: Bound


def constant(value: Value, data: Array | None, kind: str = "", blob: Blob | None = None) -> Term:
    """Return a constant term, of rank 1 or higher. data: None for a variable; an array of objects if partly known."""
    if data is None:
        return Term(value, kind)
    shape = data.shape or (1,)
    known = None if data.dtype == object else data.reshape(shape)
    span = None
    if known is not None and data.dtype == np.float64 and value.type == F32:
        known, blob = in_float32(known), None
    if known is not None and data.dtype == np.int64 and value.type == I32:
        span = (int(data.min()), int(data.max())) if data.size else (0, 0)
        if not fits(span):
            return Term(Value(UNTYPED, shape), kind, data, scalar=data.ndim == 0, made=True)
        known, blob = known.astype(np.int32), None
    return Term(shaped(value, shape, known), kind, data, blob, scalar=data.ndim == 0, span=span, made=blob is None)


def in_float32(numbers: Array) -> Array:
    """Round numbers to float32. A finite one remains finite, one that is not 0 remains so: limits are often constants."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # a signalling NaN is invalid
        rounded = numbers.astype(np.float32)
    limits = np.finfo(np.float32)
    rounded = np.where(np.isinf(rounded) & np.isfinite(numbers), np.copysign(limits.max, rounded), rounded)
    return np.where((rounded == 0) & (numbers != 0), np.copysign(limits.tiny, rounded), rounded)


def shaped(value: Value, shape: Shape | None, data: Any = None) -> Value:
    """Copy the type, quantisation and name with a shape and maybe data. `replace` takes four times as long."""
    return Value(value.type, shape, value.scale, value.zero_point, value.channel, data, value.name)


def bare(value: Value) -> Value:
    """Return the type and quantisation of a value alone."""
    return Value(value.type, None, value.scale, value.zero_point, value.channel)


def fits(span: tuple[int, int]) -> bool:
    """Whether all of these integers fit 32 bits."""
    return span[0] >= -(1 << 31) and span[1] < 1 << 31


def stored(value: Value) -> int:
    """Return the stored value of real 0."""
    return value.zero_point if value.type in (Q8, Q8S, OperandType.TENSOR_QUANT16_ASYMM) else 0
