"""What an entry of the table works with: one operator's tensors and options, and NNAPI operations to write."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnhal.base.answers import shown
from nnhal.base.codes import Activation, OperandType, type_name
from nnhal.base.errors import InvalidArgument
from nnhal.base.operands import Array, Shape, Value, dtype_of
from nnhal.base.records import replace
from nnhal.frontends.tflite.budget import Cost
from nnhal.frontends.tflite.file import OMITTED, Operator
from nnhal.frontends.tflite.graph import UNTYPED, Emitted, ImportGraph, Inexpressible, Term, constant, shaped
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.wide import CARRIES, span_of
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S, Arg, Op, T, bind, types_for

ASYMMETRIC = (Q8, Q8S)
MOST_DIMENSIONS = 4  # of many of NNAPI's operations
SHAPES = {"FILL": 0, "RESHAPE": 1, "BROADCAST_TO": 1}  # which input is the shape of the output
MOST_PLACES = 1 << 20  # numbers of a constant that says where elements come from
TANH = 4  # TFLite's fused activations; the ones before it are NNAPI's
FUSED = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
AFTER = {Activation.RELU: "RELU", Activation.RELU1: "RELU1", Activation.RELU6: "RELU6", TANH: "TANH"}
INT32_RANGE = np.iinfo(np.int32)
ARGUMENTS = (Term, int, float, str, np.generic)


class OperatorEntry(NamedTuple):
    """How to lower an operator. inputs, outputs: the least and greatest number; None: any.

    real: what it computes is a function of real values alone, so where NNAPI's quantised form does not take the file's
    scales the same can be said by dequantising, computing in float32 and quantising, which rounds once too.
    single: it works on single elements, so where NNAPI takes four dimensions at most some can be seen as one.
    becomes: what it is made of, for people.
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
    """Make a function the entry of the named operators."""
    counts = [(n, n) if isinstance(n, int) else n for n in (inputs, outputs)]

    def add(function: Callable[["OperatorTask"], None]) -> Callable[["OperatorTask"], None]:
        for name in names:
            ENTRIES[name] = OperatorEntry(function, counts[0], counts[1], real, single, becomes)
        return function

    return add


