"""A table of entries that lower operations: verdicts and preparation run the same ones, so a good verdict is one that held.

An entry is a function of a task, which has the arguments of one operation and whatever the driver adds. It writes to the
engine's graph, or refuses with a reason. What it asks for and is known only at execution is a reason too.

An entry may know several *forms* of an operation, the fastest first and the exact one last; `forms.Forms` chooses.
A GRU, which a model has by parts, is written once more, whole, where the engine has that: nothing needs its parts then.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from nnhal.base.codes import operation_name, type_name
from nnhal.base.errors import Unmappable
from nnhal.base.operands import Array, Unknown, Value
from nnhal.base.records import Record
from nnhal.drivers.kit.forms import UNPROVED, Forms, Refused
from nnhal.drivers.kit.gated import GatedSequence, gated_sequences
from nnhal.hal.device import YES, Considered, Hints, Verdict, hidden_constant
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound, perhaps_omitted


class LoweringTask:
    """One operation to lower: its decoded arguments `a`, where each of them lies, and the `form` that was chosen for it.

    form: "" for an entry that has one form only. exact: whether numerics are exact.
    """

    form = ""
    exact = False

    def __init__(self, a: Bound, operation: Operation) -> None:
        self.a, self.operation = a, operation

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.a.op.name

    def require(self, condition: Any, reason: str) -> None:
        """Refuse the operation unless the condition holds."""
        if not condition:
            raise Refused(reason)

    def require_alike(self) -> None:
        """Refuse quantised tensors of several scales where numerics are exact: each brought to another scale is rounded."""
        kinds = {(value.scale, value.zero_point) for value in quantised_of(self.a)}
        self.require(not self.exact or len(kinds) < 2, "scales differ, and numerics are exact")

    def places(self, name: str) -> tuple[int, ...]:
        """The operands of an argument: none where it is omitted, also for an input that is declared to be perhaps; several
        of a variadic one.
        """
        inputs, value = self.operation.inputs, self.a.__dict__.get(name, self)
        for argument, start, end in self.a.form.slots(len(inputs)) if value is not None else ():
            if argument.name == name:
                omitted = argument.optional and isinstance(value, Value) and perhaps_omitted(value)
                return () if omitted else inputs[start:end]
        return ()

    def place(self, name: str) -> int:
        """The operand of an argument that is there."""
        places = self.places(name)
        self.require(places, f"{name} is omitted")
        return places[0]

    def array(self, name: str) -> Array:
        """The value of a tensor argument, which has to be constant."""
        self.place(name)
        value = getattr(self.a, name)
        self.require(value.data is not None, f"{name} is computed at execution, must be constant")
        return np.asarray(value.data)

    def finish(self) -> None:
        """Called when the entry has returned."""


T = TypeVar("T", bound=LoweringTask)
G = TypeVar("G")


class KeptGraph(Generic[G]):
    """An engine's graph with all operations of a model in it, made for the verdicts; for whoever comes first."""

    def __init__(self, graph: G) -> None:
        self._graphs = [graph]  # a list, for taking out is one step

    def take(self) -> G | None:
        """The graph, and nothing for those who come later: it is written to."""
        return self._graphs.pop() if self._graphs else None


def kept_graph(hints: Hints, kind: type[G]) -> G | None:
    """The graph of the whole model that `LoweringTable.consider` kept; None where it has to be made anew."""
    found = hints.worked_out
    if found is None or not found.whole:
        return None
    kept = found.given
    graph = kept.take() if isinstance(kept, KeptGraph) else None
    return graph if isinstance(graph, kind) else None


class Entry(Record, Generic[T], frozen=True):
    """How to lower an operation. types: the operation types `T` that it takes, None for all. forms: of each type that has
    several, the fastest first, the exact one last. exact: whether its results of 8 bits are, bit for bit, those of the
    reference under exact numerics.
    """

    lower: Callable[[T], None]
    types: frozenset[int] | None
    forms: Mapping[int, tuple[str, ...]]
    exact: bool = False


