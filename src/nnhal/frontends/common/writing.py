"""Writes NNAPI operations for one operator of a file; the base of every importer's entries."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.codes import OperandType, type_name
from nnhal.base.errors import InvalidArgument, InvalidModel
from nnhal.base.operands import Array, Shape, Value, dtype_of
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.operators import OperatorFacts
from nnhal.frontends.common.terms import (
    UNTYPED,
    EmittedOperation,
    OpenDimension,
    Term,
    UnsupportedOperator,
    WrittenGraph,
    bare,
    constant,
    in_float32,
    shaped,
)
from nnhal.model.graph import EdgeForm
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S, Arg, Op, T, bind, types_for

FLOATS, ASYMMETRIC = (F32, F16), (Q8, Q8S)
REALS = F32, OperandType.FLOAT32
MOST_FILLED = 1024  # elements of a constant with one value
MOST_DIMENSIONS = 4  # of many NNAPI operations
MOST_PLACES = 1 << 20  # numbers of a constant with source indices of elements
INT32_RANGE = np.iinfo(np.int32)
ARGUMENTS = (Term, int, float, str, np.generic)


class ImportedGraph(WrittenGraph):
    """A graph during import. problems: what cannot be expressed in any graph of the file, with the places."""

    omitted: Any  # the key of an input that an operator leaves out
    dtypes: Mapping[str, str]  # of numpy, by the types in the file

    def __init__(self, budget: Budget, problems: dict[tuple[str, str], list[str]]) -> None:
        self.budget, self._problems = budget, problems
        self.terms: dict[Any, Term] = {}  # by their keys in the file
        self.inputs: list[Term] = []
        self.outputs: list[Term] = []
        self.forms: list[EdgeForm] = []
        self.failed = False  # an operator of it cannot be expressed

    def term(self, key: Any) -> Term:
        """Return the term of a value that was written, is an input, or is constant."""
        if key not in self.terms:
            self.terms[key] = self._read(key)
        return self.terms[key]

    def _read(self, key: Any) -> Term:
        """Return the term of a value that no operator of the graph has written."""
        raise NotImplementedError

    def problem(self, name: str, reason: str, place: str = "") -> None:
        """Record something that cannot be expressed."""
        self.failed = True
        self._problems.setdefault((name, reason), []).append(place)

    def is_unusable(self, term: Term, kind: str, name: str) -> bool:
        """Whether a term has no NNAPI type, so that it cannot be the named output; that is recorded."""
        why = "is a shape known only at execution, which NNAPI has no operation for" if term.partly else ""
        if term.value.type == UNTYPED and not why:
            why = lack_of_type(term.value, kind)
        if why:
            self.problem(f"output {name!r}", why)
        return bool(why)

    def own(self, term: Term, taken: set[int], name: str, *, foreign: bool = False) -> Term:
        """Return the term, or a copy if it cannot be the named output: if it is `taken`, constant or `foreign`."""
        if foreign or id(term) in taken or term.value.data is not None:
            try:
                term = self.emit_copy(term)
            except InvalidModel as error:
                self.problem(f"output {name!r}", f"must be copied: {error}")
        taken.add(id(term))
        return term

    def emit_copy(self, term: Term) -> Term:
        """Return a copy of a term, if a model may not have it as an output itself."""
        result = self.emit_converted(term, "CAST", replace(term.value, data=None))
        result.kind, result.scalar = term.kind, term.scalar
        return result

    def emit_converted(self, term: Term, name: str, value: Value) -> Term:
        """Return a term in another type, for an output. name: the operation that converts it."""
        self.budget.spend(Cost.OPERATIONS, 1)
        value = replace(value, shape=term.value.shape)
        bound = bind(OPS[name], [term.value], [value], name)
        result = Term(replace(value, shape=bound.shapes[0] or value.shape))
        self.operations.append(EmittedOperation(name, (term,), (result,), "copy", bound))
        return result


class OperationWriter:
    """The task of one operator: writes NNAPI operations, and queries terms. `commit` adds them to the graph.

    keys: of its inputs in the graph. label: the operator, for messages. A subclass knows the inputs and outputs (`raw`,
    `out`, `result`).
    """

    def __init__(self, graph: ImportedGraph, keys: Sequence[Any], facts: OperatorFacts, label: str) -> None:
        self.graph, self.keys, self.facts, self.label, self.budget = graph, keys, facts, label, graph.budget
        self.emitted: list[EmittedOperation] = []
        self.results: dict[int, Term] = {}
        self.later: list[Callable[[], None]] = []  # calls after the operations are in the graph
        self._real: dict[int, Term] = {}

    def out(self, number: int = 0) -> Value:
        """Return the required type and quantisation of output `number`."""
        raise NotImplementedError

    def result(self, number: int, term: Term) -> None:
        """Set output `number` to a term."""
        raise NotImplementedError

    def raw(self, place: int) -> Term:
        """Return input `place` as it is in the file."""
        raise NotImplementedError

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an input or a constant, unchanged."""
        self.results[number] = term

    def given(self, place: int) -> bool:
        """Whether input `place` is given."""
        return place < len(self.keys) and self.keys[place] != self.graph.omitted

    def x(self, place: int) -> Term:
        """Return input `place` as an NNAPI tensor."""
        raise NotImplementedError

    def xs(self, start: int = 0) -> list[Term]:
        """Return all inputs from a place on."""
        return [self.x(place) for place in range(start, len(self.keys))]

    def maybe(self, place: int) -> Term | None:
        """Return input `place`, None if it is omitted."""
        return self.x(place) if self.given(place) else None

    def data(self, place: int, what: str) -> Array:
        """Return the value of input `place`, which must be known; elements known only at execution are None."""
        term = self.raw(place)
        if term.data is None:
            self.follows(term)
            self.refuse(f"{what} is computed at execution, must be constant for NNAPI")
        return term.data

    def partly(self, place: int, what: str) -> list[int | None]:
        """Return integers, some of which may be known only at execution."""
        data = self.data(place, what)
        self.require(data.dtype.kind in "iuO", f"{what} is {self.raw(place).kind}, must be integers")
        return [None if n is None or isinstance(n, OpenDimension) else int(n) for n in data.reshape(-1).tolist()]

    def ints(self, place: int, what: str) -> list[int]:
        """Return constant integers."""
        numbers = self.partly(place, what)
        known = [n for n in numbers if n is not None]
        self.require(len(known) == len(numbers), f"{what} is known only at execution, must be constant for NNAPI")
        return known

    def number(self, place: int, what: str) -> Any:
        """Return the element of a constant that has only one."""
        data = self.data(place, what)
        self.require(data.size == 1 and data.dtype != object, f"{what} must be one number")
        return data.reshape(-1)[0].item()

    def wrote(self, term: Term) -> bool:
        """Whether one of the operations gives a term."""
        return any(term is out for made in self.emitted for out in made.outputs)

    def charge_constants(self) -> None:
        """Charge the file for the constants that were made for the operations."""
        for operation in self.emitted:
            for term in operation.inputs:
                if isinstance(term, Term) and term.made and term.data is not None:
                    self.budget.spend(Cost.MEMORY, term.data.nbytes, self.label)
                    term.made = False

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedOperator(
            reason or "is refused without a reason"
        )  # without a reason, it follows from another's

    def require(self, condition: Any, reason: str) -> None:
        """Refuse the operator unless the condition holds."""
        if not condition:
            self.refuse(reason)

    def integers(self, values: Sequence[int]) -> Term:
        """Return a constant TENSOR_INT32."""
        whole = all(int(n) == n for n in values)
        self.require(whole, f"integers are {safe_repr(list(values))}, must be whole numbers")
        fits = all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in values)
        longest = max((abs(int(n)).bit_length() + 1 for n in values), default=0)
        self.require(fits, f"integers of {longest} bits do not fit into 32 bits")
        return constant(Value(I32), np.array(values, np.int32).reshape(len(values)))

    def follows(self, term: Term) -> None:
        """Refuse the operator without a reason if the missing fact of a term follows from another's refusal."""
        if term.doubtful:
            raise UnsupportedOperator

    def shape(self, term: Term) -> Shape:
        """Return the shape of a term; refuse if not even the rank is known."""
        if term.value.shape is None:
            self.follows(term)
            self.refuse("the rank of an input is known only at execution")
        return term.value.shape

    def known(self, term: Term) -> tuple[int, ...]:
        """Return the fully known shape of a term."""
        shape = self.shape(term)
        sizes = tuple(d for d in shape if d is not None)
        if len(sizes) < len(shape):
            self.follows(term)
        self.require(len(sizes) == len(shape), "a required dimension is known only at execution")
        return sizes

    def rank(self, term: Term) -> int:
        """Return the rank in the file, 0 for scalars."""
        return 0 if term.scalar else len(self.shape(term))

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front."""
        self.require(rank, f"axis is {axis} for a tensor without dimensions, must not be set")
        self.require(-rank <= axis < rank, f"axis is {axis}, must be from {-rank} to {rank - 1}")
        return axis % rank

    def run(self, name: str, *given: Any, outs: Sequence[Value], **named: Any) -> list[Term]:
        """Write an operation; return its outputs, with the shapes that its record infers.

        given: terms, None for omitted ones, numbers, in the record's order. named: scalar arguments by name. Raises
        InvalidModel with the reason if the arguments are invalid.
        """
        self.budget.spend(Cost.OPERATIONS, 1, self.label)
        if name not in OPS:
            raise InvalidArgument(f"operation is {safe_repr(name)}, must be one of NNAPI or of a registered extension")
        record = OPS[name]
        _look_at(record, given, named)
        arguments = _arrange(record, given, named)
        own = next((t.value.type for a, t in arguments if a.spec is T and isinstance(t, Term)), None)
        inputs = tuple(_operand(record, a, value, own) for a, value in arguments)
        values = [t.value if isinstance(t, Term) else None for t in inputs]
        for value in values:
            if value is not None and value.data is not None and 0 in (value.shape or ()):
                self.refuse(f"an argument {lack_of_type(value)}")
        bound = bind(record, values, outs, name)
        doubtful = any(t.doubtful for t in inputs if isinstance(t, Term))
        results = [Term(shaped(v, s), doubtful=doubtful) for v, s in zip(outs, bound.shapes, strict=True)]
        self.emitted.append(EmittedOperation(name, inputs, tuple(results), self.label, bound))
        return results

    def make(self, name: str, *given: Any, like: Term | Value | int | None = None, **named: Any) -> Term:
        """Write an operation whose result the next one uses. like: its type, or an object with it, or the first."""
        model = next(t for t in given if isinstance(t, Term)) if like is None else like
        value = model.value if isinstance(model, Term) else model if isinstance(model, Value) else Value(model)
        return self.run(name, *given, outs=[bare(value)], **named)[0]

    def real(self, term: Term) -> Term:
        """Return the real values of a quantised or float16 term as float32."""
        if term.value.type in (F32, I32):
            return term
        if id(term) not in self._real:
            kind = "CAST" if term.value.type == F16 else "DEQUANTIZE"
            self._real[id(term)] = self.make(kind, term, like=Value(F32))
        return self._real[id(term)]

    def reshaped(self, term: Term, dims: Sequence[int | None], *, out: bool = False) -> Term:
        """Reshape a term; one dimension may be None. out: whether it is output 0."""
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
            return reshaped_constant(term, sizes)
        if term.value.type == B8:  # NNAPI reshapes numbers only
            made = nonzero_mask(self, self.reshaped(ones(self, term), dims))
        else:
            shape = self.integers([-1 if d is None else d for d in dims])
            like = self.out() if out else bare(term.value)
            (made,) = self.run("RESHAPE", term, shape, outs=[like])
        if out:
            self.result(0, made)
        return made

    def scalar(self, value: Any, like: Term) -> Term:
        """Return a constant of one element with the type of an unquantised term."""
        return constant(Value(like.value.type), number_array(value, like.value.type).reshape(1))


def lack_of_type(value: Value, kind: str = "") -> str:
    """Return why a term of this value has no type in NNAPI. kind: its type in the file."""
    if value.shape is not None and 0 in value.shape:
        return f"has shape {list(value.shape)}, must have elements: NNAPI has no empty tensors"
    return f"is {kind}, which NNAPI has no type for"


def check_count(count: int) -> None:
    """Refuse to move that many elements individually, before any work is done."""
    if count > MOST_PLACES:
        raise UnsupportedOperator(f"has {count} elements to move individually, must have at most {MOST_PLACES}")


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that all of these broadcast to."""
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise UnsupportedOperator(f"shapes {', '.join(map(str, map(list, shapes)))} do not broadcast") from None


