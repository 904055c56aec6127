"""The task of an entry that lowers an operation to primitives, and tables of all entries.

A back end has a graph, which holds each operand as a node, and a subclass of `GraphTask`. The subclass decides how
quantised operands are represented.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from nnhal.base.operands import Value
from nnhal.drivers.kit.lowering import Composite, LoweringTable, LoweringTask
from nnhal.drivers.kit.operations.primitives import Node, Primitives
from nnhal.model.graph import Model, Operation
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound

FLOATS = frozenset((F32, F16))
QUANTS = frozenset((Q8, Q8S))
NUMBERS = FLOATS | QUANTS | {I32}


class Product(Protocol):
    """Writes products of a layer's input and weights; and adds a bias, unless that is left to the caller."""

    def __call__(self, x: Node, weights: Node, bias: Node | None = None) -> Node: ...


class OperandGraph(Protocol):
    """The engine's graph, and the node of each operand, by its index in the main subgraph."""

    def value(self, index: int) -> Value:
        """Return the facts about an operand; Refused if it has no value."""

    def held(self, index: int) -> Node:
        """Return an operand as it is held: float32, int32, truth values, or stored values."""

    def hold(self, index: int, node: Node) -> None:
        """Let a node represent an operand."""

    def real(self, index: int) -> Node:
        """Return the real values of an operand; integers and truth values unchanged."""

    def steps(self, index: int) -> Node:
        """Return the distance of a quantised operand from its zero point, in float32."""

    def constant(self, data: Any, dtype: Any = None) -> Node:
        """Write a constant of numbers."""


