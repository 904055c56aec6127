"""The interface of an entry to its operator: tensors, options, and methods that write NNAPI operations."""

import math
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.integer_ranges import ANY, EVERY, Span, span_of
from nnhal.frontends.common.lowering import flattened, moved_by
from nnhal.frontends.common.operators import COUNTED, Fold, OperatorFacts, OperatorTable
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator, constant, stored
from nnhal.frontends.common.writing import (
    ASYMMETRIC,
    INT32_RANGE,
    MOST_DIMENSIONS,
    OperationWriter,
    copied,
    lack_of_type,
    nonzero_mask,
    ones,
)
from nnhal.frontends.tflite.file import OMITTED, Operator
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.reader import Fields
from nnhal.ops.schema import B8, F32, I32

KINDS: dict[str, Span] = {
    "BOOL": (0, 1), "UINT8": (0, 255),  # NNAPI's CAST makes no int32 of other small ones
    **dict.fromkeys(("FLOAT16", "FLOAT32", "FLOAT64", "UINT32", "UINT64"), EVERY),
}  # fmt: skip
CUSTOM = "custom operation "  # before the name of such an operator
UNRUN = "has no kernel in LiteRT, which does not run files with it either"
MOST_FOLDED = 4096  # elements of a result at import, or results of an operator
TANH = 4  # TFLite's fused activations; lower ones are NNAPI's
FUSED = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
AFTER: dict[int, str] = {**{each: each.name for each in Activation if each}, TANH: "TANH"}


class TfliteFacts(OperatorFacts, frozen=True):
    """The facts about an operator of TFLite.

    Attributes:
        to: The NNAPI operation of the same meaning, if it has another name.
        real: Whether it computes a function of real values alone. If NNAPI's quantised operation rejects the file's
            scales, it can be dequantised, computed in float32 and quantised, which rounds once too.
        fills: Like `moves`, with NOWHERE for elements that are filled in.
        valued: Whether the last input is the value of those.
        indexed: Whether the other inputs are indices of many elements.
        first: The input whose elements move.
        shape: The input that is the shape of the output.
        sixteen: Whether it supports INT16 beside an input of 8 bits.
        integral: Whether it computes with stored integers, not with the real values that they stand for.
    """

    to: str = ""
    real: bool = False
    fills: Fold | None = None
    valued: bool = False
    indexed: bool = False
    first: int = 0
    shape: int | None = None
    sixteen: bool = False
    integral: bool = False


def why_unknown(name: str) -> str:
    """Return why an operator that is not in the table is refused."""
    custom = name.removeprefix(CUSTOM)
    if custom == name:
        return UNRUN
    if custom.startswith("Flex"):
        return "is computed by TensorFlow itself"
    return f"is unknown; nnhal.register_custom_operator({custom!r}, ...) defines it"