class OperatorTask:
    """One operator to lower. Nothing is written to the graph before `commit`. reals: see `OperatorEntry.real`."""

    def __init__(self, graph: ImportGraph, operator: Operator, *, reals: bool = False) -> None:
        self.graph, self.operator, self.reals, self.name = graph, operator, reals, operator.name
        self.emitted: list[Emitted] = []
        self.results: dict[int, Term] = {}
        self.later: list[Callable[[], None]] = []
        self._real: dict[int, Term] = {}
        self.label = f"{operator.name} {graph.place(operator.index)}"

    def options(self, kind: str) -> Fields:
        """The operator's options, such as Conv2DOptions."""
        return self.operator.options.read(kind)

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the operator."""
        raise Inexpressible(reason or "is refused, and nothing says why")  # one without a reason follows from another's

    def require(self, condition: Any, reason: str) -> None:
        """Refuse the operator unless the condition holds."""
        if not condition:
            self.refuse(reason)

    def check_count(self, count: int) -> None:
        """Refuse to move that many elements one by one, before anything is made of them."""
        self.require(count <= MOST_PLACES, f"has {count} elements to move one by one, must be {MOST_PLACES} at most")

    def together(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        """The shape that all of these are broadcast to."""
        try:
            return np.broadcast_shapes(*map(tuple, shapes))
        except ValueError:
            raise Inexpressible(f"shapes {', '.join(map(str, map(list, shapes)))} do not broadcast") from None

    def commit(self) -> None:
        """Hand results and operations to the graph."""
        there, made = len(self.operator.outputs), len(self.results)
        self.require(there <= made, f"has {there} outputs, must have {made}")
        spans = {n: span_of(self, n) for n in range(len(self.operator.outputs)) if self._wide(self.operator.outputs[n])}
        results = [self.ranked(number) for number in range(there)]
        self._pay()
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
        """The term of output `number`, which is of rank 0 where the file's is; an input that has another rank is copied."""
        term, tensor = self.results[number], self.graph.source.tensors[self.operator.outputs[number]]
        if not self.operator.builtin or term.parts or term.data is not None or term.value.shape != (1,):
            return term
        scalar = not tensor.shape and not self._says_one()
        if term.scalar != scalar and not any(term is out for made in self.emitted for out in made.outputs):
            term = self.copied(term)
        term.scalar = scalar
        return term

    def _says_one(self) -> bool:
        """Whether inputs say that the output has one dimension; a file has none too where it is not known before."""
        if self.name in ENTRIES and ENTRIES[self.name].single:
            there = [i for i in self.operator.inputs if i != OMITTED]
            return any(not self.graph.term(index).scalar for index in there)
        place = SHAPES.get(self.name)
        if place is None or not self.given(place):
            return False
        data = self.raw(place).data
        return data is not None and data.size == 1

    def _pay(self) -> None:
        """Charge the file for the constants that were made for the operations."""
        for operation in self.emitted:
            for term in operation.inputs:
                if isinstance(term, Term) and term.made and term.data is not None:
                    self.graph.file.budget.spend(Cost.MEMORY, term.data.nbytes, self.label)
                    term.made = False

    # ------------------------------------------------------------------------------------------------------- inputs

    def given(self, place: int) -> bool:
        """Whether input `place` is there."""
        inputs = self.operator.inputs
        return place < len(inputs) and inputs[place] != OMITTED

    def raw(self, place: int) -> Term:
        """Input `place`, of whatever type."""
        self.require(self.given(place), f"input {place} is omitted, must be given")
        return self.graph.term(self.operator.inputs[place])

    def maybe(self, place: int) -> Term | None:
        """Input `place`, None where it is omitted."""
        return self.x(place) if self.given(place) else None

    def x(self, place: int) -> Term:
        """Input `place` as an NNAPI tensor."""
        term = self.raw(place)
        if term.value.type == UNTYPED or (self._wide(self.operator.inputs[place]) and self.name not in CARRIES):
            self.follows(term)
            try:
                self.graph.declared(self.operator.inputs[place])
            except Inexpressible as error:
                raise Inexpressible(f"input {place}, {error}") from error
            self.refuse(f"input {place} is {term.kind}, which NNAPI has no type for")
        self.require(
            not term.partly, f"input {place} is a shape known only at execution, which NNAPI has no operation for"
        )
        return self.real(term) if self.reals and term.value.type in ASYMMETRIC else term

    def _wide(self, index: int) -> bool:
        """Whether a tensor has 64-bit integers in the file."""
        return self.graph.source.tensors[index].type == "INT64"

    def xs(self, start: int = 0) -> list[Term]:
        """All inputs from a place on."""
        return [self.x(place) for place in range(start, len(self.operator.inputs))]

    def data(self, place: int, what: str) -> Array:
        """The value of input `place`, which has to be known; elements known only at execution are None."""
        term = self.raw(place)
        if term.data is None:
            self.follows(term)
            self.refuse(f"{what} is computed at execution, must be constant for NNAPI")
        return term.data

    def partly(self, place: int, what: str) -> list[int | None]:
        """Integers of which some may be known only at execution."""
        data = self.data(place, what)
        self.require(data.dtype.kind in "iuO", f"{what} is {self.raw(place).kind}, must be integers")
        return [None if n is None else int(n) for n in data.reshape(-1).tolist()]

    def ints(self, place: int, what: str) -> list[int]:
        """Constant integers."""
        numbers = self.partly(place, what)
        known = [n for n in numbers if n is not None]
        self.require(len(known) == len(numbers), f"{what} is known only at execution, must be constant for NNAPI")
        return known

    def number(self, place: int, what: str) -> Any:
        """A constant of one element."""
        data = self.data(place, what)
        self.require(data.size == 1 and data.dtype != object, f"{what} must be one number")
        return data.reshape(-1)[0].item()

    def integer(self, place: int, what: str) -> int:
        """One constant integer."""
        numbers = self.ints(place, what)
        self.require(len(numbers) == 1, f"{what} = {numbers}, must be one number")
        return numbers[0]

    def index(self, place: int, what: str) -> Term:
        """Integers as TENSOR_INT32; 64-bit constants are taken where they fit."""
        term = self.raw(place)
        self.require(not term.partly, f"{what} is a shape known only at execution, must be constant for NNAPI")
        if term.value.type == I32:
            return term
        self.require(term.kind == "INT64", f"{what} is {term.kind}, must be INT32")
        data = self.data(place, what)
        self.require(data.dtype != object and data.size, f"{what} is not known, must be constant where it is INT64")
        fits = INT32_RANGE.min <= data.min() and data.max() <= INT32_RANGE.max
        self.require(fits, f"{what} holds numbers that do not fit into 32 bits")
        return constant(Value(I32), data.astype(np.int32))

    def integers(self, values: Sequence[int]) -> Term:
        """A constant TENSOR_INT32."""
        whole = all(int(n) == n for n in values)
        self.require(whole, f"integers are {shown(list(values))}, must be whole numbers")
        fits = all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in values)
        longest = max((abs(int(n)).bit_length() + 1 for n in values), default=0)
        self.require(fits, f"integers of {longest} bits do not fit into 32 bits")
        return constant(Value(I32), np.array(values, np.int32).reshape(len(values)))

    def follows(self, term: Term) -> None:
        """Refuse the operator without a reason where what it lacks of a term follows from another's refusal."""
        if term.doubtful:
            raise Inexpressible

    # ------------------------------------------------------------------------------------------------------- shapes

    def shape(self, term: Term) -> Shape:
        """The shape of a term; Refused where not even the rank is known."""
        if term.value.shape is None:
            self.follows(term)
            self.refuse("the rank of an input is known only at execution")
        return term.value.shape

    def known(self, term: Term) -> tuple[int, ...]:
        """The shape of a term, every dimension of it."""
        shape = self.shape(term)
        sizes = tuple(d for d in shape if d is not None)
        if len(sizes) < len(shape):
            self.follows(term)
        self.require(len(sizes) == len(shape), "a dimension that has to be known is known only at execution")
        return sizes

    def rank(self, term: Term) -> int:
        """The rank in the file, 0 for scalars."""
        return 0 if term.scalar else len(self.shape(term))

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        self.require(rank, f"axis = {axis} is of a tensor without dimensions, which has none")
        self.require(-rank <= axis < rank, f"axis = {axis}, must be from {-rank} to {rank - 1}")
        return axis % rank

    # ------------------------------------------------------------------------------------------------------ outputs

    def declared(self, number: int = 0) -> Value:
        """Type and quantisation of output `number` in the file."""
        count = len(self.operator.outputs)
        self.require(number < count, f"has {count} outputs, must have {number + 1} at least")
        try:
            return self.graph.declared(self.operator.outputs[number])
        except Inexpressible as error:
            raise Inexpressible(f"output {number}, {error}") from error

    def out(self, number: int = 0) -> Value:
        """Type and quantisation of output `number` as this task has to write it."""
        value = self.declared(number)
        return Value(F32, None, name="") if self.reals and value.type in ASYMMETRIC else value

    def reads(self, number: int) -> bool:
        """Whether anybody reads output `number`."""
        return self.operator.outputs[number] in self.graph.read

    def result(self, number: int, term: Term) -> None:
        """Output `number` is this term; in a task on reals it is quantised first."""
        value = self.declared(number)
        if term.value.type != value.type and value.type in ASYMMETRIC and self.reals:
            (term,) = self.run("QUANTIZE", term, outs=[value])
        self.results[number] = term

    def same(self, term: Term, number: int = 0) -> None:
        """Output `number` is the same as an input, or constant."""
        self.results[number] = term

    def known_result(self, data: Array, number: int = 0) -> None:
        """Output `number` is known at import."""
        index = self.operator.outputs[number]
        kind = self.graph.source.tensors[index].type
        try:
            value = self.graph.declared(index)
        except Inexpressible:
            value = Value(UNTYPED)
        self.results[number] = constant(value, data, kind)

    # ------------------------------------------------------------------------------------------------------ writing

    def run(self, name: str, *given: Any, outs: Sequence[Value], **named: Any) -> list[Term]:
        """Write an operation; returns its outputs with the shapes that its record infers.

        given: terms, None for omitted ones, numbers, in the record's order. named: scalar arguments by name.
        InvalidModel says what is against it.
        """
        self.graph.file.budget.spend(Cost.OPERATIONS, 1, self.label)
        if name not in OPS:
            raise InvalidArgument(
                f"operation is {shown(name)}, must be one of NNAPI's own, or of a registered extension"
            )
        record = OPS[name]
        _look_at(record, given, named)
        arguments = _arrange(record, given, named)
        own = next((t.value.type for a, t in arguments if a.spec is T and isinstance(t, Term)), None)
        inputs = tuple(_operand(record, a, value, own) for a, value in arguments)
        values = [t.value if isinstance(t, Term) else None for t in inputs]
        bound = bind(record, values, outs, name)
        doubtful = any(t.doubtful for t in inputs if isinstance(t, Term))
        results = [Term(shaped(v, s), doubtful=doubtful) for v, s in zip(outs, bound.shapes, strict=True)]
        self.emitted.append(Emitted(name, inputs, tuple(results), self.label, bound))
        return results

    def make(self, name: str, *given: Any, like: Term | Value | int | None = None, **named: Any) -> Term:
        """Write an operation whose result is used by the next one. like: its type, or what has it; else the first term."""
        model = next(t for t in given if isinstance(t, Term)) if like is None else like
        value = model.value if isinstance(model, Term) else model if isinstance(model, Value) else Value(model)
        return self.run(name, *given, outs=[replace(value, shape=None, data=None, name="")], **named)[0]

    def give(self, name: str, *given: Any, **named: Any) -> None:
        """Write an operation whose outputs are the operator's."""
        outs = [self.out(number) for number in range(len(self.operator.outputs))]
        for number, term in enumerate(self.run(name, *given, outs=outs, **named)):
            self.result(number, term)

    def fused(self, code: int, name: str, *given: Any, **named: Any) -> None:
        """Write the operator as one operation with a fused activation, or with one behind it that NNAPI does not fuse."""
        self.require(code in FUSED, f"activation is {code}, must be one of {', '.join(map(str, FUSED))}")
        if code < TANH:
            self.give(name, *given, activation=code, **named)
        else:
            self.activated(code, self.make(name, *given, like=self.out(), activation=0, **named))

    def activated(self, code: int, term: Term) -> None:
        """The operator's output is a term under an activation."""
        if code == Activation.NONE:
            self.result(0, term)
        else:
            self.require(code in AFTER, f"activation is {FUSED.get(code, code)}, which NNAPI does not have")
            self.give(AFTER[code], term)

    # ---------------------------------------------------------------------------------------------- common operations

    def real(self, term: Term) -> Term:
        """The real values of a quantised or float16 term as float32."""
        if term.value.type in (F32, I32):
            return term
        if id(term) not in self._real:
            kind = "CAST" if term.value.type == F16 else "DEQUANTIZE"
            self._real[id(term)] = self.make(kind, term, like=Value(F32))
        return self._real[id(term)]

    def reshaped(self, term: Term, dims: Sequence[int | None], *, out: bool = False) -> Term:
        """A term in another shape; one dimension may be None. out: it is output 0."""
        self.require(sum(d is None for d in dims) <= 1, "more than one dimension is known only at execution")
        if not out and tuple(dims) == term.value.shape:
            return term
        sizes = [d for d in dims if d is not None]
        if (
            not out
            and term.value.data is not None
            and len(sizes) == len(dims)
            and math.prod(sizes) == term.value.data.size
        ):
            return viewed(term, sizes)
        if term.value.type == B8:  # NNAPI reshapes numbers only
            return self._finished(self.truths(self.reshaped(self.ones(term), dims)), out)
        shape = self.integers([-1 if d is None else d for d in dims])
        like = self.out() if out else replace(term.value, shape=None, data=None, name="")
        return self._finished(self.run("RESHAPE", term, shape, outs=[like])[0], out)

    def copied(self, term: Term) -> Term:
        """The same elements as a term of its own."""
        if term.value.type == B8:
            return self.make("LOGICAL_OR", term, term)
        return self.make("RESHAPE", term, self.integers(self.known(term)))

    def _finished(self, term: Term, out: bool) -> Term:
        if out:
            self.result(0, term)
        return term

    def ones(self, term: Term) -> Term:
        """Booleans as int32 0 and 1."""
        return self.make("SELECT", term, *[self.filled(self.known(term), n, I32) for n in (1, 0)], like=Value(I32))

    def truths(self, term: Term) -> Term:
        """Which numbers are not 0."""
        return self.make("NOT_EQUAL", term, self.scalar(0, term), like=Value(B8))

    def flattened(self, name: str, x: Term, *given: Any) -> None:
        """Write the operator as an operation along the last dimension, or on single elements; NNAPI's have four at most."""
        shape = self.shape(x)
        if len(shape) <= MOST_DIMENSIONS:
            self.give(name, x, *given)
            return
        rows = self.reshaped(x, (math.prod(self.known(x)[:-1]), shape[-1]))
        self.reshaped(self.make(name, rows, *given, like=self.out()), shape, out=True)

    def filled(self, shape: Sequence[int], value: float, kind: OperandType) -> Term:
        """A tensor of equal elements."""
        return self.make("FILL", self.integers(shape or (1,)), number(value, kind), like=Value(kind))

    def scalar(self, value: Any, like: Term) -> Term:
        """A constant of one element with the type of a term that is not quantised."""
        return constant(Value(like.value.type), held(value, like.value.type).reshape(1))


