"""Models for devices that prefer one layout: all operations with a layout get it, and tensors are transposed.

NNAPI's image operations work on NHWC, or on NCHW on request. `with_layout` gives all of them one layout. Between them,
tensors have the order that suits most of their readers and writers (`orders`). TRANSPOSEs are inserted where they are
read in another order. Inputs and outputs of the model keep their order.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, get_args

import numpy as np

from nnhal.base.codes import MAX_COPIED_CONSTANT, Lifetime, OperandType, OperationType
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array, ChannelQuant, dtype_of, is_tensor
from nnhal.base.records import Record, field, replace
from nnhal.base.sealed import Store
from nnhal.model.graph import Location, Model, Operand, Operation, Subgraph
from nnhal.model.orders import Layout, Ordering
from nnhal.model.validate import LAID_OUT, SubgraphBinding, validate
from nnhal.ops.order import composed, inverse
from nnhal.ops.schema import Bound, Permutation, types_for

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class ModelInLayout(Record, frozen=True):
    """A model in one layout, and how it relates to the original.

    serves: for each operation of `model.main`, the original's operation that it is, or for which it was inserted.
    inserted: the inserted TRANSPOSEs, by number in `model.main`. turned: operands of the original's main subgraph that
    are computed in another order. left: operations of the original's main subgraph that keep the other layout, and why.
    transposes: how many were inserted, including those in referenced subgraphs.
    """

    model: Model
    serves: tuple[int, ...]
    inserted: frozenset[int] = frozenset()
    turned: frozenset[int] = frozenset()
    left: Mapping[int, str] = field(default_factory=dict)
    transposes: int = 0

    def served(self) -> dict[int, set[int]]:
        """Return the original's operations that need each inserted TRANSPOSE: its readers, or the one before it."""
        operations = self.model.main.operations
        reading: dict[int, set[int]] = {operations[place].outputs[0]: set() for place in self.inserted}
        for operation, n in zip(operations, self.serves, strict=True):
            for i in operation.inputs:
                if i in reading:
                    reading[i].add(n)
        readers = {place: reading[operations[place].outputs[0]] for place in self.inserted}
        return {place: ns if self.serves[place] in ns else {self.serves[place]} for place, ns in readers.items()}


def with_layout(model: Model, layout: Layout | None) -> ModelInLayout:
    """Return the model with this layout. Inputs, outputs and results are unchanged.

    Returns the model itself if nothing changes, or if the layout is None. An operation with an unknown rank or argument
    stays as it is. The result is stored with the model, for each layout.
    """
    if layout is None:
        return ModelInLayout(model, tuple(range(len(model.main.operations))))
    kept: dict[Layout, ModelInLayout | dict[int, str]] = model._memo.setdefault(LAID_OUT, {})
    found = kept.get(layout)
    if found is None:
        made = _laid_out(model, layout)
        # A model that refers to itself would never be released
        kept[layout] = dict(made.left) if made.model is model else made
        return made
    if isinstance(found, ModelInLayout):
        return found
    return ModelInLayout(model, tuple(range(len(model.main.operations))), left=found)


def _laid_out(model: Model, layout: Layout) -> ModelInLayout:
    constants = _Constants(model)
    bindings = validate(model).subgraphs
    graphs = [
        _rewritten(model, graph, binding, layout, constants)
        for graph, binding in zip(model.subgraphs, bindings, strict=True)
    ]
    main = graphs[0]
    if all(new.graph is old for new, old in zip(graphs, model.subgraphs, strict=True)):
        return ModelInLayout(model, main.serves, left=main.left)
    values, pools = constants.finished()
    edge = {main.places[i]: form for i, form in model.edge.items()} if main.places else model.edge
    referenced = tuple(each.graph for each in graphs[1:])
    made = replace(model, main=main.graph, referenced=referenced, values=values, pools=pools, edge=edge)
    made._memo["bounds"] = [each.bounds for each in graphs]
    inserted = sum(len(each.inserted) for each in graphs)
    return ModelInLayout(made, main.serves, main.inserted, main.turned, main.left, inserted)


class _Constants:
    """New constants in addition to those of a model."""

    def __init__(self, model: Model) -> None:
        self._pools, self._values = model.pools, bytearray(model.values)
        self._store: Store | None = None

    def place(self, array: Array) -> tuple[Lifetime, Location]:
        """Store a new constant."""
        if array.nbytes <= MAX_COPIED_CONSTANT:
            offset = aligned(len(self._values), 8)
            self._values.extend(bytes(offset - len(self._values)) + array.tobytes())
            return Lifetime.CONSTANT_COPY, Location(0, offset, array.nbytes)
        if self._store is None:
            self._store = Store("nnhal-constants")
        return Lifetime.CONSTANT_REFERENCE, Location(len(self._pools), self._store.add(array), array.nbytes)

    def finished(self) -> tuple[bytes, tuple[Memory, ...]]:
        """Return the bytes of copied constants, and the pools of the others."""
        return bytes(self._values), (*self._pools, *([] if self._store is None else [self._store.seal()]))