def copied(t: OperationWriter, term: Term) -> Term:
    """Return the same elements as a separate term."""
    if term.value.type == B8:
        return t.make("LOGICAL_OR", term, term)
    return t.make("RESHAPE", term, t.integers(t.known(term)))


def ones(t: OperationWriter, term: Term) -> Term:
    """Convert booleans to int32 0 and 1."""
    return either(t, term, 1, 0, I32)


def either(t: OperationWriter, truth: Term, yes: float, no: float, kind: OperandType) -> Term:
    """Return one number where booleans are true, and another one elsewhere."""
    return t.make("SELECT", truth, *[filled(t, t.known(truth), n, kind) for n in (yes, no)], like=Value(kind))


def nonzero_mask(t: OperationWriter, term: Term) -> Term:
    """Return which numbers are not 0."""
    return t.make("NOT_EQUAL", term, t.scalar(0, term), like=Value(B8))


def filled(t: OperationWriter, shape: Sequence[int], value: float, kind: OperandType) -> Term:
    """Return a tensor of equal elements: a constant if it is small, else the result of FILL, which needs HAL 1.3."""
    element = number(value, kind)
    if math.prod(shape) <= MOST_FILLED:
        return constant(Value(kind), np.full(shape or (1,), element.value.data))
    return t.make("FILL", t.integers(shape or (1,)), element, like=Value(kind))