OPERATORS = OperatorTable(TfliteFacts, why_unknown)
operator, computed = OPERATORS.operator, OPERATORS.computed
OPERATORS.refuse("reads the bits of a number as another type, which no operation of NNAPI does", "BITCAST")
OPERATORS.refuse("is defined by its author: NNAPI has no operation of that name", "CUSTOM", "STABLEHLO_CUSTOM_CALL")
OPERATORS.refuse("belongs to another engine's delegate, which only that engine can read", "DELEGATE")
OPERATORS.refuse("works on strings or tables of them, for which NNAPI has no type",
                 "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "SKIP_GRAM")  # fmt: skip
OPERATORS.refuse("draws random numbers from LiteRT's generator, which NNAPI's only random operation lacks",
                 "MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "STABLEHLO_RNG_BIT_GENERATOR")  # fmt: skip
OPERATORS.refuse("is not an operator: files use it if the number of one does not fit a byte",
                 "PLACEHOLDER_FOR_GREATER_OP_CODES")  # fmt: skip
OPERATORS.refuse(COUNTED, "UNIQUE")
OPERATORS.refuse("is an operation of MediaPipe, which nnhal does not support yet",
                 *(CUSTOM + name for name in (
                     "Landmarks2TransformMatrix", "MaxPoolingWithArgmax2D", "MaxUnpooling2D", "Resampler",
                     "TransformLandmarks", "TransformTensorBilinear")))  # fmt: skip


class OperatorTask(OperationWriter):
    """One operator to lower. The graph is unchanged before `commit`. reals: see `TfliteFacts.real`."""

    graph: ImportGraph
    facts: TfliteFacts

    def __init__(self, graph: ImportGraph, operator: Operator, *, reals: bool = False) -> None:
        label = f"{operator.name} {graph.place(operator.index)}"
        super().__init__(graph, operator.inputs, OPERATORS[operator.name], label)
        self.operator, self.reals, self.name = operator, reals, operator.name

    def options(self, kind: str) -> Fields:
        """Return the operator's options, such as Conv2DOptions."""
        return self.operator.options.read(kind)

    def commit(self) -> None:
        """Add results and operations to the graph."""
        there, made = len(self.operator.outputs), len(self.results)
        self.require(there <= made, f"has {there} outputs, must have {made}")
        spans = {n: self._span(n) for n in range(there) if self._wide(self.operator.outputs[n])}
        results = [self.ranked(number) for number in range(there)]
        self.charge_constants()
        self.graph.operations += self.emitted
        for number, index in enumerate(self.operator.outputs):
            term, tensor = results[number], self.graph.source.tensors[index]
            term.kind = term.kind or tensor.type
            if tensor.type == "INT64" and term.value.type == I32:
                term.span = spans[number]
            self.graph.terms[index] = term
        for step in self.later:
            step()

    def _span(self, number: int) -> Span:
        result = self.results[number]
        if result.data is not None and result.span is not None:
            return result.span
        there = [i for i in self.operator.inputs if i in self.graph.terms]
        terms = [self.graph.terms[i] for i in there]
        kinds = [self.graph.source.tensors[i].type for i in there]
        spans = [term.span or KINDS.get(kind, ANY) for term, kind in zip(terms, kinds, strict=True)]
        return span_of(self.facts.span, result, number, terms, spans, EVERY)

    def ranked(self, number: int) -> Term:
        """Return the term of output `number`, with rank 0 if the file's has; an input with another rank is copied."""
        term, tensor = self.results[number], self.graph.source.tensors[self.operator.outputs[number]]
        if not self.operator.builtin or term.parts or term.data is not None or term.value.shape != (1,):
            return term
        scalar = not tensor.shape and not self._says_one()
        if term.scalar != scalar and not self.wrote(term):
            term = copied(self, term)
        term.scalar = scalar
        return term

    def _says_one(self) -> bool:
        """Whether the inputs determine that the output has one dimension; rank 0 in the file may mean unknown."""
        if self.facts.single:
            there = [i for i in self.operator.inputs if i != OMITTED]
            return any(not self.graph.term(index).scalar for index in there)
        place = self.facts.shape
        if place is None or not self.given(place):
            return False
        data = self.raw(place).data
        return data is not None and data.size == 1

    # ------------------------------------------------------------------------------------------------------- inputs

    def raw(self, place: int) -> Term:
        """Return input `place`, of any type."""
        self.require(self.given(place), f"input {place} is omitted, must be given")
        return self.graph.term(self.operator.inputs[place])

    def x(self, place: int) -> Term:
        """Return input `place` as an NNAPI tensor."""
        term = self.raw(place)
        if term.value.type == UNTYPED or (self._wide(self.operator.inputs[place]) and self.facts.span is None):
            self.follows(term)
            try:
                self.graph.declared(self.operator.inputs[place])
            except UnsupportedOperator as error:
                raise UnsupportedOperator(f"input {place}, {error}") from error
            self.refuse(f"input {place} {lack_of_type(term.value, term.kind)}")
        self.require(
            not term.partly, f"input {place} is a shape known only at execution, which NNAPI has no operation for"
        )
        return self.real(term) if self.reals and term.value.type in ASYMMETRIC else term

    def _wide(self, index: int) -> bool:
        """Whether a tensor has 64-bit integers in the file."""
        return self.graph.source.tensors[index].type == "INT64"

    def integer(self, place: int, what: str) -> int:
        """Return one constant integer."""
        numbers = self.ints(place, what)
        self.require(len(numbers) == 1, f"{what} is {numbers}, must be one number")
        return numbers[0]

    def index(self, place: int, what: str) -> Term:
        """Return integers as TENSOR_INT32; 64-bit constants are accepted if they fit."""
        term = self.raw(place)
        self.require(not term.partly, f"{what} is a shape known only at execution, must be constant for NNAPI")
        if term.value.type == I32:
            return term
        self.require(term.kind == "INT64", f"{what} is {term.kind}, must be INT32")
        data = self.data(place, what)
        self.require(data.dtype != object and data.size, f"{what} is unknown, must be constant if it is INT64")
        fits = INT32_RANGE.min <= data.min() and data.max() <= INT32_RANGE.max
        self.require(fits, f"{what} holds numbers that do not fit into 32 bits")
        return constant(Value(I32), data.astype(np.int32))

    # ------------------------------------------------------------------------------------------------------ outputs

    def declared(self, number: int = 0) -> Value:
        """Return the type and quantisation of output `number` in the file."""
        count = len(self.operator.outputs)
        self.require(number < count, f"has {count} outputs, must have at least {number + 1}")
        try:
            return self.graph.declared(self.operator.outputs[number])
        except UnsupportedOperator as error:
            raise UnsupportedOperator(f"output {number}, {error}") from error

    def kind(self, number: int = 0) -> str:
        """Return the type of output `number` in the file."""
        return self.graph.source.tensors[self.operator.outputs[number]].type

    def out(self, number: int = 0) -> Value:
        """Return the type and quantisation of output `number` that this task must write."""
        value = self.declared(number)
        return Value(F32, None, name="") if self.reals and value.type in ASYMMETRIC else value

    def reads(self, number: int) -> bool:
        """Whether output `number` is read."""
        return self.operator.outputs[number] in self.graph.read

    def result(self, number: int, term: Term) -> None:
        """Set output `number` to a term; a task on reals quantises it first."""
        value = self.declared(number)
        if term.value.type != value.type and value.type in ASYMMETRIC and self.reals:
            (term,) = self.run("QUANTIZE", term, outs=[value])
        self.results[number] = term

    def known_result(self, data: Array, number: int = 0, kind: str = "") -> None:
        """Set output `number` to a value known at import. kind: its type, if not that in the file."""
        try:
            value = self.graph.declared(self.operator.outputs[number])
        except UnsupportedOperator:
            value = Value(UNTYPED)
        self.results[number] = constant(value, data, kind or self.kind(number))

    # ------------------------------------------------------------------------------------------------------ writing

    def give(self, name: str, *given: Any, **named: Any) -> None:
        """Write an operation whose outputs are the operator's."""
        outs = [self.out(number) for number in range(len(self.operator.outputs))]
        for number, term in enumerate(self.run(name, *given, outs=outs, **named)):
            self.result(number, term)

    def fused(self, code: int, name: str, *given: Any, **named: Any) -> None:
        """Write one operation with a fused activation, or with a separate one if NNAPI does not fuse it."""
        self.require(code in FUSED, f"activation is {code}, must be one of {', '.join(map(str, FUSED))}")
        if code < TANH:
            self.give(name, *given, activation=code, **named)
        else:
            self.activated(code, self.make(name, *given, like=self.out(), activation=0, **named))

    def activated(self, code: int, term: Term) -> None:
        """Set the operator's output to a term with an activation."""
        if code == Activation.NONE:
            self.result(0, term)
        else:
            self.require(code in AFTER, f"activation is {FUSED.get(code, code)}, which NNAPI does not have")
            self.give(AFTER[code], term)

    # ---------------------------------------------------------------------------------------------- common operations

    def flattened(self, name: str, x: Term, *given: Any) -> None:
        """Write an operation along the last dimension, or an elementwise one, with at most four dimensions."""
        shape = self.shape(x)
        if len(shape) <= MOST_DIMENSIONS:
            self.give(name, x, *given)
            return
        rows = self.reshaped(x, (math.prod(self.known(x)[:-1]), shape[-1]))
        self.reshaped(self.make(name, rows, *given, like=self.out()), shape, out=True)


class FlatTask(OperatorTask):
    """An elementwise operator whose inputs have as few dimensions as broadcasting requires."""

    def __init__(self, graph: ImportGraph, operator: Operator, *, reals: bool = False) -> None:
        super().__init__(graph, operator, reals=reals)
        terms = [super(FlatTask, self).raw(place) for place in range(len(operator.inputs))]
        self.whole, flat = flattened(self, terms)
        self._flat = dict(enumerate(flat))

    def raw(self, place: int) -> Term:
        """Return input `place`, with fewer dimensions."""
        return self._flat[place]

    def result(self, number: int, term: Term) -> None:
        """Set output `number`, with its original dimensions."""
        super().result(number, term)
        self.results[number] = self.reshaped(self.results[number], self.whole or (1,))


class NumbersTask(OperatorTask):
    """A move that treats booleans as int32 0 and 1."""

    def x(self, place: int) -> Term:
        """Return input `place`, as numbers."""
        term = super().x(place)
        return ones(self, term) if term.value.type == B8 else term

    def out(self, number: int = 0) -> Value:
        """Return the type of output `number` before it becomes boolean again."""
        value = super().out(number)
        return Value(I32, None) if value.type == B8 else value

    def result(self, number: int, term: Term) -> None:
        """Set output `number`, converted to boolean again."""
        truth = self.declared(number).type == B8 and term.value.type == I32
        super().result(number, nonzero_mask(self, term) if truth else term)


def lower_by_places(t: OperatorTask) -> None:
    """Lower an operator that moves elements, and maybe fills in others, as source indices. Booleans become numbers."""
    facts, count = t.facts, len(t.operator.inputs)
    moves, first = facts.fills or facts.moves, facts.first
    if moves is None:
        raise UnsupportedOperator
    last = count if facts.joins else first + 1
    terms = [t.x(place) for place in range(first, last)]

    def move(*arrays: Array) -> Any:
        given = [t.data(n, f"input {n}") for n in range(count - facts.valued) if not first <= n < last]
        small = facts.indexed or all(each.size <= MOST_FOLDED for each in given)
        t.require(small, "has more arguments than dimensions")
        return moves(t, *given[:first], *arrays, *given[first:])

    def fill() -> Any:
        if not facts.valued:
            return stored(terms[0].value)
        scales = [(v.scale, v.zero_point) for v in (t.x(count - 1).value, terms[0].value)]
        t.require(scales[0] == scales[1], "the value has another scale than the input, must have the same")
        return t.number(count - 1, "value")

    for number, (_, term) in enumerate(moved_by(t, terms, move, fill)):
        t.result(number, term)
