"""The interface of an entry to its operator: tensors, options, and methods that write NNAPI operations."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator, constant
from nnhal.frontends.common.writing import ASYMMETRIC, INT32_RANGE, MOST_DIMENSIONS, OperationWriter
from nnhal.frontends.tflite.file import OMITTED, Operator
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.int64 import CARRIES, span_of
from nnhal.frontends.tflite.reader import Fields
from nnhal.ops.schema import F32, I32

SHAPES = {"FILL": 0, "RESHAPE": 1, "BROADCAST_TO": 1}  # the input that is the shape of the output
TANH = 4  # TFLite's fused activations; lower ones are NNAPI's
FUSED = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
AFTER = {Activation.RELU: "RELU", Activation.RELU1: "RELU1", Activation.RELU6: "RELU6", TANH: "TANH"}


class OperatorEntry(NamedTuple):
    """The way to lower an operator. inputs, outputs: the least and greatest number; None: any.

    real: whether it computes a function of real values alone. If NNAPI's quantised operation rejects the file's scales,
    it can be dequantised, computed in float32 and quantised, which rounds once too. single: whether it is elementwise,
    so that dimensions can be merged if NNAPI supports at most four. becomes: the resulting operations, for people.
    """

    lower: Callable[["OperatorTask"], None]
    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None]
    real: bool
    single: bool
    becomes: str


ENTRIES: dict[str, OperatorEntry] = {}
Count = int | tuple[int, int | None]


def entry(
    *names: str, inputs: Count = 1, outputs: Count = 1, real: bool = False, single: bool = False, becomes: str = ""
) -> Callable[[Callable[["OperatorTask"], None]], Callable[["OperatorTask"], None]]:
    """Register a function as the entry of the named operators."""
    counts = [(n, n) if isinstance(n, int) else n for n in (inputs, outputs)]

    def add(function: Callable[["OperatorTask"], None]) -> Callable[["OperatorTask"], None]:
        for name in names:
            ENTRIES[name] = OperatorEntry(function, counts[0], counts[1], real, single, becomes)
        return function

    return add


class OperatorTask(OperationWriter):
    """One operator to lower. The graph is unchanged before `commit`. reals: see `OperatorEntry.real`."""

    def __init__(self, graph: ImportGraph, operator: Operator, *, reals: bool = False) -> None:
        super().__init__(graph.file.budget, f"{operator.name} {graph.place(operator.index)}")
        self.graph, self.operator, self.reals, self.name = graph, operator, reals, operator.name
        self.results: dict[int, Term] = {}
        self.later: list[Callable[[], None]] = []

    def options(self, kind: str) -> Fields:
        """Return the operator's options, such as Conv2DOptions."""
        return self.operator.options.read(kind)

    def commit(self) -> None:
        """Add results and operations to the graph."""
        there, made = len(self.operator.outputs), len(self.results)
        self.require(there <= made, f"has {there} outputs, must have {made}")
        spans = {n: span_of(self, n) for n in range(len(self.operator.outputs)) if self._wide(self.operator.outputs[n])}
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

    def ranked(self, number: int) -> Term:
        """Return the term of output `number`, with rank 0 if the file's has; an input with another rank is copied."""
        term, tensor = self.results[number], self.graph.source.tensors[self.operator.outputs[number]]
        if not self.operator.builtin or term.parts or term.data is not None or term.value.shape != (1,):
            return term
        scalar = not tensor.shape and not self._says_one()
        if term.scalar != scalar and not any(term is out for made in self.emitted for out in made.outputs):
            term = self.copied(term)
        term.scalar = scalar
        return term

    def _says_one(self) -> bool:
        """Whether the inputs determine that the output has one dimension; rank 0 in the file may mean unknown."""
        if self.name in ENTRIES and ENTRIES[self.name].single:
            there = [i for i in self.operator.inputs if i != OMITTED]
            return any(not self.graph.term(index).scalar for index in there)
        place = SHAPES.get(self.name)
        if place is None or not self.given(place):
            return False
        data = self.raw(place).data
        return data is not None and data.size == 1

    # ------------------------------------------------------------------------------------------------------- inputs

    def given(self, place: int) -> bool:
        """Whether input `place` is given."""
        inputs = self.operator.inputs
        return place < len(inputs) and inputs[place] != OMITTED

    def raw(self, place: int) -> Term:
        """Return input `place`, of any type."""
        self.require(self.given(place), f"input {place} is omitted, must be given")
        return self.graph.term(self.operator.inputs[place])

    def maybe(self, place: int) -> Term | None:
        """Return input `place`, None if it is omitted."""
        return self.x(place) if self.given(place) else None

    def x(self, place: int) -> Term:
        """Return input `place` as an NNAPI tensor."""
        term = self.raw(place)
        if term.value.type == UNTYPED or (self._wide(self.operator.inputs[place]) and self.name not in CARRIES):
            self.follows(term)
            try:
                self.graph.declared(self.operator.inputs[place])
            except UnsupportedOperator as error:
                raise UnsupportedOperator(f"input {place}, {error}") from error
            self.refuse(f"input {place} is {term.kind}, which NNAPI has no type for")
        self.require(
            not term.partly, f"input {place} is a shape known only at execution, which NNAPI has no operation for"
        )
        return self.real(term) if self.reals and term.value.type in ASYMMETRIC else term

    def _wide(self, index: int) -> bool:
        """Whether a tensor has 64-bit integers in the file."""
        return self.graph.source.tensors[index].type == "INT64"

    def xs(self, start: int = 0) -> list[Term]:
        """Return all inputs from a place on."""
        return [self.x(place) for place in range(start, len(self.operator.inputs))]

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

    # ------------------------------------------------------------------------------------------------------- shapes

    # ------------------------------------------------------------------------------------------------------ outputs

    def declared(self, number: int = 0) -> Value:
        """Return the type and quantisation of output `number` in the file."""
        count = len(self.operator.outputs)
        self.require(number < count, f"has {count} outputs, must have at least {number + 1}")
        try:
            return self.graph.declared(self.operator.outputs[number])
        except UnsupportedOperator as error:
            raise UnsupportedOperator(f"output {number}, {error}") from error

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

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an input or a constant."""
        self.results[number] = term

    def known_result(self, data: Array, number: int = 0) -> None:
        """Set output `number` to a value known at import."""
        index = self.operator.outputs[number]
        kind = self.graph.source.tensors[index].type
        try:
            value = self.graph.declared(index)
        except UnsupportedOperator:
            value = Value(UNTYPED)
        self.results[number] = constant(value, data, kind)

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