class LoweringTable(Generic[T]):
    """Entries by operation. engine: its name in reasons; types: what entries take that do not say it themselves.

    elsewhere: reasons for operations that it has no entry for.
    """

    def __init__(
        self, engine: str, types: frozenset[int] | None = None, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.engine, self._types, self._elsewhere = engine, types, dict(elsewhere or {})
        self.entries: dict[str, Entry[T]] = {}
        self.gated: Callable[[T, GatedSequence], None] | None = None  # writes a GRU whole, for its `last` and `states`

    def entry(
        self,
        *names: str,
        types: frozenset[int] | None = None,
        forms: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
        exact: bool = False,
    ) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
        """Make a function the entry of the named operations."""

        def add(function: Callable[[T], None]) -> Callable[[T], None]:
            for name in names:
                self.entries[name] = Entry(function, self._types if types is None else types, forms, exact)
            return function

        return add

    def verdicts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> list[Verdict]:
        """One verdict for each operation of the main subgraph. task: makes what an entry gets."""
        return list(self._attempts(model, task, forms))

    def consider(
        self, model: Model, graph: G, task: Callable[[G, Bound, Operation], T], forms: Forms = UNPROVED
    ) -> Considered:
        """The verdicts, and the graph for `kept_graph` where all operations are in it. task: makes what an entry gets."""
        verdicts = self.verdicts(model, partial(task, graph), forms)
        return Considered(verdicts, worked_out=KeptGraph(graph) if all(v.ok for v in verdicts) else None)

    def lower(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> None:
        """Lower every operation; Refused, or Unmappable, with the first that cannot be."""
        attempts = self._attempts(model, task, forms)
        for number, (verdict, operation) in enumerate(zip(attempts, model.main.operations, strict=True)):
            if not verdict.ok:
                kind = Unmappable if verdict.reason == hidden_constant(model, operation) else Refused
                raise kind(f"{self.engine}: {operation_name(operation.type)} #{number}: {verdict.reason}")

    def _attempts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms) -> Iterator[Verdict]:
        """Lower every operation."""
        bounds = validate(model).subgraphs[0].operations
        wholes = gated_sequences(model) if self.gated and not forms.exact else {}
        for n, (a, operation) in enumerate(zip(bounds, model.main.operations, strict=True)):
            hidden = hidden_constant(model, operation)
            yield Verdict(False, hidden) if hidden else self._attempt(a, operation, task, forms)
            if a is not None and self.gated and n in wholes:
                with suppress(Refused):
                    self.gated(task(a, operation), wholes[n])

    def _attempt(
        self, a: Bound | None, operation: Operation, task: Callable[[Bound, Operation], T], forms: Forms
    ) -> Verdict:
        chosen = None if a is None else self.entries.get(a.op.name)
        if a is None or chosen is None:
            name = operation_name(operation.type)
            return Verdict(False, self._elsewhere.get(name, f"this driver does not lower {name}"))
        if a.T is not None and chosen.types is not None and a.T not in chosen.types:
            return Verdict(False, f"{self.engine}'s {a.op.name} does not take {type_name(a.T)}")
        if forms.exact and not chosen.exact and quantised_of(a):
            return Verdict(False, f"{self.engine}'s {a.op.name} of 8 bits may be a step off, and numerics are exact")
        try:
            made = task(a, operation)
            made.exact = forms.exact
            known = () if a.T is None else chosen.forms.get(a.T, ())
            made.form, why_not_faster = forms.choose(a.op.name, a.T, known)
            chosen.lower(made)
            made.finish()
        except Refused as error:
            return Verdict(False, str(error))
        except Unknown as error:
            why = f"needs {str(error) or 'a shape'} when the model is prepared, and it is only known at execution"
            return Verdict(False, why)
        return Verdict(True, why_not_faster) if why_not_faster else YES


def quantised_of(a: Bound) -> list[Value]:
    """The quantised tensors that an operation reads and gives."""
    given = (each for _, value in a.inputs for each in (value if isinstance(value, tuple) else (value,)))
    return [value for value in (*given, *a.outs) if value is not None and value.quantised]
