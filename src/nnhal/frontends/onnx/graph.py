"""A graph of an `.onnx` file during import: the known facts of its values, and the operations made so far."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.base.records import Struct, field, replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.integer_ranges import TOO_WIDE
from nnhal.frontends.common.packed import unpack
from nnhal.frontends.common.terms import (
    PLAIN_SCALE,
    UNTYPED,
    WIDE_KINDS,
    EmittedOperation,
    Term,
    UnsupportedOperator,
    constant,
    fits,
)
from nnhal.frontends.common.writing import INT32_RANGE, MOST_DIMENSIONS, ImportedGraph, lack_of_type
from nnhal.frontends.onnx.file import DTYPES, SMALL, OnnxFile, OnnxFileGraph, OnnxNode, OnnxTensor
from nnhal.frontends.onnx.node_order import reads
from nnhal.frontends.onnx.open_sizes import Trials
from nnhal.model.graph import EdgeForm
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S

TYPES = {"FLOAT": F32, "DOUBLE": F32, "FLOAT16": F16, "INT32": I32, "INT64": I32, "BOOL": B8, "UINT8": Q8, "INT8": Q8S}
PLAIN = {"UINT8": PLAIN_SCALE, "INT8": PLAIN_SCALE}  # scales of integers that represent themselves
KIND_OF = {F32: "FLOAT", F16: "FLOAT16", I32: "INT32", B8: "BOOL", Q8: "UINT8", Q8S: "INT8"}
EXACT = 1 << 24  # the greatest magnitude up to which float32 represents every integer
TermLabels = tuple[str, Sequence[str]]  # a kind of associated files, and a line for each label


class FileContext(Struct, eq=False):
    """The shared state of the graphs of an import. quantised: for a term, the 8-bit term whose real values it holds."""

    file: OnnxFile
    lower: "Callable[[NodeGraph], None]"
    lower_open: "Callable[[NodeGraph], None]"
    problems: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    stored: dict[int, Term] = field(default_factory=dict)
    kept: list[Term] = field(default_factory=list)  # the terms whose ids are keys

    pictures: dict[int, Term] = field(default_factory=dict)  # for a term of rows [n, c, w], the source [n, c, 1, w]

    trials: Trials = field(default_factory=Trials)
    rectified: set[int] = field(default_factory=set)  # real terms whose stored ones come after the RELU behind them
    aliased: set[int] = field(default_factory=set)  # terms with several names
    derived: dict[Any, Any] = field(
        default_factory=dict
    )  # results from constants, by their derivation, so that each is made once

    packed: dict[int, str] = field(default_factory=dict)  # the types in the file of constants that share bytes

    labels: dict[int, TermLabels] = field(default_factory=dict)  # of terms of classifiers

    def note_labels(self, term: Term, kind: str, texts: Sequence[Any]) -> None:
        """Record the labels of a term's values, or of the places along its last dimension; kind: as in `Metadata`."""
        self.labels[id(term)] = kind, ["".join(c if c.isprintable() else " " for c in str(each)) for each in texts]
        self.kept.append(term)

    def copy_labels(self, term: Term, source: Term) -> None:
        """Record that a term has the labels of another one, if that has any."""
        if id(source) in self.labels:
            self.labels[id(term)] = self.labels[id(source)]
            self.kept.append(term)

    def note_reshaped_term(self, rows: Term, pictures: Term) -> None:
        """Record that a term of rows is a reshaped term of pictures."""
        self.pictures[id(rows)] = pictures
        self.kept += [rows, pictures]

    def note_inner_term(self, inner: Term, outer: Term) -> None:
        """Record that a term of an inner graph is one of the enclosing graph."""
        self.trials.outer[id(inner)] = outer
        self.kept += [inner, outer]

    def note_real_term(self, real: Term, stored: Term) -> None:
        """Record that a term holds the real values of another."""
        self.stored[id(real)] = stored
        self.kept.append(real)


class OperationList(list[EmittedOperation]):
    """Operations in order, indexed by their output terms."""

    def __init__(self, given: Sequence[EmittedOperation] = ()) -> None:
        super().__init__(given)
        self._places: dict[int, int] = {}
        self._seen = 0

    def produces(self, term: Term) -> bool:
        """Whether one of them produces a term."""
        return self.producer(term) is not None

    def producer(self, term: Term) -> EmittedOperation | None:
        """Return the one that produces a term."""
        for n in range(self._seen, len(self)):
            self._note(n)
        self._seen = len(self)
        place = self._places.get(id(term))
        if place is None or place >= len(self) or not any(out is term for out in self[place].outputs):
            return None
        return self[place]

    def change(self, place: int, operation: EmittedOperation) -> None:
        """Replace one of them."""
        self[place] = operation
        self._note(place)

    def cut(self, count: int) -> None:
        """Keep only the first ones."""
        del self[count:]
        self._seen = min(self._seen, count)

    def _note(self, place: int) -> None:
        for out in self[place].outputs:
            self._places[id(out)] = place


