"""Finds the order of dimensions in which each operation works best, for a graph in one layout.

A *datum* is a tensor regardless of its order of dimensions. A TRANSPOSE creates another *view* of its datum and no new
datum, so pairs of them cancel. A datum is transposed once for each order in which it is read, other than its own.

Order-agnostic operations that share data form an *island*. All islands begin in the model's order. Then each takes
another order, as long as that saves transposing and adds no TRANSPOSE.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from nnhal.base.codes import Lifetime
from nnhal.base.operands import UnknownValue, Value
from nnhal.model.graph import CONSTANTS, Model, Operation, Subgraph
from nnhal.model.validate import SubgraphBinding
from nnhal.ops import OPS
from nnhal.ops.order import composed, each_element, in_other_layout, inverse, keeps_elements
from nnhal.ops.reshape import permutation_of
from nnhal.ops.schema import Bound, OperationOrders, Permutation, T

Layout = Literal["nhwc", "nchw"]
TRANSPOSE = "TRANSPOSE"
LAUNCH = 1 << 16  # bytes whose transposing costs as much as one more operation
CANDIDATES = 4  # orders tried for an island
ROUNDS = 8  # over all islands


class OrderedOperation(NamedTuple):
    """An operation in some order.

    reads: the order of each input; None for the original. gives: the orders of the outputs. An order may be longer than
    the dimensions of a constant, which then gets leading dimensions of 1.
    """

    reads: tuple[Permutation | None, ...]
    gives: tuple[Permutation | None, ...]
    arguments: Mapping[str, Any]


class Transposing(NamedTuple):
    """The cost of transposing: the number of TRANSPOSEs, and their size in bytes."""

    transposes: float = 0
    weight: float = 0


NEVER = Transposing(math.inf, math.inf)


class Ordering:
    """The orders of one graph.

    datum, view: by operand, its datum and the order in which the operand has it; () if the rank is unknown. transposed:
    by operand that is only a view, its TRANSPOSE. derived: by operand, the operation that computes it element by
    element from one constant; it counts as a constant. turning: operations with a layout that get the other one. left:
    those that should get it and cannot, and why.
    """

    def __init__(self, model: Model, graph: Subgraph, binding: SubgraphBinding, layout: Layout) -> None:
        self.graph, self.bounds, self.values = graph, binding.operations, binding.values
        self.datum = list(range(len(graph.operands)))
        self.view: list[Permutation] = [_as_is(value) for value in self.values]
        self.transposed: dict[int, int] = {}
        self.derived: dict[int, int] = {}
        self.turning: dict[int, OperationOrders] = {}
        self.left: dict[int, str] = {}
        self.laid = False  # whether an operation has a layout
        self._known = [
            operand.lifetime in CONSTANTS and value is not None and value.data is not None  # None in opaque memory
            for operand, value in zip(graph.operands, self.values, strict=True)
        ]
        self._free: dict[int, OrderedOperation] = {}  # order-agnostic operations, in another order
        self._shaping: set[int] = set()  # operations that give elements any shape
        self._order: dict[int, Permutation] = {}  # the order of those operations, if it is not the original
        # The order in which operations read an input of which only the elements count
        self._flat: dict[int, Permutation] = {}
        self._made: dict[tuple[int, Permutation], OrderedOperation] = {}
        for n, a in enumerate(self.bounds):
            if a is not None:
                self._sort(n, a, layout)
        self._writer: dict[int, tuple[int, int]] = {}
        self._readers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by datum: operations and places
        self._outputs: dict[int, list[int]] = defaultdict(list)  # by datum: the operands that are outputs of the graph
        for n, operation in self.remaining():
            self._writer.update((i, (n, place)) for place, i in enumerate(operation.outputs))
            for place, i in enumerate(operation.inputs):
                self._readers[self.datum[i]].append((n, place))
        for i in graph.outputs:
            self._outputs[self.datum[i]].append(i)
        self._settle()

    def remaining(self) -> Iterator[tuple[int, Operation]]:
        """Yield the operations that create neither views nor constants, by number."""
        gone = {*self.transposed.values(), *self.derived.values()}
        return ((n, operation) for n, operation in enumerate(self.graph.operations) if n not in gone)

    def constant(self, operand: int) -> bool:
        """Whether an operand is a constant available in any order, is computed from one, or is a view of one."""
        return self._known[self.datum[operand]]

    def writer(self, datum: int) -> int | None:
        """Return the operation that creates a datum; None for inputs and constants."""
        found = self._writer.get(datum)
        return None if found is None else found[0]

    def said(self, n: int) -> OrderedOperation:
        """Return the operation in the order in which it works."""
        return self._in(n, self._order.get(n, ()))

    def read(self, n: int, place: int) -> Permutation:
        """Return the order of its datum in which an operation reads an input; for a constant see `OrderedOperation`."""
        if self._is_flat(n, place):
            return self._flat[n]
        operand, order = self.graph.operations[n].inputs[place], self.said(n).reads[place]
        return self.view[operand] if order is None else composed(self.view[operand], order)

    def made(self, datum: int) -> Permutation:
        """Return the order in which a datum is created."""
        if datum in self._writer:
            n, place = self._writer[datum]
            order = self.said(n).gives[place]
            return self.view[datum] if order is None else order
        return self.view[datum]

    def _is_flat(self, n: int, place: int) -> bool:
        """Whether only the sequence of an input's elements counts."""
        a = self.bounds[n]
        return a is not None and a.op.flat and place == 0

    def _same_elements(self, operand: int, order: Permutation) -> bool:
        """Whether a datum in that order has its elements at the operand's places."""
        shape = getattr(self.values[operand], "shape", None)
        return shape is not None and keeps_elements(shape, composed(inverse(self.view[operand]), order))

    # ---------------------------------------------------------------------------------------------------- what there is

    def _sort(self, n: int, a: Bound, layout: Layout) -> None:
        operation = self.graph.operations[n]
        if any(argument.layout for argument in a.form):
            self.laid = True
            try:
                if a.nchw != (layout == "nchw"):
                    self.turning[n] = _turned(a)
            except UnknownValue as error:
                self.left[n] = f"{str(error) or 'a shape'} is only known at execution"
            except _Stays as why:
                self.left[n] = str(why)
        elif a.op.name == TRANSPOSE:
            try:
                order = tuple(permutation_of(a))
            except UnknownValue:
                return
            (x, *_), (y,) = operation.inputs, operation.outputs
            self.datum[y], self.view[y] = self.datum[x], composed(self.view[x], order)
            self.transposed[y] = n
        elif a.op.reorder is not None:
            try:
                rank = a.out.rank if a.op.flat else max(value.rank for value in _own(a))
                if a.op.flat:
                    a.op.reorder(a, tuple(range(rank)))
                    self._shaping.add(n)
                elif self._derives(a, operation):
                    (y,) = operation.outputs
                    self.derived[y], self._known[y] = n, True
                elif rank > 1:
                    self._free[n] = self._in(n, tuple(range(rank)))  # raises Unknown in any order or in none
            except UnknownValue:
                return

    def _derives(self, a: Bound, operation: Operation) -> bool:
        """Whether an operation computes a constant, read only in this graph, from a constant."""
        (x, *_), (y, *others) = operation.inputs, operation.outputs
        within = self.graph.operands[y].lifetime == Lifetime.TEMPORARY_VARIABLE
        return a.op.reorder is each_element and len(a.inputs) == 1 and self.constant(x) and within and not others

    def _in(self, n: int, order: Permutation) -> OrderedOperation:
        """Return an operation in an order; () for its own. Unknown if that is impossible."""
        if (n, order) not in self._made:
            self._made[n, order] = self._saying(n, order)
        return self._made[n, order]

    def _saying(self, n: int, order: Permutation) -> OrderedOperation:
        operation, a = self.graph.operations[n], self.bounds[n]
        moved = self.turning.get(n)
        if moved is None and order and a is not None and a.op.reorder is not None:
            moved = a.op.reorder(a, order)
        if moved is None or a is None:
            return OrderedOperation((None,) * len(operation.inputs), (None,) * len(operation.outputs), {})
        reads: list[Permutation | None] = [None] * len(operation.inputs)
        for argument, start, end in a.form.slots(len(operation.inputs)):
            for place in range(start, end):
                operand = operation.inputs[place]
                wanted = moved.inputs.get(argument.name)
                if wanted is not None and len(self.view[operand]) < len(wanted) and not self.constant(operand):
                    raise UnknownValue(f"{argument.name} with as many dimensions as the others")
                reads[place] = wanted
        return OrderedOperation(tuple(reads), tuple(order or None for order in moved.outputs), moved.arguments)

    # ------------------------------------------------------------------------------------------------------------ costs

    def _cost(self, datum: int) -> Transposing:
        """Return the cost of a datum with the current orders."""
        wanted = self._wanted(datum)
        count = len(wanted - {self.made(datum)})
        if not count:
            return Transposing()
        value = self.values[datum]
        if value is None or value.type not in OPS[TRANSPOSE].types:
            return NEVER
        size = math.prod(d or 1 for d in value.shape or ()) * value.dtype.itemsize
        return Transposing(count, count * (LAUNCH + size))

    def _wanted(self, datum: int) -> set[Permutation]:
        """Return the orders in which a datum is needed."""
        wanted, flat = {self.view[i] for i in self._outputs[datum]}, []
        for n, place in self._readers[datum]:
            if self._is_flat(n, place):
                flat.append(n)
            else:
                wanted.add(self.read(n, place))
        writer = self.writer(datum)
        if writer is not None and writer in self._shaping:
            self._order.pop(writer, None)
            if self.view[datum] not in wanted:
                fitting = [order for order in sorted(wanted) if self._same_elements(datum, order)]
                if fitting:
                    self._order[writer] = fitting[0]
        made = self.made(datum)
        for n in flat:
            operand = self.graph.operations[n].inputs[0]
            own = self.view[operand]
            there = (order for order in (made, own, *sorted(wanted)) if order == made or order in wanted)
            self._flat[n] = next((order for order in there if self._same_elements(operand, order)), own)
            wanted.add(self._flat[n])
        return wanted

    # ---------------------------------------------------------------------------------------------------------- islands

    def _settle(self) -> None:
        """Give every island the order that suits its neighbours."""
        islands = list(self._islands()) if self.laid else []
        for _ in range(ROUNDS):
            improved = [self._improved(island) for island in islands]
            if not any(improved):
                break
        for datum in [*self._readers]:
            if self.laid and not self._known[datum]:
                self._wanted(datum)

    def _islands(self) -> "Iterator[OrderAgnosticGroup]":
        """Yield the islands: order-agnostic operations that share data."""
        # By datum: operations, and their views of it
        beside: dict[int, list[tuple[int, Permutation]]] = defaultdict(list)
        around: dict[int, list[tuple[int, Permutation]]] = {}  # the same by operation
        for n, said in self._free.items():
            operation, rank = self.graph.operations[n], max(len(order or ()) for order in said.reads)
            read = [i for i, order in zip(operation.inputs, said.reads, strict=True) if order and not self.constant(i)]
            given = [i for i, order in zip(operation.outputs, said.gives, strict=True) if len(order or ()) == rank]
            around[n] = [(self.datum[i], self.view[i]) for i in (*read, *given)]
            for datum, view in around[n]:
                beside[datum].append((n, view))
        seen: set[int] = set()
        for first, shared in around.items():
            if first in seen or not shared:
                continue
            island = OrderAgnosticGroup({first: tuple(range(len(shared[0][1])))}, {})
            seen.add(first)
            pending = [first]
            while pending:
                n = pending.pop()
                for datum, view in around[n]:
                    order = island.data.setdefault(datum, composed(view, island.members[n]))
                    for other, way in beside[datum]:
                        if other not in seen:
                            seen.add(other)
                            island.members[other] = composed(inverse(way), order)
                            pending.append(other)
            yield island

    def _improved(self, island: "OrderAgnosticGroup") -> bool:
        """Put an island into the best order found; return whether it is another one."""
        data = dict.fromkeys((*island.data, *(i for n in island.members for i in self.graph.operations[n].outputs)))
        before = {n: self._order[n] for n in island.members if n in self._order}
        now, best = self._sum(data), before
        for order, _ in Counter(self._around(island)).most_common(CANDIDATES):
            tried = {n: composed(own, order) for n, own in island.members.items()}
            self._take(island, tried)
            cost = self._sum(data)
            if cost.transposes <= now.transposes and cost.weight < now.weight:
                now, best = cost, tried
        self._take(island, best)
        return best is not before

    def _take(self, island: "OrderAgnosticGroup", orders: Mapping[int, Permutation]) -> None:
        """Assign these orders to the members; the original order to members without one."""
        for n in island.members:
            order = orders.get(n, ())
            self._order.pop(n, None)
            if list(order) != sorted(order):
                self._order[n] = order

    def _sum(self, data: Iterable[int]) -> Transposing:
        costs = [self._cost(datum) for datum in data]
        return Transposing(sum(cost.transposes for cost in costs), sum(cost.weight for cost in costs))

    def _around(self, island: "OrderAgnosticGroup") -> Iterator[Permutation]:
        """Yield the orders in which the neighbours of an island create and read its data."""
        for datum, own in island.data.items():
            n = self.writer(datum)
            orders = [] if n in island.members else [self.made(datum)]
            orders += [self.view[i] for i in self._outputs[datum]]
            orders += [
                self.read(n, place)
                for n, place in self._readers[datum]
                if n not in island.members and not self._is_flat(n, place)
            ]
            yield from (composed(inverse(own), order) for order in orders if len(order) == len(own))


class OrderAgnosticGroup(NamedTuple):
    """Order-agnostic operations. members: their orders if the island has the original one; data: their data."""

    members: dict[int, Permutation]
    data: dict[int, Permutation]


class _Stays(Exception):
    """An operation with a layout cannot get the other one; the message is the reason."""


def _turned(a: Bound) -> OperationOrders:
    """Return an operation in the other layout."""
    marked = [(x.name, getattr(a, x.name)) for x in a.form if x.layout]
    marked += [(x.name, value) for x, value in zip(a.op.outputs, a.outs, strict=False) if x.layout]
    for what, value in marked:
        if value.shape is None:
            raise _Stays(f"the rank of {what} is only known at execution")
    return in_other_layout(a)


def _own(a: Bound) -> Iterator[Value]:
    """Yield the tensors of the operation's main type."""
    for argument, value in a.inputs:
        if argument.spec is T:
            yield from value if isinstance(value, tuple) else (value,) if value is not None else ()


def _as_is(value: Value | None) -> Permutation:
    """Return the original order of a tensor's dimensions; () if the rank is unknown."""
    return () if value is None or value.shape is None else tuple(range(len(value.shape)))
