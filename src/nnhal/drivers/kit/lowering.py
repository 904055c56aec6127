"""Lowering tables: verdicts and preparation run the same entries, so a positive verdict always holds.

An entry is a function of a task, which has the arguments of one operation and the driver's additions. It writes to the
engine's graph, or rejects the operation with a reason. A value that is only known at execution is a reason too.

An entry may have several kernel variants of an operation, the fastest first and the reference last; `forms.Forms`
chooses. Models contain a GRU in parts. If the engine has one, the table adds it as a whole, and the parts become
unused.
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
    """One operation to lower. A driver derives a class from it, with access to its graph.

    Attributes:
        a: The decoded arguments.
        operation: The operation in the model.
        form: The chosen kernel variant; "" if the entry has only one.
        exact: Whether numerics are exact.
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
        """Reject the operation unless the condition holds.

        Args:
            condition: The condition.
            reason: The reason for the user, if it does not hold.

        Raises:
            Refused: The condition does not hold.
        """
        if not condition:
            raise Refused(reason)

    def require_alike(self) -> None:
        """With exact numerics, reject quantised tensors with different scales: rescaling would round.

        Raises:
            Refused: The scales differ.
        """
        kinds = {(value.scale, value.zero_point) for value in quantised_of(self.a)}
        self.require(not self.exact or len(kinds) < 2, "scales differ, and numerics are exact")

    def places(self, name: str) -> tuple[int, ...]:
        """Return the operands of an argument.

        Args:
            name: The argument.

        Returns:
            One operand; several for a variadic argument; none if it is omitted, or declared as possibly omitted.
        """
        inputs, value = self.operation.inputs, self.a.__dict__.get(name, self)
        for argument, start, end in self.a.form.slots(len(inputs)) if value is not None else ():
            if argument.name == name:
                omitted = argument.optional and isinstance(value, Value) and perhaps_omitted(value)
                return () if omitted else inputs[start:end]
        return ()

    def place(self, name: str) -> int:
        """Return the operand of an argument.

        Args:
            name: The argument.

        Raises:
            Refused: It is omitted.
        """
        places = self.places(name)
        self.require(places, f"{name} is omitted")
        return places[0]

    def array(self, name: str) -> Array:
        """Return the value of a tensor argument that must be constant.

        Args:
            name: The argument.

        Raises:
            Refused: It is omitted, or computed at execution.
        """
        self.place(name)
        value = getattr(self.a, name)
        self.require(value.data is not None, f"{name} is computed at execution, must be constant")
        return np.asarray(value.data)

    def finish(self) -> None:
        """Finish the operation; called after the entry has returned."""


T = TypeVar("T", bound=LoweringTask)
G = TypeVar("G")


class KeptGraph(Generic[G]):
    """An engine's graph of a whole model, created for the verdicts; the first caller gets it."""

    def __init__(self, graph: G) -> None:
        self._graphs = [graph]  # a list, because `pop` is atomic

    def take(self) -> G | None:
        """Return the graph, once only, because it is written to."""
        return self._graphs.pop() if self._graphs else None


def kept_graph(hints: Hints, kind: type[G]) -> G | None:
    """Return the graph of the whole model that `LoweringTable.consider` made.

    Args:
        hints: The hints that `prepare` received.
        kind: The class of the graph.

    Returns:
        None if the graph must be created again.
    """
    found = hints.worked_out
    if found is None or not found.whole:
        return None
    kept = found.given
    graph = kept.take() if isinstance(kept, KeptGraph) else None
    return graph if isinstance(graph, kind) else None


class Entry(Record, Generic[T], frozen=True):
    """The lowering of an operation.

    types: the supported operation types `T`, None for all. forms: the kernel variants of each type with several, the
    fastest first, the reference last. exact: whether its 8-bit results are bit-identical with the reference under exact
    numerics.
    """

    lower: Callable[[T], None]
    types: frozenset[int] | None
    forms: Mapping[int, tuple[str, ...]]
    exact: bool = False


class LoweringTable(Generic[T]):
    """Entries by operation.

    Attributes:
        engine: Its name in reasons.
        types: The types that entries support by default.
        elsewhere: Reasons for operations without an entry.
    """

    def __init__(
        self, engine: str, types: frozenset[int] | None = None, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.engine, self._types, self._elsewhere = engine, types, dict(elsewhere or {})
        self.entries: dict[str, Entry[T]] = {}
        self.gated: Callable[[T, GatedSequence], None] | None = None  # writes a whole GRU to its `last` and `states`

    def entry(
        self,
        *names: str,
        types: frozenset[int] | None = None,
        forms: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
        exact: bool = False,
    ) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
        """Make a function the entry of the named operations.

        Args:
            names: The operations.
            types: The supported operation types `T`; by default those of the table.
            forms: By type: its kernel variants, the fastest first, the reference last.
            exact: Whether 8-bit results are bit-identical with the reference under exact numerics.

        Returns:
            A decorator.
        """

        def add(function: Callable[[T], None]) -> Callable[[T], None]:
            for name in names:
                self.entries[name] = Entry(function, self._types if types is None else types, forms, exact)
            return function

        return add

    def verdicts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> list[Verdict]:
        """Return a verdict for each operation of the main subgraph.

        Args:
            model: The model.
            task: Creates the argument of an entry.
            forms: The verified kernel variants.
        """
        return list(self._attempts(model, task, forms))

    def consider(
        self, model: Model, graph: G, task: Callable[[G, Bound, Operation], T], forms: Forms = UNPROVED
    ) -> Considered:
        """Return the verdicts, and the graph for `kept_graph` if it contains all operations.

        Args:
            model: The model.
            graph: The graph that entries write to.
            task: Creates the argument of an entry.
            forms: The verified kernel variants.
        """
        verdicts = self.verdicts(model, partial(task, graph), forms)
        return Considered(verdicts, worked_out=KeptGraph(graph) if all(v.ok for v in verdicts) else None)

    def lower(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> None:
        """Lower every operation.

        Args:
            model: The model.
            task: Creates the argument of an entry.
            forms: The verified kernel variants.

        Raises:
            Refused: An operation is not supported.
            Unmappable: A constant cannot be read.
        """
        attempts = self._attempts(model, task, forms)
        for number, (verdict, operation) in enumerate(zip(attempts, model.main.operations, strict=True)):
            if not verdict.ok:
                kind = Unmappable if verdict.reason == hidden_constant(model, operation) else Refused
                raise kind(f"{self.engine}: {operation_name(operation.type)} #{number}: {verdict.reason}")

    def _attempts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms) -> Iterator[Verdict]:
        """Lower every operation, and yield its verdict."""
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
            return Verdict(False, f"{self.engine}'s {a.op.name} does not support {type_name(a.T)}")
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
    """Return the quantised tensors that an operation reads and writes."""
    given = (each for _, value in a.inputs for each in (value if isinstance(value, tuple) else (value,)))
    return [value for value in (*given, *a.outs) if value is not None and value.quantised]