class NodeGraph(ImportedGraph):
    """One graph: terms by name, and the operations in order. outer: the enclosing graph."""

    omitted, dtypes = "", DTYPES

    def __init__(self, context: FileContext, source: OnnxFileGraph, outer: "NodeGraph | None" = None) -> None:
        super().__init__(context.file.budget, context.problems)
        self.context, self.source, self.outer, self.file = context, source, outer, context.file
        self.operations: OperationList = OperationList()
        # By name: the term of the enclosing graph, and the input that receives it
        self.captures: dict[str, tuple[Term, Term]] = {}
        self._readers: dict[str, OnnxNode] = {}  # the last one of each value
        self.open_to_outer = False  # its operations are part of the enclosing graph
        self.depth: int = outer.depth + 1 if outer else 0
        self.uses = Counter(edge.name for edge in source.outputs)
        self.written: set[str] = set()
        self.note_nodes(source.nodes)

    def note_nodes(self, nodes: Iterable[OnnxNode]) -> None:
        """Record what nodes read and write, before the first of them is imported."""
        for node in nodes:
            self.uses.update(reads(node))
            self._readers.update(dict.fromkeys(node.inputs, node))
            self.written.update(node.outputs)

    def note_replaced(self, node: OnnxNode) -> None:
        """Record that other nodes read the inputs of a node in its place."""
        self.uses.subtract(reads(node))

    def give(self, name: str, value: Value, kind: str, *, scalar: bool) -> Term:
        """Make an input of the graph."""
        term = Term(replace(value, data=None), kind, scalar=scalar)
        self.terms[name] = term
        self.inputs.append(term)
        return term

    def producer(self, term: Term) -> EmittedOperation | None:
        """Return the operation that produces a term, in this graph or an enclosing one."""
        found = self.operations.producer(term)
        return found if found is not None or self.outer is None else self.outer.producer(term)

    def _read(self, key: str) -> Term:
        """Return a constant, or a value of an enclosing graph, which becomes an input of this one."""
        tensor = self.source.constants.get(key)
        return self._captured(key) if tensor is None else self.constant(tensor, tensor.name)

    def constant(self, tensor: OnnxTensor, name: str = "") -> Term:
        """Return the term of a tensor in the file."""
        data = self.array(tensor)
        kind = TYPES.get(tensor.kind, UNTYPED)
        value = Value(kind, None, PLAIN.get(tensor.kind, 0.0), name=name)
        if tensor.texts:
            return self._places_of_texts(tensor, name)
        if kind == UNTYPED or data is None:
            return Term(Value(UNTYPED, tensor.shape), tensor.kind, data, scalar=not tensor.shape)
        term = constant(value, data, tensor.kind, None if tensor.packed else tensor.blob)
        term.kind = tensor.kind
        if tensor.packed:
            self.context.packed[id(term)] = tensor.packed
            self.context.kept.append(term)
        return term

    def _places_of_texts(self, tensor: OnnxTensor, name: str) -> Term:
        """Return a constant of texts, which are represented by their places, as the labels of classifiers."""
        self.file.budget.spend(Cost.MEMORY, 4 * len(tensor.texts), name)
        places = np.arange(len(tensor.texts), dtype=np.int32).reshape(tensor.shape or (1,))
        term = Term(Value(I32, places.shape, data=places, name=name), tensor.kind, scalar=not tensor.shape)
        self.context.note_labels(term, "value labels", tensor.texts)
        return term

    def array(self, tensor: OnnxTensor) -> Array | None:
        """Return the value of a tensor, over the file's bytes if they are contiguous."""
        if tensor.values is not None:
            self.file.budget.spend(Cost.MEMORY, tensor.values.nbytes, tensor.name)
            return tensor.values
        if tensor.blob is None:
            return None
        if tensor.packed:
            self.file.budget.spend(Cost.MEMORY, math.prod(tensor.shape), tensor.name)
            data = self.file.bytes_of(tensor.blob)
            return unpack(data, SMALL[tensor.packed], tensor.shape, signed=tensor.kind == "INT8")
        data = self.file.bytes_of(tensor.blob).view(np.dtype(DTYPES[tensor.kind])).reshape(tensor.shape)
        if tensor.kind == "BOOL":
            return data.view(np.uint8) != 0
        return data

    def _captured(self, name: str) -> Term:
        if self.outer is None:
            raise UnsupportedOperator(f"reads {short(name)!r}, which no node writes")
        outer = self.outer.term(name)
        if self.open_to_outer:
            return outer
        if outer.reals is not None:
            reals = self._received(name, outer.reals)
            return Term(outer.value, outer.kind, scalar=outer.scalar, span=outer.span, reals=reals)
        if outer.data is not None or outer.value.type == UNTYPED or outer.value.data is not None:
            return outer
        return self._received(name, outer)

    def _received(self, name: str, outer: Term) -> Term:
        """Make an input that receives a value of the enclosing graph."""
        inner = Term(
            replace(outer.value, data=None), outer.kind, scalar=outer.scalar, span=outer.span, doubtful=outer.doubtful
        )
        self.captures[name] = (outer, inner)
        self.context.note_inner_term(inner, outer)
        return inner

    # --------------------------------------------------------------------------------------------------------- the end

    def finish(self, names: Sequence[str], kinds: Sequence[str]) -> None:
        """Set the outputs: inputs, constants and repeated terms become copies. kinds: their types in the file."""
        taken = {id(term) for term in self.inputs} | {id(inner) for _, inner in self.captures.values()}
        made = {id(out) for operation in self.operations for out in operation.outputs}
        for name, kind in zip(names, kinds, strict=True):
            try:
                term = self.term(name)
            except UnsupportedOperator as error:
                self.problem(f"output {short(name)!r}", str(error))
                continue
            if term.doubtful:
                self.failed = True
                continue
            form = integer_form(term)
            if form is not None:
                term = self._as_integers(term, form)
            elif term.reals is not None:
                self.problem(f"output {short(name)!r}", why_untyped(term, term.kind))
                continue
            if self.is_unusable(term, term.kind or "nothing", short(name)):
                continue
            if term.span is not None and not fits(term.span):
                self.problem(f"output {short(name)!r}", TOO_WIDE)
                continue
            if kind and kind != term.kind:
                self.problem(
                    f"output {short(name)!r}", f"is {kind} in the file, must be {term.kind}, which is computed"
                )
                continue
            source, term = term, self.own(term, taken, short(name), foreign=id(term) not in made)
            self.context.copy_labels(term, source)
            self.forms.append(EdgeForm(term.scalar, term.kind in WIDE_KINDS))
            self.outputs.append(term)

    def _as_integers(self, term: Term, form: tuple[str, Value]) -> Term:
        """Return integers that are held as reals in a type of NNAPI."""
        found = self.emit_converted(term.reals or term, *form)
        found.kind, found.scalar, found.span = term.kind, term.scalar, term.span
        return found

    def only_reader(self, name: str) -> OnnxNode | None:
        """Return the only node that reads a value, None if there are several or it is an output."""
        return self._readers.get(name) if self.uses[name] == 1 else None

    def prune(self) -> None:
        """Remove the operations that nothing needs."""
        needed = {id(term) for term in self.outputs}
        kept = []
        for operation in reversed(self.operations):
            if any(id(out) in needed for out in operation.outputs):
                kept.append(operation)
                needed.update(id(term) for term in operation.inputs if isinstance(term, Term))
        self.operations = OperationList(kept[::-1])


def integer_form(term: Term) -> tuple[str, Value] | None:
    """Return the operation and the type that make integers of those held as reals; None if it may change them."""
    if term.reals is None or term.doubtful:
        return None
    if term.kind in PLAIN and len(term.value.shape or ()) <= MOST_DIMENSIONS:
        return "QUANTIZE", Value(TYPES[term.kind], None, PLAIN[term.kind])
    exact = term.span is not None and max(map(abs, term.span)) <= EXACT
    return ("CAST", Value(I32)) if term.kind == "INT32" and exact else None


def why_untyped(term: Term, kind: str) -> str:
    """Return why a term has no type in NNAPI."""
    if term.reals is None or term.kind != "INT32":
        return lack_of_type(term.value, kind)
    most = f"may reach {max(map(abs, term.span))}" if term.span is not None else "have no known limit"
    rule = f"must be at most {EXACT}, up to which float32 has all integers, or be cast to FLOAT"
    return f"has sums of products in INT32, which are computed in float32: they {most}, {rule}"


def fit_int32(numbers: Sequence[int]) -> bool:
    """Whether all of these numbers fit 32 bits."""
    return all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in numbers)
