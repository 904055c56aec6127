"""The interface of an entry to its node: values, attributes, and methods that write NNAPI operations."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.base.records import field, replace
from nnhal.frontends.common.integer_ranges import ANY, Span, span_of
from nnhal.frontends.common.lowering import flattened, moved_by
from nnhal.frontends.common.operators import COUNTED, OperatorFacts, OperatorTable
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator, bare, constant
from nnhal.frontends.common.writing import ASYMMETRIC, OperationWriter, copied, reshaped_constant
from nnhal.frontends.onnx.attributes import NodeAttributes
from nnhal.frontends.onnx.file import OnnxNode
from nnhal.frontends.onnx.graph import KIND_OF, TYPES, NodeGraph, integer_form, why_untyped
from nnhal.ops.schema import I32

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
        by_rank: Expand it, by the number of dimensions of its first input.
    """

    to: str = ""
    quantised: Callable[["NodeTask"], None] | None = None
    on_stored: bool = False
    on_reals: bool = False
    apart: bool = False
    task: "type[NodeTask] | None" = None
    by_rank: Mapping[int, Callable[[Any], None]] = field(default_factory=dict)

    @property
    def moves_one(self) -> bool:
        """Whether it only moves elements of its first input."""
        return self.moves is not None and not self.joins


def why_unknown(name: str) -> str:
    """Return why a node that is not in the table is refused."""
    domain = name.rpartition(".")[0]
    unknown = f"is an operator of {domain}, not of ONNX: NNAPI has no operation for it"
    return unknown if domain else "has no operation in NNAPI"


OPERATORS = OperatorTable(NodeFacts, why_unknown)
operator, computed = OPERATORS.operator, OPERATORS.computed
OPERATORS.refuse("works on texts or lists of them, for which NNAPI has no type",
                 "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer")  # fmt: skip
OPERATORS.refuse("works on sequences, maps or optional values, for which NNAPI has no type",
                 "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
                 "SequenceMap", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement",
                 "OptionalHasElement")  # fmt: skip
