"""The interface of an entry to its node: values, attributes, and methods that write NNAPI operations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.integer_ranges import ANY, Span, Spans, span_of
from nnhal.frontends.common.lowering import flattened, moved_by
from nnhal.frontends.common.operators import OperatorFacts, OperatorTable
from nnhal.frontends.common.terms import UNTYPED, EmittedOperation, OpenDimension, Term, UnsupportedOperator, constant
from nnhal.frontends.common.writing import ASYMMETRIC, OperationWriter, reshaped_constant
from nnhal.frontends.onnx.file import AttributeReference, OnnxFileGraph, OnnxNode, OnnxTensor
from nnhal.frontends.onnx.graph import KIND_OF, TYPES, NodeGraph
from nnhal.ops import OPS
from nnhal.ops.schema import F32, I32, bind

MOST_FOLDED = 1 << 20  # elements of a result at import that may be larger than its inputs
KINDS: dict[str, Span] = {"BOOL": (0, 1), "UINT8": (0, 255), "INT8": (-128, 127)}  # ranges of narrow integers


class NodeFacts(OperatorFacts, frozen=True):
    """The facts about an operator of ONNX; those of another domain are named `domain.Name`.

    Attributes:
        to: The NNAPI operation of the same meaning, if there is one.
        quantised: Writes it on stored 8-bit values, between DequantizeLinear and QuantizeLinear.
        on_stored: Whether `lower` works on stored values too, and gives ones with the same parameters.
        on_reals: Whether it works on integers that are held as reals (`Term.reals`).
        apart: Whether its inputs are unrelated, or have separate quantisation parameters.
        task: The task that lowers it, if not a `NodeTask`.
    """

    to: str = ""
    quantised: Callable[["NodeTask"], None] | None = None
    on_stored: bool = False
    on_reals: bool = False
    apart: bool = False
    task: "type[NodeTask] | None" = None


OPERATORS = OperatorTable(NodeFacts)
operator, computed = OPERATORS.operator, OPERATORS.computed
UNKNOWN = NodeFacts(None, (0, None), (0, None))


class NodeTask(OperationWriter):
    """One node to lower. The graph is unchanged before `commit`. eight: whether it uses stored 8-bit values."""

    eight = False

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph.file.budget, node.label)
        self.graph, self.node, self.opset = graph, node, opset
        self.name = f"{node.domain}.{node.op}" if node.domain else node.op
        self.facts = OPERATORS.get(self.name, UNKNOWN)
        self.results: dict[int, Term] = {}
        self.later: list[Callable[[], None]] = []
        self.own: list[Term] = []  # results that belong to this node only
        self._steps = self._common_steps()

    # ------------------------------------------------------------------------------------------------------ attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, a string, a tuple of them, a tensor or a graph, of the default's type."""
        value = self.node.attributes.get(name)
        if value is None:
            return default
        if isinstance(value, AttributeReference):
            self.refuse(f"attribute {name} refers to an attribute of the function, which is not set")
        wanted = type(default)
        if wanted is float and isinstance(value, int):
            value = float(value)
        ok = default is None or isinstance(value, wanted)
        self.require(ok, f"attribute {name} is {short(repr(value))}, must be {wanted.__name__}")
        return value

    def attr_ints(self, name: str) -> list[int]:
        """Return an attribute of integers; empty if it is not set."""
        value = self.attr(name, ())
        whole = all(isinstance(n, int) for n in value)
        self.require(whole, f"attribute {name} is {short(repr(value))}, must be integers")
        return list(value)

    def listed(self, place: int, name: str) -> list[int]:
        """Return integers: input `place`, or an attribute in older versions; empty if neither is given."""
        return self.ints(place, name) if self.given(place) else self.attr_ints(name)

    def inner(self, name: str) -> OnnxFileGraph:
        """Return an attribute that is a graph."""
        value = self.node.attributes.get(name)
        if not isinstance(value, OnnxFileGraph):
            self.refuse(f"attribute {name} is not a graph, must be one")
        return value

    def tensor(self, name: str) -> OnnxTensor:
        """Return an attribute that is a tensor."""
        value = self.node.attributes.get(name)
        if not isinstance(value, OnnxTensor):
            self.refuse(f"attribute {name} is not a tensor, must be one")
        return value

    # ----------------------------------------------------------------------------------------------------------- inputs

    def given(self, place: int) -> bool:
        """Whether input `place` is given."""
        return place < len(self.node.inputs) and bool(self.node.inputs[place])

    def raw(self, place: int) -> Term:
        """Return input `place`, of any type."""
        self.require(self.given(place), f"input {place} is left out, must be given")
        term = self.graph.term(self.node.inputs[place])
        if self._steps is None or term.data is None or term.value.type != self._steps.type:
            return term
        value = replace(term.value, scale=self._steps.scale, zero_point=self._steps.zero_point)
        return Term(value, term.kind, term.data, term.blob, term.scalar, made=term.made)

    def _common_steps(self) -> Value | None:
        """Return the parameters of the stored numbers that the node reads unchanged, None if there are none.

        Scale and zero point have no meaning to ONNX there, but NNAPI uses them: all inputs of the node must have the
        same.
        """
        if self.node.domain or self.facts.apart:
            return None
        terms = [self.graph.term(name) for name in self.node.inputs if name]
        found = [term.value for term in terms if term.value.type in ASYMMETRIC and term.data is None]
        kinds = {(value.type, value.scale, value.zero_point) for value in found}
        self.require(len(kinds) < 2, "reads quantised inputs with different scales")
        return found[0] if found else None

    def x(self, place: int) -> Term:
        """Return input `place` as an NNAPI tensor."""
        return self.usable(self.raw(place), f"input {place}")

    def usable(self, term: Term, what: str) -> Term:
        """Return a term as an NNAPI tensor."""
        if term.value.type == UNTYPED:
            self.follows(term)
            self.refuse(f"{what} is {term.kind or 'not there'}, which NNAPI has no type for")
        if term.partly:
            self.follows(term)
        self.require(not term.partly, f"{what} is a shape known only at execution, which NNAPI has no operation for")
        return term

    def xs(self, start: int = 0) -> list[Term]:
        """Return all inputs from a place on."""
        return [self.x(place) for place in range(start, len(self.node.inputs))]

    def stored(self, place: int) -> Term | None:
        """Return the 8-bit tensor whose real values input `place` holds, None if there is none."""
        term = self.raw(place)
        if term.value.type in ASYMMETRIC:
            return term
        return self.graph.context.stored.get(id(term))

    def extents(self, term: Term) -> Array:
        """Return the shape of a term in the file, as a value."""
        shape = self.shape(term)[: self.rank(term)]
        return np.array([OpenDimension(term, n) if size is None else size for n, size in enumerate(shape)], object)

    def dimensions(self, place: int, what: str) -> list[int | OpenDimension]:
        """Return the shape that input `place` holds."""
        known = zip(self.partly(place, what), self.data(place, what).reshape(-1), strict=True)
        return [n if size is None else size for size, n in known]

    def integer_of(self, place: int, what: str) -> int:
        """Return a constant integer of any number type."""
        value = self.number(place, what)
        self.require(int(value) == value, f"{what} is {value}, must be a whole number")
        return int(value)

    def floats(self, place: int, what: str) -> list[float]:
        """Return constant floats."""
        data = self.data(place, what)
        self.require(data.dtype.kind == "f", f"{what} is {self.raw(place).kind}, must be floats")
        return [float(n) for n in data.reshape(-1).tolist()]

    def index(self, place: int, what: str) -> Term:
        """Return integers as TENSOR_INT32."""
        term = self.x(place)
        self.require(term.value.type == I32, f"{what} is {term.kind}, must be INT32 or INT64")
        return term

    def derived(self, source: Term, how: Any, make: Callable[[], Array]) -> Term:
        """Return a constant derived from another one, shared by all readers. how: distinguishes the derivation."""
        context, key = self.graph.context, (id(source), how)
        if key not in context.derived:
            value = source.value
            kind = Value(value.type, None, value.scale, value.zero_point, value.channel)
            context.derived[key] = constant(kind, np.ascontiguousarray(make()))
            context.kept.append(source)
        made: Term = context.derived[key]
        return made

    def alone(self, place: int) -> bool:
        """Whether only this node reads input `place`, which a node of this graph produces."""
        name, graph = self.node.inputs[place], self.graph
        aliased = id(graph.terms.get(name)) in graph.context.aliased
        return graph.uses[name] == 1 and name in graph.written and not aliased

    # ---------------------------------------------------------------------------------------------------------- outputs

    def is_output_used(self, number: int) -> bool:
        """Whether output `number` is named and read."""
        outputs = self.node.outputs
        return number < len(outputs) and self.graph.uses[outputs[number]] > 0

    def out(self, number: int = 0) -> Value:
        """Return the type of the output: that of the current result, or of the first input."""
        found = self.results.get(number)
        return replace((found or self.x(0)).value, shape=None, data=None, name="")

    def is_scalar(self, said: bool | None = None) -> bool:
        """Whether the output has rank 0. said: None for an elementwise operator, whose inputs determine it."""
        places = range(len(self.node.inputs))
        return (
            (self.facts.single and all(self.raw(n).scalar for n in places if self.given(n))) if said is None else said
        )

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number` to a term, with its ONNX type. scalar: see `is_scalar`."""
        if not kind:
            kind = KIND_OF.get(term.value.type, "")  # type: ignore[call-overload]
            if kind == "INT32" and any(
                self.raw(n).kind == "INT64" for n in range(len(self.node.inputs)) if self.given(n)
            ):
                kind = "INT64"
        one = self.is_scalar(scalar) and term.value.shape == (1,)
        other = (term.kind and term.kind != kind) or term.scalar != one or term.data is not None
        if other and not any(term is out for made in self.emitted for out in made.outputs):
            term = self._view(term)
        term.kind, term.scalar = kind, one
        self.results[number] = term

    def _view(self, term: Term) -> Term:
        """Return the same constant, or a copy of a computed value, as a separate term."""
        if term.value.data is None:
            return self.copied(term)
        return Term(term.value, term.kind, term.data, term.blob, term.scalar, term.span, made=term.made)

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an unchanged input."""
        self.results[number] = term

    def fresh(self, term: Term) -> None:
        """Set the output to that of an earlier operation that nothing else reads."""
        self.results[0] = term
        self.own.append(term)

    def known_result(self, data: Array, number: int = 0, kind: str = "INT64") -> None:
        """Set output `number` to a value known at import."""
        value = Value(TYPES.get(kind, UNTYPED), None, 1.0 if kind in ("INT8", "UINT8") else 0.0)
        if value.type == UNTYPED or 0 in data.shape:
            term = Term(Value(UNTYPED, data.shape or (1,)), kind, data, scalar=data.ndim == 0, made=True)
        else:
            term = constant(value, data, kind)
            term.kind = kind
        term.doubtful = any(self.raw(n).doubtful for n in range(len(self.node.inputs)) if self.given(n))
        self.results[number] = term

    def give(
        self, name: str, *given: Any, like: Term | Value | int | None = None, scalar: bool | None = None, **named: Any
    ) -> None:
        """Write an operation whose output is the node's."""
        self.result(0, self.make(name, *given, like=like, **named), scalar=scalar)

    def commit(self) -> None:
        """Add results and operations to the graph."""
        there = len(self.node.outputs)
        for number, name in enumerate(self.node.outputs):
            if not name or (number not in self.results and not self.is_output_used(number)):
                continue
            self.require(number in self.results, f"output {number} is read, which NNAPI has no operation for")
        for number, term in self.results.items():
            if (
                number < there
                and term.kind == "INT64"
                and term.value.type == I32
                and term.data is None
                and term.span is None
            ):
                term.span = self._span(term, number)
        self.charge_constants()
        made = {id(out) for operation in self.emitted for out in operation.outputs} | {id(term) for term in self.own}
        for term in self.results.values():
            if id(term) not in made:
                self.graph.context.aliased.add(id(term))
                self.graph.context.kept.append(term)
        self.graph.operations += self.emitted
        for number, name in enumerate(self.node.outputs):
            if name and number in self.results:
                self.graph.terms[name] = self.results[number]
        for step in self.later:
            step()

    def _span(self, result: Term, number: int) -> Span:
        terms = [self.raw(place) for place in range(len(self.node.inputs)) if self.given(place)]
        spans = [term.span or KINDS.get(term.kind, ANY) for term in terms if term.kind in ("INT64", "INT32", *KINDS)]
        shape = terms[0].value.shape if terms else None
        return span_of(self.facts.span, result, terms, Spans(spans, shape, number), ANY)

    # ------------------------------------------------------------------------------------------------- rows as pictures

    def as_pictures(self, x: Term) -> Term:
        """Return rows of elements [n, c, w] as pictures [n, c, 1, w]: the source pictures, if there are any."""
        found = self.graph.context.pictures.get(id(x))
        if found is not None and self.graph.operations.produces(found):
            return found
        n, c, w = self.shape(x)
        return self.reshaped(x, (n, c, 1, w))

    def from_pictures(self, made: Term, rank: int) -> None:
        """Set the node's output from pictures, as rows if it has 3 dimensions in the file."""
        if rank == 4:
            self.result(0, made)
            return
        n, c, _, w = self.shape(made)
        self.result(0, self.reshaped(made, (n, c, w)))
        self.later.append(lambda: self.graph.context.note_reshaped_term(self.results[0], made))

    # --------------------------------------------------------------------------------------------- the operation before

    def before(self, place: int) -> int | None:
        """Return the number of a nearby operation that produces input `place` for this node only; otherwise None."""
        term, operations = self.raw(place), self.graph.operations
        if not self.alone(place):
            return None
        for n in range(len(operations) - 1, max(-1, len(operations) - NEAR), -1):
            if operations[n].outputs == (term,):
                return n
        return None

    def fused(self, place: int, code: Activation) -> Term | None:
        """Return input `place` with an activation fused into its operation, None if that is impossible."""
        n = self.before(place)
        made = None if n is None else self.graph.operations[n]
        if n is None or made is None or self.raw(place).value.type != F32:
            return None
        again = with_argument(made, "activation", code)
        if again is None:
            return None
        self.graph.operations.change(n, again)
        return again.outputs[0]

    def fuse_into_weights(self, place: int, factor: Array | None, shift: Array | None) -> Term | None:
        """Fuse a factor and a shift for each channel of input `place` into the weights of its layer.

        Returns None if it is not produced by a layer with constant weights and without activation.
        """
        n, operations = self.before(place), self.graph.operations
        last = n
        if n and operations[n].type == "RESHAPE" and operations[n - 1].outputs == (operations[n].inputs[0],):
            n -= 1
            if operations[n].type != "FULLY_CONNECTED":
                return None
        made = None if n is None else operations[n]
        if n is None or last is None or made is None or self.raw(place).value.type != F32:
            return None
        layer = OPS[made.type].weights
        if layer is None or made.type == "TRANSPOSE_CONV_2D":
            return None
        weights, bias = made.inputs[1], made.inputs[2]
        if not (isinstance(weights, Term) and isinstance(bias, Term)) or weights.data is None or bias.data is None:
            return None
        if int(made.bound.activation) != Activation.NONE:
            return None
        rank, units = len(self.shape(self.raw(place))), bias.data.size
        sides = (1,) * (rank - 1) + (units,) if layer.name == "weights" else (1, units, 1, 1)
        inputs, values = list(made.inputs), np.asarray(bias.value.data, np.float64)
        for value in (factor, shift):
            if value is not None and (1,) * (rank - value.ndim) + value.shape != sides:
                return None
        if factor is not None:
            flat = factor.reshape(-1).astype(np.float64)
            shape = [1] * np.asarray(weights.value.data).ndim
            shape[layer.axis] = -1
            values = values * flat
            scaled = (np.asarray(weights.value.data) * flat.reshape(shape)).astype(np.float32)
            self.budget.spend(Cost.MEMORY, scaled.nbytes, self.label)
            inputs[1] = constant(weights.value, scaled)
        if shift is not None:
            values = values + shift.reshape(-1)
        inputs[2] = constant(bias.value, values.astype(np.float32))
        operations.change(n, with_inputs(made, inputs))
        if last != n:
            reshaped = operations[last]
            operations.change(last, with_inputs(reshaped, [operations[n].outputs[0], *reshaped.inputs[1:]]))
        return operations[last].outputs[0]


NEAR = 9  # operations that are searched for the source of an input


def with_argument(made: EmittedOperation, name: str, value: int) -> EmittedOperation | None:
    """Return an operation with another value of an argument, if that is 0 so far."""
    places = [start for argument, start, _ in made.bound.form.slots(len(made.inputs)) if argument.name == name]
    given = made.inputs[places[0]] if places else None
    if not isinstance(given, Term) or given.value.data is None or int(given.value.data) != 0:
        return None
    inputs = list(made.inputs)
    inputs[places[0]] = Term(replace(given.value, data=np.asarray(int(value), np.int32)))
    return with_inputs(made, inputs)


def with_inputs(made: EmittedOperation, inputs: Sequence[Term | int]) -> EmittedOperation:
    """Return an operation with other inputs and new outputs."""
    values = [each.value if isinstance(each, Term) else None for each in inputs]
    bound = bind(OPS[made.type], values, [replace(out.value, shape=None) for out in made.outputs], made.type)
    outputs = tuple(Term(out.value, out.kind, scalar=out.scalar) for out in made.outputs)
    return made._replace(inputs=tuple(inputs), outputs=outputs, bound=bound)


class FlatNode(NodeTask):
    """An elementwise node whose inputs have as few dimensions as broadcasting requires."""

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        places = [place for place in range(len(node.inputs)) if self.given(place)]
        terms = [self.usable(super(FlatNode, self).raw(place), f"input {place}") for place in places]
        self.require(terms, "has no inputs")
        self.whole, flat = flattened(self, terms)
        for term, original in zip(flat, places, strict=True):
            term.kind = term.kind or super().raw(original).kind
        self._flat = dict(zip(places, flat, strict=True))

    def raw(self, place: int) -> Term:
        """Return input `place`, with fewer dimensions."""
        return self._flat[place] if place in getattr(self, "_flat", {}) else super().raw(place)

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number`, with its original dimensions."""
        super().result(number, self.reshaped(term, self.whole or (1,)), kind, scalar=scalar)

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an existing term, with its original dimensions."""
        self.result(number, term, term.kind)