def number(value: Any, kind: OperandType) -> Term:
    """A scalar argument of the type that a tensor's elements have, where the record leaves the choice. Inexpressible where
    NNAPI has no such scalars.
    """
    scalars = {F32: OperandType.FLOAT32, F16: OperandType.FLOAT16, I32: OperandType.INT32}
    if kind not in scalars:
        raise Inexpressible(
            f"fills a tensor of {type_name(kind)}, which NNAPI does for float32, float16 and int32 only"
        )
    scalar = scalars[OperandType(kind)]
    return Term(Value(scalar, (), data=held(value, scalar)))


def held(value: Any, kind: int) -> Array:
    """One number as an array of a type; Inexpressible where it does not fit."""
    try:
        array = np.asarray(value, dtype_of(kind))
    except (OverflowError, ValueError, TypeError):
        raise Inexpressible(f"{shown(value)} does not fit {type_name(kind)}") from None
    if array.dtype.kind in "iub" and array.size == 1 and array.item() != value:
        raise Inexpressible(f"{shown(value)} does not fit {type_name(kind)}")
    return array


def viewed(term: Term, shape: Sequence[int]) -> Term:
    """A constant in another shape, over the same bytes."""
    data = np.asarray(term.value.data).reshape(tuple(shape))
    return Term(replace(term.value, shape=tuple(shape), data=data), term.kind, data, term.blob)