def number(value: Any, kind: OperandType) -> Term:
    """Return a scalar argument with the type of a tensor's elements, if the record allows several.

    Raises UnsupportedOperator if NNAPI has no such scalars.
    """
    scalars = {F32: OperandType.FLOAT32, F16: OperandType.FLOAT16, I32: OperandType.INT32}
    if kind not in scalars:
        raise UnsupportedOperator(
            f"fills a tensor of {type_name(kind)}, which NNAPI supports for float32, float16 and int32 only"
        )
    scalar = scalars[OperandType(kind)]
    return Term(Value(scalar, (), data=number_array(value, scalar)))


def number_array(value: Any, kind: int) -> Array:
    """Return one number as an array of a type; UnsupportedOperator if it does not fit."""
    try:
        with np.errstate(over="ignore", under="ignore"):
            array = np.asarray(value, dtype_of(kind))
        if kind in REALS and (np.isinf(array).any() or not array.any()):  # rare, and takes longer
            array = in_float32(np.asarray(value, np.float64))
    except (OverflowError, ValueError, TypeError):
        raise UnsupportedOperator(f"{safe_repr(value)} does not fit {type_name(kind)}") from None
    if array.dtype.kind in "iub" and array.size == 1 and array.item() != value:
        raise UnsupportedOperator(f"{safe_repr(value)} does not fit {type_name(kind)}")
    return array