class RowNode(NodeTask):
    """An elementwise node whose inputs are rows made from pictures: it uses the pictures."""

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        super().__init__(graph, node, opset)
        pictures, found = graph.context.pictures, 0
        self._four: dict[int, Term] = {}
        for place in range(len(node.inputs)):
            if not self.given(place):
                continue
            term = super().raw(place)
            four = pictures.get(id(term))
            if four is not None and graph.operations.produces(four):
                self._four[place] = four
                found += 1
            elif term.data is not None and term.data.ndim == 3 and term.value.type != UNTYPED:
                self._four[place] = reshaped_constant(term, (*term.data.shape[:2], 1, term.data.shape[2]))
            elif term.data is None or term.data.size != 1 or term.data.ndim > 3:
                raise UnsupportedOperator
        if not found:
            raise UnsupportedOperator

    def raw(self, place: int) -> Term:
        """Return input `place`, as pictures."""
        return self._four.get(place) or super().raw(place)

    def result(self, number: int, term: Term, kind: str = "", *, scalar: bool | None = None) -> None:
        """Set output `number`, as rows."""
        self.rows_of(number, term, kind)

    def same(self, term: Term, number: int = 0) -> None:
        """Set output `number` to an existing term."""
        self.rows_of(number, term, term.kind)

    def fresh(self, term: Term) -> None:
        """Set the output to that of an earlier operation that nothing else reads."""
        self.rows_of(0, term)

    def rows_of(self, number: int, made: Term, kind: str = "") -> None:
        """Set output `number` from pictures."""
        n, c, _, w = self.shape(made)
        super().result(number, self.reshaped(made, (n, c, w)), kind)
        self.later.append(lambda: self.graph.context.note_reshaped_term(self.results[number], made))


def lower_by_places(t: NodeTask) -> None:
    """Lower a node that moves elements as source indices."""
    moves, count = t.facts.moves, len(t.node.inputs) if t.facts.joins else 1
    if moves is None:
        raise UnsupportedOperator
    terms = [t.x(place) for place in range(count)]

    for number, (places, term) in enumerate(moved_by(t, terms, partial(moves, t))):
        t.result(number, term, terms[0].kind, scalar=places.ndim == 0)
