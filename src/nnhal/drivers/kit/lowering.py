"""A table of entries that lower operations. Verdicts and preparation run the same entries, so they cannot disagree.

An entry is a function of a task, which has the arguments of one operation and the driver's additions. It writes to the
engine's graph, or refuses with a reason. A value that it needs and that is known only at execution is also a reason.

An entry may know several kernel variants of an operation, the fastest first and the exact one last; `variants.Forms`
chooses. The table also writes functions that the engine has whole, such as a GRU (`composites`); then nothing reads the
parts that the model spells out.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from nnhal.base.codes import operation_name, type_name
from nnhal.base.errors import Unmappable
from nnhal.base.operands import Array, UnknownValue, Value
from nnhal.base.records import Record
from nnhal.drivers.kit.variants import UNPROVED, Forms, Refused
from nnhal.hal.device import YES, Considered, Hints, Verdict, hidden_constant
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound, Weights, may_be_omitted


class LoweringTask:
    """One operation to lower: its arguments, the operands that hold them, and the chosen kernel variant.

    Attributes:
        a: The decoded arguments.
        operation: The operation.
        form: The name of the kernel variant; "" if the entry has only one.
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

    @property
    def weights(self) -> Weights:
        """The weights of a layer."""
        found = self.a.op.weights
        assert found is not None, f"{self.name} has no weights"
        return found

    def require(self, condition: Any, reason: str) -> None:
        """Refuse the operation unless the condition holds.

        Args:
            condition: Any value; its truth counts.
            reason: Why the engine cannot run the operation otherwise.

        Raises:
            Refused: The condition is false.
        """
        if not condition:
            raise Refused(reason)

    def require_alike(self) -> None:
        """Refuse quantised tensors of different scales if numerics are exact: a change of scale rounds.

        Raises:
            Refused: The scales or zero points differ.
        """
        kinds = {(value.scale, value.zero_point) for value in quantised_values(self.a)}
        self.require(not self.exact or len(kinds) < 2, "scales of the tensors differ, must be equal for exact numerics")

    def places(self, name: str) -> tuple[int, ...]:
        """Return the operands of an argument.

        Args:
            name: The argument.

        Returns:
            The indices of the operands: several for a variadic argument, none if it is omitted or is an optional model
            input.
        """
        inputs, value = self.operation.inputs, self.a.__dict__.get(name, self)
        for argument, start, end in self.a.form.slots(len(inputs)) if value is not None else ():
            if argument.name == name:
                omitted = argument.optional and isinstance(value, Value) and may_be_omitted(value)
                return () if omitted else inputs[start:end]
        return ()

    def place(self, name: str) -> int:
        """Return the operand of an argument that must be there.

        Args:
            name: The argument.

        Returns:
            The index of the operand.

        Raises:
            Refused: The argument is omitted.
        """
        places = self.places(name)
        self.require(places, f"{name} is omitted, must be given")
        return places[0]

    def array(self, name: str) -> Array:
        """Return the value of a tensor argument that must be constant.

        Args:
            name: The argument.

        Returns:
            The elements as they are stored.

        Raises:
            Refused: The argument is omitted, or is not constant.
        """
        self.place(name)
        value = getattr(self.a, name)
        self.require(value.data is not None, f"{name} is computed at execution, must be constant")
        return np.asarray(value.data)

    def finish(self) -> None:
        """Complete the operation; called when the entry has returned."""


T = TypeVar("T", bound=LoweringTask)
G = TypeVar("G")


class Composite(NamedTuple, Generic[T]):
    """A function that an engine has whole, of operations that `nnhal.model.composites` finds.

    find: returns what was found in a model's main subgraph, by the operation after which it is complete. write: writes
    it to the engine's graph, as the value of its results. verified: the operation and the type whose fast variant the
    function's kernel is; None if it has no variants.
    """

    find: Callable[[Model], Mapping[int, Any]]
    write: Callable[[T, Any], None]
    verified: tuple[str, int] | None = None


class WholeModelGraph(Generic[G]):
    """An engine's graph with all operations of a model, made for the verdicts; only the first caller receives it."""

    def __init__(self, graph: G) -> None:
        self._graphs = [graph]  # a list, because pop is atomic

    def take(self) -> G | None:
        """Return the graph once, then None: the caller writes to it."""
        return self._graphs.pop() if self._graphs else None


def kept_graph(hints: Hints, kind: type[G]) -> G | None:
    """Return the graph of the whole model that `LoweringTable.consider` made.

    Args:
        hints: The hints that `prepare` received.
        kind: The graph's class.

    Returns:
        The graph; None if the driver must lower the model again.
    """
    found = hints.worked_out
    if found is None or not found.whole:
        return None
    kept = found.given
    graph = kept.take() if isinstance(kept, WholeModelGraph) else None
    return graph if isinstance(graph, kind) else None


class Entry(Record, Generic[T], frozen=True):
    """How to lower an operation.

    types: the supported operation types `T`, None for all. forms: the kernel variants of each type that has several,
    the fastest first, the exact one last. exact: whether its 8-bit results are bit-identical to the reference under
    exact numerics.
    """

    lower: Callable[[T], None]
    types: frozenset[int] | None
    forms: Mapping[int, tuple[str, ...]]
    exact: bool = False