OPERATORS.refuse("draws random numbers from another generator than NNAPI's only random operation",
                 "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                 "RandomUniformLike")  # fmt: skip
OPERATORS.refuse("is for training, which NNAPI does not support",
                 "Adagrad", "Adam", "Momentum", "Gradient", "NegativeLogLikelihoodLoss",
                 "SoftmaxCrossEntropyLoss")  # fmt: skip
OPERATORS.refuse(f"of values that are computed at execution {COUNTED}", "Unique", "Compress")
OPERATORS.refuse(f"{COUNTED}: export the detector without it, and select boxes from the model's outputs",
                 "NonMaxSuppression")  # fmt: skip
OPERATORS.refuse("works on the bits of integers, for which NNAPI has no operation",
                 "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BitCast")  # fmt: skip
OPERATORS.refuse("decodes picture files, which no operation of NNAPI does", "ImageDecoder")


class NodeTask(OperationWriter):
    """One node to lower. The graph is unchanged before `commit`.

    attr: its attributes. eight: whether it uses stored 8-bit values.
    """

    graph: NodeGraph
    facts: NodeFacts
    eight = False

    def __init__(self, graph: NodeGraph, node: OnnxNode, opset: int) -> None:
        self.name = f"{node.domain}.{node.op}" if node.domain else node.op
        super().__init__(graph, node.inputs, OPERATORS[self.name], node.label)
        self.node, self.opset = node, opset
        self.attr = NodeAttributes(node.attributes)
        self._integers: dict[int, Term] = {}  # of inputs that are held as reals, by the input
        self.own: list[Term] = []  # results that belong to this node only
        self._steps = self._common_steps()

    def listed(self, place: int, name: str) -> list[int]:
        """Return integers: input `place`, or an attribute in older versions; empty if neither is given."""
        return self.ints(place, name) if self.given(place) else self.attr.ints(name)

    # ----------------------------------------------------------------------------------------------------------- inputs

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
        """Return a term as an NNAPI tensor. Operators that only move elements of one input work on texts too."""
        texts = term.kind == "STRING" and not self.facts.moves_one
        form = integer_form(term)
        if form is not None and term.reals is not None:
            if id(term) not in self._integers:
                made = self._integers[id(term)] = self.make(form[0], term.reals, like=form[1])
                made.kind, made.scalar = term.kind, term.scalar
            return self._integers[id(term)]
        if term.value.type == UNTYPED or texts:
            self.follows(term)
            self.refuse(f"{what} {why_untyped(term, term.kind or 'not there')}")
        if term.partly:
            self.follows(term)
        self.require(not term.partly, f"{what} is a shape known only at execution, which NNAPI has no operation for")
        return term

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
        whole = term.value.type == I32 and term.kind != "STRING"
        self.require(whole, f"{what} is {term.kind}, must be INT32 or INT64")
        return term

    def derived(self, source: Term, how: Any, make: Callable[[], Array]) -> Term:
        """Return a constant derived from another one, shared by all readers. how: distinguishes the derivation."""
        context, key = self.graph.context, (id(source), how)
        if key not in context.derived:
            context.derived[key] = constant(bare(source.value), np.ascontiguousarray(make()))
            context.kept.append(source)
        made: Term = context.derived[key]
        return made

    # ---------------------------------------------------------------------------------------------------------- outputs

    def is_output_used(self, number: int) -> bool:
        """Whether output `number` is named and read."""
        outputs = self.node.outputs
        return number < len(outputs) and self.graph.uses[outputs[number]] > 0

    def out(self, number: int = 0) -> Value:
        """Return the type of the output: that of the current result, or of the first input."""
        found = self.results.get(number)
        return bare((found or self.x(0)).value)

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
            wide = {"INT32": "INT64", "FLOAT": "" if self.node.domain else "DOUBLE"}.get(kind)
            if wide and any(self.raw(n).kind == wide for n in range(len(self.node.inputs)) if self.given(n)):
                kind = wide
        one = self.is_scalar(scalar) and term.value.shape == (1,)
        other = (term.kind and term.kind != kind) or term.scalar != one or term.data is not None
        if other and not self.wrote(term):
            term = self._view(term)
        term.kind, term.scalar = kind, one
        self.results[number] = term

    def _view(self, term: Term) -> Term:
        """Return the same constant, or a copy of a computed value, as a separate term."""
        if term.value.data is None:
            return copied(self, term)
        return Term(term.value, term.kind, term.data, term.blob, term.scalar, term.span, made=term.made)

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

    def flush(self) -> None:
        """Add the operations so far to the graph, before those of an inner graph that read their results."""
        self.charge_constants()
        self.own += [out for operation in self.emitted for out in operation.outputs]
        self.graph.operations += self.emitted
        self.emitted = []

    def commit(self) -> None:
        """Add results and operations to the graph."""
        there = len(self.node.outputs)
        self._label_texts()
        for number, name in enumerate(self.node.outputs):
            if not name or (number not in self.results and not self.is_output_used(number)):
                continue
            self.require(number in self.results, f"output {number} is read, which NNAPI has no operation for")
        for number, term in self.results.items():
            if (
                number < there
                and term.kind in ("INT64", "INT32")
                and term.value.type == I32
                and term.data is None
                and term.span is None
            ):
                term.span = self._span(term, number)
        self.flush()
        made = {id(term) for term in self.own}
        for term in self.results.values():
            if id(term) not in made:
                self.graph.context.aliased.add(id(term))
                self.graph.context.kept.append(term)
        for number, name in enumerate(self.node.outputs):
            if name and number in self.results:
                self.graph.terms[name] = self.results[number]
        for step in self.later:
            step()

    def _label_texts(self) -> None:
        """Give moved texts their labels; refuse other texts, whose places would have no meaning."""
        labels = self.graph.context.labels
        for number, term in self.results.items():
            if term.kind != "STRING" or id(term) in labels:
                continue
            if self.facts.moves_one:
                self.graph.context.copy_labels(term, self.raw(0))
            self.require(id(term) in labels, f"output {number} is STRING, which NNAPI has no type for")

    def _span(self, result: Term, number: int) -> Span:
        terms = [self.raw(place) for place in range(len(self.node.inputs)) if self.given(place)]
        spans = [integer_range(term) for term in terms if term.kind in ("INT64", "INT32", *KINDS)]
        return span_of(self.facts.span, result, number, terms, spans, ANY)


def integer_range(term: Term) -> Span:
    """Return the range of a term's integers."""
    if term.span is None and term.kind == "INT32" and term.data is not None and term.data.size and not term.partly:
        return int(term.data.min()), int(term.data.max())
    return term.span or KINDS.get(term.kind, ANY)


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