def _look_at(record: Op, given: Sequence[Any], named: dict[str, Any]) -> None:
    """InvalidArgument for what no operator can be at fault for: a name that no form has, and what is no argument at all."""
    for name in named:
        if not any(name in form.places for form in record.forms):
            names = dict.fromkeys(a.name for form in record.forms for a in form)
            raise InvalidArgument(f"{record.name} has no argument {shown(name)}, must be one of {', '.join(names)}")
    for place, value in [*enumerate(given), *named.items()]:
        if value is not None and not isinstance(value, ARGUMENTS):
            raise InvalidArgument(f"{record.name}: argument {place} is {shown(value)}, must be a tensor or a number")


def _arrange(record: Op, given: Sequence[Any], named: dict[str, Any]) -> list[tuple[Arg, Any]]:
    """Each argument of the form that takes these, with its value, up to the last that has to be there."""
    for form in record.forms:
        if not named.keys() <= form.places.keys():
            continue
        if form.counts[1] is not None:
            slots = [(a, value) for a, start, end in form.slots(len(given)) for value in given[start:end]]
            if all(_fits(a, value) for a, value in slots):
                return slots
            continue
        if len(given) > len(form):
            continue
        values, last = [*given, *form.defaults[len(given) :]], max(form.required, len(given) - 1)
        for name, value in named.items():
            values[form.places[name]] = value
            last = max(last, form.places[name])
        pairs = list(zip(form[: last + 1], values[: last + 1], strict=True))
        if all(_fits(a, value) for a, value in pairs):
            return pairs
    raise Inexpressible(f"{record.name} needs an input that is omitted")


def _fits(argument: Arg, value: Any) -> bool:
    if value is None:
        return argument.optional
    return argument.scalar == (not isinstance(value, Term) or value.value.shape == () or value.graph is not None)


def _operand(record: Op, argument: Arg, value: Any, own: int | None) -> Term | int:
    if isinstance(value, Term):
        return value
    kind = next(iter(types_for(record, argument, own if own in record.types else None)))
    if value is None:
        return int(kind)
    return Term(Value(kind, (), data=held(value, kind)))
