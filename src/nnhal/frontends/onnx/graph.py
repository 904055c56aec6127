"""A graph of an `.onnx` file on its way into a model: what is known of its values, and the operations made so far."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import InvalidModel
from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.base.records import Struct, field, replace
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.terms import (
    PLAIN_SCALE,
    UNTYPED,
    Emitted,
    Inexpressible,
    Term,
    WrittenGraph,
    constant,
    fits,
)
from nnhal.frontends.common.writing import INT32_RANGE
from nnhal.frontends.onnx.file import DTYPES, OnnxFile, OnnxFileGraph, OnnxNode, OnnxTensor
from nnhal.frontends.onnx.order import reads
from nnhal.frontends.onnx.trial import Trials
from nnhal.model.graph import EdgeForm
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S, bind

TYPES = {"FLOAT": F32, "FLOAT16": F16, "INT32": I32, "INT64": I32, "BOOL": B8, "UINT8": Q8, "INT8": Q8S}
PLAIN = {"UINT8": PLAIN_SCALE, "INT8": PLAIN_SCALE}  # scales of integers that stand for themselves
KIND_OF = {F32: "FLOAT", F16: "FLOAT16", I32: "INT32", B8: "BOOL", Q8: "UINT8", Q8S: "INT8"}


class FileContext(Struct, eq=False):
    """What the graphs of one import share. quantised: of a term, the one of 8 bits whose real values it holds."""

    file: OnnxFile
    lower: "Callable[[NodeGraph], None]"
    lower_open: "Callable[[NodeGraph], None]"
    problems: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    stored: dict[int, Term] = field(default_factory=dict)
    kept: list[Term] = field(default_factory=list)  # whose ids are keys

    pictures: dict[int, Term] = field(
        default_factory=dict
    )  # of a term of rows [n, c, w] the one [n, c, 1, w] it was made of

    trials: Trials = field(default_factory=Trials)
    rectified: set[int] = field(default_factory=set)  # real terms whose stored ones are under the RELU behind them
    aliased: set[int] = field(default_factory=set)  # terms that have several names
    derived: dict[Any, Any] = field(
        default_factory=dict
    )  # what was made of constants, and how, so that it is made once

    def seen_as(self, rows: Term, pictures: Term) -> None:
        """A term of rows is one of pictures reshaped."""
        self.pictures[id(rows)] = pictures
        self.kept += [rows, pictures]

    def stands_inside(self, inner: Term, outer: Term) -> None:
        """A term of a graph within is one of the graph around it."""
        self.trials.outer[id(inner)] = outer
        self.kept += [inner, outer]

    def stands_for(self, real: Term, stored: Term) -> None:
        """A term holds the real values of another."""
        self.stored[id(real)] = stored
        self.kept.append(real)


class OperationList(list[Emitted]):
    """Operations in order, which know the terms that they give."""

    def __init__(self, given: Sequence[Emitted] = ()) -> None:
        super().__init__(given)
        self._places: dict[int, int] = {}
        self._seen = 0

    def gives(self, term: Term) -> bool:
        """Whether one of them gives a term."""
        return self.giver(term) is not None

    def giver(self, term: Term) -> Emitted | None:
        """The one that gives a term."""
        for n in range(self._seen, len(self)):
            self._note(n)
        self._seen = len(self)
        place = self._places.get(id(term))
        if place is None or place >= len(self) or not any(out is term for out in self[place].outputs):
            return None
        return self[place]

    def change(self, place: int, operation: Emitted) -> None:
        """Another in the place of one of them."""
        self[place] = operation
        self._note(place)

    def cut(self, count: int) -> None:
        """The first ones stay."""
        del self[count:]
        self._seen = min(self._seen, count)

    def _note(self, place: int) -> None:
        for out in self[place].outputs:
            self._places[id(out)] = place


class NodeGraph(WrittenGraph):
    """One graph: terms by name, and the operations in order. outer: the graph around it."""

    def __init__(self, context: FileContext, source: OnnxFileGraph, outer: "NodeGraph | None" = None) -> None:
        self.context, self.source, self.outer, self.file = context, source, outer, context.file
        self.operations: OperationList = OperationList()
        self.terms: dict[str, Term] = {}
        self.inputs: list[Term] = []
        self.outputs: list[Term] = []
        self.forms: list[EdgeForm] = []  # of the outputs
        self.captures: dict[str, tuple[Term, Term]] = {}  # by name: what the outer graph has, and the input it comes by
        self.failed = False
        self._readers: dict[str, OnnxNode] | None = None
        self.open_to_outer = False  # its operations stand in the graph around it
        self.depth: int = outer.depth + 1 if outer else 0
        self.uses = Counter(name for node in source.nodes for name in reads(node))
        self.uses.update(edge.name for edge in source.outputs)
        self.written = {name for node in source.nodes for name in node.outputs}

    def give(self, name: str, value: Value, kind: str, *, scalar: bool) -> Term:
        """Make an input of it."""
        term = Term(replace(value, data=None), kind, scalar=scalar)
        self.terms[name] = term
        self.inputs.append(term)
        return term

    def giver(self, term: Term) -> Emitted | None:
        """The operation that gives a term, of this graph or one around it."""
        found = self.operations.giver(term)
        return found if found is not None or self.outer is None else self.outer.giver(term)

    def problem(self, name: str, reason: str, place: str = "") -> None:
        """Note something that cannot be expressed."""
        self.failed = True
        self.context.problems.setdefault((name, reason), []).append(place)

    def term(self, name: str) -> Term:
        """The term of a value that was written, is an input, or is constant; of an outer graph, an input of this one."""
        found = self.terms.get(name)
        if found is None:
            tensor = self.source.constants.get(name)
            found = self._constant(tensor) if tensor is not None else self._captured(name)
            self.terms[name] = found
        return found

    def _constant(self, tensor: OnnxTensor) -> Term:
        return self.constant(tensor, tensor.name)

    def constant(self, tensor: OnnxTensor, name: str = "") -> Term:
        """A tensor that the file has."""
        data = self.array(tensor)
        kind = TYPES.get(tensor.kind, UNTYPED)
        value = Value(kind, None, PLAIN.get(tensor.kind, 0.0), name=name)
        if kind == UNTYPED or data is None:
            return Term(Value(UNTYPED, tensor.shape), tensor.kind, data, scalar=not tensor.shape)
        term = constant(value, data, tensor.kind, tensor.blob)
        term.kind = tensor.kind
        return term

    def array(self, tensor: OnnxTensor) -> Array | None:
        """The value of a tensor, over the bytes of the file where they lie there."""
        if tensor.values is not None:
            self.file.budget.spend(Cost.MEMORY, tensor.values.nbytes, tensor.name)
            return tensor.values
        if tensor.blob is None:
            return None
        data = self.file.bytes_of(tensor.blob).view(np.dtype(DTYPES[tensor.kind])).reshape(tensor.shape)
        if tensor.kind == "BOOL":
            return data.view(np.uint8) != 0
        return data

    def _captured(self, name: str) -> Term:
        if self.outer is None:
            raise Inexpressible(f"reads {short(name)!r}, which nothing writes")
        outer = self.outer.term(name)
        if self.open_to_outer:
            return outer
        if outer.data is not None or outer.value.type == UNTYPED or outer.value.data is not None:
            return outer
        inner = Term(
            replace(outer.value, data=None), outer.kind, scalar=outer.scalar, span=outer.span, doubtful=outer.doubtful
        )
        self.captures[name] = (outer, inner)
        self.context.stands_inside(inner, outer)
        return inner

    # --------------------------------------------------------------------------------------------------------- the end

    def emit_copy(self, term: Term) -> Term:
        """A copy of a term, where a model may not have it as an output itself."""
        self.file.budget.spend(Cost.OPERATIONS, 1)
        copied = replace(term.value, data=None)
        bound = bind(OPS["CAST"], [term.value], [copied], "CAST")
        result = Term(replace(copied, shape=bound.shapes[0] or copied.shape), term.kind, scalar=term.scalar)
        self.operations.append(Emitted("CAST", (term,), (result,), "copy", bound))
        return result

    def finish(self, names: Sequence[str], kinds: Sequence[str]) -> None:
        """Fix the outputs: what is an input, constant or given twice becomes a copy. kinds: what the file says of them."""
        taken = {id(term) for term in self.inputs} | {id(inner) for _, inner in self.captures.values()}
        made = {id(out) for operation in self.operations for out in operation.outputs}
        for name, kind in zip(names, kinds, strict=True):
            try:
                term = self.term(name)
            except Inexpressible as error:
                self.problem(f"output {short(name)!r}", str(error))
                continue
            if term.doubtful:
                self.failed = True
                continue
            if term.value.type == UNTYPED or term.partly:
                why = "is a shape known only at execution" if term.partly else f"is {term.kind or 'nothing'}"
                what = "operation" if term.partly else "type"
                self.problem(f"output {short(name)!r}", f"{why}, which NNAPI has no {what} for")
                continue
            if term.span is not None and not fits(term.span):
                self.problem(f"output {short(name)!r}", WIDE)
                continue
            if kind and kind != term.kind:
                self.problem(
                    f"output {short(name)!r}", f"is {kind} in the file, must be {term.kind}, which is computed"
                )
                continue
            if id(term) in taken or id(term) not in made or term.value.data is not None:
                try:
                    term = self.emit_copy(term)
                except InvalidModel as error:
                    self.problem(f"output {short(name)!r}", f"must be copied: {error}")
                    continue
            taken.add(id(term))
            self.forms.append(EdgeForm(term.scalar, term.kind == "INT64"))
            self.outputs.append(term)

    def only_reader(self, name: str) -> OnnxNode | None:
        """The one node that reads a value, None where there are several, or it is an output."""
        if self.uses[name] != 1:
            return None
        if self._readers is None:
            self._readers = {name: node for node in self.source.nodes for name in node.inputs}
        return self._readers.get(name)

    def prune(self) -> None:
        """Leave out the operations that nothing needs."""
        needed = {id(term) for term in self.outputs}
        kept = []
        for operation in reversed(self.operations):
            if any(id(out) in needed for out in operation.outputs):
                kept.append(operation)
                needed.update(id(term) for term in operation.inputs if isinstance(term, Term))
        self.operations = OperationList(kept[::-1])


WIDE = "is of INT64 and may need more than the 32 bits that NNAPI's integers have"


def within(numbers: Sequence[int]) -> bool:
    """Whether 32 bits hold all of them."""
    return all(INT32_RANGE.min <= n <= INT32_RANGE.max for n in numbers)