class GraphTask(LoweringTask):
    """One operation, and the graph that it is written to.

    eight: whether it is written for 8-bit kernels.
    """

    eight: Any = False

    def __init__(self, graph: OperandGraph, engine: Primitives, a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph, self.constant, self.o, self.op = graph, graph.constant, engine, engine.op

    # -------------------------------------------------------------------------------------------------------- arguments

    def real(self, place: int) -> Node:
        """Return the real values of an operand, in this variant."""
        return self.graph.real(place)

    def x(self, name: str) -> Node:
        """Return the real values of an argument; integers and truth values unchanged."""
        return self.real(self.place(name))

    def xs(self) -> list[Node]:
        """Return the real values of all tensor arguments, to be broadcast."""
        return [self.real(place) for argument, _ in self.a.inputs for place in self.places(argument.name)]

    def maybe(self, name: str) -> Node:
        """As `x`; None if it is omitted."""
        return self.x(name) if self.a.form_has(name) and self.places(name) else None

    def stored(self, name: str) -> Node:
        """Return an argument as it is held."""
        return self.graph.held(self.place(name))

    def steps(self, name: str) -> Node:
        """Return the distance of a quantised argument from its zero point, guarded against an engine's rewriting."""
        return self.apart(self.graph.steps(self.place(name)))

    # ---------------------------------------------------------------------------------------------------------- outputs

    def value(self, number: int = 0) -> Value:
        """Return the facts about an output."""
        return self.graph.value(self.operation.outputs[number])

    def hold(self, node: Node, number: int = 0) -> None:
        """Give an output as it is to be held."""
        self.graph.hold(self.operation.outputs[number], node)

    def hold_all(self, *nodes: Node) -> None:
        """Give as many outputs as the operation has."""
        for number, node in enumerate(nodes[: len(self.operation.outputs)]):
            self.hold(node, number)

    @abstractmethod
    def give(self, node: Node, number: int = 0, within: tuple[float, float] | None = None) -> None:
        """Give an output by its real values, which are kept within the activation's bounds."""

    @abstractmethod
    def give_steps(self, node: Node, number: int = 0) -> None:
        """Give a quantised output by its distance from the zero point, which is rounded and saturated."""

    @abstractmethod
    def counts(self, name: str, *, mean: bool) -> Node:
        """Return an argument for a pooling, in float32 for a mean: real numbers, or stored values as integers."""

    @abstractmethod
    def give_counts(self, node: Node, *, mean: bool) -> None:
        """Give the output by what a pooling of `counts` found, with channels first."""

    @abstractmethod
    def layer(self, product: Product, *, image: bool = True, fast: bool = True) -> None:
        """Give product(input, weights) + bias with the activation.

        image: whether outputs are pictures with channels first. fast: whether the engine's 8-bit kernels are right for
        the layer, wherever they are right at all.
        """

    @abstractmethod
    def give_product(self, product: Callable[[Node, Node], Node]) -> None:
        """Give product(x, y) of two computed matrices."""

    # ---------------------------------------------------------------------------------------------------- representation

    @abstractmethod
    def stored_constant(self, value: Value, number: Any, like: Node) -> Node:
        """Write a stored value of an operand, in the type of the node that holds it."""

    @abstractmethod
    def checked(self, indices: Node, size: Callable[[], int], rank: int) -> Node:
        """Return indices, so that one outside fails the execution. size: of the axis."""

    def require_new_shape(self) -> None:
        """Refuse a shape that is given at execution: nothing would check it."""
        for name in ("shape", "axes"):
            if self.a.form_has(name) and self.places(name):
                self.array(name)

    def folded(self) -> bool:
        """Whether the output became a constant of another type; False if the engine itself folds constants."""
        return False

    def halved(self, node: Node) -> Node:
        """Return real values of the output as the graph holds them: float16 may be rounded."""
        return node

    def sum_of_steps(self, kind: str) -> Node | None:
        """Return the real values of an ADD or SUB as of integers; None to compute it of the real values."""
        return None

    def apart(self, node: Node) -> Node:
        """Guard integers against an engine's rewriting of them and a subsequent factor."""
        return node

    # ------------------------------------------------------------------------------------------------------------- nodes

    def f32(self, number: float) -> Node:
        """Write a constant."""
        return self.constant(number, np.float32)

    def converted(self, node: Node, dtype: Any) -> Node:
        """Convert a node's values to another type."""
        return node if self.o.dtype(node) == dtype else self.o.convert(node, dtype)


Lower = Callable[[Any], None]
T = TypeVar("T", bound=GraphTask)


class SharedEntry(NamedTuple):
    """How to lower an operation on every engine; the fields are those of `kit.lowering.Entry`."""

    lower: Lower
    types: frozenset[int]
    variants: bool
    exact: bool


ENTRIES: dict[str, SharedEntry] = {}
"""The only lowering of each operation for all engines with `Primitives`, except those that a back end replaces."""


def entry(
    *names: str, types: frozenset[int] = FLOATS | QUANTS, variants: bool = False, exact: bool = False
) -> Callable[[Lower], Lower]:
    """Make a function the entry of operations in the tables of all engines.

    variants: whether engines may have a variant for 8-bit kernels. exact: as of `kit.lowering.Entry`.
    """

    def add(function: Lower) -> Lower:
        ENTRIES.update(dict.fromkeys(names, SharedEntry(function, types, variants, exact)))
        return function

    return add


COMPOSITES: dict[str, Composite[Any]] = {}
"""Functions that engines with `Primitives` may have whole."""


def composite(
    name: str, find: Callable[[Model], Mapping[int, Any]]
) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    """Make a function write a composite, in the tables of all engines; as of `LoweringTable.composite`."""

    def add(function: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        COMPOSITES[name] = Composite(find, function)
        return function

    return add


def table_for(
    task: type[T],
    engine: str,
    elsewhere: Mapping[str, str],
    without: Collection[str] = (),
    *,
    forms: Mapping[int, tuple[str, ...]] | None = None,
    types: Mapping[str, frozenset[int]] = MappingProxyType({}),
    inexact: Collection[str] = (),
) -> LoweringTable[T]:
    """Make a table of all entries. A driver may replace some: `table.entry` adds another one.

    Args:
        task: The class of the engine's tasks.
        engine: The engine's name.
        elsewhere: Reasons for operations that have no entry.
        without: Operations left to the driver.
        forms: The kernel variants for 8 bits, by operation type.
        types: The types of operations of which the engine supports others than most.
        inexact: Operations whose 8-bit results may be 1 LSB off, although those of other engines are not.
    """
    table: LoweringTable[T] = LoweringTable(engine, FLOATS | QUANTS, elsewhere)
    for name, (lower, common, variants, exact) in ENTRIES.items():
        if name not in without:
            known = forms or {} if variants else {}
            table.entry(name, types=types.get(name, common), forms=known, exact=exact and name not in inexact)(lower)
    table.composites.update(COMPOSITES)
    return table