class LoweringTable(Generic[T]):
    """The entries of a driver, by operation.

    Args:
        engine: The engine's name, for reasons.
        types: The operation types of entries that do not declare their own; None for all.
        elsewhere: Reasons for operations without an entry, by name.
    """

    def __init__(
        self, engine: str, types: frozenset[int] | None = None, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.engine, self._types, self._elsewhere = engine, types, dict(elsewhere or {})
        self.entries: dict[str, Entry[T]] = {}
        self.composites: dict[str, Composite[T]] = {}

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
            forms: The kernel variants of each type that has several, the fastest first, the exact one last.
            exact: Whether 8-bit results are bit-identical to the reference under exact numerics.

        Returns:
            A decorator for a function of a task, which lowers one operation or raises Refused.
        """

        def add(function: Callable[[T], None]) -> Callable[[T], None]:
            for name in names:
                self.entries[name] = Entry(function, self._types if types is None else types, forms, exact)
            return function

        return add

    def composite(
        self, name: str, find: Callable[[Model], Mapping[int, Any]], verified: tuple[str, int] | None = None
    ) -> Callable[[Callable[[T, Any], None]], Callable[[T, Any], None]]:
        """Make a function write what the engine has whole.

        Args:
            name: The name of the composite; one of the same name is replaced.
            find: As of `Composite`.
            verified: As of `Composite`.

        Returns:
            A decorator for a function of a task and what `find` found. If it raises Refused, the parts stay.
        """

        def add(function: Callable[[T, Any], None]) -> Callable[[T, Any], None]:
            self.composites[name] = Composite(find, function, verified)
            return function

        return add

    def verdicts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> list[Verdict]:
        """Return one verdict for each operation of the main subgraph.

        Args:
            model: The model.
            task: Makes the argument of an entry.
            forms: The verified kernel variants.
        """
        return list(self._attempts(model, task, forms))

    def consider(
        self, model: Model, graph: G, task: Callable[[G, Bound, Operation], T], forms: Forms = UNPROVED
    ) -> Considered:
        """Return the verdicts, with the graph for `kept_graph` if it holds all operations.

        Args:
            model: The model.
            graph: An empty graph of the engine.
            task: Makes the argument of an entry from that graph.
            forms: The verified kernel variants.
        """
        verdicts = self.verdicts(model, partial(task, graph), forms)
        return Considered(verdicts, worked_out=WholeModelGraph(graph) if all(v.ok for v in verdicts) else None)

    def lower(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms = UNPROVED) -> None:
        """Lower every operation.

        Args:
            model: The model.
            task: Makes the argument of an entry.
            forms: The verified kernel variants.

        Raises:
            Refused: An operation cannot be lowered; the first one is named.
            Unmappable: A constant of the first such operation is in memory that cannot be mapped.
        """
        attempts = self._attempts(model, task, forms)
        for number, (verdict, operation) in enumerate(zip(attempts, model.main.operations, strict=True)):
            if not verdict.ok:
                kind = Unmappable if verdict.reason == hidden_constant(model, operation) else Refused
                raise kind(f"{self.engine}: {operation_name(operation.type)} #{number}: {verdict.reason}")

    def _attempts(self, model: Model, task: Callable[[Bound, Operation], T], forms: Forms) -> Iterator[Verdict]:
        bounds = validate(model).subgraphs[0].operations
        wholes = [(each.write, each.find(model)) for each in self.composites.values() if self._chosen(each, forms)]
        for n, (a, operation) in enumerate(zip(bounds, model.main.operations, strict=True)):
            hidden = hidden_constant(model, operation)
            yield Verdict(False, hidden) if hidden else self._attempt(a, operation, task, forms)
            for write, found in wholes:
                if a is not None and n in found:
                    with suppress(Refused):
                        write(task(a, operation), found[n])

    def _chosen(self, composite: Composite[T], forms: Forms) -> bool:
        """Whether a composite may be written: for fast numerics, and by a kernel that was verified."""
        if forms.exact or composite.verified is None:
            return not forms.exact
        name, kind = composite.verified
        known = self.entries[name].forms.get(kind, ())
        try:
            return bool(known) and forms.choose(name, kind, known)[0] == known[0]
        except Refused:
            return False

    def _attempt(
        self, a: Bound | None, operation: Operation, task: Callable[[Bound, Operation], T], forms: Forms
    ) -> Verdict:
        chosen = None if a is None else self.entries.get(a.op.name)
        if a is None or chosen is None:
            name = operation_name(operation.type)
            return Verdict(False, self._elsewhere.get(name, f"this driver does not lower {name}"))
        if a.T is not None and chosen.types is not None and a.T not in chosen.types:
            return Verdict(False, f"{self.engine}'s {a.op.name} does not support {type_name(a.T)}")
        if forms.exact and not chosen.exact and quantised_values(a):
            why = f"{self.engine}'s 8-bit {a.op.name} may be 1 LSB off, must equal the reference for exact numerics"
            return Verdict(False, why)
        try:
            made = task(a, operation)
            made.exact = forms.exact
            known = () if a.T is None else chosen.forms.get(a.T, ())
            made.form, why_not_faster = forms.choose(a.op.name, a.T, known)
            chosen.lower(made)
            made.finish()
        except Refused as error:
            return Verdict(False, str(error))
        except UnknownValue as error:
            why = f"needs {str(error) or 'a shape'} when the model is prepared, but it is known only at execution"
            return Verdict(False, why)
        return Verdict(True, why_not_faster) if why_not_faster else YES


def quantised_values(a: Bound) -> list[Value]:
    """Return the quantised tensors among an operation's inputs and outputs."""
    given = (each for _, value in a.inputs for each in (value if isinstance(value, tuple) else (value,)))
    return [value for value in (*given, *a.outs) if value is not None and value.quantised]