class _Rewritten(NamedTuple):
    """A subgraph in one layout. places: the new numbers of its operands. bounds: its bound operations."""

    graph: Subgraph
    serves: tuple[int, ...]
    left: Mapping[int, str]
    bounds: list[Bound | None]
    inserted: frozenset[int] = frozenset()
    turned: frozenset[int] = frozenset()
    places: Mapping[int, int] = {}


def _rewritten(
    model: Model, graph: Subgraph, binding: SubgraphBinding, layout: Layout, constants: _Constants
) -> _Rewritten:
    orders = Ordering(model, graph, binding, layout)
    if orders.laid:
        writing = _Writing(model, orders, constants)
        writing.write()
        if orders.turning or writing.transposes < len(orders.transposed):
            return writing.finished()
    bounds = [None if a is None else copy(a) for a in binding.operations]
    return _Rewritten(graph, tuple(range(len(graph.operations))), orders.left, bounds)


class _Writing:
    """Writes the operations of a graph in their new orders.

    Operands keep their numbers until the end, when unused ones are removed.
    """

    def __init__(self, model: Model, orders: Ordering, constants: _Constants) -> None:
        self.model, self.orders, self.constants = model, orders, constants
        self.graph = orders.graph
        self.operands = list(self.graph.operands)
        self.operations: list[Operation] = []
        self.bounds: list[Bound | None] = []
        self.serves: list[int] = []
        self.inserted: list[int] = []
        self.transposes = 0
        self.made: dict[tuple[Any, ...], int] = {}  # new constants
        self.outputs = set(self.graph.outputs)
        self.views: dict[int, list[int]] = {}  # by datum: its operands, outputs first
        for i in sorted(range(len(self.operands)), key=lambda i: i not in self.outputs):
            self.views.setdefault(orders.datum[i], []).append(i)
        written = {i for operation in self.graph.operations for i in operation.outputs}
        self.forms: dict[int, dict[Permutation, int]] = {  # by datum: the operand that holds it, by order
            i: {} if i in written else {orders.view[i]: i} for i in range(len(self.operands))
        }

    def write(self) -> None:
        """Write every operation, after the TRANSPOSEs of its inputs."""
        remaining = dict(self.orders.remaining())
        for n, operation in enumerate(self.graph.operations):
            if n in remaining:
                self._write(n, operation)
            for i in operation.outputs:
                if i in self.outputs:
                    self._output(i)

    def _write(self, n: int, operation: Operation) -> None:
        said, a = self.orders.said(n), self.orders.bounds[n]
        inputs = [self._read(n, place) for place in range(len(operation.inputs))]
        if a is not None and said.arguments:
            self._set_arguments(a, inputs, said.arguments)
        outputs = tuple([self._given(i, order) for i, order in zip(operation.outputs, said.gives, strict=True)])
        moved = said.arguments or any(said.reads) or any(said.gives)
        self._add(replace(operation, inputs=tuple(inputs), outputs=outputs), n, None if moved else a)

    def _add(self, operation: Operation, serves: int, a: Bound | None) -> None:
        self.operations.append(operation)
        self.serves.append(serves)
        self.bounds.append(None if a is None else copy(a))

    # --------------------------------------------------------------------------------------------------------- operands

    def _read(self, n: int, place: int) -> int:
        """Return the operand that holds an operation's input in the order in which it is read."""
        orders, operand = self.orders, self.graph.operations[n].inputs[place]
        if orders.constant(operand):
            return self._constant(operand, orders.said(n).reads[place] or ())
        datum, order = orders.datum[operand], orders.read(n, place)
        forms = self.forms[datum]
        if order in forms:
            return forms[order]
        writer = orders.writer(datum)
        served = n if writer is None or order != orders.view[operand] else writer
        return self._transpose(datum, order, self._target(datum, order), served)

    def _given(self, operand: int, order: Permutation | None) -> int:
        """Return the operand for an operation's output in some order."""
        order = order or self.orders.view[operand]
        found = self.forms[operand][order] = self._target(operand, order)
        return found

    def _output(self, operand: int) -> None:
        """Write an output of the graph."""
        datum, order = self.orders.datum[operand], self.orders.view[operand]
        if datum in self.orders.derived:
            self.forms[datum].setdefault(self.orders.view[datum], self._constant(datum, ()))
        if self.forms[datum].get(order) != operand:
            self._transpose(datum, order, operand, self.orders.writer(datum) or 0)

    def _target(self, datum: int, order: Permutation) -> int:
        """Return an operand for a datum in a new order: one of the graph's, or a new one."""
        for operand in self.views[datum]:
            if self.orders.view[operand] == order:
                return operand
        shape, base = self.orders.values[datum], self.operands[datum]
        dims = tuple([shape.shape[i] or 0 for i in order]) if shape is not None and shape.shape is not None else ()
        made = replace(base, dimensions=dims, lifetime=Lifetime.TEMPORARY_VARIABLE, location=Location())
        return self._new(made)

    def _new(self, operand: Operand) -> int:
        self.operands.append(operand)
        return len(self.operands) - 1

    def _transpose(self, datum: int, order: Permutation, target: int, served: int) -> int:
        """Write a TRANSPOSE to `target`. `served`: the operation that needs it, if the graph has no such TRANSPOSE."""
        orders, forms = self.orders, self.forms[datum]
        there = orders.made(datum)
        source, permutation = forms[there], composed(inverse(there), order)
        forms.setdefault(order, target)
        self.transposes += 1
        own = orders.transposed.get(target)
        a = None if own is None else orders.bounds[own]
        if own is not None and a is not None:
            original = self.graph.operations[own]
            if original.inputs[0] == source and composed(inverse(there), orders.view[target]) == permutation:
                self._add(original, own, a)
                return target
        else:
            self.inserted.append(len(self.operations))
        how = self._value(OperandType.TENSOR_INT32, permutation)
        self._add(Operation(OperationType.TRANSPOSE, (source, how), (target,)), served if own is None else own, None)
        return target

    # -------------------------------------------------------------------------------------------------------- constants

    def _constant(self, operand: int, order: Permutation) -> int:
        """Return a constant, or a view of one, in an order; with leading dimensions of 1 if the order is longer."""
        orders, datum, view = self.orders, self.orders.datum[operand], self.orders.view[operand]
        lead = max(0, len(order) - len(view))
        whole = (*range(lead), *(lead + i for i in view))
        whole = composed(whole, order) if order else whole
        plain = whole == orders.view[datum]
        key = datum, whole
        if key not in self.made:
            n = orders.derived.get(datum)
            if n is not None:
                self.made[key] = self._derived(n, datum, whole, plain)
            else:
                self.made[key] = datum if plain else self._permuted(datum, whole, lead)
        return self.made[key]

    def _derived(self, n: int, datum: int, order: Permutation, plain: bool) -> int:
        """Compute an operation's constant result in an order: the same operation on the constant in that order."""
        operation, a, made = self.graph.operations[n], self.orders.bounds[n], datum
        if not plain:
            value = self.orders.values[datum]
            shape = () if value is None else value.known
            led = (1,) * (len(order) - len(shape)) + shape
            made = self._new(replace(self.operands[datum], dimensions=tuple([led[i] for i in order])))
        tensors = [is_tensor(self.graph.operands[i].type) for i in operation.inputs]  # the others have no order
        inputs = tuple([self._constant(i, order) if t else i for i, t in zip(operation.inputs, tensors, strict=True)])
        self._add(replace(operation, inputs=inputs, outputs=(made,)), n, a if plain else None)
        return made

    def _permuted(self, operand: int, order: Permutation, lead: int) -> int:
        """Return a constant in an order, with leading dimensions of 1."""
        base = self.graph.operands[operand]
        array = self.model.constant(base)
        array = array.reshape((1,) * lead + array.shape).transpose(order)
        channel = base.channel and ChannelQuant(base.channel.scales, order.index(lead + base.channel.axis))
        lifetime, location = self.constants.place(array)
        return self._new(replace(base, dimensions=array.shape, lifetime=lifetime, location=location, channel=channel))

    def _set_arguments(self, a: Bound, inputs: list[int], changed: Mapping[str, Any]) -> None:
        """Insert arguments with other values, and the defaults of omitted ones before them."""
        slots = a.form.slots(len(inputs))
        last = max(k for k, (argument, _, _) in enumerate(slots) if argument.name in changed)
        for argument, start, end in slots[: last + 1]:
            if start < end and argument.name not in changed:
                continue
            value = changed.get(argument.name, argument.default)
            operand = self._value(next(iter(types_for(a.op, argument, a.T))), value)
            if start < end:
                inputs[start] = operand
            else:
                inputs.append(operand)

    def _value(self, type: int, value: Any) -> int:
        """Return a constant of one number or of several."""
        array = np.asarray(value, dtype_of(type))
        dims = array.shape if is_tensor(type) else ()
        key = type, dims, array.tobytes()
        if key not in self.made:
            lifetime, location = self.constants.place(array.reshape(-1))
            self.made[key] = self._new(Operand(type, dims, lifetime=lifetime, location=location))
        return self.made[key]

    # -------------------------------------------------------------------------------------------------------------- end

    def finished(self) -> _Rewritten:
        """Return the graph without unused operands."""
        graph, orders = self.graph, self.orders
        used = {*graph.inputs, *graph.outputs, *(i for o in self.operations for i in (*o.inputs, *o.outputs))}
        places = {old: new for new, old in enumerate(sorted(used))}

        def moved(indices: Iterable[int]) -> tuple[int, ...]:
            return tuple([places[i] for i in indices])

        operations = tuple(replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs)) for o in self.operations)
        operands = tuple(self.operands[i] for i in sorted(used))
        turned = {
            i
            for operation in graph.operations
            for i in operation.outputs
            if orders.datum[i] == i and orders.made(i) != orders.view[i]
        }
        return _Rewritten(
            Subgraph(operands, operations, moved(graph.inputs), moved(graph.outputs)),
            tuple(self.serves),
            orders.left,
            self.bounds,
            frozenset(self.inserted),
            frozenset(turned),
            places,
        )