def reshaped_constant(term: Term, shape: Sequence[int]) -> Term:
    """Return a constant in another shape, over the same bytes."""
    data = np.asarray(term.value.data).reshape(tuple(shape))
    return Term(replace(term.value, shape=tuple(shape), data=data), term.kind, data, term.blob)


def _look_at(record: Op, given: Sequence[Any], named: dict[str, Any]) -> None:
    """Raise InvalidArgument for a mistake in the importer: an unknown argument name, or an invalid argument."""
    for name in named:
        if not any(name in form.places for form in record.forms):
            names = dict.fromkeys(a.name for form in record.forms for a in form)
            raise InvalidArgument(f"{record.name} has no argument {safe_repr(name)}, must be one of {', '.join(names)}")
    for place, value in [*enumerate(given), *named.items()]:
        if value is not None and not isinstance(value, ARGUMENTS):
            raise InvalidArgument(
                f"{record.name}: argument {place} is {safe_repr(value)}, must be a tensor or a number"
            )


def _arrange(record: Op, given: Sequence[Any], named: dict[str, Any]) -> list[tuple[Arg, Any]]:
    """Return the arguments of the matching signature with their values, up to the last required one."""
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
    raise UnsupportedOperator(f"{record.name} needs an omitted input")


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
    return Term(Value(kind, (), data=number_array(value, kind)))
